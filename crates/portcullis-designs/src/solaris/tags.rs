//! Boundary tags: one per segment of an address space. They are on lists, and those in use are in a hash table.
//!
//! Tags have numbers. They come in blocks, which are never given back, so there are as many tags as there were ever
//! segments at once, rounded up to a block. Each tag is also the head of one chain of the hash table. There are
//! therefore as many chains as tags, a chain has less than one tag on average, and the table grows with the tags, one
//! block at a time and never as a whole (linear hashing).

use alloc::vec::Vec;
use core::num::NonZeroU32;
use portcullis::error::NoMemory;
use portcullis::platform::memory::{Block, Spare, push_within};
use portcullis::platform::{Context, Platform};

/// Tags in a block: a power of two.
const BLOCK: usize = 256;

/// The number of a tag, counted from one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct TagId(NonZeroU32);

/// A link from one tag to another, or to none.
pub(super) type Link = Option<TagId>;

/// The tag of a segment.
pub(super) struct Tag<T> {
    pub(super) first_pfn: u64,
    pub(super) pages: u64,
    pub(super) state: State<T>,
    /// The segments before and behind it, in the order of addresses.
    pub(super) left: Link,
    pub(super) right: Link,
    /// Its neighbours on a [`List`].
    previous: Link,
    next: Link,
    /// The next tag in its chain of the hash table.
    chained: Link,
    /// The first tag of the chain that has the number of this tag. It has nothing to do with the segment.
    chain: Link,
}

/// The use of a segment.
pub(super) enum State<T> {
    /// Free, and on the list of its size.
    Free,
    /// Never to be used.
    Reserved,
    /// In use and in the hash table, with its user's data.
    Used(T),
}

/// A list of tags, the latest first.
#[derive(Default)]
pub(super) struct List {
    head: Link,
}

/// The tags.
pub(super) struct Tags<T> {
    blocks: Vec<Vec<Tag<T>>>,
    /// Tags that stand for no segment. Each points to the next.
    spare: Link,
    spares: usize,
}

impl TagId {
    const fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    fn of_index(index: usize) -> Option<Self> {
        u32::try_from(index + 1).ok().and_then(NonZeroU32::new).map(Self)
    }
}

impl List {
    /// The tag that was put on the list last.
    pub(super) const fn first(&self) -> Link {
        self.head
    }

    /// Puts a tag on the list. It must be on no list.
    pub(super) fn push<T>(&mut self, tags: &mut Tags<T>, id: TagId) {
        let next = self.head.replace(id);
        let tag = tags.get_mut(id);
        (tag.previous, tag.next) = (None, next);
        if let Some(next) = next {
            tags.get_mut(next).previous = Some(id);
        }
    }

    /// Takes a tag off the list. It must be on it.
    pub(super) fn remove<T>(&mut self, tags: &mut Tags<T>, id: TagId) {
        let tag = tags.get_mut(id);
        let (previous, next) = (tag.previous.take(), tag.next.take());
        match previous {
            Some(previous) => tags.get_mut(previous).next = next,
            None => self.head = next,
        }
        if let Some(next) = next {
            tags.get_mut(next).previous = previous;
        }
    }
}

/// Takes memory for the tags of one block, and for a list of `blocks` blocks.
///
/// # Errors
/// [`NoMemory`].
pub(super) fn new_block<T, P: Platform>(
    platform: &P,
    context: Context,
    blocks: usize,
) -> Result<Block<Tag<T>>, NoMemory> {
    Block::new(platform, context, BLOCK, blocks)
}

impl<T> Tags<T> {
    pub(super) fn new() -> Self {
        Self { blocks: Vec::new(), spare: None, spares: 0 }
    }

    pub(super) fn get(&self, id: TagId) -> &Tag<T> {
        &self.blocks[id.index() / BLOCK][id.index() % BLOCK]
    }

    pub(super) fn get_mut(&mut self, id: TagId) -> &mut Tag<T> {
        &mut self.blocks[id.index() / BLOCK][id.index() % BLOCK]
    }

    /// The tag after `id` on its list.
    pub(super) fn next(&self, id: TagId) -> Link {
        self.get(id).next
    }

