//! A design with one flaw, built from the public parts: the stock design with a wrapper around its allocator and one
//! around its mapper.

use portcullis::invalidation::{Commands, Deferral, Runs, Submissions};
use portcullis::iova::{Claim, IovaAllocator, IovaRequest, TreeAllocator};
use portcullis::mapper::{
    AddressOverhead, Addressing, AssembledMapper, Design, DesignInfo, DomainSetup, Info, LockFree, Mapper, Parts, Usage,
};
use portcullis::proof::{Committed, Proof};
use portcullis::table::TableRule;
use portcullis::{
    Access, Breach, CommitError, Iommu, IovaRange, MapError, NewDomainError, PAGE_SIZE, PhysAddr, Platform, Protection,
    RawMapError, Request, Rule, Segment, Space, UnmapError,
};
use portcullis_designs::macos::AsynchronousQueue;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The flaws, as numbers because they are type parameters.
pub(crate) struct DesignFlaw;

impl DesignFlaw {
    pub(crate) const NONE: u8 = 0;
    pub(crate) const IGNORES_WHAT_IS_RESERVED: u8 = 1;
    pub(crate) const IGNORES_WIDTH: u8 = 2;
    pub(crate) const REUSES_WHAT_IS_CLAIMED: u8 = 3;
    pub(crate) const ALLOCATES_THE_LAST_AGAIN: u8 = 4;
    pub(crate) const WIDENS_RIGHTS: u8 = 5;
    pub(crate) const FORGETS_THE_COMMIT: u8 = 6;
    pub(crate) const UNMAPS_GARBAGE: u8 = 7;
    pub(crate) const REFUSAL_MAPS: u8 = 8;
    pub(crate) const NEVER_TICKS: u8 = 9;
    pub(crate) const UNDERSTATES_ITS_QUEUE: u8 = 10;
}

/// The design with flaw number `FLAW`.
pub(crate) struct Planted<const FLAW: u8>;

impl<const FLAW: u8> DesignInfo for Planted<FLAW> {
    const INFO: Info = Info {
        id: "planted",
        source: "the stock design with a flaw",
        allocator: "red-black tree",
        invalidation: "as stock",
        tables: "as stock",
        protections: &[Protection::Strict, Protection::Deferred],
        breaches: &[Breach { protection: Protection::Deferred, rule: Rule::Strict, bound: "as stock" }],
        addressing: Addressing::Own,
        address_overhead: Some(AddressOverhead::NONE),
        batch_default: 1,
        options: &[],
    };
}

// SAFETY: its parts are sound, except for the planted flaw. Only a test's own memory is behind it.
unsafe impl<P: Platform, I: Iommu, const FLAW: u8> Design<P, I> for Planted<FLAW> {
    type Mapper = FlawedMapper<AssembledMapper<FlawedAllocator<TreeAllocator<P>, FLAW>, P, I>, FLAW>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let reserved = if FLAW == DesignFlaw::IGNORES_WHAT_IS_RESERVED { &[] } else { setup.reserved };
        let width = if FLAW == DesignFlaw::IGNORES_WIDTH { 39 } else { setup.width };
        let tree = TreeAllocator::new(&setup.platform, width, reserved)?;
        let allocator = FlawedAllocator { tree, last: Mutex::default(), twice: AtomicBool::new(false) };
        let inner = AssembledMapper::new(allocator, Deferral::Global, setup)?;
        Ok(to.write(FlawedMapper { inner }))
    }
}

/// The stock design with strict protection that does not wait: it is what another does under deferred protection.
pub(crate) struct DoesNotWait;

impl DesignInfo for DoesNotWait {
    const INFO: Info = Planted::<{ DesignFlaw::NONE }>::INFO;
}

// SAFETY: its parts are sound, except for the planted flaw. Only a test's own memory is behind it.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for DoesNotWait {
    type Mapper = AssembledMapper<TreeAllocator<P>, P, I, LockFree, AsynchronousQueue<P, I>>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let tree = TreeAllocator::new(&setup.platform, setup.width, setup.reserved)?;
        let parts = Parts {
            commands: Commands::PerUnmap,
            submissions: Submissions::Alone,
            deferral: (),
            rule: TableRule::Kept,
            locking: LockFree,
        };
        let setup = DomainSetup { protection: Protection::Deferred, ..setup };
        Ok(to.write(AssembledMapper::with_parts(tree, parts, setup)?))
    }
}

