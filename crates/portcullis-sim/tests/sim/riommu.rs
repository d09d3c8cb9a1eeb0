//! The design `riommu` in whole runs: its cost, what its hardware has to read, and what happens to full rings.

use super::{bundled, job, machine, measured, replay, rings};
use portcullis::{NewDomainError, Protection};
use portcullis_designs::{Choice, DesignId};
use portcullis_sim::{Job, Machine, RiotlbCounts, RunError, RunOutcome, Work, run};

const RECEIVE: &str = "q-e1000e-rx.strict.2cpu";
const SEND: &str = "q-e1000e-tx.lazy.2cpu";
const READ: &str = "nvme-seqread128k.strict.4cpu";
const TRACES: [&str; 3] = [RECEIVE, SEND, READ];
const NETWORK_TRACES: [&str; 4] = [RECEIVE, SEND, "e1000e-rx.strict.4cpu", "e1000e-tx.strict.4cpu"];
const DISK_TRACES: [&str; 2] = [READ, "q-nvme-randread4k.strict.2cpu"];

fn in_rings<'m>(machine: &'m Machine, work: Work, options: &str, batch: usize) -> Job<'m> {
    let options = Choice::parse(&format!("riommu{options}")).expect("a design").options;
    Job { options, batch, ..job(machine, work, DesignId::RIommu, Protection::Strict) }
}

fn cycles(is_coherent: bool) -> f64 {
    let mut machine = machine("r210-cx3");
    machine.iommu.coherent = is_coherent;
    measured(&in_rings(&machine, rings("ring=4096,burst=64"), "", 64)).cycles_per_page
}

/// The sums of published costs: 131 cycles each for a map and an unmap, one line flush each if walks do not snoop, and
/// a 64th of an invalidation. They check the calibration, and are not used as prices.
#[test]
fn a_page_costs_what_its_steps_do() {
    let (snooped, flushed) = (cycles(true), cycles(false));
    assert!((240.0..=310.0).contains(&snooped), "{snooped}");
    assert!((780.0..=880.0).contains(&flushed), "{flushed}");
    assert!((flushed - snooped - 2.0 * 279.0).abs() < 10.0, "two lines: {}", flushed - snooped);
}

fn is_sound(outcome: &RunOutcome, name: &str) {
    assert_eq!((outcome.faults, outcome.stale_accesses), (0, 0), "{name}");
    assert_eq!(outcome.residual_bytes_us, Some(0.0), "{name}");
    assert!(outcome.operations > 0, "{name}");
}

/// What happened to the entries of rings in a sound run.
fn counted(work: Work, name: &str, batch: usize) -> RiotlbCounts {
    let machine = machine("cascadelake-cx5");
    let outcome = measured(&in_rings(&machine, work, "", batch));
    is_sound(&outcome, name);
    let counts = outcome.riotlb.expect("rings");
    let of_all = |per_page: f64| (per_page * outcome.pages as f64).round() as u64;
    let misses = of_all(outcome.iotlb_misses_per_page);
    assert_eq!(counts.misses(), misses, "{name} in batches of {batch}: each has one reason: {counts:?}");
    assert_eq!(of_all(outcome.memory_reads_per_page), 2 * misses, "{name} in batches of {batch}: a ring and an entry");
    // Entries are read ahead behind each entry to which a device moves, and behind some to which it returns after an
    // invalidation.
    let ahead = counts.reads_ahead / 2;
    assert!((counts.switches..=counts.switches + misses).contains(&ahead), "{name} in batches of {batch}: {counts:?}");
    assert!(counts.switches > 1000, "{name}: {counts:?}");
    // Each CPU has one ring, or two: one to send and one to receive. None has to be evicted.
    assert!(counts.first <= 8, "{name} in batches of {batch}: {counts:?}");
    counts
}

