//! An address space in segments: vmem's record of an arena (Bonwick and Adams, USENIX ATC'01, §4.4).
//!
//! Every page belongs to a segment, and every segment has a boundary tag that knows its neighbours. A segment that
//! becomes free is joined with its free neighbours, without a search. Free segments are on one list per power of two:
//! list *k* is for segments of at least 2^k, but less than 2^(k+1), pages. A request is served from the first list on
//! which *every* segment is large enough ("instant fit"). A mask of the non-empty lists finds it at once. Only if all
//! of those lists are empty are the lists below searched, on which some segments may be large enough.

use super::tags::{Link, List, State, Tag, TagId, Tags, new_block};
use alloc::boxed::Box;
use portcullis::error::{MapError, NoMemory};
use portcullis::iova::never_handed_out;
use portcullis::platform::memory::{Block, Spare, try_slice, with_spare};
use portcullis::platform::{Context, Platform, Step};
use portcullis::{IovaRange, PAGE_SHIFT};

/// The number of lists of free segments. No address space has more pages than the last one is for.
const LISTS: usize = (u64::BITS - PAGE_SHIFT) as usize + 1;

/// The segments of an address space. Each segment in use carries a `T` for its user.
pub(super) struct Segments<T> {
    tags: Tags<T>,
    free: Box<[List]>,
    /// A bit for each list that is not empty.
    not_empty: u64,
    /// Addresses are below `2^width`.
    width: u8,
}

/// The list for a free segment of `pages` pages.
const fn list_of(pages: u64) -> u32 {
    pages.ilog2()
}

impl<T> Segments<T> {
    /// Makes the segments of all addresses below `2^width` except page 0, the interrupt range and `reserved` (S9).
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn new<P: Platform>(platform: &P, width: u8, reserved: &[IovaRange]) -> Result<Self, NoMemory> {
        let limit = 1u64 << (u32::from(width) - PAGE_SHIFT);
        let mut segments = Self {
            tags: Tags::new(),
            free: try_slice(platform, Context::MaySleep, LISTS, || Ok(List::default()))?,
            not_empty: 0,
            width,
        };
        let (mut last, mut end_before) = (None, 0);
        for (first, end) in never_handed_out(platform, reserved)?.into_iter().chain([(limit, limit)]) {
            let (first, end) = (first.min(limit), end.min(limit));
            if end_before < first {
                last = Some(segments.append(platform, last, (end_before, first), State::Free)?);
            }
            if first < end {
                last = Some(segments.append(platform, last, (first, end), State::Reserved)?);
            }
            end_before = end;
        }
        Ok(segments)
    }

    /// Adds a segment behind the last one.
    fn append<P: Platform>(
        &mut self,
        platform: &P,
        last: Link,
        (first, end): (u64, u64),
        state: State<T>,
    ) -> Result<TagId, NoMemory> {
        with_spare(|room| new_block(platform, Context::MaySleep, room), |spare| self.tags.reserve(1, spare))?;
        let is_free = matches!(state, State::Free);
        let id = self.tags.take(first, end - first, state);
        self.link(last, Some(id));
        if is_free {
            self.put_on_list(id);
        }
        Ok(id)
    }

    /// Takes `pages` pages at a multiple of `align`, a power of two, out of a free segment.
    ///
    /// # Errors
    /// [`MapError::Exhausted`], [`MapError::NoMemory`] if no tags are left, here or in `spare`.
    pub(super) fn allocate<P: Platform>(
        &mut self,
        platform: &P,
        pages: u64,
        align: u64,
        user: T,
        spare: &mut Spare<Block<Tag<T>>>,
    ) -> Result<TagId, MapError> {
        // Tags for the pages that may be left over before and behind.
        self.tags.reserve(2, spare)?;
        let id = self.choose(platform, pages, align);
        let id = id.ok_or(MapError::Exhausted { pages, limit_bits: self.width })?;
        platform.probe(Step::ListPop);
        self.take_off_list(id);
        let (first_pfn, end_pfn) = (self.tags.get(id).first_pfn, self.tags.get(id).end_pfn());
        let start = first_pfn.next_multiple_of(align);
        if first_pfn < start {
            platform.probe(Step::SegmentSplit);
            let left = self.tags.get(id).left;
            let rest = self.tags.take(first_pfn, start - first_pfn, State::Free);
            self.link(left, Some(rest));
            self.link(Some(rest), Some(id));
            self.put_on_list(rest);
        }
        if start + pages < end_pfn {
            platform.probe(Step::SegmentSplit);
            let right = self.tags.get(id).right;
            let rest = self.tags.take(start + pages, end_pfn - (start + pages), State::Free);
            self.link(Some(rest), right);
            self.link(Some(id), Some(rest));
            self.put_on_list(rest);
        }
        let tag = self.tags.get_mut(id);
        (tag.first_pfn, tag.pages, tag.state) = (start, pages, State::Used(user));
        self.tags.insert(id);
        Ok(id)
    }

