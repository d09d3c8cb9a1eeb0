//! The mapper of the design `portcullis`.
//!
//! Transient requests of up to [`CHUNKED_PAGES_MAX`](super::CHUNKED_PAGES_MAX) pages are served by [`Chunks`], in the
//! upper half of the addresses. Larger requests, persistent ones, and all requests in narrow address spaces are served
//! by the magazines and the tree of `magazine`, from the lower half while it has room. These belong to the base mapper,
//! which also commits for both halves whatever is not invalidated at once. Each serves what the other has no room for.

use super::chunk_source::TABLE_IDLE_US;
use super::chunks::{Chunks, Taken};
use super::geometry::CHUNK_PAGES;
use super::leaving::LeavingTables;
use super::page_states::{self, ClearedMark};
use super::two_halves::{Halves, has_place};
use crate::address::{IovaRange, Segment};
use crate::error::{CommitError, MapError, NewDomainError, NoMemory, RawMapError, RawUnmapError, UnmapError};
use crate::in_place::in_place;
use crate::invalidation::{
    CPU_QUEUE_CAPACITY, Commands, Deferral, Departure, Flushes, InFlight, One, Place, Runs, Submissions, Unfinished,
    WhenFull, look,
};
use crate::iommu::{Invalidation, Iommu};
use crate::iova::IovaRequest;
use crate::mapper::{AssembledMapper, DomainSetup, LockFree, Mapper, Parts, Usage};
use crate::placement::Placement;
use crate::platform::{Phase, Platform, Step, Walk};
use crate::proof::{Committed, Proof};
use crate::request::{Access, Lifetime, Request, Stream};
use crate::safety::Protection;
use crate::space::{Pending, Space};
use crate::sync::{AtomicU8, Ordering, fence};
use crate::table::{Entry, TableRule};
use core::mem::MaybeUninit;

/// The largest number of unmaps of a CPU that wait for a flush: half of Linux's number.
const QUEUED_MAX: usize = if cfg!(loom) { 2 } else { CPU_QUEUE_CAPACITY / 2 };
/// The longest time that they wait, in microseconds. A busy CPU fills its queue in about this time, and a CPU that has
/// become idle should not leave pages open for longer.
const QUEUED_US_MAX: u64 = 500;

/// How a single mapping that is not part of a batch is unmapped.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum UnmapWay {
    /// By one command for its pages, which is waited for at once: under strict protection, if the hardware has
    /// page-selective commands.
    OneCommand,
    /// By the policy of the base mapper.
    General,
    /// As in `General`; in addition this unmap, or the commit of a batch, schedules a sweep. There are many tables and
    /// no sweep is scheduled.
    GeneralAndSweep,
}

/// A mapping that is cleared, and whose invalidation is not known to have completed.
pub(super) struct Unspent<I: Iommu> {
    pub(super) pending: Pending<I::Ticket>,
    pub(super) mark: ClearedMark,
}

/// The properties of a request other than its memory. They fit into two registers.
#[derive(Clone, Copy)]
struct Kind {
    stream: Stream,
    access: Access,
    lifetime: Lifetime,
}

/// The mapper of the design `portcullis`.
pub struct Chunked<P: Platform, I: Iommu> {
    pub(super) base: AssembledMapper<Halves<P>, P, I>,
    /// The value of [`unmap_way`](Self::unmap_way) while no unmap has to schedule a sweep.
    usual_way: UnmapWay,
    /// An [`UnmapWay`]. Relaxed: an unmap may read a value that has just been replaced, and because of that
    /// `give_tables_back` makes one more sweep. The first unmap that reads `GeneralAndSweep` issues a fence, see
    /// `schedule_sweep`.
    unmap_way: AtomicU8,
    pub(super) reclaim: LeavingTables<P>,
}

