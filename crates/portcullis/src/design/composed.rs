//! A design made of parts: an allocator, the kept second-level table, and strict or deferred invalidation.

use crate::address::IovaRange;
use crate::design::{Mapper, Usage};
use crate::error::{CommitError, MapError, NewDomainError, UnmapError};
use crate::invalidation::{self, FlushQueue, Invalidated, QUEUE_CAPACITY, QUEUE_TIMEOUT_US, Revocation, Revoked};
use crate::iommu::{AttachError, DomainId, Iommu, SourceId};
use crate::iova::IovaAllocator;
use crate::platform::{Phase, Platform, Step};
use crate::request::Request;
use crate::safety::Protection;
use crate::space::AddressSpace;

/// When translations are taken out of the hardware.
enum Policy<P: Platform> {
    Strict,
    Deferred(FlushQueue<P>),
}

/// The parts, put together.
pub struct Composed<A: IovaAllocator<P>, P: Platform, I: Iommu> {
    allocator: A,
    policy: Policy<P>,
    space: AddressSpace<P, I>,
}

impl<A: IovaAllocator<P>, P: Platform, I: Iommu> Composed<A, P, I> {
    /// Puts `allocator` over `space`.
    ///
    /// # Errors
    /// [`NewDomainError::Protection`] for [`Protection::None`], [`NewDomainError::NoMemory`].
    pub fn new(allocator: A, protection: Protection, space: AddressSpace<P, I>) -> Result<Self, NewDomainError> {
        let policy = match protection {
            Protection::Strict => Policy::Strict,
            Protection::Deferred => Policy::Deferred(FlushQueue::new(space.platform())?),
            Protection::None => return Err(NewDomainError::Protection),
        };
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
        // SAFETY: the allocator has handed the range out, as long as the request, to this call alone.
        match unsafe { self.space.map(range, request.segments(), request.access()) } {
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
        self.allocator.claim(platform, range)?;
        platform.probe(Step::Enter(Phase::Table));
        // SAFETY: the claim makes this the only unmap of the mapping.
        let leaf_only = !unsafe { self.space.unmap(range, &mut out.tables) };
        out.revoked.push(Revoked { range, leaf_only });
        Ok(())
    }

    fn commit(&self, revocation: &mut Revocation) -> Result<(), CommitError> {
        assert!(revocation.belongs_to(self.space.tag()), "a revocation is committed where its unmaps were made");
        match &self.policy {
            Policy::Strict => invalidation::commit(&self.space, &self.allocator, revocation),
            Policy::Deferred(queue) => queue.push(&self.space, &self.allocator, revocation),
        }
    }

    fn tick(&self) -> Result<(), CommitError> {
        match &self.policy {
            Policy::Strict => Ok(()),
            Policy::Deferred(queue) => queue.tick(&self.space, &self.allocator),
        }
    }

    fn due_us(&self) -> Option<u64> {
        match &self.policy {
            Policy::Strict => None,
            Policy::Deferred(queue) => queue.due_us(),
        }
    }

    fn usage(&self) -> Usage {
        let (queued_unmaps, queued_unmaps_max, window_us_max) = match &self.policy {
            Policy::Strict => (0, 0, Some(0)),
            Policy::Deferred(queue) => (queue.len(), QUEUE_CAPACITY, Some(QUEUE_TIMEOUT_US)),
        };
        Usage {
            live_ranges: self.allocator.live(),
            table_pages: self.space.table().map_or(0, |table| table.pages()),
            queued_unmaps,
            queued_unmaps_max,
            window_us_max,
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
        let waiting = match &self.policy {
            Policy::Strict => Default::default(),
            Policy::Deferred(queue) => queue.take_tables(),
        };
        self.space.close(waiting);
    }
}
