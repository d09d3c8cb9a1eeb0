//! One entry of a second-level table, and the order in which entries become visible.
//!
//! The bits are those of the VT-d second-level formats (Intel VT-d specification 3.x, §9.8, SL-PTE and the related
//! formats):
//!
//! ```text
//!  63   62   61  55  54   53    52    51                  12 11   8  7  6   2  1 0
//! +---+----+------+----+-----+-------+----------------------+------+--+------+-+-+
//! |ign| TM | ign  |last|first|flushed| address 51:12        | ign  |PS| rsvd |W|R|
//! +---+----+------+----+-----+-------+----------------------+------+--+------+-+-+
//! ```
//!
//! Hardware ignores bits 61:52. Bit 52 of a pointer to a table records that the pointer is known to be visible to a
//! walker that does not snoop. Bits 53 and 54 mark the leaves of the first and the last page of a mapping; an unmap
//! claims the mapping by removing the first mark. In a leaf that mappings share, all ten bits are a reference count
//! (ATC'15, §4.1).
//!
//! Tables whose empty pages are freed have no marks, and one lock orders installing a pointer, flushing it and
//! following it. In such tables these bits of a pointer hold the number of present entries in the table that it points
//! to, 0 to 512:
//!
//! ```text
//!  63   62   61        52 51                  12 11   8  7  6   2  1 0
//! +---+----+-------------+----------------------+------+--+------+-+-+
//! |ign| TM | entries     | address 51:12        | ign  | 0| rsvd |W|R|
//! +---+----+-------------+----------------------+------+--+------+-+-+
//! ```
//!
//! The leaf tables of the design `portcullis` use leaves with other state bits in the same format;
//! `chunk/page_states.rs` shows them.

use crate::address::PhysAddr;
use crate::sync::{AtomicU64, Ordering};

/// The number of entries in a table page.
pub const ENTRIES: usize = 512;
/// The number of address bits that one level translates.
pub const LEVEL_BITS: u32 = 9;

const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const PAGE_SIZE_BIT: u64 = 1 << 7;
const FLUSHED: u64 = 1 << 52;
const FIRST: u64 = 1 << 53;
const LAST: u64 = 1 << 54;
/// A count of one mapping in a shared leaf.
const ONE_SHARE: u64 = 1 << 52;
const SHARES_MASK: u64 = (1 << 10) - 1;
/// The largest number of mappings that can share a leaf: what ten bits can count. The model checker uses a small
/// number, so that it reaches the limit.
pub const SHARES_MAX: u64 = if cfg!(loom) { 2 } else { SHARES_MASK };
const COUNT_SHIFT: u32 = 52;
/// Bits 61:52: the number of present entries in the table that the entry points to.
const COUNT_MASK: u64 = 0x3ff << COUNT_SHIFT;
/// Bits 51:12, the physical address.
pub const ADDRESS_MASK: u64 = 0x000f_ffff_ffff_f000;

/// Access rights of a translation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rights(u64);

impl Rights {
    /// The device may read.
    pub const READ: Self = Self(READ);
    /// The device may write.
    pub const WRITE: Self = Self(WRITE);
    /// The device may do both.
    pub const READ_WRITE: Self = Self(READ | WRITE);

    /// The rights in the two lowest bits, as in an entry: 1 to read, 2 to write.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The rights with these [`bits`](Self::bits); `None` for zero and for any other bits.
    #[inline]
    pub const fn from_bits(bits: u64) -> Option<Self> {
        if bits != 0 && bits & !(READ | WRITE) == 0 { Some(Self(bits)) } else { None }
    }

