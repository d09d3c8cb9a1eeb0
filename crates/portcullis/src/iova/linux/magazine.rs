//! Magazines: freed addresses are kept per CPU, so that most requests take no shared lock (ATC'15, §4.3; Linux since
//! 4.7).
//!
//! For each size of up to 32 pages a CPU has two magazines: stacks of at most 127 addresses. It works on the loaded
//! one. When that is empty, or full, the CPU loads the other. When that does not help either, it exchanges one at the
//! depot of that size. After an exchange at least 127 allocations and 127 frees need no other exchange (Bonwick and
//! Adams, USENIX ATC'01, §3.1). Addresses that the depot does not have come from the tree, and addresses for which it
//! has no room go back there.
//!
//! Magazines are made when addresses leave the tree: a pair for the CPU that takes the first one, and an empty
//! magazine for as many as fill it. Addresses come back while locks are held, when no memory may be requested. A CPU
//! that gives back what others took gets its first magazine from the depot.
//!
//! For the tree, an address in a magazine is still in use. Nothing here therefore knows which ranges are mapped, and
//! [`MagazineAllocator`] leaves claims to the marks in the table.

use super::range_tree::may_ever_fit;
use crate::address::IovaRange;
use crate::error::{MapError, NoMemory, UnmapError};
use crate::iova::{CachedRanges, Claim, IovaAllocator, IovaRequest, TreeAllocator};
use crate::placement::Placement;
use crate::platform::memory::{push_within, try_reserve, try_slice};
use crate::platform::{Context, Deadline, Lock, LockClass, Padded, PerCpu, Phase, Platform, Step};
use crate::proof::Proof;
use crate::sync::{AtomicUsize, Ordering};
use alloc::boxed::Box;
use alloc::vec::Vec;
use arrayvec::ArrayVec;
use core::mem;

/// Addresses in a full magazine. The model checker uses small ones, so that it sees exchanges.
pub const MAGAZINE_CAPACITY: usize = if cfg!(loom) { 1 } else { 127 };
/// The most full magazines in a depot, for each size.
pub const DEPOT_MAGAZINES_MAX: usize = if cfg!(loom) { 1 } else { 32 };
/// The most empty ones. While the depot is full, the exchange that spills a magazine takes one more.
const EMPTY_MAGAZINES_MAX: usize = DEPOT_MAGAZINES_MAX + 1;
/// Sizes of [`MagazineAllocator`]: 1, 2, 4 … 32 pages. Larger ranges go to the tree.
const LINUX_SIZES: usize = 6;
/// The most addresses that are in transit from a magazine to the tree.
const EMPTIED_AT_ONCE: usize = if MAGAZINE_CAPACITY < 4 { MAGAZINE_CAPACITY } else { 4 };
/// How often a depot with more full magazines than there are CPUs gives one back, in microseconds.
const TRIM_INTERVAL_US: u64 = 100_000;

/// A stack of first pages. It never grows beyond what was reserved for it, which is nothing at first.
#[derive(Default)]
struct Magazine(Vec<u64>);

/// The magazines of a CPU for one size. `previous` is either full or empty.
#[derive(Default)]
struct Pair {
    loaded: Magazine,
    previous: Magazine,
}

/// The state that all CPUs share for one size.
struct Depot {
    full: Vec<Magazine>,
    /// One is made for as many addresses as fill it, because these addresses will fill it later.
    empty: Vec<Magazine>,
}

/// The allocator of Linux since 4.7.
pub struct MagazineAllocator<P: Platform>(Magazines<P, LINUX_SIZES>);

/// Magazines for ranges of `SIZES` sizes, each twice the one before, over a tree for all other ranges.
pub struct Magazines<P: Platform, const SIZES: usize> {
    /// log2 of the pages of the smallest size.
    smallest: usize,
    cpus: PerCpu<P::Lock<[Pair; SIZES]>>,
    depots: Box<[P::Lock<Depot>]>,
    /// For each size, the number of addresses that were requested from the tree.
    of_tree: [AtomicUsize; SIZES],
    /// The number of magazines that have memory. Relaxed, as a statistic.
    made: AtomicUsize,
    tree: TreeAllocator<P>,
    /// When the depots next give magazines back. It is none while no depot has too many. A CPU that adds a magazine
    /// looks at it while it holds the depot's lock. [`tick`](Self::tick) takes that lock after it has cleared the
    /// deadline. One of the two therefore sees the other.
    trim_due: Deadline,
}

