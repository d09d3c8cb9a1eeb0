//! Leaf tables whose entries say themselves which pages are free: what the design `portcullis` allocates by.
//!
//! Pages are handed out in rounds. In each round a page goes through these states, and its entry shows which:
//!
//! ```text
//!                      63 62 61      53   52    51        12 11  2 1 0
//!                     +-----+----------+-------+------------+-----+-+-+
//! fresh               |  0  |    0     | round |     0      |  0  |0|0|  handed out to nobody in this round
//! mapped, first page  |  0  |  pages   | round | address    |  0  |W|R|
//! mapped, other pages |  0  |    0     | round | address    |  0  |W|R|
//! cleared, first page |  0  |  pages   | round |     0      |  0  |0|0|  the device may have it cached
//! spent               |  0  |    0     |!round |     0      |  0  |0|0|  and it is fresh in the next round
//!                     +-----+----------+-------+------------+-----+-+-+
//! ```
//!
//! A page becomes spent when its invalidation has completed: the first page of a mapping just then, the others as they are
//! cleared, for they are of the same chunk. A chunk is handed out again when all its pages are spent. So a page that somebody
//! has taken and not yet written holds its chunk back as much as one that is mapped or waits for its invalidation: nothing is
//! counted, and no step is shared between CPUs (S3).
//!
//! A mapping is known by its first entry alone, which holds its length; so an unmap of a part of one, or of one that is gone,
//! is refused by a look. The look is not atomic with what follows: two unmaps of one mapping at the same moment, a mistake that
//! the typed face rules out, may both be let through, as if the second had come when the address was in use again.

use super::entry::{Entry, EntryValue, Rights};
use crate::address::{IovaRange, PhysAddr, Segment};
use crate::error::UnmapError;
use crate::platform::{Platform, Step};

const ROUND: u64 = 1 << 52;
const PAGES_SHIFT: u32 = 53;
const PAGES_MASK: u64 = 0x1ff << PAGES_SHIFT;
/// Pages of the longest mapping: what nine bits say.
pub(crate) const ROUND_PAGES_MAX: u64 = PAGES_MASK >> PAGES_SHIFT;

/// What an entry of which nobody has anything looks like: fresh in one round, spent in the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Idle(u64);

impl Idle {
    /// As table pages come from the host: fresh in the first round.
    pub(crate) const FIRST: Self = Self(0);

    /// The other: what entries that are fresh like this one will be when they are spent.
    pub(crate) const fn next(self) -> Self {
        Self(self.0 ^ ROUND)
    }

    /// What the entry was before it was handed out, whatever it is now.
    const fn before(bits: u64) -> Self {
        Self(bits & ROUND)
    }
}

/// Writes the translations of a mapping of as many pages as there are `entries`, and makes them visible.
///
/// The caller has been handed these pages, and nobody else in this round.
#[inline(always)]
pub(crate) fn write<P: Platform>(platform: &P, entries: &[Entry], segments: &[Segment], rights: Rights) {
    debug_assert_eq!(segments.iter().map(Segment::pages).sum::<u64>(), entries.len() as u64);
    platform.probe(Step::TableWrite { entries: entries.len() });
    let (first, rest) = entries.split_first().expect("a mapping has a page");
    let round = Idle::before(first.load_bits()).0;
    let leaf = |phys_pfn| EntryValue::leaf(PhysAddr::from_pfn(phys_pfn), rights, false).bits() | round;
    // The first page last: it shows the whole mapping.
    if let [segment] = segments {
        for (entry, phys_pfn) in rest.iter().zip(segment.phys.pfn() + 1..) {
            entry.store_bits(leaf(phys_pfn));
        }
    } else {
        let pfns = |segment: &Segment| segment.phys.pfn()..segment.phys.pfn() + segment.pages();
        for (entry, phys_pfn) in rest.iter().zip(segments.iter().flat_map(pfns).skip(1)) {
            entry.store_bits(leaf(phys_pfn));
        }
    }
    first.store_bits(leaf(segments[0].phys.pfn()) | (entries.len() as u64) << PAGES_SHIFT);
    platform.table_barrier(entries);
}

/// Clears the mapping at exactly `range`, whose entries are the first of `entries`, and makes that visible. Its first page is
/// not spent yet.
///
/// # Errors
/// [`UnmapError::NotMapped`], [`UnmapError::Partial`].
#[inline(always)]
pub(crate) fn clear<'e, P: Platform>(
    platform: &P,
    entries: &'e [Entry],
    range: IovaRange,
) -> Result<Cleared<'e>, UnmapError> {
    let not_mapped = UnmapError::NotMapped(range.start());
    clear_at_once(platform, entries, range.pages()).ok_or_else(|| match entries.first().map(Entry::load_bits) {
        Some(bits) if EntryValue::from_bits(bits).is_present() => {
            match IovaRange::new(range.first_pfn(), (bits & PAGES_MASK) >> PAGES_SHIFT) {
                Some(mapped) => UnmapError::Partial { asked: range, mapped },
                None => not_mapped,
            }
        }
        _ => not_mapped,
    })
}

/// The same, where `pages` pages are mapped from the first of `entries` on; otherwise nothing.
#[inline(always)]
pub(crate) fn clear_at_once<'e, P: Platform>(platform: &P, entries: &'e [Entry], pages: u64) -> Option<Cleared<'e>> {
    let first = entries.first()?;
    let bits = first.load_bits();
    // The bits above the length are zero.
    if bits >> PAGES_SHIFT != pages || !EntryValue::from_bits(bits).is_present() {
        return None;
    }
    let entries = &entries[..pages as usize];
    platform.probe(Step::TableClear { entries: entries.len() });
    first.store_bits(bits & (PAGES_MASK | ROUND));
    let spent = Idle::before(bits).next();
    for entry in &entries[1..] {
        entry.store_bits(spent.0);
    }
    platform.table_barrier(entries);
    Some(Cleared { first, spent })
}

/// What [`clear`] has left of the first page of a mapping, until it is spent.
#[derive(Clone, Copy)]
pub(crate) struct Cleared<'e> {
    first: &'e Entry,
    spent: Idle,
}

impl Cleared<'_> {
    /// Ends the round, now that the invalidation has completed: as [`spend`] does.
    #[inline(always)]
    pub(crate) fn spend(self) {
        self.first.store_bits(self.spent.0);
    }
}

/// Ends the round for the first page of a mapping that was cleared, now that its invalidation has completed.
///
/// Release: whoever finds the chunk spent knows that. Hardware sees no difference, so nothing is flushed.
#[inline(always)]
pub(crate) fn spend(first: &Entry) {
    first.store_bits(Idle::before(first.load_bits()).next().0);
}

/// Ends the round for pages that the caller was handed and has no use for.
pub(crate) fn spend_unused(entries: &[Entry]) {
    entries.iter().for_each(spend);
}

/// The number of the first of `entries` that is not `spent`, if there is one.
///
/// Acquire, in `load_bits`: what ended their round is over.
#[inline]
pub(crate) fn first_unspent(entries: &[Entry], spent: Idle) -> Option<usize> {
    entries.iter().position(|entry| entry.load_bits() != spent.0)
}

/// How many mappings begin among `entries` whose round has not ended.
pub(crate) fn live(entries: &[Entry]) -> usize {
    entries.iter().filter(|entry| entry.load_bits() & PAGES_MASK != 0).count()
}
