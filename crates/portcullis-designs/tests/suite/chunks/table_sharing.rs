//! Which streams share tables: a few CPUs or rings have one each, many share them.

use super::{Small, TABLE, map, map_tables, tick_after, unmap};
use crate::raw_face::RawFace;
use portcullis::chunk::TABLE_IDLE_US;
use portcullis::chunk::{CHUNK_PAGES, TABLE_RESERVE};
use portcullis::designs::Portcullis;
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::{FakeHost, run_on};
use portcullis::{Access, DomainConfig, Iova, Open, PAGE_SIZE, PhysAddr, Protection, Request, Segment, Stream};
use std::collections::{BTreeMap, BTreeSet};

/// Up to this many lines of cursors, each ring has its own table log.
const FEW: u32 = 8;
/// Beyond that, so many share one.
const SHARERS: u32 = 4;
/// Chunks of a table.
const TABLE_CHUNKS: u64 = 512 / CHUNK_PAGES;

fn map_for_ring(domain: &Small<'_>, ring: u32) -> Iova {
    let segments = [Segment { phys: PhysAddr::from_pfn(0x1000), len: PAGE_SIZE }];
    let mut request = Request::new(&segments, Access::DeviceWrites).expect("a page");
    request.stream = Stream(Some(ring));
    domain.raw_map_request(&request).expect("room").start()
}

fn table(iova: Iova) -> u64 {
    iova.pfn() / 512
}

fn chunk(iova: Iova) -> u64 {
    iova.pfn() / CHUNK_PAGES
}

#[test]
fn two_cpus_have_a_table_each() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    let mut tables = BTreeMap::<u64, u32>::new();
    for page in 0..8 * CHUNK_PAGES {
        for cpu in 0..2 {
            run_on(cpu);
            let iova = map(&domain, 0x1_0000 + page * 2 + u64::from(cpu), 1);
            assert_eq!(*tables.entry(table(iova)).or_insert(cpu), cpu, "{iova}");
        }
    }
    run_on(0);
    assert!(tables.values().any(|cpu| *cpu == 0) && tables.values().any(|cpu| *cpu == 1));
}

/// With more rings, four of them take their chunks from one table after the other.
#[test]
fn many_rings_share_tables() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    let few: Vec<Iova> = (0..FEW).map(|ring| map_for_ring(&domain, ring)).collect();
    let own: BTreeSet<u64> = few.iter().map(|iova| table(*iova)).collect();
    assert_eq!(own.len(), FEW as usize, "each has its own table: {few:?}");

    let many: Vec<u32> = (0..2 * FEW).collect();
    for ring in &many {
        map_for_ring(&domain, *ring);
    }
    // Enough chunks for each that the first tables are used up.
    for ring in &many {
        for _ in 0..2 * TABLE_CHUNKS * CHUNK_PAGES {
            map_for_ring(&domain, *ring);
        }
    }
    let mut chunks = BTreeMap::<u64, Vec<u64>>::new();
    for ring in &many {
        let next = (0..=CHUNK_PAGES).map(|_| map_for_ring(&domain, *ring)).last().expect("a page");
        chunks.entry(table(next)).or_default().push(chunk(next));
    }
    assert!(chunks.keys().all(|table| !own.contains(table)), "{own:?}, {chunks:?}");
    // Those that share a log take chunks of one table, and then of the next.
    assert!(chunks.len() as u32 <= 2 * (2 * FEW / SHARERS), "{chunks:?}");
    let all: BTreeSet<u64> = chunks.into_values().flatten().collect();
    assert_eq!(all.len(), many.len(), "each has its own chunk");
}

/// When no table is left, every CPU may use the rest of another CPU's table.
#[test]
fn no_room_is_kept_for_those_who_do_not_come() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let config = DomainConfig { address_bits: 28, ..DomainConfig::new(Protection::Strict) };
    let domain = Portcullis::open_with(&iommu, &host, &config).expect("a domain");
    let upper_half = 1 << (28 - 1 - 12);
    run_on(1);
    assert!(map(&domain, 0x1000, 1).pfn() >= upper_half);
    run_on(0);
    let pages = (0..upper_half).take_while(|page| map(&domain, 0x1_0000 + page, 1).pfn() >= upper_half).count();
    assert_eq!(pages as u64, upper_half - CHUNK_PAGES, "all but the chunk of the other CPU");
}

