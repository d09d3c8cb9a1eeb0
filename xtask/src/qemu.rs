//! Finds QEMU, which the conformance suite and the Linux guests need, or installs it where possible.

use crate::apt;
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
    let found = match env::var_os(VARIABLE).map(PathBuf::from) {
        None => apt::require(EXECUTABLE, PACKAGE).map(|()| EXECUTABLE.into()),
        Some(named) if named.is_file() || apt::in_path(&named) => Ok(named),
        Some(named) => Err(format!("{VARIABLE} names {}, which is not a file", named.display())),
    };
    found.map_err(|why| Failure::Other(format!("QEMU is needed: {why}; install it, or name one in {VARIABLE}")))
}
