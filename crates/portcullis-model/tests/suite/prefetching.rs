//! Prefetchers: which pages they walk for, what becomes of the results, and that an invalidation reaches all of them
//! (S2, S4, S5).

use super::common::*;
use portcullis::PAGE_SIZE;
use portcullis::table::Rights;
use portcullis_model::LookupOutcome::{Hit, Joined, Miss};
use portcullis_model::{Counters, LookupOutcome, Parameters, PrefetchFlaw};
use portcullis_vtd::spec::faults::FaultReason;

/// A unit with `prefetcher` over `count` pages from page 64 on.
fn machine(prefetcher: &str, count: u64) -> Machine {
    let prefetcher = Some(prefetcher.parse().unwrap());
    let parameters = Parameters { prefetcher, ..Parameters::cascadelake() };
    Machine::with_pages(parameters, at(0), count).0
}

fn at(page: u64) -> u64 {
    (64 + page) * PAGE_SIZE
}

/// The counts of issued, useful, late, useless and unmapped prefetches.
fn counts(machine: &Machine) -> [u64; 5] {
    let Counters {
        prefetches_issued, prefetches_useful, prefetches_late, prefetches_useless, prefetches_unmapped, ..
    } = machine.counters();
    [prefetches_issued, prefetches_useful, prefetches_late, prefetches_useless, prefetches_unmapped]
}

/// The number of `pages`, requested one after the other, that start a new walk.
fn misses(machine: &mut Machine, pages: impl IntoIterator<Item = u64>) -> usize {
    pages.into_iter().filter(|page| matches!(machine.touch(at(*page)), Miss { .. })).count()
}

#[test]
fn the_next_page_is_there_when_it_is_asked_for() {
    let mut machine = machine("next", 8);
    assert!(matches!(machine.touch(at(0)), Miss { reads: 4 }));
    let reads = machine.counters().memory_reads;
    assert_eq!(misses(&mut machine, 1..8), 0);
    // The page after the last is not mapped: no fault, but a walk.
    assert_eq!(counts(&machine), [8, 7, 0, 0, 1]);
    assert_eq!(machine.counters().memory_reads, reads, "these walks are counted apart");
    assert_eq!(
        machine.counters().prefetch_reads,
        4 + 7,
        "the first beside that of page 0, the others from the leaf table"
    );
    assert_eq!((machine.counters().faults, machine.counters().iotlb_misses), (0, 1));
    assert_eq!(misses(&mut machine, 0..8), 0, "all of them are in the IOTLB now");
}

#[test]
fn a_prefetch_takes_a_walker_and_is_waited_for_where_it_comes_late() {
    let machine = machine("next", 8);
    let first = machine.ask(DEVICE, at(0), Rights::READ).unwrap();
    let second = machine.ask(DEVICE, at(1), Rights::READ).unwrap();
    assert_eq!((second.outcome, second.ready_ps), (Joined, first.ready_ps), "on the second walker");
    // Once requested, it is no longer a prefetch, and causes another prefetch.
    assert_eq!(counts(&machine), [2, 0, 1, 0, 0]);
    let parameters = Parameters { walkers: 1, ..machine.vtd.parameters().clone() };
    let (one, _) = Machine::with_pages(parameters, at(0), 8);
    let first = one.ask(DEVICE, at(0), Rights::READ).unwrap();
    let second = one.ask(DEVICE, at(1), Rights::READ).unwrap();
    assert!(second.ready_ps > first.ready_ps, "behind the first on the only walker");
}

#[test]
fn what_nobody_asks_for_makes_room() {
    let mut machine = machine("adjacent:direction=up:buffer=2", 16);
    assert_eq!(misses(&mut machine, [0, 4, 8, 12]), 4);
    assert_eq!(counts(&machine), [4, 0, 0, 2, 0]);
    assert_eq!(misses(&mut machine, [1, 13]), 1, "of 1, 5, 9 and 13 the last two are left");
}

#[test]
fn adjacent_pages_lie_on_both_sides() {
    let mut machine = machine("adjacent", 3);
    assert_eq!(misses(&mut machine, [1, 0, 2]), 1);
    // The pages beyond either end are not mapped, and the middle page is already there.
    assert_eq!(counts(&machine), [4, 2, 0, 0, 2]);
}

#[test]
fn a_hint_is_walked_for_and_asks_for_nothing_else() {
    let mut machine = machine("none", 8);
    machine.vtd.prefetch(machine.now_ps, DEVICE, portcullis::Iova::new(at(3)));
    machine.vtd.prefetch(machine.now_ps, OTHER, portcullis::Iova::new(at(4)));
    machine.settle();
    assert_eq!(misses(&mut machine, [3, 4]), 1, "OTHER is in no domain");
    assert_eq!(counts(&machine), [1, 1, 0, 0, 0]);
}

/// Requests the pages of `order`, each invalidated afterwards as under strict protection, `times` times. Returns the
/// misses of the last round.
fn strictly(prefetcher: &str, order: &[u64], times: usize) -> usize {
    let mut machine = machine(prefetcher, 64);
    let mut last = 0;
    for _ in 0..times {
        last = 0;
        for &page in order {
            last += misses(&mut machine, [page]);
            machine.run(pages(1, at(page), 0, true));
        }
    }
    last
}

