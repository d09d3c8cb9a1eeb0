//! `cargo xtask linux`: the kernel module, built for kernels of Debian, and run in machines that QEMU simulates.

mod bench;
mod bench_lines;
mod bench_report;
mod command;
mod dmar;
mod fitness;
mod guest;
mod initramfs;
mod kernel;
mod kexec;
mod module;
mod modules;
mod object;
mod packages;
mod scratch;
mod test;
mod toolchain;

use crate::failure::Failure;
use crate::stages::Stages;
use crate::workspace::Workspace;
use clap::Subcommand;
use guest::Guest;
use kernel::{Headers, Kernel, Series};
use module::Modules;
use packages::Store;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What to do with the kernel module.
#[derive(Subcommand)]
pub(crate) enum Linux {
    /// Builds portcullis.ko and portcullis_test.ko, for the newest 6.12 of the distribution.
    Build {
        /// Instead, for the kernel with the headers in this folder.
        #[arg(long)]
        kernel: Option<PathBuf>,
    },
    /// Boots kernels of the distribution in QEMU with the module: an attacker is refused, a disk and a network card work, memory may be
    /// missing, and the module is refused where it has to be.
    Test {
        /// Further machines, and an older kernel.
        #[arg(long)]
        full: bool,
        /// Instead, the tests of these names, as the others print them.
        #[arg(value_name = "NAME", conflicts_with = "full")]
        only: Vec<String>,
    },
    /// Counts the instructions of maps and unmaps, datagrams and reads from a disk, in QEMU: without an IOMMU, with Linux's own drivers
    /// of it, and with the module.
    Bench {
        /// One document for programs instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Boots a kernel of the distribution in QEMU, with an e1000e and the modules that are built for it in /modules, and prints what
    /// it prints.
    Boot {
        /// A script for busybox's shell. `. /lib.sh` gives it `load NAME`, for modules.
        job: PathBuf,
        #[arg(long, default_value = "6.12")]
        series: Series,
        /// More of the kernel's command line.
        #[arg(long, default_value = "intel_iommu=off")]
        append: String,
        /// Modules of the kernel that the job loads.
        #[arg(long, value_delimiter = ',', default_value = "e1000e,nvme")]
        modules: Vec<String>,
    },
}

pub(crate) fn linux(workspace: &Workspace, command: &Linux) -> Result<(), Failure> {
    let store = Store::open(workspace)?;
    match command {
        Linux::Build { kernel } => build(workspace, &store, kernel.as_ref()),
        Linux::Test { full, only } => test::test(workspace, &store, *full, only),
        Linux::Bench { json } => bench::bench(workspace, &store, *json),
        Linux::Boot { job, series, append, modules } => boot(&store, job, *series, append, modules),
    }
}

/// The tests of every run. Returns why they were skipped, where the distribution has no kernel or no compiler for it.
pub(crate) fn test(workspace: &Workspace) -> Result<Option<String>, Failure> {
    let tests_for_others = std::env::var("CI").is_ok_and(|value| value == "true");
    match Store::open(workspace).and_then(|store| test::test(workspace, &store, false, &[])) {
        Err(Failure::Linux(error)) if error.is_absence(tests_for_others) => Ok(Some(error.to_string())),
        tested => tested.map(|()| None),
    }
}

fn build(workspace: &Workspace, store: &Store, kernel: Option<&PathBuf>) -> Result<(), Failure> {
    let mut stages = Stages::new(workspace, "linux build");
    let headers = stages.stage("kernel", "its headers are there, or unpacked", |_| match kernel {
        Some(folder) => Headers::installed(folder),
        None => Ok(Kernel::newest(store, Series::Six12)?.headers),
    })?;
    let core = stages.stage("Rust half", "compiled with core and alloc, as one object", |workspace| {
        object::build(workspace, store, &[])
    })?;
    let modules = stages.stage("modules", &format!("linked for {}", headers.version), |workspace| {
        module::build(workspace, store, &headers, &core)
    })?;
    let dkms = stages.stage("DKMS", "a folder for /usr/src", |workspace| module::dkms(workspace, store, &core))?;
    println!("\n{}\n{}\n{}", modules.portcullis.display(), modules.test.display(), dkms.display());
    stages.finish();
    Ok(())
}

fn boot(store: &Store, job: &Path, series: Series, append: &str, modules: &[String]) -> Result<(), Failure> {
    let kernel = Kernel::newest(store, series)?;
    let built = Modules::built(store, &kernel.headers);
    let guest = Guest {
        name: "boot",
        kernel: &kernel,
        append,
        cpus: 2,
        memory_mib: 1024,
        icount: false,
        iommu: Some("intremap=off"),
        devices: &["-netdev", "user,id=net", "-device", "e1000e,netdev=net"],
        modules: &modules.iter().map(String::as_str).collect::<Vec<_>>(),
        files: &built.as_ref().map_or(Vec::new(), Modules::files),
        job: &fs::read_to_string(job).map_err(Failure::file(job))?,
        allowed: &[],
        limit: Duration::from_secs(240),
    };
    let transcript = guest.run(store)?;
    println!("{}\nended after {:.1} s", transcript.lines.join("\n"), transcript.elapsed.as_secs_f64());
    Ok(())
}
