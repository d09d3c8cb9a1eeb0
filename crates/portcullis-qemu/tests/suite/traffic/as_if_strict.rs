//! The protections that are not strict, behind the typed interface of the drivers.

use portcullis::invalidation::Runs;
use portcullis::mapper::{Design, DesignInfo, DomainSetup, Info, Mapper, Usage};
use portcullis::proof::{Committed, Proof};
use portcullis::{
    CommitError, Iommu, IovaRange, NewDomainError, Platform, Protection, RawMapError, RawUnmapError, Request, Space,
    UnmapError,
};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// The design `D` under deferred or no protection, which declares all its unmaps strict. So buffers are returned
/// while devices may still reach them. The tests examine the consequences.
pub(crate) struct AsIfStrict<D, const DEFERRED: bool>(PhantomData<D>);

impl<D: DesignInfo, const DEFERRED: bool> DesignInfo for AsIfStrict<D, DEFERRED> {
    const INFO: Info = Info { protections: &[Protection::Strict], ..D::INFO };
}

// SAFETY: this breaks the promise of a mapper, and of strict protection. Only buffers in a machine's memory are
// mapped. No code of this program relies on their contents: devices and tests read and write them at any time, by
// atomics.
unsafe impl<D: Design<P, I>, P: Platform, I: Iommu, const DEFERRED: bool> Design<P, I> for AsIfStrict<D, DEFERRED> {
    type Mapper = CallsItStrict<D::Mapper>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let protection = if DEFERRED { Protection::Deferred } else { Protection::None };
        // SAFETY: the visitor has found this protection among those that the design offers. Devices may reach all
        // memory of the machine, which holds no Rust objects. The rest is the caller's promise.
        Ok(to.write(CallsItStrict(unsafe { D::build(DomainSetup { protection, ..setup }) }?)))
    }
}

pub(crate) struct CallsItStrict<M>(M);

fn lost(_: Committed) -> Committed {
    // SAFETY: as for `AsIfStrict`.
    Committed::Proven(unsafe { Proof::trusted() })
}

// SAFETY: as for `AsIfStrict`.
unsafe impl<M: Mapper> Mapper for CallsItStrict<M> {
    unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.map(request) }
    }

    fn unmap(&self, range: IovaRange, out: &mut Runs) -> Result<(), UnmapError> {
        self.0.unmap(range, out)
    }

    fn commit(&self, revocation: &mut Runs) -> Result<Committed, CommitError> {
        self.0.commit(revocation).map(lost)
    }

    fn unmap_now(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        self.0.unmap_now(range).map(lost)
    }

    fn tick(&self) -> Result<(), CommitError> {
        self.0.tick()
    }

    fn due_us(&self) -> Option<u64> {
        self.0.due_us()
    }

    fn usage(&self) -> Usage {
        self.0.usage()
    }

    fn space(&self) -> &dyn Space {
        self.0.space()
    }
}
