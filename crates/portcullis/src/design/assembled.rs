//! The mapper of most designs: an allocator, a table with its rule and its locks, and strict or deferred invalidation.
//!
//! Mappers that have places of their own for some requests have one of these for all others: `identity`, and that of `chunk`.

use crate::address::{IovaRange, Segment};
use crate::design::{DomainSetup, LockFree, Locking, Mapper, Usage};
use crate::error::{
    CommitError, MapError, NewDomainError, NoMemory, RawMapError, RawUnmapError, SyncError, UnmapError,
};
use crate::in_place::{Made, part};
use crate::invalidation::{Commands, Deferral, Policy, Revocation, Submissions, TakenDown};
use crate::iommu::{AttachError, DomainId, Iommu, QueueError, SourceId};
use crate::iova::{IovaAllocator, IovaRequest, PlacedRanges};
use crate::placement::Placement;
use crate::platform::{Context, Phase, Platform, Step};
use crate::proof::{Committed, Proof};
use crate::request::Request;
use crate::space::AddressSpace;
use crate::sub_page::{BOUNCE_PAGES_MAX, Bounce, BouncePages, Chain};
use crate::table::TableRule;
use core::mem::MaybeUninit;

/// How often a map that needs memory under a lock asks the host for it: other CPUs may take what was meant for it.
const MEMORY_TRIES: usize = 8;

/// Table pages that such a map asks for at first; twice as many each time that they were not enough. Those of all but the largest maps,
/// which would otherwise take their address twice.
const TABLES_FIRST: usize = 16;

/// The parts, put together.
pub struct AssembledMapper<A: IovaAllocator<P>, P: Platform, I: Iommu, L: Locking = LockFree> {
    pub(crate) allocator: A,
    pub(crate) policy: Policy<P, I>,
    pub(super) locking: L,
    pub(crate) space: AddressSpace<P, I>,
    pub(super) placed: PlacedRanges<P>,
}

/// [`Made::by`] with a frame of its own.
///
/// # Errors
/// Those of `make`.
///
/// # Safety
/// That of [`Made::by`].
#[inline(never)]
unsafe fn apart<'r, T>(
    room: &'r mut MaybeUninit<T>,
    make: impl FnOnce(&mut MaybeUninit<T>) -> Result<(), NewDomainError>,
) -> Result<Made<'r, T>, NewDomainError> {
    // SAFETY: the caller's promise, passed on.
    unsafe { Made::by(room, make) }
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

impl Parts<LockFree> {
    /// As Linux has them: no locks but the allocator's, a command per unmap, table pages freed by the unmap that
    /// covers them, or kept where claims walk the table.
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

