//! A host that sees every allocation of the driver, on the heap and of pages. It refuses one of them, and counts
//! those that are made with a lock held, of which there must be none. Allocations of the test itself, in the fake
//! host and the fake unit, are not counted.

use super::fake_unit::FakeUnit;
use super::host::Host;
use crate::Mmio;
use portcullis::forward_platform;
use portcullis::platform::fake::FakeLock;
use portcullis::platform::{Context, Lock, LockClass, WordLines};
use portcullis::{NoMemory, PhysAddr, Platform};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Whether the driver runs, and not the test.
    static DRIVER: Cell<bool> = const { Cell::new(false) };
    /// The number of locks that are held.
    static LOCKS: Cell<usize> = const { Cell::new(0) };
    /// Allocations of the driver until one is refused.
    static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    static REFUSED: Cell<usize> = const { Cell::new(0) };
    /// Allocations that the driver made with a lock held.
    static LOCKED: Cell<usize> = const { Cell::new(0) };
    /// Bytes on the heap that the driver has not freed.
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

/// Refuses allocation number `number` of the driver on this thread, counted from now on.
pub(super) fn refuse_at(number: usize) {
    LEFT.set(number);
    REFUSED.set(0);
    LOCKED.set(0);
    BYTES.set(0);
}

/// The number of refused allocations, and of those made with a lock held.
pub(super) fn refused_and_locked() -> (usize, usize) {
    (REFUSED.get(), LOCKED.get())
}

/// Bytes on the heap that belong to the driver.
pub(super) fn driver_bytes() -> isize {
    BYTES.get()
}

fn run_as<R>(is_driver: bool, act: impl FnOnce() -> R) -> R {
    let before = DRIVER.replace(is_driver);
    let result = act();
    DRIVER.set(before);
    result
}

/// Calls the driver.
pub(super) fn driver<R>(act: impl FnOnce() -> R) -> R {
    run_as(true, act)
}

/// Runs code that the driver calls, which does not count as the driver.
fn outside<R>(act: impl FnOnce() -> R) -> R {
    run_as(false, act)
}

/// Whether an allocation of the driver is granted.
fn is_granted() -> bool {
    LOCKED.set(LOCKED.get() + usize::from(LOCKS.get() > 0));
    let left = LEFT.get();
    LEFT.set(left.wrapping_sub(1));
    REFUSED.set(REFUSED.get() + usize::from(left == 0));
    left != 0
}

/// The allocator of `std`, which counts and refuses.
struct Watching;

#[global_allocator]
static WATCHING: Watching = Watching;

// SAFETY: forwards to the system allocator, or returns no memory.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if DRIVER.get() {
            if !is_granted() {
                return core::ptr::null_mut();
            }
            BYTES.set(BYTES.get() + layout.size() as isize);
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if DRIVER.get() {
            BYTES.set(BYTES.get() - layout.size() as isize);
        }
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

pub(super) struct StrictLock<T>(FakeLock<T>);

/// `critical`, which counts as a lock that is held.
fn counted<T, R>(critical: impl FnOnce(&mut T) -> R) -> impl FnOnce(&mut T) -> R {
    |value| {
        LOCKS.set(LOCKS.get() + 1);
        let result = critical(value);
        LOCKS.set(LOCKS.get() - 1);
        result
    }
}

impl<T: Send> Lock<T> for StrictLock<T> {
    fn with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R {
        self.0.with(counted(critical))
    }

    fn try_with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.0.try_with(counted(critical))
    }
}

/// A host that refuses allocations.
#[derive(Clone, Copy)]
pub(super) struct Strict<'h>(pub(super) &'h Host);

// SAFETY: forwards to a host that keeps the promises, or allocates nothing.
unsafe impl Platform for Strict<'_> {
    type Lock<T: Send> = StrictLock<T>;
    type CpuWords = WordLines;

    forward_platform!(self => self.0, through outside;
        cpu, cpus, cpu_words, frame, table_barrier, read_foreign, now_us, pause);

    fn lock<T: Send>(&self, class: LockClass, value: T) -> StrictLock<T> {
        StrictLock(outside(|| self.0.fake.lock(class, value)))
    }

    fn allocate_frame(&self, context: Context) -> Result<PhysAddr, NoMemory> {
        outside(|| {
            assert_eq!(LOCKS.get(), 0, "a page is allocated while a lock is held");
            if is_granted() { self.0.allocate_frame(context) } else { Err(NoMemory) }
        })
    }

    unsafe fn free_frame(&self, frame: PhysAddr) {
        assert_eq!(LOCKS.get(), 0, "a page is freed while a lock is held");
        // SAFETY: as above.
        outside(|| unsafe { self.0.free_frame(frame) });
    }
}

/// The registers of a fake unit.
pub(super) struct Registers<'u>(pub(super) &'u FakeUnit<'u>);

// SAFETY: forwards to registers that keep the promises.
unsafe impl Mmio for Registers<'_> {
    fn read32(&self, offset: u32) -> u32 {
        outside(|| self.0.read32(offset))
    }

    fn read64(&self, offset: u32) -> u64 {
        outside(|| self.0.read64(offset))
    }

    unsafe fn write32(&self, offset: u32, value: u32) {
        // SAFETY: the caller's promise, passed on.
        outside(|| unsafe { self.0.write32(offset, value) });
    }

    unsafe fn write64(&self, offset: u32, value: u64) {
        // SAFETY: as above.
        outside(|| unsafe { self.0.write64(offset, value) });
    }
}
