//! What a device reaches of entries that are no longer in the table, and which invalidations end that (S2).

use super::*;
use portcullis::Iova;
use portcullis_vtd::spec::descriptors::ContextScope;

const SIZE: u32 = 4;
const NONE: [u32; 0] = [];

/// Two rings whose entry 0 was requested, and may have arrived, before all entries were cleared.
fn cleared(parameters: Parameters, arrives: bool) -> Ringed {
    let mut ringed = Ringed::new(parameters, &[SIZE, SIZE]);
    ringed.ask(1, 0);
    ringed.ask(2, 0);
    if arrives {
        ringed.machine.settle();
    } else {
        // A request also waits for the next entry.
        ringed.ask(1, 1);
        ringed.ask(2, 1);
    }
    ringed.clear_all(1, SIZE);
    ringed.clear_all(2, SIZE);
    ringed
}

#[test]
fn the_device_has_what_it_asked_for_and_one_more() {
    for (parameters, arrives) in [(parameters(), true), (slow_walks(), false)] {
        let ringed = cleared(parameters, arrives);
        assert_eq!(ringed.reached(1, SIZE), [0, 1]);
        let in_tables =
            |entry| ringed.machine.vtd.in_tables(ringed.machine.now_ps, DEVICE, Iova::new(address(1, entry, 0)));
        assert_eq!([0, 1, 2, 3].map(in_tables), [None; 4]);
        // The device uses them, although they are gone from the table.
        ringed.ask(1, 0);
        ringed.ask(1, 1);
        assert_eq!(ringed.reached(1, SIZE), if arrives { vec![1] } else { vec![0, 1] }, "the next took its place");
    }
}

#[test]
fn s2_an_invalidation_takes_both_and_what_is_on_its_way() {
    for (parameters, arrives) in [(parameters(), true), (slow_walks(), false)] {
        let mut ringed = cleared(parameters, arrives);
        let arrives_ps = ringed.machine.vtd.next_event_ps();
        assert_eq!(arrives_ps.is_none(), arrives);
        ringed.machine.push(forget(1, 1));
        ringed.machine.ring();
        let executed_ps = ringed.machine.vtd.next_event_ps().unwrap();
        assert!(arrives_ps.is_none_or(|arrives_ps| executed_ps < arrives_ps), "the invalidation is first");
        ringed.machine.now_ps = executed_ps - 1;
        assert_eq!(ringed.reached(1, SIZE), [0, 1], "not yet");
        ringed.machine.now_ps = executed_ps;
        assert_eq!(ringed.reached(1, SIZE), NONE);
        ringed.machine.settle();
        assert_eq!(ringed.reached(1, SIZE), NONE, "nothing has come after it");
        // In the other ring, which was not named, the last entry took the place of the first if it arrived on its
        // own.
        assert_eq!(ringed.reached(2, SIZE), if arrives { vec![0, 1] } else { vec![1] });
    }
}

#[test]
fn what_arrives_before_an_invalidation_is_taken_by_it() {
    let quick = Parameters { invalidation_ps: 10_000_000, ..parameters() };
    let mut ringed = cleared(quick, false);
    ringed.machine.push(forget(1, 1));
    ringed.machine.ring();
    ringed.machine.now_ps += 9_999_999;
    assert_eq!(ringed.reached(1, SIZE), [1], "all walks have ended, and the last took the place of the first");
    ringed.machine.settle();
    assert_eq!(ringed.reached(1, SIZE), NONE);
}

/// What is still within reach of rings 1 and 2 after a command.
fn left_after(descriptor: InvalidationDescriptor) -> [Vec<u32>; 2] {
    let [left, under_way] = [(parameters(), true), (slow_walks(), false)].map(|(parameters, arrives)| {
        let mut ringed = cleared(parameters, arrives);
        ringed.machine.push(descriptor);
        ringed.machine.ring();
        ringed.machine.now_ps = ringed.machine.vtd.next_event_ps().unwrap();
        let left = [1, 2].map(|ring| ringed.reached(ring, SIZE));
        assert_eq!(ringed.machine.head(), 1, "it was executed");
        left
    });
    assert_eq!(left, under_way, "arrived or not");
    left
}

#[test]
fn an_invalidation_takes_what_it_names() {
    let (both, none) = (vec![0, 1], Vec::new());
    let kept = [both.clone(), both.clone()];
    assert_eq!(left_after(forget(1, 1)), [none.clone(), both.clone()]);
    assert_eq!(left_after(forget(1, 2)), [both.clone(), none.clone()]);
    assert_eq!(left_after(forget(1, 3)), kept, "another ring");
    assert_eq!(left_after(forget(2, 1)), kept, "the ring of another domain");
    assert_eq!(left_after(domain(2)), kept);
    assert_eq!(left_after(pages(1, 0x1000, 0, false)), kept, "a page, and so no ring");
    assert_eq!(left_after(InvalidationDescriptor::ContextCache(ContextScope::Global)), kept);
    assert_eq!(left_after(domain(1)), [none.clone(), none.clone()]);
    assert_eq!(left_after(global_flush()), [none.clone(), none]);
}

/// The bits below the mask do not matter, nor does the invalidation hint.
#[test]
fn a_ring_is_named_by_any_of_its_addresses() {
    for (entry, leaf_only) in [(0, false), (3, true), (0x3_ffff, true)] {
        let command = pages(1, address(1, entry, 0x3fff_f000), RING_ADDRESS_MASK, leaf_only);
        assert_eq!(left_after(command), [vec![], vec![0, 1]]);
    }
    assert_eq!(left_after(pages(1, address(1, 2, 0), 0, true)), [vec![], vec![0, 1]], "a part drops the ring");
}

