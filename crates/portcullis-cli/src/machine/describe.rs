//! `portcullis machine`: makes a document from what Linux reports and from measurements.

use super::host::{self, Link};
use super::latency::{self, Latency};
use super::load::Ticks;
use crate::Failure;
use crate::bench::PROFILE;
use crate::plan::progress_bar;
use portcullis_bench::{self as bench, CyclesFrom, Prices};
use portcullis_sim::Machine;
use portcullis_sim::number::percent;
use std::io::Write;
use std::path::Path;

/// The id of the described machine.
const ID: &str = "this-host";
/// The machine from which values come that this host does not show.
const BASE: &str = "cascadelake-cx5";
/// The rates of links that servers have, in Gb/s.
const LINKS_GBPS: [f64; 2] = [1.0, 400.0];
/// Values beside the cost book that no host shows, or not to every user.
const NOT_SHOWN: [&str; 12] = [
    "unprotected_cycles_per_byte",
    "bytes_in_flight",
    "transaction_bytes",
    "iotlb_entries",
    "ptcache_l1_entries",
    "ptcache_l2_entries",
    "ptcache_l3_entries",
    "walkers",
    "memory_read_ps",
    "hit_ps",
    "invalidation_ps",
    "wait_ps",
];
/// The values of disks among them.
const OF_DISKS: [&str; 4] =
    ["disk_iops", "disk_bytes_per_second", "disk_bytes_in_flight", "unprotected_cycles_per_request"];

pub(crate) fn machine(out: &mut impl Write) -> Result<(), Failure> {
    let bar = progress_bar();
    bar.set_length(bench::ROUNDS as u64);
    bar.set_message("pricing steps");
    let cpufreq = Path::new("/sys/devices/system/cpu/cpu0/cpufreq");
    let begun = Ticks::now(Path::new("/proc"));
    let prices = bench::prices(host::clock_hz(cpufreq), || bar.inc(1));
    let ended = Ticks::now(Path::new("/proc"));
    bar.finish_and_clear();
    let found = Found {
        processor: host::processor(Path::new("/proc/cpuinfo")),
        is_virtual: host::is_virtual(Path::new("/proc/cpuinfo")),
        cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
        link: host::link(Path::new("/sys/class/net")),
        disks: host::disks(Path::new("/sys/block")),
        latency: std::fs::read_to_string("/sys/kernel/debug/iommu/intel/dmar_perf_latency")
            .ok()
            .and_then(|text| latency::parse(&text)),
        of_others: begun.zip(ended).map(|(begun, ended)| ended.of_others_since(begun)),
    };
    if let Some(share) = found.of_others.filter(|_| found.is_busy()) {
        eprintln!(
            "portcullis: warning: other programs took {} of this host's processors while steps were timed. The prices may be up to {BUSY} times too high, and are listed as assumed; repeat this on a quiet host",
            percent(share)
        );
    }
    let machine = describe(&found, &prices.map_err(Failure::input)?)?;
    machine.check().map_err(Failure::input)?;
    writeln!(out, "{}", serde_json::to_string_pretty(&machine).map_err(Failure::input)?)?;
    Ok(())
}

/// The factor by which the distance between two processors may grow or shrink if a hypervisor moves them. Assumed.
const MOVED: f64 = 5.0;

/// The difference of two timings, each several times as long. It is measured, but often differs by a fifth or more the
/// next time.
const A_SMALL_DIFFERENCE: &str = "chunk_unmap";

/// The share of all processors' time above which other programs spoil the prices. A host that does nothing takes less.
const QUIET_MAX: f64 = 0.1;

/// How many times too high a price may be on a busy host: a user has seen as much.
const BUSY: f64 = 5.0;

/// What Linux reports.
struct Found {
    processor: Option<String>,
    is_virtual: bool,
    cores: u32,
    link: Link,
    disks: Vec<String>,
    latency: Option<Latency>,
    /// The share of all processors' time that other programs took while steps were timed, if the host shows it.
    of_others: Option<f64>,
}

impl Found {
    fn is_busy(&self) -> bool {
        self.of_others.is_some_and(|share| share > QUIET_MAX)
    }
}

