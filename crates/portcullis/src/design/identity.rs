//! Dynamic identity mapping: the address of a page is its physical address, with the rights in front (ATC'15, §4.1).
//!
//! ```text
//!  width-1  width-2   width-3                  0
//! +--------+--------+---------------------------+
//! | writes | reads  | physical address          |   three regions
//! +--------+--------+---------------------------+
//! |   0    |   0    | an allocator's            |   the fourth
//! +--------+--------+---------------------------+
//! ```
//!
//! So no address is looked for, no list kept and no lock taken. All mappings of a page with the same rights have one entry,
//! which counts them; with other rights it has another entry, so that no right is ever wider than was asked for (S5). What
//! cannot be mapped like that goes to the fourth region: several segments, memory beyond `2^(width - 2)`, what would come to
//! a reserved address (S9), and what has as many mappings as can be counted.
//!
//! Only the unmap that takes the count of a page to zero has it invalidated. That is enough for S2: before, the device reaches
//! the page by the mapping of another, as it would at any other address (S8). That no allocator holds an address back until it
//! is invalidated is no breach of S3. When a page is mapped again in between, on another CPU or, under deferred protection,
//! before the flush, what the hardware may still hold says the same as the new entry: the same memory, the same rights. The
//! invalidation that comes late only has it walked to again.
//!
//! A count does not say whose mappings it counts. An unmap of a part of one, or of what somebody else has mapped, is refused
//! only where it meets a page without any (S6).

use super::{AssembledMapper, DomainSetup, Mapper, Usage};
use crate::address::{IovaRange, PAGE_SHIFT, Segment};
use crate::error::{CommitError, MapError, NewDomainError, NoMemory, RawMapError, RawUnmapError, UnmapError};
use crate::in_place::part;
use crate::invalidation::{Deferral, Due, Revocation, TakenDown};
use crate::iommu::{AttachError, DomainId, Iommu, SourceId};
use crate::iova::{Claim, IovaAllocator, IovaRequest, Kept, MagazineAllocator, never_handed_out};
use crate::placement::Placement;
use crate::platform::{Context, PerCpuCount, Phase, Platform, Step};
use crate::proof::{Committed, Proof};
use crate::request::Request;
use crate::sub_page::{Bounce, BouncePages, Chain};
use crate::table::{Rights, SharedRun};
use alloc::vec::Vec;
use core::mem::MaybeUninit;

/// Bits of an address that say the rights.
pub const IDENTITY_TAG_BITS: u8 = 2;

/// The mapper: the three regions of rights, and a mapper of the usual kind for the fourth, which commits for all of them.
pub struct DynamicIdentity<P: Platform, I: Iommu> {
    regions: Regions,
    base: AssembledMapper<FourthRegion<P>, P, I>,
}

/// Where the regions of the three rights lie.
struct Regions {
    /// log2 of the pages of a region.
    shift: u32,
    /// Page numbers, first and end, that no device may be given, where they are not in the fourth region.
    reserved: Vec<(u64, u64)>,
}

/// The allocator of the fourth region, which also counts the mappings in the three others.
struct FourthRegion<P: Platform> {
    magazines: MagazineAllocator<P>,
    /// One past its last page number.
    end_pfn: u64,
    /// Mappings in the other regions that are not back. They are as many as the driver has, on lines of their own, since
    /// nothing else is touched by every CPU.
    shared: PerCpuCount,
}

impl Regions {
    fn new<P: Platform>(platform: &P, width: u8, reserved: &[IovaRange]) -> Result<Self, NewDomainError> {
        // A region of less than a page has no addresses.
        let shift = u32::from(width)
            .checked_sub(u32::from(IDENTITY_TAG_BITS) + PAGE_SHIFT)
            .ok_or(NewDomainError::Width(width))?;
        let mut reserved = never_handed_out(platform, reserved)?;
        reserved.retain(|(_, end)| *end > 1 << shift);
        Ok(Self { shift, reserved })
    }

