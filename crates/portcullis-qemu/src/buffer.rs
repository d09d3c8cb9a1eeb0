//! Buffers in the machine's memory, which drivers lend to devices. Each has one owner.

use crate::GuestMemory;
use portcullis::domain::{DmaBuffer, SharedBuffer};
use portcullis::{NoMemory, PAGE_SIZE, PhysAddr, Segment};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// A piece of the machine's memory, and the part of it that is lent to a device. The pages are freed when the last
/// buffer in them is dropped.
pub struct GuestBuffer {
    pages: Arc<Run>,
    all: Segment,
    lent: Segment,
    /// Bytes and words are atomics of different sizes and must not be mixed concurrently, so only one thread at a
    /// time uses the buffer.
    one_thread: PhantomData<Cell<()>>,
}

/// A run of pages of the machine's memory that is in use.
struct Run {
    memory: Arc<GuestMemory>,
    first: PhysAddr,
    pages: u64,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.memory.free_run(self.first, self.pages);
    }
}

// SAFETY: the memory is handed out to one run at a time, and a run is divided into buffers that do not overlap. The
// lent part changes only through methods that take the buffer by value. Through `GuestMemory`, other code can write
// it at any time, but it holds no Rust objects, and all accesses are atomic.
unsafe impl DmaBuffer for GuestBuffer {
    fn segments(&self) -> &[Segment] {
        core::slice::from_ref(&self.lent)
    }
}

// SAFETY: bytes and words of the memory are atomics. A mapping is used by one thread at a time, because it is not
// `Sync`.
unsafe impl SharedBuffer for GuestBuffer {}

impl GuestBuffer {
    /// `pages` pages, all of which will be lent. Their old contents stay.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(memory: &Arc<GuestMemory>, pages: u64) -> Result<Self, NoMemory> {
        let first = memory.allocate_run(pages)?;
        let all = Segment { phys: first, len: pages * PAGE_SIZE };
        let pages = Arc::new(Run { memory: memory.clone(), first, pages });
        Ok(Self { pages, all, lent: all, one_thread: PhantomData })
    }

    /// The same memory, with `len` bytes from `offset` on as the part to lend.
    ///
    /// # Panics
    /// If the buffer does not have these bytes.
    pub fn lending(self, offset: u64, len: u64) -> Self {
        let lent = Segment { phys: self.at(offset, len), len };
        Self { lent, ..self }
    }

    /// Splits the buffer into its first `offset` bytes and the rest. Each part will be lent whole.
    ///
    /// # Panics
    /// If the buffer has fewer than `offset` bytes.
    pub fn split_at(self, offset: u64) -> [Self; 2] {
        let first = Segment { phys: self.all.phys, len: offset };
        let second = Segment { phys: self.at(offset, 0), len: self.all.len - offset };
        let part = |part| Self { pages: self.pages.clone(), all: part, lent: part, one_thread: PhantomData };
        [first, second].map(part)
    }

    /// The physical location of the buffer.
    pub fn all(&self) -> Segment {
        self.all
    }

    /// The part that is lent to a device.
    pub fn lent(&self) -> Segment {
        self.lent
    }

    /// Reads bytes from `offset` on.
    ///
    /// # Panics
    /// If the buffer does not have these bytes. The other accesses panic too.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        self.memory().read(self.at(offset, out.len() as u64), out);
    }

    /// Writes bytes from `offset` on.
    pub fn write(&self, offset: u64, data: &[u8]) {
        self.memory().write(self.at(offset, data.len() as u64), data);
    }

    /// Sets all bytes of the buffer to one value.
    pub fn fill(&self, value: u8) {
        self.memory().fill(self.all.phys, self.all.len as usize, value);
    }

    /// Reads the word at `offset`. Later reads see what the device wrote before that word.
    pub fn read_u64(&self, offset: u64) -> u64 {
        self.memory().read_u64(self.at(offset, 8))
    }

    /// Writes the word at `offset`. It becomes visible after everything that was written before.
    pub fn write_u64(&self, offset: u64, word: u64) {
        self.memory().write_u64(self.at(offset, 8), word);
    }

    fn memory(&self) -> &GuestMemory {
        &self.pages.memory
    }

    fn at(&self, offset: u64, len: u64) -> PhysAddr {
        let Segment { phys, len: bytes } = self.all;
        assert!(offset.checked_add(len).is_some_and(|end| end <= bytes), "{offset}+{len} is not in {bytes} bytes");
        PhysAddr::new(phys.as_u64() + offset)
    }
}

impl fmt::Debug for GuestBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GuestBuffer({}+{})", self.lent.phys, self.lent.len)
    }
}
