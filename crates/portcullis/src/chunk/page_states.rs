//! The states of a page, as the entries of leaf tables record them. The design `portcullis` allocates from these
//! entries.
//!
//! A page is handed out in generations. One bit of its entry tells the current generation from the next. In each
//! generation a page goes through the following states, and its entry shows which one it is in:
//!
//! ```text
//!                      63 62 61  53 52 51   21 20   12 11  10   9   8  2  1 0
//!                     +-----+------+--+---------+-------+--+-----+---+-----+-+-+
//! fresh               |  0  |  0   | 0|    0    |any len| 0| gen | 0 |  0  |0|0|  not handed out in this generation
//! mapped, first page  |  0  | pages| 0|     address     | 0| gen | 0 |  0  |W|R|
//! mapped, other pages |  0  |  0   | 0|     address     | 0| gen | 0 |  0  |W|R|
//! cleared, first page |  0  |  0   | 0|    0    | pages | 0| gen | 1 |  0  |0|0|  the device may have it cached
//! spent, first page   |  0  |  0   | 0|    0    | pages | 0|!gen | 0 |  0  |0|0|  fresh in the next generation
//! spent, other pages  |  0  |  0   | 0|    0    |   0   | 0|!gen | 0 |  0  |0|0|  fresh in the next generation
//!                     +-----+------+--+---------+-------+--+-----+---+-----+-+-+
//! ```
//!
//! Hardware ignores bits 61:52 and bit 10 of a leaf, and everything but the rights of an absent entry. Bit 9 would be
//! the dirty flag of a leaf if hardware kept such flags (scalable mode, SSADE); the library never enables them. Bits
//! 63:53 are zero except in the first entry of a mapping. The other state bits are below bit 32, so that an
//! instruction can take them as a constant.
//!
//! The first page of a mapping becomes spent when the invalidation has completed; its other pages are marked spent
//! when they are cleared. Waiting for the first page is enough, because no unit of the mapping is handed out again
//! before that page is spent. A page that was taken and not written yet is not spent either, so it keeps its chunk
//! from being handed out just as a mapped or cleared page does. No counter is needed, and no step is shared between
//! CPUs (S3). The length in a fresh entry is left over from an earlier generation and has no meaning.
//! [`TableRecord`](super::table_record::TableRecord) records which generation each unit is in.
//!
//! A mapping is identified by its first entry alone, which holds its length. An unmap reads that entry, and is refused
//! if it covers only a part of a mapping or if the mapping is gone. This check and the clearing after it are not one
//! atomic step. If two unmaps of one mapping run at the same moment, which only a mistake through the raw interface
//! can cause, both may pass the check, and the second may clear whatever is there by then.

use crate::address::{IovaRange, PAGE_SIZE, PhysAddr, Segment};
use crate::entry::{Entry, EntryValue, Rights};
use crate::error::UnmapError;
use crate::platform::{Platform, Step};
use crate::proof::Proof;
use crate::table::Walker;

const GENERATION: u64 = 1 << 10;
/// The position of the length in the first entry of a mapping.
const MAPPED_SHIFT: u32 = 53;
/// The position of the length after the mapping was cleared.
const GONE_SHIFT: u32 = 12;
const CLEARED: u64 = 1 << 9;
/// The bits that change in the first entry of a mapping when it is spent.
const END: u64 = CLEARED | GENERATION;
/// The number of entries in a cache line.
const LINE_ENTRIES: usize = 8;
/// The number of pages of the longest mapping: nine bits hold the length. A mapping of a whole table is better served
/// by a large leaf.
pub(crate) const MAPPING_PAGES_MAX: u64 = (1 << 9) - 1;

/// The bits of an entry that is not in use: fresh in one generation, spent in the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Idle(u64);

impl Idle {
    /// The value in table pages as the host allocates them: fresh in the first generation.
    pub(crate) const FIRST: Self = Self(0);

    /// The other value: entries that are fresh with this one will have the other when they are spent.
    pub(crate) const fn next(self) -> Self {
        Self(self.0 ^ GENERATION)
    }

    /// The value for the generation bit of an entry. It stays the same until the page is spent, and is the other one
    /// from then on.
    const fn of(bits: u64) -> Self {
        Self(bits & GENERATION)
    }
}

