//! The memory of the server: pages for packets, and the rings of the card.

use super::cuts::Cuts;
use super::{Host, ServerWork};
use crate::machine::{Machine, NicDriver, SegmentJoining};
use crate::run::driver::Driver;
use crate::run::live::{Buffer, Live, Slot};
use crate::run::world::{TABLES_BYTES, Wanted, World, tables_base};
use portcullis::{Access, Iova, PAGE_SIZE, PhysAddr, Segment};
use portcullis_model::{
    Completion, DESCRIPTOR_BYTES, Descriptor, Direction, EventQueue, Moderation, Nic, RingConfig, RingFormat,
    RingNumber,
};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// The address of the first packet.
const BUFFERS_BASE: u64 = 1 << 32;
/// Memory for the rings. It is at the end of the memory for tables, where no table is allocated.
const RINGS_BYTES: u64 = 64 << 20;
/// The same if each stride of an entry may have a completion.
const STRIDING_RINGS_BYTES: u64 = 256 << 20;

/// Where the memory behind so many pages for packets begins.
pub(super) fn behind(pages: Slot) -> u64 {
    BUFFERS_BASE + u64::from(pages) * PAGE_SIZE
}

/// The end of the memory for packets, of a driver whose entries are frames.
pub(super) fn end(driver: &NicDriver, work: &ServerWork) -> u64 {
    let cut_bytes = driver.cuts().map_or(0, |layout| Cuts::bytes(layout, cut_runs(driver, work)));
    behind(slots(driver, work)) + cut_bytes
}

/// The memory of the rings.
pub(in crate::run) fn ring_memory(machine: &Machine) -> Segment {
    let is_striding = machine.server.as_ref().is_some_and(|server| server.driver.striding.is_some());
    let len = if is_striding { STRIDING_RINGS_BYTES } else { RINGS_BYTES };
    Segment { phys: PhysAddr::new(tables_base(machine).as_u64() + TABLES_BYTES - len), len }
}

/// More than the number of buffers that can be mapped at once, so that memory is reused late.
fn slots(driver: &NicDriver, work: &ServerWork) -> Slot {
    let receive = driver.receive_rings * work.receive_entries * driver.receive_buffers.len() as u32;
    let transmit = driver.transmit_rings * work.transmit_entries * work.transmit_pieces();
    // With commits in two halves, frames that were sent wait for the next poll, and others take their entries.
    let transmit = if work.halves { 2 * transmit } else { transmit };
    let pages = driver.joins().map_or(0, |joining| joining.pages);
    2 * receive + transmit + 2 * driver.receive_rings * pages
}

/// The runs of which receive buffers are cut. Each buffer may be the last one of its run, and a buffer that was
/// received is in use until its poll ends.
fn cut_runs(driver: &NicDriver, work: &ServerWork) -> u32 {
    let spares = driver.joins().map_or(0, |joining| 2 * joining.packets_max);
    2 * driver.receive_rings * (work.receive_entries + spares) + work.cores
}

/// Pages for packets. The page that has been free for longest is used first. Each page has its own slot.
pub(super) struct Packets {
    free: RefCell<VecDeque<Slot>>,
    /// Receive buffers, if they are not pages.
    cuts: Option<Cuts>,
    /// The slot of the next mapping for a ring. These slots follow those of the pages and of other buffers.
    next_ring: Cell<Slot>,
    /// The start of the unused memory for rings.
    rings: Cell<PhysAddr>,
}

impl Packets {
    pub(super) fn new(machine: &Machine, driver: &NicDriver, work: &ServerWork) -> Self {
        let (pages, runs) = (slots(driver, work), cut_runs(driver, work));
        let others = driver.cuts().map_or(0, |layout| Cuts::slots(layout, runs));
        let cuts = driver.cuts().map(|layout| Cuts::new(layout, behind(pages), pages, runs, work.cores));
        Self { cuts, ..Self::of(machine, pages, others) }
    }

    /// So many pages, after whose slots so many are left for other buffers.
    pub(super) fn of(machine: &Machine, pages: Slot, others: Slot) -> Self {
        Self {
            free: RefCell::new((0..pages).collect()),
            cuts: None,
            next_ring: Cell::new(pages + others),
            rings: Cell::new(ring_memory(machine).phys),
        }
    }

    /// Takes a page, with a buffer of `len` bytes at its beginning.
    pub(super) fn take(&self, len: u32) -> (Slot, Buffer) {
        let slot = self.free.borrow_mut().pop_front().expect("there are more pages than the rings can hold");
        (slot, Buffer::from(Segment { phys: PhysAddr::new(behind(slot)), len: len.into() }))
    }

    /// Takes a receive buffer of `len` bytes on the running core.
    pub(super) fn take_received(&self, host: &Host, len: u32) -> (Slot, Buffer) {
        match &self.cuts {
            Some(cuts) if !cuts.takes_pages(host.is_open.get()) => {
                cuts.take(host.world.engine.current().expect("a core fills the rings"), len)
            }
            _ => self.take(len),
        }
    }

    /// Returns pages and receive buffers.
    pub(super) fn give_back(&self, slots: impl IntoIterator<Item = Slot>) {
        for slot in slots {
            match &self.cuts {
                Some(cuts) if cuts.has(slot) => cuts.give_back(slot),
                _ => self.free.borrow_mut().push_back(slot),
            }
        }
    }

