//! The mappings of a run: buffers, the mappings made of them, and their pages.

use portcullis::mapper::Addressing;
use portcullis::{Access, Iova, IovaRange, PAGE_SIZE, PhysAddr, Segment};
use smallvec::{SmallVec, smallvec};
use std::cell::Cell;
use std::ops::{Deref, Range};
use std::rc::Rc;

/// Number of a mapping in a run.
pub(super) type Slot = u32;

/// A range of bytes in a page, as the first byte and the one after the last.
pub(super) type Extent = (u16, u16);

/// The segments of a buffer: a single one, or a part of the list of all buffers of the run.
#[derive(Clone)]
pub(super) enum Buffer {
    One(Segment),
    Part { all: Rc<[Segment]>, start: u32, end: u32 },
}

impl Buffer {
    /// The segments `range` of `all`.
    pub(super) fn new(all: &Rc<[Segment]>, range: Range<usize>) -> Self {
        Self::Part { all: all.clone(), start: range.start as u32, end: range.end as u32 }
    }
}

impl From<Segment> for Buffer {
    fn from(segment: Segment) -> Self {
        Self::One(segment)
    }
}

impl Deref for Buffer {
    type Target = [Segment];

    fn deref(&self) -> &[Segment] {
        match self {
            Self::One(segment) => std::slice::from_ref(segment),
            Self::Part { all, start, end } => &all[*start as usize..*end as usize],
        }
    }
}

/// The ranges of a mapping; nearly always one.
pub(super) type Ranges = SmallVec<[IovaRange; 1]>;

/// A mapping that is live in the run.
pub(super) struct Live {
    pub(super) segments: Buffer,
    /// The memory behind its addresses: its segments, or bounce pages in place of some of them.
    pub(super) seen: Buffer,
    pub(super) access: Access,
    pub(super) device: usize,
    /// One range, or one per segment if addresses are physical.
    pub(super) ranges: Ranges,
    /// The kind of its addresses.
    pub(super) addressing: Addressing,
    /// Whether the device has finished its accesses right after the map.
    pub(super) settled: Cell<bool>,
}

/// A mapping whose unmap has begun, and that is not handed back yet.
pub(super) type Leaving = (Slot, Box<Live>);

/// One page of a mapping, as its device sees it.
#[derive(Clone, Copy)]
pub(super) struct LivePage {
    pub(super) iova: Iova,
    /// The memory behind it: a page or, for an entry, a run of bytes that begins here.
    pub(super) phys: PhysAddr,
    /// The bytes of the page that belong to the buffer.
    pub(super) extent: Extent,
}

impl Live {
    pub(super) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.len).sum()
    }

    /// Every page, in the order of the segments.
    pub(super) fn pages(&self) -> SmallVec<[LivePage; 1]> {
        let page = |(iova_pfn, (phys_pfn, extent))| LivePage {
            iova: Iova::from_pfn(iova_pfn),
            phys: PhysAddr::from_pfn(phys_pfn),
            extent,
        };
        match (&*self.ranges, &*self.seen) {
            _ if matches!(self.addressing, Addressing::Entries { .. }) => self.pages_of_entries().collect(),
            // Most mappings have one page, which the general way takes ten times as long to find.
            ([range], [segment]) if segment.pages() == 1 => {
                smallvec![page((range.first_pfn(), piece(segment, segment.phys.pfn())))]
            }
            (ranges, segments) => {
                let iovas = ranges.iter().flat_map(|range| range.first_pfn()..range.end_pfn());
                iovas.zip(pieces(segments)).map(page).collect()
            }
        }
    }

    /// Every page, if each segment has a ring entry.
    fn pages_of_entries(&self) -> impl Iterator<Item = LivePage> {
        self.segments.iter().enumerate().flat_map(|(index, segment)| {
            let first = self.addressing.segment_iova(&self.segments, index, self.ranges[0]).as_u64();
            (0..segment.len).step_by(PAGE_SIZE as usize).map(move |offset| LivePage {
                iova: Iova::new(first + offset),
                phys: PhysAddr::new(segment.phys.as_u64() + offset),
                extent: (0, (segment.len - offset).min(PAGE_SIZE) as u16),
            })
        })
    }

    /// The device's address of byte `offset` of page `page` of the buffer, and how many bytes from there on the buffer
    /// has in the page.
    pub(super) fn address_of(&self, page: usize, offset: u64) -> Option<(Iova, u64)> {
        if !matches!(self.addressing, Addressing::Entries { .. }) {
            let pfn = self.ranges.iter().flat_map(|range| range.first_pfn()..range.end_pfn()).nth(page)?;
            return Some((Iova::new(Iova::from_pfn(pfn).as_u64() + offset), PAGE_SIZE - offset));
        }
        let mut before = 0;
        for (index, segment) in self.segments.iter().enumerate() {
            let pages = segment.pages() as usize;
            if page < before + pages {
                let phys = PhysAddr::from_pfn(segment.phys.pfn() + (page - before) as u64).as_u64() + offset;
                let into = phys.checked_sub(segment.phys.as_u64()).filter(|into| *into < segment.len)?;
                let first = self.addressing.segment_iova(&self.segments, index, self.ranges[0]).as_u64();
                return Some((Iova::new(first + into), (segment.len - into).min(PAGE_SIZE - offset)));
            }
            before += pages;
        }
        None
    }
}

/// The pages of a buffer, with the bytes that it has in each.
pub(super) fn pieces(segments: &[Segment]) -> impl Iterator<Item = (u64, Extent)> {
    segments.iter().flat_map(|segment| {
        (segment.phys.pfn()..segment.phys.pfn() + segment.pages()).map(move |pfn| piece(segment, pfn))
    })
}

/// A page of a segment, with the bytes that it has there.
fn piece(segment: &Segment, pfn: u64) -> (u64, Extent) {
    let (start, end) = (segment.phys.as_u64(), segment.phys.as_u64() + segment.len);
    let page_start = pfn * PAGE_SIZE;
    let (from, to) = (start.max(page_start), end.min(page_start + PAGE_SIZE));
    (pfn, ((from - page_start) as u16, (to - page_start) as u16))
}
