//! `cargo xtask fuzz`: runs the fuzz targets longer than `cargo xtask test`, with a new seed every time.

use crate::failure::Failure;
use crate::stages::Stages;
use crate::workspace::{Package, Target, Workspace, tests};
use std::time::{SystemTime, UNIX_EPOCH};

/// Runs the fuzz targets of every package that has some. The build is optimized but has the checks of a development
/// build, because an unnoticed overflow would hide errors.
pub(crate) fn fuzz(workspace: &Workspace, seconds: u64, seed: Option<u64>) -> Result<(), Failure> {
    let seed = seed.unwrap_or_else(fresh);
    println!("seed {seed}");
    let (seconds, seed) = (seconds.to_string(), seed.to_string());
    let variables = [
        ("PORTCULLIS_FUZZ_SECONDS", seconds.as_str()),
        ("PORTCULLIS_FUZZ_SEED", &seed),
        ("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true"),
        ("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true"),
    ];
    // The additional checks need a separate build.
    let target = workspace.target_beside("fuzz");
    let mut stages = Stages::new(workspace, "fuzz");
    // Their results are independent, so each runs even if earlier ones fail.
    let run = |(package, program): (&Package, &Target)| {
        let what = ["test", "--package", package.name.as_str(), "--release", "--target-dir", &target];
        let filter = if program.name == "fuzz" { "" } else { "fuzz::" };
        let arguments = [&what[..], &["--test", &program.name, "--", "--nocapture", filter]].concat();
        stages.cargo(&package.name, &variables, &arguments)
    };
    Failure::all(workspace.packages.iter().filter_map(targets).map(run).filter_map(Result::err).collect())?;
    stages.finish();
    Ok(())
}

/// The fuzz targets of a package: an integration test named `fuzz`, or the module of that name in a larger
/// integration test.
fn targets(package: &Package) -> Option<(&Package, &Target)> {
    let program = |test: &&Target| test.name == "fuzz";
    let module = |test: &&Target| test.src_path.with_file_name("fuzz.rs").exists();
    tests(package).find(program).or_else(|| tests(package).find(module)).map(|test| (package, test))
}

/// A seed that no earlier run had: microseconds since 1970.
fn fresh() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use super::targets;
    use crate::workspace::Workspace;
    use std::fs;

    /// A test filter that matches nothing passes, so the module that the filter names must exist.
    #[test]
    fn every_fuzz_target_is_found() {
        let workspace = Workspace::read().expect("a workspace");
        let found: Vec<_> = workspace.packages.iter().filter_map(targets).collect();
        let packages: Vec<&str> = found.iter().map(|(package, _)| package.name.as_str()).collect();
        for package in ["portcullis-suite", "portcullis-sim-suite", "portcullis-model"] {
            assert!(packages.contains(&package), "{package} is not in {packages:?}");
        }
        for (package, program) in found.iter().filter(|(_, program)| program.name != "fuzz") {
            let text = fs::read_to_string(&program.src_path).expect("a source");
            assert!(text.lines().any(|line| line == "mod fuzz;"), "{} of {}", program.name, package.name);
        }
    }
}
