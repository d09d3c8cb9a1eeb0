//! Compares the mappings with what the device reaches: after each step, and in the middle of one.

use super::TABLE;
use crate::raw_face::RawFace;
use portcullis::chunk::CHUNK_PAGES;
use portcullis::chunk::TABLE_IDLE_US;
use portcullis::designs::Portcullis;
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::FakeHost;
use portcullis::table::Rights;
use portcullis::{
    Access, DomainOf, Iova, IovaRange, MapError, PAGE_SIZE, PhysAddr, Platform, Request, Segment, SourceId, Stream,
};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

/// With this many address bits, there are so few tables of chunks (from page [`UPPER_PFN`] on) that all of them can be
/// counted.
pub(crate) const NARROW_BITS: u8 = 28;
pub(crate) const NARROW_TABLES: usize = 64;
const UPPER_PFN: u64 = 1 << (NARROW_BITS - 1 - 12);

pub(crate) const DEVICE: SourceId = SourceId::new(0, 5, 0);

type Small<'h, P> = DomainOf<Portcullis, P, &'h FakeIommu<'h>>;

/// A request: its pages, access and ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub(crate) pages: u64,
    pub(crate) access: Access,
    pub(crate) ring: Option<u32>,
}

impl Want {
    pub(crate) const fn writes(pages: u64) -> Self {
        Self { pages, access: Access::DeviceWrites, ring: None }
    }
}

/// A mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Live {
    pub(crate) range: IovaRange,
    pfn: u64,
    rights: Rights,
}

impl Live {
    /// Its pages. Of a long mapping: the first, the last and some in between.
    fn pages(&self) -> impl Iterator<Item = (Iova, PhysAddr)> + use<> {
        let (first, pfn, pages) = (self.range.first_pfn(), self.pfn, self.range.pages());
        let step = if pages < 40 { 1 } else { 37 };
        let last = Some(pages - 1).filter(|last| !last.is_multiple_of(step));
        (0..pages)
            .step_by(step as usize)
            .chain(last)
            .map(move |page| (Iova::from_pfn(first + page), PhysAddr::from_pfn(pfn + page)))
    }
}

#[derive(Default)]
struct Book {
    live: Vec<Live>,
    /// Pages that were ever handed out.
    ever: BTreeSet<u64>,
    /// Pages of memory that buffers have used so far.
    memory: u64,
}

/// The mappings of a domain under `iommu`. Its lock is never held during a call to the domain, because interrupts use
/// it too.
pub(crate) struct Ledger<'h> {
    host: &'h FakeHost,
    iommu: &'h FakeIommu<'h>,
    book: Mutex<Book>,
}

impl<'h> Ledger<'h> {
    pub(crate) fn new(host: &'h FakeHost, iommu: &'h FakeIommu<'h>) -> Self {
        Self { host, iommu, book: Mutex::default() }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("not poisoned")
    }

    /// Makes a mapping. Its pages must be unused, the device must have lost them (S3), and it must then reach exactly
    /// the buffer (S1).
    pub(crate) fn map<P: Platform>(&self, domain: &Small<'_, P>, want: Want) -> Result<Live, MapError> {
        let pfn = {
            let mut book = self.book();
            book.memory += want.pages;
            // A gap as long as the buffer follows each one, so that pages of different mappings are never adjacent.
            0x10_0000 + 2 * (book.memory - want.pages)
        };
        let (phys, len) = (PhysAddr::from_pfn(pfn), want.pages * PAGE_SIZE);
        let range = match want.ring {
            None => {
                let first = domain.raw_map_either_way(phys, len, want.access)?.pfn();
                IovaRange::new(first, want.pages).expect("a range")
            }
            Some(_) => {
                let segments = [Segment { phys, len }];
                let mut request = Request::new(&segments, want.access)?;
                request.stream = Stream(want.ring);
                domain.raw_map_request(&request)?
            }
        };
        let rights = if want.access == Access::DeviceReads { Rights::READ } else { Rights::WRITE };
        let new = Live { range, pfn, rights };
        for (iova, _) in new.pages() {
            assert!(!self.iommu.is_cached(domain.id(), iova.pfn()), "S3: {iova} is cached");
        }
        {
            let mut book = self.book();
            let is_apart =
                |live: &Live| live.range.end_pfn() <= range.first_pfn() || range.end_pfn() <= live.range.first_pfn();
            let other = book.live.iter().find(|live| !is_apart(live));
            assert!(other.is_none(), "S3: {range} is handed out while {other:?} is mapped");
            book.live.push(new);
            book.ever.extend(new.pages().map(|(iova, _)| iova.pfn()));
        }
        self.assert_reached(&new);
        Ok(new)
    }

