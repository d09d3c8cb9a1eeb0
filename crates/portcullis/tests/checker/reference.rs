//! What the device may reach, kept as plainly as possible.

use portcullis::table::Rights;
use portcullis::{Access, IovaRange, PAGE_SHIFT, Segment};
use std::collections::{BTreeMap, BTreeSet};

/// A mapping as the reference remembers it.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) range: IovaRange,
    /// The physical page behind each page of the range; none where that is no longer of interest.
    phys_pfns: Vec<Option<u64>>,
    access: Access,
    /// When its buffer went back to the driver, on the host's clock.
    pub(crate) returned_us: u64,
}

/// A page that the device may reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reach {
    pub(crate) phys_pfn: u64,
    pub(crate) reads: bool,
    pub(crate) writes: bool,
}

/// All mappings ever made, by what has become of them.
#[derive(Default)]
pub(crate) struct Reference {
    /// The device may use these.
    pub(crate) live: Vec<Held>,
    /// Unmapped, but the commit has not come: no buffer is back.
    pub(crate) uncommitted: Vec<Held>,
    /// Unmapped, but the commit failed: no buffer will ever be back.
    pub(crate) lost: Vec<Held>,
    /// Buffers handed back whose translations the hardware may still hold, where the design says so.
    pub(crate) returned: Vec<Held>,
    /// Every range that was ever unmapped.
    pub(crate) unmapped: Vec<IovaRange>,
    /// Every page that was ever handed out, and some that must never be.
    pub(crate) ever: BTreeSet<u64>,
}

impl Held {
    pub(crate) fn new(range: IovaRange, segments: &[Segment], access: Access) -> Self {
        let phys_pfns = segments.iter().flat_map(|segment| {
            let first = segment.phys.as_u64() >> PAGE_SHIFT;
            first..=(segment.phys.as_u64() + segment.len - 1) >> PAGE_SHIFT
        });
        Self { range, phys_pfns: phys_pfns.map(Some).collect(), access, returned_us: 0 }
    }

    /// Whether each address that both have leads to the same memory, for the same access.
    pub(crate) fn agrees_with(&self, other: &Self) -> bool {
        let differs = |(pfn, page): (u64, Reach)| other.at(pfn).is_some_and(|theirs| theirs != page);
        !self.pages().any(differs)
    }

    /// What the device may reach at page `pfn` through the mapping.
    fn at(&self, pfn: u64) -> Option<Reach> {
        self.pages().find(|(page, _)| *page == pfn).map(|(_, reach)| reach)
    }

    /// Every page of the mapping with what the device may do to it.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (u64, Reach)> {
        let (reads, writes) = match self.access {
            Access::DeviceReads => (true, false),
            Access::DeviceWrites => (false, true),
            Access::DeviceReadsAndWrites => (true, true),
        };
        let reach =
            move |(pfn, phys_pfn): (u64, &Option<u64>)| Some((pfn, Reach { phys_pfn: (*phys_pfn)?, reads, writes }));
        (self.range.first_pfn()..).zip(&self.phys_pfns).filter_map(reach)
    }

    /// Leaves out the pages that are in `range` as well.
    pub(crate) fn forget(&mut self, range: IovaRange) {
        let pages = (self.range.first_pfn()..).zip(&mut self.phys_pfns);
        pages.filter(|(pfn, _)| range.contains(*pfn)).for_each(|(_, phys_pfn)| *phys_pfn = None);
    }
}

/// What the device may reach through each page of `held`.
pub(crate) fn reach(held: &[Held]) -> BTreeMap<u64, Reach> {
    held.iter().flat_map(Held::pages).collect()
}

impl Reach {
    /// Whether an access that asks for `rights` may end on physical page `phys_pfn`.
    pub(crate) fn allows(self, rights: Rights, phys_pfn: u64) -> bool {
        self.phys_pfn == phys_pfn && self.grants(rights)
    }

    /// Whether `rights` were asked for.
    pub(crate) fn grants(self, rights: Rights) -> bool {
        if rights == Rights::READ { self.reads } else { self.writes }
    }
}

impl Reference {
    /// The mappings that hold a page of `range` and whose buffers are not back.
    pub(crate) fn holders(&self, range: IovaRange) -> impl Iterator<Item = &Held> {
        self.live.iter().chain(&self.uncommitted).chain(&self.lost).filter(move |held| held.range.overlaps(range))
    }

    /// All mappings that the hardware may know of.
    pub(crate) fn known(&self) -> impl Iterator<Item = &Held> {
        self.live.iter().chain(&self.uncommitted).chain(&self.lost).chain(&self.returned)
    }

    /// Notes a mapping that was made.
    pub(crate) fn map(&mut self, held: Held) {
        self.ever.extend(held.range.first_pfn()..held.range.end_pfn());
        self.live.push(held);
    }

    /// Notes that the live mapping at exactly `range` is being unmapped; false if there is none.
    pub(crate) fn unmap(&mut self, range: IovaRange) -> bool {
        let Some(at) = self.live.iter().position(|held| held.range == range) else { return false };
        let held = self.live.swap_remove(at);
        self.unmapped.push(range);
        self.uncommitted.push(held);
        true
    }
}
