//! Devices: throughput that follows from latency, data that moves, and writes in flight.

use super::common::*;
use portcullis::iommu::DomainId;
use portcullis::table::Rights;
use portcullis::{Iova, PAGE_SIZE, PhysAddr};
use portcullis_model::{Device, DmaError, Parameters, Transfer};
use portcullis_vtd::spec::descriptors::{InvalidationDescriptor, IotlbScope};
use portcullis_vtd::spec::faults::FaultReason;

/// Streams `pages` pages once each, page `k` at `iova(k)`. Returns picoseconds per page in the steady state.
fn ps_per_page(parameters: Parameters, bytes_in_flight: u64, iova: impl Fn(u64) -> u64) -> f64 {
    const PAGES: u64 = 200;
    let (machine, top) = Machine::with_pages(parameters, 0, 0);
    for page in 0..PAGES {
        machine.map(top, iova(page), phys_of(iova(page)));
    }
    let mut device = Device::new(DEVICE, 512, bytes_in_flight);
    let mut settled_ps = 0;
    let mut done_ps = 0;
    for page in 0..PAGES {
        let access = device.access(&machine.vtd, 0, Iova::new(iova(page)), PAGE_SIZE, Rights::WRITE);
        assert_eq!((access.transactions, access.faults), (8, 0));
        done_ps = access.done_ps;
        if page == PAGES / 2 - 1 {
            settled_ps = done_ps;
        }
    }
    (done_ps - settled_ps) as f64 / (PAGES / 2) as f64
}

#[test]
fn throughput_follows_the_latency_of_misses() {
    let parameters = Parameters::cascadelake();
    // T = p / (l0 + M * lm), with one page in flight: consecutive pages cost one read, and one page in each 2 MiB
    // costs two.
    let sequential = ps_per_page(parameters.clone(), 4096, |page| page * PAGE_SIZE);
    assert!((sequential / (65_000.0 + 197_000.0) - 1.0).abs() < 0.01, "{sequential}");
    let strided = ps_per_page(parameters.clone(), 4096, |page| page << 21);
    assert!((strided / (65_000.0 + 2.0 * 197_000.0) - 1.0).abs() < 0.01, "{strided}");
    let gbps = PAGE_SIZE as f64 * 8.0 / sequential * 1000.0;
    assert!((gbps - 125.0).abs() < 1.0, "the published ceiling of one miss per page: {gbps}");
    // Twice the bytes in flight give twice the throughput, and then the walkers are the limit.
    let doubled = ps_per_page(parameters.clone(), 8192, |page| page * PAGE_SIZE);
    assert!((sequential / doubled - 2.0).abs() < 0.05, "{doubled}");
    let one_walker = Parameters { walkers: 1, ..parameters };
    let limited = ps_per_page(one_walker, 8192, |page| page * PAGE_SIZE);
    assert!((limited / 197_000.0 - 1.0).abs() < 0.01, "{limited}");
}

#[test]
fn an_access_is_split_at_pages_and_counts_what_was_refused() {
    let (machine, _) = Machine::with_pages(Parameters::cascadelake(), 0x1000, 1);
    let mut device = Device::new(DEVICE, 512, 4096);
    let access = device.access(&machine.vtd, 5_000, Iova::new(0x1f00), 0x300, Rights::WRITE);
    assert_eq!((access.transactions, access.faults), (2, 1), "256 bytes, and 512 on a page that is not mapped");
    assert_eq!(access.first_fault.unwrap().iova, Iova::new(0x2000));
    assert_eq!(access.done_ps, 5_000 + 4 * 197_000 + 65_000, "in order: the refused one waits for the first");
    assert_eq!(access.latency_ps_sum, 2 * (4 * 197_000 + 65_000));
    let nothing = device.access(&machine.vtd, 7, Iova::new(0x1000), 0, Rights::READ);
    assert_eq!(nothing, Transfer { done_ps: 7, ..Transfer::default() });
    let wild = device.access(&machine.vtd, 0, Iova::new(u64::MAX - 100), 4096, Rights::READ);
    assert_eq!(wild.faults, wild.transactions);
    assert_eq!(wild.first_fault.unwrap().reason, FaultReason::AddressBeyondWidth);
}

#[test]
fn the_window_is_shared_by_all_accesses() {
    let (mut machine, _) = Machine::with_pages(Parameters::cascadelake(), 0x1000, 1);
    machine.touch(0x1000);
    let now_ps = machine.now_ps;
    let mut device = Device::new(DEVICE, 512, 1024);
    assert_eq!(device.room_ps(), 0);
    let access = device.access(&machine.vtd, now_ps, Iova::new(0x1000), 1024, Rights::READ);
    assert_eq!(access.done_ps, now_ps + 65_000, "both at once");
    assert_eq!(device.room_ps(), now_ps + 65_000);
    let access = device.access(&machine.vtd, now_ps, Iova::new(0x1000), 512, Rights::READ);
    assert_eq!((access.done_ps, access.latency_ps_sum), (now_ps + 130_000, 65_000), "the third waits for the first");
}

