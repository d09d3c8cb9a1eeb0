//! Every published package has what a registry requires and what its readers expect. `cargo publish` asks for a part of
//! this only at the upload, and for the rest never.

use super::Violation;
use crate::workspace::{Package, Workspace};

/// The files of each package. They may be links.
const FILES: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];
/// The most keywords, and the most categories, that crates.io accepts.
const WORDS_MAX: usize = 5;
/// The most characters of a keyword.
const LETTERS_MAX: usize = 20;

/// Reports what published packages lack.
pub(super) fn violations(workspace: &Workspace) -> Vec<Violation> {
    let mut violations = Vec::new();
    for package in workspace.published() {
        violations.extend(lacking(package).into_iter().map(|what| Violation::new(package.name.as_str(), what)));
        let missing = FILES.iter().filter(|file| !package.manifest_path.with_file_name(file).is_file());
        violations.extend(
            missing.map(|file| Violation::new(package.name.as_str(), format!("is published and has no {file}"))),
        );
    }
    violations
}

/// Lists what the manifest of a published package lacks.
fn lacking(package: &Package) -> Vec<&'static str> {
    let words_fit = |words: &[String]| (1..=WORDS_MAX).contains(&words.len());
    let is_short = |keyword: &String| keyword.len() <= LETTERS_MAX;
    let holds = [
        (package.description.is_some(), "is published and has no description"),
        (package.license.is_some(), "is published and has no license"),
        (package.rust_version.is_some(), "is published and has no rust-version"),
        (package.readme.as_deref().is_some_and(|readme| readme == "README.md"), "is published without its own README"),
        (words_fit(&package.keywords), "is published and has not one to five keywords"),
        (package.keywords.iter().all(is_short), "has a keyword of more than twenty letters"),
        (words_fit(&package.categories), "is published and has not one to five categories"),
    ];
    holds.into_iter().filter(|(holds, _)| !holds).map(|(_, what)| what).collect()
}

#[cfg(test)]
mod tests {
    use super::lacking;
    use crate::fixture::package;
    use crate::workspace::{Package, is_published};
    use serde_json::{Value, json};

    /// A complete package, but for one field.
    fn with(field: &str, value: Value) -> Package {
        let mut fields = json!({"description": "what it is", "license": "MIT", "rust_version": "1.88",
            "readme": "README.md", "keywords": ["iommu"], "categories": ["no-std"]});
        fields[field] = value;
        package(fields)
    }

    #[test]
    fn what_a_package_lacks_is_named() {
        assert_eq!(lacking(&with("name", json!("a"))), [""; 0]);
        for (field, value, lack) in [
            ("readme", json!("../../README.md"), "is published without its own README"),
            ("keywords", json!(vec!["iommu"; 6]), "is published and has not one to five keywords"),
            ("keywords", json!(["k".repeat(21)]), "has a keyword of more than twenty letters"),
        ] {
            assert_eq!(lacking(&with(field, value)), [lack]);
        }
        assert_eq!(lacking(&package(json!({}))).len(), 6);
    }

    #[test]
    fn what_is_not_published_goes_to_no_registry() {
        assert!(is_published(&with("publish", json!(null))));
        assert!(!is_published(&with("publish", json!([]))));
    }
}
