//! `cargo xtask linux debug`: the module in a kernel that checks locks, contexts, RCU and every access to memory. It is
//! built from the distribution's source, which takes eleven minutes on two CPUs, and five gigabytes of the cache.

use super::kernel::{Headers, Kernel};
use super::packages::Store;
use super::test::{self, list};
use crate::apt;
use crate::failure::Failure;
use crate::process::output;
use crate::stages::Stages;
use crate::workspace::Workspace;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;
use std::{fs, thread};

/// The package with the source of the kernel that the other tests boot.
const SOURCE: &str = "linux-source-6.12";
/// What it has besides the architecture's defaults.
const CONFIG: &str = include_str!("debug.config");
/// What `uname -r` prints behind the number of the version.
const SUFFIX: &str = "-portcullis-debug";
/// The programs and headers that the build needs besides a compiler, and their packages.
const PROGRAMS: [(&str, &str); 4] = [("flex", "flex"), ("bison", "bison"), ("bc", "bc"), ("pahole", "dwarves")];
const HEADERS: [(&str, &str); 2] = [("libelf.h", "libelf-dev"), ("openssl/opensslv.h", "libssl-dev")];
/// The tests that run if none is named.
const TESTS: [&str; 5] = ["attack", "traffic", "traffic-remapping", "late", "policy"];
/// The feature of the Rust half for kernels whose locks know their holders.
const LOCKS: &str = "large-locks";
/// Behind a job: the kernel has these checks, and has not stopped to check locks.
const STILL_CHECKS: &str = r#"
grep -q 'debug_locks: *1' /proc/lockdep_stats || fail "lockdep is off"
grep -q ' kasan_report$' /proc/kallsyms || fail "KASAN is missing"
"#;
/// How much longer everything may take, and how much more memory it needs.
const SLOWER: u64 = 6;
const MORE_MIB: u32 = 1024;

/// Runs these tests of the module, or the most important ones, in such a kernel. It must not complain.
pub(super) fn debug(workspace: &Workspace, store: &Store, only: &[String]) -> Result<(), Failure> {
    let mut machines = list::machines(workspace)?;
    let is_meant =
        |name: &str| if only.is_empty() { TESTS.contains(&name) } else { only.iter().any(|one| one == name) };
    machines.retain(|machine| is_meant(&machine.name));
    for machine in &mut machines {
        machine.job += STILL_CHECKS;
        machine.limit_s *= SLOWER;
        machine.memory_mib += MORE_MIB;
    }
    let mut stages = Stages::new(workspace, "linux debug");
    let what = "unpack its source and build it, unless that was done";
    let (tested, _) = test::build(&mut stages, workspace, store, &[LOCKS], what, || built(store))?;
    stages.stage("guests", "run the module", |_| tested.run_all(machines.iter().collect()))?;
    stages.finish();
    Ok(())
}

fn built(store: &Store) -> Result<Kernel, Failure> {
    let mut key = DefaultHasher::new();
    CONFIG.hash(&mut key);
    let set = format!("debug-{:016x}", key.finish());
    let root = store.unpacked(&set, &[SOURCE.to_owned()], |unpacked, _| build(unpacked))?;
    Kernel::installed(store, Headers::installed(&root.join("tree"))?, root)
}

/// Builds the kernel below `unpacked`, and installs it there as a package would. Its tree keeps what modules are built
/// against.
fn build(unpacked: &Path) -> Result<(), Failure> {
    let programs = PROGRAMS.iter().map(|(program, package)| apt::require(program, package));
    let headers = HEADERS.iter().map(|(header, package)| apt::require_header(header, package));
    programs.chain(headers).collect::<Result<(), _>>().map_err(Failure::Other)?;
    let tree = unpacked.join("tree");
    fs::create_dir(&tree).map_err(Failure::file(&tree))?;
    let packed = unpacked.join(format!("usr/src/{SOURCE}.tar.xz"));
    output(Command::new("tar").arg("-xf").arg(&packed).arg("--strip-components=1").arg("-C").arg(&tree))?;
    let fragment = tree.join("portcullis.config");
    fs::write(&fragment, CONFIG).map_err(Failure::file(&fragment))?;
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let make = |arguments: &[&str]| {
        let mut command = Command::new("make");
        command.arg("-s").arg("-C").arg(&tree).arg(format!("-j{cpus}")).arg(format!("LOCALVERSION={SUFFIX}"));
        output(command.args(arguments))
    };
    make(&["defconfig"])?;
    let merge = tree.join("scripts/kconfig/merge_config.sh");
    output(Command::new(merge).args(["-m", ".config", "portcullis.config"]).current_dir(&tree))?;
    println!("    this takes ten minutes on two CPUs");
    make(&["olddefconfig"])?;
    make(&["bzImage", "modules"])?;
    let version = make(&["kernelrelease"])?;
    make(&["modules_install", &format!("INSTALL_MOD_PATH={}", unpacked.display())])?;
    let (image, boot) = (tree.join("arch/x86/boot/bzImage"), unpacked.join("boot"));
    fs::create_dir_all(&boot).map_err(Failure::file(&boot))?;
    fs::copy(&image, boot.join(format!("vmlinuz-{}", version.trim()))).map_err(Failure::file(image))?;
    Ok(())
}