    /// Ensures that `tags` tags can be taken. The number must not exceed that of a block.
    ///
    /// # Errors
    /// [`NoMemory`] if not enough are left, here or in `spare`.
    pub(super) fn reserve(&mut self, tags: usize, spare: &mut Spare<Block<Tag<T>>>) -> Result<(), NoMemory> {
        if self.spares >= tags { Ok(()) } else { self.grow(spare) }
    }

    /// Takes a tag for a segment. The tag is on no list and in no chain.
    ///
    /// # Panics
    /// If none was reserved.
    pub(super) fn take(&mut self, first_pfn: u64, pages: u64, state: State<T>) -> TagId {
        let id = self.spare.expect("tags are reserved before they are taken");
        let tag = self.get_mut(id);
        let rest = tag.next.take();
        (tag.first_pfn, tag.pages, tag.state) = (first_pfn, pages, state);
        (self.spare, self.spares) = (rest, self.spares - 1);
        id
    }

    /// Takes back the tag of a segment that no longer exists.
    pub(super) fn put(&mut self, id: TagId) {
        let rest = self.spare.replace(id);
        self.get_mut(id).next = rest;
        self.spares += 1;
    }

    /// The tag in the hash table whose segment begins at page `first_pfn`.
    pub(super) fn find(&self, first_pfn: u64) -> Link {
        let mut link = self.get(self.chain_of(first_pfn)).chain;
        while let Some(id) = link.filter(|id| self.get(*id).first_pfn != first_pfn) {
            link = self.get(id).chained;
        }
        link
    }

    /// Puts a tag into the hash table.
    pub(super) fn insert(&mut self, id: TagId) {
        let head = self.chain_of(self.get(id).first_pfn);
        let rest = self.get_mut(head).chain.replace(id);
        self.get_mut(id).chained = rest;
    }

    /// Takes a tag out of the hash table. It must be in it.
    pub(super) fn erase(&mut self, id: TagId) {
        let head = self.chain_of(self.get(id).first_pfn);
        let rest = self.get_mut(id).chained.take();
        if self.get(head).chain == Some(id) {
            self.get_mut(head).chain = rest;
            return;
        }
        let mut before = self.get(head).chain.expect("the tag is in its chain");
        while self.get(before).chained != Some(id) {
            before = self.get(before).chained.expect("the tag is in its chain");
        }
        self.get_mut(before).chained = rest;
    }

    const fn len(&self) -> usize {
        self.blocks.len() * BLOCK
    }

    /// The head of the chain for segments that begin at page `first_pfn`. There are always tags, because even an
    /// empty space has a segment.
    fn chain_of(&self, first_pfn: u64) -> TagId {
        // Fibonacci hashing: the upper half of the product is well mixed.
        let hash = (first_pfn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        let round = self.len().next_power_of_two();
        let number = hash & (round - 1);
        let number = if number < self.len() { number } else { hash & (round / 2 - 1) };
        TagId::of_index(number).expect("a tag has this number")
    }

    /// Adds a block of spare tags, and with it as many chains. Each new chain takes over some of the tags of one old
    /// chain.
    fn grow(&mut self, spare: &mut Spare<Block<Tag<T>>>) -> Result<(), NoMemory> {
        let before = self.len();
        TagId::of_index(before + BLOCK).ok_or(NoMemory)?;
        spare.take(Block::room_wanted(&self.blocks))?.add_to(&mut self.blocks);
        if let Some(block) = self.blocks.last_mut() {
            (0..BLOCK).for_each(|_| push_within(block, Tag::spare()));
        }
        let half = self.len().next_power_of_two() / 2;
        for number in before..self.len() {
            let id = TagId::of_index(number).expect("a tag has this number");
            self.put(id);
            if before > 0 {
                let split = TagId::of_index(number & (half - 1)).expect("an old tag has this number");
                let mut link = self.get_mut(split).chain.take();
                while let Some(id) = link {
                    link = self.get_mut(id).chained.take();
                    self.insert(id);
                }
            }
        }
        Ok(())
    }
}

impl<T> Tag<T> {
    fn spare() -> Self {
        Self {
            first_pfn: 0,
            pages: 0,
            state: State::Free,
            left: None,
            right: None,
            previous: None,
            next: None,
            chained: None,
            chain: None,
        }
    }
}
