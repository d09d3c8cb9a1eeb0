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

/// Reports the lines of a file that are too long.
pub(super) fn violations(file: &File) -> Vec<Violation> {
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

#[cfg(test)]
mod tests {
    use super::{File, violations};

    fn check(path: &str, text: &str) -> usize {
        violations(&File { path: path.to_owned(), text: text.to_owned() }).len()
    }

    /// Two words in so many columns.
    fn words(columns: usize) -> String {
        format!("é {}", "x".repeat(columns - 2))
    }

    #[test]
    fn a_long_comment_is_found() {
        let (at_most, longer) = (words(120 - 4), words(121 - 4));
        for marker in ["//!", "///", "// "] {
            let marker = format!("{marker} ").replace("  ", " ");
            let line = |words: &str| format!("{}{marker}{}\n", " ".repeat(4 - marker.len()), words);
            assert_eq!([check("a.rs", &line(&at_most)), check("a.rs", &line(&longer))], [0, 1], "{marker}");
        }
        assert_eq!(check("a.toml", &format!("#   {longer}\n")), 1);
        assert_eq!(check("a.c", &format!("/*\n *  {longer}\n */\n")), 1);
        assert_eq!(check("a.rs", &format!("let a = b; // {}\n", words(110))), 1, "with the code before it");
    }

    #[test]
    fn a_long_line_of_a_document_is_found() {
        assert_eq!([check("a.md", &words(120)), check("a.md", &words(121))], [0, 1]);
        assert_eq!(check("a.md", &format!("- {}", words(119))), 1);
    }

    #[test]
    fn tables_code_and_what_programs_write_may_be_longer() {
        let (long, word) = (words(130), "x".repeat(130));
        for (path, text, found) in [
            ("a.md", format!("| {long} |"), 0),
            ("a.md", format!("```text\n{long}\n```"), 0),
            ("a.md", format!("<!-- a -->\n{long}\n<!-- /a -->"), 0),
            ("a.md", format!("  https://{word}"), 0),
            ("a.md", format!("- [a](https://{word})"), 0),
            ("a.rs", format!("/// ```text\n/// {long}\n/// ```\n"), 0),
            // This is no Markdown, and this another comment.
            ("a.rs", format!("// ```text\n// {long}\n// ```\n"), 1),
            ("a.rs", format!("/// ```\nfn f() {{}}\n/// {long}\n"), 1),
            ("a.rs", format!("/// | {long} |\n"), 0),
            // Code alone is for rustfmt.
            ("a.rs", format!("let a = \"{long}\";\n"), 0),
            ("a.rs", format!("/* 1 */ let a = \"{long}\";\n"), 0),
            ("a.json", long.clone(), 0),
        ] {
            assert_eq!(check(path, &text), found, "{text}");
        }
    }
}
