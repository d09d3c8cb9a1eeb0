//! Tables of documents that repeat the code. Each stands between `<!-- NAME -->` and `<!-- /NAME -->`, in any document.
//! `cargo xtask readme` writes them, and `cargo xtask check` refuses those that are stale.
//!
//! All of these are made from the library, which is small, from this program and from files. A test of the program
//! `portcullis` (`crates/portcullis-cli/tests/cli/readme.rs`) writes and checks the tables that take the lab: to link
//! it here would make every chore wait until it is built.

mod chores;
mod library;
mod sources;

use crate::failure::Failure;
use crate::house::files::{self, File};
use crate::house::markdown::{Block, blocks};
use crate::workspace::Workspace;
use std::fs;

/// What makes the text of a block, from the files of the repository; or says why it cannot.
type Generator = fn(&[File]) -> Result<String, String>;

/// The blocks by name. Each is in at least one document.
const BLOCKS: [(&str, Generator); 7] = [
    ("designs", library::designs),
    ("options", library::options),
    ("rules", sources::rules),
    ("instructions", sources::instructions),
    ("scale", sources::scale),
    ("stack", chores::stack),
    ("commands", chores::commands),
];
/// The blocks that come from the program `portcullis` and from kernels.
const OF_RUNS: [&str; 7] = ["compare", "batches", "attack", "riommu-cycles", "machines", "workloads", "linux-bench"];

/// Names the blocks that do not show what the code says.
pub(crate) fn check(workspace: &Workspace) -> Result<(), Failure> {
    let wrong = wrong(&files::read(&workspace.root)?, &BLOCKS);
    for what in &wrong {
        println!("{what}");
    }
    let count = wrong.len();
    let what =
        format!("stage `generated tables` failed: {count} wrong; to write them:\n    cargo xtask readme --quick");
    if wrong.is_empty() { Ok(()) } else { Err(Failure::Other(what)) }
}

/// Writes the blocks that do not show what the code says.
pub(crate) fn write(workspace: &Workspace) -> Result<(), Failure> {
    let files = files::read(&workspace.root)?;
    for document in documents(&files) {
        let path = workspace.root.join(&document.path);
        let text = renewed(&document.text, &files, &BLOCKS).map_err(Failure::contents(&path))?;
        if text != document.text {
            fs::write(&path, text).map_err(Failure::file(&path))?;
            println!("{}: written", document.path);
        }
    }
    Ok(())
}

fn documents(files: &[File]) -> impl Iterator<Item = &File> {
    files.iter().filter(|file| file.path.ends_with(".md"))
}

/// What is wrong with the blocks of all documents.
fn wrong(files: &[File], generators: &[(&str, Generator)]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut seen = Vec::new();
    for document in documents(files) {
        let blocks = blocks(&document.text).unwrap_or_else(|what| {
            wrong.push(format!("{}: {what}", document.path));
            Vec::new()
        });
        for Block { name, lines, range } in &blocks {
            let what = match generators.iter().find(|(known, _)| known == name).map(|(_, generate)| generate(files)) {
                Some(Ok(text)) if document.text[range.clone()] == format!("{text}\n") => continue,
                Some(Ok(_)) => "is stale".to_owned(),
                Some(Err(what)) => what,
                None if OF_RUNS.contains(name) => continue,
                None => "is written by no program".to_owned(),
            };
            wrong.push(format!("{}:{}: the block `{name}` {what}", document.path, lines.start - 1));
        }
        seen.extend(blocks.into_iter().map(|block| block.name));
    }
    let missing = generators.iter().map(|(name, _)| name).filter(|name| !seen.contains(name));
    wrong.extend(missing.map(|name| format!("no document has the block `{name}`")));
    wrong
}

