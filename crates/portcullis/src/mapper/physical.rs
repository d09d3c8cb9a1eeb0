//! Designs whose addresses are physical addresses: untranslated, or through an identity map that is made once.
//! Neither protects anything.

use crate::address::{Iova, IovaRange, PAGE_SHIFT, PhysAddr, Segment};
use crate::error::{CommitError, MapError, NewDomainError, RawMapError, RawUnmapError, UnmapError};
use crate::invalidation::Runs;
use crate::iommu::{AttachError, DomainId, Iommu, SourceId};
use crate::iova::{never_handed_out, refuse_interrupts};
use crate::mapper::{DomainSetup, Mapper, Usage};
use crate::pass_through::PassThrough;
use crate::placement::Placement;
use crate::platform::Platform;
use crate::proof::Committed;
use crate::request::{Access, Request};
use crate::space::{AddressSpace, Space};
use crate::table::TableRule;
use alloc::vec::Vec;

/// The physical addresses that a device may be given.
struct Reachable {
    /// Ranges that no device may be given, as first and end page numbers.
    reserved: Vec<(u64, u64)>,
    /// Address bits that devices can drive.
    width: u8,
}

impl Reachable {
    fn new<P: Platform, I>(setup: &DomainSetup<'_, P, I>) -> Result<Self, NewDomainError> {
        Ok(Self { reserved: never_handed_out(&setup.platform, setup.reserved)?, width: setup.width })
    }

    /// One past the last page number that devices can drive.
    const fn limit(&self) -> u64 {
        1 << (self.width as u32 - PAGE_SHIFT)
    }

    /// The addresses of the memory of `request`, whether reserved or not.
    fn drivable(&self, request: &Request<'_>) -> Result<IovaRange, MapError> {
        let &[segment] = request.segments() else { return Err(MapError::NotContiguous) };
        let range = IovaRange::covering(Iova::new(segment.phys.as_u64()), segment.len).expect("a request is not empty");
        if range.end_pfn() <= self.limit() {
            return Ok(range);
        }
        let iova = Iova::from_pfn(self.limit().max(range.first_pfn()));
        Err(MapError::BeyondWidth { iova, limit_bits: self.width })
    }

    /// The addresses of the memory of `request`, if `placement` allows them. A request may name a reserved range,
    /// because the range leads to itself.
    fn placed(&self, request: &Request<'_>, placement: &Placement) -> Result<IovaRange, MapError> {
        let range = self.drivable(request)?;
        match placement.at() {
            Some(_) => refuse_interrupts(range)?,
            None => self.refuse_reserved(range)?,
        }
        if placement.allows(range) { Ok(range) } else { Err(MapError::Unplaceable) }
    }

    /// The addresses of the memory of `request`.
    fn range(&self, request: &Request<'_>) -> Result<IovaRange, MapError> {
        let range = self.drivable(request)?;
        self.refuse_reserved(range)?;
        Ok(range)
    }

    fn refuse_reserved(&self, range: IovaRange) -> Result<(), MapError> {
        let holes = &mut self.reserved.iter();
        match holes.find(|(first, end)| *first < range.end_pfn() && range.first_pfn() < *end) {
            Some(hole) => Err(MapError::Reserved(Iova::from_pfn(hole.0.max(range.first_pfn())))),
            None => Ok(()),
        }
    }
}

/// Checks that `revocation` is empty: no unmap of these mappers leaves anything to invalidate.
///
/// # Panics
/// If `revocation` is not empty. Another mapper's unmaps must then have filled it.
fn refuse_others(revocation: &Runs) {
    assert!(revocation.is_empty(), "a revocation must be committed by the mapper of its unmaps");
}

/// A mapper whose devices pass through.
pub struct Untranslated<I: Iommu> {
    domain: PassThrough<I>,
    reachable: Reachable,
}

impl<I: Iommu> Untranslated<I> {
    /// Opens the domain.
    ///
    /// # Errors
    /// Those of [`Iommu::open_domain`].
    ///
    /// # Safety
    /// All memory is meant for every device that is attached.
    pub unsafe fn new<P: Platform>(setup: DomainSetup<'_, P, I>) -> Result<Self, NewDomainError> {
        let reachable = Reachable::new(&setup)?;
        // SAFETY: the caller's promise, passed on.
        Ok(Self { domain: unsafe { PassThrough::new(setup.iommu) }?, reachable })
    }
}

// SAFETY: it offers no protection, and declares that.
unsafe impl<I: Iommu> Mapper for Untranslated<I> {
    unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        Ok(self.reachable.range(request)?)
    }

    unsafe fn map_placed(&self, request: &Request<'_>, placement: &Placement) -> Result<IovaRange, RawMapError> {
        Ok(self.reachable.placed(request, placement)?)
    }

    fn unmap(&self, _range: IovaRange, _out: &mut Runs) -> Result<(), UnmapError> {
        Ok(())
    }

    fn commit(&self, revocation: &mut Runs) -> Result<Committed, CommitError> {
        refuse_others(revocation);
        Ok(Committed::Deferred)
    }

    #[inline]
    fn unmap_now(&self, _range: IovaRange) -> Result<Committed, RawUnmapError> {
        Ok(Committed::Deferred)
    }

    fn tick(&self) -> Result<(), CommitError> {
        Ok(())
    }

    fn due_us(&self) -> Option<u64> {
        None
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }

    fn space(&self) -> &dyn Space {
        &self.domain
    }
}

