//! `cargo xtask test`: runs every test, or the quick ones.

use crate::apt;
use crate::examples;
use crate::failure::Failure;
use crate::frames;
use crate::linux;
use crate::published;
use crate::stages::Stages;
use crate::workspace::{Workspace, tests};
use std::{panic, thread};

/// The programs of the quick tests, apart from the unit tests of all packages. The others run the program, QEMU or
/// whole evaluations, and take most of the time.
const QUICK: [&str; 6] = ["adapters", "suite", "contract", "dmar", "trace", "kit"];

/// What to run at each step. All packages are selected, so that all tests share the builds.
pub(crate) fn quick(workspace: &Workspace) -> Result<(), Failure> {
    let mut stages = Stages::new(workspace, "test quick");
    let programs = QUICK.iter().flat_map(|program| ["--test", program]);
    let arguments: Vec<&str> = ["test", "--workspace", "--lib", "--bins"].into_iter().chain(programs).collect();
    stages.cargo("tests", &[], &arguments)?;
    stages.finish();
    Ok(())
}

pub(crate) fn all(workspace: &Workspace) -> Result<(), Failure> {
    let mut stages = Stages::new(workspace, "test");
    stages.stage("QEMU", "find it, or install it", |_| apt::qemu())?;
    stages.cargo("tests", &[], &["test", "--workspace"])?;
    stages.stage("planted flaw", "the tests of an example find what is planted in it", examples::planted)?;
    let skipped = thread::scope(|scope| {
        // Some steps use one CPU, and guests wait much, so there is time for other stages.
        let beside = scope.spawn(|| {
            frames::frames(workspace, &frames::Options::default())?;
            linux::test(workspace)
        });
        let what = "pack each, unpack it outside the workspace, and build it there, and the examples with it";
        let published = stages.stage("published packages", what, published::test);
        let here = published.and_then(|()| loom_models(workspace, &mut stages));
        let what = "wait for cargo xtask frames and cargo xtask linux test, which began with the published packages";
        let wait = |_: &_| beside.join().unwrap_or_else(|panic| panic::resume_unwind(panic));
        match (here, stages.stage("no_std proof and kernel module", what, wait)) {
            (Ok(()), there) => there,
            (Err(here), there) => Failure::all([here].into_iter().chain(there.err()).collect()).map(|()| None),
        }
    })?;
    stages.finish();
    if let Some(why) = skipped {
        println!("\n1 stage skipped: the kernel module was not tested, because {why}");
    }
    Ok(())
}

/// The profile of loom models. It is optimized, because a model runs every interleaving.
pub(crate) const LOOM_PROFILE: [&str; 2] = ["--profile", "loom"];

/// Compiler flags with `--cfg name`, by which atomics are replaced: by those of loom, or by those that count lines.
pub(crate) fn flags_with(name: &str) -> String {
    match std::env::var("RUSTFLAGS") {
        Ok(flags) if !flags.is_empty() => format!("{flags} --cfg {name}"),
        _ => format!("--cfg {name}"),
    }
}

/// Runs the loom models: the integration tests named `loom`. They need a separate build.
fn loom_models(workspace: &Workspace, stages: &mut Stages<'_>) -> Result<(), Failure> {
    let with_models = workspace.packages.iter().filter(|package| tests(package).any(|test| test.name == "loom"));
    let packages: Vec<&str> = with_models.flat_map(|package| ["--package", package.name.as_str()]).collect();
    let target = workspace.target_beside("loom");
    let arguments = [&["test", "--test", "loom", "--target-dir", &target], &LOOM_PROFILE[..], &packages].concat();
    stages.cargo("loom models", &[("RUSTFLAGS", &flags_with("loom"))], &arguments)
}
