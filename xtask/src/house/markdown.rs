//! Markdown, as far as the rules need it: links, anchors, and which lines are code.

use super::files::File;
use super::prose::{Kind, pieces};
use pulldown_cmark::{Event, LinkType, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What a document says, or the doc comments of a source. Lines count from 1.
#[derive(Default)]
pub(super) struct Markdown {
    /// The targets of links and images, each with its line.
    pub(super) links: Vec<(usize, String)>,
    /// The anchors that headings make, as GitHub does, and those that the text names itself.
    pub(super) anchors: Vec<String>,
    /// The lines of blocks of code, with their fences.
    pub(super) code: BTreeSet<usize>,
}

impl Markdown {
    pub(super) fn of(file: &File) -> Self {
        let mut markdown = Self::default();
        texts(file).iter().for_each(|(first, text)| markdown.read(*first, text));
        markdown
    }

    /// Reads a text whose first line is line `first`.
    fn read(&mut self, first: usize, text: &str) {
        let line = |at: usize| first + text[..at].matches('\n').count();
        let (mut heading, mut seen) = (None::<String>, BTreeMap::new());
        let events = Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter();
        let definitions = events.reference_definitions().iter();
        self.links.extend(definitions.map(|(_, link)| (line(link.span.start), link.dest.to_string())));
        for (event, range) in events {
            match event {
                Event::Start(
                    Tag::Link { link_type: LinkType::Inline, dest_url, .. }
                    | Tag::Image { link_type: LinkType::Inline, dest_url, .. },
                ) => self.links.push((line(range.start), dest_url.to_string())),
                Event::Start(Tag::CodeBlock(_)) => self.code.extend(line(range.start)..=line(range.end - 1)),
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(part) | Event::Code(part) => heading.iter_mut().for_each(|heading| heading.push_str(&part)),
                Event::End(TagEnd::Heading(_)) => {
                    let slug = slug(&heading.take().unwrap_or_default());
                    let earlier: &mut usize = seen.entry(slug.clone()).or_default();
                    self.anchors.push(if *earlier == 0 { slug } else { format!("{slug}-{earlier}") });
                    *earlier += 1;
                }
                Event::Html(html) | Event::InlineHtml(html) => {
                    for attribute in ["<a id=\"", "<a name=\""] {
                        let named = html.split(attribute).skip(1).filter_map(|rest| rest.split_once('"'));
                        self.anchors.extend(named.map(|(name, _)| name.to_owned()));
                    }
                }
                _ => {}
            }
        }
    }
}

/// The anchor of a heading: in lower case, with a `-` for each blank, and without all characters other than letters,
/// digits, `-` and `_`.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|next| next.is_alphanumeric() || matches!(next, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// The texts of a file, each with the number of its first line: a whole document, or each doc comment of a source.
fn texts(file: &File) -> Vec<(usize, String)> {
    if file.path.ends_with(".md") {
        return vec![(1, file.text.clone())];
    }
    let mut texts: Vec<(usize, String)> = Vec::new();
    for piece in pieces(file).into_iter().filter(|piece| piece.kind == Kind::Doc) {
        let line = piece.text.trim_start_matches(['/', '!']);
        match texts.last_mut() {
            Some((first, text)) if *first + text.matches('\n').count() == piece.line => {
                text.push_str(line);
                text.push('\n');
            }
            _ => texts.push((piece.line, format!("{line}\n"))),
        }
    }
    texts
}

/// A part of a document that a program writes, between `<!-- NAME -->` and `<!-- /NAME -->`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Block<'t> {
    pub(crate) name: &'t str,
    /// The numbers of its lines, from 1.
    pub(crate) lines: Range<usize>,
    /// Where its text is in the document.
    pub(crate) range: Range<usize>,
}

/// The blocks of a document, in order.
pub(crate) fn blocks(text: &str) -> Result<Vec<Block<'_>>, String> {
    let (mut found, mut open, mut at) = (Vec::new(), None, 0);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let comment = line.trim_end().strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"));
        match (open, comment) {
            (None, Some(name)) if name.chars().all(|next| next.is_ascii_lowercase() || next == '-') => {
                open = Some((name, index + 2, at + line.len()));
            }
            (Some((name, first, begins)), Some(end)) if end.strip_prefix('/') == Some(name) => {
                found.push(Block { name, lines: first..index + 1, range: begins..at });
                open = None;
            }
            _ => {}
        }
        at += line.len();
    }
    match open {
        Some((name, first, _)) => Err(format!("the block `{name}` of line {} has no end", first - 1)),
        None => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::Markdown;
    use crate::fixture::file;

    #[test]
    fn code_has_its_lines() {
        let code = |path, text| Vec::from_iter(Markdown::of(&file(path, text)).code);
        assert_eq!(code("a.md", "a\n```sh\nb\n```\nc\n> ~~~\n> ```\n> ~~~\n"), [2, 3, 4, 6, 7, 8]);
        assert_eq!(code("a.rs", "/// ```\nfn f() {}\n/// a\n//! ```\n//! b\n//! ```\n// ```\n"), [1, 4, 5, 6]);
    }

    #[test]
    fn anchors_are_those_of_github() {
        let text = "# The design `portcullis`\n## What's new? (and_old)\n## [Linux](a.md) – here\n# Twice\n### Twice #\n\
            ```\n# no heading\n```\n#none\n<a id=\"Own\"></a>\n";
        let expected = ["the-design-portcullis", "whats-new-and_old", "linux--here", "twice", "twice-1", "Own"];
        assert_eq!(Markdown::of(&file("a.md", text)).anchors, expected);
    }
}
