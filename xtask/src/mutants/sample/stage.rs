//! What a mutant has to get past: the tests of its package, then those that are built upon it, then the models.

use super::mutant::Mutant;
use super::watched::{Ended, Times, watch};
use crate::failure::Failure;
use crate::workspace::cargo;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Tests that are built and run together.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stage {
    pub(super) name: &'static str,
    package: &'static str,
    /// Which tests of the package; all of them where nothing is said.
    tests: &'static [&'static str],
    loom: bool,
}

const LIBRARY: Stage =
    Stage { name: "portcullis suite", package: "portcullis", tests: &["--lib", "--test", "suite"], loom: false };
const DRIVER: Stage = Stage { name: "portcullis-vtd", package: "portcullis-vtd", tests: &[], loom: false };
const LIBRARY_MODELS: Stage =
    Stage { name: "portcullis loom", package: "portcullis", tests: &["--test", "loom"], loom: true };
const DRIVER_MODELS: Stage =
    Stage { name: "portcullis-vtd loom", package: "portcullis-vtd", tests: &["--test", "loom"], loom: true };

/// The stages for a mutant, the one that is most likely to catch it first, and the slowest last.
pub(super) fn stages(mutant: &Mutant) -> &'static [Stage] {
    match mutant.package.as_str() {
        "portcullis" => &[LIBRARY, DRIVER, LIBRARY_MODELS],
        _ => &[DRIVER, DRIVER_MODELS],
    }
}

/// How a stage has ended, and how long it took to build and to run.
pub(super) struct Outcome {
    /// `None` where the tests could not be built.
    pub(super) ended: Option<Ended>,
    pub(super) build: Duration,
    pub(super) run: Times,
}

/// Where mutants are planted and tested.
pub(super) struct Bench {
    pub(super) tree: PathBuf,
    pub(super) target: PathBuf,
    /// Where tests keep what they write. One that is ended early leaves it behind.
    pub(super) scratch: PathBuf,
}

impl Bench {
    /// Builds the tests of a stage and runs them within `limits`.
    pub(super) fn run(&self, stage: &Stage, limits: Times) -> Result<Outcome, Failure> {
        empty(&self.scratch)?;
        let begun = Instant::now();
        let failure = |error| Failure::Program { program: "cargo".to_owned(), error };
        let mut build = self.command(stage);
        build.arg("--no-run").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let is_built = build.status().map_err(failure)?.success();
        let build = begun.elapsed();
        if !is_built {
            return Ok(Outcome { ended: None, build, run: Times { run: Duration::ZERO, silence: Duration::ZERO } });
        }
        let (ended, run) = watch(self.command(stage), limits)?;
        Ok(Outcome { ended: Some(ended), build, run })
    }

    /// The tests of a stage, as cargo builds and runs them.
    fn command(&self, stage: &Stage) -> Command {
        let mut command = Command::new(cargo());
        command.current_dir(&self.tree).args(["test", "--package", stage.package]).args(stage.tests);
        // Built often, for one changed line. Optimised as ever: unoptimised, the suite takes seven times as long to run, and what
        // is changed in one line is hardly built faster.
        command.env("CARGO_INCREMENTAL", "1").env("TMPDIR", &self.scratch);
        // Whether a case fails matters, not which is the smallest that does.
        command.env("PROPTEST_MAX_SHRINK_ITERS", "0");
        if stage.loom {
            command.args(crate::test::LOOM_PROFILE).env("RUSTFLAGS", crate::test::loom_flags());
            command.arg("--target-dir").arg(self.target.join("loom"));
        } else {
            command.arg("--target-dir").arg(&self.target);
        }
        command
    }
}

/// Makes a folder that has nothing in it.
fn empty(folder: &Path) -> Result<(), Failure> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(Failure::file(folder)(error)),
        _ => {}
    }
    fs::create_dir_all(folder).map_err(Failure::file(folder))
}
