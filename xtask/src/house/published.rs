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
        violations.extend(lacking(package).into_iter().map(|what| Violation::new(&package.name, what)));
        let folder = package.manifest_path.parent().unwrap_or(&workspace.root);
        let missing = FILES.iter().filter(|file| !folder.join(file).is_file());
        violations.extend(missing.map(|file| Violation::new(&package.name, format!("is published and has no {file}"))));
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
    use crate::workspace::Package;

    fn complete() -> Package {
        let some = |text: &str| Some(text.to_owned());
        Package {
            description: some("what it is"),
            license: some("MIT"),
            rust_version: some("1.88"),
            readme: Some("README.md".into()),
            keywords: vec!["iommu".to_owned()],
            categories: vec!["no-std".to_owned()],
            ..Package::default()
        }
    }

    #[test]
    fn what_a_package_lacks_is_named() {
        assert_eq!(lacking(&complete()), [""; 0]);
        let outside = Package { readme: Some("../../README.md".into()), ..complete() };
        assert_eq!(lacking(&outside), ["is published without its own README"]);
        let wordy = Package { keywords: vec!["iommu".to_owned(); 6], ..complete() };
        assert_eq!(lacking(&wordy), ["is published and has not one to five keywords"]);
        let long = Package { keywords: vec!["k".repeat(21)], ..complete() };
        assert_eq!(lacking(&long), ["has a keyword of more than twenty letters"]);
        assert_eq!(lacking(&Package::default()).len(), 6);
    }

    #[test]
    fn what_is_not_published_goes_to_no_registry() {
        assert!(complete().is_published());
        assert!(!Package { publish: Some(Vec::new()), ..complete() }.is_published());
    }
}
