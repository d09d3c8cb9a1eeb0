//! Receive pages that stay mapped while a pool recycles them.
//!
//! ```text
//! mapped by `magazine` --claim, into the pool--> in use, 1 mapping --map--> 2 mappings --unmap--> 1 mapping
//! in use --the last unmap, committed: nothing happens--> waits, still mapped --map of the page--> in use again
//! waits --the pool is full, or addresses run out--> cleared --invalidate, wait--> free
//! ```
//!
//! The pool takes buffers that lie in one page, that the device writes and that are mapped for one DMA. All others are
//! those of `magazine` under strict protection, and so is a page for which the pool has no room or no memory. A
//! mapping goes into the pool after it was made like any other. The pool then holds the claim on it, which lies in the
//! marks of the table. So each address belongs either to the pool or to a mapping that an unmap can claim, and never to
//! both, whatever drivers unmap by mistake.
//!
//! Mappings of a page that is in the pool share its address. The device reaches the whole page until the pool gives the
//! page up, so each of them is exposed to the buffers of the others (S8), and all of them to the device after their
//! hand-back (S2).
//!
//! An unmap finds the page by the table: the leaf says which memory it leads to. A batch finds its pages twice, because
//! they keep their addresses until it is committed.
//!
//! A domain that bounces partial pages pools nothing, because its bounce pages go from buffer to buffer. In a poisoned
//! domain nothing is mapped any more. A page then leaves the pool with the commit of its last unmap, which invalidates.

use super::pool::{Left, PART_PAGES_MAX, Pool};
use arrayvec::ArrayVec;
use core::mem::MaybeUninit;
use portcullis::Placement;
use portcullis::Protection;
use portcullis::Space;
use portcullis::error::{CommitError, MapError, NewDomainError, NoMemory, RawMapError, RawUnmapError, UnmapError};
use portcullis::in_place;
use portcullis::invalidation::{Deferral, Due, Revoked, Runs};
use portcullis::iommu::Iommu;
use portcullis::iova::{IovaAllocator, MagazineAllocator};
use portcullis::mapper::{AssembledMapper, DomainSetup, Mapper, Usage};
use portcullis::platform::{PerCpuCount, Phase, Platform, Step};
use portcullis::proof::{Committed, Proof};
use portcullis::sub_page::SubPage;
use portcullis::table::{EntryValue, Rights};
use portcullis::{Access, Lifetime, Request};
use portcullis::{IovaRange, PhysAddr};

/// Pages that leave the pool with one invalidation.
const EVICTED_AT_ONCE: usize = 8;

/// The mapper: a pool, and an ordinary strict mapper for everything else.
pub struct PagePoolMapper<P: Platform, I: Iommu> {
    base: AssembledMapper<MagazineAllocator<P>, P, I>,
    pages: Pages<P>,
}

struct Pages<P: Platform> {
    pool: Pool<P>,
    /// Whether any page may go into the pool.
    is_open: bool,
    /// Addresses of pages that are in the pool, or on their way out of it.
    addresses: PerCpuCount,
    /// Mappings of pages in the pool whose buffers are not handed back.
    mappings: PerCpuCount,
}

impl<P: Platform> Pages<P> {
    fn new(platform: &P, part_pages: usize, is_open: bool) -> Result<Self, NoMemory> {
        let (addresses, mappings) = (PerCpuCount::new(platform)?, PerCpuCount::new(platform)?);
        Ok(Self { pool: Pool::new(platform, part_pages)?, is_open, addresses, mappings })
    }

    /// The number of the physical page, if the pool takes buffers like that of `request`.
    fn page_of(&self, request: &Request<'_>) -> Option<u64> {
        let for_pool = request.pages() == 1
            && request.access() == Access::DeviceWrites
            && request.lifetime == Lifetime::Transient
            && self.is_open;
        for_pool.then(|| request.phys().pfn())
    }
}

