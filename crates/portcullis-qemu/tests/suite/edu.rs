//! The driver and a domain on QEMU's VT-d: a page is mapped, written by a device, unmapped, and out of reach.

use portcullis::designs::Magazine;
use portcullis::iommu::SourceId;
use portcullis::{Access, Domain, PAGE_SIZE, Protection};
use portcullis_qemu::edu::Edu;
use portcullis_qemu::{Accelerator, Buffers, QemuMachine, QemuSetup, VtdMmio};
use portcullis_vtd::spec::faults::{FaultReason, FaultRequest};
use portcullis_vtd::{Unit, UnitConfig};
use std::sync::Arc;

const EDU: SourceId = SourceId(3 << 3);

#[test]
fn a_page_comes_and_goes() {
    let setup = QemuSetup::new(Accelerator::Jumping).device("edu,addr=3,dma_mask=0xffffffffffffffff");
    let machine = QemuMachine::start(setup).unwrap_or_else(|error| panic!("{error}"));
    let (host, memory) = (machine.host(), machine.memory().clone());
    let unit = Arc::new(Unit::bring_up(VtdMmio(machine.clone()), host.clone(), UnitConfig::default()).unwrap());
    let edu = Edu::new(&machine.function(EDU)).unwrap();
    let domain = Domain::<Magazine, _, _>::new(unit.clone(), host, Protection::Strict).unwrap();
    domain.attach(EDU).unwrap();
    let mut buffers = Buffers::of(&memory);
    let [from, to] = [(); 2].map(|()| buffers.take(1).unwrap());
    memory.write(from, b"through the gate");
    // SAFETY: nothing of Rust lies in the memory of a machine.
    let source = unsafe { domain.map_raw(from, PAGE_SIZE, Access::DeviceReads) }.unwrap();
    // SAFETY: nothing of Rust lies in the memory of a machine.
    let target = unsafe { domain.map_raw(to, PAGE_SIZE, Access::DeviceWrites) }.unwrap();
    edu.fetch(source, 16).unwrap();
    edu.store(target, 16).unwrap();
    let mut landed = [0; 16];
    memory.read(to, &mut landed);
    assert_eq!(&landed, b"through the gate");
    domain.unmap_raw(target, PAGE_SIZE).unwrap();
    memory.fill(to, 16, 0xee);
    edu.store(target, 16).unwrap();
    memory.read(to, &mut landed);
    assert_eq!(landed, [0xee; 16], "S2");
    let mut faults = Vec::new();
    unit.faults(&mut |fault| faults.push(fault));
    let [fault] = faults[..] else { panic!("{faults:?}") };
    assert_eq!(
        (fault.source, fault.page, fault.request, fault.reason),
        (EDU, target, FaultRequest::Write, FaultReason::NoWrite)
    );
}
