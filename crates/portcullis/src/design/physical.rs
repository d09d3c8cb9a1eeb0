//! Addresses that are physical addresses: untranslated, or through an identity map that is made once.

use crate::address::{Iova, IovaRange, PAGE_SHIFT, PhysAddr, Segment};
use crate::design::{Mapper, Setup, Usage};
use crate::error::{CommitError, MapError, NewDomainError, UnmapError};
use crate::invalidation::Revocation;
use crate::iommu::{AttachError, DomainId, Iommu, SourceId};
use crate::iova::never_handed_out;
use crate::platform::Platform;
use crate::request::{Access, Request};
use crate::space::AddressSpace;
use crate::table::TableRule;
use alloc::vec::Vec;

/// A mapper that hands out physical addresses and takes nothing back. It protects nothing.
pub struct Physical<P: Platform, I: Iommu> {
    space: AddressSpace<P, I>,
    /// Page numbers, first and end, that no device may be given or can drive.
    reserved: Vec<(u64, u64)>,
    /// Bits of address that devices can drive.
    width: u8,
}

impl<P: Platform, I: Iommu> Physical<P, I> {
    /// Devices pass through.
    ///
    /// # Errors
    /// Those of [`AddressSpace::pass_through`].
    pub fn pass_through(setup: Setup<'_, P, I>) -> Result<Self, NewDomainError> {
        let (reserved, width) = (never_handed_out(setup.reserved)?, setup.width);
        Ok(Self { space: AddressSpace::pass_through(setup.iommu, setup.platform)?, reserved, width })
    }

    /// Devices see all of `setup.memory` at its own addresses, but for what is reserved.
    ///
    /// # Errors
    /// Those of [`AddressSpace::translated`]; [`NewDomainError::BadRange`], [`NewDomainError::Identity`].
    pub fn mapped(setup: Setup<'_, P, I>) -> Result<Self, NewDomainError> {
        let (reserved, width) = (never_handed_out(setup.reserved)?, setup.width);
        let space = AddressSpace::translated(setup.iommu, setup.platform, width, TableRule::Kept)?;
        let this = Self { space, reserved, width };
        for memory in setup.memory {
            let whole_pages = memory.phys.page_offset() == 0 && memory.len.is_multiple_of(1 << PAGE_SHIFT);
            let range = IovaRange::new(memory.phys.pfn(), memory.len >> PAGE_SHIFT).filter(|_| whole_pages);
            let range = range.ok_or(NewDomainError::BadRange(memory.phys))?;
            // What the device cannot drive needs no translation.
            let (mut pfn, end) = (range.first_pfn(), range.end_pfn().min(limit(width)));
            while pfn < end {
                // Up to the next reserved page, or over it.
                let hole = this.reserved.iter().find(|(_, hole_end)| *hole_end > pfn);
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

    fn map_identity(&self, pfn: u64, pages: u64) -> Result<(), NewDomainError> {
        let segment = Segment { phys: PhysAddr::from_pfn(pfn), len: pages << PAGE_SHIFT };
        let range = IovaRange::new(pfn, pages).ok_or(NewDomainError::BadRange(segment.phys))?;
        // SAFETY: the space is being made, so everything in it is this call's alone.
        let mapped = unsafe { self.space.map(range, &[segment], Access::DeviceReadsAndWrites, false) };
        mapped.and_then(|()| self.space.written(range)).map_err(NewDomainError::Identity)
    }
}

/// One past the last page number below `2^width`.
fn limit(width: u8) -> u64 {
    1 << (u32::from(width) - PAGE_SHIFT)
}

impl<P: Platform, I: Iommu> Mapper for Physical<P, I> {
    fn map(&self, request: &Request<'_>) -> Result<IovaRange, MapError> {
        let &[segment] = request.segments() else { return Err(MapError::NotContiguous) };
        let range = IovaRange::covering(Iova::new(segment.phys.as_u64()), segment.len).expect("a request is not empty");
        if range.end_pfn() > limit(self.width) {
            let iova = Iova::from_pfn(limit(self.width).max(range.first_pfn()));
            return Err(MapError::BeyondWidth { iova, limit_bits: self.width });
        }
        if let Some(hole) =
            self.reserved.iter().find(|(first, end)| *first < range.end_pfn() && range.first_pfn() < *end)
        {
            return Err(MapError::Reserved(Iova::from_pfn(hole.0.max(range.first_pfn()))));
        }
        if let Some(table) = self.space.table() {
            for pfn in range.first_pfn()..range.end_pfn() {
                // SAFETY: the identity map is never unmapped.
                if unsafe { table.lookup(self.space.platform(), Iova::from_pfn(pfn)) }.is_none() {
                    return Err(MapError::PhysicalRange(PhysAddr::from_pfn(pfn)));
                }
            }
        }
        Ok(range)
    }

    fn unmap(&self, _range: IovaRange, _out: &mut Revocation) -> Result<(), UnmapError> {
        Ok(())
    }

    fn commit(&self, _revocation: &mut Revocation) -> Result<(), CommitError> {
        Ok(())
    }

    fn tick(&self) -> Result<(), CommitError> {
        Ok(())
    }

    fn due_us(&self) -> Option<u64> {
        None
    }

    fn table_pages(&self) -> usize {
        self.space.table().map_or(0, |table| table.pages())
    }

    fn usage(&self) -> Usage {
        Usage { table_pages: self.table_pages(), ..Usage::default() }
    }

    fn id(&self) -> DomainId {
        self.space.id()
    }

    fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        self.space.attach(device)
    }

    fn detach(&self, device: SourceId) -> Result<(), AttachError> {
        self.space.detach(device)
    }
}