/// An allocator that hands out ranges that it must not.
pub(crate) struct FlawedAllocator<A, const FLAW: u8> {
    tree: A,
    /// The range that was last handed out or claimed, depending on the flaw.
    last: Mutex<Option<IovaRange>>,
    /// Whether a range has just been handed out twice. If that map is refused, the range is not taken back twice.
    twice: AtomicBool,
}

// SAFETY: it breaks an allocator's promises on purpose, so that the checker finds out. The fakes panic before memory is
// harmed.
unsafe impl<A: IovaAllocator<P>, P: Platform, const FLAW: u8> IovaAllocator<P> for FlawedAllocator<A, FLAW> {
    fn allocate(&self, platform: &P, request: &IovaRequest) -> Result<IovaRange, MapError> {
        let mut last = self.last.lock().expect("not poisoned");
        if let Some(range) = last.take_if(|range| range.pages() == request.pages) {
            self.twice.store(true, Ordering::Relaxed);
            return Ok(range);
        }
        let range = self.tree.allocate(platform, request)?;
        if FLAW == DesignFlaw::ALLOCATES_THE_LAST_AGAIN {
            *last = Some(range);
        }
        Ok(range)
    }

    fn claim(&self, platform: &P, range: IovaRange) -> Result<Claim, UnmapError> {
        if self.twice.swap(false, Ordering::Relaxed) {
            return Err(UnmapError::NotMapped(range.start()));
        }
        let claim = self.tree.claim(platform, range)?;
        let mut last = self.last.lock().expect("not poisoned");
        last.take_if(|last| *last == range);
        if FLAW == DesignFlaw::REUSES_WHAT_IS_CLAIMED {
            *last = Some(range);
        }
        Ok(claim)
    }

    fn free(&self, platform: &P, range: IovaRange, proof: &Proof) {
        // A range that was freed properly may be handed out by the tree.
        *self.last.lock().expect("not poisoned") = None;
        self.tree.free(platform, range, proof);
    }

    fn live(&self) -> usize {
        self.tree.live()
    }
}

/// A mapper with a planted flaw.
pub(crate) struct FlawedMapper<M, const FLAW: u8> {
    inner: M,
}

// SAFETY: it forwards to a sound mapper, except for the planted flaw. Only a test's own memory is behind it.
unsafe impl<M: Mapper, const FLAW: u8> Mapper for FlawedMapper<M, FLAW> {
    unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        if FLAW == DesignFlaw::WIDENS_RIGHTS {
            // SAFETY: the IOMMU of a test has no memory behind it.
            return unsafe { self.inner.map(&Request::new(request.segments(), Access::DeviceReadsAndWrites)?) };
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.map(request) }
    }

    fn unmap(&self, range: IovaRange, out: &mut Runs) -> Result<(), UnmapError> {
        match self.inner.unmap(range, out) {
            Err(_) if FLAW == DesignFlaw::UNMAPS_GARBAGE => Ok(()),
            Err(error) if FLAW == DesignFlaw::REFUSAL_MAPS => {
                let segments = [Segment { phys: PhysAddr::from_pfn(1), len: PAGE_SIZE }];
                let request = Request::new(&segments, Access::DeviceReads).expect("one page");
                // The script decides whether there is room for the flaw.
                // SAFETY: the IOMMU of a test has no memory behind it.
                let _ = unsafe { self.inner.map(&request) };
                Err(error)
            }
            other => other,
        }
    }

    fn commit(&self, revocation: &mut Runs) -> Result<Committed, CommitError> {
        if FLAW == DesignFlaw::FORGETS_THE_COMMIT {
            revocation.forget();
            return Ok(Committed::Deferred);
        }
        self.inner.commit(revocation)
    }

    fn tick(&self) -> Result<(), CommitError> {
        if FLAW == DesignFlaw::NEVER_TICKS { Ok(()) } else { self.inner.tick() }
    }

    fn due_us(&self) -> Option<u64> {
        self.inner.due_us()
    }

    fn usage(&self) -> Usage {
        let mut usage = self.inner.usage();
        if FLAW == DesignFlaw::UNDERSTATES_ITS_QUEUE {
            usage.queued_unmaps_max /= 2;
        }
        usage
    }

    fn space(&self) -> &dyn Space {
        self.inner.space()
    }
}
