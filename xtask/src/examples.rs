//! The packages of `examples/`. As members of the workspace they are built and tested with all others. Here a flaw is
//! planted in the example of a design, and its tests must report it by the name of its rule. `published` checks that
//! the examples need nothing of this repository.

use crate::failure::Failure;
use crate::process::run;
use crate::workspace::Workspace;

/// The folder with the packages.
pub(crate) const FOLDER: &str = "examples";
/// A flaw behind a feature of a package, the tests that find it, and lines that they print.
const FEATURE: &str = "custom-design/planted-reuse";
const TESTS: &str = "guarded";
const FOUND: [&str; 2] = ["guarded deferred: S3 (Reuse) is broken", "test attack ... FAILED"];

/// Fails unless the planted flaw is found. With the features of the whole workspace, only the example is built again.
pub(crate) fn planted(workspace: &Workspace) -> Result<(), Failure> {
    let arguments = ["test", "--workspace", "--features", FEATURE, "--test", TESTS, "--no-fail-fast"];
    let output = run(&mut workspace.cargo(&arguments))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match FOUND.iter().find(|line| output.status.success() || !text.contains(**line)) {
        Some(line) => {
            print!("{text}{}", String::from_utf8_lossy(&output.stderr));
            let reason = format!("with the feature `{FEATURE}`, the tests should print `{line}`");
            Err(Failure::contents(FOLDER)(reason))
        }
        None => Ok(()),
    }
}

/// The names of the packages.
pub(crate) fn names(workspace: &Workspace) -> impl Iterator<Item = &str> {
    let folder = workspace.root.join(FOLDER);
    let packages = workspace.packages.iter().filter(move |package| package.manifest_path.starts_with(&folder));
    packages.map(|package| package.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::{FOLDER, names};
    use crate::workspace::Workspace;
    use std::collections::BTreeSet;
    use std::fs;

    /// Every folder of `examples/` is a package that is tested, under its own name, and none depends on the settings of
    /// the workspace.
    #[test]
    fn every_example_stands_for_itself() {
        let workspace = Workspace::read().expect("a workspace");
        let mut found = BTreeSet::new();
        for entry in fs::read_dir(workspace.root.join(FOLDER)).expect("a folder") {
            let entry = entry.expect("an entry");
            let manifest = entry.path().join("Cargo.toml");
            let Ok(text) = fs::read_to_string(&manifest) else { continue };
            assert!(!text.contains("workspace"), "{} depends on the workspace's settings", manifest.display());
            found.insert(entry.file_name().into_string().expect("a name"));
        }
        assert!(!found.is_empty());
        assert_eq!(found, names(&workspace).map(str::to_owned).collect());
    }
}
