//! Chunks and their tables, in particular orders of events: which pages come back when, and to which stream.

mod flushes;
mod interrupts;
mod ledger;
mod memory;
mod moved_callers;
mod s11_late_flush;
mod s4_tables_leave;
mod table_sharing;

use crate::forwarding::forward_domains;
use crate::raw_face::RawFace;
use ledger::DEVICE;
use portcullis::chunk::TABLE_IDLE_US;
use portcullis::chunk::{CHUNK_PAGES, CHUNKED_PAGES_MAX, TABLE_RESERVE};
use portcullis::designs::Portcullis;
use portcullis::iommu::fake::{FakeIommu, Ticket};
use portcullis::platform::fake::FakeHost;
use portcullis::table::Rights;
use portcullis::{
    Access, DomainOf, Invalidation, Iommu, Iova, IovaRange, Open, PAGE_SIZE, PhysAddr, Protection, QueueError,
};
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex};

/// Each mapping of this many pages has its own table.
const TABLE: u64 = CHUNKED_PAGES_MAX;
/// Table pages that are never given back before the domain is dropped: the root and two below it, the reserve, and the
/// one that the stream uses.
const KEPT: usize = 3 + TABLE_RESERVE + 1;

type Small<'h, I = &'h FakeIommu<'h>> = DomainOf<Portcullis, &'h FakeHost, I>;

fn map<I: Iommu>(domain: &Small<'_, I>, pfn: u64, pages: u64) -> Iova {
    domain.raw_map_either_way(PhysAddr::from_pfn(pfn), pages * PAGE_SIZE, Access::DeviceWrites).expect("room")
}

fn unmap<I: Iommu>(domain: &Small<'_, I>, iova: Iova, pages: u64) {
    domain.unmap_raw(iova, pages * PAGE_SIZE).expect("mapped");
}

fn map_tables<I: Iommu>(domain: &Small<'_, I>, count: u64) -> Vec<Iova> {
    (0..count).map(|number| map(domain, 0x10_0000 + number * 512, TABLE)).collect()
}

fn tick_after<I: Iommu>(host: &FakeHost, domain: &Small<'_, I>, us: u64) {
    host.advance_us(us);
    domain.tick().expect("the hardware answers");
}

/// A mapping of 200 pages is cleared, and its commit waits. Its later pages look spent, and lie in a table whose holes
/// are being filled.
#[test]
fn no_page_of_a_mapping_comes_back_before_its_invalidation() {
    for protection in [Protection::Strict, Protection::Deferred] {
        let host = FakeHost::default();
        let iommu = FakeIommu::new(&host);
        let domain = Portcullis::open(&iommu, &host, protection).expect("a domain");
        domain.attach(DEVICE).expect("a device");
        let waits = map(&domain, 0x1000, 200);
        let [_beside, gone, _last] = [(0x2000, 311), (0x3000, 400), (0x4000, 400)].map(|(pfn, n)| map(&domain, pfn, n));
        unmap(&domain, gone, 400);
        tick_after(&host, &domain, 1000);
        // This lies in the table of the unmapped one, which was behind the first.
        map(&domain, 0x5000, 400);
        let pages = || (waits.pfn()..waits.pfn() + 200).map(Iova::from_pfn);
        assert!(pages().all(|page| iommu.access(DEVICE, page, Rights::WRITE).is_some()));
        let mut batch = domain.raw_batch();
        batch.unmap(IovaRange::new(waits.pfn(), 200).expect("a range")).expect("mapped");
        if protection == Protection::Deferred {
            batch.commit().expect("queued");
            batch = domain.raw_batch();
        }
        for page in 0..4 * CHUNK_PAGES {
            let new = map(&domain, 0x9000 + page, 1);
            assert!(!pages().any(|page| page == new), "S3: {protection}, {new}");
        }
        batch.commit().expect("the hardware answers");
    }
}

/// Units of a table come back one by one, are handed out as other chunks, and lie behind the rest of the first chunk.
#[test]
fn no_live_page_is_handed_out_again() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    let [first, second, _rest] = [(0x1000, 60), (0x2000, 70), (0x3000, 381)].map(|(pfn, n)| map(&domain, pfn, n));
    let [gone, _last] = [0x4000, 0x5000].map(|pfn| map(&domain, pfn, 400));
    unmap(&domain, gone, 400);
    map(&domain, 0x6000, 400);
    let mut live = HashSet::new();
    let mut chunk = |number: u64| -> Vec<Iova> {
        let pages: Vec<Iova> =
            (0..CHUNK_PAGES).map(|page| map(&domain, 0x1_0000 + number * CHUNK_PAGES + page, 1)).collect();
        pages.iter().for_each(|page| assert!(live.insert(*page), "S3: {page}"));
        pages
    };
    unmap(&domain, first, 60);
    unmap(&domain, second, 70);
    let chunks: Vec<Vec<Iova>> = (0..12).map(&mut chunk).collect();
    for (number, pages) in chunks.iter().enumerate() {
        // A quarter of each chunk, at different places.
        pages.iter().skip(16 * (number % 4)).take(16).for_each(|page| unmap(&domain, *page, 1));
    }
    let mut live: HashSet<Iova> = chunks
        .iter()
        .enumerate()
        .flat_map(|(number, pages)| {
            pages.iter().enumerate().filter(move |(at, _)| at / 16 != number % 4).map(|(_, page)| *page)
        })
        .collect();
    for page in 0..40 * CHUNK_PAGES {
        let new = map(&domain, 0x10_0000 + page, 1);
        assert!(live.insert(new), "S3: {new}");
    }
}

