//! Every design has its row in docs/designs.md, and a page that lists the files of its map and its unmap.

use super::Violation;
use super::files::File;

/// Where the designs are: one file each, or one folder, whose module file is the design's.
const FOLDERS: [&str; 2] = ["crates/portcullis/src/designs/", "crates/portcullis-designs/src/"];
/// Files there that declare no design: the list of designs, the code for choosing one, and what several need.
const OTHERS: [&str; 6] = ["mod.rs", "queue.rs", "lib.rs", "registry.rs", "choice.rs", "sync.rs"];
/// The beginnings of the lists in the doc comment of a design.
const LISTS: [&str; 2] = ["//! A map:", "//! An unmap:"];
/// The folders of the listed files.
const SOURCES: [&str; 2] = ["crates/portcullis/src/", "crates/portcullis-designs/src/"];
/// The most files that a map or an unmap of these designs may list, as readers are promised.
const FILES_MAX: [(&str, usize); 2] = [("portcullis.rs", 6), ("magazine.rs", 8)];
/// The document with the table of designs.
const TABLE: &str = "docs/designs.md";

/// Reports designs without a row, and files in the folder that declare no design.
pub(super) fn violations(files: &[File]) -> Vec<Violation> {
    let table = files.iter().find(|file| file.path == TABLE).map_or("", |file| &file.text);
    let mut violations = Vec::new();
    for file in files {
        let name = FOLDERS.iter().find_map(|folder| file.path.strip_prefix(folder));
        let Some(name) = name.filter(|name| name.ends_with(".rs") && !OTHERS.contains(name)) else { continue };
        let ids = ids(&file.text);
        if !ids.is_empty() {
            violations.extend(page(file, name, files));
        } else if name.strip_suffix("/mod.rs").unwrap_or(name).split('/').count() == 1 {
            violations.push(Violation::new(&file.path, "declares no design"));
        }
        let missing = ids.iter().filter(|id| !table.lines().any(|line| line.starts_with(&format!("| `{id}`"))));
        violations
            .extend(missing.map(|id| Violation::new(TABLE, format!("the table of designs has no row for `{id}`"))));
    }
    violations
}

/// What is wrong with the doc comment of the design in `file`: a list that is missing or too long, or a listed file
/// that does not exist.
fn page(file: &File, name: &str, files: &[File]) -> Vec<Violation> {
    let mut wrong = Vec::new();
    for list in LISTS {
        let listed = listed(&file.text, list);
        if listed.is_empty() {
            wrong.push(format!("its page has no `{list}` with files"));
        }
        let is_there =
            |path| SOURCES.iter().any(|sources| files.iter().any(|file| file.path.strip_prefix(sources) == Some(path)));
        let missing = listed.iter().filter(|path| !is_there(**path));
        wrong.extend(missing.map(|path| format!("lists `{path}`, which is not there")));
        for (_, max) in FILES_MAX.iter().filter(|(of, max)| *of == name && listed.len() > *max) {
            wrong.push(format!("`{list}` lists {} files; at most {max}", listed.len()));
        }
    }
    wrong.into_iter().map(|what| Violation::new(&file.path, what)).collect()
}

/// The files in the paragraph that begins with `list`.
fn listed<'f>(text: &'f str, list: &str) -> Vec<&'f str> {
    let paragraph = text.lines().skip_while(|line| !line.starts_with(list));
    let lines = paragraph.take_while(|line| line.starts_with("//! "));
    lines.flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

/// The ids of the designs that a file declares.
fn ids(text: &str) -> Vec<&str> {
    let declarations = text.split("const INFO: Info").skip(1);
    declarations.filter_map(|declaration| Some(declaration.split_once("id: \"")?.1.split_once('"')?.0)).collect()
}
