//! Mappings whose requests say where they are to lie: which pages they have, and which mapping an unmap finds.
//!
//! Their pages are those that the allocator has [set aside](IovaAllocator::set_aside), or those that it never hands
//! out, if a request names these. The record is therefore separate from all that allocators know, and is searched
//! only if an allocator finds nothing.

use super::linux::{Node, RangeTree, new_node};
use super::{IovaAllocator, never_handed_out, refuse_interrupts};
use crate::address::{Iova, IovaRange, PAGE_SHIFT};
use crate::error::{MapError, NoMemory, UnmapError};
use crate::placement::Placement;
use crate::platform::memory::Spare;
use crate::platform::{Context, Lock, LockClass, Platform};
use crate::proof::Proof;
use crate::sync::{AtomicUsize, Ordering};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Memory for the record of a placed mapping.
pub(crate) struct Record(Spare<Box<Node>>);

/// The placed mappings of a domain.
pub(crate) struct PlacedRanges<P: Platform> {
    ranges: P::Lock<RangeTree>,
    /// The number of placed mappings. Written under the lock, so plain stores suffice. Relaxed: a CPU that unmaps
    /// another CPU's mapping has got the address from that CPU, and the count with it.
    count: AtomicUsize,
    /// Ranges that no allocator hands out, as first and end page numbers, in order.
    never_handed_out: Vec<(u64, u64)>,
    /// Addresses are below `2^width`.
    width: u8,
}

