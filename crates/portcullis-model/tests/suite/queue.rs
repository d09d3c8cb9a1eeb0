//! The queue, its errors, the fault registers and the register block.

use super::common::*;
use portcullis::iommu::{DomainId, SourceId};
use portcullis::table::Rights;
use portcullis::{Iova, PhysAddr};
use portcullis_model::{Parameters, Ram, Vtd};
use portcullis_vtd::spec::descriptors::{InvalidationDescriptor, IotlbScope, StatusWrite};
use portcullis_vtd::spec::faults::{FaultReason, FaultRecord, FaultRequest, status};
use portcullis_vtd::spec::registers::*;
use portcullis_vtd::spec::tables::ContextEntry;
use std::sync::Arc;

fn machine() -> Machine {
    let parameters = Parameters { invalidation_ps: 400_000, wait_ps: 200_000, ..Parameters::cascadelake() };
    Machine::with_pages(parameters, 0x1000, 2).0
}

#[test]
fn descriptors_take_their_time_one_after_the_other() {
    let mut machine = machine();
    machine.touch(0x1000);
    let start_ps = machine.now_ps;
    machine.push(pages(1, 0x1000, 0, true));
    machine.push(machine.wait(7));
    machine.ring();
    assert_eq!(machine.vtd.next_event_ps(), Some(start_ps + 400_000));
    machine.now_ps = start_ps + 399_999;
    assert_eq!(machine.head(), 0);
    assert!(machine.ask(DEVICE, 0x1000, Rights::READ).unwrap().ready_ps == machine.now_ps, "still cached");
    machine.now_ps = start_ps + 400_000;
    assert_eq!(machine.head(), 1);
    machine.now_ps = start_ps + 599_999;
    machine.vtd.advance(machine.now_ps);
    assert_eq!(machine.status_word(), 0, "not before its time");
    machine.now_ps = start_ps + 600_000;
    machine.vtd.advance(machine.now_ps);
    assert_eq!(machine.status_word(), 7);
    assert_eq!((machine.head(), machine.vtd.next_event_ps()), (2, None));
    let counters = machine.counters();
    assert_eq!((counters.descriptors, counters.waits, counters.invalidations_page), (2, 1, 1));
}

#[test]
fn a_status_is_32_bits_and_leaves_its_neighbour() {
    let mut machine = machine();
    let address = PhysAddr::new(machine.status.as_u64() + 4);
    machine.poke(machine.status, 0x1111_1111_2222_2222);
    machine.run(InvalidationDescriptor::Wait {
        status: Some(StatusWrite { address, data: 0xffff_ffff }),
        interrupt: true,
        fence: true,
        drain_page_requests: false,
    });
    assert_eq!(machine.ram.read_u64(machine.status), Some(0xffff_ffff_2222_2222));
    assert_eq!(machine.read(ICS, 4), 1, "the wait asked for an interrupt");
    machine.write(ICS, 4, 1);
    assert_eq!(machine.read(ICS, 4), 0);
}

#[test]
fn a_second_tail_write_adds_to_what_is_under_way() {
    let mut machine = machine();
    let start_ps = machine.now_ps;
    machine.push(global_flush());
    machine.ring();
    machine.now_ps += 100_000;
    machine.push(machine.wait(1));
    machine.ring();
    machine.settle();
    assert_eq!(machine.now_ps, start_ps + 600_000);
    assert_eq!(machine.status_word(), 1);
}

