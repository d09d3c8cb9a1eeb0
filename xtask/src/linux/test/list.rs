//! The tests: the machine of each, and its job.

use crate::linux::scenario::{self, PLAIN, With};

pub(super) type Scenario = scenario::Scenario<'static>;

/// The script of a job.
macro_rules! job {
    ($name:literal) => {
        include_str!(concat!("../../../../crates/portcullis-linux/tests/jobs/", $name, ".sh"))
    };
}

const STRICT: &[(&str, &str)] = &[("POLICY", "portcullis/strict")];
const DEFERRED: &[(&str, &str)] = &[("POLICY", "portcullis/deferred")];
const MAGAZINE: &[(&str, &str)] = &[("POLICY", "magazine/strict")];

pub(super) const ATTACK: Scenario = Scenario { name: "attack", job: job!("attack"), ..PLAIN };
/// The attack against a module with a planted flaw.
pub(super) const FINDER: Scenario = Scenario { name: "attack-flaw", ..ATTACK };
const TRAFFIC: Scenario = Scenario { name: "traffic", job: job!("traffic"), cpus: 4, has_traffic: true, ..PLAIN };
const MEMORY: Scenario = Scenario { name: "memory", job: job!("memory"), cpus: 1, memory_mib: 256, ..PLAIN };
const REFUSED: Scenario = Scenario { job: job!("refused"), cpus: 1, ..PLAIN };

/// A network card behind a bridge to conventional PCI, and one behind a switch that does not keep its ports apart.
const BRIDGES: &str = "-device pcie-root-port,id=port1,chassis=1 -device pcie-pci-bridge,id=bridge,bus=port1 \
    -netdev user,id=net3,net=10.0.3.0/24 -device e1000,netdev=net3,bus=bridge,addr=3 \
    -device pcie-root-port,id=port2,chassis=2 -device x3130-upstream,id=switch,bus=port2 \
    -device xio3130-downstream,id=port3,bus=switch,chassis=3 -netdev user,id=net4,net=10.0.4.0/24 \
    -device e1000e,netdev=net4,bus=port3";
const POLICY: Scenario =
    Scenario { name: "policy", job: job!("policy"), has_traffic: true, devices: BRIDGES, modules: "e1000", ..PLAIN };
const FIRMWARE: Scenario = Scenario {
    name: "firmware",
    job: job!("firmware"),
    cpus: 1,
    devices: "-netdev user,id=net -device e1000e,netdev=net,addr=0x10 -device edu,dma_mask=0xffffffffffff,addr=0x11 \
        -device edu,dma_mask=0xffffffffffff,addr=0x12",
    modules: "e1000e",
    with: With::Firmware,
    ..PLAIN
};
/// Besides the attacker: another one, which the job makes share an id with the first, and two behind a bridge to
/// conventional PCI.
const IDS: Scenario = Scenario {
    name: "ids",
    job: job!("ids"),
    cpus: 1,
    devices: "-device edu,dma_mask=0xffffffffffff,addr=2 -device pcie-root-port,id=port1,chassis=1 \
        -device pcie-pci-bridge,id=bridge,bus=port1 -device edu,dma_mask=0xffffffffffff,bus=bridge,addr=3 \
        -device edu,dma_mask=0xffffffffffff,bus=bridge,addr=4",
    ..PLAIN
};
const LATE: Scenario = Scenario { name: "late", job: job!("late"), ..PLAIN };

/// The tests of every run, the longest first, so that none is left to run alone at the end.
pub(super) const SCENARIOS: [Scenario; 13] = [
    POLICY,
    Scenario { variables: STRICT, ..TRAFFIC },
    FIRMWARE,
    IDS,
    Scenario { variables: STRICT, ..MEMORY },
    Scenario { name: "reboot", job: job!("reboot"), has_traffic: true, ..PLAIN },
    LATE,
    Scenario { name: "unbound", job: job!("unbound"), ..PLAIN },
    Scenario { name: "dead", job: job!("dead"), ..PLAIN },
    ATTACK,
    Scenario {
        name: "refused-translating",
        variables: &[("REASON", "in use .*translates with it; boot with intel_iommu=off")],
        append: "intel_iommu=on",
        ..REFUSED
    },
    Scenario {
        name: "refused-remapping",
        variables: &[("REASON", "remaps interrupts with it; boot with intel_iommu=off intremap=off")],
        iommu: Some("intremap=on"),
        ..REFUSED
    },
    Scenario { name: "refused-without", variables: &[("REASON", "no DMAR table")], iommu: None, ..REFUSED },
];

/// A hot-plug port for cards. The kernel drives it natively, as on servers, and not through firmware.
const HOT_PORT: &str = "-global ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off -device pcie-root-port,id=hot,chassis=1 \
    -netdev user,id=net";
