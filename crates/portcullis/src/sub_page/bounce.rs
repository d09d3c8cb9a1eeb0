//! Bounce pages, which devices use in place of pages that buffers cover only in part.

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

/// The largest number of bounce pages of a domain, in use or free: 64 MiB of memory, the size of Linux's `swiotlb`.
pub const BOUNCE_PAGES_MAX: usize = (64 << 20) / PAGE_SIZE as usize;

/// The number of hash lists of mappings, keyed by the first page of their addresses. A power of two.
const LISTS: usize = 1024;

/// Stands for no page.
const NONE: u32 = u32::MAX;

/// A list of bounce pages that belong together, by number. No other code uses them until the list is given back.
/// Dropping a list leaks its pages, up to the bound.
#[derive(Debug)]
#[must_use = "its pages must go back to the pool"]
pub struct Chain(u32);

impl Chain {
    /// A list without pages.
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

/// A bounce page.
#[derive(Clone, Copy, Debug)]
struct Page {
    frame: PhysAddr,
    /// The part of a buffer that it stands for. The copy lies at the same offset in the bounce page.
    part: Segment,
    /// Whether the device may have written it.
    copies_back: bool,
    /// The next page of its list.
    next: u32,
    /// Valid in the first page of a mapping: the first page of its addresses. `next_mapping` is the next mapping on
    /// the same hash list.
    first_pfn: u64,
    next_mapping: u32,
}

#[derive(Debug)]
struct Pages {
    pages: Vec<Page>,
    free: u32,
    in_use: usize,
    /// The hash lists of mappings, by [`list_of`].
    mappings: Vec<u32>,
}

/// The bounce pages of a domain: those in use, by the address of their mapping, and those that are free.
///
/// At any time a page is in one place: on the list of free pages, on that of a mapping, or with the map, unmap or
/// commit that has taken it. The lock is therefore held only while lists change, not while memory is copied.
pub(crate) struct BouncePool<P: Platform> {
    pages: P::Lock<Pages>,
}

/// The bounce pages of a mapper, for its [`Domain`](crate::Domain) only.
#[derive(Clone, Copy)]
pub struct BouncePages<'m>(pub(crate) &'m dyn Bounce);

/// The operations of a [`BouncePool`], with the platform of its domain.
pub(crate) trait Bounce {
    /// Takes bounce pages for the partial pages in `request` and fills them. Adds all memory of the request to `seen`
    /// as the device is to see it. The list is empty if there is no partial page.
    ///
    /// # Errors
    /// [`MapError::PartialPage`] if the mapping is persistent, [`MapError::NoBouncePage`], [`MapError::NoMemory`].
    ///
    /// # Safety
    /// The memory exists, and nothing else writes it meanwhile.
    unsafe fn enter(&self, request: &Request<'_>, seen: &mut SeenSegments) -> Result<Chain, MapError>;

    /// Records `pages`, which may be empty, for the mapping at `first_pfn`, which was just made.
    fn note(&self, first_pfn: u64, pages: Chain);

    /// Takes the bounce pages of the mapping at `first_pfn`, which was unmapped and whose addresses are not free yet,
    /// and adds them to `to`. Returns a part of the buffer that they stand for.
    fn take(&self, first_pfn: u64, to: &mut Chain) -> Option<Segment>;

    /// Gives back bounce pages that no device has seen.
    fn abandon(&self, pages: Chain);

    /// Copies back what devices may have written, and gives the bounce pages back.
    ///
    /// # Errors
    /// [`QueueError::Panicked`] if an earlier panic has poisoned the domain; nothing is copied then.
    ///
    /// # Safety
    /// The mappings were unmapped and the unmaps committed. The memory of the buffers exists, and nothing else uses it
    /// meanwhile.
    unsafe fn settle(&self, pages: Chain) -> Result<(), QueueError>;

    /// Copies the bounced parts of the mapping at `first_pfn`: to the buffer what devices may have written, or from
    /// the buffer to the bounce pages.
    ///
    /// # Safety
    /// The mapping is not unmapped meanwhile. The memory of its buffer exists, and nothing else uses it meanwhile.
    unsafe fn sync(&self, first_pfn: u64, whom: Sync);

    /// The number of bounce pages in use, including those that are lost.
    fn in_use(&self) -> usize;
}

/// The segments of a buffer as the device is to see them. A buffer of one segment has at most three: its first page,
/// its last page, and everything in between.
pub(crate) type SeenSegments = SegmentList<3>;

/// The direction of a copy: who needs to see what the other has written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sync {
    /// The CPU.
    ForCpu,
    /// The device.
    ForDevice,
}

