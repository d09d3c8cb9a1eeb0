//! Blocks of 2^order pages, aligned to their size. A block is split in halves if a smaller one is wanted, and joined
//! with the other half, its buddy, if both are free. Both take as many steps as there are sizes in between.
//!
//! Two levels of entries record what begins at each page, as in a page table: one entry for every 512 pages and, if
//! these have been split, one for each page. The lists of free blocks run through the entries. An array of the second
//! level is made when it is first needed, and is kept.

use alloc::boxed::Box;
use core::mem;
use core::num::NonZeroU32;
use portcullis::error::{NoMemory, UnmapError};
use portcullis::iova::{never_handed_out, order};
use portcullis::platform::memory::{Spare, try_fill, with_spare};
use portcullis::platform::{Context, Platform, Step};
use portcullis::{Iova, IovaRange};

/// Blocks have 2^0 to 2^20 pages, as many as there are below 4 GiB.
const ORDERS: usize = 21;
/// The most pages that there can be.
pub(super) const PAGES_MAX: u64 = 1 << (ORDERS - 1);
/// The order of the smallest blocks on the first level. Each entry of that level covers a run of this order.
const RUN_ORDER: usize = 9;
const RUN_PAGES: u64 = 1 << RUN_ORDER;

/// The first page of a free block. Page 0 is reserved, and so it is in no free block.
type Link = Option<NonZeroU32>;

/// The block that begins at a page, of the sizes that the level of the entry is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Block {
    None,
    /// On the list of its order, between these two blocks.
    Free {
        order: u8,
        previous: Link,
        next: Link,
    },
    /// In use, for a range of `pages` pages. It is the smallest block that holds them.
    Live {
        pages: u32,
    },
    /// Claimed by an unmap, not yet given back.
    Unmapping {
        pages: u32,
    },
}

/// [`BuddyAllocator::new`](super::BuddyAllocator::new) states its memory for this size.
const _: () = assert!(size_of::<Block>() == 12);

/// All blocks below a given page.
#[derive(Debug)]
pub(super) struct Blocks {
    /// For each order, the free block that was put on the list last.
    free: Box<[Link]>,
    /// An entry for each run.
    large: Box<[Block]>,
    /// The entries for each page of a run. They are empty until the run is split.
    small: Box<[Box<[Block]>]>,
    /// Entries for the run that is split next.
    kept: Option<Box<[Block]>>,
}

/// Makes the entries of a run.
///
/// # Errors
/// [`NoMemory`].
pub(super) fn new_run<P: Platform>(platform: &P, context: Context) -> Result<Box<[Block]>, NoMemory> {
    Ok(try_fill(platform, context, RUN_PAGES as usize, || Block::None)?.into_boxed_slice())
}

impl Blocks {
    /// Makes the blocks of the pages below `end`, at most [`PAGES_MAX`], without page 0, the interrupt range and
    /// `reserved` (S9).
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn new<P: Platform>(platform: &P, end: u64, reserved: &[IovaRange]) -> Result<Self, NoMemory> {
        debug_assert!(end <= PAGES_MAX);
        let runs = end.div_ceil(RUN_PAGES) as usize;
        let large = try_fill(platform, Context::MaySleep, runs, || Block::None)?.into_boxed_slice();
        let small = try_fill(platform, Context::MaySleep, runs, Box::default)?.into_boxed_slice();
        let free = try_fill(platform, Context::MaySleep, ORDERS, || None)?.into_boxed_slice();
        let mut blocks = Self { free, large, small, kept: None };
        let mut free_from = 0;
        for (first, reserved_end) in never_handed_out(platform, reserved)?.into_iter().chain([(end, end)]) {
            let free_to = first.min(end);
            while free_from < free_to {
                // The largest block that begins here and ends before the next reserved range.
                let order = free_from.trailing_zeros().min((free_to - free_from).ilog2()) as usize;
                with_spare(|_| new_run(platform, Context::MaySleep), |spare| blocks.prepare(free_from, order, spare))?;
                blocks.link(free_from, order);
                free_from += 1 << order;
            }
            free_from = free_from.max(reserved_end);
        }
        Ok(blocks)
    }

    /// Takes a block for `pages` pages, if there is one: of the smallest free size that fits, and of those the one
    /// freed last.
    ///
    /// # Errors
    /// [`NoMemory`] if this needs the entries of a run, and none are [kept](Self::keep).
    pub(super) fn allocate<P: Platform>(&mut self, platform: &P, pages: u64) -> Result<Option<IovaRange>, NoMemory> {
        let Some(wanted) = order(pages, ORDERS) else { return Ok(None) };
        let found = (wanted..ORDERS).find_map(|order| Some((order, u64::from(self.free[order]?.get()))));
        let Some((found, first)) = found else { return Ok(None) };
        // The step that may fail comes before anything is changed.
        self.prepare(first, wanted, &mut Spare::none())?;
        platform.probe(Step::ListPop);
        self.unlink(first, found);
        announce(platform, found - wanted);
        for order in wanted..found {
            self.link(first + (1 << order), order);
        }
        *self.entry(first, wanted) = Block::Live { pages: pages as u32 };
        Ok(IovaRange::new(first, pages))
    }

