//! Programs that chores need. Some are installed, if the distribution has `apt-get`.

use crate::failure::Failure;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// The environment variable that names the QEMU to use. `portcullis-qemu` reads it too.
const QEMU_VARIABLE: &str = "PORTCULLIS_QEMU";
const QEMU: &str = "qemu-system-x86_64";
/// The package of Debian and Ubuntu with QEMU.
const QEMU_PACKAGE: &str = "qemu-system-x86";

/// Makes sure that QEMU is available, and returns its path. Messages about that go to standard error.
pub(crate) fn qemu() -> Result<PathBuf, Failure> {
    let found = match env::var_os(QEMU_VARIABLE).map(PathBuf::from) {
        None => require(QEMU, QEMU_PACKAGE).map(|()| QEMU.into()),
        Some(named) if named.is_file() || in_path(&named) => Ok(named),
        Some(named) => Err(format!("{QEMU_VARIABLE} names {}, which is not a file", named.display())),
    };
    found.map_err(|why| Failure::Other(format!("QEMU is needed: {why}; install it, or name one in {QEMU_VARIABLE}")))
}

/// Whether `program` is in `PATH`.
pub(crate) fn in_path(program: impl AsRef<Path>) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(&program).is_file()))
}

/// Finds a program in `PATH`, or installs the package with it. The error says why it could not.
pub(crate) fn require(program: &str, package: &str) -> Result<(), String> {
    require_where(program, package, || in_path(program))
}

/// Finds a header of C, or installs the package with it. The error says why it could not.
pub(crate) fn require_header(header: &str, package: &str) -> Result<(), String> {
    let include = format!("-include{header}");
    let is_found = || run(&["cc", "-fsyntax-only", &include, "-xc", "/dev/null"]);
    require_where(header, package, is_found)
}

fn require_where(what: &str, package: &str, is_there: impl Fn() -> bool) -> Result<(), String> {
    if is_there() {
        return Ok(());
    }
    eprintln!("xtask: no {what}; installing {package}");
    install(package).map_err(|why| format!("there is no {what}, and {why}"))?;
    if is_there() { Ok(()) } else { Err(format!("{package} is installed, but there is still no {what}")) }
}

/// Installs a package, as root or with a `sudo` that asks for no password. The error says why it could not.
fn install(package: &str) -> Result<(), String> {
    if !in_path("apt-get") {
        return Err(format!("there is no apt-get to install {package}"));
    }
    let privileged = privileged().ok_or("apt-get needs root, or a sudo that asks for no password")?;
    let install = [&privileged[..], &["install", "-y", "--no-install-recommends", package]].concat();
    let installed = || run_alone(&install);
    // The list of packages may be missing or out of date.
    if installed() || (update() && installed()) { Ok(()) } else { Err(format!("`{}` failed", install.join(" "))) }
}

/// Updates the list of packages. Returns whether that succeeded.
pub(crate) fn update() -> bool {
    privileged().is_some_and(|privileged| run_alone(&[&privileged[..], &["update"]].concat()))
}

/// Runs `apt-get`, which fails while another one runs: threads that need it wait for each other.
fn run_alone(command: &[&str]) -> bool {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _running = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    run(command)
}

/// Runs a command and sends its output to standard error. Returns whether it succeeded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let status = command.stdin(Stdio::null()).stdout(std::io::stderr()).status();
    status.is_ok_and(|status| status.success())
}

/// The command line for `apt-get` with the rights to change the system, if this user can get them.
fn privileged() -> Option<Vec<&'static str>> {
    let is_root = rustix::process::geteuid().is_root();
    let may = is_root || (in_path("sudo") && run(&["sudo", "-n", "true"]));
    let sudo: &[&str] = if is_root { &[] } else { &["sudo", "-n"] };
    may.then(|| [sudo, &["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]].concat())
}

fn run(command: &[&str]) -> bool {
    succeeds(Command::new(command[0]).args(&command[1..]))
}
