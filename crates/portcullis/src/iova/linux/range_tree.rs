//! The tree of ranges in use, on which Linux's allocator before 4.7 is built: a red-black tree of allocated ranges,
//! searched from the top down, with a cached node (EiovaR, FAST'15, §4 and Figure 2).
//!
//! Sizes are rounded up to a power of two, and ranges are aligned to it. Addresses below 4 GiB are tried first,
//! whatever the device could reach, and only that part of the space has a cached node.
//!
//! There is one deviation. If a search that started at the cached node finds nothing, it is repeated once from the
//! top. The kernel of that time gave up, although a gap too small for an earlier, larger request may lie above the
//! cached node.

use crate::address::{Iova, IovaRange, PAGE_SHIFT};
use crate::error::{MapError, NoMemory, UnmapError};
use crate::iova::never_handed_out;
use crate::placement::Placement;
use crate::platform::memory::{Spare, boxed, push_within, try_reserve};
use crate::platform::{Context, Platform, Step};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::Cell;
use core::mem::{self, ManuallyDrop};
use core::ptr::NonNull;
use intrusive_collections::{Bound, KeyAdapter, RBTree, RBTreeLink, intrusive_adapter};

/// One past the last page number below 4 GiB.
const LIMIT_4G: u64 = 1 << (32 - PAGE_SHIFT);
/// Nodes kept for reuse, so that a steady load does not allocate. They are as many as a full flush queue gives back
/// at once.
const SPARE_NODES_MAX: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Live,
    /// Claimed by an unmap, not yet given back.
    Unmapping,
    /// Free, but kept in a list for the next request of its size.
    Parked,
    /// Taken by [`RangeTree::set_aside`], for a request that says where.
    SetAside,
    Reserved,
}

/// A range in use.
pub struct Node {
    link: RBTreeLink,
    first_pfn: u64,
    /// Pages requested.
    pages: Cell<u64>,
    /// Pages taken: a power of two, unless reserved.
    size: u64,
    state: Cell<State>,
    /// The next range on a list of parked ranges.
    next_parked: Cell<Option<Position>>,
}

intrusive_adapter!(NodeAdapter = Box<Node>: Node { link => RBTreeLink });

impl<'a> KeyAdapter<'a> for NodeAdapter {
    type Key = u64;
    fn get_key(&self, node: &'a Node) -> u64 {
        node.first_pfn
    }
}

/// The place of a node that is in the tree.
#[derive(Clone, Copy)]
struct Position(NonNull<Node>);

// SAFETY: it points into the tree beside it under the same lock, and is used only together with that tree.
unsafe impl Send for Position {}

/// Ranges that are free but stay in the tree, the latest first. The list runs through the nodes themselves.
#[derive(Clone, Copy, Default)]
pub struct Parked(Option<Position>);

/// The ranges in use, and the reserved ones.
pub struct RangeTree {
    /// Dropped node by node: the tree's own drop would recurse once for each level.
    nodes: ManuallyDrop<RBTree<NodeAdapter>>,
    /// Figure 2: usually just above the highest gap.
    cached: Option<Position>,
    /// The node claimed last, if it is still in the tree. It is the next to be freed, unless CPUs interleave.
    claimed: Option<Position>,
    #[expect(clippy::vec_box, reason = "boxes move between the tree and here")]
    spare: Vec<Box<Node>>,
    /// Addresses are below `2^width`.
    width: u8,
    /// Page numbers below which ranges are placed: first below the first of these, for which there is a cached node,
    /// then below the others, in this order.
    limits: [u64; 3],
}

/// The limits of a tree of addresses below `2^width` that prefers those below `2^preferred`.
fn limits(preferred: u8, width: u8) -> [u64; 3] {
    let [preferred, width] = [preferred, width].map(|bits| 1 << (u32::from(bits) - PAGE_SHIFT));
    [preferred.min(LIMIT_4G), preferred, width]
}

/// Whether a range of `pages` pages would fit below `2^width` if nothing were in use.
pub fn may_ever_fit(pages: u64, width: u8) -> bool {
    pages.checked_next_power_of_two().is_some_and(|size| size <= 1 << (u32::from(width) - PAGE_SHIFT))
}

/// Makes a node for a tree.
///
/// # Errors
/// [`NoMemory`].
#[inline(never)]
pub fn new_node<P: Platform>(platform: &P, context: Context) -> Result<Box<Node>, NoMemory> {
    let room = try_reserve(platform, context, 1)?;
    let (state, next_parked) = (Cell::new(State::Live), Cell::new(None));
    Ok(boxed(room, Node { link: RBTreeLink::new(), first_pfn: 0, pages: Cell::new(0), size: 0, state, next_parked }))
}

