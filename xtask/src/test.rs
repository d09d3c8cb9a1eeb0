//! `cargo xtask test`: runs every test.

use crate::examples;
use crate::failure::Failure;
use crate::frames;
use crate::linux;
use crate::published;
use crate::qemu;
use crate::stages::Stages;
use crate::workspace::{NO_STD_PROOF, Workspace};
use std::path::Path;

pub(crate) fn test(workspace: &Workspace) -> Result<(), Failure> {
    let mut stages = Stages::new(workspace, "test");
    stages.stage("QEMU", "find it, or install it", |_| qemu::require())?;
    workspace.share_lock(Path::new(NO_STD_PROOF))?;
    let target = workspace.target_beside("no-std-proof");
    stages.cargo("no_std proof", &[], &["build", "--manifest-path", NO_STD_PROOF, "--target-dir", &target])?;
    stages.stage("frames", "cargo xtask frames", |workspace| frames::frames(workspace, &frames::Options::default()))?;
    stages.cargo("tests", &[], &["test", "--workspace"])?;
    stages.stage("examples", "cargo xtask examples", examples::examples)?;
    let what = "pack each, unpack it outside the workspace, build and document it there";
    stages.stage("published packages", what, published::test)?;
    loom_models(workspace, &mut stages)?;
    let skipped = stages.stage("kernel module", "cargo xtask linux test", linux::test)?;
    stages.finish();
    if let Some(why) = skipped {
        println!("\n1 stage skipped: the kernel module was not tested, because {why}");
    }
    Ok(())
}

/// The profile of loom models. It is optimized, because a model runs every interleaving.
pub(crate) const LOOM_PROFILE: [&str; 2] = ["--profile", "loom"];

/// Compiler flags that replace atomics and threads by those of loom.
pub(crate) fn loom_flags() -> String {
    match std::env::var("RUSTFLAGS") {
        Ok(flags) if !flags.is_empty() => format!("{flags} --cfg loom"),
        _ => "--cfg loom".to_owned(),
    }
}

/// Runs the loom models: integration tests named `loom` or `loom_…`. They need a separate build.
fn loom_models(workspace: &Workspace, stages: &mut Stages<'_>) -> Result<(), Failure> {
    let flags = loom_flags();
    let target = workspace.target_beside("loom");
    for package in &workspace.packages {
        let mut arguments = vec!["test", "--package", &package.name, "--target-dir", &target];
        arguments.extend(LOOM_PROFILE);
        let without = arguments.len();
        for test in package.tests().filter(|test| test.name.starts_with("loom")) {
            arguments.extend(["--test", &test.name]);
        }
        if arguments.len() > without {
            let name = format!("loom models of {}", package.name);
            stages.cargo(&name, &[("RUSTFLAGS", &flags)], &arguments)?;
        }
    }
    Ok(())
}
