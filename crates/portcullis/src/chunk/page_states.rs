//! Leaf tables whose entries say themselves which pages are free: what the design `portcullis` allocates by.
//!
//! Pages are handed out in generations, of which an entry knows two: this one and the other. In each a page goes through these
//! states, and its entry shows which:
//!
//! ```text
//!                      63 62 61  53 52 51   21 20   12 11  10   9   8  2  1 0
//!                     +-----+------+--+---------+-------+--+-----+---+-----+-+-+
//! fresh               |  0  |  0   | 0|    0    |any len| 0| gen | 0 |  0  |0|0|  not handed out in this generation
//! mapped, first page  |  0  | pages| 0|     address     | 0| gen | 0 |  0  |W|R|
//! mapped, other pages |  0  |  0   | 0|     address     | 0| gen | 0 |  0  |W|R|
//! cleared, first page |  0  |  0   | 0|    0    | pages | 0| gen | 1 |  0  |0|0|  the device may have it cached
//! spent, first page   |  0  |  0   | 0|    0    | pages | 0|!gen | 0 |  0  |0|0|  and it is fresh in the next generation
//! spent, other pages  |  0  |  0   | 0|    0    |   0   | 0|!gen | 0 |  0  |0|0|  likewise
//!                     +-----+------+--+---------+-------+--+-----+---+-----+-+-+
//! ```
//!
//! Hardware ignores bits 61:52 and 10 of a leaf, and of an absent entry all but the rights. Bit 9 would be the dirty flag of a
//! leaf where hardware kept such flags (scalable mode, SSADE), which it is never told to. Bits 63:53 are zero unless a mapping
//! begins there. The other bits that say a state lie below bit 32, where an instruction takes them as a constant.
//!
//! A page becomes spent when its invalidation has completed: the first page of a mapping just then, the others as they are
//! cleared. Only the first page waits for the invalidation: its chunk cannot be handed out again before that page is spent. So
//! a page that somebody has taken and not yet written holds its chunk back as much as one that is mapped or waits for its
//! invalidation: nothing is counted, and no step is shared between CPUs (S3). An entry with any length in it is fresh when its
//! generation has ended once more: [`TableRecord`](super::table_record::TableRecord) notes in which generation each unit is.
//!
//! A mapping is known by its first entry alone, which holds its length; so an unmap of a part of one, or of one that is gone,
//! is refused by a look. The look is not atomic with what follows: of two unmaps of one mapping at the same moment, a mistake
//! that is one of the raw face, both may be let through, and the second may clear what is there by then.

use crate::address::{IovaRange, PAGE_SIZE, PhysAddr, Segment};
use crate::entry::{Entry, EntryValue, Rights};
use crate::error::UnmapError;
use crate::platform::{Platform, Step};
use crate::proof::Proof;
use crate::table::Walker;

const GENERATION: u64 = 1 << 10;
/// Where the length is in the first entry of a mapping.
const MAPPED_SHIFT: u32 = 53;
/// Where it is when the mapping is gone.
const GONE_SHIFT: u32 = 12;
const CLEARED: u64 = 1 << 9;
/// What changes in the first entry of a mapping when its generation ends.
const END: u64 = CLEARED | GENERATION;
/// Entries of a cache line.
const LINE_ENTRIES: usize = 8;
/// Pages of the longest mapping: what nine bits say. One of all of a table is better off with a large leaf.
pub(crate) const MAPPING_PAGES_MAX: u64 = (1 << 9) - 1;

/// The look of an entry that is not handed out: fresh in one generation, spent in the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Idle(u64);

impl Idle {
    /// As table pages come from the host: fresh in the first generation.
    pub(crate) const FIRST: Self = Self(0);

    /// The other: what entries that are fresh like this one will be when they are spent.
    pub(crate) const fn next(self) -> Self {
        Self(self.0 ^ GENERATION)
    }

    /// The look in the generation that an entry shows: this one until it is spent, and the other from then on.
    const fn of(bits: u64) -> Self {
        Self(bits & GENERATION)
    }
}