impl Drop for RangeTree {
    fn drop(&mut self) {
        while self.nodes.front_mut().remove().is_some() {}
    }
}

impl RangeTree {
    /// Makes a tree of addresses below `2^width`, without page 0, the interrupt range and `reserved` (S9).
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new<P: Platform>(platform: &P, width: u8, reserved: &[IovaRange]) -> Result<Self, NoMemory> {
        let mut tree = Self::empty(width);
        tree.spare = try_reserve(platform, Context::MaySleep, SPARE_NODES_MAX)?;
        for (first, end) in never_handed_out(platform, reserved)? {
            let mut node = new_node(platform, Context::MaySleep)?;
            (node.first_pfn, node.size) = (first, end - first);
            node.pages.set(end - first);
            node.state.set(State::Reserved);
            tree.nodes.insert(node);
        }
        Ok(tree)
    }

    /// Makes an empty tree.
    pub(in crate::iova) fn empty(width: u8) -> Self {
        Self {
            nodes: ManuallyDrop::new(RBTree::new(NodeAdapter::new())),
            cached: None,
            claimed: None,
            spare: Vec::new(),
            width,
            limits: limits(width, width),
        }
    }

    /// Has an empty tree place ranges below `2^width` until one finds no room there.
    pub(in crate::iova) fn prefer(&mut self, width: u8) {
        self.limits = limits(width, self.width);
    }

    /// Lets the range that was set aside at `first_pfn` be claimed from now on.
    ///
    /// # Panics
    /// If no range was set aside there.
    pub(in crate::iova) fn make_live(&mut self, first_pfn: u64) {
        let node = self.nodes.find(&first_pfn);
        node.get().expect("a range that was set aside is in the tree").state.set(State::Live);
    }

    /// Puts a range of `pages` pages into the highest gap that it fits.
    ///
    /// # Errors
    /// [`MapError::Exhausted`], [`MapError::NoMemory`] if no node is left, here or in `spare`.
    pub fn allocate<P: Platform>(
        &mut self,
        platform: &P,
        pages: u64,
        spare: &mut Spare<Box<Node>>,
    ) -> Result<IovaRange, MapError> {
        let exhausted = MapError::Exhausted { pages, limit_bits: self.width };
        let size = pages.checked_next_power_of_two().ok_or(exhausted)?;
        let node = self.node(spare)?;
        self.place_lowest(platform, node, pages, size).map_err(|node| {
            self.keep(node);
            exhausted
        })
    }

    /// Puts a range into the lowest part that has room for it.
    #[inline(always)]
    fn place_lowest<P: Platform>(
        &mut self,
        platform: &P,
        node: Box<Node>,
        pages: u64,
        size: u64,
    ) -> Result<IovaRange, Box<Node>> {
        self.place(platform, node, pages, size, self.limits[0], true)
            .or_else(|node| self.place_higher(platform, node, pages, size))
    }

    #[cold]
    #[inline(never)]
    fn place_higher<P: Platform>(
        &mut self,
        platform: &P,
        mut node: Box<Node>,
        pages: u64,
        size: u64,
    ) -> Result<IovaRange, Box<Node>> {
        let [lowest, preferred, whole] = self.limits;
        if preferred > lowest {
            match self.place(platform, node, pages, size, preferred, false) {
                Err(unplaced) => node = unplaced,
                placed => return placed,
            }
        }
        if whole == preferred {
            return Err(node);
        }
        // From now on nothing is preferred. Otherwise each request would search what is full first.
        (self.limits, self.cached) = (limits(self.width, self.width), None);
        self.place_lowest(platform, node, pages, size)
    }

    /// Puts a range of `pages` pages where `placement` says, as high as possible, in the same parts first. Claims do
    /// not find it. The search starts at the top.
    ///
    /// # Errors
    /// [`MapError::Exhausted`], [`MapError::Overlap`] if there is only one place, [`MapError::NoMemory`] if no node
    /// is left.
    #[inline(always)]
    pub fn set_aside<P: Platform>(
        &mut self,
        platform: &P,
        pages: u64,
        placement: &Placement,
        spare: &mut Spare<Box<Node>>,
    ) -> Result<IovaRange, MapError> {
        let (mut node, mut tried) = (self.node(spare)?, 0);
        for limit in self.limits.map(|limit| limit.min(placement.end_pfn())) {
            if limit == mem::replace(&mut tried, limit) {
                continue;
            }
            match self.place_as_said(platform, node, pages, placement, limit) {
                Ok(range) => return Ok(range),
                Err(unplaced) => node = unplaced,
            }
        }
        self.keep(node);
        Err(match placement.at() {
            Some(range) => MapError::Overlap(range.start()),
            None => MapError::Exhausted { pages, limit_bits: placement.limit_bits(self.width) },
        })
    }

