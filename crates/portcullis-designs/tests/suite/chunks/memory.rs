//! A host that runs out of memory: at each table page, for one request and for longer.

use super::TABLE;
use super::ledger::{DEVICE, Ledger, NARROW_BITS, NARROW_TABLES, Want, count_tables, move_on, settle};
use portcullis::chunk::TABLE_RESERVE;
use portcullis::designs::Portcullis;
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::{FakeHost, run_on};
use portcullis::{Access, DomainConfig, DomainOf, MapError, NoMemory, Open, Protection};

type Bench<'h> = DomainOf<Portcullis, &'h FakeHost, &'h FakeIommu<'h>>;

/// Table pages that are never given back before the domain is dropped: the root and two below it, the reserve, one for
/// each stream of small requests and one for the last large requests of reads, and those of the lower half.
const KEPT_MAX: usize = 3 + TABLE_RESERVE + 7 + 3;

/// When the host has memory again.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Shortage {
    /// At the next request.
    Once,
    /// Only after everything is unmapped.
    Lasts,
}

/// Small requests of several streams, medium ones, more large ones than the reserve has tables, and some in the lower
/// half; with unmaps in between.
fn requests() -> impl Iterator<Item = Want> {
    let small = [(1, None), (1, None), (3, Some(5)), (20, None), (1, Some(7)), (32, None)];
    (0..20).flat_map(move |turn| {
        let access = if turn % 3 == 0 { Access::DeviceReads } else { Access::DeviceWrites };
        let large = [(TABLE - turn, None), (if turn == 5 { 600 } else { 40 }, None)];
        small.into_iter().chain(large).map(move |(pages, ring)| Want { pages, access, ring })
    })
}

/// Makes the requests. A refused one must change nothing, and is repeated if memory is `back`. Returns the number of
/// refusals.
fn make_requests(domain: &Bench<'_>, ledger: &Ledger<'_>, mut back: impl FnMut() -> bool) -> usize {
    let mut refused = 0;
    for (number, want) in requests().enumerate() {
        if let Err(error) = ledger.map(domain, want) {
            assert_eq!(error, MapError::NoMemory(NoMemory), "{want:?}");
            refused += 1;
            if back() {
                ledger.map(domain, want).expect("there is memory again");
            }
        }
        if number % 3 == 2 {
            let live = ledger.live();
            live.get(number * 7 % live.len().max(1)).into_iter().for_each(|gone| ledger.unmap(domain, *gone));
        }
        let usage = domain.usage();
        assert_eq!(usage.live_ranges, ledger.live().len() + usage.queued_unmaps, "{number}: {want:?}");
    }
    refused
}

/// Makes all requests with this many table pages, and then again with enough of them. Returns the number of refusals.
fn run(frames: usize, address_bits: u8, protection: Protection, shortage: Shortage) -> usize {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let config = DomainConfig { address_bits, ..DomainConfig::new(protection) };
    let domain = Portcullis::open_with(&iommu, &host, &config).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let ledger = Ledger::new(&host, &iommu);
    host.limit_frames(frames);
    let refused = make_requests(&domain, &ledger, || {
        if shortage == Shortage::Once {
            host.limit_frames(usize::MAX);
        }
        shortage == Shortage::Once
    });
    if shortage == Shortage::Lasts {
        settle(&domain, &ledger);
    }
    host.limit_frames(usize::MAX);
    settle(&domain, &ledger);
    assert_eq!(make_requests(&domain, &ledger, || false), 0, "there is memory again");
    settle(&domain, &ledger);
    assert_eq!(host.frames_lent(), domain.table_pages());
    assert!(domain.table_pages() <= KEPT_MAX, "{}", domain.table_pages());
    if address_bits == NARROW_BITS {
        move_on(&domain, &ledger);
        assert_eq!(count_tables(&domain, &ledger), NARROW_TABLES);
    }
    drop(domain);
    assert_eq!(host.frames_lent(), 0);
    refused
}

/// A CPU leaves the tables of another CPU at work alone. But if there is no memory for one of its own, it fills those.
#[test]
fn a_cpu_without_a_table_fills_those_of_another() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let ledger = Ledger::new(&host, &iommu);
    let want = Want::writes(1);
    let map = |pages: u64| {
        for _ in 0..pages {
            ledger.map(&domain, want).expect("memory");
        }
    };
    map(2 * TABLE);
    let tables = domain.table_pages();
    settle_but_one(&domain, &ledger);
    run_on(1);
    map(1);
    assert_eq!(domain.table_pages(), tables + 1, "a table of its own");
    host.limit_frames(0);
    map(2 * TABLE);
    assert_eq!(domain.table_pages(), tables + 1);
    run_on(0);
}

/// Unmaps everything except the mapping that was made last, so that one table stays in use.
fn settle_but_one(domain: &Bench<'_>, ledger: &Ledger<'_>) {
    let live = ledger.live();
    live[..live.len() - 1].iter().for_each(|gone| ledger.unmap(domain, *gone));
}

#[test]
fn a_host_without_memory_at_each_table_page() {
    for (address_bits, protection) in
        [(NARROW_BITS, Protection::Strict), (48, Protection::Strict), (48, Protection::Deferred)]
    {
        for shortage in [Shortage::Once, Shortage::Lasts] {
            let enough = (0..).find(|frames| run(*frames, address_bits, protection, shortage) == 0);
            assert!(enough > Some(24), "{enough:?} table pages were enough");
        }
    }
}
