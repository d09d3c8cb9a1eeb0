//! What a request finds: walks and their lengths, the caches, rights, large leaves, contexts.

use super::common::*;
use portcullis::iommu::{DomainId, SourceId};
use portcullis::table::{EntryValue, Rights};
use portcullis::{Iova, PAGE_SIZE, PhysAddr};
use portcullis_model::{LookupOutcome, Parameters, Ram, Replacement, Vtd};
use portcullis_vtd::spec::descriptors::{ContextScope, InvalidationDescriptor};
use portcullis_vtd::spec::faults::FaultReason;
use portcullis_vtd::spec::tables::{ContextEntry, RootEntry, TranslationType, root_index};
use std::sync::Arc;

const GIB: u64 = 1 << 30;
const MIB2: u64 = 2 << 20;

fn small() -> Parameters {
    Parameters::cascadelake()
}

#[test]
fn a_walk_reads_as_many_levels_as_the_caches_lack() {
    let (mut machine, top) = Machine::with_pages(small(), 0x1000, 2);
    for iova in [MIB2, GIB, 1 << 39] {
        machine.map(top, iova, phys_of(iova));
    }
    assert_eq!(machine.touch(0x1000), LookupOutcome::Miss { reads: 4 }, "all cold");
    assert_eq!(machine.touch(0x1fff), LookupOutcome::Hit);
    assert_eq!(machine.touch(0x2000), LookupOutcome::Miss { reads: 1 }, "L3 knows the leaf table");
    assert_eq!(machine.touch(MIB2), LookupOutcome::Miss { reads: 2 }, "another leaf table of the same 1 GiB");
    assert_eq!(machine.touch(GIB), LookupOutcome::Miss { reads: 3 }, "another 1 GiB of the same 512 GiB");
    assert_eq!(machine.touch(1 << 39), LookupOutcome::Miss { reads: 4 }, "another 512 GiB");
    let counters = machine.counters();
    assert_eq!((counters.lookups, counters.iotlb_hits, counters.iotlb_misses), (6, 1, 5));
    let levels = [counters.ptcache_l1_misses, counters.ptcache_l2_misses, counters.ptcache_l3_misses];
    assert_eq!(levels, [2, 3, 4]);
    assert_eq!(counters.memory_reads, 5 + 2 + 3 + 4);
    assert_eq!(counters.walks_into_freed, 0);
}

#[test]
fn three_levels_and_no_caches() {
    let machine = Machine::new(small());
    let top = machine.ram.allocate().unwrap();
    machine.attach(DEVICE, 1, top, 3);
    let at = machine.entry(top, 3, 0x5000, 1);
    machine.poke(at, EntryValue::leaf(PhysAddr::new(0x9000), Rights::READ, false).bits());
    let translated = machine.ask(DEVICE, 0x5123, Rights::READ).unwrap();
    assert_eq!((translated.phys.as_u64(), translated.outcome), (0x9123, LookupOutcome::Miss { reads: 3 }));
    assert_eq!(machine.counters().ptcache_l1_misses, 0, "tables of 3 levels have no L1");
    let beyond = machine.ask(DEVICE, 1 << 39, Rights::READ).unwrap_err();
    assert_eq!(beyond.reason, FaultReason::AddressBeyondWidth);

    let bare = Parameters { ptcache_l1_entries: 0, ptcache_l2_entries: 0, ptcache_l3_entries: 0, ..small() };
    let (mut machine, _) = Machine::with_pages(bare, 0x1000, 2);
    assert_eq!(machine.touch(0x1000), LookupOutcome::Miss { reads: 4 });
    assert_eq!(machine.touch(0x2000), LookupOutcome::Miss { reads: 4 }, "nothing remembers a pointer");
}

