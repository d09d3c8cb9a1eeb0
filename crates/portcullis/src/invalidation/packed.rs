//! A run of unmaps, packed: a batch of 64 fits into 512 bytes.

use super::BATCH_MAX;
use super::revoked::{Due, Revoked};
use crate::address::IovaRange;
use core::fmt;
use core::mem::MaybeUninit;

/// Room for a packed run.
pub(super) type Slot = MaybeUninit<Packed>;

/// Room for packed runs in a [`Revocation`](super::Revocation): for any number, or for none. There are no other kinds:
/// what it is room for has no name outside.
pub trait Room {
    /// Whether it has room for none.
    const IS_NONE: bool;

    /// The room.
    fn slots(&self) -> &[Slot];

    /// The room.
    fn slots_mut(&mut self) -> &mut [Slot];
}

impl Room for [Slot] {
    const IS_NONE: bool = false;

    #[inline(always)]
    fn slots(&self) -> &[Slot] {
        self
    }

    #[inline(always)]
    fn slots_mut(&mut self) -> &mut [Slot] {
        self
    }
}

impl<const N: usize> Room for [Slot; N] {
    const IS_NONE: bool = N == 0;

    #[inline(always)]
    fn slots(&self) -> &[Slot] {
        self
    }

    #[inline(always)]
    fn slots_mut(&mut self) -> &mut [Slot] {
        self
    }
}

/// Packed runs, the oldest first, and room for more.
pub(super) struct Closed<R: ?Sized> {
    /// The number of slots that are filled: the first.
    filled: u8,
    slots: R,
}

impl<const N: usize> Closed<[Slot; N]> {
    /// No runs.
    pub(super) const fn new() -> Self {
        Self { filled: 0, slots: [Slot::uninit(); N] }
    }
}

impl<R: Room + ?Sized> Closed<R> {
    /// The number of entries that it has room for.
    #[inline(always)]
    pub(super) fn capacity(&self) -> usize {
        self.slots.slots().len()
    }

    #[inline(always)]
    pub(super) const fn is_empty(&self) -> bool {
        R::IS_NONE || self.filled == 0
    }

    /// The entries.
    #[inline]
    pub(super) fn entries(&self) -> &[Packed] {
        if R::IS_NONE {
            return &[];
        }
        let filled = core::ptr::from_ref(&self.slots.slots()[..usize::from(self.filled)]);
        // SAFETY: a slot has the layout of its entry, and these slots are filled.
        unsafe { &*(filled as *const [Packed]) }
    }

    pub(super) fn entries_mut(&mut self) -> &mut [Packed] {
        let filled = core::ptr::from_mut(&mut self.slots.slots_mut()[..usize::from(self.filled)]);
        // SAFETY: as above.
        unsafe { &mut *(filled as *mut [Packed]) }
    }

    fn push_entry(&mut self, entry: Packed) {
        self.slots.slots_mut()[usize::from(self.filled)].write(entry);
        self.filled += 1;
    }

    /// Keeps only the first `entries` entries.
    pub(super) fn truncate(&mut self, entries: usize) {
        self.filled = self.filled.min(entries as u8);
    }

    /// Adds a run.
    ///
    /// # Panics
    /// If there is no room.
    pub(super) fn push(&mut self, Revoked { range, due, leaf_only, unmaps }: Revoked, is_joined: bool) {
        debug_assert!(range.first_pfn() >> Packed::LENGTH_SHIFT == 0, "a page number of 36 bits");
        let (pages, is_long) = (range.pages(), range.pages() >= Packed::LONG);
        let (length, kind) = match is_joined {
            true => (pages << Packed::LENGTH_SHIFT | (unmaps as u64) << Packed::UNMAPS_SHIFT, Packed::JOINED),
            false => (if is_long { 0 } else { pages << Packed::LENGTH_SHIFT }, (due as u64).min(Packed::NOT_DUE)),
        };
        // Where nothing is due, the bit tells the two reasons apart.
        let leaf_only = if due == Due::StaysMapped { false } else { leaf_only || due == Due::Nothing };
        let leaf_only = u64::from(leaf_only) << Packed::LEAF_ONLY_SHIFT;
        self.push_entry(Packed::of(range.first_pfn() | length | kind << Packed::KIND_SHIFT | leaf_only));
        if is_long {
            self.push_entry(Packed::of(pages));
        }
    }
}

