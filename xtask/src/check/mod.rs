//! `cargo xtask check`: what is wrong with the sources without running them.

mod format;

use crate::failure::Failure;
use crate::house;
use crate::stages::{Stages, require};
use crate::workspace::{NO_STD_PROOF, Workspace};

pub(crate) fn check(workspace: &Workspace) -> Result<(), Failure> {
    require("fmt", "rustfmt")?;
    require("clippy", "clippy")?;
    let mut stages = Stages::new(workspace, "check");
    let proof_target = workspace.target_beside("no-std-proof");
    stages.stage("house rules", "the rules of xtask/src/house, over every file", house::check)?;
    stages.stage("formatting", "rustfmt --check, over every Rust file", format::check)?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
    stages.cargo("clippy", &[], &clippy)?;
    let clippy = ["clippy", "--manifest-path", NO_STD_PROOF, "--all-features", "--target-dir", &proof_target];
    let clippy = [&clippy[..], &["--", "-D", "warnings"]].concat();
    stages.cargo("clippy of the no_std proof", &[], &clippy)?;
    let mut doc = vec!["doc", "--no-deps", "--all-features"];
    for package in workspace.libraries() {
        doc.extend(["--package", &package.name]);
    }
    stages.cargo("documentation", &[("RUSTDOCFLAGS", "-D warnings")], &doc)?;
    stages.finish();
    Ok(())
}
