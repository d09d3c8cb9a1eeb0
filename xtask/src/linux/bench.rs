//! `cargo xtask linux bench`: how many instructions it takes to map and to unmap, to send a datagram, and to read from a disk, by who
//! serves the devices.

use super::bench_lines::{self, Taken};
use super::bench_report::{self, Measured};
use super::command::output;
use super::guest::Guest;
use super::kernel::{Kernel, Series};
use super::module;
use super::object;
use super::packages::Store;
use super::scratch::Scratch;
use crate::failure::Failure;
use crate::qemu;
use crate::stages::Stages;
use crate::workspace::Workspace;
use std::process::Command;
use std::time::Duration;

/// Who serves the devices.
#[derive(Clone, Copy)]
struct Configuration {
    name: &'static str,
    append: &'static str,
    /// As `bench_works.sh` has them.
    mode: &'static str,
    expect: &'static str,
}

const NONE: &str = "intel_iommu=off";
const CONFIGURATIONS: [Configuration; 7] = [
    Configuration { name: "none", append: NONE, mode: "none", expect: "none" },
    Configuration {
        name: "pass-through",
        append: "intel_iommu=on,sm_off iommu=pt",
        mode: "linux",
        expect: "identity",
    },
    Configuration {
        name: "linux-strict",
        append: "intel_iommu=on,sm_off iommu.strict=1 iommu.passthrough=0",
        mode: "linux",
        expect: "DMA",
    },
    Configuration {
        name: "linux-lazy",
        append: "intel_iommu=on,sm_off iommu.strict=0 iommu.passthrough=0",
        mode: "linux",
        expect: "DMA-FQ",
    },
    Configuration { name: "portcullis-strict", append: NONE, mode: "ours", expect: "portcullis/strict" },
    Configuration { name: "portcullis-deferred", append: NONE, mode: "ours", expect: "portcullis/deferred" },
    Configuration { name: "magazine-strict", append: NONE, mode: "ours", expect: "magazine/strict" },
];

/// Two network cards on one wire, where `bench_works.sh` expects them.
const CARDS: [&str; 8] = [
    "-netdev",
    "hubport,id=net0,hubid=0",
    "-device",
    "e1000e,netdev=net0,addr=4",
    "-netdev",
    "hubport,id=net1,hubid=0",
    "-device",
    "e1000e,netdev=net1,addr=5",
];

pub(super) fn bench(workspace: &Workspace, store: &Store, json: bool) -> Result<(), Failure> {
    let mut stages = if json { Stages::quiet(workspace) } else { Stages::new(workspace, "linux bench") };
    let kernel =
        stages.stage("kernel", "a 6.12 of the distribution, unpacked", |_| Kernel::newest(store, Series::Six12))?;
    todo!()
}
