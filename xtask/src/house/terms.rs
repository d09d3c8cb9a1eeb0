//! Terms that the glossary forbids, in comments, strings of code and documents.
//!
//! A row of a table of `docs/glossary.md` has three cells: a term, its meaning, and the terms that are forbidden in
//! its place, separated by commas. A forbidden term in backticks is a name, and its case matters; the case of any
//! other does not. Whole words are compared. The words of a longer term may be spread over several lines.

use super::Violation;
use super::files::File;
use super::prose::{Piece, pieces};

/// The document that forbids terms.
pub(super) const GLOSSARY: &str = "docs/glossary.md";
/// The least number of forbidden terms. If the table were not recognized, no term would be forbidden.
const TERMS_MIN: usize = 10;

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
