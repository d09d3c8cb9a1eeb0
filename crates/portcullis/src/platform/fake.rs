//! A host for tests. It counts what it allocates, fails on request, and shows walkers that do not snoop only what was
//! flushed for them.

pub mod hooks;

use super::{Context, CopyMemory, CpuHint, Lock, LockClass, Platform, Wait, WordLines};
use super::{INVALIDATION_TIMEOUT_US, NoMemory};
use crate::address::{PAGE_SIZE, PhysAddr};
use crate::entry::{ENTRIES, Entry, EntryValue, Frame};
use core::fmt;
use std::boxed::Box;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::vec;
use std::vec::Vec;

/// A mutex that the model checker knows. The other mutexes guard state on which no interleaving depends.
#[cfg(loom)]
pub(crate) use loom::sync::Mutex as CriticalMutex;
#[cfg(not(loom))]
pub(crate) use std::sync::Mutex as CriticalMutex;

/// A lock of [`FakeHost`]. It panics if locks are not taken in the order of [`LockClass`].
#[derive(Debug)]
pub struct FakeLock<T>(LockClass, CriticalMutex<T>);

impl<T: Send> Lock<T> for FakeLock<T> {
    fn with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R {
        let _held = Held::new(self.0);
        critical(&mut self.1.lock().expect("no panic while it was held"))
    }

    fn try_with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> Option<R> {
        let taken = self.1.try_lock();
        if matches!(taken, Err(TryLockError::WouldBlock)) {
            return None;
        }
        let _held = Held::new(self.0);
        Some(critical(&mut taken.expect("no panic while it was held")))
    }
}

/// A lock that this thread holds. Dropping it records the release, also after a panic.
struct Held(Option<LockClass>);

impl Held {
    fn new(class: LockClass) -> Self {
        let before = HELD.with(|held| held.replace(Some(class)));
        assert!(before < Some(class), "a lock of class {class:?} was taken inside one of class {before:?}");
        Self(before)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.with(|held| held.set(self.0));
    }
}

/// A page with the alignment that the processor requires.
#[derive(Debug)]
// Not aligned under the model checker: its stacks are too small to build an aligned page.
#[cfg_attr(not(loom), repr(align(4096)))]
struct AlignedFrame(Frame);

/// One of the pages that were allocated together.
#[derive(Clone, Debug)]
struct LentFrame {
    all: Arc<[AlignedFrame]>,
    at: usize,
}

impl core::ops::Deref for LentFrame {
    type Target = Frame;

    fn deref(&self) -> &Frame {
        &self.all[self.at].0
    }
}

/// Allocated pages by address. They are on the heap so that they do not move, and shared so that none is freed during
/// a walk.
#[derive(Debug, Default)]
struct Frames {
    lent: BTreeMap<u64, LentFrame>,
    /// The address of each lent page, by its place on the heap.
    places: BTreeMap<usize, u64>,
    /// What a non-snooping walker sees of each page of which something was flushed.
    flushed: BTreeMap<u64, Box<[u64; ENTRIES]>>,
    next: u64,
    budget: Option<usize>,
    /// Pieces of memory from `allocate_bytes`, with their sizes, by address.
    bytes: BTreeMap<u64, u64>,
    watchers: Watchers,
    /// A table page that was freed too early (S4).
    freed_while_walked: Option<PhysAddr>,
}

/// Callbacks that know whether hardware may still walk a table page.
#[derive(Default)]
struct Watchers(Vec<Arc<dyn Fn(PhysAddr) -> bool + Send + Sync>>);

impl fmt::Debug for Watchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} watchers", self.0.len())
    }
}

std::thread_local! {
    /// Mappings dropped on this thread without an unmap.
    static LEAKED: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
    /// Buffers lost on this thread.
    static LOST: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}

/// The number of CPUs of a fake host.
pub const CPUS: u32 = if cfg!(loom) { 2 } else { 4 };

#[cfg(not(loom))]
std::thread_local! {
    /// The CPU that this thread runs on.
    static CPU: core::cell::Cell<u32> = const { core::cell::Cell::new(0) };
    /// The class of the lock that this thread took last and still holds.
    static HELD: core::cell::Cell<Option<LockClass>> = const { core::cell::Cell::new(None) };
    /// The nesting depth of walks on this thread.
    static WALKING: core::cell::Cell<usize> = const { core::cell::Cell::new(0) };
}
#[cfg(loom)]
loom::thread_local! {
    /// The CPU that this thread runs on.
    static CPU: core::cell::Cell<u32> = core::cell::Cell::new(0);
    /// The class of the lock that this thread took last and still holds.
    static HELD: core::cell::Cell<Option<LockClass>> = core::cell::Cell::new(None);
    /// The nesting depth of walks on this thread.
    static WALKING: core::cell::Cell<usize> = core::cell::Cell::new(0);
}