    /// Takes whole pages for at least `bytes` bytes that the driver and the card share, and maps them.
    pub(super) fn map_shared(&self, world: &World, driver: &mut Driver<'_>, bytes: u64) -> Part {
        let (slot, phys, len) = (self.next_ring.get(), self.rings.get(), bytes.next_multiple_of(PAGE_SIZE));
        self.next_ring.set(slot + 1);
        self.rings.set(PhysAddr::new(phys.as_u64() + len));
        driver.map_untouched(slot, &Buffer::from(Segment { phys, len }), Access::DeviceReadsAndWrites, 0);
        // After a refusal, which ends the run, the card has nothing to do there.
        Part { phys, iova: address(world, slot).unwrap_or_default() }
    }
}

/// A part of a ring, as the driver and the card address it.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) phys: PhysAddr,
    pub(super) iova: Iova,
}

/// A ring in memory, as its driver sees it. The card sees the driver's stores, because its reads snoop.
pub(super) struct RingMemory {
    pub(super) config: RingConfig,
    descriptors: PhysAddr,
    completions: PhysAddr,
    record: PhysAddr,
}

/// A ring without its memory.
pub(super) struct RingShape {
    pub(super) direction: Direction,
    pub(super) entries: u32,
    pub(super) pieces: u32,
    pub(super) moderation: Moderation,
    pub(super) vector: u8,
    pub(super) format: RingFormat,
}

impl RingShape {
    /// A transmit ring of a driver whose entries are frames.
    pub(super) fn to_transmit(driver: &NicDriver, work: &ServerWork, index: u32) -> Self {
        // If completions raise an interrupt, it is that of the receive ring.
        let vector = if driver.reaps_every.is_some() { driver.receive_rings + index } else { index };
        Self {
            direction: Direction::Transmit,
            entries: work.transmit_entries,
            pieces: work.transmit_pieces(),
            moderation: driver.transmit_moderation,
            vector: vector as u8,
            format: RingFormat::default(),
        }
    }

    /// A receive ring of such a driver.
    pub(super) fn to_receive(driver: &NicDriver, work: &ServerWork, index: u32) -> Self {
        Self {
            direction: Direction::Receive,
            entries: work.receive_entries,
            pieces: driver.receive_buffers.len() as u32,
            moderation: driver.receive_moderation,
            vector: index as u8,
            format: driver.joins().map_or_else(RingFormat::default, |joining| RingFormat {
                completion_bytes: joining.completion_bytes.into(),
                completions_per_entry: 2, // a packet has one when it begins and one when it ends
                ..RingFormat::default()
            }),
        }
    }

    /// The ring of pages for segments that the card joins in a receive ring.
    pub(super) fn of_pages(driver: &NicDriver, joining: SegmentJoining, index: u32) -> Self {
        Self {
            direction: Direction::Receive,
            entries: joining.pages,
            pieces: 1,
            moderation: driver.receive_moderation,
            vector: index as u8,
            format: RingFormat::default(),
        }
    }

    /// The bytes of memory that it takes: each part has whole pages.
    pub(super) fn bytes(&self) -> u64 {
        self.parts().map(|bytes| bytes.next_multiple_of(PAGE_SIZE)).iter().sum()
    }

    /// The bytes of its descriptors, of its completions and of its record.
    pub(super) fn parts(&self) -> [u64; 3] {
        let (entries, format) = (u64::from(self.entries), &self.format);
        [entries * format.entry_bytes(self.pieces), format.completions(self.entries) * format.completion_bytes, 8]
    }

    /// The ring with these parts in memory.
    pub(super) fn with_memory(
        &self,
        [descriptors, completions, record]: [Part; 3],
        events: Option<EventQueue>,
    ) -> RingMemory {
        let config = RingConfig {
            direction: self.direction,
            entries: self.entries,
            pieces: self.pieces,
            descriptors: descriptors.iova,
            completions: completions.iova,
            record: record.iova,
            moderation: self.moderation,
            vector: self.vector,
            format: self.format,
            events,
        };
        RingMemory { config, descriptors: descriptors.phys, completions: completions.phys, record: record.phys }
    }
}

impl RingMemory {
    /// Writes a descriptor of entry `number`.
    pub(super) fn write(&self, world: &World, number: u32, piece: u32, descriptor: Descriptor) {
        let offset = self.config.entry_offset(number) + u64::from(piece) * DESCRIPTOR_BYTES;
        store(world, self.descriptors, offset, &descriptor.words());
    }

    /// Writes the number of entries ever filled, and tells the card to look at it.
    pub(super) fn ring_doorbell(&self, world: &World, nic: &RefCell<Nic>, number: RingNumber, filled: u32) {
        world.engine.sync();
        store(world, self.record, 0, &[filled.into()]);
        nic.borrow_mut().doorbell(world.engine.now_ps(), number);
        world.engine.notify(Wanted::Link.into());
    }

    /// Reads completion `number`, if it has landed.
    pub(super) fn completion(&self, world: &World, number: u32) -> Option<Completion> {
        world.vtd.advance(world.engine.now_ps());
        let word = |offset| world.vtd.ram().read_u64(PhysAddr::new(self.completions.as_u64() + offset));
        self.config.completion(number, word)
    }
}

/// The address of the buffer of a slot for the card, if it is mapped.
pub(super) fn address(world: &World, slot: Slot) -> Option<Iova> {
    let start = |live: &Live| live.address_of(0, live.segments.first()?.phys.page_offset());
    world.look(slot, start).flatten().map(|(iova, _)| iova)
}

fn store(world: &World, base: PhysAddr, offset: u64, words: &[u64]) {
    for (at, word) in (base.as_u64() + offset..).step_by(8).zip(words) {
        assert!(world.vtd.ram().write_u64(PhysAddr::new(at), *word), "rings lie in memory");
    }
}