/// Makes the mapper of a new domain in `to`. Each part of the pool keeps at most `part_pages` pages.
///
/// # Errors
/// Those of [`AssembledMapper::new`]; `to` then holds nothing.
pub(crate) fn page_pool_in<'t, P: Platform, I: Iommu>(
    to: &'t mut MaybeUninit<PagePoolMapper<P, I>>,
    part_pages: usize,
    setup: DomainSetup<'_, P, I>,
) -> Result<&'t mut PagePoolMapper<P, I>, NewDomainError> {
    let is_open = setup.sub_page != SubPage::Bounce;
    Ok(in_place!(to => PagePoolMapper {
        pages <- |to| Ok(to.write(Pages::new(&setup.platform, part_pages, is_open)?)),
        base <- |base| AssembledMapper::of_linux_in(
            base,
            |to, setup| Ok(to.write(MagazineAllocator::new(&setup.platform, setup.width, setup.reserved)?)),
            Deferral::PER_CPU,
            // What the pool does not take is strict, under the protection that the design offers too.
            DomainSetup { protection: Protection::Strict, ..setup },
        ),
    }))
}

impl<P: Platform, I: Iommu> PagePoolMapper<P, I> {
    /// Maps a buffer in the page `phys_pfn`.
    fn map_page(&self, phys_pfn: u64, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        let (space, pages) = (self.base.address_space(), &self.pages);
        let platform = space.platform();
        space.refuse_if_poisoned()?;
        platform.probe(Step::Enter(Phase::IovaAllocate));
        if let Some(iova_pfn) = space.poison_on_panic(|| pages.pool.take(platform, phys_pfn)) {
            pages.mappings.add(platform);
            return Ok(IovaRange::new(iova_pfn, 1).expect("pages"));
        }
        if space.poison_on_panic(|| pages.pool.is_full_for(phys_pfn)) {
            self.evict(Pool::<P>::part_of(phys_pfn))?;
        }
        let range = self.map_strictly(request)?;
        space.poison_on_panic(|| self.put(phys_pfn, range.first_pfn()));
        Ok(range)
    }

    /// Puts a page that was just mapped into the pool, if there is room. Otherwise it stays mapped like any other.
    fn put(&self, phys_pfn: u64, iova_pfn: u64) {
        let (space, pages) = (self.base.address_space(), &self.pages);
        let leaf = EntryValue::leaf(PhysAddr::from_pfn(phys_pfn), Rights::WRITE, false);
        // SAFETY: mappings in this table are claimed by their marks alone, and those of the pool are never claimed
        // again.
        let claim = || unsafe { space.claim_and_keep(iova_pfn, leaf) };
        if pages.pool.put(space.platform(), phys_pfn, iova_pfn, &claim) == Ok(true) {
            pages.addresses.add(space.platform());
            pages.mappings.add(space.platform());
        }
    }

    /// Maps like `magazine`. If no address is free, pages that wait in the pool give theirs up.
    fn map_strictly(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        // SAFETY: the promise of `map`, which calls this.
        self.with_addresses(|| unsafe { self.base.map_by_allocator(request) })
    }

    /// Runs `map`. While it finds no address, the parts of the pool give up the pages that wait in them, one part after
    /// the other, and `map` runs again.
    #[inline(always)]
    fn with_addresses(&self, map: impl Fn() -> Result<IovaRange, RawMapError>) -> Result<IovaRange, RawMapError> {
        let mut mapped = map();
        let mut parts = self.pages.pool.parts();
        while let Err(RawMapError::Refused(MapError::Exhausted { .. } | MapError::Overlap(_))) = mapped
            && let Some(part) = parts.next()
        {
            if self.empty(part)? {
                mapped = map();
            }
        }
        mapped
    }

    /// Takes all pages that wait in a part out of the pool. Returns whether there were any.
    ///
    /// # Errors
    /// Those of [`evict`](Self::evict).
    #[cold]
    #[inline(never)]
    fn empty(&self, part: usize) -> Result<bool, MapError> {
        let mut is_changed = false;
        // The number of rounds is bounded, because other CPUs may keep putting pages there.
        for _ in 0..PART_PAGES_MAX.div_ceil(EVICTED_AT_ONCE) {
            if !self.evict(part)? {
                break;
            }
            is_changed = true;
        }
        Ok(is_changed)
    }

