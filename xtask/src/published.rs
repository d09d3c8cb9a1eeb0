//! Tests that each published package builds without the rest of the repository. Each is packed as `cargo publish` packs
//! it, and unpacked outside the workspace. There it is compiled, beside the other packages, and so are the examples,
//! as users of the packages. `cargo xtask check` builds the documentation, which reads no other files.
//!
//! `cargo publish --dry-run --workspace` does the same and also asks the registry, so it does not run offline.

use crate::examples;
use crate::failure::Failure;
use crate::house::files;
use crate::stages::succeed;
use crate::workspace::{Package, Workspace, cargo, library, unpacked_name};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, process};

/// How a package of `examples/` names a package of Portcullis.
const BY_PATH: &str = "path = \"../../crates/";

/// The packages that a kernel links. They are also built alone, without the features that other packages turn on.
pub(crate) const NO_STD: [&str; 3] = ["portcullis", "portcullis-designs", "portcullis-vtd"];

const STAGE: &str = "published packages";
const CHECK: [&str; 3] = ["check", "--workspace", "--all-features"];

/// Builds all published packages.
pub(crate) fn test(workspace: &Workspace) -> Result<(), Failure> {
    let target = workspace.root.join(workspace.target_beside("published"));
    let packages: Vec<&Package> = workspace.published().collect();
    let unpacked = Unpacked::new(&workspace.root, &packages, &target, "workspace")?;
    let no_std = NO_STD.iter().flat_map(|name| ["--package", *name]);
    unpacked.cargo(&["build"].into_iter().chain(no_std).collect::<Vec<_>>())?;
    unpacked.cargo(&CHECK)?;
    unpacked.serve(&workspace.root, &packages, &examples::names(workspace).collect::<Vec<_>>())?;
    unpacked.remove()
}

/// Unpacked packages. Their folder stays if one of them fails, so that its command can be repeated.
struct Unpacked<'t> {
    folder: PathBuf,
    target: &'t Path,
}

impl<'t> Unpacked<'t> {
    /// Packs packages of the workspace at `root`, and unpacks them. `name` makes the folder's name unique in this
    /// process.
    fn new(root: &Path, packages: &[&Package], target: &'t Path, name: &str) -> Result<Self, Failure> {
        let folder = env::temp_dir().join(format!("portcullis-published-{name}-{}", process::id()));
        fs::create_dir_all(&folder).map_err(Failure::file(&folder))?;
        let unpacked = Self { folder, target };
        let mut pack = vec!["package", "--quiet", "--no-verify", "--allow-dirty"];
        pack.extend(packages.iter().flat_map(|package| ["--package", package.name.as_str()]));
        unpacked.cargo_in(root, &pack)?;
        for package in packages {
            let archive = target.join("package").join(format!("{}.crate", unpacked_name(package)));
            let mut tar = Command::new("tar");
            // All files in an archive have one fixed time. With that time, cargo would not rebuild a changed file.
            tar.args(["--extract", "--touch", "--gzip", "--file"])
                .arg(archive)
                .arg("--directory")
                .arg(&unpacked.folder);
            succeed(STAGE, &mut tar)?;
        }
        unpacked.write_workspace(packages, &[])?;
        // The lock file selects the dependencies of the workspace. They were downloaded already.
        let lock = root.join("Cargo.lock");
        fs::copy(&lock, unpacked.folder.join("Cargo.lock")).map_err(Failure::file(lock))?;
        Ok(unpacked)
    }

    /// Writes a workspace of the packages and of others in this folder. In it, each finds the packages without the
    /// registry.
    fn write_workspace(&self, packages: &[&Package], others: &[&str]) -> Result<(), Failure> {
        let folders = packages.iter().map(|package| unpacked_name(package));
        let members: Vec<String> = folders.chain(others.iter().map(|other| (*other).to_owned())).collect();
        let mut text = format!("[workspace]\nresolver = \"3\"\nmembers = {members:?}\n\n[patch.crates-io]\n");
        for package in packages.iter().filter(|package| library(package).is_some()) {
            let _ = writeln!(text, "{} = {{ path = \"{}\" }}", package.name, unpacked_name(package));
        }
        let path = self.folder.join("Cargo.toml");
        fs::write(&path, text).map_err(Failure::file(path))
    }

    /// Compiles copies of the examples, which use the packages as if these were published. Each is compiled by itself,
    /// with no features but its own.
    fn serve(&self, root: &Path, packages: &[&Package], examples: &[&str]) -> Result<(), Failure> {
        for example in examples {
            let folder = self.folder.join(example);
            files::copy(&root.join(examples::FOLDER).join(example), &folder)?;
            let manifest = folder.join("Cargo.toml");
            let mut text = fs::read_to_string(&manifest).map_err(Failure::file(&manifest))?;
            for package in packages {
                let by_version = format!("version = \"{}\"", package.version);
                text = text.replace(&format!("{BY_PATH}{}\"", package.name), &by_version);
            }
            if text.contains(BY_PATH) {
                return Err(Failure::contents(manifest)("uses a package that is not published"));
            }
            fs::write(&manifest, text).map_err(Failure::file(manifest))?;
        }
        self.write_workspace(packages, examples)?;
        examples.iter().try_for_each(|example| self.cargo(&["check", "--package", example, "--all-targets"]))
    }

    fn remove(self) -> Result<(), Failure> {
        fs::remove_dir_all(&self.folder).map_err(Failure::file(self.folder))
    }

    fn cargo(&self, arguments: &[&str]) -> Result<(), Failure> {
        self.cargo_in(&self.folder, arguments)
    }

    fn cargo_in(&self, folder: &Path, arguments: &[&str]) -> Result<(), Failure> {
        let mut command = Command::new(cargo());
        command.args(arguments).arg("--offline").arg("--target-dir").arg(self.target).current_dir(folder);
        // As in the profile of the workspace: no debug information.
        succeed(STAGE, command.envs([("CARGO_PROFILE_DEV_DEBUG", "false"), ("CARGO_INCREMENTAL", "0")]))
    }
}

#[cfg(test)]
mod tests {
    use super::{CHECK, Unpacked};
    use crate::failure::Failure;
    use crate::fixture;
    use serde_json::json;

    /// Builds a package with this library alone. `outside.md` lies beside the package, `inside.md` in it.
    fn stands_for_itself(name: &str, library: &str) -> Result<(), Failure> {
        let manifest = "[package]\nname = \"alone\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n";
        let around = fixture::folder(&[
            ("outside.md", "Outside.\n"),
            ("alone/inside.md", "Inside.\n"),
            ("alone/Cargo.toml", manifest),
            ("alone/Cargo.lock", "version = 4\n"),
            ("alone/src/lib.rs", library),
        ]);
        let (root, target) = (around.path().join("alone"), around.path().join("target"));
        let alone = fixture::package(json!({"name": "alone"}));
        let unpacked = Unpacked::new(&root, &[&alone], &target, name).expect("a package");
        let result = unpacked.cargo(&CHECK);
        unpacked.remove().expect("ours");
        result
    }

    #[test]
    fn a_path_that_leaves_the_package_is_found() {
        stands_for_itself("inside", "#![doc = include_str!(\"../inside.md\")]\n").expect("nothing leaves it");
        let leaves = stands_for_itself("outside", "#![doc = include_str!(\"../../outside.md\")]\n");
        let Err(Failure::Stage { stage, command }) = leaves else { panic!("{leaves:?}") };
        assert!(stage == "published packages" && command.contains("cargo check "), "{stage}: {command}");
    }
}
