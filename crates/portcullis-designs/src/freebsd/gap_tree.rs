//! FreeBSD's allocator: a balanced tree of ranges in use, in which every node knows the largest gap below it (ATC'15,
//! §3.4; EiovaR, FAST'15, §7).
//!
//! The lowest address that fits is found in logarithmic time. Addresses below 4 GiB are therefore used first, as long
//! as there are any. Sizes are not rounded, and ranges are aligned only to pages. A free page lies on either side of
//! a mapping, so that a device that runs over the end of its buffer finds nothing. Neighbours share the page between
//! them.

use super::avl::{Avl, State, new_chunk};
use crate::sync::{AtomicUsize, Ordering};
use portcullis::Placement;
use portcullis::error::{MapError, NoMemory, UnmapError};
use portcullis::iova::{Claim, IovaAllocator, IovaRequest, never_handed_out};
use portcullis::platform::memory::with_spare;
use portcullis::platform::{Context, Lock, LockClass, Phase, Platform, Step};
use portcullis::proof::Proof;
use portcullis::{Iova, IovaRange, PAGE_SHIFT};

/// Free pages that a mapping keeps before it, and behind it.
const GUARD_PAGES: u64 = 1;

/// The allocator.
pub struct GapTreeAllocator<P: Platform> {
    tree: P::Lock<Avl>,
    /// Ranges in the tree that are in use. Written only under the lock, so plain stores suffice. Read without it, as
    /// a statistic (Relaxed).
    in_use: AtomicUsize,
    /// Addresses are below `2^width`.
    width: u8,
}

impl<P: Platform> GapTreeAllocator<P> {
    /// Makes an allocator of addresses below `2^width`, without page 0, the interrupt range and `reserved` (S9).
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(platform: &P, width: u8, reserved: &[IovaRange]) -> Result<Self, NoMemory> {
        let limit = 1 << (u32::from(width) - PAGE_SHIFT);
        let mut tree = Avl::new(platform, limit)?;
        for (first, end) in never_handed_out(platform, reserved)? {
            // The tree already has page 0.
            let (first, end) = (first.max(1), end.min(limit));
            if first < end {
                let before = tree.at_or_below(first);
                with_spare(|room| new_chunk(platform, Context::MaySleep, room), |spare| tree.reserve(spare))?;
                let _ = tree.insert_after(before, first, end - first, State::Reserved);
            }
        }
        let tree = platform.lock(LockClass::IovaAllocator, tree);
        Ok(Self { tree, in_use: AtomicUsize::new(0), width })
    }

    /// Takes a range out of the tree.
    fn remove(platform: &P, tree: &mut Avl, range: IovaRange) {
        platform.probe(Step::TreeErase);
        let link = tree.at_or_below(range.first_pfn());
        let is_there = tree[link].first_pfn == range.first_pfn() && tree[link].state != State::Reserved;
        assert!(is_there, "a range that was handed out is in the tree");
        platform.probe(Step::TreeSettle { nodes: tree.remove(link) });
    }

    /// Records how many ranges there are now. The lock is held.
    fn note(&self, handed_out: isize) {
        self.in_use.store(self.in_use.load(Ordering::Relaxed).wrapping_add_signed(handed_out), Ordering::Relaxed);
    }
}

// SAFETY: ranges in the tree do not overlap, because each is put into a gap. `claim` changes the state of a live node
// with exactly that range, under the lock.
unsafe impl<P: Platform> IovaAllocator<P> for GapTreeAllocator<P> {
    fn allocate(&self, platform: &P, &IovaRequest { pages, .. }: &IovaRequest) -> Result<IovaRange, MapError> {
        platform.probe(Step::Enter(Phase::IovaAllocate));
        let exhausted = MapError::Exhausted { pages, limit_bits: self.width };
        let with_guards = pages.checked_add(2 * GUARD_PAGES).ok_or(exhausted)?;
        let allocate = |tree: &mut Avl, spare: &mut _| {
            tree.reserve(spare)?;
            let (before, nodes) = tree.before_gap(with_guards);
            platform.probe(Step::TreeSearch { nodes });
            let before = before.ok_or(exhausted)?;
            platform.probe(Step::TreeInsert);
            let range = IovaRange::new(tree[before].end_pfn() + GUARD_PAGES, pages).ok_or(exhausted)?;
            let nodes = tree.insert_after(before, range.first_pfn(), pages, State::Live);
            platform.probe(Step::TreeSettle { nodes });
            self.note(1);
            Ok(range)
        };
        with_spare(
            |room| new_chunk(platform, Context::Atomic, room),
            |spare| self.tree.with(|tree| allocate(tree, spare)),
        )
    }

    fn claim(&self, platform: &P, range: IovaRange) -> Result<Claim, UnmapError> {
        platform.probe(Step::Enter(Phase::IovaFind));
        self.tree.with(|tree| {
            platform.probe(Step::TreeFind);
            let link = tree.at_or_below(range.first_pfn());
            let node = &mut tree[link];
            if node.state != State::Live || range.first_pfn() >= node.end_pfn() {
                return Err(UnmapError::NotMapped(Iova::from_pfn(range.first_pfn())));
            }
            let mapped = IovaRange::new(node.first_pfn, node.pages).expect("a node is a range");
            if mapped != range {
                return Err(UnmapError::Partial { asked: range, mapped });
            }
            node.state = State::Unmapping;
            Ok(Claim::Held)
        })
    }

    fn free(&self, platform: &P, range: IovaRange, _proof: &Proof) {
        self.tree.with(|tree| {
            Self::remove(platform, tree, range);
            self.note(-1);
        });
    }

    /// Looks at one gap after the other, with the lock held. A range with only one possible place has no guard pages
    /// there.
    fn set_aside(&self, platform: &P, pages: u64, placement: &Placement) -> Result<IovaRange, MapError> {
        let refused = match placement.at() {
            Some(range) => MapError::Overlap(range.start()),
            None => MapError::Exhausted { pages, limit_bits: placement.limit_bits(self.width) },
        };
        let set_aside = |tree: &mut Avl, spare: &mut _| {
            tree.reserve(spare)?;
            let (found, nodes) = match placement.at() {
                Some(range) => {
                    let before = tree.at_or_below(range.first_pfn());
                    let (first, end) = tree.gap_behind(before);
                    let is_free = first <= range.first_pfn() && range.end_pfn() <= end;
                    (is_free.then_some((before, range.first_pfn())), 1)
                }
                None => tree
                    .find_gap(|first, end| placement.lowest(first + GUARD_PAGES, end.checked_sub(GUARD_PAGES)?, pages)),
            };
            platform.probe(Step::TreeSearch { nodes });
            let (before, first_pfn) = found.ok_or(refused)?;
            platform.probe(Step::TreeInsert);
            let nodes = tree.insert_after(before, first_pfn, pages, State::SetAside);
            platform.probe(Step::TreeSettle { nodes });
            Ok(IovaRange::new(first_pfn, pages).expect("pages"))
        };
        with_spare(
            |room| new_chunk(platform, Context::Atomic, room),
            |spare| self.tree.with(|tree| set_aside(tree, spare)),
        )
    }

    fn put_back(&self, platform: &P, range: IovaRange, _proof: &Proof) {
        self.tree.with(|tree| Self::remove(platform, tree, range));
    }

    fn live(&self) -> usize {
        self.in_use.load(Ordering::Relaxed)
    }
}