/// Writes the translations of one mapping, whose pages are those of `entries`, and makes them visible. The segments
/// must lie at addresses that a leaf can hold.
///
/// The pages were handed to the caller, and to no other caller in this generation.
#[inline(always)]
pub(crate) fn write<P: Platform>(walker: Walker<'_, P>, entries: &[Entry], segments: &[Segment], rights: Rights) {
    debug_assert_eq!(segments.iter().map(Segment::pages).sum::<u64>(), entries.len() as u64);
    walker.platform().probe(Step::ChunkWrite { entries: entries.len() });
    let first = entries.first().expect("a mapping has a page");
    // An addition instead of an OR with a 64-bit mask: the bits do not overlap.
    let flags = rights.bits() + Idle::of(first.load_bits()).0;
    let leaf = |phys: PhysAddr| {
        debug_assert_eq!(EntryValue::leaf(phys, rights, false).phys(), PhysAddr::from_pfn(phys.pfn()));
        (phys.as_u64() & !(PAGE_SIZE - 1)) + flags
    };
    let first_leaf = leaf(segments[0].phys);
    // The first entry is written last: it makes the whole mapping visible to unmaps.
    if segments.len() == 1 {
        store_others(entries, first_leaf, PAGE_SIZE);
    } else {
        store_others_of(entries, segments, flags);
    }
    first.store_bits(first_leaf + ((entries.len() as u64) << MAPPED_SHIFT));
    walker.show(entries);
}

/// Writes the translations of one-page mappings, one for each of `entries`, and makes them visible. Each segment must
/// lie within a page, at an address that a leaf can hold.
///
/// The pages were handed to the caller, and to no other caller in this generation.
#[inline(always)]
pub(crate) fn write_pages<P: Platform>(walker: Walker<'_, P>, entries: &[Entry], segments: &[Segment], rights: Rights) {
    debug_assert!(segments.iter().take(entries.len()).all(|segment| segment.pages() == 1));
    walker.platform().probe(Step::ChunkWrite { entries: entries.len() });
    let first = entries.first().expect("a mapping has a page");
    let flags = rights.bits() + Idle::of(first.load_bits()).0 + (1 << MAPPED_SHIFT);
    for (entry, segment) in entries.iter().zip(segments) {
        entry.store_bits((segment.phys.as_u64() & !(PAGE_SIZE - 1)) + flags);
    }
    walker.show(entries);
}

/// Does the same for the pages from `phys` on, which lie side by side in memory.
pub(crate) fn write_run<P: Platform>(walker: Walker<'_, P>, entries: &[Entry], phys: PhysAddr, rights: Rights) {
    walker.platform().probe(Step::ChunkWrite { entries: entries.len() });
    let first = entries.first().expect("a mapping has a page");
    let flags = rights.bits() + Idle::of(first.load_bits()).0 + (1 << MAPPED_SHIFT);
    for (entry, pfn) in entries.iter().zip(phys.pfn()..) {
        entry.store_bits(PhysAddr::from_pfn(pfn).as_u64() + flags);
    }
    walker.show(entries);
}

/// Stores the leaves of all pages of `segments` except the first. A function of its own, because most mappings have
/// one segment.
#[inline(never)]
fn store_others_of(entries: &[Entry], segments: &[Segment], flags: u64) {
    let pfns = |segment: &Segment| segment.phys.pfn()..segment.phys.pfn() + segment.pages();
    for (entry, phys_pfn) in entries.iter().zip(segments.iter().flat_map(pfns)).skip(1) {
        entry.store_bits(PhysAddr::from_pfn(phys_pfn).as_u64() + flags);
    }
}

/// Stores a value in each of `entries` except the first. Each value is `step` more than the one before; `bits` would
/// be the value of the first.
#[inline(always)]
fn store_others(entries: &[Entry], mut bits: u64, step: u64) {
    if entries.len() <= 1 {
        return;
    }
    // One cache line at a time: long mappings mostly begin at the start of one. Compilers do not vectorize atomic
    // stores, nor do they unroll loops of them.
    let rest = if let Some((line, rest)) = entries.split_first_chunk() {
        store_line(line, bits, step, 1);
        bits = bits.wrapping_add(LINE_ENTRIES as u64 * step);
        rest
    } else {
        bits = bits.wrapping_add(step);
        &entries[1..]
    };
    let (lines, rest) = rest.as_chunks();
    for line in lines {
        store_line(line, bits, step, 0);
        bits = bits.wrapping_add(LINE_ENTRIES as u64 * step);
    }
    for entry in rest {
        entry.store_bits(bits);
        bits = bits.wrapping_add(step);
    }
}