#[test]
fn a_walk_takes_its_reads_and_those_who_come_meanwhile_join_it() {
    let (mut machine, _) = Machine::with_pages(small(), 0x1000, 1);
    machine.now_ps = 1_000_000;
    let first = machine.ask(DEVICE, 0x1000, Rights::READ).unwrap();
    assert_eq!(first.ready_ps, 1_000_000 + 4 * 197_000);
    assert_eq!(machine.vtd.next_event_ps(), Some(first.ready_ps));
    machine.now_ps += 500_000;
    let second = machine.ask(DEVICE, 0x1200, Rights::READ).unwrap();
    assert_eq!((second.outcome, second.ready_ps), (LookupOutcome::Joined, first.ready_ps));
    machine.now_ps = first.ready_ps;
    let third = machine.ask(DEVICE, 0x1400, Rights::READ).unwrap();
    assert_eq!((third.outcome, third.ready_ps), (LookupOutcome::Hit, first.ready_ps));
    let counters = machine.counters();
    assert_eq!((counters.lookups, counters.iotlb_hits, counters.iotlb_joined, counters.iotlb_misses), (3, 2, 1, 1));
}

#[test]
fn walkers_are_bounded() {
    let parameters = Parameters { walkers: 2, ..small() };
    let (mut machine, _) = Machine::with_pages(parameters, 0x1000, 6);
    machine.touch(0x6000);
    let start_ps = machine.now_ps;
    let ready: Vec<u64> =
        (1..=5).map(|page| machine.ask(DEVICE, page * PAGE_SIZE, Rights::READ).unwrap().ready_ps - start_ps).collect();
    assert_eq!(ready, [1, 1, 2, 2, 3].map(|turn| turn * 197_000), "two at a time, one read each");
}

#[test]
fn a_full_iotlb_drops_the_least_recent_or_everything() {
    let lru = Parameters { iotlb_entries: 4, ..small() };
    let (mut machine, _) = Machine::with_pages(lru, 0x1000, 5);
    for page in 1..=4 {
        machine.touch(page * PAGE_SIZE);
    }
    assert_eq!(machine.touch(0x1000), LookupOutcome::Hit);
    assert_eq!(machine.touch(0x5000), LookupOutcome::Miss { reads: 1 });
    assert_eq!(machine.touch(0x1000), LookupOutcome::Hit);
    assert_eq!(machine.touch(0x2000), LookupOutcome::Miss { reads: 1 }, "the least recent had gone");

    let qemu = Parameters::qemu();
    assert_eq!((qemu.iotlb_entries, qemu.iotlb_replacement), (1024, Replacement::ClearWhenFull));
    let (mut machine, _) = Machine::with_pages(qemu, 0x1000, 1025);
    for page in 1..=1024 {
        machine.touch(page * PAGE_SIZE);
    }
    assert_eq!(machine.touch(PAGE_SIZE), LookupOutcome::Hit, "1024 fit");
    machine.touch(1025 * PAGE_SIZE);
    assert_eq!(machine.touch(1024 * PAGE_SIZE), LookupOutcome::Miss { reads: 4 }, "all but the last had gone");
    assert_eq!(machine.touch(1025 * PAGE_SIZE), LookupOutcome::Hit);
}

#[test]
fn ways_limit_what_a_set_holds() {
    let parameters = Parameters { iotlb_entries: 8, iotlb_ways: 2, ..small() };
    let (mut machine, _) = Machine::with_pages(parameters, 0x1000, 16);
    for page in [1, 5, 9] {
        machine.touch(page * PAGE_SIZE);
    }
    assert!(matches!(machine.touch(PAGE_SIZE), LookupOutcome::Miss { .. }), "1, 5 and 9 share one of four sets");
    assert_eq!(machine.touch(9 * PAGE_SIZE), LookupOutcome::Hit);
}

