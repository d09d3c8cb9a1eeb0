//! A machine and its job.

use crate::failure::Failure;
use crate::linux::dmar;
use crate::linux::guest::{Guest, Transcript};
use crate::linux::kernel::Kernel;
use crate::linux::kexec;
use crate::linux::module::Modules;
use crate::linux::packages::Store;
use crate::linux::scratch::Scratch;
use std::path::PathBuf;
use std::process;
use std::time::Duration;

/// A machine and its job.
#[derive(Clone, Copy)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) job: &'static str,
    /// Variables of the job's shell.
    pub(super) variables: &'static [(&'static str, &'static str)],
    pub(super) append: &'static str,
    pub(super) cpus: u32,
    pub(super) memory_mib: u32,
    /// Options of the machine's IOMMU; `None` for a machine without one.
    pub(super) iommu: Option<&'static str>,
    /// Whether the machine has a disk and a network card besides the attacker.
    pub(super) has_traffic: bool,
    /// More arguments for QEMU, and the number of further disks that they name: `disk1` and so on.
    pub(super) devices: &'static str,
    pub(super) disks: u32,
    /// Further modules of the kernel.
    pub(super) modules: &'static [&'static str],
    pub(super) with: With,
    /// Complaints of the kernel are allowed in lines that contain one of these texts.
    pub(super) allowed: &'static [&'static str],
    /// The time limit, in seconds.
    pub(super) limit_s: u64,
}

/// Features that only a few machines have.
#[derive(Clone, Copy)]
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

/// The settings that most scenarios share.
pub(super) const PLAIN: Scenario = Scenario {
    name: "",
    job: "",
    variables: &[],
    append: "intel_iommu=off",
    cpus: 2,
    memory_mib: 512,
    iommu: Some("intremap=off"),
    has_traffic: false,
    devices: "",
    disks: 0,
    modules: &[],
    with: With::Nothing,
    allowed: &[],
    limit_s: 180,
};
const ATTACKER: &str = "-device edu,dma_mask=0xffffffffffff,addr=1";

impl Scenario {
    pub(super) fn run(&self, store: &Store, kernel: &Kernel, modules: &Modules) -> Result<Transcript, Failure> {
        let scratch = Scratch::new(store, self.name)?;
        let devices = self.devices(&scratch)?;
        let mut drivers = self.modules.to_vec();
        if self.has_traffic {
            drivers.extend(["e1000e", "nvme"]);
        }
        let further = self.files(&scratch, kernel)?;
        let mut files = modules.files();
        files.extend(further.iter().map(|(name, path)| (*name, path.as_path())));
        let assigned = self.variables.iter().map(|(name, value)| format!("{name}='{value}'\n"));
        let guest = Guest {
            name: self.name,
            kernel,
            append: self.append,
            cpus: self.cpus,
            memory_mib: self.memory_mib,
            icount: false,
            iommu: self.iommu,
            devices: &devices.iter().map(String::as_str).collect::<Vec<_>>(),
            modules: &drivers,
            files: &files,
            job: &assigned.chain([self.job.to_owned()]).collect::<String>(),
            allowed: self.allowed,
            limit: Duration::from_secs(self.limit_s),
        };
        guest.run(store)
    }

    /// QEMU's arguments for the devices of the machine.
    fn devices(&self, scratch: &Scratch) -> Result<Vec<String>, Failure> {
        let words = |text: &'static str| text.split_whitespace().collect::<Vec<_>>();
        let mut all = Vec::new();
        let mut add = |arguments: &[&str]| all.extend(arguments.iter().map(|&argument| argument.to_owned()));
        add(&words(ATTACKER));
        if self.has_traffic {
            add(&["-netdev", &scratch.card(), "-device", "e1000e,netdev=net"]);
            add(&["-drive", &scratch.disk("disk")?, "-device", "nvme,drive=disk,serial=one"]);
        }
        for number in 1..=self.disks {
            add(&["-drive", &scratch.disk(&format!("disk{number}"))?]);
        }
        add(&words(self.devices));
        if let With::Monitor = self.with {
            // QEMU connects to itself through an abstract socket, which needs no file.
            let socket = format!("path=portcullis-{}-{},abstract=on", process::id(), self.name);
            add(&["-chardev", &format!("socket,id=monitor,{socket},server=on,wait=off"), "-mon", "chardev=monitor"]);
            add(&["-chardev", &format!("socket,id=wire,{socket}"), "-serial", "chardev:wire"]);
        }
        Ok(all)
    }

    /// The files of the guest besides the modules.
    fn files(&self, scratch: &Scratch, kernel: &Kernel) -> Result<Vec<(&'static str, PathBuf)>, Failure> {
        match self.with {
            With::Nothing | With::Monitor => Ok(Vec::new()),
            With::Firmware | With::LostMaster => {
                let way: &[(u8, u8)] =
                    if let With::Firmware = self.with { &[(0x11, 0)] } else { &[(0x1e, 0), (0x11, 0)] };
                let table = dmar::table(0x1fff_0000..0x2000_0000, &[(0x01, 0), (0x10, 0)], way);
                Ok(vec![(dmar::PLACE, scratch.file("dmar.aml", &table)?)])
            }
            With::Kexec => Ok(vec![("bin/kexec", kexec::program(scratch)?), ("vmlinuz", kernel.image())]),
        }
    }
}
