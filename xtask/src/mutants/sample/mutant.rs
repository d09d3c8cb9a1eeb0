//! The mutants that cargo-mutants finds in the files that safety depends on.

use crate::failure::Failure;
use crate::stages::installed;
use crate::workspace::cargo;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

/// The files that safety depends on, and folders of such files. Tests in these folders are left out.
const SAFETY_CRITICAL: &[&str] = &[
    "crates/portcullis/src/address.rs",
    "crates/portcullis/src/chunk/",
    "crates/portcullis/src/design/assembled.rs",
    "crates/portcullis/src/design/identity.rs",
    "crates/portcullis/src/design/locking.rs",
    "crates/portcullis/src/design/parts.rs",
    "crates/portcullis/src/design/physical.rs",
    "crates/portcullis/src/design/placed.rs",
    "crates/portcullis/src/domain/",
    "crates/portcullis/src/entry.rs",
    "crates/portcullis/src/invalidation/",
    "crates/portcullis/src/iommu/covering.rs",
    "crates/portcullis/src/iommu/mod.rs",
    "crates/portcullis/src/iova/",
    "crates/portcullis/src/pass_through.rs",
    "crates/portcullis/src/placement.rs",
    "crates/portcullis/src/platform/deadline.rs",
    "crates/portcullis/src/platform/mod.rs",
    "crates/portcullis/src/platform/per_cpu.rs",
    "crates/portcullis/src/proof.rs",
    "crates/portcullis/src/request.rs",
    "crates/portcullis/src/riommu/",
    "crates/portcullis/src/segment_list.rs",
    "crates/portcullis/src/space.rs",
    "crates/portcullis/src/space/",
    "crates/portcullis/src/sub_page/",
    "crates/portcullis/src/submission.rs",
    "crates/portcullis/src/table/",
    "crates/portcullis-vtd/src/attach.rs",
    "crates/portcullis-vtd/src/attachments.rs",
    "crates/portcullis-vtd/src/faults.rs",
    "crates/portcullis-vtd/src/hardware.rs",
    "crates/portcullis-vtd/src/inherit.rs",
    "crates/portcullis-vtd/src/page.rs",
    "crates/portcullis-vtd/src/queue/",
    "crates/portcullis-vtd/src/sorted.rs",
    "crates/portcullis-vtd/src/spec/descriptors.rs",
    "crates/portcullis-vtd/src/spec/tables.rs",
    "crates/portcullis-vtd/src/tables.rs",
    "crates/portcullis-vtd/src/unbroken.rs",
    "crates/portcullis-vtd/src/unit.rs",
    "crates/portcullis-vtd/src/units.rs",
];

/// A place in a file. Lines and columns count from one; columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(super) struct Position {
    line: usize,
    column: usize,
}

/// From a place to the place after the last character.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(super) struct Span {
    start: Position,
    end: Position,
}

/// The function that contains a mutant, if any.
#[derive(Clone, Debug, Deserialize)]
struct Function {
    function_name: String,
}

/// A change to one place of one file.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Mutant {
    pub(super) package: String,
    pub(super) file: String,
    /// File, line, column and change, and a number if several mutants differ only in their place.
    pub(super) name: String,
    /// The name without line and column, which change with the next edit.
    #[serde(skip)]
    pub(super) listed_as: String,
    span: Span,
    replacement: String,
    function: Option<Function>,
}

impl Mutant {
    /// The file with the mutant in it. `None` if the file has no such place.
    pub(super) fn planted(&self, text: &str) -> Option<String> {
        let (start, end) = (offset(text, self.span.start)?, offset(text, self.span.end)?);
        Some([text.get(..start)?, &self.replacement, text.get(end..)?].concat())
    }

    /// Whether safety depends on what the mutant changes. It does not depend on text for people.
    fn is_critical(&self) -> bool {
        let listed =
            |place: &&str| if place.ends_with('/') { self.file.starts_with(*place) } else { self.file == *place };
        let of_tests = self.file.split('/').any(|part| part == "tests" || part == "tests.rs");
        let is_text = |function: &Function| function.function_name.rsplit("::").next() == Some("fmt");
        SAFETY_CRITICAL.iter().any(listed) && !of_tests && !self.function.as_ref().is_some_and(is_text)
    }
}

