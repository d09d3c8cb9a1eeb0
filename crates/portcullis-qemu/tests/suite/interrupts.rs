//! Beside another driver that remaps interrupts with the same unit, and whose invalidation queue this driver takes.

use portcullis::designs::Portcullis;
use portcullis::{Access, Open, PhysAddr, Protection, QueueError, SourceId};
use portcullis_qemu::edu::Edu;
use portcullis_qemu::{Accelerator, GuestBuffer, QemuMachine, QemuSetup, VTD_BASE, VtdMmio};
use portcullis_vtd::spec::descriptors::{InvalidationDescriptor, StatusWrite};
use portcullis_vtd::spec::registers::{GCMD, GSTS, IQA, IQT, global};
use portcullis_vtd::{BringUpError, Interrupts, TakeOver, Unit, UnitConfig};
use std::sync::Arc;

const EDU: SourceId = SourceId::from_requester(3 << 3);
/// Pages at the end of memory, where nothing is allocated: the interrupt table, the queue and its status.
const TABLE: PhysAddr = PhysAddr::new(0x0fff_0000);
const QUEUE: PhysAddr = PhysAddr::new(0x0fff_1000);
const STATUS: PhysAddr = PhysAddr::new(0x0fff_2000);
/// The interrupt table address register (§10.4.30).
const IRTA: u32 = 0xb8;
/// 256 entries.
const TABLE_SIZE: u64 = 7;

/// The other driver.
struct Remapper {
    machine: Arc<QemuMachine>,
    tail: u64,
    waits: u32,
}

impl Remapper {
    /// Turns its queue and interrupt remapping on.
    fn start(machine: &Arc<QemuMachine>) -> Self {
        let remapper = Self { machine: machine.clone(), tail: 0, waits: 0 };
        machine.memory().fill(TABLE, 0x3000, 0);
        remapper.write64(IRTA, TABLE.as_u64() | TABLE_SIZE);
        remapper.command(global::INTERRUPT_TABLE);
        remapper.write64(IQT, 0);
        remapper.write64(IQA, QUEUE.as_u64());
        remapper.command(global::QUEUED_INVALIDATION);
        remapper.command(global::INTERRUPT_REMAPPING);
        remapper
    }

    fn write64(&self, offset: u32, value: u64) {
        self.machine.write64(VTD_BASE + u64::from(offset), value);
    }

    fn status(&self) -> u32 {
        self.machine.read32(VTD_BASE + u64::from(GSTS)) & !global::ONE_SHOT
    }

    fn command(&self, bit: u32) {
        self.machine.write32(VTD_BASE + u64::from(GCMD), self.status() | bit);
        assert_eq!(self.machine.read32(VTD_BASE + u64::from(GSTS)) & bit, bit, "{bit:#x}");
    }

    /// Invalidates all interrupt entries through its own queue. Returns whether the hardware has done so.
    fn invalidate(&mut self) -> bool {
        self.waits += 1;
        let status = Some(StatusWrite { address: STATUS, data: self.waits });
        let wait = InvalidationDescriptor::Wait { status, interrupt: false, fence: false, drain_page_requests: false };
        for words in [all_entries(), wait.encode()] {
            for (at, word) in (0..).step_by(8).zip(words) {
                self.machine.memory().write_u64(PhysAddr::new(QUEUE.as_u64() + self.tail + at), word);
            }
            self.tail += 16;
        }
        self.write64(IQT, self.tail);
        self.machine.memory().read_u64(STATUS) as u32 == self.waits
    }
}

/// The command for all interrupt entries.
fn all_entries() -> [u64; 2] {
    InvalidationDescriptor::InterruptEntryCache { entries: None }.encode()
}

#[test]
fn a_unit_that_remaps_interrupts_is_shared_and_handed_back() {
    const REMAPS: u32 = global::INTERRUPT_REMAPPING | global::QUEUED_INVALIDATION;
    let setup = QemuSetup::new(Accelerator::Jumping).device("edu,addr=3,dma_mask=0xffffffffffffffff");
    let machine = QemuMachine::start(setup).unwrap();
    let mut remapper = Remapper::start(&machine);
    assert!(remapper.invalidate(), "its queue works");

    let mmio = || VtdMmio(machine.clone());
    let refused = Unit::bring_up(mmio(), machine.host(), UnitConfig::default()).err();
    assert_eq!(refused, Some(BringUpError::RemapsInterrupts));

    let foreign = UnitConfig { interrupts: Interrupts::Foreign, ..UnitConfig::default() };
    for round in 0..3 {
        let prepared = Unit::prepare(mmio(), machine.host(), foreign, TakeOver::Never, |_| Ok(())).unwrap();
        assert!(remapper.invalidate(), "prepared, and not taken");
        // SAFETY: the other driver has waited for its commands, and uses `submit_words` from now on.
        let unit = Arc::new(unsafe { prepared.switch() }.unwrap());
        assert_eq!(remapper.status(), REMAPS | global::TRANSLATION);
        unit.submit_words(&[all_entries(); 70]).unwrap();

        // Both users of the queue, while a device works.
        let host = machine.host();
        let domain = Portcullis::open(&unit, &host, Protection::Strict).unwrap();
        domain.attach(EDU).unwrap();
        let edu = Edu::new(&machine.function(EDU)).unwrap();
        let buffer = GuestBuffer::new(machine.memory(), 1).unwrap();
        buffer.write(0, &[0xee; 16]);
        let mapping = domain.map(buffer, Access::DeviceWrites).unwrap();
        let at = mapping.iova();
        edu.store(at, 8).unwrap();
        unit.submit_words(&[all_entries()]).unwrap();
        let buffer = domain.unmap(mapping).unwrap();
        let mut bytes = [0; 16];
        buffer.read(0, &mut bytes);
        assert_eq!(bytes, [[0; 8], [0xee; 8]].concat()[..], "round {round}");
        edu.store(at, 8).unwrap();
        let mut faults = 0;
        unit.faults(&mut |_| faults += 1).unwrap();
        assert!(faults > 0, "S2");
        // A command that the hardware refuses is told to the one who made it, and the queue goes on.
        assert_eq!(unit.submit_words(&[[0xf, 0]]), Err(QueueError::Descriptor));
        unit.submit_words(&[all_entries()]).unwrap();
        domain.detach(EDU).unwrap();
        drop(domain);

        let Ok(unit) = Arc::try_unwrap(unit) else { panic!("the domain has gone") };
        // SAFETY: the only device is idle.
        unsafe { unit.shut_down() }.unwrap();
        assert_eq!(remapper.status(), REMAPS);
        // Its queue is empty, and begins at its first slot.
        remapper.tail = 0;
        assert!(remapper.invalidate(), "it has its queue again");
    }
}