#[test]
fn the_queue_wraps() {
    let mut machine = machine();
    for turn in 0..3 {
        for burst in 0..QUEUE_ENTRIES / 16 {
            for _ in 0..15 {
                machine.push(domain(1));
            }
            machine.run(machine.wait((turn * 1000 + burst) as u32));
            assert_eq!(u64::from(machine.status_word()), turn * 1000 + burst);
        }
        assert_eq!(machine.head(), 0);
    }
    assert_eq!(machine.counters().descriptors, 3 * QUEUE_ENTRIES);

    // Two pages hold twice as many descriptors.
    let ram = Arc::new(Ram::new(BASE, 1 << 20));
    let vtd = Vtd::new(Parameters::cascadelake(), Arc::clone(&ram));
    let [first, second] = [(); 2].map(|()| ram.allocate().unwrap());
    assert_eq!(second.as_u64(), first.as_u64() + 0x1000);
    for slot in 0..512 {
        let [low, high] = domain(1).encode();
        let page = ram.frame(if slot < 256 { first } else { second });
        page[slot % 256 * 2].store_bits(low);
        page[slot % 256 * 2 + 1].store_bits(high);
    }
    vtd.write_register(0, IQA, 8, first.as_u64() | 1);
    vtd.write_register(0, GCMD, 4, global::QUEUED_INVALIDATION.into());
    vtd.write_register(0, IQT, 8, 511 << 4);
    vtd.advance(u64::MAX / 8);
    assert_eq!(vtd.read_register(u64::MAX / 8, IQH, 8), 511 << 4);
    vtd.write_register(u64::MAX / 8, IQT, 8, 0);
    assert_eq!(vtd.counters().descriptors, 511);
    vtd.advance(u64::MAX / 8 + 1_000_000);
    assert_eq!((vtd.read_register(u64::MAX, IQH, 8), vtd.counters().descriptors), (0, 512));
}

#[test]
fn a_bad_descriptor_stops_the_queue_until_software_has_seen_to_it() {
    let mask = Parameters::cascadelake().mamv + 1;
    let nowhere = Some(StatusWrite { address: PhysAddr::new(64), data: 1 });
    let bad_wait =
        InvalidationDescriptor::Wait { status: nowhere, interrupt: false, fence: false, drain_page_requests: false };
    let too_wide = pages(1, 0, mask, true).encode();
    for bad in [[0xf, 0], [0, 0], [2 | 1 << 8, 0], [2, 0], too_wide, bad_wait.encode()] {
        let mut machine = machine();
        machine.touch(0x1000);
        machine.push(machine.wait(1));
        machine.push_raw(bad);
        machine.push(global_flush());
        machine.push(machine.wait(2));
        machine.ring();
        machine.settle();
        let stopped = |machine: &Machine| machine.read(FSTS, 4) as u32 & status::QUEUE_ERROR != 0;
        assert!(stopped(&machine), "{bad:x?}");
        assert_eq!((machine.head(), machine.status_word()), (1, 1), "the head points to the refused descriptor");
        machine.ring();
        assert_eq!(machine.vtd.next_event_ps(), None, "a tail write does not restart it");
        assert!(machine.reaches(DEVICE, 0x1000));

        machine.poke128(machine.queue, 1, machine.wait(5).encode());
        machine.write(FSTS, 4, status::QUEUE_ERROR.into());
        assert!(!stopped(&machine));
        machine.settle();
        assert_eq!((machine.head(), machine.status_word()), (4, 2));
    }
}

#[test]
fn an_error_that_is_cleared_and_not_mended_comes_back() {
    let mut machine = machine();
    machine.push_raw([0xf, 0]);
    machine.ring();
    machine.write(FSTS, 4, status::QUEUE_ERROR.into());
    machine.ring();
    assert_eq!(machine.read(FSTS, 4) as u32 & status::QUEUE_ERROR, status::QUEUE_ERROR);
}

#[test]
fn broken_hardware_stops_at_every_invalidation_and_at_no_wait() {
    let mut machine = machine();
    machine.touch(0x1000);
    machine.vtd.refuse_invalidations(true);
    machine.push(machine.wait(1));
    machine.push(pages(1, 0x1000, 0, true));
    machine.push(machine.wait(2));
    machine.ring();
    machine.settle();
    assert_eq!(machine.read(FSTS, 4) as u32 & status::QUEUE_ERROR, status::QUEUE_ERROR);
    assert_eq!((machine.head(), machine.status_word()), (1, 1));
    assert!(machine.reaches(DEVICE, 0x1000));
    machine.vtd.refuse_invalidations(false);
    machine.write(FSTS, 4, status::QUEUE_ERROR.into());
    machine.settle();
    assert_eq!((machine.head(), machine.status_word()), (3, 2), "once repaired, it accepts the same descriptor");
}

#[test]
fn page_selective_descriptors_need_the_capability() {
    let parameters = Parameters { page_selective: false, ..Parameters::cascadelake() };
    let (mut machine, _) = Machine::with_pages(parameters, 0x1000, 1);
    machine.push(pages(1, 0x1000, 0, true));
    machine.ring();
    assert_eq!(machine.read(FSTS, 4) as u32, status::QUEUE_ERROR);
    let (mut machine, _) = Machine::with_pages(Parameters { mamv: 18, ..Parameters::cascadelake() }, 0x1000, 1);
    machine.run(pages(1, 0x1000, 18, true));
}

