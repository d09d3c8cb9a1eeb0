//! Rules about what files contain.

use super::Violation;
use super::files::File;

/// Lines that a source file may have.
const SOURCE_LINES_MAX: usize = 600;
/// Lines that a file of a `tests` folder may have.
const TEST_LINES_MAX: usize = 900;
/// Lines that the README may have. Longer texts belong in `docs`.
const README_LINES_MAX: usize = 120;

/// Words that no source file may contain. They are written in two halves, because this is a source file too.
const UNFINISHED: [&str; 4] =
    [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("#[", "ignore"), concat!("dbg", "!(")];

/// Folders that exist on one machine only.
const MACHINE_FOLDERS: [&str; 3] = [concat!("/work", "/"), concat!("/root", "/"), concat!("/home", "/")];

/// The rules that one file breaks.
pub(super) fn violations(file: &File) -> Vec<Violation> {
    let mut violations = Vec::new();
    let is_source = file.path.ends_with(".rs");
    let lines = file.text.lines().count();
    if let Some(most) = lines_max(&file.path).filter(|most| lines > *most) {
        violations.push(Violation::new(&file.path, format!("{lines} lines; at most {most}")));
    }
    for (index, line) in file.text.lines().enumerate() {
        let mut flag = |what: String| violations.push(Violation::new(format!("{}:{}", file.path, index + 1), what));
        for word in UNFINISHED.iter().filter(|word| is_source && line.contains(**word)) {
            flag(format!("`{word}` is unfinished"));
        }
        for folder in MACHINE_FOLDERS.iter().filter(|folder| names_absolute(line, folder)) {
            flag(format!("a path under `{folder}` exists on one machine only"));
        }
    }
    violations
}

/// The lines that a file may have; `None` if there is no limit.
fn lines_max(path: &str) -> Option<usize> {
    if path == "README.md" {
        return Some(README_LINES_MAX);
    }
    let most = if path.split('/').any(|part| part == "tests") { TEST_LINES_MAX } else { SOURCE_LINES_MAX };
    path.ends_with(".rs").then_some(most)
}

/// Whether `folder` stands in `line` as the beginning of a path, not as a part of one.
fn names_absolute(line: &str, folder: &str) -> bool {
    let inside = |before: char| before.is_alphanumeric() || matches!(before, '.' | '_' | '-' | '~' | '}' | ')' | '*');
    line.match_indices(folder).any(|(at, _)| !line[..at].chars().next_back().is_some_and(inside))
}

#[cfg(test)]
mod tests {
    use super::{MACHINE_FOLDERS, UNFINISHED, Violation, violations};
    use crate::house::files::File;

    fn check(path: &str, text: &str) -> Vec<Violation> {
        violations(&File { path: path.to_owned(), text: text.to_owned() })
    }

    #[test]
    fn long_files_are_refused() {
        for (path, at_most) in [
            ("crates/a/src/lib.rs", 600),
            ("crates/a/tests/all.rs", 900),
            ("README.md", 120),
            // Of prose, only that README has a limit.
            ("ARCHITECTURE.md", 10_000),
            ("examples/README.md", 10_000),
        ] {
            assert_eq!(check(path, &"a line\n".repeat(at_most)), []);
            let violation = Violation::new(path, format!("{} lines; at most {at_most}", at_most + 1));
            let longer = check(path, &"a line\n".repeat(at_most + 1));
            assert_eq!(longer, if at_most < 10_000 { vec![violation] } else { Vec::new() });
        }
    }

    #[test]
    fn unfinished_code_is_refused() {
        for word in UNFINISHED {
            let text = format!("fn f() {{\n    {word}\n}}\n");
            let violation = Violation::new("src/a.rs:2", format!("`{word}` is unfinished"));
            assert_eq!(check("src/a.rs", &text), [violation]);
            assert_eq!(check("README.md", &text), [], "prose may speak of it");
        }
    }

    #[test]
    fn paths_of_one_machine_are_refused_everywhere() {
        for folder in MACHINE_FOLDERS {
            for (before, found) in
                [("see ", 1), ("`", 1), ("file://", 1), ("", 1), ("crates", 0), ("..", 0), ("${root}", 0)]
            {
                let text = format!("{before}{folder}x");
                assert_eq!(check("README.md", &text).len(), found, "{text}");
            }
        }
    }
}
