//! Buffers that a device can reach, and the type that owns them meanwhile.

use crate::address::{Iova, IovaRange, Segment};
use crate::error::{CommitError, MapError, RawMapError, RawUnmapError, SyncError, UnmapError};
use crate::mapper::{Addressing, ENTRY_PAGES_MAX};
use crate::proof::Proof;
use crate::request::Access;
use crate::sub_page::{SubPage, is_partial};
use crate::sync::{Ordering, StaticCounter};
use core::error::Error;
use core::fmt;
use core::mem::ManuallyDrop;

/// Memory that can be lent to a device.
///
/// # Safety
/// The segments are physical memory that belongs to the buffer until the value is dropped, wherever the value is
/// moved. Every call returns the same segments. While the owner cannot access the value, as inside a mapping, the
/// device is the only user of the memory and may write it: no clone of the value and no reference into its memory
/// exists. The `'static` bound lets a forgotten mapping live forever.
pub unsafe trait DmaBuffer: 'static {
    /// The physical pieces of the buffer, in order.
    fn segments(&self) -> &[Segment];
}

/// The number of mappings dropped without an unmap so far.
static LEAKED: StaticCounter = StaticCounter::new(0);

/// The number of mappings that have been dropped without an unmap since the program started. Zero in a correct driver.
pub fn leaked_mappings() -> usize {
    LEAKED.load(Ordering::Relaxed)
}

/// Memory that CPU and device may use at the same time, such as a ring of descriptors.
///
/// # Safety
/// Every access that the type offers is sound while a device reads and writes the memory: atomic or volatile, and
/// without a reference to its contents.
pub unsafe trait SharedBuffer: DmaBuffer {}

/// The number of buffers and raw unmaps lost so far.
static LOST: StaticCounter = StaticCounter::new(0);

/// The number of buffers that were lost for good since the program started: because their mapping was dropped, because
/// an invalidation failed (S11), or because of a panic while the device had them. A forgotten mapping is not counted.
/// If the commit fails in the drop of a [`RawBatch`](super::RawBatch), its unmaps are counted as well, because no
/// error reports them.
pub fn lost_buffers() -> usize {
    LOST.load(Ordering::Relaxed)
}

#[cold]
pub(super) fn count_lost(buffers: usize) {
    // Relaxed: a statistic.
    LOST.fetch_add(buffers, Ordering::Relaxed);
    #[cfg(any(feature = "fake", test))]
    crate::platform::fake::buffers_lost(buffers);
}

/// A buffer lent to a device. It is given back or freed only against a proof that the device has lost it or never had
/// it. If it is dropped, for example by unwinding, the buffer is lost for good.
pub(super) struct Lent<B: DmaBuffer>(ManuallyDrop<B>);

impl<B: DmaBuffer> Lent<B> {
    /// Lends `buffer`. No translation may lead to it yet.
    #[inline(always)]
    pub(super) const fn new(buffer: B) -> Self {
        Self(ManuallyDrop::new(buffer))
    }

    #[inline(always)]
    pub(super) fn segments(&self) -> &[Segment] {
        self.0.segments()
    }

    /// Gives the buffer back to its owner, who may free it.
    #[inline(always)]
    pub(super) fn give_back(self, _proof: &Proof) -> B {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so the buffer is taken once.
        unsafe { ManuallyDrop::take(&mut this.0) }
    }
}

impl<B: DmaBuffer> Drop for Lent<B> {
    #[cold]
    fn drop(&mut self) {
        count_lost(1);
    }
}

/// A buffer that the device may reach. Its owner cannot use it until the domain's `unmap` gives it back.
///
/// Dropping a mapping leaks it: it stays mapped and its buffer is never freed, so memory is never corrupted. The leak
/// is counted in [`leaked_mappings`], and the fake host of this crate fails the test that caused it.
#[must_use = "dropping a mapping leaks its buffer; give it to `Domain::unmap`"]
pub struct Mapping<B: DmaBuffer> {
    buffer: Lent<B>,
    range: IovaRange,
    access: Access,
    tag: Tag,
}

