//! The prose in a file: comments, strings of code, and everything in a document.

use super::files::File;

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
    let (mut found, mut at, mut line) = (Vec::new(), 0, 1);
    while let Some(next) = text[at..].chars().next() {
        let rest = &text[at..];
        let (taken, prose) = match next {
            '/' if rest.starts_with("//") => {
                let end = rest.find('\n').unwrap_or(rest.len());
                let is_doc =
                    is_rust && (rest.starts_with("//!") || rest.starts_with("///")) && !rest.starts_with("////");
                (end, Some((if is_doc { Kind::Doc } else { Kind::Comment }, &rest[..end])))
            }
            '/' if rest.starts_with("/*") => {
                let end = block_end(rest, is_rust);
                (end, Some((Kind::Comment, &rest[..end])))
            }
            '"' => {
                let hashes = if is_rust { raw_hashes(&text[..at]) } else { None };
                let inside = &rest[1..];
                let end = hashes.map_or_else(|| string_end(inside), |hashes| raw_end(inside, hashes));
                ((end + 2).min(rest.len()), Some((Kind::Message, &inside[..end])))
            }
            '\'' => (character_end(rest), None),
            _ => (next.len_utf8(), None),
        };
        if let Some((kind, prose)) = prose {
            found.extend(lines(line, kind, prose));
        }
        line += rest[..taken].matches('\n').count();
        at += taken;
    }
    found
}

/// Where a block comment ends. In Rust, block comments may be nested.
fn block_end(rest: &str, is_rust: bool) -> usize {
    let (mut depth, mut at) = (1_usize, 2);
    while depth > 0 {
        let Some(next) = rest[at..].find(['/', '*']) else { return rest.len() };
        at += next;
        if rest[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
        } else if is_rust && rest[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else {
            at += 1;
        }
    }
    at
}

/// Where a string with escapes ends: its closing quote, or the end of the file.
fn string_end(inside: &str) -> usize {
    let mut is_escaped = false;
    let closes = |next: char| {
        let closes = next == '"' && !is_escaped;
        is_escaped = next == '\\' && !is_escaped;
        closes
    };
    inside.find(closes).unwrap_or(inside.len())
}

/// The number of `#` between `r` and the quote, of a raw string whose quote follows `before`.
fn raw_hashes(before: &str) -> Option<usize> {
    let name = before.trim_end_matches('#');
    let prefix = name.strip_suffix('r')?;
    let prefix = prefix.strip_suffix(['b', 'c']).unwrap_or(prefix);
    let is_name = prefix.ends_with(|before: char| before.is_alphanumeric() || before == '_');
    (!is_name).then_some(before.len() - name.len())
}

fn raw_end(inside: &str, hashes: usize) -> usize {
    inside.find(&format!("\"{}", "#".repeat(hashes))).unwrap_or(inside.len())
}

/// The length of a character literal with its quotes; for a lifetime, that of its quote alone.
fn character_end(rest: &str) -> usize {
    let mut inside = rest[1..].char_indices();
    match (inside.next(), inside.next()) {
        (Some((_, '\\')), Some((at, escaped))) => {
            let after = 1 + at + escaped.len_utf8();
            rest[after..].find('\'').map_or(rest.len(), |end| after + end + 1)
        }
        (Some(_), Some((at, '\''))) => 1 + at + 1,
        _ => 1,
    }
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
