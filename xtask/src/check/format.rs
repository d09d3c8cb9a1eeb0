//! Checks the formatting of every Rust file. `cargo fmt` follows `mod` items only. So it misses modules that a
//! macro declares, and packages that are not in the workspace.

use crate::failure::Failure;
use crate::house;
use crate::process::run;
use crate::workspace::Workspace;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

/// Fails if rustfmt would change a file.
pub(crate) fn check(workspace: &Workspace) -> Result<(), Failure> {
    let files = unformatted(&workspace.root)?;
    let format = format!("rustfmt --edition 2024 {}", files.join(" "));
    let what = format!("stage `formatting` failed; to format the files:\n    {format}");
    if files.is_empty() { Ok(()) } else { Err(Failure::Other(what)) }
}

/// The Rust files below `root` that are not formatted.
fn unformatted(root: &Path) -> Result<Vec<String>, Failure> {
    let mut rustfmt = Command::new("rustfmt");
    rustfmt.args(["--check", "--files-with-diff", "--edition", "2024"]).args(house::rust_files(root)?);
    let output = run(rustfmt.current_dir(root).stderr(Stdio::inherit()))?;
    // rustfmt names a module once for each file that includes it.
    let files: BTreeSet<&str> = std::str::from_utf8(&output.stdout).unwrap_or_default().lines().collect();
    if files.is_empty() && !output.status.success() {
        // rustfmt has printed which file it cannot read.
        return Err(Failure::Stage { stage: "formatting".to_owned(), command: "cargo xtask check".to_owned() });
    }
    Ok(files.into_iter().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::unformatted;
    use crate::fixture;
    use crate::house;
    use crate::workspace::Workspace;
    use std::fs;
    use std::process::Command;

    /// The list of modules is a macro. The second module is not yet known to git.
    #[test]
    fn a_design_that_is_not_formatted_is_found() {
        let folder = fixture::folder(&[
            ("crates/portcullis/src/designs/mod.rs", "designs! {\n    good::Good,\n    bad::Bad,\n}\n"),
            ("crates/portcullis/src/designs/good.rs", "pub struct Good;\n"),
        ]);
        let root = folder.path();
        let git = |arguments: &[&str]| Command::new("git").args(arguments).current_dir(root).output();
        // Without git, all files are checked.
        let _ = git(&["init", "--quiet"]).and_then(|_| git(&["add", "."]));
        assert_eq!(unformatted(root).expect("rustfmt"), [""; 0]);
        fixture::write(root, "crates/portcullis/src/designs/bad.rs", "pub struct   Bad ;\n");
        let [found] = &unformatted(root).expect("rustfmt")[..] else { panic!("one file") };
        assert!(found.ends_with("designs/bad.rs"), "{found}");
    }

    #[test]
    fn the_designs_and_the_examples_are_checked() {
        let root = Workspace::read().expect("a workspace").root;
        let files = house::rust_files(&root).expect("a repository");
        let designs = "crates/portcullis/src/designs";
        for entry in fs::read_dir(root.join(designs)).expect("a folder") {
            let name = entry.expect("a file").file_name().into_string().expect("a name");
            assert!(files.contains(&format!("{designs}/{name}")), "{name}");
        }
        assert!(files.iter().any(|file| file == "examples/custom-design/src/lib.rs"));
    }
}
