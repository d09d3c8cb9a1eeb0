//! Builds the programs that are measured.

use super::{RUST_PEERS, carve, source};
use crate::failure::Failure;
use crate::linux::packages;
use crate::stages::{Stages, succeed};
use crate::workspace::Workspace;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the peers, below the root.
const PEERS: &str = "benches/peers";
/// The designs of the library that are measured.
const DESIGNS: &str = "portcullis,magazine,eiovar,stock";
/// Compiler flags of a kernel build, as far as a program can use them. Warnings about the kernel's code are not ours to
/// fix, but a missing declaration must be reported before linking.
const KERNEL_FLAGS: &str = "-O2 -std=gnu11 -fno-strict-aliasing -fno-delete-null-pointer-checks -fno-jump-tables \
    -fcf-protection=none -falign-functions=16 -w -Werror=implicit-function-declaration";

/// A program that prints a document of results.
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) arguments: Vec<String>,
}

/// Builds the programs, in the order in which they take turns. Also returns the version of the Linux code among them.
pub(super) fn all(
    workspace: &Workspace,
    stages: &mut Stages<'_>,
    folder: &Path,
) -> Result<(Vec<Program>, String), Failure> {
    let peers = workspace.root.join(PEERS);
    fs::create_dir_all(folder).map_err(Failure::file(folder))?;
    let linux = stages.stage("Linux", "extract it from the distribution's source package, and compile it", |_| {
        let list = peers.join("linux/carve.txt");
        let text = fs::read_to_string(&list).map_err(Failure::file(&list))?;
        let tree = source::unpacked(workspace, folder, &text)?;
        carve::carve(&list, &tree, &folder.join("carved"))?;
        let mut files = packages::files(&peers.join("linux"))?;
        files.retain(|file| file.extension().is_some_and(|extension| extension == "c"));
        files.push(peers.join("meter.c"));
        compile(KERNEL_FLAGS, folder, &files, &folder.join("linux"))?;
        source::version(&tree)
    })?;
    stages.stage("the floor", "compile it", |_| {
        let files = ["floor.c", "meter.c"].map(|file| peers.join(file));
        compile("-O2 -std=gnu11 -Wall -Wextra", folder, &files, &folder.join("floor"))
    })?;
    let rust = folder.join("rust");
    let target = rust.display().to_string();
    let arguments = ["build", "--release", "--locked", "--manifest-path", RUST_PEERS, "--target-dir", &target];
    stages.cargo("Rust crates", &[], &arguments)?;
    stages.cargo("ours", &[], &["build", "--profile", "benchmark", "--package", "portcullis-cli"])?;
    let peer = |path: PathBuf| Program { path, arguments: Vec::new() };
    let arguments = ["bench", "--designs", DESIGNS, "--threads", "1,2", "--json"].map(str::to_owned).to_vec();
    let ours = Program { path: workspace.root.join(&workspace.target).join("benchmark/portcullis"), arguments };
    let all = vec![peer(folder.join("floor")), peer(folder.join("linux")), ours, peer(rust.join("release/peers"))];
    Ok((all, linux))
}

fn compile(flags: &str, include: &Path, files: &[PathBuf], program: &Path) -> Result<(), Failure> {
    let mut compiler = Command::new("cc");
    if cfg!(target_arch = "x86_64") {
        // The library is built with the same alignment, by .cargo/config.toml.
        compiler.arg("-Wa,-mbranches-within-32B-boundaries");
    }
    compiler.args(flags.split_whitespace()).arg("-I").arg(include).args(files).arg("-o").arg(program).arg("-pthread");
    succeed("compiling a peer", &mut compiler)
}
