//! `cargo xtask linux test`: the module at work in a kernel of the distribution, and refused where it has to be.

use super::guest::Guest;
use super::kernel::{Kernel, Series};
use super::module::{self, Modules};
use super::object;
use super::packages::Store;
use super::scratch::Scratch;
use crate::failure::Failure;
use crate::failure::linux::Error;
use crate::stages::Stages;
use crate::workspace::Workspace;
use std::time::Duration;

/// The flaw that has to be found: unmaps of which the hardware is not told.
const PLANTED: &str = "planted-no-invalidation";
const ATTACK: &str = include_str!("jobs/attack.sh");

/// A machine and what it is to do.
#[derive(Clone, Copy)]
struct Scenario {
    name: &'static str,
    job: &'static str,
    /// Variables of the job's shell.
    variables: &'static [(&'static str, &'static str)],
    append: &'static str,
    cpus: u32,
    /// Options of the machine's IOMMU; `None` for a machine without one.
    iommu: Option<&'static str>,
    /// Whether it has a disk and a network card, and not only the attacker.
    has_traffic: bool,
}

/// What most have in common.
const PLAIN: Scenario = Scenario {
    name: "",
    job: "",
    variables: &[],
    append: "intel_iommu=off",
    cpus: 2,
    iommu: Some("intremap=off"),
    has_traffic: false,
};
const STRICT: &[(&str, &str)] = &[("POLICY", "portcullis/strict")];
const DEFERRED: &[(&str, &str)] = &[("POLICY", "portcullis/deferred")];
const MAGAZINE: &[(&str, &str)] = &[("POLICY", "magazine/strict")];
const TRAFFIC: Scenario = Scenario { job: include_str!("jobs/traffic.sh"), cpus: 4, has_traffic: true, ..PLAIN };
const MEMORY: Scenario = Scenario { job: include_str!("jobs/memory.sh"), cpus: 1, ..PLAIN };
const REFUSED: Scenario = Scenario { job: include_str!("jobs/refused.sh"), cpus: 1, ..PLAIN };

/// Those of every run.
const SCENARIOS: [Scenario; 7] = [
    Scenario { name: "attack", job: ATTACK, ..PLAIN },
    Scenario { name: "traffic", variables: STRICT, ..TRAFFIC },
    Scenario { name: "memory", variables: STRICT, ..MEMORY },
    Scenario { name: "reboot", job: include_str!("jobs/reboot.sh"), has_traffic: true, ..PLAIN },
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

/// Those that `--full` adds.
const FURTHER: [Scenario; 5] = [
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
];

/// Those of every run on an older kernel, with the same Rust half.
const OLDER: [Scenario; 2] = [
    Scenario { name: "older-attack", job: ATTACK, ..PLAIN },
    Scenario { name: "older-traffic", variables: STRICT, ..TRAFFIC },
];

/// Every test of the module. Where the distribution has no kernel, or no compiler for it, it says so.
pub(super) fn test(workspace: &Workspace, store: &Store, full: bool) -> Result<(), Failure> {
    let mut stages = Stages::new(workspace, "linux test");
    let kernel =
        stages.stage("kernel", "a 6.12 of the distribution, unpacked", |_| Kernel::newest(store, Series::Six12))?;
    let modules =
        stages.stage("modules", "built, and built with a flaw", |workspace| built(workspace, store, &kernel))?;
    let [sound, flawed] = modules;
    stages
        .stage("flaw", "attack, by a module that tells the hardware of no unmap", |_| found(store, &kernel, &flawed))?;
    let mut all = SCENARIOS.to_vec();
    if full {
        all.extend(FURTHER);
    }
    for scenario in all {
        stages.stage(scenario.name, scenario.append, |_| run(store, &kernel, &sound, scenario))?;
    }
    if full {
        let kernel =
            stages.stage("older kernel", "a 6.1 of the distribution", |_| Kernel::newest(store, Series::Six1))?;
        let modules = stages.stage("older modules", "the same Rust half", |workspace| {
            module::build(workspace, store, &kernel.headers, &object::build(workspace, store, &[])?)
        })?;
        for scenario in OLDER {
            stages.stage(scenario.name, scenario.append, |_| run(store, &kernel, &modules, scenario))?;
        }
    }
    stages.finish();
    Ok(())
}

/// The modules as they are to be, and with a flaw.
fn built(workspace: &Workspace, store: &Store, kernel: &Kernel) -> Result<[Modules; 2], Failure> {
    let build = |features: &[&str]| -> Result<Modules, Failure> {
        module::build(workspace, store, &kernel.headers, &object::build(workspace, store, features)?)
    };
    Ok([build(&[])?, build(&[PLANTED])?])
}

/// The attack finds the flaw, by the name of the rule that it breaks.
fn found(store: &Store, kernel: &Kernel, flawed: &Modules) -> Result<(), Failure> {
    const FOUND: &str = "FAILED S2 strict";
    let scenario = Scenario { name: "attack-flaw", job: ATTACK, ..PLAIN };
    match run(store, kernel, flawed, scenario) {
        Err(Failure::Linux(Error::Guest { console, .. })) if console.contains(FOUND) => Ok(()),
        Err(error) => Err(error),
        Ok(()) => Err(Error::NotFound { flaw: PLANTED.to_owned() }.into()),
    }
}

fn run(store: &Store, kernel: &Kernel, modules: &Modules, scenario: Scenario) -> Result<(), Failure> {
    let scratch = Scratch::new(store)?;
    let mut devices = vec!["-device", "edu,dma_mask=0xffffffffffff"];
    let (card, disk) = (scratch.card(), scratch.disk());
    if scenario.has_traffic {
        devices.extend(["-netdev", &card, "-device", "e1000e,netdev=net"]);
        devices.extend(["-drive", &disk, "-device", "nvme,drive=disk,serial=one"]);
    }
    let assigned = scenario.variables.iter().map(|(name, value)| format!("{name}='{value}'\n"));
    let guest = Guest {
        name: scenario.name,
        kernel,
        append: scenario.append,
        cpus: scenario.cpus,
        memory_mib: 512,
        icount: false,
        iommu: scenario.iommu,
        devices: &devices,
        modules: if scenario.has_traffic { &["e1000e", "nvme"] } else { &[] },
        files: &modules.files(),
        job: &assigned.chain([scenario.job.to_owned()]).collect::<String>(),
        allowed: &[],
        limit: Duration::from_secs(180),
    };
    guest.run(store).map(drop)
}
