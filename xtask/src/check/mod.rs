//! `cargo xtask check`: finds errors in the sources without running them.

mod format;
mod oldest;

use crate::failure::Failure;
use crate::house;
use crate::stages::{Stages, require};
use crate::tables;
use crate::workspace::{KERNEL_MODULE, NO_STD_PROOF, Workspace, library};

pub(crate) fn check(workspace: &Workspace) -> Result<(), Failure> {
    require("fmt", "rustfmt")?;
    require("clippy", "clippy")?;
    let mut stages = Stages::new(workspace, "check");
    stages.stage("house rules", "the rules of xtask/src/house, for every file", house::check)?;
    stages.stage("generated tables", "the tables of documents that repeat the code", tables::check)?;
    stages.stage("formatting", "rustfmt --check, for every Rust file", format::check)?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
    stages.cargo("clippy", &[], &clippy)?;
    for (name, manifest, features, target) in [
        ("clippy of the no_std proof", NO_STD_PROOF, "--all-features", "no-std-proof"),
        ("clippy of one design", NO_STD_PROOF, "--no-default-features", "no-std-proof"),
        ("clippy of the kernel module", KERNEL_MODULE, "--all-features", "kernel-module"),
    ] {
        let target = workspace.target_beside(target);
        let clippy = ["clippy", "--manifest-path", manifest, features, "--target-dir", &target];
        stages.cargo(name, &[], &[&clippy[..], &["--", "-D", "warnings"]].concat())?;
    }
    oldest::check(workspace, &mut stages)?;
    let mut doc = vec!["doc", "--no-deps", "--all-features"];
    for package in workspace.published().filter(|package| library(package).is_some()) {
        doc.extend(["--package", package.name.as_str()]);
    }
    stages.cargo("documentation", &[("RUSTDOCFLAGS", "-D warnings")], &doc)?;
    stages.finish();
    Ok(())
}
