//! `--html`: a page beside what is printed, and what a document says of its own making.

use crate::Failure;
use portcullis_lab::report;
use serde::Serialize;
use std::fs::{self, File};
use std::path::Path;

/// Which program made a document, and how it was called.
#[derive(Serialize)]
pub(crate) struct Origin {
    version: &'static str,
    command: Vec<String>,
}

impl Origin {
    /// This program, as it was called.
    pub(crate) fn of_this_run() -> Self {
        let arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
        let command = std::iter::once("portcullis".to_owned()).chain(arguments).collect();
        Self { version: env!("CARGO_PKG_VERSION"), command }
    }
}

/// Refuses a file that cannot be written, before any work is done. What it holds stays until there is a page.
pub(crate) fn check(path: &Path) -> Result<(), Failure> {
    File::options().append(true).create(true).open(path).map(drop).map_err(|error| refused(path, &error))
}

/// Writes the page for a document.
pub(crate) fn write(path: &Path, document: &impl Serialize) -> Result<(), Failure> {
    let document = serde_json::to_value(document).map_err(Failure::input)?;
    let page = report::page(&document).map_err(Failure::input)?;
    fs::write(path, page).map_err(|error| refused(path, &error))
}

fn refused(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Input(format!("--html {}: the page cannot be written: {error}", path.display()))
}
