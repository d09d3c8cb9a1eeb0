//! `cargo xtask conformance`: the suite on the model and on QEMU. Its lines, and nothing else, go to standard output.

use crate::failure::Failure;
use crate::qemu;
use crate::workspace::{Workspace, cargo};
use std::process::{Command, Stdio};

pub(crate) fn conformance(workspace: &Workspace, list: bool) -> Result<(), Failure> {
    qemu::require()?;
    let mut arguments = vec!["run", "--quiet", "--package", "portcullis-qemu", "--bin", "conformance"];
    if list {
        arguments.extend(["--", "--list"]);
    }
    let status = Command::new(cargo())
        .args(&arguments)
        .current_dir(&workspace.root)
        .stdin(Stdio::null())
        .status()
        .map_err(|error| Failure::Program { program: "cargo".to_owned(), error })?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::Stage { stage: "conformance".to_owned(), command: format!("cargo {}", arguments.join(" ")) })
    }
}