const HOTPLUG: Scenario = Scenario {
    name: "hotplug",
    job: job!("hotplug"),
    devices: HOT_PORT,
    modules: "e1000e",
    with: With::Monitor,
    ..PLAIN
};

/// Five network cards and five disks. `models.sh` has their addresses. The machine itself has the controller of the
/// last disk, at 00:1f.2.
const CARDS_AND_DISKS: &str = "-netdev user,id=net1,net=10.0.11.0/24 -device e1000e,netdev=net1,addr=0x11 \
    -netdev user,id=net2,net=10.0.12.0/24 -device e1000,netdev=net2,addr=0x12 -netdev user,id=net3,net=10.0.13.0/24 \
    -device vmxnet3,netdev=net3,addr=0x13 -netdev user,id=net4,net=10.0.14.0/24 \
    -device rtl8139,netdev=net4,addr=0x14 -netdev user,id=net5,net=10.0.15.0/24 \
    -device virtio-net-pci,netdev=net5,addr=0x15,iommu_platform=on,disable-legacy=on \
    -device virtio-blk-pci,drive=disk1,addr=0x16,iommu_platform=on,disable-legacy=on \
    -device nvme,drive=disk2,serial=one,addr=0x17 -device qemu-xhci,id=usb,addr=0x18 \
    -device usb-storage,drive=disk3,bus=usb.0 -device megasas,id=raid,addr=0x19 \
    -device scsi-hd,drive=disk4,bus=raid.0 -device ide-hd,drive=disk5,bus=ide.0";
const MODELS: Scenario = Scenario {
    name: "models",
    job: job!("models"),
    devices: CARDS_AND_DISKS,
    disks: 5,
    modules: "e1000e e1000 vmxnet3 8139cp virtio_net virtio_blk nvme xhci_pci usb_storage megaraid_sas sd_mod ahci",
    ..PLAIN
};
const KEXEC: Scenario = Scenario { name: "kexec", job: job!("kexec"), has_traffic: true, with: With::Kexec, ..PLAIN };

const CRASH: Scenario = Scenario {
    name: "crash",
    job: job!("crash"),
    append: "intel_iommu=off crashkernel=192M",
    memory_mib: 1024,
    // The job makes the kernel crash, and the kernel reports that with a call trace.
    allowed: &["Kernel panic - not syncing: sysrq triggered crash", "Call Trace:"],
    ..KEXEC
};

/// The tests that `--full` adds.
pub(super) const FURTHER: [Scenario; 10] = [
    Scenario { name: "traffic-deferred", variables: DEFERRED, ..TRAFFIC },
    Scenario { name: "memory-magazine", variables: MAGAZINE, ..MEMORY },
    Scenario { name: "traffic-magazine", variables: MAGAZINE, ..TRAFFIC },
    Scenario { name: "traffic-preempt", variables: STRICT, append: "intel_iommu=off preempt=full", ..TRAFFIC },
    Scenario {
        name: "traffic-caching-mode",
        variables: STRICT,
        iommu: Some("intremap=off,caching-mode=on,aw-bits=48"),
        ..TRAFFIC
    },
    HOTPLUG,
    MODELS,
    KEXEC,
    CRASH,
    Scenario {
        name: "refused-master",
        variables: &[("REASON", "names the device .*_SB.DMA0.* and there is no bridge on its way")],
        with: With::LostMaster,
        ..REFUSED
    },
];

/// Another test that `--full` adds. Its output is read.
pub(super) const TRACE: Scenario = Scenario { name: "trace", job: job!("trace"), has_traffic: true, ..PLAIN };

/// A test that runs for ten minutes, and therefore only if it is named.
pub(super) const SOAK: Scenario = Scenario {
    name: "soak",
    job: job!("soak"),
    variables: &[("POLICY", "portcullis/strict"), ("SECONDS_LONG", "600")],
    devices: "-netdev user,id=net5,net=10.0.5.0/24 -device e1000e,netdev=net5 -device nvme,drive=disk1,serial=two",
    disks: 1,
    limit_s: 1200,
    ..TRAFFIC
};

/// The tests that `--full` runs on an older kernel, with the same Rust half.
pub(super) const OLDER: [Scenario; 3] = [
    Scenario { name: "older-attack", ..ATTACK },
    Scenario { name: "older-traffic", variables: STRICT, ..TRAFFIC },
    Scenario { name: "older-late", ..LATE },
];

/// The names of all tests.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let alone = [FINDER, TRACE, SOAK];
    alone.into_iter().chain(SCENARIOS).chain(FURTHER).chain(OLDER).map(|scenario| scenario.name)
}

#[cfg(test)]
mod tests {
    use super::names;
    use std::collections::BTreeSet;

    #[test]
    fn every_machine_has_a_name_of_its_own() {
        assert_eq!(names().collect::<BTreeSet<_>>().len(), names().count());
        assert!(names().all(|name| !name.is_empty()));
    }
}
