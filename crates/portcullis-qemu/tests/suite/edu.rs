//! The driver and a domain on QEMU's VT-d: a page is mapped, written by a device, unmapped, and then out of reach.

use portcullis::iommu::SourceId;
use portcullis::{Access, DomainConfig, DynDomain, Open, Protection, Rule};
use portcullis_designs::{DesignId, Magazine};
use portcullis_qemu::edu::Edu;
use portcullis_qemu::{Accelerator, GuestBuffer, QemuMachine, QemuSetup, VtdMmio};
use portcullis_vtd::spec::faults::{FaultReason, FaultRequest};
use portcullis_vtd::{Unit, UnitConfig};
use std::sync::Arc;

const EDU: SourceId = SourceId::from_requester(3 << 3);

fn start() -> Arc<QemuMachine> {
    let setup = QemuSetup::new(Accelerator::Jumping).device("edu,addr=3,dma_mask=0xffffffffffffffff");
    QemuMachine::start(setup).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_page_comes_and_goes() {
    let machine = start();
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
    unit.faults(&mut |fault| faults.push(fault)).unwrap();
    let [fault] = faults[..] else { panic!("{faults:?}") };
    assert_eq!(
        (fault.source, fault.page, fault.request, fault.reason),
        (EDU, seen_at, FaultRequest::Write, FaultReason::NoWrite)
    );
}

/// Two batches are in flight. After the wait for each, the device reaches none of its buffers, under every design that
/// keeps S2.
#[test]
fn buffers_are_out_of_reach_after_their_wait() {
    let machine = start();
    let host = machine.host();
    let unit = Arc::new(Unit::bring_up(VtdMmio(machine.clone()), host.clone(), UnitConfig::default()).unwrap());
    let edu = Edu::new(&machine.function(EDU)).unwrap();
    let mut designs = 0;
    for design in DesignId::ALL {
        let info = design.info();
        let is_strict =
            info.protections.contains(&Protection::Strict) && !info.breaks(Protection::Strict, Rule::Strict);
        if !is_strict || info.is_hypothetical() {
            continue;
        }
        designs += 1;
        let config = DomainConfig::new(Protection::Strict);
        let domain = DynDomain::open(*design, unit.clone(), host.clone(), &config).unwrap();
        domain.attach(EDU).unwrap();
        let page = || GuestBuffer::new(machine.memory(), 1).unwrap();
        let from = page();
        from.write(0, b"through the gate");
        let source = domain.map(from, Access::DeviceReads).unwrap();
        edu.fetch(source.iova(), 16).unwrap();
        let mut landed = [0; 16];
        let submitted = [(); 2].map(|()| {
            let (mut batch, mut iovas) = (domain.batch(), Vec::new());
            for _ in 0..2 {
                let target = domain.map_shared(page(), Access::DeviceWrites).unwrap();
                edu.store(target.iova(), 16).unwrap();
                target.shared().read(0, &mut landed);
                assert_eq!(&landed, b"through the gate", "{}", info.id);
                iovas.push(target.iova());
                batch.unmap(target).unwrap();
            }
            (batch.submit().unwrap(), iovas)
        });
        for (submitted, iovas) in submitted.into_iter().rev() {
            for (buffer, iova) in submitted.wait().unwrap().into_iter().zip(iovas) {
                buffer.fill(0xee);
                edu.store(iova, 16).unwrap();
                buffer.read(0, &mut landed);
                assert_eq!(landed, [0xee; 16], "{}: {}", info.id, Rule::Strict);
            }
        }
        domain.unmap(source).unwrap();
    }
    assert!(designs > 7, "{designs} designs");
}
