//! Debian packages, unpacked into the build folder. This needs no privileges and installs nothing.

use super::command::{output, run};
use crate::apt;
use crate::failure::Failure;
use crate::failure::linux::Error;
use crate::workspace::Workspace;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file that lists the packages of an unpacked set. It is written once the set is complete.
const STAMP: &str = ".unpacked";

/// The part of the build folder for everything that concerns Linux.
pub(crate) struct Store {
    pub(super) folder: PathBuf,
}

impl Store {
    pub(crate) fn open(workspace: &Workspace) -> Result<Self, Failure> {
        let folder = workspace.root.join(&workspace.target).join("linux");
        fs::create_dir_all(&folder).map_err(Failure::file(&folder))?;
        // An absolute path, because the kernel's makefiles change the working directory.
        Ok(Self { folder: fs::canonicalize(&folder).map_err(Failure::file(folder))? })
    }

    /// A folder with the contents of the packages, laid out as in `/`. It is made once. Several sets may be unpacked at
    /// once, but not one set twice.
    pub(super) fn unpacked(&self, set: &str, packages: &[String]) -> Result<PathBuf, Failure> {
        let root = self.folder.join(format!("root-{set}"));
        let stamp = root.join(STAMP);
        if fs::read_to_string(&stamp).is_ok_and(|text| text == packages.join("\n")) {
            return Ok(root);
        }
        let downloads = self.folder.join(format!("packages-{set}"));
        remake(&root)?;
        remake(&downloads)?;
        eprintln!("xtask: downloading {}", packages.join(", "));
        let fetch = || apt::succeeds(Command::new("apt-get").arg("download").args(packages).current_dir(&downloads));
        // The list of packages may be out of date.
        let fetched = fetch() || (apt::update() && fetch());
        if !fetched {
            return Err(unfetched(packages)?.into());
        }
        for package in files(&downloads)? {
            output(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&root))?;
        }
        fs::remove_dir_all(&downloads).map_err(Failure::file(&downloads))?;
        fs::write(&stamp, packages.join("\n")).map_err(Failure::file(&stamp))?;
        Ok(root)
    }
}

/// Why packages were not downloaded: some do not exist, or there is another reason.
fn unfetched(packages: &[String]) -> Result<Error, Failure> {
    for package in packages {
        if !named(package)?.contains(package) {
            return Ok(Error::NotToBeHad {
                what: package.clone(),
                why: "it is not in the list of packages".to_owned(),
            });
        }
    }
    Ok(Error::NotDownloaded { packages: packages.to_vec() })
}

/// An empty folder.
pub(super) fn remake(folder: &Path) -> Result<(), Failure> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(Failure::file(folder))?;
    }
    fs::create_dir_all(folder).map_err(Failure::file(folder))
}

/// The contents of a folder, in order.
pub(super) fn files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(folder).map_err(Failure::file(folder))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
    let mut paths = paths.map_err(Failure::file(folder))?;
    paths.sort();
    Ok(paths)
}

/// The available packages whose names begin with `prefix`. If there are none, updates the list of packages and looks
/// again.
pub(super) fn named(prefix: &str) -> Result<Vec<String>, Failure> {
    if !apt::in_path("apt-cache") {
        return Err(Error::NotToBeHad { what: format!("{prefix}*"), why: "there is no apt-cache".to_owned() }.into());
    }
    let names = || -> Result<Vec<String>, Failure> {
        let text = output(Command::new("apt-cache").args(["pkgnames", prefix]))?;
        Ok(text.lines().map(str::to_owned).collect())
    };
    let found = names()?;
    if found.is_empty() && apt::update() { names() } else { Ok(found) }
}

/// The packages that a package depends on, in the order that it lists them, without virtual packages.
pub(super) fn depends(package: &str) -> Result<Vec<String>, Failure> {
    Ok(depended(&output(Command::new("apt-cache").args(["depends", "--important", package]))?))
}

fn depended(text: &str) -> Vec<String> {
    let names = text.lines().filter_map(|line| line.trim_start_matches([' ', '|']).strip_prefix("Depends: "));
    names.filter(|name| !name.starts_with('<')).map(str::to_owned).collect()
}

/// Whether a package is installed.
pub(super) fn is_installed(package: &str) -> Result<bool, Failure> {
    let output = run(Command::new("dpkg-query").args(["--show", "--showformat=${db:Status-Status}", package]))?;
    // A package that is installed for several architectures is listed several times.
    Ok(output.stdout.starts_with(b"installed"))
}

#[cfg(test)]
mod tests {
    use super::depended;

    #[test]
    fn dependencies_are_real_packages() {
        let text =
            "rustc-web\n  Depends: libc6\n |Depends: gcc\n  Depends: <libc-dev>\n    libc6-dev\n  Conflicts: rustc\n";
        assert_eq!(depended(text), ["libc6", "gcc"]);
    }
}
