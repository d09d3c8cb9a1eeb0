//! What is mapped, beside what the device reaches: after each step, and in the middle of one.

use portcullis::designs::Portcullis;
use portcullis::iommu::fake::FakeIommu;
use portcullis::table::Rights;
use portcullis::{
    Access, Domain, Iova, IovaRange, MapError, PAGE_SIZE, PhysAddr, Platform, Request, Segment, SourceId, Stream,
};
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

pub(crate) const DEVICE: SourceId = SourceId(0x28);

/// A request: pages, and whose.
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
    /// Its pages; of a long one the first, the last and some in between.
    fn pages(&self) -> impl Iterator<Item = (Iova, PhysAddr)> + use<> {
        let (first, pfn, pages) = (self.range.first_pfn(), self.pfn, self.range.pages());
        (0..pages)
            .filter(move |page| pages < 40 || page % 37 == 0 || *page == pages - 1)
            .map(move |page| (Iova::from_pfn(first + page), PhysAddr::from_pfn(pfn + page)))
    }
}

#[derive(Default)]
struct Book {
    live: Vec<Live>,
    /// All pages that were ever handed out.
    ever: BTreeSet<u64>,
    /// Pages of memory that buffers were made of.
    memory: u64,
}

/// The mappings of a domain under `iommu`. It is never locked while the domain is at work, for interrupts write in it too.
pub(crate) struct Ledger<'h> {
    pub(crate) iommu: &'h FakeIommu<'h>,
    book: Mutex<Book>,
}

impl<'h> Ledger<'h> {
    pub(crate) fn new(iommu: &'h FakeIommu<'h>) -> Self {
        Self { iommu, book: Mutex::default() }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("not poisoned")
    }

    /// Makes a mapping. Its pages are nobody's, the device has lost them (S3), and reaches just what was asked for (S1).
    pub(crate) fn map<P: Platform>(
        &self,
        domain: &Domain<Portcullis, P, &FakeIommu<'_>>,
        want: Want,
    ) -> Result<Live, MapError> {
        let pfn = {
            let mut book = self.book();
            book.memory += want.pages;
            // In steps of a half, so that pages of different mappings are never neighbours.
            0x10_0000 + 2 * (book.memory - want.pages)
        };
        let (phys, len) = (PhysAddr::from_pfn(pfn), want.pages * PAGE_SIZE);
        let range = match want.ring {
            None => {
                let first = domain.map_raw(phys, len, want.access)?.pfn();
                IovaRange::new(first, want.pages).expect("a range")
            }
            Some(_) => {
                let segments = [Segment { phys, len }];
                let mut request = Request::new(&segments, want.access)?;
                request.stream = Stream(want.ring);
                domain.map_request(&request)?
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
            book.ever.extend(range.first_pfn()..range.end_pfn());
        }
        self.assert_reached(&new);
        Ok(new)
    }

    fn assert_reached(&self, live: &Live) {
        for (iova, phys) in live.pages() {
            assert_eq!(self.iommu.access(DEVICE, iova, live.rights), Some(phys), "S1: {iova}");
        }
    }

    /// Takes a mapping away.
    pub(crate) fn unmap<P: Platform>(&self, domain: &Domain<Portcullis, P, &FakeIommu<'_>>, gone: Live) {
        let place = self.book().live.iter().position(|live| *live == gone);
        self.book().live.swap_remove(place.expect("it is mapped"));
        domain.unmap_raw(gone.range.start(), gone.range.pages() * PAGE_SIZE).expect("mapped");
    }

    pub(crate) fn live(&self) -> Vec<Live> {
        self.book().live.clone()
    }

    /// Asserts that the device reaches what is mapped (S1).
    pub(crate) fn check_live(&self) {
        self.live().iter().for_each(|live| self.assert_reached(live));
    }

    /// The same, and of all that ever was mapped nothing else (S2).
    pub(crate) fn check(&self) {
        self.check_live();
        let (live, ever) = (self.live(), self.book().ever.clone());
        let is_live = |pfn| live.iter().any(|live| (live.range.first_pfn()..live.range.end_pfn()).contains(&pfn));
        for pfn in ever.into_iter().filter(|pfn| !is_live(*pfn)) {
            let reached =
                [Rights::READ, Rights::WRITE].map(|rights| self.iommu.access(DEVICE, Iova::from_pfn(pfn), rights));
            assert_eq!(reached, [None; 2], "S2: {pfn:#x}");
        }
    }
}
