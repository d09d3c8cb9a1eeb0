//! What a host must supply: locks, memory for tables, time, and a hint of the current CPU.

#[cfg(any(feature = "fake", test))]
pub mod fake;

mod cpu_words;
mod deadline;
mod forward;
pub mod memory;
mod per_cpu;
mod unwind;
mod walk;

pub use cpu_words::{CPU_WORDS, CpuWords, WordLines};
pub use deadline::Deadline;
pub use forward::straight;
pub(crate) use per_cpu::index_of;
pub use per_cpu::{Padded, PerCpu, PerCpuCount};
pub use unwind::on_unwind;
pub(crate) use walk::Walk;

use crate::address::PhysAddr;
use crate::entry::{Entry, Frame};
use crate::forward_platform;
use crate::sync::Ordering;
use alloc::sync::Arc;
use thiserror::Error;

/// The host has no memory for a table page or a bookkeeping node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the host has no memory left")]
pub struct NoMemory;

/// The host cannot read memory that it did not allocate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the host cannot read memory of another owner")]
pub struct Unreadable;

/// How long the library waits for an invalidation, in microseconds, on a host that does not set [another
/// limit](Platform::wait_us_max).
pub const INVALIDATION_TIMEOUT_US: u64 = 1_000_000;

/// The smallest limit of a wait, in microseconds. A commit whose commands share a submission with others may wait
/// almost this long for them.
pub const WAIT_US_LEAST: u64 = 1_000;

/// Whether the host may sleep to find memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Context {
    /// The host may sleep: a domain is being opened or closed, a device attached, or memory reserved. The library
    /// holds no lock.
    MaySleep,
    /// The host must not sleep: maps, unmaps, commits and ticks come from any context. The library holds no lock.
    Atomic,
}

/// A lock of the platform.
pub trait Lock<T>: Send + Sync {
    /// Runs `critical` with the lock held.
    ///
    /// The implementation must mask every interrupt in which maps or unmaps can run, because they may take the same
    /// lock.
    ///
    /// # Panics
    /// If an earlier `critical` panicked, unless the host has stopped by then: the protected value may be half
    /// changed.
    fn with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R;

    /// Runs `critical` as [`with`](Lock::with) does, unless the lock is held: then it returns `None` and does not wait.
    ///
    /// The VT-d driver uses it to hand its commands over to the CPU that holds the invalidation queue. With the
    /// default, which waits, it hands nothing over, and many CPUs wait for the lock one after the other.
    ///
    /// # Panics
    /// Those of [`with`](Lock::with).
    #[inline(always)]
    fn try_with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> Option<R> {
        Some(self.with(critical))
    }
}

/// What a lock protects. Locks are always taken in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum LockClass {
    /// The queue of unmaps of a whole domain. Designs that have such a queue hold its lock while the hardware works,
    /// as the systems they are taken from do.
    CentralFlushQueue,
    /// The queue of a CPU in which unmaps wait for their flush.
    FlushQueue,
    /// The devices and domain ids of an IOMMU.
    Attachment,
    /// The invalidation queue of an IOMMU.
    InvalidationQueue,
    /// State of a domain as a whole: everything that a map or unmap does, in designs that use a single lock, and the
    /// table pages that wait to be freed.
    Domain,
    /// The magazines of one CPU.
    Magazine,
    /// The depot, through which CPUs exchange magazines.
    Depot,
    /// The central part of an IOVA allocator.
    IovaAllocator,
    /// The table of a domain, or one of its pages, in designs that lock it.
    Table,
    /// The reserve of table pages that a domain keeps for maps that get no memory from the host.
    TableReserve,
}

/// What a CPU is waiting for while it spins.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Wait {
    /// The completion of an invalidation.
    Invalidation,
    /// Room in the invalidation queue.
    QueueRoom,
    /// A register to reach the requested state.
    Register,
}

/// The part of a map or unmap that the following steps belong to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// Choosing an address.
    IovaAllocate,
    /// Finding the mapping to remove.
    IovaFind,
    /// Freeing an address.
    IovaFree,
    /// Writing or clearing translations.
    Table,
    /// Invalidating translations in the hardware, or queueing them for it.
    Invalidate,
    /// Everything else.
    Other,
}

