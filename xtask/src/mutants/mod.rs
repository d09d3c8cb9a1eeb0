//! `cargo xtask mutants --known`: flaws of the library that no test caught at one time. Each is planted again, one
//! at a time, in a copy of the tree, and the test that is named for it must catch it. `sample` plants generated
//! mutants.

mod driver;
mod library;
mod memory;
mod runs;
mod sample;
mod unit;

pub(crate) use sample::sample;

use crate::failure::Failure;
use crate::house::files;
use crate::workspace::{Workspace, cargo};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// A flaw: a replacement at one place of the sources, and the test that catches it.
pub(crate) struct Mutant {
    /// A short description of the flaw.
    name: &'static str,
    /// The safety rule that the flaw breaks, if it breaks one.
    rule: &'static str,
    file: &'static str,
    /// Text that occurs exactly once in the file.
    find: &'static str,
    replace: &'static str,
    package: &'static str,
    /// The test crate with the test: `lib`, or the name of an integration test. `loom` is built for the model
    /// checker.
    target: &'static str,
    test: &'static str,
}

impl Mutant {
    /// The contents of the file with the flaw in it.
    fn planted(&self, root: &Path) -> Result<String, Failure> {
        let path = root.join(self.file);
        let text = fs::read_to_string(&path).map_err(Failure::file(&path))?;
        match text.matches(self.find).count() {
            1 => Ok(text.replace(self.find, self.replace)),
            times => {
                let reason = format!("mutant `{}`: its text occurs {times} times in the file, not once", self.name);
                Err(Failure::Contents { path, reason })
            }
        }
    }

    /// The names of the package, the test crate and the test.
    fn caught_by(&self) -> [&'static str; 3] {
        [self.package, self.target, self.test]
    }

    /// The cargo command that runs the test in `tree`. With `build`, it only builds the test.
    fn command(&self, tree: &Path, target_dir: &str, build: bool) -> Command {
        let mut command = Command::new(cargo());
        command.current_dir(tree).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.args(["test", "--quiet", "--package", self.package]);
        // A test is built for every flaw and run once. So builds are incremental, and not optimized.
        command.envs([("CARGO_INCREMENTAL", "1"), ("CARGO_PROFILE_DEV_OPT_LEVEL", "0")]);
        command.args(["--config", "profile.dev.package.portcullis.opt-level=0"]);
        match self.target {
            "lib" => command.arg("--lib"),
            target => command.args(["--test", target]),
        };
        if self.target == "loom" {
            command.args(crate::test::LOOM_PROFILE).env("RUSTFLAGS", crate::test::loom_flags());
            command.args(["--target-dir", &format!("{target_dir}/loom")]);
        } else {
            command.args(["--target-dir", target_dir]);
        }
        if build {
            command.arg("--no-run");
        } else {
            command.args(["--", "--exact", self.test]);
        }
        command
    }
}

/// Every flaw.
fn known() -> impl Iterator<Item = &'static Mutant> {
    library::MUTANTS.iter().chain(memory::MUTANTS).chain(runs::MUTANTS).chain(driver::MUTANTS).chain(unit::MUTANTS)
}

/// The result of a run of the test that is named for a flaw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Passed,
    Failed,
    /// The test does not exist, or cannot be built.
    NotRun,
}

/// Plants each flaw whose name contains `only`, and fails unless each is caught.
pub(crate) fn mutants(workspace: &Workspace, only: Option<&str>) -> Result<(), Failure> {
    let target = workspace.root.join(workspace.target_beside("mutants"));
    let (tree, target_dir) = (target.join("tree"), target.join("target").display().to_string());
    copy(workspace, &tree)?;
    let chosen: Vec<&Mutant> = known().filter(|mutant| only.is_none_or(|only| mutant.name.contains(only))).collect();
    let mut sound = BTreeSet::new();
    for mutant in &chosen {
        // A test that fails without the flaw catches nothing.
        if sound.insert(mutant.caught_by()) && run(mutant, &tree, &target_dir)? != Verdict::Passed {
            return Err(Failure::MutantTest(mutant.caught_by().join(" ")));
        }
    }
    let mut missed = 0;
    for mutant in &chosen {
        let begun = Instant::now();
        let path = tree.join(mutant.file);
        let sound = fs::read_to_string(&path).map_err(Failure::file(&path))?;
        fs::write(&path, mutant.planted(&tree)?).map_err(Failure::file(&path))?;
        let outcome = run(mutant, &tree, &target_dir)?;
        fs::write(&path, sound).map_err(Failure::file(&path))?;
        let verdict = match outcome {
            Verdict::Failed => "caught",
            Verdict::Passed => "MISSED",
            Verdict::NotRun => "NOT BUILT",
        };
        missed += usize::from(outcome != Verdict::Failed);
        let seconds = begun.elapsed().as_secs();
        println!("{verdict:<9} {:<4} {:<46} {} ({seconds} s)", mutant.rule, mutant.name, mutant.caught_by().join(" "));
    }
    println!("{} of {} known mutants are caught", chosen.len() - missed, chosen.len());
    if missed == 0 { Ok(()) } else { Err(Failure::Mutants(missed)) }
}

