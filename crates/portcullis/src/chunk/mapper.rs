//! The design of chunks: addresses that streams hand out to themselves, in tables that say themselves what is free.
//!
//! Small and middling requests for one DMA have their place in the upper half of the addresses, where [`Chunks`] rule: that is the
//! front. Large ones, those that are there to stay, and all where addresses are narrow have theirs below, in the magazines and the
//! tree that `magazine` has for all.
//!
//! Table pages of the upper half that have not been needed for a while go back to the host: out of the table, out of the hardware
//! at all levels, out of reach of wrong unmaps that walk without a mapping to keep the page there, and only then (S4).

use super::chunks::{CHUNK_PAGES, CHUNKED_PAGES_MAX, Chunks, TABLE_IDLE_US, Taken};
use super::page_states;
use crate::address::{IovaRange, PhysAddr};
use crate::design::{AssembledMapper, Base, DomainSetup, Front, LockFree, Parts};
use crate::error::{CommitError, MapError, NewDomainError, NoMemory, UnmapError};
use crate::invalidation::{CPU_QUEUE_CAPACITY, Commands, Deferral, Flushes, Revocation, Revoked, Submissions};
use crate::iommu::{Capabilities, Invalidation, Iommu};
use crate::iova::{Claim, IovaAllocator, IovaRequest, Kept, MagazineAllocator, never_handed_out};
use crate::platform::{Lock, LockClass, Phase, Platform, Step};
use crate::proof::{Committed, Proof};
use crate::request::{Lifetime, Request};
use crate::safety::Protection;
use crate::sync::{AtomicU8, Ordering};
use crate::table::{ENTRIES, TableRule};
use arrayvec::ArrayVec;

/// Unmaps of a CPU that wait for a flush at most: half of what Linux has.
const QUEUED_MAX: usize = CPU_QUEUE_CAPACITY.div_ceil(2);
/// How long they wait at most, in microseconds. About as long as a busy CPU takes to fill its queue: one that has fallen quiet
/// is not to leave pages open for longer.
const QUEUED_US_MAX: u64 = 500;
/// Table pages that go back together at most.
const LEAVING_MAX: usize = 64;
/// An unmap is one command for its pages: under strict protection, where the hardware has such commands.
const AT_ONCE: u8 = 0;
/// It takes the general path.
const GENERAL: u8 = 1;
/// So it does, and begins a period: none has begun, although there are many tables.
const BEGINS_PERIOD: u8 = 2;

/// The mapper.
pub type Chunked<P, I> = AssembledMapper<Halves<P>, P, I, LockFree, ChunkFront<P>>;

/// The allocators of the two halves. The one below is asked; chunks are taken by the [front](ChunkFront), which writes them at
/// once.
pub struct Halves<P: Platform> {
    chunks: Chunks<P>,
    below: MagazineAllocator<P>,
}

/// What maps and unmaps in chunks.
pub struct ChunkFront<P: Platform> {
    strict: bool,
    /// What an unmap has to do, one of the three above. Relaxed: one that is under way during the last look at the tables may
    /// miss that it is to begin a period, and leaves it to the next.
    unmaps: AtomicU8,
    reclaim: P::Lock<Reclaim>,
}

/// What is done about tables that are not needed.
struct Reclaim {
    leaving: Option<Leaving>,
    /// A CPU sees to it. Another need not wait for it.
    attended: bool,
}

/// Table pages on their way to the host.
struct Leaving {
    pages: ArrayVec<PhysAddr, LEAVING_MAX>,
    numbers: ArrayVec<u32, LEAVING_MAX>,
    /// The walks of software that may still be at them.
    walks: u64,
    /// That the hardware has lost them.
    proof: Proof,
}

/// An empty domain.
///
/// # Errors
/// [`NewDomainError::NoMemory`], and those of [`AssembledMapper::with_parts`].
pub fn chunked<P: Platform, I: Iommu>(setup: DomainSetup<'_, P, I>) -> Result<Chunked<P, I>, NewDomainError> {
    let chunks = Chunks::new(&setup.platform, setup.width, &never_handed_out(setup.reserved)?)?;
    let width_below = setup.width - u8::from(!chunks.is_none());
    let below = MagazineAllocator::new(&setup.platform, width_below, setup.reserved)?;
    let reclaim = setup.platform.lock(LockClass::Domain, Reclaim { leaving: None, attended: false });
    let parts = Parts {
        commands: Commands::PerRun { within_pages: CHUNK_PAGES },
        submissions: Submissions::Shared,
        deferral: Deferral::PerCpu { capacity: QUEUED_MAX, timeout_us: QUEUED_US_MAX, flushes: Flushes::CoveringRange },
        rule: TableRule::Kept,
        locking: LockFree,
    };
    let strict = setup.protection == Protection::Strict;
    let base = Base::new(Halves { chunks, below }, parts, setup)?;
    if base.allocator.chunks.is_none() {
        // All maps take the general path, and leave the cursors alone.
        base.space.end_plain_maps();
    }
    let unmaps = AtomicU8::new(unmaps_in_period(strict, base.space.capabilities()));
    Ok(AssembledMapper::with_front(ChunkFront { strict, unmaps, reclaim }, base))
}

