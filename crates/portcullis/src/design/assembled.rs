//! A design made of parts: an allocator, a table with its rule and its locks, strict or deferred invalidation, and perhaps a front,
//! which has places of its own for some requests.

use crate::address::{IovaRange, Segment};
use crate::design::{DomainSetup, LockFree, Locking, Mapper, Usage};
use crate::error::{CommitError, MapError, NewDomainError, RawUnmapError, UnmapError};
use crate::invalidation::{Commands, Deferral, Policy, Revocation, Revoked, Submissions};
use crate::iommu::{AttachError, DomainId, Iommu, SourceId};
use crate::iova::{Claim, IovaAllocator, IovaRequest};
use crate::platform::{Phase, Platform, Step};
use crate::proof::{Committed, Proof};
use crate::request::{Access, Lifetime, Request, Stream};
use crate::space::AddressSpace;
use crate::table::{FreedTables, TableRule};

/// The parts, put together.
pub struct AssembledMapper<A: IovaAllocator<P>, P: Platform, I: Iommu, L: Locking = LockFree, F: Front<A, P, I, L> = ()>
{
    front: F,
    base: Base<A, P, I, L>,
}

/// All parts but the front.
pub struct Base<A, P: Platform, I: Iommu, L = LockFree> {
    pub(crate) allocator: A,
    pub(crate) policy: Policy<P, I>,
    locking: L,
    pub(crate) space: AddressSpace<P, I>,
}

/// What has places of its own for some requests: those it serves, and the allocator has the rest. Addresses of either kind go back
/// through [`IovaAllocator::free`].
pub trait Front<A, P: Platform, I: Iommu, L = LockFree>: Sync {
    /// Makes the mapping, where that takes no more than to write its entries, or to take the next chunk first. `None` where no
    /// mapping was made, and [`map`](Front::map) makes it or says why not.
    #[inline(always)]
    fn map_plainly(&self, _base: &Base<A, P, I, L>, _request: &Request<'_>) -> Option<IovaRange> {
        None
    }

    /// Makes the mapping, if there is a place for it. The device may use it when this returns.
    ///
    /// # Errors
    /// Those of [`Mapper::map`].
    fn map(&self, _base: &Base<A, P, I, L>, _request: &Request<'_>) -> Result<Option<IovaRange>, MapError> {
        Ok(None)
    }

    /// Clears the mapping at exactly `range`, and notes that in `out`. `None` where the front has no place there.
    #[inline(always)]
    fn take_down(
        &self,
        _base: &Base<A, P, I, L>,
        _range: IovaRange,
        _out: &mut Revocation,
    ) -> Option<Result<(), UnmapError>> {
        None
    }

    /// Unmaps and commits the mapping at exactly `range` where that is one command, at once. `None` where nothing has happened, and
    /// [`unmap_general`](Front::unmap_general) or a batch of one does it, or says why not.
    #[inline(always)]
    fn unmap_now(&self, _base: &Base<A, P, I, L>, _range: IovaRange) -> Option<Result<Committed, CommitError>> {
        None
    }

    /// Unmaps and commits the mapping at exactly `range` by other means: deferred, or by another command. `None` as above.
    #[inline(always)]
    fn unmap_general(&self, _base: &Base<A, P, I, L>, _range: IovaRange) -> Option<Result<Committed, CommitError>> {
        None
    }

    /// Does what is due.
    ///
    /// # Errors
    /// [`CommitError`] where an invalidation failed.
    fn tick(&self, _base: &Base<A, P, I, L>) -> Result<(), CommitError> {
        Ok(())
    }

    /// When the next [`tick`](Front::tick) has work to do, in microseconds of the platform's clock.
    fn due_us(&self, _base: &Base<A, P, I, L>) -> Option<u64> {
        None
    }

    /// The domain goes: gives back what is on its way.
    fn close(&mut self, _base: &mut Base<A, P, I, L>) {}
}

/// No front: the allocator serves all requests.
impl<A, P: Platform, I: Iommu, L> Front<A, P, I, L> for () {}

