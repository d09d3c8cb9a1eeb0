//! The files that the rules are about.

use crate::failure::Failure;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use walkdir::{DirEntry, WalkDir};

/// A file of the repository.
#[derive(Debug)]
pub(crate) struct File {
    /// Relative to the root, with `/` between its parts.
    pub(crate) path: String,
    /// Empty if the file is not text.
    pub(crate) text: String,
}

/// The files under `root`, including those that git does not track. Without git, all that are neither hidden nor
/// built.
pub(crate) fn paths(root: &Path) -> Result<Vec<String>, Failure> {
    existing(root, &["--cached", "--others", "--exclude-standard"])
}

/// The Rust files among them.
pub(crate) fn rust(root: &Path) -> Result<Vec<String>, Failure> {
    let mut paths = paths(root)?;
    paths.retain(|path| path.ends_with(".rs"));
    Ok(paths)
}

/// Makes `to` a copy of `from` without what is hidden or built.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    let files = paths(from)?;
    if to.is_dir() {
        // Cargo would build a test file that no longer exists.
        for path in paths(to)?.iter().filter(|path| !files.contains(path)).map(|path| to.join(path)) {
            fs::remove_file(&path).map_err(Failure::file(&path))?;
        }
    }
    for file in files {
        let to = to.join(&file);
        let folder = to.parent().unwrap_or(&to);
        fs::create_dir_all(folder).map_err(Failure::file(folder))?;
        replace(&from.join(&file), &to)?;
    }
    Ok(())
}

/// Makes `copy` a copy of a file. One that is there already keeps its time, so that nothing is built because of it.
pub(crate) fn replace(file: &Path, copy: &Path) -> Result<(), Failure> {
    let bytes = fs::read(file).map_err(Failure::file(file))?;
    if fs::read(copy).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    fs::write(copy, bytes).map_err(Failure::file(copy))
}

/// The files that git tracks under `root`; without git, all files that are neither hidden nor built.
pub(crate) fn read(root: &Path) -> Result<Vec<File>, Failure> {
    let read = |path: String| {
        let bytes = fs::read(root.join(&path)).map_err(Failure::file(&path))?;
        Ok(File { path, text: String::from_utf8(bytes).unwrap_or_default() })
    };
    existing(root, &["--cached"])?.into_iter().map(read).collect()
}

/// The files that git lists with the options `which`, or else all.
fn existing(root: &Path, which: &[&str]) -> Result<Vec<String>, Failure> {
    let mut paths = listed(root, which).map_or_else(|| walk(root), Ok)?;
    // A tracked file may be deleted, with the deletion not yet committed.
    paths.retain(|path| root.join(path).is_file());
    Ok(paths)
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
    let is_wanted = |entry: &DirEntry| {
        let name = entry.file_name().to_string_lossy();
        entry.depth() == 0 || !(name.starts_with('.') || name == "target")
    };
    let mut paths = Vec::new();
    for entry in WalkDir::new(root).into_iter().filter_entry(is_wanted) {
        let entry = entry.map_err(io::Error::from).map_err(Failure::file(root))?;
        let path = entry.path().strip_prefix(root).unwrap_or(root);
        paths.extend(entry.file_type().is_file().then(|| path.to_string_lossy().into_owned()));
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::{listed, read, rust, walk};
    use crate::fixture;
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
        let folder = fixture::folder(&[("src/a.rs", "// text"), ("target/b.rs", ""), (".hidden/c.rs", "")]);
        let root = folder.path();
        fs::write(root.join("noise.bin"), b"\xff\xfe").expect("a new file");
        assert_eq!(listed(root, &[]), None);
        assert_eq!(walk(root).expect("readable folders"), ["noise.bin", "src/a.rs"]);
        let texts: Vec<String> = read(root).expect("readable files").into_iter().map(|file| file.text).collect();
        assert_eq!(texts, ["", "// text"], "only text is read");
        assert_eq!(rust(root).expect("readable folders"), ["src/a.rs"]);
    }
}
