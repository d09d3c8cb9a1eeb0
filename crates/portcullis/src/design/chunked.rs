//! A design of chunks: addresses that streams hand out to themselves, in tables that say themselves what is free.
//!
//! Small and middling requests for one DMA have their place in the upper half of the addresses, where [`Chunks`] rule. Large
//! ones, those that are there to stay, and everybody where addresses are narrow have theirs below, in the magazines and the tree
//! that `magazine` has for all.
//!
//! Table pages of the upper half that nobody has needed for a while go back to the host: out of the table, out of the hardware
//! at all levels, out of reach of wrong unmaps that walk without a mapping to keep the page there, and only then (S4).

use super::{Composed, Mapper, Parts, Setup, Usage};
use crate::address::{Iova, IovaRange, PAGE_SIZE, PhysAddr};
use crate::deadline::Deadline;
use crate::design::LockFree;
use crate::domain::RawUnmapError;
use crate::error::{CommitError, MapError, NewDomainError, NoMemory, UnmapError};
use crate::invalidation::{
    CORE_QUEUE_CAPACITY, Commands, Deferral, Flushes, Invalidated, Revocation, Revoked, Submissions, page_selective,
};
use crate::iommu::{AttachError, Capabilities, DomainId, Invalidation, Iommu, SourceId};
use crate::iova::{
    CHUNK_PAGES, CHUNKED_PAGES_MAX, Chunks, Claim, Demand, IovaAllocator, Kept, MagazineAllocator, NotTaken, Taken,
    never_handed_out,
};
use crate::platform::{Lock, LockClass, Phase, Platform, Step};
use crate::request::{Access, Lifetime, Request};
use crate::safety::Protection;
use crate::sync::{AtomicU8, Ordering};
use crate::table::{ENTRIES, FreedTables, TableRule, rounds};
use arrayvec::ArrayVec;

/// How long table pages that nobody needs are kept, in microseconds; they go within twice that.
pub const TABLE_IDLE_US: u64 = 100_000;
/// Unmaps of a CPU that wait for a flush at most: half of what Linux has.
const QUEUED_MAX: usize = CORE_QUEUE_CAPACITY.div_ceil(2);
/// How long they wait at most, in microseconds. About as long as a busy CPU takes to fill its queue: one that has fallen quiet
/// is not to leave pages open for longer.
const QUEUED_US_MAX: u64 = 500;
/// Table pages that go back together at most.
const LEAVING_MAX: usize = 64;
/// An unmap of one page is a command for that page and no more: under strict protection, where the hardware has such commands.
const AT_ONCE: u8 = 0;
/// It goes the way of all.
const IN_TURN: u8 = 1;
/// So it does, and begins a period: none has begun, although there are many tables.
const BEGINS_PERIOD: u8 = 2;

/// The mapper.
pub struct Chunked<P: Platform, I: Iommu> {
    domain: Composed<Halves<P>, P, I>,
    strict: bool,
    /// Requests of more pages have no place in chunks. 0 where there are none.
    chunked_pages_max: u64,
    /// What an unmap has to do, one of the three below. Relaxed: one that is under way during the last look at the tables may
    /// miss that it is to begin a period, and leaves it to the next.
    unmaps: AtomicU8,
    /// When tables are looked at next.
    period: Deadline,
    leaving: P::Lock<Leaving>,
}

/// Table pages on their way to the host: the hardware has lost them.
struct Leaving {
    tables: Invalidated<FreedTables>,
    numbers: ArrayVec<u32, LEAVING_MAX>,
    /// The walks of software that may still be at them.
    walks: u64,
    /// A CPU sees to it. Another need not wait for it.
    attended: bool,
}

/// The allocators of the two halves. The one below is asked; chunks are taken by [`Chunked`], which writes them at once.
struct Halves<P: Platform> {
    chunks: Chunks<P>,
    below: MagazineAllocator<P>,
}

