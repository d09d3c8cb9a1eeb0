//! Linux's allocator before 4.7: a red-black tree of allocated ranges, searched from the top down, with a cached node
//! (EiovaR, FAST'15, §4 and Figure 2).
//!
//! Sizes are rounded up to a power of two and ranges aligned to it. Addresses below 4 GiB are tried first, whatever the
//! device could reach, and only that part of the space has a cached node.
//!
//! One deviation: when a search that started at the cached node finds nothing, it is tried once more from the top. The
//! kernel of that time gave up, although a gap too small for an earlier, larger request may lie above the cached node.

use super::{INTERRUPT_RANGE, IovaAllocator};
use crate::address::{Iova, IovaRange, PAGE_SHIFT};
use crate::error::{MapError, NoMemory, UnmapError};
use crate::invalidation::Invalidated;
use crate::platform::{Lock, LockClass, Phase, Platform, Step};
use crate::sync::{AtomicUsize, Ordering};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::Cell;
use core::ptr::NonNull;
use intrusive_collections::{Bound, KeyAdapter, RBTree, RBTreeLink, intrusive_adapter};

/// One past the last page number below 4 GiB.
const LIMIT_4G: u64 = 1 << (32 - PAGE_SHIFT);
/// Nodes kept for reuse, so that a steady load does not allocate; as many as a full flush queue gives back at once.
const SPARE_NODES_MAX: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Live,
    /// Claimed by an unmap, not yet given back.
    Unmapping,
    Reserved,
}

/// A range in use.
struct Node {
    link: RBTreeLink,
    first_pfn: u64,
    /// Pages asked for.
    pages: u64,
    /// Pages taken: a power of two, unless reserved.
    size: u64,
    state: Cell<State>,
}

intrusive_adapter!(NodeAdapter = Box<Node>: Node { link => RBTreeLink });

impl<'a> KeyAdapter<'a> for NodeAdapter {
    type Key = u64;
    fn get_key(&self, node: &'a Node) -> u64 {
        node.first_pfn
    }
}

/// The cached node of Figure 2: usually just above the highest gap.
struct Cached(NonNull<Node>);

// SAFETY: points into the tree that lies beside it under the same lock, and is used only with that tree in hand.
unsafe impl Send for Cached {}

struct Tree {
    nodes: RBTree<NodeAdapter>,
    cached: Option<Cached>,
    /// The node claimed last, if it is still in the tree: the next to be freed, unless CPUs interleave.
    claimed: Option<Cached>,
    #[expect(clippy::vec_box, reason = "boxes move between the tree and here")]
    spare: Vec<Box<Node>>,
}

/// The allocator.
pub struct TreeAllocator<P: Platform> {
    tree: P::Lock<Tree>,
    /// Ranges handed out. Written under the lock only, so plain stores suffice; read without it, as a statistic (Relaxed).
    live: AtomicUsize,
    width: u8,
}

impl<P: Platform> TreeAllocator<P> {
    /// An allocator of addresses below `2^width`, without page 0, the interrupt range and `reserved` (S9).
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(platform: &P, width: u8, reserved: &[IovaRange]) -> Result<Self, NoMemory> {
        let mut ranges = Vec::new();
        ranges.try_reserve_exact(reserved.len() + 2).map_err(|_| NoMemory)?;
        ranges.push((0, 1));
        ranges.push((INTERRUPT_RANGE.0, INTERRUPT_RANGE.0 + INTERRUPT_RANGE.1));
        ranges.extend(reserved.iter().map(|range| (range.first_pfn(), range.end_pfn())));
        ranges.sort_unstable();
        let mut spare = Vec::new();
        spare.try_reserve_exact(SPARE_NODES_MAX).map_err(|_| NoMemory)?;
        let mut tree = Tree { nodes: RBTree::new(NodeAdapter::new()), cached: None, claimed: None, spare };
        let mut end_before = 0;
        for (first, end) in ranges {
            // What an earlier range covers already is skipped: nodes do not overlap.
            let first = first.max(end_before);
            if first < end {
                let (pages, state) = (end - first, Cell::new(State::Reserved));
                let node = Node { link: RBTreeLink::new(), first_pfn: first, pages, size: pages, state };
                tree.nodes.insert(try_box(node)?);
                end_before = end;
            }
        }
        Ok(Self { tree: platform.lock(LockClass::IovaAllocator, tree), live: AtomicUsize::new(0), width })
    }
}

