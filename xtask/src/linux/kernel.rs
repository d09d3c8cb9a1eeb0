//! The kernels that the module is built for: Debian's kernels, unpacked, or the headers of an installed kernel.

use super::packages::{self, Store};
use super::suite::{self, Suite};
use crate::apt;
use crate::failure::Failure;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The prefix of the packages with headers.
const HEADERS: &str = "linux-headers-";
/// The suffix of the packages for this architecture, and of their kernels.
const MACHINE: &str = "-amd64";

/// The package with a QEMU.
const QEMU: &str = "qemu-system-x86";

/// The package with a busybox that needs no libraries.
const BUSYBOX: &str = "busybox-static";

/// A series of Debian's kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, serde::Deserialize)]
pub(crate) enum Series {
    /// The newest series in the backports of Debian 12.
    #[value(name = "6.12")]
    #[serde(rename = "6.12")]
    Six12,
    /// The series that Debian 12 installs.
    #[value(name = "6.1")]
    #[serde(rename = "6.1")]
    Six1,
    /// The newest in the backports of Debian 13, with its programs.
    #[serde(rename = "newest")]
    Newest,
}

impl Series {
    fn prefix(self) -> &'static str {
        match self {
            Self::Six12 => "linux-headers-6.12.",
            Self::Six1 => "linux-headers-6.1.0-",
            Self::Newest => HEADERS,
        }
    }
}

/// The headers that a module is built against.
#[derive(Clone)]
pub(crate) struct Headers {
    /// The version that `uname -r` prints on that kernel.
    pub(crate) version: String,
    pub(super) folder: PathBuf,
    /// The root of the programs with which a module is built. None if they are this machine's.
    programs: Option<PathBuf>,
}

/// A kernel to boot, its headers, and the programs of its guests.
pub(crate) struct Kernel {
    pub(crate) headers: Headers,
    pub(super) busybox: PathBuf,
    root: PathBuf,
}

impl Kernel {
    /// The newest kernel of a series that the distribution has.
    pub(crate) fn newest(store: &Store, series: Series) -> Result<Self, Failure> {
        if let Series::Newest = series {
            return Self::of_suite(store, &Suite::listed(store)?);
        }
        let names = packages::named(series.prefix())?;
        let Some(version) = newest(&names) else {
            let why = format!("no {}*{MACHINE} in the list of packages", series.prefix());
            return Err(Failure::NotToBeHad { what: "a kernel with its headers".to_owned(), why });
        };
        let headers = format!("{HEADERS}{version}");
        // The signed kernel is the same file with a signature appended. Its package may be older than the headers, so
        // the unsigned one is preferred.
        let signed = format!("linux-image-{version}");
        let unsigned = format!("{signed}-unsigned");
        let image = if packages::named(&signed)?.contains(&unsigned) { unsigned } else { signed };
        // Its makefiles and build tools are in packages that several kernels share.
        let mut wanted = packages::depends(&headers)?;
        wanted.retain(|name| name.starts_with(HEADERS) || name.starts_with("linux-kbuild-"));
        wanted.extend([headers.clone(), image]);
        let at = Path::new("usr/src").join(headers);
        let root = store.unpacked(version, &wanted, |unpacked, root| mend(root, &unpacked.join(&at)))?;
        let folder = root.join(at);
        Self::installed(store, Headers { version: version.to_owned(), folder, programs: None }, root)
    }

    /// The newest kernel of a suite that is not this machine's, with a compiler for its modules and a QEMU of its time.
    fn of_suite(store: &Store, suite: &Suite) -> Result<Self, Failure> {
        let names = suite.named(HEADERS)?;
        let Some(version) = newest(&names) else {
            let what = "a kernel with its headers".to_owned();
            return Err(Failure::NotToBeHad { what, why: format!("no {HEADERS}*{MACHINE} in the suite") });
        };
        let headers = format!("{HEADERS}{version}");
        let packages = [&headers, &format!("linux-binary-{version}"), &format!("linux-modules-{version}"), QEMU];
        let root = suite.unpacked(store, version, &packages)?;
        let folder = root.join("usr/src").join(headers);
        Self::installed(store, Headers { version: version.to_owned(), folder, programs: Some(root.clone()) }, root)
    }

    /// The kernel that is installed below `root`.
    pub(super) fn installed(store: &Store, headers: Headers, root: PathBuf) -> Result<Self, Failure> {
        let busybox = store.unpacked("guest", &[BUSYBOX.to_owned()], |_, _| Ok(()))?.join("bin/busybox");
        Ok(Self { headers, busybox, root })
    }

    /// A QEMU that boots it.
    pub(super) fn qemu(&self, store: &Store) -> Result<Command, Failure> {
        match &self.headers.programs {
            None => Ok(Command::new(apt::qemu()?)),
            Some(root) => Ok(suite::program(store, root, "qemu-system-x86_64")),
        }
    }

