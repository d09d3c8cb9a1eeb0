//! The mapper of the design `portcullis`.
//!
//! Small and middling requests for one DMA have their place in the upper half of the addresses, in [`Chunks`]. Large ones,
//! those that are there to stay, and all where addresses are narrow have theirs below, in the magazines and the tree of
//! `magazine`: they are the base's, which also commits what is not invalidated at once, for both halves.

use super::chunks::{CHUNK_PAGES, Chunks, TABLE_IDLE_US, Taken};
use super::halves::{Halves, has_place};
use super::page_states::{self, ClearedMark};
use super::reclaim::Reclaim;
use crate::address::{IovaRange, Segment};
use crate::design::{AssembledMapper, DomainSetup, LockFree, Mapper, Parts, Usage};
use crate::error::{CommitError, MapError, NewDomainError, NoMemory, RawMapError, RawUnmapError, UnmapError};
use crate::in_place::{Made, part};
use crate::invalidation::{CPU_QUEUE_CAPACITY, Commands, Deferral, Flushes, Revocation, Submissions, TakenDown};
use crate::iommu::{AttachError, DomainId, Invalidation, Iommu, SourceId};
use crate::iova::IovaRequest;
use crate::placement::Placement;
use crate::platform::{Context, Phase, Platform, Step};
use crate::proof::{Committed, Proof};
use crate::request::{Access, Lifetime, Request, Stream};
use crate::safety::Protection;
use crate::space::Pending;
use crate::sub_page::{Bounce, BouncePages, Chain};
use crate::sync::{AtomicU8, Ordering, fence};
use crate::table::{Entry, Frame, TableRule};
use core::mem::MaybeUninit;

/// Unmaps of a CPU that wait for a flush at most: half of what Linux has.
const QUEUED_MAX: usize = if cfg!(loom) { 2 } else { CPU_QUEUE_CAPACITY / 2 };
/// How long they wait at most, in microseconds. About as long as a busy CPU takes to fill its queue: one that has fallen quiet
/// is not to leave pages open for longer.
const QUEUED_US_MAX: u64 = 500;

/// How a mapping is unmapped that is no part of a batch.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(super) enum UnmapWay {
    /// By one command for its pages, waited for at once: under strict protection, where the hardware has such commands.
    OneCommand,
    /// As the policy of the base says.
    General,
    /// As in `General`; and this unmap, or one of a batch, schedules a sweep. None is scheduled, although there are many tables.
    GeneralAndSweep,
}

/// A mapping that was cleared, and whose invalidation is not known to be done.
pub(super) struct Unspent<I: Iommu> {
    pub(super) pending: Pending<I::Ticket>,
    pub(super) mark: ClearedMark,
}

/// What a request says beside its memory. It fits into two registers.
#[derive(Clone, Copy)]
struct Kind {
    stream: Stream,
    access: Access,
    lifetime: Lifetime,
}

/// The mapper.
pub struct Chunked<P: Platform, I: Iommu> {
    pub(super) base: AssembledMapper<Halves<P>, P, I>,
    /// What [`unmap_way`](Self::unmap_way) is while no unmap has to schedule a sweep.
    usual_way: UnmapWay,
    /// An [`UnmapWay`]. Relaxed: for an unmap that reads what was there a moment before there is one more sweep, see
    /// `give_tables_back`; the first that reads `GeneralAndSweep` fences, see `schedule_sweep`.
    unmap_way: AtomicU8,
    pub(super) reclaim: Reclaim<P>,
}

impl<P: Platform, I: Iommu> Chunked<P, I> {
    /// The mapper of a new domain.
    ///
    /// # Errors
    /// [`NewDomainError::NoMemory`], and those of [`AssembledMapper::with_parts`].
    pub fn new(setup: DomainSetup<'_, P, I>) -> Result<Self, NewDomainError> {
        let mut mapper = MaybeUninit::uninit();
        Self::new_in(&mut mapper, setup)?;
        // SAFETY: made just now.
        Ok(unsafe { mapper.assume_init() })
    }