impl<P: Platform, I: Iommu> Chunked<P, I> {
    /// An empty domain.
    ///
    /// # Errors
    /// [`NewDomainError::NoMemory`], and those of [`Composed::with_parts`].
    pub fn new(setup: Setup<'_, P, I>) -> Result<Self, NewDomainError> {
        let chunks = Chunks::new(&setup.platform, setup.width, &never_handed_out(setup.reserved)?)?;
        let width_below = setup.width - u8::from(!chunks.is_none());
        let below = MagazineAllocator::new(&setup.platform, width_below, setup.reserved)?;
        let none = Leaving {
            tables: Invalidated::new(FreedTables::new()),
            numbers: ArrayVec::new(),
            walks: 0,
            attended: false,
        };
        let leaving = setup.platform.lock(LockClass::Domain, none);
        let parts = Parts {
            commands: Commands::PerRun { within_pages: CHUNK_PAGES },
            submissions: Submissions::Shared,
            deferral: Deferral::PerCore { capacity: QUEUED_MAX, timeout_us: QUEUED_US_MAX, flushes: Flushes::Extent },
            rule: TableRule::Kept,
            locking: LockFree,
        };
        let strict = setup.protection == Protection::Strict;
        let domain = Composed::with_parts(Halves { chunks, below }, parts, setup)?;
        let is_chunked = !domain.allocator.chunks.is_none();
        let chunked_pages_max = if is_chunked { CHUNKED_PAGES_MAX } else { 0 };
        if !is_chunked {
            // All maps go the way of all, and leave the cursors alone.
            domain.space.end_plain_maps();
        }
        let awake = unmaps_awake(strict, domain.space.capabilities());
        let period = Deadline::none();
        Ok(Self { domain, strict, chunked_pages_max, unmaps: AtomicU8::new(awake), period, leaving })
    }

    /// The chunks, where `range` lies among them.
    #[inline(always)]
    fn chunks_of(&self, range: IovaRange) -> Option<&Chunks<P>> {
        self.domain.allocator.chunks_of(range)
    }

    /// Makes a mapping in a chunk. `None` where there are as many tables as there may be.
    #[inline(always)]
    fn map_in_chunk(&self, chunks: &Chunks<P>, request: &Request<'_>) -> Result<Option<IovaRange>, MapError> {
        let space = &self.domain.space;
        let platform = space.platform();
        space.check_physical(request.segments())?;
        platform.probe(Step::Enter(Phase::IovaAllocate));
        let Some(Taken { range, entries }) = self.take(chunks, &Demand::of(request))? else { return Ok(None) };
        platform.probe(Step::Enter(Phase::Table));
        rounds::write(platform, entries, request.segments(), request.access().rights());
        if let Err(error) = space.written(range) {
            // Taken back, and never spent: quarantined (S11).
            let _ = rounds::clear(platform, entries, range);
            return Err(error);
        }
        Ok(Some(range))
    }

    #[inline(always)]
    fn take<'c>(&self, chunks: &'c Chunks<P>, demand: &Demand) -> Result<Option<Taken<'c>>, NoMemory> {
        loop {
            match chunks.take(self.domain.space.platform(), demand) {
                Ok(taken) => return Ok(Some(taken)),
                Err(NotTaken::NeedsTable(number)) => self.add_table(chunks, number)?,
                Err(NotTaken::Full) => return Ok(None),
                Err(NotTaken::NoMemory) => return Err(NoMemory),
            }
        }
    }

    #[cold]
    fn add_table(&self, chunks: &Chunks<P>, number: u32) -> Result<(), NoMemory> {
        let space = &self.domain.space;
        // SAFETY: the upper half has leaves of 4 KiB only, and reaches no further than the width.
        let added = unsafe { space.add_leaf_table(chunks.table_pfn(number)) };
        if let Err(error) = added.and_then(|frame| chunks.link(number, frame)) {
            chunks.give_number_back(number);
            return Err(error);
        }
        if chunks.is_large() {
            self.period.set_if_none(space.platform(), TABLE_IDLE_US);
        }
        Ok(())
    }

    /// Gives back the table pages that have left and that nobody walks, and sees which are to leave next.
    fn give_tables_back(&self, chunks: &Chunks<P>) -> Result<(), CommitError> {
        let space = &self.domain.space;
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Table));
        let is_mine = self.leaving.with(|leaving| !core::mem::replace(&mut leaving.attended, true));
        if !is_mine {
            return Ok(());
        }
        let (gone, is_empty) = self.leaving.with(|leaving| {
            let over = !leaving.numbers.is_empty() && platform.walks_are_over(leaving.walks);
            let gone = over.then(|| {
                let none = Invalidated::new(FreedTables::new());
                (core::mem::replace(&mut leaving.tables, none), core::mem::take(&mut leaving.numbers))
            });
            (gone, leaving.numbers.is_empty())
        });
        if let Some((tables, numbers)) = gone {
            space.release(tables);
            numbers.into_iter().for_each(|number| chunks.give_number_back(number));
        }
        // In a poisoned domain nothing leaves the hardware any more.
        let unlinked = if is_empty && space.check().is_ok() { self.unlink_tables(chunks) } else { Ok(()) };
        chunks.begin_period(platform);
        let leaves = self.leaving.with(|leaving| {
            leaving.attended = false;
            !leaving.numbers.is_empty()
        });
        if leaves || chunks.goes_on() {
            self.period.set_if_none(platform, TABLE_IDLE_US);
        } else if chunks.is_large() {
            self.unmaps.store(BEGINS_PERIOD, Ordering::Relaxed);
        }
        unlinked
    }

    /// To be called by every unmap of a chunk's pages.
    #[inline(always)]
    fn stir(&self) {
        if self.unmaps.load(Ordering::Relaxed) == BEGINS_PERIOD {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        self.unmaps.store(unmaps_awake(self.strict, self.domain.space.capabilities()), Ordering::Relaxed);
        self.period.set_if_none(self.domain.space.platform(), TABLE_IDLE_US);
    }

    /// Takes tables out that were not needed for a period.
    fn unlink_tables(&self, chunks: &Chunks<P>) -> Result<(), CommitError> {
        let space = &self.domain.space;
        let (mut tables, mut numbers) = (FreedTables::new(), ArrayVec::<u32, LEAVING_MAX>::new());
        let mut commands = ArrayVec::<_, LEAVING_MAX>::new();
        while !numbers.is_full()
            && let Some(number) = chunks.unlink()
        {
            let pfn = chunks.table_pfn(number);
            // SAFETY: added by `add_table`, and nothing is mapped in it; what `leaving` does is waited for before it is freed.
            unsafe { space.remove_leaf_table(pfn, &mut tables) };
            let range = IovaRange::new(pfn, ENTRIES as u64).expect("below the width");
            commands.push(page_selective(space.id(), range, false, space.capabilities()));
            numbers.push(number);
        }
        if numbers.is_empty() {
            return Ok(());
        }
        // Where it fails the pages are lost for good: the hardware may walk them (S4).
        space.invalidate(&commands)?;
        // Named after they were taken out: a walk that begins later does not find them.
        let walks = space.platform().walks_now();
        let attended = true;
        self.leaving.with(|leaving| *leaving = Leaving { tables: Invalidated::new(tables), numbers, walks, attended });
        Ok(())
    }
}

