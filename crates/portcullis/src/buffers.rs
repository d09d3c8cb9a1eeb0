//! Buffers that are ready to be lent, in memory of the host: an array of pages, words that CPU and device share, and a
//! pool. A driver that uses them implements no unsafe trait.
//!
//! Each has pages of its own, so a device that reaches one reaches nothing else (S8). The memory is that of
//! [`Platform::allocate_frame`]. A buffer keeps its pointer to the host, and may outlive what is on a stack: share the
//! host by an `Arc` or a `&'static`. If devices do not snoop the caches of the CPU, the driver writes the lines back,
//! and drops them, as for any other memory.

use crate::address::{PAGE_SIZE, PhysAddr, Segment};
use crate::domain::{DmaBuffer, SharedBuffer};
use crate::entry::Frame;
use crate::error::NoMemory;
use crate::platform::memory::{push_within, try_reserve};
use crate::platform::{Context, Lock, LockClass, Platform};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::fmt;

/// The bytes of a page.
type Bytes = [u8; PAGE_SIZE as usize];

/// An array of zeroed pages, which the driver reads and writes while the device does not have it.
///
/// # Examples
/// ```
/// use portcullis::buffers::DmaArray;
/// use portcullis::designs::Portcullis;
/// use portcullis::iommu::fake::FakeIommu;
/// use portcullis::platform::fake::FakeHost;
/// use portcullis::{Access, Open, Protection};
/// use std::sync::Arc;
///
/// let host = Arc::new(FakeHost::default());
/// let iommu = FakeIommu::new(&host);
/// let domain = Portcullis::open(&iommu, host.clone(), Protection::Strict)?;
/// let mut buffer = DmaArray::new(host.clone(), 2)?;
/// buffer.page_mut(0)[..5].copy_from_slice(b"hello");
/// let mapping = domain.map(buffer, Access::DeviceReads)?;
/// // Program `mapping.iova()` into a descriptor, and wait for the device.
/// let buffer = domain.unmap(mapping)?;
/// assert_eq!(&buffer.page(0)[..5], b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DmaArray<P: Platform + 'static> {
    platform: P,
    /// Whole pages. They are one segment if the host has pages that lie side by side.
    segments: Vec<Segment>,
}

impl<P: Platform + 'static> DmaArray<P> {
    /// An array of `pages` pages. May sleep.
    ///
    /// # Errors
    /// [`NoMemory`].
    ///
    /// # Panics
    /// If `pages` is zero.
    pub fn new(platform: P, pages: usize) -> Result<Self, NoMemory> {
        assert!(pages > 0, "a buffer has one page at least");
        let mut array = Self { segments: try_reserve(&platform, Context::MaySleep, pages)?, platform };
        match array.platform.allocate_frames(Context::MaySleep, pages) {
            Ok(phys) => push_within(&mut array.segments, Segment { phys, len: pages as u64 * PAGE_SIZE }),
            Err(NoMemory) => {
                for _ in 0..pages {
                    // After an error, the drop of the array gives back what there is.
                    let phys = array.platform.allocate_frame(Context::MaySleep)?;
                    push_within(&mut array.segments, Segment { phys, len: PAGE_SIZE });
                }
            }
        }
        Ok(array)
    }

    /// The number of pages.
    pub fn pages(&self) -> usize {
        self.segments.iter().map(|segment| segment.len / PAGE_SIZE).sum::<u64>() as usize
    }

    /// The contents of page `index`.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn page(&self, index: usize) -> &Bytes {
        // SAFETY: `self` is borrowed, so neither its owner nor a device writes the page. A page is its bytes.
        unsafe { &*core::ptr::from_ref(self.frame(index)).cast() }
    }

    /// The contents of page `index`, to be written.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn page_mut(&mut self, index: usize) -> &mut Bytes {
        // SAFETY: a page is its bytes, and its words are atomic, so what is behind the reference may change.
        let bytes: &UnsafeCell<Bytes> = unsafe { &*core::ptr::from_ref(self.frame(index)).cast() };
        // SAFETY: `self` is borrowed mutably, so the page has no other user.
        unsafe { &mut *bytes.get() }
    }

    fn frame(&self, index: usize) -> &Frame {
        let page = frames(&self.segments).nth(index).expect("a page of the array");
        // SAFETY: the page came from this platform, and is freed only when the array is dropped.
        unsafe { self.platform.frame(page) }
    }
}

/// The pages of these segments.
fn frames(segments: &[Segment]) -> impl Iterator<Item = PhysAddr> {
    let pages =
        |segment: &Segment| (segment.phys.as_u64()..segment.phys.as_u64() + segment.len).step_by(PAGE_SIZE as usize);
    segments.iter().flat_map(pages).map(PhysAddr::new)
}

// SAFETY: the pages belong to the array until it is dropped, wherever it is moved. References into them borrow it.
unsafe impl<P: Platform + 'static> DmaBuffer for DmaArray<P> {
    fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

impl<P: Platform + 'static> Drop for DmaArray<P> {
    fn drop(&mut self) {
        // SAFETY: the pages came from this platform. The owner has the array, so no device has it.
        frames(&self.segments).for_each(|page| unsafe { self.platform.free_frame(page) });
    }
}