    /// The same, made in `to`.
    ///
    /// # Errors
    /// Those of [`new`](Self::new); nothing is in `to` then.
    pub(crate) fn new_in(to: &mut MaybeUninit<Self>, setup: DomainSetup<'_, P, I>) -> Result<(), NewDomainError> {
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
        let at = to.as_mut_ptr();
        // SAFETY: the place of the base in `to`, which `Halves::new_in` fills in with the rest.
        let base = unsafe {
            let base = part(&raw mut (*at).base);
            Made::by(base, |base| AssembledMapper::build_in(base, Halves::new_in, parts, setup))
        }?;
        let AssembledMapper { space, allocator, .. } = base.get();
        if allocator.chunks.is_none() {
            // All maps are general ones, and leave the cursors alone.
            space.end_plain_maps();
        }
        let has_commands = space.capabilities().address_mask_max.is_some();
        let usual_way = if is_strict && has_commands { UnmapWay::OneCommand } else { UnmapWay::General };
        let reclaim = Reclaim::new(space.platform());
        base.keep();
        // Every field: with another in the mapper this does not compile.
        let _ = |Self { base: _, usual_way: _, unmap_way: _, reclaim: _ }: &Self| {};
        // SAFETY: within `to`; the base was made just now.
        unsafe {
            (&raw mut (*at).usual_way).write(usual_way);
            (&raw mut (*at).unmap_way).write(AtomicU8::new(usual_way as u8));
            (&raw mut (*at).reclaim).write(reclaim);
        }
        Ok(())
    }

    pub(super) fn chunks(&self) -> &Chunks<P> {
        &self.base.allocator.chunks
    }

    /// A map that takes more than to write its entries.
    #[inline(never)]
    fn map_general(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        let has_place = has_place(request) && !self.chunks().is_none();
        if has_place { self.map_in_chunk(request) } else { self.map_below(request) }
    }

    /// A map that goes to the lower half.
    fn map_below(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        self.base.space.platform().probe(Step::Map);
        self.base.map_by_allocator(request)
    }

    /// The same for one segment. By value: were the caller's request lent to it, every map would build that in memory, and a map
    /// of a page keeps it in registers.
    #[cold]
    #[inline(never)]
    fn map_segment_general(&self, segment: Segment, kind: Kind) -> Result<IovaRange, RawMapError> {
        let segments = [segment];
        let Kind { stream, access, lifetime } = kind;
        let mut request = Request::new(&segments, access)?;
        (request.stream, request.lifetime) = (stream, lifetime);
        self.map_general(&request)
    }

    /// Makes a mapping in a chunk, and all that the hardware asks for; in the lower half where there are as many tables as there may be.
    #[inline(never)]
    fn map_in_chunk(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        let space = &self.base.space;
        space.refuse_if_poisoned()?;
        space.check_physical(request.segments())?;
        let Some(Taken { range, entries }) = self.take_and_write(request)? else { return self.map_below(request) };
        if let Err(error) = space.sync_map(range) {
            // Taken back, and never spent: quarantined (S11).
            let platform = space.platform();
            let _ = page_states::clear(platform, entries, range).map(|cleared| cleared.make_visible(space.walker()));
            return Err(error.into());
        }
        Ok(range)
    }