/// What an unmap has to do while a period goes on.
const fn unmaps_awake(strict: bool, capabilities: &Capabilities) -> u8 {
    if strict && capabilities.address_mask_max.is_some() { AT_ONCE } else { IN_TURN }
}

/// Whether a buffer at `offset` in a page ends in it. Without a length it does not.
#[inline(always)]
const fn is_in_a_page(offset: u64, len: u64) -> bool {
    len.wrapping_sub(1) <= offset ^ (PAGE_SIZE - 1)
}

impl<P: Platform, I: Iommu> Mapper for Chunked<P, I> {
    #[inline(always)]
    fn map(&self, request: &Request<'_>) -> Result<IovaRange, MapError> {
        self.domain.begin_map()?;
        if request.pages() <= self.chunked_pages_max
            && request.lifetime == Lifetime::Transient
            && let Some(range) = self.map_in_chunk(&self.domain.allocator.chunks, request)?
        {
            return Ok(range);
        }
        self.domain.map_anywhere(request)
    }

    #[inline(always)]
    fn unmap(&self, range: IovaRange, out: &mut Revocation) -> Result<(), UnmapError> {
        let Some(chunks) = self.chunks_of(range) else { return self.domain.unmap(range, out) };
        let platform = self.domain.space.platform();
        self.domain.revoke(out, |_| {
            platform.probe(Step::Enter(Phase::Table));
            platform.probe(Step::ChunkFind);
            // SAFETY: within a walk.
            platform.walk(|| rounds::clear(platform, unsafe { chunks.entries(range.first_pfn()) }, range).map(drop))?;
            self.stir();
            Ok(Revoked { range, cleared: true, leaf_only: true })
        })
    }

