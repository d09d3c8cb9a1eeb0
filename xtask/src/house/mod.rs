//! The house rules: rules for every file of the repository, enforced by a test instead of by reviewers.

mod circles;
mod crates;
mod designs;
pub(crate) mod files;
mod links;
pub(crate) mod markdown;
mod prose;
mod published;
mod terms;
mod text;
mod width;

pub(crate) use files::rust as rust_files;

use crate::failure::Failure;
use crate::workspace::Workspace;
use std::fmt;

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
    if violations.is_empty() { Ok(()) } else { Err(Failure::House(violations.len())) }
}

fn violations(workspace: &Workspace) -> Result<Vec<Violation>, Failure> {
    let files = files::read(&workspace.root)?;
    let mut violations: Vec<Violation> = files.iter().flat_map(text::violations).collect();
    violations.extend(crates::violations(&workspace.packages));
    violations.extend(crates::unguarded(workspace)?);
    violations.extend(published::violations(workspace));
    violations.extend(designs::violations(&files));
    violations.extend(circles::violations(&files));
    violations.extend(links::violations(&files, &files::tracked(&workspace.root)?));
    violations.extend(terms::violations(&files));
    violations.extend(files.iter().flat_map(width::violations));
    Ok(violations)
}

#[cfg(test)]
mod tests {
    use super::violations;
    use crate::workspace::Workspace;

    #[test]
    fn this_repository_keeps_the_rules() {
        let workspace = Workspace::read().expect("a workspace");
        let violations = violations(&workspace).expect("readable files");
        let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "{} rules are broken:\n{}", lines.len(), lines.join("\n"));
    }
}
