//! Programs that must not compile, each with the expected error. Each has a twin that differs by one line and compiles.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program, its wrong line, and the expected error.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// The program, with `@` for the line.
    pub(crate) program: &'static str,
    pub(crate) wrong: &'static str,
    pub(crate) right: &'static str,
    /// The compiler's error: its number, none for a lint, and a part of its message.
    pub(crate) code: &'static str,
    pub(crate) says: &'static str,
}

/// The folder with cargo's output for this test.
fn built() -> PathBuf {
    env::current_exe().expect("a test is a program").parent().expect("in a folder").to_owned()
}

/// The name of a crate, and the file of its library.
type Library = (&'static str, PathBuf);

/// The compiler's output for `source`, as a library called `name` that uses those at `libraries`. It is empty if
/// `source` compiles.
fn compile(libraries: &[Library], name: &str, source: &str) -> String {
    let folder = env::temp_dir().join(format!("portcullis-compile-fail-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a new folder");
    let (file, output) = (folder.join(format!("{name}.rs")), folder.join(format!("{name}.rmeta")));
    fs::write(&file, source).expect("a new file");
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata"]);
    for (crate_name, path) in libraries {
        let mut library_as = OsString::from(format!("{crate_name}="));
        library_as.push(path);
        command.arg("--extern").arg(library_as);
    }
    let mut dependencies = OsString::from("dependency=");
    dependencies.push(built());
    let said = command.arg("-L").arg(dependencies).arg("-o").args([output, file]).output();
    let said = said.expect("the compiler that built this");
    if said.status.success() { String::new() } else { String::from_utf8_lossy(&said.stderr).into_owned() }
}

/// The files that may be the crate called `name`, the newest first. Others may be left from earlier builds.
fn candidates(name: &str) -> Vec<PathBuf> {
    let prefix = format!("lib{name}-");
    let is_library = |path: &Path| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        file.starts_with(&prefix) && file.ends_with(".rlib")
    };
    let entries = fs::read_dir(built()).expect("the folder of this test").filter_map(Result::ok);
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| is_library(path)).collect();
    found.sort_by_key(|path| std::cmp::Reverse(fs::metadata(path).and_then(|file| file.modified()).ok()));
    found
}

/// The libraries of the crates called `names` that were built for this test: those that `right` compiles with.
fn libraries(names: &[&'static str], right: &str) -> Vec<Library> {
    let mut choices: Vec<Vec<Library>> = vec![Vec::new()];
    for name in names {
        let with = |choice: &Vec<Library>, path: &PathBuf| [choice.as_slice(), &[(*name, path.clone())]].concat();
        let found = candidates(name);
        choices = choices.iter().flat_map(|choice| found.iter().map(|path| with(choice, path))).collect();
    }
    let found = choices.iter().find(|choice| compile(choice, "library", right).is_empty());
    found.unwrap_or_else(|| panic!("none of {choices:?} is the crate under test")).clone()
}

/// Fails unless each case fails to compile with its error, and its twin compiles. `uses` comes first in each program.
pub(crate) fn check(names: &[&'static str], uses: &str, cases: &[Case]) {
    let libraries = libraries(names, &format!("{uses}{}", cases[0].program.replace('@', cases[0].right)));
    for (number, Case { name, program, wrong, right, code, says }) in cases.iter().enumerate() {
        let with = |line| format!("{uses}{}", program.replace('@', line));
        let said = compile(&libraries, &format!("right_{number}"), &with(right));
        assert!(said.is_empty(), "{name}: the right twin does not compile:\n{said}");
        let said = compile(&libraries, &format!("wrong_{number}"), &with(wrong));
        let error = if code.is_empty() { "error: ".to_owned() } else { format!("error[{code}]") };
        assert!(said.contains(&error), "{name}: expected {error}:\n{said}");
        assert!(said.contains(says), "{name}: expected `{says}`:\n{said}");
    }
}
