//! Machines, each with its job.

use super::dmar;
use super::kernel::{Kernel, Series};
use super::scratch::Scratch;
use crate::failure::Failure;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process;

/// A machine and its job.
#[derive(Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Scenario {
    /// For files and for errors.
    pub(super) name: String,
    /// A script for the shell.
    pub(super) job: String,
    /// Variables of the job's shell.
    pub(super) variables: BTreeMap<String, String>,
    /// When the tests boot the machine, and a kernel of which series.
    pub(super) runs: Runs,
    pub(super) series: Series,
    /// The feature of the Rust half that plants something, and the text with which the job must fail because of it.
    /// Without such a text it must succeed.
    pub(super) planted: String,
    pub(super) finds: String,
    /// The kernel's command line, besides what every machine has.
    pub(super) append: String,
    pub(super) cpus: u32,
    pub(super) memory_mib: u32,
    /// Whether the clock counts instructions: each takes one nanosecond. `cpus` must then be 1.
    pub(super) icount: bool,
    /// Options of the machine's IOMMU. Empty for a machine without one.
    pub(super) iommu: String,
    /// When the tests boot it with interrupt remapping too. `Full` is no more often than without.
    pub(super) remapping: Runs,
    pub(super) has_attacker: bool,
    /// Whether the machine has a disk and a network card besides the attacker.
    pub(super) has_traffic: bool,
    /// More arguments for QEMU, and the number of further disks that they name: `disk1` and so on.
    pub(super) devices: String,
    pub(super) disks: u32,
    /// Further modules of the kernel.
    pub(super) modules: String,
    pub(super) with: With,
    /// Complaints of the kernel are allowed in lines that contain one of these texts.
    pub(super) allowed: Vec<String>,
    /// The time limit on this machine's clock, in seconds.
    pub(super) limit_s: u64,
}

/// When the tests boot a machine.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Runs {
    Always,
    /// With `--full`.
    Full,
    /// If it is named.
    Named,
    Never,
}

/// Features that only a few machines have.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum With {
    Nothing,
    /// QEMU's monitor is at the second serial port, so that the guest can change its own machine.
    Monitor,
    /// A DMAR table that reserves memory for the attacker and for the device 0000:00:10.0, and names a device that is
    /// not on PCI. The requests of that device come from 0000:00:11.0.
    Firmware,
    /// The same table, but the requests come from behind a bridge that does not exist.
    LostMaster,
    /// A second kernel, and the program that starts it.
    Kexec,
}

/// What most machines share.
impl Default for Scenario {
    fn default() -> Self {
        Self {
            name: String::new(),
            job: String::new(),
            variables: BTreeMap::new(),
            runs: Runs::Always,
            series: Series::Six12,
            planted: String::new(),
            finds: String::new(),
            append: "intel_iommu=off".into(),
            cpus: 2,
            memory_mib: 512,
            icount: false,
            iommu: WITHOUT_REMAPPING.into(),
            remapping: Runs::Full,
            has_attacker: true,
            has_traffic: false,
            devices: String::new(),
            disks: 0,
            modules: String::new(),
            with: With::Nothing,
            allowed: Vec::new(),
            limit_s: 180,
        }
    }
}

/// Without interrupt remapping, and with it. QEMU 7.2 has no x2APIC.
const WITHOUT_REMAPPING: &str = "intremap=off";
const WITH_REMAPPING: &str = "intremap=on,eim=off";

const ATTACKER: &str = "-device edu,dma_mask=0xffffffffffff,addr=1";

impl Scenario {
    /// The same machine with interrupt remapping, if there is to be one.
    pub(super) fn with_remapping(&self) -> Option<Self> {
        let iommu = self.iommu.replace(WITHOUT_REMAPPING, WITH_REMAPPING);
        let runs = match (self.runs, self.remapping) {
            (_, Runs::Never) => return None,
            (_, Runs::Always) => Runs::Always,
            (Runs::Always, remapping) => remapping,
            // What is not part of every run has no part of every run besides it.
            (runs, _) => runs,
        };
        if iommu == self.iommu {
            return None;
        }
        let mut machine = Self { name: format!("{}-remapping", self.name), iommu, runs, ..self.clone() };
        // `lib.sh` looks whether the kernel does it.
        machine.variables.insert("REMAPS".into(), "1".into());
        Some(machine)
    }

    /// QEMU's arguments for the devices of the machine.
    pub(super) fn devices(&self, scratch: &Scratch) -> Result<Vec<String>, Failure> {
        let words = |text| str::split_whitespace(text).collect::<Vec<_>>();
        let mut all = Vec::new();
        let mut add = |arguments: &[&str]| all.extend(arguments.iter().map(|&argument| argument.to_owned()));
        if self.has_attacker {
            add(&words(ATTACKER));
        }
        if self.has_traffic {
            add(&["-netdev", &scratch.card(), "-device", "e1000e,netdev=net"]);
            add(&["-drive", &scratch.disk("disk")?, "-device", "nvme,drive=disk,serial=one"]);
        }
        for number in 1..=self.disks {
            add(&["-drive", &scratch.disk(&format!("disk{number}"))?]);
        }
        add(&words(&self.devices));
        if let With::Monitor = self.with {
            // QEMU connects to itself through an abstract socket, which needs no file.
            let socket = format!("path=portcullis-{}-{},abstract=on", process::id(), self.name);
            add(&["-chardev", &format!("socket,id=monitor,{socket},server=on,wait=off"), "-mon", "chardev=monitor"]);
            add(&["-chardev", &format!("socket,id=wire,{socket}"), "-serial", "chardev:wire"]);
        }
        Ok(all)
    }

    /// The files of the guest besides the modules.
    pub(super) fn files(&self, scratch: &Scratch, kernel: &Kernel) -> Result<Vec<(&'static str, PathBuf)>, Failure> {
        match self.with {
            With::Nothing | With::Monitor => Ok(Vec::new()),
            With::Firmware | With::LostMaster => {
                let way: &[(u8, u8)] =
                    if let With::Firmware = self.with { &[(0x11, 0)] } else { &[(0x1e, 0), (0x11, 0)] };
                let table = dmar::table(0x1fff_0000..0x2000_0000, &[(0x01, 0), (0x10, 0)], way);
                Ok(vec![(dmar::PLACE, scratch.file("dmar.aml", &table)?)])
            }
            With::Kexec => Ok(vec![("bin/kexec", scratch.kexec()?), ("vmlinuz", kernel.image())]),
        }
    }
}
