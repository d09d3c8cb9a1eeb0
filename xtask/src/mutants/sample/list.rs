//! The mutants that cargo-mutants finds, and those of them that change nothing.

use super::{cargo_mutants, failed};
use crate::failure::Failure;
use crate::process::run;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;
use regex::Regex;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The files that safety depends on.
const SAFETY_CRITICAL: [&str; 9] = [
    "crates/portcullis/src/{address,entry,pass_through,placement,proof,request,segment_list,space,submission}.rs",
    "crates/portcullis/src/{chunk,domain,invalidation,iova,space,sub_page,table}/**",
    "crates/portcullis/src/mapper/{assembled,locking,parts,physical,placed}.rs",
    "crates/portcullis/src/iommu/{covering,mod,rings}.rs",
    "crates/portcullis/src/platform/{deadline,mod,per_cpu}.rs",
    "crates/portcullis-designs/src/{eiovar,fast_and_safe,freebsd,identity,kmalloc,macos,riommu,solaris}/**",
    "crates/portcullis-vtd/src/{attach,attachments,closable_lock,faults,hardware,inherit,page,sorted,tables,unit,units}.rs",
    "crates/portcullis-vtd/src/queue/**",
    "crates/portcullis-vtd/src/spec/{descriptors,tables}.rs",
];
/// The packages that have them.
const PACKAGES: [&str; 3] = ["portcullis", "portcullis-designs", "portcullis-vtd"];
/// Not mutated: tests, and text for people.
const LEFT_OUT: [&str; 6] = ["--exclude", "**/tests/**", "--exclude", "tests.rs", "--exclude-re", r"\bfmt( -> |$)"];

/// The page with the table of equivalent mutants.
pub(super) const PAGE: &str = "docs/mutants.md";
const HEAD: &str = "| mutant | why it changes nothing |";

/// A change to one place of one file.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Mutant {
    pub(super) package: String,
    file: String,
    /// File, line, column and change.
    pub(super) name: String,
    /// The name without line and column, which change with the next edit, and with a number if several mutants differ
    /// only in their place.
    #[serde(skip)]
    pub(super) listed_as: String,
    /// Where it begins and where it ends, each with its line and column.
    span: BTreeMap<String, BTreeMap<String, usize>>,
}

/// Every mutant of the files that `globs` name, else of the critical files, in the order of the files.
pub(super) fn all(root: &Path, globs: &[String]) -> Result<Vec<Mutant>, Failure> {
    let critical = SAFETY_CRITICAL.iter().copied().filter(|_| globs.is_empty());
    let mut command = cargo_mutants(root)?;
    command.args(["--list", "--json"]);
    command.args(PACKAGES.iter().flat_map(|package| ["--package", package])).args(LEFT_OUT);
    command.args(critical.chain(globs.iter().map(String::as_str)).flat_map(|glob| ["--file", glob]));
    let output = run(&mut command)?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim()));
    }
    parse(&output.stdout)
}

/// Parses the output of cargo-mutants, and sorts it.
fn parse(printed: &[u8]) -> Result<Vec<Mutant>, Failure> {
    let mut mutants: Vec<Mutant> = serde_json::from_slice(printed).map_err(failed)?;
    let place = |mutant: &Mutant| ["start", "end"].map(|at| ["line", "column"].map(|what| mutant.span[at][what]));
    mutants.sort_by_cached_key(|mutant| (mutant.file.clone(), place(mutant), mutant.name.clone()));
    let mut alike: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, mutant) in mutants.iter_mut().enumerate() {
        let what = mutant.name.split_once(": ").map_or(mutant.name.as_str(), |(_, what)| what);
        mutant.listed_as = format!("{}: {what}", mutant.file);
        alike.entry(mutant.listed_as.clone()).or_default().push(index);
    }
    for indices in alike.values().filter(|indices| indices.len() > 1) {
        for (number, index) in indices.iter().enumerate() {
            mutants[*index].listed_as.push_str(&format!(" ({} of {})", number + 1, indices.len()));
        }
    }
    Ok(mutants)
}

/// The `size` mutants that `seed` selects. A larger sample contains the smaller one, so it continues where that ended.
pub(super) fn draw(mut mutants: Vec<Mutant>, size: usize, seed: u64) -> Vec<Mutant> {
    mutants.shuffle(&mut Pcg64Mcg::seed_from_u64(seed));
    mutants.truncate(size);
    mutants
}

/// The names in the table of equivalent mutants. Each must be the name of one of `mutants`, if they are all that there
/// are.
pub(super) fn equivalent(root: &Path, mutants: Option<&[Mutant]>) -> Result<BTreeSet<String>, Failure> {
    let path = root.join(PAGE);
    let text = fs::read_to_string(&path).map_err(Failure::file(&path))?;
    rows(&text, mutants).map_err(Failure::contents(path))
}