/// What a design is made of beside its allocator.
#[derive(Debug)]
pub struct Parts<L> {
    /// What one command covers under strict protection.
    pub commands: Commands,
    /// With whom its commits wait.
    pub submissions: Submissions,
    /// What becomes of unmaps under deferred protection.
    pub deferral: Deferral,
    /// What becomes of table pages.
    pub rule: TableRule,
    /// The locks.
    pub locking: L,
}

impl Parts<LockFree> {
    /// As Linux has them: no locks but the allocator's, a command per unmap, table pages freed as soon as claims allow.
    pub fn of_linux<P: Platform, A: IovaAllocator<P>>(deferral: Deferral) -> Self {
        let rule = if A::TABLE_CLAIM_PAGES_MAX > 0 { TableRule::Kept } else { TableRule::FreedWhenCovered };
        Self { commands: Commands::PerUnmap, submissions: Submissions::Alone, deferral, rule, locking: LockFree }
    }
}

impl<A: IovaAllocator<P>, P: Platform, I: Iommu> AssembledMapper<A, P, I> {
    /// Puts `allocator` over a new domain with the parts [of Linux](Parts::of_linux).
    ///
    /// # Errors
    /// Those of [`with_parts`](AssembledMapper::with_parts).
    pub fn new(allocator: A, deferral: Deferral, setup: DomainSetup<'_, P, I>) -> Result<Self, NewDomainError> {
        Self::with_parts(allocator, Parts::of_linux::<P, A>(deferral), setup)
    }
}

impl<A: IovaAllocator<P>, P: Platform, I: Iommu, L: Locking> AssembledMapper<A, P, I, L> {
    /// Puts `allocator` and the other parts over a new domain.
    ///
    /// # Errors
    /// [`NewDomainError::Protection`] for [`Protection::None`](crate::Protection::None), [`NewDomainError::NoMemory`], and
    /// those of [`AddressSpace::new`].
    ///
    /// # Panics
    /// If claims are left to a table that does not keep its pages, with [`Deferral::Asynchronous`] or
    /// [`Flushes::CoveringRange`](crate::invalidation::Flushes::CoveringRange) over such a table, if unmaps leave translations to a table that
    /// maps do not write over, or the other way round, or if a table that frees empty pages has no lock.
    pub fn with_parts(allocator: A, parts: Parts<L>, setup: DomainSetup<'_, P, I>) -> Result<Self, NewDomainError> {
        Ok(Self { front: (), base: Base::new(allocator, parts, setup)? })
    }
}

impl<A: IovaAllocator<P>, P: Platform, I: Iommu, L: Locking> Base<A, P, I, L> {
    /// The parts over a new domain, as [`AssembledMapper::with_parts`] says.
    pub(crate) fn new(allocator: A, parts: Parts<L>, setup: DomainSetup<'_, P, I>) -> Result<Self, NewDomainError> {
        let Parts { commands, submissions, deferral, rule, locking } = parts;
        assert!(
            A::TABLE_CLAIM_PAGES_MAX == 0 || rule == TableRule::Kept,
            "claims walk the table before they own anything"
        );
        assert!(
            !deferral.leaves_pointers() || rule == TableRule::Kept,
            "a table page is freed after an invalidation of all levels that was waited for"
        );
        assert!(
            L::TABLE_EXCLUSIVE || !matches!(rule, TableRule::FreedWhenEmpty { .. }),
            "who frees an empty table page must know that nobody maps there"
        );
        let policy = Policy::new(&setup.platform, setup.protection, commands, submissions, deferral)?;
        assert_eq!(
            matches!(policy, Policy::AtMap(_)),
            rule == TableRule::Overwritten,
            "maps write over what unmaps have left, and nothing else"
        );
        let space = AddressSpace::new(setup.iommu, setup.platform, setup.width, rule)?;
        Ok(Self { allocator, policy, locking, space })
    }

