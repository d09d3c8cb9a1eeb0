//! The real driver on the model, through registers and memory only.

use portcullis::iommu::{Invalidation, Iommu, SourceId, Translation};
use portcullis::platform::{Platform, Wait};
use portcullis::table::{EntryValue, Rights};
use portcullis::{Iova, PAGE_SIZE, PhysAddr};
use portcullis_model::{Clock, Device, DmaError, Host, ModelMmio, Parameters, Ram, Vtd};
use portcullis_vtd::spec::faults::{FaultReason, FaultRecord, FaultRequest};
use portcullis_vtd::{Unit, UnitConfig};
use std::sync::Arc;

const BASE: PhysAddr = PhysAddr::new(0x100_0000);
const BYTES: u64 = 16 << 20;
const DEVICE: SourceId = SourceId::new(3, 2, 0);
const IOVA: Iova = Iova::new(0x7f_ffff_f000);

/// Brings a unit up, maps one page by hand, lets a device write to it, and unmaps it again.
fn one_page(host: Host, parameters: Parameters, levels: u8) {
    let ram = Arc::clone(host.ram());
    let config = UnitConfig { physical_bits: parameters.physical_bits, ..UnitConfig::default() };
    let vtd = Arc::new(Vtd::new(parameters, Arc::clone(&ram)));
    host.add_hardware(Arc::clone(&vtd));
    let before = ram.allocated();
    let unit = Unit::bring_up(ModelMmio::new(Arc::clone(&vtd), &host), &host, config).unwrap();
    let device = Device::new(DEVICE, 512, 4096);
    let write = |data: &[u8]| device.write(&vtd, &ram, host.now_ps(), IOVA, data);
    let refused = |result: Result<(), DmaError>| match result {
        Err(DmaError::Fault(fault)) => fault.reason,
        other => panic!("the device should have been refused: {other:?}"),
    };

    assert_eq!(refused(write(b"early")), FaultReason::RootNotPresent, "attached to nothing, it reaches nothing");
    // Frees the fault register, because further faults of a device are merged while one is pending.
    unit.faults(&mut |_| {}).unwrap();

    // The path to one page, written by hand. Each table is flushed before the pointer to it is written.
    let buffer = ram.allocate().unwrap();
    let mut entry = EntryValue::leaf(buffer, Rights::READ_WRITE, false);
    let mut slots = Vec::new();
    for level in 1..=levels {
        let table = ram.allocate().unwrap();
        let slot = (IOVA.as_u64() >> (12 + 9 * (level - 1))) as usize & 511;
        ram.frame(table)[slot].store(entry);
        host.table_barrier(&ram.frame(table)[slot..=slot], false);
        slots.push((table, slot));
        entry = EntryValue::table(table);
    }
    // SAFETY: the tables lead only to the buffer of this test, here and below.
    let domain = unsafe { unit.open_domain(Translation::Tables { root: entry.phys(), levels }) }.unwrap();
    unit.attach(domain, DEVICE).unwrap();
    write(b"portcullis").unwrap();
    let mut landed = [0; 10];
    ram.read_bytes(buffer, &mut landed).unwrap();
    assert_eq!(&landed, b"portcullis");

    let (leaf_table, slot) = slots[0];
    ram.frame(leaf_table)[slot].store(EntryValue::ABSENT);
    host.table_barrier(&ram.frame(leaf_table)[slot..=slot], false);
    write(b"stale").expect("the translation is cached until it is invalidated");
    let pages = Invalidation::Pages { domain, first: IOVA, mask: 0, leaf_only: true };
    let ticket = unit.submit(&[pages]).unwrap();
    assert!(!unit.is_done(ticket).unwrap(), "an invalidation takes time");
    while !unit.is_done(ticket).unwrap() {
        host.pause(Wait::Invalidation);
    }
    assert_eq!(refused(write(b"late")), FaultReason::NoWrite);

    let mut faults = Vec::new();
    unit.faults(&mut |fault| faults.push(fault)).unwrap();
    let late = FaultRecord { source: DEVICE, page: IOVA, request: FaultRequest::Write, reason: FaultReason::NoWrite };
    assert_eq!(faults, [late]);

    // SAFETY: as above.
    unsafe { unit.close_domain(domain) }.unwrap();
    assert_eq!(refused(write(b"closed")), FaultReason::ContextNotPresent);
    assert_eq!(vtd.counters().walks_into_freed, 0);
    // SAFETY: as above.
    unsafe { unit.shut_down() }.unwrap();
    assert_eq!(ram.allocated() - before, 1 + usize::from(levels), "the driver has given its pages back");
}

#[test]
fn the_driver_maps_a_page_on_coherent_hardware() {
    let host = || Host::new(Arc::new(Ram::new(BASE, BYTES)));
    one_page(host(), Parameters::cascadelake(), 4);
    one_page(host(), Parameters::cascadelake(), 3);
    one_page(host(), Parameters { caching_mode: true, rwbf: true, ..Parameters::cascadelake() }, 4);
    one_page(host(), Parameters { page_selective: false, drains: false, ..Parameters::cascadelake() }, 4);
}

#[test]
fn the_driver_flushes_where_walks_do_not_snoop() {
    one_page(Host::non_coherent(BASE, BYTES), Parameters::sandybridge(), 4);
    one_page(Host::non_coherent(BASE, BYTES), Parameters::qemu(), 3);
}

#[test]
fn the_driver_refuses_hardware_without_a_queue() {
    let host = Host::new(Arc::new(Ram::new(BASE, 64 * PAGE_SIZE)));
    let parameters = Parameters { queued_invalidation: false, ..Parameters::cascadelake() };
    let vtd = Arc::new(Vtd::new(parameters, Arc::clone(host.ram())));
    let refused =
        Unit::bring_up(ModelMmio::new(vtd, &host), &host, UnitConfig::default()).err().map(|error| error.to_string());
    assert_eq!(refused.as_deref(), Some("the VT-d unit has no invalidation queue"));
    assert_eq!(host.ram().allocated(), 0);
}
