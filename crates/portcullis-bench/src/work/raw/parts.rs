//! Single parts of the library, for prices of single steps: a table that no device walks, a mapper whose allocator
//! does next to nothing, and addresses that are freed without an invalidation.

use portcullis::designs::{Magazine, Unprotected};
use portcullis::error::{MapError, NewDomainError, NoMemory, UnmapError};
use portcullis::invalidation::{Deferral, Runs};
use portcullis::iommu::Capabilities;
use portcullis::iova::{Claim, IovaAllocator, IovaRequest};
use portcullis::mapper::{AssembledMapper, Design, DesignInfo, DomainSetup, Info, Mapper, Usage};
use portcullis::platform::Context;
use portcullis::proof::{Committed, Proof};
use portcullis::table::{FreedTables, SecondLevelTable, TableRule, Walker};
use portcullis::{
    Access, CommitError, Iommu, Iova, IovaRange, PAGE_SIZE, PhysAddr, Platform, RawMapError, RawUnmapError, Request,
    Segment, Space,
};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Levels of a table for 48 address bits, and so of a walk.
pub(crate) const LEVELS: u8 = 4;

/// A range of pages.
///
/// # Panics
/// Panics if there are no pages, or if they wrap around.
#[inline(always)]
pub(crate) fn range(first: u64, pages: u64) -> IovaRange {
    IovaRange::new(first, pages).expect("a few pages of low numbers")
}

/// A table alone. Its rule is that of tables in which claims are made by marks.
pub(crate) struct Table<P> {
    table: SecondLevelTable,
    platform: P,
}

impl<P: Platform> Table<P> {
    /// Makes an empty table. Its pages are never freed.
    pub(crate) fn new(platform: P, capabilities: &Capabilities) -> Result<Self, NoMemory> {
        Ok(Self {
            table: SecondLevelTable::new(Walker::new(&platform, true), LEVELS, capabilities, TableRule::Kept)?,
            platform,
        })
    }

    #[inline(always)]
    const fn walker(&self) -> Walker<'_, P> {
        Walker::new(&self.platform, true)
    }

    #[inline(always)]
    pub(crate) fn is_mapped(&self, page: u64) -> bool {
        // SAFETY: the platform is that of `new`, and pages of this table are never freed.
        unsafe { self.table.lookup(self.walker(), Iova::from_pfn(page)) }.is_some()
    }

    /// Maps `pages` pages to memory at `phys`, marked as for [`claim_and_unmap`](Self::claim_and_unmap).
    #[inline(always)]
    pub(crate) fn map(&self, first: u64, pages: u64, phys: PhysAddr, access: Access) -> Result<(), MapError> {
        let segments = [Segment { phys, len: pages * PAGE_SIZE }];
        // SAFETY: the platform is that of `new`. The benchmark has one thread, and maps no page twice, which would be
        // refused.
        unsafe { self.table.map(self.walker(), range(first, pages), &segments, access.rights(), true) }
    }

    #[inline(always)]
    pub(crate) fn unmap(&self, first: u64, pages: u64) {
        // SAFETY: the platform is that of `new`, and the only thread unmaps it. No device walks the cleared entries.
        unsafe { self.table.unmap(self.walker(), range(first, pages), &mut FreedTables::new()) };
    }

    #[inline(always)]
    pub(crate) fn claim_and_unmap(&self, first: u64, pages: u64) -> Result<(), UnmapError> {
        // SAFETY: as in `unmap`.
        unsafe { self.table.claim_and_unmap(self.walker(), range(first, pages)) }
    }
}

/// Allocates a table page from the host, and frees it.
#[inline(always)]
pub(crate) fn lend_frame(platform: &impl Platform) -> Result<(), NoMemory> {
    let frame = platform.allocate_frame(Context::Atomic)?;
    // SAFETY: the page was just allocated, and is known only here.
    unsafe { platform.free_frame(frame) };
    Ok(())
}

/// Frees a range in its allocator.
#[inline(always)]
pub(crate) fn free<P: Platform>(allocator: &impl IovaAllocator<P>, platform: &P, range: IovaRange) {
    // SAFETY: no device can be attached, so no device reaches any memory.
    allocator.free(platform, range, &unsafe { Proof::trusted() });
}

