//! Builds the programs that are measured.

use super::{RUST_PEERS, carve, source};
use crate::failure::Failure;
use crate::stages::{Stages, run as run_stage};
use crate::workspace::Workspace;
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The folder of the peers, below the root.
const PEERS: &str = "benches/peers";
/// The designs of the library that are measured, if the program has them.
const DESIGNS: [&str; 4] = ["portcullis", "magazine", "eiovar", "stock"];
/// Compiler flags of a kernel build, as far as a program can use them.
const KERNEL_FLAGS: [&str; 9] = [
    "-O2",
    "-std=gnu11",
    "-fno-strict-aliasing",
    "-fno-delete-null-pointer-checks",
    "-fno-jump-tables",
    "-fcf-protection=none",
    "-falign-functions=16",
    // Warnings about the kernel's code are not ours to fix, but a missing declaration must be reported before
    // linking.
    "-w",
    "-Werror=implicit-function-declaration",
];

/// A program that prints a document of results.
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) arguments: Vec<String>,
}

/// What is built.
pub(super) struct Programs {
    /// In the order in which they take turns.
    pub(super) all: Vec<Program>,
    /// The version of the Linux code among the peers.
    pub(super) linux: String,
}

pub(super) fn all(workspace: &Workspace, stages: &mut Stages<'_>, folder: &Path) -> Result<Programs, Failure> {
    let peers = workspace.root.join(PEERS);
    fs::create_dir_all(folder).map_err(Failure::file(folder))?;
    let mut linux = String::new();
    stages.stage("Linux", "extract it from the distribution's source package, and compile it", |_| {
        let list = peers.join("linux/carve.txt");
        let text = fs::read_to_string(&list).map_err(Failure::file(&list))?;
        let tree = source::unpacked(folder, &text)?;
        linux = source::version(&tree)?;
        carve::carve(&list, &tree, &folder.join("carved"))?;
        let mut files = c_files(&peers.join("linux"))?;
        files.push(peers.join("meter.c"));
        compile(&KERNEL_FLAGS, folder, &files, &folder.join("linux"))
    })?;
    stages.stage("the floor", "compile it", |_| {
        let files = ["floor.c", "meter.c"].map(|file| peers.join(file));
        compile(&["-O2", "-std=gnu11", "-Wall", "-Wextra"], folder, &files, &folder.join("floor"))
    })?;
    let rust = folder.join("rust");
    let target = rust.display().to_string();
    let arguments = ["build", "--release", "--locked", "--manifest-path", RUST_PEERS, "--target-dir", &target];
    stages.cargo("Rust crates", &[], &arguments)?;
    let mut designs = Vec::new();
    stages.stage("ours", "cargo build --release --package portcullis-cli", |workspace| {
        run_stage(workspace, "ours", &[], &["build", "--profile", "benchmark", "--package", "portcullis-cli"])?;
        designs = known_designs(&ours(workspace))?;
        Ok(())
    })?;
    let peer = |path: PathBuf| Program { path, arguments: Vec::new() };
    let arguments = ["bench", "--designs", &designs.join(","), "--threads", "1,2", "--json"];
    let ours = Program { path: ours(workspace), arguments: arguments.map(str::to_owned).to_vec() };
    let all = vec![peer(folder.join("floor")), peer(folder.join("linux")), ours, peer(rust.join("release/peers"))];
    Ok(Programs { all, linux })
}

fn ours(workspace: &Workspace) -> PathBuf {
    workspace.root.join(&workspace.target).join("benchmark/portcullis")
}

/// The members of `DESIGNS` that the program has.
fn known_designs(program: &Path) -> Result<Vec<String>, Failure> {
    let output = Command::new(program)
        .args(["list", "designs", "--json"])
        .output()
        .map_err(|error| Failure::Program { program: program.display().to_string(), error })?;
    known(&output.stdout).map_err(|reason| Failure::Contents { path: program.to_owned(), reason })
}

fn known(list: &[u8]) -> Result<Vec<String>, String> {
    #[derive(Deserialize)]
    struct List {
        designs: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        id: String,
    }
    let list: List = serde_json::from_slice(list).map_err(|error| format!("its list of designs: {error}"))?;
    let (there, missing): (Vec<&str>, Vec<&str>) =
        DESIGNS.into_iter().partition(|design| list.designs.iter().any(|entry| entry.id == *design));
    if !missing.is_empty() {
        eprintln!("xtask: the program does not have these designs: {}", missing.join(", "));
    }
    Ok(there.into_iter().map(str::to_owned).collect())
}

/// The C files of a folder, sorted by path.
fn c_files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(folder).map_err(Failure::file(folder))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
    let mut paths = paths.map_err(Failure::file(folder))?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "c"));
    paths.sort();
    Ok(paths)
}

fn compile(flags: &[&str], include: &Path, files: &[PathBuf], program: &Path) -> Result<(), Failure> {
    let mut compiler = Command::new("cc");
    if cfg!(target_arch = "x86_64") {
        // The library is built with the same alignment, by .cargo/config.toml.
        compiler.arg("-Wa,-mbranches-within-32B-boundaries");
    }
    compiler.args(flags).arg("-I").arg(include).args(files).arg("-o").arg(program).arg("-pthread");
    let status =
        compiler.stdin(Stdio::null()).status().map_err(|error| Failure::Program { program: "cc".to_owned(), error })?;
    let failed = || Failure::Stage { stage: "compiling a peer".to_owned(), command: format!("{compiler:?}") };
    if status.success() { Ok(()) } else { Err(failed()) }
}

#[cfg(test)]
mod tests {
    use super::known;

    #[test]
    fn designs_that_are_not_there_yet_are_not_asked_for() {
        let list =
            br#"{"schema": "portcullis.list/1", "designs": [{"id": "stock"}, {"id": "none"}, {"id": "magazine"}]}"#;
        assert_eq!(known(list), Ok(vec!["magazine".to_owned(), "stock".to_owned()]));
        assert!(known(b"{}").is_err());
    }
}
