//! `--html`: a page in addition to what is printed, and the origin of a document.

use crate::Failure;
use crate::replacement::Replacement;
use portcullis_report as report;
use serde::Serialize;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Which program made a document, and its command line.
#[derive(Serialize)]
pub(crate) struct Origin {
    version: &'static str,
    command: Vec<String>,
}

impl Origin {
    /// This program with its arguments.
    pub(crate) fn of_this_run() -> Self {
        let arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
        Self::of(arguments)
    }

    /// This program with arguments that have the same effect as those it was given.
    pub(crate) fn of(arguments: impl IntoIterator<Item = String>) -> Self {
        let command = std::iter::once("portcullis".to_owned()).chain(arguments).collect();
        Self { version: env!("CARGO_PKG_VERSION"), command }
    }
}

/// The file to which the page is written.
pub(crate) struct Target<'a> {
    /// The path as the user gave it.
    path: &'a Path,
    /// The resolved path. The page replaces this file, not a link to it.
    file: PathBuf,
}

impl<'a> Target<'a> {
    /// Refuses a path that is one of `inputs`, that holds anything but a page, or that cannot be written. Changes
    /// nothing.
    pub(crate) fn new<'i>(path: &'a Path, inputs: impl IntoIterator<Item = &'i PathBuf>) -> Result<Self, Failure> {
        if path == Path::new("-") {
            return Err(refused(
                path,
                "expected a file, because the results go to standard output; a file of this name is `./-`",
            ));
        }
        if inputs.into_iter().any(|input| is_same(input, path)) {
            return Err(refused(path, "this file is one of the inputs; the page needs a file of its own"));
        }
        let cannot = |error| not_written(path, &error);
        let file = locate(path).map_err(cannot)?;
        if !is_free(&file).map_err(cannot)? {
            let reason = "this exists and is not a page that this program wrote; --html takes the file to write it to";
            return Err(refused(path, reason));
        }
        // Only creating a file shows whether the folder accepts one.
        Replacement::of(&file).map(drop).map_err(cannot)?;
        Ok(Self { path, file })
    }

    /// Writes the page for a document.
    pub(crate) fn write(&self, document: &impl Serialize) -> Result<(), Failure> {
        let document = serde_json::to_value(document).map_err(Failure::input)?;
        let page = report::page(&document).map_err(Failure::input)?;
        let replaced = Replacement::of(&self.file).and_then(|replacement| replacement.put(page.as_bytes()));
        replaced.map_err(|error| not_written(self.path, &error))
    }
}

fn refused(path: &Path, reason: impl Display) -> Failure {
    Failure::Input(format!("--html {}: {reason}", path.display()))
}

fn not_written(path: &Path, error: &io::Error) -> Failure {
    refused(path, format_args!("the page cannot be written: {error}"))
}

/// The path that `path` resolves to. The file need not exist yet.
fn locate(path: &Path) -> io::Result<PathBuf> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(path.to_owned()),
        Err(error) => Err(error),
        Ok(_) => fs::canonicalize(path),
    }
}

/// Whether a page may be written here: there is no file, an empty file, or an earlier page.
fn is_free(file: &Path) -> io::Result<bool> {
    let there = match fs::metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        there => there?,
    };
    if there.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    if !there.is_file() {
        return Ok(false);
    }
    // A replacement works on a read-only file too. But a user who made it read-only wants to keep it.
    let file = File::options().read(true).append(true).open(file)?;
    let mut beginning = Vec::new();
    file.take(report::BEGINNING.len() as u64).read_to_end(&mut beginning)?;
    Ok(beginning.is_empty() || beginning == report::BEGINNING.as_bytes())
}

/// Whether both paths lead to the same file, possibly through links.
fn is_same(one: &Path, other: &Path) -> bool {
    #[cfg(unix)]
    let identity = |path| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(path).map(|there| (there.dev(), there.ino()))
    };
    #[cfg(not(unix))]
    let identity = |path| fs::canonicalize(path);
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}