/// A stack of pages. The last page freed is reused first, as with most allocators, so that a map depends on what the
/// unmap before it has written. It does no more than necessary.
pub(crate) struct LastFirst {
    pages: Box<[AtomicU64]>,
    free: AtomicUsize,
}

impl LastFirst {
    /// The number of pages: more than are ever mapped or waiting in a queue.
    const PAGES: usize = 1 << 12;
    /// The lowest page.
    const FIRST: u64 = 1 << 13;

    fn new() -> Self {
        let pages = (0..Self::PAGES as u64).rev().map(|page| AtomicU64::new(Self::FIRST + page)).collect();
        Self { pages, free: AtomicUsize::new(Self::PAGES) }
    }
}

// SAFETY: one thread maps and unmaps, so a page is either on the stack or handed out. Only single pages are requested,
// and claims are left to the table.
unsafe impl<P: Platform> IovaAllocator<P> for LastFirst {
    const TABLE_CLAIM_PAGES_MAX: u64 = 1;

    #[inline(always)]
    fn allocate(&self, _platform: &P, _request: &IovaRequest) -> Result<IovaRange, MapError> {
        // Relaxed, and without atomic updates: there is only one thread.
        let left = self.free.load(Ordering::Relaxed).checked_sub(1).ok_or(NoMemory)?;
        self.free.store(left, Ordering::Relaxed);
        Ok(range(self.pages[left].load(Ordering::Relaxed), 1))
    }

    #[inline(always)]
    fn claim(&self, _platform: &P, _range: IovaRange) -> Result<Claim, UnmapError> {
        Ok(Claim::ByTable)
    }

    #[inline(always)]
    fn free(&self, _platform: &P, range: IovaRange, _proof: &Proof) {
        let free = self.free.load(Ordering::Relaxed);
        self.pages[free].store(range.first_pfn(), Ordering::Relaxed);
        self.free.store(free + 1, Ordering::Relaxed);
    }

    fn live(&self) -> usize {
        Self::PAGES - self.free.load(Ordering::Relaxed)
    }
}

/// A design that consists of a mapper and its table only.
pub(crate) struct Bare;

impl DesignInfo for Bare {
    const INFO: Info = Info { id: "bare", ..Magazine::INFO };
}

// SAFETY: an assembled mapper of sound parts is sound, and no device can be attached to an IOMMU of this crate.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for Bare {
    type Mapper = AssembledMapper<LastFirst, P, I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        Ok(to.write(AssembledMapper::new(LastFirst::new(), Deferral::PER_CPU, setup)?))
    }
}

/// A design that does nothing: what remains is the interface of a domain.
pub(crate) struct Nothing;

impl DesignInfo for Nothing {
    const INFO: Info = Info { id: "nothing", ..Unprotected::INFO };
}

// SAFETY: it offers no protection, and no device can be attached to an IOMMU of this crate.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for Nothing {
    type Mapper = Idle<<Unprotected as Design<P, I>>::Mapper>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        // SAFETY: the caller keeps the contract.
        Ok(to.write(Idle(unsafe { <Unprotected as Design<P, I>>::build(setup) }?)))
    }
}

/// Reports that each buffer is mapped at its own address, and does nothing.
pub(crate) struct Idle<M>(M);

// SAFETY: no device can be attached to an IOMMU of this crate, so no device reaches any memory.
unsafe impl<M: Mapper> Mapper for Idle<M> {
    #[inline(always)]
    unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        Ok(range(request.segments()[0].phys.pfn(), request.pages()))
    }

    fn unmap(&self, range: IovaRange, out: &mut Runs) -> Result<(), UnmapError> {
        self.0.unmap(range, out)
    }

    #[inline(always)]
    fn unmap_now(&self, _range: IovaRange) -> Result<Committed, RawUnmapError> {
        Ok(Committed::Deferred)
    }

    fn commit(&self, revocation: &mut Runs) -> Result<Committed, CommitError> {
        self.0.commit(revocation)
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