/// Builds the test and runs it.
fn run(mutant: &Mutant, tree: &Path, target_dir: &str) -> Result<Verdict, Failure> {
    let output = |build| {
        let mut command = mutant.command(tree, target_dir, build);
        command.output().map_err(|error| Failure::Program { program: "cargo".to_owned(), error })
    };
    let built = output(true)?;
    if !built.status.success() {
        eprintln!("{}", String::from_utf8_lossy(&built.stderr));
        return Ok(Verdict::NotRun);
    }
    let ran = output(false)?;
    let said = String::from_utf8_lossy(&ran.stdout);
    Ok(outcome(&said, ran.status.success()))
}

/// The result of a test from its output. A test that the filter did not match has not run.
fn outcome(said: &str, succeeded: bool) -> Verdict {
    match said.lines().find_map(|line| line.strip_prefix("running ")) {
        Some("1 test") if succeeded => Verdict::Passed,
        Some("1 test") => Verdict::Failed,
        _ => Verdict::NotRun,
    }
}

/// Copies the workspace without its build folders. Unchanged files are not written, so cargo rebuilds little.
fn copy(workspace: &Workspace, tree: &Path) -> Result<(), Failure> {
    let files = files::paths(&workspace.root)?;
    if tree.is_dir() {
        // Cargo would build a test file that no longer exists.
        for path in files::paths(tree)?.iter().filter(|path| !files.contains(path)).map(|path| tree.join(path)) {
            fs::remove_file(&path).map_err(Failure::file(&path))?;
        }
    }
    for file in files {
        let (from, to) = (workspace.root.join(&file), tree.join(&file));
        let contents = fs::read(&from).map_err(Failure::file(&from))?;
        if fs::read(&to).is_ok_and(|there| there == contents) {
            continue;
        }
        let folder = to.parent().unwrap_or(tree);
        fs::create_dir_all(folder).map_err(Failure::file(folder))?;
        fs::write(&to, contents).map_err(Failure::file(&to))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Verdict, known, outcome};
    use crate::workspace::Workspace;
    use std::collections::BTreeSet;

    /// A flaw whose place no longer exists could not be planted.
    #[test]
    fn every_known_mutant_has_its_place() {
        let workspace = Workspace::read().expect("a workspace");
        let mut gone = Vec::new();
        for mutant in known() {
            match mutant.planted(&workspace.root) {
                Ok(planted) => assert!(planted.contains(mutant.replace), "{}", mutant.name),
                Err(error) => gone.push(error.to_string()),
            }
            assert_ne!(mutant.find, mutant.replace, "{}", mutant.name);
        }
        assert!(gone.is_empty(), "{}", gone.join("\n"));
        let names: BTreeSet<&str> = known().map(|mutant| mutant.name).collect();
        assert_eq!(names.len(), known().count(), "two have one name");
    }

    #[test]
    fn a_test_that_did_not_run_has_caught_nothing() {
        assert_eq!(outcome("\nrunning 1 test\n.\ntest result: ok.", true), Verdict::Passed);
        assert_eq!(outcome("\nrunning 1 test\nF\ntest result: FAILED.", false), Verdict::Failed);
        assert_eq!(outcome("\nrunning 0 tests\n\ntest result: ok.", true), Verdict::NotRun);
        assert_eq!(outcome("", false), Verdict::NotRun);
    }
}