/// The first column of the table.
fn rows(text: &str, mutants: Option<&[Mutant]>) -> Result<BTreeSet<String>, String> {
    let mut lines = text.lines().skip_while(|line| *line != HEAD);
    lines.next().ok_or_else(|| format!("the table `{HEAD}` is missing"))?;
    // In a table, Markdown writes `\|` for `|`.
    let pattern = Regex::new(r"^\| `(.+?)` \| *[^ |].*\|$").map_err(|error| error.to_string())?;
    let name = |row| Some(pattern.captures(row)?[1].replace(r"\|", "|"));
    let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
    let names = rows.map(|row| name(row).ok_or_else(|| format!("no mutant with a reason: {row}")));
    let names = names.collect::<Result<BTreeSet<_>, _>>()?;
    let is_there = |name: &&String| mutants.is_none_or(|all| all.iter().any(|mutant| mutant.listed_as == **name));
    match names.iter().find(|name| !is_there(name)) {
        Some(gone) => Err(format!("there is no mutant `{gone}`")),
        None => Ok(names),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{HEAD, Mutant, PAGE, SAFETY_CRITICAL, draw, parse, rows};
    use crate::workspace::Workspace;

    /// What cargo-mutants prints about mutants of one file, by their lines and functions.
    pub(in super::super) fn mutants(places: &[(usize, &str)]) -> Vec<Mutant> {
        let printed = places.iter().map(|(line, function)| {
            format!(
                r#"{{"package": "portcullis", "file": "a.rs", "name": "a.rs:{line}:9: replace || with && in {function}",
                "replacement": "&&", "span": {{"start": {{"line": {line}, "column": 9}}, "end": {{"line": {line}, "column": 11}}}}}}"#
            )
        });
        parse(format!("[{}]", printed.collect::<Vec<_>>().join(",")).as_bytes()).expect("a list")
    }

    #[test]
    fn mutants_that_differ_in_their_place_only_are_numbered() {
        let listed = mutants(&[(8, "f"), (6, "g"), (7, "f")]);
        let names: Vec<&str> = listed.iter().map(|mutant| mutant.listed_as.as_str()).collect();
        assert_eq!(names, ["g", "f (1 of 2)", "f (2 of 2)"].map(|end| format!("a.rs: replace || with && in {end}")));
        assert_eq!(listed[2].name, "a.rs:8:9: replace || with && in f");
        assert!(parse(b"[{}]").is_err());
    }

    #[test]
    fn a_seed_draws_the_same_again_and_another_draws_others() {
        let mutants = mutants(&(1..=100).map(|line| (line, "f")).collect::<Vec<_>>());
        let names =
            |size, seed| draw(mutants.clone(), size, seed).into_iter().map(|drawn| drawn.name).collect::<Vec<_>>();
        assert_eq!(names(20, 1), names(20, 1));
        assert_ne!(names(20, 1), names(20, 2));
        assert_eq!(names(20, 1), names(50, 1)[..20], "a larger sample goes on with a smaller one");
        assert_eq!(names(200, 1).len(), 100, "all, where there are no more");
    }

    #[test]
    fn the_table_names_mutants_that_there_are() {
        let mutants = mutants(&[(1, "f"), (2, "f")]);
        let table = |row: &str| format!("| `no` | no |\n\n{HEAD}\n|---|---|\n{row}\n\n| `no` | no |\n");
        let with = |row: &str| rows(&table(row), Some(&mutants)).map(|names| names.len());
        assert_eq!(with(r"| `a.rs: replace \|\| with && in f (2 of 2)` | both hold |"), Ok(1));
        let gone = "| `a.rs: replace that` | both are 1 |";
        assert_eq!(with(gone), Err("there is no mutant `a.rs: replace that`".to_owned()));
        assert!(rows(&table(gone), None).is_ok(), "other files may have it");
        for row in ["| `a: b` |  |", "| `a: b` |", "| a: b | both are 1 |"] {
            assert!(rows(&table(row), None).is_err(), "{row}");
        }
        assert!(rows("# Mutants\n", None).is_err(), "there is no table");
        let page = Workspace::read().expect("a workspace").root.join(PAGE);
        assert!(rows(&std::fs::read_to_string(page).expect("the page"), None).is_ok());
    }

    /// A file that has moved would silently leave the sample.
    #[test]
    fn what_safety_rests_on_is_there() {
        let root = Workspace::read().expect("a workspace").root;
        for glob in SAFETY_CRITICAL {
            let mut parts = glob.split(['{', '}']);
            let [before, names, after] = [(); 3].map(|()| parts.next().unwrap_or_default());
            for name in names.split(',') {
                let path = root.join(format!("{before}{name}{after}").trim_end_matches("/**"));
                assert!(if glob.ends_with("/**") { path.is_dir() } else { path.is_file() }, "{}", path.display());
            }
        }
    }
}
