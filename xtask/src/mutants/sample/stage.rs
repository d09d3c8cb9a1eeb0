//! The stages that a mutant has to survive: the tests of its package, then those of packages that depend on it,
//! then the loom models.

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
    /// The test targets of the package; all of them if empty.
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

/// The stages for a mutant. The one that is most likely to catch it comes first, and the slowest last.
pub(super) fn stages(mutant: &Mutant) -> &'static [Stage] {
    match mutant.package.as_str() {
        "portcullis" => &[LIBRARY, DRIVER, LIBRARY_MODELS],
        _ => &[DRIVER, DRIVER_MODELS],
    }
}

/// The result of a stage, and how long it took to build and to run.
pub(super) struct Outcome {
    /// `None` if the tests could not be built.
    pub(super) ended: Option<Ended>,
    pub(super) build: Duration,
    pub(super) run: Times,
}

/// Where mutants are planted and tested.
pub(super) struct Bench {
    pub(super) tree: PathBuf,
    pub(super) target: PathBuf,
    /// The folder for files that tests write. A test that is killed leaves its files there.
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

    /// The cargo command that builds and runs the tests of a stage.
    fn command(&self, stage: &Stage) -> Command {
        let mut command = Command::new(cargo());
        command.current_dir(&self.tree).args(["test", "--package", stage.package]).args(stage.tests);
        // The tests are built often, each time for one changed line. They are optimized all the same: without
        // optimization the suite takes seven times as long to run, and a change of one line is hardly built faster.
        command.env("CARGO_INCREMENTAL", "1").env("TMPDIR", &self.scratch);
        // Only whether a case fails matters, so failing cases are not shrunk.
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

/// Makes an empty folder.
fn empty(folder: &Path) -> Result<(), Failure> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(Failure::file(folder)(error)),
        _ => {}
    }
    fs::create_dir_all(folder).map_err(Failure::file(folder))
}