    /// A map at an address of the allocator.
    fn map_anywhere(&self, request: &Request<'_>) -> Result<IovaRange, MapError> {
        self.space.check()?;
        let place = || self.locking.whole(request.pages(), || self.place(request));
        let range = match place() {
            // Not with a lock held: it waits for the hardware.
            Err(MapError::Exhausted { .. }) if self.policy.drain(&self.space, &self.allocator)? => place(),
            placed => placed,
        }?;
        if let Err(error) = self.space.sync_map(range).and_then(|()| self.policy.sync_map(&self.space, range)) {
            // Perhaps in use already: taken back like an unmap whose commit failed, so that the device finds no more of it,
            // nobody else can unmap it, and the range stays quarantined (S11). No translation is left: the domain is poisoned.
            let _ = self.take_down(range, &mut Revocation::new());
            return Err(error);
        }
        Ok(range)
    }

    /// Picks an address and writes the translations.
    fn place(&self, request: &Request<'_>) -> Result<IovaRange, MapError> {
        let platform = self.space.platform();
        let range = self.allocator.allocate(platform, &IovaRequest::of(request))?;
        let marked = range.pages() <= A::TABLE_CLAIM_PAGES_MAX;
        platform.probe(Step::Enter(Phase::Table));
        // SAFETY: the allocator has handed the range out, as long as the request, to this call alone; where it matters, the lock
        // keeps others off the table.
        let write = || unsafe { self.space.map(range, request.segments(), request.access(), marked) };
        if let Err(error) = self.locking.table(range, write) {
            // Nothing was written, so no hardware has seen the range. Whoever has unmapped it without ever being given it gives
            // it back.
            if self.allocator.claim(platform, range).is_ok() {
                self.allocator.free(platform, range, &Proof::never_visible());
            }
            return Err(error);
        }
        Ok(range)
    }

    /// Claims the mapping at exactly `range`, clears its translations unless the policy leaves them, and notes that in `out`.
    fn take_down(&self, range: IovaRange, out: &mut Revocation) -> Result<(), UnmapError> {
        let leaf_only = self.locking.whole(range.pages(), || {
            let claim = self.allocator.claim(self.space.platform(), range)?;
            if self.policy.leaves_translations(&self.space) {
                Ok(true)
            } else {
                self.clear(claim, range, &mut out.tables)
            }
        })?;
        out.revoked.push(Revoked { range, cleared: true, leaf_only });
        Ok(())
    }

    /// Clears the translations of a mapping with this claim on it. Returns whether no table page went with it.
    fn clear(&self, claim: Claim, range: IovaRange, tables: &mut FreedTables) -> Result<bool, UnmapError> {
        self.space.platform().probe(Step::Enter(Phase::Table));
        self.locking.table(range, || match claim {
            // SAFETY: the claim makes this the only unmap of the mapping; the lock as in `place`.
            Claim::Held => Ok(!unsafe { self.space.unmap(range, tables) }),
            // SAFETY: only ranges that the allocator leaves to the table are mapped with marks.
            Claim::ByTable => unsafe { self.space.claim_and_unmap(range) }.map(|()| true),
        })
    }
}

impl<A: IovaAllocator<P>, P: Platform, I: Iommu, L: Locking, F: Front<A, P, I, L>> AssembledMapper<A, P, I, L, F> {
    /// Puts `front` before the other parts.
    pub(crate) const fn with_front(front: F, base: Base<A, P, I, L>) -> Self {
        Self { front, base }
    }

    /// A map that takes more than to write its entries.
    #[inline(never)]
    fn map_general(&self, request: &Request<'_>) -> Result<IovaRange, MapError> {
        match self.front.map(&self.base, request)? {
            Some(range) => Ok(range),
            None => self.base.map_anywhere(request),
        }
    }

    /// The same for one segment, which comes by value: so the short way never needs it in memory.
    #[cold]
    #[inline(never)]
    fn map_segment_general(
        &self,
        segment: Segment,
        access: Access,
        stream: Stream,
        lifetime: Lifetime,
    ) -> Result<IovaRange, MapError> {
        let segments = [segment];
        let mut request = Request::new(&segments, access)?;
        (request.stream, request.lifetime) = (stream, lifetime);
        self.map_general(&request)
    }

    /// What is not one command, at once: as the front does it, or else a batch of one.
    #[inline(never)]
    fn unmap_general(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        if let Some(committed) = self.front.unmap_general(&self.base, range) {
            return Ok(committed?);
        }
        let mut revocation = Revocation::new();
        self.unmap(range, &mut revocation)?;
        Ok(self.commit(&mut revocation)?)
    }
}

