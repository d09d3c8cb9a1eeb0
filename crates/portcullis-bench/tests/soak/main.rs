//! Long use of `portcullis` on this machine: threads map and unmap for a long time, and at the end nothing is lost.
//!
//! Two threads use random sizes up to 600 pages, rings and scattered buffers, and unmap one by one and in batches.
//! Some mappings are unmapped by the other thread, and some stay far longer than the rest. Before each unmap, the
//! first and the last page must lead to where they were mapped. There are so many rings that no thread has a log of
//! tables for itself: both, and some rings, take their chunks from one. There are 1,000,000 operations, each a map or
//! an unmap, unless `PORTCULLIS_SOAK_OPERATIONS` sets another number. `cargo xtask soak` runs 100 million, under strict
//! protection and again under deferred.

mod host;
mod worker;

use host::{Done, Host};
use portcullis::chunk::{CHUNK_PAGES, CHUNKED_PAGES_MAX, TABLE_RESERVE};
use portcullis::designs::Portcullis;
use portcullis::mapper::Usage;
use portcullis::platform::CPU_WORDS;
use portcullis::table::ENTRIES;
use portcullis::{
    Access, DomainConfig, DomainOf, MapError, Open, PAGE_SIZE, PhysAddr, Platform, Protection, RawMapError, Request,
    Segment, Stream,
};
use std::env;
use std::sync::{Barrier, Mutex};
use std::thread;
use std::time::Instant;
use worker::{RINGS, Worker};

const OPERATIONS: &str = "PORTCULLIS_SOAK_OPERATIONS";
const THREADS: u64 = 2;
/// The address space is 4 GiB, half of it for chunks. It is small, so that it can be filled quickly.
const ADDRESS_BITS: u8 = 32;
/// Leaf tables above this page belong to chunks.
const CHUNKS_PFN: u64 = 1 << (ADDRESS_BITS - 1 - 12);
/// Pages of a range that is too long for chunks and magazines.
const LONG_PAGES: u64 = 1024;
/// With this many operations, tables must be freed while others are made: by then stragglers have existed for long
/// enough.
const LONG: u64 = 10_000_000;
/// Logs of tables that the soak uses at most: the one for slow streams, and those of sixteen lines of cursors.
const LOGS: usize = 17;

type Soaked<'h> = DomainOf<Portcullis, &'h Host, &'h Done>;

fn domain<'h>(host: &'h Host, iommu: &'h Done, protection: Protection) -> Soaked<'h> {
    let config = DomainConfig { address_bits: ADDRESS_BITS, ..DomainConfig::new(protection) };
    Portcullis::open_with(iommu, host, &config).expect("a domain")
}

/// Asserts limits that always hold.
fn within_limits(usage: &Usage) {
    assert!(usage.queued_unmaps <= usage.queued_unmaps_max, "{usage:?}");
    assert!(usage.kept_ranges_max.is_none_or(|most| usage.kept_ranges <= most), "{usage:?}");
    assert!(usage.record_bytes as u64 <= 64 * (1 << (ADDRESS_BITS - 12)) / 8, "{usage:?}");
}

/// Lets time pass until nothing is due.
fn settle(host: &Host, domain: &Soaked<'_>) {
    for _ in 0..10_000 {
        let Some(due_us) = domain.due_us() else { return };
        host.pass_until(due_us);
        domain.tick().expect("the hardware answers");
    }
    panic!("something is due for ever: {:?} at {}", domain.due_us(), host.now_us());
}

/// The leaf tables of chunks, and how many of them hold a mapping. No thread may map or unmap during the call.
fn tables_of_chunks(host: &Host, iommu: &Done) -> (usize, usize) {
    let (_, leaves) = host.tables(iommu);
    let of_chunks: Vec<u64> = leaves.into_iter().filter(|pfn| *pfn >= CHUNKS_PFN).collect();
    let is_used = |first: &&u64| (**first..**first + ENTRIES as u64).any(|pfn| host.translate(iommu, pfn).is_some());
    (of_chunks.len(), of_chunks.iter().filter(is_used).count())
}

/// Leaf tables of chunks that may exist in addition to those with mappings: each stream may have its current chunk in
/// a separate table, each log has an open table, and some are kept.
fn spare(host: &Host) -> usize {
    TABLE_RESERVE + (host.cpus() as usize + RINGS as usize) * CPU_WORDS + LOGS
}

/// Makes every stream take a chunk, so that each domain has the same number of them in use, and then lets time pass.
fn touch_all_streams(host: &Host, domain: &Soaked<'_>) {
    for pages in [1, CHUNKED_PAGES_MAX] {
        for access in [Access::DeviceReads, Access::DeviceWrites, Access::DeviceReadsAndWrites] {
            for ring in 0..RINGS {
                let segments = [Segment { phys: PhysAddr::new(1 << 40), len: pages * PAGE_SIZE }];
                let mut request = Request::new(&segments, access).expect("pages");
                request.stream = Stream(Some(ring));
                // SAFETY: no device can be attached.
                let range = unsafe { domain.map_request(&request) }.expect("room");
                let mut batch = domain.raw_batch();
                batch.unmap(range).expect("mapped");
                batch.commit().expect("the hardware answers");
            }
        }
    }
    settle(host, domain);
}

/// What can be mapped at once, after everything else is unmapped.
#[derive(Debug)]
struct Room {
    /// Ranges longer than those of chunks, in the lower half and in what chunks lend.
    long: u64,
    /// Single pages in the rest, by all streams of small requests that any CPU may use.
    pages: u64,
}