/// Moves this thread to `cpu`, modulo [`CPUS`]. Threads start on CPU 0.
pub fn run_on(cpu: u32) {
    CPU.with(|here| here.set(cpu % CPUS));
}

/// Runs `handler` as an interrupt would. The handler may wait even if the interrupted code is inside a walk.
pub fn interrupt(handler: impl FnOnce()) {
    /// Restores the interrupted state, also after a panic.
    struct Interrupted(usize);
    impl Drop for Interrupted {
        fn drop(&mut self) {
            WALKING.with(|walking| walking.set(self.0));
        }
    }
    let _interrupted = Interrupted(WALKING.with(|walking| walking.replace(0)));
    handler();
}

/// The number of buffers that [`lost_buffers`](crate::domain::lost_buffers) has counted on this thread. Tests that run
/// at the same time do not see each other's.
pub fn lost_here() -> usize {
    LOST.get()
}

pub(crate) fn buffers_lost(buffers: usize) {
    LOST.set(LOST.get() + buffers);
}

pub(crate) fn mapping_leaked() {
    if std::thread::panicking() {
        // During a panic the drop is not a mistake of the driver.
        return;
    }
    LEAKED.set(LEAKED.get() + 1);
}

/// A fake host. Share it by reference: `&FakeHost` is a platform too.
///
/// Dropping it panics if, on this thread, a mapping was dropped without an unmap during its lifetime, or if a table
/// page was freed while a [fake IOMMU](crate::iommu::fake::FakeIommu) could still walk it. It panics if memory is
/// requested with a lock held. It also panics if the library waits for hardware inside a software walk, or with a lock
/// held other than that of a [central queue](LockClass::CentralFlushQueue).
///
/// Its clock stands still except when [`advance_us`](FakeHost::advance_us) is called, or when a caller spins (one
/// microsecond per iteration).
#[derive(Debug)]
pub struct FakeHost {
    frames: Mutex<Frames>,
    /// Physical addresses are addresses of this process.
    of_process: bool,
    now_us: AtomicU64,
    wait_us_max: AtomicU64,
    walks: CriticalMutex<Walks>,
    leaked_before: usize,
}

/// The running walks.
#[derive(Debug, Default)]
struct Walks {
    era: u64,
    /// The era in which each running walk began.
    begun: Vec<u64>,
    /// The host pretends that it cannot tell when walks have ended.
    are_untold: bool,
}

/// What a non-snooping walker finds where nothing was flushed: data that a previous owner of the page may have left.
/// At any level but the last it reads as a large leaf, to memory outside the range that tests use.
const UNFLUSHED: u64 = 1 << 47 | 1 << 7 | 3;

/// Where fake table pages start, outside the range of addresses that tests use for buffers.
const FRAMES_BASE: u64 = 1 << 40;

impl Default for FakeHost {
    fn default() -> Self {
        let frames = Frames { next: FRAMES_BASE, ..Frames::default() };
        Self {
            frames: Mutex::new(frames),
            of_process: false,
            now_us: AtomicU64::new(0),
            wait_us_max: AtomicU64::new(INVALIDATION_TIMEOUT_US),
            walks: CriticalMutex::default(),
            leaked_before: LEAKED.get(),
        }
    }
}

impl FakeHost {
    /// A host whose physical addresses are addresses of this process: pages lie at the addresses they report, and
    /// memory is really [copied](CopyMemory). Mapped memory must therefore exist.
    pub fn of_process() -> Self {
        let mut host = Self::default();
        host.of_process = true;
        host
    }

    /// From now on the host cannot tell when walks have ended.
    pub fn tell_no_walks(&self) {
        self.walks.lock().expect("not poisoned").are_untold = true;
    }

    /// From now on the library waits at most this long for an invalidation.
    pub fn limit_waits(&self, us: u64) {
        self.wait_us_max.store(us, Ordering::Relaxed);
    }

