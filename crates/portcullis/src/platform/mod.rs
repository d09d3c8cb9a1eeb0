//! What a host must supply: locks, table pages, time and a hint of the CPU.

#[cfg(any(feature = "fake", test))]
pub mod fake;

mod cpu_words;
mod deadline;
pub(crate) mod memory;
mod per_cpu;

pub use cpu_words::{CPU_WORDS, CpuWords, WordLines};
pub(crate) use deadline::Deadline;
pub use per_cpu::Padded;
pub(crate) use per_cpu::{PerCpu, PerCpuCount};

use crate::address::PhysAddr;
use crate::entry::{Entry, Frame};
use crate::sync::Ordering;
use thiserror::Error;

/// The host has no memory for a table page or a bookkeeping node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the host has no memory left for protection tables")]
pub struct NoMemory;

/// The host cannot read memory that it has not lent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the host cannot read memory of another owner")]
pub struct Unreadable;

/// How long an invalidation is waited for, in microseconds, on a host that does not [say otherwise](Platform::wait_us_max).
pub const INVALIDATION_TIMEOUT_US: u64 = 1_000_000;

/// The smallest limit of a wait, in microseconds. A commit that shares a submission may wait almost this long for the others.
pub const WAIT_US_LEAST: u64 = 1_000;

/// Whether the host may sleep to find memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Context {
    /// It may: a domain is opened or closed, a device attached, memory reserved. No lock is held.
    MaySleep,
    /// It may not: maps, unmaps, commits and ticks come from any context. No lock of the library is held.
    Atomic,
}

/// A lock that the platform made.
pub trait Lock<T>: Send + Sync {
    /// Runs `critical` with the lock held.
    ///
    /// Interrupts that may use the same lock must be masked meanwhile: maps and unmaps run in them.
    ///
    /// # Panics
    /// If an earlier `critical` has panicked, unless the host has stopped by then: what is protected may be half changed.
    fn with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R;
}

/// What a lock protects. Locks are taken in this order, never the other way round.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LockClass {
    /// A domain-wide queue of unmaps. The designs that have one hold its lock while the hardware works, as the systems do that they are taken
    /// from.
    CentralFlushQueue,
    /// The queue of a CPU in which unmaps wait for their flush.
    FlushQueue,
    /// The devices and domain ids of an IOMMU.
    Attachment,
    /// The invalidation queue of an IOMMU.
    InvalidationQueue,
    /// What belongs to a domain as a whole: all that a map or unmap does, where a design does it under one lock; table pages that
    /// wait to go back to the host.
    Domain,
    /// The magazines of a CPU.
    Magazine,
    /// The magazines that CPUs exchange.
    Depot,
    /// The central part of an IOVA allocator.
    IovaAllocator,
    /// The table of a domain, or a page of it, where a design has a lock for that.
    Table,
    /// The table pages that a domain keeps for maps that find none at the host.
    TableReserve,
}

/// What a CPU is waiting for while it spins.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wait {
    /// The completion of an invalidation.
    Invalidation,
    /// Room in the invalidation queue.
    QueueRoom,
    /// A register to take the state that was asked for.
    Register,
}

/// The part of a map or unmap that the following steps belong to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// Choosing an address.
    IovaAllocate,
    /// Finding the mapping that is to go.
    IovaFind,
    /// Giving an address back.
    IovaFree,
    /// Writing or clearing translations.
    Table,
    /// Taking translations out of the hardware, or queueing them for it.
    Invalidate,
    /// Everything else.
    Other,
}

