//! Entries that are requested in order are fetched ahead. Also the counts for entries that are not.

use super::*;

/// The reasons for which entries had to be read: out of order, after an invalidation, mapped too late, close behind,
/// first of the ring.
fn reasons(ringed: &Ringed) -> [u64; 5] {
    let counters = ringed.machine.counters();
    [
        counters.ring_out_of_order,
        counters.ring_after_invalidation,
        counters.ring_mapped_later,
        counters.ring_close_behind,
        counters.ring_first,
    ]
}

/// The number of misses. Also checks what always holds for the counters.
fn misses(ringed: &Ringed) -> u64 {
    let counters = ringed.machine.counters();
    assert_eq!(counters.iotlb_hits + counters.iotlb_misses, counters.lookups);
    assert_eq!(counters.memory_reads, 2 * counters.iotlb_misses, "a ring and an entry");
    assert_eq!(reasons(ringed).iter().sum::<u64>() + counters.faults, counters.iotlb_misses, "each has one reason");
    counters.iotlb_misses
}

#[test]
fn in_order_one_walk_is_enough() {
    let mut ringed = Ringed::new(parameters(), &[4]);
    for round in 0..3 {
        for entry in 0..4 {
            let outcome = ringed.touch(1, entry);
            assert_eq!(outcome, if (round, entry) == (0, 0) { MISS } else { HIT }, "round {round}, entry {entry}");
            assert_eq!(ringed.touch(1, entry), HIT, "once more");
        }
    }
    let counters = ringed.machine.counters();
    assert_eq!((misses(&ringed), counters.lookups, counters.iotlb_joined), (1, 24, 0));
    assert_eq!(counters.ring_switches, 11);
    assert_eq!(reasons(&ringed), [0, 0, 0, 0, 1]);
    assert_eq!(counters.prefetch_reads, 2 * 12, "behind each entry that was new");
}

#[test]
fn backwards_nothing_is_known() {
    let mut ringed = Ringed::new(parameters(), &[4]);
    for entry in [3, 2, 1, 0] {
        assert_eq!(ringed.touch(1, entry), MISS);
    }
    assert_eq!(ringed.touch(1, 3), MISS, "the ring wraps around only forwards");
    assert_eq!((misses(&ringed), reasons(&ringed)), (5, [4, 0, 0, 0, 1]));
}

#[test]
fn a_ring_of_one_entry_has_no_next() {
    let mut ringed = Ringed::new(parameters(), &[1]);
    assert_eq!(ringed.touch_all(&[(1, 0), (1, 0), (1, 0)]), [MISS, HIT, HIT]);
    assert_eq!((misses(&ringed), ringed.machine.counters().ring_switches), (1, 0));
    assert_eq!(ringed.machine.counters().prefetch_reads, 0);
}

#[test]
fn a_ring_of_two_entries_goes_round() {
    let mut ringed = Ringed::new(parameters(), &[2]);
    assert_eq!(ringed.touch_all(&[(1, 1), (1, 0), (1, 1), (1, 0)]), [MISS, HIT, HIT, HIT]);
}

#[test]
fn who_comes_too_early_waits_for_what_is_on_its_way() {
    let mut ringed = Ringed::new(parameters(), &[8]);
    ringed.machine.now_ps = 1_000_000;
    let start_ps = ringed.machine.now_ps;
    assert_eq!(ringed.ask(1, 0), (MISS, start_ps + WALK_PS));
    assert_eq!(ringed.machine.vtd.next_event_ps(), Some(start_ps + WALK_PS));
    assert_eq!(ringed.ask(1, 0), (JOINED, start_ps + WALK_PS));
    // Each following entry is read after the entry before it, by a separate walk.
    for behind in 1..4 {
        assert_eq!(ringed.ask(1, behind), (MISS, start_ps + WALK_PS * (u64::from(behind) + 1)));
    }
    ringed.machine.settle();
    // The entry that was requested last has arrived, and then the next one.
    let now_ps = ringed.machine.now_ps;
    assert_eq!(now_ps, start_ps + 5 * WALK_PS);
    assert_eq!(ringed.ask(1, 4), (HIT, now_ps));
    // Its next entry is under way.
    assert_eq!(ringed.ask(1, 5), (JOINED, now_ps + WALK_PS));
    let counters = ringed.machine.counters();
    assert_eq!((misses(&ringed), counters.iotlb_hits, counters.iotlb_joined), (4, 3, 2));
    assert_eq!((counters.ring_switches, reasons(&ringed)), (5, [0, 0, 0, 3, 1]));
    // A joined entry has arrived as if it had been requested first.
    ringed.machine.settle();
    assert_eq!(ringed.touch_all(&[(1, 6), (1, 7), (1, 0)]), [HIT; 3]);
}

