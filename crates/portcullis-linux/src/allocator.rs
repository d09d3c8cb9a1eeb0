//! The kernel's allocator. It sleeps only where [`Platform::allocate`](portcullis::Platform::allocate) has said that it may.

use crate::kernel::{pcs_alloc, pcs_free};
use core::alloc::{GlobalAlloc, Layout};

struct Kmalloc;

#[global_allocator]
static HEAP: Kmalloc = Kmalloc;

// SAFETY: memory of the kernel, of the size and alignment asked for, for as long as it is not freed.
unsafe impl GlobalAlloc for Kmalloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: any size and power of two will do.
        unsafe { pcs_alloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, at: *mut u8, _: Layout) {
        // SAFETY: it came from `alloc`.
        unsafe { pcs_free(at) }
    }
}
