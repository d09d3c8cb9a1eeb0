//! `cargo xtask mutants --known`: flaws of the library that no test caught at one time. Each is planted again, one
//! at a time, in a copy of the tree, and the test that is named for it must catch it. `sample` plants generated
//! mutants.

mod sample;

use crate::failure::Failure;
use crate::house::files;
use crate::process;
use crate::workspace::{Workspace, cargo};
use clap::{ArgGroup, Args};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

#[derive(Args)]
#[command(group = ArgGroup::new("which").required(true))]
pub(crate) struct Options {
    /// Plant the flaws listed in xtask/known-mutants.jsonl, which no test caught at one time. The test that is named
    /// for a flaw has to catch it.
    #[arg(long, group = "which")]
    known: bool,
    /// Plant only the flaws with this text in their name.
    #[arg(long, requires = "known")]
    only: Option<String>,
    /// Plant this many mutants that cargo-mutants generates, in the files that safety depends on; docs/mutants.md
    /// explains the output. An interrupted run continues.
    #[arg(long, group = "which", requires = "seed", value_parser = clap::value_parser!(u32).range(1..))]
    sample: Option<u32>,
    /// The seed of the sample: the same seed selects the same mutants.
    #[arg(long, requires = "sample")]
    seed: Option<u64>,
    /// Draw from the files that match this glob, instead of those that safety depends on.
    #[arg(long, requires = "sample", value_name = "GLOB")]
    file: Vec<String>,
}

/// Plants the flaws that `options` select, and fails unless enough are caught.
pub(crate) fn mutants(workspace: &Workspace, options: &Options) -> Result<(), Failure> {
    if options.known {
        return plant(workspace, options.only.as_deref());
    }
    let (size, seed) = (options.sample.unwrap_or_default(), options.seed.unwrap_or_default());
    sample::sample(workspace, size as usize, seed, &options.file)
}

/// The file with the flaws, one a line.
const KNOWN: &str = "xtask/known-mutants.jsonl";

/// The test crate of a flaw that a guest catches.
const GUEST: &str = "guest";

/// How the error of a guest begins whose job, or whose kernel, has found something.
const ENDED_BY_JOB: [&str; 2] = ["its job ended with", "its kernel complains"];

/// A flaw: a replacement at one place of the sources, and the test that catches it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    /// A short description of the flaw.
    name: String,
    /// The safety rule that the flaw breaks; empty if it breaks none.
    rule: String,
    file: String,
    /// Text that occurs exactly once in the file.
    find: String,
    replace: String,
    /// The package, the test crate and the test. The crate is `lib`, `bins` or the name of an integration test; `loom`
    /// is built for the model checker. `guest` stands for the tests of `cargo xtask linux test`, which boot a kernel.
    caught_by: [String; 3],
}

impl Mutant {
    /// The contents of the file with the flaw in it.
    fn planted(&self, root: &Path) -> Result<String, Failure> {
        let path = root.join(&self.file);
        let text = fs::read_to_string(&path).map_err(Failure::file(&path))?;
        match text.matches(&self.find).count() {
            1 => Ok(text.replace(&self.find, &self.replace)),
            times => {
                let reason = format!("mutant `{}`: its text occurs {times} times in the file, not once", self.name);
                Err(Failure::contents(path)(reason))
            }
        }
    }

    /// The cargo command that builds the test in `tree` and runs it.
    fn command(&self, tree: &Path, target_dir: &str) -> Command {
        let [package, target, test] = &self.caught_by;
        let mut command = Command::new(cargo());
        command.current_dir(tree);
        if target == GUEST {
            command.args(["run", "--quiet", "--package", "xtask", "--", "linux", "test", test]);
            command.env("CARGO_TARGET_DIR", target_dir);
            return command;
        }
        command.args(["test", "--quiet", "--package", package]);
        // A test is built for every flaw and run once. So builds are incremental, and not optimized.
        command.envs([("CARGO_INCREMENTAL", "1"), ("CARGO_PROFILE_DEV_OPT_LEVEL", "0")]);
        command.args(["--config", "profile.dev.package.portcullis.opt-level=0"]);
        match target.as_str() {
            "lib" | "bins" => command.arg(format!("--{target}")),
            target => command.args(["--test", target]),
        };
        if target == "loom" {
            command.args(crate::test::LOOM_PROFILE).env("RUSTFLAGS", crate::test::flags_with("loom"));
            command.args(["--target-dir", &format!("{target_dir}/loom")]);
        } else {
            command.args(["--target-dir", target_dir]);
        }
        command.args(["--", "--exact", test]);
        command
    }
}

