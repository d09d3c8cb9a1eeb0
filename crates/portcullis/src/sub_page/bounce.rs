//! The pages that devices use in place of those which buffers have in part.

use super::pages::{is_partial, pieces};
use crate::address::{PAGE_SIZE, PhysAddr, Segment};
use crate::error::{MapError, NewDomainError};
use crate::iommu::QueueError;
use crate::platform::memory::{Spare, move_into, push_within, try_fill, try_reserve, with_spare};
use crate::platform::{Context, Lock, LockClass, Phase, Platform, Step};
use crate::proof::Proof;
use crate::request::{Access, Lifetime, Request};
use crate::segment_list::SegmentList;
use crate::table;
use alloc::vec::Vec;
use core::mem;

/// Bounce pages of a domain at most, those that are free among them: 64 MiB of memory, what Linux gives its `swiotlb`.
pub const BOUNCE_PAGES_MAX: usize = (64 << 20) / PAGE_SIZE as usize;

/// Lists of mappings, by the first page of their addresses. A power of two.
const LISTS: usize = 1024;

/// No page.
const NONE: u32 = u32::MAX;

/// Bounce pages that belong together, as a list of their numbers. They are nobody else's until the list is given back. A list that is
/// dropped leaks its pages, up to the bound.
#[derive(Debug)]
#[must_use = "its pages come back only through the pool"]
pub struct Chain(u32);

impl Chain {
    /// No page.
    pub(crate) const EMPTY: Self = Self(NONE);

    pub(crate) const fn is_empty(&self) -> bool {
        self.0 == NONE
    }
}

impl Default for Chain {
    fn default() -> Self {
        Self::EMPTY
    }
}

/// A page.
#[derive(Clone, Copy, Debug)]
struct Page {
    frame: PhysAddr,
    /// The part of a buffer that it stands for. It lies at the same place in the page.
    part: Segment,
    /// Whether the device may have written it.
    copies_back: bool,
    /// The next of its list.
    next: u32,
    /// Of the first page of a mapping: the first page of its addresses, and the next mapping on the same list.
    first_pfn: u64,
    next_mapping: u32,
}

#[derive(Debug)]
struct Pages {
    pages: Vec<Page>,
    free: u32,
    in_use: usize,
    /// The mappings, by [`list_of`].
    mappings: Vec<u32>,
}

/// The bounce pages of a domain: those that are in use, by the address of their mapping, and those that are free.
///
/// A page is in one place at a time: on the list of the free ones, on that of a mapping, or with the map, unmap or commit that has
/// taken it. So nothing but taking and giving happens with the lock held.
pub(crate) struct BouncePool<P: Platform> {
    pages: P::Lock<Pages>,
}

/// What a mapper has for domains that bounce, to be used by its [`Domain`](crate::Domain) alone.
#[derive(Clone, Copy)]
pub struct BouncePages<'m>(pub(crate) &'m dyn Bounce);