    /// A free segment that has room for the request.
    fn choose<P: Platform>(&self, platform: &P, pages: u64, align: u64) -> Link {
        if pages > 1 << (u32::from(self.width) - PAGE_SHIFT) {
            return None;
        }
        let surely = list_of((pages + align - 1).next_power_of_two());
        let lists = self.not_empty >> surely;
        if lists != 0 {
            return self.free[(surely + lists.trailing_zeros()) as usize].first();
        }
        let perhaps = list_of(pages)..surely;
        let mut passed = 0;
        let found = { perhaps }.find_map(|list| {
            let mut link = self.free[list as usize].first();
            while let Some(id) = link.filter(|id| !self.tags.get(*id).has_room(pages, align)) {
                passed += 1;
                link = self.tags.next(id);
            }
            link
        });
        if passed > 0 {
            platform.probe(Step::TreeSearch { nodes: passed });
        }
        found
    }

    /// Frees a segment in use, and joins it with its free neighbours.
    pub(super) fn free<P: Platform>(&mut self, platform: &P, mut id: TagId) {
        debug_assert!(matches!(self.tags.get(id).state, State::Used(_)));
        self.tags.erase(id);
        self.tags.get_mut(id).state = State::Free;
        if let Some(left) = self.tags.get(id).left.filter(|left| self.is_free(*left)) {
            self.take_off_list(left);
            id = self.join(platform, left, id);
        }
        if let Some(right) = self.tags.get(id).right.filter(|right| self.is_free(*right)) {
            self.take_off_list(right);
            id = self.join(platform, id, right);
        }
        platform.probe(Step::ListPush);
        self.put_on_list(id);
    }

    /// Makes one segment of two neighbours, which must be on no list.
    fn join<P: Platform>(&mut self, platform: &P, left: TagId, right: TagId) -> TagId {
        platform.probe(Step::SegmentJoin);
        let Tag { pages, right: beyond, .. } = *self.tags.get(right);
        self.tags.get_mut(left).pages += pages;
        self.link(Some(left), beyond);
        self.tags.put(right);
        left
    }

    /// The segment in use that begins at page `first_pfn`.
    pub(super) fn find(&self, first_pfn: u64) -> Link {
        self.tags.find(first_pfn)
    }

    /// The number of the first page of a segment.
    pub(super) fn first_pfn(&self, id: TagId) -> u64 {
        self.tags.get(id).first_pfn
    }

    /// The user's data of a segment.
    ///
    /// # Panics
    /// If the segment is not in use.
    pub(super) fn user(&mut self, id: TagId) -> &mut T {
        match &mut self.tags.get_mut(id).state {
            State::Used(user) => user,
            _ => panic!("the segment is not in use"),
        }
    }

    /// Puts a segment in use on a list of its user.
    pub(super) fn push(&mut self, list: &mut List, id: TagId) {
        list.push(&mut self.tags, id);
    }

    /// Takes a segment in use off the list of its user that it is on.
    pub(super) fn remove(&mut self, list: &mut List, id: TagId) {
        list.remove(&mut self.tags, id);
    }

    fn is_free(&self, id: TagId) -> bool {
        matches!(self.tags.get(id).state, State::Free)
    }

    /// Makes two segments neighbours, or puts one at an end of the space.
    fn link(&mut self, left: Link, right: Link) {
        if let Some(left) = left {
            self.tags.get_mut(left).right = right;
        }
        if let Some(right) = right {
            self.tags.get_mut(right).left = left;
        }
    }

    fn put_on_list(&mut self, id: TagId) {
        let list = list_of(self.tags.get(id).pages);
        self.free[list as usize].push(&mut self.tags, id);
        self.not_empty |= 1 << list;
    }

    fn take_off_list(&mut self, id: TagId) {
        let list = list_of(self.tags.get(id).pages);
        self.free[list as usize].remove(&mut self.tags, id);
        if self.free[list as usize].first().is_none() {
            self.not_empty &= !(1 << list);
        }
    }
}

impl<T> Tag<T> {
    const fn end_pfn(&self) -> u64 {
        self.first_pfn + self.pages
    }

    const fn has_room(&self, pages: u64, align: u64) -> bool {
        self.first_pfn.next_multiple_of(align) + pages <= self.end_pfn()
    }
}