#[test]
fn rights_are_those_of_every_level_and_checked_on_hits() {
    let (mut machine, top) = Machine::with_pages(small(), 0x1000, 1);
    machine.map_at(top, 0x2000, 0x7000, Rights::READ, 1);
    machine.map_at(top, 0x3000, 0x8000, Rights::WRITE, 1);
    let reason = |result: Result<_, portcullis_model::Fault>| result.err().map(|fault| fault.reason);
    assert_eq!(reason(machine.ask(DEVICE, 0x2000, Rights::WRITE)), Some(FaultReason::NoWrite));
    assert_eq!(machine.counters().iotlb_misses, 1);
    machine.settle();
    assert!(machine.vtd.reaches(machine.now_ps, DEVICE, Iova::new(0x2000), Rights::WRITE).is_none());
    assert!(machine.ask(DEVICE, 0x2000, Rights::READ).is_ok());
    assert_eq!(reason(machine.ask(DEVICE, 0x2000, Rights::WRITE)), Some(FaultReason::NoWrite), "joining a walk");
    machine.settle();
    assert_eq!(reason(machine.ask(DEVICE, 0x2000, Rights::READ_WRITE)), Some(FaultReason::NoWrite), "hitting");
    assert_eq!(reason(machine.ask(DEVICE, 0x3000, Rights::READ)), Some(FaultReason::NoRead));
    assert_eq!(reason(machine.ask(DEVICE, 0x4000, Rights::READ)), Some(FaultReason::NoRead), "not present");
    assert_eq!(reason(machine.ask(DEVICE, 0x4000, Rights::WRITE)), Some(FaultReason::NoWrite), "not present");

    // A level that withholds a right withholds it from everything below.
    let pointer = machine.entry(top, 4, 0x1000, 2);
    machine.poke(pointer, machine.ram.read_u64(pointer).unwrap() & !2);
    machine.run(domain(1));
    assert_eq!(reason(machine.ask(DEVICE, 0x1000, Rights::WRITE)), Some(FaultReason::NoWrite));
    assert!(machine.ask(DEVICE, 0x1000, Rights::READ).is_ok());
    machine.settle();
    assert_eq!(reason(machine.ask(DEVICE, 0x1000, Rights::WRITE)), Some(FaultReason::NoWrite), "cached as such");
    assert_eq!(machine.counters().faults, 8);
}

#[test]
fn faults_are_not_cached() {
    let (mut machine, top) = Machine::with_pages(small(), 0x1000, 1);
    assert!(machine.ask(DEVICE, 0x9000, Rights::READ).is_err());
    machine.settle();
    machine.map(top, 0x9000, phys_of(0x9000));
    assert_eq!(machine.touch(0x9000), LookupOutcome::Miss { reads: 4 }, "the refused walk has left no pointer either");
}

#[test]
fn large_leaves_translate_and_are_dropped_whole() {
    let (mut machine, top) = Machine::with_pages(small(), 0x1000, 1);
    machine.map_at(top, 4 * MIB2, 6 * MIB2, Rights::READ_WRITE, 2);
    machine.map_at(top, 3 * GIB, 5 * GIB, Rights::READ_WRITE, 3);
    let iova = 4 * MIB2 + 0x12_3456;
    let translated = machine.ask(DEVICE, iova, Rights::READ).unwrap();
    assert_eq!(
        (translated.phys.as_u64(), translated.outcome),
        (6 * MIB2 + 0x12_3456, LookupOutcome::Miss { reads: 3 })
    );
    let joined = machine.ask(DEVICE, 4 * MIB2, Rights::READ).unwrap();
    assert_eq!((joined.phys.as_u64(), joined.outcome), (6 * MIB2, LookupOutcome::Joined));
    machine.settle();
    assert_eq!(machine.ask(DEVICE, 5 * MIB2 - 1, Rights::READ).unwrap().outcome, LookupOutcome::Hit);
    let huge = machine.ask(DEVICE, 4 * GIB - 8, Rights::READ).unwrap();
    assert_eq!((huge.phys.as_u64(), huge.outcome), (6 * GIB - 8, LookupOutcome::Miss { reads: 1 }));
    machine.settle();
    let counters = machine.counters();
    assert_eq!((counters.ptcache_l3_misses, counters.memory_reads), (0, 4), "no leaf table, so no miss of L3");

    // One page of each is invalidated, and the whole leaf is dropped.
    for (iova, page) in [(4 * MIB2, 4 * MIB2 + 0x7000), (3 * GIB, 3 * GIB + 5 * MIB2)] {
        assert_eq!(machine.ask(DEVICE, iova, Rights::READ).unwrap().outcome, LookupOutcome::Hit);
        machine.run(pages(1, page, 0, true));
        assert!(matches!(machine.ask(DEVICE, iova, Rights::READ).unwrap().outcome, LookupOutcome::Miss { .. }));
        machine.settle();
    }
}