/// What a [`BouncePool`] does with the platform of its domain.
pub(crate) trait Bounce {
    /// Bounce pages for the parts of pages in `request`, filled; and to `seen` all of its memory as the device is to see it. No page
    /// where there is no such part.
    ///
    /// # Errors
    /// [`MapError::PartialPage`] where the mapping is to last, [`MapError::NoBouncePage`], [`MapError::NoMemory`].
    ///
    /// # Safety
    /// The memory is there, and nothing else writes it meanwhile.
    unsafe fn enter(&self, request: &Request<'_>, seen: &mut SeenSegments) -> Result<Chain, MapError>;

    /// Notes that `pages` are those of the mapping at `first_pfn`, which was just made; they may be none.
    fn note(&self, first_pfn: u64, pages: Chain);

    /// Takes the pages of the mapping at `first_pfn`, which was unmapped and whose addresses are not free yet, and adds them to `to`.
    /// Returns a part of the buffer that they stand for.
    fn take(&self, first_pfn: u64, to: &mut Chain) -> Option<Segment>;

    /// Gives pages back that no device has seen.
    fn abandon(&self, pages: Chain);

    /// Copies back what devices may have written, and gives the pages back.
    ///
    /// # Errors
    /// [`QueueError::Panicked`] where an earlier panic has poisoned the domain: nothing is copied then.
    ///
    /// # Safety
    /// Their mappings were unmapped and that was committed; the memory of the buffers is there, and nothing else uses it meanwhile.
    unsafe fn settle(&self, pages: Chain) -> Result<(), QueueError>;

    /// Copies what devices may have written of the mapping at `first_pfn` to its buffer, or the buffer to where they see it.
    ///
    /// # Safety
    /// The mapping is not unmapped meanwhile; the memory of its buffer is there, and nothing else uses it meanwhile.
    unsafe fn sync(&self, first_pfn: u64, whom: Sync);

    /// Pages in use, those that are lost among them.
    fn in_use(&self) -> usize;
}

/// What the device is to see of a buffer. Of one in one piece that is its first page, its last, and what lies between.
pub(crate) type SeenSegments = SegmentList<3>;

/// Who is to see what the other has written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sync {
    /// The CPU.
    ForCpu,
    /// The device.
    ForDevice,
}

