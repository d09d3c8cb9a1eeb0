//! Debian packages, unpacked into a cache that all clones of the repository share. This needs no privileges and
//! installs nothing.

use crate::apt;
use crate::failure::Failure;
use crate::process::{output, run};
use crate::workspace::Workspace;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// A file that lists the packages of an unpacked set with their versions.
const STAMP: &str = ".unpacked";

/// The folders for everything that concerns Linux.
pub(crate) struct Store {
    /// What this clone builds.
    pub(super) folder: PathBuf,
    /// What does not depend on this clone. It may be removed at any time that no test runs.
    pub(super) cache: PathBuf,
}

impl Store {
    pub(crate) fn open(workspace: &Workspace) -> Result<Self, Failure> {
        let folder = workspace.root.join(&workspace.target).join("linux");
        fs::create_dir_all(&folder).map_err(Failure::file(&folder))?;
        // An absolute path, because the kernel's makefiles change the working directory.
        let folder = fs::canonicalize(&folder).map_err(Failure::file(folder))?;
        let user = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let user = user.or_else(|| env::home_dir().map(|home| home.join(".cache"))).filter(|cache| cache.is_absolute());
        let cache = user.map_or_else(|| folder.join("cache"), |cache| cache.join("portcullis"));
        fs::create_dir_all(&cache).map_err(Failure::file(&cache))?;
        Ok(Self { folder, cache })
    }

    /// A folder with the contents of the packages, laid out as in `/`, made once for each version of them. `mend`
    /// changes what was unpacked before others see it; it gets the folder, and its later place. Another process may do
    /// the same at that time: the first to be done puts it into its place.
    pub(crate) fn unpacked(
        &self,
        set: &str,
        packages: &[String],
        mend: impl FnOnce(&Path, &Path) -> Result<(), Failure>,
    ) -> Result<PathBuf, Failure> {
        let wanted = versions(packages)?;
        self.made(set, &wanted, |unpacked, root| {
            let downloads = tempfile::tempdir_in(&self.cache).map_err(Failure::file(&self.cache))?;
            eprintln!("xtask: downloading {}", packages.join(", "));
            let fetch =
                || apt::succeeds(Command::new("apt-get").arg("download").args(packages).current_dir(downloads.path()));
            // The list of packages may be out of date.
            let fetched = fetch() || (apt::update() && fetch());
            if !fetched {
                return Err(unfetched(packages)?);
            }
            files(downloads.path())?.iter().try_for_each(|package| extract(package, unpacked))?;
            mend(unpacked, root)
        })
    }

    /// A folder that `make` has filled with what `wanted` names. `make` gets the folder, and its later place.
    pub(super) fn made(
        &self,
        set: &str,
        wanted: &str,
        make: impl FnOnce(&Path, &Path) -> Result<(), Failure>,
    ) -> Result<PathBuf, Failure> {
        // The path is a part, because it is in mended files.
        let wanted = format!("{}\n{wanted}", self.cache.display());
        let mut key = DefaultHasher::new();
        wanted.hash(&mut key);
        let root = self.cache.join(format!("{set}-{:016x}", key.finish()));
        let is_there = || fs::read_to_string(root.join(STAMP)).is_ok_and(|text| text == wanted);
        if is_there() {
            return Ok(root);
        }
        let making = tempfile::tempdir_in(&self.cache).map_err(Failure::file(&self.cache))?;
        let unpacked = making.path().join("root");
        remake(&unpacked)?;
        make(&unpacked, &root)?;
        fs::write(unpacked.join(STAMP), &wanted).map_err(Failure::file(&unpacked))?;
        if fs::rename(&unpacked, &root).is_err() && !is_there() {
            // What is there is damaged.
            remake(&root)?;
            fs::rename(&unpacked, &root).map_err(Failure::file(&root))?;
        }
        Ok(root)
    }
}

/// Unpacks a package into a folder.
pub(super) fn extract(package: &Path, folder: &Path) -> Result<(), Failure> {
    output(Command::new("dpkg-deb").arg("--extract").arg(package).arg(folder)).map(drop)
}

/// The packages, and the versions that would be downloaded of those that exist.
fn versions(packages: &[String]) -> Result<String, Failure> {
    let shown = run(Command::new("apt-cache").args(["--no-all-versions", "show"]).args(packages))?;
    let shown = String::from_utf8_lossy(&shown.stdout);
    let versions = shown.lines().filter(|line| line.starts_with("Package: ") || line.starts_with("Version: "));
    Ok(packages.iter().map(String::as_str).chain(versions).collect::<Vec<_>>().join("\n"))
}

/// Why packages were not downloaded: some do not exist, or there is another reason.
fn unfetched(packages: &[String]) -> Result<Failure, Failure> {
    for package in packages {
        if !named(package)?.contains(package) {
            let why = "it is not in the list of packages".to_owned();
            return Ok(Failure::NotToBeHad { what: package.clone(), why });
        }
    }
    Ok(Failure::NotDownloaded { packages: packages.to_vec() })
}

/// An empty folder.
pub(super) fn remake(folder: &Path) -> Result<(), Failure> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(Failure::file(folder))?;
    }
    fs::create_dir_all(folder).map_err(Failure::file(folder))
}

/// The contents of a folder, in order.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
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
        return Err(Failure::NotToBeHad { what: format!("{prefix}*"), why: "there is no apt-cache".to_owned() });
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
