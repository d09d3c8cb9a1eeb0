//! One ring: entries are taken in order from a tail that wraps around, and come back individually.
//!
//! ```text
//! free --take--> held --write--> valid --clear--> held --the ring was invalidated--> free
//! ```
//!
//! In the published design, an entry is free again as soon as it is no longer valid, and the tail overwrites the
//! entries that it meets. An entry may then be mapped while the device still reaches its old buffer. If unmaps are
//! out of order, the tail may also meet an entry in use. Here an entry is free only after the invalidation, and an
//! entry that is not free is never taken.

use super::entry_state::EntryState;
use crate::sync::{AtomicBool, AtomicU64, Ordering};
use core::ops::Range;
use portcullis::error::UnmapError;
use portcullis::iommu::rings::{ENTRY_PAGES, RING_SHIFT, RingEntry, SLOTS_PER_PAGE};
use portcullis::platform::Platform;
use portcullis::proof::Proof;
use portcullis::table::Walker;
use portcullis::table::{Entry, Frame, Rights};
use portcullis::{IovaRange, PAGE_SHIFT, PAGE_SIZE, PhysAddr, Segment};

/// A ring of one domain.
pub(super) struct Ring {
    /// The number, counted from 1.
    pub(super) number: u16,
    pub(super) table: PhysAddr,
    /// The number of entries.
    pub(super) size: u32,
    /// Whether the ring is for persistent mappings, one at a time.
    pub(super) is_persistent: bool,
    /// Whether a stream or a persistent mapping has taken the ring.
    is_in_use: AtomicBool,
    /// The number of entries passed since the ring was made. It never decreases. It says where to look; the state of
    /// an entry says whether it is free.
    tail: AtomicU64,
}

impl Ring {
    /// Makes a ring that is in use, but has no entries in use. It has no number yet.
    pub(super) fn new(table: PhysAddr, size: u32, is_persistent: bool) -> Self {
        Self { number: 0, table, size, is_persistent, is_in_use: AtomicBool::new(true), tail: AtomicU64::new(0) }
    }

    /// The table pages of a ring of `size` entries.
    pub(super) const fn pages_of(size: u32) -> usize {
        size.div_ceil(SLOTS_PER_PAGE) as usize
    }

