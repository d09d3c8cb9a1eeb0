//! The reference for what the device may reach, kept as plain as possible.

use portcullis::mapper::Addressing;
use portcullis::table::Rights;
use portcullis::{Access, IovaRange, PAGE_SHIFT, PAGE_SIZE, Segment};
use std::collections::{BTreeMap, BTreeSet};

/// A mapping as the reference remembers it.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) range: IovaRange,
    /// The pages that lead to its memory, each with the physical page of its first byte.
    pages: Vec<(u64, u64)>,
    access: Access,
}

/// A page of a buffer that was handed back to the driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Returned {
    pub(super) reach: Reach,
    /// When the buffer was handed back, on the host's clock.
    pub(super) at_us: u64,
    /// The mapping, by its number in the order of hand-back.
    pub(super) mapping: usize,
}

/// A page that the device may reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reach {
    pub(super) phys_pfn: u64,
    pub(super) reads: bool,
    pub(super) writes: bool,
}

/// All mappings ever made, by their state.
#[derive(Default)]
pub(super) struct Reference {
    /// The device may use these.
    pub(super) live: Vec<Held>,
    /// Unmapped, but not committed yet: their buffers have not been handed back.
    pub(super) uncommitted: Vec<Held>,
    /// Unmapped, but the commit failed: their buffers will never be handed back.
    pub(super) lost: Vec<Held>,
    /// Pages of buffers that were handed back, whose translations the hardware may still hold, if the design declares
    /// that. For a page that mappings share, the last of them counts: before its unmap, the page was live.
    pub(super) returned: BTreeMap<u64, Returned>,
    /// The number of mappings whose buffers were handed back.
    handed_back: usize,
    /// Every range that was ever unmapped.
    pub(super) unmapped: Vec<IovaRange>,
    /// Every page that was ever handed out, and some that must never be.
    pub(super) ever: BTreeSet<u64>,
}

impl Held {
    pub(super) fn new(range: IovaRange, segments: &[Segment], access: Access, addressing: Addressing) -> Self {
        let pages = if let Addressing::Entries { pages: entry } = addressing {
            let of_segment = |(number, segment): (u64, &Segment)| {
                let (first, phys) = (range.first_pfn() + number * entry, segment.phys.as_u64());
                (0..segment.len.div_ceil(PAGE_SIZE)).map(move |at| (first + at, (phys + at * PAGE_SIZE) >> PAGE_SHIFT))
            };
            (0..).zip(segments).flat_map(of_segment).collect()
        } else {
            let phys_pfns = segments.iter().flat_map(|segment| {
                let first = segment.phys.as_u64() >> PAGE_SHIFT;
                first..=(segment.phys.as_u64() + segment.len - 1) >> PAGE_SHIFT
            });
            (range.first_pfn()..).zip(phys_pfns).collect()
        };
        Self { range, pages, access }
    }

    /// Whether every address of both mappings leads to the same memory, for the same access.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        let differs = |(pfn, page): (u64, Reach)| other.at(pfn).is_some_and(|theirs| theirs != page);
        !self.pages().any(differs)
    }

    /// What the device may reach at page `pfn` through the mapping.
    fn at(&self, pfn: u64) -> Option<Reach> {
        self.pages().find(|(page, _)| *page == pfn).map(|(_, reach)| reach)
    }

    /// Every page of the mapping, with what the device may do to it.
    pub(super) fn pages(&self) -> impl Iterator<Item = (u64, Reach)> {
        let (reads, writes) = match self.access {
            Access::DeviceReads => (true, false),
            Access::DeviceWrites => (false, true),
            Access::DeviceReadsAndWrites => (true, true),
        };
        self.pages.iter().map(move |&(pfn, phys_pfn)| (pfn, Reach { phys_pfn, reads, writes }))
    }
}

/// What the device may reach through each page of some mappings, for pages that are asked about in ascending order.
pub(super) struct InOrder {
    pages: Vec<(u64, Reach)>,
    next: usize,
}

impl InOrder {
    pub(super) fn new<'h>(held: impl IntoIterator<Item = &'h Held>) -> Self {
        let mut pages: Vec<(u64, Reach)> = held.into_iter().flat_map(Held::pages).collect();
        // Keeps the order of mappings that share a page.
        pages.sort_by_key(|(pfn, _)| *pfn);
        Self { pages, next: 0 }
    }

    /// What the last of the mappings that hold page `pfn` allows.
    pub(super) fn at(&mut self, pfn: u64) -> Option<Reach> {
        let mut found = None;
        while let Some((page, reach)) = self.pages.get(self.next).filter(|(page, _)| *page <= pfn) {
            found = (*page == pfn).then_some(*reach);
            self.next += 1;
        }
        found
    }
}

impl Reach {
    /// Whether an access with `rights` may end on physical page `phys_pfn`.
    pub(super) fn allows(self, rights: Rights, phys_pfn: u64) -> bool {
        self.phys_pfn == phys_pfn && self.grants(rights)
    }

    /// Whether the mapping was requested with `rights`.
    pub(super) fn grants(self, rights: Rights) -> bool {
        if rights == Rights::READ { self.reads } else { self.writes }
    }
}

impl Reference {
    /// The mappings that hold a page of `range` and whose buffers have not been handed back.
    pub(super) fn holders(&self, range: IovaRange) -> impl Iterator<Item = &Held> {
        self.live.iter().chain(&self.uncommitted).chain(&self.lost).filter(move |held| held.range.overlaps(range))
    }

    /// Whether a mapping whose buffer has not been handed back holds page `pfn`.
    pub(super) fn is_held(&self, pfn: u64) -> bool {
        IovaRange::new(pfn, 1).is_some_and(|page| self.holders(page).next().is_some())
    }

    /// Records a new mapping.
    pub(super) fn map(&mut self, held: Held) {
        for (pfn, _) in held.pages() {
            self.ever.insert(pfn);
            if held.range.contains(pfn + 1) {
                // The page behind a segment that has an entry for itself: the device must not reach it.
                self.ever.insert(pfn + 1);
            }
            // No stale translation of this page was left, except one that leads to the same memory as the new one.
            self.returned.remove(&pfn);
        }
        self.live.push(held);
    }

    /// Records that the buffer of a mapping was handed back.
    pub(super) fn hand_back(&mut self, held: &Held, at_us: u64) {
        let mapping = self.handed_back;
        self.handed_back += 1;
        self.returned.extend(held.pages().map(|(pfn, reach)| (pfn, Returned { reach, at_us, mapping })));
    }

    /// Records that the unmap of the live mapping at exactly `range` has begun. Returns false if there is no such
    /// mapping.
    pub(super) fn unmap(&mut self, range: IovaRange) -> bool {
        let Some(at) = self.live.iter().position(|held| held.range == range) else { return false };
        let held = self.live.swap_remove(at);
        self.unmapped.push(range);
        self.uncommitted.push(held);
        true
    }
}