/// Tells the mappings of one domain from those of all others, including domains with the same id in another IOMMU. The
/// lowest bits encode the domain's [`Addressing`], and whether it bounces partial pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tag(u64);

/// The number of bits of a [`Tag`] that hold this code.
const ADDRESSING_BITS: u32 = 6;
/// The codes of physical addresses, of page addresses in a domain that bounces, and of entries of one page. The codes
/// of wider entries follow the last one, and stay below the other two.
const PHYSICAL: u64 = 63;
const BOUNCED: u64 = 62;
const ENTRIES_OF_PAGE: u64 = 1;
const _: () = assert!(ENTRIES_OF_PAGE + (ENTRY_PAGES_MAX.ilog2() as u64) < BOUNCED);

/// The number of tags given out so far.
static DOMAIN_TAGS: StaticCounter = StaticCounter::new(0);

impl Tag {
    /// A tag that no mapping has: the counter never gets this far.
    pub(super) const NO_DOMAIN: Self = Self(u64::MAX);

    /// A tag for a new domain.
    ///
    /// # Panics
    /// If an entry's width is not a power of two, or is more than [`ENTRY_PAGES_MAX`].
    pub(super) fn new(addressing: Addressing, sub_page: SubPage) -> Self {
        let code = match addressing {
            Addressing::Own | Addressing::Shared if sub_page == SubPage::Bounce => BOUNCED,
            Addressing::Own | Addressing::Shared => 0,
            Addressing::Physical => PHYSICAL,
            Addressing::Entries { pages } => {
                assert!(pages.is_power_of_two() && pages <= ENTRY_PAGES_MAX, "no entry has {pages} pages");
                ENTRIES_OF_PAGE + u64::from(pages.ilog2())
            }
        };
        // Relaxed: only uniqueness matters.
        let number = DOMAIN_TAGS.fetch_add(1, Ordering::Relaxed) as u64;
        Self(number << ADDRESSING_BITS | code)
    }

    /// What tells where segments are. `Own` stands for `Shared` as well: both lay out segments in the same way.
    const fn addressing(self) -> Addressing {
        match self.code() {
            0 | BOUNCED => Addressing::Own,
            PHYSICAL => Addressing::Physical,
            code => Addressing::Entries { pages: 1 << (code - ENTRIES_OF_PAGE) },
        }
    }

    /// Whether its domain bounces partial pages.
    const fn bounces(self) -> bool {
        self.code() == BOUNCED
    }

    const fn code(self) -> u64 {
        self.0 & ((1 << ADDRESSING_BITS) - 1)
    }
}

impl<B: DmaBuffer> Mapping<B> {
    #[inline(always)]
    pub(super) const fn new(buffer: Lent<B>, range: IovaRange, access: Access, tag: Tag) -> Self {
        Self { buffer, range, access, tag }
    }

    /// The address of the buffer's first byte, to program into the device.
    pub fn iova(&self) -> Iova {
        self.segment_iova(0)
    }

    /// The address at which the device sees segment `index`.
    ///
    /// # Panics
    /// If the buffer has no such segment.
    pub fn segment_iova(&self, index: usize) -> Iova {
        self.tag.addressing().segment_iova(self.buffer.segments(), index, self.range)
    }

    /// The buffer, for a CPU that uses it while the device does.
    ///
    /// # Panics
    /// If parts of it are [bounced](crate::SubPage::Bounce). The device then uses other pages, and an unmap copies
    /// them to the buffer. [`map_shared`](super::Domain::map_shared) refuses such a buffer, so this never panics for a
    /// mapping that it returned.
    pub fn shared(&self) -> &B
    where
        B: SharedBuffer,
    {
        let is_bounced = self.tag.bounces() && self.buffer.segments().iter().any(is_partial);
        assert!(!is_bounced, "a buffer with bounced parts is not shared with the device");
        &self.buffer.0
    }

    /// The pages of the mapping.
    pub const fn range(&self) -> IovaRange {
        self.range
    }

    /// What the device may do.
    pub const fn access(&self) -> Access {
        self.access
    }

    pub(super) const fn tag(&self) -> Tag {
        self.tag
    }

