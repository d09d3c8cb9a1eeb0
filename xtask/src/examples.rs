//! Tests the packages of `examples/`. Each is copied out of the workspace, as a project that starts from it would be,
//! and built and tested there. The example design goes through the test kit, and once more with a planted flaw, which
//! the kit must find by the name of its rule.

use crate::failure::Failure;
use crate::house::files;
use crate::workspace::{Workspace, cargo};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::{env, fs, process};

/// The packages, by their folders.
const EXAMPLES: [&str; 3] = ["quick-start", "custom-design", "custom-host"];
/// A package with a flaw behind a feature, and the lines of its tests that report the flaw.
const PLANTED: (&str, &str, [&str; 2]) =
    ("custom-design", "planted-reuse", ["guarded deferred: S3 (Reuse) is broken", "test attack ... FAILED"]);

/// The path from a package to the crates of the workspace.
const WITHIN: &str = "path = \"../../crates/";

/// Tests all packages.
pub(crate) fn examples(workspace: &Workspace) -> Result<(), Failure> {
    let outside = Outside::new(workspace)?;
    for example in EXAMPLES {
        outside.copy(workspace, example)?;
        let output = outside.test(workspace, example, &[])?;
        if !output.status.success() {
            return Err(said(&output));
        }
    }
    let (example, feature, expected) = PLANTED;
    let output = outside.test(workspace, example, &["--features", feature, "--no-fail-fast"])?;
    let text = String::from_utf8_lossy(&output.stdout);
    match expected.iter().find(|line| output.status.success() || !text.contains(**line)) {
        Some(line) => {
            let _ = said(&output);
            let reason = format!("with the feature `{feature}`, its tests should print `{line}`");
            Err(Failure::Contents { path: PathBuf::from(example), reason })
        }
        None => Ok(()),
    }
}

/// Prints the output of a failed test.
fn said(output: &Output) -> Failure {
    print!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Failure::Stage { stage: "examples".to_owned(), command: "cargo xtask examples".to_owned() }
}

/// A folder outside the workspace, which is removed when this is dropped.
struct Outside(PathBuf);

impl Outside {
    fn new(workspace: &Workspace) -> Result<Self, Failure> {
        let folder = env::temp_dir().join(format!("portcullis-examples-{}", process::id()));
        assert!(!folder.starts_with(&workspace.root), "temporary files lie in the workspace");
        fs::create_dir_all(&folder).map_err(Failure::file(&folder))?;
        Ok(Self(folder))
    }

    /// Copies a package. Only the paths to its dependencies are changed.
    fn copy(&self, workspace: &Workspace, example: &str) -> Result<(), Failure> {
        let from = workspace.root.join("examples").join(example);
        let crates = format!("path = \"{}/crates/", workspace.root.display());
        for file in files::paths(&from)? {
            let text = fs::read_to_string(from.join(&file)).map_err(Failure::file(from.join(&file)))?;
            let text = if file == "Cargo.toml" { text.replace(WITHIN, &crates) } else { text };
            self.write(example, &file, &text)?;
        }
        // The same lock file as for the workspace, so that the same crates are used.
        let lock = workspace.root.join("Cargo.lock");
        self.write(example, "Cargo.lock", &fs::read_to_string(&lock).map_err(Failure::file(&lock))?)
    }

    fn write(&self, example: &str, file: &str, text: &str) -> Result<(), Failure> {
        let path = self.0.join(example).join(file);
        let folder = path.parent().expect("a file lies in a folder");
        fs::create_dir_all(folder).map_err(Failure::file(folder))?;
        fs::write(&path, text).map_err(Failure::file(&path))
    }

    /// Builds and tests a package with the settings of the workspace, so that common dependencies are built once.
    fn test(&self, workspace: &Workspace, example: &str, arguments: &[&str]) -> Result<Output, Failure> {
        Command::new(cargo())
            .args(["test", "--offline", "--config"])
            .arg(workspace.root.join(".cargo/config.toml"))
            .args(["--config", "profile.dev.package.lzma-rust2.opt-level=3"])
            .arg("--target-dir")
            .arg(workspace.root.join(&workspace.target))
            .args(arguments)
            .current_dir(self.0.join(example))
            .envs([("CARGO_PROFILE_DEV_DEBUG", "false"), ("CARGO_PROFILE_DEV_INCREMENTAL", "false")])
            .envs([("CARGO_PROFILE_DEV_LTO", "off"), ("CARGO_PROFILE_DEV_OPT_LEVEL", "1")])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| Failure::Program { program: "cargo".to_owned(), error })
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // If the removal fails, the folder stays among the temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::{EXAMPLES, PLANTED, WITHIN};
    use crate::workspace::Workspace;
    use std::fs;

    /// Every folder of `examples/` is tested, and none depends on the workspace's settings.
    #[test]
    fn every_example_stands_for_itself() {
        let root = Workspace::read().expect("a workspace").root.join("examples");
        let mut found = Vec::new();
        for entry in fs::read_dir(&root).expect("a folder") {
            let entry = entry.expect("an entry");
            let manifest = entry.path().join("Cargo.toml");
            let Ok(text) = fs::read_to_string(&manifest) else { continue };
            assert!(!text.contains("workspace"), "{} depends on the workspace's settings", manifest.display());
            assert!(text.contains(WITHIN), "{} depends on no crate of the workspace", manifest.display());
            found.push(entry.file_name().into_string().expect("a name"));
        }
        found.sort();
        let mut tested = EXAMPLES;
        tested.sort();
        assert_eq!(found, tested, "the packages in examples/ are those that are tested");
        assert!(EXAMPLES.contains(&PLANTED.0));
    }
}
