//! The ring of pages for segments that the card joins, and what the driver keeps for packets that have not ended.

use super::Host;
use super::memory::{Packets, Part, RingMemory, RingShape, address};
use crate::machine::{NicDriver, SegmentJoining};
use crate::run::driver::Driver;
use crate::run::live::{Buffer, Slot};
use portcullis::{Access, Iova, PAGE_SIZE, PhysAddr};
use portcullis_model::{Descriptor, Joins, RingNumber};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;

/// The pages of a receive ring.
pub(super) struct PageRing {
    joining: SegmentJoining,
    shape: RingShape,
    /// The stream for the memory of the ring. The next number is the stream for its pages.
    stream: u32,
    open: OnceCell<(RingNumber, RingMemory)>,
    /// The mapped page of each entry, and whether it is new and was not given to the card.
    pages: RefCell<Vec<(Slot, bool)>>,
    /// How many entries were ever given to the card.
    given: Cell<u32>,
    /// The first buffer of each packet that has not ended, by the number of its entry.
    first: RefCell<BTreeMap<u32, Slot>>,
    /// Buffers that are not mapped, for entries in which a packet begins.
    spares: RefCell<Vec<(Slot, Buffer)>>,
}

impl PageRing {
    pub(super) fn new(driver: &NicDriver, index: u32, stream: u32) -> Option<Self> {
        driver.joins().map(|joining| Self {
            joining,
            shape: RingShape::of_pages(driver, joining, index),
            stream,
            open: OnceCell::new(),
            pages: RefCell::default(),
            given: Cell::new(0),
            first: RefCell::default(),
            spares: RefCell::default(),
        })
    }

    fn open_ring(&self) -> &(RingNumber, RingMemory) {
        self.open.get().expect("the card is open")
    }

    /// Maps and opens the ring. Returns how the card joins segments with it.
    pub(super) fn open(&self, host: &Host, driver: &mut Driver<'_>, packets: &Packets) -> Joins {
        driver.serve(self.stream);
        let [descriptors, _, record] = self.shape.parts().map(|bytes| packets.map_shared(&host.world, driver, bytes));
        // No completion is ever written for a page alone.
        let none = Part { phys: PhysAddr::new(0), iova: Iova::new(0) };
        let memory = self.shape.with_memory([descriptors, none, record], None);
        let pages = host.nic.borrow_mut().open(memory.config);
        let is_new = self.open.set((pages, memory)).is_ok();
        assert!(is_new, "the card is opened once");
        let SegmentJoining { joined_bytes, packets_max, silence_ps, .. } = self.joining;
        Joins { pages, page_bytes: PAGE_SIZE as u32, bytes_max: joined_bytes, packets_max, silence_ps }
    }

    /// Takes the spare buffers, and then maps all pages, as bnx2x does.
    pub(super) fn fill(&self, host: &Host, driver: &mut Driver<'_>, packets: &Packets) {
        (0..self.joining.packets_max).for_each(|_| self.take_spare(host, packets));
        for entry in 0..self.joining.pages {
            let Some(slot) = self.map(host, driver, packets, entry) else { return };
            self.pages.borrow_mut().push((slot, false));
        }
        self.give(host, self.joining.pages);
    }

    fn take_spare(&self, host: &Host, packets: &Packets) {
        self.spares.borrow_mut().push(packets.take_received(host, host.server.driver.receive_buffers[0]));
    }

    /// A buffer for the entry in which a packet begins.
    pub(super) fn spare(&self) -> (Slot, Buffer) {
        self.spares.borrow_mut().pop().expect("there is one for each packet that can be open")
    }

    /// Keeps the first buffer of a packet, which stays mapped.
    pub(super) fn begin(&self, entry: u32, buffer: Slot) {
        self.first.borrow_mut().insert(entry, buffer);
    }

    /// Gives back the first buffer of a packet that has ended, for which another spare is taken.
    pub(super) fn end(&self, host: &Host, packets: &Packets, entry: u32) -> Option<Slot> {
        self.take_spare(host, packets);
        self.first.borrow_mut().remove(&entry)
    }

    /// The page of an entry.
    pub(super) fn page(&self, entry: u16) -> Slot {
        self.pages.borrow()[usize::from(entry)].0
    }

    /// Maps a new page for an entry, and notes it. Returns false after a refusal.
    pub(super) fn renew(&self, host: &Host, driver: &mut Driver<'_>, packets: &Packets, entry: u16) -> bool {
        let Some(slot) = self.map(host, driver, packets, entry.into()) else { return false };
        self.pages.borrow_mut()[usize::from(entry)] = (slot, true);
        true
    }

    fn map(&self, host: &Host, driver: &mut Driver<'_>, packets: &Packets, entry: u32) -> Option<Slot> {
        let bytes = PAGE_SIZE as u32;
        let (slot, buffer) = packets.take(bytes);
        driver.serve(self.stream + 1);
        driver.map_untouched(slot, &buffer, Access::DeviceWrites, 0);
        let iova = address(&host.world, slot)?;
        self.open_ring().1.write(&host.world, entry, 0, Descriptor { iova, bytes, ..Descriptor::default() });
        Some(slot)
    }

    /// Gives the card those blocks of pages that are new, in the order of the ring.
    pub(super) fn give_blocks(&self, host: &Host) {
        let mut given = 0;
        loop {
            let start = (self.given.get().wrapping_add(given) % self.joining.pages) as usize;
            let end = (start + self.joining.block_pages as usize).min(self.joining.pages as usize);
            let mut pages = self.pages.borrow_mut();
            let block = &mut pages[start..end];
            if !block.iter().all(|(_, is_new)| *is_new) {
                break;
            }
            block.iter_mut().for_each(|(_, is_new)| *is_new = false);
            given += block.len() as u32;
        }
        if given > 0 {
            self.give(host, given);
        }
    }

    fn give(&self, host: &Host, pages: u32) {
        let (number, memory) = self.open_ring();
        self.given.set(self.given.get().wrapping_add(pages));
        memory.ring_doorbell(&host.world, &host.nic, *number, self.given.get());
    }
}