    /// Pages of each.
    const fn pages(&self) -> u64 {
        1 << self.shift
    }

    /// Where `segment` is mapped for `rights`, if it can be.
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

    /// What `range` leads to, if it lies in one of the three.
    fn at(&self, range: IovaRange) -> Option<SharedRun> {
        let rights = Rights::from_bits(range.first_pfn() >> self.shift)?;
        let phys_pfn = range.first_pfn() & (self.pages() - 1);
        (phys_pfn + range.pages() <= self.pages()).then_some(SharedRun { range, phys_pfn, rights })
    }
}

/// The mapper of a new domain.
///
/// # Errors
/// [`NewDomainError::Width`] where two bits for the rights would leave no page, and those of [`AssembledMapper::new`].
pub fn dynamic_identity<P: Platform, I: Iommu>(
    deferral: Deferral,
    setup: DomainSetup<'_, P, I>,
) -> Result<DynamicIdentity<P, I>, NewDomainError> {
    let mut mapper = MaybeUninit::uninit();
    dynamic_identity_in(&mut mapper, deferral, setup)?;
    // SAFETY: made just now.
    Ok(unsafe { mapper.assume_init() })
}

/// The same, made in `to`.
///
/// # Errors
/// Those of [`dynamic_identity`]; nothing is in `to` then.
pub(crate) fn dynamic_identity_in<P: Platform, I: Iommu>(
    to: &mut MaybeUninit<DynamicIdentity<P, I>>,
    deferral: Deferral,
    setup: DomainSetup<'_, P, I>,
) -> Result<(), NewDomainError> {
    let regions = Regions::new(&setup.platform, setup.width, setup.reserved)?;
    let end_pfn = regions.pages();
    let fourth = |to: &mut MaybeUninit<FourthRegion<P>>, setup: &DomainSetup<'_, P, I>| {
        let width = setup.width - IDENTITY_TAG_BITS;
        to.write(FourthRegion {
            magazines: MagazineAllocator::new(&setup.platform, width, setup.reserved)?,
            end_pfn,
            shared: PerCpuCount::new(&setup.platform)?,
        });
        Ok(())
    };
    let at = to.as_mut_ptr();
    // Every field: with another in the mapper this does not compile.
    let _ = |DynamicIdentity { regions: _, base: _ }: &DynamicIdentity<P, I>| {};
    // Kept tables, since its claims are left to the table: shared entries need that too.
    // SAFETY: both parts of `to`, each once; the allocator writes one.
    unsafe {
        AssembledMapper::of_linux_in(part(&raw mut (*at).base), fourth, deferral, setup)?;
        (&raw mut (*at).regions).write(regions);
    }
    Ok(())
}

impl<P: Platform, I: Iommu> DynamicIdentity<P, I> {
    /// Makes the mapping in the region of its rights. `None` where it has to go to the fourth.
    fn map_in_region(&self, request: &Request<'_>) -> Result<Option<IovaRange>, RawMapError> {
        let AssembledMapper { space, allocator, .. } = &self.base;
        space.refuse_if_poisoned()?;
        let &[segment] = request.segments() else { return Ok(None) };
        let Some(run) = self.regions.of_memory(&segment, request.access().rights()) else { return Ok(None) };
        space.platform().probe(Step::Enter(Phase::Table));
        // SAFETY: a run of one of the regions, in which every address means the memory and the rights that it says; whatever
        // is not shared lies in the fourth.
        if !unsafe { space.share(&run) }? {
            return Ok(None);
        }
        allocator.shared.add(space.platform());
        if let Err(error) = space.sync_map(run.range) {
            // As in `AssembledMapper`: taken back, and quarantined, here by a domain that maps nothing any more.
            let _ = self.unshare(run.range);
            return Err(error.into());
        }
        Ok(Some(run.range))
    }

