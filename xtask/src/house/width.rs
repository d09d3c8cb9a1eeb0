//! No comment and no line of a document is longer than 120 columns.
//!
//! Columns are characters, from the beginning of the line. In documents and in doc comments, rows of tables and blocks
//! of code are exempt. In documents, text that programs generate between `<!-- NAME -->` and `<!-- /NAME -->` is
//! exempt too. A line with only one word after its indentation and marker, such as a long link target, cannot be
//! broken and is exempt everywhere.

use super::Violation;
use super::files::File;
use super::markdown::{Markdown, blocks};
use super::prose::{Kind, Piece, pieces};

const COLUMNS_MAX: usize = 120;
/// The characters with which a comment or a list item begins.
const MARKERS: [char; 9] = ['/', '!', '*', '#', '-', '+', '>', ' ', '\t'];

/// Reports lines that are too long.
pub(super) fn violations(files: &[File]) -> Vec<Violation> {
    files.iter().flat_map(of_file).collect()
}

fn of_file(file: &File) -> Vec<Violation> {
    let all: Vec<&str> = file.text.lines().collect();
    let code = Markdown::of(file).code;
    let generated = if file.path.ends_with(".md") { blocks(&file.text).unwrap_or_default() } else { Vec::new() };
    let is_generated = |line: usize| generated.iter().any(|block| block.lines.contains(&line));
    // A comment with code after it is a part of a line of code.
    let is_last = |piece: &Piece<'_>| all[piece.line - 1].ends_with(piece.text);
    let is_exempt = |piece: &Piece<'_>| match piece.kind {
        Kind::Message => true,
        Kind::Comment => !is_last(piece),
        Kind::Doc => !is_last(piece) || code.contains(&piece.line) || is_row(piece.text),
        Kind::Document => code.contains(&piece.line) || is_row(piece.text) || is_generated(piece.line),
    };
    let mut found = Vec::new();
    for piece in pieces(file).iter().filter(|piece| may_be_broken(piece.text) && !is_exempt(piece)) {
        let columns = all[piece.line - 1].chars().count();
        if columns > COLUMNS_MAX {
            let what = format!("{columns} columns; at most {COLUMNS_MAX}");
            found.push(Violation::new(format!("{}:{}", file.path, piece.line), what));
        }
    }
    found.dedup();
    found
}

fn is_row(text: &str) -> bool {
    text.trim_start_matches(MARKERS).starts_with('|')
}

/// Whether a line has more than one word.
fn may_be_broken(text: &str) -> bool {
    text.trim_start_matches(MARKERS).split_whitespace().nth(1).is_some()
}
