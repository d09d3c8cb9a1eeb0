//! `cargo xtask conformance`: the suite on the model and on QEMU. Its lines, and nothing else, go to standard output.

use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{qemu, stages};

pub(crate) fn conformance(workspace: &Workspace, list: bool) -> Result<(), Failure> {
    qemu::require()?;
    let mut arguments = vec!["run", "--quiet", "--package", "portcullis-qemu", "--bin", "conformance"];
    if list {
        arguments.extend(["--", "--list"]);
    }
    stages::run(workspace, "conformance", &[], &arguments)
}