    /// Unmaps, invalidates and frees some of the pages that wait in a part of the pool. Returns whether there were any.
    /// No lock is held while the hardware works.
    ///
    /// # Errors
    /// [`MapError::Queue`]: the addresses are never used again, and the domain is poisoned.
    #[cold]
    #[inline(never)]
    fn evict(&self, part: usize) -> Result<bool, MapError> {
        let space = self.base.address_space();
        match space.has_panicked() {
            true => Err(MapError::Poisoned),
            false => space.poison_on_panic(|| self.evict_from(part)),
        }
    }

    #[inline(always)]
    fn evict_from(&self, part: usize) -> Result<bool, MapError> {
        let Self { base, pages } = self;
        let (space, allocator) = (base.address_space(), base.allocator());
        let platform = space.platform();
        let mut gone = ArrayVec::<IovaRange, EVICTED_AT_ONCE>::new_const();
        while !gone.is_full()
            && let Some(iova_pfn) = pages.pool.evict(platform, part)
        {
            gone.push(IovaRange::new(iova_pfn, 1).expect("pages"));
        }
        if gone.is_empty() {
            return Ok(false);
        }
        platform.probe(Step::Enter(Phase::Table));
        for range in &gone {
            // SAFETY: the pool held the claim on the page, and this CPU alone has taken it out.
            unsafe { space.unmap_kept(*range) };
        }
        platform.probe(Step::Enter(Phase::Invalidate));
        let commands = || gone.iter().map(|range| space.covering(*range, true));
        let proof = space.invalidate_each(&commands, false).map_err(MapError::Queue)?;
        platform.probe(Step::Enter(Phase::IovaFree));
        for range in &gone {
            allocator.free(platform, *range, &proof);
            pages.addresses.subtract(platform);
        }
        Ok(true)
    }

    /// The memory of a page that may be in the pool.
    fn pooled_at(&self, range: IovaRange) -> Option<PhysAddr> {
        let (space, pages) = (self.base.address_space(), &self.pages);
        if range.pages() != 1 || !pages.is_open {
            return None;
        }
        space.platform().probe(Step::Enter(Phase::IovaFind));
        space.claimed_page(range.first_pfn())
    }

    /// Unmaps a page in the pool and commits the unmap. `None` if none is mapped at exactly `range`.
    fn unmap_pooled(&self, range: IovaRange) -> Option<Result<Committed, CommitError>> {
        let (space, pages) = (self.base.address_space(), &self.pages);
        let (phys, takes_out) = (self.pooled_at(range)?, space.is_poisoned());
        let end = || pages.pool.leave_and_end(space.platform(), phys, range.first_pfn(), takes_out);
        let left = space.poison_on_panic(end)?;
        pages.mappings.subtract(space.platform());
        Some(match left {
            Left::Pooled => Ok(Committed::Deferred),
            Left::Out => self.revoke(range).map(Committed::Proven),
        })
    }

    /// Ends the mappings of a batch whose pages are in the pool. Returns whether there were any.
    ///
    /// # Errors
    /// Those of [`revoke`](Self::revoke).
    #[inline(never)]
    fn end_pooled(&self, revocation: &Runs) -> Result<bool, CommitError> {
        let (space, pages) = (self.base.address_space(), &self.pages);
        let (platform, takes_out, mut any) = (space.platform(), space.is_poisoned(), false);
        for Revoked { range, .. } in revocation.revoked().filter(|revoked| revoked.due == Due::StaysMapped) {
            any = true;
            let Some(phys) = self.pooled_at(range) else { continue };
            let end = || pages.pool.end(platform, phys, range.first_pfn(), takes_out);
            let left = space.poison_on_panic(end);
            pages.mappings.subtract(platform);
            if left == Some(Left::Out) {
                let _ = self.revoke(range)?;
            }
        }
        Ok(any)
    }