    /// From now on the host allocates at most `pages` more table pages.
    pub fn limit_frames(&self, pages: usize) {
        self.frames.lock().expect("not poisoned").budget = Some(pages);
    }

    /// Allocates contiguous pages, all or none.
    fn lend(&self, count: usize) -> Result<PhysAddr, NoMemory> {
        let mut frames = self.frames.lock().expect("not poisoned");
        if let Some(budget) = &mut frames.budget {
            *budget = budget.checked_sub(count).ok_or(NoMemory)?;
        }
        let all: Arc<[AlignedFrame]> =
            (0..count).map(|_| AlignedFrame(core::array::from_fn(|_| Entry::new(0)))).collect();
        let first = if self.of_process { all.as_ptr().expose_provenance() as u64 } else { frames.next };
        frames.next += count as u64 * PAGE_SIZE;
        for at in 0..count {
            let phys = first + at as u64 * PAGE_SIZE;
            let frame = LentFrame { all: all.clone(), at };
            frames.places.insert(frame.as_ptr().addr(), phys);
            frames.lent.insert(phys, frame);
        }
        Ok(PhysAddr::new(first))
    }

    /// The number of table pages that are allocated.
    pub fn frames_lent(&self) -> usize {
        self.frames.lock().expect("not poisoned").lent.len()
    }

    /// The number of pieces of memory from [`allocate_bytes`](Platform::allocate_bytes) that have not been freed.
    pub fn bytes_lent(&self) -> usize {
        self.frames.lock().expect("not poisoned").bytes.len()
    }

    /// Registers `watcher`, which is asked about each freed table page: whether hardware may still walk it.
    ///
    /// Not available under the model checker, where every access of the watcher would be one more point to switch
    /// threads.
    #[cfg(not(loom))]
    pub(crate) fn watch_frees(&self, watcher: Arc<dyn Fn(PhysAddr) -> bool + Send + Sync>) {
        self.frames.lock().expect("not poisoned").watchers.0.push(watcher);
    }

    /// Returns a table page that was freed while hardware could still walk it (S4), if there was one. If a test does
    /// not take it, dropping the host panics.
    pub fn take_freed_while_walked(&self) -> Option<PhysAddr> {
        self.frames.lock().expect("not poisoned").freed_while_walked.take()
    }

    /// The first entry of an allocated table page that means something else to a non-snooping walker than to a
    /// snooping one: the page, and the index of the entry. There is none while no map or unmap is running, if all
    /// walkers are non-snooping.
    pub fn unflushed(&self) -> Option<(PhysAddr, usize)> {
        let frames = self.frames.lock().expect("not poisoned");
        // Hardware ignores the upper bits of an entry, and every bit of an entry that grants no rights.
        let seen = |bits: u64| {
            let value = EntryValue::from_bits(bits);
            value.is_present().then(|| (value.phys(), value.rights(), value.is_large()))
        };
        frames.flushed.iter().find_map(|(phys, flushed)| {
            let frame: &Frame = &frames.lent[phys];
            let differs = |(entry, flushed): (&Entry, &u64)| {
                let now = entry.load_bits();
                now != *flushed && seen(now) != seen(*flushed)
            };
            frame.iter().zip(flushed.iter()).position(differs).map(|index| (PhysAddr::new(*phys), index))
        })
    }

    /// Advances the clock.
    pub fn advance_us(&self, us: u64) {
        self.now_us.fetch_add(us, Ordering::Relaxed);
    }

    /// The contents of the table page at `phys` as hardware sees them now; `snoops` says whether that hardware snoops.
    /// `None` if no page is allocated there.
    pub fn hardware_page(&self, phys: PhysAddr, snoops: bool) -> Option<Vec<u64>> {
        let frames = self.frames.lock().expect("not poisoned");
        if !snoops && frames.lent.contains_key(&phys.as_u64()) {
            return Some(
                frames.flushed.get(&phys.as_u64()).map_or_else(|| vec![UNFLUSHED; ENTRIES], |page| page.to_vec()),
            );
        }
        let frame = frames.lent.get(&phys.as_u64()).cloned();
        // For the reason given in `hardware_read`.
        drop(frames);
        frame.map(|frame| frame.iter().map(Entry::load_bits).collect())
    }