    /// Whether these rights include all of `other`.
    #[inline]
    pub const fn allows(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The value of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct EntryValue(u64);

impl EntryValue {
    /// Not present: every bit zero.
    pub const ABSENT: Self = Self(0);

    /// The entry with these raw bits.
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// A leaf that translates to `phys`; `large` if it is above the lowest level.
    #[inline]
    pub const fn leaf(phys: PhysAddr, rights: Rights, large: bool) -> Self {
        Self((phys.as_u64() & ADDRESS_MASK) | rights.0 | if large { PAGE_SIZE_BIT } else { 0 })
    }

    /// A pointer to a table page. It carries both rights, since the rights of a walk are the intersection of its
    /// levels.
    #[inline]
    pub const fn table(frame: PhysAddr) -> Self {
        Self((frame.as_u64() & ADDRESS_MASK) | READ | WRITE)
    }

    /// An absent entry that holds the address of a page. Hardware ignores the address in an absent entry.
    #[inline]
    pub(crate) const fn absent_link(frame: PhysAddr) -> Self {
        Self(frame.as_u64() & ADDRESS_MASK)
    }

    /// Whether hardware would use the entry.
    #[inline]
    pub const fn is_present(self) -> bool {
        self.0 & (READ | WRITE) != 0
    }

    /// Whether the entry, which is above the lowest level, is a leaf.
    #[inline]
    pub const fn is_large(self) -> bool {
        self.0 & PAGE_SIZE_BIT != 0
    }

    /// Whether the entry is known to be visible to a walker that does not snoop.
    #[inline]
    pub(crate) const fn is_flushed(self) -> bool {
        self.0 & FLUSHED != 0
    }

    /// The leaf, marked as the first page of a mapping, the last, or both.
    #[inline]
    pub(crate) const fn marked(self, first: bool, last: bool) -> Self {
        Self(self.0 | if first { FIRST } else { 0 } | if last { LAST } else { 0 })
    }

    /// Whether a mapping begins here that no unmap has claimed.
    #[inline]
    pub(crate) const fn is_first(self) -> bool {
        self.0 & FIRST != 0
    }

    /// Whether a mapping ends here.
    #[inline]
    pub(crate) const fn is_last(self) -> bool {
        self.0 & LAST != 0
    }

    /// The number of mappings that share the leaf; 0 if it is absent.
    #[inline]
    pub(crate) const fn shares(self) -> u64 {
        (self.0 / ONE_SHARE) & SHARES_MASK
    }

    /// The number of present entries in the table that the entry points to, in tables that count them.
    #[inline]
    pub const fn count(self) -> usize {
        ((self.0 & COUNT_MASK) >> COUNT_SHIFT) as usize
    }

    /// The pointer, with `count` as the number of present entries in its table.
    #[inline]
    pub const fn with_count(self, count: usize) -> Self {
        debug_assert!(count <= ENTRIES);
        Self(self.0 & !COUNT_MASK | (count as u64) << COUNT_SHIFT)
    }

    /// The physical address in the entry.
    #[inline]
    pub const fn phys(self) -> PhysAddr {
        PhysAddr::new(self.0 & ADDRESS_MASK)
    }

    /// The rights in the entry.
    #[inline]
    pub const fn rights(self) -> Rights {
        Rights(self.0 & (READ | WRITE))
    }

    /// The raw bits, as hardware reads them.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }
}

/// An entry of a table page: a word that CPUs write and hardware reads.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Entry(AtomicU64);

/// A table page.
pub type Frame = [Entry; ENTRIES];

impl Entry {
    /// An entry with these raw bits.
    pub fn new(bits: u64) -> Self {
        Self(AtomicU64::new(bits))
    }

    /// Reads the entry.
    ///
    /// Acquire: a CPU that follows the pointer to a table page must see the page zeroed, as the CPU that installed it
    /// did.
    #[inline]
    pub fn load(&self) -> EntryValue {
        EntryValue(self.0.load(Ordering::Acquire))
    }

    /// Writes the entry. The caller owns the range that it translates, so no other CPU writes it.
    ///
    /// Release: an entry that points to a table page must not be seen before the page's contents. For a leaf, the
    /// order that matters is the one towards the walker, which
    /// [`Platform::table_barrier`](crate::Platform::table_barrier) provides.
    #[inline]
    pub fn store(&self, value: EntryValue) {
        self.0.store(value.0, Ordering::Release);
    }

    /// Installs `new` if the entry is absent; otherwise returns the entry.
    ///
    /// AcqRel on success: publishes the zeroed page behind `new`. Acquire on failure: the caller follows the pointer
    /// of another CPU next.
    #[inline]
    pub(crate) fn install(&self, new: EntryValue) -> Result<(), EntryValue> {
        match self.0.compare_exchange(0, new.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            Err(found) => Err(EntryValue(found)),
        }
    }

    /// Removes the mark of the first page from an entry that is still `seen`. Returns whether this caller removed it.
    ///
    /// AcqRel: the claimer reads what the mapper wrote, and everything that it does to the mapping afterwards comes
    /// after the claim.
    #[inline]
    pub(crate) fn claim(&self, seen: EntryValue) -> bool {
        self.0.compare_exchange(seen.0, seen.0 & !FIRST, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Restores the mark that [`claim`](Self::claim) removed from `seen`. Does nothing if the entry has changed
    /// meanwhile, which is correct. Release: as the mapper did.
    #[inline]
    pub(crate) fn unclaim(&self, seen: EntryValue) {
        let _ = self.0.compare_exchange(seen.0 & !FIRST, seen.0, Ordering::Release, Ordering::Relaxed);
    }

    /// Adds a mapping to the count; the first one writes `leaf`. Returns the new number of mappings, or `None` if no
    /// more can be counted.
    ///
    /// Lock-free: an exchange fails only if that of another CPU has succeeded. AcqRel, as for [`claim`](Self::claim):
    /// what the caller does about the mapping comes after the count.
    /// [`Platform::table_barrier`](crate::Platform::table_barrier) provides the order towards the walker.
    #[inline]
    pub(crate) fn count_up(&self, leaf: EntryValue) -> Option<u64> {
        let more = |bits| match EntryValue(bits).shares() {
            0 => Some(leaf.0 | ONE_SHARE),
            SHARES_MAX.. => None,
            _ => Some(bits + ONE_SHARE),
        };
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(EntryValue(before).shares() + 1)
    }

    /// Subtracts a mapping from the count; the last one clears the entry. Returns the new number of mappings, or
    /// `None` if it was 0.
    ///
    /// The ordering is that of [`count_up`](Self::count_up).
    #[inline]
    pub(crate) fn count_down(&self) -> Option<u64> {
        let less = |bits| match EntryValue(bits).shares() {
            0 => None,
            1 => Some(EntryValue::ABSENT.0),
            _ => Some(bits - ONE_SHARE),
        };
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).ok()?;
        Some(EntryValue(before).shares() - 1)
    }

    /// Records that the entry has been flushed since it was installed. Release: a CPU that sees the record does not
    /// flush again.
    #[inline]
    pub(crate) fn set_flushed(&self) {
        self.0.fetch_or(FLUSHED, Ordering::Release);
    }

    /// Changes the raw bits from `old` to `new` if they are `old`. Returns whether they were. AcqRel, as for a claim of
    /// the entry.
    #[inline]
    pub fn exchange_bits(&self, old: u64, new: u64) -> bool {
        self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The raw bits. Software models of hardware use this, descriptors that lie in the same memory, and leaf tables
    /// whose entries have other states (`chunk/page_states.rs`).
    #[inline]
    pub fn load_bits(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Writes raw bits, ordered after everything that this CPU wrote before.
    #[inline]
    pub fn store_bits(&self, bits: u64) {
        self.0.store(bits, Ordering::Release);
    }
}
