//! The workspace, as cargo describes it.

use crate::failure::Failure;
use cargo_metadata::MetadataCommand;
pub(crate) use cargo_metadata::{Package, Target};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The manifest of the package that proves `no_std`. It is a separate workspace.
pub(crate) const NO_STD_PROOF: &str = "crates/no-std-proof/Cargo.toml";
/// The manifest of the Rust half of the kernel module. It is a separate workspace, too.
pub(crate) const KERNEL_MODULE: &str = "crates/portcullis-linux/Cargo.toml";

/// The workspace that this program is part of.
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) packages: Vec<Package>,
    /// The build folder of cargo, relative to the root unless the user sets another.
    pub(crate) target: PathBuf,
}

/// The library of a package, if it has one.
pub(crate) fn library(package: &Package) -> Option<&Target> {
    package.targets.iter().find(|target| target.is_lib())
}

/// Whether a package is published. `None` stands for all registries.
pub(crate) fn is_published(package: &Package) -> bool {
    package.publish.as_ref().is_none_or(|registries| !registries.is_empty())
}

/// The name of the folder that a package unpacks to.
pub(crate) fn unpacked_name(package: &Package) -> String {
    format!("{}-{}", package.name, package.version)
}

/// The integration tests of a package.
pub(crate) fn tests(package: &Package) -> impl Iterator<Item = &Target> {
    package.targets.iter().filter(|target| target.is_test())
}

/// The cargo that runs this program.
pub(crate) fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

impl Workspace {
    /// Asks cargo for its description of the workspace.
    pub(crate) fn read() -> Result<Self, Failure> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace");
        let metadata = MetadataCommand::new().cargo_path(cargo()).current_dir(root).no_deps().exec();
        let described = |error| Failure::Other(format!("cargo cannot describe the workspace: {error}"));
        let packages = metadata.map_err(described)?.packages;
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
        Ok(Self { root: root.to_owned(), packages, target })
    }

    /// A cargo command for the workspace.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(cargo());
        command.args(arguments).current_dir(&self.root);
        command
    }

    /// The published packages.
    pub(crate) fn published(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| is_published(package))
    }

    /// Gives a package that is a workspace of its own the lock file of this one. So the same crates are used, and cargo
    /// need not ask the registry.
    pub(crate) fn share_lock(&self, manifest: &Path) -> Result<(), Failure> {
        let lock = self.root.join("Cargo.lock");
        let copy = self.root.join(manifest).with_file_name("Cargo.lock");
        fs::copy(&lock, copy).map(drop).map_err(Failure::file(lock))
    }

    /// A separate build folder beside the normal one, so that other flags do not cause rebuilds there.
    pub(crate) fn target_beside(&self, name: &str) -> String {
        self.target.join(name).display().to_string()
    }
}
