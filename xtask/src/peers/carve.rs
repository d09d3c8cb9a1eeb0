//! Extracts single definitions from C source, according to a list, so that this repository need not contain them.

use crate::failure::Failure;
use crate::lexer::{TokenKind, tokens};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// What a line of the list requests: the file to write, the kind of the pieces, the file with them, and their names.
type Pieces<'l> = (&'l str, &'l str, &'l str, Vec<&'l str>);

/// The source files that `list` names.
pub(super) fn sources(list: &str) -> Vec<&str> {
    let mut sources: Vec<&str> = pieces(list).map(|(_, _, from, _)| from).collect();
    sources.sort_unstable();
    sources.dedup();
    sources
}

/// Extracts what the list at `list` requests from the source in `tree`, and writes it to files in the folder `out`.
pub(super) fn carve(list: &Path, tree: &Path, out: &Path) -> Result<(), Failure> {
    let text = fs::read_to_string(list).map_err(Failure::file(list))?;
    let mut files: BTreeMap<&str, String> = BTreeMap::new();
    for (into, kind, from, names) in pieces(&text) {
        let path = tree.join(from);
        let source = fs::read(&path).map_err(Failure::file(&path))?;
        // Authors' names in comments are not always UTF-8.
        let source = without_comments(&String::from_utf8_lossy(&source));
        let found = take(kind, &names, &source).map_err(Failure::contents(path))?;
        files.entry(into).or_default().push_str(&found);
    }
    fs::create_dir_all(out).map_err(Failure::file(out))?;
    for (name, text) in files {
        let path = out.join(name);
        fs::write(&path, text).map_err(Failure::file(path))?;
    }
    Ok(())
}

fn pieces(list: &str) -> impl Iterator<Item = Pieces<'_>> {
    list.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next()?, words.next()?, words.next()?, words.collect()))
    })
}

fn take(kind: &str, names: &[&str], source: &str) -> Result<String, String> {
    let each = |find: fn(&str, &str) -> Option<String>| {
        let found = names.iter().map(|name| find(source, name).ok_or(format!("there is no `{name}`")));
        found.collect::<Result<String, _>>()
    };
    match kind {
        "whole" => Ok(source.split_inclusive('\n').filter(|line| directive(line, "include").is_none()).collect()),
        "defines" => each(defines),
        "structs" => each(|source, name| aggregate(source, "struct", name)),
        "enums" => each(|source, name| aggregate(source, "enum", name)),
        "functions" => each(function),
        other => Err(format!("`{other}` is no kind of piece")),
    }
}

/// Replaces each comment by a space, or by the line ends that it contains.
fn without_comments(source: &str) -> String {
    let replaced = |(token, text): (TokenKind, &str)| match token {
        TokenKind::LineComment { .. } => String::new(),
        TokenKind::BlockComment { .. } => format!(" {}", "\n".repeat(text.matches('\n').count())),
        _ => text.to_owned(),
    };
    tokens(source, false).map(replaced).collect()
}

/// What follows the preprocessor directive `name`, if `line` is one.
fn directive<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    line.trim_start().strip_prefix('#')?.trim_start().strip_prefix(name).map(str::trim_start)
}

