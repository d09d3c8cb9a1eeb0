//! The workspace, as cargo describes it.

use crate::failure::Failure;
use crate::process::run;
use serde::Deserialize;
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

/// A package of the workspace.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) targets: Vec<Target>,
    pub(crate) dependencies: Vec<Dependency>,
    pub(crate) description: Option<String>,
    pub(crate) license: Option<String>,
    pub(crate) readme: Option<PathBuf>,
    pub(crate) keywords: Vec<String>,
    pub(crate) categories: Vec<String>,
    /// The oldest supported compiler.
    pub(crate) rust_version: Option<String>,
    /// The registries that the package may be published to. `None` means all.
    pub(crate) publish: Option<Vec<String>>,
}

/// A crate of a package.
#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: Vec<String>,
    pub(crate) src_path: PathBuf,
}

/// A dependency in the `Cargo.toml` of a package.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// `dev`, `build`, or `None` for a normal dependency.
    pub(crate) kind: Option<String>,
}

impl Package {
    /// The library of the package, if it has one.
    pub(crate) fn library(&self) -> Option<&Target> {
        self.targets.iter().find(|target| target.kind.iter().any(|kind| kind == "lib"))
    }

    /// Whether the package is published.
    pub(crate) fn is_published(&self) -> bool {
        self.publish.as_ref().is_none_or(|registries| !registries.is_empty())
    }

    /// The name of the folder that the package unpacks to.
    pub(crate) fn folder(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }

    /// Its integration tests.
    pub(crate) fn tests(&self) -> impl Iterator<Item = &Target> {
        self.targets.iter().filter(|target| target.kind.iter().any(|kind| kind == "test"))
    }
}

/// The cargo that runs this program.
pub(crate) fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

impl Workspace {
    /// Asks cargo for its description of the workspace.
    pub(crate) fn read() -> Result<Self, Failure> {
        #[derive(Deserialize)]
        struct Metadata {
            packages: Vec<Package>,
        }
        let root =
            Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace").to_owned();
        let described = |error: String| Failure::Other(format!("cargo cannot describe the workspace: {error}"));
        let mut metadata = Command::new(cargo());
        let output = run(metadata.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(&root))?;
        if !output.status.success() {
            return Err(described(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        let metadata: Metadata =
            serde_json::from_slice(&output.stdout).map_err(|error| described(error.to_string()))?;
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
        Ok(Self { root, packages: metadata.packages, target })
    }

    /// A cargo command for the workspace.
    pub(crate) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(cargo());
        command.args(arguments).current_dir(&self.root);
        command
    }

    /// The published packages with a library.
    pub(crate) fn libraries(&self) -> impl Iterator<Item = &Package> {
        self.published().filter(|package| package.library().is_some())
    }

    /// The published packages.
    pub(crate) fn published(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| package.is_published())
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