impl Magazine {
    fn new<P: Platform>(platform: &P, context: Context) -> Result<Self, NoMemory> {
        try_reserve(platform, context, MAGAZINE_CAPACITY).map(Self)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is no room for another address.
    fn is_full(&self) -> bool {
        self.0.len() == self.0.capacity()
    }

    /// Whether it has no memory.
    fn is_bare(&self) -> bool {
        self.0.capacity() == 0
    }
}

impl Pair {
    fn swap(&mut self) {
        mem::swap(&mut self.loaded, &mut self.previous);
    }
}

impl Depot {
    /// A depot without memory for any magazine.
    const NONE: Self = Self { full: Vec::new(), empty: Vec::new() };

    /// A depot with room for all magazines that it may have.
    fn new<P: Platform>(platform: &P) -> Result<Self, NoMemory> {
        let room = |magazines| try_reserve(platform, Context::Atomic, magazines);
        Ok(Self { full: room(DEPOT_MAGAZINES_MAX)?, empty: room(EMPTY_MAGAZINES_MAX)? })
    }

    /// Whether it has no memory.
    fn is_bare(&self) -> bool {
        self.full.capacity() == 0
    }
}

impl<P: Platform, const SIZES: usize> Magazines<P, SIZES> {
    /// Makes magazines for ranges of `2^smallest` pages and up, of addresses below `2^width`, without page 0, the
    /// interrupt range and `reserved` (S9).
    ///
    /// # Errors
    /// [`NoMemory`].
    #[inline(always)]
    pub fn new(platform: &P, width: u8, reserved: &[IovaRange], smallest: usize) -> Result<Self, NoMemory> {
        // These are separate calls, so that their stack frames do not add up.
        let cpus = Self::bare_cpus(platform)?;
        Self::over(platform, cpus, width, reserved, smallest)
    }

    #[inline(never)]
    fn bare_cpus(platform: &P) -> Result<PerCpu<P::Lock<[Pair; SIZES]>>, NoMemory> {
        let bare = || core::array::from_fn(|_| Pair::default());
        PerCpu::new(platform, || Ok(platform.lock(LockClass::Magazine, bare())))
    }

    #[inline(never)]
    fn over(
        platform: &P,
        cpus: PerCpu<P::Lock<[Pair; SIZES]>>,
        width: u8,
        reserved: &[IovaRange],
        smallest: usize,
    ) -> Result<Self, NoMemory> {
        Ok(Self {
            smallest,
            cpus,
            depots: try_slice(platform, Context::MaySleep, SIZES, || Ok(platform.lock(LockClass::Depot, Depot::NONE)))?,
            of_tree: core::array::from_fn(|_| AtomicUsize::new(0)),
            made: AtomicUsize::new(0),
            tree: TreeAllocator::new(platform, width, reserved)?,
            trim_due: Deadline::none(),
        })
    }

    /// The index of the magazines for ranges of `pages` pages.
    fn index_of(&self, pages: u64) -> Option<usize> {
        crate::iova::order(pages, self.smallest + SIZES)?.checked_sub(self.smallest)
    }

