//! Dynamic identity mapping: the address of a page is its physical address, with the rights in the top bits (ATC'15,
//! §4.1).
//!
//! ```text
//!  width-1  width-2   width-3                  0
//! +--------+--------+---------------------------+
//! | writes | reads  | physical address          |   three regions
//! +--------+--------+---------------------------+
//! |   0    |   0    | an allocator's address    |   the fourth
//! +--------+--------+---------------------------+
//! ```
//!
//! A map therefore searches for no address, keeps no list and takes no lock. All mappings of a page with the same
//! rights share one entry, which counts them. Mappings of the page with other rights have another entry, so that
//! rights are never wider than requested (S5). The fourth region takes what cannot be mapped like that: requests of
//! several segments, memory beyond `2^(width - 2)`, memory whose address would be reserved (S9), and pages whose
//! count of mappings is full.
//!
//! Only the unmap that takes the count of a page to zero invalidates it. That is enough for S2: before that, the
//! device reaches the page through another mapping, as it would at any other address (S8). No allocator holds an
//! address back until it is invalidated, and that does not break S3. The page may be mapped again in between, on
//! another CPU or, under deferred protection, before the flush. What the hardware may still hold then equals the new
//! entry: the same memory, the same rights. The late invalidation only causes another page walk. So do those of unmaps
//! that leave a mapping, if every unmap invalidates.
//!
//! A count does not say whose mappings it counts. An unmap of a part of a mapping, or of another driver's mapping, is
//! refused only if it meets a page with no mapping at all (S6).

use alloc::vec::Vec;
use core::mem::MaybeUninit;
use portcullis::Placement;
use portcullis::Request;
use portcullis::Space;
use portcullis::error::{CommitError, MapError, NewDomainError, RawMapError, UnmapError};
use portcullis::in_place;
use portcullis::invalidation::{Deferral, Departure, Due, InFlight, One, Revoked, Runs, WhenFull};
use portcullis::iommu::Iommu;
use portcullis::iova::{CachedRanges, Claim, IovaAllocator, IovaRequest, MagazineAllocator, never_handed_out};
use portcullis::mapper::{AssembledMapper, DomainSetup, Mapper, Usage};
use portcullis::platform::{PerCpuCount, Phase, Platform, Step};
use portcullis::proof::{Committed, Proof};
use portcullis::table::{Rights, SharedRun};
use portcullis::{IovaRange, PAGE_SHIFT, Segment};

/// Address bits that encode the rights.
pub const IDENTITY_TAG_BITS: u8 = 2;

/// The mapper: the three regions of rights, and an ordinary mapper for the fourth, which commits for all of them.
pub struct DynamicIdentity<P: Platform, I: Iommu> {
    regions: Regions,
    /// Whether every unmap invalidates, also where another mapping of the page is left.
    invalidates_each: bool,
    base: AssembledMapper<FourthRegion<P>, P, I>,
}

/// The layout of the three regions of rights.
struct Regions {
    /// log2 of the pages in a region.
    shift: u32,
    /// Reserved ranges that do not lie entirely in the fourth region, as first and end page numbers. No device may be
    /// given them.
    reserved: Vec<(u64, u64)>,
}

/// The allocator of the fourth region, which also counts the mappings in the other three.
struct FourthRegion<P: Platform> {
    magazines: MagazineAllocator<P>,
    /// One past the last page number of the region.
    end_pfn: u64,
    /// Mappings in the other three regions that are not yet given back. A driver may have any number of them. Each
    /// CPU counts on its own cache line, because nothing else here is written by every CPU.
    shared: PerCpuCount,
}

impl Regions {
    fn new<P: Platform>(platform: &P, width: u8, reserved: &[IovaRange]) -> Result<Self, NewDomainError> {
        // A region smaller than a page has no addresses.
        let shift = u32::from(width)
            .checked_sub(u32::from(IDENTITY_TAG_BITS) + PAGE_SHIFT)
            .ok_or(NewDomainError::Width(width))?;
        let mut reserved = never_handed_out(platform, reserved)?;
        reserved.retain(|(_, end)| *end > 1 << shift);
        Ok(Self { shift, reserved })
    }

    /// Pages in each region.
    const fn pages(&self) -> u64 {
        1 << self.shift
    }

