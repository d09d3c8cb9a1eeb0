//! QEMU, which the conformance suite and Linux's guests need: found, or installed where that is possible.

use crate::apt::{in_path, install};
use crate::failure::Failure;
use std::env;
use std::path::PathBuf;

/// The environment variable that names the QEMU to use, as `portcullis-qemu` reads it.
const VARIABLE: &str = "PORTCULLIS_QEMU";
const EXECUTABLE: &str = "qemu-system-x86_64";
/// The package of Debian and Ubuntu that has it.
const PACKAGE: &str = "qemu-system-x86";

/// Makes sure that there is a QEMU, and names it. What it does about that goes to standard error.
pub(crate) fn require() -> Result<PathBuf, Failure> {
    if let Some(named) = env::var_os(VARIABLE) {
        let named = PathBuf::from(named);
        return if named.is_file() || in_path(&named) {
            Ok(named)
        } else {
            Err(Failure::Qemu(format!("{VARIABLE} names {}, which is no file", named.display())))
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
