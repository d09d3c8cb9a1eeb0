//! No circles: no two folders or files of a folder use each other, directly or through others.
//!
//! A use is a `crate::…` or `super::…` path in a source, outside comments, tests and fakes. Seen from outside, a file
//! is its folder. A module and its own children may use each other. So a name that a folder re-exports counts as the
//! folder's, whichever of its files has it.

use super::Violation;
use super::files::File;
use crate::lexer::{TokenKind, tokens};
use std::collections::{BTreeMap, BTreeSet};

/// What each file or folder uses of its own folder, each with a file that does so.
type Uses = BTreeMap<String, BTreeMap<String, String>>;

/// Circles in the sources of any crate: one violation for each use that closes a circle.
pub(super) fn violations(files: &[File]) -> Vec<Violation> {
    let uses = uses(files);
    let pairs = uses.iter().flat_map(|(from, all)| all.iter().map(move |(to, file)| (from, to, file)));
    let closing = pairs.filter(|(from, to, _)| reach(&uses, to).contains(from.as_str()));
    let what = |from, to| format!("`{from}` uses `{to}`, which uses it too, perhaps through others");
    closing.map(|(from, to, file)| Violation::new(file, what(from, to))).collect()
}

/// The uses among the files and folders of a folder.
fn uses(files: &[File]) -> Uses {
    let mut uses = Uses::new();
    for file in files {
        let Some((root, path)) = file.path.split_once("/src/") else { continue };
        let Some(path) = path.strip_suffix(".rs") else { continue };
        let module: Vec<&str> = path.strip_suffix("/mod").unwrap_or(path).split('/').collect();
        if matches!(module[0], "lib" | "main" | "bin") || module.iter().any(|name| matches!(*name, "tests" | "fake")) {
            continue;
        }
        for used in paths(&file.text, &module) {
            let shared = module.iter().zip(&used).take_while(|(one, other)| one == other).count();
            // A module may use its own children, and they may use it.
            if shared == module.len().min(used.len()) {
                continue;
            }
            let [from, to] = [&module, &used].map(|path| format!("{root}/src/{}", path[..=shared].join("/")));
            uses.entry(from).or_default().entry(to).or_insert_with(|| file.path.clone());
        }
    }
    uses
}

/// All that `from` uses, directly or through others.
fn reach<'u>(uses: &'u Uses, from: &'u str) -> BTreeSet<&'u str> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(next) = open.pop() {
        let direct = uses.get(next).into_iter().flat_map(BTreeMap::keys);
        open.extend(direct.map(String::as_str).filter(|used| found.insert(*used)));
    }
    found
}

/// The modules of this crate that a source of `module` names, from the root.
fn paths<'t>(text: &'t str, module: &[&'t str]) -> Vec<Vec<&'t str>> {
    use TokenKind::{BlockComment, LineComment, Whitespace};
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let code =
        tokens(code, true).filter(|(kind, _)| !matches!(kind, BlockComment { .. } | LineComment { .. } | Whitespace));
    let words: Vec<&str> = code.map(|(_, word)| word).collect();
    let mut found = Vec::new();
    for at in 0..words.len() {
        match &words[at..] {
            ["crate", ":", ":", path @ ..] if !words[..at].ends_with(&["$"]) => found.extend(named(path, &[])),
            mut path @ ["super", ":", ":", ..] if !words[..at].ends_with(&[":", ":"]) => {
                let mut parent = module;
                while let ["super", ":", ":", below @ ..] = path {
                    (path, parent) = (below, parent.split_last().map_or(parent, |(_, above)| above));
                }
                found.extend(named(path, parent));
            }
            _ => {}
        }
    }
    found
}

/// The modules that a path names below `parent`: one, or several in braces. Modules are in lower case.
fn named<'t>(path: &[&'t str], parent: &[&'t str]) -> Vec<Vec<&'t str>> {
    match path {
        ["{", group @ ..] => {
            let mut depth = 0;
            let end = group.iter().position(|word| {
                depth += i32::from(*word == "{") - i32::from(*word == "}");
                depth < 0
            });
            group[..end.unwrap_or(group.len())]
                .split(|word| *word == ",")
                .flat_map(|path| named(path, parent))
                .collect()
        }
        [name, rest @ ..] if name.starts_with(char::is_lowercase) => {
            let below = [parent, &[*name]].concat();
            if let [":", ":", rest @ ..] = rest { named(rest, &below) } else { vec![below] }
        }
        _ => vec![parent.to_vec()],
    }
}
