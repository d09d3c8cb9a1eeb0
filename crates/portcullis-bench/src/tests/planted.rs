//! A design with one flaw: a wrapper around `magazine`.

use portcullis::designs::Magazine;
use portcullis::invalidation::Runs;
use portcullis::iommu::{Invalidation, Iommu};
use portcullis::mapper::{Design, DesignInfo, DomainSetup, Info, Mapper, Usage};
use portcullis::proof::Committed;
use portcullis::{
    CommitError, Iova, IovaRange, NewDomainError, PhysAddr, Platform, RawMapError, Request, Segment, Space, UnmapError,
};
use std::mem::MaybeUninit;

/// The flaws are numbers, because they are part of a type.
pub(crate) struct Flaw;

impl Flaw {
    pub(crate) const NONE: u8 = 0;
    pub(crate) const SUBMITS_NOTHING: u8 = 1;
    pub(crate) const LEAVES_ENTRIES: u8 = 2;
    pub(crate) const INVALIDATES_OTHERS: u8 = 3;
    pub(crate) const SUBMITS_TWICE: u8 = 4;
    pub(crate) const MAPS_ONE_PAGE_FOR_ALL: u8 = 5;
}

pub(crate) struct Planted<const FLAW: u8>;

impl<const FLAW: u8> DesignInfo for Planted<FLAW> {
    const INFO: Info = Info { id: "planted", ..Magazine::INFO };
}

// SAFETY: no device can be attached to an IOMMU of this crate.
unsafe impl<P: Platform, I: Iommu + Copy, const FLAW: u8> Design<P, I> for Planted<FLAW> {
    type Mapper = Flawed<<Magazine as Design<P, I>>::Mapper, I, FLAW>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let iommu = setup.iommu;
        // SAFETY: the caller keeps the contract.
        Ok(to.write(Flawed { inner: unsafe { <Magazine as Design<P, I>>::build(setup) }?, iommu }))
    }
}

pub(crate) struct Flawed<M, I, const FLAW: u8> {
    inner: M,
    iommu: I,
}

impl<M: Mapper, I: Iommu, const FLAW: u8> Flawed<M, I, FLAW> {
    fn submit(&self, first: Iova, mask: u8) {
        let command = Invalidation::Pages { domain: self.inner.space().id(), first, mask, leaf_only: true };
        self.iommu.submit(&[command]).expect("an IOMMU that takes everything");
    }
}

// SAFETY: none; but no device can be attached to an IOMMU of this crate.
unsafe impl<M: Mapper, I: Iommu, const FLAW: u8> Mapper for Flawed<M, I, FLAW> {
    unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        if FLAW != Flaw::MAPS_ONE_PAGE_FOR_ALL {
            // SAFETY: the caller keeps the contract.
            return unsafe { self.inner.map(request) };
        }
        let other = [Segment { phys: PhysAddr::new(1 << 20), ..request.segments()[0] }];
        // SAFETY: no device sees the memory.
        unsafe { self.inner.map(&Request::new(&other, request.access())?) }
    }

    fn unmap(&self, range: IovaRange, out: &mut Runs) -> Result<(), UnmapError> {
        if FLAW == Flaw::LEAVES_ENTRIES {
            self.submit(range.start(), range.pages().ilog2() as u8);
            return Ok(());
        }
        self.inner.unmap(range, out)
    }

    fn commit(&self, revocation: &mut Runs) -> Result<Committed, CommitError> {
        match FLAW {
            Flaw::SUBMITS_NOTHING => {
                revocation.forget();
                Ok(Committed::Deferred)
            }
            Flaw::INVALIDATES_OTHERS => {
                let first = revocation.revoked().next().expect("an unmap").range.start();
                revocation.forget();
                self.submit(first, 0);
                Ok(Committed::Deferred)
            }
            Flaw::SUBMITS_TWICE => {
                self.submit(revocation.revoked().next().expect("an unmap").range.start(), 0);
                self.inner.commit(revocation)
            }
            _ => self.inner.commit(revocation),
        }
    }

    fn tick(&self) -> Result<(), CommitError> {
        self.inner.tick()
    }

    fn due_us(&self) -> Option<u64> {
        self.inner.due_us()
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }

    fn space(&self) -> &dyn Space {
        self.inner.space()
    }
}
