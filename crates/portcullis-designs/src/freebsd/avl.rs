//! A balanced tree of ranges that knows the gaps between them. Each node carries the largest gap of its subtree, so
//! that one descent finds the lowest gap that is wide enough.
//!
//! It is an AVL tree, so no path down is longer than 1.45 times the logarithm of the number of ranges, and nothing
//! recurses. Nodes lie in an arena and point to each other by number. Nodes that leave the tree are used again, so
//! there are never more of them than there were ranges at once.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};
use portcullis::error::NoMemory;
use portcullis::platform::memory::{Block, Spare, push_within, with_spare};
use portcullis::platform::{Context, Platform};

/// Nodes that are allocated together. The arena grows by this number, so that no node ever moves.
const CHUNK_NODES: usize = 64;

/// A node by its number.
pub(super) type Link = u32;

/// The link to no node. Its own node has no height and no gaps, and stands for every missing child.
const NULL: Link = 0;

const LEFT: usize = 0;
const RIGHT: usize = 1;

/// The state of a range.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum State {
    #[default]
    Reserved,
    Live,
    /// Claimed by an unmap, not yet given back.
    Unmapping,
    /// Taken for a request that says where.
    SetAside,
}

/// A range in use.
#[derive(Default)]
pub(super) struct Node {
    pub(super) first_pfn: u64,
    pub(super) pages: u64,
    pub(super) state: State,
    /// Free pages from its end to the next range, or to the end of the space.
    gap: u64,
    /// The largest gap in the subtree.
    gap_max: u64,
    children: [Link; 2],
    parent: Link,
    height: u8,
}

impl Node {
    /// One past the last page.
    pub(super) const fn end_pfn(&self) -> u64 {
        self.first_pfn + self.pages
    }
}

/// The ranges in use below a limit. The first one starts at page 0 and always stays.
pub(super) struct Avl {
    chunks: Vec<Vec<Node>>,
    root: Link,
    /// Nodes for reuse, linked through their left children.
    spare: Link,
}

impl Index<Link> for Avl {
    type Output = Node;

    fn index(&self, link: Link) -> &Node {
        &self.chunks[link as usize / CHUNK_NODES][link as usize % CHUNK_NODES]
    }
}

impl IndexMut<Link> for Avl {
    fn index_mut(&mut self, link: Link) -> &mut Node {
        &mut self.chunks[link as usize / CHUNK_NODES][link as usize % CHUNK_NODES]
    }
}

/// Takes memory for the nodes of one chunk, and for a list of `chunks` chunks.
///
/// # Errors
/// [`NoMemory`].
pub(super) fn new_chunk<P: Platform>(platform: &P, context: Context, chunks: usize) -> Result<Block<Node>, NoMemory> {
    Block::new(platform, context, CHUNK_NODES, chunks)
}