/// What an unmap has to do while a period goes on.
const fn unmaps_in_period(strict: bool, capabilities: &Capabilities) -> u8 {
    if strict && capabilities.address_mask_max.is_some() { AT_ONCE } else { GENERAL }
}

impl<P: Platform, I: Iommu> Front<Halves<P>, P, I> for ChunkFront<P> {
    #[inline(always)]
    fn map_plainly(&self, base: &Base<Halves<P>, P, I>, request: &Request<'_>) -> Option<IovaRange> {
        let is_plain = has_place(request) && base.space.is_plain(request);
        if is_plain { Some(place(base, request).ok()??.range) } else { None }
    }

    fn map(&self, base: &Base<Halves<P>, P, I>, request: &Request<'_>) -> Result<Option<IovaRange>, MapError> {
        let Base { allocator, space, .. } = base;
        if !has_place(request) || allocator.chunks.is_none() {
            return Ok(None);
        }
        space.check()?;
        space.check_physical(request.segments())?;
        let Some(Taken { range, entries }) = place(base, request)? else { return Ok(None) };
        if let Err(error) = space.sync_map(range) {
            // Taken back, and never spent: quarantined (S11).
            let _ = page_states::clear(space.platform(), entries, range);
            return Err(error);
        }
        Ok(Some(range))
    }

    #[inline(always)]
    fn take_down(
        &self,
        base: &Base<Halves<P>, P, I>,
        range: IovaRange,
        out: &mut Revocation,
    ) -> Option<Result<(), UnmapError>> {
        let Base { allocator, space, .. } = base;
        let chunks = allocator.chunks_of(range)?;
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Table));
        platform.probe(Step::ChunkFind);
        if !self.clear(base, chunks, range) {
            // SAFETY: within a walk.
            let why = platform.walk(|| page_states::refusal(unsafe { chunks.entries(range.first_pfn()) }, range));
            return Some(Err(why));
        }
        out.revoked.push(Revoked { range, cleared: true, leaf_only: true });
        Some(Ok(()))
    }

    #[inline(always)]
    fn unmap_now(&self, base: &Base<Halves<P>, P, I>, range: IovaRange) -> Option<Result<Committed, CommitError>> {
        // The same twice, so that what takes one page is built for one.
        match range.pages() {
            _ if self.unmaps.load(Ordering::Relaxed) != AT_ONCE => None,
            1 => unmap_now::<_, _, true>(base, range),
            _ => base.allocator.chunks_of(range).and_then(|_| unmap_now::<_, _, false>(base, range)),
        }
    }

    fn unmap_general(&self, base: &Base<Halves<P>, P, I>, range: IovaRange) -> Option<Result<Committed, CommitError>> {
        let Base { allocator, policy, space, .. } = base;
        let chunks = allocator.chunks_of(range)?;
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Unmap);
        platform.probe(Step::Enter(Phase::Table));
        platform.probe(Step::ChunkFind);
        self.clear(base, chunks, range).then(|| policy.commit_one(space, allocator, range))
    }

    fn tick(&self, base: &Base<Halves<P>, P, I>) -> Result<(), CommitError> {
        let is_due = base.allocator.chunks.period.take_if_due(base.space.platform());
        if is_due { self.give_tables_back(base) } else { Ok(()) }
    }

    fn due_us(&self, base: &Base<Halves<P>, P, I>) -> Option<u64> {
        base.allocator.chunks.period.get()
    }

    fn close(&mut self, base: &mut Base<Halves<P>, P, I>) {
        // `&mut`: no CPU walks the tables now.
        self.reclaim.with(|reclaim| reclaim.leaving.take()).into_iter().for_each(|leaving| leaving.release(base));
    }
}