#[test]
fn an_invalidation_takes_a_ring_from_every_device_of_the_domain() {
    let mut ringed = Ringed::new(parameters(), &[SIZE]);
    let third = SourceId::new(7, 0, 0);
    ringed.machine.poke_context(OTHER, rings(1, ringed.device).encode());
    ringed.machine.poke_context(third, rings(2, ringed.device).encode());
    for (source, entry) in [(DEVICE, 0), (OTHER, 2), (third, 1)] {
        ringed.machine.ask(source, address(1, entry, 0), Rights::READ).unwrap();
    }
    ringed.machine.settle();
    ringed.clear_all(1, SIZE);
    let reached = |ringed: &Ringed| [DEVICE, OTHER, third].map(|source| ringed.reached_by(source, 1, SIZE));
    assert_eq!(reached(&ringed), [vec![0, 1], vec![2, 3], vec![1, 2]]);
    ringed.machine.run(forget(1, 1));
    assert_eq!(reached(&ringed), [vec![], vec![], vec![1, 2]]);
}

#[test]
fn what_is_mapped_again_is_seen_after_the_invalidation() {
    let mut ringed = Ringed::new(parameters(), &[SIZE]);
    ringed.touch(1, 0);
    let new = |entry| RingEntry { phys: PhysAddr::new(0x5555), ..value(1, entry) };
    (0..SIZE).for_each(|entry| ringed.set(1, entry, new(entry)));
    let phys = |ringed: &Ringed, entry| {
        let asked = ringed.machine.ask(DEVICE, address(1, entry, 0), Rights::READ).unwrap();
        asked.phys.as_u64()
    };
    assert_eq!(phys(&ringed, 0), value(1, 0).phys.as_u64(), "stale");
    assert_eq!(phys(&ringed, 1), value(1, 1).phys.as_u64(), "stale");
    assert_eq!(phys(&ringed, 2), 0x5555);
    ringed.machine.settle();
    ringed.machine.run(forget(1, 1));
    assert_eq!([0, 1, 2, 3].map(|entry| phys(&ringed, entry)), [0x5555; 4]);
}

#[test]
fn entries_out_of_order_take_the_place_of_what_was_there() {
    for arrives in [true, false] {
        let mut ringed = Ringed::new(slow_walks(), &[8]);
        ringed.ask(1, 0);
        if arrives {
            ringed.machine.settle();
        }
        ringed.ask(1, 4);
        ringed.clear_all(1, 8);
        assert_eq!(ringed.reached(1, 8), [4], "at once");
        ringed.machine.settle();
        assert_eq!(ringed.reached(1, 8), [4], "the one behind it was cleared before it was read");
    }
}

#[test]
fn flawed_hardware_keeps_the_next_entry() {
    let left = |flaw: Option<RingFlaw>| {
        let mut ringed = Ringed::new(parameters(), &[SIZE]);
        flaw.into_iter().for_each(|flaw| ringed.machine.vtd.plant_in_rings(flaw));
        ringed.touch(1, 0);
        ringed.clear_all(1, SIZE);
        assert_eq!(ringed.reached(1, SIZE), [0, 1]);
        ringed.machine.run(forget(1, 1));
        let left = ringed.reached(1, SIZE);
        let is_used = ringed.machine.ask(DEVICE, address(1, 1, 0), Rights::READ).is_ok();
        assert_eq!(left.contains(&1), is_used);
        left
    };
    assert_eq!(left(None), NONE);
    assert_eq!(left(Some(RingFlaw::KeepsNext)), [1]);
}

/// If a device leaves its domain while a walk is under way, nothing is fetched ahead in the other domain, of which it
/// has requested nothing.
#[test]
fn what_is_read_ahead_is_of_the_domain_that_asked() {
    let mut ringed = Ringed::new(slow_walks(), &[SIZE]);
    let device = ringed.machine.ram.allocate().unwrap();
    ringed.poke(device, 0, DeviceHeader { rings: 1 }.encode());
    ringed.poke(device, 1, RingPointer { table: ringed.table(1), size: SIZE }.encode());
    for moves in [false, true] {
        ringed.machine.poke_context(DEVICE, rings(1, ringed.device).encode());
        ringed.machine.run(InvalidationDescriptor::ContextCache(ContextScope::Global));
        let (_, ready_ps) = ringed.ask(1, 0);
        if moves {
            ringed.machine.poke_context(DEVICE, rings(2, device).encode());
            ringed.machine.push(InvalidationDescriptor::ContextCache(ContextScope::Global));
            ringed.machine.ring();
            while ringed.machine.head() != ringed.machine.tail {
                ringed.machine.now_ps = ringed.machine.vtd.next_event_ps().unwrap();
            }
            // The context of the other domain is known from a request that found nothing.
            ringed.machine.ask(DEVICE, address(9, 0, 0), Rights::READ).unwrap_err();
        }
        ringed.machine.now_ps = ready_ps;
        ringed.machine.vtd.advance(ready_ps);
        ringed.clear(1, 1);
        assert_eq!(ringed.machine.reaches(DEVICE, address(1, 1, 0)), !moves);
        ringed.set(1, 1, value(1, 1));
        ringed.machine.settle();
        ringed.machine.run(global_flush());
    }
}