/// Does the same for the entries of one cache line, from index `from` on.
#[inline(always)]
fn store_line(line: &[Entry; LINE_ENTRIES], bits: u64, step: u64, from: usize) {
    for (number, entry) in line.iter().enumerate().skip(from) {
        entry.store_bits(bits.wrapping_add(number as u64 * step));
    }
}

/// Clears the mapping at exactly `range`, whose entries are the first of `entries`. The caller still has to make that
/// visible and to spend the first page. `None` if there is no such mapping; [`refusal`] then says why.
#[inline(always)]
pub(crate) fn clear<'e, P: Platform>(platform: &P, entries: &'e [Entry], range: IovaRange) -> Option<Cleared<'e>> {
    let first = entries.first()?;
    let (bits, pages) = (first.load_bits(), range.pages());
    if bits >> MAPPED_SHIFT != pages {
        return None;
    }
    let entries = &entries[..pages as usize];
    platform.probe(Step::ChunkClear { entries: entries.len() });
    let cleared = Cleared { entries, bits: CLEARED | pages << GONE_SHIFT | bits & GENERATION };
    first.store_bits(cleared.bits);
    store_others(entries, Idle::of(bits).next().0, 0);
    Some(cleared)
}

/// A mapping that [`clear`] has cleared and that is not spent yet.
#[derive(Clone, Copy)]
pub(crate) struct Cleared<'e> {
    entries: &'e [Entry],
    /// The value of the first entry.
    bits: u64,
}

impl Cleared<'_> {
    /// Makes the cleared entries visible to the walker.
    #[inline(always)]
    pub(crate) fn make_visible<P: Platform>(self, walker: Walker<'_, P>) -> Self {
        walker.show(self.entries);
        self
    }

    /// The value that [`spend`](Self::spend) compares with, to be kept beyond the walk.
    #[inline(always)]
    pub(crate) fn mark(self) -> ClearedMark {
        ClearedMark(self.bits)
    }

    /// Spends the first page as [`spend`] does, but only if it still belongs to this mapping: if two unmaps have
    /// raced, the later one finds another state.
    #[inline(always)]
    pub(crate) fn spend(self, _proof: &Proof) {
        self.mark().spend_first(&self.entries[0]);
    }
}

/// The value of the first entry of a mapping that is cleared and not spent.
#[derive(Clone, Copy)]
pub(crate) struct ClearedMark(u64);

impl ClearedMark {
    /// Spends the mapping in a later walk; `entries` begin with its entries. If another unmap of the same mapping came
    /// first, the table may be gone, and the entry is mostly in another state. The entry might hold the same value
    /// again two generations later, or in a fresh table; this is not excluded, because racing unmaps of one mapping
    /// are not told apart (see the description of this module).
    pub(crate) fn spend(self, entries: &[Entry], _proof: &Proof) {
        entries.first().into_iter().for_each(|first| self.spend_first(first));
    }

    #[inline(always)]
    fn spend_first(self, first: &Entry) {
        if first.load_bits() == self.0 {
            first.store_bits(self.0 ^ END);
        }
    }
}

/// The reason why no mapping is at exactly `range`, whose entries are the first of `entries`.
#[cold]
pub(crate) fn refusal(entries: &[Entry], range: IovaRange) -> UnmapError {
    let mapped = entries.first().map_or(0, |first| first.load_bits() >> MAPPED_SHIFT);
    match IovaRange::new(range.first_pfn(), mapped) {
        Some(mapped) if mapped != range => UnmapError::Partial { asked: range, mapped },
        _ => UnmapError::NotMapped(range.start()),
    }
}

/// Makes visible to the walker that adjacent mappings were cleared; `entries` are their entries. Each cache line is
/// flushed once. If another unmap of the same mappings has come first, nothing is left to be made visible.
#[inline]
pub(crate) fn make_visible<P: Platform>(walker: Walker<'_, P>, entries: &[Entry]) {
    if entries.iter().any(|entry| entry.load_bits() & CLEARED != 0) {
        walker.show(entries);
    }
}

