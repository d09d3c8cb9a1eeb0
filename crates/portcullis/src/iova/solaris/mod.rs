//! Solaris's allocator: vmem, an address space in segments, with caches for small sizes over it.

mod segments;
mod tags;
mod vmem;

pub use vmem::{QUANTUM_CACHE_PAGES_MAX, SLAB_PAGES, VmemAllocator};
