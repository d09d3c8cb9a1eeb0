//! Markdown, as far as the rules need it: which lines are prose, and which anchors headings make.

use std::collections::BTreeMap;

/// What a line of a document is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    Prose,
    /// A line of a block of code, or a fence around one.
    Code,
    /// A line that a program writes, between `<!-- NAME -->` and `<!-- /NAME -->`.
    Generated,
}

/// The lines of a document with their numbers, from 1.
pub(super) fn roles<'t>(lines: impl Iterator<Item = &'t str>) -> impl Iterator<Item = (usize, Role, &'t str)> {
    let (mut fence, mut block) = (None::<&str>, None::<&str>);
    lines.enumerate().map(move |(index, line)| {
        let begun = line.trim_start().trim_start_matches("> ");
        let marker = ["```", "~~~"].into_iter().find(|marker| begun.starts_with(marker));
        let mut role = if fence.is_some() || marker.is_some() { Role::Code } else { Role::Prose };
        match fence {
            None => fence = marker,
            Some(open) if marker == Some(open) => fence = None,
            Some(_) => {}
        }
        let comment = line.trim().strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"));
        match block {
            _ if role == Role::Code => {}
            Some(name) if comment.and_then(|comment| comment.strip_prefix('/')) == Some(name) => block = None,
            Some(_) => role = Role::Generated,
            None => block = comment.filter(|comment| !comment.contains([' ', '/'])),
        }
        (index + 1, role, line)
    })
}

/// The anchors that the headings of a document make, as GitHub does, and those that it names itself.
pub(super) fn anchors(text: &str) -> Vec<String> {
    let (mut anchors, mut seen) = (Vec::new(), BTreeMap::new());
    for (_, _, line) in roles(text.lines()).filter(|(_, role, _)| *role != Role::Code) {
        if let Some(heading) = heading(line) {
            let slug = slug(heading);
            let earlier: &mut usize = seen.entry(slug.clone()).or_default();
            anchors.push(if *earlier == 0 { slug } else { format!("{slug}-{earlier}") });
            *earlier += 1;
        }
        for attribute in ["<a id=\"", "<a name=\""] {
            anchors.extend(line.split(attribute).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
        }
    }
    anchors
}

/// The text of a heading of one to six `#`.
fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    let is_heading = (1..=6).contains(&(line.len() - text.len())) && text.starts_with(' ');
    is_heading.then(|| text.trim().trim_end_matches('#').trim_end())
}

/// The anchor of a heading: in lower case, with a `-` for each blank, and without all characters other than letters,
/// digits, `-` and `_`. A link counts as its text.
fn slug(heading: &str) -> String {
    let mut text = heading.to_owned();
    while let Some((before, after)) = text.split_once("](") {
        let (Some((start, shown)), Some((_, end))) = (before.rsplit_once('['), after.split_once(')')) else { break };
        text = format!("{start}{shown}{end}");
    }
    let kept = text.chars().filter(|next| next.is_alphanumeric() || matches!(next, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use super::{Role, anchors, roles};

    #[test]
    fn code_and_what_programs_write_is_no_prose() {
        let text = "a\n```sh\n<!-- b -->\n```\n<!-- c -->\n| d |\n```text\n<!-- /c -->\n```\nd\n<!-- /c -->\ne\n<!-- a remark -->\n";
        let found: Vec<Role> = roles(text.lines()).map(|(_, role, _)| role).collect();
        let (prose, code, made) = (Role::Prose, Role::Code, Role::Generated);
        let expected = [prose, code, code, code, prose, made, code, code, code, made, prose, prose, prose];
        assert_eq!(found, expected);
    }

    #[test]
    fn anchors_are_those_of_github() {
        let text = "# The design `portcullis`\n## What's new? (and_old)\n## [Linux](a.md) – here\n# Twice\n### Twice #\n\
            ```\n# no heading\n```\n#none\n<a id=\"Own\"></a>\n";
        let expected = ["the-design-portcullis", "whats-new-and_old", "linux--here", "twice", "twice-1", "Own"];
        assert_eq!(anchors(text), expected);
    }
}
