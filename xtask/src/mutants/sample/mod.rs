//! `cargo xtask mutants --sample N --seed S`: checks whether the tests notice flaws that were not foreseen.
//! cargo-mutants plants `N` mutants of the files that safety depends on, and runs the tests. docs/mutants.md explains
//! the output.

mod list;
mod score;

use crate::failure::Failure;
use crate::house::files;
use crate::stages::installed;
use crate::workspace::{Workspace, cargo};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use score::Verdict;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// Tests of one build that mutants of a package have to survive.
struct Stage {
    name: &'static str,
    package: &'static str,
    /// What to build and which tests to run, as cargo-mutants takes it.
    arguments: &'static str,
}

/// With `--test-package`, cargo-mutants would run other tests first, without a mutant, than it runs later.
const OF_THE_LIBRARY: &str = "--cargo-arg=--package=portcullis-suite --cargo-arg=--package=portcullis-vtd \
    --cargo-arg=--lib --cargo-arg=--test=suite --cargo-arg=--test=contract --cargo-arg=--test=dmar";
const OF_THE_DESIGNS: &str = "--cargo-arg=--package=portcullis-suite --cargo-arg=--lib --cargo-arg=--test=suite";
/// Not the tests in documents, because rustdoc takes no [`FAIL_FAST`].
const OF_THE_DRIVER: &str = "--cargo-arg=--lib --cargo-arg=--test=contract --cargo-arg=--test=dmar";
const MODELS: &str = "--profile loom --cargo-arg=--test=loom";
/// The models of the library are beside the designs.
const MODELS_OF_THE_LIBRARY: &str = "--profile loom --cargo-arg=--package=portcullis-designs --cargo-arg=--test=loom";
/// The slow models come last, for what nothing else catches.
const STAGES: [Stage; 6] = [
    Stage { name: "portcullis", package: "portcullis", arguments: OF_THE_LIBRARY },
    Stage { name: "portcullis-designs", package: "portcullis-designs", arguments: OF_THE_DESIGNS },
    Stage { name: "portcullis-vtd", package: "portcullis-vtd", arguments: OF_THE_DRIVER },
    Stage { name: "portcullis-loom", package: "portcullis", arguments: MODELS_OF_THE_LIBRARY },
    Stage { name: "portcullis-designs-loom", package: "portcullis-designs", arguments: MODELS },
    Stage { name: "portcullis-vtd-loom", package: "portcullis-vtd", arguments: MODELS },
];

/// Ends a test program after its first failed test, which is all that a verdict needs. libtest offers this only where
/// unstable features are allowed. They are allowed for test programs, not for the compiler.
const FAIL_FAST: &str = "--cargo-arg=--config=target.'cfg(all())'.runner=['env','RUSTC_BOOTSTRAP=1'] \
    --cargo-test-arg=-- --cargo-test-arg=-Zunstable-options --cargo-test-arg=--fail-fast";

/// The largest address space of one process. A flawed loop may fill a list without end.
const MEMORY_MAX: u64 = 8 << 30;

/// Tests the `size` mutants that `seed` selects, except those that already have a verdict. They are from the files that
/// match `globs`, or from those that safety depends on if there are none. Fails if the tests catch too few.
pub(super) fn sample(workspace: &Workspace, size: usize, seed: u64, globs: &[String]) -> Result<(), Failure> {
    let root = &workspace.root;
    let mutants = list::all(root, globs)?;
    let equivalent = list::equivalent(root, if globs.is_empty() { Some(&mutants) } else { None })?;
    println!("{} of {} mutants are drawn", size.min(mutants.len()), mutants.len());
    let drawn = list::draw(mutants, size, seed);
    // Verdicts are for these sources and tests only.
    let folder = root.join(workspace.target_beside("mutants")).join(fingerprint(root)?);
    let mut verdicts: BTreeMap<&str, Verdict> = BTreeMap::new();
    for stage in &STAGES {
        let is_open = |name: &str| verdicts.get(name).is_none_or(|verdict| *verdict == Verdict::Missed);
        let asked = drawn.iter().filter(|mutant| mutant.package == stage.package && is_open(&mutant.name));
        let asked: Vec<&str> = asked.map(|mutant| mutant.name.as_str()).collect();
        let folder = folder.join(stage.name);
        let earlier = score::outcomes(&folder)?;
        let open: Vec<&str> = asked.iter().copied().filter(|name| !earlier.contains_key(*name)).collect();
        if !open.is_empty() {
            println!("\n==> {}: {} mutants, {} of them without a verdict", stage.name, asked.len(), open.len());
            run(root, stage, &open, &folder)?;
        }
        let found = score::outcomes(&folder)?;
        for name in asked {
            let none = || failed(format!("has no verdict on {name}"));
            verdicts.insert(name, *found.get(name).ok_or_else(none)?);
        }
    }
    let judged: Vec<_> = drawn.iter().map(|mutant| (mutant, verdicts[mutant.name.as_str()])).collect();
    let (said, wrong) = score::score(&judged, &equivalent);
    println!("\n{said}");
    if wrong.is_empty() { Ok(()) } else { Err(Failure::Other(wrong.join("\n"))) }
}