#[test]
fn a_tail_outside_the_queue_is_an_error() {
    let machine = machine();
    machine.write(IQT, 8, QUEUE_ENTRIES * 16);
    assert_eq!(machine.read(FSTS, 4) as u32, status::QUEUE_ERROR);
}

#[test]
fn turning_the_queue_off_rewinds_it() {
    let mut machine = machine();
    machine.run(global_flush());
    machine.write(GCMD, 4, global::TRANSLATION.into());
    assert_eq!(machine.head(), 0);
    assert_eq!(machine.read(GSTS, 4) as u32 & global::QUEUED_INVALIDATION, 0);
    machine.write(IQT, 8, 0);
    machine.tail = 0;
    machine.push(machine.wait(9));
    machine.ring();
    assert_eq!(machine.vtd.next_event_ps(), None, "off");
    machine.write(GCMD, 4, (global::TRANSLATION | global::QUEUED_INVALIDATION).into());
    machine.settle();
    assert_eq!(machine.status_word(), 9);
}

#[test]
fn descriptors_for_what_is_not_there_complete() {
    let mut machine = machine();
    machine.run(InvalidationDescriptor::InterruptEntryCache { entries: None });
    machine.run(InvalidationDescriptor::DeviceTlb {
        source: DEVICE,
        physical_function: DEVICE,
        pending_max: 0,
        address: Iova::new(0),
        sized: false,
    });
    assert_eq!(machine.read(FSTS, 4), 0);
}

fn record(machine: &Machine, index: u32) -> Option<FaultRecord> {
    let at = Capability(machine.read(CAP, 8)).fault_record_offset(index);
    let words = [machine.read(at, 8), machine.read(at + 8, 8)];
    assert_eq!(machine.read(at + 12, 4), words[1] >> 32);
    FaultRecord::decode(words)
}

#[test]
fn faults_are_recorded_merged_by_device_and_lost_when_there_is_no_room() {
    let (machine, _) = Machine::with_pages(Parameters { fault_registers: 2, ..Parameters::cascadelake() }, 0x1000, 1);
    let sources = [DEVICE, OTHER, SourceId::new(7, 0, 0)];
    let fsts = |machine: &Machine| machine.read(FSTS, 4) as u32;
    assert_eq!(fsts(&machine), 0);
    machine.ask(DEVICE, 0x9123, Rights::WRITE).unwrap_err();
    machine.ask(DEVICE, 0xa000, Rights::READ).unwrap_err();
    assert_eq!(fsts(&machine), status::PENDING);
    let expected = FaultRecord {
        source: DEVICE,
        page: Iova::new(0x9000),
        request: FaultRequest::Write,
        reason: FaultReason::NoWrite,
    };
    assert_eq!(record(&machine, 0), Some(expected));
    assert_eq!(record(&machine, 1), None, "a device's second fault is merged into its first");
    machine.ask(sources[1], 0, Rights::READ).unwrap_err();
    assert_eq!(record(&machine, 1).unwrap().reason, FaultReason::RootNotPresent);
    assert_eq!(record(&machine, 1).unwrap().request, FaultRequest::Read);
    assert_eq!(fsts(&machine), status::PENDING);
    machine.ask(sources[2], 0, Rights::READ).unwrap_err();
    assert_eq!(fsts(&machine), status::PENDING | status::OVERFLOW);

    // Clearing a record makes no room while the overflow bit is set.
    let clear = |index| {
        let at = Capability(machine.read(CAP, 8)).fault_record_offset(index);
        machine.write(at + 12, 4, FaultRecord::FAULT_UPPER.into());
    };
    clear(0);
    assert_eq!(record(&machine, 0), None);
    machine.ask(sources[2], 0, Rights::READ).unwrap_err();
    assert_eq!(record(&machine, 0), None);
    machine.write(FSTS, 4, status::OVERFLOW.into());
    assert_eq!(fsts(&machine), status::PENDING);
    machine.ask(sources[2], 0, Rights::READ).unwrap_err();
    assert_eq!(record(&machine, 0).unwrap().source, sources[2]);
    clear(0);
    clear(1);
    assert_eq!(fsts(&machine) & (status::PENDING | status::OVERFLOW), 0);
    machine.ask(DEVICE, 0x9000, Rights::READ).unwrap_err();
    assert_eq!(status::first_record(fsts(&machine)), 1, "the next register in turn, now the oldest fault");
    assert_eq!(machine.counters().faults, 7, "counted, recorded or not");
}

