//! Every design has its row in the README.

use super::Violation;
use super::files::File;

/// Where the designs are, one file each.
const FOLDER: &str = "crates/portcullis/src/designs/";
/// Files there that declare none: the list, and how users write a design.
const OTHERS: [&str; 2] = ["mod.rs", "choice.rs"];
const README: &str = "README.md";

/// Designs without a row, and files there that declare no design.
pub(super) fn violations(files: &[File]) -> Vec<Violation> {
    let readme = files.iter().find(|file| file.path == README).map_or("", |file| &file.text);
    let mut violations = Vec::new();
    let designs = files.iter().filter(|file| file.path.starts_with(FOLDER) && file.path.ends_with(".rs"));
    for file in designs.filter(|file| !OTHERS.contains(&&file.path[FOLDER.len()..])) {
        let ids = ids(&file.text);
        if ids.is_empty() && !file.path[FOLDER.len()..].contains('/') {
            violations.push(Violation::new(&file.path, "declares no design"));
        }
        for id in ids {
            if !readme.lines().any(|line| line.starts_with(&format!("| `{id}`"))) {
                violations.push(Violation::new(README, format!("the table of designs has no row for `{id}`")));
            }
        }
    }
    violations
}

/// The ids of the designs that a file declares.
fn ids(text: &str) -> Vec<&str> {
    let declarations = text.split("const INFO: Info").skip(1);
    declarations.filter_map(|declaration| Some(declaration.split_once("id: \"")?.1.split_once('"')?.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::{File, Violation, violations};

    const STOCK: &str =
        "impl Described for Stock {\n    const INFO: Info = Info {\n        id: \"stock\",\n    };\n}\n";

    fn check(readme: &str, design: &str) -> Vec<Violation> {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        violations(&[
            file("README.md", readme),
            file("crates/portcullis/src/designs/mod.rs", "mod stock;"),
            file("crates/portcullis/src/designs/stock.rs", design),
        ])
    }

    #[test]
    fn a_design_has_a_row() {
        assert_eq!(check("| id | source |\n|---|---|\n| `stock` | Linux |\n", STOCK), []);
    }

    #[test]
    fn a_design_without_a_row_is_found() {
        for readme in ["", "`stock` is a design\n", "| `stock-like` | Linux |\n", "| other | `stock` |\n"] {
            let violation = Violation::new("README.md", "the table of designs has no row for `stock`");
            assert_eq!(check(readme, STOCK), [violation], "{readme}");
        }
    }

    #[test]
    fn a_file_without_a_design_is_found() {
        let violation = Violation::new("crates/portcullis/src/designs/stock.rs", "declares no design");
        assert_eq!(check("| `stock` |", "struct Stock;\n"), [violation]);
    }
}