impl<P: Platform, I: Iommu> Chunked<P, I> {
    /// Makes the mapper of a new domain in `to`.
    ///
    /// # Errors
    /// [`NewDomainError::NoMemory`], and those of [`AssembledMapper::with_parts`]; `to` is uninitialized then.
    pub(crate) fn new_in<'t>(
        to: &'t mut MaybeUninit<Self>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self, NewDomainError> {
        let parts = Parts {
            commands: Commands::PerRun { within_pages: CHUNK_PAGES },
            submissions: Submissions::Shared,
            deferral: Deferral::PerCpu {
                capacity: QUEUED_MAX,
                timeout_us: QUEUED_US_MAX,
                flushes: Flushes::CoveringRange,
            },
            rule: TableRule::Kept,
            locking: LockFree,
        };
        let is_strict = setup.protection == Protection::Strict;
        let mapper = in_place!(to => Self {
            base <- |base| AssembledMapper::build_in(base, Halves::new_in, parts, setup),
            usual_way: match base.space.capabilities().address_mask_max {
                Some(_) if is_strict => UnmapWay::OneCommand,
                _ => UnmapWay::General,
            },
            unmap_way: AtomicU8::new(*usual_way as u8),
            reclaim: LeavingTables::new(base.space.platform()),
        });
        if mapper.chunks().is_none() {
            // All maps take the general path, so no cursor is used.
            mapper.base.space.end_plain_maps();
        }
        Ok(mapper)
    }

    pub(super) fn chunks(&self) -> &Chunks<P> {
        &self.base.allocator.chunks
    }

    /// Maps one segment in the general way. It takes the segment by value: if it took the caller's request by
    /// reference, every map would have to build the request in memory, whereas a map of one page keeps it in
    /// registers.
    #[cold]
    #[inline(never)]
    fn map_segment_general(&self, segment: Segment, kind: Kind) -> Result<IovaRange, RawMapError> {
        let segments = [segment];
        let Kind { stream, access, lifetime } = kind;
        let mut request = Request::new(&segments, access)?;
        (request.stream, request.lifetime) = (stream, lifetime);
        self.map_general(&request)
    }

    /// Takes pages of a chunk and writes their entries. `None` if no chunk is left.
    #[inline(always)]
    pub(super) fn take_and_write(&self, request: &Request<'_>) -> Result<Option<Taken<'_>>, NoMemory> {
        let space = &self.base.space;
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::IovaAllocate));
        // Replacing a chunk takes a lock. The attribute keeps the rest, which every map of a single page executes,
        // inline.
        let taken = space.poison_on_panic(
            #[inline(always)]
            || self.chunks().take(platform, &IovaRequest::of(request), &self.base),
        );
        let Some(taken) = taken? else { return Ok(None) };
        self.write(request, taken.entries);
        Ok(Some(taken))
    }

    /// Writes the entries of pages that were taken.
    #[inline(always)]
    fn write(&self, request: &Request<'_>, entries: &[Entry]) {
        let space = &self.base.space;
        let platform = space.platform();
        // Only now: a map that finds no place in a chunk is charged as any other.
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::ChunkMap);
        platform.probe(Step::Enter(Phase::Table));
        page_states::write(space.walker(), entries, request.segments(), request.access().rights());
    }

    /// Takes pages for one-page mappings, at most a chunk of them. `None` if no chunk is left.
    #[inline(always)]
    fn take_pages(&self, access: Access, stream: Stream, pages: usize) -> Result<Option<Taken<'_>>, NoMemory> {
        let space = &self.base.space;
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::IovaAllocate));
        space.poison_on_panic(
            #[inline(always)]
            || self.chunks().take_pages(platform, (access, stream), (pages as u64).min(CHUNK_PAGES), &self.base),
        )
    }

    /// Unmaps the mapping at `range`: by one command if it lies in a chunk, otherwise in the general way. With `ONE`,
    /// the range is one page. The hardware has page-selective commands.
    #[inline(always)]
    pub(super) fn unmap_by_command<const ONE: bool>(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        let mut left = None;
        match (self.clear_invalidate_spend::<ONE>(range, &mut left), left) {
            (Some(proof), _) => Ok(Committed::Proven(proof)),
            (None, Some(unspent)) => self.await_and_spend(range, unspent),
            (None, None) => self.unmap_general::<ONE>(range),
        }
    }

    /// Clears the mapping, has it invalidated, and spends it. `None` if no such mapping is in a chunk, or if its
    /// invalidation is `left` to be [waited for](Self::await_and_spend).
    #[inline(always)]
    fn clear_invalidate_spend<const ONE: bool>(
        &self,
        range: IovaRange,
        left: &mut Option<Unspent<I>>,
    ) -> Option<Proof> {
        let space = &self.base.space;
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Table));
        platform.probe(Step::ChunkFind);
        let range = if ONE { IovaRange::of(range.first_pfn(), 1) } else { range };
        let command = match ONE {
            true => Invalidation::Pages { domain: space.id(), first: range.start(), mask: 0, leaf_only: true },
            false => space.covering(range, true),
        };
        // One walk lasts until the range is spent, if the hardware completes the command by then. A mapping keeps its
        // table until it is spent. But if two unmaps race for a mapping, the later one may still be here when the
        // other has spent it.
        Walk::on(
            platform,
            // Inlined, as everything in this function is.
            #[inline(always)]
            |walk| {
                let entries = self.chunks().entries(walk, range.first_pfn());
                let cleared = page_states::clear(platform, entries, range)?.make_visible(space.walker());
                // Reported only now: an unmap that finds no mapping in a chunk takes the general path, and is charged
                // there.
                platform.probe(Step::Enter(Phase::Other));
                platform.probe(Step::ChunkUnmap);
                platform.probe(Step::Enter(Phase::Invalidate));
                let proof = match space.invalidate_at_once(walk, command) {
                    Ok(proof) => proof,
                    Err(pending) => {
                        *left = Some(Unspent { pending, mark: cleared.mark() });
                        return None;
                    }
                };
                platform.probe(Step::Enter(Phase::IovaFree));
                platform.probe(Step::ChunkReturn);
                cleared.spend(&proof);
                Some(proof)
            },
        )
    }

    /// Clears the mapping at exactly `range` if it lies in a chunk. The commit makes that visible.
    #[inline(always)]
    pub(super) fn clear_for_commit(&self, range: IovaRange) -> bool {
        let space = &self.base.space;
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Table));
        platform.probe(Step::ChunkFind);
        let is_cleared = Walk::on(platform, |walk| {
            let entries = self.chunks().entries(walk, range.first_pfn());
            page_states::clear(platform, entries, range).is_some()
        });
        if is_cleared {
            platform.probe(Step::Enter(Phase::Other));
            platform.probe(Step::ChunkUnmap);
        }
        is_cleared
    }

    /// If the unmaps have left a single run and it can be committed by one command, returns the run and the command.
    #[inline(always)]
    pub(super) fn only_command(&self, revocation: &Runs) -> Option<(IovaRange, Invalidation)> {
        let run = revocation.only_joined_run()?;
        let space = &self.base.space;
        if !self.is_one_command() || !revocation.is_of(space.batch_tag()) {
            return None;
        }
        let command = space.covering(run, true);
        matches!(command, Invalidation::Pages { .. }).then_some((run, command))
    }

    /// Commits a run of unmaps by one command.
    #[inline(never)]
    pub(super) fn commit_run(
        &self,
        revocation: &mut Runs,
        run: IovaRange,
        command: Invalidation,
    ) -> Result<Committed, CommitError> {
        let AssembledMapper { allocator, space, .. } = &self.base;
        let platform = space.platform();
        allocator.chunks.make_visible(space.walker(), run);
        platform.probe(Step::Enter(Phase::Invalidate));
        let proof = match space.invalidate_shared(&[command]) {
            Ok(proof) => proof,
            Err(error) => {
                // The pages stay cleared, and so are quarantined for good (S11).
                revocation.forget();
                return Err(CommitError(error));
            }
        };
        platform.probe(Step::Enter(Phase::IovaFree));
        allocator.chunks.spend(platform, run, &proof);
        revocation.clear_runs();
        Ok(Committed::Proven(proof))
    }

    /// Submits a run of unmaps by one command. `None` if it takes more, or if there is a reason not to submit it.
    #[inline(always)]
    fn submit_run(&self, revocation: &Runs, when_full: WhenFull) -> Option<InFlight> {
        let (run, command) = self.only_command(revocation)?;
        let AssembledMapper { allocator, policy, space, .. } = &self.base;
        let place = policy.flights()?.begin(space.platform())?;
        allocator.chunks.make_visible(space.walker(), run);
        space.platform().probe(Step::Enter(Phase::Invalidate));
        match space.depart(command, true, when_full == WhenFull::Wait) {
            Ok(Some(ticket)) => Some(place.submitted(space.tag(), ticket)),
            _ => {
                place.end();
                None
            }
        }
    }

    /// Takes a batch back that is one run of pages, or waits for it.
    ///
    /// # Safety
    /// That of [`Mapper::take_back`].
    #[inline(always)]
    unsafe fn take_run_back(
        &self,
        revocation: &mut Runs,
        run: IovaRange,
        place: Place<'_, I::Ticket>,
        in_flight: &InFlight,
        waits: bool,
    ) -> Result<Option<Committed>, CommitError> {
        let AssembledMapper { allocator, space, .. } = &self.base;
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Invalidate));
        // SAFETY: the caller's promise: the batch is in flight.
        let proof = match unsafe { look(space, &place, in_flight) } {
            Ok(proof) => proof,
            Err(Unfinished::InTime(_)) if !waits => return Ok(None),
            Err(Unfinished::InTime(ticket) | Unfinished::Late(ticket)) => {
                let awaited = space.invalidate_pending(Pending::submitted(ticket), &[space.covering(run, true)]);
                match awaited {
                    Ok(proof) => proof,
                    Err(error) => {
                        // As after a commit.
                        revocation.forget();
                        place.end();
                        return Err(CommitError(error));
                    }
                }
            }
        };
        platform.probe(Step::Enter(Phase::IovaFree));
        allocator.chunks.spend(platform, run, &proof);
        revocation.clear_runs();
        place.end();
        // The last sweep may have come and gone since the submission.
        self.schedule_sweep_if_none();
        Ok(Some(Committed::Proven(proof)))
    }

    /// Whether each unmap takes one command.
    #[inline(always)]
    pub(super) fn is_one_command(&self) -> bool {
        self.unmap_way.load(Ordering::Relaxed) == UnmapWay::OneCommand as u8
    }

    /// Called after the commit of unmaps in chunks, except by those that took one command: they have read that no
    /// unmap has to schedule a sweep. Single unmaps of the lower half do not call this, because they leave no table to
    /// sweep.
    #[inline(always)]
    pub(super) fn schedule_sweep_if_none(&self) {
        if self.is_sweep_left_to_unmaps() {
            self.schedule_sweep();
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn schedule_sweep(&self) {
        self.unmap_way.store(self.usual_way as u8, Ordering::Relaxed);
        // SeqCst, as the fence in `tick`: either this call finds that the last sweep is no longer due and schedules
        // another, or that sweep finds that another is wanted.
        fence(Ordering::SeqCst);
        self.chunks().sweep_due().set_if_none(self.base.space.platform(), TABLE_IDLE_US);
    }

    /// Whether the next unmap must schedule a sweep.
    #[inline(always)]
    pub(super) fn is_sweep_left_to_unmaps(&self) -> bool {
        self.unmap_way.load(Ordering::Relaxed) == UnmapWay::GeneralAndSweep as u8
    }

    /// Makes the next unmap schedule a sweep.
    pub(super) fn leave_sweep_to_unmaps(&self) {
        self.unmap_way.store(UnmapWay::GeneralAndSweep as u8, Ordering::Relaxed);
    }
}

// SAFETY: a page of a chunk is handed out again only when its mapping has been spent, which takes the proof of its
// invalidation; the base mapper keeps the promises for everything else.
unsafe impl<P: Platform, I: Iommu> Mapper for Chunked<P, I> {
    #[inline(always)]
    unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        let space = &self.base.space;
        space.platform().probe(Step::Enter(Phase::Other));
        if has_place(request)
            && space.is_plain(request)
            && let Ok(Some(taken)) = self.take_and_write(request)
        {
            return Ok(taken.range);
        }
        // Whatever the reason, the general path makes the mapping or returns the error.
        match *request.segments() {
            [segment] => {
                let Request { stream, lifetime, .. } = *request;
                self.map_segment_general(segment, Kind { stream, access: request.access(), lifetime })
            }
            _ => self.map_general(request),
        }
    }

    unsafe fn map_apart(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        self.base.space.platform().probe(Step::Enter(Phase::Other));
        self.map_general(request)
    }

    #[inline(always)]
    unsafe fn map_pages(&self, segments: &[Segment], access: Access, stream: Stream) -> Result<IovaRange, RawMapError> {
        let space = &self.base.space;
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Other));
        let [first, ..] = *segments else { return Err(MapError::Empty.into()) };
        if space.are_plain(segments)
            && let Ok(Some(taken)) = self.take_pages(access, stream, segments.len())
        {
            platform.probe(Step::Enter(Phase::Other));
            platform.probe(Step::ChunkMap);
            platform.probe(Step::Enter(Phase::Table));
            page_states::write_pages(space.walker(), taken.entries, segments, access.rights());
            return Ok(taken.range);
        }
        self.map_segment_general(first, Kind { stream, access, lifetime: Lifetime::Transient })
    }

    unsafe fn map_run(&self, segment: Segment, access: Access, stream: Stream) -> Result<IovaRange, RawMapError> {
        let segments = [segment];
        let mut request = Request::new(&segments, access)?;
        request.stream = stream;
        self.map_run_in_chunk(&request)
    }

    unsafe fn map_placed(&self, request: &Request<'_>, placement: &Placement) -> Result<IovaRange, RawMapError> {
        // SAFETY: the caller's promise, passed on.
        match unsafe { self.base.map_placed(request, placement) } {
            Err(RawMapError::Refused(MapError::Exhausted { .. } | MapError::Overlap(_)))
                if self.chunks().reach(IovaRange::of(placement.end_pfn() - 1, 1)) && self.lend() =>
            {
                // SAFETY: as above.
                unsafe { self.base.map_placed(request, placement) }
            }
            mapped => mapped,
        }
    }

    fn reserve_tables(&self, tables: usize) -> Result<(), NoMemory> {
        self.chunks().reserve(self.base.space.platform(), tables, &self.base)?;
        self.base.reserve_tables(tables)
    }

    #[inline(always)]
    fn unmap(&self, range: IovaRange, out: &mut Runs) -> Result<(), UnmapError> {
        let platform = self.base.space.platform();
        out.admit(self.base.space.batch_tag(), range.pages())?;
        platform.probe(Step::Enter(Phase::Other));
        let cleared = match range.pages() {
            1 => self.clear_for_commit(IovaRange::of(range.first_pfn(), 1)),
            _ => self.clear_for_commit(range),
        };
        if !cleared {
            return self.take_down_general(range, out);
        }
        out.join::<CHUNK_PAGES>(range);
        Ok(())
    }

    #[inline(always)]
    fn unmap_now(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        // The path for one page does not call `chunks_of`: if the page is not in the upper half, `Chunks::entries` is
        // empty for it, and the unmap takes the general path.
        if range.pages() != 1 {
            return self.unmap_apart(range);
        }
        self.base.space.platform().probe(Step::Enter(Phase::Other));
        if self.is_one_command() { self.unmap_by_command::<true>(range) } else { self.unmap_general::<true>(range) }
    }

    #[inline(always)]
    fn unmap_apart(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        self.base.space.platform().probe(Step::Enter(Phase::Other));
        let is_chunked = self.is_one_command() && self.chunks().reach(range);
        if is_chunked { self.unmap_by_command::<false>(range) } else { self.unmap_general::<false>(range) }
    }

    fn commit_one(&self, one: &mut One) -> Result<Committed, CommitError> {
        self.commit_general(one)
    }

    #[inline(always)]
    fn commit(&self, revocation: &mut Runs) -> Result<Committed, CommitError> {
        match self.only_command(revocation) {
            Some((run, command)) => self.commit_run(revocation, run, command),
            None => self.commit_general(revocation),
        }
    }

    #[inline(always)]
    fn submit(&self, revocation: &mut Runs, when_full: WhenFull) -> Result<Departure, CommitError> {
        match self.submit_run(revocation, when_full) {
            Some(in_flight) => Ok(Departure::InFlight(in_flight)),
            None => self.submit_general(revocation, when_full),
        }
    }

    #[inline(always)]
    unsafe fn take_back(
        &self,
        revocation: &mut Runs,
        in_flight: &InFlight,
        waits: bool,
    ) -> Result<Option<Committed>, CommitError> {
        let AssembledMapper { policy, space, .. } = &self.base;
        // Only pages of chunks join. After a panic nothing is of the batch tag.
        let run = revocation.only_joined_run().filter(|_| revocation.is_of(space.batch_tag()));
        match (run, policy.flights()) {
            (Some(run), Some(flights)) => {
                let place = flights.place(in_flight, space.tag());
                // SAFETY: the caller's promise, passed on.
                unsafe { self.take_run_back(revocation, run, place, in_flight, waits) }
            }
            // SAFETY: as above.
            _ => unsafe { self.take_back_general(revocation, in_flight, waits) },
        }
    }

    fn tick(&self) -> Result<(), CommitError> {
        let ticked = self.base.tick();
        let space = &self.base.space;
        let swept = space.unless_panicked(|| {
            if !self.chunks().sweep_due().take_if_due(space.platform()) {
                return Ok(());
            }
            // SeqCst: see `schedule_sweep`.
            fence(Ordering::SeqCst);
            self.give_tables_back()
        });
        ticked.and(swept.unwrap_or(Ok(())))
    }

    fn due_us(&self) -> Option<u64> {
        if self.base.space.has_panicked() {
            return None;
        }
        [self.base.due_us(), self.chunks().sweep_due().get()].into_iter().flatten().min()
    }

    fn usage(&self) -> Usage {
        let mut usage = self.base.usage();
        let space = &self.base.space;
        if !space.has_panicked() {
            usage.live_ranges += self.chunks().live(space.platform());
        }
        usage
    }

    fn space(&self) -> &dyn Space {
        &self.base.space
    }
}
