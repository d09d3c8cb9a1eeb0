//! Chores that are one cargo command.

use crate::failure::Failure;
use crate::stages::{Stages, succeed};
use crate::workspace::Workspace;
use crate::{apt, tables};

/// Runs the suite on the model and on QEMU. Only the lines of the suite go to standard output.
pub(crate) fn conformance(workspace: &Workspace, list: bool) -> Result<(), Failure> {
    apt::qemu()?;
    let arguments = ["run", "--quiet", "--package", "portcullis-qemu", "--bin", "conformance", "--", "--list"];
    succeed("conformance", &mut workspace.cargo(if list { &arguments } else { &arguments[..6] }))
}

/// Writes the generated tables of the documents: those that repeat the code and, by the test that compares them with
/// what the program prints, those that come from runs.
pub(crate) fn readme(workspace: &Workspace, quick: bool) -> Result<(), Failure> {
    tables::write(workspace)?;
    if quick {
        return Ok(());
    }
    let arguments = ["test", "--quiet", "--package", "portcullis-cli", "--test", "cli", "readme"];
    succeed("readme", workspace.cargo(&arguments).env("PORTCULLIS_README", "write"))
}

/// Runs the soak test of the design `portcullis` far longer than `cargo xtask test`. The build is optimized, like the
/// code that a program would run.
pub(crate) fn soak(workspace: &Workspace, operations: u64) -> Result<(), Failure> {
    let mut stages = Stages::new(workspace, "soak");
    let arguments = ["test", "--package", "portcullis-bench", "--release", "--test", "soak", "--", "--nocapture"];
    stages.cargo("soak", &[("PORTCULLIS_SOAK_OPERATIONS", &operations.to_string())], &arguments)?;
    stages.finish();
    Ok(())
}