/// Each page once, and none next to its neighbour. No two distances are equal.
const ORDER: [u64; 12] = [0, 7, 3, 20, 15, 30, 12, 5, 50, 41, 9, 60];

#[test]
fn history_that_survives_invalidation_knows_an_order_that_comes_back() {
    assert_eq!(strictly("next", &ORDER, 3), 12);
    for history in ["markov", "recency", "distance"] {
        assert!(strictly(history, &ORDER, 3) <= 1, "{history}: all but the first page, which has no predecessor");
    }
    for history in ["markov:form=baseline", "recency:form=baseline", "distance:form=baseline"] {
        assert_eq!(strictly(history, &ORDER, 3), 12, "{history}");
    }
}

#[test]
fn history_shorter_than_the_order_knows_nothing() {
    for history in ["markov:rows=11", "recency:length=10"] {
        assert_eq!(strictly(history, &ORDER, 4), 12, "{history}");
    }
    assert_eq!(strictly("distance:rows=10", &ORDER, 4), 12);
}

#[test]
fn distance_knows_a_stride_that_never_comes_back() {
    let stride: Vec<u64> = (0..20).map(|page| page * 3).collect();
    assert_eq!(strictly("distance", &stride, 1), 3, "two misses show the stride, and the third confirms it");
    assert_eq!(strictly("markov", &stride, 1), 20);
}

/// Prefetches page 1 with page 0, and unmaps and invalidates page 1 at once or after its walk. Returns whether it is
/// still reachable.
fn invalidated(settle: bool, flaw: Option<PrefetchFlaw>) -> bool {
    let (mut machine, top) = {
        let parameters = Parameters { prefetcher: Some("next".parse().unwrap()), ..Parameters::cascadelake() };
        // So slow that the queue finishes before the walk.
        let parameters = Parameters { memory_read_ps: 10_000_000, ..parameters };
        Machine::with_pages(parameters, at(0), 8)
    };
    flaw.into_iter().for_each(|flaw| machine.vtd.plant(flaw));
    machine.ask(DEVICE, at(0), Rights::READ).unwrap();
    if settle {
        machine.settle();
    }
    assert!(machine.reaches(DEVICE, at(1)));
    machine.poke(machine.entry(top, 4, at(1), 1), 0);
    assert!(machine.reaches(DEVICE, at(1)), "it is stale, and within reach");
    machine.run(pages(1, at(1), 0, true));
    machine.reaches(DEVICE, at(1))
}

#[test]
fn s2_an_invalidation_reaches_the_buffer_and_what_is_under_way_to_it() {
    for settle in [false, true] {
        assert!(!invalidated(settle, None));
    }
    assert!(invalidated(false, Some(PrefetchFlaw::LandsAfterInvalidation)));
    assert!(invalidated(true, Some(PrefetchFlaw::BufferIsSpared)));
    // A command for another page does not affect it, and one for the domain does.
    let mut machine = machine("next", 8);
    machine.touch(at(0));
    machine.run(pages(1, at(2), 0, true));
    assert_eq!(counts(&machine), [1, 0, 0, 0, 0]);
    machine.run(domain(1));
    assert_eq!(counts(&machine), [1, 0, 0, 1, 0]);
}

#[test]
fn s5_what_was_prefetched_is_held_against_the_rights_of_the_request() {
    let write = |flaw: Option<PrefetchFlaw>| {
        let parameters = Parameters { prefetcher: Some("next".parse().unwrap()), ..Parameters::cascadelake() };
        let (mut machine, top) = Machine::with_pages(parameters, at(0), 1);
        machine.map_at(top, at(1), phys_of(at(1)), Rights::READ, 1);
        machine.map_at(top, at(2), phys_of(at(2)), Rights::WRITE, 1);
        flaw.into_iter().for_each(|flaw| machine.vtd.plant(flaw));
        machine.touch(at(0));
        let refused = machine.ask(DEVICE, at(1), Rights::WRITE).map(|it| it.outcome).map_err(|fault| fault.reason);
        machine.touch(at(1));
        let allowed = machine.ask(DEVICE, at(2), Rights::WRITE).map(|it| it.outcome).map_err(|fault| fault.reason);
        (refused, allowed)
    };
    type Expected = (Result<LookupOutcome, FaultReason>, Result<LookupOutcome, FaultReason>);
    let sound: Expected = (Err(FaultReason::NoWrite), Ok(Hit));
    assert_eq!(write(None), sound);
    assert_eq!(write(Some(PrefetchFlaw::RightsAreSkipped)), (Ok(Hit), Ok(Hit)));
}

#[test]
fn s4_a_prefetch_into_a_freed_table_is_noticed() {
    let mut machine = machine("next", 1);
    // The next page is in another leaf table, which is freed while the pointer to it is still in its table.
    let (last, next) = (511 * PAGE_SIZE, 512 * PAGE_SIZE);
    let top = machine.ram.allocate().unwrap();
    machine.attach(OTHER, 2, top, 4);
    machine.map(top, last, phys_of(last));
    machine.map(top, next, phys_of(next));
    let table = portcullis::PhysAddr::from_pfn(machine.entry(top, 4, next, 1).pfn());
    machine.ram.free(table);
    machine.ask(OTHER, last, Rights::READ).unwrap();
    machine.settle();
    assert_eq!(machine.counters().walks_into_freed, 1);
}