    /// Claims the live range that is exactly `range`.
    ///
    /// # Errors
    /// [`UnmapError::NotMapped`], [`UnmapError::Partial`].
    pub(super) fn claim<P: Platform>(&mut self, platform: &P, range: IovaRange) -> Result<(), UnmapError> {
        let pfn = range.first_pfn();
        // For each size, one block may hold the page.
        let live = (0..ORDERS).find_map(|size| {
            let first = pfn >> size << size;
            match self.at(first, size) {
                Block::Live { pages } if order(pages.into(), ORDERS) == Some(size) => {
                    Some((IovaRange::new(first, pages.into())?, size))
                }
                _ => None,
            }
        });
        match live {
            Some((mapped, size)) if mapped == range => {
                platform.probe(Step::TableClaim);
                *self.entry(pfn, size) = Block::Unmapping { pages: range.pages() as u32 };
                Ok(())
            }
            Some((mapped, _)) => Err(UnmapError::Partial { asked: range, mapped }),
            None => Err(UnmapError::NotMapped(Iova::from_pfn(pfn))),
        }
    }

    /// Takes back a range that was handed out.
    ///
    /// # Panics
    /// If it was not handed out.
    pub(super) fn free<P: Platform>(&mut self, platform: &P, range: IovaRange) {
        let mut first = range.first_pfn();
        let wanted = order(range.pages(), ORDERS).expect("a range that was handed out has the size of a block");
        let block = mem::replace(self.entry(first, wanted), Block::None);
        let pages = range.pages() as u32;
        assert!(
            [Block::Live { pages }, Block::Unmapping { pages }].contains(&block),
            "{range} was handed out, but {block:?} is there"
        );
        platform.probe(Step::ListPush);
        let mut size = wanted;
        while size + 1 < ORDERS {
            let buddy = first ^ 1 << size;
            if !matches!(self.at(buddy, size), Block::Free { order, .. } if usize::from(order) == size) {
                break;
            }
            self.unlink(buddy, size);
            first &= buddy;
            size += 1;
        }
        announce(platform, size - wanted);
        self.link(first, size);
    }

    /// Makes the entries that are written when a block of `order` is split off at page `first`. All halves too small
    /// for the first level lie in one run.
    fn prepare(&mut self, first: u64, order: usize, spare: &mut Spare<Box<[Block]>>) -> Result<(), NoMemory> {
        let run = &mut self.small[(first / RUN_PAGES) as usize];
        if order < RUN_ORDER && run.is_empty() {
            *run = self.kept.take().map_or_else(|| spare.take(1), Ok)?;
        }
        Ok(())
    }

    /// Keeps the entries of a run for an [`allocate`](Self::allocate).
    pub(super) fn keep(&mut self, run: Box<[Block]>) {
        self.kept = Some(run);
    }

    /// The contents of the entry for blocks of `order` at page `first`. Beyond the last page there are no blocks.
    fn at(&self, first: u64, order: usize) -> Block {
        let (run, page) = ((first / RUN_PAGES) as usize, (first % RUN_PAGES) as usize);
        let entry =
            if order < RUN_ORDER { self.small.get(run).and_then(|pages| pages.get(page)) } else { self.large.get(run) };
        entry.copied().unwrap_or(Block::None)
    }

    /// The entry for blocks of `order` at page `first`. It must have been made.
    fn entry(&mut self, first: u64, order: usize) -> &mut Block {
        let (run, page) = ((first / RUN_PAGES) as usize, (first % RUN_PAGES) as usize);
        if order < RUN_ORDER { &mut self.small[run][page] } else { &mut self.large[run] }
    }

    /// Puts a block on the list of its order.
    fn link(&mut self, first: u64, order: usize) {
        let link = NonZeroU32::new(first as u32);
        let next = mem::replace(&mut self.free[order], link);
        *self.entry(first, order) = Block::Free { order: order as u8, previous: None, next };
        if let Some(after) = next
            && let Block::Free { previous, .. } = self.entry(after.get().into(), order)
        {
            *previous = link;
        }
    }

    /// Takes a block off the list of its order.
    fn unlink(&mut self, first: u64, order: usize) {
        let block = mem::replace(self.entry(first, order), Block::None);
        let Block::Free { previous: before, next: after, .. } = block else {
            unreachable!("{block:?} is on the list of order {order}")
        };
        match before.map(|before| self.entry(before.get().into(), order)) {
            Some(Block::Free { next, .. }) => *next = after,
            _ => self.free[order] = after,
        }
        if let Some(after) = after
            && let Block::Free { previous, .. } = self.entry(after.get().into(), order)
        {
            *previous = before;
        }
    }
}

/// Reports the number of blocks that were split or joined to the probe.
fn announce<P: Platform>(platform: &P, steps: usize) {
    if steps > 0 {
        platform.probe(Step::TreeSearch { nodes: steps as u64 });
    }
}
