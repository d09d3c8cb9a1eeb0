//! Interrupt remapping of the model, and the driver beside another one that uses it.

use portcullis::iommu::SourceId;
use portcullis::{PAGE_SIZE, PhysAddr};
use portcullis_model::{Clock, Fault, Host, ModelMmio, Parameters, Ram, Vtd};
use portcullis_vtd::spec::descriptors::{InvalidationDescriptor, StatusWrite};
use portcullis_vtd::spec::faults::{FaultReason, FaultRecord};
use portcullis_vtd::spec::interrupts::{Interrupt, InterruptEntry, InterruptRequest, Validation};
use portcullis_vtd::spec::registers::{GCMD, GSTS, IQA, IQT, IRTA, global, interrupt_table};
use portcullis_vtd::{Interrupts, TakeOver, Unit, UnitConfig};
use std::sync::Arc;

const DEVICE: SourceId = SourceId::new(3, 2, 1);
const REMAPS: u32 = global::INTERRUPT_REMAPPING | global::QUEUED_INVALIDATION;
/// 256 entries.
const SIZE: u64 = 7;

/// Another driver, which remaps interrupts.
struct Remapper {
    host: Host,
    vtd: Arc<Vtd>,
    table: PhysAddr,
    queue: PhysAddr,
    tail: u64,
}

impl Remapper {
    fn new() -> Self {
        let ram = Arc::new(Ram::new(PhysAddr::new(0x100_0000), 16 << 20));
        let host = Host::new(ram.clone());
        let vtd = Arc::new(Vtd::new(Parameters::cascadelake(), ram.clone()));
        host.add_hardware(vtd.clone());
        let [table, queue] = [(); 2].map(|()| ram.allocate().expect("memory"));
        let remapper = Self { host, vtd, table, queue, tail: 0 };
        remapper.write(IRTA, 8, table.as_u64() | SIZE);
        remapper.command(global::INTERRUPT_TABLE);
        remapper.write(IQA, 8, queue.as_u64());
        remapper.command(global::QUEUED_INVALIDATION);
        remapper.command(global::INTERRUPT_REMAPPING);
        remapper
    }

    fn write(&self, offset: u32, bytes: u8, value: u64) {
        self.vtd.write_register(self.host.now_ps(), offset, bytes, value);
    }

    fn status(&self) -> u32 {
        self.vtd.read_register(self.host.now_ps(), GSTS, 4) as u32 & !global::ONE_SHOT
    }

    fn command(&self, bit: u32) {
        self.write(GCMD, 4, (self.status() | bit).into());
    }

    fn poke(&self, index: u16, [low, high]: [u64; 2]) {
        let at = self.table.as_u64() + 16 * u64::from(index);
        assert!(self.host.ram().write_u64(PhysAddr::new(at), low));
        assert!(self.host.ram().write_u64(PhysAddr::new(at + 8), high));
    }

    /// Lets entry `index` raise `vector`.
    fn set(&self, index: u16, vector: u8) {
        let interrupt = Interrupt { vector, destination: 0x200 };
        let validation = Validation::Source { source: DEVICE, ignored: 0 };
        self.poke(index, InterruptEntry { interrupt, validation }.encode());
    }

    /// Submits commands through its own queue, and does not wait for them.
    fn submit(&mut self, commands: &[InvalidationDescriptor]) {
        for words in commands.iter().map(|command| command.encode()) {
            for (at, word) in (0..).step_by(8).zip(words) {
                assert!(self.host.ram().write_u64(PhysAddr::new(self.queue.as_u64() + self.tail + at), word));
            }
            self.tail = (self.tail + 16) % PAGE_SIZE;
        }
        self.write(IQT, 8, self.tail);
    }

    /// Does all that is submitted.
    fn settle(&self) {
        self.host.advance_ps(1_000_000_000);
    }

    fn raise(&self, source: SourceId, (address, data): (u64, u32)) -> Result<Interrupt, Fault> {
        self.vtd.interrupt(self.host.now_ps(), source, address, data)
    }

    /// The vector that a request of the device for entry `index` raises.
    fn vector(&self, index: u16) -> Result<u8, FaultReason> {
        let raised = self.raise(DEVICE, InterruptRequest::remappable(index));
        raised.map(|interrupt| interrupt.vector).map_err(|fault| fault.reason)
    }
}

fn drop_entries(first: u16, mask: u8) -> InvalidationDescriptor {
    InvalidationDescriptor::InterruptEntryCache { entries: Some((first, mask)) }
}

