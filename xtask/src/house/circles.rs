//! No circles: no two folders of a crate use each other, directly or through others.
//!
//! A use is a `crate::…` or `super::…` path in a source, outside comments, tests and fakes. Files at the root of a
//! crate count as folders of one file. Inside a folder only folders count, because files that belong together may name
//! each other.

use super::Violation;
use super::files::File;
use std::collections::{BTreeMap, BTreeSet};

/// The uses among the children of one folder, by name, each with a file that contains it.
type Uses = BTreeMap<String, BTreeMap<String, String>>;

/// Circles in the sources of any crate.
pub(super) fn violations(files: &[File]) -> Vec<Violation> {
    let mut folders: BTreeMap<String, Uses> = BTreeMap::new();
    for file in files {
        let Some((root, path)) = file.path.split_once("/src/") else { continue };
        let Some(path) = path.strip_suffix(".rs") else { continue };
        let module: Vec<&str> = path.strip_suffix("/mod").unwrap_or(path).split('/').collect();
        if matches!(module[0], "lib" | "main" | "bin") || module.iter().any(|name| matches!(*name, "tests" | "fake")) {
            continue;
        }
        for used in paths(&file.text, &module) {
            let shared = module.iter().zip(&used).take_while(|(one, other)| *one == other).count();
            // A module may use its own children, and they may use it.
            let (Some(from), Some(to)) = (module.get(shared), used.get(shared)) else { continue };
            let folder = [&[root, "src"], &module[..shared]].concat().join("/");
            let is_folder = |child: &str| {
                let inside = format!("{folder}/{child}/");
                shared == 0 || files.iter().any(|file| file.path.starts_with(&inside))
            };
            if is_folder(from) && is_folder(to) {
                let uses = folders.entry(folder).or_default().entry((*from).to_owned()).or_default();
                uses.entry(to.clone()).or_insert_with(|| file.path.clone());
            }
        }
    }
    folders.iter().flat_map(|(folder, uses)| circles(folder, uses)).collect()
}

/// One violation for each use that closes a circle.
fn circles(folder: &str, uses: &Uses) -> Vec<Violation> {
    let pairs = uses.iter().flat_map(|(from, all)| all.iter().map(move |(to, file)| (from, to, file)));
    let closing = pairs.filter(|(from, to, _)| reach(uses, to).contains(from.as_str()));
    let what = |from, to| format!("`{from}` uses `{to}`, which uses it too, perhaps through others, in {folder}");
    closing.map(|(from, to, file)| Violation::new(file, what(from, to))).collect()
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
fn paths(text: &str, module: &[&str]) -> Vec<Vec<String>> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let code: Vec<&str> = code.lines().map(|line| line.split("//").next().unwrap_or(line)).collect();
    let code = code.join("\n");
    let mut found = Vec::new();
    let begins = |keyword| code.match_indices(keyword).map(|(at, _)| at).filter(|at| starts_word(&code, *at));
    for at in begins("crate::") {
        found.extend(named(&code[at + "crate::".len()..], &[]));
    }
    for at in begins("super::").filter(|at| !code[..*at].ends_with("super::")) {
        let (mut rest, mut parent) = (&code[at..], module.len());
        while let Some(above) = rest.strip_prefix("super::") {
            (rest, parent) = (above, parent.saturating_sub(1));
        }
        found.extend(named(rest, &module[..parent]));
    }
    found
}

/// The modules that a path names below `parent`: one, or several in braces.
fn named(path: &str, parent: &[&str]) -> Vec<Vec<String>> {
    let below = |path| parent.iter().copied().chain(names(path)).map(str::to_owned).collect();
    let Some(group) = path.strip_prefix('{') else { return vec![below(path)] };
    let mut depth = 1;
    let end = group.find(|next: char| {
        depth += i32::from(next == '{') - i32::from(next == '}');
        depth == 0
    });
    // In a nested group, all paths share the module in front of the inner braces, which is enough.
    group[..end.unwrap_or(group.len())].split(',').map(|path| below(path.trim())).collect()
}

/// Whether the word at `at` is not the end of a longer one.
fn starts_word(code: &str, at: usize) -> bool {
    !code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_' || before == '$')
}

/// The modules at the beginning of a path: words in lower case before `::` or the end.
fn names(path: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for word in path.split("::") {
        let end = word.find(|next: char| !(next.is_alphanumeric() || next == '_')).unwrap_or(word.len());
        if end == 0 || !word.starts_with(char::is_lowercase) {
            break;
        }
        names.push(&word[..end]);
        if end < word.len() {
            break;
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::{File, violations};

    fn check(sources: &[(&str, &str)]) -> Vec<String> {
        let file =
            |(path, text): &(&str, &str)| File { path: format!("crates/a/src/{path}"), text: (*text).to_owned() };
        violations(&sources.iter().map(file).collect::<Vec<_>>()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn folders_that_use_each_other() {
        let (iova, table) = (("iova/mod.rs", "use crate::table::Entry;"), ("table/mod.rs", "use crate::proof;"));
        assert_eq!(check(&[iova, table]), [""; 0]);
        let circle = check(&[iova, table, ("table/walk.rs", "fn walk(of: super::super::iova::Range) {}")]);
        assert_eq!(circle.len(), 2, "{circle:?}");
        assert!(circle[0].contains("`iova` uses `table`") && circle[1].contains("table/walk.rs"), "{circle:?}");
    }

    #[test]
    fn circles_of_three() {
        let (one, two) = (("a.rs", "use crate::b::B;"), ("b.rs", "use crate::c::C;"));
        assert_eq!(check(&[one, two, ("c.rs", "use crate::a::A;")]).len(), 3);
        assert_eq!(check(&[one, two, ("c.rs", "use crate::d::D;")]), [""; 0]);
    }

    #[test]
    fn folders_in_a_folder() {
        let (linux, door) = (("iova/linux/tree.rs", "use crate::iova::host::H;"), ("iova/mod.rs", "use linux::T;"));
        assert_eq!(check(&[linux, door, ("iova/host/mod.rs", "use super::Claim;")]), [""; 0]);
        assert_eq!(check(&[linux, door, ("iova/host/mod.rs", "use super::linux::T;")]).len(), 2);
    }

    #[test]
    fn comments_tests_and_files_of_one_folder_do_not_count() {
        let commented = "/// See [`crate::a`].\nfn b() {}\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}";
        assert_eq!(check(&[("a.rs", "use crate::b::B;"), ("b.rs", commented)]), [""; 0]);
        assert_eq!(check(&[("a/x.rs", "use super::y::Y;"), ("a/y.rs", "use super::x::X;")]), [""; 0]);
    }
}