impl Room {
    /// All pages. Where a page is missing, no long range fits, and the pages around it are mapped one by one.
    fn total(&self) -> u64 {
        self.long * LONG_PAGES + self.pages
    }
}

fn fill(domain: &Soaked<'_>) -> Room {
    let map = |pages: u64, access: Access, stream: Stream| {
        let segments = [Segment { phys: PhysAddr::new(1 << 40), len: pages * PAGE_SIZE }];
        let mut request = Request::new(&segments, access).expect("pages");
        request.stream = stream;
        // SAFETY: no device can be attached.
        match unsafe { domain.map_request(&request) } {
            Ok(range) => Some(range),
            Err(RawMapError::Refused(MapError::Exhausted { .. })) => None,
            Err(error) => panic!("{error}"),
        }
    };
    let mut room = Room { long: 0, pages: 0 };
    while map(LONG_PAGES, Access::DeviceWrites, Stream(None)).is_some() {
        room.long += 1;
    }
    for access in [Access::DeviceReads, Access::DeviceWrites, Access::DeviceReadsAndWrites] {
        for ring in 0..RINGS {
            // Not every table is searched for each request.
            let mut refused = 0;
            while refused < 256 {
                match map(1, access, Stream(Some(ring))) {
                    Some(_) => room.pages += 1,
                    None => refused += 1,
                }
            }
        }
    }
    room
}

fn soak(protection: Protection, operations: u64) {
    let (host, iommu) = (Host::new(), Done::default());
    let domain = domain(&host, &iommu, protection);
    let begun = Instant::now();
    let (mailboxes, together) = ([Mutex::default(), Mutex::default()], Barrier::new(THREADS as usize));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (host, iommu, domain, mailboxes, together) = (&host, &iommu, &domain, &mailboxes, &together);
                scope.spawn(move || {
                    let mut worker = Worker::new(thread, host, iommu, domain, mailboxes);
                    worker.appear();
                    together.wait();
                    worker.run(operations / THREADS);
                    worker
                })
            })
            .collect();
        let workers: Vec<Worker<'_, '_>> =
            threads.into_iter().map(|thread| thread.join().expect("a sound run")).collect();
        println!(
            "{protection}: {operations} operations in {:.1} s, at most {} table pages, {} tables given back meanwhile",
            begun.elapsed().as_secs_f64(),
            workers.iter().map(|worker| worker.table_pages_max).max().unwrap_or(0),
            host.frames_freed(),
        );
        assert!(operations < LONG || host.frames_freed() > 0, "no table was given back while the threads ran");
        settle(&host, &domain);
        let (of_chunks, used) = tables_of_chunks(&host, &iommu);
        println!("{protection}: {of_chunks} leaf tables of chunks, {used} of them with something mapped");
        assert!(of_chunks <= used + spare(&host), "{of_chunks} leaf tables of chunks, {used} used");
        workers.into_iter().for_each(Worker::finish);
    });

    settle(&host, &domain);
    let usage = domain.usage();
    within_limits(&usage);
    assert_eq!((usage.live_ranges, usage.queued_unmaps), (0, 0), "{usage:?}");
    // No page is lost: all pages allocated from the host are in the table.
    let (inner, leaves) = host.tables(&iommu);
    let all = inner + leaves.len();
    assert_eq!(
        (usage.table_pages, host.frames_lent()),
        (all, all),
        "{inner} inner tables, {} leaf tables",
        leaves.len()
    );
    let (of_chunks, used) = tables_of_chunks(&host, &iommu);
    println!("{protection}: {inner} inner tables, {} leaf tables, {of_chunks} of them of chunks", leaves.len());
    assert_eq!(used, 0);
    assert!(of_chunks <= spare(&host), "{of_chunks} leaf tables of chunks");

    touch_all_streams(&host, &domain);
    let (fresh_host, fresh_iommu) = (Host::new(), Done::default());
    let fresh = self::domain(&fresh_host, &fresh_iommu, protection);
    touch_all_streams(&fresh_host, &fresh);
    let (whole, room) = (fill(&fresh), fill(&domain));
    // The rest of the current chunks of other CPUs belongs to them: a chunk and a table for each of three directions,
    // where no long range fits.
    let others = u64::from(host.cpus()) - 1;
    let (of_others, tables_of_others) = (others * 3 * (CHUNK_PAGES + 512), others * 3 * 2);
    println!("{protection}: there is {room:?}, and in a fresh domain {whole:?}");
    assert!(room.total() <= 1 << (ADDRESS_BITS - 12), "{room:?}");
    assert!(
        room.total() + of_others >= whole.total() && room.long + tables_of_others >= whole.long,
        "{room:?}, and in a fresh domain {whole:?}"
    );
    drop(domain);
    assert_eq!(host.frames_lent(), 0);
}

fn operations() -> u64 {
    let written = env::var(OPERATIONS).ok();
    written.map_or(1_000_000, |text| text.parse().unwrap_or_else(|error| panic!("{OPERATIONS}={text}: {error}")))
}

#[test]
fn nothing_is_missing_after_a_soak_under_strict_protection() {
    soak(Protection::Strict, operations());
}

#[test]
fn nothing_is_missing_after_a_soak_under_deferred_protection() {
    soak(Protection::Deferred, operations());
}