/// A step of the protection layer, announced to [`Platform::probe`] just before it is taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Step {
    /// What follows belongs to this phase. Costs nothing itself.
    Enter(Phase),
    /// A map begins.
    Map,
    /// An unmap begins.
    Unmap,
    /// A search goes on from node to node of a tree, or of a list of free segments. Announced once, when it has ended.
    TreeSearch {
        /// How many nodes it passed.
        nodes: u64,
    },
    /// A tree is descended to find a node.
    TreeFind,
    /// A node goes into a tree.
    TreeInsert,
    /// A node leaves a tree.
    TreeErase,
    /// An address is taken off a list or out of a magazine.
    ListPop,
    /// An address is put on a list or into a magazine.
    ListPush,
    /// A magazine is exchanged for another.
    DepotExchange,
    /// A range is looked up in a hash table.
    HashFind,
    /// A part of a segment of addresses is cut off.
    SegmentSplit,
    /// Two neighbouring segments of addresses become one.
    SegmentJoin,
    /// Pages are taken from a window and marked.
    WindowTake,
    /// A mapping in a window is claimed by the mark of its first page.
    WindowClaim,
    /// Pages of a window come back to it.
    WindowReturn,
    /// A map has its place in a chunk: it goes a shorter way than [`Map`](Step::Map).
    ChunkMap,
    /// An unmap has its mapping in a chunk: likewise.
    ChunkUnmap,
    /// The cursor of a stream is moved on.
    ChunkTake,
    /// `entries` neighbouring entries of a chunk are written, where the chunk has them: nothing is walked, nothing is looked for.
    ChunkWrite {
        /// How many.
        entries: usize,
    },
    /// The table of a chunk is looked up by an address in it.
    ChunkFind,
    /// `entries` neighbouring entries of a chunk are cleared.
    ChunkClear {
        /// How many.
        entries: usize,
    },
    /// Pages of a chunk are spent.
    ChunkReturn,
    /// Entries are taken from the tail of a ring.
    RingTake {
        /// How many.
        entries: usize,
    },
    /// Entries of a ring are written.
    RingWrite {
        /// How many.
        entries: usize,
    },
    /// A ring is looked up by an address of it.
    RingFind,
    /// Entries of a ring are made invalid.
    RingClear {
        /// How many.
        entries: usize,
    },
    /// Entries of a ring are made free.
    RingReturn {
        /// How many.
        entries: usize,
    },
    /// `entries` neighbouring entries of a translation table are read, to see whether anybody has their pages.
    TableScan {
        /// How many.
        entries: usize,
    },
    /// A translation table is walked down.
    TableWalk {
        /// How many levels it has. The walk may end at a large leaf before the last.
        levels: u8,
    },
    /// `entries` neighbouring entries of a translation table are written.
    TableWrite {
        /// How many.
        entries: usize,
    },
    /// A mapping is claimed by the mark in its first entry.
    TableClaim,
    /// `entries` neighbouring entries of a translation table are cleared.
    TableClear {
        /// How many.
        entries: usize,
    },
    /// `entries` neighbouring entries that mappings share are counted up, one by one, and written where they are absent.
    TableShare {
        /// How many.
        entries: usize,
    },
    /// `entries` neighbouring entries that mappings share are counted down, one by one, and cleared where none is left.
    TableUnshare {
        /// How many.
        entries: usize,
    },
    /// A table page is taken from or given back to the host.
    TablePage,
    /// An unmap is put into a flush queue.
    FlushQueuePush,
    /// An unmap joins the run of its neighbours that waits on this CPU.
    FlushQueueJoin,
    /// Descriptors are written to an invalidation queue.
    QueueWrite {
        /// How many.
        descriptors: usize,
    },
    /// A register of the IOMMU is written.
    RegisterWrite,
    /// A register of the IOMMU is read.
    RegisterRead,
    /// Memory is copied, see [`CopyMemory`].
    Copy {
        /// How much.
        bytes: u64,
    },
    /// Memory is set to zero.
    Clear {
        /// How much.
        bytes: u64,
    },
}

/// A hint of the CPU that runs: correctness never rests on it, for the caller may be moved at any time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CpuHint(pub u32);

/// Copies memory that devices use and memory of their drivers.
///
/// What it writes is visible to devices when it returns, and what it reads is what devices have written by then: where they do not
/// snoop the caches, it flushes and invalidates cache lines.
///
/// # Safety
/// Implementations do just that. Pages from [`Platform::allocate_frame`] are memory, too.
pub unsafe trait CopyMemory {
    /// Copies `len` bytes of physical memory, which may be none. Neither piece crosses into another page.
    ///
    /// # Safety
    /// There is memory at both places, they do not overlap, and nothing else but devices uses what is written.
    unsafe fn copy(&self, from: PhysAddr, to: PhysAddr, len: u64);