/// Every walk except the first of a ring has a reason: the entry was invalidated, or mapped, after the one before it
/// was requested, or it is not the next. With network cards it always is the next.
#[test]
fn the_entry_behind_is_fetched_ahead() {
    for (name, batch) in NETWORK_TRACES.into_iter().flat_map(|name| [(name, 1), (name, 64)]) {
        let counts = counted(replay(&bundled(name)), name, batch);
        assert!(counts.out_of_order <= counts.switches / 1000, "{name} in batches of {batch}: {counts:?}");
        assert_eq!(counts.close_behind, 0, "{name} in batches of {batch}: {counts:?}");
    }
    let counts = counted(rings("ring=256,burst=16,operations=4000"), "rings", 16);
    assert_eq!((counts.out_of_order, counts.close_behind), (0, 0), "{counts:?}");
}

/// The numbers of `docs/riommu.md`.
#[test]
fn disks_complete_in_any_order() {
    for (name, batch) in DISK_TRACES.into_iter().flat_map(|name| [(name, 1), (name, 64)]) {
        let counts = counted(replay(&bundled(name)), name, batch);
        let share = counts.out_of_order as f64 / counts.switches as f64;
        assert!((0.04..=0.10).contains(&share), "{name} in batches of {batch}: {share}, {counts:?}");
        assert_eq!((counts.mapped_later, counts.close_behind), (0, 0), "{name} in batches of {batch}: {counts:?}");
    }
}

#[test]
fn rings_of_256_entries_serve_network_cards() {
    let machine = machine("cascadelake-cx5");
    for name in [RECEIVE, SEND] {
        is_sound(&measured(&in_rings(&machine, replay(&bundled(name)), ":ring=256", 64)), name);
    }
}

/// The driver keeps buffers for which there is no room, and no work is lost.
#[test]
fn a_driver_waits_for_room_in_a_full_ring() {
    let machine = machine("cascadelake-cx5");
    for (options, is_refused) in [(":ring=64", false), (":ring=32", true), (":ring=8", true), (":ring=1", true)] {
        for batch in [1, 64] {
            let outcome = measured(&in_rings(&machine, rings("ring=64,burst=8,operations=4000"), options, batch));
            is_sound(&outcome, options);
            assert_eq!((outcome.operations, outcome.pages), (4000, 4000), "{options}");
            let refused = outcome.refused_maps;
            assert!(refused <= 4000 && (refused > 0) == is_refused, "{options}: {refused}");
        }
    }
    let other = measured(&job(&machine, rings("operations=1000"), DesignId::Stock, Protection::Strict));
    assert_eq!((other.refused_maps, other.riotlb), (0, None));
}

/// A trace has no driver that waits. The error names a ring that is large enough, and that ring works.
#[test]
fn a_trace_with_more_mappings_than_entries_is_told_how_many_would_do() {
    let machine = machine("cascadelake-cx5");
    for name in TRACES {
        let of = |options: &str| run(&in_rings(&machine, replay(&bundled(name)), options, 64));
        let would_do = match of(":ring=8") {
            Err(RunError::RingFull { design: "riommu", would_do: Some(would_do), .. }) => would_do,
            other => panic!("{name}: {:?}", other.map(|outcome| outcome.operations)),
        };
        let outcome = of(&format!(":ring={would_do}")).unwrap_or_else(|error| panic!("{name}: {error}"));
        is_sound(&outcome, name);
    }
}

#[test]
fn a_unit_without_rings_is_refused() {
    let mut machine = machine("cascadelake-cx5");
    machine.iommu.rings = false;
    let refused = run(&in_rings(&machine, rings("operations=100"), "", 1));
    assert!(matches!(refused, Err(RunError::NewDomain(NewDomainError::NoRings))), "{:?}", refused.map(|_| ()));
    // No other design is affected.
    let stock = |machine| measured(&job(machine, rings("operations=1000"), DesignId::Stock, Protection::Strict));
    let with = super::machine("cascadelake-cx5");
    assert_eq!(stock(&machine), stock(&with));
}