    /// The image that boots.
    pub(super) fn image(&self) -> PathBuf {
        // Newer packages leave it to another program to put it into `boot`.
        match self.headers.programs {
            None => self.root.join(format!("boot/vmlinuz-{}", self.headers.version)),
            Some(_) => self.modules().join("vmlinuz"),
        }
    }

    /// The folder of its modules.
    pub(super) fn modules(&self) -> PathBuf {
        self.root.join("lib/modules").join(&self.headers.version)
    }
}

impl Headers {
    /// The headers in an existing folder.
    pub(crate) fn installed(folder: &Path) -> Result<Self, Failure> {
        let folder = fs::canonicalize(folder).map_err(Failure::file(folder))?;
        // This is the version that modules declare. The version that the makefiles print differs if the distribution
        // has its own version scheme.
        let path = folder.join("include/generated/utsrelease.h");
        let text = fs::read_to_string(&path).map_err(Failure::file(&path))?;
        let version = release(&text).ok_or_else(|| Failure::contents(path)("has no UTS_RELEASE"))?;
        Ok(Self { version: version.to_owned(), folder, programs: None })
    }

    /// `make`, for a module.
    pub(super) fn make(&self, store: &Store) -> Command {
        let (mut make, folder) = match &self.programs {
            None => (Command::new("make"), self.folder.as_path()),
            // What lies below the root is at the root.
            Some(root) => (suite::program(store, root, "make"), self.folder.strip_prefix(root).unwrap_or(&self.folder)),
        };
        make.arg("-C").arg(Path::new("/").join(folder));
        make
    }
}

/// The version in the text of this header.
fn release(header: &str) -> Option<&str> {
    header.lines().find_map(|line| line.strip_prefix("#define UTS_RELEASE \"")?.strip_suffix('"'))
}

/// Changes the makefile of unpacked headers to include the common headers from `root`, where they will be. It has the
/// path where they would be installed.
fn mend(root: &Path, headers: &Path) -> Result<(), Failure> {
    let path = headers.join("Makefile");
    let text = fs::read_to_string(&path).map_err(Failure::file(&path))?;
    let mended = text.replace("include /usr/src/", &format!("include {}/usr/src/", root.display()));
    if mended == text {
        return Err(Failure::contents(path)("includes nothing from /usr/src"));
    }
    fs::write(&path, mended).map_err(Failure::file(path))
}

/// The version of the newest kernel whose headers are in any of these packages.
fn newest(names: &[String]) -> Option<&str> {
    // Cloud kernels lack drivers, and real-time kernels have other locks. A package without a number names another one.
    let is_plain = |version: &&str| {
        version.starts_with(|letter: char| letter.is_ascii_digit())
            && !["-cloud-", "-rt-", "common"].iter().any(|other| version.contains(other))
    };
    let versions = names.iter().filter_map(|name| name.strip_prefix(HEADERS));
    let numbers = |version: &&str| -> Vec<u64> {
        version.split(|letter: char| !letter.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
    };
    versions.filter(|version| version.ends_with(MACHINE)).filter(is_plain).max_by_key(numbers)
}

#[cfg(test)]
mod tests {
    use super::{mend, newest, release};
    use crate::fixture;
    use std::fs;

    #[test]
    fn the_newest_is_found_by_its_numbers() {
        let names = [
            "linux-headers-6.12.117+deb12-common",
            "linux-headers-6.12.99+deb12-amd64",
            "linux-headers-6.12.111+deb12-amd64",
            "linux-headers-6.12.120+deb12-cloud-amd64",
            "linux-headers-6.12.121+deb12-rt-amd64",
            "linux-headers-6.12.122+deb12-arm64",
            "linux-headers-rt-amd64",
        ];
        assert_eq!(newest(&names.map(str::to_owned)), Some("6.12.111+deb12-amd64"));
        assert_eq!(newest(&["linux-headers-6.12.117+deb12-common".to_owned()]), None);
    }

    #[test]
    fn the_version_is_that_of_the_header() {
        assert_eq!(release("#define UTS_RELEASE \"6.1.0-56-amd64\"\n"), Some("6.1.0-56-amd64"));
        assert_eq!(release("#define UTS_VERSION \"6.1\"\n"), None);
    }

    #[test]
    fn the_makefile_leads_into_the_unpacked_tree() {
        let folder = fixture::folder(&[("Makefile", "include /usr/src/linux-headers-1-common/Makefile\n")]);
        let root = folder.path();
        mend(root, root).expect("a makefile of this kind");
        let text = fs::read_to_string(root.join("Makefile")).expect("our file");
        assert_eq!(text, format!("include {}/usr/src/linux-headers-1-common/Makefile\n", root.display()));
        fixture::write(root, "Makefile", "all:\n");
        assert!(mend(root, root).is_err(), "a makefile of another kind is not left as it is");
    }
}
