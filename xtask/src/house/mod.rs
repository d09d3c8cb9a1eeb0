//! The house rules: rules for every file of the repository, enforced by a test instead of by reviewers.

mod circles;
mod crates;
mod designs;
pub(crate) mod files;
mod links;
pub(crate) mod markdown;
mod prose;
mod terms;
#[cfg(test)]
mod tests;
mod text;
mod width;

pub(crate) use files::rust as rust_files;

use crate::failure::Failure;
use crate::workspace::Workspace;
use files::File;
use std::fmt;

/// Finds what breaks a rule in the files of the repository.
type Rule = fn(&[File]) -> Vec<Violation>;

const RULES: [Rule; 6] = [
    text::violations,
    designs::violations,
    circles::violations,
    links::violations,
    terms::violations,
    width::violations,
];

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// A file, with or without a line number, or a crate.
    place: String,
    what: String,
}

impl Violation {
    fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { place: place.into(), what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// Fails if the workspace breaks a rule, and prints every violation.
pub(crate) fn check(workspace: &Workspace) -> Result<(), Failure> {
    let violations = violations(workspace)?;
    for violation in &violations {
        println!("{violation}");
    }
    let (count, repeat) = (violations.len(), "cargo test --package xtask house");
    let what = format!("stage `house rules` failed: {count} broken; to repeat it:\n    {repeat}");
    if violations.is_empty() { Ok(()) } else { Err(Failure::Other(what)) }
}

fn violations(workspace: &Workspace) -> Result<Vec<Violation>, Failure> {
    let files = files::read(&workspace.root)?;
    let mut violations: Vec<Violation> = RULES.iter().flat_map(|rule| rule(&files)).collect();
    violations.extend(crates::violations(&workspace.packages));
    violations.extend(crates::unguarded(workspace)?);
    violations.extend(crates::unpublishable(workspace));
    Ok(violations)
}