impl<P: Platform> PlacedRanges<P> {
    /// An empty record, for an allocator that never hands out `reserved`.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(crate) fn new(platform: &P, width: u8, reserved: &[IovaRange]) -> Result<Self, NoMemory> {
        Ok(Self {
            ranges: platform.lock(LockClass::IovaAllocator, RangeTree::empty(width)),
            count: AtomicUsize::new(0),
            never_handed_out: never_handed_out(platform, reserved)?,
            width,
        })
    }

    /// Memory for the record of one mapping. It is for [`take`](Self::take), which may be called with locks held.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(crate) fn record(&self, platform: &P) -> Result<Record, NoMemory> {
        new_node(platform, Context::Atomic).map(|node| Record(Spare::of(node)))
    }

    /// Takes `pages` pages where `placement` says. No unmap finds them before they are [published](Self::publish).
    ///
    /// # Errors
    /// Those of [`IovaAllocator::set_aside`]; [`MapError::BeyondWidth`], [`MapError::Reserved`] for the interrupt
    /// range.
    #[inline(always)]
    pub(crate) fn take(
        &self,
        platform: &P,
        allocator: &impl IovaAllocator<P>,
        pages: u64,
        placement: &Placement,
        record: &mut Record,
    ) -> Result<IovaRange, MapError> {
        let range = match placement.at() {
            Some(range) => self.take_exactly(platform, allocator, range)?,
            None => allocator.set_aside(platform, pages, placement)?,
        };
        // The record comes last, so a request that got its pages never meets a record of them by a request that did
        // not. Pages that are never handed out go to one request by the record alone.
        self.note(platform, range, record).inspect_err(|_| match placement.at() {
            Some(range) => self.put_back(platform, allocator, range, &Proof::never_visible()),
            None => allocator.put_back(platform, range, &Proof::never_visible()),
        })
    }

    /// The part of [`take`](Self::take) that sets aside the pages that a request names.
    #[inline(always)]
    fn take_exactly(
        &self,
        platform: &P,
        allocator: &impl IovaAllocator<P>,
        range: IovaRange,
    ) -> Result<IovaRange, MapError> {
        let end_pfn = 1 << (u32::from(self.width) - PAGE_SHIFT);
        if range.end_pfn() > end_pfn {
            let iova = Iova::from_pfn(end_pfn.max(range.first_pfn()));
            return Err(MapError::BeyondWidth { iova, limit_bits: self.width });
        }
        refuse_interrupts(range)?;
        let mut taken = range.first_pfn();
        while let Some(piece) = self.handed_out_from(taken, range.end_pfn()) {
            let set_aside = allocator.set_aside(platform, piece.pages(), &Placement::exactly(piece));
            if let Err(error) = set_aside {
                let done = IovaRange::new(range.first_pfn(), taken - range.first_pfn());
                done.into_iter().for_each(|done| self.put_back(platform, allocator, done, &Proof::never_visible()));
                return Err(error);
            }
            taken = piece.end_pfn();
        }
        Ok(range)
    }

    /// Lets unmaps find the mapping at `range` from now on. Its translations are written.
    pub(crate) fn publish(&self, range: IovaRange) {
        self.ranges.with(|ranges| ranges.make_live(range.first_pfn()));
    }

    /// Claims the mapping at exactly `range` for an unmap.
    ///
    /// # Errors
    /// [`UnmapError::NotMapped`], [`UnmapError::Partial`].
    pub(crate) fn claim(&self, platform: &P, range: IovaRange) -> Result<(), UnmapError> {
        self.ranges.with(|ranges| ranges.claim(platform, range))
    }

    /// Takes back a range that was claimed, or that was never published.
    #[inline(never)]
    pub(crate) fn give_back(&self, platform: &P, allocator: &impl IovaAllocator<P>, range: IovaRange, proof: &Proof) {
        // The reverse order of `take`: pages that belong to the allocator again are in no record.
        self.forget(platform, range);
        self.put_back(platform, allocator, range, proof);
    }

    /// Whether there are no placed mappings.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of placed mappings.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    #[inline(never)]
    fn note(&self, platform: &P, range: IovaRange, Record(node): &mut Record) -> Result<IovaRange, MapError> {
        self.ranges.with(|ranges| {
            ranges.set_aside(platform, range.pages(), &Placement::exactly(range), node)?;
            self.count.store(self.count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            Ok(range)
        })
    }

    fn forget(&self, platform: &P, range: IovaRange) {
        self.ranges.with(|ranges| {
            ranges.free(platform, range.first_pfn());
            self.count.store(self.count.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        });
    }

    #[inline(never)]
    fn put_back(&self, platform: &P, allocator: &impl IovaAllocator<P>, range: IovaRange, proof: &Proof) {
        let mut first = range.first_pfn();
        while let Some(piece) = self.handed_out_from(first, range.end_pfn()) {
            allocator.put_back(platform, piece, proof);
            first = piece.end_pfn();
        }
    }

    /// The first run of pages in `first..end` that the allocator may hand out.
    #[inline(never)]
    fn handed_out_from(&self, first: u64, end: u64) -> Option<IovaRange> {
        let mut first = first;
        for (reserved_first, reserved_end) in &self.never_handed_out {
            if first < *reserved_first {
                return IovaRange::new(first, end.min(*reserved_first).checked_sub(first)?);
            }
            first = first.max(*reserved_end);
        }
        IovaRange::new(first, end.checked_sub(first)?)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::address::{PhysAddr, Segment};
    use crate::iova::{Claim, IovaRequest, TreeAllocator};
    use crate::placement::MapOptions;
    use crate::platform::fake::FakeHost;
    use crate::request::{Access, Request};
    use std::boxed::Box;
    use std::sync::Mutex;

    const WIDTH: u8 = 32;

    /// A tree, and an action that another thread takes once, just before pages are set aside.
    struct Racing<'t> {
        tree: &'t TreeAllocator<FakeHost>,
        act: Mutex<Option<Box<dyn FnOnce() + Send + 't>>>,
    }

    // SAFETY: it forwards to an allocator that keeps the promises.
    unsafe impl IovaAllocator<FakeHost> for Racing<'_> {
        fn allocate(&self, host: &FakeHost, request: &IovaRequest) -> Result<IovaRange, MapError> {
            self.tree.allocate(host, request)
        }

        fn claim(&self, host: &FakeHost, range: IovaRange) -> Result<Claim, UnmapError> {
            self.tree.claim(host, range)
        }

        fn free(&self, host: &FakeHost, range: IovaRange, proof: &Proof) {
            self.tree.free(host, range, proof);
        }

        fn set_aside(&self, host: &FakeHost, pages: u64, placement: &Placement) -> Result<IovaRange, MapError> {
            if let Some(act) = self.act.lock().unwrap().take() {
                std::thread::scope(|scope| scope.spawn(act).join()).unwrap();
            }
            self.tree.set_aside(host, pages, placement)
        }

        fn put_back(&self, host: &FakeHost, range: IovaRange, proof: &Proof) {
            self.tree.put_back(host, range, proof);
        }

        fn live(&self) -> usize {
            self.tree.live()
        }
    }

    fn page(pfn: u64) -> IovaRange {
        IovaRange::of(pfn, 1)
    }

    fn take(
        host: &FakeHost,
        placed: &PlacedRanges<FakeHost>,
        allocator: &impl IovaAllocator<FakeHost>,
        pages: u64,
        placement: &Placement,
    ) -> Result<IovaRange, MapError> {
        placed.take(host, allocator, pages, placement, &mut placed.record(host)?)
    }

    /// Page 16 is the highest page below the limit of one request, and the only page for the other. The first request
    /// gets it, and the other does not.
    #[test]
    fn who_may_have_another_page_is_refused_none() {
        let host = FakeHost::default();
        let tree = TreeAllocator::new(&host, WIDTH, &[]).unwrap();
        let placed = PlacedRanges::new(&host, WIDTH, &[]).unwrap();
        let segments = [Segment { phys: PhysAddr::new(0), len: 1 }];
        let request = Request::new(&segments, Access::DeviceReads).unwrap();
        let options = MapOptions { limit: (17 << PAGE_SHIFT) - 1, ..MapOptions::default() };
        let below = options.placement(&request, None, u64::MAX >> 32).unwrap().unwrap();
        let act = || assert_eq!(take(&host, &placed, &tree, 1, &below), Ok(page(16)));
        let allocator = Racing { tree: &tree, act: Mutex::new(Some(Box::new(act))) };
        let late = take(&host, &placed, &allocator, 1, &Placement::exactly(page(16)));
        assert_eq!(late, Err(MapError::Overlap(Iova::from_pfn(16))));
        assert_eq!(take(&host, &placed, &allocator, 1, &below), Ok(page(15)), "the next");
        assert_eq!(placed.len(), 2);
    }

    /// For pages that no allocator hands out, the record alone decides which request gets them. The other pages of
    /// the loser are free again.
    #[test]
    fn of_two_that_want_a_reserved_page_one_gets_it() {
        let host = FakeHost::default();
        let reserved = [page(16)];
        let tree = TreeAllocator::new(&host, WIDTH, &reserved).unwrap();
        let placed = PlacedRanges::new(&host, WIDTH, &reserved).unwrap();
        let act = || assert_eq!(take(&host, &placed, &tree, 1, &Placement::exactly(page(16))), Ok(page(16)));
        let allocator = Racing { tree: &tree, act: Mutex::new(Some(Box::new(act))) };
        let around = Placement::exactly(IovaRange::of(15, 3));
        let late = take(&host, &placed, &allocator, 3, &around);
        assert_eq!(late, Err(MapError::Overlap(Iova::from_pfn(15))));
        placed.give_back(&host, &tree, page(16), &Proof::never_visible());
        assert_eq!(take(&host, &placed, &allocator, 3, &around), Ok(IovaRange::of(15, 3)), "all of it is free");
    }
}
