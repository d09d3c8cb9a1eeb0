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
        if is_source {
            UNFINISHED
                .iter()
                .filter(|word| line.contains(**word))
                .for_each(|word| flag(format!("`{word}` is unfinished")));
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
        let (at_most, longer) = ("// a line\n".repeat(600), "// a line\n".repeat(601));
        assert_eq!(check("crates/a/src/lib.rs", &at_most), []);
        assert_eq!(
            check("crates/a/src/lib.rs", &longer),
            [Violation::new("crates/a/src/lib.rs", "601 lines; at most 600")]
        );
        assert_eq!(check("crates/a/tests/all.rs", &longer), []);
        assert_eq!(check("crates/a/tests/all.rs", &"\n".repeat(901)).len(), 1);
        assert_eq!(check("ARCHITECTURE.md", &longer), [], "of prose, only the README has a limit");
    }

    #[test]
    fn a_long_readme_is_refused() {
        assert_eq!(check("README.md", &"a line\n".repeat(120)), []);
        let violation = Violation::new("README.md", "121 lines; at most 120");
        assert_eq!(check("README.md", &"a line\n".repeat(121)), [violation]);
        assert_eq!(check("examples/README.md", &"a line\n".repeat(121)), [], "it is no front door");
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
            for text in
                [format!("see {folder}x"), format!("`{folder}x`"), format!("file://{folder}x"), folder.to_owned()]
            {
                assert_eq!(check("README.md", &text).len(), 1, "{text}");
            }
            for text in [format!("crates{folder}x"), format!("..{folder}x"), format!("${{root}}{folder}x")] {
                assert_eq!(check("README.md", &text), [], "{text}");
            }
        }
    }
}
