//! The kernel's source: unpacks the listed files into the build folder.

use super::carve;
use crate::apt;
use crate::failure::Failure;
use crate::stages::succeed;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const STAGE: &str = "kernel source";
/// The Debian package with the source.
const PACKAGE: &str = "linux-source-6.12";
/// The path at which that package installs its archive.
const INSTALLED: &str = "/usr/src/linux-source-6.12.tar.xz";
/// The environment variable that names a different archive.
const VARIABLE: &str = "PORTCULLIS_LINUX_SOURCE";

/// Unpacks the files that `list` names into a folder below `build`, and returns that folder.
pub(super) fn unpacked(build: &Path, list: &str) -> Result<PathBuf, Failure> {
    let tree = build.join(PACKAGE);
    let wanted: Vec<&str> = carve::sources(list).into_iter().chain(["Makefile"]).collect();
    if wanted.iter().all(|file| tree.join(file).is_file()) {
        return Ok(tree);
    }
    fs::create_dir_all(build).map_err(Failure::file(build))?;
    let archive = archive(build)?;
    eprintln!("xtask: unpacking {} files of {}", wanted.len(), archive.display());
    let mut tar = Command::new("tar");
    tar.arg("--extract").arg("--xz").arg("--file").arg(&archive).arg("--directory").arg(build);
    tar.args(wanted.iter().map(|file| format!("{PACKAGE}/{file}")));
    succeed(STAGE, &mut tar)?;
    Ok(tree)
}

/// The version of the kernel in `tree`, from its Makefile.
pub(super) fn version(tree: &Path) -> Result<String, Failure> {
    let path = tree.join("Makefile");
    let text = fs::read_to_string(&path).map_err(Failure::file(&path))?;
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix('='));
        line.map(str::trim).ok_or(Failure::Contents { path: path.clone(), reason: format!("has no {name}") })
    };
    Ok(format!("{}.{}.{}", value("VERSION")?, value("PATCHLEVEL")?, value("SUBLEVEL")?))
}

/// The archive that the user names, else the installed one, else one that is downloaded here.
fn archive(build: &Path) -> Result<PathBuf, Failure> {
    if let Some(named) = env::var_os(VARIABLE).map(PathBuf::from) {
        let missing = || Failure::LinuxSource(format!("{VARIABLE} names {}, which is not a file", named.display()));
        return if named.is_file() { fs::canonicalize(&named).map_err(Failure::file(named)) } else { Err(missing()) };
    }
    let (installed, downloaded) = (PathBuf::from(INSTALLED), build.join(INSTALLED.trim_start_matches('/')));
    if installed.is_file() {
        return Ok(installed);
    }
    if !downloaded.is_file() {
        download(build)?;
    }
    Ok(downloaded)
}

/// Downloads the package and unpacks it. Unlike installation, a download needs no privileges, but an update of the list
/// of packages may.
fn download(build: &Path) -> Result<(), Failure> {
    if !apt::in_path("apt-get") {
        let why = format!("{INSTALLED} does not exist, and there is no apt-get to download {PACKAGE}");
        return Err(Failure::LinuxSource(why));
    }
    eprintln!("xtask: downloading {PACKAGE}");
    let fetch = || apt::succeeds(Command::new("apt-get").args(["download", PACKAGE]).current_dir(build));
    let fetched = fetch() || (apt::update() && fetch());
    let packages = with_extension(build, "deb")?;
    if !fetched || packages.is_empty() {
        return Err(Failure::LinuxSource(format!("`apt-get download {PACKAGE}` failed")));
    }
    for package in packages {
        succeed(STAGE, Command::new("dpkg-deb").arg("--extract").arg(&package).arg(build))?;
        fs::remove_file(&package).map_err(Failure::file(package))?;
    }
    Ok(())
}

/// The files in a folder with this extension, sorted by path.
pub(super) fn with_extension(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(folder).map_err(Failure::file(folder))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
    let mut paths = paths.map_err(Failure::file(folder))?;
    paths.retain(|path| path.extension().is_some_and(|other| other == extension));
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::version;
    use std::fs;

    #[test]
    fn the_version_is_that_of_the_makefile() {
        let tree = std::env::temp_dir().join(format!("portcullis-version-{}", std::process::id()));
        fs::create_dir_all(&tree).expect("a new folder");
        fs::write(tree.join("Makefile"), "VERSION = 6\nPATCHLEVEL = 12\nSUBLEVEL = 48\n").expect("a new file");
        let found = version(&tree);
        fs::write(tree.join("Makefile"), "VERSION = 6\n").expect("our file");
        let incomplete = version(&tree);
        fs::remove_dir_all(&tree).expect("ours");
        assert_eq!(found.expect("a version"), "6.12.48");
        assert!(incomplete.is_err());
    }
}