    /// Does the same in `to`, where `allocator` makes the allocator.
    ///
    /// # Errors
    /// Those of [`with_parts`](AssembledMapper::with_parts); nothing is in `to` then.
    ///
    /// # Safety
    /// That of [`build_in`](AssembledMapper::build_in).
    pub(crate) unsafe fn of_linux_in(
        to: &mut MaybeUninit<Self>,
        allocator: impl FnOnce(&mut MaybeUninit<A>, &DomainSetup<'_, P, I>) -> Result<(), NewDomainError>,
        deferral: Deferral,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<(), NewDomainError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { Self::build_in(to, allocator, Parts::of_linux::<P, A>(deferral), setup) }
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
    /// [`Flushes::CoveringRange`](crate::invalidation::Flushes::CoveringRange) over such a table, if unmaps leave translations
    /// to a table that maps do not write over, or the other way round, or if a table that frees empty pages has no lock.
    pub fn with_parts(allocator: A, parts: Parts<L>, setup: DomainSetup<'_, P, I>) -> Result<Self, NewDomainError> {
        let mut mapper = MaybeUninit::uninit();
        let moved = |to: &mut MaybeUninit<A>, _: &DomainSetup<'_, P, I>| {
            to.write(allocator);
            Ok(())
        };
        // SAFETY: it writes an allocator.
        unsafe { Self::build_in(&mut mapper, moved, parts, setup) }?;
        // SAFETY: made just now.
        Ok(unsafe { mapper.assume_init() })
    }

    /// Does what [`with_parts`](AssembledMapper::with_parts) does in `to`, where `allocator` makes the allocator. Each part has its own
    /// frame while it is made, and they are not all on the stack together.
    ///
    /// # Errors
    /// Those of [`with_parts`](AssembledMapper::with_parts), and of `allocator`; nothing is in `to` then.
    ///
    /// # Safety
    /// Where `allocator` returns no error, it has made an allocator.
    #[inline(never)]
    pub(crate) unsafe fn build_in(
        to: &mut MaybeUninit<Self>,
        allocator: impl FnOnce(&mut MaybeUninit<A>, &DomainSetup<'_, P, I>) -> Result<(), NewDomainError>,
        parts: Parts<L>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<(), NewDomainError> {
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
        let at = to.as_mut_ptr();
        // SAFETY: each part of `to` once.
        let (to_allocator, to_policy, to_placed, to_space) = unsafe {
            let (allocator, policy) = (part(&raw mut (*at).allocator), part(&raw mut (*at).policy));
            (allocator, policy, part(&raw mut (*at).placed), part(&raw mut (*at).space))
        };
        // SAFETY: the caller's promise.
        let allocator = unsafe { Made::by(to_allocator, |to| allocator(to, &setup)) }?;
        let make_policy = |to: &mut MaybeUninit<_>| {
            to.write(Policy::new(&setup.platform, setup.protection, commands, submissions, deferral)?);
            Ok(())
        };
        // SAFETY: it writes a policy.
        let policy = unsafe { apart(to_policy, make_policy) }?;
        assert_eq!(
            matches!(policy.get(), Policy::AtMap(_)),
            rule == TableRule::Overwritten,
            "maps write over what unmaps have left, and nothing else"
        );
        let make_placed = |to: &mut MaybeUninit<_>| {
            to.write(PlacedRanges::new(&setup.platform, setup.width, setup.reserved)?);
            Ok(())
        };
        // SAFETY: it writes these ranges.
        let placed = unsafe { apart(to_placed, make_placed) }?;
        let DomainSetup { iommu, platform, width, sub_page, .. } = setup;
        let make_space = |to: &mut MaybeUninit<_>| {
            to.write(AddressSpace::new(iommu, platform, width, rule)?);
            Ok(())
        };
        // SAFETY: it writes an address space. The last, for it opens a domain of the hardware.
        let mut space = unsafe { apart(to_space, make_space) }?;
        if L::IS_HELD {
            space.get_mut().take_reserve_first();
        }
        space.get_mut().set_sub_page(sub_page)?;
        // Every field: with another in the mapper this does not compile.
        let _ = |Self { allocator: _, policy: _, locking: _, space: _, placed: _ }: &Self| {};
        // SAFETY: within `to`.
        unsafe { (&raw mut (*at).locking).write(locking) };
        allocator.keep();
        policy.keep();
        placed.keep();
        space.keep();
        Ok(())
    }

    /// Makes a mapping at an address of the allocator.
    ///
    /// # Errors
    /// Those of [`Mapper::map`].
    #[inline(never)]
    pub(crate) fn map_by_allocator(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        self.space.refuse_if_poisoned()?;
        self.space.poison_on_panic(
            #[inline(always)]
            || self.map_and_sync(request),
        )
    }

    #[inline(always)]
    fn map_and_sync(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        let mut is_drained = false;
        let range = loop {
            match self.allocate_with_memory(request) {
                // Not with a lock held: it waits for the hardware.
                Err(MapError::Exhausted { .. })
                    if !is_drained && self.policy.drain(&self.space, &self.allocator)? =>
                {
                    is_drained = true;
                }
                written => break written?,
            }
        };
        self.sync(range).inspect_err(|_| self.quarantine(range))?;
        Ok(range)
    }

    #[inline(always)]
    fn allocate_with_memory(&self, request: &Request<'_>) -> Result<IovaRange, MapError> {
        self.with_memory(
            request.pages(),
            #[inline(always)]
            || {
                self.locking.whole(
                    request.pages(),
                    #[inline(always)]
                    || self.allocate_and_write(request),
                )
            },
        )
    }

    /// Runs a part of a map of `pages` pages that may hold a lock. What memory it needs is taken from the host with none held; where that was
    /// not enough, it runs again.
    #[inline(always)]
    pub(super) fn with_memory<R>(&self, pages: u64, map: impl Fn() -> Result<R, MapError>) -> Result<R, MapError> {
        // Few at first: a mapping with large leaves needs few, and one that is refused needs none.
        let tables_max = self.space.tables_max(pages);
        let (mut tables, mut tries) = (tables_max.min(TABLES_FIRST), 0);
        loop {
            // A map that needs no table does without.
            let has_room = !L::IS_HELD || self.space.make_room(tables).is_ok();
            let result = map();
            if L::IS_HELD {
                self.space.give_room_back(tables);
            }
            if tries == MEMORY_TRIES || !matches!(result, Err(MapError::NoMemory(_))) {
                return result;
            }
            if self.allocator.prepare(self.space.platform())? {
                tries += 1;
            } else if !L::IS_HELD || !has_room {
                return result;
            } else if tables < tables_max {
                tables = tables.saturating_mul(2).min(tables_max);
            } else {
                // One that found no room may have taken the tables that were meant for this one.
                tries += 1;
            }
        }
    }

    /// Ends a map whose translations are written. Where that fails the mapping has to be taken down.
    #[inline(always)]
    pub(super) fn sync(&self, range: IovaRange) -> Result<(), SyncError> {
        self.space.sync_map(range)?;
        self.policy.sync_map(&self.space, range)
    }

    /// Takes down a mapping whose map could not be ended, as by an unmap whose commit failed: the hardware may hold something else
    /// there, so the device finds no translation, no driver can unmap it, and the range stays quarantined (S11). That holds for
    /// every policy, for the domain is poisoned: none leaves translations then.
    #[cold]
    #[inline(never)]
    fn quarantine(&self, range: IovaRange) {
        if !self.space.has_panicked() {
            let _ = self.space.poison_on_panic(|| self.claim_and_clear(&mut TakenDown::of(range)));
        }
    }

    /// Takes an address of the allocator and writes the translations.
    #[inline(always)]
    fn allocate_and_write(&self, request: &Request<'_>) -> Result<IovaRange, MapError> {
        let platform = self.space.platform();
        let range = self.allocator.allocate(platform, &IovaRequest::of(request))?;
        // A table wraps: an address beyond it would lead where another does, and be invalidated by its own name only.
        assert!(range.end_pfn() <= self.space.end_pfn(), "an allocator of more addresses than its domain translates");
        let marked = range.pages() <= A::TABLE_CLAIM_PAGES_MAX;
        platform.probe(Step::Enter(Phase::Table));
        // SAFETY: the allocator has handed the range out, as long as the request, to this call alone; it lies in the table, as just
        // seen; where it matters, the lock keeps others off the table.
        let write = || unsafe { self.write(range, request, marked) };
        if let Err(error) = self.locking.table(range, write) {
            // Nothing was written, so no hardware has seen the range. Where the claim fails, a driver that was never given the
            // range has unmapped it, and its unmap gives it back. A claim that is left to the table cannot have been made: no
            // mark was written.
            if self.allocator.claim(platform, range).is_ok() {
                self.allocator.free(platform, range, &Proof::never_visible());
            }
            return Err(error);
        }
        Ok(range)
    }

    /// Writes translations to the table.
    ///
    /// # Errors
    /// Those of [`AddressSpace::map`].
    ///
    /// # Safety
    /// That of [`AddressSpace::map`].
    #[inline(always)]
    pub(super) unsafe fn write(&self, range: IovaRange, request: &Request<'_>, marked: bool) -> Result<(), MapError> {
        let (segments, access) = (request.segments(), request.access());
        // Only a table with a lock frees empty pages, see `build_in`: the others are not even linked with what that takes.
        match L::TABLE_EXCLUSIVE {
            // SAFETY: the caller's promise, passed on.
            true => unsafe { self.space.map(range, segments, access, marked) },
            // SAFETY: as above.
            false => unsafe { self.space.map_uncounted(range, segments, access, marked) },
        }
    }
}

// SAFETY: the allocator hands each address to one mapping at a time, the policy gives it back with the proof of its invalidation, and
// the table leads to nothing else.
unsafe impl<A: IovaAllocator<P>, P: Platform, I: Iommu, L: Locking> Mapper for AssembledMapper<A, P, I, L> {
    #[inline(always)]
    unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        let platform = self.space.platform();
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Map);
        self.map_by_allocator(request)
    }

    unsafe fn map_placed(&self, request: &Request<'_>, placement: &Placement) -> Result<IovaRange, RawMapError> {
        let platform = self.space.platform();
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Map);
        self.map_by_placement(request, placement)
    }

