//! A compiler with the source of `core` and `alloc`. For a kernel, both have to be built with other flags.

use super::packages::{self, Store};
use crate::failure::Failure;
use crate::process::output;
use crate::workspace::Workspace;
use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// Debian's compiler, kept current because browsers need it, and the source that belongs to it.
const PACKAGES: [&str; 2] = ["rustc-web", "rust-web-src"];
/// The path of that source in a sysroot.
const SOURCE: &str = "lib/rustlib/src/rust/library";

/// Makes a cargo command use the compiler that builds the rest of the workspace, if it has the source. Otherwise
/// Debian's compiler, unpacked.
pub(super) fn apply(workspace: &Workspace, store: &Store, cargo: &mut Command) -> Result<(), Failure> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let sysroot = output(Command::new(rustc).args(["--print", "sysroot"]).current_dir(&workspace.root))?;
    if Path::new(sysroot.trim()).join(SOURCE).is_dir() {
        return Ok(());
    }
    for package in PACKAGES {
        if !packages::named(package)?.iter().any(|name| name == package) {
            let what = "the source of core and alloc".to_owned();
            let why = format!("no {package} in the list of packages; `rustup component add rust-src` adds it");
            return Err(Failure::NotToBeHad { what, why });
        }
    }
    let root = store.unpacked("rust", &lacking(PACKAGES.map(str::to_owned).to_vec())?, |_, _| Ok(()))?;
    cargo.env("RUSTC", root.join("usr/bin/rustc"));
    cargo.env("LD_LIBRARY_PATH", root.join("usr/lib/x86_64-linux-gnu"));
    Ok(())
}

/// These packages, and those of their dependencies that this machine does not have.
fn lacking(mut packages: Vec<String>) -> Result<Vec<String>, Failure> {
    let mut next = 0;
    while let Some(package) = packages.get(next) {
        for name in packages::depends(package)? {
            if !packages.contains(&name) && !packages::is_installed(&name)? {
                packages.push(name);
            }
        }
        next += 1;
    }
    Ok(packages)
}