impl<A, P, I, L, F> Mapper for AssembledMapper<A, P, I, L, F>
where
    A: IovaAllocator<P>,
    P: Platform,
    I: Iommu,
    L: Locking,
    F: Front<A, P, I, L>,
{
    #[inline(always)]
    fn map(&self, request: &Request<'_>) -> Result<IovaRange, MapError> {
        let platform = self.base.space.platform();
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Map);
        match self.front.map_plainly(&self.base, request) {
            Some(range) => Ok(range),
            None => match *request.segments() {
                [segment] => self.map_segment_general(segment, request.access(), request.stream, request.lifetime),
                _ => self.map_general(request),
            },
        }
    }

    #[inline(always)]
    fn unmap(&self, range: IovaRange, out: &mut Revocation) -> Result<(), UnmapError> {
        let platform = self.base.space.platform();
        if !out.belongs_to(self.base.space.tag()) {
            return Err(UnmapError::WrongDomain);
        }
        if out.is_full() {
            return Err(UnmapError::BatchFull);
        }
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Unmap);
        match self.front.take_down(&self.base, range, out) {
            Some(taken_down) => taken_down,
            None => self.base.take_down(range, out),
        }
    }

    #[inline(always)]
    fn unmap_now(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        match self.front.unmap_now(&self.base, range) {
            Some(committed) => Ok(committed?),
            None => self.unmap_general(range),
        }
    }

    #[inline(always)]
    fn commit(&self, revocation: &mut Revocation) -> Result<Committed, CommitError> {
        let Base { allocator, policy, space, .. } = &self.base;
        assert!(revocation.belongs_to(space.tag()), "a revocation is committed where its unmaps were made");
        if policy.must_clear(space) {
            // The domain has been poisoned since the unmap: no map will come and write over what that has left.
            for revoked in &revocation.revoked {
                // SAFETY: this commit has the claim on the mapping, and gives the range back after this.
                unsafe { space.unmap(revoked.range, &mut revocation.tables) };
            }
        }
        policy.commit(space, allocator, revocation)
    }

    fn tick(&self) -> Result<(), CommitError> {
        let Base { allocator, policy, space, .. } = &self.base;
        allocator.tick(space.platform());
        let flushed = policy.tick(space, allocator);
        flushed.and(self.front.tick(&self.base))
    }

    fn due_us(&self) -> Option<u64> {
        let Base { allocator, policy, .. } = &self.base;
        [policy.due_us(), allocator.due_us(), self.front.due_us(&self.base)].into_iter().flatten().min()
    }

    fn table_pages(&self) -> usize {
        self.base.space.table().pages()
    }

    fn usage(&self) -> Usage {
        let Base { allocator, policy, .. } = &self.base;
        let (queued_unmaps, queued_unmaps_max) = policy.queued();
        let kept = allocator.kept();
        Usage {
            live_ranges: allocator.live(),
            kept_ranges: kept.ranges,
            kept_ranges_max: kept.ranges_max,
            record_bytes: allocator.record_bytes(),
            table_pages: self.table_pages(),
            queued_unmaps,
            queued_unmaps_max,
            window_us_max: policy.window_us_max(),
        }
    }

    fn id(&self) -> DomainId {
        self.base.space.id()
    }

    fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        self.base.space.attach(device)
    }

    fn detach(&self, device: SourceId) -> Result<(), AttachError> {
        self.base.space.detach(device)
    }
}

impl<A, P, I, L, F> Drop for AssembledMapper<A, P, I, L, F>
where
    A: IovaAllocator<P>,
    P: Platform,
    I: Iommu,
    L: Locking,
    F: Front<A, P, I, L>,
{
    fn drop(&mut self) {
        self.front.close(&mut self.base);
        let Base { allocator, policy, space, .. } = &mut self.base;
        space.close(|platform, table, proof| {
            let waiting = policy.close(platform, allocator, proof);
            allocator.close(platform, table);
            waiting
        });
    }
}
