//! The allocators behind one interface. Each has 4 GiB of pages, numbered from 1.

use std::sync::Arc;

/// One past the number of the last page.
const END: u32 = 1 << 20;

/// Hands out runs of consecutive pages.
pub(crate) trait Pages: Send {
    /// Allocates a run of `pages` pages, and returns the first.
    fn allocate(&mut self, pages: u32) -> u32;
    /// Frees the run.
    fn free(&mut self, first: u32, pages: u32);
}

impl<A: Pages> Pages for Arc<spin::Mutex<A>> {
    fn allocate(&mut self, pages: u32) -> u32 {
        self.lock().allocate(pages)
    }

    fn free(&mut self, first: u32, pages: u32) {
        self.lock().free(first, pages);
    }
}

/// `vm-allocator`, of rust-vmm.
pub(crate) struct VmAddresses(vm_allocator::AddressAllocator);

impl VmAddresses {
    pub(crate) fn new() -> Self {
        let bytes = u64::from(END - 1) << 12;
        Self(vm_allocator::AddressAllocator::new(1 << 12, bytes).expect("a range of addresses"))
    }
}

impl Pages for VmAddresses {
    fn allocate(&mut self, pages: u32) -> u32 {
        let range = self.0.allocate(u64::from(pages) << 12, 1 << 12, vm_allocator::AllocPolicy::FirstMatch);
        (range.expect("a free range").start() >> 12) as u32
    }

    fn free(&mut self, first: u32, pages: u32) {
        let (start, end) = (u64::from(first) << 12, u64::from(first + pages) << 12);
        let range = vm_allocator::RangeInclusive::new(start, end - 1).expect("a range");
        self.0.free(&range).expect("a range in use");
    }
}

/// `offset-allocator`. It needs its allocation objects to free a run, so they are kept by page.
pub(crate) struct Offsets {
    allocator: offset_allocator::Allocator<u32>,
    given: Vec<Option<offset_allocator::Allocation<u32>>>,
}

impl Offsets {
    pub(crate) fn new() -> Self {
        let given = (0..END).map(|_| None).collect();
        Self { allocator: offset_allocator::Allocator::with_max_allocs(END - 1, 1 << 16), given }
    }
}

impl Pages for Offsets {
    fn allocate(&mut self, pages: u32) -> u32 {
        let allocation = self.allocator.allocate(pages).expect("a free range");
        let first = allocation.offset + 1;
        self.given[first as usize] = Some(allocation);
        first
    }

    fn free(&mut self, first: u32, _pages: u32) {
        self.allocator.free(self.given[first as usize].take().expect("a range in use"));
    }
}

/// `range-alloc`, of gfx-rs.
pub(crate) struct Ranges(range_alloc::RangeAllocator<u32>);

impl Ranges {
    pub(crate) fn new() -> Self {
        Self(range_alloc::RangeAllocator::new(1..END))
    }
}

impl Pages for Ranges {
    fn allocate(&mut self, pages: u32) -> u32 {
        self.0.allocate_range(pages).expect("a free range").start
    }

    fn free(&mut self, first: u32, pages: u32) {
        self.0.free_range(first..first + pages);
    }
}

/// `buddy_system_allocator`.
pub(crate) struct Buddies(buddy_system_allocator::FrameAllocator<33>);

impl Buddies {
    pub(crate) fn new() -> Self {
        let mut allocator = buddy_system_allocator::FrameAllocator::new();
        allocator.add_frame(1, END as usize);
        Self(allocator)
    }
}

impl Pages for Buddies {
    fn allocate(&mut self, pages: u32) -> u32 {
        self.0.alloc(pages as usize).expect("a free block") as u32
    }

    fn free(&mut self, first: u32, pages: u32) {
        self.0.dealloc(first as usize, pages as usize);
    }
}

/// `bitmap-allocator`, of rCore.
pub(crate) struct Bits(Box<bitmap_allocator::BitAlloc1M>);

impl Bits {
    pub(crate) fn new() -> Self {
        let mut bits = Box::<bitmap_allocator::BitAlloc1M>::default();
        bitmap_allocator::BitAlloc::insert(&mut *bits, 1..END as usize);
        Self(bits)
    }
}

impl Pages for Bits {
    fn allocate(&mut self, pages: u32) -> u32 {
        use bitmap_allocator::BitAlloc;
        let first = if pages == 1 { self.0.alloc() } else { self.0.alloc_contiguous(None, pages as usize, 0) };
        first.expect("a free run") as u32
    }

    fn free(&mut self, first: u32, pages: u32) {
        use bitmap_allocator::BitAlloc;
        let (first, pages) = (first as usize, pages as usize);
        let freed = if pages == 1 { self.0.dealloc(first) } else { self.0.dealloc_contiguous(first, pages) };
        assert!(freed, "the run was in use");
    }
}