    /// Hands out a range of `pages` pages that is in no other use.
    ///
    /// # Errors
    /// [`MapError::Exhausted`], [`MapError::NoMemory`].
    pub fn allocate(&self, platform: &P, pages: u64) -> Result<IovaRange, MapError> {
        // A magazine serves all requests that round up to its size, so each of its ranges has that full size.
        let (kept, size) = match self.index_of(pages) {
            Some(index) => {
                let kept = self.take(platform, index);
                if let Err(is_bare) = kept {
                    self.count_of_tree(platform, index, is_bare);
                }
                (kept.ok(), 1 << (self.smallest + index))
            }
            None => (None, pages),
        };
        let first_pfn = match kept {
            Some(first_pfn) => Ok(first_pfn),
            None => match self.tree.allocate_range(platform, size) {
                Err(MapError::Exhausted { limit_bits, .. }) if may_ever_fit(size, limit_bits) => {
                    self.empty_all(platform);
                    self.tree.allocate_range(platform, size)
                }
                result => result,
            }
            .map(IovaRange::first_pfn),
        };
        let first_pfn = first_pfn.map_err(|error| match error {
            MapError::Exhausted { limit_bits, .. } => MapError::Exhausted { pages, limit_bits },
            other => other,
        })?;
        Ok(IovaRange::new(first_pfn, pages).expect("below the width, so it does not wrap"))
    }

    /// Counts an address that is requested from the tree. Makes an empty magazine for each as many of them as fill one,
    /// and a pair for this CPU if it `is_bare`. If the host has no memory for these, as many addresses later go back to
    /// the tree instead.
    #[cold]
    fn count_of_tree(&self, platform: &P, index: usize, is_bare: bool) {
        // Relaxed: only the total matters.
        let before = self.of_tree[index].fetch_add(1, Ordering::Relaxed);
        if before.is_multiple_of(MAGAZINE_CAPACITY) {
            let _ = self.equip_depot(platform, index);
        }
        if is_bare {
            let _ = self.equip_cpu(platform, index);
        }
    }

    #[inline(never)]
    fn equip_depot(&self, platform: &P, index: usize) -> Result<(), NoMemory> {
        let depot = &self.depots[index];
        if depot.with(|depot| depot.is_bare()) {
            let mut made = Depot::new(platform)?;
            depot.with(|depot| {
                if depot.is_bare() {
                    mem::swap(depot, &mut made)
                }
            });
        }
        let magazine = self.magazine(platform)?;
        depot.with(|depot| self.keep_empty(depot, magazine));
        Ok(())
    }

    #[inline(never)]
    fn equip_cpu(&self, platform: &P, index: usize) -> Result<(), NoMemory> {
        for _ in 0..2 {
            let mut magazine = self.magazine(platform)?;
            self.cpus.here(platform).with(|pairs| {
                let Pair { loaded, previous } = &mut pairs[index];
                let bare = [loaded, previous].into_iter().find(|magazine| magazine.is_bare());
                bare.into_iter().for_each(|bare| mem::swap(bare, &mut magazine));
            });
            self.forget(magazine);
        }
        Ok(())
    }

    fn magazine(&self, platform: &P) -> Result<Magazine, NoMemory> {
        let magazine = Magazine::new(platform, Context::Atomic)?;
        self.made.fetch_add(1, Ordering::Relaxed);
        Ok(magazine)
    }

    /// Frees a magazine, if it has memory.
    fn forget(&self, magazine: Magazine) {
        self.made.fetch_sub(usize::from(!magazine.is_bare()), Ordering::Relaxed);
    }

    /// Keeps an empty magazine for the next exchange, or frees it when there are enough.
    fn keep_empty(&self, depot: &mut Depot, magazine: Magazine) {
        debug_assert!(magazine.is_empty());
        if magazine.is_bare() || depot.empty.len() == depot.empty.capacity() {
            self.forget(magazine);
        } else {
            push_within(&mut depot.empty, magazine);
        }
    }

    /// The memory of the magazines and of their lists, in bytes.
    pub fn bytes(&self) -> usize {
        let of_cpus = self.cpus.len() * size_of::<Padded<P::Lock<[Pair; SIZES]>>>();
        let list = |depot: &P::Lock<Depot>| depot.with(|depot| depot.full.capacity() + depot.empty.capacity());
        let lists = self.depots.iter().map(list).sum::<usize>() * size_of::<Magazine>();
        let magazines = self.made.load(Ordering::Relaxed) * MAGAZINE_CAPACITY * size_of::<u64>();
        of_cpus + size_of_val(&*self.depots) + lists + magazines
    }

