//! `cargo xtask conformance`: runs the suite on the model and on QEMU. Only the lines of the suite go to standard
//! output.

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
