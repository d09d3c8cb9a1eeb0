//! A run of unmaps, packed: a batch of 64 fits into 512 bytes.

use super::{BATCH_MAX, Due, Revoked};
use crate::address::IovaRange;
use arrayvec::ArrayVec;

/// A run in seven bytes: 36 bits for its first page number, 17 for its length in pages, two for its kind, and one for
/// `leaf_only`.
///
/// A length that does not fit is stored in the next entry. A run that unmaps may [join](super::Revocation::join) is
/// short, so the upper bits of the length field hold the number of its mappings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packed([u8; 7]);

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

    pub(super) fn push(
        to: &mut ArrayVec<Self, BATCH_MAX>,
        Revoked { range, due, leaf_only, unmaps }: Revoked,
        is_joined: bool,
    ) {
        debug_assert!(range.first_pfn() >> Self::LENGTH_SHIFT == 0, "a page number of 36 bits");
        let (pages, is_long) = (range.pages(), range.pages() >= Self::LONG);
        let (length, kind) = match is_joined {
            true => (pages << Self::LENGTH_SHIFT | (unmaps as u64) << Self::UNMAPS_SHIFT, Self::JOINED),
            false => (if is_long { 0 } else { pages << Self::LENGTH_SHIFT }, (due as u64).min(Self::NOT_DUE)),
        };
        // Where nothing is due, the bit tells the two reasons apart.
        let leaf_only = if due == Due::Kept { false } else { leaf_only || due == Due::Nothing };
        let leaf_only = u64::from(leaf_only) << Self::LEAF_ONLY_SHIFT;
        to.push(Self::of(range.first_pfn() | length | kind << Self::KIND_SHIFT | leaf_only));
        if is_long {
            to.push(Self::of(pages));
        }
    }

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
                        Due::Kept
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

const _: () = assert!(Due::Invalidation as u64 == 0 && Due::Nothing as u64 == 2 && Due::Kept as u64 == 3);
const _: () = assert!(BATCH_MAX < 1 << 7);
