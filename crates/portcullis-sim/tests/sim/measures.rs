//! The accesses of the device and their counts, by the definitions, on captures small enough to work out by hand.

use super::capture::{Buffer, Capture, OTHER_CPU, READS, TASK, WRITES, buffer};
use super::{every_protection, every_translating, job, machine, measured, replay};
use portcullis::Protection;
use portcullis_designs::DesignId;
use portcullis_sim::{Machine, RunOutcome};
use portcullis_trace::Trace;
use std::sync::Arc;

/// A device with one transaction in flight at a time, so that latencies add up.
fn one_at_a_time() -> Machine {
    let mut machine = machine("cascadelake-cx5");
    machine.bytes_in_flight = machine.transaction_bytes;
    machine.disk_bytes_in_flight = None;
    machine
}

fn strict(machine: &Machine, trace: &Arc<Trace>) -> RunOutcome {
    measured(&job(machine, replay(trace), DesignId::Stock, Protection::Strict))
}

fn reads(outcome: &RunOutcome) -> u64 {
    (outcome.memory_reads_per_page * outcome.pages as f64).round() as u64
}

fn misses(outcome: &RunOutcome) -> u64 {
    (outcome.iotlb_misses_per_page * outcome.pages as f64).round() as u64
}

/// The number of transactions of a run with one in flight: each takes the time of a hit, and each table entry read
/// adds its latency. The rate of the bus gives the time of all transactions, and so their number.
fn transactions(machine: &Machine, outcome: &RunOutcome) -> f64 {
    let bits = outcome.payload_bytes_max as f64 * 8.0;
    let took_ps = bits / outcome.pcie_gbps.expect("there was traffic") * 1e3;
    let walked_ps = (reads(outcome) * machine.iommu.memory_read_ps) as f64;
    (took_ps - walked_ps) / machine.iommu.hit_ps as f64
}

/// The offset of a buffer in its first page, its length, its pages, and its transactions.
const BUFFERS: [(u64, u64, u64, f64); 7] = [
    (0, 4096, 1, 8.0),
    (0, 1, 1, 1.0),
    (0x200, 512, 1, 1.0),
    (0x840, 1522, 1, 3.0),
    // 960 bytes before the end of the page and 562 behind it: a transaction does not cross a page.
    (0xc40, 1522, 2, 4.0),
    (0, 8192, 2, 16.0),
    (0xfff, 4098, 3, 10.0),
];

#[test]
fn the_device_goes_over_the_whole_buffer_once() {
    let machine = one_at_a_time();
    for (offset, len, pages, expected) in BUFFERS {
        let buffer = Buffer { page: 0x40, phys: 0x900_0000 + offset, len };
        for direction in [READS, WRITES, "BIDIRECTIONAL"] {
            let unmapped = Capture::default().map(TASK, buffer, direction).at(9).unmap(TASK, buffer).read();
            let forgotten = Capture::default().map(TASK, buffer, direction).read();
            for (design, protection) in every_translating() {
                for trace in [&unmapped, &forgotten] {
                    let outcome = measured(&job(&machine, replay(trace), design, protection));
                    let run = format!("{} {protection}, {direction}, {len} bytes at {offset:#x}", design.info().id);
                    assert_eq!((outcome.operations, outcome.pages, outcome.faults), (1, pages, 0), "{run}");
                    // A walk from the root, and another entry of the same leaf table for each further page. In a ring,
                    // one entry.
                    let expected_reads = if outcome.riotlb.is_some() { (1, 2) } else { (pages, 3 + pages) };
                    assert_eq!((misses(&outcome), reads(&outcome)), expected_reads, "{run}");
                    if outcome.riotlb.is_some() {
                        // In rings, pages are split as the device sees them, from the first byte of the entry on.
                        continue;
                    }
                    let found = transactions(&machine, &outcome);
                    assert!((found - expected).abs() < 1e-6, "{run}: {found} transactions");
                }
            }
        }
    }
}

#[test]
fn strict_misses_once_per_page_and_keeps_the_paging_structure_caches() {
    let mut capture = Capture::default();
    for number in 0..20 {
        capture.at(10 * number).map(TASK, buffer(number), WRITES);
        capture.at(10 * number + 5).unmap(TASK, buffer(number));
    }
    let trace = capture.read();
    let mut machine = one_at_a_time();
    let outcome = strict(&machine, &trace);
    assert_eq!((misses(&outcome), reads(&outcome)), (20, 3 + 20));
    let once =
        [outcome.ptcache_l1_misses_per_page, outcome.ptcache_l2_misses_per_page, outcome.ptcache_l3_misses_per_page];
    assert_eq!(once, [1.0 / 20.0; 3]);
    assert_eq!(outcome.invalidations_per_page, 1.0);

    // If hardware ignores the hint, each invalidation costs the next walk all four levels.
    machine.iommu.set("honours_hint", "false").unwrap();
    let outcome = strict(&machine, &trace);
    assert_eq!((misses(&outcome), reads(&outcome)), (20, 4 * 20));
    assert_eq!(outcome.ptcache_l1_misses_per_page, 1.0);
}