    /// Takes back a range that was handed out.
    pub fn free(&self, platform: &P, range: IovaRange) {
        match self.index_of(range.pages()) {
            Some(index) => self.put(platform, index, range.first_pfn()),
            None => self.tree.free_ranges(platform, core::iter::once(range.first_pfn())),
        }
    }

    /// Takes pages out of the tree, including those that are kept in magazines.
    ///
    /// # Errors
    /// [`MapError::Exhausted`], [`MapError::NoMemory`].
    #[inline(never)]
    pub fn set_aside(&self, platform: &P, pages: u64, placement: &Placement) -> Result<IovaRange, MapError> {
        match self.tree.set_aside_range(platform, pages, placement) {
            Err(MapError::Exhausted { .. } | MapError::Overlap(_)) => {
                self.empty_all(platform);
                self.tree.set_aside_range(platform, pages, placement)
            }
            result => result,
        }
    }

    /// The tree, which has the ranges that the magazines do not have.
    pub const fn tree(&self) -> &TreeAllocator<P> {
        &self.tree
    }

    /// Ranges handed out and not yet back. Exact while no CPU allocates or frees.
    pub fn live(&self) -> usize {
        self.tree.live().saturating_sub(self.kept().ranges)
    }

    /// Ranges in magazines.
    pub fn kept(&self) -> CachedRanges {
        let in_pair = |pair: &Pair| pair.loaded.0.len() + pair.previous.0.len();
        let in_cpus: usize =
            self.cpus.iter().map(|cpu| cpu.with(|pairs| pairs.iter().map(in_pair).sum::<usize>())).sum();
        let in_depots: usize = self.depots.iter().map(|depot| depot.with(|depot| depot.full.len())).sum();
        CachedRanges {
            ranges: in_cpus + in_depots * MAGAZINE_CAPACITY,
            ranges_max: Some(SIZES * (2 * self.cpus.len() + DEPOT_MAGAZINES_MAX) * MAGAZINE_CAPACITY),
        }
    }

    /// Takes one magazine out of each depot that has too many, if that is due.
    pub fn tick(&self, platform: &P) {
        if !self.trim_due.take_if_due(platform) {
            return;
        }
        platform.probe(Step::Enter(Phase::IovaFree));
        for depot in &*self.depots {
            let surplus = depot.with(|depot| {
                let surplus = if depot.full.len() > self.cpus.len() { depot.full.pop() } else { None };
                self.trim_later(platform, depot);
                surplus
            });
            if let Some(mut magazine) = surplus {
                self.tree.free_ranges(platform, magazine.0.drain(..));
                self.forget(magazine);
            }
        }
    }

    /// When the next [`tick`](Self::tick) has work to do.
    pub fn due_us(&self) -> Option<u64> {
        self.trim_due.get()
    }

    /// Takes an address that this CPU or the depot keeps. If there is none, tells whether this CPU has no memory for
    /// some of its magazines.
    fn take(&self, platform: &P, index: usize) -> Result<u64, bool> {
        self.cpus.here(platform).with(|pairs| {
            let pair = &mut pairs[index];
            if pair.loaded.is_empty() {
                pair.swap();
            }
            if pair.loaded.is_empty() {
                self.depots[index].with(|depot| {
                    if let Some(full) = depot.full.pop() {
                        platform.probe(Step::DepotExchange);
                        self.keep_empty(depot, mem::replace(&mut pair.loaded, full));
                    }
                });
            }
            let Some(first_pfn) = pair.loaded.0.pop() else {
                return Err(pair.loaded.is_bare() || pair.previous.is_bare());
            };
            platform.probe(Step::ListPop);
            Ok(first_pfn)
        })
    }