    /// Sets `len` bytes to zero, which may be none. They lie in one page.
    ///
    /// # Safety
    /// That of [`copy`](CopyMemory::copy).
    unsafe fn clear(&self, at: PhysAddr, len: u64);
}

/// All that a host must supply.
///
/// # Safety
/// Table pages are read by hardware and by other CPUs. Implementations promise that
/// * [`allocate_frame`](Platform::allocate_frame) hands out a page-aligned page that nothing else uses, all zero, until
///   [`free_frame`](Platform::free_frame) takes it back, and [`allocate_frames`](Platform::allocate_frames) such pages side by side;
/// * [`frame`](Platform::frame) gives the same memory for the same page, valid for as long as the page is allocated;
/// * [`allocate_bytes`](Platform::allocate_bytes) hands out memory as it was asked for, which nothing else uses until
///   [`free_bytes`](Platform::free_bytes) takes it back;
/// * [`add_here`](Platform::add_here) and [`exchange_at`](Platform::exchange_at) are steps as they say;
/// * a [`lock`](Platform::lock) lets in one at a time, each to the same value, and none after a panic inside, as a mutex of `std`
///   does whose result is unwrapped. A host that aborts on panics has nothing to do for that;
/// * where [`walks_are_over`](Platform::walks_are_over) says so, no walk goes on that had begun before
///   [`walks_now`](Platform::walks_now) gave the name, and each that begins later sees what had been written before that.
pub unsafe trait Platform: Send + Sync {
    /// The lock type.
    type Lock<T: Send>: Lock<T>;

    /// Words that each CPU has of its own.
    type CpuWords: CpuWords;

    /// Makes a lock.
    fn lock<T: Send>(&self, class: LockClass, value: T) -> Self::Lock<T>;

    /// The CPU that runs, as a hint.
    fn cpu(&self) -> CpuHint;

    /// How many CPUs there are: [`cpu`](Platform::cpu) gives numbers below it. Domains ask once; CPUs that come later share
    /// what others have.
    fn cpus(&self) -> u32;

    /// A zeroed table page. The library shows it to walkers that do not snoop.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn allocate_frame(&self, context: Context) -> Result<PhysAddr, NoMemory>;

    /// `count` table pages side by side in memory, each as [`allocate_frame`](Platform::allocate_frame) lends one, and each to be taken
    /// back by itself. Only the rings of [`riommu`](crate::riommu) ask for more than one.
    ///
    /// # Errors
    /// [`NoMemory`], from a host too that lends no neighbours.
    fn allocate_frames(&self, context: Context, count: usize) -> Result<PhysAddr, NoMemory> {
        if count == 1 { self.allocate_frame(context) } else { Err(NoMemory) }
    }

    /// Runs `allocate`, which asks the global allocator for memory, and in which everything that the library has on the heap is allocated.
    /// A host whose allocator has to know whether it may sleep tells it for that long: Linux's `GFP_KERNEL` or `GFP_ATOMIC`.
    #[inline(always)]
    fn allocate<R>(&self, _context: Context, allocate: impl FnOnce() -> R) -> R {
        allocate()
    }

    /// The contents of a table page.
    ///
    /// # Safety
    /// `frame` came from [`allocate_frame`](Platform::allocate_frame) of this platform and is not freed while the
    /// reference lives.
    unsafe fn frame(&self, frame: PhysAddr) -> &Frame;

    /// Takes a table page back.
    ///
    /// # Safety
    /// `frame` came from [`allocate_frame`](Platform::allocate_frame) of this platform, no reference to it lives, and no
    /// hardware can reach it any more (S4).
    unsafe fn free_frame(&self, frame: PhysAddr);

    /// Copies words from memory that this platform has not lent: the tables of a previous kernel, when a driver takes hardware over from it.
    /// They begin at a multiple of 8 and lie in one page. A kernel maps the page for as long as it reads. Called without locks, on slow
    /// paths only.
    ///
    /// # Errors
    /// [`Unreadable`]: there is no memory at `at`, where a read may do something, or the host reads only what it lends. `words` holds
    /// anything then.
    fn read_foreign(&self, _at: PhysAddr, _words: &mut [u64]) -> Result<(), Unreadable> {
        Err(Unreadable)
    }

