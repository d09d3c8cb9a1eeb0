//! Equivalent mutants, from the table in docs/mutants.md.

use super::mutant::Mutant;
use crate::failure::Failure;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The page with the table.
pub(super) const PAGE: &str = "docs/mutants.md";
const HEAD: &str = "| mutant | why it changes nothing |";

/// The names in the table of the tree at `root`. Each must be the name of one of `mutants`.
pub(super) fn listed(root: &Path, mutants: &[Mutant]) -> Result<BTreeSet<String>, Failure> {
    let path = root.join(PAGE);
    let text = fs::read_to_string(&path).map_err(Failure::file(&path))?;
    let names = rows(&text).and_then(|names| {
        let gone = names.iter().find(|name| !mutants.iter().any(|mutant| mutant.listed_as == **name));
        gone.map_or(Ok(&names), |name| Err(format!("there is no mutant `{name}`"))).cloned()
    });
    names.map_err(|reason| Failure::Contents { path, reason })
}

/// The first column of the table.
fn rows(text: &str) -> Result<BTreeSet<String>, String> {
    let mut lines = text.lines().skip_while(|line| *line != HEAD);
    lines.next().ok_or_else(|| format!("the table `{HEAD}` is missing"))?;
    let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| name(row).ok_or_else(|| format!("no mutant with a reason: {row}"))).collect()
}

/// The mutant in a row, if the row gives a reason. In a table, markdown writes `\|` for `|`.
fn name(row: &str) -> Option<String> {
    let (name, reason) = row.strip_prefix("| `")?.split_once("` | ")?;
    let reason = reason.strip_suffix('|')?.trim();
    (!reason.is_empty()).then(|| name.replace(r"\|", "|"))
}

#[cfg(test)]
mod tests {
    use super::super::mutant::tests::mutant;
    use super::{listed, rows};
    use crate::workspace::Workspace;
    use std::collections::BTreeSet;

    const PAGE: &str = "# Mutants\n\n| other | table |\n|---|---|\n| `no` | no |\n\n\
        | mutant | why it changes nothing |\n|---|---|\n\
        | `crates/a/src/x.rs: replace a with b in f` | both are 1 |\n\
        | `crates/a/src/x.rs: replace \\|\\| with && in f (2 of 3)` | both hold |\n\n| `no` | no |\n";

    #[test]
    fn the_table_names_mutants() {
        let names = ["crates/a/src/x.rs: replace a with b in f", "crates/a/src/x.rs: replace || with && in f (2 of 3)"];
        assert_eq!(rows(PAGE), Ok(BTreeSet::from(names.map(str::to_owned))));
        assert_eq!(rows("| mutant | why it changes nothing |\n|---|---|\n\nThe end.\n"), Ok(BTreeSet::new()));
    }

    #[test]
    fn a_table_that_cannot_be_read_is_refused() {
        let table = |row: &str| format!("| mutant | why it changes nothing |\n|---|---|\n{row}\n");
        assert!(rows("# Mutants\n").is_err(), "there is no table");
        for row in ["| `a: b` |  |", "| `a: b` |", "| a: b | both are 1 |"] {
            assert!(rows(&table(row)).is_err(), "{row}");
        }
        assert!(rows(&table("| `a: b` | both are 1 |")).is_ok());
    }

    #[test]
    fn a_listed_mutant_is_one_that_there_is() {
        let folder = std::env::temp_dir().join(format!("portcullis-equivalent-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("docs")).expect("a new folder");
        let with = |name: &str| {
            let table = format!("| mutant | why it changes nothing |\n|---|---|\n| `{name}` | both are 1 |\n");
            std::fs::write(folder.join(super::PAGE), table).expect("a new file");
            listed(&folder, &[mutant((1, 1), (1, 2), "")]).map_err(|error| error.to_string())
        };
        let (there, gone) = (with("crates/portcullis/src/space.rs: replace it"), with("space.rs: replace that"));
        std::fs::remove_dir_all(&folder).expect("ours");
        assert_eq!(there.map(|names| names.len()), Ok(1));
        assert!(gone.is_err_and(|error| error.contains("there is no mutant `space.rs: replace that`")));
    }

    #[test]
    fn the_page_of_this_repository_has_the_table() {
        let path = Workspace::read().expect("a workspace").root.join(super::PAGE);
        assert!(rows(&std::fs::read_to_string(path).expect("the page")).is_ok());
    }
}