impl<P: Platform + 'static> fmt::Debug for DmaArray<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmaArray({} pages)", self.pages())
    }
}

/// Zeroed words that CPU and device use at the same time: a ring of descriptors, or the place of a completion. Map it
/// with [`map_shared`](crate::Domain::map_shared), and use it through
/// [`Mapping::shared`](crate::domain::Mapping::shared).
pub struct CoherentBox<P: Platform + 'static>(DmaArray<P>);

impl<P: Platform + 'static> CoherentBox<P> {
    /// Words that fill `pages` pages. May sleep.
    ///
    /// # Errors
    /// [`NoMemory`].
    ///
    /// # Panics
    /// If `pages` is zero.
    pub fn new(platform: P, pages: usize) -> Result<Self, NoMemory> {
        DmaArray::new(platform, pages).map(Self)
    }

    /// The number of words.
    pub fn words(&self) -> usize {
        self.0.pages() * size_of::<Frame>() / size_of::<u64>()
    }

    /// Reads a word. What the device has written before it is seen by later reads.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn load(&self, index: usize) -> u64 {
        let per_page = size_of::<Frame>() / size_of::<u64>();
        self.0.frame(index / per_page)[index % per_page].load_bits()
    }

    /// Writes a word, after everything that this CPU wrote before.
    ///
    /// # Panics
    /// If there is no such word.
    pub fn store(&self, index: usize, word: u64) {
        let per_page = size_of::<Frame>() / size_of::<u64>();
        self.0.frame(index / per_page)[index % per_page].store_bits(word);
    }
}

// SAFETY: as for the array.
unsafe impl<P: Platform + 'static> DmaBuffer for CoherentBox<P> {
    fn segments(&self) -> &[Segment] {
        self.0.segments()
    }
}

// SAFETY: every access is to one atomic word.
unsafe impl<P: Platform + 'static> SharedBuffer for CoherentBox<P> {}

/// A number of arrays of one size, which are allocated once. A buffer that is dropped is free again. The
/// memory goes back to the host with the last of the pool and its buffers.
pub struct Pool<P: Platform + 'static>(Arc<Free<P>>);

/// The arrays of a pool that are free. The list has room for all.
struct Free<P: Platform + 'static>(P::Lock<Vec<DmaArray<P>>>);

/// A buffer of a pool. Its contents are those that its last user left.
pub struct PoolBuffer<P: Platform + 'static> {
    /// Always there, until the drop.
    array: Option<DmaArray<P>>,
    free: Arc<Free<P>>,
}

impl<P: Platform + Clone + 'static> Pool<P> {
    /// A pool of `buffers` buffers of `pages` pages each. May sleep.
    ///
    /// # Errors
    /// [`NoMemory`].
    ///
    /// # Panics
    /// If `pages` is zero.
    pub fn new(platform: P, buffers: usize, pages: usize) -> Result<Self, NoMemory> {
        let mut free = try_reserve(&platform, Context::MaySleep, buffers)?;
        for _ in 0..buffers {
            push_within(&mut free, DmaArray::new(platform.clone(), pages)?);
        }
        // The lock is taken alone, or inside any other.
        let free = Free(platform.lock(LockClass::TableReserve, free));
        platform.allocate(Context::MaySleep, || Ok(Self(Arc::new(free))))
    }
}

impl<P: Platform + 'static> Pool<P> {
    /// A free buffer; `None` if all are in use. Allocates nothing, and may be called from interrupts.
    pub fn take(&self) -> Option<PoolBuffer<P>> {
        let array = self.0.0.with(Vec::pop)?;
        Some(PoolBuffer { array: Some(array), free: self.0.clone() })
    }

    /// The number of free buffers.
    pub fn free(&self) -> usize {
        self.0.0.with(|free| free.len())
    }
}

impl<P: Platform + 'static> PoolBuffer<P> {
    fn array(&self) -> &DmaArray<P> {
        self.array.as_ref().expect("until the drop")
    }

    /// The contents of page `index`.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn page(&self, index: usize) -> &Bytes {
        self.array().page(index)
    }

    /// The contents of page `index`, to be written.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn page_mut(&mut self, index: usize) -> &mut Bytes {
        self.array.as_mut().expect("until the drop").page_mut(index)
    }
}

// SAFETY: as for the array, which stays with the buffer.
unsafe impl<P: Platform + 'static> DmaBuffer for PoolBuffer<P> {
    fn segments(&self) -> &[Segment] {
        self.array().segments()
    }
}

impl<P: Platform + 'static> Drop for PoolBuffer<P> {
    fn drop(&mut self) {
        if let Some(array) = self.array.take() {
            self.free.0.with(|free| push_within(free, array));
        }
    }
}

impl<P: Platform + 'static> fmt::Debug for CoherentBox<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CoherentBox({} pages)", self.0.pages())
    }
}

impl<P: Platform + 'static> fmt::Debug for Pool<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} free)", self.free())
    }
}

impl<P: Platform + 'static> fmt::Debug for PoolBuffer<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolBuffer({} pages)", self.array().pages())
    }
}