impl<P: Platform> ChunkFront<P> {
    /// Clears the mapping at exactly `range`, if there is one. It is not invalidated yet.
    #[inline(always)]
    fn clear<I: Iommu>(&self, base: &Base<Halves<P>, P, I>, chunks: &Chunks<P>, range: IovaRange) -> bool {
        let platform = base.space.platform();
        // SAFETY: within a walk.
        let entries = || unsafe { chunks.entries(range.first_pfn()) };
        let cleared = platform.walk(|| page_states::clear(platform, entries(), range).is_some());
        if cleared {
            self.note_unmap(base);
        }
        cleared
    }

    /// To be called by every unmap that takes the general path.
    #[inline(always)]
    fn note_unmap<I: Iommu>(&self, base: &Base<Halves<P>, P, I>) {
        if self.unmaps.load(Ordering::Relaxed) == BEGINS_PERIOD {
            self.begin_period(base);
        }
    }

    #[cold]
    fn begin_period<I: Iommu>(&self, base: &Base<Halves<P>, P, I>) {
        self.unmaps.store(unmaps_in_period(self.strict, base.space.capabilities()), Ordering::Relaxed);
        base.allocator.chunks.period.set_if_none(base.space.platform(), TABLE_IDLE_US);
    }

    /// Gives back the table pages that have left and that no CPU walks, and picks those that leave next.
    fn give_tables_back<I: Iommu>(&self, base: &Base<Halves<P>, P, I>) -> Result<(), CommitError> {
        let Base { allocator: Halves { chunks, .. }, space, .. } = base;
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Table));
        let is_mine = self.reclaim.with(|reclaim| !core::mem::replace(&mut reclaim.attended, true));
        if !is_mine {
            return Ok(());
        }
        let (gone, is_empty) = self.reclaim.with(|reclaim| {
            let gone = reclaim.leaving.take_if(|leaving| platform.walks_are_over(leaving.walks));
            (gone, reclaim.leaving.is_none())
        });
        gone.into_iter().for_each(|leaving| leaving.release(base));
        // In a poisoned domain nothing leaves the hardware any more.
        let unlinked = if is_empty && space.check().is_ok() { unlink_tables(base) } else { Ok(None) };
        chunks.begin_period(platform);
        let (unlinked, leaving) = match unlinked {
            Ok(leaving) => (Ok(()), leaving),
            Err(error) => (Err(error), None),
        };
        let leaves = self.reclaim.with(|reclaim| {
            reclaim.attended = false;
            reclaim.leaving = leaving.or(reclaim.leaving.take());
            reclaim.leaving.is_some()
        });
        if leaves || chunks.goes_on() {
            chunks.period.set_if_none(platform, TABLE_IDLE_US);
        } else if chunks.is_large() {
            self.unmaps.store(BEGINS_PERIOD, Ordering::Relaxed);
        }
        unlinked
    }
}

/// Whether a request may have its place in a chunk.
#[inline(always)]
fn has_place(request: &Request<'_>) -> bool {
    request.pages() <= CHUNKED_PAGES_MAX && request.lifetime == Lifetime::Transient
}

/// Makes a mapping in a chunk. `None` where there are as many tables as there may be.
#[inline(always)]
fn place<'b, P: Platform, I: Iommu>(
    base: &'b Base<Halves<P>, P, I>,
    request: &Request<'_>,
) -> Result<Option<Taken<'b>>, NoMemory> {
    let Base { allocator: Halves { chunks, .. }, space, .. } = base;
    let platform = space.platform();
    platform.probe(Step::Enter(Phase::IovaAllocate));
    // SAFETY: the upper half has leaves of 4 KiB only, and reaches no further than the width.
    let grow = |pfn| unsafe { space.add_leaf_table(pfn) };
    let Some(taken) = chunks.take(platform, &IovaRequest::of(request), grow)? else { return Ok(None) };
    platform.probe(Step::Enter(Phase::Table));
    page_states::write(platform, taken.entries, request.segments(), request.access().rights());
    Ok(Some(taken))
}

