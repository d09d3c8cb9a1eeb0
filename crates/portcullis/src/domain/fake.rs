//! A buffer for tests of drivers: memory of this process, at its own address.

use super::DmaBuffer;
use crate::address::{PAGE_SIZE, PhysAddr, Segment};
use core::ops::{Deref, DerefMut};
use std::boxed::Box;
use std::vec;

/// A page as the processor aligns it.
#[derive(Clone)]
#[repr(align(4096))]
struct Page(#[expect(dead_code, reason = "read and written as bytes")] [u8; PAGE_SIZE as usize]);

/// Whole adjacent pages of this process. The physical address of the buffer is the address of its first byte. While
/// the buffer is mapped, its owner has no access to it; an unmap gives it back.
pub struct FakeBuffer {
    pages: Box<[Page]>,
    segment: [Segment; 1],
}

impl FakeBuffer {
    /// A zeroed buffer of `pages` pages.
    ///
    /// # Panics
    /// If `pages` is zero.
    pub fn new(pages: usize) -> Self {
        assert!(pages > 0, "a buffer has one page at least");
        let pages = vec![Page([0; PAGE_SIZE as usize]); pages].into_boxed_slice();
        let phys = PhysAddr::new(pages.as_ptr().addr() as u64);
        let segment = [Segment { phys, len: pages.len() as u64 * PAGE_SIZE }];
        Self { pages, segment }
    }
}

// SAFETY: the pages are on the heap, stay there when the value is moved, and belong to it alone. Only their owner uses
// them, because the devices of the fake IOMMU do no DMA.
unsafe impl DmaBuffer for FakeBuffer {
    fn segments(&self) -> &[Segment] {
        &self.segment
    }
}

impl Deref for FakeBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: a page is its bytes: it has their size, and no padding.
        unsafe { core::slice::from_raw_parts(self.pages.as_ptr().cast(), self.pages.len() * PAGE_SIZE as usize) }
    }
}

impl DerefMut for FakeBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the buffer is borrowed for as long.
        unsafe {
            core::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), self.pages.len() * PAGE_SIZE as usize)
        }
    }
}

impl core::fmt::Debug for FakeBuffer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "FakeBuffer({} pages at {})", self.pages.len(), self.segment[0].phys)
    }
}
