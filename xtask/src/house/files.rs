//! The files that the rules are about.

use crate::failure::Failure;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

/// A text file of the repository.
#[derive(Debug)]
pub(crate) struct File {
    /// Relative to the root, with `/` between its parts.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// The files under `root`, including those that git does not track. Without git, all that are neither hidden nor
/// built.
pub(crate) fn paths(root: &Path) -> Result<Vec<String>, Failure> {
    let mut paths = match listed(root, &["--cached", "--others", "--exclude-standard"]) {
        Some(paths) => paths,
        None => walk(root)?,
    };
    // A tracked file may be deleted, with the deletion not yet committed.
    paths.retain(|path| root.join(path).is_file());
    Ok(paths)
}

/// The Rust files among them.
pub(crate) fn rust(root: &Path) -> Result<Vec<String>, Failure> {
    let mut paths = paths(root)?;
    paths.retain(|path| path.ends_with(".rs"));
    Ok(paths)
}

/// The files that git tracks under `root`; without git, all files that are neither hidden nor built.
pub(super) fn tracked(root: &Path) -> Result<Vec<String>, Failure> {
    listed(root, &["--cached"]).map_or_else(|| walk(root), Ok)
}

/// The text files among them.
pub(crate) fn read(root: &Path) -> Result<Vec<File>, Failure> {
    let mut files = Vec::new();
    for path in tracked(root)? {
        match fs::read(root.join(&path)) {
            // The rules are about text only.
            Ok(bytes) => files.extend(String::from_utf8(bytes).ok().map(|text| File { path, text })),
            // A tracked file that is deleted, with the deletion not yet committed.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::file(path)(error)),
        }
    }
    Ok(files)
}

/// The files that git lists with the options `which`. `None` if there is no git, or if `root` is not the root of a
/// repository.
fn listed(root: &Path, which: &[&str]) -> Option<Vec<String>> {
    let output = Command::new("git").args(["ls-files", "-z"]).args(which).current_dir(root).output().ok()?;
    let paths = String::from_utf8(output.stdout).ok()?;
    let paths: Vec<String> = paths.split_terminator('\0').map(str::to_owned).collect();
    (output.status.success() && !paths.is_empty()).then_some(paths)
}

/// Every file that is neither hidden nor built.
fn walk(root: &Path) -> Result<Vec<String>, Failure> {
    let mut paths = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        let at = root.join(&folder);
        for entry in fs::read_dir(&at).map_err(Failure::file(&at))? {
            let entry = entry.map_err(Failure::file(&at))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with('.') || name == "target" {
                continue;
            }
            let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
            let kind = entry.file_type().map_err(Failure::file(entry.path()))?;
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                paths.push(path);
            }
        }
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::{listed, read, rust, walk};
    use std::fs;
    use std::path::Path;

    #[test]
    fn both_ways_find_the_sources() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the root");
        let library = "crates/portcullis/src/lib.rs";
        assert!(walk(root).expect("readable folders").iter().any(|path| path == library));
        assert!(read(root).expect("readable files").iter().any(|file| file.path == library));
    }

    #[test]
    fn without_git_hidden_files_and_builds_are_left_out() {
        let root = std::env::temp_dir().join(format!("portcullis-house-{}", std::process::id()));
        for path in ["src/a.rs", "target/b.rs", ".hidden/c.rs"] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a new folder");
            fs::write(path, b"// text").expect("a new file");
        }
        fs::write(root.join("noise.bin"), b"\xff\xfe").expect("a new file");
        let found = (listed(&root, &[]), walk(&root).expect("readable folders"), read(&root).expect("readable files"));
        let sources = rust(&root).expect("readable folders");
        fs::remove_dir_all(&root).expect("ours");
        assert_eq!(found.0, None);
        assert_eq!(found.1, ["noise.bin", "src/a.rs"]);
        assert_eq!(found.2.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["src/a.rs"]);
        assert_eq!(sources, ["src/a.rs"]);
    }
}