    /// Takes the mapping at exactly the range of `taken` down. Then that is to be committed.
    fn take_down(&self, taken: &mut TakenDown) -> Result<(), UnmapError> {
        let range = taken.revoked.range;
        // What is reserved in the three regions holds nothing that is shared, but perhaps something that was placed there.
        if range.end_pfn() <= self.regions.pages() || self.regions.are_reserved(range) {
            return self.base.take_down(taken);
        }
        if !self.unshare(range)? {
            taken.revoked.due = Due::Nothing;
        }
        Ok(())
    }

    /// Counts a mapping less of what is mapped at `range`. Returns whether any translation went.
    fn unshare(&self, range: IovaRange) -> Result<bool, UnmapError> {
        self.base.space.platform().probe(Step::Enter(Phase::Table));
        let run = self.regions.at(range).ok_or(UnmapError::NotMapped(range.start()))?;
        // SAFETY: as for `share` above.
        unsafe { self.base.space.unshare(&run) }
    }
}

// SAFETY: in the three regions an address leads to the memory that it names, with the rights that it names, for as long as any
// mapping counts; the fourth is an assembled mapper's.
unsafe impl<P: Platform, I: Iommu> Mapper for DynamicIdentity<P, I> {
    unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        let platform = self.base.space.platform();
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Map);
        match self.map_in_region(request)? {
            Some(range) => Ok(range),
            None => self.base.map_by_allocator(request),
        }
    }

    /// In the fourth region, or in what is reserved.
    unsafe fn map_placed(&self, request: &Request<'_>, placement: &Placement) -> Result<IovaRange, RawMapError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.base.map_placed(request, placement) }
    }

    fn allocate(&self, context: Context, allocate: &mut dyn FnMut()) {
        self.base.allocate(context, allocate);
    }

    fn reserve_tables(&self, tables: usize) -> Result<(), NoMemory> {
        self.base.reserve_tables(tables)
    }

    fn tables_max(&self, pages: u64) -> usize {
        self.base.tables_max(pages)
    }

    fn unmap(&self, range: IovaRange, out: &mut Revocation) -> Result<(), UnmapError> {
        let platform = self.base.space.platform();
        out.admit_unmap_of(self.base.space.tag(), range.pages())?;
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Unmap);
        out.note_taken(range, |taken| self.take_down(taken))
    }

    fn unmap_bounced_now(
        &self,
        range: IovaRange,
        pages: &mut Chain,
        part: &mut Option<Segment>,
    ) -> Result<Committed, RawUnmapError> {
        let AssembledMapper { space, .. } = &self.base;
        space.platform().probe(Step::Enter(Phase::Other));
        space.platform().probe(Step::Unmap);
        let mut taken = TakenDown::of(range);
        self.take_down(&mut taken)?;
        *part = space.take(range.first_pfn(), pages);
        Ok(self.base.commit_alone(&mut taken)?)
    }

    fn commit(&self, revocation: &mut Revocation) -> Result<Committed, CommitError> {
        self.base.commit(revocation)
    }

    fn tick(&self) -> Result<(), CommitError> {
        self.base.tick()
    }

    fn due_us(&self) -> Option<u64> {
        self.base.due_us()
    }

    fn table_pages(&self) -> usize {
        self.base.table_pages()
    }

    fn usage(&self) -> Usage {
        self.base.usage()
    }

    fn bounce_pages(&self) -> Option<BouncePages<'_>> {
        self.base.bounce_pages()
    }

    fn id(&self) -> DomainId {
        self.base.id()
    }

    fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        self.base.attach(device)
    }

    fn detach(&self, device: SourceId) -> Result<(), AttachError> {
        self.base.detach(device)
    }
}

// SAFETY: forwards to an allocator that keeps the promises; what it does not hand out only changes a count.
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
            // In the other regions an address says which memory it is.
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

    fn kept(&self) -> Kept {
        self.magazines.kept()
    }

    fn tick(&self, platform: &P) {
        self.magazines.tick(platform);
    }

    fn due_us(&self) -> Option<u64> {
        self.magazines.due_us()
    }
}