#[test]
fn reserved_bits_are_refused() {
    let parameters = Parameters { leaf_1g: false, ..small() };
    let (machine, top) = Machine::with_pages(parameters, 0x1000, 1);
    let refused = |level: u8, iova: u64, bits: u64| {
        machine.poke(machine.entry(top, 4, iova, level), bits);
        machine.ask(DEVICE, iova, Rights::READ).err().map(|fault| fault.reason)
    };
    let reserved = Some(FaultReason::EntryReserved);
    assert_eq!(refused(1, 0x2000, 0x5000 | 3), None, "a plain page");
    assert_eq!(refused(1, 0x3000, 0x5000 | 3 | 1 << 11), reserved, "snoop control without ECAP.SC");
    assert_eq!(refused(1, 0x4000, 1 << 46 | 3), reserved, "beyond 46 physical bits");
    assert_eq!(refused(1, 0x5000, 1 << 62 | 3), reserved, "transient mapping");
    assert_eq!(refused(1, 0x6000, 0x5000 | 3 | 0b1111 << 52), None, "ignored bits are software's");
    assert_eq!(refused(2, 8 * MIB2, (2 * MIB2) | (1 << 7) | 3), None, "an aligned leaf of 2 MiB");
    assert_eq!(refused(2, 9 * MIB2, (2 * MIB2) | 0x1000 | (1 << 7) | 3), reserved, "a misaligned one");
    assert_eq!(refused(3, 2 * GIB, (2 * GIB) | (1 << 7) | 3), reserved, "1 GiB where there is no such size");
    assert_eq!(refused(4, 5 << 39, 1 << 7 | 3), reserved, "512 GiB is no size at all");
    assert_eq!(refused(2, 10 * MIB2, 0x10_0000_0000 | 3), Some(FaultReason::TableAccess), "a table outside the memory");
}

#[test]
fn contexts_are_refused_for_what_is_wrong_with_them() {
    let machine = Machine::new(Parameters { domain_id_bits: 8, ..small() });
    let reason = |source| machine.ask(source, 0x1000, Rights::READ).unwrap_err().reason;
    assert_eq!(reason(DEVICE), FaultReason::RootNotPresent);
    machine.poke_context(DEVICE, [0, 0]);
    assert_eq!(reason(DEVICE), FaultReason::ContextNotPresent);
    let top = machine.ram.allocate().unwrap();
    machine.poke_context(DEVICE, tables(1, top, 2).encode());
    assert_eq!(reason(DEVICE), FaultReason::ContextInvalid, "two levels are not offered");
    machine.poke_context(DEVICE, tables(256, top, 4).encode());
    assert_eq!(reason(DEVICE), FaultReason::ContextInvalid, "a domain id of 9 bits");
    let ats = ContextEntry { translation_type: TranslationType::WithDeviceTlb, ..tables(1, top, 4) };
    machine.poke_context(DEVICE, ats.encode());
    assert_eq!(reason(DEVICE), FaultReason::ContextInvalid, "no device-TLBs are offered");
    machine.poke_context(DEVICE, [top.as_u64() | 1 << 5 | 1, 2]);
    assert_eq!(reason(DEVICE), FaultReason::ContextReserved);
    machine.poke128(machine.root, 3, [BASE.as_u64() | 1 | 2, 0]);
    assert_eq!(reason(DEVICE), FaultReason::RootReserved);
    machine.poke128(machine.root, 3, [1 << 40 | 1, 0]);
    assert_eq!(reason(DEVICE), FaultReason::ContextAccess);
    machine.poke128(machine.root, 3, [0, 0]);
    machine.attach(DEVICE, 1, top, 4);
    machine.map(top, 0x1000, 0x5000);
    assert!(machine.ask(DEVICE, 0x1000, Rights::READ).is_ok(), "none of the refusals was cached");
    assert_eq!(machine.ask(DEVICE, 1 << 48, Rights::READ).unwrap_err().reason, FaultReason::AddressBeyondWidth);
}