    /// Clears, invalidates and frees the address of a page that has left the pool: in a poisoned domain, where no map
    /// will find it any more.
    ///
    /// # Errors
    /// [`CommitError`]: the address is never used again.
    #[cold]
    #[inline(never)]
    fn revoke(&self, range: IovaRange) -> Result<Proof, CommitError> {
        let Self { base, pages } = self;
        let (space, allocator) = (base.address_space(), base.allocator());
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Table));
        // SAFETY: the pool held the claim on the page, and this CPU alone has taken it out.
        unsafe { space.unmap_kept(range) };
        platform.probe(Step::Enter(Phase::Invalidate));
        let proof = space.invalidate(&[space.covering(range, true)]).map_err(CommitError)?;
        platform.probe(Step::Enter(Phase::IovaFree));
        space.poison_on_panic(|| allocator.free(platform, range, &proof));
        pages.addresses.subtract(platform);
        Ok(proof)
    }
}

// SAFETY: an address in the pool leads to its page until it was invalidated, and only mappings of that page, with the
// same right, are given it. Their commits return `Deferred`. Everything else is mapped by an assembled mapper.
unsafe impl<P: Platform, I: Iommu> Mapper for PagePoolMapper<P, I> {
    unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        let platform = self.base.address_space().platform();
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Map);
        match self.pages.page_of(request) {
            Some(phys_pfn) => self.map_page(phys_pfn, request),
            None => self.map_strictly(request),
        }
    }

    /// Maps strictly, like every mapping at a place.
    unsafe fn map_placed(&self, request: &Request<'_>, placement: &Placement) -> Result<IovaRange, RawMapError> {
        // SAFETY: the caller's promise, passed on.
        self.with_addresses(|| unsafe { self.base.map_placed(request, placement) })
    }

    fn unmap(&self, range: IovaRange, out: &mut Runs) -> Result<(), UnmapError> {
        let (space, pages) = (self.base.address_space(), &self.pages);
        let platform = space.platform();
        out.admit(space.tag(), range.pages())?;
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Unmap);
        if space.has_panicked() {
            return Err(UnmapError::Poisoned);
        }
        let leave = |phys| space.poison_on_panic(|| pages.pool.leave(platform, phys, range.first_pfn()));
        if self.pooled_at(range).is_some_and(leave) {
            // SAFETY: just taken down.
            unsafe { out.note_unmap(Revoked::one(range, Due::StaysMapped, true)) };
            return Ok(());
        }
        self.base.take_down(range, out)
    }

    #[inline(never)]
    fn unmap_now(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        let platform = self.base.address_space().platform();
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Unmap);
        if self.base.address_space().has_panicked() {
            return Err(UnmapError::Poisoned.into());
        }
        match self.unmap_pooled(range) {
            Some(committed) => Ok(committed?),
            None => self.base.unmap_by_allocator(range),
        }
    }

    fn commit(&self, revocation: &mut Runs) -> Result<Committed, CommitError> {
        let space = self.base.address_space();
        let any = match revocation.is_mixed() && revocation.is_of(space.tag()) && !space.has_panicked() {
            true => {
                self.end_pooled(revocation).map_err(|CommitError(error)| self.base.keep_for_good(revocation, error))?
            }
            false => false,
        };
        let committed = self.base.commit(revocation)?;
        // The device has lost the other buffers of the batch, but not those whose pages stay in the pool.
        Ok(if any { Committed::Deferred } else { committed })
    }

    fn tick(&self) -> Result<(), CommitError> {
        self.base.tick()
    }

    fn due_us(&self) -> Option<u64> {
        self.base.due_us()
    }

    fn usage(&self) -> Usage {
        let Self { base, pages } = self;
        let mut usage = base.usage();
        usage.window_us_max = None;
        let _ = base.address_space().unless_panicked(|| {
            let live_ranges = usage.live_ranges + pages.mappings.sum();
            usage.live_ranges = live_ranges.saturating_sub(pages.addresses.sum());
            usage.kept_ranges += pages.pool.idle();
            usage.kept_ranges_max = usage.kept_ranges_max.map(|most| most + pages.pool.most());
        });
        usage
    }

    fn space(&self) -> &dyn Space {
        self.base.address_space()
    }
}
