//! The kernel's allocator. It sleeps only if [`Platform::allocate`](portcullis::Platform::allocate) has said that it
//! may.

use crate::kernel::{pcs_alloc, pcs_free};
use core::alloc::{GlobalAlloc, Layout};

struct Kmalloc;

#[global_allocator]
static HEAP: Kmalloc = Kmalloc;

// SAFETY: the kernel's memory has the requested size and alignment, and is valid until it is freed.
unsafe impl GlobalAlloc for Kmalloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: any size and any power of two are allowed.
        unsafe { pcs_alloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, at: *mut u8, _: Layout) {
        // SAFETY: it came from `alloc`.
        unsafe { pcs_free(at) }
    }
}