/// Clears the mapping at `range`, of `ONE` page or of several, has it invalidated, and spends it. `None` where no such mapping is
/// in a chunk. The hardware has page-selective commands.
#[inline(always)]
fn unmap_now<P: Platform, I: Iommu, const ONE: bool>(
    base: &Base<Halves<P>, P, I>,
    range: IovaRange,
) -> Option<Result<Committed, CommitError>> {
    let Base { allocator: Halves { chunks, .. }, space, .. } = base;
    let platform = space.platform();
    platform.probe(Step::Enter(Phase::Other));
    platform.probe(Step::Unmap);
    platform.probe(Step::Enter(Phase::Table));
    platform.probe(Step::ChunkFind);
    // The walk goes on until the range is spent: what is mapped keeps its table, but another unmap of it may be there as well.
    platform.walk(|| {
        let (range, command) = match ONE {
            true => {
                let first = range.start();
                let command = Invalidation::Pages { domain: space.id(), first, mask: 0, leaf_only: true };
                (IovaRange::of(range.first_pfn(), 1), command)
            }
            false => (range, space.covering(range, true)),
        };
        // SAFETY: within a walk.
        let cleared = page_states::clear(platform, unsafe { chunks.entries(range.first_pfn()) }, range)?;
        platform.probe(Step::Enter(Phase::Invalidate));
        let proof = match space.invalidate_shared(&[command]) {
            Ok(proof) => proof,
            Err(error) => return Some(Err(CommitError(error))),
        };
        platform.probe(Step::Enter(Phase::IovaFree));
        platform.probe(Step::ChunkReturn);
        cleared.spend(&proof);
        Some(Ok(Committed::Lost(proof)))
    })
}

/// Takes tables out that were not needed for a period: those that have left the hardware, if there were any.
fn unlink_tables<P: Platform, I: Iommu>(base: &Base<Halves<P>, P, I>) -> Result<Option<Leaving>, CommitError> {
    let Base { allocator: Halves { chunks, .. }, space, .. } = base;
    let (mut pages, mut numbers) = (ArrayVec::<_, LEAVING_MAX>::new(), ArrayVec::<_, LEAVING_MAX>::new());
    let mut commands = ArrayVec::<_, LEAVING_MAX>::new();
    while !numbers.is_full()
        && let Some(number) = chunks.unlink()
    {
        let pfn = chunks.table_pfn(number);
        // SAFETY: added by `map`, and nothing is mapped in it; what `Leaving` waits for comes before it is freed.
        pages.push(unsafe { space.remove_leaf_table(pfn) });
        let range = IovaRange::new(pfn, ENTRIES as u64).expect("below the width");
        commands.push(space.covering(range, false));
        numbers.push(number);
    }
    if numbers.is_empty() {
        return Ok(None);
    }
    // Where it fails the pages are lost for good: the hardware may walk them (S4).
    let proof = space.invalidate(&commands)?;
    // Named after they were taken out: a walk that begins later does not find them.
    let walks = space.platform().walks_now();
    Ok(Some(Leaving { pages, numbers, walks, proof }))
}

impl Leaving {
    /// Gives the pages back to the host, and their numbers to the tables that come.
    fn release<P: Platform, I: Iommu>(self, base: &Base<Halves<P>, P, I>) {
        for page in self.pages {
            // SAFETY: from `unlink_tables`, and the walks that might have been at it are over.
            unsafe { base.space.release_leaf_table(page, &self.proof) };
        }
        self.numbers.into_iter().for_each(|number| base.allocator.chunks.give_number_back(number, &self.proof));
    }
}

impl<P: Platform> Halves<P> {
    #[inline(always)]
    fn chunks_of(&self, range: IovaRange) -> Option<&Chunks<P>> {
        self.chunks.contains(range).then_some(&self.chunks)
    }
}

// SAFETY: what it hands out is handed out by an allocator that keeps the promises, below the half of the chunks.
unsafe impl<P: Platform> IovaAllocator<P> for Halves<P> {
    const TABLE_CLAIM_PAGES_MAX: u64 = MagazineAllocator::<P>::TABLE_CLAIM_PAGES_MAX;

    fn allocate(&self, platform: &P, request: &IovaRequest) -> Result<IovaRange, MapError> {
        self.below.allocate(platform, request)
    }

    fn claim(&self, platform: &P, range: IovaRange) -> Result<Claim, UnmapError> {
        self.below.claim(platform, range)
    }

    #[inline(always)]
    fn free(&self, platform: &P, range: IovaRange, proof: &Proof) {
        match self.chunks_of(range) {
            Some(chunks) => {
                platform.probe(Step::ChunkReturn);
                // Until the range is spent it keeps its table, but two unmaps may have been let through.
                platform.walk(|| {
                    // SAFETY: within a walk.
                    let entries = unsafe { chunks.entries(range.first_pfn()) };
                    entries.first().into_iter().for_each(|first| page_states::spend(first, proof));
                });
            }
            None => self.below.free(platform, range, proof),
        }
    }

    fn live(&self) -> usize {
        self.below.live() + self.chunks.live()
    }

    fn kept(&self) -> Kept {
        self.below.kept()
    }

    fn record_bytes(&self) -> usize {
        self.chunks.record_bytes()
    }

    fn tick(&self, platform: &P) {
        self.below.tick(platform);
    }

    fn due_us(&self) -> Option<u64> {
        self.below.due_us()
    }
}
