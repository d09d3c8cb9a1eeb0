//! `cargo xtask readme`: writes the generated tables of the documents: those that repeat the code and, by the test that
//! compares them with what the program prints, those that come from runs.

use crate::failure::Failure;
use crate::stages;
use crate::tables;
use crate::workspace::Workspace;

pub(crate) fn readme(workspace: &Workspace, quick: bool) -> Result<(), Failure> {
    tables::write(workspace)?;
    if quick {
        return Ok(());
    }
    let arguments = ["test", "--quiet", "--package", "portcullis-cli", "--test", "cli", "readme"];
    stages::run(workspace, "readme", &[("PORTCULLIS_README", "write")], &arguments)
}