/// The list on which a mapping is.
fn list_of(first_pfn: u64) -> usize {
    // Fibonacci hashing: the upper half of the product is well mixed.
    (first_pfn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % LISTS
}

impl Page {
    /// Copies the part one way or the other; nothing to the CPU that the device cannot have written.
    ///
    /// # Safety
    /// That of [`Bounce::sync`].
    unsafe fn copy<P: Platform>(&self, platform: &P, whom: Sync) {
        let Some(memory) = platform.copies() else { return };
        let Segment { phys, len } = self.part;
        let seen = at_the_same_place(self.frame, self.part);
        let (from, to) = match whom {
            Sync::ForCpu if !self.copies_back => return,
            Sync::ForCpu => (seen, phys),
            Sync::ForDevice => (phys, seen),
        };
        platform.probe(Step::Copy { bytes: len });
        // SAFETY: the caller's promise; a buffer does not lie in a page of the pool.
        unsafe { memory.copy(from, to, len) };
    }
}

impl Pages {
    fn get(&self, number: u32) -> Option<&Page> {
        self.pages.get(number as usize)
    }

    fn get_mut(&mut self, number: u32) -> Option<&mut Page> {
        self.pages.get_mut(number as usize)
    }

    fn pop_free(&mut self) -> Option<(u32, PhysAddr)> {
        let number = self.free;
        let page = self.get(number)?;
        let (frame, next) = (page.frame, page.next);
        self.free = next;
        self.in_use += 1;
        Some((number, frame))
    }

    /// Adds a page, which is in use.
    fn add(&mut self, frame: PhysAddr, spare: &mut Spare<Vec<Page>>) -> Result<u32, MapError> {
        let number = self.pages.len();
        if number >= BOUNCE_PAGES_MAX {
            return Err(MapError::NoBouncePage { most: BOUNCE_PAGES_MAX });
        }
        if number == self.pages.capacity() {
            move_into(&mut self.pages, &mut spare.take((2 * number).clamp(16, BOUNCE_PAGES_MAX))?);
        }
        let part = Segment { phys: frame, len: 0 };
        let page = Page { frame, part, copies_back: false, next: NONE, first_pfn: 0, next_mapping: NONE };
        push_within(&mut self.pages, page);
        self.in_use += 1;
        Ok(number as u32)
    }

    /// Gives a whole list back.
    fn give_back(&mut self, first: u32) {
        let mut number = first;
        while let Some(page) = self.pages.get_mut(number as usize) {
            let next = mem::replace(&mut page.next, self.free);
            self.free = number;
            self.in_use -= 1;
            number = next;
        }
    }

    fn note(&mut self, first_pfn: u64, first: u32) {
        // What is noted there belongs to a mapping that somebody unmapped before its map had returned. Its buffer may be in other use by
        // now, so nothing is copied there any more: the pages are lost.
        let mut stale = Chain::EMPTY;
        let _ = self.take(first_pfn, &mut stale);
        let list = list_of(first_pfn);
        let next_mapping = self.mappings[list];
        if let Some(page) = self.get_mut(first) {
            (page.first_pfn, page.next_mapping) = (first_pfn, next_mapping);
            self.mappings[list] = first;
        }
    }

    /// The first page of the mapping at `first_pfn`.
    fn find(&self, first_pfn: u64) -> Option<&Page> {
        let mut page = self.get(self.mappings[list_of(first_pfn)])?;
        while page.first_pfn != first_pfn {
            page = self.get(page.next_mapping)?;
        }
        Some(page)
    }

    /// Takes the list of the mapping at `first_pfn`, if there is one, and puts it in front of `to`. Returns a part of its buffer.
    fn take(&mut self, first_pfn: u64, to: &mut Chain) -> Option<Segment> {
        let list = list_of(first_pfn);
        let (mut before, mut number) = (None, self.mappings[list]);
        while let Some(page) = self.get(number) {
            let (part, next_mapping) = (page.part, page.next_mapping);
            if page.first_pfn == first_pfn {
                match before.and_then(|before| self.get_mut(before)) {
                    Some(before) => before.next_mapping = next_mapping,
                    None => self.mappings[list] = next_mapping,
                }
                let mut last = number;
                while let Some(next) = self.get(last).map(|page| page.next).filter(|next| *next != NONE) {
                    last = next;
                }
                if let Some(page) = self.get_mut(last) {
                    page.next = mem::replace(&mut to.0, number);
                }
                return Some(part);
            }
            (before, number) = (Some(number), next_mapping);
        }
        None
    }
}

impl<P: Platform> BouncePool<P> {
    /// None yet.
    ///
    /// # Errors
    /// [`NewDomainError::CannotBounce`] from a host that copies nothing, [`NewDomainError::NoMemory`].
    pub(crate) fn new(platform: &P) -> Result<Self, NewDomainError> {
        if platform.copies().is_none() {
            return Err(NewDomainError::CannotBounce);
        }
        let mappings = try_fill(platform, Context::MaySleep, LISTS, || NONE)?;
        let pages = Pages { pages: Vec::new(), free: NONE, in_use: 0, mappings };
        Ok(Self { pages: platform.lock(LockClass::Domain, pages) })
    }

    /// See [`Bounce::enter`].
    ///
    /// # Safety
    /// That of [`Bounce::enter`].
    pub(crate) unsafe fn enter(
        &self,
        platform: &P,
        request: &Request<'_>,
        seen: &mut SeenSegments,
    ) -> Result<Chain, MapError> {
        let lasts = request.lifetime == Lifetime::Persistent;
        if let Some(partial) = request.segments().iter().find(|segment| lasts && is_partial(segment)) {
            return Err(MapError::PartialPage(partial.phys));
        }
        let mut taken = Chain::EMPTY;
        // SAFETY: the caller's promise, passed on.
        match unsafe { self.enter_with(platform, request, &mut taken, seen) } {
            Ok(()) => Ok(taken),
            // Not in a drop: after a panic the lock of the pool may be taken no more.
            Err(error) => {
                self.abandon(taken);
                Err(error)
            }
        }
    }

    /// The same, with the pages that it takes in `taken`, after an error as well.
    ///
    /// # Safety
    /// That of [`Bounce::enter`].
    unsafe fn enter_with(
        &self,
        platform: &P,
        request: &Request<'_>,
        taken: &mut Chain,
        seen: &mut SeenSegments,
    ) -> Result<(), MapError> {
        let copies_back = request.access() != Access::DeviceReads;
        for piece in request.segments().iter().flat_map(|segment| pieces(*segment)) {
            let segment = match is_partial(&piece) {
                false => piece,
                true => {
                    let (number, frame) = self.a_page(platform, taken)?;
                    // SAFETY: the page is this call's alone, and the caller's promise.
                    unsafe { fill(platform, frame, piece) };
                    self.pages.with(|pages| {
                        if let Some(page) = pages.get_mut(number) {
                            (page.part, page.copies_back) = (piece, copies_back);
                        }
                    });
                    Segment { phys: frame, len: PAGE_SIZE }
                }
            };
            seen.push(|room| try_reserve(platform, Context::Atomic, room), segment)?;
        }
        Ok(())
    }

    /// Takes a page that is all zeros or was used before, and puts it on `taken`.
    fn a_page(&self, platform: &P, taken: &mut Chain) -> Result<(u32, PhysAddr), MapError> {
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::ListPop);
        let mut link = |pages: &mut Pages, number: u32| {
            if let Some(page) = pages.get_mut(number) {
                page.next = mem::replace(&mut taken.0, number);
            }
        };
        let free = self.pages.with(|pages| {
            let free = pages.pop_free()?;
            link(pages, free.0);
            Some(free)
        });
        if let Some(free) = free {
            return Ok(free);
        }
        platform.probe(Step::TablePage);
        let frame = platform.allocate_frame(Context::Atomic)?;
        let added = with_spare(
            |room| try_reserve(platform, Context::Atomic, room),
            |spare| {
                self.pages.with(|pages| {
                    let number = pages.add(frame, spare)?;
                    link(pages, number);
                    Ok(number)
                })
            },
        );
        match added {
            Ok(number) => Ok((number, frame)),
            Err(error) => {
                // SAFETY: just allocated, and in no table.
                unsafe { table::release_page(platform, frame, &Proof::never_visible()) };
                Err(error)
            }
        }
    }

    pub(crate) fn note(&self, platform: &P, first_pfn: u64, pages: Chain) {
        platform.probe(Step::HashFind);
        self.pages.with(|all| all.note(first_pfn, pages.0));
    }

    pub(crate) fn take(&self, platform: &P, first_pfn: u64, to: &mut Chain) -> Option<Segment> {
        platform.probe(Step::HashFind);
        self.pages.with(|all| all.take(first_pfn, to))
    }

    pub(crate) fn abandon(&self, pages: Chain) {
        if !pages.is_empty() {
            self.pages.with(|all| all.give_back(pages.0));
        }
    }

    /// See [`Bounce::settle`].
    ///
    /// # Safety
    /// That of [`Bounce::settle`].
    pub(crate) unsafe fn settle(&self, platform: &P, pages: Chain) {
        let mut number = pages.0;
        while let Some(page) = self.pages.with(|all| all.get(number).copied()) {
            platform.probe(Step::ListPush);
            // SAFETY: the page is one of this pool, and the caller's promise.
            unsafe { page.copy(platform, Sync::ForCpu) };
            number = page.next;
        }
        self.abandon(pages);
    }

    /// See [`Bounce::sync`].
    ///
    /// # Safety
    /// That of [`Bounce::sync`].
    pub(crate) unsafe fn sync(&self, platform: &P, first_pfn: u64, whom: Sync) {
        platform.probe(Step::HashFind);
        let mut next = self.pages.with(|all| all.find(first_pfn).copied());
        while let Some(page) = next {
            // SAFETY: the page is one of this pool, and the caller's promise.
            unsafe { page.copy(platform, whom) };
            next = self.pages.with(|all| all.get(page.next).copied());
        }
    }

    pub(crate) fn in_use(&self) -> usize {
        self.pages.with(|pages| pages.in_use)
    }

    /// Gives all pages to the host, now that the domain is closed.
    pub(crate) fn close(&self, platform: &P, proof: &Proof) {
        let pages = self.pages.with(|all| mem::take(&mut all.pages));
        for page in pages {
            // SAFETY: the page belongs to the pool, and no device reaches anything by the domain any more.
            unsafe { table::release_page(platform, page.frame, proof) };
        }
    }
}

