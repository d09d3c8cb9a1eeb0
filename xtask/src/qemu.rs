//! QEMU, which the conformance suite needs: found, or installed where that is possible.

use crate::failure::Failure;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The environment variable that names the QEMU to use, as `portcullis-qemu` reads it.
const VARIABLE: &str = "PORTCULLIS_QEMU";
const EXECUTABLE: &str = "qemu-system-x86_64";
/// The package of Debian and Ubuntu that has it.
const PACKAGE: &str = "qemu-system-x86";

/// Makes sure that there is a QEMU. What it does about that goes to standard error.
pub(crate) fn require() -> Result<(), Failure> {
    if let Some(named) = env::var_os(VARIABLE) {
        let named = PathBuf::from(named);
        return if named.is_file() || in_path(&named) {
            Ok(())
        } else {
            Err(Failure::Qemu(format!("{VARIABLE} names {}, which is no file", named.display())))
        };
    }
    if in_path(EXECUTABLE) {
        return Ok(());
    }
    install()?;
    if in_path(EXECUTABLE) {
        Ok(())
    } else {
        Err(Failure::Qemu(format!("{PACKAGE} is installed, but there is still no {EXECUTABLE} in PATH")))
    }
}

fn in_path(program: impl AsRef<Path>) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(&program).is_file()))
}

/// Installs it where `apt-get` may: as root, or through a `sudo` that asks nothing.
fn install() -> Result<(), Failure> {
    let missing = |why: &str| Failure::Qemu(format!("there is no {EXECUTABLE} in PATH, and {why}"));
    if !in_path("apt-get") {
        return Err(missing("no apt-get to install it with"));
    }
    let sudo: &[&str] = if is_root() {
        &[]
    } else if in_path("sudo") && succeeds(&["sudo", "-n", "true"]) {
        &["sudo", "-n"]
    } else {
        return Err(missing("apt-get needs root, or a sudo that asks for no password"));
    };
    let apt = [sudo, &["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]].concat();
    let install = [&apt[..], &["install", "-y", "--no-install-recommends", PACKAGE]].concat();
    let update = [&apt[..], &["update"]].concat();
    eprintln!("xtask: no {EXECUTABLE}; installing {PACKAGE}");
    // The list of packages may be missing or out of date.
    if succeeds(&install) || (succeeds(&update) && succeeds(&install)) {
        Ok(())
    } else {
        Err(missing(&format!("`{}` fails", install.join(" "))))
    }
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").stdin(Stdio::null()).output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Runs a command; what it prints goes to standard error.
fn succeeds(command: &[&str]) -> bool {
    let status = Command::new(command[0]).args(&command[1..]).stdin(Stdio::null()).stdout(std::io::stderr()).status();
    status.is_ok_and(|status| status.success())
}