#[test]
fn holes_behind_half_empty_tables_are_filled() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    let pages: Vec<Iova> = (0..512 * 9).map(|page| map(&domain, 0x1_0000 + page, 1)).collect();
    for table in 0..8 {
        pages[table * 512..table * 512 + 256].iter().for_each(|page| unmap(&domain, *page, 1));
    }
    for round in 0..200 {
        let some: Vec<Iova> =
            (0..CHUNK_PAGES).map(|page| map(&domain, 0x10_0000 + round * CHUNK_PAGES + page, 1)).collect();
        some.iter().for_each(|page| unmap(&domain, *page, 1));
    }
    // Nine with the pages, one to spare, and the root with two below it.
    assert!(domain.table_pages() <= 9 + 1 + 3, "{}", domain.table_pages());
}

#[test]
fn a_table_stays_for_a_period_after_its_last_use() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    let mapped = map_tables(&domain, 60);
    host.advance_us(TABLE_IDLE_US - 1);
    mapped.iter().for_each(|iova| unmap(&domain, *iova, TABLE));
    let before = domain.table_pages();
    tick_after(&host, &domain, 1);
    assert_eq!(domain.table_pages(), before, "needed a moment ago");
    tick_after(&host, &domain, TABLE_IDLE_US);
    assert!(domain.table_pages() <= KEPT, "{}", domain.table_pages());
}

#[test]
fn tables_go_however_long_they_were_full() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    let mapped = map_tables(&domain, 60);
    (0..5).for_each(|_| tick_after(&host, &domain, TABLE_IDLE_US));
    mapped.iter().for_each(|iova| unmap(&domain, *iova, TABLE));
    for _ in 0..3 {
        let due_us = domain.due_us().expect("there are tables to give back");
        tick_after(&host, &domain, due_us.saturating_sub(portcullis::Platform::now_us(&&host)));
    }
    assert!(domain.table_pages() <= KEPT, "{}", domain.table_pages());
    assert!(host.frames_lent() <= KEPT);
}

/// In each period, more tables are filled one after the other than exist. A few would be enough.
#[test]
fn what_a_peak_has_needed_goes_while_mapping_goes_on() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    map_tables(&domain, 60).iter().for_each(|iova| unmap(&domain, *iova, TABLE));
    let mut live = VecDeque::new();
    for _ in 0..5 {
        for number in 0..100 {
            live.push_back(map(&domain, 0x10_0000 + number * 512, TABLE));
            if live.len() > 3 {
                live.pop_front().into_iter().for_each(|iova| unmap(&domain, iova, TABLE));
            }
        }
        tick_after(&host, &domain, TABLE_IDLE_US);
    }
    // One more is spent, and given back when the stream takes the next chunk.
    assert!(domain.table_pages() <= KEPT + live.len() + 1, "{}", domain.table_pages());
}

/// An action in the middle of a submission.
type Meanwhile<'h> = Mutex<Option<Box<dyn FnOnce() + Send + 'h>>>;

/// An IOMMU that lets another CPU run while tables are being removed.
struct Interrupted<'h> {
    fake: FakeIommu<'h>,
    meanwhile: Meanwhile<'h>,
}

// SAFETY: no memory is behind it.
unsafe impl Iommu for Interrupted<'_> {
    type Ticket = Ticket;

    forward_domains!(fake);

    fn submit(&self, commands: &[Invalidation]) -> Result<Ticket, QueueError> {
        let is_all_levels = |command: &Invalidation| matches!(command, Invalidation::Pages { leaf_only: false, .. });
        if commands.iter().any(is_all_levels) {
            let meanwhile = self.meanwhile.lock().expect("not poisoned").take();
            meanwhile.into_iter().for_each(|meanwhile| meanwhile());
        }
        self.fake.submit(commands)
    }

    fn is_done(&self, ticket: Ticket) -> Result<bool, QueueError> {
        self.fake.is_done(ticket)
    }
}

/// While tables are being removed, another CPU adds some, unmaps everything in them, and ticks.
#[test]
fn two_ticks_at_once_lose_no_table() {
    // The other CPU's action refers to the domain, and the domain to the action.
    let host: &'static FakeHost = Box::leak(Box::default());
    let iommu = Interrupted { fake: FakeIommu::new(host), meanwhile: Mutex::default() };
    let iommu: &'static Interrupted<'static> = Box::leak(Box::new(iommu));
    let domain = Arc::new(Portcullis::open(iommu, host, Protection::Strict).expect("a domain"));
    map_tables(&domain, 200).iter().for_each(|iova| unmap(&domain, *iova, TABLE));
    tick_after(host, &domain, TABLE_IDLE_US);
    let other = domain.clone();
    *iommu.meanwhile.lock().expect("not poisoned") = Some(Box::new(move || {
        map_tables(&other, 300).iter().for_each(|iova| unmap(&other, *iova, TABLE));
        (0..3).for_each(|_| tick_after(host, &other, TABLE_IDLE_US));
    }));
    (0..20).for_each(|_| tick_after(host, &domain, TABLE_IDLE_US));
    assert!(iommu.meanwhile.lock().expect("not poisoned").is_none(), "no table was removed");
    assert!(host.frames_lent() <= KEPT, "{}", host.frames_lent());
    drop(Arc::into_inner(domain).expect("no other reference is left"));
    assert_eq!(host.frames_lent(), 0);
}