    #[inline(always)]
    fn place_as_said<P: Platform>(
        &mut self,
        platform: &P,
        mut node: Box<Node>,
        pages: u64,
        placement: &Placement,
        limit: u64,
    ) -> Result<IovaRange, Box<Node>> {
        let mut left = self.nodes.upper_bound_mut(Bound::Excluded(&limit));
        let (mut ceiling, mut passed_nodes) = (limit, 0);
        let first = loop {
            let floor = left.get().map_or(0, |node| node.first_pfn + node.size);
            let first = placement.highest(floor, ceiling, pages);
            let Some(passed) = left.get().filter(|_| first.is_none() && placement.at().is_none()) else { break first };
            ceiling = passed.first_pfn.min(ceiling);
            passed_nodes += u64::from(passed.state.get() != State::Reserved);
            left.move_prev();
        };
        if passed_nodes > 0 {
            platform.probe(Step::TreeSearch { nodes: passed_nodes });
        }
        let Some(first) = first else { return Err(node) };
        platform.probe(Step::TreeInsert);
        (node.first_pfn, node.size) = (first, pages);
        node.pages.set(pages);
        node.state.set(State::SetAside);
        left.insert_after(node);
        Ok(IovaRange::of(first, pages))
    }

    /// Claims the live range that is exactly `range`.
    ///
    /// # Errors
    /// [`UnmapError::NotMapped`], [`UnmapError::Partial`].
    pub fn claim<P: Platform>(&mut self, platform: &P, range: IovaRange) -> Result<(), UnmapError> {
        platform.probe(Step::TreeFind);
        let found = self.nodes.upper_bound(Bound::Included(&range.first_pfn()));
        // A raw pointer, because it gives the right to take the node out of the tree, which a reference would not.
        let position = found.get_ptr().map(Position);
        let node = found.get().filter(|node| range.first_pfn() < node.first_pfn + node.size);
        match node {
            Some(node) if node.state.get() == State::Live => {
                let mapped = IovaRange::new(node.first_pfn, node.pages.get()).expect("a node is a range");
                if mapped != range {
                    return Err(UnmapError::Partial { asked: range, mapped });
                }
                node.state.set(State::Unmapping);
                self.claimed = position;
                Ok(())
            }
            _ => Err(UnmapError::NotMapped(Iova::from_pfn(range.first_pfn()))),
        }
    }

    /// The live range around page `pfn`.
    pub(in crate::iova) fn live_around<P: Platform>(&self, platform: &P, pfn: u64) -> Option<IovaRange> {
        platform.probe(Step::TreeFind);
        let node = self.nodes.upper_bound(Bound::Included(&pfn)).get()?;
        let range = IovaRange::of(node.first_pfn, node.pages.get());
        (node.state.get() == State::Live && range.contains(pfn)).then_some(range)
    }

    /// Takes the range that starts at page `first_pfn` out of the tree.
    ///
    /// # Panics
    /// If no range in use starts there.
    pub fn free<P: Platform>(&mut self, platform: &P, first_pfn: u64) {
        let position = self.position(first_pfn);
        self.erase(platform, position);
    }

    /// Keeps the range that starts at page `first_pfn` in the tree and puts it on a list.
    ///
    /// # Panics
    /// If no range in use starts there.
    ///
    /// # Safety
    /// All ranges on the list are of this tree, and no copy of the list is used.
    pub unsafe fn park(&mut self, first_pfn: u64, list: &mut Parked) {
        let position = self.position(first_pfn);
        // SAFETY: `position` returns a node of the tree.
        let node = unsafe { position.0.as_ref() };
        node.state.set(State::Parked);
        node.next_parked.set(list.0.replace(position));
    }

