//! Linux's allocator before 4.7: the tree of ranges under one lock, and nothing else.

use super::range_tree::{Node, RangeTree, new_node};
use crate::address::IovaRange;
use crate::error::{MapError, NoMemory, UnmapError};
use crate::iova::{Claim, IovaAllocator, IovaRequest};
use crate::placement::Placement;
use crate::platform::memory::{Spare, with_spare};
use crate::platform::{Context, Lock, LockClass, Phase, Platform, Step};
use crate::proof::Proof;
use crate::sync::{AtomicUsize, Ordering};
use alloc::boxed::Box;

/// The allocator. It searches the tree for every address, and gives every address back to it.
pub struct TreeAllocator<P: Platform> {
    tree: P::Lock<RangeTree>,
    /// Ranges in the tree that are in use. Written only under the lock, so plain stores suffice. Read without it, as
    /// a statistic (Relaxed).
    in_use: AtomicUsize,
}

impl<P: Platform> TreeAllocator<P> {
    /// Makes an allocator of addresses below `2^width`, without page 0, the interrupt range and `reserved` (S9).
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(platform: &P, width: u8, reserved: &[IovaRange]) -> Result<Self, NoMemory> {
        let tree = platform.lock(LockClass::IovaAllocator, RangeTree::new(platform, width, reserved)?);
        Ok(Self { tree, in_use: AtomicUsize::new(0) })
    }

    /// Has a new allocator prefer addresses below `2^width`, until a request finds no room there.
    pub(in crate::iova) fn prefer(&self, width: u8) {
        self.tree.with(|tree| tree.prefer(width));
    }

    /// Does what [`allocate`](IovaAllocator::allocate) does, for a caller that has already entered the phase.
    pub(in crate::iova) fn allocate_range(&self, platform: &P, pages: u64) -> Result<IovaRange, MapError> {
        with_spare(|_| new_node(platform, Context::Atomic), |spare| self.allocate_with(platform, pages, spare))
    }

    /// Does what [`allocate`](IovaAllocator::allocate) does, for a caller that has already entered the phase and may
    /// hold a lock: it takes no memory except that of `spare`.
    ///
    /// # Errors
    /// [`MapError::Exhausted`]; [`MapError::NoMemory`] if `spare` has none.
    pub fn allocate_with(&self, platform: &P, pages: u64, spare: &mut Spare<Box<Node>>) -> Result<IovaRange, MapError> {
        self.tree.with(|tree| {
            let range = tree.allocate(platform, pages, spare)?;
            self.in_use.store(self.in_use.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            Ok(range)
        })
    }

    /// Keeps a node for [`allocate_with`](Self::allocate_with).
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn keep_node(&self, platform: &P) -> Result<(), NoMemory> {
        let node = new_node(platform, Context::Atomic)?;
        self.tree.with(|tree| tree.keep(node));
        Ok(())
    }

    /// Does what [`set_aside`](IovaAllocator::set_aside) does, for an allocator that keeps ranges.
    #[inline(never)]
    pub(in crate::iova) fn set_aside_range(
        &self,
        platform: &P,
        pages: u64,
        placement: &Placement,
    ) -> Result<IovaRange, MapError> {
        with_spare(
            |_| new_node(platform, Context::Atomic),
            #[inline(always)]
            |spare| {
                self.tree.with(
                    #[inline(always)]
                    |tree| tree.set_aside(platform, pages, placement, spare),
                )
            },
        )
    }

    /// The live range around page `pfn`, if it has more than `pages_max` pages.
    pub fn larger_around(&self, platform: &P, pfn: u64, pages_max: u64) -> Option<IovaRange> {
        self.tree.with(|tree| tree.live_around(platform, pfn)).filter(|range| range.pages() > pages_max)
    }

    /// Takes back a range that was set aside.
    pub fn put_back_range(&self, platform: &P, range: IovaRange) {
        self.tree.with(|tree| tree.free(platform, range.first_pfn()));
    }

    /// Takes back the ranges that start at these pages, one or more.
    pub fn free_ranges(&self, platform: &P, first_pfns: impl ExactSizeIterator<Item = u64>) {
        self.tree.with(|tree| {
            self.in_use.store(self.in_use.load(Ordering::Relaxed) - first_pfns.len(), Ordering::Relaxed);
            for first_pfn in first_pfns {
                tree.free(platform, first_pfn);
            }
        });
    }
}

// SAFETY: ranges in the tree do not overlap, because each is put into a gap. `claim` changes the state of a live node
// with exactly that range, under the lock.
unsafe impl<P: Platform> IovaAllocator<P> for TreeAllocator<P> {
    fn allocate(&self, platform: &P, request: &IovaRequest) -> Result<IovaRange, MapError> {
        platform.probe(Step::Enter(Phase::IovaAllocate));
        self.allocate_range(platform, request.pages)
    }

    fn claim(&self, platform: &P, range: IovaRange) -> Result<Claim, UnmapError> {
        platform.probe(Step::Enter(Phase::IovaFind));
        self.tree.with(|tree| tree.claim(platform, range)).map(|()| Claim::Held)
    }

    fn free(&self, platform: &P, range: IovaRange, _proof: &Proof) {
        self.free_ranges(platform, core::iter::once(range.first_pfn()));
    }

    fn set_aside(&self, platform: &P, pages: u64, placement: &Placement) -> Result<IovaRange, MapError> {
        self.set_aside_range(platform, pages, placement)
    }

    fn put_back(&self, platform: &P, range: IovaRange, _proof: &Proof) {
        self.put_back_range(platform, range);
    }

    fn live(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }
}
