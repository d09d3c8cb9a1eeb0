//! The server's memory: pages of packets, and the rings that the card reads and writes.

use super::ServerWork;
use crate::machine::{Machine, NicDriver};
use crate::run::live::{Buffer, Slot};
use crate::run::world::{TABLES_BYTES, World, tables_base};
use portcullis::{Iova, PAGE_SIZE, PhysAddr, Segment};
use portcullis_model::{COMPLETION_BYTES, Completion, DESCRIPTOR_BYTES, Descriptor, Direction, Moderation, RingConfig};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Where packets lie.
const BUFFERS_BASE: u64 = 1 << 32;
/// Room for the rings: at the end of the memory that has bytes, where no table is ever allocated.
const RINGS_BYTES: u64 = 64 << 20;

/// One past the last byte of the packets.
pub(in crate::run) fn buffers_end(driver: &NicDriver, work: &ServerWork) -> u64 {
    BUFFERS_BASE + u64::from(slots(driver, work)) * PAGE_SIZE
}

/// The memory of the rings.
pub(in crate::run) fn ring_memory(machine: &Machine) -> Segment {
    let phys = PhysAddr::new(tables_base(machine).as_u64() + TABLES_BYTES - RINGS_BYTES);
    Segment { phys, len: RINGS_BYTES }
}

/// Buffers that may be mapped at once, and as many again: memory is used again as late as can be.
fn slots(driver: &NicDriver, work: &ServerWork) -> Slot {
    let receive = driver.receive_rings * work.receive_entries * driver.receive_buffers.len() as u32;
    let transmit = driver.transmit_rings * work.transmit_entries * 2;
    2 * (receive + transmit)
}

/// Pages for packets: of those that are free, the one that has been for longest comes first. Each has a slot of its own.
pub(super) struct Packets {
    free: RefCell<VecDeque<Slot>>,
    /// The slot of the next mapping of a ring, behind those.
    next_ring: Cell<Slot>,
    /// The memory of rings that is not used yet.
    rings: Cell<PhysAddr>,
}

impl Packets {
    pub(super) fn new(machine: &Machine, driver: &NicDriver, work: &ServerWork) -> Self {
        let slots = slots(driver, work);
        Self {
            free: RefCell::new((0..slots).collect()),
            next_ring: Cell::new(slots),
            rings: Cell::new(ring_memory(machine).phys),
        }
    }

    /// A page with a buffer of `len` bytes at its beginning.
    pub(super) fn take(&self, len: u32) -> (Slot, Buffer) {
        let slot = self.free.borrow_mut().pop_front().expect("twice as many as the rings can hold");
        let phys = PhysAddr::new(BUFFERS_BASE + u64::from(slot) * PAGE_SIZE);
        (slot, Buffer::from(Segment { phys, len: len.into() }))
    }

    /// Takes pages back.
    pub(super) fn give_back(&self, slots: impl IntoIterator<Item = Slot>) {
        self.free.borrow_mut().extend(slots);
    }

    /// Whole pages of a ring with at least so many bytes.
    pub(super) fn ring(&self, bytes: u64) -> (Slot, Segment) {
        let (slot, phys, len) = (self.next_ring.get(), self.rings.get(), bytes.next_multiple_of(PAGE_SIZE));
        self.next_ring.set(slot + 1);
        self.rings.set(PhysAddr::new(phys.as_u64() + len));
        (slot, Segment { phys, len })
    }
}

/// A part of a ring: where its driver finds it, and where the card does.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) phys: PhysAddr,
    pub(super) iova: Iova,
}

/// A ring in memory, as its driver sees it. What the driver stores there the card sees, for its reads snoop.
pub(super) struct RingMemory {
    pub(super) config: RingConfig,
    descriptors: PhysAddr,
    completions: PhysAddr,
    record: PhysAddr,
}

/// What a ring is like, without its memory.
pub(super) struct RingShape {
    pub(super) direction: Direction,
    pub(super) entries: u32,
    pub(super) pieces: u32,
    pub(super) moderation: Moderation,
    pub(super) vector: u8,
}

impl RingShape {
    /// Bytes of its descriptors, its completions and its record.
    pub(super) fn parts(&self) -> [u64; 3] {
        let entries = u64::from(self.entries);
        [entries * u64::from(self.pieces) * DESCRIPTOR_BYTES, entries * COMPLETION_BYTES, 8]
    }

    /// The ring with these parts.
    pub(super) fn with_memory(&self, [descriptors, completions, record]: [Part; 3]) -> RingMemory {
        let config = RingConfig {
            direction: self.direction,
            entries: self.entries,
            pieces: self.pieces,
            descriptors: descriptors.iova,
            completions: completions.iova,
            record: record.iova,
            moderation: self.moderation,
            vector: self.vector,
        };
        RingMemory { config, descriptors: descriptors.phys, completions: completions.phys, record: record.phys }
    }
}

impl RingMemory {
    /// Writes a buffer of entry `number`.
    pub(super) fn write(&self, world: &World, number: u32, piece: u32, descriptor: Descriptor) {
        let offset = self.config.entry_offset(number) + u64::from(piece) * DESCRIPTOR_BYTES;
        store(world, self.descriptors, offset, &descriptor.words());
    }

    /// Writes how many entries have ever been filled.
    pub(super) fn write_record(&self, world: &World, filled: u32) {
        store(world, self.record, 0, &[filled.into()]);
    }

    /// Completion `number`, if it has landed.
    pub(super) fn completion(&self, world: &World, number: u32) -> Option<Completion> {
        world.vtd.advance(world.engine.now_ps());
        let at = self.completions.as_u64() + self.config.completion_offset(number);
        let word = |offset| world.vtd.ram().read_u64(PhysAddr::new(at + offset));
        let completion = Completion::of([word(0)?, word(8)?]);
        (completion.serial == number.wrapping_add(1)).then_some(completion)
    }
}

fn store(world: &World, base: PhysAddr, offset: u64, words: &[u64]) {
    let bytes: smallvec::SmallVec<[u8; 16]> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let is_there = world.vtd.ram().write_bytes(PhysAddr::new(base.as_u64() + offset), &bytes);
    assert!(is_there, "rings lie in memory");
}
