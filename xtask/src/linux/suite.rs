//! A newer suite of the distribution than that of this machine: its kernel, and the programs that belong to that. They
//! are unpacked into a folder and run with it as their root, in a namespace of their own. That takes no privileges, and
//! leaves this machine's packages as they are.

use super::packages::{Store, extract, files, remake};
use crate::apt;
use crate::failure::Failure;
use crate::process::{output, run};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The suite, and the one that adds newer packages to it.
const SUITE: &str = "trixie";
const ADDITIONS: &str = "trixie-backports";
/// The keys of the distribution, which its own package brings.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// What every root needs, besides what is wanted of it.
const BASE: [&str; 10] =
    ["base-files", "dash", "bash", "coreutils", "sed", "grep", "findutils", "mawk", "make", "binutils"];
/// Enters the root `$1`, in which the folders `$2` and `$3` are at their own places, and runs the rest as a program.
const ENTER: &str = r#"root=$1 cache=$2 folder=$3; shift 3
for at in /dev /proc "$cache" "$folder"; do mkdir -p "$root$at" && mount --rbind "$at" "$root$at" || exit; done
exec unshare --root="$root" "$@""#;

/// The lists of packages of the suite.
pub(super) struct Suite {
    folder: PathBuf,
}

impl Suite {
    /// Downloads the lists of packages, from where this machine gets its own.
    pub(super) fn listed(store: &Store) -> Result<Self, Failure> {
        let absent = |why: &str| Failure::NotToBeHad { what: format!("the suite {ADDITIONS}"), why: why.to_owned() };
        if !apt::in_path("apt-get") || !Path::new(KEYS).is_file() {
            return Err(absent("this machine has no apt-get, or not the keys of the distribution"));
        }
        let enter = ["--map-root-user", "--mount", "mount", "--rbind", "/proc", "/proc"];
        if !run(Command::new("unshare").args(enter)).is_ok_and(|ran| ran.status.success()) {
            return Err(absent("programs cannot run in a namespace here (unshare)"));
        }
        let format = "$(REPO_URI) $(RELEASE) $(COMPONENT)";
        let list = ["indextargets", "--format", format, "Identifier: Packages", "Origin: Debian"];
        let own = output(Command::new("apt-get").args(list))?;
        let archive = archive(&own).ok_or_else(|| absent("this machine has no list of packages"))?;
        let folder = store.folder.join("suite");
        let lists = folder.join("lists/partial");
        fs::create_dir_all(&lists).map_err(Failure::file(lists))?;
        let write = |name: &str, text: String| {
            let file = folder.join(name);
            fs::write(&file, text).map_err(Failure::file(file))
        };
        // Nothing is installed, so all that a package depends on is downloaded.
        write("status", String::new())?;
        let source = |suite: &str| format!("deb [signed-by={KEYS}] {archive} {suite} main\n");
        write("sources.list", source(SUITE) + &source(ADDITIONS))?;
        let suite = Self { folder };
        // Without that option, a machine without a network is told that all is well.
        match apt::succeeds(suite.apt("apt-get").args(["update", "--error-on=any"])) {
            true => Ok(suite),
            false => Err(absent("its lists of packages cannot be downloaded")),
        }
    }

    /// An apt command that knows the packages of the suite alone. This machine's settings hold, such as a proxy.
    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let mut set = |name: &str, value: &str| {
            command.arg("-o").arg(format!("{name}={value}"));
        };
        let path = |name: &str| self.folder.join(name).display().to_string();
        set("Dir::State", &path(""));
        set("Dir::State::status", &path("status"));
        set("Dir::State::lists", &path("lists"));
        set("Dir::Cache", &path("cache"));
        set("Dir::Etc::SourceList", &path("sources.list"));
        for unused in ["SourceParts", "Preferences", "PreferencesParts"] {
            set(&format!("Dir::Etc::{unused}"), "/dev/null");
        }
        set("APT::Sandbox::User", "root");
        command
    }

    /// The packages whose names begin with `prefix`.
    pub(super) fn named(&self, prefix: &str) -> Result<Vec<String>, Failure> {
        let names = output(self.apt("apt-cache").args(["pkgnames", prefix]))?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    /// A folder with these packages and all that they depend on.
    pub(super) fn unpacked(&self, store: &Store, set: &str, packages: &[&str]) -> Result<PathBuf, Failure> {
        // A folder of its own: apt prints no address of what is there already.
        let archives = tempfile::tempdir_in(&store.cache).map_err(Failure::file(&store.cache))?;
        remake(&archives.path().join("partial"))?;
        let install = |how: &str| {
            let mut command = self.apt("apt-get");
            command.arg("-o").arg(format!("Dir::Cache::archives={}", archives.path().display()));
            command.args(["install", "--yes", "--no-install-recommends", how, "--target-release", ADDITIONS]);
            command.args(BASE).args(packages);
            command
        };
        let printed = output(&mut install("--print-uris"))?;
        let wanted: String = printed.lines().filter(|line| line.starts_with('\'')).collect();
        store.made(set, &wanted, |unpacked, _| {
            let absent = || Failure::NotDownloaded { packages: packages.iter().map(|&name| name.to_owned()).collect() };
            eprintln!("xtask: downloading {}, and what they need", packages.join(", "));
            if !apt::succeeds(&mut install("--download-only")) {
                return Err(absent());
            }
            let mut all = files(archives.path())?;
            all.retain(|file| file.extension().is_some_and(|extension| extension == "deb"));
            if all.is_empty() {
                return Err(absent());
            }
            // base-files has the links that join `/bin` and `/usr/bin`.
            all.sort_by_key(|file| !file.file_name().unwrap_or_default().to_string_lossy().starts_with("base-files"));
            all.iter().try_for_each(|package| extract(package, unpacked))?;
            // Installing it would have made this link.
            symlink("mawk", unpacked.join("usr/bin/awk")).map_err(Failure::file(unpacked))
        })
    }
}

/// Where a machine gets the packages of its release. A line of `lists` has an archive, a release, and a component.
fn archive(lists: &str) -> Option<&str> {
    lists.lines().find_map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
        // Updates are in releases of their own.
        [archive, release, "main"] if !release.contains('-') => Some(archive),
        _ => None,
    })
}

/// A program below `root`, with that as its root. It sees the folders of `store` at their own places.
pub(super) fn program(store: &Store, root: &Path, name: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", ENTER, "sh"]).arg(root);
    command.args([&store.cache, &store.folder]).arg(name);
    command
}

#[cfg(test)]
mod tests {
    use super::archive;

    #[test]
    fn the_archive_is_that_of_the_release() {
        let lists = "a://s/ old-security main\na://d/ old-updates main\na://d/ old contrib\na://d/ old main\n";
        assert_eq!(archive(lists), Some("a://d/"));
        assert_eq!(archive("a://d/ old contrib\n"), None);
    }
}