    /// Memory of the kernel's general allocator, from a zone that ends at `below`: `bytes` bytes, aligned to the power of two
    /// that they round up to. The design `kmalloc` asks for it, for the sake of its address; nobody touches the memory.
    ///
    /// # Errors
    /// [`NoMemory`]; a host that is not to run that design need not have any.
    fn allocate_bytes(&self, _bytes: u64, _below: PhysAddr) -> Result<PhysAddr, NoMemory> {
        Err(NoMemory)
    }

    /// Takes back what [`allocate_bytes`](Platform::allocate_bytes) handed out for `bytes` bytes at `at`.
    ///
    /// # Safety
    /// It did so, and has not had it back since.
    unsafe fn free_bytes(&self, _at: PhysAddr, _bytes: u64) {}

    /// What copies memory, for domains that [bounce](crate::SubPage::Bounce) parts of pages; `None` from a host that has no such domains.
    fn copies(&self) -> Option<&dyn CopyMemory> {
        None
    }

    /// Makes entries visible to the walker of a unit: a store fence where that is [coherent](crate::iommu::Capabilities::coherent), a
    /// cache-line flush and a fence where it is not. A host may have units of both kinds.
    fn table_barrier(&self, entries: &[Entry], coherent: bool);

    /// Words of each CPU for a new domain, all of them `value`, in memory of the host's own: where a kernel keeps what belongs to a CPU, an
    /// instruction that no interrupt can split changes them. [`WordLines`] is for hosts without such memory.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn cpu_words(&self, value: u64) -> Result<Self::CpuWords, NoMemory>;

    /// Adds `amount` to a word of the CPU that runs. Returns what the word held before, and as a hint whose line that was: another's may be
    /// returned where the caller is moved to another CPU.
    ///
    /// A step by itself with respect to every other [`add_here`](Platform::add_here) and
    /// [`exchange_at`](Platform::exchange_at) of the same words: those of interrupts, of other threads, and of callers who are
    /// moved to another CPU in the middle. Acquires what the last exchange released.
    ///
    /// As it stands here it is one locked instruction, and right on any host. One that can do better should: a kernel, by an
    /// instruction that interrupts cannot split on memory of its CPU; a program, by a restartable sequence.
    #[inline]
    fn add_here(&self, words: &Self::CpuWords, word: usize, amount: u64) -> (usize, u64) {
        let line = words.line_of(self.cpu());
        (line, words.word(line, word).fetch_add(amount, Ordering::Acquire))
    }

    /// Changes a word from `old` to `new` if it holds `old` and the caller still runs on the CPU that the line belongs to.
    /// Returns whether it did. A step by itself as [`add_here`](Platform::add_here) is, and releases what the caller has written.
    #[inline]
    fn exchange_at(&self, words: &Self::CpuWords, line: usize, word: usize, old: u64, new: u64) -> bool {
        words.word(line, word).compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Runs `walk`, in which software uses table pages that nothing else keeps where they are. Walks may nest, in interrupts.
    ///
    /// In RCU's words a read-side critical section: in a kernel, between `rcu_read_lock` and `rcu_read_unlock`. None lasts while hardware is
    /// waited for. A host that does nothing here keeps the default of [`walks_now`](Platform::walks_now) too.
    #[inline(always)]
    fn walk<R>(&self, walk: impl FnOnce() -> R) -> R {
        walk()
    }

    /// A token for the grace period of all walks that are going on, as RCU has them. A walk that begins later, on any CPU, reads
    /// what the caller had written before the call: it cannot find what was already unlinked, so it need not be waited for.
    ///
    /// `None` from a host that cannot tell when walks are over. Then a domain keeps the table pages that it no longer needs until it
    /// goes.
    fn walks_now(&self) -> Option<u64> {
        None
    }

    /// Whether the walks that `then` names have ended, and all that they have read was read before this says so: what had been
    /// taken out before [`walks_now`](Platform::walks_now) gave that name may be freed.
    fn walks_are_over(&self, _then: u64) -> bool {
        false
    }

    /// Time in microseconds since some fixed moment. Never goes back.
    fn now_us(&self) -> u64;

    /// How long an invalidation is waited for at most, in microseconds. Smaller values count as [`WAIT_US_LEAST`]. It is asked for where an
    /// invalidation does not complete at once. A commit whose shared submission fails otherwise makes another, alone, and waits for that as
    /// long. The driver limits waits for room in its queue.
    fn wait_us_max(&self) -> u64 {
        INVALIDATION_TIMEOUT_US
    }

    /// Called in every turn of every spin. No walk goes on then, and no lock is held but one of [`LockClass::CentralFlushQueue`]; so under
    /// designs without such a queue, `portcullis` among them, interrupts are masked only if the caller of the library has masked them, and a
    /// host whose caller may sleep can sleep here.
    fn pause(&self, wait: Wait);

    /// Told of every step before it is taken. Does nothing natively.
    #[inline(always)]
    fn probe(&self, _step: Step) {}
}

// SAFETY: forwards to a platform that keeps the promises.
unsafe impl<P: Platform> Platform for &P {
    type Lock<T: Send> = P::Lock<T>;
    type CpuWords = P::CpuWords;