#[test]
fn reading_ahead_takes_a_walker() {
    let mut ringed = Ringed::new(Parameters { walkers: 1, ..parameters() }, &[4, 4]);
    ringed.touch(1, 0);
    let now_ps = ringed.machine.now_ps;
    assert_eq!(ringed.ask(1, 1), (HIT, now_ps));
    assert_eq!(ringed.ask(2, 0), (MISS, now_ps + 2 * WALK_PS), "behind entry 2 of the other ring");
    let mut several = Ringed::new(parameters(), &[4, 4]);
    several.touch(1, 0);
    let now_ps = several.machine.now_ps;
    assert_eq!([several.ask(1, 1), several.ask(2, 0)], [(HIT, now_ps), (MISS, now_ps + WALK_PS)]);
}

#[test]
fn entries_out_of_order_are_counted() {
    let mut ringed = Ringed::new(parameters(), &[8]);
    assert_eq!(ringed.touch_all(&[(1, 0), (1, 2), (1, 3), (1, 1), (1, 7), (1, 0)]), [MISS, MISS, HIT, MISS, MISS, HIT]);
    assert_eq!((misses(&ringed), reasons(&ringed)), (4, [3, 0, 0, 0, 1]));
    assert_eq!(ringed.machine.counters().ring_switches, 5);
}

/// No device waits for an entry that is fetched ahead, so nothing is read behind it.
#[test]
fn who_passes_over_what_is_read_ahead_is_out_of_order() {
    let mut ringed = Ringed::new(parameters(), &[8]);
    ringed.touch(1, 0);
    ringed.ask(1, 1);
    let now_ps = ringed.machine.now_ps;
    assert_eq!(ringed.ask(1, 3), (MISS, now_ps + WALK_PS), "while 2 is under way");
    assert_eq!((misses(&ringed), reasons(&ringed)), (2, [1, 0, 0, 0, 1]));
    ringed.machine.settle();
    assert_eq!(ringed.touch_all(&[(1, 4), (1, 5)]), [HIT; 2]);
}

#[test]
fn entries_that_an_invalidation_took_are_counted() {
    let mut ringed = Ringed::new(parameters(), &[8, 8]);
    ringed.touch_all(&[(1, 0), (1, 1)]);
    ringed.machine.run(forget(1, 1));
    assert_eq!(ringed.touch(1, 2), MISS, "the next");
    ringed.machine.run(forget(1, 1));
    assert_eq!(ringed.touch(1, 2), MISS, "the same");
    assert_eq!((misses(&ringed), reasons(&ringed)), (3, [0, 2, 0, 0, 1]));
    ringed.machine.run(forget(1, 1));
    assert_eq!(ringed.touch(1, 7), MISS);
    assert_eq!(reasons(&ringed), [1, 2, 0, 0, 1], "it had to be read in any case");
    // An entry under way is dropped too.
    ringed.ask(1, 3);
    ringed.machine.run(forget(1, 1));
    assert_eq!((ringed.touch(1, 4), reasons(&ringed)), (MISS, [2, 3, 0, 0, 1]));
    // An invalidation that dropped nothing is not counted as a reason.
    ringed.machine.run(forget(1, 2));
    assert_eq!(ringed.touch(1, 5), HIT);
    assert_eq!(reasons(&ringed), [2, 3, 0, 0, 1]);
}

#[test]
fn entries_that_came_too_late_are_counted() {
    let mut ringed = Ringed::new(parameters(), &[8]);
    ringed.clear(1, 1);
    ringed.touch(1, 0);
    ringed.set(1, 1, value(1, 1));
    assert_eq!(ringed.touch(1, 1), MISS, "it was absent when entry 0 was requested");
    assert_eq!((misses(&ringed), reasons(&ringed)), (2, [0, 0, 1, 0, 1]));
    assert_eq!(ringed.machine.counters().prefetch_reads, 2 * 2, "one of which found nothing");
    assert_eq!(ringed.touch(1, 2), HIT);
    // In time: the entry is read when the walk before it ends.
    ringed.clear(1, 7);
    ringed.ask(1, 6);
    ringed.set(1, 7, value(1, 7));
    ringed.machine.settle();
    assert_eq!((ringed.touch(1, 7), reasons(&ringed)), (HIT, [1, 0, 1, 0, 1]));
    // It was found to be absent at once, when the entry before it, which had been fetched ahead, was requested.
    ringed.clear(1, 1);
    assert_eq!(ringed.ask(1, 0).0, HIT);
    ringed.set(1, 1, value(1, 1));
    assert_eq!((ringed.ask(1, 1).0, reasons(&ringed)), (MISS, [1, 0, 2, 0, 1]));
    // A repeated request for the entry before it changes nothing.
    ringed.clear(1, 2);
    ringed.machine.settle();
    ringed.set(1, 2, value(1, 2));
    assert_eq!(ringed.touch_all(&[(1, 1), (1, 2)]), [HIT, MISS]);
    assert_eq!((misses(&ringed), reasons(&ringed)), (5, [1, 0, 3, 0, 1]));
}