/// Every flaw of the list in `root`. An error of a row names its line.
fn known(root: &Path) -> Result<Vec<Mutant>, Failure> {
    let path = root.join(KNOWN);
    let text = fs::read_to_string(&path).map_err(Failure::file(&path))?;
    let rows = serde_json::Deserializer::from_str(&text).into_iter();
    rows.collect::<Result<_, _>>().map_err(Failure::contents(path))
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
fn plant(workspace: &Workspace, only: Option<&str>) -> Result<(), Failure> {
    let target = workspace.root.join(workspace.target_beside("mutants"));
    let (tree, target_dir) = (target.join("tree"), target.join("target").display().to_string());
    files::copy(&workspace.root, &tree)?;
    let mut chosen = known(&workspace.root)?;
    chosen.retain(|mutant| only.is_none_or(|only| mutant.name.contains(only)));
    let mut passed = BTreeSet::new();
    let mut missed = 0;
    for mutant in &chosen {
        // A test that fails without the flaw catches nothing.
        if passed.insert(&mutant.caught_by) && run(mutant, &tree, &target_dir)? != Verdict::Passed {
            return Err(unsound(&mutant.caught_by.join(" ")));
        }
        let begun = Instant::now();
        let path = tree.join(&mutant.file);
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
        println!("{verdict:<9} {:<4} {:<46} {} ({seconds} s)", mutant.rule, mutant.name, mutant.caught_by.join(" "));
    }
    println!("{} of {} known mutants are caught", chosen.len() - missed, chosen.len());
    if missed == 0 { Ok(()) } else { Err(Failure::Other(format!("{missed} of the known mutants are not caught"))) }
}

/// The error about a test that would seem to catch everything.
fn unsound(test: &str) -> Failure {
    Failure::Other(format!("{test} does not exist, or fails without a flaw"))
}

fn run(mutant: &Mutant, tree: &Path, target_dir: &str) -> Result<Verdict, Failure> {
    let output = process::run(&mut mutant.command(tree, target_dir))?;
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let [_, target, test] = &mutant.caught_by;
    let verdict = match output.status.success() {
        succeeded if target != GUEST => outcome(&said, succeeded),
        true => Verdict::Passed,
        // A module that cannot be built has shown nothing, nor has a machine that did not come up.
        false if ENDED_BY_JOB.iter().any(|why| errors.contains(&format!("guest `{test}`: {why}"))) => Verdict::Failed,
        false => Verdict::NotRun,
    };
    if verdict == Verdict::NotRun {
        eprintln!("{errors}");
    }
    Ok(verdict)
}

/// The result of a test from its output. A test that the filter did not match has not run.
fn outcome(said: &str, succeeded: bool) -> Verdict {
    match said.lines().find_map(|line| line.strip_prefix("running ")) {
        Some("1 test") if succeeded => Verdict::Passed,
        Some("1 test") => Verdict::Failed,
        _ => Verdict::NotRun,
    }
}

#[cfg(test)]
mod tests {
    use super::{KNOWN, Verdict, known, outcome};
    use crate::fixture;
    use crate::workspace::Workspace;
    use std::collections::BTreeSet;

    /// A flaw whose place no longer exists could not be planted.
    #[test]
    fn every_known_mutant_has_its_place() {
        let root = Workspace::read().expect("a workspace").root;
        let known = known(&root).expect("a list of mutants");
        let mut gone = Vec::new();
        for mutant in &known {
            match mutant.planted(&root) {
                Ok(planted) => assert!(planted.contains(&mutant.replace), "{}", mutant.name),
                Err(error) => gone.push(error.to_string()),
            }
            assert_ne!(mutant.find, mutant.replace, "{}", mutant.name);
        }
        assert!(gone.is_empty(), "{}", gone.join("\n"));
        let names: BTreeSet<&str> = known.iter().map(|mutant| mutant.name.as_str()).collect();
        assert_eq!(names.len(), known.len(), "two have one name");
    }

    #[test]
    fn a_bad_row_is_named_by_its_line() {
        let folder = fixture::folder(&[]);
        let row = r#"{"name": "a", "rule": "S1", "file": "b.rs", "find": "c", "replace": "d", "caught_by": ["e", "lib", "f"]}"#;
        let read = |text: String| {
            fixture::write(folder.path(), KNOWN, &text);
            known(folder.path()).map(|rows| rows.len()).map_err(|error| error.to_string())
        };
        let (fine, bad) = (read(format!("{row}\n{row}\n")), read(format!("{row}\n{}\n", row.replace("find", "fnid"))));
        assert_eq!(fine, Ok(2));
        assert!(bad.is_err_and(|error| error.contains(KNOWN) && error.contains("`fnid`") && error.contains("line 2")));
    }

    #[test]
    fn a_test_that_did_not_run_has_caught_nothing() {
        assert_eq!(outcome("\nrunning 1 test\n.\ntest result: ok.", true), Verdict::Passed);
        assert_eq!(outcome("\nrunning 1 test\nF\ntest result: FAILED.", false), Verdict::Failed);
        assert_eq!(outcome("\nrunning 0 tests\n\ntest result: ok.", true), Verdict::NotRun);
        assert_eq!(outcome("", false), Verdict::NotRun);
    }
}