/// Every macro with the name `name`. If `name` ends in `*`, every macro whose name begins with it.
fn defines(source: &str, name: &str) -> Option<String> {
    let is_wanted = |line: &str| {
        let words = directive(line, "define").unwrap_or_default();
        let defined = words.split(|c: char| !is_word(c)).next().unwrap_or_default();
        name.strip_suffix('*').map_or(defined == name, |beginning| defined.starts_with(beginning))
    };
    let (mut found, mut goes_on) = (String::new(), false);
    for line in source.split_inclusive('\n') {
        if goes_on || is_wanted(line) {
            found.push_str(line);
            goes_on = line.ends_with("\\\n");
        }
    }
    (!found.is_empty()).then_some(found)
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The definition of the struct or enum `name`, up to the first closing brace at the start of a line.
fn aggregate(source: &str, keyword: &str, name: &str) -> Option<String> {
    let opening = format!("{keyword} {name} {{");
    let lines: Vec<&str> = source.split_inclusive('\n').collect();
    let begin = lines.iter().position(|line| line.trim_end() == opening)?;
    let end = begin + lines[begin..].iter().position(|line| line.starts_with('}'))?;
    Some(lines[begin..=end].concat())
}

/// The definition of the function `name`: from the line after the preceding definition up to the first closing
/// brace at the start of a line.
fn function(source: &str, name: &str) -> Option<String> {
    let lines: Vec<&str> = source.split_inclusive('\n').collect();
    let names_it = |line: &str| {
        line.match_indices(name)
            .any(|(at, _)| !line[..at].ends_with(is_word) && line[at + name.len()..].trim_start().starts_with('('))
    };
    let is_outside = |line: &str| !line.starts_with(|c: char| c.is_whitespace() || "#{}".contains(c));
    let ends = |line: &&str| line.trim().is_empty() || line.starts_with(['#', '}']) || line.trim_end().ends_with(';');
    for at in (0..lines.len()).filter(|at| is_outside(lines[*at]) && names_it(lines[*at])) {
        // In a declaration, the semicolon comes before any brace.
        let head = at + lines[at..].iter().position(|line| line.contains(['{', ';']))?;
        if lines[head].trim_start_matches(|c| c != '{' && c != ';').starts_with('{') {
            let end = head + lines[head..].iter().position(|line| line.starts_with('}'))?;
            let begin = lines[..at].iter().rposition(ends).map_or(0, |before| before + 1);
            return Some(lines[begin..=end].concat());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{aggregate, defines, function, pieces, sources, take, without_comments};

    const SOURCE: &str = r#"#include <linux/one.h>
#define FIRST_A 1
#define FIRST_B(x)	((x) + \
			 FIRST_A)
#define SECOND 3
int add(int, int);
int add_three(int);

struct pair {
	struct { int x; } inner;
};
struct pair {};

static inline
int add(int a, int b)
{
	return a + b;
}
int add_three(int a)
{
	return add(a, SECOND);
}
"#;

    #[test]
    fn a_function_is_found_by_its_whole_name_and_not_by_its_declaration() {
        let add = "static inline\nint add(int a, int b)\n{\n\treturn a + b;\n}\n";
        assert_eq!(function(SOURCE, "add").as_deref(), Some(add));
        let three = "int add_three(int a)\n{\n\treturn add(a, SECOND);\n}\n";
        assert_eq!(function(SOURCE, "add_three").as_deref(), Some(three));
        assert_eq!(function(SOURCE, "three"), None);
    }

    #[test]
    fn structs_and_macros_are_whole() {
        let pair = "struct pair {\n\tstruct { int x; } inner;\n};\n";
        assert_eq!(aggregate(SOURCE, "struct", "pair").as_deref(), Some(pair));
        let first = "#define FIRST_A 1\n#define FIRST_B(x)\t((x) + \\\n\t\t\t FIRST_A)\n";
        assert_eq!(defines(SOURCE, "FIRST_*").as_deref(), Some(first));
        assert_eq!(defines(SOURCE, "SECOND").as_deref(), Some("#define SECOND 3\n"));
        assert_eq!(defines(SOURCE, "FIRST"), None);
    }

    #[test]
    fn comments_go_and_strings_stay() {
        let text = "a /* b\n * c */ d // e\n\"/* f */\" '\"' // g";
        assert_eq!(without_comments(text), "a  \n d \n\"/* f */\" '\"' ");
    }

    #[test]
    fn the_list_says_what_is_missing() {
        let list = "# a comment\n\nx.h functions b.c add three\nx.h whole a.c\ny.h whole b.c\n";
        assert_eq!(sources(list), ["a.c", "b.c"]);
        let pieces: Vec<_> = pieces(list).collect();
        assert_eq!(pieces[0], ("x.h", "functions", "b.c", vec!["add", "three"]));
        assert_eq!(take("functions", &["add", "three"], SOURCE), Err("there is no `three`".to_owned()));
        let whole = take("whole", &[], SOURCE).expect("all of it");
        assert_eq!(whole.lines().count(), SOURCE.lines().count() - 1, "all but the #include");
    }
}