/// The hash list of a mapping.
fn list_of(first_pfn: u64) -> usize {
    // Fibonacci hashing: the upper half of the product is well mixed.
    (first_pfn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % LISTS
}

impl Page {
    /// Copies the part in one direction. Copies nothing to the CPU that the device cannot have written.
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

    /// Adds a new page, which is in use.
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

    /// Puts a whole list on the list of free pages.
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
        // Pages that are still recorded there belong to a mapping that was unmapped before its map had returned. Its
        // buffer may be in other use by now, so nothing is copied to it any more, and the pages are lost.
        let mut stale = Chain::EMPTY;
        let _ = self.take(first_pfn, &mut stale);
        let list = list_of(first_pfn);
        let next_mapping = self.mappings[list];
        if let Some(page) = self.get_mut(first) {
            (page.first_pfn, page.next_mapping) = (first_pfn, next_mapping);
            self.mappings[list] = first;
        }
    }

    /// The first bounce page of the mapping at `first_pfn`.
    fn find(&self, first_pfn: u64) -> Option<&Page> {
        let mut page = self.get(self.mappings[list_of(first_pfn)])?;
        while page.first_pfn != first_pfn {
            page = self.get(page.next_mapping)?;
        }
        Some(page)
    }

    /// Takes the list of the mapping at `first_pfn`, if there is one, and puts it before `to`. Returns a part of its
    /// buffer.
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
    /// A pool without pages.
    ///
    /// # Errors
    /// [`NewDomainError::CannotBounce`] from a host that cannot copy memory, [`NewDomainError::NoMemory`].
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
            // Not done in a drop: after a panic the lock of the pool must not be taken again.
            Err(error) => {
                self.abandon(taken);
                Err(error)
            }
        }
    }

    /// Does the same. The pages that it takes are in `taken`, also after an error.
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
                    // SAFETY: the page belongs to this call alone, and the caller's promise.
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

    /// Takes a page, which is all zeros or was used before, and adds it to `taken`.
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
            // SAFETY: the page belongs to this pool, and the caller's promise.
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
            // SAFETY: the page belongs to this pool, and the caller's promise.
            unsafe { page.copy(platform, whom) };
            next = self.pages.with(|all| all.get(page.next).copied());
        }
    }

    pub(crate) fn in_use(&self) -> usize {
        self.pages.with(|pages| pages.in_use)
    }

    /// Frees all pages. The domain must be closed.
    pub(crate) fn close(&self, platform: &P, proof: &Proof) {
        let pages = self.pages.with(|all| mem::take(&mut all.pages));
        for page in pages {
            // SAFETY: the page belongs to the pool, and no device reaches anything through the domain any more.
            unsafe { table::release_page(platform, page.frame, proof) };
        }
    }
}

/// The place of `part` in the bounce page that stands for its page.
fn at_the_same_place(frame: PhysAddr, part: Segment) -> PhysAddr {
    PhysAddr::new(frame.as_u64() + part.phys.page_offset())
}

/// Copies `part` into a page and clears the rest of the page. What the device does not write is copied back unchanged.
///
/// # Safety
/// `frame` is a page of the caller's, the memory of `part` exists, and nothing else writes it meanwhile.
unsafe fn fill<P: Platform>(platform: &P, frame: PhysAddr, part: Segment) {
    let Some(memory) = platform.copies() else { return };
    let (offset, len) = (part.phys.page_offset(), part.len);
    platform.probe(Step::Clear { bytes: PAGE_SIZE - len });
    platform.probe(Step::Copy { bytes: len });
    let behind = offset + len;
    // SAFETY: all of it lies within the page, and the caller's promise.
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

    /// A byte of this process, and its segment.
    fn a_byte(value: u8) -> (Box<u8>, [Segment; 1]) {
        let byte = Box::new(value);
        let phys = PhysAddr::new((&raw const *byte).expose_provenance() as u64);
        (byte, [Segment { phys, len: 1 }])
    }

    fn entered(pool: &BouncePool<FakeHost>, host: &FakeHost, segments: &[Segment]) -> Chain {
        let request = Request::new(segments, Access::DeviceWrites).expect("a byte");
        // SAFETY: the byte exists.
        unsafe { pool.enter(host, &request, &mut SeenSegments::default()) }.expect("a page")
    }

    fn settled(pool: &BouncePool<FakeHost>, host: &FakeHost, first_pfn: u64) -> bool {
        let mut taken = Chain::EMPTY;
        let found = pool.take(host, first_pfn, &mut taken).is_some();
        assert_eq!(found, !taken.is_empty());
        // SAFETY: the bytes exist.
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

    /// A mapping was unmapped before its map had returned: its pages are still recorded when the address is used
    /// again.
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
