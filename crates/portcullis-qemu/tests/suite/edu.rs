//! The driver and a domain on QEMU's VT-d: a page is mapped, written by a device, unmapped, and then out of reach.

use portcullis::designs::Magazine;
use portcullis::iommu::SourceId;
use portcullis::{Access, Open, Protection};
use portcullis_qemu::edu::Edu;
use portcullis_qemu::{Accelerator, GuestBuffer, QemuMachine, QemuSetup, VtdMmio};
use portcullis_vtd::spec::faults::{FaultReason, FaultRequest};
use portcullis_vtd::{Unit, UnitConfig};
use std::sync::Arc;

const EDU: SourceId = SourceId::from_requester(3 << 3);

#[test]
fn a_page_comes_and_goes() {
    let setup = QemuSetup::new(Accelerator::Jumping).device("edu,addr=3,dma_mask=0xffffffffffffffff");
    let machine = QemuMachine::start(setup).unwrap_or_else(|error| panic!("{error}"));
    let host = machine.host();
    let unit = Arc::new(Unit::bring_up(VtdMmio(machine.clone()), host.clone(), UnitConfig::default()).unwrap());
    let edu = Edu::new(&machine.function(EDU)).unwrap();
    let domain = Magazine::open(unit.clone(), host, Protection::Strict).unwrap();
    domain.attach(EDU).unwrap();
    let [from, to] = [(); 2].map(|()| GuestBuffer::new(machine.memory(), 1).unwrap());
    from.write(0, b"through the gate");
    let source = domain.map(from, Access::DeviceReads).unwrap();
    let target = domain.map_shared(to, Access::DeviceWrites).unwrap();
    edu.fetch(source.iova(), 16).unwrap();
    edu.store(target.iova(), 16).unwrap();
    let mut landed = [0; 16];
    // Read while the device may still write to it.
    target.shared().read(0, &mut landed);
    assert_eq!(&landed, b"through the gate");
    let seen_at = target.iova();
    let to = domain.unmap(target).unwrap();
    to.fill(0xee);
    edu.store(seen_at, 16).unwrap();
    to.read(0, &mut landed);
    assert_eq!(landed, [0xee; 16], "S2");
    domain.unmap(source).unwrap();
    let mut faults = Vec::new();
    unit.faults(&mut |fault| faults.push(fault));
    let [fault] = faults[..] else { panic!("{faults:?}") };
    assert_eq!(
        (fault.source, fault.page, fault.request, fault.reason),
        (EDU, seen_at, FaultRequest::Write, FaultReason::NoWrite)
    );
}