    /// The word at `phys` as hardware sees it now; `snoops` says whether that hardware snoops. `None` if no table page
    /// is allocated there (a walk into a freed page).
    pub fn hardware_read(&self, phys: PhysAddr, snoops: bool) -> Option<u64> {
        let page = phys.as_u64() & !(PAGE_SIZE - 1);
        let index = (phys.page_offset() / 8) as usize;
        let frames = self.frames.lock().expect("not poisoned");
        if !snoops && frames.lent.contains_key(&page) {
            return Some(frames.flushed.get(&page).map_or(UNFLUSHED, |page| page[index]));
        }
        let frame = frames.lent.get(&page)?;
        // Under loom every use of an entry may switch threads, so no other lock may be held at this point.
        #[cfg(loom)]
        let frame = {
            let frame = frame.clone();
            drop(frames);
            frame
        };
        Some(frame[index].load_bits())
    }
}

// SAFETY: pages lie on the heap and are kept in `lent` until they are freed, so they do not move and have no other
// user; they are zeroed when they are made.
unsafe impl Platform for FakeHost {
    type Lock<T: Send> = FakeLock<T>;
    type CpuWords = WordLines;

    fn lock<T: Send>(&self, class: LockClass, value: T) -> FakeLock<T> {
        FakeLock(class, CriticalMutex::new(value))
    }

    fn cpu(&self) -> CpuHint {
        CpuHint(CPU.with(core::cell::Cell::get))
    }

    fn cpus(&self) -> u32 {
        CPUS
    }

    fn allocate_frame(&self, context: Context) -> Result<PhysAddr, NoMemory> {
        self.allocate(context, || self.lend(1))
    }

    fn allocate_frames(&self, context: Context, count: usize) -> Result<PhysAddr, NoMemory> {
        self.allocate(context, || self.lend(count))
    }

    /// Panics if a lock is held, or if the library allows sleeping inside a walk.
    fn allocate<R>(&self, context: Context, allocate: impl FnOnce() -> R) -> R {
        assert_eq!(HELD.with(core::cell::Cell::get), None, "memory is requested with a lock held");
        assert!(context == Context::Atomic || WALKING.with(core::cell::Cell::get) == 0, "a walk must not sleep");
        allocate()
    }

    unsafe fn frame(&self, frame: PhysAddr) -> &Frame {
        let frames = self.frames.lock().expect("not poisoned");
        let page: *const Frame = &**frames.lent.get(&frame.as_u64()).expect("a table page that is not lent was used");
        // SAFETY: the page stays until `free_frame`, which the caller promises not to call meanwhile.
        unsafe { &*page }
    }

    unsafe fn free_frame(&self, frame: PhysAddr) {
        // Called without the lock: a watcher takes locks of its own, and holders of those may ask for frames.
        let watchers = self.frames.lock().expect("not poisoned").watchers.0.clone();
        let is_walked = watchers.iter().any(|watcher| watcher(frame));
        let mut frames = self.frames.lock().expect("not poisoned");
        if is_walked {
            frames.freed_while_walked.get_or_insert(frame);
        }
        frames.flushed.remove(&frame.as_u64());
        let freed = frames.lent.remove(&frame.as_u64());
        let freed = freed.unwrap_or_else(|| panic!("table page {frame} was freed twice"));
        frames.places.remove(&freed.as_ptr().addr());
    }

    /// Returns the lowest free place. As in `kmalloc`, no piece is smaller than 8 bytes.
    fn allocate_bytes(&self, bytes: u64, below: PhysAddr) -> Result<PhysAddr, NoMemory> {
        let mut frames = self.frames.lock().expect("not poisoned");
        let size = bytes.checked_next_power_of_two().ok_or(NoMemory)?.max(8);
        let mut at = 0;
        for (&taken, &taken_size) in &frames.bytes {
            if at + size <= taken {
                break;
            }
            at = (taken + taken_size).next_multiple_of(size);
        }
        if at + size > below.as_u64() {
            return Err(NoMemory);
        }
        frames.bytes.insert(at, size);
        Ok(PhysAddr::new(at))
    }

    unsafe fn free_bytes(&self, at: PhysAddr, bytes: u64) {
        let freed = self.frames.lock().expect("not poisoned").bytes.remove(&at.as_u64());
        assert_eq!(freed, Some(bytes.next_power_of_two().max(8)), "bytes that are not lent were freed");
    }

    fn copies(&self) -> Option<&dyn CopyMemory> {
        if self.of_process { Some(self) } else { None }
    }