/// The time of the device's accesses shows in the walks, because an invalidation in between costs the next walk all
/// levels.
#[test]
fn a_written_buffer_is_accessed_before_its_unmap_and_a_read_one_after_its_map() {
    let mut machine = one_at_a_time();
    machine.iommu.set("honours_hint", "false").unwrap();
    let (early, between) = (buffer(0), buffer(1));
    let around = |direction, unmapped: bool| {
        let mut capture = Capture::default();
        capture.map(TASK, early, direction).at(10).map(TASK, between, READS).at(20).unmap(TASK, between);
        if unmapped {
            capture.at(30).unmap(TASK, early);
        }
        reads(&strict(&machine, &capture.read()))
    };
    // The invalidation of `between` comes before the second walk, or after both walks.
    assert_eq!((around(WRITES, true), around(READS, true)), (4 + 4, 4 + 1));
    // A buffer that is never unmapped is accessed at the end.
    assert_eq!((around(WRITES, false), around(READS, false)), (4 + 4, 4 + 1));
}

#[test]
fn a_scatter_list_is_one_operation() {
    let mut capture = Capture::default();
    for (from, to, phys, size) in
        [(0x10000, 0x11000, 0x81000, 0x1000), (0x11000, 0x14000, 0x90000, 0x3000), (0x14000, 0x15000, 0x20000, 0x1000)]
    {
        capture.event(TASK, &format!("map: IOMMU: iova={from:#x} - {to:#x} paddr={phys:#x} size={size}"));
    }
    capture.event(
        TASK,
        "dma_map_sg: 0000:00:04.0 dir=FROM_DEVICE nents=3/3 ents=1/1 dma_addrs={0x10000} sizes={0x5000} attrs=",
    );
    capture.at(50).event(TASK, "unmap: IOMMU: iova=0x10000 - 0x15000 size=20480 unmapped_size=20480");
    let trace = capture.read();
    let machine = one_at_a_time();
    for (design, protection) in every_protection() {
        let outcome = measured(&job(&machine, replay(&trace), design, protection));
        assert_eq!((outcome.operations, outcome.pages, outcome.faults), (1, 5, 0), "{}", design.info().id);
    }
    let outcome = strict(&machine, &trace);
    assert_eq!((misses(&outcome), reads(&outcome)), (5, 3 + 5));
    // One aligned run of eight pages covers the five pages, which are contiguous for the device.
    assert_eq!((outcome.invalidations_per_page * 5.0, outcome.over_invalidated_pages), (1.0, 3));
}

#[test]
fn unmaps_of_what_the_capture_did_not_see_mapped_are_skipped() {
    let mut capture = Capture::default();
    for number in 0..6 {
        capture.at(number).unmap(TASK, buffer(100 + number));
    }
    capture.at(10).map(TASK, buffer(0), WRITES).at(20).unmap(TASK, buffer(0));
    let trace = capture.read();
    assert_eq!((trace.statistics.unmaps, trace.statistics.unmatched_unmaps), (7, 6));
    for (design, protection) in every_protection() {
        let outcome = measured(&job(&one_at_a_time(), replay(&trace), design, protection));
        assert_eq!((outcome.operations, outcome.pages, outcome.faults), (1, 1, 0), "{}", design.info().id);
    }
    assert_eq!(strict(&one_at_a_time(), &trace).invalidations_per_page, 1.0);
}

#[test]
fn a_cpu_may_unmap_what_another_has_mapped() {
    let mut capture = Capture::default();
    for number in 0..50 {
        capture.at(20 * number).map(TASK, buffer(number), if number % 2 == 0 { READS } else { WRITES });
        // The unmap comes before the device can be done, so the second CPU has to wait for the first.
        capture.unmap(OTHER_CPU, buffer(number));
    }
    let trace = capture.read();
    assert_eq!(trace.statistics.cpus, 2);
    let machine = machine("cascadelake-cx5");
    for (design, protection) in every_translating() {
        let outcome = measured(&job(&machine, replay(&trace), design, protection));
        let run = format!("{} {protection}", design.info().id);
        assert_eq!((outcome.operations, outcome.pages, outcome.faults), (50, 50, 0), "{run}");
        assert_eq!(misses(&outcome), 50, "{run}: each is accessed once");
        let stale = match protection {
            Protection::Strict => 0,
            // Only what the device writes stays in its pool.
            _ if design == DesignId::PagePool => 25,
            _ => 50,
        };
        assert_eq!(outcome.stale_accesses, stale, "{run}");
        assert_eq!(outcome.lock_wait_percent, 0.0, "{run}: the CPUs take turns");
    }
}
