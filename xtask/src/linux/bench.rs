//! `cargo xtask linux bench`: the instructions of a map and an unmap, of a datagram, and of a read from a disk, for
//! each implementation of the DMA API.

use super::bench_report::Report;
use super::guest::Transcript;
use super::kernel::{Kernel, Series};
use super::module::{self, Modules};
use super::object;
use super::packages::Store;
use super::scenario::{PLAIN, Scenario};
use crate::apt;
use crate::failure::Failure;
use crate::process::output;
use crate::workspace::Workspace;
use std::process::Command;

const WORKS: &str = include_str!("../../../crates/portcullis-linux/tests/jobs/bench_works.sh");

/// A configuration of the kernel: what implements the DMA API for the devices.
#[derive(Clone, Copy)]
struct Configuration {
    name: &'static str,
    append: &'static str,
    /// The variables `MODE` and `EXPECT` of `bench_works.sh`.
    mode: &'static str,
    expect: &'static str,
}

const NONE: &str = "intel_iommu=off";
const STRICT: &str = "intel_iommu=on,sm_off iommu.strict=1 iommu.passthrough=0";
const LAZY: &str = "intel_iommu=on,sm_off iommu.strict=0 iommu.passthrough=0";
const CONFIGURATIONS: [Configuration; 7] = [
    Configuration { name: "none", append: NONE, mode: "none", expect: "none" },
    Configuration { name: "pass-through", append: "intel_iommu=on,sm_off iommu=pt", mode: "linux", expect: "identity" },
    Configuration { name: "linux-strict", append: STRICT, mode: "linux", expect: "DMA" },
    Configuration { name: "linux-lazy", append: LAZY, mode: "linux", expect: "DMA-FQ" },
    Configuration { name: "portcullis-strict", append: NONE, mode: "ours", expect: "portcullis/strict" },
    Configuration { name: "portcullis-deferred", append: NONE, mode: "ours", expect: "portcullis/deferred" },
    Configuration { name: "magazine-strict", append: NONE, mode: "ours", expect: "magazine/strict" },
];

/// Two network cards on one wire, and an empty disk that needs no file, at the addresses that `bench_works.sh`
/// expects.
const DEVICES: &str = "-netdev hubport,id=net0,hubid=0 -device e1000e,netdev=net0,addr=4 \
    -netdev hubport,id=net1,hubid=0 -device e1000e,netdev=net1,addr=5 \
    -blockdev null-co,node-name=disk,size=67108864,read-zeroes=on -device nvme,drive=disk,serial=one,addr=6";

/// Runs every work in every configuration. Results go to standard output, and progress to standard error.
pub(super) fn bench(workspace: &Workspace, store: &Store, json: bool) -> Result<(), Failure> {
    let kernel = Kernel::newest(store, Series::Six12)?;
    let core = object::build(workspace, store, &[])?;
    let modules = module::build(workspace, store, &kernel.headers, &core)?;
    let qemu = output(Command::new(apt::qemu()?).arg("--version"))?;
    let qemu = qemu.lines().next().unwrap_or_default().to_owned();
    let mut report = Report { kernel: kernel.headers.version.clone(), qemu, ..Report::default() };
    for configuration in CONFIGURATIONS {
        eprintln!("xtask: {}", configuration.name);
        let transcript = run(store, &kernel, &modules, configuration)?;
        report.add(configuration.name, configuration.mode != "none", &transcript.lines)?;
    }
    println!("{}", if json { report.json() } else { report.table() });
    Ok(())
}

fn run(store: &Store, kernel: &Kernel, modules: &Modules, configuration: Configuration) -> Result<Transcript, Failure> {
    let Configuration { name, append, mode, expect } = configuration;
    let scenario = Scenario {
        name: &format!("bench-{name}"),
        job: WORKS,
        variables: &[("MODE", mode), ("EXPECT", expect)],
        append,
        cpus: 1,
        icount: true,
        has_attacker: false,
        devices: DEVICES,
        modules: "e1000e nvme",
        limit_s: 240,
        ..PLAIN
    };
    scenario.run(store, kernel, Some(modules))
}