fn describe(found: &Found, prices: &Prices) -> Result<Machine, Failure> {
    let mut machine = Machine::by_id(BASE).ok_or_else(|| Failure::Input(format!("no machine `{BASE}`")))?;
    machine.id = ID.to_owned();
    // What is behind the IOMMU is not described.
    machine.server = None;
    machine.description = found.processor.clone().unwrap_or_else(|| "a processor without a name".to_owned());
    machine.source = source(found, prices);
    machine.cores = found.cores.min(4096);
    // Rounded to ten megahertz, as clocks are usually named.
    machine.core_hz = (prices.core_hz / 1e7).round() * 1e7;
    machine.link_gbps = match &found.link {
        Link::Known { gbps, .. } => Some(*gbps),
        Link::Unknown { .. } => machine.link_gbps,
        // Without a link, all traffic is that of the disks. If there are no disks either, a link is assumed.
        Link::None => machine.link_gbps.filter(|_| found.disks.is_empty()),
    };
    let mut unknown: Vec<String> = NOT_SHOWN.map(str::to_owned).to_vec();
    if found.disks.is_empty() {
        (machine.disk_iops, machine.disk_bytes_per_second, machine.unprotected_cycles_per_request) = (None, None, 0.0);
        for key in OF_DISKS {
            machine.assumed.remove(key);
        }
    } else {
        unknown.extend(OF_DISKS.map(str::to_owned));
    }
    for (key, cycles) in &prices.cycles {
        machine.set(key, &whole(*cycles).to_string()).map_err(Failure::input)?;
    }
    let costs = serde_json::to_value(&machine.costs).map_err(Failure::input)?;
    let steps = costs.as_object().into_iter().flatten().map(|(key, _)| key);
    unknown.extend(steps.filter(|key| !prices.cycles.contains_key(key.as_str())).cloned());
    for key in unknown {
        let value = machine.get(&key).unwrap_or_default();
        let [low, high] = machine.assumed.get(&key).copied().unwrap_or([value, value]);
        // The range widens, because the value was given for another machine.
        assume(&mut machine, &key, [low.min(value / 2.0), high.max(value * 2.0)]);
    }
    if found.is_busy() {
        for key in prices.cycles.keys() {
            let cycles = machine.get(key).unwrap_or_default();
            // Some prices are differences of two timings, and may be too low.
            assume(&mut machine, key, [cycles / BUSY, cycles * 2.0]);
        }
    }
    if prices.cycles.contains_key(A_SMALL_DIFFERENCE) {
        let cycles = machine.get(A_SMALL_DIFFERENCE).unwrap_or_default();
        let [low, high] = machine.assumed.get(A_SMALL_DIFFERENCE).copied().unwrap_or([cycles; 2]);
        assume(&mut machine, A_SMALL_DIFFERENCE, [low.min(cycles / 2.0), high.max(cycles * 2.0)]);
    }
    // The value was measured, but may differ the next time: a hypervisor moves processors closer together and further
    // apart.
    if found.is_virtual && prices.cycles.contains_key("line_transfer") {
        let cycles = machine.costs.line_transfer as f64;
        assume(&mut machine, "line_transfer", [cycles / MOVED, cycles * MOVED]);
    }
    if machine.link_gbps.is_some() && !matches!(found.link, Link::Known { .. }) {
        assume(&mut machine, "link_gbps", LINKS_GBPS);
    }
    if let Some(latency) = found.latency {
        take_latency(&mut machine, latency);
    }
    Ok(machine)
}

/// Rounds to whole cycles, as a cost book has them. A step of less than a quarter of a cycle hides behind the steps
/// around it. A step of a quarter to half a cycle counts as one cycle, because it is not free.
fn whole(cycles: f64) -> u64 {
    match cycles.round() as u64 {
        0 if cycles >= 0.25 => 1,
        rounded => rounded,
    }
}

/// Splits the time that the kernel counted, which is that of a command and its wait together: two thirds and one
/// third. The machines with a name assume the same split.
fn take_latency(machine: &mut Machine, latency: Latency) {
    let part = |share: f64| (latency.ns * 1e3 * share) as u64;
    (machine.iommu.invalidation_ps, machine.iommu.wait_ps) = (part(2.0 / 3.0), part(1.0 / 3.0));
    let [low, high] = latency.range_ns.map(|ns| ns * 1e3);
    assume(machine, "invalidation_ps", [low / 3.0, high]);
    assume(machine, "wait_ps", [low / 6.0, high / 2.0]);
}