    fn table_barrier(&self, entries: &[Entry], coherent: bool) {
        let mut frames = self.frames.lock().expect("not poisoned");
        let Frames { lent, places, flushed, .. } = &mut *frames;
        let start = entries.as_ptr();
        let home = places.range(..=start.addr()).next_back().map(|(_, phys)| (*phys, &lent[phys]));
        let home = home.filter(|(_, frame)| frame.as_ptr_range().contains(&start));
        let (phys, frame) = home.expect("a barrier names entries of a lent page");
        if coherent {
            return;
        }
        let seen = flushed.entry(phys).or_insert_with(|| Box::new([UNFLUSHED; ENTRIES]));
        // Whole cache lines are flushed, as by `clflush`: eight entries each.
        let first = (start as usize - frame.as_ptr() as usize) / core::mem::size_of::<Entry>();
        for index in first & !7..(first + entries.len()).next_multiple_of(8) {
            seen[index] = frame[index].load_bits();
        }
    }

    fn cpu_words(&self, value: u64) -> Result<WordLines, NoMemory> {
        WordLines::new(self, value)
    }

    fn walk<R>(&self, walk: impl FnOnce() -> R) -> R {
        let era = {
            let mut walks = self.walks.lock().expect("not poisoned");
            let era = walks.era;
            walks.begun.push(era);
            era
        };
        /// Ends the walk, also after a panic.
        struct Walk<'w>(&'w CriticalMutex<Walks>, u64);
        impl Drop for Walk<'_> {
            fn drop(&mut self) {
                let mut walks = self.0.lock().expect("not poisoned");
                // Any walk of that era can stand for this one.
                let at = walks.begun.iter().position(|begun| *begun == self.1).expect("this one has begun");
                walks.begun.swap_remove(at);
                WALKING.with(|walking| walking.set(walking.get() - 1));
            }
        }
        WALKING.with(|walking| walking.set(walking.get() + 1));
        let _walk = Walk(&self.walks, era);
        walk()
    }

    fn walks_now(&self) -> Option<u64> {
        let mut walks = self.walks.lock().expect("not poisoned");
        walks.era += 1;
        (!walks.are_untold).then_some(walks.era - 1)
    }

    fn walks_are_over(&self, then: u64) -> bool {
        let walks = self.walks.lock().expect("not poisoned");
        walks.begun.iter().all(|era| *era > then)
    }

    fn now_us(&self) -> u64 {
        self.now_us.load(Ordering::Relaxed)
    }

    fn wait_us_max(&self) -> u64 {
        self.wait_us_max.load(Ordering::Relaxed)
    }

    /// Panics inside a walk, and with a lock held, because a lock would mask interrupts.
    fn pause(&self, wait: Wait) {
        assert_eq!(WALKING.with(core::cell::Cell::get), 0, "{wait:?} is waited for within a walk");
        let held = HELD.with(core::cell::Cell::get).filter(|held| *held != LockClass::CentralFlushQueue);
        assert_eq!(held, None, "{wait:?} is waited for with a lock held");
        self.advance_us(1);
        #[cfg(loom)]
        loom::thread::yield_now();
    }
}

// SAFETY: physical addresses are pointers on every host whose `copies` returns this; devices are part of the program.
unsafe impl CopyMemory for FakeHost {
    unsafe fn copy(&self, from: PhysAddr, to: PhysAddr, len: u64) {
        let (from, to) = (pointer(from).cast_const(), pointer(to));
        // SAFETY: the caller's promise: there is memory, and the two do not overlap.
        unsafe { from.copy_to_nonoverlapping(to, len as usize) };
    }

    unsafe fn clear(&self, at: PhysAddr, len: u64) {
        // SAFETY: the caller's promise.
        unsafe { pointer(at).write_bytes(0, len as usize) };
    }
}

/// The byte at an address of a host [of this process](FakeHost::of_process).
fn pointer(at: PhysAddr) -> *mut u8 {
    core::ptr::with_exposed_provenance_mut(at.as_u64() as usize)
}

impl Drop for FakeHost {
    fn drop(&mut self) {
        let leaked = LEAKED.get() - self.leaked_before;
        if std::thread::panicking() {
            return;
        }
        if leaked > 0 {
            panic!("{leaked} mappings were dropped without an unmap");
        }
        if let Some(frame) = self.take_freed_while_walked() {
            panic!("table page {frame} was freed while the hardware could still walk it (S4)");
        }
    }
}
