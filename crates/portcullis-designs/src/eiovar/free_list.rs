//! EiovaR: freed ranges stay in the tree, on a list per power of two, for later requests of their size (FAST'15, §5).
//!
//! A driver maps buffers of few sizes over and over. After a short while every request therefore finds a range on its
//! list, without a search. The lists run through the nodes of the tree, so keeping a range takes no memory.

use crate::sync::{AtomicUsize, Ordering};
use alloc::boxed::Box;
use portcullis::IovaRange;
use portcullis::Placement;
use portcullis::error::{MapError, NoMemory, UnmapError};
use portcullis::iova::{CachedRanges, Claim, IovaAllocator, IovaRequest};
use portcullis::iova::{Node, Parked, RangeTree, may_ever_fit, new_node};
use portcullis::platform::memory::{Spare, with_spare};
use portcullis::platform::{Context, Lock, LockClass, Phase, Platform, Step};
use portcullis::proof::Proof;

/// The number of lists, and so of sizes: up to 2^27 pages, half a terabyte (§5). Larger ranges go back to the tree.
const ORDERS: usize = 28;

/// The most kept ranges that go back to the tree while the lock is held once.
const GIVEN_BACK_MAX: usize = 256;

/// The tree and the lists, under one lock.
struct FreeLists {
    tree: RangeTree,
    lists: [Parked; ORDERS],
    /// Ranges on all lists.
    kept: usize,
    /// The upper bound of `kept`: k.
    kept_max: usize,
}

/// The allocator.
pub struct FreeListAllocator<P: Platform> {
    lists: P::Lock<FreeLists>,
    /// Ranges handed out, and ranges on the lists. They are written only under the lock, so plain stores suffice.
    /// They are read without it, as statistics (Relaxed).
    live: AtomicUsize,
    kept: AtomicUsize,
    kept_max: Option<usize>,
}

impl<P: Platform> FreeListAllocator<P> {
    /// Makes an allocator of addresses below `2^width`, without page 0, the interrupt range and `reserved` (S9). It
    /// keeps at most `kept_max` freed ranges. Without a limit it keeps, of each size, as many as were ever in use at
    /// once.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(platform: &P, width: u8, reserved: &[IovaRange], kept_max: Option<usize>) -> Result<Self, NoMemory> {
        let lists = FreeLists {
            tree: RangeTree::new(platform, width, reserved)?,
            lists: [Parked::default(); ORDERS],
            kept: 0,
            kept_max: kept_max.unwrap_or(usize::MAX),
        };
        Ok(Self {
            lists: platform.lock(LockClass::IovaAllocator, lists),
            live: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            kept_max,
        })
    }

    /// Gives all kept ranges back to the tree, a few at a time, so that interrupts are not masked for long.
    fn give_all_back(&self, platform: &P) {
        let give_back = |lists: &mut FreeLists| {
            let more = lists.give_back(platform, GIVEN_BACK_MAX);
            self.note(lists, 0);
            more
        };
        while self.lists.with(give_back) {}
    }

    /// Records how many ranges there are now. The lock is held.
    fn note(&self, lists: &FreeLists, handed_out: isize) {
        self.kept.store(lists.kept, Ordering::Relaxed);
        self.live.store(self.live.load(Ordering::Relaxed).wrapping_add_signed(handed_out), Ordering::Relaxed);
    }
}

/// The list for ranges of `pages` pages.
fn order(pages: u64) -> Option<usize> {
    portcullis::iova::order(pages, ORDERS)
}

impl FreeLists {
    fn allocate<P: Platform>(
        &mut self,
        platform: &P,
        pages: u64,
        spare: &mut Spare<Box<Node>>,
    ) -> Result<IovaRange, MapError> {
        debug_assert!(self.kept <= self.kept_max);
        let kept = order(pages).and_then(|order| {
            // SAFETY: `free` has parked what is on the lists, in this tree.
            unsafe { self.tree.unpark(&mut self.lists[order], pages) }
        });
        if let Some(range) = kept {
            platform.probe(Step::ListPop);
            self.kept -= 1;
            return Ok(range);
        }
        self.tree.allocate(platform, pages, spare)
    }

    /// Gives up to `count` kept ranges back to the tree, and returns whether any are left.
    fn give_back<P: Platform>(&mut self, platform: &P, mut count: usize) -> bool {
        for list in &mut self.lists {
            // SAFETY: as above.
            while count > 0 && unsafe { self.tree.free_parked(platform, list) } {
                (self.kept, count) = (self.kept - 1, count - 1);
            }
        }
        self.kept > 0
    }

