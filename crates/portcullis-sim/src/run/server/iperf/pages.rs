//! The pages of the receive rings, and who holds them: the driver, or sockets that have not been read.

use crate::run::live::{Buffer, Slot};
use crate::run::server::choices::Recycling;
use crate::run::server::memory::Packets;
use portcullis::PAGE_SIZE;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Pages, and how many holders each has apart from the driver.
pub(super) struct Pages {
    packets: Packets,
    held: RefCell<Vec<u16>>,
    /// Whether the driver has the page, by slot.
    is_driver: RefCell<Vec<bool>>,
    /// Whether a page that a socket holds cannot be used again.
    holds: bool,
}

impl Pages {
    pub(super) fn new(packets: Packets, slots: Slot, holds: bool) -> Self {
        let slots = slots as usize;
        Self { packets, held: RefCell::new(vec![0; slots]), is_driver: RefCell::new(vec![false; slots]), holds }
    }

    /// Takes a page for the driver.
    pub(super) fn take(&self) -> (Slot, Buffer) {
        let (slot, buffer) = self.packets.take(PAGE_SIZE as u32);
        self.is_driver.borrow_mut()[slot as usize] = true;
        (slot, buffer)
    }

    /// A socket holds a page.
    pub(super) fn hold(&self, slot: Slot) {
        self.held.borrow_mut()[slot as usize] += 1;
    }

    /// A socket has been read.
    pub(super) fn let_go(&self, slot: Slot) {
        let held = {
            let held = &mut self.held.borrow_mut()[slot as usize];
            *held -= 1;
            *held
        };
        if held == 0 && !self.is_driver.borrow()[slot as usize] {
            self.packets.give_back([slot]);
        }
    }

    /// Whether a page cannot be used again, because a socket holds it.
    fn is_in_use(&self, slot: Slot) -> bool {
        self.holds && self.is_held(slot)
    }

    /// Whether a socket holds a page.
    fn is_held(&self, slot: Slot) -> bool {
        self.held.borrow()[slot as usize] > 0
    }

    /// The driver has unmapped a page and forgets it.
    pub(super) fn release(&self, slot: Slot) {
        self.is_driver.borrow_mut()[slot as usize] = false;
        if !self.is_held(slot) {
            self.packets.give_back([slot]);
        }
    }

    /// The memory of rings, and of sent headers.
    pub(super) fn packets(&self) -> &Packets {
        &self.packets
    }
}

/// The released pages of a ring that stay mapped.
pub(super) struct Cache {
    rule: Recycling,
    pages: RefCell<VecDeque<Slot>>,
    most: usize,
    /// How many pages were used again, came from the allocator, and were unmapped.
    pub(super) again: Cell<u64>,
    pub(super) fresh: Cell<u64>,
    pub(super) unmapped: Cell<u64>,
}

impl Cache {
    pub(super) fn new(rule: Recycling, most: usize) -> Self {
        let most = match rule {
            Recycling::Driver => most,
            Recycling::Never => 0,
            Recycling::Always => usize::MAX,
        };
        let count = Cell::default;
        Self { rule, pages: RefCell::default(), most, again: count(), fresh: count(), unmapped: count() }
    }

    /// Keeps a released page. Returns false if there is no room, so that it has to be unmapped.
    pub(super) fn keep(&self, slot: Slot) -> bool {
        let has_room = self.pages.borrow().len() < self.most;
        if has_room {
            self.pages.borrow_mut().push_back(slot);
        } else {
            self.note_unmapped();
        }
        has_room
    }

    /// Notes a page that the driver unmaps.
    pub(super) fn note_unmapped(&self) {
        self.unmapped.set(self.unmapped.get() + 1);
    }

    /// Takes a page that is still mapped, if there is one to be used again.
    pub(super) fn take(&self, pages: &Pages) -> Option<Slot> {
        let mut kept = self.pages.borrow_mut();
        let head = kept.front().copied();
        match head.filter(|head| self.rule == Recycling::Always || !pages.is_in_use(*head)) {
            Some(head) => {
                kept.pop_front();
                self.again.set(self.again.get() + 1);
                Some(head)
            }
            None => {
                self.fresh.set(self.fresh.get() + 1);
                None
            }
        }
    }
}