/// A machine with two adjacent IOVA pages that are not adjacent in memory.
fn with_data() -> (Machine, [PhysAddr; 2]) {
    let (machine, top) = Machine::with_pages(Parameters::cascadelake(), 0, 0);
    let first = machine.ram.allocate().unwrap();
    machine.ram.allocate().unwrap();
    let second = machine.ram.allocate().unwrap();
    machine.map(top, 0x1000, first.as_u64());
    machine.map(top, 0x2000, second.as_u64());
    (machine, [first, second])
}

#[test]
fn data_moves_and_stops_at_the_first_refusal() {
    let (machine, [first, second]) = with_data();
    let device = Device::new(DEVICE, 512, 4096);
    let data: Vec<u8> = (0..200u8).collect();
    device.write(&machine.vtd, &machine.ram, 0, Iova::new(0x1fa0), &data).unwrap();
    let mut landed = [0; 200];
    machine.ram.read_bytes(PhysAddr::new(first.as_u64() + 0xfa0), &mut landed[..96]).unwrap();
    machine.ram.read_bytes(second, &mut landed[96..]).unwrap();
    assert_eq!(landed, data[..]);
    let mut back = [0; 200];
    device.read(&machine.vtd, &machine.ram, 0, Iova::new(0x1fa0), &mut back).unwrap();
    assert_eq!(back, data[..]);

    let refused = device.write(&machine.vtd, &machine.ram, 0, Iova::new(0x2ff0), &[0xee; 32]);
    assert!(matches!(refused, Err(DmaError::Fault(fault)) if fault.iova == Iova::new(0x3000)), "{refused:?}");
    let mut edge = [0; 16];
    machine.ram.read_bytes(PhysAddr::new(second.as_u64() + 0xff0), &mut edge).unwrap();
    assert_eq!(edge, [0xee; 16], "what lies before the refusal was written");
}

#[test]
fn data_for_no_memory_is_an_error() {
    let (machine, top) = Machine::with_pages(Parameters::cascadelake(), 0, 0);
    machine.map(top, 0x1000, 0x1000);
    let device = Device::new(DEVICE, 512, 4096);
    let nowhere = Err(DmaError::NoMemory(PhysAddr::new(0x1000)));
    assert_eq!(device.write(&machine.vtd, &machine.ram, 0, Iova::new(0x1000), &[1]), nowhere);
    assert_eq!(device.read(&machine.vtd, &machine.ram, 0, Iova::new(0x1000), &mut [1]), nowhere);
    assert_eq!(device.post_write(&machine.vtd, 0, Iova::new(0x1000), &[1], 5), nowhere);
}

/// Posts a write that lands 10 µs later, invalidates and waits. Returns whether the data was there when the wait
/// completed, and after how many picoseconds the wait completed.
fn drain(parameters: Parameters, drain_writes: bool) -> (bool, u64) {
    let (machine, top) = Machine::with_pages(parameters, 0, 0);
    let mut machine = machine;
    let buffer = machine.ram.allocate().unwrap();
    machine.map(top, 0x1000, buffer.as_u64());
    let device = Device::new(DEVICE, 512, 4096);
    device.post_write(&machine.vtd, 0, Iova::new(0x1ffe), &[1, 2, 3], 10_000_000).unwrap_err();
    device.post_write(&machine.vtd, 0, Iova::new(0x1008), &[0xaa; 8], 10_000_000).unwrap();
    machine.poke(machine.entry(top, 4, 0x1000, 1), 0);
    let scope = IotlbScope::Pages { domain: DomainId(1), first: Iova::new(0x1000), mask: 0, leaf_only: true };
    machine.push(InvalidationDescriptor::Iotlb { scope, drain_writes, drain_reads: true });
    machine.push(machine.wait(1));
    machine.ring();
    while machine.status_word() == 0 {
        machine.now_ps = machine.vtd.next_event_ps().expect("something is left to happen");
        machine.vtd.advance(machine.now_ps);
    }
    let landed = |machine: &Machine| machine.ram.read_u64(PhysAddr::new(buffer.as_u64() + 8)) == Some(u64::MAX / 3 * 2);
    let in_time = landed(&machine);
    let answered_ps = machine.now_ps;
    machine.settle();
    assert!(landed(&machine), "a posted write lands despite the invalidation");
    (in_time, answered_ps)
}

#[test]
fn an_invalidation_that_drains_completes_after_the_writes_in_flight() {
    let parameters = Parameters::cascadelake();
    let quick_ps = parameters.invalidation_ps + parameters.wait_ps;
    assert_eq!(drain(parameters.clone(), true), (true, 10_000_000 + parameters.wait_ps));
    let (in_time, answered_ps) = drain(parameters.clone(), false);
    assert_eq!(
        (in_time, answered_ps),
        (false, quick_ps),
        "a driver that omits DW returns a buffer that is still written to"
    );
    let cannot = Parameters { drains: false, ..parameters };
    assert_eq!(drain(cannot, true), (false, quick_ps), "hardware without draining does not drain");
}