/// Lines are assigned in order of arrival, whatever the numbers of the rings.
#[test]
fn rings_whose_numbers_are_far_apart_have_a_table_each() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    let tables: BTreeSet<u64> = (0..FEW).map(|number| table(map_for_ring(&domain, number * FEW))).collect();
    assert_eq!(tables.len(), FEW as usize);
}

/// Tables that one CPU has spent serve the next one, before any table is added and without a tick. Two are left to the
/// CPU that spent them, which may be at work.
#[test]
fn spent_tables_of_one_cpu_serve_another() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    let mut counts = Vec::new();
    for cpu in 0..4 {
        run_on(cpu);
        let tables = map_tables(&domain, 100);
        tables.into_iter().for_each(|iova| unmap(&domain, iova, TABLE));
        counts.push(domain.table_pages());
    }
    run_on(0);
    // Before each table that is added, a part of what one other CPU has spent is found. So a few are added in between.
    assert!(counts.iter().zip(0..).all(|(count, cpu)| *count <= counts[0] + 18 * cpu), "{counts:?}");
    // The sweep that finds them spent makes all of them available.
    tick_after(&host, &domain, TABLE_IDLE_US);
    map_tables(&domain, 106);
    assert_eq!(domain.table_pages(), counts[3], "{counts:?}");
}

/// Tables with a straggler serve others too, also with more rings than there are table logs.
#[test]
fn holes_of_some_serve_others() {
    for others in [1, 2 * FEW] {
        let host = FakeHost::default();
        let iommu = FakeIommu::new(&host);
        let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
        let pages: Vec<Iova> = (0..16 * 512).map(|_| map_for_ring(&domain, 0)).collect();
        let stay = |page: &Iova| page.pfn().is_multiple_of(512);
        pages.iter().filter(|page| !stay(page)).for_each(|page| unmap(&domain, *page, 1));
        let before = domain.table_pages();
        (0..3).for_each(|_| tick_after(&host, &domain, TABLE_IDLE_US));
        for number in 0..12 * 512 {
            map_for_ring(&domain, 1 + number % others);
            // Ring 0 is at work until two sweeps have found that it is not.
            if number % 512 == 0 {
                tick_after(&host, &domain, TABLE_IDLE_US);
            }
        }
        // One open table for each table log.
        let more = domain.table_pages().saturating_sub(before);
        assert!(more <= FEW as usize + 2, "{others} other rings: {before} table pages, and {more} more");
    }
}

/// A table that was used up to its last chunk is full, and is given back when all of it is spent.
#[test]
fn tables_used_up_exactly_leave() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    let pages: Vec<Iova> =
        (0..FEW).flat_map(|ring| vec![ring; 3 * 512]).map(|ring| map_for_ring(&domain, ring)).collect();
    assert_eq!(domain.table_pages(), 3 + 3 * FEW as usize);
    pages.iter().for_each(|page| unmap(&domain, *page, 1));
    (0..4).for_each(|_| tick_after(&host, &domain, TABLE_IDLE_US));
    assert_eq!(domain.table_pages(), 3 + TABLE_RESERVE);
}

/// Each ring has used one chunk of its table, and nothing of it is left. The chunks that no stream has taken come back
/// too, when the logs have not been used for two sweeps.
#[test]
fn open_tables_of_idle_logs_leave() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    let peak = map_tables(&domain, 40);
    let pages: Vec<Iova> = (0..FEW - 1)
        .flat_map(|ring| vec![ring; CHUNK_PAGES as usize])
        .map(|ring| map_for_ring(&domain, ring))
        .collect();
    assert_eq!(domain.table_pages(), 3 + 40 + FEW as usize - 1);
    pages.iter().for_each(|page| unmap(&domain, *page, 1));
    peak.into_iter().for_each(|iova| unmap(&domain, iova, TABLE));
    (0..6).for_each(|_| tick_after(&host, &domain, TABLE_IDLE_US));
    // The last of the peak has one page left, and is the CPU's chunk.
    assert_eq!(domain.table_pages(), 3 + TABLE_RESERVE + 1);
}
