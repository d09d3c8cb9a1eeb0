//! Brings a VT-d unit up from nothing, as a kernel does: from the table that firmware left, to a device that reaches
//! one buffer and then no longer reaches it. Only the access to tables and registers is particular to QEMU. The rest
//! is the same on a real machine.

use portcullis::designs::Magazine;
use portcullis::{Access, IovaRange, Open, PhysAddr, Protection, SourceId};
use portcullis_qemu::edu::Edu;
use portcullis_qemu::{Accelerator, GuestBuffer, QemuMachine, QemuSetup, acpi_tables, find_table};
use portcullis_vtd::dmar::Dmar;
use portcullis_vtd::spec::faults::FaultReason;
use portcullis_vtd::{Mmio, Unit, UnitConfig};
use std::error::Error;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The PCI segment and the function of the device that gets access: 00:03.0.
const SEGMENT: u16 = 0;
const DEVICE: SourceId = SourceId::from_requester(3 << 3);

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let setup = QemuSetup::new(Accelerator::Jumping).device("edu,addr=3,dma_mask=0xffffffffffffffff");
    let machine = QemuMachine::start(setup)?;
    let memory = machine.memory().clone();

    // The table. A kernel finds it through the RSDP. Here QEMU provides what firmware would have placed.
    let tables = acpi_tables(&machine)?;
    let dmar = Dmar::parse(find_table(&tables, *b"DMAR").ok_or("firmware left no DMAR table")?)?;

    // The unit that serves the device. The table names a device behind bridges by the path to it, and the bridges
    // hold the bus numbers on that path. So PCI must be enumerated by now.
    let buses = |bridge| buses_behind(&machine, bridge);
    let found = dmar.unit_for(SEGMENT, DEVICE, buses).ok_or("no unit serves the device")?;
    println!("the unit at {} serves the device", found.register_base);

    // Every device must be quiet by now, because `bring_up` shuts every device out, and all DMA of a device faults
    // until it is attached to a domain. That includes devices with reserved regions. The module `dmar` explains how a
    // domain maps such a region to itself, and what to do with these devices before.
    let registers = Registers { machine: machine.clone(), base: found.register_base };
    let (physical_bits, segment) = (dmar.host_address_bits(), found.segment);
    let config = UnitConfig { physical_bits, segment, ..UnitConfig::default() };
    let unit = Unit::bring_up(registers, machine.host(), config)?;

    // A domain that hands out no address of a reserved region. If several devices share a domain, it needs the
    // regions of all of them. The memory windows of the bridges above them belong here too.
    let reserved: Vec<IovaRange> = dmar.reserved_for(SEGMENT, DEVICE, buses).collect();
    println!("{} regions are reserved for it", reserved.len());
    let config = portcullis::DomainConfig { reserved: &reserved, ..portcullis::DomainConfig::new(Protection::Strict) };
    let domain = Magazine::open_with(&unit, machine.host(), &config)?;
    domain.attach(DEVICE)?;

    // One DMA in each direction. The buffers are mapped before and unmapped after.
    let edu = Edu::new(&machine.function(DEVICE))?;
    let (from, to) = (GuestBuffer::new(&memory, 1)?, GuestBuffer::new(&memory, 1)?);
    from.write(0, b"through the gate");
    let source = domain.map(from, Access::DeviceReads).map_err(|failure| failure.error())?;
    let target = domain.map(to, Access::DeviceWrites).map_err(|failure| failure.error())?;
    let seen_at = target.iova();
    edu.fetch(source.iova(), 16)?;
    edu.store(seen_at, 16)?;
    domain.unmap(source).map_err(|failure| failure.error())?;
    let to = domain.unmap(target).map_err(|failure| failure.error())?;
    let mut landed = [0; 16];
    to.read(0, &mut landed);
    assert_eq!(&landed, b"through the gate");
    println!("it wrote \"{}\" to {to:?}, which it saw at {seen_at}", landed.escape_ascii());

    // The unmap has returned, so only this program can access the buffer (S2). A device that still writes to it is
    // refused, and the fault is recorded. The driver keeps the unit's fault interrupt masked, so a kernel must poll
    // for faults from time to time.
    to.fill(0);
    edu.store(seen_at, 16)?;
    to.read(0, &mut landed);
    assert_eq!(landed, [0; 16]);
    let mut faults = Vec::new();
    unit.faults(&mut |fault| faults.push(fault))?;
    let [fault] = faults[..] else { return Err(format!("expected one fault, found {faults:?}").into()) };
    assert_eq!((fault.source, fault.page, fault.reason), (DEVICE, seen_at, FaultReason::NoWrite));
    println!("afterwards it was refused: {:?} at {}", fault.reason, fault.page);

    // Teardown is in reverse order: the domain detaches its device, and waits until the unit has dropped it, before
    // its tables are freed (S10). A unit that is shut down lets every device through again, so devices must be quiet
    // by then.
    drop(domain);
    // SAFETY: the only device behind the unit does nothing any more.
    unsafe { unit.shut_down() }?;
    assert_eq!(memory.tables_lent(), 0);
    Ok(())
}

/// The registers of a unit. A kernel maps them uncached from the base on, and accesses them by volatile loads and
/// stores.
struct Registers {
    machine: Arc<QemuMachine>,
    base: PhysAddr,
}

// SAFETY: these are the registers of the machine's unit, at every call, and only the driver writes them here. The
// unit's devices reach only the memory of the machine.
unsafe impl Mmio for Registers {
    fn read32(&self, offset: u32) -> u32 {
        self.machine.read32(self.base.as_u64() + u64::from(offset))
    }

    fn read64(&self, offset: u32) -> u64 {
        self.machine.read64(self.base.as_u64() + u64::from(offset))
    }

    unsafe fn write32(&self, offset: u32, value: u32) {
        self.machine.write32(self.base.as_u64() + u64::from(offset), value);
    }

    unsafe fn write64(&self, offset: u32, value: u64) {
        self.machine.write64(self.base.as_u64() + u64::from(offset), value);
    }
}

/// The buses behind a bridge, from its secondary to its subordinate bus; `None` if there is no bridge.
pub(crate) fn buses_behind(machine: &Arc<QemuMachine>, bridge: SourceId) -> Option<RangeInclusive<u8>> {
    let function = machine.function(bridge);
    // Bits 22:16 of the fourth word are the header type, which is 1 for a bridge.
    let is_bridge = function.read(0x0c) >> 16 & 0x7f == 1;
    let [_primary, secondary, subordinate, _] = function.read(0x18).to_le_bytes();
    is_bridge.then_some(secondary..=subordinate)
}
