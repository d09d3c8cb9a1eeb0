//! The oldest compiler that is promised, `rust-version` in `Cargo.toml`, builds what is published. Where it cannot be had, clippy looks for
//! what the standard library has had only since.

use crate::apt;
use crate::failure::Failure;
use crate::published::NO_STD;
use crate::stages::{Stages, succeed};
use crate::workspace::Workspace;
use std::process::Command;

/// Adds the stage, whose name says which of the two it is.
pub(super) fn check(workspace: &Workspace, stages: &mut Stages<'_>) -> Result<(), Failure> {
    let Some(version) = workspace.published().find_map(|package| package.rust_version.as_deref()) else {
        return Err(Failure::Metadata("no package has a rust-version".to_owned()));
    };
    let target = workspace.target_beside("oldest");
    let no_std: Vec<&str> = NO_STD.iter().flat_map(|name| ["--package", name]).collect();
    let published: Vec<&str> = workspace.published().flat_map(|package| ["--package", &package.name]).collect();
    if is_there(version) || install(version) {
        let name = format!("oldest compiler, Rust {version}");
        let what = "builds the no_std crates, and checks all that is published";
        return stages.stage(&name, what, |workspace| {
            for arguments in [[&["build"], &no_std[..]], [&["check", "--all-features"], &published[..]]] {
                let mut cargo = Command::new("rustup");
                cargo.args(["run", version, "cargo"]).args(arguments.concat()).args(["--target-dir", &target]);
                succeed(&name, cargo.current_dir(&workspace.root))?;
            }
            Ok(())
        });
    }
    let clippy = [&["clippy", "--all-features"], &published[..], &["--", "-D", "clippy::incompatible_msrv"]].concat();
    stages.cargo(
        &format!("oldest compiler, by clippy's incompatible_msrv, as there is no Rust {version}"),
        &[],
        &clippy,
    )
}

/// Whether rustup has that compiler.
fn is_there(version: &str) -> bool {
    apt::in_path("rustup") && apt::succeeds(Command::new("rustup").args(["run", version, "rustc", "--version"]))
}

/// Has rustup install it, if it can in a reasonable time.
fn install(version: &str) -> bool {
    let install = ["300", "rustup", "toolchain", "install", version, "--profile", "minimal", "--no-self-update"];
    apt::in_path("rustup") && apt::succeeds(Command::new("timeout").args(install))
}