/// Records that the value called `key` is assumed to lie in `range`. The ends of a range of whole numbers are rounded
/// outwards. An end that no machine can have is replaced by the value itself.
fn assume(machine: &mut Machine, key: &str, range: [f64; 2]) {
    let Some(value) = machine.get(key) else { return };
    let can_be = |end: &f64| {
        let mut machine = machine.clone();
        machine.set(key, &end.to_string()).is_ok() && machine.check().is_ok()
    };
    let [low, high] = range;
    let [low, high] =
        [[low, low.floor()], [high, high.ceil()]].map(|ends| ends.into_iter().find(can_be).unwrap_or(value));
    machine.assumed.insert(key.to_owned(), [low.min(value), high.max(value)]);
}

/// Where the values come from.
fn source(found: &Found, prices: &Prices) -> String {
    let cycles = match prices.cycles_from {
        Some(CyclesFrom::Counter) => "counted by the processor",
        Some(CyclesFrom::Calibrated) => "ticks scaled by a chain of additions",
        None => "time at the clock that cpufreq names",
    };
    let priority = if prices.has_priority { "" } else { ", without real-time priority" };
    let busy = match found.of_others {
        None => ", on a host that does not show its load",
        Some(_) if found.is_busy() => ", on a busy host",
        Some(_) => "",
    };
    let link = match &found.link {
        Link::Known { name, .. } => format!("link as {name} says"),
        Link::Unknown { name } => format!("link assumed, because {name} does not report its speed"),
        Link::None => "no network interface with a device".to_owned(),
    };
    let disks = match &found.disks[..] {
        [] => "no disks".to_owned(),
        disks => format!("rates of disks assumed ({})", disks.join(", ")),
    };
    let waits = match found.latency {
        Some(_) => "waits of the IOMMU from dmar_perf_latency",
        None => "waits of the IOMMU assumed",
    };
    format!(
        "prices of steps measured here by portcullis {} (profile {PROFILE}), cycles {cycles}{priority}{busy}; {link}; {disks}; {waits}; what was \
         not measured, and what the IOMMU can do, is {BASE}'s",
        env!("CARGO_PKG_VERSION")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn prices() -> Prices {
        let cycles = BTreeMap::from([("lock", 11.4), ("table_read", 2.6)]);
        Prices { core_hz: 2.6037e9, cycles_from: None, has_priority: true, cycles }
    }

    fn found(link: Link, disks: &[&str]) -> Found {
        let disks = disks.iter().map(|disk| (*disk).to_owned()).collect();
        Found { processor: None, is_virtual: false, cores: 6, link, disks, latency: None, of_others: Some(0.0) }
    }

    #[test]
    fn prices_of_a_busy_host_are_assumed() {
        let mut prices = prices();
        prices.cycles.insert("chunk_unmap", 16.2);
        let of = |of_others| {
            let found = Found { of_others: Some(of_others), ..found(Link::None, &["sda"]) };
            let machine = describe(&found, &prices).ok().expect("a machine");
            assert_eq!((machine.costs.lock, machine.check()), (11, Ok(())));
            assert_eq!(machine.source.contains("busy"), of_others > QUIET_MAX);
            ["lock", "chunk_unmap", "core_hz"].map(|key| machine.assumed.get(key).copied())
        };
        assert_eq!(of(0.05), [None, Some([8.0, 32.0]), None]);
        assert_eq!(of(0.5), [Some([2.0, 22.0]), Some([3.0, 32.0]), None]);
    }

    #[test]
    fn a_small_difference_has_a_range() {
        let mut prices = prices();
        prices.cycles.insert("chunk_unmap", 16.2);
        let machine = describe(&found(Link::None, &["sda"]), &prices).ok().expect("a machine");
        assert_eq!((machine.costs.chunk_unmap, machine.assumed["chunk_unmap"]), (16, [8.0, 32.0]));
    }

    #[test]
    fn the_way_between_processors_that_a_hypervisor_moves_has_a_range() {
        let mut prices = prices();
        prices.cycles.insert("line_transfer", 150.0);
        let of = |is_virtual| {
            let found = Found { is_virtual, ..found(Link::None, &["sda"]) };
            let machine = describe(&found, &prices).ok().expect("a machine");
            assert_eq!((machine.costs.line_transfer, machine.check()), (150, Ok(())));
            machine.assumed.get("line_transfer").copied()
        };
        assert_eq!((of(true), of(false)), (Some([30.0, 750.0]), None));
    }

    #[test]
    fn what_was_measured_is_not_assumed() {
        let known = Link::Known { name: "eth0".to_owned(), gbps: 25.0 };
        let machine = describe(&found(known, &["sda"]), &prices()).ok().expect("a machine");
        assert_eq!(machine.check(), Ok(()));
        assert_eq!((machine.costs.lock, machine.costs.table_read), (11, 3));
        assert_eq!((machine.cores, machine.core_hz, machine.link_gbps), (6, 2.6e9, Some(25.0)));
        for key in ["lock", "table_read", "link_gbps", "cores", "core_hz"] {
            assert!(!machine.assumed.contains_key(key), "{key}");
        }
        for key in ["table_write", "ring_take", "invalidation_ps", "disk_iops", "bytes_in_flight"] {
            assert!(machine.assumed.contains_key(key), "{key}");
        }
    }

    #[test]
    fn what_is_not_there_is_not_assumed_either() {
        let unknown = || Link::Unknown { name: "eth0".to_owned() };
        for (link, disks, has_link, has_disks) in [
            (unknown(), &[][..], true, false),
            (unknown(), &["vda"][..], true, true),
            (Link::None, &["vda"][..], false, true),
            // At least one of them must be there.
            (Link::None, &[][..], true, false),
        ] {
            let machine = describe(&found(link, disks), &prices()).ok().expect("a machine");
            assert_eq!(machine.check(), Ok(()));
            assert_eq!((machine.link_gbps.is_some(), machine.disk_iops.is_some()), (has_link, has_disks));
            assert_eq!(machine.assumed.contains_key("link_gbps"), has_link);
            assert_eq!(machine.assumed.contains_key("disk_iops"), has_disks);
        }
    }

    /// The document with every optional part.
    fn full(ns: f64, range_ns: [f64; 2]) -> Machine {
        let mut found = found(Link::Unknown { name: "eth0".to_owned() }, &["vda"]);
        found.latency = Some(Latency { ns, range_ns });
        describe(&found, &prices()).ok().expect("a machine")
    }

    #[test]
    fn every_end_of_a_range_can_be_set() {
        for machine in [full(316.23, [100.0, 1000.0]), full(7_001.0, [6_500.5, 7_500.1])] {
            let ranges = machine.assumed.clone();
            for (key, end) in ranges.iter().flat_map(|(key, range)| range.map(|end| (key, end))) {
                let mut changed = machine.clone();
                assert_eq!(changed.set(key, &end.to_string()), Ok(()), "{key} at {end}");
                assert_eq!((changed.check(), changed.get(key)), (Ok(()), Some(end)), "{key} at {end}");
            }
            assert!(ranges.values().filter(|[low, high]| low < high).count() > 30, "{ranges:?}");
        }
    }

    #[test]
    fn ends_are_rounded_outwards() {
        let machine = full(500.0, [100.0, 1000.1]);
        assert_eq!(machine.assumed["invalidation_ps"], [33_333.0, 1_000_100.0]);
        assert_eq!(machine.assumed["wait_ps"], [16_666.0, 500_050.0]);
    }

    #[test]
    fn an_end_that_no_machine_can_have_is_none() {
        let mut machine = full(500.0, [100.0, 1000.0]);
        machine.iommu.walkers = 1;
        assume(&mut machine, "walkers", [0.5, 1e9]);
        assert_eq!(machine.assumed["walkers"], [1.0, 1.0]);
    }

    #[test]
    fn what_the_kernel_has_counted_bounds_both_of_its_parts() {
        let mut found = found(Link::None, &["vda"]);
        found.latency = Some(Latency { ns: 600.0, range_ns: [300.0, 900.0] });
        let machine = describe(&found, &prices()).ok().expect("a machine");
        assert_eq!((machine.iommu.invalidation_ps, machine.iommu.wait_ps), (400_000, 200_000));
        assert_eq!(machine.assumed["invalidation_ps"], [100_000.0, 900_000.0]);
        assert_eq!(machine.check(), Ok(()));
    }
}