    #[inline]
    fn lock<T: Send>(&self, class: LockClass, value: T) -> Self::Lock<T> {
        (**self).lock(class, value)
    }

    #[inline]
    fn cpu(&self) -> CpuHint {
        (**self).cpu()
    }

    #[inline]
    fn cpus(&self) -> u32 {
        (**self).cpus()
    }

    #[inline]
    fn allocate_frame(&self, context: Context) -> Result<PhysAddr, NoMemory> {
        (**self).allocate_frame(context)
    }

    fn allocate_frames(&self, context: Context, count: usize) -> Result<PhysAddr, NoMemory> {
        (**self).allocate_frames(context, count)
    }

    #[inline(always)]
    fn allocate<R>(&self, context: Context, allocate: impl FnOnce() -> R) -> R {
        (**self).allocate(context, allocate)
    }

    #[inline]
    unsafe fn frame(&self, frame: PhysAddr) -> &Frame {
        // SAFETY: the caller's promise, passed on.
        unsafe { (**self).frame(frame) }
    }

    #[inline]
    unsafe fn free_frame(&self, frame: PhysAddr) {
        // SAFETY: the caller's promise, passed on.
        unsafe { (**self).free_frame(frame) }
    }

    fn read_foreign(&self, at: PhysAddr, words: &mut [u64]) -> Result<(), Unreadable> {
        (**self).read_foreign(at, words)
    }

    #[inline]
    fn allocate_bytes(&self, bytes: u64, below: PhysAddr) -> Result<PhysAddr, NoMemory> {
        (**self).allocate_bytes(bytes, below)
    }

    #[inline]
    unsafe fn free_bytes(&self, at: PhysAddr, bytes: u64) {
        // SAFETY: the caller's promise, passed on.
        unsafe { (**self).free_bytes(at, bytes) }
    }

    fn copies(&self) -> Option<&dyn CopyMemory> {
        (**self).copies()
    }

    #[inline]
    fn table_barrier(&self, entries: &[Entry], coherent: bool) {
        (**self).table_barrier(entries, coherent)
    }

    fn cpu_words(&self, value: u64) -> Result<P::CpuWords, NoMemory> {
        (**self).cpu_words(value)
    }

    #[inline]
    fn add_here(&self, words: &P::CpuWords, word: usize, amount: u64) -> (usize, u64) {
        (**self).add_here(words, word, amount)
    }

    #[inline]
    fn exchange_at(&self, words: &P::CpuWords, line: usize, word: usize, old: u64, new: u64) -> bool {
        (**self).exchange_at(words, line, word, old, new)
    }

    #[inline(always)]
    fn walk<R>(&self, walk: impl FnOnce() -> R) -> R {
        (**self).walk(walk)
    }

    fn walks_now(&self) -> Option<u64> {
        (**self).walks_now()
    }

    fn walks_are_over(&self, then: u64) -> bool {
        (**self).walks_are_over(then)
    }

    #[inline]
    fn now_us(&self) -> u64 {
        (**self).now_us()
    }

    #[inline]
    fn pause(&self, wait: Wait) {
        (**self).pause(wait)
    }

    fn wait_us_max(&self) -> u64 {
        (**self).wait_us_max()
    }

    #[inline(always)]
    fn probe(&self, step: Step) {
        (**self).probe(step)
    }
}