    /// Takes the ring if it is not in use. Acquire: its last user has finished with it.
    pub(super) fn claim(&self) -> bool {
        self.is_in_use.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Whether the ring is in use now.
    pub(super) fn is_in_use(&self) -> bool {
        self.is_in_use.load(Ordering::Relaxed)
    }

    /// Makes the ring available again. None of its entries may be in use.
    pub(super) fn release(&self) {
        self.is_in_use.store(false, Ordering::Release);
    }

    /// A page of the table.
    fn frame<'p, P: Platform>(&self, platform: &'p P, page: u32) -> &'p Frame {
        // SAFETY: a page of the ring, which the platform lends until the domain is closed.
        unsafe { platform.frame(PhysAddr::new(self.table.as_u64() + u64::from(page) * PAGE_SIZE)) }
    }

    /// The two quadwords of an entry.
    fn entry<'p, P: Platform>(&self, platform: &'p P, index: u32) -> &'p [Entry] {
        let at = (index % SLOTS_PER_PAGE) as usize * 2;
        &self.frame(platform, index / SLOTS_PER_PAGE)[at..at + 2]
    }

    fn state<P: Platform>(&self, platform: &P, index: u32) -> EntryState {
        EntryState::from_bits(self.entry(platform, index)[1].load_bits())
    }

    /// Takes `count` neighbouring entries from the tail on, and returns the first. The ring must have at least
    /// `count` entries. `None` if one of these entries is not free. If too few entries are left before the end of the
    /// table, they are skipped.
    pub(super) fn take<P: Platform>(&self, platform: &P, count: u32) -> Option<u32> {
        debug_assert!(count <= self.size);
        loop {
            // Acquire: entries that other CPUs had seen free before they moved the tail are seen free here as well,
            // so that none of them seems to be in use.
            let tail = self.tail.load(Ordering::Acquire);
            let at = (tail % u64::from(self.size)) as u32;
            let passed = if self.size - at < count { self.size - at } else { 0 };
            let first = (at + passed) % self.size;
            if (first..first + count).any(|index| self.state(platform, index) != EntryState::FREE) {
                // If another CPU has just taken the entry, it moved the tail first. That move is seen here, because
                // the state that it stored was loaded with Acquire.
                if self.tail.load(Ordering::Relaxed) == tail {
                    return None;
                }
                continue;
            }
            let next = tail + u64::from(passed + count);
            // AcqRel: it pairs with the load of the tail above.
            if self.tail.compare_exchange(tail, next, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            if self.hold(platform, first..first + count) {
                return Some(first);
            }
        }
    }

    /// Marks the entries as held. This exchange, and not the move of the tail, makes a CPU their owner. Returns
    /// false, with none of them marked, if another CPU has taken them: this one was stopped for so long that the tail
    /// has come round. Until it has unmarked them, others may find the ring full.
    fn hold<P: Platform>(&self, platform: &P, entries: Range<u32>) -> bool {
        let (free, held) = (EntryState::FREE.bits(), EntryState::HELD.bits());
        for index in entries.clone() {
            if !self.entry(platform, index)[1].exchange_bits(free, held) {
                (entries.start..index).for_each(|index| self.entry(platform, index)[1].store_bits(free));
                return false;
            }
        }
        true
    }

    /// Writes the entries of a mapping, which are held from `first` on, and makes them visible. The lengths of the
    /// segments must fit.
    pub(super) fn write<P: Platform>(&self, walker: Walker<'_, P>, first: u32, segments: &[Segment], rights: Rights) {
        // The first entry is written last, because it makes the whole mapping visible to an unmap.
        for (at, segment) in segments.iter().enumerate().rev() {
            let index = first + at as u32;
            let value = RingEntry { phys: segment.phys, size: segment.len as u32, rights };
            let entry = self.entry(walker.platform(), index);
            // The quadword with the valid bit is written last. The hardware reads both at once.
            entry[0].store_bits(segment.phys.as_u64());
            let count = if index == first { segments.len() as u32 } else { 0 };
            entry[1].store_bits(EntryState::valid(value, count).bits());
        }
        self.make_visible(walker, first, segments.len() as u32);
    }

    /// Invalidates the mapping at exactly `count` entries from `first` on, and makes that visible. The device may
    /// still hold two of the entries until the ring is invalidated.
    ///
    /// # Errors
    /// [`UnmapError::NotMapped`], [`UnmapError::Partial`].
    pub(super) fn clear<P: Platform>(&self, walker: Walker<'_, P>, first: u32, count: u32) -> Result<(), UnmapError> {
        let platform = walker.platform();
        let asked = self.range(first, count);
        if first >= self.size {
            return Err(UnmapError::NotMapped(asked.start()));
        }
        let entry = &self.entry(platform, first)[1];
        let state = EntryState::from_bits(entry.load_bits());
        if !state.is_valid() {
            return Err(UnmapError::NotMapped(asked.start()));
        }
        if state.count() != count {
            return Err(self
                .mapping_around(platform, first)
                .map_or(UnmapError::NotMapped(asked.start()), |mapped| UnmapError::Partial { asked, mapped }));
        }
        // If several CPUs unmap one mapping, only one of them succeeds here.
        if !entry.exchange_bits(state.bits(), state.invalid().bits()) {
            return Err(UnmapError::NotMapped(asked.start()));
        }
        (first + 1..first + count).for_each(|index| self.entry(platform, index)[1].store_bits(EntryState::HELD.bits()));
        self.make_visible(walker, first, count);
        Ok(())
    }

    /// The mapping to which the valid entry `index` belongs.
    fn mapping_around<P: Platform>(&self, platform: &P, index: u32) -> Option<IovaRange> {
        let first = (0..=index).rev().find(|first| self.state(platform, *first).count() > 0)?;
        Some(self.range(first, self.state(platform, first).count()))
    }

    /// Gives back cleared entries, after devices have lost the memory that they led to.
    pub(super) fn free<P: Platform>(&self, platform: &P, first: u32, count: u32, _proof: &Proof) {
        // Release, like every store of an entry: a CPU that takes the entry sees what was stored there before.
        (first..first + count).for_each(|index| self.entry(platform, index)[1].store_bits(EntryState::FREE.bits()));
    }

    /// The number of mappings that are not free again.
    pub(super) fn live<P: Platform>(&self, platform: &P) -> usize {
        let frames = (0..Self::pages_of(self.size) as u32).map(|page| self.frame(platform, page));
        let states = frames.flat_map(|frame| frame.iter().skip(1).step_by(2));
        // All words behind the last entry are zero.
        states.filter(|state| EntryState::from_bits(state.load_bits()).count() > 0).count()
    }

    /// The addresses of `count` entries from `first` on.
    pub(super) fn range(&self, first: u32, count: u32) -> IovaRange {
        let ring = u64::from(self.number) << (RING_SHIFT - PAGE_SHIFT);
        IovaRange::new(ring + u64::from(first) * ENTRY_PAGES, u64::from(count) * ENTRY_PAGES).expect("pages")
    }

    /// Makes `count` entries from `first` on visible to the walker.
    fn make_visible<P: Platform>(&self, walker: Walker<'_, P>, first: u32, count: u32) {
        let (mut at, end) = (first, first + count);
        while at < end {
            let page = at / SLOTS_PER_PAGE;
            let stop = end.min((page + 1) * SLOTS_PER_PAGE);
            let word = |index: u32| (index - page * SLOTS_PER_PAGE) as usize * 2;
            walker.show(&self.frame(walker.platform(), page)[word(at)..word(stop)]);
            at = stop;
        }
    }
}
