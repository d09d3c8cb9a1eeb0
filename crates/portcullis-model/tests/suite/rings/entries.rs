//! Where an entry leads, and what is not a valid entry.

use super::*;
use portcullis::Iova;
use portcullis::iommu::rings::{RING_ENTRIES_MAX, SEGMENT_BYTES_MAX};
use portcullis_model::{Fault, Translated};
use portcullis_vtd::spec::descriptors::ContextScope;
use portcullis_vtd::spec::faults::{FaultReason, FaultRecord, FaultRequest, status};
use portcullis_vtd::spec::registers::{CAP, Capability, FSTS};

fn phys(asked: Result<Translated, Fault>) -> Result<u64, FaultReason> {
    asked.map(|translated| translated.phys.as_u64()).map_err(|fault| fault.reason)
}

#[test]
fn an_entry_leads_to_its_bytes_and_no_further() {
    for size in [1, 2, 0x20, 0x1000, SEGMENT_BYTES_MAX as u32] {
        let mut ringed = Ringed::new(parameters(), &[1]);
        let at = 0x12_3456_7ff1;
        ringed.set(1, 0, RingEntry { phys: PhysAddr::new(at), size, rights: Rights::READ });
        // First by a walk, then from the cache.
        for _ in 0..2 {
            let ask = |offset| phys(ringed.machine.ask(DEVICE, address(1, 0, offset), Rights::READ));
            assert_eq!(ask(0), Ok(at), "{size:#x}");
            assert_eq!(ask(size - 1), Ok(at + u64::from(size) - 1), "{size:#x}");
            assert_eq!(ask(size), Err(FaultReason::NoRead), "the byte behind {size:#x}");
            assert_eq!(ask(SEGMENT_BYTES_MAX as u32), Err(FaultReason::NoRead), "the last address of the entry");
            ringed.machine.settle();
        }
    }
}

#[test]
fn an_entry_grants_what_it_says() {
    use FaultReason::{NoRead, NoWrite};
    for (rights, read, write) in [
        (Rights::READ, Ok(()), Err(NoWrite)),
        (Rights::WRITE, Err(NoRead), Ok(())),
        (Rights::READ_WRITE, Ok(()), Ok(())),
    ] {
        let mut ringed = Ringed::new(parameters(), &[2]);
        ringed.set(1, 0, RingEntry { rights, ..value(1, 0) });
        for _ in 0..2 {
            let ask = |rights| phys(ringed.machine.ask(DEVICE, address(1, 0, 0), rights)).map(|_| ());
            assert_eq!((ask(Rights::READ), ask(Rights::WRITE)), (read, write), "{rights:?}");
            assert_eq!(ask(Rights::READ_WRITE), read.and(write).map_err(|_| NoWrite), "{rights:?}");
            ringed.machine.settle();
        }
    }
}

/// A table of five rings. The last four are wrong in different ways, and the first ends before its table does.
fn with_wrong_rings() -> Ringed {
    let ringed = Ringed::new(parameters(), &[4, 4, 4, 4, 4]);
    let table = ringed.table(2);
    ringed.poke(ringed.device, 2, RingPointer { table, size: 0 }.encode());
    ringed.poke(ringed.device, 3, [0; 2]);
    ringed.poke(ringed.device, 4, RingPointer { table: PhysAddr::new(0x1000), size: 4 }.encode());
    // A header that would be valid as a ring pointer, if there were a ring 0.
    let run = ringed.machine.ram.allocate_run(16).unwrap().as_u64();
    let zeroth = PhysAddr::new(run.next_multiple_of(16 * PAGE_SIZE));
    ringed.poke(zeroth, 0, value(0, 0).encode());
    ringed.poke(ringed.device, 0, [zeroth.as_u64() | DeviceHeader { rings: 4 }.encode()[0], 4]);
    // Entries after the last one.
    ringed.set(1, 4, value(1, 4));
    ringed.set(1, 5, value(1, 5));
    ringed
}

