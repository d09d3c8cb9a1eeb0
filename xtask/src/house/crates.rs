//! Rules about crates: who may use whom, what the compiler is told to refuse, and what a published package needs for a
//! registry and for its readers. `cargo publish` asks for a part of that only at the upload, and for the rest never.

use super::Violation;
use crate::failure::Failure;
use crate::workspace::{Package, Workspace, library};
use cargo_metadata::DependencyKind;
use std::fs;

/// A crate uses only crates before it. The last ones are tests and examples.
const ORDER: [&str; 21] = [
    "portcullis-coherence",
    "portcullis",
    "portcullis-designs",
    "portcullis-vtd",
    "portcullis-model",
    "portcullis-trace",
    "portcullis-sim",
    "portcullis-bench",
    "portcullis-report",
    "portcullis-qemu",
    "portcullis-testkit",
    "portcullis-cli",
    "portcullis-scale",
    "xtask",
    "portcullis-suite",
    "portcullis-sim-suite",
    "portcullis-sim-bench",
    "quick-start",
    "custom-design",
    "custom-host",
    "custom-program",
];

/// Attributes that the root of every library has.
const DENIED: [&str; 2] = ["#![deny(missing_docs)]", "#![deny(unsafe_code)]"];

/// The files of each package. They may be links.
const FILES: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];
/// The most keywords, and the most categories, that crates.io accepts.
const WORDS_MAX: usize = 5;
/// The most characters of a keyword.
const LETTERS_MAX: usize = 20;

/// Reports crates that use a crate which does not come before them, and crates without a place in the order. Tests
/// may use their own crate again, with other features.
pub(super) fn violations(packages: &[Package]) -> Vec<Violation> {
    let place_of = |name: &str| ORDER.iter().position(|ordered| *ordered == name);
    let mut violations = Vec::new();
    for package in packages {
        let Some(place) = place_of(&package.name) else {
            let what = "has no place in the order of crates (xtask/src/house/crates.rs)";
            violations.push(Violation::new(package.name.as_str(), what));
            continue;
        };
        for dependency in &package.dependencies {
            let is_own = dependency.kind == DependencyKind::Development && dependency.name == *package.name;
            if place_of(&dependency.name).is_some_and(|other| other >= place) && !is_own {
                let what = format!("uses {}, which comes after it in the order of crates", dependency.name);
                violations.push(Violation::new(package.name.as_str(), what));
            }
        }
    }
    violations
}

/// Reports libraries whose root lacks one of these attributes.
pub(super) fn unguarded(workspace: &Workspace) -> Result<Vec<Violation>, Failure> {
    let mut violations = Vec::new();
    for library in workspace.published().filter_map(library) {
        let text = fs::read_to_string(&library.src_path).map_err(Failure::file(&library.src_path))?;
        violations
            .extend(missing(&text).map(|attribute| Violation::new(&library.name, format!("lacks `{attribute}`"))));
    }
    Ok(violations)
}

fn missing(root: &str) -> impl Iterator<Item = &'static str> {
    DENIED.into_iter().filter(|attribute| !root.lines().any(|line| line == *attribute))
}

/// Reports what published packages lack.
pub(super) fn unpublishable(workspace: &Workspace) -> Vec<Violation> {
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
    use super::{Violation, lacking, missing, violations};
    use crate::fixture::package;
    use crate::workspace::{Package, is_published};
    use serde_json::{Value, json};

    fn using(name: &str, dependency: &str, kind: Option<&str>) -> Package {
        let dependency = json!({"name": dependency, "req": "*", "kind": kind, "optional": false, "features": [],
            "uses_default_features": true});
        package(json!({"name": name, "dependencies": [dependency]}))
    }

    #[test]
    fn crates_use_those_before_them_only() {
        for (name, dependency, kind, is_fine) in [
            ("portcullis-sim", "portcullis-model", None, true),
            ("portcullis-vtd", "arrayvec", None, true),
            ("portcullis", "portcullis", Some("dev"), true),
            ("portcullis", "portcullis-vtd", None, false),
            ("portcullis", "portcullis-testkit", Some("dev"), false),
            ("portcullis-model", "portcullis-sim", None, false),
            ("portcullis-sim", "portcullis-cli", Some("build"), false),
        ] {
            let what = format!("uses {dependency}, which comes after it in the order of crates");
            let expected = if is_fine { Vec::new() } else { vec![Violation::new(name, what)] };
            assert_eq!(violations(&[using(name, dependency, kind)]), expected);
        }
        assert_eq!(violations(&[using("portcullis-new", "portcullis", None)]).len(), 1, "it needs a place");
    }

    #[test]
    fn libraries_deny_unsafe_code() {
        assert_eq!(missing("//! A crate.\n#![deny(missing_docs)]\n#![deny(unsafe_code)]\n").count(), 0);
        let missing = missing("//! A crate.\n#![deny(missing_docs)]\n// #![deny(unsafe_code)]\n");
        assert_eq!(Vec::from_iter(missing), ["#![deny(unsafe_code)]"]);
    }

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