/// The byte offset of a place in `text`.
fn offset(text: &str, at: Position) -> Option<usize> {
    let line = match at.line.checked_sub(2) {
        None => 0,
        Some(before) => text.match_indices('\n').nth(before)?.0 + 1,
    };
    let rest = &text[line..];
    let end = rest.find('\n').unwrap_or(rest.len());
    let mut columns = rest[..end].char_indices().map(|(column, _)| column).chain([end]);
    Some(line + columns.nth(at.column.checked_sub(1)?)?)
}

/// Every mutant of the critical files of `tree`, in the order of the files.
pub(super) fn all(tree: &Path) -> Result<Vec<Mutant>, Failure> {
    if !installed("mutants")? {
        return Err(Failure::Install { subcommand: "mutants", package: "cargo-mutants" });
    }
    let mut command = Command::new(cargo());
    command.args(["mutants", "--list", "--json", "--no-config"]);
    command.args(["--package", "portcullis", "--package", "portcullis-vtd"]);
    let output = command.current_dir(tree).stdin(Stdio::null()).output();
    let output = output.map_err(|error| Failure::Program { program: "cargo mutants".to_owned(), error })?;
    if !output.status.success() {
        return Err(Failure::MutantList(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    parse(&output.stdout)
}

/// Parses the output of cargo-mutants. Returns the critical mutants in order, each with a unique name.
fn parse(printed: &[u8]) -> Result<Vec<Mutant>, Failure> {
    let mut mutants: Vec<Mutant> =
        serde_json::from_slice(printed).map_err(|error| Failure::MutantList(error.to_string()))?;
    mutants.retain(Mutant::is_critical);
    mutants.sort_by(|one, other| (&one.file, one.span, &one.name).cmp(&(&other.file, other.span, &other.name)));
    let mut alike: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, mutant) in mutants.iter_mut().enumerate() {
        let what = mutant.name.split_once(": ").map_or(mutant.name.as_str(), |(_, what)| what);
        mutant.listed_as = format!("{}: {what}", mutant.file);
        alike.entry(mutant.listed_as.clone()).or_default().push(index);
    }
    for indices in alike.values().filter(|indices| indices.len() > 1) {
        for (number, index) in indices.iter().enumerate() {
            let number = format!(" ({} of {})", number + 1, indices.len());
            mutants[*index].name.push_str(&number);
            mutants[*index].listed_as.push_str(&number);
        }
    }
    Ok(mutants)
}

/// The `size` mutants that `seed` selects. A larger sample contains the smaller one, so it continues where that
/// ended.
pub(super) fn draw(mut mutants: Vec<Mutant>, size: usize, seed: u64) -> Vec<Mutant> {
    mutants.shuffle(&mut Pcg64Mcg::seed_from_u64(seed));
    mutants.truncate(size);
    mutants
}

#[cfg(test)]
pub(super) mod tests {
    use super::{Mutant, Position, SAFETY_CRITICAL, Span, draw, parse};
    use crate::workspace::Workspace;

    /// A mutant of a file that safety depends on.
    pub(in super::super) fn mutant(start: (usize, usize), end: (usize, usize), replacement: &str) -> Mutant {
        let [start, end] = [start, end].map(|(line, column)| Position { line, column });
        Mutant {
            package: "portcullis".to_owned(),
            file: "crates/portcullis/src/space.rs".to_owned(),
            name: format!("crates/portcullis/src/space.rs:{}:{}: replace it", start.line, start.column),
            listed_as: "crates/portcullis/src/space.rs: replace it".to_owned(),
            span: Span { start, end },
            replacement: replacement.to_owned(),
            function: None,
        }
    }

    #[test]
    fn a_span_is_replaced() {
        let text = "fn f() {\n    a + b;\n    µ - c\n}\n";
        let planted = |start, end, new| mutant(start, end, new).planted(text);
        assert_eq!(planted((2, 7), (2, 8), "*").as_deref(), Some("fn f() {\n    a * b;\n    µ - c\n}\n"));
        assert_eq!(planted((3, 7), (3, 8), "+").as_deref(), Some("fn f() {\n    a + b;\n    µ + c\n}\n"));
        assert_eq!(planted((1, 1), (1, 3), "const fn").as_deref().map(|text| &text[..10]), Some("const fn f"));
    }

    #[test]
    fn a_span_of_several_lines_is_replaced() {
        let text = "fn f() {\n    a + b;\n    µ - c\n}\n";
        let planted = |start, end, new| mutant(start, end, new).planted(text);
        assert_eq!(planted((2, 5), (3, 10), "None").as_deref(), Some("fn f() {\n    None\n}\n"));
        assert_eq!(planted((2, 5), (4, 1), "").as_deref(), Some("fn f() {\n    }\n"));
        assert_eq!(planted((2, 5), (9, 1), ""), None, "there is no such line");
        assert_eq!(planted((1, 1), (1, 90), ""), None, "there is no such column");
    }

    #[test]
    fn a_seed_draws_the_same_again_and_another_draws_others() {
        let mutants: Vec<Mutant> = (1..=100).map(|line| mutant((line, 1), (line, 2), "")).collect();
        let names =
            |size, seed| draw(mutants.clone(), size, seed).into_iter().map(|drawn| drawn.name).collect::<Vec<_>>();
        assert_eq!(names(20, 1), names(20, 1));
        assert_ne!(names(20, 1), names(20, 2));
        assert_eq!(names(20, 1), names(50, 1)[..20], "a larger sample goes on with a smaller one");
        assert_eq!(names(200, 1).len(), 100, "all, where there are no more");
    }

    fn printed(file: &str, line: usize, function: &str) -> String {
        format!(
            r#"{{"package": "portcullis", "file": "{file}", "name": "{file}:{line}:9: replace + with - in {function}",
            "function": {{"function_name": "{function}"}}, "replacement": "-", "genre": "BinaryOperator",
            "span": {{"start": {{"line": {line}, "column": 9}}, "end": {{"line": {line}, "column": 10}}}}}}"#
        )
    }

    #[test]
    fn mutants_that_differ_in_their_place_only_are_numbered() {
        let space = "crates/portcullis/src/space.rs";
        let all = [printed(space, 8, "f"), printed(space, 6, "g"), printed(space, 7, "f")].join(",");
        let listed = parse(format!("[{all}]").as_bytes()).expect("what cargo-mutants prints");
        let names: Vec<&str> = listed.iter().map(|mutant| mutant.listed_as.as_str()).collect();
        let expected = ["replace + with - in g", "replace + with - in f (1 of 2)", "replace + with - in f (2 of 2)"];
        assert_eq!(names, expected.map(|what| format!("{space}: {what}")));
        assert_eq!(listed[2].name, format!("{space}:8:9: {}", expected[2]));
    }

    #[test]
    fn only_what_safety_rests_on_is_mutated() {
        for (file, function, is_critical) in [
            ("crates/portcullis/src/space.rs", "f", true),
            ("crates/portcullis/src/chunk/mapper.rs", "f", true),
            ("crates/portcullis/src/chunk/mapper.rs", "<impl fmt::Debug for X>::fmt", false),
            ("crates/portcullis/src/chunk/table_record/tests.rs", "f", false),
            ("crates/portcullis-vtd/src/queue/tests/mod.rs", "f", false),
            ("crates/portcullis/src/platform/fake.rs", "f", false),
        ] {
            let listed =
                parse(format!("[{}]", printed(file, 1, function)).as_bytes()).expect("what cargo-mutants prints");
            assert_eq!(listed.len(), usize::from(is_critical), "{file} {function}");
        }
    }

    /// A file that has moved would silently leave the sample.
    #[test]
    fn what_safety_rests_on_is_there() {
        let root = Workspace::read().expect("a workspace").root;
        for place in SAFETY_CRITICAL {
            let path = root.join(place);
            assert!(if place.ends_with('/') { path.is_dir() } else { path.is_file() }, "{place}");
        }
    }
}