impl<R: ?Sized> fmt::Debug for Closed<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} entries", self.filled)
    }
}

/// A run in seven bytes: 36 bits for its first page number, 17 for its length in pages, two for its kind, and one for
/// `leaf_only`.
///
/// A length that does not fit is stored in the next entry. A run that unmaps may [join](super::Revocation::join) is
/// short, so the upper bits of the length field hold the number of its mappings.
#[derive(Clone, Copy, Debug)]
pub struct Packed([u8; 7]);

impl Packed {
    pub(super) const LENGTH_SHIFT: u32 = 36;
    /// The position of the number of mappings.
    pub(super) const UNMAPS_SHIFT: u32 = 46;
    pub(super) const KIND_SHIFT: u32 = 53;
    const LEAF_ONLY_SHIFT: u32 = 55;
    /// The number of pages from which the length of a run is stored in the next entry.
    pub(super) const LONG: u64 = 1 << (Self::KIND_SHIFT - Self::LENGTH_SHIFT);
    /// The kind of a run for which no invalidation is due.
    const NOT_DUE: u64 = Due::Nothing as u64;
    /// The kind of a run that unmaps may join. It is due for invalidation.
    const JOINED: u64 = 3;

    /// The number of entries that a run of `pages` pages takes.
    pub(super) const fn room(pages: u64) -> usize {
        if pages < Self::LONG { 1 } else { 2 }
    }

    fn of(bits: u64) -> Self {
        let [low @ .., _] = bits.to_le_bytes();
        Self(low)
    }

    fn bits(self) -> u64 {
        let [a, b, c, d, e, f, g] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, 0])
    }

    /// Bits `from` to before `end`.
    pub(super) fn field(self, from: u32, end: u32) -> u64 {
        self.bits() >> from & ((1 << (end - from)) - 1)
    }

    /// The run, if unmaps may join it. A length in an entry by itself has no such kind.
    pub(super) fn joined(self) -> Option<Revoked> {
        if self.field(Self::KIND_SHIFT, Self::LEAF_ONLY_SHIFT) != Self::JOINED {
            return None;
        }
        let range =
            IovaRange::of(self.field(0, Self::LENGTH_SHIFT), self.field(Self::LENGTH_SHIFT, Self::UNMAPS_SHIFT));
        let unmaps = self.field(Self::UNMAPS_SHIFT, Self::KIND_SHIFT) as usize;
        Some(Revoked { range, due: Due::Invalidation, leaf_only: true, unmaps })
    }

    pub(super) fn all(packed: &[Self]) -> impl Iterator<Item = Revoked> + Clone {
        let mut rest = packed.iter();
        core::iter::from_fn(move || {
            let packed = *rest.next()?;
            if let Some(joined) = packed.joined() {
                return Some(joined);
            }
            let first = packed.field(0, Self::LENGTH_SHIFT);
            let leaf_only = packed.field(Self::LEAF_ONLY_SHIFT, Self::LEAF_ONLY_SHIFT + 1) != 0;
            let due = match packed.field(Self::KIND_SHIFT, Self::LEAF_ONLY_SHIFT) {
                Self::NOT_DUE => {
                    if leaf_only {
                        Due::Nothing
                    } else {
                        Due::StaysMapped
                    }
                }
                1 => Due::InvalidationAtOnce,
                _ => Due::Invalidation,
            };
            let pages = match packed.field(Self::LENGTH_SHIFT, Self::KIND_SHIFT) {
                0 => rest.next()?.bits(),
                pages => pages,
            };
            Some(Revoked::one(IovaRange::of(first, pages), due, leaf_only))
        })
    }
}

const _: () = assert!(Due::Invalidation as u64 == 0 && Due::Nothing as u64 == 2 && Due::StaysMapped as u64 == 3);
const _: () = assert!(BATCH_MAX < 1 << 7);