/// Where `part` lies in the page that stands for its own.
fn at_the_same_place(frame: PhysAddr, part: Segment) -> PhysAddr {
    PhysAddr::new(frame.as_u64() + part.phys.page_offset())
}

/// Copies `part` into a page, and has zeros beside it. What the device does not write is copied back as it was.
///
/// # Safety
/// `frame` is a page of the caller's, the memory of `part` is there, and nothing else writes it meanwhile.
unsafe fn fill<P: Platform>(platform: &P, frame: PhysAddr, part: Segment) {
    let Some(memory) = platform.copies() else { return };
    let (offset, len) = (part.phys.page_offset(), part.len);
    platform.probe(Step::Clear { bytes: PAGE_SIZE - len });
    platform.probe(Step::Copy { bytes: len });
    let behind = offset + len;
    // SAFETY: all of it lies in the page, and the caller's promise.
    unsafe {
        memory.clear(frame, offset);
        memory.clear(PhysAddr::new(frame.as_u64() + behind), PAGE_SIZE - behind);
        memory.copy(part.phys, at_the_same_place(frame, part), len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::fake::FakeHost;
    use std::boxed::Box;

    /// A byte of this process, and a request for it.
    fn a_byte(value: u8) -> (Box<u8>, [Segment; 1]) {
        let byte = Box::new(value);
        let phys = PhysAddr::new((&raw const *byte).expose_provenance() as u64);
        (byte, [Segment { phys, len: 1 }])
    }

    fn entered(pool: &BouncePool<FakeHost>, host: &FakeHost, segments: &[Segment]) -> Chain {
        let request = Request::new(segments, Access::DeviceWrites).expect("a byte");
        // SAFETY: the byte is there.
        unsafe { pool.enter(host, &request, &mut SeenSegments::default()) }.expect("a page")
    }

    fn settled(pool: &BouncePool<FakeHost>, host: &FakeHost, first_pfn: u64) -> bool {
        let mut taken = Chain::EMPTY;
        let found = pool.take(host, first_pfn, &mut taken).is_some();
        assert_eq!(found, !taken.is_empty());
        // SAFETY: the bytes are there.
        unsafe { pool.settle(host, taken) };
        found
    }

    #[test]
    fn mappings_of_one_list_come_and_go_in_any_order() {
        let host = FakeHost::of_process();
        let pool = BouncePool::new(&host).expect("a host that copies");
        let (_byte, segments) = a_byte(1);
        let mut pfns = (1..).filter(|pfn| list_of(*pfn) == 7);
        let [first, second, third, absent] = core::array::from_fn(|_| pfns.next().expect("there are many"));
        for order in [[first, second, third], [third, second, first], [second, first, third]] {
            for pfn in [first, second, third] {
                pool.note(&host, pfn, entered(&pool, &host, &segments));
            }
            assert!(!settled(&pool, &host, absent));
            assert!(order.into_iter().all(|pfn| settled(&pool, &host, pfn)));
            assert!(order.into_iter().all(|pfn| !settled(&pool, &host, pfn)), "once");
        }
        assert_eq!(pool.in_use(), 0);
        pool.close(&host, &Proof::never_visible());
        assert_eq!(host.frames_lent(), 0);
    }

    /// Somebody has unmapped the first before its map had returned: its pages are still noted when the address is used again.
    #[test]
    fn what_was_left_at_an_address_is_copied_nowhere() {
        let host = FakeHost::of_process();
        let pool = BouncePool::new(&host).expect("a host that copies");
        let ((byte, first), (other, second)) = (a_byte(1), a_byte(2));
        for again in [true, false] {
            pool.note(&host, 5, entered(&pool, &host, &first));
            let in_use = pool.in_use();
            let pages = if again { entered(&pool, &host, &second) } else { Chain::EMPTY };
            pool.note(&host, 5, pages);
            assert_eq!(settled(&pool, &host, 5), again);
            assert!(!settled(&pool, &host, 5));
            assert_eq!(pool.in_use(), in_use, "those of the first are lost");
        }
        assert_eq!((*byte, *other), (1, 2));
        pool.close(&host, &Proof::never_visible());
    }
}
