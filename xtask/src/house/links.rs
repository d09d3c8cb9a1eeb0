//! Links in documents, and links from doc comments to files, have targets that exist.
//!
//! A link leads to a file or folder that git tracks, or to an anchor in a document. Links with a scheme, such as
//! `https:`, are not checked. In doc comments only links to files are checked, because rustdoc checks the links to
//! items.

use super::Violation;
use super::files::File;
use super::markdown::Markdown;
use std::collections::BTreeSet;

/// Reports links without a target.
pub(super) fn violations(files: &[File]) -> Vec<Violation> {
    let mut there: BTreeSet<&str> = BTreeSet::from([""]);
    for File { path, .. } in files {
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
    let folder = from.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut at: Vec<&str> = if path.starts_with('/') { Vec::new() } else { folder.split_terminator('/').collect() };
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