/// A step of the protection layer. [`Platform::probe`] is called with it just before it is taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Step {
    /// The following steps belong to this phase. The step itself costs nothing.
    Enter(Phase),
    /// A map begins.
    Map,
    /// An unmap begins.
    Unmap,
    /// A search has visited nodes of a tree, or of a list of free segments. Reported once, at its end.
    TreeSearch {
        /// The number of nodes visited.
        nodes: u64,
    },
    /// A tree is searched for a node.
    TreeFind,
    /// Nodes of a tree were visited to restore what they know of the nodes below them, and to balance the tree.
    /// Reported once, behind the insertion or the removal that made it necessary.
    TreeSettle {
        /// The number of nodes visited.
        nodes: u64,
    },
    /// A node is inserted into a tree.
    TreeInsert,
    /// A node is removed from a tree.
    TreeErase,
    /// An address is taken from a list or a magazine.
    ListPop,
    /// An address is put into a list or a magazine.
    ListPush,
    /// A magazine is exchanged for another.
    DepotExchange,
    /// A hash table is searched for a range.
    HashFind,
    /// A segment of addresses is split.
    SegmentSplit,
    /// Two adjacent segments of addresses are joined.
    SegmentJoin,
    /// Pages are taken from a window and marked.
    WindowTake,
    /// A mapping in a window is claimed by the mark of its first page.
    WindowClaim,
    /// Pages go back to their window.
    WindowReturn,
    /// A map takes its pages from a chunk. This path is shorter than that of [`Map`](Step::Map).
    ChunkMap,
    /// An unmap finds its mapping in a chunk. This path is shorter than that of [`Unmap`](Step::Unmap).
    ChunkUnmap,
    /// The cursor of a stream is advanced.
    ChunkTake,
    /// `entries` adjacent entries of a chunk are written. The chunk knows where they are: no table is walked or
    /// searched.
    ChunkWrite {
        /// The number of entries.
        entries: usize,
    },
    /// The table of a chunk is found by an address in it.
    ChunkFind,
    /// `entries` adjacent entries of a chunk are cleared.
    ChunkClear {
        /// The number of entries.
        entries: usize,
    },
    /// Pages of a chunk are spent.
    ChunkReturn,
    /// Entries are taken from the tail of a ring.
    RingTake {
        /// The number of entries.
        entries: usize,
    },
    /// Entries of a ring are written.
    RingWrite {
        /// The number of entries.
        entries: usize,
    },
    /// A ring is found by one of its addresses.
    RingFind,
    /// Entries of a ring are made invalid.
    RingClear {
        /// The number of entries.
        entries: usize,
    },
    /// Entries of a ring are made free.
    RingReturn {
        /// The number of entries.
        entries: usize,
    },
    /// `entries` adjacent entries of a translation table are read, to see whether their pages are in use.
    TableScan {
        /// The number of entries.
        entries: usize,
    },
    /// A translation table is walked.
    TableWalk {
        /// The number of levels of the table. The walk may end early, at a large leaf.
        levels: u8,
    },
    /// `entries` adjacent entries of a translation table are written.
    TableWrite {
        /// The number of entries.
        entries: usize,
    },
    /// A mapping is claimed by the mark in its first entry.
    TableClaim,
    /// `entries` adjacent entries of a translation table are cleared.
    TableClear {
        /// The number of entries.
        entries: usize,
    },
    /// The reference counts of `entries` adjacent shared entries are incremented one by one, and absent entries are
    /// written.
    TableShare {
        /// The number of entries.
        entries: usize,
    },
    /// The reference counts of `entries` adjacent shared entries are decremented one by one, and entries whose count
    /// reaches zero are cleared.
    TableUnshare {
        /// The number of entries.
        entries: usize,
    },
    /// A table page is allocated from the host or freed.
    TablePage,
    /// An unmap is put into a flush queue.
    FlushQueuePush,
    /// An unmap joins the run of adjacent unmaps that waits on this CPU.
    FlushQueueJoin,
    /// Descriptors are written to an invalidation queue.
    QueueWrite {
        /// The number of descriptors.
        descriptors: usize,
    },
    /// A command is posted, for the CPU that holds the invalidation queue.
    QueuePost,
    /// A command that another CPU has posted is taken into the invalidation queue, and its CPU is told.
    QueueTake,
    /// Work of a design or an allocator of another crate, which no other step describes, with its price: it is the
    /// same on every machine. A design that reports no step of its addresses looks as if they cost nothing, so one
    /// that has none reports a price of zero.
    Own {
        /// The price, in cycles of a core.
        cycles: u64,
    },
    /// A register of the IOMMU is written.
    RegisterWrite,
    /// A register of the IOMMU is read.
    RegisterRead,
    /// Memory is copied; see [`CopyMemory`].
    Copy {
        /// The number of bytes.
        bytes: u64,
    },
    /// Memory is set to zero.
    Clear {
        /// The number of bytes.
        bytes: u64,
    },
}

