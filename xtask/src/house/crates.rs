//! Rules about crates: who may use whom, and what the compiler is told to refuse.

use super::Violation;
use crate::failure::Failure;
use crate::workspace::{Package, Workspace};
use std::fs;

/// A crate uses only crates before it. The last ones are tests and examples.
const ORDER: [&str; 17] = [
    "portcullis",
    "portcullis-vtd",
    "portcullis-model",
    "portcullis-trace",
    "portcullis-sim",
    "portcullis-bench",
    "portcullis-report",
    "portcullis-qemu",
    "portcullis-testkit",
    "portcullis-cli",
    "xtask",
    "portcullis-suite",
    "portcullis-sim-suite",
    "portcullis-sim-bench",
    "quick-start",
    "custom-design",
    "custom-host",
];

/// Attributes that the root of every library has.
const DENIED: [&str; 2] = ["#![deny(missing_docs)]", "#![deny(unsafe_code)]"];

/// Reports crates that use a crate which does not come before them, and crates without a place in the order.
/// Dependencies that only tests use are not restricted.
pub(super) fn violations(packages: &[Package]) -> Vec<Violation> {
    let place_of = |name: &str| ORDER.iter().position(|ordered| *ordered == name);
    let mut violations = Vec::new();
    for package in packages {
        let Some(place) = place_of(&package.name) else {
            let what = "has no place in the order of crates (xtask/src/house/crates.rs)";
            violations.push(Violation::new(&package.name, what));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|dependency| dependency.kind.as_deref() != Some("dev")) {
            if place_of(&dependency.name).is_some_and(|other| other >= place) {
                let what = format!("uses {}, which comes after it in the order of crates", dependency.name);
                violations.push(Violation::new(&package.name, what));
            }
        }
    }
    violations
}

/// Reports libraries whose root lacks one of these attributes.
pub(super) fn unguarded(workspace: &Workspace) -> Result<Vec<Violation>, Failure> {
    let mut violations = Vec::new();
    for library in workspace.libraries().filter_map(Package::library) {
        let text = fs::read_to_string(&library.src_path).map_err(Failure::file(&library.src_path))?;
        violations
            .extend(missing(&text).map(|attribute| Violation::new(&library.name, format!("lacks `{attribute}`"))));
    }
    Ok(violations)
}

fn missing(root: &str) -> impl Iterator<Item = &'static str> {
    DENIED.into_iter().filter(|attribute| !root.lines().any(|line| line == *attribute))
}

#[cfg(test)]
mod tests {
    use super::{Violation, missing, violations};
    use crate::workspace::Package;

    fn package(name: &str, dependency: &str, kind: &str) -> Package {
        let text = format!(
            r#"{{"name": "{name}", "targets": [], "dependencies": [{{"name": "{dependency}", "kind": {kind}}}]}}"#
        );
        serde_json::from_str(&text).expect("what cargo prints")
    }

    #[test]
    fn crates_use_those_before_them_only() {
        for (name, dependency, kind, is_fine) in [
            ("portcullis-sim", "portcullis-model", "null", true),
            ("portcullis-vtd", "arrayvec", "null", true),
            ("portcullis", "portcullis", "\"dev\"", true),
            ("portcullis", "portcullis-vtd", "null", false),
            ("portcullis-model", "portcullis-sim", "null", false),
            ("portcullis-sim", "portcullis-cli", "\"build\"", false),
        ] {
            let what = format!("uses {dependency}, which comes after it in the order of crates");
            let expected = if is_fine { Vec::new() } else { vec![Violation::new(name, what)] };
            assert_eq!(violations(&[package(name, dependency, kind)]), expected);
        }
        assert_eq!(violations(&[package("portcullis-new", "portcullis", "null")]).len(), 1, "it needs a place");
    }

    #[test]
    fn libraries_deny_unsafe_code() {
        assert_eq!(missing("//! A crate.\n#![deny(missing_docs)]\n#![deny(unsafe_code)]\n").count(), 0);
        let missing = missing("//! A crate.\n#![deny(missing_docs)]\n// #![deny(unsafe_code)]\n");
        assert_eq!(Vec::from_iter(missing), ["#![deny(unsafe_code)]"]);
    }
}