    /// Takes the buffer out of a mapping that is being unmapped.
    #[inline(always)]
    pub(super) fn into_lent(self) -> Lent<B> {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so the buffer is taken once.
        unsafe { core::ptr::read(&raw const this.buffer) }
    }
}

impl<B: DmaBuffer> Drop for Mapping<B> {
    fn drop(&mut self) {
        LEAKED.fetch_add(1, Ordering::Relaxed);
        #[cfg(any(feature = "fake", test))]
        crate::platform::fake::mapping_leaked();
    }
}

impl<B: DmaBuffer> fmt::Debug for Mapping<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({}, {:?})", self.range, self.access)
    }
}

/// Something refused, given back with the reason.
#[derive(Debug)]
pub struct Refused<T, E> {
    /// What was passed in.
    pub value: T,
    /// Why it was refused.
    pub error: E,
}

impl<T, E: fmt::Display> fmt::Display for Refused<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T: fmt::Debug, E: Error> Error for Refused<T, E> {}

/// Why a buffer was not mapped.
#[derive(Debug)]
pub enum MapFailure<B: DmaBuffer> {
    /// Nothing has changed; here is the buffer.
    Refused(Refused<B, MapError>),
    /// The buffer was mapped, but an invalidation that the map needed failed. The device may reach the buffer, which
    /// is lost for good (S11).
    Lost(SyncError),
}

impl<B: DmaBuffer> MapFailure<B> {
    /// What went wrong.
    pub const fn error(&self) -> RawMapError {
        match self {
            Self::Refused(refused) => RawMapError::Refused(refused.error),
            Self::Lost(error) => RawMapError::Lost(*error),
        }
    }
}

/// Why an unmap gave no buffer back.
#[derive(Debug)]
pub enum UnmapFailure<B: DmaBuffer> {
    /// Nothing has changed; here is the mapping.
    Refused(Refused<Mapping<B>, UnmapError>),
    /// The invalidation failed: the buffer is lost for good.
    Commit(CommitError),
}

impl<B: DmaBuffer> UnmapFailure<B> {
    /// What went wrong.
    pub const fn error(&self) -> RawUnmapError {
        match self {
            Self::Refused(refused) => RawUnmapError::Refused(refused.error),
            Self::Commit(error) => RawUnmapError::Commit(*error),
        }
    }
}

impl<B: DmaBuffer> fmt::Display for MapFailure<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

impl<B: DmaBuffer> fmt::Display for UnmapFailure<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

impl<B: DmaBuffer + fmt::Debug> Error for MapFailure<B> {}

impl<B: DmaBuffer + fmt::Debug> Error for UnmapFailure<B> {}

impl<B: DmaBuffer> From<Refused<Mapping<B>, UnmapError>> for UnmapFailure<B> {
    fn from(refused: Refused<Mapping<B>, UnmapError>) -> Self {
        Self::Refused(refused)
    }
}

impl<B: DmaBuffer> From<CommitError> for UnmapFailure<B> {
    fn from(error: CommitError) -> Self {
        Self::Commit(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_tells_what_the_addresses_of_its_domain_are() {
        for pages in [1, 2, 1 << 18, ENTRY_PAGES_MAX] {
            let addressing = Addressing::Entries { pages };
            assert_eq!(Tag::new(addressing, SubPage::Expose).addressing(), addressing);
        }
        for sub_page in SubPage::ALL {
            let own = Tag::new(Addressing::Own, sub_page);
            assert_eq!((own.addressing(), own.bounces()), (Addressing::Own, sub_page == SubPage::Bounce));
        }
        let physical = Tag::new(Addressing::Physical, SubPage::Expose);
        assert_eq!((physical.addressing(), physical.bounces()), (Addressing::Physical, false));
    }

    /// The code of such an entry would be that of physical addresses.
    #[test]
    #[should_panic(expected = "no entry has 4611686018427387904 pages")]
    fn no_entry_is_wider_than_the_addresses_that_there_are() {
        let _ = Tag::new(Addressing::Entries { pages: 1 << 62 }, SubPage::Expose);
    }
}