impl Avl {
    /// A tree of `limit` pages, of which the first is reserved.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn new<P: Platform>(platform: &P, limit: u64) -> Result<Self, NoMemory> {
        let mut tree = Self { chunks: Vec::new(), root: NULL, spare: NULL };
        with_spare(|room| new_chunk(platform, Context::MaySleep, room), |spare| tree.reserve(spare))?;
        let null = tree.node();
        debug_assert_eq!(null, NULL);
        tree.root = tree.node();
        let root = tree.root;
        tree[root] = Node { pages: 1, gap: limit - 1, ..Node::default() };
        let _ = tree.settle(root);
        Ok(tree)
    }

    /// The range before the lowest gap of at least `pages` pages, if there is one, and the number of nodes that the
    /// search visited.
    pub(super) fn before_gap(&self, pages: u64) -> (Option<Link>, u64) {
        let mut at = self.root;
        let mut visited = 1;
        if self[at].gap_max < pages {
            return (None, visited);
        }
        loop {
            let node = &self[at];
            let [left, right] = node.children;
            if self[left].gap_max >= pages {
                at = left;
            } else if node.gap >= pages {
                return (Some(at), visited);
            } else {
                // There is such a gap in this subtree, but neither to the left nor here.
                at = right;
            }
            visited += 1;
        }
    }

    /// The lowest gap for which `fits` returns an answer: the range before it, and the answer. `fits` gets the start
    /// and the end of the gap. The search looks at one gap after the other.
    pub(super) fn find_gap<T>(&self, fits: impl Fn(u64, u64) -> Option<T>) -> (Option<(Link, T)>, u64) {
        let (mut at, mut visited) = (self.outermost(self.root, LEFT), 0);
        while at != NULL {
            visited += 1;
            let (first, end) = self.gap_behind(at);
            if let Some(answer) = fits(first, end) {
                return (Some((at, answer)), visited);
            }
            at = self.following(at);
        }
        (None, visited)
    }

    /// The start and the end of the gap behind a range.
    pub(super) fn gap_behind(&self, link: Link) -> (u64, u64) {
        let node = &self[link];
        (node.end_pfn(), node.end_pfn() + node.gap)
    }

    /// The range behind the one of `link`, if there is one.
    fn following(&self, link: Link) -> Link {
        match self[link].children[RIGHT] {
            NULL => {
                let (mut at, mut parent) = (link, self[link].parent);
                while parent != NULL && self[parent].children[RIGHT] == at {
                    (at, parent) = (parent, self[parent].parent);
                }
                parent
            }
            right => self.outermost(right, LEFT),
        }
    }

    /// The last range that starts at page `pfn` or below.
    pub(super) fn at_or_below(&self, pfn: u64) -> Link {
        let (mut found, mut at) = (NULL, self.root);
        while at != NULL {
            if self[at].first_pfn <= pfn {
                (found, at) = (at, self[at].children[RIGHT]);
            } else {
                at = self[at].children[LEFT];
            }
        }
        found
    }

    /// Puts a range into the gap behind `before`, where it must fit. Returns the number of nodes that were updated for
    /// it.
    ///
    /// # Panics
    /// If no node was [reserved](Self::reserve).
    pub(super) fn insert_after(&mut self, before: Link, first_pfn: u64, pages: u64, state: State) -> u64 {
        let new = self.node();
        let gap = first_pfn - self[before].end_pfn();
        let gap_behind = self[before].gap - gap - pages;
        self[before].gap = gap;
        self[new] = Node { first_pfn, pages, state, gap: gap_behind, ..Node::default() };
        // The new node lies below `before` in either case, so that the gap of `before` is updated on the way up.
        match self[before].children[RIGHT] {
            NULL => self.attach(before, RIGHT, new),
            right => {
                let next = self.outermost(right, LEFT);
                self.attach(next, LEFT, new);
            }
        }
        self.settle(new)
    }

    /// Takes out any range except the first. Its pages join the gap before it. Returns the number of nodes that were
    /// updated for it.
    pub(super) fn remove(&mut self, link: Link) -> u64 {
        let before = self.previous(link);
        self[before].gap += self[link].pages + self[link].gap;
        let [left, right] = self[link].children;
        let vacant = if left == NULL || right == NULL {
            link
        } else {
            // The next range, whose node has no left child, moves into this node.
            let next = self.outermost(right, LEFT);
            let Node { first_pfn, pages, state, gap, .. } = self[next];
            let node = &mut self[link];
            (node.first_pfn, node.pages, node.state, node.gap) = (first_pfn, pages, state, gap);
            next
        };
        let [left, right] = self[vacant].children;
        let parent = self[vacant].parent;
        self.replace(vacant, if left == NULL { right } else { left });
        self[vacant].children[LEFT] = self.spare;
        self.spare = vacant;
        self.settle(parent) + self.settle(before)
    }

    /// The range before the one of `link`.
    fn previous(&self, link: Link) -> Link {
        match self[link].children[LEFT] {
            NULL => {
                let (mut at, mut parent) = (link, self[link].parent);
                while self[parent].children[LEFT] == at {
                    (at, parent) = (parent, self[parent].parent);
                }
                parent
            }
            left => self.outermost(left, RIGHT),
        }
    }

    /// The last node on one side below `at`.
    fn outermost(&self, mut at: Link, side: usize) -> Link {
        while self[at].children[side] != NULL {
            at = self[at].children[side];
        }
        at
    }

    /// Restores heights, largest gaps and balance from `at` up to the root. Returns the number of nodes on this way,
    /// plus that of nodes that moved.
    fn settle(&mut self, mut at: Link) -> u64 {
        let mut nodes = 0;
        while at != NULL {
            nodes += 1;
            self.update(at);
            let [left, right] = self[at].children.map(|child| self[child].height);
            if left.abs_diff(right) > 1 {
                let side = if left > right { LEFT } else { RIGHT };
                let higher = self[at].children[side];
                let [outer, inner] = [side, 1 - side].map(|side| self[self[higher].children[side]].height);
                if inner > outer {
                    self.rotate(higher, 1 - side);
                    nodes += 1;
                }
                at = self.rotate(at, side);
                nodes += 1;
            }
            at = self[at].parent;
        }
        nodes
    }

    /// Moves the child of `at` on `side` into the place of `at`, and `at` below it. Returns the child.
    fn rotate(&mut self, at: Link, side: usize) -> Link {
        let child = self[at].children[side];
        let between = self[child].children[1 - side];
        self.replace(at, child);
        self.attach(at, side, between);
        self.attach(child, 1 - side, at);
        self.update(at);
        self.update(child);
        child
    }

    /// Updates the height and the largest gap of a node whose children are up to date.
    fn update(&mut self, at: Link) {
        let [left, right] = self[at].children;
        let height = 1 + self[left].height.max(self[right].height);
        let gap_max = self[at].gap.max(self[left].gap_max).max(self[right].gap_max);
        (self[at].height, self[at].gap_max) = (height, gap_max);
    }

    /// Puts `new` where `old` is.
    fn replace(&mut self, old: Link, new: Link) {
        match self[old].parent {
            NULL => {
                self.root = new;
                self[new].parent = NULL;
            }
            parent => {
                let side = if self[parent].children[LEFT] == old { LEFT } else { RIGHT };
                self.attach(parent, side, new);
            }
        }
    }

    fn attach(&mut self, parent: Link, side: usize, child: Link) {
        self[parent].children[side] = child;
        if child != NULL {
            self[child].parent = parent;
        }
    }

    /// Ensures that there is a node for another range.
    ///
    /// # Errors
    /// [`NoMemory`] if no node is left, here or in `spare`.
    pub(super) fn reserve(&mut self, spare: &mut Spare<Block<Node>>) -> Result<(), NoMemory> {
        let is_full = self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK_NODES);
        if self.spare == NULL && is_full {
            Link::try_from((self.chunks.len() + 1) * CHUNK_NODES).map_err(|_| NoMemory)?;
            spare.take(Block::room_wanted(&self.chunks))?.add_to(&mut self.chunks);
        }
        Ok(())
    }

    /// Takes a node that is in no tree.
    ///
    /// # Panics
    /// If none was reserved.
    fn node(&mut self) -> Link {
        if self.spare != NULL {
            let link = self.spare;
            self.spare = self[link].children[LEFT];
            return link;
        }
        let last = self.chunks.len() - 1;
        let link = last * CHUNK_NODES + self.chunks[last].len();
        debug_assert!(self.chunks[last].len() < CHUNK_NODES, "a link says chunk and place");
        push_within(&mut self.chunks[last], Node::default());
        link as Link
    }
}
