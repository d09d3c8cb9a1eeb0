//! The prose in a file: comments, strings of code, and everything in a document.

use super::files::File;
use crate::lexer::LiteralKind::{Byte, Char, Float, Int};
use crate::lexer::{TokenKind, tokens};

/// What a piece of prose is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A comment of code, `//`, `/* */` or `#`.
    Comment,
    /// A comment that rustdoc reads, `///` or `//!`: it is written in Markdown.
    Doc,
    /// A string of code.
    Message,
    /// A line of a Markdown document.
    Document,
}

/// A piece of prose within one line of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece<'f> {
    /// The number of the line, from 1.
    pub(super) line: usize,
    pub(super) kind: Kind,
    /// The text: a comment with its marker, a string without its quotes.
    pub(super) text: &'f str,
}

/// The prose of a file, in order. Empty for a file in an unknown language.
pub(super) fn pieces(file: &File) -> Vec<Piece<'_>> {
    let text = file.text.as_str();
    match file.path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("md") => lines(1, Kind::Document, text).collect(),
        Some("rs") => code(text, true),
        Some("c" | "h") => code(text, false),
        Some("toml") => text.lines().enumerate().filter_map(|(index, line)| toml(index + 1, line)).collect(),
        _ => Vec::new(),
    }
}

/// The lines of a text that begins in line `first`.
fn lines(first: usize, kind: Kind, text: &str) -> impl Iterator<Item = Piece<'_>> {
    text.lines().enumerate().map(move |(index, text)| Piece { line: first + index, kind, text })
}

/// The comment of a line of TOML: from the first `#` outside strings.
fn toml(number: usize, line: &str) -> Option<Piece<'_>> {
    let mut quote = None;
    let begins = |(_, next): &(usize, char)| {
        match (*next, quote) {
            ('"' | '\'', None) => quote = Some(*next),
            (next, Some(open)) if next == open => quote = None,
            ('#', None) => return true,
            _ => {}
        }
        false
    };
    let (at, _) = line.char_indices().find(begins)?;
    Some(Piece { line: number, kind: Kind::Comment, text: &line[at..] })
}

/// The comments and strings of Rust or C.
fn code(text: &str, is_rust: bool) -> Vec<Piece<'_>> {
    let (mut found, mut line) = (Vec::new(), 1);
    for (token, text) in tokens(text, is_rust) {
        match token {
            TokenKind::LineComment { doc_style: Some(_) } if is_rust => found.extend(lines(line, Kind::Doc, text)),
            TokenKind::LineComment { .. } | TokenKind::BlockComment { .. } => {
                found.extend(lines(line, Kind::Comment, text));
            }
            TokenKind::Literal { kind: Char { .. } | Byte { .. } | Int { .. } | Float { .. }, .. } => {}
            TokenKind::Literal { .. } => found.extend(lines(line, Kind::Message, inside(text))),
            _ => {}
        }
        line += text.matches('\n').count();
    }
    found
}

/// What is between the quotes of a string; all after the first, if there is no second.
fn inside(string: &str) -> &str {
    let (prefix, inside) = string.split_once('"').unwrap_or(("", string));
    let end = format!("\"{}", "#".repeat(prefix.matches('#').count()));
    inside.strip_suffix(&end).unwrap_or(inside)
}

#[cfg(test)]
mod tests {
    use super::{File, Kind, pieces};

    fn check(path: &str, text: &str) -> Vec<(usize, Kind, String)> {
        let file = File { path: path.to_owned(), text: text.to_owned() };
        pieces(&file).into_iter().map(|piece| (piece.line, piece.kind, piece.text.to_owned())).collect()
    }

    fn expected(all: &[(usize, Kind, &str)]) -> Vec<(usize, Kind, String)> {
        all.iter().map(|(line, kind, text)| (*line, *kind, (*text).to_owned())).collect()
    }

    #[test]
    fn comments_and_strings_of_rust() {
        let text = "//! A page.\n/// One.\nfn f<'a>(a: &'a str) { // why\n    g('\"', \"it \\\" is\", '\\'', '/');\n}\n//// no doc\n";
        let all = [
            (1, Kind::Doc, "//! A page."),
            (2, Kind::Doc, "/// One."),
            (3, Kind::Comment, "// why"),
            (4, Kind::Message, "it \\\" is"),
            (6, Kind::Comment, "//// no doc"),
        ];
        assert_eq!(check("a.rs", text), expected(&all));
    }

    #[test]
    fn raw_strings_and_blocks() {
        let text =
            "let a = br#\"a \"quoted\" // word\"#; let b = r\"\\\"; /* one /* two */\nthree */ let c = \"d\n  e\";\n";
        let all = [
            (1, Kind::Message, "a \"quoted\" // word"),
            (1, Kind::Message, "\\"),
            (1, Kind::Comment, "/* one /* two */"),
            (2, Kind::Comment, "three */"),
            (2, Kind::Message, "d"),
            (3, Kind::Message, "  e"),
        ];
        assert_eq!(check("a.rs", text), expected(&all));
    }

    #[test]
    fn blocks_of_c_have_none_within_them() {
        let text = "/* one /* two */ char c = '\\\\'; // three\n#include \"a.h\"\n";
        let all = [(1, Kind::Comment, "/* one /* two */"), (1, Kind::Comment, "// three"), (2, Kind::Message, "a.h")];
        assert_eq!(check("a.h", text), expected(&all));
    }

    #[test]
    fn comments_of_toml_and_lines_of_documents() {
        assert_eq!(
            check("a.toml", "# one\na = \"#2\" # three\n"),
            expected(&[(1, Kind::Comment, "# one"), (2, Kind::Comment, "# three")])
        );
        assert_eq!(
            check("a.md", "# One\n\ntwo\n"),
            expected(&[(1, Kind::Document, "# One"), (2, Kind::Document, ""), (3, Kind::Document, "two")])
        );
        assert_eq!(check("a.json", "// one\n"), []);
    }

    #[test]
    fn what_does_not_end_is_read_to_the_end() {
        for (text, length) in [("\"open", 4), ("/* open", 7), ("r##\"open\"#", 6), ("'\\", 0)] {
            assert_eq!(check("a.rs", text).iter().map(|(.., text)| text.len()).sum::<usize>(), length, "{text}");
        }
    }
}
