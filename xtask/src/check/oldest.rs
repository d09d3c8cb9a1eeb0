//! Checks that the oldest supported compiler (`rust-version` in `Cargo.toml`) builds the published packages. Without
//! that compiler, clippy looks for items that the standard library did not have then.

use crate::apt;
use crate::failure::Failure;
use crate::published::NO_STD;
use crate::stages::{Stages, succeed};
use crate::workspace::Workspace;
use std::process::Command;

/// Runs the stage. Its name says which of the two checks it is.
pub(super) fn check(workspace: &Workspace, stages: &mut Stages<'_>) -> Result<(), Failure> {
    let Some(version) = workspace.published().find_map(|package| package.rust_version.as_ref()) else {
        return Err(Failure::Other("cargo cannot describe the workspace: no package has a rust-version".to_owned()));
    };
    let (version, target) = (&format!("{}.{}", version.major, version.minor), workspace.target_beside("oldest"));
    let no_std: Vec<&str> = NO_STD.iter().flat_map(|name| ["--package", name]).collect();
    let published: Vec<&str> = workspace.published().flat_map(|package| ["--package", package.name.as_str()]).collect();
    if is_there(version) || (install(version) && is_there(version)) {
        let name = format!("oldest compiler, Rust {version}");
        let what = "build the no_std crates, and check all published packages";
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

/// Whether rustup has this compiler.
fn is_there(version: &str) -> bool {
    apt::in_path("rustup") && apt::succeeds(Command::new("rustup").args(["run", version, "rustc", "--version"]))
}

/// Lets rustup install the compiler, for at most five minutes. Returns whether rustup reported success.
fn install(version: &str) -> bool {
    let install = ["300", "rustup", "toolchain", "install", version, "--profile", "minimal", "--no-self-update"];
    apt::in_path("rustup") && apt::succeeds(Command::new("timeout").args(install))
}
