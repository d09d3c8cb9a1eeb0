//! Buffers while the device has them.

use crate::address::{Iova, IovaRange, Segment};
use crate::design::{Addressing, ENTRY_PAGES_MAX};
use crate::error::{CommitError, MapError, RawMapError, RawUnmapError, SyncError, UnmapError};
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
/// The segments are physical memory that belongs to the buffer, wherever the value is moved and for as long as it is not
/// dropped; they are the same at every call. While the value is not in reach of its owner, as in a mapping, the memory has no other
/// user than the device, which may write it: there is no clone of the value and no reference into its memory. `'static`, so that a
/// forgotten mapping outlives everything.
pub unsafe trait DmaBuffer: 'static {
    /// The physical pieces of the buffer, in order.
    fn segments(&self) -> &[Segment];
}

/// Mappings dropped without an unmap so far.
static LEAKED: StaticCounter = StaticCounter::new(0);

/// How many mappings have been dropped, not unmapped, since the program started. A driver without bugs keeps this at zero.
pub fn leaked_mappings() -> usize {
    LEAKED.load(Ordering::Relaxed)
}

/// Memory that CPU and device may use at the same time, such as a ring of descriptors.
///
/// # Safety
/// Every access that the type offers is sound while a device reads and writes the memory: atomic or volatile, and without a
/// reference to its contents.
pub unsafe trait SharedBuffer: DmaBuffer {}

/// Buffers and raw unmaps lost so far.
static LOST: StaticCounter = StaticCounter::new(0);

/// How many buffers were lost for good since the program started: because their mapping was dropped, because an invalidation
/// failed (S11), or because a panic came while the device had them. A mapping that is forgotten is not counted. The unmaps of a [`RawBatch`](super::RawBatch) count as well
/// where its commit fails in its drop, for then no error tells of them.
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

/// A buffer on loan to a device: without a proof that the device has lost it, or has never had it, it is neither given back nor
/// freed. Dropped, as in unwinding, it is lost for good.
pub(super) struct Lent<B: DmaBuffer>(ManuallyDrop<B>);

impl<B: DmaBuffer> Lent<B> {
    /// Before any translation leads to it.
    #[inline(always)]
    pub(super) const fn new(buffer: B) -> Self {
        Self(ManuallyDrop::new(buffer))
    }

    #[inline(always)]
    pub(super) fn segments(&self) -> &[Segment] {
        self.0.segments()
    }

    /// Back to its owner, who may free it.
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

/// A buffer that the device may reach. Its owner cannot, until the domain's `unmap` gives it back.
///
/// Dropping a mapping leaks it: it stays mapped and its buffer is never freed, so nothing can be corrupted; it is counted in
/// [`leaked_mappings`], and the fake host of this crate fails the test that did it.
#[must_use = "dropping a mapping leaks its buffer; give it to `Domain::unmap`"]
pub struct Mapping<B: DmaBuffer> {
    buffer: Lent<B>,
    range: IovaRange,
    access: Access,
    tag: Tag,
}

/// Tells mappings of a domain from others', domains with the same IOMMU id included. The lowest bits say what its addresses are, and
/// whether it bounces parts of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tag(u64);

/// Bits of a [`Tag`] for that.
const ADDRESSING_BITS: u32 = 6;
/// What stands there for physical addresses, for addresses by the page in a domain that bounces, and for those of entries of one page.
/// No width of entries comes up to the first two.
const PHYSICAL: u64 = 63;
const BOUNCED: u64 = 62;
const ENTRIES_OF_PAGE: u64 = 1;
const _: () = assert!(ENTRIES_OF_PAGE + (ENTRY_PAGES_MAX.ilog2() as u64) < BOUNCED);

/// Tags handed out so far.
static DOMAIN_TAGS: StaticCounter = StaticCounter::new(0);

impl Tag {
    /// What no mapping has: the numbers do not come that far.
    pub(super) const NO_DOMAIN: Self = Self(u64::MAX);

    /// One of its own.
    ///
    /// # Panics
    /// If entries are wider than they may be.
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

    /// What tells where segments are. Of addresses by the page it is all the same who has them.
    const fn addressing(self) -> Addressing {
        match self.code() {
            0 | BOUNCED => Addressing::Own,
            PHYSICAL => Addressing::Physical,
            code => Addressing::Entries { pages: 1 << (code - ENTRIES_OF_PAGE) },
        }
    }

    /// Whether its domain bounces parts of pages.
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

    /// What to program into the device: the address of the first byte.
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
    /// If parts of it are [bounced](crate::SubPage::Bounce): the device has other pages then, and an unmap copies from these to the
    /// buffer. [`map_shared`](super::Domain::map_shared) refuses such a buffer, so that nothing panics which has come by it.
    pub fn shared(&self) -> &B
    where
        B: SharedBuffer,
    {
        let is_bounced = self.tag.bounces() && self.buffer.segments().iter().any(is_partial);
        assert!(!is_bounced, "a buffer of which parts are bounced is not shared with the device");
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

    /// The buffer by itself, now that the mapping is being taken away.
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

/// Why a buffer was not mapped.
#[derive(Debug)]
pub enum MapFailure<B: DmaBuffer> {
    /// Nothing has changed; here is the buffer.
    Refused(Refused<B, MapError>),
    /// It was mapped, and an invalidation that this needed failed: the device may reach the buffer, which is lost for good
    /// (S11).
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

    /// Its code would be that of physical addresses.
    #[test]
    #[should_panic(expected = "no entry has 4611686018427387904 pages")]
    fn no_entry_is_wider_than_the_addresses_that_there_are() {
        let _ = Tag::new(Addressing::Entries { pages: 1 << 62 }, SubPage::Expose);
    }
}