    fn assert_reached(&self, live: &Live) {
        let pfns: Vec<u64> = live.pages().map(|(iova, _)| iova.pfn()).collect();
        for ((iova, phys), found) in live.pages().zip(self.iommu.access_pages(DEVICE, &pfns)) {
            let reached = found.filter(|(_, granted)| granted.allows(live.rights)).map(|(pfn, _)| pfn);
            assert_eq!(reached, Some(phys.pfn()), "S1: {iova}");
        }
    }

    /// Unmaps a mapping.
    pub(crate) fn unmap<P: Platform>(&self, domain: &Small<'_, P>, gone: Live) {
        let place = self.book().live.iter().position(|live| *live == gone);
        self.book().live.swap_remove(place.expect("it is mapped"));
        domain.unmap_raw(gone.range.start(), gone.range.pages() * PAGE_SIZE).expect("mapped");
    }

    pub(crate) fn live(&self) -> Vec<Live> {
        self.book().live.clone()
    }

    /// Asserts that the device reaches every live mapping (S1).
    pub(crate) fn check_live(&self) {
        self.live().iter().for_each(|live| self.assert_reached(live));
    }

    /// Asserts that the device reaches every live mapping, and no other page that was ever mapped (S2).
    pub(crate) fn check(&self) {
        self.check_live();
        let (live, ever) = (self.live(), self.book().ever.clone());
        let is_live = |pfn| live.iter().any(|live| (live.range.first_pfn()..live.range.end_pfn()).contains(&pfn));
        let gone: Vec<u64> = ever.into_iter().filter(|pfn| !is_live(*pfn)).collect();
        let reached = gone.iter().zip(self.iommu.access_pages(DEVICE, &gone)).find(|(_, reached)| reached.is_some());
        assert!(reached.is_none(), "S2: {reached:x?}");
    }
}

/// Unmaps everything, and ticks until no tick is due.
pub(crate) fn settle<P: Platform>(domain: &Small<'_, P>, ledger: &Ledger<'_>) {
    ledger.check_live();
    ledger.live().into_iter().for_each(|gone| ledger.unmap(domain, gone));
    while domain.due_us().is_some() {
        ledger.host.advance_us(TABLE_IDLE_US);
        domain.tick().expect("the hardware answers");
    }
    ledger.check();
    assert_eq!(domain.usage().live_ranges, 0);
}

/// All streams of small requests in these tests.
const SMALL: [(Access, Option<u32>); 6] = [
    (Access::DeviceWrites, None),
    (Access::DeviceReads, None),
    (Access::DeviceWrites, Some(5)),
    (Access::DeviceReads, Some(5)),
    (Access::DeviceWrites, Some(7)),
    (Access::DeviceReads, Some(7)),
];

/// Moves all streams of small requests to other tables, and ends with no mapping and no tick due. If table space of
/// their old tables was lost, it is missing from now on.
pub(crate) fn move_on<P: Platform>(domain: &Small<'_, P>, ledger: &Ledger<'_>) {
    let map = |want| ledger.map(domain, want).expect("room");
    // These are the tables to move to.
    for _ in 0..4 {
        map(Want::writes(TABLE));
    }
    settle(domain, ledger);
    // All chunks of two tables and more for the first stream, then two chunks for each stream.
    for (access, ring) in [SMALL[0]; 34].into_iter().chain(SMALL.into_iter().flat_map(|stream| [stream; 4])) {
        let half = map(Want { pages: CHUNK_PAGES / 2, access, ring });
        ledger.unmap(domain, half);
    }
    settle(domain, ledger);
}

/// The number of tables with room, in an empty domain of [`NARROW_BITS`]. Maps until there is no room.
pub(crate) fn count_tables<P: Platform>(domain: &Small<'_, P>, ledger: &Ledger<'_>) -> usize {
    let map = |want| ledger.map(domain, want).expect("room").range.first_pfn();
    // The tables in which each stream continues.
    let small = SMALL.map(|(access, ring)| Want { pages: 1, access, ring });
    let large = [Access::DeviceReads, Access::DeviceWrites].map(|access| Want { pages: TABLE, access, ring: None });
    let in_use: BTreeSet<u64> = small.into_iter().chain(large).map(|want| map(want) / 512).collect();
    let rest = (0..).take_while(|_| map(Want::writes(TABLE)) >= UPPER_PFN).count();
    in_use.len() + rest
}