/// Lets cargo-mutants test the mutants with these names. It writes the verdicts to a new folder in `folder`.
fn run(root: &Path, stage: &Stage, names: &[&str], folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(Failure::file(folder))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    let mut command = cargo_mutants(root)?;
    command.args(["--package", stage.package, "--output"]).arg(folder.join(now.to_string()));
    command.args(["--gitignore=true", "--caught", "--unviable"]);
    // Other load may slow a run down.
    command.args(["--timeout-multiplier", "5", "--minimum-test-timeout", "60"]);
    for name in names {
        command.args(["--file", name.split(':').next().unwrap_or_default(), "--re", &exactly(name)]);
    }
    command.args(stage.arguments.split_whitespace()).args(FAIL_FAST.split_whitespace());
    if [MODELS, MODELS_OF_THE_LIBRARY].contains(&stage.arguments) {
        command.env("RUSTFLAGS", crate::test::flags_with("loom"));
    }
    // Each build is for one changed line. Only whether a case fails matters, so failing cases are not shrunk.
    command.envs([("CARGO_INCREMENTAL", "1"), ("PROPTEST_MAX_SHRINK_ITERS", "0")]);
    // The build folder is that of the copied tree, and goes with it.
    command.env_remove("CARGO_TARGET_DIR");
    let mut child = command.stdin(Stdio::null()).spawn().map_err(Failure::program("cargo mutants"))?;
    // A kernel without such limits gives the same verdicts.
    let limit = Rlimit { current: Some(MEMORY_MAX), maximum: Some(MEMORY_MAX) };
    let _ = prlimit(Some(Pid::from_child(&child)), Resource::As, limit);
    let status = child.wait().map_err(Failure::program("cargo mutants"))?;
    match status.code() {
        // All are caught, some are missed, some time out.
        Some(0 | 2 | 3) => Ok(()),
        Some(4) => Err(super::unsound(&format!("a test of {}", stage.name))),
        _ => Err(failed(format!("ended with {status}"))),
    }
}

fn failed(why: impl Display) -> Failure {
    Failure::Other(format!("cargo-mutants: {why}"))
}

/// The command `cargo mutants` in the tree at `root`.
fn cargo_mutants(root: &Path) -> Result<Command, Failure> {
    if !installed("mutants")? {
        let how = "`cargo mutants` is missing; `cargo install cargo-mutants --locked` installs it";
        return Err(Failure::Other(how.to_owned()));
    }
    let mut command = Command::new(cargo());
    command.args(["mutants", "--no-config"]).current_dir(root);
    Ok(command)
}

/// A regular expression that matches this name only.
fn exactly(name: &str) -> String {
    format!("^{}$", regex::escape(name))
}

/// A hash of what verdicts depend on: every file of the three crates and of the test kit in `tree`.
fn fingerprint(tree: &Path) -> Result<String, Failure> {
    let mut hasher = DefaultHasher::new();
    let mut paths = files::paths(tree)?;
    let crates = ["portcullis", "portcullis-designs", "portcullis-vtd", "portcullis-testkit"];
    let crates = crates.map(|name| format!("crates/{name}/"));
    paths.retain(|path| crates.iter().any(|folder| path.starts_with(folder)));
    paths.sort();
    for path in paths {
        let at = tree.join(&path);
        fs::read(&at).map_err(Failure::file(&at))?.hash(&mut hasher);
        path.hash(&mut hasher);
    }
    Ok(format!("sample-{:016x}", hasher.finish()))
}

#[cfg(test)]
mod tests {
    use super::{exactly, fingerprint};
    use crate::fixture;

    #[test]
    fn a_name_matches_itself_only() {
        let name = "a/b.rs:1:2: replace || with && in <impl X for Y>::f (2)";
        assert_eq!(exactly(name), r"^a/b\.rs:1:2: replace \|\| with \&\& in <impl X for Y>::f \(2\)$");
    }

    #[test]
    fn sources_and_tests_have_a_fingerprint() {
        let folder = fixture::folder(&[]);
        let write = |path: &str, text: &str| {
            fixture::write(folder.path(), path, text);
            fingerprint(folder.path()).expect("readable files")
        };
        let first = write("crates/portcullis/src/lib.rs", "1");
        let others = [write("README.md", "1"), write("crates/portcullis-cli/src/main.rs", "1")];
        let changed = [
            write("crates/portcullis/src/lib.rs", "2"),
            write("crates/portcullis-vtd/tests/contract.rs", "1"),
            write("crates/portcullis-testkit/src/lib.rs", "1"),
        ];
        assert_eq!(others, [first.clone(), first.clone()], "nothing rests on those");
        assert!(!changed.contains(&first) && changed[0] != changed[1] && changed[1] != changed[2], "{changed:?}");
    }
}