    fn allocate(&self, context: Context, allocate: &mut dyn FnMut()) {
        self.space.platform().allocate(context, allocate);
    }

    fn reserve_tables(&self, tables: usize) -> Result<(), NoMemory> {
        self.space.reserve_tables(tables)
    }

    fn tables_max(&self, pages: u64) -> usize {
        self.space.tables_max(pages)
    }

    fn unmap(&self, range: IovaRange, out: &mut Revocation) -> Result<(), UnmapError> {
        let platform = self.space.platform();
        out.admit_unmap_of(self.space.tag(), range.pages())?;
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Unmap);
        out.note_taken(range, |taken| self.take_down(taken))
    }

    #[inline(always)]
    fn unmap_now(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        let platform = self.space.platform();
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Unmap);
        self.unmap_by_allocator(range)
    }

    #[inline(never)]
    fn unmap_bounced_now(
        &self,
        range: IovaRange,
        pages: &mut Chain,
        part: &mut Option<Segment>,
    ) -> Result<Committed, RawUnmapError> {
        let platform = self.space.platform();
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Unmap);
        let mut taken = TakenDown::of(range);
        self.take_down(&mut taken)?;
        *part = self.space.take(range.first_pfn(), pages);
        Ok(self.commit_alone(&mut taken)?)
    }

    #[inline(always)]
    fn commit(&self, revocation: &mut Revocation) -> Result<Committed, CommitError> {
        let Self { allocator, policy, space, .. } = self;
        assert!(revocation.is_of(space.tag()), "a revocation is committed where its unmaps were made");
        if space.has_panicked() {
            return Err(self.keep_for_good(revocation, QueueError::Panicked));
        }
        space.poison_on_panic(
            #[inline(always)]
            || {
                if policy.must_clear(space) {
                    self.clear_left(revocation);
                }
                if revocation.is_mixed()
                    && let Some(committed) = self.commit_mixed(revocation)?
                {
                    return Ok(committed);
                }
                policy.commit(space, allocator, revocation)
            },
        )
    }

    fn tick(&self) -> Result<(), CommitError> {
        let Self { allocator, policy, space, .. } = self;
        let ticked = space.unless_panicked(|| {
            allocator.tick(space.platform());
            policy.tick(space, allocator)
        });
        ticked.unwrap_or(Err(CommitError(QueueError::Panicked)))
    }

    fn due_us(&self) -> Option<u64> {
        if self.space.has_panicked() {
            // No tick does anything any more.
            return None;
        }
        [self.policy.due_us(), self.allocator.due_us()].into_iter().flatten().min()
    }

    fn table_pages(&self) -> usize {
        self.space.table().pages()
    }

    fn usage(&self) -> Usage {
        let Self { allocator, policy, space, .. } = self;
        let usage = space.unless_panicked(|| {
            let (queued_unmaps, queued_unmaps_max) = policy.queued();
            let kept = allocator.kept();
            let bounce = space.bounce_pages();
            Usage {
                live_ranges: allocator.live() + self.placed.len(),
                kept_ranges: kept.ranges,
                kept_ranges_max: kept.ranges_max,
                record_bytes: allocator.record_bytes(),
                table_pages: self.table_pages(),
                queued_unmaps,
                queued_unmaps_max,
                bounce_pages: bounce.map_or(0, |bounce| bounce.0.in_use()),
                bounce_pages_max: bounce.map_or(0, |_| BOUNCE_PAGES_MAX),
                window_us_max: policy.window_us_max(),
            }
        });
        // After a panic the rest is behind locks that are not taken any more.
        usage.unwrap_or_else(|| Usage { table_pages: self.table_pages(), ..Usage::default() })
    }

    fn bounce_pages(&self) -> Option<BouncePages<'_>> {
        self.space.bounce_pages()
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

impl<A: IovaAllocator<P>, P: Platform, I: Iommu, L: Locking> Drop for AssembledMapper<A, P, I, L> {
    fn drop(&mut self) {
        let Self { allocator, policy, space, .. } = self;
        space.close(|walker, table, proof| {
            let waiting = policy.close(walker.platform(), allocator, proof);
            allocator.close(walker, table);
            waiting
        });
    }
}
