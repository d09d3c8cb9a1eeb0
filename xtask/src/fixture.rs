//! Files for unit tests.

use crate::house::files::File;
use crate::workspace::Package;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A new folder with these files, each with its text. It is removed at the end of the test.
pub(crate) fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a new folder");
    files.iter().for_each(|(path, text)| write(folder.path(), path, text));
    folder
}

/// Writes a file, in folders that need not exist.
pub(crate) fn write(folder: &Path, path: &str, text: &str) {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a new folder");
    fs::write(path, text).expect("a new file");
}

/// The lines of what a program has printed.
pub(crate) fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// A file for rules and tables to read.
pub(crate) fn file(path: &str, text: &str) -> File {
    File { path: path.to_owned(), text: text.to_owned() }
}

/// A package as cargo describes it, with these fields.
pub(crate) fn package(fields: Value) -> Package {
    let mut package = json!({"name": "a", "version": "0.1.0", "id": "a", "manifest_path": "Cargo.toml", "targets": [],
        "dependencies": [], "features": {}});
    for (field, value) in fields.as_object().expect("fields") {
        package[field] = value.clone();
    }
    serde_json::from_value(package).expect("what cargo prints")
}