#[test]
fn the_first_entry_of_all_is_late_for_nothing() {
    let mut ringed = Ringed::new(parameters(), &[8, 8]);
    assert_eq!(ringed.touch_all(&[(1, 5), (2, 0)]), [MISS, MISS]);
    assert_eq!((misses(&ringed), reasons(&ringed), ringed.machine.counters().ring_switches), (2, [0, 0, 0, 0, 2], 0));
}

#[test]
fn refused_requests_are_counted_as_walks_and_change_no_ring() {
    let mut ringed = Ringed::new(parameters(), &[4]);
    ringed.touch(1, 0);
    ringed.machine.ask(DEVICE, address(1, 9, 0), Rights::READ).unwrap_err();
    ringed.machine.settle();
    assert_eq!(ringed.touch(1, 1), HIT, "what is cached stays");
    assert_eq!((misses(&ringed), reasons(&ringed)), (2, [0, 0, 0, 0, 1]));
    assert_eq!((ringed.machine.counters().ring_switches, ringed.machine.counters().faults), (1, 1));
}

#[test]
fn as_many_rings_are_cached_as_the_iotlb_has_entries() {
    let alternating: Vec<(u16, u32)> = (0..4).flat_map(|entry| [(1, entry), (2, entry)]).collect();
    let mut one = Ringed::new(Parameters { iotlb_entries: 1, ..parameters() }, &[4, 4]);
    assert_eq!(one.touch_all(&alternating), [MISS; 8], "they push each other out");
    assert_eq!((misses(&one), reasons(&one)), (8, [0, 0, 0, 0, 8]), "the order was right");
    let mut two = Ringed::new(Parameters { iotlb_entries: 2, ..parameters() }, &[4, 4]);
    assert_eq!(two.touch_all(&alternating), [MISS, MISS, HIT, HIT, HIT, HIT, HIT, HIT]);

    // The ring used longest ago is evicted, and entries of one ring evict no entries of other rings.
    let mut two = Ringed::new(Parameters { iotlb_entries: 2, ..parameters() }, &[4, 4, 4]);
    assert_eq!(two.touch_all(&[(1, 0), (2, 0), (2, 2), (1, 1), (3, 0)]), [MISS, MISS, MISS, HIT, MISS]);
    assert_eq!(two.touch_all(&[(1, 2), (2, 3)]), [HIT, MISS]);

    let mut none = Ringed::new(Parameters { iotlb_entries: 0, ..parameters() }, &[4]);
    assert_eq!(none.touch_all(&[(1, 0), (1, 0), (1, 1)]), [MISS; 3]);
    assert_eq!(misses(&none), 3);
}

#[test]
fn rings_and_pages_share_no_cache() {
    let parameters = Parameters { iotlb_entries: 1, ..parameters() };
    let mut ringed = Ringed::new(parameters, &[4]);
    let top = ringed.machine.ram.allocate().unwrap();
    ringed.machine.map_pages(top, 0x1000, 1);
    ringed.machine.attach(OTHER, 2, top, 4);
    for round in 0..3 {
        let outcome = ringed.touch(1, round);
        let page = ringed.machine.ask(OTHER, 0x1000, Rights::READ).unwrap().outcome;
        ringed.machine.settle();
        let expected = if round == 0 { (MISS, LookupOutcome::Miss { reads: 4 }) } else { (HIT, HIT) };
        assert_eq!((outcome, page), expected);
    }
}

#[test]
fn each_device_has_its_own_place_in_a_ring() {
    let mut ringed = Ringed::new(parameters(), &[8]);
    ringed.machine.poke_context(OTHER, rings(1, ringed.device).encode());
    ringed.touch(1, 0);
    let other = ringed.machine.ask(OTHER, address(1, 4, 0), Rights::READ).unwrap();
    assert_eq!(other.outcome, MISS);
    ringed.machine.settle();
    assert_eq!(ringed.touch(1, 1), HIT);
    assert_eq!(ringed.machine.ask(OTHER, address(1, 5, 0), Rights::READ).unwrap().outcome, HIT);
    assert_eq!((misses(&ringed), reasons(&ringed)), (2, [0, 0, 0, 0, 2]));
}
