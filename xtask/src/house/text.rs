//! Rules about what files contain.

use super::Violation;
use super::files::File;
use regex::Regex;

/// Lines that a source file may have.
const SOURCE_LINES_MAX: usize = 600;
/// Lines that a file of a `tests` folder may have.
const TEST_LINES_MAX: usize = 900;
/// Lines that the README may have. Longer texts belong in `docs`.
const README_LINES_MAX: usize = 120;

/// Words that no source file may contain.
const UNFINISHED: &str = r"(?:todo|unimplemented|dbg)!\(|#\[ignore";
/// The beginning of a path in a folder that exists on one machine only, with what stands before it.
const OF_ONE_MACHINE: &str = r"(?:^|[^\w.~})*-])(/(?:work|root|home)/)";

pub(super) fn violations(files: &[File]) -> Vec<Violation> {
    let [unfinished, of_one_machine] = [UNFINISHED, OF_ONE_MACHINE].map(|rule| Regex::new(rule).expect("a pattern"));
    let mut violations = Vec::new();
    for File { path, text } in files {
        let lines = text.lines().count();
        if let Some(most) = lines_max(path).filter(|most| lines > *most) {
            violations.push(Violation::new(path, format!("{lines} lines; at most {most}")));
        }
        for (index, line) in text.lines().enumerate() {
            let mut flag = |what: String| violations.push(Violation::new(format!("{path}:{}", index + 1), what));
            for word in unfinished.find_iter(line).filter(|_| path.ends_with(".rs")) {
                flag(format!("`{}` is unfinished", word.as_str()));
            }
            for found in of_one_machine.captures_iter(line) {
                flag(format!("a path under `{}` exists on one machine only", &found[1]));
            }
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