    /// Takes the range parked last on `list` into use for `pages` pages. It must have the right size for them.
    ///
    /// # Safety
    /// The list is one on which ranges of this tree were [parked](Self::park), and no copy of it is used.
    pub unsafe fn unpark(&mut self, list: &mut Parked, pages: u64) -> Option<IovaRange> {
        let position = list.0?;
        // SAFETY: parked ranges stay in the tree.
        let node = unsafe { position.0.as_ref() };
        list.0 = node.next_parked.take();
        node.state.set(State::Live);
        node.pages.set(pages);
        Some(IovaRange::new(node.first_pfn, pages).expect("a node is a range"))
    }

    /// Takes the range parked last on `list` out of the tree. Returns whether there was one.
    ///
    /// # Safety
    /// The list is one on which ranges of this tree were [parked](Self::park), and no copy of it is used.
    pub unsafe fn free_parked<P: Platform>(&mut self, platform: &P, list: &mut Parked) -> bool {
        let Some(position) = list.0 else { return false };
        // SAFETY: parked ranges stay in the tree.
        list.0 = unsafe { position.0.as_ref() }.next_parked.take();
        self.erase(platform, position);
        true
    }

    /// The node of the range in use that starts at page `first_pfn`.
    fn position(&mut self, first_pfn: u64) -> Position {
        // SAFETY: only `erase` takes nodes out of the tree, and the claimed node is forgotten before that.
        let claimed = self.claimed.take_if(|claimed| unsafe { claimed.0.as_ref().first_pfn } == first_pfn);
        claimed.unwrap_or_else(|| {
            let node = self.nodes.find(&first_pfn).get_ptr();
            Position(node.expect("a range that was handed out is in the tree"))
        })
    }

    /// Takes a node out of the tree.
    fn erase<P: Platform>(&mut self, platform: &P, position: Position) {
        platform.probe(Step::TreeErase);
        // SAFETY: a position is that of a node in the tree.
        let freed_first = unsafe { position.0.as_ref() }.first_pfn;
        // SAFETY: the cached node is in the tree now. After the removal below it might not be.
        let cached_first = self.cached.as_ref().map(|cached| unsafe { cached.0.as_ref().first_pfn });
        // SAFETY: as above. `position` or `free_parked` has made sure that this is not the claimed node.
        let mut cursor = unsafe { self.nodes.cursor_mut_from_ptr(position.0.as_ptr()) };
        let next = cursor.peek_next().get_ptr();
        let node = cursor.remove().expect("a position is that of a node");
        // Figure 2, free_iova: a range freed at or above the cached node moves the cache to its successor.
        if cached_first.is_some_and(|cached| freed_first >= cached) {
            // SAFETY: the successor is in the tree.
            let below = next.filter(|next| unsafe { next.as_ref().first_pfn } < self.limits[0]);
            // If there is no successor below the first limit, the next search starts there.
            self.cached = below.map(Position);
        }
        self.keep(node);
    }

    /// Takes a spare node to fill in.
    fn node(&mut self, spare: &mut Spare<Box<Node>>) -> Result<Box<Node>, NoMemory> {
        self.spare.pop().map_or_else(|| spare.take(1), Ok)
    }

    /// Keeps a node for reuse, or frees it if there are enough.
    pub(in crate::iova) fn keep(&mut self, node: Box<Node>) {
        if self.spare.len() < self.spare.capacity() {
            push_within(&mut self.spare, node);
        }
    }

    /// Figure 2, alloc_iova: starts at the right neighbour and moves down, until the gap to the left neighbour is
    /// wide enough. Gives the node back if there is no such gap.
    #[inline(always)]
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
            // SAFETY: `erase` moves the cache when the node that it points to leaves the tree.
            Some(right) => unsafe {
                let mut cursor = self.nodes.cursor_mut_from_ptr(right.as_ptr());
                cursor.move_prev();
                (cursor, right.as_ref().first_pfn.min(limit))
            },
            None => (self.nodes.upper_bound_mut(Bound::Excluded(&limit)), limit),
        };
        let mut passed_nodes = 0u64;
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
                (node.first_pfn, node.size) = (first, size);
                node.pages.set(pages);
                node.state.set(State::Live);
                left.insert_after(node);
                if cached {
                    left.move_next();
                    self.cached = left.get_ptr().map(Position);
                }
                return Ok(IovaRange::new(first, pages).expect("below the limit, so it does not wrap"));
            }
            let Some(passed) = left.get() else { break };
            ceiling = passed.first_pfn.min(ceiling);
            // Reserved ranges are not counted, because no request could have been given them.
            passed_nodes += u64::from(passed.state.get() != State::Reserved);
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