#[test]
fn a_device_whose_faults_are_disabled_is_refused_in_silence() {
    let (machine, top) = Machine::with_pages(Parameters::cascadelake(), 0x1000, 1);
    machine.poke_context(DEVICE, ContextEntry { faults_disabled: true, ..tables(1, top, 4) }.encode());
    machine.ask(DEVICE, 0x9000, Rights::READ).unwrap_err();
    machine.poke_context(OTHER, [2, 0]);
    assert_eq!(machine.ask(OTHER, 0, Rights::READ).unwrap_err().reason, FaultReason::ContextNotPresent);
    assert_eq!(machine.read(FSTS, 4), 0);
    machine.poke_context(OTHER, [0, 0]);
    machine.ask(OTHER, 0, Rights::READ).unwrap_err();
    assert_eq!(machine.read(FSTS, 4) as u32, status::PENDING);
}

#[test]
fn registers_read_back_and_unknown_ones_are_zero() {
    let machine = machine();
    assert_eq!(machine.read(VER, 4), 0x10);
    assert_eq!(machine.read(CAP, 8), Parameters::cascadelake().capability().0);
    assert_eq!(machine.read(CAP + 4, 4), machine.read(CAP, 8) >> 32);
    assert_eq!(machine.read(ECAP, 8), Parameters::cascadelake().extended_capability().0);
    assert_eq!(machine.read(RTADDR, 8), machine.root.as_u64());
    assert_eq!(machine.read(IQA, 8), machine.queue.as_u64());
    machine.write(FECTL, 4, fault_event::MASKED.into());
    machine.write(FEUADDR, 4, 5);
    assert_eq!(machine.read(FECTL, 8), u64::from(fault_event::MASKED));
    assert_eq!(machine.read(FEUADDR, 4), 5);
    machine.write(CAP, 8, 0);
    machine.write(GSTS, 4, 0);
    machine.write(0xff8, 8, 1);
    assert_eq!(machine.read(CAP, 8), Parameters::cascadelake().capability().0);
    assert_ne!(machine.read(GSTS, 4), 0);
    for (offset, bytes) in [(0xff8, 8), (GSTS + 1, 4), (CAP, 2), (IQA + 4, 8), (u32::MAX, 4), (u32::MAX - 7, 8)] {
        assert_eq!(machine.read(offset, bytes), 0, "{offset:#x}");
    }
}

#[test]
fn the_root_table_counts_once_it_is_set() {
    let (mut machine, _) = Machine::with_pages(Parameters::cascadelake(), 0x1000, 2);
    let empty = machine.ram.allocate().unwrap();
    machine.write(RTADDR, 8, empty.as_u64());
    machine.touch(0x1000);
    let command = global::TRANSLATION | global::QUEUED_INVALIDATION;
    machine.write(GCMD, 4, (command | global::ROOT_TABLE).into());
    assert!(machine.reaches(DEVICE, 0x1000), "the context is cached");
    machine.run(InvalidationDescriptor::ContextCache(portcullis_vtd::spec::descriptors::ContextScope::Global));
    assert!(!machine.reaches(DEVICE, 0x1000));
    machine.write(GCMD, 4, (command | global::WRITE_BUFFER_FLUSH).into());
    assert_eq!(machine.read(GSTS, 4) as u32 & global::WRITE_BUFFER_FLUSH, 0, "flushed at once");
}

#[test]
fn a_clock_that_steps_back_is_held() {
    let mut machine = machine();
    machine.now_ps = 1_000_000;
    machine.vtd.advance(machine.now_ps);
    machine.push(iotlb(IotlbScope::Domain(DomainId(1))));
    machine.now_ps = 900_000;
    machine.ring();
    assert_eq!(machine.vtd.next_event_ps(), Some(1_400_000));
}