/// Writes the translations of a mapping of as many pages as there are `entries`, and makes them visible. The segments lie at
/// addresses that a leaf can hold.
///
/// These pages were handed to the caller, and to no other in this generation.
#[inline(always)]
pub(crate) fn write<P: Platform>(walker: Walker<'_, P>, entries: &[Entry], segments: &[Segment], rights: Rights) {
    debug_assert_eq!(segments.iter().map(Segment::pages).sum::<u64>(), entries.len() as u64);
    walker.platform().probe(Step::ChunkWrite { entries: entries.len() });
    let first = entries.first().expect("a mapping has a page");
    // A sum, and no mask of 64 bits: nothing overlaps.
    let flags = rights.bits() + Idle::of(first.load_bits()).0;
    let leaf = |phys: PhysAddr| {
        debug_assert_eq!(EntryValue::leaf(phys, rights, false).phys(), PhysAddr::from_pfn(phys.pfn()));
        (phys.as_u64() & !(PAGE_SIZE - 1)) + flags
    };
    let first_leaf = leaf(segments[0].phys);
    // The first page last: it shows the whole mapping.
    if segments.len() == 1 {
        store_others(entries, first_leaf, PAGE_SIZE);
    } else {
        store_others_of(entries, segments, flags);
    }
    first.store_bits(first_leaf + ((entries.len() as u64) << MAPPED_SHIFT));
    walker.show(entries);
}

/// Writes the translations of as many mappings of a page as there are `entries`, and makes them visible. The segments lie each in a page,
/// and at addresses that a leaf can hold.
///
/// These pages were handed to the caller, and to no other in this generation.
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

/// Stores the leaves of all pages of `segments` but the first. Apart, for most mappings have one segment.
#[inline(never)]
fn store_others_of(entries: &[Entry], segments: &[Segment], flags: u64) {
    let pfns = |segment: &Segment| segment.phys.pfn()..segment.phys.pfn() + segment.pages();
    for (entry, phys_pfn) in entries.iter().zip(segments.iter().flat_map(pfns)).skip(1) {
        entry.store_bits(PhysAddr::from_pfn(phys_pfn).as_u64() + flags);
    }
}

/// Stores in all of `entries` but the first, in each `step` more than in the one before. `bits` would be that of the first.
#[inline(always)]
fn store_others(entries: &[Entry], mut bits: u64, step: u64) {
    if entries.len() <= 1 {
        return;
    }
    // A cache line at a time: long mappings mostly begin with one. Compilers make no vectors of atomic stores, and of their
    // loops no longer steps.
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

/// The same for a cache line of entries, from number `from` on.
#[inline(always)]
fn store_line(line: &[Entry; LINE_ENTRIES], bits: u64, step: u64, from: usize) {
    for (number, entry) in line.iter().enumerate().skip(from) {
        entry.store_bits(bits.wrapping_add(number as u64 * step));
    }
}

/// Clears the mapping at exactly `range`, whose entries are the first of `entries`. That is yet to be made visible, and its first page
/// is not spent yet. `None` if there is no such mapping: then [`refusal`] says why.
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

/// What [`clear`] has left of a mapping, until it is spent.
#[derive(Clone, Copy)]
pub(crate) struct Cleared<'e> {
    entries: &'e [Entry],
    /// Of the first entry.
    bits: u64,
}

impl Cleared<'_> {
    /// Shows the walker that the mapping is gone.
    #[inline(always)]
    pub(crate) fn make_visible<P: Platform>(self, walker: Walker<'_, P>) -> Self {
        walker.show(self.entries);
        self
    }

    /// What [`spend`](Self::spend) goes by, for after the walk.
    #[inline(always)]
    pub(crate) fn mark(self) -> ClearedMark {
        ClearedMark(self.bits)
    }

    /// Ends the generation as [`spend`] does, but only of this mapping: of two unmaps that have raced, the later finds another
    /// state.
    #[inline(always)]
    pub(crate) fn spend(self, _proof: &Proof) {
        self.mark().spend_first(&self.entries[0]);
    }
}

/// What the first entry of a mapping says that was cleared, and not spent.
#[derive(Clone, Copy)]
pub(crate) struct ClearedMark(u64);

