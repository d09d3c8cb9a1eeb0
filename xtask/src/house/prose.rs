//! The prose in a file: comments, strings of code, and everything in a document.

use super::files::File;
use crate::lexer::LiteralKind::{Byte, Char, Float, Int};
use crate::lexer::{TokenKind, tokens};
use regex::Regex;

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
        Some("toml") => toml(text),
        _ => Vec::new(),
    }
}

/// The lines of a text that begins in line `first`.
fn lines(first: usize, kind: Kind, text: &str) -> impl Iterator<Item = Piece<'_>> {
    text.lines().enumerate().map(move |(index, text)| Piece { line: first + index, kind, text })
}

/// The comments of TOML: in each line, from the first `#` outside strings.
fn toml(text: &str) -> Vec<Piece<'_>> {
    let comment = Regex::new(r#"^(?:[^"'#]|"[^"]*"|'[^']*')*(#.*)"#).expect("a pattern");
    let piece = |(index, line)| {
        let text = comment.captures(line)?.get(1)?.as_str();
        Some(Piece { line: index + 1, kind: Kind::Comment, text })
    };
    text.lines().enumerate().filter_map(piece).collect()
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
    use super::{Kind, pieces};
    use crate::fixture;

    fn check(path: &str, text: &str, expected: &[(usize, Kind, &str)]) {
        let file = fixture::file(path, text);
        let found = pieces(&file).into_iter().map(|piece| (piece.line, piece.kind, piece.text));
        assert_eq!(found.collect::<Vec<_>>(), expected, "{text}");
    }

    #[test]
    fn comments_and_strings_of_rust() {
        use Kind::{Comment, Doc, Message};
        let text = "//! A page.\n/// One.\nfn f<'a>(a: &'a str) { // why\n    g('\"', \"it \\\" is\", '\\'', '/');\n}\n//// no doc\n";
        let all = [(1, Doc, "//! A page."), (2, Doc, "/// One."), (3, Comment, "// why")];
        check("a.rs", text, &[&all[..], &[(4, Message, "it \\\" is"), (6, Comment, "//// no doc")]].concat());
        let raw = "let a = br#\"a \"quoted\" // word\"#; let b = r\"\\\"; ";
        check("a.rs", raw, &[(1, Message, "a \"quoted\" // word"), (1, Message, "\\")]);
        let block = "/* one /* two */\nthree */ let c = \"d\n  e\";\n";
        let all = [(1, Comment, "/* one /* two */"), (2, Comment, "three */"), (2, Message, "d"), (3, Message, "  e")];
        check("a.rs", block, &all);
        // What does not end is read to the end.
        check("a.rs", "\"open", &[(1, Message, "open")]);
        check("a.rs", "/* open", &[(1, Comment, "/* open")]);
        check("a.rs", "r##\"open\"#", &[(1, Message, "open\"#")]);
        check("a.rs", "'\\", &[]);
    }

    #[test]
    fn comments_and_strings_of_other_files() {
        use Kind::{Comment, Document, Message};
        let text = "/* one /* two */ char c = '\\\\'; // three\n#include \"a.h\"\n";
        check("a.h", text, &[(1, Comment, "/* one /* two */"), (1, Comment, "// three"), (2, Message, "a.h")]);
        check("a.toml", "# one\na = \"#2\" # three\n", &[(1, Comment, "# one"), (2, Comment, "# three")]);
        check("a.md", "# One\n\ntwo\n", &[(1, Document, "# One"), (2, Document, ""), (3, Document, "two")]);
        check("a.json", "// one\n", &[]);
    }
}