/// A hint of the current CPU. Correctness never depends on it, because the caller may be migrated at any time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CpuHint(pub u32);

/// Copies between memory that devices use and memory of their drivers.
///
/// What it writes is visible to devices when it returns, and what it reads is what devices have written by then. If
/// devices do not snoop the CPU caches, it flushes and invalidates cache lines.
///
/// # Safety
/// An implementation does exactly this. It also copies to and from pages of [`Platform::allocate_frame`].
pub unsafe trait CopyMemory {
    /// Copies `len` bytes of physical memory; `len` may be 0. Neither the source nor the destination crosses a page
    /// boundary.
    ///
    /// # Safety
    /// Both places are memory, they do not overlap, and nothing but devices uses the destination.
    unsafe fn copy(&self, from: PhysAddr, to: PhysAddr, len: u64);

    /// Sets `len` bytes to zero; `len` may be 0. They lie in one page.
    ///
    /// # Safety
    /// That of [`copy`](CopyMemory::copy).
    unsafe fn clear(&self, at: PhysAddr, len: u64);
}

/// The services of a host.
///
/// The methods come in groups; a host's author needs one at a time, and those marked with * in any case:
///
/// * locks: [`lock`](Platform::lock)*, and [`walk`](Platform::walk) with its two helpers, on hosts that can tell when
///   walks have ended;
/// * processors: [`cpu`](Platform::cpu)*, [`cpus`](Platform::cpus)*, and words per CPU
///   ([`cpu_words`](Platform::cpu_words)*), which faster instructions may change;
/// * memory: pages for tables ([`allocate_frame`](Platform::allocate_frame)*, [`frame`](Platform::frame)*,
///   [`free_frame`](Platform::free_frame)*), and what makes them visible ([`table_barrier`](Platform::table_barrier)*);
/// * foreign: memory of a previous owner, buffers for small DMA, and copies for bounce pages;
/// * time: [`now_us`](Platform::now_us)*, [`pause`](Platform::pause)*, and the longest wait;
/// * [`probe`](Platform::probe), for laboratories.
///
/// [`forward_platform`] forwards any of them to another host.
///
/// # Safety
/// Hardware and other CPUs read table pages. An implementation promises that
/// * [`allocate_frame`](Platform::allocate_frame) returns a page-aligned, zeroed page that nothing else uses until
///   [`free_frame`](Platform::free_frame) takes it back; [`allocate_frames`](Platform::allocate_frames) returns
///   several such pages that are physically contiguous;
/// * [`frame`](Platform::frame) returns the same memory for the same page, valid for as long as the page is allocated;
/// * [`allocate_bytes`](Platform::allocate_bytes) returns memory as requested, which nothing else uses until
///   [`free_bytes`](Platform::free_bytes) takes it back;
/// * [`add_here`](Platform::add_here) and [`exchange_at`](Platform::exchange_at) are atomic as they describe;
/// * a [`lock`](Platform::lock) admits one caller at a time, always to the same value, and none after a panic inside
///   it, as a `std` mutex does whose result is unwrapped. A host that aborts on panics need not do anything for this;
/// * once [`walks_are_over`](Platform::walks_are_over) has returned true for a token, every walk that had begun before
///   [`walks_now`](Platform::walks_now) returned that token has ended, and each later walk sees what was written
///   before that.
pub unsafe trait Platform: Send + Sync {
    /// The lock type.
    type Lock<T: Send>: Lock<T>;

