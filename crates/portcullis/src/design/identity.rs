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

use super::{Composed, Mapper, Setup, Usage};
use crate::address::{IovaRange, PAGE_SHIFT, Segment};
use crate::error::{CommitError, MapError, NewDomainError, UnmapError};
use crate::invalidation::{Deferral, Invalidated, Revocation, Revoked};
use crate::iommu::{AttachError, DomainId, Iommu, SourceId};
use crate::iova::{Claim, Demand, IovaAllocator, Kept, MagazineAllocator, never_handed_out};
use crate::per_cpu::PerCpuCount;
use crate::platform::{Phase, Platform, Step};
use crate::request::Request;
use crate::table::{Rights, SharedRun};
use alloc::vec::Vec;

/// Bits of an address that say the rights.
pub const IDENTITY_TAG_BITS: u8 = 2;

/// The mapper.
pub struct DynamicIdentity<P: Platform, I: Iommu> {
    regions: Regions,
    /// The fourth region, over the address space of all four.
    fourth: Composed<FourthRegion<P>, P, I>,
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
    fn new(width: u8, reserved: &[IovaRange]) -> Result<Self, NewDomainError> {
        // A region of less than a page has no addresses.
        let shift = u32::from(width)
            .checked_sub(u32::from(IDENTITY_TAG_BITS) + PAGE_SHIFT)
            .ok_or(NewDomainError::Width(width))?;
        let mut reserved = never_handed_out(reserved)?;
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
        let free = self.reserved.iter().all(|(first, end)| range.end_pfn() <= *first || *end <= range.first_pfn());
        free.then_some(SharedRun { range, phys_pfn, rights })
    }

    /// What `range` leads to, if it lies in one of the three.
    fn at(&self, range: IovaRange) -> Option<SharedRun> {
        let rights = Rights::from_bits(range.first_pfn() >> self.shift)?;
        let phys_pfn = range.first_pfn() & (self.pages() - 1);
        (phys_pfn + range.pages() <= self.pages()).then_some(SharedRun { range, phys_pfn, rights })
    }
}

impl<P: Platform, I: Iommu> DynamicIdentity<P, I> {
    /// An empty domain.
    ///
    /// # Errors
    /// [`NewDomainError::Width`] where two bits for the rights would leave no page, and those of [`Composed::new`].
    pub fn new(deferral: Deferral, setup: Setup<'_, P, I>) -> Result<Self, NewDomainError> {
        let regions = Regions::new(setup.width, setup.reserved)?;
        let fourth = FourthRegion {
            magazines: MagazineAllocator::new(&setup.platform, setup.width - IDENTITY_TAG_BITS, setup.reserved)?,
            end_pfn: regions.pages(),
            shared: PerCpuCount::new(&setup.platform)?,
        };
        // Kept tables, since its claims are left to the table: shared entries need that too.
        Ok(Self { regions, fourth: Composed::new(fourth, deferral, setup)? })
    }

    /// Maps `run` at its own address. Returns whether that was possible.
    fn share(&self, run: &SharedRun) -> Result<bool, MapError> {
        let Composed { space, allocator, .. } = &self.fourth;
        space.platform().probe(Step::Enter(Phase::Table));
        // SAFETY: a run of one of the regions, in which every address means the memory and the rights that it says; whatever
        // is not shared lies in the fourth.
        if !unsafe { space.share(run) }? {
            return Ok(false);
        }
        allocator.shared.add(space.platform());
        if let Err(error) = space.written(run.range) {
            // As in `Composed`: taken back, and quarantined, here by a domain that maps nothing any more.
            let _ = self.unmap(run.range, &mut Revocation::new());
            return Err(error);
        }
        Ok(true)
    }
}

impl<P: Platform, I: Iommu> Mapper for DynamicIdentity<P, I> {
    fn map(&self, request: &Request<'_>) -> Result<IovaRange, MapError> {
        self.fourth.begin_map()?;
        let run = match request.segments() {
            [segment] => self.regions.of_memory(segment, request.access().rights()),
            _ => None,
        };
        match run {
            Some(run) if self.share(&run)? => Ok(run.range),
            _ => self.fourth.map_anywhere(request),
        }
    }

    fn unmap(&self, range: IovaRange, out: &mut Revocation) -> Result<(), UnmapError> {
        if range.end_pfn() <= self.regions.pages() {
            return self.fourth.unmap(range, out);
        }
        let space = &self.fourth.space;
        self.fourth.revoke(out, |_| {
            space.platform().probe(Step::Enter(Phase::Table));
            let run = self.regions.at(range).ok_or(UnmapError::NotMapped(range.start()))?;
            // SAFETY: as for `share`.
            let cleared = unsafe { space.unshare(&run) }?;
            Ok(Revoked { range, cleared, leaf_only: true })
        })
    }

    fn commit(&self, revocation: &mut Revocation) -> Result<(), CommitError> {
        self.fourth.commit(revocation)
    }

    fn tick(&self) -> Result<(), CommitError> {
        self.fourth.tick()
    }

    fn due_us(&self) -> Option<u64> {
        self.fourth.due_us()
    }

    fn table_pages(&self) -> usize {
        self.fourth.table_pages()
    }

    fn usage(&self) -> Usage {
        self.fourth.usage()
    }

    fn id(&self) -> DomainId {
        self.fourth.id()
    }

    fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        self.fourth.attach(device)
    }

    fn detach(&self, device: SourceId) -> Result<(), AttachError> {
        self.fourth.detach(device)
    }
}

// SAFETY: forwards to an allocator that keeps the promises; what it does not hand out only changes a count.
unsafe impl<P: Platform> IovaAllocator<P> for FourthRegion<P> {
    const TABLE_CLAIM_PAGES_MAX: u64 = MagazineAllocator::<P>::TABLE_CLAIM_PAGES_MAX;

    fn allocate(&self, platform: &P, demand: &Demand) -> Result<IovaRange, MapError> {
        self.magazines.allocate(platform, demand)
    }

    fn claim(&self, platform: &P, range: IovaRange) -> Result<Claim, UnmapError> {
        self.magazines.claim(platform, range)
    }

    fn free(&self, platform: &P, range: Invalidated<IovaRange>) {
        let range = range.into_inner();
        if range.end_pfn() <= self.end_pfn {
            self.magazines.free(platform, Invalidated::new(range));
        } else {
            self.shared.subtract(platform);
        }
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
