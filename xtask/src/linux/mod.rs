//! `cargo xtask linux`: builds the kernel module for Debian's kernels, and runs it in machines that QEMU emulates.

mod bench;
mod debug;
mod dmar;
mod fitness;
mod guest;
mod initramfs;
mod kernel;
mod module;
mod modules;
mod object;
pub(crate) mod packages;
#[cfg(test)]
mod plain;
mod scenario;
mod scratch;
mod suite;
mod test;
mod toolchain;

use crate::failure::Failure;
use crate::stages::Stages;
use crate::workspace::Workspace;
use clap::Subcommand;
use kernel::{Headers, Kernel, Series};
use module::Modules;
use packages::Store;
use scenario::Scenario;
use std::fs;
use std::path::{Path, PathBuf};

/// What to do with the kernel module.
#[derive(Subcommand)]
pub(crate) enum Linux {
    /// Builds portcullis.ko and portcullis_test.ko for the distribution's newest 6.12 kernel.
    Build {
        /// Builds for the kernel whose headers are in this folder instead.
        #[arg(long)]
        kernel: Option<PathBuf>,
    },
    /// Boots kernels of the distribution in QEMU with the module. An attacker must be refused, a disk and a network
    /// card must work, also when memory runs out, and the module must refuse machines that it cannot protect.
    Test {
        /// Tests more machines, an older kernel, and the newest one.
        #[arg(long)]
        full: bool,
        /// Runs only the tests with these names, as a run prints them.
        #[arg(value_name = "NAME", conflicts_with = "full")]
        only: Vec<String>,
    },
    /// Builds a kernel from the distribution's source that checks locks (lockdep) and memory (KASAN), and runs tests of
    /// the module in it. It must not complain. The first time takes ten minutes more than the others.
    Debug {
        /// Runs these tests instead of the most important ones.
        #[arg(value_name = "NAME")]
        only: Vec<String>,
    },
    /// Counts the instructions of maps and unmaps, of datagrams and of reads from a disk, in QEMU: without an IOMMU,
    /// with Linux's own IOMMU driver, and with the module.
    Bench {
        /// The series of the kernel.
        #[arg(long, default_value = "6.12")]
        kernel: Series,
        /// Prints a JSON document instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Boots a kernel of the distribution in QEMU and prints its output. The machine has an e1000e; the modules that
    /// are built for the kernel are in /modules.
    Boot {
        /// A script for busybox's shell. After `. /lib.sh` it can load modules with `load NAME`.
        job: PathBuf,
        #[arg(long, default_value = "6.12")]
        series: Series,
        /// More parameters for the kernel's command line.
        #[arg(long, default_value = "intel_iommu=off")]
        append: String,
        /// The kernel's modules that the job loads.
        #[arg(long, value_delimiter = ',', default_value = "e1000e,nvme")]
        modules: Vec<String>,
    },
}

pub(crate) fn linux(workspace: &Workspace, command: &Linux) -> Result<(), Failure> {
    let store = Store::open(workspace)?;
    match command {
        Linux::Build { kernel } => build(workspace, &store, kernel.as_ref()),
        Linux::Test { full, only } => test::test(workspace, &store, *full, only),
        Linux::Debug { only } => debug::debug(workspace, &store, only),
        Linux::Bench { kernel, json } => bench::bench(workspace, &store, *kernel, *json),
        Linux::Boot { job, series, append, modules } => boot(&store, job, *series, append, modules),
    }
}

/// Runs the tests of every run. If the distribution has no kernel, or no compiler for it, skips them and returns why.
pub(crate) fn test(workspace: &Workspace) -> Result<Option<String>, Failure> {
    match Store::open(workspace).and_then(|store| test::test(workspace, &store, false, &[])) {
        Err(error) if error.is_absence(test::tests_for_others()) => Ok(Some(error.to_string())),
        tested => tested.map(|()| None),
    }
}

fn build(workspace: &Workspace, store: &Store, kernel: Option<&PathBuf>) -> Result<(), Failure> {
    let mut stages = Stages::new(workspace, "linux build");
    let headers = stages.stage("kernel", "find or unpack its headers", |_| match kernel {
        Some(folder) => Headers::installed(folder),
        None => Ok(Kernel::newest(store, Series::Six12)?.headers),
    })?;
    let core = stages.stage("Rust half", "compile it with core and alloc, as one object", |workspace| {
        object::build(workspace, store, &[])
    })?;
    let modules = stages.stage("modules", &format!("link them for {}", headers.version), |workspace| {
        module::build(workspace, store, &headers, &core)
    })?;
    let dkms = stages.stage("DKMS", "make a /usr/src folder", |workspace| module::dkms(workspace, store, &core))?;
    println!("\n{}\n{}\n{}", modules.portcullis.display(), modules.test.display(), dkms.display());
    stages.finish();
    Ok(())
}

fn boot(store: &Store, job: &Path, series: Series, append: &str, modules: &[String]) -> Result<(), Failure> {
    let kernel = Kernel::newest(store, series)?;
    let built = Modules::built(store, &kernel.headers);
    let scenario = Scenario {
        name: "boot".into(),
        job: fs::read_to_string(job).map_err(Failure::file(job))?,
        append: append.into(),
        memory_mib: 1024,
        has_attacker: false,
        devices: "-netdev user,id=net -device e1000e,netdev=net".into(),
        modules: modules.join(" "),
        limit_s: 240,
        ..Scenario::default()
    };
    let transcript = scenario.run(store, &kernel, built.as_ref())?;
    println!("{}\nended after {:.1} s", transcript.lines.join("\n"), transcript.elapsed.as_secs_f64());
    Ok(())
}
