//! Links in documents, and links from doc comments to files, have targets that exist.
//!
//! A link leads to a file or folder that git tracks, or to an anchor in a document. Links with a scheme, such as
//! `https:`, are not checked. In doc comments only links to files are checked, because rustdoc checks the links to
//! items.

use super::Violation;
use super::files::File;
use super::markdown::Markdown;
use std::collections::BTreeSet;

/// Reports links without a target. `paths` are all files that git tracks.
pub(super) fn violations(files: &[File], paths: &[String]) -> Vec<Violation> {
    let mut there: BTreeSet<&str> = BTreeSet::from([""]);
    for path in paths {
        there.insert(path);
        there.extend(path.match_indices('/').map(|(at, _)| &path[..at]));
    }
    let read: Vec<(&File, Markdown)> = files.iter().map(|file| (file, Markdown::of(file))).collect();
    let mut violations = Vec::new();
    for (file, markdown) in &read {
        let is_checked = |target: &str| !has_scheme(target) && (file.path.ends_with(".md") || is_path(target));
        for (line, target) in markdown.links.iter().filter(|(_, target)| is_checked(target)) {
            if let Some(what) = wrong(file, target, &read, &there) {
                violations.push(Violation::new(format!("{}:{line}", file.path), format!("`{target}` {what}")));
            }
        }
    }
    violations
}

/// What is wrong with a link of a file.
fn wrong(file: &File, target: &str, read: &[(&File, Markdown)], there: &BTreeSet<&str>) -> Option<String> {
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let Some(path) = resolved(&file.path, path) else { return Some("leads out of the repository".to_owned()) };
    if !there.contains(path.as_str()) {
        return Some("leads to a file that is not there".to_owned());
    }
    let anchor = anchor.filter(|_| path.ends_with(".md"))?;
    let (_, document) = read.iter().find(|(file, _)| file.path == path)?;
    let is_there = document.anchors.iter().any(|known| known == anchor);
    (!is_there).then(|| format!("leads to an anchor that no heading of {path} makes"))
}

/// Resolves a path that is written in the file at `from`. `None` if it leads out of the repository.
fn resolved(from: &str, path: &str) -> Option<String> {
    if path.is_empty() {
        return Some(from.to_owned());
    }
    let (mut at, path): (Vec<&str>, &str) = match path.strip_prefix('/') {
        Some(path) => (Vec::new(), path),
        None => (from.split('/').collect(), path),
    };
    at.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(at.pop()?),
            part => at.push(part),
        }
    }
    Some(at.join("/"))
}

/// Whether a link of a doc comment leads to a file, not to an item.
fn is_path(target: &str) -> bool {
    let path = target.split('#').next().unwrap_or(target);
    !path.contains("::") && path.contains(['/', '.'])
}

fn has_scheme(target: &str) -> bool {
    let scheme = target.split_once(':').map(|(scheme, _)| scheme);
    let is_scheme = |scheme: &str| scheme.starts_with(char::is_alphabetic) && scheme.chars().all(char::is_alphanumeric);
    scheme.is_some_and(is_scheme) && !target.contains("::")
}

#[cfg(test)]
mod tests {
    use super::{File, violations};

    fn check(path: &str, text: &str) -> Vec<String> {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        let files = [file("docs/other.md", "# One heading\n"), file(path, text)];
        let paths = ["docs/other.md", "docs/a.png", "crates/a/src/lib.rs", path].map(str::to_owned);
        violations(&files, &paths).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn links_that_lead_somewhere() {
        for text in [
            "[a](other.md), ![b](a.png) and [c](../crates/a/)",
            "# Own\n[a](other.md#one-heading) [b](#own) [`c`](/docs/other.md \"title\")",
            "[a](https://example.org/none.md) <none.md> `[b](none.md)`",
            "```text\n[a](none.md)\n```",
            "[a]: other.md#one-heading\n[b]: https://example.org",
            "[a](../crates/a/src/lib.rs#L1)",
        ] {
            assert_eq!(check("docs/b.md", text), [""; 0], "{text}");
        }
    }

    #[test]
    fn links_that_lead_nowhere() {
        for (text, what) in [
            ("[a](none.md)", "`none.md` leads to a file that is not there"),
            ("see [a (b)](b\n[`a`](none/a.md)", "leads to a file"),
            ("![a](b.png)", "leads to a file"),
            ("[a]: none.md", "leads to a file"),
            ("[a](other.md#two)", "leads to an anchor that no heading of docs/other.md makes"),
            ("# Own\n[a](#owns)", "leads to an anchor that no heading of docs/b.md makes"),
            ("[a](../../b.md)", "leads out of the repository"),
        ] {
            let found = check("docs/b.md", text);
            assert!(found.last().is_some_and(|found| found.contains(what)), "{text}: {found:?}");
        }
    }

    #[test]
    fn doc_comments_lead_to_files_and_items() {
        let fine = "//! [a](../../../docs/other.md#one-heading), [`b`](super::none), [c](mod@none)\n// [d](none.md)\n";
        assert_eq!(check("crates/a/src/b.rs", fine), [""; 0]);
        assert_eq!(check("crates/a/src/b.rs", "/// See [a](docs/none.md).\n").len(), 1);
    }
}