    #[inline(always)]
    fn map_at_once(&self, phys: PhysAddr, len: u64, access: Access) -> Option<Iova> {
        let space = &self.domain.space;
        let platform = space.platform();
        if !is_in_a_page(phys.page_offset(), len) || !space.is_plain(phys) {
            return None;
        }
        let chunks = &self.domain.allocator.chunks;
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Map);
        platform.probe(Step::Enter(Phase::IovaAllocate));
        let (pfn, entry) = chunks.taken_page(chunks.take_page(platform, access)?);
        platform.probe(Step::Enter(Phase::Table));
        rounds::write_page(platform, entry, phys, access.rights());
        Some(Iova::new(Iova::from_pfn(pfn).as_u64() + phys.page_offset()))
    }

    #[inline(always)]
    fn unmap_at_once(&self, iova: Iova, len: u64) -> Result<bool, CommitError> {
        let space = &self.domain.space;
        let platform = space.platform();
        let chunks = &self.domain.allocator.chunks;
        if !is_in_a_page(iova.page_offset(), len) || self.unmaps.load(Ordering::Relaxed) != AT_ONCE {
            return Ok(false);
        }
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Unmap);
        platform.probe(Step::Enter(Phase::Table));
        platform.probe(Step::ChunkFind);
        // The walk goes on until the page is spent: what is mapped keeps its table, but another unmap of it may be there as well.
        platform.walk(|| {
            // SAFETY: within a walk.
            let cleared = unsafe { chunks.entry(iova.pfn()) }.and_then(|entry| rounds::clear_page(platform, entry));
            let Some(cleared) = cleared else { return Ok(false) };
            platform.probe(Step::Enter(Phase::Invalidate));
            let first = Iova::from_pfn(iova.pfn());
            space.invalidate_shared(&[Invalidation::Pages { domain: space.id(), first, mask: 0, leaf_only: true }])?;
            platform.probe(Step::Enter(Phase::IovaFree));
            platform.probe(Step::ChunkReturn);
            cleared.spend();
            Ok(true)
        })
    }

    fn unmap_alone(&self, range: IovaRange) -> Result<(), RawUnmapError> {
        let Some(chunks) = self.chunks_of(range).filter(|_| self.strict) else {
            let mut revocation = Revocation::new();
            self.unmap(range, &mut revocation)?;
            return Ok(self.commit(&mut revocation)?);
        };
        let space = &self.domain.space;
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Unmap);
        platform.probe(Step::Enter(Phase::Table));
        platform.probe(Step::ChunkFind);
        // As in `unmap_at_once`.
        platform.walk(|| {
            // SAFETY: within a walk.
            let cleared = rounds::clear(platform, unsafe { chunks.entries(range.first_pfn()) }, range)?;
            platform.probe(Step::Enter(Phase::Invalidate));
            let command = page_selective(space.id(), range, true, space.capabilities());
            space.invalidate_shared(&[command]).map_err(CommitError)?;
            platform.probe(Step::Enter(Phase::IovaFree));
            platform.probe(Step::ChunkReturn);
            cleared.spend();
            self.stir();
            Ok(())
        })
    }

    fn commit(&self, revocation: &mut Revocation) -> Result<(), CommitError> {
        self.domain.commit(revocation)
    }

    fn tick(&self) -> Result<(), CommitError> {
        let flushed = self.domain.tick();
        let is_due = self.period.take_if_due(self.domain.space.platform());
        let given_back = if is_due { self.give_tables_back(&self.domain.allocator.chunks) } else { Ok(()) };
        flushed.and(given_back)
    }

    fn due_us(&self) -> Option<u64> {
        self.domain.due_us().into_iter().chain(self.period.get()).min()
    }

    fn table_pages(&self) -> usize {
        self.domain.table_pages()
    }

    fn usage(&self) -> Usage {
        self.domain.usage()
    }

    fn id(&self) -> DomainId {
        self.domain.id()
    }

    fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        self.domain.attach(device)
    }

    fn detach(&self, device: SourceId) -> Result<(), AttachError> {
        self.domain.detach(device)
    }
}

impl<P: Platform, I: Iommu> Drop for Chunked<P, I> {
    fn drop(&mut self) {
        // `&mut self`: nobody walks any more.
        let none = Invalidated::new(FreedTables::new());
        let tables = self.leaving.with(|leaving| core::mem::replace(&mut leaving.tables, none));
        self.domain.space.release(tables);
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

    fn allocate(&self, platform: &P, demand: &Demand) -> Result<IovaRange, MapError> {
        self.below.allocate(platform, demand)
    }

    fn claim(&self, platform: &P, range: IovaRange) -> Result<Claim, UnmapError> {
        self.below.claim(platform, range)
    }

    #[inline(always)]
    fn free(&self, platform: &P, range: Invalidated<IovaRange>) {
        match self.chunks_of(*range.get()) {
            Some(chunks) => {
                platform.probe(Step::ChunkReturn);
                // Until the range is spent it keeps its table, but two unmaps may have been let through.
                platform.walk(|| {
                    // SAFETY: within a walk.
                    let entries = unsafe { chunks.entries(range.get().first_pfn()) };
                    entries.first().into_iter().for_each(rounds::spend);
                });
            }
            None => self.below.free(platform, range),
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