    /// A set of words per CPU.
    type CpuWords: CpuWords;

    // Locks and walks.

    /// Makes a lock.
    fn lock<T: Send>(&self, class: LockClass, value: T) -> Self::Lock<T>;

    /// Runs `walk`, in which software uses table pages that nothing else keeps allocated. Walks may nest, in
    /// interrupts.
    ///
    /// This is a read-side critical section in RCU's terms; a kernel brackets it with `rcu_read_lock` and
    /// `rcu_read_unlock`. No walk lasts while the library waits for hardware. A host that does nothing here must keep
    /// the default of [`walks_now`](Platform::walks_now).
    #[inline(always)]
    fn walk<R>(&self, walk: impl FnOnce() -> R) -> R {
        walk()
    }

    /// Returns a grace-period token, as in RCU: it stands for all walks that are running now. A walk that begins
    /// later, on any CPU, sees what the caller had written before the call. It cannot find what was already unlinked,
    /// so it need not be waited for.
    ///
    /// `None` from a host that cannot tell when walks have ended. A domain then keeps table pages that it no longer
    /// needs until it is dropped.
    fn walks_now(&self) -> Option<u64> {
        None
    }

    /// Whether the walks that the token `then` stands for have ended. If so, all their reads happened before this call
    /// returned: what had been unlinked before [`walks_now`](Platform::walks_now) returned the token may be freed.
    fn walks_are_over(&self, _then: u64) -> bool {
        false
    }

    // Processors.

    /// A hint of the current CPU.
    fn cpu(&self) -> CpuHint;

    /// The number of CPUs; [`cpu`](Platform::cpu) returns numbers below it. A domain asks once. CPUs that are added
    /// later share the per-CPU data of others.
    fn cpus(&self) -> u32;

    /// Makes the per-CPU words of a new domain, all set to `value`. They lie where the host keeps per-CPU data, so
    /// that an instruction that no interrupt can split can change them. A host without such memory uses [`WordLines`].
    ///
    /// # Errors
    /// [`NoMemory`].
    fn cpu_words(&self, value: u64) -> Result<Self::CpuWords, NoMemory>;

    /// Adds `amount` to a word of the current CPU. Returns the line that the word is in, as a hint, and the previous
    /// value of the word. If the caller is migrated to another CPU, the line may be that of the other CPU.
    ///
    /// The addition is atomic with respect to every other [`add_here`](Platform::add_here) and
    /// [`exchange_at`](Platform::exchange_at) of the same words: those of interrupts, of other threads, and of callers
    /// that are migrated to another CPU in the middle. It acquires what the last exchange released.
    ///
    /// The default is one locked instruction, and correct on any host. A host that can do better should override it: a
    /// kernel with an instruction that interrupts cannot split, on per-CPU memory; a program with a restartable
    /// sequence.
    #[inline]
    fn add_here(&self, words: &Self::CpuWords, word: usize, amount: u64) -> (usize, u64) {
        let line = words.line_of(self.cpu());
        (line, words.word(line, word).fetch_add(amount, Ordering::Acquire))
    }

