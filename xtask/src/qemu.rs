//! Finds QEMU, which the conformance suite and the Linux guests need, or installs it where possible.

use crate::apt::{in_path, install};
use crate::failure::Failure;
use std::env;
use std::path::PathBuf;

/// The environment variable that names the QEMU to use. `portcullis-qemu` reads it too.
const VARIABLE: &str = "PORTCULLIS_QEMU";
const EXECUTABLE: &str = "qemu-system-x86_64";
/// The package of Debian and Ubuntu with QEMU.
const PACKAGE: &str = "qemu-system-x86";

/// Makes sure that QEMU is available, and returns its path. Messages about that go to standard error.
pub(crate) fn require() -> Result<PathBuf, Failure> {
    if let Some(named) = env::var_os(VARIABLE) {
        let named = PathBuf::from(named);
        return if named.is_file() || in_path(&named) {
            Ok(named)
        } else {
            Err(Failure::Qemu(format!("{VARIABLE} names {}, which is not a file", named.display())))
        };
    }
    if in_path(EXECUTABLE) {
        return Ok(PathBuf::from(EXECUTABLE));
    }
    eprintln!("xtask: no {EXECUTABLE}; installing {PACKAGE}");
    install(PACKAGE).map_err(|why| Failure::Qemu(format!("there is no {EXECUTABLE} in PATH, and {why}")))?;
    if in_path(EXECUTABLE) {
        Ok(PathBuf::from(EXECUTABLE))
    } else {
        Err(Failure::Qemu(format!("{PACKAGE} is installed, but there is still no {EXECUTABLE} in PATH")))
    }
}