/// A mapper over an identity map of all memory, made once.
pub struct IdentityMapped<P: Platform, I: Iommu> {
    space: AddressSpace<P, I>,
    reachable: Reachable,
}

impl<P: Platform, I: Iommu> IdentityMapped<P, I> {
    /// Maps all of `setup.memory` at its own addresses, except for reserved ranges.
    ///
    /// # Errors
    /// Those of [`AddressSpace::new`]; [`NewDomainError::BadRange`], [`NewDomainError::Identity`].
    ///
    /// # Safety
    /// All of `setup.memory` is meant for every device that is attached.
    pub unsafe fn new(setup: DomainSetup<'_, P, I>) -> Result<Self, NewDomainError> {
        let reachable = Reachable::new(&setup)?;
        let space = AddressSpace::new(setup.iommu, setup.platform, setup.width, TableRule::Kept)?;
        let this = Self { space, reachable };
        for memory in setup.memory {
            let whole_pages = memory.phys.page_offset() == 0 && memory.len.is_multiple_of(1 << PAGE_SHIFT);
            let range = IovaRange::new(memory.phys.pfn(), memory.len >> PAGE_SHIFT).filter(|_| whole_pages);
            let range = range.ok_or(NewDomainError::BadRange(memory.phys))?;
            // Addresses that the device cannot drive need no translation.
            let (mut pfn, end) = (range.first_pfn(), range.end_pfn().min(this.reachable.limit()));
            while pfn < end {
                // Map up to the next reserved range, or skip it.
                let hole = this.reachable.reserved.iter().find(|(_, hole_end)| *hole_end > pfn);
                match hole {
                    Some(&(first, hole_end)) if first <= pfn => pfn = hole_end,
                    _ => {
                        let stop = hole.map_or(end, |&(first, _)| first.min(end));
                        this.map_identity(pfn, stop - pfn)?;
                        pfn = stop;
                    }
                }
            }
        }
        Ok(this)
    }

    /// Returns `range` if the identity map has all of it.
    fn translated(&self, range: IovaRange) -> Result<IovaRange, MapError> {
        for pfn in range.first_pfn()..range.end_pfn() {
            // SAFETY: the identity map is never unmapped.
            if unsafe { self.space.table().lookup(self.space.walker(), Iova::from_pfn(pfn)) }.is_none() {
                return Err(MapError::PhysicalRange(PhysAddr::from_pfn(pfn)));
            }
        }
        Ok(range)
    }

    fn map_identity(&self, pfn: u64, pages: u64) -> Result<(), NewDomainError> {
        let segment = Segment { phys: PhysAddr::from_pfn(pfn), len: pages << PAGE_SHIFT };
        let range = IovaRange::new(pfn, pages).ok_or(NewDomainError::BadRange(segment.phys))?;
        // SAFETY: the space is still being made, so this call alone uses it.
        let mapped = unsafe { self.space.map(range, &[segment], Access::DeviceReadsAndWrites, false) };
        let mapped = mapped.map_err(RawMapError::from);
        mapped.and_then(|()| Ok(self.space.sync_map(range)?)).map_err(NewDomainError::Identity)
    }
}

// SAFETY: it offers no protection, and declares that.
unsafe impl<P: Platform, I: Iommu> Mapper for IdentityMapped<P, I> {
    unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        Ok(self.translated(self.reachable.range(request)?)?)
    }

    unsafe fn map_placed(&self, request: &Request<'_>, placement: &Placement) -> Result<IovaRange, RawMapError> {
        Ok(self.translated(self.reachable.placed(request, placement)?)?)
    }

    fn unmap(&self, _range: IovaRange, _out: &mut Runs) -> Result<(), UnmapError> {
        Ok(())
    }

    fn commit(&self, revocation: &mut Runs) -> Result<Committed, CommitError> {
        refuse_others(revocation);
        Ok(Committed::Deferred)
    }

    #[inline]
    fn unmap_now(&self, _range: IovaRange) -> Result<Committed, RawUnmapError> {
        Ok(Committed::Deferred)
    }

    fn tick(&self) -> Result<(), CommitError> {
        Ok(())
    }

    fn due_us(&self) -> Option<u64> {
        None
    }

    fn usage(&self) -> Usage {
        Usage { table_pages: self.space.table_pages(), ..Usage::default() }
    }

    fn space(&self) -> &dyn Space {
        self
    }
}

/// Its maps add no table pages, so there is nothing to reserve.
impl<P: Platform, I: Iommu> Space for IdentityMapped<P, I> {
    fn id(&self) -> DomainId {
        self.space.id()
    }

    fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        self.space.attach(device)
    }

    fn detach(&self, device: SourceId) -> Result<(), AttachError> {
        self.space.detach(device)
    }

    fn table_pages(&self) -> usize {
        self.space.table_pages()
    }
}