    /// Changes a word from `old` to `new` if it holds `old` and the caller still runs on the CPU that the line belongs
    /// to. Returns whether it did so. Atomic as [`add_here`](Platform::add_here) is. It releases what the caller has
    /// written.
    #[inline]
    fn exchange_at(&self, words: &Self::CpuWords, line: usize, word: usize, old: u64, new: u64) -> bool {
        words.word(line, word).compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    // Memory of the library.

    /// Allocates a zeroed table page. The library makes its contents visible to walkers that do not snoop.
    ///
    /// # Errors
    /// [`NoMemory`].
    fn allocate_frame(&self, context: Context) -> Result<PhysAddr, NoMemory>;

    /// Allocates `count` physically contiguous table pages, each as [`allocate_frame`](Platform::allocate_frame) does.
    /// Each is freed on its own. [Rings](crate::iommu::rings) and large [`buffers`](crate::buffers) ask for more than
    /// one.
    ///
    /// # Errors
    /// [`NoMemory`], also from a host that does not support contiguous pages.
    fn allocate_frames(&self, context: Context, count: usize) -> Result<PhysAddr, NoMemory> {
        if count == 1 { self.allocate_frame(context) } else { Err(NoMemory) }
    }

    /// Runs `allocate`, which calls the global allocator. The library makes all of its heap allocations inside such a
    /// call. If the host's allocator must know whether it may sleep, the host sets that here for the duration of the
    /// call: Linux's `GFP_KERNEL` or `GFP_ATOMIC`.
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

    /// Frees a table page.
    ///
    /// # Safety
    /// `frame` came from [`allocate_frame`](Platform::allocate_frame) of this platform, no reference to it lives, and
    /// no hardware can reach it any more (S4).
    unsafe fn free_frame(&self, frame: PhysAddr);

    /// Makes entries visible to the walker of a unit. If the unit is [coherent](crate::iommu::Capabilities::coherent),
    /// this is a store fence; otherwise it is a cache-line flush and a fence. A host may have units of both kinds.
    fn table_barrier(&self, entries: &[Entry], coherent: bool);

    // Memory of others, and small memory.

    /// Copies words from memory that this platform did not allocate: the tables of a previous kernel, when a driver
    /// takes the hardware over from it. The words begin at a multiple of 8 and lie in one page. A kernel maps the page
    /// for the duration of the read. Called without locks, and only on slow paths.
    ///
    /// # Errors
    /// [`Unreadable`] if there is no memory at `at`, if a read there could have side effects, or if the host reads
    /// only memory that it allocated. The contents of `words` are then unspecified.
    fn read_foreign(&self, _at: PhysAddr, _words: &mut [u64]) -> Result<(), Unreadable> {
        Err(Unreadable)
    }

    /// Allocates memory from the kernel's general allocator, in a zone that ends at `below`: `bytes` bytes, aligned to
    /// `bytes` rounded up to a power of two. The design `kmalloc` uses only the address; the memory itself is never
    /// accessed.
    ///
    /// # Errors
    /// [`NoMemory`]. A host that does not run that design need not support this.
    fn allocate_bytes(&self, _bytes: u64, _below: PhysAddr) -> Result<PhysAddr, NoMemory> {
        Err(NoMemory)
    }

    /// Frees memory of [`allocate_bytes`](Platform::allocate_bytes): `bytes` bytes at `at`.
    ///
    /// # Safety
    /// The memory came from that call with the same `bytes`, and has not been freed since.
    unsafe fn free_bytes(&self, _at: PhysAddr, _bytes: u64) {}

    /// Returns what copies memory, for domains that [bounce](crate::SubPage::Bounce) partial pages. `None` if the host
    /// does not support such domains.
    fn copies(&self) -> Option<&dyn CopyMemory> {
        None
    }

    // Time.

    /// Time in microseconds since some fixed moment. Never goes back.
    fn now_us(&self) -> u64;

    /// The longest time to wait for an invalidation, in microseconds. Values below [`WAIT_US_LEAST`] count as
    /// [`WAIT_US_LEAST`]. The library calls this only for an invalidation that does not complete at once. If a shared
    /// submission fails, the commit makes another of its own, and may wait for that one as long again. The driver
    /// limits its waits for room in the queue itself.
    fn wait_us_max(&self) -> u64 {
        INVALIDATION_TIMEOUT_US
    }

    /// Called in every iteration of every spin loop. At that point no walk is running and no lock is held except one
    /// of [`LockClass::CentralFlushQueue`]. Under designs without such a queue, `portcullis` among them, interrupts
    /// are therefore masked only if the library's caller has masked them, and a host whose caller may sleep can sleep
    /// here.
    fn pause(&self, wait: Wait);

    // Reports.

    /// Called with every step before it is taken. A native host does nothing.
    #[inline(always)]
    fn probe(&self, _step: Step) {}
}

macro_rules! pointers {
    ($($pointer:ty),*) => {$(
        // SAFETY: forwards to a platform that keeps the promises.
        unsafe impl<P: Platform> Platform for $pointer {
            type Lock<T: Send> = P::Lock<T>;
            type CpuWords = P::CpuWords;

            forward_platform!(self => (**self); locks, processors, memory, foreign, time, probe);
        }
    )*};
}

pointers!(&P, Arc<P>);