    /// Keeps an address. Addresses for which there is no room go back to the tree.
    fn put(&self, platform: &P, index: usize, first_pfn: u64) {
        let spilled = self.cpus.here(platform).with(|pairs| {
            let pair = &mut pairs[index];
            let mut spilled = None;
            if pair.loaded.is_full() {
                pair.swap();
            }
            if pair.loaded.is_full() {
                spilled = self.depots[index].with(|depot| self.exchange_full(platform, depot, pair))?;
            }
            platform.probe(Step::ListPush);
            push_within(&mut pair.loaded.0, first_pfn);
            Ok(spilled)
        });
        match spilled {
            Ok(None) => {}
            Err(NoMemory) => self.tree.free_ranges(platform, core::iter::once(first_pfn)),
            Ok(Some(magazine)) => self.spill(platform, index, magazine),
        }
    }

    /// Gives the addresses of a magazine back to the tree.
    #[cold]
    #[inline(never)]
    fn spill(&self, platform: &P, index: usize, mut magazine: Magazine) {
        self.tree.free_ranges(platform, magazine.0.drain(..));
        self.depots[index].with(|depot| self.keep_empty(depot, magazine));
    }

    /// Loads an empty magazine in exchange for the full one, or for one without memory. Returns the full one if the
    /// depot has no room for it.
    ///
    /// # Errors
    /// [`NoMemory`] if there is no empty magazine: other CPUs have them, or the host had no memory when it should have
    /// been [made](Self::count_of_tree).
    #[inline(never)]
    fn exchange_full(&self, platform: &P, depot: &mut Depot, pair: &mut Pair) -> Result<Option<Magazine>, NoMemory> {
        let empty = depot.empty.pop().ok_or(NoMemory)?;
        let full = mem::replace(&mut pair.loaded, empty);
        if full.is_bare() {
            return Ok(None);
        }
        platform.probe(Step::DepotExchange);
        if depot.full.len() == DEPOT_MAGAZINES_MAX {
            return Ok(Some(full));
        }
        push_within(&mut depot.full, full);
        self.trim_later(platform, depot);
        Ok(None)
    }

    /// Gives all kept addresses back to the tree: the wanted range may be among them, or between them (S13). It gives
    /// back a part of a magazine at a time, so that interrupts are not masked for long, and the addresses in transit
    /// take little stack.
    #[cold]
    #[inline(never)]
    fn empty_all(&self, platform: &P) {
        for cpu in self.cpus.iter() {
            for index in 0..SIZES {
                for is_loaded in [true, false] {
                    // The number of rounds is bounded, because other CPUs may keep filling the magazine.
                    (0..MAGAZINE_CAPACITY.div_ceil(EMPTIED_AT_ONCE))
                        .all(|_| self.empty_some(platform, cpu, index, is_loaded));
                }
            }
        }
        for depot in &*self.depots {
            // The number of rounds is bounded here for the same reason.
            (0..DEPOT_MAGAZINES_MAX).all(|_| self.empty_one(platform, depot));
        }
    }

    /// Empties a part of a CPU's magazine. Returns whether it held any address.
    #[inline(never)]
    fn empty_some(&self, platform: &P, cpu: &P::Lock<[Pair; SIZES]>, index: usize, is_loaded: bool) -> bool {
        let mut addresses = ArrayVec::<u64, EMPTIED_AT_ONCE>::new_const();
        cpu.with(|pairs| {
            let pair = &mut pairs[index];
            let Magazine(magazine) = if is_loaded { &mut pair.loaded } else { &mut pair.previous };
            while !addresses.is_full()
                && let Some(first_pfn) = magazine.pop()
            {
                addresses.push(first_pfn);
            }
        });
        if !addresses.is_empty() {
            self.tree.free_ranges(platform, addresses.iter().copied());
        }
        !addresses.is_empty()
    }

    /// Empties a magazine of a depot. Returns whether there was one.
    #[inline(never)]
    fn empty_one(&self, platform: &P, depot: &P::Lock<Depot>) -> bool {
        let Some(mut magazine) = depot.with(|depot| depot.full.pop()) else { return false };
        self.tree.free_ranges(platform, magazine.0.iter().copied());
        magazine.0.clear();
        depot.with(|depot| self.keep_empty(depot, magazine));
        true
    }