// SAFETY: ranges in the tree do not overlap, since each is put into a gap; `claim` changes the state of a live node with
// exactly that range, under the lock.
unsafe impl<P: Platform> IovaAllocator<P> for TreeAllocator<P> {
    fn allocate(&self, platform: &P, pages: u64) -> Result<IovaRange, MapError> {
        platform.probe(Step::Enter(Phase::IovaAllocate));
        let exhausted = MapError::Exhausted { pages, limit_bits: self.width };
        let size = pages.checked_next_power_of_two().ok_or(exhausted)?;
        let limit = 1u64 << (u32::from(self.width) - PAGE_SHIFT);
        self.tree.with(|tree| {
            let node = tree.node()?;
            let placed = tree.place(platform, node, pages, size, limit.min(LIMIT_4G), true);
            let placed = match placed {
                Err(node) if limit > LIMIT_4G => tree.place(platform, node, pages, size, limit, false),
                other => other,
            };
            match placed {
                Ok(range) => {
                    self.live.store(self.live.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    Ok(range)
                }
                Err(node) => {
                    tree.keep(node);
                    Err(exhausted)
                }
            }
        })
    }

    fn claim(&self, platform: &P, range: IovaRange) -> Result<(), UnmapError> {
        platform.probe(Step::Enter(Phase::IovaFind));
        self.tree.with(|tree| {
            platform.probe(Step::TreeFind);
            let found = tree.nodes.upper_bound(Bound::Included(&range.first_pfn())).get();
            let node = found.filter(|node| range.first_pfn() < node.first_pfn + node.size);
            match node {
                Some(node) if node.state.get() == State::Live => {
                    let mapped = IovaRange::new(node.first_pfn, node.pages).expect("a node is a range");
                    if mapped != range {
                        return Err(UnmapError::Partial { asked: range, mapped });
                    }
                    node.state.set(State::Unmapping);
                    tree.claimed = Some(Cached(NonNull::from(node)));
                    Ok(())
                }
                _ => Err(UnmapError::NotMapped(Iova::from_pfn(range.first_pfn()))),
            }
        })
    }

    fn free(&self, platform: &P, range: Invalidated<IovaRange>) {
        let range = range.into_inner();
        self.tree.with(|tree| {
            platform.probe(Step::TreeErase);
            let freed_first = range.first_pfn();
            // SAFETY: only this function takes nodes out of the tree, and it forgets the claimed one when it does.
            let claimed = tree.claimed.take_if(|claimed| unsafe { claimed.0.as_ref().first_pfn } == freed_first);
            let mut cursor = match claimed {
                // SAFETY: as above, so the node is in the tree.
                Some(claimed) => unsafe { tree.nodes.cursor_mut_from_ptr(claimed.0.as_ptr()) },
                None => tree.nodes.find_mut(&freed_first),
            };
            let next = cursor.peek_next().get_ptr();
            let node = cursor.remove().expect("a range that was handed out is in the tree");
            // Figure 2, free_iova: a range freed at or above the cached node moves the cache to its successor.
            // SAFETY: the cached node is in the tree, or is the one just removed and still alive in `node`.
            let cached_first = tree.cached.as_ref().map(|cached| unsafe { cached.0.as_ref().first_pfn });
            if cached_first.is_some_and(|cached| freed_first >= cached) {
                // SAFETY: the successor is in the tree.
                let below = next.filter(|next| unsafe { next.as_ref().first_pfn } < LIMIT_4G);
                // Without a successor below 4 GiB the next search starts at the limit.
                tree.cached = below.map(Cached);
            }
            self.live.store(self.live.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
            tree.keep(node);
        });
    }

    fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }
}

impl Tree {
    /// A node to fill in: a spare one or a new one.
    fn node(&mut self) -> Result<Box<Node>, NoMemory> {
        match self.spare.pop() {
            Some(node) => Ok(node),
            None => {
                let state = Cell::new(State::Live);
                try_box(Node { link: RBTreeLink::new(), first_pfn: 0, pages: 0, size: 0, state })
            }
        }
    }

    /// Keeps a node for reuse, or frees it when there are enough.
    fn keep(&mut self, node: Box<Node>) {
        if self.spare.len() < SPARE_NODES_MAX {
            self.spare.push(node);
        }
    }

    /// Figure 2, alloc_iova: from the right neighbour down, until the gap to the left one is wide enough. Gives the node
    /// back where there is no such gap.
    fn place<P: Platform>(
        &mut self,
        platform: &P,
        mut node: Box<Node>,
        pages: u64,
        size: u64,
        limit: u64,
        cached: bool,
    ) -> Result<IovaRange, Box<Node>> {
        let start = self.cached.as_ref().filter(|_| cached).map(|cached| cached.0);
        let (mut left, mut ceiling) = match start {
            // SAFETY: `free` moves the cache before the node that it points to leaves the tree.
            Some(right) => unsafe {
                let mut cursor = self.nodes.cursor_mut_from_ptr(right.as_ptr());
                cursor.move_prev();
                (cursor, right.as_ref().first_pfn.min(limit))
            },
            None => (self.nodes.upper_bound_mut(Bound::Excluded(&limit)), limit),
        };
        let mut passed_nodes = 0;
        let announce = |nodes| {
            if nodes > 0 {
                platform.probe(Step::TreeSearch { nodes });
            }
        };
        loop {
            let floor = left.get().map_or(0, |node| node.first_pfn + node.size);
            let first = ceiling.saturating_sub(size) & !(size - 1);
            if first >= floor && first + size <= ceiling {
                announce(passed_nodes);
                platform.probe(Step::TreeInsert);
                (node.first_pfn, node.pages, node.size) = (first, pages, size);
                node.state = Cell::new(State::Live);
                left.insert_after(node);
                if cached {
                    left.move_next();
                    self.cached = left.get_ptr().map(Cached);
                }
                return Ok(IovaRange::new(first, pages).expect("below the limit, so it does not wrap"));
            }
            let Some(passed) = left.get() else { break };
            ceiling = passed.first_pfn.min(ceiling);
            passed_nodes += 1;
            left.move_prev();
        }
        announce(passed_nodes);
        if start.is_some() {
            self.cached = None;
            return self.place(platform, node, pages, size, limit, cached);
        }
        Err(node)
    }
}

/// `Box::new` that reports exhaustion.
fn try_box(node: Node) -> Result<Box<Node>, NoMemory> {
    let mut one = Vec::new();
    one.try_reserve_exact(1).map_err(|_| NoMemory)?;
    one.push(node);
    let slice: Box<[Node]> = one.into_boxed_slice();
    // SAFETY: a slice of one node has the layout of the node, so the box may own it as such.
    Ok(unsafe { Box::from_raw(Box::into_raw(slice).cast::<Node>()) })
}
