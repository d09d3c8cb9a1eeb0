//! `cargo xtask soak`: runs the soak test of the design `portcullis` far longer than `cargo xtask test`.

use crate::failure::Failure;
use crate::stages::Stages;
use crate::workspace::Workspace;

/// Runs the integration test named `soak`. The build is optimized, like the code that a program would run.
pub(crate) fn soak(workspace: &Workspace, operations: u64) -> Result<(), Failure> {
    let mut stages = Stages::new(workspace, "soak");
    let arguments = ["test", "--package", "portcullis-bench", "--release", "--test", "soak", "--", "--nocapture"];
    stages.cargo("soak", &[("PORTCULLIS_SOAK_OPERATIONS", &operations.to_string())], &arguments)?;
    stages.finish();
    Ok(())
}