#[test]
fn contexts_are_cached_until_invalidated() {
    let (mut machine, _) = Machine::with_pages(small(), 0x1000, 1);
    machine.touch(0x1000);
    assert_eq!(machine.counters().context_misses, 1);
    machine.poke_context(DEVICE, [0, 0]);
    assert!(machine.ask(DEVICE, 0x1000, Rights::READ).is_ok(), "stale context");
    machine.run(global_flush());
    assert!(machine.reaches(DEVICE, 0x1000), "an IOTLB invalidation does not touch contexts");
    let device = |domain, source, function_mask| {
        InvalidationDescriptor::ContextCache(ContextScope::Device { domain: DomainId(domain), source, function_mask })
    };
    for not_it in [
        device(2, DEVICE, 0),
        device(1, OTHER, 0),
        InvalidationDescriptor::ContextCache(ContextScope::Domain(DomainId(7))),
    ] {
        machine.run(not_it);
        assert!(machine.reaches(DEVICE, 0x1000), "{not_it:?} does not name this context");
    }
    machine.run(device(1, DEVICE, 0));
    assert!(!machine.reaches(DEVICE, 0x1000));
    assert_eq!(machine.ask(DEVICE, 0x1000, Rights::READ).unwrap_err().reason, FaultReason::ContextNotPresent);
}

#[test]
fn context_invalidations_by_domain_globally_and_by_function() {
    let function = SourceId::from_requester(DEVICE.requester() | 4);
    let device = ContextScope::Device { domain: DomainId(1), source: DEVICE, function_mask: 1 };
    for (scope, gone) in [
        (ContextScope::Global, [true, true]),
        (ContextScope::Domain(DomainId(1)), [true, true]),
        (device, [true, true]),
        (ContextScope::Device { domain: DomainId(1), source: DEVICE, function_mask: 0 }, [true, false]),
    ] {
        let (mut machine, top) = Machine::with_pages(small(), 0x1000, 1);
        machine.attach(function, 1, top, 4);
        for source in [DEVICE, function] {
            machine.ask(source, 0x1000, Rights::READ).unwrap();
            machine.poke_context(source, [0, 0]);
        }
        machine.run(InvalidationDescriptor::ContextCache(scope));
        assert_eq!([DEVICE, function].map(|source| !machine.reaches(source, 0x1000)), gone, "{scope:?}");
    }
}

#[test]
fn pass_through_and_translation_off() {
    let machine = Machine::new(small());
    let context = ContextEntry { translation_type: TranslationType::PassThrough, ..tables(3, PhysAddr::new(0), 4) };
    machine.poke_context(DEVICE, context.encode());
    let translated = machine.ask(DEVICE, 0x1234_5678, Rights::READ_WRITE).unwrap();
    assert_eq!((translated.phys.as_u64(), translated.ready_ps), (0x1234_5678, machine.now_ps));
    assert!(machine.reaches(DEVICE, 0x1234_5678));
    assert!(machine.ask(OTHER, 0x1000, Rights::READ).is_err());

    let machine = Machine::new(Parameters { pass_through: false, ..small() });
    machine.poke_context(DEVICE, context.encode());
    assert_eq!(machine.ask(DEVICE, 0x1000, Rights::READ).unwrap_err().reason, FaultReason::ContextInvalid);

    let ram = Arc::new(Ram::new(BASE, 1 << 20));
    let off = Vtd::new(small(), ram);
    let translated = off.translate(0, DEVICE, Iova::new(0x77_0000), Rights::READ_WRITE).unwrap();
    assert_eq!((translated.phys.as_u64(), translated.outcome), (0x77_0000, LookupOutcome::Hit));
    assert_eq!(off.counters().lookups, 0);
}

