//! A design made of parts: an allocator, a table with its rule and its locks, and strict or deferred invalidation.

use crate::address::IovaRange;
use crate::design::{LockFree, Locking, Mapper, Setup, Usage};
use crate::error::{CommitError, MapError, NewDomainError, UnmapError};
use crate::invalidation::{Commands, Deferral, Invalidated, Policy, Revocation, Revoked, Submissions};
use crate::iommu::{AttachError, DomainId, Iommu, SourceId};
use crate::iova::{Claim, Demand, IovaAllocator};
use crate::platform::{Phase, Platform, Step};
use crate::request::Request;
use crate::space::AddressSpace;
use crate::table::{FreedTables, TableRule};

/// The parts, put together.
pub struct Composed<A: IovaAllocator<P>, P: Platform, I: Iommu, L: Locking = LockFree> {
    pub(super) allocator: A,
    policy: Policy<P, I>,
    locking: L,
    pub(super) space: AddressSpace<P, I>,
}

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

impl<A: IovaAllocator<P>, P: Platform, I: Iommu> Composed<A, P, I> {
    /// Puts `allocator` over a new domain, as Linux has it: no locks but the allocator's, a command per unmap, table pages
    /// freed as soon as claims allow.
    ///
    /// # Errors
    /// Those of [`with_parts`](Composed::with_parts).
    pub fn new(allocator: A, deferral: Deferral, setup: Setup<'_, P, I>) -> Result<Self, NewDomainError> {
        let rule = if A::TABLE_CLAIM_PAGES_MAX > 0 { TableRule::Kept } else { TableRule::FreedWhenCovered };
        let parts =
            Parts { commands: Commands::PerUnmap, submissions: Submissions::Alone, deferral, rule, locking: LockFree };
        Self::with_parts(allocator, parts, setup)
    }
}

