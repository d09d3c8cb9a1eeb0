//! The Rust half of the module, as one object that a kernel can link.

use super::command::output;
use super::fitness;
use super::packages::Store;
use super::toolchain::Toolchain;
use crate::failure::Failure;
use crate::failure::linux::Error;
use crate::workspace::{KERNEL_MODULE, Workspace, cargo};
use object::read::archive::ArchiveFile;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What it and its crates are called in file names.
const CRATE: &str = "portcullis_linux";
/// A machine without a system.
const TARGET: &str = "x86_64-unknown-none";
/// As Debian's kernels are compiled, so that objtool finds nothing to say.
const FLAGS: [&str; 18] = [
    // A module lies in the last 2 GiB of the address space, and its loader knows neither a table of addresses (GOT) nor one of jumps.
    "-Crelocation-model=static",
    "-Ccode-model=kernel",
    "-Zplt=yes",
    // An interrupt writes below the stack pointer.
    "-Cno-redzone=y",
    // objtool makes the tables to unwind with. It follows the code, and has to see that nothing comes after a function that does not
    // return. Newer ones know these by their names of this kind; for all others there is a trap after each such call, which the
    // compiler leaves out wherever it makes traps by itself.
    "-Cforce-unwind-tables=n",
    "-Csymbol-mangling-version=v0",
    "-Ztrap-unreachable=no",
    "-Cllvm-args=--trap-unreachable",
    "-Zfunction-sections=no",
    // What all machines have, and no register more than needed.
    "-Ztune-cpu=generic",
    "-Cforce-frame-pointers=n",
    // All crates are compiled as one in the end, core among them.
    "-Cembed-bitcode=y",
    // Indirect branches lead only to where the processor is told that they may (IBT).
    "-Zcf-protection=branch",
    "-Cjump-tables=n",
    // Against speculation, returns and indirect branches go through functions of the kernel, which it mends as its processor needs.
    "-Zfunction-return=thunk-extern",
    "-Zretpoline-external-thunk",
    "-Zindirect-branch-cs-prefix",
    // Room before each function, for the kernel to count the depth of calls in.
    "-Zpatchable-function-entry=16,16",
];

/// The Rust half, built.
pub(super) struct Core {
    pub(super) path: PathBuf,
    /// What tells it from one of other features: empty, or a dash and their names.
    pub(super) flavour: String,
}

/// Builds the Rust half, takes it out of its library, and sees whether a kernel can take it.
pub(super) fn build(workspace: &Workspace, store: &Store, features: &[&str]) -> Result<Core, Failure> {
    let toolchain = Toolchain::find(workspace, store)?;
    let flavour: String = features.iter().map(|feature| format!("-{feature}")).collect();
    let target = store.folder.join(format!("rust{flavour}"));
    compile(workspace, &toolchain, &target, features)?;
    let library = target.join(TARGET).join("release").join(format!("lib{CRATE}.a"));
    let path = target.join("core.o");
    let archive = fs::read(&library).map_err(Failure::file(&library))?;
    let member = member(&archive).map_err(|reason| Failure::Contents { path: library, reason })?;
    fs::write(&path, member).map_err(Failure::file(&path))?;
    // Debian's core brings some of its own.
    output(Command::new("objcopy").arg("--strip-debug").arg(&path))?;
    let object = fs::read(&path).map_err(Failure::file(&path))?;
    match fitness::flaws(&object) {
        Ok(flaws) if flaws.is_empty() => Ok(Core { path, flavour }),
        Ok(flaws) => Err(Error::Unfit { path, flaws: Vec::from_iter(flaws) }.into()),
        Err(error) => Err(Failure::Contents { path, reason: error.to_string() }),
    }
}

fn compile(workspace: &Workspace, toolchain: &Toolchain, target: &Path, features: &[&str]) -> Result<(), Failure> {
    let mut command = Command::new(cargo());
    command.args(["build", "--release", "-Zbuild-std=core,alloc", "--target", TARGET]);
    command.args(features.iter().map(|feature| format!("--features={feature}"))).arg("--target-dir").arg(target);
    command.arg("--manifest-path").arg(workspace.root.join(KERNEL_MODULE));
    // Some of the flags, and core, are open only to compilers that are told that this is meant.
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FLAGS.join(" ")).env_remove("CARGO_ENCODED_RUSTFLAGS");
    toolchain.apply(&mut command);
    let status = command.current_dir(&workspace.root).stdin(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Error::Command { command: super::command::line(&command), output: String::new() }.into()),
        Err(error) => Err(Failure::Program { program: "cargo".to_owned(), error }),
    }
}

/// The member of the library in which all crates are linked as one. The others are functions that the kernel has too.
fn member(archive: &[u8]) -> Result<&[u8], String> {
    let described = |error: object::Error| error.to_string();
    let mut ours = Vec::new();
    for member in ArchiveFile::parse(archive).map_err(described)?.members() {
        let member = member.map_err(described)?;
        if member.name().starts_with(format!("{CRATE}-").as_bytes()) && member.name().ends_with(b".o") {
            ours.push(member.data(archive).map_err(described)?);
        }
    }
    match ours[..] {
        [one] => Ok(one),
        _ => Err(format!(
            "has {} members of {CRATE}, where one is expected: is it linked with `lto = \"fat\"`?",
            ours.len()
        )),
    }
}