#[test]
fn the_interrupt_range_is_neither_translated_nor_led_to() {
    let machine = Machine::new(small());
    let top = machine.ram.allocate().unwrap();
    machine.attach(DEVICE, 1, top, 4);
    let reason = |iova| machine.ask(DEVICE, iova, Rights::WRITE).map(|_| ()).map_err(|fault| fault.reason);
    machine.map(top, 0xfee0_1000, 0x200_0000);
    assert_eq!(reason(0xfee0_1000), Err(FaultReason::InterruptRange));
    assert!(!machine.reaches(DEVICE, 0xfee0_1000));
    assert_eq!(machine.counters().faults, 0, "an interrupt message is not a fault");
    machine.map_at(top, MIB2, 0xfee0_0000, Rights::READ_WRITE, 2);
    assert_eq!(reason(MIB2 + (1 << 20)), Ok(()), "the leaf's other half");
    assert_eq!(reason(MIB2), Err(FaultReason::InterruptRange), "cached, but not at this address");
    assert_eq!(machine.counters().faults, 1);
}

#[test]
fn tables_beyond_the_physical_width_are_reserved() {
    let machine = Machine::new(small());
    let top = machine.ram.allocate().unwrap();
    machine.attach(DEVICE, 1, PhysAddr::new(top.as_u64() | 1 << 50), 4);
    let reason = || machine.ask(DEVICE, 0x1000, Rights::READ).map(|_| ()).map_err(|fault| fault.reason);
    assert_eq!(reason(), Err(FaultReason::ContextReserved));
    let index = root_index(DEVICE);
    machine.poke128(machine.root, index, RootEntry { context_table: PhysAddr::new(1 << 50) }.encode());
    assert_eq!(reason(), Err(FaultReason::RootReserved));
}

#[test]
fn a_walk_into_a_freed_page_is_counted() {
    let (mut machine, top) = Machine::with_pages(small(), 0x1000, 2);
    machine.touch(0x1000);
    let leaf_table = PhysAddr::from_pfn(machine.entry(top, 4, 0x1000, 1).pfn());
    machine.ram.free(leaf_table);
    assert_eq!(machine.counters().walks_into_freed, 0);
    assert_eq!(machine.touch(0x2000), LookupOutcome::Miss { reads: 1 }, "a stale pointer leads into the freed page");
    assert_eq!(machine.counters().walks_into_freed, 1);
}

#[test]
fn a_walker_that_does_not_snoop_misses_what_was_not_flushed() {
    let ram = Arc::new(Ram::with_flushing(BASE, 1 << 20));
    let machine = Machine::on(ram, Parameters::sandybridge());
    let top = machine.ram.allocate().unwrap();
    machine.attach(DEVICE, 1, top, 4);
    machine.map(top, 0x1000, 0x5000);
    assert_eq!(machine.ask(DEVICE, 0x1000, Rights::READ).unwrap_err().reason, FaultReason::RootNotPresent);
    let everything = |machine: &Machine| {
        (0..16).map(|page| PhysAddr::from_pfn(BASE.pfn() + page)).for_each(|page| {
            if machine.ram.is_allocated(page) {
                machine.ram.flush(machine.ram.frame(page));
            }
        });
    };
    everything(&machine);
    assert!(machine.ask(DEVICE, 0x1000, Rights::READ).is_ok());
    machine.map(top, 0x2000, 0x6000);
    assert_eq!(machine.ask(DEVICE, 0x2000, Rights::READ).unwrap_err().reason, FaultReason::NoRead);
    everything(&machine);
    assert!(machine.ask(DEVICE, 0x2000, Rights::READ).is_ok());
}

#[test]
fn reaches_leaves_no_trace() {
    let parameters = Parameters { iotlb_entries: 2, ..small() };
    let (mut machine, _) = Machine::with_pages(parameters, 0x1000, 3);
    machine.touch(0x1000);
    machine.touch(0x2000);
    let before = machine.counters();
    for _ in 0..3 {
        assert!(machine.reaches(DEVICE, 0x1000) && machine.reaches(DEVICE, 0x3000));
        assert!(!machine.reaches(DEVICE, 0x4000) && !machine.reaches(OTHER, 0x1000));
        assert!(!machine.reaches(DEVICE, u64::MAX));
    }
    assert_eq!(machine.counters(), before);
    assert_eq!(machine.vtd.next_event_ps(), None, "no walk was started");
    assert_eq!(machine.read(0x34, 4), 0, "no fault was recorded");
    machine.touch(0x3000);
    assert_eq!(machine.touch(0x2000), LookupOutcome::Hit, "asking did not make 0x1000 the more recent");
}
