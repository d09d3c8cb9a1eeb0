//! Table pages that have left the table, but that hardware may still walk.

use crate::address::PhysAddr;
use crate::entry::{Entry, EntryValue};
use crate::platform::{Platform, Step};
use crate::proof::Proof;

/// A list of detached table pages, linked through the pages themselves, so that an unmap never allocates.
///
/// The link lies in the first entry of each page, written as an absent entry, so that a walker that still reads it
/// does not take it for a translation. Dropping the list leaks the pages, which is the safe way to lose them.
#[derive(Debug, Default)]
pub struct FreedTables {
    /// The page that was added last, if there is one.
    head: PhysAddr,
    pages: usize,
}

impl FreedTables {
    /// An empty list.
    pub const fn new() -> Self {
        Self { head: PhysAddr::new(0), pages: 0 }
    }

    /// Whether no page is on the list.
    pub const fn is_empty(&self) -> bool {
        self.pages == 0
    }

    /// Pages on the list.
    pub const fn pages(&self) -> usize {
        self.pages
    }

    /// Adds a page. The returned link must be made visible, unless no hardware walks the page.
    ///
    /// # Safety
    /// `frame` is a table page of `platform`. No entry points to it any more, and no CPU walks it.
    pub unsafe fn push_unshown<'p, P: Platform>(&mut self, platform: &'p P, frame: PhysAddr) -> &'p Entry {
        // The address of a frame in a link is never zero: zero ends the list.
        let next = if self.is_empty() { PhysAddr::new(0) } else { self.head };
        // SAFETY: the caller owns the page until it is freed.
        let first = unsafe { &platform.frame(frame)[0] };
        first.store(EntryValue::absent_link(next));
        self.head = frame;
        self.pages += 1;
        first
    }

    /// Removes the page that was added last from the list, and clears the link. A walker that does not snoop may
    /// still see the link for some time, but that is an absent entry too.
    pub fn pop<P: Platform>(&mut self, platform: &P) -> Option<PhysAddr> {
        if self.is_empty() {
            return None;
        }
        let head = self.head;
        // SAFETY: `push_unshown` took ownership of every page on the list.
        let first = unsafe { &platform.frame(head)[0] };
        let next = first.load().phys();
        first.store(EntryValue::ABSENT);
        self.pages -= 1;
        self.head = next;
        Some(head)
    }

    /// Moves every page of `other` to this list. This walks `other`, which should be the shorter list.
    pub(crate) fn append<P: Platform>(&mut self, platform: &P, other: Self) {
        if other.is_empty() {
            return;
        }
        if self.is_empty() {
            *self = other;
            return;
        }
        // SAFETY: `push_unshown` took ownership of every page on either list.
        let first_entry = |frame| unsafe { &platform.frame(frame)[0] };
        let mut last = first_entry(other.head);
        for _ in 1..other.pages {
            last = first_entry(last.load().phys());
        }
        // This replaces one absent entry by another, so the walker need not see it.
        last.store(EntryValue::absent_link(self.head));
        self.head = other.head;
        self.pages += other.pages;
    }
}

/// Gives the pages back to the host. Nothing can reach them any more (S4).
pub(crate) fn release<P: Platform>(platform: &P, list: FreedTables, proof: &Proof) {
    let mut frame = list.head;
    for _ in 0..list.pages {
        // SAFETY: the list owns the page, which the hardware has lost.
        let next = unsafe { platform.frame(frame)[0].load().phys() };
        platform.probe(Step::TablePage);
        // SAFETY: as above. The reference is no longer used.
        unsafe { release_page(platform, frame, proof) };
        frame = next;
    }
}

/// Gives a page back to the host: no hardware can reach it any more (S4). Only this function does so.
///
/// # Safety
/// `frame` is a table page of `platform` that belongs to the caller, and no CPU has a reference to it.
pub unsafe fn release_page<P: Platform>(platform: &P, frame: PhysAddr, _proof: &Proof) {
    // SAFETY: the caller's promise, passed on. The proof covers the hardware.
    unsafe { platform.free_frame(frame) };
}
