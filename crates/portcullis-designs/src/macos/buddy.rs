//! A buddy allocator for ranges of up to 512 MiB below 4 GiB, and the tree of ranges for larger ones above (XNU;
//! ATC'15, §3.4).
//!
//! Each takes the requests for which the other has no room, so that a request is refused only if no aligned block is
//! free below the width. If there are no addresses above 4 GiB, there is no tree.

use super::blocks::{Blocks, PAGES_MAX, new_run};
use crate::sync::{AtomicUsize, Ordering};
use portcullis::error::{MapError, NoMemory, UnmapError};
use portcullis::iova::{Claim, IovaAllocator, IovaRequest, TreeAllocator};
use portcullis::platform::memory::{Spare, push_within, try_reserve};
use portcullis::platform::{Context, Lock, LockClass, Phase, Platform, Step};
use portcullis::proof::Proof;
use portcullis::{IovaRange, PAGE_SHIFT};

/// Pages of the largest range that is first searched for in the blocks: 512 MiB.
pub const BUDDY_PAGES_MAX: u64 = 1 << 17;

/// The allocator.
pub struct BuddyAllocator<P: Platform> {
    blocks: P::Lock<Blocks>,
    /// Ranges handed out from the blocks. Written only under the lock, so plain stores suffice. Read without it, as a
    /// statistic (Relaxed).
    in_use: AtomicUsize,
    /// Addresses from here on belong to the tree.
    blocks_end: u64,
    tree: Option<TreeAllocator<P>>,
    width: u8,
}

impl<P: Platform> BuddyAllocator<P> {
    /// Makes an allocator of addresses below `2^width`, without page 0, the interrupt range and `reserved` (S9).
    ///
    /// Its blocks take 56 KiB of memory, and 6 KiB for each 2 MiB of addresses that were ever split: at most 12 MiB.
    ///
    /// # Errors
    /// [`NoMemory`].
    #[inline(always)]
    pub fn new(platform: &P, width: u8, reserved: &[IovaRange]) -> Result<Self, NoMemory> {
        let end = 1 << (u32::from(width) - PAGE_SHIFT);
        let blocks_end = PAGES_MAX.min(end);
        let tree = if blocks_end < end {
            let mut not_the_trees = try_reserve(platform, Context::MaySleep, reserved.len() + 1)?;
            let blocks = IovaRange::new(0, blocks_end);
            reserved.iter().copied().chain(blocks).for_each(|range| push_within(&mut not_the_trees, range));
            Some(TreeAllocator::new(platform, width, &not_the_trees)?)
        } else {
            None
        };
        let blocks = platform.lock(LockClass::IovaAllocator, Blocks::new(platform, blocks_end, reserved)?);
        Ok(Self { blocks, in_use: AtomicUsize::new(0), blocks_end, tree, width })
    }

    fn allocate_block(&self, platform: &P, pages: u64) -> Result<IovaRange, MapError> {
        self.blocks.with(|blocks| {
            let range = blocks.allocate(platform, pages)?.ok_or(self.exhausted(pages))?;
            self.in_use.store(self.in_use.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            Ok(range)
        })
    }

    fn allocate_in_tree(&self, platform: &P, pages: u64) -> Result<IovaRange, MapError> {
        self.tree.as_ref().ok_or(self.exhausted(pages))?.allocate_with(platform, pages, &mut Spare::none())
    }

    fn exhausted(&self, pages: u64) -> MapError {
        MapError::Exhausted { pages, limit_bits: self.width }
    }

    /// The tree, if `range` begins among its addresses.
    fn tree_of(&self, range: IovaRange) -> Option<&TreeAllocator<P>> {
        self.tree.as_ref().filter(|_| range.first_pfn() >= self.blocks_end)
    }
}

// SAFETY: blocks in use do not overlap, because halves are split only off free blocks. `claim` changes the state of a
// live block of exactly that range, under the lock. The tree has other addresses.
unsafe impl<P: Platform> IovaAllocator<P> for BuddyAllocator<P> {
    fn allocate(&self, platform: &P, &IovaRequest { pages, .. }: &IovaRequest) -> Result<IovaRange, MapError> {
        platform.probe(Step::Enter(Phase::IovaAllocate));
        if pages <= BUDDY_PAGES_MAX {
            match self.allocate_block(platform, pages) {
                Err(MapError::Exhausted { .. }) => self.allocate_in_tree(platform, pages),
                result => result,
            }
        } else {
            match self.allocate_in_tree(platform, pages) {
                Err(MapError::Exhausted { .. }) => self.allocate_block(platform, pages),
                result => result,
            }
        }
    }

    fn prepare(&self, platform: &P) -> Result<bool, NoMemory> {
        let run = new_run(platform, Context::Atomic)?;
        self.blocks.with(|blocks| blocks.keep(run));
        self.tree.as_ref().map_or(Ok(()), |tree| tree.keep_node(platform))?;
        Ok(true)
    }

    fn claim(&self, platform: &P, range: IovaRange) -> Result<Claim, UnmapError> {
        match self.tree_of(range) {
            Some(tree) => tree.claim(platform, range),
            None => {
                platform.probe(Step::Enter(Phase::IovaFind));
                self.blocks.with(|blocks| blocks.claim(platform, range)).map(|()| Claim::Held)
            }
        }
    }

    fn free(&self, platform: &P, range: IovaRange, _proof: &Proof) {
        match self.tree_of(range) {
            Some(tree) => tree.free_ranges(platform, core::iter::once(range.first_pfn())),
            None => self.blocks.with(|blocks| {
                blocks.free(platform, range);
                self.in_use.store(self.in_use.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
            }),
        }
    }

    fn live(&self) -> usize {
        self.in_use.load(Ordering::Relaxed) + self.tree.as_ref().map_or(0, IovaAllocator::live)
    }
}