    /// Adds the leaf table of a page in the upper half.
    #[inline(always)]
    fn grow<'s>(&'s self) -> impl Fn(u64) -> Result<&'s Frame, NoMemory> + Copy {
        // SAFETY: the upper half has leaves of 4 KiB only, and reaches no further than the width.
        move |pfn| unsafe { self.base.space.add_leaf_table(pfn) }
    }

    /// Takes pages of a chunk and writes their entries. `None` where there are as many tables as there may be.
    #[inline(always)]
    fn take_and_write(&self, request: &Request<'_>) -> Result<Option<Taken<'_>>, NoMemory> {
        let space = &self.base.space;
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::IovaAllocate));
        // A chunk is replaced under a lock. The attribute keeps the rest, every map of a single page, in line.
        let taken = space.poison_on_panic(
            #[inline(always)]
            || self.chunks().take(platform, &IovaRequest::of(request), self.grow()),
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

    /// Takes pages of a chunk for mappings of a page, as many as a chunk has at most. `None` where there are as many tables as there may be.
    #[inline(always)]
    fn take_pages(&self, access: Access, stream: Stream, pages: usize) -> Result<Option<Taken<'_>>, NoMemory> {
        let space = &self.base.space;
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::IovaAllocate));
        space.poison_on_panic(
            #[inline(always)]
            || self.chunks().take_pages(platform, (access, stream), (pages as u64).min(CHUNK_PAGES), self.grow()),
        )
    }

    /// Unmaps the mapping at `range`, of `ONE` page or of several, by one command, if it is one in a chunk; any other the general way.
    /// The hardware has page-selective commands.
    // A result is taken apart here, so that the usual one is known to the caller without memory.
    #[allow(clippy::needless_question_mark, reason = "see above")]
    #[inline(always)]
    pub(super) fn unmap_by_command<const ONE: bool>(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        let mut left = None;
        match (self.clear_invalidate_spend::<ONE>(range, &mut left), left) {
            (Some(proof), _) => Ok(Committed::Lost(proof)),
            (None, Some(unspent)) => self.await_and_spend(range, unspent).map_err(RawUnmapError::Commit),
            (None, None) => Ok(self.unmap_general::<ONE>(range)?),
        }
    }

    /// Clears the mapping, has it invalidated, and spends it. `None` where no such mapping is in a chunk, or where something is
    /// `left` to be [waited for](Self::await_and_spend).
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
        // A walk until the range is spent, where the hardware has done the command by then. A mapping keeps its table until it is spent;
        // but of two unmaps that race for it one may be late, and still be here when the other has spent it.
        platform.walk(
            // In line, as all of it is.
            #[inline(always)]
            || {
                // SAFETY: within a walk.
                let entries = unsafe { self.chunks().entries(range.first_pfn()) };
                let cleared = page_states::clear(platform, entries, range)?.make_visible(space.walker());
                // Only now: an unmap that finds no mapping in a chunk goes the general way, and is charged there.
                platform.probe(Step::Enter(Phase::Other));
                platform.probe(Step::ChunkUnmap);
                platform.probe(Step::Enter(Phase::Invalidate));
                let proof = match space.invalidate_at_once(command) {
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

    /// Clears the mapping at exactly `range`, if it is one in a chunk. The commit makes that visible.
    #[inline(always)]
    pub(super) fn clear_for_commit(&self, range: IovaRange) -> bool {
        let space = &self.base.space;
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Table));
        platform.probe(Step::ChunkFind);
        let is_cleared = platform.walk(|| {
            // SAFETY: within a walk.
            let entries = unsafe { self.chunks().entries(range.first_pfn()) };
            page_states::clear(platform, entries, range).is_some()
        });
        if is_cleared {
            platform.probe(Step::Enter(Phase::Other));
            platform.probe(Step::ChunkUnmap);
        }
        is_cleared
    }

    /// The only run that unmaps have left, and its command, where they can be committed by that.
    #[inline(always)]
    pub(super) fn only_command(&self, revocation: &Revocation) -> Option<(IovaRange, Invalidation)> {
        let run = revocation.only_joined_run()?;
        let space = &self.base.space;
        if !self.is_one_command() || !revocation.is_of(space.batch_tag()) {
            return None;
        }
        let command = space.covering(run, true);
        matches!(command, Invalidation::Pages { .. }).then_some((run, command))
    }

    /// Commits unmaps by one command.
    #[inline(never)]
    pub(super) fn commit_run(
        &self,
        revocation: &mut Revocation,
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
                // The pages stay cleared: quarantined for good (S11).
                revocation.forget();
                return Err(CommitError(error));
            }
        };
        platform.probe(Step::Enter(Phase::IovaFree));
        allocator.chunks.spend(platform, run, &proof);
        revocation.clear_runs();
        Ok(Committed::Lost(proof))
    }

    /// Whether unmaps are one command each.
    #[inline(always)]
    pub(super) fn is_one_command(&self) -> bool {
        self.unmap_way.load(Ordering::Relaxed) == UnmapWay::OneCommand as u8
    }

    /// Unmaps of pages of chunks come by here once they are committed, but for those of one command: they have read that no sweep is
    /// left to them. Those of the lower half, committed by themselves, leave no table to be swept.
    #[inline(always)]
    pub(super) fn schedule_sweep_if_none(&self) {
        if self.is_sweep_left_to_unmaps() {
            self.schedule_sweep();
        }
    }

    #[cold]
    #[inline(never)]
    fn schedule_sweep(&self) {
        self.unmap_way.store(self.usual_way as u8, Ordering::Relaxed);
        // SeqCst, as the fence in `tick`: either this finds that the last sweep is no longer due, and schedules another, or that
        // sweep finds that another is wanted.
        fence(Ordering::SeqCst);
        self.chunks().sweep_due.set_if_none(self.base.space.platform(), TABLE_IDLE_US);
    }

    /// Whether the next unmap schedules a sweep.
    #[inline(always)]
    pub(super) fn is_sweep_left_to_unmaps(&self) -> bool {
        self.unmap_way.load(Ordering::Relaxed) == UnmapWay::GeneralAndSweep as u8
    }

    /// From now on the next unmap schedules a sweep.
    pub(super) fn leave_sweep_to_unmaps(&self) {
        self.unmap_way.store(UnmapWay::GeneralAndSweep as u8, Ordering::Relaxed);
    }
}

