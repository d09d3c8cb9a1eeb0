//! `cargo xtask readme`: the tables of the README and of its pages in `docs`, written anew. The test that compares them with what the
//! program prints does it.

use crate::failure::Failure;
use crate::stages;
use crate::workspace::Workspace;

pub(crate) fn readme(workspace: &Workspace) -> Result<(), Failure> {
    let arguments = ["test", "--quiet", "--package", "portcullis-cli", "--test", "cli", "readme"];
    stages::run(workspace, "readme", &[("PORTCULLIS_README", "write")], &arguments)
}