/// A document with its blocks as they have to be.
fn renewed(text: &str, files: &[File], generators: &[(&str, Generator)]) -> Result<String, String> {
    let mut renewed = text.to_owned();
    // From the last one on: what is before stays where it is.
    for block in blocks(text)?.into_iter().rev() {
        if let Some((_, generate)) = generators.iter().find(|(name, _)| *name == block.name) {
            renewed.replace_range(block.range, &(generate(files)? + "\n"));
        }
    }
    Ok(renewed)
}

/// A table of Markdown with this first row. A `|` in a cell is written as `\|`.
fn table<const N: usize>(head: &str, rows: impl IntoIterator<Item = [String; N]>) -> String {
    let row = |cells: [String; N]| format!("\n| {} |", cells.map(|cell| cell.replace('|', "\\|")).join(" | "));
    let rows: String = rows.into_iter().map(row).collect();
    format!("| {head} |\n|{}{rows}", "---|".repeat(N))
}

#[cfg(test)]
mod tests {
    use super::{BLOCKS, Generator, blocks, files, renewed, table, wrong};
    use crate::fixture::file;
    use crate::workspace::Workspace;

    const ONE: (&str, Generator) = ("one", |_| Ok("| 1 |".to_owned()));
    const FAILS: (&str, Generator) = ("fails", |_| Err("has no source".to_owned()));

    fn check(text: &str, generators: &[(&str, Generator)]) -> Vec<String> {
        wrong(&[file("docs/a.md", text)], generators)
    }

    #[test]
    fn the_documents_of_this_repository_show_what_the_code_says() {
        let files = files::read(&Workspace::read().expect("a workspace").root).expect("readable files");
        assert_eq!(wrong(&files, &BLOCKS), [""; 0], "`cargo xtask readme --quick` writes them");
    }

    #[test]
    fn a_stale_block_is_found_and_written() {
        let (fine, stale) =
            ("a\n<!-- one -->\n| 1 |\n<!-- /one -->\n", "a\n<!-- one -->\n| 2 |\n| 3 |\n<!-- /one -->\n");
        assert_eq!(check(fine, &[ONE]), [""; 0]);
        assert_eq!(check(stale, &[ONE]), ["docs/a.md:2: the block `one` is stale"]);
        assert_eq!(renewed(stale, &[], &[ONE]).as_deref(), Ok(fine));
        let twice = "<!-- one -->\n<!-- /one -->\nb\n".repeat(2);
        let written = renewed(&twice, &[], &[ONE]).expect("no error");
        assert_eq!(written, "<!-- one -->\n| 1 |\n<!-- /one -->\nb\n".repeat(2));
    }

    #[test]
    fn a_block_that_cannot_be_checked_is_found() {
        for (text, what) in [
            ("<!-- two -->\n<!-- /two -->\n", "docs/a.md:1: the block `two` is written by no program"),
            ("<!-- one -->\n<!-- /two -->\n", "docs/a.md: the block `one` of line 1 has no end"),
            ("", "no document has the block `one`"),
        ] {
            assert!(check(text, &[ONE]).contains(&what.to_owned()), "{text}");
        }
        let text = "<!-- fails -->\n<!-- /fails -->\n";
        assert_eq!(check(text, &[FAILS]), ["docs/a.md:1: the block `fails` has no source"]);
        assert_eq!(renewed(text, &[], &[FAILS]), Err("has no source".to_owned()));
    }

    #[test]
    fn blocks_of_runs_and_remarks_are_left_alone() {
        let text = "<!-- a remark -->\n<!-- compare -->\nold\n<!-- /compare -->\n";
        assert_eq!(check(text, &[]), [""; 0]);
        assert_eq!(renewed(text, &[], &[ONE]).as_deref(), Ok(text));
        assert_eq!(blocks(text).map(|blocks| blocks.len()), Ok(1));
    }

    #[test]
    fn bars_in_cells_are_escaped() {
        assert_eq!(table("a | b", [["1|2".to_owned(), String::new()]]), "| a | b |\n|---|---|\n| 1\\|2 |  |");
    }
}