impl ClearedMark {
    /// Ends the generation of the mapping, whose entries are the first of `entries`, in a later walk. Where another unmap of the same mapping
    /// has come before, its table may have gone, and the entry mostly has another state; that it is never the same one two generations, or a
    /// fresh table, later is not known: such unmaps that race are not told apart, see above.
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

/// Why no mapping is at exactly `range`, whose entries are the first of `entries`.
#[cold]
pub(crate) fn refusal(entries: &[Entry], range: IovaRange) -> UnmapError {
    let mapped = entries.first().map_or(0, |first| first.load_bits() >> MAPPED_SHIFT);
    match IovaRange::new(range.first_pfn(), mapped) {
        Some(mapped) if mapped != range => UnmapError::Partial { asked: range, mapped },
        _ => UnmapError::NotMapped(range.start()),
    }
}

/// Shows the walker that mappings were cleared which lie side by side, and whose entries these are: each cache line is flushed once.
/// Nothing is left to be shown where another unmap of the same mappings has come before.
#[inline]
pub(crate) fn make_visible<P: Platform>(walker: Walker<'_, P>, entries: &[Entry]) {
    if entries.iter().any(|entry| entry.load_bits() & CLEARED != 0) {
        walker.show(entries);
    }
}

/// Ends the generation for the first pages of mappings that were cleared, now that their invalidation has completed. They lie side by
/// side, and `entries` are theirs.
///
/// Release: a CPU that finds the chunk spent knows that its invalidations are over. Hardware sees no difference, so nothing is
/// flushed. Where one is cleared no more, another unmap of the same mapping has come before.
#[inline]
pub(crate) fn spend<P: Platform>(platform: &P, entries: &[Entry], _proof: &Proof) {
    let mut at = 0;
    while let Some(first) = entries.get(at) {
        let bits = first.load_bits();
        // As drivers mostly unmap: a cache line at a time of mappings of a page.
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

/// Ends the generation for pages that the caller was handed and has no use for: no translation led to them in this generation.
pub(crate) fn spend_unused(entries: &[Entry]) {
    entries.iter().for_each(|entry| entry.store_bits(Idle::of(entry.load_bits()).next().0));
}

/// Whether a page that was handed out in this generation is spent.
///
/// Acquire, in `load_bits`: what ended the generation is over.
#[inline(always)]
pub(crate) fn is_spent(entry: &Entry, generation: Idle) -> bool {
    Idle::of(entry.load_bits()) != generation
}

/// Looks for an entry that is not spent in this generation, from the one numbered `from` on and before `end`. Returns its
/// number, or that of the first one not known to be spent, and how many entries were looked at.
///
/// Those of a mapping are spent when its first is, for that one is the last to be.
#[inline]
pub(crate) fn first_unspent(entries: &[Entry], from: usize, end: usize, generation: Idle) -> (usize, usize) {
    let (mut at, mut looks) = (from, 0);
    while at < end {
        // A cache line at a time, so that no look waits for the length that another finds; a whole one without a loop.
        let rest = &entries[at..end];
        let (line, is_over) = match rest.first_chunk::<LINE_ENTRIES>() {
            Some(line) => (&line[..], are_spent(line, generation)),
            None => (rest, are_spent(rest, generation)),
        };
        looks += line.len();
        if !is_over {
            at += line.iter().position(|entry| !is_spent(entry, generation)).unwrap_or(line.len());
            break;
        }
        // Mapped, and yet spent? Unmaps have raced for a mapping and left the next one here in the wrong generation. Its
        // address is no length: those behind it are not to suffer.
        let first = line[0].load_bits();
        let pages = if first >> MAPPED_SHIFT == 0 { first >> GONE_SHIFT } else { 1 };
        at += line.len().max(pages as usize);
    }
    (at, looks)
}

/// Whether all of `entries`, handed out in this generation, are spent. What is tested is the same for all, and tested once.
#[inline(always)]
fn are_spent(entries: &[Entry], generation: Idle) -> bool {
    let bits = entries.iter().map(Entry::load_bits);
    if generation == Idle::FIRST {
        bits.fold(GENERATION, |all, bits| all & bits) != 0
    } else {
        bits.fold(0, |any, bits| any | bits) & GENERATION == 0
    }
}

/// How many mappings begin among `entries` whose generation has not ended.
pub(crate) fn live(entries: &[Entry]) -> usize {
    let is_live = |bits: u64| bits >> MAPPED_SHIFT != 0 || bits & CLEARED != 0;
    entries.iter().filter(|entry| is_live(entry.load_bits())).count()
}
