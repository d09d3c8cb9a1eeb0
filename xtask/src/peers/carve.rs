//! Extracts single definitions from C source, according to a list, so that this repository need not contain them.

use crate::failure::Failure;
use crate::lexer::{TokenKind, tokens};
use regex::Regex;
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
    if kind == "whole" {
        return Ok(source.split_inclusive('\n').filter(|line| !line.trim_start().starts_with("#include")).collect());
    }
    names.iter().map(|name| found(kind, name, source)).collect()
}

/// The definition of `name`: of a function, a struct or an enum up to the first closing brace at the start of a line.
/// If the name of a macro ends in `*`, every macro whose name begins with it is meant.
fn found(kind: &str, name: &str, source: &str) -> Result<String, String> {
    let word = name.strip_suffix('*').map_or(format!(r"{name}\b"), str::to_owned);
    let (pattern, most) = match kind {
        "defines" => (format!(r"(?m)^[ \t]*#[ \t]*define[ \t]+{word}(?:.*\\\n)*.*\n"), usize::MAX),
        "structs" | "enums" => (format!(r"(?ms)^{} {word} \{{[ \t]*\n.*?^\}}.*?\n", kind.trim_end_matches('s')), 1),
        // Its type may begin in earlier lines. A declaration has a semicolon before any brace.
        "functions" => {
            let outside = r"[^\s#{};][^\n;]*";
            (format!(r"(?ms)^(?:{outside}\n)*?(?:{outside})?\b{word}\s*\([^{{;]*\{{.*?^\}}.*?\n"), 1)
        }
        other => return Err(format!("`{other}` is no kind of piece")),
    };
    let pattern = Regex::new(&pattern).map_err(|error| error.to_string())?;
    let found: String = pattern.find_iter(source).take(most).map(|found| found.as_str()).collect();
    if found.is_empty() { Err(format!("there is no `{name}`")) } else { Ok(found) }
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

#[cfg(test)]
mod tests {
    use super::{found, pieces, sources, take, without_comments};

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
    fn definitions_are_found_by_their_whole_names_and_are_whole() {
        let add = "static inline\nint add(int a, int b)\n{\n\treturn a + b;\n}\n";
        let three = "int add_three(int a)\n{\n\treturn add(a, SECOND);\n}\n";
        let pair = "struct pair {\n\tstruct { int x; } inner;\n};\n";
        let first = "#define FIRST_A 1\n#define FIRST_B(x)\t((x) + \\\n\t\t\t FIRST_A)\n";
        for (kind, name, expected) in [
            ("functions", "add", Some(add)),
            ("functions", "add_three", Some(three)),
            ("functions", "three", None),
            ("structs", "pair", Some(pair)),
            ("defines", "FIRST_*", Some(first)),
            ("defines", "SECOND", Some("#define SECOND 3\n")),
            ("defines", "FIRST", None),
        ] {
            assert_eq!(found(kind, name, SOURCE).ok().as_deref(), expected, "{name}");
        }
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
