//! A design made of parts: an allocator, a second-level table, and strict or deferred invalidation.

use crate::address::IovaRange;
use crate::design::{Mapper, Setup, Usage};
use crate::error::{CommitError, MapError, NewDomainError, UnmapError};
use crate::invalidation::{Invalidated, Policy, QueueKind, Revocation, Revoked};
use crate::iommu::{AttachError, DomainId, Iommu, SourceId};
use crate::iova::{Claim, IovaAllocator};
use crate::platform::{Phase, Platform, Step};
use crate::request::Request;
use crate::space::AddressSpace;
use crate::table::TableRule;

/// The parts, put together.
pub struct Composed<A: IovaAllocator<P>, P: Platform, I: Iommu> {
    allocator: A,
    policy: Policy<P>,
    space: AddressSpace<P, I>,
}

impl<A: IovaAllocator<P>, P: Platform, I: Iommu> Composed<A, P, I> {
    /// Puts `allocator` over a new domain. `queue` is for deferred protection.
    ///
    /// # Errors
    /// [`NewDomainError::Protection`] for [`Protection::None`](crate::Protection::None), [`NewDomainError::NoMemory`], and
    /// those of [`AddressSpace::translated`].
    pub fn new(allocator: A, queue: QueueKind, setup: Setup<'_, P, I>) -> Result<Self, NewDomainError> {
        let policy = Policy::new(&setup.platform, setup.protection, queue)?;
        let rule = if A::TABLE_CLAIM_PAGES_MAX > 0 { TableRule::Kept } else { TableRule::FreedWhenCovered };
        let space = AddressSpace::translated(setup.iommu, setup.platform, setup.width, rule)?;
        Ok(Self { allocator, policy, space })
    }
}

impl<A: IovaAllocator<P>, P: Platform, I: Iommu> Mapper for Composed<A, P, I> {
    fn map(&self, request: &Request<'_>) -> Result<IovaRange, MapError> {
        let platform = self.space.platform();
        self.space.check()?;
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Map);
        let range = self.allocator.allocate(platform, request.pages())?;
        platform.probe(Step::Enter(Phase::Table));
        let marked = range.pages() <= A::TABLE_CLAIM_PAGES_MAX;
        // SAFETY: the allocator has handed the range out, as long as the request, to this call alone.
        match unsafe { self.space.map(range, request.segments(), request.access(), marked) } {
            Ok(()) => Ok(range),
            Err(error @ MapError::Queue(_)) => {
                // Written, and perhaps in use already: taken back like an unmap whose commit failed, so that the device
                // finds no more of it, nobody else can unmap it, and the range stays quarantined (S11).
                let _ = self.unmap(range, &mut Revocation::new());
                Err(error)
            }
            Err(error) => {
                // Nothing was written, so no hardware has seen the range.
                self.allocator.free(platform, Invalidated::new(range));
                Err(error)
            }
        }
    }

    fn unmap(&self, range: IovaRange, out: &mut Revocation) -> Result<(), UnmapError> {
        let platform = self.space.platform();
        if !out.belongs_to(self.space.tag()) {
            return Err(UnmapError::WrongDomain);
        }
        if out.is_full() {
            return Err(UnmapError::BatchFull);
        }
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Unmap);
        let claim = self.allocator.claim(platform, range)?;
        platform.probe(Step::Enter(Phase::Table));
        let leaf_only = match claim {
            // SAFETY: the claim makes this the only unmap of the mapping.
            Claim::Held => !unsafe { self.space.unmap(range, &mut out.tables) },
            Claim::ByTable => {
                // SAFETY: only ranges that the allocator leaves to the table are mapped with marks.
                unsafe { self.space.claim_and_unmap(range)? };
                true
            }
        };
        out.revoked.push(Revoked { range, leaf_only });
        Ok(())
    }

    fn commit(&self, revocation: &mut Revocation) -> Result<(), CommitError> {
        assert!(revocation.belongs_to(self.space.tag()), "a revocation is committed where its unmaps were made");
        self.policy.commit(&self.space, &self.allocator, revocation)
    }

    fn tick(&self) -> Result<(), CommitError> {
        self.allocator.tick(self.space.platform());
        self.policy.tick(&self.space, &self.allocator)
    }

    fn due_us(&self) -> Option<u64> {
        self.policy.due_us().into_iter().chain(self.allocator.due_us()).min()
    }

    fn table_pages(&self) -> usize {
        self.space.table().map_or(0, |table| table.pages())
    }

    fn usage(&self) -> Usage {
        let (queued_unmaps, queued_unmaps_max) = self.policy.queued();
        let kept = self.allocator.kept();
        Usage {
            live_ranges: self.allocator.live(),
            kept_ranges: kept.ranges,
            kept_ranges_max: kept.ranges_max,
            table_pages: self.table_pages(),
            queued_unmaps,
            queued_unmaps_max,
            window_us_max: Some(self.policy.window_us_max()),
        }
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

impl<A: IovaAllocator<P>, P: Platform, I: Iommu> Drop for Composed<A, P, I> {
    fn drop(&mut self) {
        let waiting = self.policy.take_tables(self.space.platform());
        self.space.close(waiting);
    }
}