// SAFETY: a page of a chunk is handed out again when its mapping has been spent, which takes the proof of its invalidation; the rest is
// an assembled mapper's.
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
        // Whatever it was that failed, the general way does it, or says why not.
        match *request.segments() {
            [segment] => {
                let Request { stream, lifetime, .. } = *request;
                self.map_segment_general(segment, Kind { stream, access: request.access(), lifetime })
            }
            _ => self.map_general(request),
        }
    }

    #[inline(always)]
    unsafe fn map_at_once(&self, segment: Segment, access: Access) -> Option<IovaRange> {
        let space = &self.base.space;
        let platform = space.platform();
        let segments = [segment];
        let request = Request::in_a_page(&segments, access);
        if !space.is_plain(&request) {
            return None;
        }
        platform.probe(Step::Enter(Phase::IovaAllocate));
        let taken = space.poison_on_panic(
            #[inline(always)]
            || self.chunks().take_page_at_once(platform, access),
        )?;
        self.write(&request, taken.entries);
        Some(taken.range)
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

    unsafe fn map_placed(&self, request: &Request<'_>, placement: &Placement) -> Result<IovaRange, RawMapError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.base.map_placed(request, placement) }
    }

    fn allocate(&self, context: Context, allocate: &mut dyn FnMut()) {
        self.base.allocate(context, allocate);
    }

    fn reserve_tables(&self, tables: usize) -> Result<(), NoMemory> {
        self.chunks().reserve(self.base.space.platform(), tables)?;
        self.base.reserve_tables(tables)
    }

    fn tables_max(&self, pages: u64) -> usize {
        self.base.tables_max(pages)
    }

    #[inline(always)]
    fn unmap(&self, range: IovaRange, out: &mut Revocation) -> Result<(), UnmapError> {
        let platform = self.base.space.platform();
        out.admit_unmap_of(self.base.space.batch_tag(), range.pages())?;
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

    #[allow(clippy::needless_question_mark, reason = "see `unmap_by_command`")]
    #[inline(always)]
    fn unmap_now(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        // What takes one page is built for one, and need not ask `chunks_of`: where a page is not in the upper half, `Chunks::entries` finds
        // none, and the general way takes it.
        if range.pages() != 1 {
            return self.unmap_apart(range);
        }
        self.base.space.platform().probe(Step::Enter(Phase::Other));
        if self.is_one_command() {
            self.unmap_by_command::<true>(range)
        } else {
            Ok(self.unmap_general::<true>(range)?)
        }
    }

    #[inline(always)]
    fn unmap_apart(&self, range: IovaRange) -> Result<Committed, RawUnmapError> {
        self.base.space.platform().probe(Step::Enter(Phase::Other));
        let is_chunked = self.is_one_command() && self.base.allocator.chunks_of(range).is_some();
        if is_chunked { self.unmap_by_command::<false>(range) } else { self.unmap_general::<false>(range) }
    }

    #[inline(always)]
    fn unmap_bounced_now(
        &self,
        range: IovaRange,
        pages: &mut Chain,
        part: &mut Option<Segment>,
    ) -> Result<Committed, RawUnmapError> {
        let space = &self.base.space;
        space.platform().probe(Step::Enter(Phase::Other));
        let mut taken = TakenDown::of(range);
        self.take_down_alone(&mut taken)?;
        *part = space.take(range.first_pfn(), pages);
        let committed = self.base.commit_alone(&mut taken)?;
        self.schedule_sweep_if_none();
        Ok(committed)
    }

    #[inline(always)]
    fn commit(&self, revocation: &mut Revocation) -> Result<Committed, CommitError> {
        match self.only_command(revocation) {
            Some((run, command)) => self.commit_run(revocation, run, command),
            None => self.commit_general(revocation),
        }
    }

    fn tick(&self) -> Result<(), CommitError> {
        let ticked = self.base.tick();
        let space = &self.base.space;
        let swept = space.unless_panicked(|| {
            if !self.chunks().sweep_due.take_if_due(space.platform()) {
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
        [self.base.due_us(), self.chunks().sweep_due.get()].into_iter().flatten().min()
    }

    fn table_pages(&self) -> usize {
        self.base.table_pages()
    }

    fn usage(&self) -> Usage {
        self.base.usage()
    }

    fn bounce_pages(&self) -> Option<BouncePages<'_>> {
        self.base.bounce_pages()
    }

    fn id(&self) -> DomainId {
        self.base.id()
    }

    fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        self.base.attach(device)
    }

    fn detach(&self, device: SourceId) -> Result<(), AttachError> {
        self.base.detach(device)
    }
}