impl<A: IovaAllocator<P>, P: Platform, I: Iommu, L: Locking> Composed<A, P, I, L> {
    /// Puts `allocator` and the other parts over a new domain.
    ///
    /// # Errors
    /// [`NewDomainError::Protection`] for [`Protection::None`](crate::Protection::None), [`NewDomainError::NoMemory`], and
    /// those of [`AddressSpace::translated`].
    ///
    /// # Panics
    /// If claims are left to a table that does not keep its pages, with [`Deferral::Unawaited`] or
    /// [`Flushes::Extent`](crate::invalidation::Flushes::Extent) over such a table, if unmaps leave translations to a table that
    /// maps do not write over, or the other way round, or if a table that frees empty pages has no lock.
    pub fn with_parts(allocator: A, parts: Parts<L>, setup: Setup<'_, P, I>) -> Result<Self, NewDomainError> {
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
            matches!(policy, Policy::AtMap),
            rule == TableRule::Overwritten,
            "maps write over what unmaps have left, and nothing else"
        );
        let space = AddressSpace::translated(setup.iommu, setup.platform, setup.width, rule)?;
        Ok(Self { allocator, policy, locking, space })
    }

    /// What every map begins with.
    #[inline]
    pub(super) fn begin_map(&self) -> Result<(), MapError> {
        let platform = self.space.platform();
        self.space.check()?;
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Map);
        Ok(())
    }

    /// The rest of a map at an address of the allocator.
    pub(super) fn map_anywhere(&self, request: &Request<'_>) -> Result<IovaRange, MapError> {
        let place = || self.locking.whole(request.pages(), || self.place(request));
        let range = match place() {
            // Not with a lock held: it waits for the hardware.
            Err(MapError::Exhausted { .. }) if self.policy.drain(&self.space, &self.allocator)? => place(),
            placed => placed,
        }?;
        if let Err(error) = self.space.written(range).and_then(|()| self.policy.mapped(&self.space, range)) {
            // Perhaps in use already: taken back like an unmap whose commit failed, so that the device finds no more of it,
            // nobody else can unmap it, and the range stays quarantined (S11). No translation is left: the domain is poisoned.
            let _ = self.unmap(range, &mut Revocation::new());
            return Err(error);
        }
        Ok(range)
    }

    /// An unmap: takes the mapping down by `take_down`, which says what it leaves to be invalidated, and notes that in `out`.
    pub(super) fn revoke(
        &self,
        out: &mut Revocation,
        take_down: impl FnOnce(&mut FreedTables) -> Result<Revoked, UnmapError>,
    ) -> Result<(), UnmapError> {
        let platform = self.space.platform();
        if !out.belongs_to(self.space.tag()) {
            return Err(UnmapError::WrongDomain);
        }
        if out.is_full() {
            return Err(UnmapError::BatchFull);
        }
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Unmap);
        let revoked = take_down(&mut out.tables)?;
        out.revoked.push(revoked);
        Ok(())
    }

    /// Picks an address and writes the translations.
    fn place(&self, request: &Request<'_>) -> Result<IovaRange, MapError> {
        let platform = self.space.platform();
        let range = self.allocator.allocate(platform, &Demand::of(request))?;
        let marked = range.pages() <= A::TABLE_CLAIM_PAGES_MAX;
        platform.probe(Step::Enter(Phase::Table));
        // SAFETY: the allocator has handed the range out, as long as the request, to this call alone; where it matters, the lock
        // keeps others off the table.
        let write = || unsafe { self.space.map(range, request.segments(), request.access(), marked) };
        if let Err(error) = self.locking.table(range, write) {
            // Nothing was written, so no hardware has seen the range. Whoever has unmapped it without ever being given it gives
            // it back.
            if self.allocator.claim(platform, range).is_ok() {
                self.allocator.free(platform, Invalidated::new(range));
            }
            return Err(error);
        }
        Ok(range)
    }

    /// Claims the mapping at exactly `range`, and clears its translations unless the policy leaves them. Returns whether no
    /// table page went with it.
    fn take_down(&self, range: IovaRange, tables: &mut FreedTables) -> Result<bool, UnmapError> {
        let claim = self.allocator.claim(self.space.platform(), range)?;
        if self.policy.leaves_translations(&self.space) { Ok(true) } else { self.clear(claim, range, tables) }
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

impl<A: IovaAllocator<P>, P: Platform, I: Iommu, L: Locking> Mapper for Composed<A, P, I, L> {
    fn map(&self, request: &Request<'_>) -> Result<IovaRange, MapError> {
        self.begin_map()?;
        self.map_anywhere(request)
    }

    fn unmap(&self, range: IovaRange, out: &mut Revocation) -> Result<(), UnmapError> {
        self.revoke(out, |tables| {
            let leaf_only = self.locking.whole(range.pages(), || self.take_down(range, tables))?;
            Ok(Revoked { range, cleared: true, leaf_only })
        })
    }

    fn commit(&self, revocation: &mut Revocation) -> Result<(), CommitError> {
        assert!(revocation.belongs_to(self.space.tag()), "a revocation is committed where its unmaps were made");
        if self.policy.must_clear(&self.space) {
            // The domain has been poisoned since the unmap: no map will come and write over what that has left.
            for revoked in &revocation.revoked {
                // SAFETY: this commit has the claim on the mapping, and gives the range back after this.
                unsafe { self.space.unmap(revoked.range, &mut revocation.tables) };
            }
        }
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
            record_bytes: self.allocator.record_bytes(),
            table_pages: self.table_pages(),
            queued_unmaps,
            queued_unmaps_max,
            window_us_max: self.policy.window_us_max(),
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

impl<A: IovaAllocator<P>, P: Platform, I: Iommu, L: Locking> Drop for Composed<A, P, I, L> {
    fn drop(&mut self) {
        let Self { allocator, policy, space, .. } = self;
        space.close(|platform, table| {
            let waiting = policy.close(platform, allocator);
            allocator.close(platform, table);
            waiting
        });
    }
}