    /// Where `segment` is mapped with `rights`, if it can be.
    fn of_memory(&self, segment: &Segment, rights: Rights) -> Option<SharedRun> {
        let phys_pfn = segment.phys.pfn();
        if phys_pfn + segment.pages() > self.pages() {
            return None;
        }
        let range = IovaRange::new(rights.bits() << self.shift | phys_pfn, segment.pages())?;
        (!self.are_reserved(range)).then_some(SharedRun { range, phys_pfn, rights })
    }

    /// Whether any page of `range` is reserved.
    fn are_reserved(&self, range: IovaRange) -> bool {
        self.reserved.iter().any(|(first, end)| *first < range.end_pfn() && range.first_pfn() < *end)
    }

    /// What `range` leads to, if it lies in one of the three regions.
    fn at(&self, range: IovaRange) -> Option<SharedRun> {
        let rights = Rights::from_bits(range.first_pfn() >> self.shift)?;
        let phys_pfn = range.first_pfn() & (self.pages() - 1);
        (phys_pfn + range.pages() <= self.pages()).then_some(SharedRun { range, phys_pfn, rights })
    }
}

/// Makes the mapper of a new domain in `to`.
///
/// # Errors
/// [`NewDomainError::Width`] if two bits for the rights would leave no page, and those of [`AssembledMapper::new`];
/// `to` then holds nothing.
pub(crate) fn dynamic_identity_in<'t, P: Platform, I: Iommu>(
    to: &'t mut MaybeUninit<DynamicIdentity<P, I>>,
    invalidates_each: bool,
    deferral: Deferral,
    setup: DomainSetup<'_, P, I>,
) -> Result<&'t mut DynamicIdentity<P, I>, NewDomainError> {
    // Tables are kept, because claims are left to the table. Shared entries need kept tables too.
    Ok(in_place!(to => DynamicIdentity {
        regions: Regions::new(&setup.platform, setup.width, setup.reserved)?,
        invalidates_each: invalidates_each,
        base <- |base| AssembledMapper::of_linux_in(
            base,
            |to, setup| {
                let width = setup.width - IDENTITY_TAG_BITS;
                Ok(to.write(FourthRegion {
                    magazines: MagazineAllocator::new(&setup.platform, width, setup.reserved)?,
                    end_pfn: regions.pages(),
                    shared: PerCpuCount::new(&setup.platform)?,
                }))
            },
            deferral,
            setup,
        ),
    }))
}

impl<P: Platform, I: Iommu> DynamicIdentity<P, I> {
    /// Makes the mapping in the region of its rights. `None` if it has to go to the fourth region.
    fn map_in_region(&self, request: &Request<'_>) -> Result<Option<IovaRange>, RawMapError> {
        let (space, allocator) = (self.base.address_space(), self.base.allocator());
        space.refuse_if_poisoned()?;
        let &[segment] = request.segments() else { return Ok(None) };
        let Some(run) = self.regions.of_memory(&segment, request.access().rights()) else { return Ok(None) };
        space.platform().probe(Step::Enter(Phase::Table));
        // SAFETY: the run lies in one of the three regions, where every address encodes its memory and its rights.
        // Mappings that are not shared lie in the fourth region.
        if !unsafe { space.share(&run) }? {
            return Ok(None);
        }
        allocator.shared.add(space.platform());
        if let Err(error) = space.sync_map(run.range) {
            // Take the mapping back, as `AssembledMapper` does. It is quarantined, because this domain maps nothing
            // any more.
            let _ = self.unshare(run.range);
            return Err(error.into());
        }
        Ok(Some(run.range))
    }

    /// Subtracts one mapping from each page of `range`. Returns whether any translation was removed.
    fn unshare(&self, range: IovaRange) -> Result<bool, UnmapError> {
        self.base.address_space().platform().probe(Step::Enter(Phase::Table));
        let run = self.regions.at(range).ok_or(UnmapError::NotMapped(range.start()))?;
        // SAFETY: as for `share` above.
        unsafe { self.base.address_space().unshare(&run) }
    }
}