    fn free<P: Platform>(&mut self, platform: &P, range: IovaRange) {
        match order(range.pages()) {
            Some(order) if self.kept < self.kept_max => {
                platform.probe(Step::ListPush);
                // SAFETY: the lists are of this tree alone.
                unsafe { self.tree.park(range.first_pfn(), &mut self.lists[order]) };
                self.kept += 1;
            }
            _ => self.tree.free(platform, range.first_pfn()),
        }
    }
}

// SAFETY: ranges in the tree do not overlap. Those on the lists are in no other use, because they go there when they
// are freed. `claim` changes the state of a live node with exactly that range, under the lock.
unsafe impl<P: Platform> IovaAllocator<P> for FreeListAllocator<P> {
    fn allocate(&self, platform: &P, &IovaRequest { pages, .. }: &IovaRequest) -> Result<IovaRange, MapError> {
        platform.probe(Step::Enter(Phase::IovaAllocate));
        let allocate = || {
            let allocate = |spare: &mut _| {
                self.lists.with(|lists| {
                    let result = lists.allocate(platform, pages, spare);
                    self.note(lists, isize::from(result.is_ok()));
                    result
                })
            };
            with_spare(|_| new_node(platform, Context::Atomic), allocate)
        };
        match allocate() {
            // Ranges kept for other sizes may leave enough room (S13).
            Err(MapError::Exhausted { limit_bits, .. })
                if self.kept.load(Ordering::Relaxed) > 0 && may_ever_fit(pages, limit_bits) =>
            {
                self.give_all_back(platform);
                allocate()
            }
            result => result,
        }
    }

    fn claim(&self, platform: &P, range: IovaRange) -> Result<Claim, UnmapError> {
        platform.probe(Step::Enter(Phase::IovaFind));
        self.lists.with(|lists| lists.tree.claim(platform, range)).map(|()| Claim::Held)
    }

    fn free(&self, platform: &P, range: IovaRange, _proof: &Proof) {
        self.lists.with(|lists| {
            lists.free(platform, range);
            self.note(lists, -1);
        });
    }

    fn set_aside(&self, platform: &P, pages: u64, placement: &Placement) -> Result<IovaRange, MapError> {
        let set_aside = || {
            with_spare(
                |_| new_node(platform, Context::Atomic),
                |spare| self.lists.with(|lists| lists.tree.set_aside(platform, pages, placement, spare)),
            )
        };
        match set_aside() {
            Err(MapError::Exhausted { .. } | MapError::Overlap(_)) if self.kept.load(Ordering::Relaxed) > 0 => {
                self.give_all_back(platform);
                set_aside()
            }
            result => result,
        }
    }

    fn put_back(&self, platform: &P, range: IovaRange, _proof: &Proof) {
        self.lists.with(|lists| lists.tree.free(platform, range.first_pfn()));
    }

    fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    fn kept(&self) -> CachedRanges {
        CachedRanges { ranges: self.kept.load(Ordering::Relaxed), ranges_max: self.kept_max }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use portcullis::platform::fake::FakeHost;
    use portcullis::{Access, Lifetime, Stream};

    /// S7: while the lock is held, no more ranges go back than requested, because interrupts are masked meanwhile.
    #[test]
    fn what_is_kept_goes_back_bit_by_bit() {
        let host = FakeHost::default();
        let allocator = FreeListAllocator::new(&host, 32, &[], Some(64)).expect("memory");
        let request =
            IovaRequest { pages: 1, access: Access::DeviceReads, stream: Stream(None), lifetime: Lifetime::Transient };
        let ranges: [_; 10] = core::array::from_fn(|_| allocator.allocate(&host, &request).expect("room"));
        for range in ranges {
            assert_eq!(allocator.claim(&host, range), Ok(Claim::Held));
            // SAFETY: no hardware is behind it.
            allocator.free(&host, range, &unsafe { Proof::trusted() });
        }
        let kept = |lists: &mut FreeLists| {
            let any_left = lists.give_back(&host, 4);
            (any_left, lists.kept)
        };
        assert_eq!([(); 4].map(|()| allocator.lists.with(kept)), [(true, 6), (true, 2), (false, 0), (false, 0)]);
    }
}
