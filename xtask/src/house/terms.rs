//! Terms that the glossary forbids, in comments, strings of code and documents.
//!
//! A row of a table of `docs/glossary.md` has three cells: a term, its meaning, and the terms that are forbidden in
//! its place, separated by commas. A forbidden term in backticks is a name, and its case matters; the case of any
//! other does not. Whole words are compared. The words of a longer term may be spread over several lines.

use super::Violation;
use super::files::File;
use super::prose::{Piece, pieces};

/// The document that forbids terms.
const GLOSSARY: &str = "docs/glossary.md";
/// The least number of forbidden terms. If the table were not recognized, no term would be forbidden.
const TERMS_MIN: usize = 10;

/// A term that is forbidden.
struct Forbidden<'f> {
    words: Vec<&'f str>,
    is_name: bool,
    /// The term to use instead.
    instead: &'f str,
}

impl Forbidden<'_> {
    fn is_at(&self, words: &[(usize, &str)]) -> bool {
        let same = |(one, other): (&&str, &(usize, &str))| {
            if self.is_name { *one == other.1 } else { one.to_lowercase() == other.1.to_lowercase() }
        };
        words.len() >= self.words.len() && self.words.iter().zip(words).all(same)
    }
}

/// Reports the uses of forbidden terms.
pub(super) fn violations(files: &[File]) -> Vec<Violation> {
    let glossary = files.iter().find(|file| file.path == GLOSSARY).map_or("", |file| &file.text);
    let forbidden: Vec<Forbidden<'_>> = glossary.lines().flat_map(forbidden).collect();
    if forbidden.len() < TERMS_MIN {
        let what = format!("forbids {} terms; at least {TERMS_MIN} are expected", forbidden.len());
        return vec![Violation::new(GLOSSARY, what)];
    }
    files.iter().flat_map(|file| used(file, &forbidden)).collect()
}

/// The terms that a line of the glossary forbids.
fn forbidden(line: &str) -> Vec<Forbidden<'_>> {
    let Some([term, _, not]) = cells(line) else { return Vec::new() };
    let all = not.split(',').map(str::trim).filter(|not| !not.is_empty() && !matches!(*not, "not" | "---"));
    all.map(|not| Forbidden { words: words(not).collect(), is_name: not.starts_with('`'), instead: term }).collect()
}

/// The cells of a row with three.
fn cells(line: &str) -> Option<[&str; 3]> {
    let row = line.strip_prefix('|')?.trim_end().strip_suffix('|')?;
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    cells.try_into().ok()
}

/// The words of a text: letters, digits, `_` and apostrophes within them.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let inside = |next: char| next.is_alphanumeric() || matches!(next, '_' | '\'' | '’');
    text.split(move |next| !inside(next)).map(|word| word.trim_matches(['\'', '’'])).filter(|word| !word.is_empty())
}

fn used(file: &File, forbidden: &[Forbidden<'_>]) -> Vec<Violation> {
    let pieces = pieces(file).into_iter().map(|piece| (piece.line, without_last_cell(file, piece)));
    let words: Vec<(usize, &str)> = pieces.flat_map(|(line, text)| words(text).map(move |word| (line, word))).collect();
    let mut violations = Vec::new();
    for (at, (line, _)) in words.iter().enumerate() {
        for term in forbidden.iter().filter(|term| term.is_at(&words[at..])) {
            let what = format!("`{}` is not said; `{GLOSSARY}` has: {}", term.words.join(" "), term.instead);
            violations.push(Violation::new(format!("{}:{line}", file.path), what));
        }
    }
    violations
}

/// The text of a piece. For a row of the glossary, without its last cell.
fn without_last_cell<'f>(file: &File, piece: Piece<'f>) -> &'f str {
    let row = cells(piece.text).filter(|_| file.path == GLOSSARY);
    row.map_or(piece.text, |[_, _, not]| piece.text.rsplit_once(not).map_or("", |(before, _)| before))
}

#[cfg(test)]
mod tests {
    use super::{File, GLOSSARY, violations};

    /// A glossary with enough terms, of which a test needs a few.
    fn glossary() -> String {
        let more: String = (0..10).map(|number| format!("| x{number} | X. | zz{number} |\n")).collect();
        format!(
            "| term | meaning | not |\n|---|---|---|\n| stream | A ring. | chute, {} |\n{more}",
            "so to say, `Gutter`"
        )
    }

    fn check(path: &str, text: &str) -> Vec<String> {
        let file = |path: &str, text: String| File { path: path.to_owned(), text };
        let files = [file(GLOSSARY, glossary()), file(path, text.to_owned())];
        violations(&files).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_forbidden_term_is_found_in_prose() {
        for (path, text) in [
            ("a.rs", "// The chute.\n"),
            ("a.rs", "/// A Chute\n"),
            ("a.rs", "const A: &str = \"no chute left\";\n"),
            ("a.c", "/* a chute */\n"),
            ("a.toml", "# chute\n"),
            ("a.md", "`chute`\n"),
        ] {
            let what = format!("{path}:1: `chute` is not said; `{GLOSSARY}` has: stream");
            assert_eq!(check(path, text), [what], "{text}");
        }
    }

    #[test]
    fn whole_words_count_and_code_does_not() {
        for text in ["// parachute, chutes\n", "fn chute() {}\n", "let a = chute; // fine\n"] {
            assert_eq!(check("a.rs", text), [""; 0], "{text}");
        }
        assert_eq!(check("a.md", "a chute_of b\n"), [""; 0]);
    }

    #[test]
    fn names_are_compared_as_they_are_written() {
        assert_eq!(check("a.rs", "// a gutter\n"), [""; 0]);
        assert_eq!(check("a.rs", "// a [`Gutter`]\n").len(), 1);
    }

    #[test]
    fn the_words_of_a_term_may_stand_in_two_lines() {
        assert_eq!(check("a.rs", "// It is, so\n// to say, new.\n").len(), 1);
        assert_eq!(check("a.rs", "// so much to say\n"), [""; 0]);
    }

    #[test]
    fn a_glossary_that_forbids_nothing_is_refused() {
        let file = File { path: GLOSSARY.to_owned(), text: "| stream | A ring. | chute |\n".to_owned() };
        assert_eq!(violations(&[file]).len(), 1);
        assert_eq!(violations(&[]).len(), 1);
    }

    /// The glossary itself uses no forbidden term outside its last cells.
    #[test]
    fn the_meanings_of_the_glossary_are_checked_too() {
        let text = glossary().replace("A ring.", "A chute.");
        let found = violations(&[File { path: GLOSSARY.to_owned(), text }]);
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