    /// Schedules a tick if a depot has more magazines than there are CPUs, so that it gives them back one by one. The
    /// caller holds its lock.
    fn trim_later(&self, platform: &P, depot: &Depot) {
        if depot.full.len() > self.cpus.len() {
            self.trim_due.set_if_none(platform, TRIM_INTERVAL_US);
        }
    }
}

impl<P: Platform> MagazineAllocator<P> {
    /// Makes an allocator of addresses below `2^width`, without page 0, the interrupt range and `reserved` (S9).
    ///
    /// # Errors
    /// [`NoMemory`].
    #[inline(always)]
    pub fn new(platform: &P, width: u8, reserved: &[IovaRange]) -> Result<Self, NoMemory> {
        Ok(Self(Magazines::new(platform, width, reserved, 0)?))
    }

    /// Has a new allocator prefer addresses below `2^width`, until a request finds no room there.
    pub(crate) fn prefer(&self, width: u8) {
        self.0.tree.prefer(width);
    }

    /// Takes `range` away from the allocator, unless some of it is in use. Returns whether it has done so.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(crate) fn hold(&self, platform: &P, range: IovaRange) -> Result<bool, NoMemory> {
        match self.0.tree.set_aside_range(platform, range.pages(), &Placement::exactly(range)) {
            Ok(_) => Ok(true),
            Err(MapError::NoMemory(NoMemory)) => Err(NoMemory),
            Err(_) => Ok(false),
        }
    }

    /// Gives back a range that was [held](Self::hold). No device can reach anything in it.
    pub(crate) fn let_go(&self, platform: &P, range: IovaRange) {
        self.0.tree.put_back_range(platform, range);
    }
}

// SAFETY: an address is in one place: in use, in one magazine, or free in the tree. Each move between these happens
// under a lock, and the tree's ranges do not overlap. Claims of ranges that magazines may hold are left to the table,
// and claims of larger ones to the tree.
unsafe impl<P: Platform> IovaAllocator<P> for MagazineAllocator<P> {
    const TABLE_CLAIM_PAGES_MAX: u64 = 1 << (LINUX_SIZES - 1);

    fn allocate(&self, platform: &P, &IovaRequest { pages, .. }: &IovaRequest) -> Result<IovaRange, MapError> {
        platform.probe(Step::Enter(Phase::IovaAllocate));
        self.0.allocate(platform, pages)
    }

    fn claim(&self, platform: &P, range: IovaRange) -> Result<Claim, UnmapError> {
        platform.probe(Step::Enter(Phase::IovaFind));
        if self.0.index_of(range.pages()).is_some() {
            return Ok(Claim::ByTable);
        }
        match self.0.tree.claim(platform, range) {
            // The tree has a range of a magazine's size there. Only the table knows what is mapped in it.
            Err(UnmapError::Partial { mapped, .. }) if self.0.index_of(mapped.pages()).is_some() => Ok(Claim::ByTable),
            result => result,
        }
    }

    fn free(&self, platform: &P, range: IovaRange, _proof: &Proof) {
        self.0.free(platform, range);
    }

    fn live_around(&self, platform: &P, pfn: u64) -> Option<IovaRange> {
        self.0.tree.larger_around(platform, pfn, Self::TABLE_CLAIM_PAGES_MAX)
    }

    fn set_aside(&self, platform: &P, pages: u64, placement: &Placement) -> Result<IovaRange, MapError> {
        self.0.set_aside(platform, pages, placement)
    }

    fn put_back(&self, platform: &P, range: IovaRange, _proof: &Proof) {
        self.0.tree.put_back_range(platform, range);
    }

    fn live(&self) -> usize {
        self.0.live()
    }

    fn kept(&self) -> CachedRanges {
        self.0.kept()
    }

    fn record_bytes(&self) -> usize {
        self.0.bytes()
    }

    fn tick(&self, platform: &P) {
        self.0.tick(platform);
    }

    fn due_us(&self) -> Option<u64> {
        self.0.due_us()
    }
}