// SAFETY: in the three regions an address leads to the memory that it encodes, with the rights that it encodes, as
// long as the entry counts any mapping. The fourth region belongs to an assembled mapper.
unsafe impl<P: Platform, I: Iommu> Mapper for DynamicIdentity<P, I> {
    unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        let platform = self.base.address_space().platform();
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Map);
        match self.map_in_region(request)? {
            Some(range) => Ok(range),
            // SAFETY: the caller's promise, passed on.
            None => unsafe { self.base.map_by_allocator(request) },
        }
    }

    /// Places the mapping in the fourth region or in a reserved range.
    unsafe fn map_placed(&self, request: &Request<'_>, placement: &Placement) -> Result<IovaRange, RawMapError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.base.map_placed(request, placement) }
    }

    fn unmap(&self, range: IovaRange, out: &mut Runs) -> Result<(), UnmapError> {
        let platform = self.base.address_space().platform();
        out.admit(self.base.address_space().tag(), range.pages())?;
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Unmap);
        // Reserved ranges in the three regions hold no shared mappings, but they may hold placed ones.
        if range.end_pfn() <= self.regions.pages() || self.regions.are_reserved(range) {
            return self.base.take_down(range, out);
        }
        let due = if self.unshare(range)? || self.invalidates_each { Due::Invalidation } else { Due::Nothing };
        // SAFETY: just taken down.
        unsafe { out.note_unmap(Revoked::one(range, due, true)) };
        Ok(())
    }

    fn commit(&self, revocation: &mut Runs) -> Result<Committed, CommitError> {
        self.base.commit(revocation)
    }

    fn commit_one(&self, one: &mut One) -> Result<Committed, CommitError> {
        self.base.commit_one(one)
    }

    fn submit(&self, revocation: &mut Runs, when_full: WhenFull) -> Result<Departure, CommitError> {
        self.base.submit(revocation, when_full)
    }

    unsafe fn take_back(
        &self,
        revocation: &mut Runs,
        in_flight: &InFlight,
        waits: bool,
    ) -> Result<Option<Committed>, CommitError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.base.take_back(revocation, in_flight, waits) }
    }

    fn tick(&self) -> Result<(), CommitError> {
        self.base.tick()
    }

    fn due_us(&self) -> Option<u64> {
        self.base.due_us()
    }

    fn usage(&self) -> Usage {
        self.base.usage()
    }

    fn space(&self) -> &dyn Space {
        self.base.address_space()
    }
}

// SAFETY: it forwards to an allocator that keeps the promises. A range that this allocator did not hand out only
// changes a count.
unsafe impl<P: Platform> IovaAllocator<P> for FourthRegion<P> {
    const TABLE_CLAIM_PAGES_MAX: u64 = MagazineAllocator::<P>::TABLE_CLAIM_PAGES_MAX;

    fn allocate(&self, platform: &P, request: &IovaRequest) -> Result<IovaRange, MapError> {
        self.magazines.allocate(platform, request)
    }

    fn claim(&self, platform: &P, range: IovaRange) -> Result<Claim, UnmapError> {
        self.magazines.claim(platform, range)
    }

    fn free(&self, platform: &P, range: IovaRange, proof: &Proof) {
        if range.end_pfn() <= self.end_pfn {
            self.magazines.free(platform, range, proof);
        } else {
            self.shared.subtract(platform);
        }
    }

    fn live_around(&self, platform: &P, pfn: u64) -> Option<IovaRange> {
        self.magazines.live_around(platform, pfn)
    }

    fn set_aside(&self, platform: &P, pages: u64, placement: &Placement) -> Result<IovaRange, MapError> {
        match placement.at() {
            // In the other regions an address encodes its memory.
            Some(range) if range.end_pfn() > self.end_pfn => Err(MapError::Unplaceable),
            _ => self.magazines.set_aside(platform, pages, placement),
        }
    }

    fn put_back(&self, platform: &P, range: IovaRange, proof: &Proof) {
        self.magazines.put_back(platform, range, proof);
    }

    fn live(&self) -> usize {
        self.magazines.live() + self.shared.sum()
    }

    fn kept(&self) -> CachedRanges {
        self.magazines.kept()
    }

    fn tick(&self, platform: &P) {
        self.magazines.tick(platform);
    }

    fn due_us(&self) -> Option<u64> {
        self.magazines.due_us()
    }
}