#[test]
fn what_is_no_entry_is_a_fault_that_is_recorded() {
    type Wrong = (&'static str, u64, fn(&Ringed));
    let wrong: [Wrong; 9] = [
        ("ring 0", address(0, 0, 0), |_| ()),
        ("a ring of no entries", address(2, 0, 0), |_| ()),
        ("no ring", address(3, 0, 0), |_| ()),
        ("a ring outside the memory", address(4, 0, 0), |_| ()),
        ("a ring beyond the last", address(5, 0, 0), |_| ()),
        ("an entry beyond the last", address(1, 4, 0), |_| ()),
        ("the last entry that an address can have", address(1, RING_ENTRIES_MAX, 0), |_| ()),
        ("an entry that is not valid", address(1, 2, 0), |ringed| {
            let [low, high] = value(1, 2).encode();
            ringed.poke(ringed.table(1), 2, [low, high & !(1 << 32)]);
        }),
        ("an entry without a right", address(1, 2, 0), |ringed| {
            let [low, high] = value(1, 2).encode();
            ringed.poke(ringed.table(1), 2, [low, high & !(3 << 30)]);
        }),
    ];
    for (name, iova, prepare) in wrong {
        for (rights, request, reason) in [
            (Rights::READ, FaultRequest::Read, FaultReason::NoRead),
            (Rights::WRITE, FaultRequest::Write, FaultReason::NoWrite),
        ] {
            let ringed = with_wrong_rings();
            prepare(&ringed);
            let machine = &ringed.machine;
            assert_eq!(
                phys(machine.ask(DEVICE, address(1, 3, 0), rights)),
                Ok(value(1, 3).phys.as_u64()),
                "a sound one"
            );
            assert_eq!(phys(machine.ask(DEVICE, iova, rights)), Err(reason), "{name}");
            let at = Capability(machine.read(CAP, 8)).fault_record_offset(0);
            let record = FaultRecord::decode([machine.read(at, 8), machine.read(at + 8, 8)]);
            assert_eq!(record, Some(FaultRecord { source: DEVICE, page: Iova::new(iova), request, reason }), "{name}");
            let counters = machine.counters();
            assert_eq!((counters.faults, counters.lookups, counters.iotlb_misses), (1, 2, 2), "{name}");
            assert_eq!(machine.vtd.reaches(machine.now_ps, DEVICE, Iova::new(iova), rights), None, "{name}");
            assert_eq!(machine.vtd.in_tables(machine.now_ps, DEVICE, Iova::new(iova)), None, "{name}");
        }
    }
}

#[test]
fn faults_of_rings_are_not_recorded_where_the_context_says_so() {
    let ringed = Ringed::new(parameters(), &[4]);
    ringed.machine.poke_context(DEVICE, ContextEntry { faults_disabled: true, ..rings(1, ringed.device) }.encode());
    ringed.machine.ask(DEVICE, address(1, 4, 0), Rights::READ).unwrap_err();
    assert_eq!((ringed.machine.read(FSTS, 4), ringed.machine.counters().faults), (0, 1));
    ringed.machine.poke_context(OTHER, rings(1, ringed.device).encode());
    ringed.machine.ask(OTHER, address(1, 4, 0), Rights::READ).unwrap_err();
    assert_eq!(ringed.machine.read(FSTS, 4) as u32, status::PENDING);
}

#[test]
fn addresses_of_rings_have_64_bits() {
    let narrow = Parameters { four_level: false, address_bits: 39, ..parameters() };
    let ringed = Ringed::new(narrow, &[4]);
    let (table, last) = (ringed.table(1), 0xffff);
    let device = ringed.machine.ram.allocate_run(256).unwrap();
    ringed.poke(device, 0, DeviceHeader { rings: last }.encode());
    ringed.poke(device, last.into(), RingPointer { table, size: 4 }.encode());
    ringed.machine.poke_context(DEVICE, ContextEntry { levels: 3, ..rings(1, device) }.encode());
    let far = address(last, 3, 0x7ff);
    assert_eq!(far >> 48, 0xffff);
    let there = value(1, 3).phys.as_u64() + 0x7ff;
    assert_eq!(phys(ringed.machine.ask(DEVICE, far, Rights::READ)), Ok(there));
    assert!(ringed.machine.reaches(DEVICE, far));
    let in_tables = ringed.machine.vtd.in_tables(ringed.machine.now_ps, DEVICE, Iova::new(far));
    assert_eq!(in_tables, Some(PhysAddr::new(there)));

    // As page addresses, these are too wide.
    ringed.machine.attach(OTHER, 2, ringed.machine.ram.allocate().unwrap(), 3);
    assert_eq!(phys(ringed.machine.ask(OTHER, far, Rights::READ)), Err(FaultReason::AddressBeyondWidth));
}

#[test]
fn messages_are_at_their_addresses_alone() {
    let ringed = Ringed::new(parameters(), &[4]);
    let long = RingEntry { size: SEGMENT_BYTES_MAX as u32, ..value(1, 3) };
    ringed.set(1, 3, long);
    let offset = 0xfee0_0000 & SEGMENT_BYTES_MAX as u32;
    let (message, entry) = (address(0, 3, offset), address(1, 3, offset));
    assert_eq!((message, entry as u32), (0xfee0_0000, 0xfee0_0000));
    assert_eq!(phys(ringed.machine.ask(DEVICE, message, Rights::WRITE)), Err(FaultReason::InterruptRange));
    let there = long.phys.as_u64() + u64::from(offset);
    assert_eq!(phys(ringed.machine.ask(DEVICE, entry, Rights::WRITE)), Ok(there), "the same below, and of a ring");
}

/// A store to one of these addresses would be an interrupt message.
#[test]
fn no_entry_leads_to_a_message() {
    let ringed = Ringed::new(parameters(), &[4]);
    ringed.set(1, 0, RingEntry { phys: PhysAddr::new(0xfedf_fff0), size: 0x20, rights: Rights::WRITE });
    ringed.set(1, 2, RingEntry { phys: PhysAddr::new(0xfeef_fff0), size: 0x20, rights: Rights::WRITE });
    let ask = |entry, offset| {
        let (iova, now_ps) = (address(1, entry, offset), ringed.machine.now_ps);
        let reached = ringed.machine.vtd.reaches(now_ps, DEVICE, Iova::new(iova), Rights::WRITE);
        let asked = phys(ringed.machine.ask(DEVICE, iova, Rights::WRITE));
        assert_eq!(reached.map(PhysAddr::as_u64), asked.ok());
        let in_tables = ringed.machine.vtd.in_tables(now_ps, DEVICE, Iova::new(iova));
        assert_eq!(in_tables, reached);
        asked
    };
    assert_eq!(ask(0, 0xf), Ok(0xfedf_ffff));
    assert_eq!(ask(0, 0x10), Err(FaultReason::InterruptRange));
    assert_eq!(ask(2, 0xf), Err(FaultReason::InterruptRange));
    assert_eq!(ask(2, 0x10), Ok(0xfef0_0000));
}

#[test]
fn a_unit_without_rings_takes_none() {
    for (has_rings, answer) in [(true, Ok(value(1, 0).phys.as_u64())), (false, Err(FaultReason::ContextInvalid))] {
        let mut ringed = Ringed::new(Parameters { rings: has_rings, ..parameters() }, &[4]);
        assert_eq!(phys(ringed.machine.ask(DEVICE, address(1, 0, 0), Rights::READ)), answer);
        assert_eq!(ringed.machine.reaches(DEVICE, address(1, 0, 0)), has_rings);
        let in_tables = ringed.machine.vtd.in_tables(ringed.machine.now_ps, DEVICE, Iova::new(address(1, 0, 0)));
        assert_eq!(in_tables.is_some(), has_rings);
        ringed.machine.push(forget(1, 1));
        ringed.machine.ring();
        ringed.machine.settle();
        let stopped = if has_rings { 0 } else { status::QUEUE_ERROR };
        assert_eq!(ringed.machine.read(FSTS, 4) as u32 & status::QUEUE_ERROR, stopped);
    }
}

#[test]
fn what_is_wider_than_pages_go_is_a_ring_and_nothing_else() {
    let stops_at = |parameters: Parameters, iova, mask| {
        let mut ringed = Ringed::new(parameters, &[4]);
        ringed.machine.push(pages(1, iova, mask, true));
        ringed.machine.ring();
        ringed.machine.settle();
        ringed.machine.read(FSTS, 4) as u32 & status::QUEUE_ERROR != 0
    };
    let stops = |parameters: Parameters, mask| stops_at(parameters, address(1, 0, 0), mask);
    assert!(parameters().mamv < RING_ADDRESS_MASK - 1);
    assert_eq!([35, 36, 37].map(|mask| stops(parameters(), mask)), [true, false, true]);
    assert!(stops(Parameters { page_selective: false, ..parameters() }, 36));
    assert!(!stops(Parameters { mamv: 37, ..parameters() }, 37));
    // Addresses below those of ring 1 are page addresses.
    let below = [0, address(0, 3, 0), address(1, 0, 0) - PAGE_SIZE, address(1, 0, 0), address(2, 3, 0)];
    assert_eq!(below.map(|iova| stops_at(parameters(), iova, 36)), [true, true, true, false, false]);
}

#[test]
fn walks_that_do_not_snoop_see_what_was_flushed() {
    let parameters = Parameters { coherent: false, ..parameters() };
    let mut ringed = Ringed::on(Arc::new(Ram::with_flushing(BASE, 64 << 20)), parameters, &[4]);
    let reached = |ringed: &Ringed| {
        let seen = ringed.machine.reaches(DEVICE, address(1, 1, 5));
        let asked = ringed.machine.ask(DEVICE, address(1, 1, 5), Rights::READ);
        assert_eq!(seen, asked.is_ok());
        seen
    };
    let (root, device, table) = (ringed.machine.root, ringed.device, ringed.table(1));
    let contexts = PhysAddr::new(
        ringed.machine.ram.frame(root).iter().map(|entry| entry.load_bits()).find(|bits| *bits != 0).unwrap() & !1,
    );
    for page in [root, contexts, device, table] {
        assert!(!reached(&ringed), "{page} is not flushed");
        ringed.flush(page);
    }
    assert!(reached(&ringed));
    ringed.machine.settle();
    ringed.clear(1, 1);
    ringed.machine.run(forget(1, 1));
    assert!(reached(&ringed), "it was read again");
    ringed.machine.settle();
    ringed.flush(table);
    assert!(reached(&ringed), "it is cached");
    ringed.machine.run(forget(1, 1));
    assert!(!reached(&ringed));
}

#[test]
fn s4_a_ring_that_was_freed_is_noticed() {
    let mut ringed = Ringed::new(parameters(), &[4, 4]);
    ringed.touch(2, 0);
    assert_eq!(ringed.machine.counters().walks_into_freed, 0);
    ringed.machine.ram.free(ringed.table(2));
    ringed.touch(1, 0);
    assert_eq!(ringed.machine.counters().walks_into_freed, 0, "another ring");
    ringed.touch(2, 1);
    assert_eq!(ringed.machine.counters().walks_into_freed, 1, "the one ahead of what was cached");
    ringed.machine.ram.free(ringed.device);
    ringed.touch(1, 3);
    assert_eq!(ringed.machine.counters().walks_into_freed, 3, "the entry and the one ahead");
}

#[test]
fn questions_leave_no_trace_and_say_what_a_request_finds() {
    let mut ringed = with_wrong_rings();
    ringed.set(1, 1, RingEntry { rights: Rights::WRITE, ..value(1, 1) });
    ringed.touch(1, 3);
    ringed.clear(1, 3);
    let all: Vec<(u64, Rights)> = (0..=5)
        .flat_map(|ring| (0..6).map(move |entry| (ring, entry)))
        .flat_map(|(ring, entry)| [0, 0x7ff, 0x800].map(|offset| address(ring, entry, offset)))
        .chain([0xfee0_0000, address(1, RING_ENTRIES_MAX, 0)])
        .flat_map(|iova| [Rights::READ, Rights::WRITE, Rights::READ_WRITE].map(|rights| (iova, rights)))
        .collect();
    let (before, faults) = (ringed.machine.counters(), ringed.machine.read(FSTS, 4));
    let now_ps = ringed.machine.now_ps;
    let answers: Vec<_> =
        all.iter().map(|&(iova, rights)| ringed.machine.vtd.reaches(now_ps, DEVICE, Iova::new(iova), rights)).collect();
    let tables: Vec<_> =
        all.iter().map(|&(iova, _)| ringed.machine.vtd.in_tables(now_ps, DEVICE, Iova::new(iova))).collect();
    assert_eq!((ringed.machine.counters(), ringed.machine.read(FSTS, 4)), (before, faults));
    assert_eq!(ringed.machine.vtd.next_event_ps(), None, "nothing is on its way");
    assert_eq!(ringed.touch(1, 3), HIT, "nor has anything gone");
    // Entry 0, all of whose 0x800 bytes are valid, was fetched ahead. So the next request finds it in the cache.
    let mut reached = 0;
    for ((&(iova, rights), answer), in_table) in all.iter().zip(&answers).zip(&tables) {
        let asked = ringed.machine.ask(DEVICE, iova, rights).ok().map(|translated| translated.phys);
        let is_stale = (address(1, 3, 0)..address(1, 4, 0)).contains(&iova);
        if !is_stale {
            assert_eq!(asked, *answer, "{iova:#x} {rights:?}");
            assert!(answer.is_none() || answer == in_table, "{iova:#x}");
        } else {
            assert_eq!(*in_table, None);
        }
        reached += usize::from(answer.is_some());
    }
    // In ring 1: two offsets of entries 0, 2 and 3 with all rights, and of entry 1 with one right.
    assert_eq!(reached, 2 * (3 * 3 + 1));
    let writable = PhysAddr::new(value(1, 1).phys.as_u64());
    let now_ps = ringed.machine.now_ps;
    assert_eq!(ringed.machine.vtd.in_tables(now_ps, DEVICE, Iova::new(address(1, 1, 0))), Some(writable), "any right");
}

/// The device changes its domain: entries that were cached in the old domain serve no request in the new one.
#[test]
fn what_is_cached_is_of_one_domain() {
    let mut ringed = Ringed::new(parameters(), &[4]);
    ringed.touch(1, 0);
    let (device, table) = (ringed.machine.ram.allocate().unwrap(), ringed.machine.ram.allocate().unwrap());
    ringed.poke(device, 0, DeviceHeader { rings: 1 }.encode());
    ringed.poke(device, 1, RingPointer { table, size: 4 }.encode());
    ringed.poke(table, 1, value(7, 1).encode());
    ringed.machine.poke_context(DEVICE, rings(2, device).encode());
    assert_eq!(ringed.reached(1, 4), [0, 1, 2, 3], "the context is cached");
    ringed.machine.run(InvalidationDescriptor::ContextCache(ContextScope::Global));
    assert_eq!(ringed.reached(1, 4), [1]);
    let asked = phys(ringed.machine.ask(DEVICE, address(1, 1, 0), Rights::READ));
    assert_eq!(asked, Ok(value(7, 1).phys.as_u64()));
}
