//! A static heap that only grows.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Bytes in the heap.
const HEAP_BYTES: usize = 1 << 20;

/// Hands out the next bytes, and never takes any back.
#[repr(C, align(4096))]
struct Bump {
    heap: UnsafeCell<[u8; HEAP_BYTES]>,
    used: AtomicUsize,
}

// SAFETY: every allocation is its own part of the heap.
unsafe impl Sync for Bump {}

#[global_allocator]
static HEAP: Bump = Bump { heap: UnsafeCell::new([0; HEAP_BYTES]), used: AtomicUsize::new(0) };

// SAFETY: every allocation lies in the heap, at the requested alignment, and is never handed out again.
unsafe impl GlobalAlloc for Bump {
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let base = self.heap.get().cast::<u8>();
        // This is room for the worst misalignment, so that one addition takes it. Relaxed: no allocation reads what
        // another has written, only where it ends.
        let take = layout.size() + layout.align() - 1;
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(take).filter(|end| *end <= HEAP_BYTES)
        });
        match taken {
            Ok(used) => base.wrapping_add((base.addr() + used).next_multiple_of(layout.align()) - base.addr()),
            Err(_) => core::ptr::null_mut(),
        }
    }

    #[inline(never)]
    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}