#[test]
fn requests_are_remapped_and_refused_by_reason() {
    let remapper = Remapper::new();
    remapper.set(5, 0x41);
    let arrived = remapper.raise(DEVICE, InterruptRequest::remappable(5));
    assert_eq!(arrived, Ok(Interrupt { vector: 0x41, destination: 0x200 }));
    // With a subhandle: entry 3 + 2.
    let (address, _) = InterruptRequest::remappable(3);
    assert_eq!(remapper.raise(DEVICE, (address | 1 << 3, 2)), arrived);

    let reason = |source, request| remapper.raise(source, request).expect_err("it is refused").reason;
    assert_eq!(reason(DEVICE, (address | 1 << 3, 1 << 16)), FaultReason::InterruptReserved);
    assert_eq!(reason(DEVICE, InterruptRequest::remappable(256)), FaultReason::InterruptIndex);
    assert_eq!(reason(DEVICE, InterruptRequest::remappable(6)), FaultReason::InterruptNotPresent);
    assert_eq!(reason(DEVICE, (0xfee0_1000, 0x41)), FaultReason::InterruptCompatibility);
    let neighbour = SourceId::new(3, 2, 0);
    assert_eq!(reason(neighbour, InterruptRequest::remappable(5)), FaultReason::InterruptSource);
    remapper.poke(7, [1, 3 << 18]);
    assert_eq!(reason(DEVICE, InterruptRequest::remappable(7)), FaultReason::InterruptEntryReserved);
    assert_eq!(reason(DEVICE, (0xfed0_0000, 0)), FaultReason::InterruptRange);

    // Compatibility format passes if software says so, and not in extended mode.
    remapper.command(global::COMPATIBILITY_INTERRUPTS);
    assert_eq!(remapper.raise(DEVICE, (0xfee0_1000, 0x41)), Ok(Interrupt { vector: 0x41, destination: 1 }));
    remapper.write(IRTA, 8, remapper.table.as_u64() | SIZE | interrupt_table::EXTENDED);
    remapper.command(global::INTERRUPT_TABLE);
    assert_eq!(reason(DEVICE, (0xfee0_1000, 0x41)), FaultReason::InterruptCompatibility);
    // A table where there is no memory.
    remapper.write(IRTA, 8, SIZE);
    remapper.command(global::INTERRUPT_TABLE);
    assert_eq!(reason(DEVICE, InterruptRequest::remappable(9)), FaultReason::InterruptTableAccess);
    // Off, interrupts arrive as they are requested.
    remapper.write(GCMD, 4, (remapper.status() & !global::INTERRUPT_REMAPPING).into());
    assert_eq!(remapper.raise(neighbour, (0xfee0_1000, 0x41)), Ok(Interrupt { vector: 0x41, destination: 1 }));
}

#[test]
fn an_entry_stays_until_it_is_invalidated() {
    let mut remapper = Remapper::new();
    (8..=16).for_each(|index| remapper.set(index, 0x30));
    assert!((8..=16).all(|index| remapper.vector(index) == Ok(0x30)));
    (8..=16).for_each(|index| remapper.set(index, 0x31));
    assert_eq!(remapper.vector(9), Ok(0x30), "it is cached");
    remapper.submit(&[drop_entries(9, 0)]);
    assert_eq!(remapper.vector(9), Ok(0x30), "the command takes time");
    remapper.settle();
    assert_eq!([8, 9, 10].map(|index| remapper.vector(index)), [Ok(0x30), Ok(0x31), Ok(0x30)]);
    remapper.submit(&[drop_entries(12, 2)]);
    remapper.settle();
    let expected = [Ok(0x30), Ok(0x31), Ok(0x31), Ok(0x31), Ok(0x31), Ok(0x30)];
    assert_eq!([11, 12, 13, 14, 15, 16].map(|index| remapper.vector(index)), expected);
    remapper.submit(&[InvalidationDescriptor::InterruptEntryCache { entries: None }]);
    remapper.settle();
    assert!((8..=16).all(|index| remapper.vector(index) == Ok(0x31)));
}

/// Commands of the other driver take effect, in its queue before the driver takes it and through the driver later: an
/// entry that is not used any more raises nothing.
#[test]
fn another_driver_is_served() {
    let mut remapper = Remapper::new();
    remapper.set(1, 0x30);
    assert_eq!(remapper.vector(1), Ok(0x30));

    // Submitted, and not done when the unit changes hands.
    remapper.set(1, 0x31);
    remapper.submit(&[drop_entries(1, 0)]);
    let config = UnitConfig { interrupts: Interrupts::Foreign, physical_bits: 46, ..UnitConfig::default() };
    let mmio = ModelMmio::new(remapper.vtd.clone(), &remapper.host);
    let unit = Unit::prepare(mmio, &remapper.host, config, TakeOver::Never, |_| Ok(())).expect("a sound unit");
    // SAFETY: the other driver stands still, and uses `submit_words` from now on.
    let unit = unsafe { unit.switch() }.expect("a sound unit");
    assert_eq!(remapper.vector(1), Ok(0x31), "S2: what was queued is lost");
    assert_eq!(remapper.status(), REMAPS | global::TRANSLATION);

    for vector in 0x40..0x60 {
        remapper.set(1, vector);
        unit.submit_words(&[drop_entries(1, 0).encode()]).expect("the queue works");
        assert_eq!(remapper.vector(1), Ok(vector), "S2: an entry is used that was invalidated");
    }
    // A request that is refused is found among the unit's faults.
    assert_eq!(remapper.vector(2), Err(FaultReason::InterruptNotPresent));
    let mut faults = Vec::new();
    unit.faults(&mut |fault| faults.push(fault)).expect("it is there");
    assert_eq!(faults.into_iter().map(FaultRecord::interrupt_index).collect::<Vec<_>>(), [Some(2)]);

    // SAFETY: there is no device.
    unsafe { unit.shut_down() }.expect("it stops");
    assert_eq!(remapper.status(), REMAPS);
    remapper.tail = 0;
    remapper.set(1, 0x70);
    let status = Some(StatusWrite { address: PhysAddr::new(remapper.queue.as_u64() + PAGE_SIZE - 8), data: 1 });
    let wait = InvalidationDescriptor::Wait { status, interrupt: false, fence: false, drain_page_requests: false };
    remapper.submit(&[drop_entries(1, 0), wait]);
    remapper.settle();
    assert_eq!(remapper.vector(1), Ok(0x70));
}