/// Spends the first pages of adjacent cleared mappings, whose invalidation has completed; `entries` are their entries.
///
/// Release: a CPU that finds a chunk spent knows that its invalidations have completed. Hardware sees no difference,
/// so nothing is flushed. An entry that is no longer cleared belongs to a mapping that another unmap has spent
/// already.
#[inline]
pub(crate) fn spend<P: Platform>(platform: &P, entries: &[Entry], _proof: &Proof) {
    let mut at = 0;
    while let Some(first) = entries.get(at) {
        let bits = first.load_bits();
        // The common case: a cache line full of one-page mappings.
        if bits & !GENERATION == CLEARED | 1 << GONE_SHIFT
            && let Some(line) = entries[at..].first_chunk::<LINE_ENTRIES>()
            && line.iter().all(|entry| entry.load_bits() == bits)
        {
            for entry in line {
                platform.probe(Step::ChunkReturn);
                entry.store_bits(bits ^ END);
            }
            at += LINE_ENTRIES;
            continue;
        }
        at += 1;
        if bits & CLEARED != 0 {
            platform.probe(Step::ChunkReturn);
            first.store_bits(bits ^ END);
            // Its other pages are spent already.
            at += ((bits >> GONE_SHIFT) & MAPPING_PAGES_MAX) as usize - 1;
        }
    }
}

/// Spends pages that were handed to the caller and not used: no translation led to them in this generation. They are
/// left as the pages of one mapping that is spent, its first page last.
#[cold]
#[inline(never)]
pub(crate) fn spend_unused(entries: &[Entry]) {
    let Some((first, others)) = entries.split_first() else { return };
    let spent = Idle::of(first.load_bits()).next().0;
    others.iter().for_each(|entry| entry.store_bits(spent));
    // Release, in `store_bits`: a CPU that finds this page spent skips the others.
    let pages = (entries.len() as u64).min(MAPPING_PAGES_MAX);
    first.store_bits(spent | pages << GONE_SHIFT);
}

/// Whether a page that was handed out in this generation is spent.
///
/// Acquire, in `load_bits`: the invalidation before the spend has completed.
#[inline(always)]
pub(crate) fn is_spent(entry: &Entry, generation: Idle) -> bool {
    Idle::of(entry.load_bits()) != generation
}

/// Whether all of `entries`, which were handed out in this generation for long mappings, are spent; and how many were
/// read. The pages of a mapping are all spent once its first page is, because the first page is spent last.
pub(super) fn mappings_are_spent(entries: &[Entry], generation: Idle) -> (bool, usize) {
    let (mut at, mut looks) = (0, 0);
    while let Some(first) = entries.get(at) {
        looks += 1;
        let (bits, length) = (first.load_bits(), MAPPING_PAGES_MAX << GONE_SHIFT);
        // Nothing but a length and the generation: if unmaps have raced for one mapping, an entry may be in another
        // state although its generation has ended, and its other bits are no length to be trusted.
        if bits & !length != generation.next().0 {
            return (false, looks);
        }
        at += (bits >> GONE_SHIFT).max(1) as usize;
    }
    (true, looks)
}

/// Whether all of `entries`, which were handed out in this generation, are spent.
pub(super) fn all_are_spent(entries: &[Entry], generation: Idle) -> bool {
    // A loop over two lines is unrolled.
    let (lines, rest) = entries.as_chunks::<{ 2 * LINE_ENTRIES }>();
    lines.iter().all(|line| are_spent(line, generation)) && are_spent(rest, generation)
}

/// Whether all of `entries`, which were handed out in this generation, are spent. All entries are combined first, and
/// the generation bit is tested once.
#[inline(always)]
fn are_spent(entries: &[Entry], generation: Idle) -> bool {
    let bits = entries.iter().map(Entry::load_bits);
    if generation == Idle::FIRST {
        bits.fold(GENERATION, |all, bits| all & bits) != 0
    } else {
        bits.fold(0, |any, bits| any | bits) & GENERATION == 0
    }
}

/// The number of mappings among `entries` that are not spent.
pub(crate) fn live(entries: &[Entry]) -> usize {
    let is_live = |bits: u64| bits >> MAPPED_SHIFT != 0 || bits & CLEARED != 0;
    entries.iter().filter(|entry| is_live(entry.load_bits())).count()
}
