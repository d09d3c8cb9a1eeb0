//! The kernel's source: unpacks the listed files into the build folder.

use super::carve;
use crate::failure::Failure;
use crate::linux::packages::Store;
use crate::stages::succeed;
use crate::workspace::Workspace;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The Debian package with the source.
const PACKAGE: &str = "linux-source-6.12";
/// The path at which that package has its archive, below the root.
const ARCHIVE: &str = "usr/src/linux-source-6.12.tar.xz";
/// The environment variable that names a different archive.
const VARIABLE: &str = "PORTCULLIS_LINUX_SOURCE";

/// Unpacks the files that `list` names into a folder below `build`, and returns that folder.
pub(super) fn unpacked(workspace: &Workspace, build: &Path, list: &str) -> Result<PathBuf, Failure> {
    let tree = build.join(PACKAGE);
    let wanted: Vec<&str> = carve::sources(list).into_iter().chain(["Makefile"]).collect();
    if wanted.iter().all(|file| tree.join(file).is_file()) {
        return Ok(tree);
    }
    fs::create_dir_all(build).map_err(Failure::file(build))?;
    let archive = archive(workspace)?;
    eprintln!("xtask: unpacking {} files of {}", wanted.len(), archive.display());
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--xz").arg("--file").arg(&archive).arg("--directory").arg(build);
    tar.args(wanted.iter().map(|file| format!("{PACKAGE}/{file}")));
    succeed("kernel source", &mut tar)?;
    Ok(tree)
}

/// The version of the kernel in `tree`, from its Makefile.
pub(super) fn version(tree: &Path) -> Result<String, Failure> {
    let path = tree.join("Makefile");
    let text = fs::read_to_string(&path).map_err(Failure::file(&path))?;
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix('='));
        line.map(str::trim).ok_or_else(|| Failure::contents(&path)(format!("has no {name}")))
    };
    Ok(format!("{}.{}.{}", value("VERSION")?, value("PATCHLEVEL")?, value("SUBLEVEL")?))
}

/// The archive that the user names, else the installed one, else the one of the package, which is downloaded.
fn archive(workspace: &Workspace) -> Result<PathBuf, Failure> {
    let none = |why: String| {
        Failure::Other(format!("no kernel source: {why}; install {PACKAGE}, or name its archive in {VARIABLE}"))
    };
    let installed = Path::new("/").join(ARCHIVE);
    match env::var_os(VARIABLE).map(PathBuf::from) {
        Some(named) if named.is_file() => fs::canonicalize(&named).map_err(Failure::file(named)),
        Some(named) => Err(none(format!("{VARIABLE} names {}, which is not a file", named.display()))),
        None if installed.is_file() => Ok(installed),
        None => {
            let unpacked = Store::open(workspace)?.unpacked(PACKAGE, &[PACKAGE.to_owned()], |_, _| Ok(()));
            Ok(unpacked.map_err(|error| none(error.to_string()))?.join(ARCHIVE))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::version;
    use crate::fixture;

    #[test]
    fn the_version_is_that_of_the_makefile() {
        let tree = fixture::folder(&[("Makefile", "VERSION = 6\nPATCHLEVEL = 12\nSUBLEVEL = 48\n")]);
        assert_eq!(version(tree.path()).expect("a version"), "6.12.48");
        fixture::write(tree.path(), "Makefile", "VERSION = 6\n");
        assert!(version(tree.path()).is_err());
    }
}
