//! Dynamic identity mapping (ATC'15, §4.1): the addresses of pages, the conditions under which a mapping goes to the
//! fourth region, and that only the last unmap of a page clears its translation. The file has all that is special to
//! one design and is longer than others.

use crate::interrupted::{Interrupted, Moment};
use crate::raw_face::RawFace;
use portcullis::domain::{DmaBuffer, DomainOf};
use portcullis::invalidation::{BATCH_MAX, QUEUE_TIMEOUT_US};
use portcullis::iommu::fake::{Behaviour, FakeIommu};
use portcullis::platform::Step;
use portcullis::platform::fake::{FakeHost, run_on};
use portcullis::table::{Rights, SHARES_MAX};
use portcullis::{
    Access, Capabilities, CommitError, DomainConfig, Invalidation, Iommu, Iova, IovaRange, MapError, NewDomainError,
    Open, PAGE_SIZE, PhysAddr, Protection, QueueError, RawUnmapError, Request, Segment, SourceId, UnmapError,
};
use portcullis_designs::Identity;
use std::sync::{Mutex, OnceLock};

const DEVICE: SourceId = SourceId::new(0, 4, 0);
const READS: Access = Access::DeviceReads;
const WRITES: Access = Access::DeviceWrites;
const BOTH: Access = Access::DeviceReadsAndWrites;

type On<'h> = DomainOf<Identity, &'h FakeHost, &'h FakeIommu<'h>>;

fn with_config(config: &DomainConfig<'_>, test: impl FnOnce(&FakeHost, &FakeIommu<'_>, On<'_>)) {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Identity::open_with(&iommu, &host, config).unwrap();
    domain.attach(DEVICE).unwrap();
    test(&host, &iommu, domain);
    assert_eq!(host.frames_lent(), 0);
}

fn strict(test: impl FnOnce(&FakeIommu<'_>, On<'_>)) {
    with_config(&DomainConfig::new(Protection::Strict), |_, iommu, domain| test(iommu, domain));
}

fn page(pfn: u64) -> PhysAddr {
    PhysAddr::from_pfn(pfn)
}

fn range(first_pfn: u64, pages: u64) -> IovaRange {
    IovaRange::new(first_pfn, pages).expect("written down as one")
}

/// The memory that the device reaches by reading and by writing.
fn reach(iommu: &FakeIommu<'_>, iova: Iova) -> [Option<PhysAddr>; 2] {
    [Rights::READ, Rights::WRITE].map(|rights| iommu.access(DEVICE, iova, rights))
}

/// The command for one page of `domain`.
fn one_page(domain: &On<'_>, iova: Iova) -> Invalidation {
    Invalidation::Pages { domain: domain.id(), first: Iova::from_pfn(iova.pfn()), mask: 0, leaf_only: true }
}

#[test]
fn an_address_is_the_physical_one_with_the_rights_in_front() {
    for bits in [32, 39, 48] {
        with_config(
            &DomainConfig { address_bits: bits, ..DomainConfig::new(Protection::Strict) },
            |_, iommu, domain| {
                let phys = PhysAddr::new(0x12_3456);
                for (access, tag) in [(READS, 1), (WRITES, 2), (BOTH, 3)] {
                    let iova = domain.raw_map(phys, 0x2000, access).unwrap();
                    assert_eq!(iova.as_u64(), tag << (bits - 2) | 0x12_3456, "{access:?}");
                    let allowed = |rights: Rights| access.rights().allows(rights).then_some(phys);
                    assert_eq!(reach(iommu, iova), [Rights::READ, Rights::WRITE].map(allowed));
                }
                assert_eq!(domain.usage().live_ranges, 3);
            },
        );
    }
}

/// S5: mappings of a page with different rights have separate entries, and no entry has more rights than were
/// requested.
#[test]
fn rights_do_not_add_up() {
    strict(|iommu, domain| {
        let phys = page(5);
        let read = domain.raw_map(phys, PAGE_SIZE, READS).unwrap();
        let written = domain.raw_map(phys, PAGE_SIZE, WRITES).unwrap();
        assert_eq!((reach(iommu, read), reach(iommu, written)), ([Some(phys), None], [None, Some(phys)]));
        domain.unmap_raw(written, PAGE_SIZE).unwrap();
        assert_eq!((reach(iommu, read), reach(iommu, written)), ([Some(phys), None], [None, None]));
        assert_eq!(domain.unmap_raw(written, 1), Err(RawUnmapError::Refused(UnmapError::NotMapped(written))));
        domain.unmap_raw(read, PAGE_SIZE).unwrap();
        assert_eq!(reach(iommu, read), [None, None]);
    });
}

/// Two halves of a page, each unmapped once: only the second unmap has something to invalidate.
#[test]
fn the_last_unmap_invalidates() {
    strict(|iommu, domain| {
        let [first, second] = [0, 2048].map(|offset| PhysAddr::new(0x7000 + offset));
        let iovas = [first, second].map(|half| domain.raw_map(half, 2048, WRITES).unwrap());
        assert_eq!(reach(iommu, iovas[0]), [None, Some(first)]);
        domain.unmap_raw(iovas[0], 2048).unwrap();
        assert_eq!(iommu.take_commands(), []);
        assert_eq!((reach(iommu, iovas[1]), domain.usage().live_ranges), ([None, Some(second)], 1));
        domain.unmap_raw(iovas[1], 2048).unwrap();
        assert_eq!(iommu.take_commands(), [one_page(&domain, iovas[1])]);
        assert_eq!((reach(iommu, iovas[0]), domain.usage().live_ranges), ([None, None], 0));

        // Of three pages, one stays mapped. One command covers all of them, because two are gone.
        let whole = domain.raw_map(page(0x10), 3 * PAGE_SIZE, WRITES).unwrap();
        let middle = domain.raw_map(page(0x11), 1, WRITES).unwrap();
        domain.unmap_raw(whole, 3 * PAGE_SIZE).unwrap();
        let first = Iova::from_pfn(whole.pfn());
        let command = Invalidation::Pages { domain: domain.id(), first, mask: 2, leaf_only: true };
        assert_eq!(iommu.take_commands(), [command]);
        assert_eq!((reach(iommu, whole), reach(iommu, middle)), ([None, None], [None, Some(page(0x11))]));
    });
}

/// Whether an address lies in the fourth region.
fn in_fourth(iova: Iova, bits: u8) -> bool {
    iova.as_u64() < 1 << (bits - 2)
}

#[test]
fn what_cannot_be_mapped_at_its_own_address() {
    // Two pages that are reserved for writes of the device, but not for reads.
    let reserved = [range((2 << 18) + 0x100, 2)];
    let config = DomainConfig { address_bits: 32, reserved: &reserved, ..DomainConfig::new(Protection::Strict) };
    with_config(&config, |_, iommu, domain| {
        let map = |phys, len, access| domain.raw_map(PhysAddr::new(phys), len, access).unwrap();
        let cases = [
            // Reserved by the firmware: not for reads, and not beside the range.
            (0x10_0000, 1, WRITES, true),
            (0xf_f000, 0x1001, WRITES, true),
            (0x10_1000, 0x1000, WRITES, true),
            (0x10_0000, 0x2000, READS, false),
            (0xf_f000, 0x1000, WRITES, false),
            (0x10_2000, 1, WRITES, false),
            // The interrupt range, if it were mapped for both.
            (0x3ee0_0000, 1, BOTH, true),
            (0x3eef_ffff, 1, BOTH, true),
            (0x3eef_ffff, 2, BOTH, true),
            (0x3ee0_0000, 1, WRITES, false),
            (0x3ef0_0000, 1, BOTH, false),
            // Page 0 is reserved in the fourth region only.
            (0, 1, READS, false),
            // The last bytes that a region covers, and then bytes behind its end.
            (0x3fff_f000, 0x1000, BOTH, false),
            (0x3fff_f000, 0x1001, BOTH, true),
            (1 << 40, 1, READS, true),
        ];
        for (phys, len, access, fourth) in cases {
            let iova = map(phys, len, access);
            assert_eq!(in_fourth(iova, 32), fourth, "{phys:#x}+{len:#x} for {access:?}: {iova}");
            let [read, written] = reach(iommu, iova);
            assert_eq!(read.or(written), Some(PhysAddr::new(phys)));
            domain.unmap_raw(iova, len).unwrap();
            assert_eq!(reach(iommu, iova), [None, None]);
        }
        // Several segments go to the fourth region, even if they are contiguous.
        let segments =
            [(0x5000, 0x1000), (0x6000, 0x800)].map(|(phys, len)| Segment { phys: PhysAddr::new(phys), len });
        let list = domain.raw_map_request(&Request::new(&segments, READS).unwrap()).unwrap();
        assert!(in_fourth(list.start(), 32), "{list}");
        assert_eq!(reach(iommu, Iova::from_pfn(list.first_pfn() + 1)), [Some(page(6)), None]);
        domain.unmap_raw(list.start(), 2 * PAGE_SIZE).unwrap();
        assert_eq!(domain.usage().live_ranges, 0);
    });
}

#[test]
fn two_bits_must_leave_a_page() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = |address_bits| {
        let config = DomainConfig { address_bits, ..DomainConfig::new(Protection::Strict) };
        Identity::open_with(&iommu, &host, &config)
    };
    assert_eq!(domain(13).err(), Some(NewDomainError::Width(13)));
    let domain = domain(14).unwrap();
    assert_eq!(domain.raw_map(page(0), PAGE_SIZE, BOTH), Ok(Iova::from_pfn(3)));
    // Page 0 is the whole fourth region.
    assert_eq!(domain.raw_map(page(1), 1, BOTH), Err(MapError::Exhausted { pages: 1, limit_bits: 12 }));
}

/// The 1024th mapping of a page does not fit in the page's count, and gets an address in the fourth region. If one of
/// several pages is full, none of them is counted.
#[test]
fn what_is_mapped_too_often_goes_to_the_fourth_region() {
    strict(|iommu, domain| {
        let (full, beside) = (page(0x20), page(0x1f));
        let map = || domain.raw_map(full, PAGE_SIZE, WRITES).unwrap();
        let shared = map();
        for _ in 1..SHARES_MAX {
            assert_eq!(map(), shared);
        }
        let own = map();
        assert!(in_fourth(own, 48), "{own}");
        let both = domain.raw_map(beside, 2 * PAGE_SIZE, WRITES).unwrap();
        assert!(in_fourth(both, 48), "{both}");
        let free = domain.raw_map(full, PAGE_SIZE, READS).unwrap();
        assert!(!in_fourth(free, 48), "reads have another count: {free}");
        assert_eq!(domain.usage().live_ranges as u64, SHARES_MAX + 3);
        let not_mapped = Iova::from_pfn(shared.pfn() - 1);
        assert_eq!(
            domain.unmap_raw(not_mapped, 2 * PAGE_SIZE),
            Err(RawUnmapError::Refused(UnmapError::NotMapped(not_mapped)))
        );
        // With one mapping less, there is room again.
        domain.unmap_raw(shared, PAGE_SIZE).unwrap();
        assert_eq!(map(), shared);
        assert_eq!(iommu.take_commands(), []);
        (0..SHARES_MAX).for_each(|_| domain.unmap_raw(shared, PAGE_SIZE).unwrap());
        assert_eq!(iommu.take_commands(), [one_page(&domain, shared)]);
        let reached = [shared, own, both, free].map(|iova| iommu.access(DEVICE, iova, Rights::WRITE));
        assert_eq!(reached, [None, Some(full), Some(beside), None]);
    });
}

/// A page becomes full during a map: two pages have been counted, and meanwhile the last other mapping of the second
/// was unmapped, without an invalidation because of this map. When the map returns another address, the device has lost
/// that page (S2).
#[test]
fn a_map_that_finds_no_room_half_way_takes_back_what_it_counted() {
    static DOMAIN: OnceLock<DomainOf<Identity, &'static Interrupted<'static>, &'static FakeIommu<'static>>> =
        OnceLock::new();
    static SEEN: Mutex<usize> = Mutex::new(0);
    let host: &FakeHost = Box::leak(Box::default());
    let iommu: &FakeIommu<'_> = Box::leak(Box::new(FakeIommu::new(host)));
    // The last two pages of a leaf table, and the first of the next.
    let (second, last) = (page(0x1ff), page(0x200));
    let handler = move |moment| {
        let Some(domain) = DOMAIN.get() else { return };
        if !matches!(moment, Moment::Before(Step::TableShare { .. })) {
            return;
        }
        *SEEN.lock().unwrap() += 1;
        let other = |phys| domain.raw_map(phys, PAGE_SIZE, WRITES).unwrap();
        // The second part of the map, after the earlier map of `second` alone.
        if *SEEN.lock().unwrap() == 3 {
            for _ in 0..SHARES_MAX {
                other(last);
            }
            let iova = Iova::new(1 << 47 | second.as_u64());
            assert_eq!(iommu.access(DEVICE, iova, Rights::WRITE), Some(second));
            domain.unmap_raw(iova, PAGE_SIZE).unwrap();
            assert_eq!(iommu.take_commands(), [], "the page is still counted for the other mapping");
        }
    };
    let interrupted: &Interrupted<'_> = Box::leak(Box::new(Interrupted::new(host, Box::leak(Box::new(handler)))));
    let domain = DOMAIN.get_or_init(|| Identity::open(iommu, interrupted, Protection::Strict).unwrap());
    domain.attach(DEVICE).unwrap();
    let shared = domain.raw_map(second, PAGE_SIZE, WRITES).unwrap();
    let own = domain.raw_map(page(0x1fe), 3 * PAGE_SIZE, WRITES).unwrap();
    assert_eq!(*SEEN.lock().unwrap(), 3);
    assert!(in_fourth(own, 48), "{own}");
    assert_eq!(iommu.access(DEVICE, shared, Rights::WRITE), None, "S2");
    let counted =
        Invalidation::Pages { domain: domain.id(), first: Iova::from_pfn(shared.pfn() - 1), mask: 1, leaf_only: true };
    assert_eq!(iommu.take_commands(), [counted]);
    assert_eq!(domain.usage().live_ranges as u64, SHARES_MAX + 1);
}

/// A wrong unmap takes a page of a mapping during the proper unmap. The proper one is then refused, and the device
/// reaches the other pages again, even if the hardware has cached that they were absent.
#[test]
fn an_unmap_that_meets_a_wrong_one_half_way_changes_nothing() {
    static DOMAIN: OnceLock<DomainOf<Identity, &'static Interrupted<'static>, &'static FakeIommu<'static>>> =
        OnceLock::new();
    static SEEN: Mutex<usize> = Mutex::new(0);
    let host: &FakeHost = Box::leak(Box::default());
    let capabilities = Capabilities { caches_absent: true, ..FakeIommu::new(host).capabilities() };
    let iommu: &FakeIommu<'_> = Box::leak(Box::new(FakeIommu::with_capabilities(host, capabilities)));
    let (first, last) = (page(0x1ff), page(0x200));
    let at = |phys: PhysAddr| Iova::new(1 << 46 | phys.as_u64());
    let handler = move |moment| {
        let Some(domain) = DOMAIN.get() else { return };
        if matches!(moment, Moment::Before(Step::TableUnshare { .. })) {
            *SEEN.lock().unwrap() += 1;
            if *SEEN.lock().unwrap() == 2 {
                domain.unmap_raw(at(last), PAGE_SIZE).unwrap();
                iommu.submit(&[Invalidation::Global]).unwrap();
                assert_eq!(iommu.access(DEVICE, at(first), Rights::READ), None);
            }
        }
    };
    let interrupted: &Interrupted<'_> = Box::leak(Box::new(Interrupted::new(host, Box::leak(Box::new(handler)))));
    let domain = DOMAIN.get_or_init(|| Identity::open(iommu, interrupted, Protection::Strict).unwrap());
    domain.attach(DEVICE).unwrap();
    assert_eq!(domain.raw_map(first, 2 * PAGE_SIZE, READS), Ok(at(first)));
    let refused = domain.unmap_raw(at(first), 2 * PAGE_SIZE);
    assert_eq!(refused, Err(RawUnmapError::Refused(UnmapError::NotMapped(at(last)))));
    assert_eq!(iommu.access(DEVICE, at(first), Rights::READ), Some(first));
    assert_eq!(iommu.access(DEVICE, at(last), Rights::READ), None);
}

/// Wrong unmaps are refused and change nothing, except those that look like a proper unmap: the declared breach of S6.
#[test]
fn unmaps_of_what_is_not_mapped() {
    strict(|iommu, domain| {
        let iova = domain.raw_map(page(0x3ff), 2 * PAGE_SIZE, WRITES).unwrap();
        let (first, region) = (iova.pfn(), 1u64 << 34);
        let wrong = [
            range(first - 1, 2),
            range(first + 1, 2),
            range(first, 3),
            range(first, 600),
            // The same memory, for other accesses.
            range(first - region, 2),
            range(first + region, 2),
            // Across a region's end, over several regions, and beyond all of them.
            range(2 * region - 1, 2),
            range(3 * region - 1, 2),
            range(region - 1, 2),
            range(1, 4 * region - 1),
            range(4 * region - 1, 2),
            range(first, 1 << 40),
            range(1 << 51, 1),
        ];
        let before = domain.usage();
        for range in wrong {
            let mut batch = domain.raw_batch();
            let refused = batch.unmap(range);
            assert!(matches!(refused, Err(UnmapError::NotMapped(_))), "{range}: {refused:?}");
            batch.commit().unwrap();
            assert_eq!(domain.usage(), before, "{range}");
        }
        assert_eq!(reach(iommu, iova), [None, Some(page(0x3ff))]);
        // The last page of one region and the first of the next are adjacent, but belong to different mappings.
        let border = domain.raw_map(page(region - 1), PAGE_SIZE, WRITES).unwrap();
        assert_eq!(domain.raw_map(page(0), PAGE_SIZE, BOTH), Ok(Iova::from_pfn(border.pfn() + 1)));
        let refused = domain.unmap_raw(border, 2 * PAGE_SIZE);
        assert_eq!(refused, Err(RawUnmapError::Refused(UnmapError::NotMapped(border))));
        // The declared breach: an unmap of a part succeeds.
        domain.unmap_raw(Iova::from_pfn(first + 1), PAGE_SIZE).unwrap();
        assert_eq!(reach(iommu, Iova::from_pfn(first + 1)), [None, None]);
        assert_eq!(
            domain.unmap_raw(iova, 2 * PAGE_SIZE),
            Err(RawUnmapError::Refused(UnmapError::NotMapped(Iova::from_pfn(first + 1))))
        );
    });
}

/// A buffer of one page, or of half a page.
struct Page([Segment; 1]);

// SAFETY: it has no memory; only the fake IOMMU “reaches” it.
unsafe impl DmaBuffer for Page {
    fn segments(&self) -> &[Segment] {
        &self.0
    }
}

/// Half `half` of page 9.
fn half(half: u64) -> Page {
    Page([Segment { phys: PhysAddr::new(0x9000 + 2048 * half), len: 2048 }])
}

/// In a batch, an unmap that has nothing to invalidate takes a place like any other, and hands back its buffer with the
/// batch.
#[test]
fn batches_of_shared_pages() {
    with_config(&DomainConfig::new(Protection::Strict), |host, iommu, domain| {
        let map = |number| domain.map(half(number % 2), WRITES).unwrap_or_else(|failure| panic!("{}", failure.error()));
        let mut mappings: Vec<_> = (0..=BATCH_MAX as u64).map(map).collect();
        let last = mappings.pop().unwrap();
        let (iova, of_last) = (mappings[0].iova(), last.iova());
        assert_eq!((of_last, last.segment_iova(0)), (iova, iova));
        let mut batch = domain.batch();
        for mapping in mappings {
            batch.unmap(mapping).unwrap_or_else(|refused| panic!("{}", refused.error));
        }
        let refused = batch.unmap(last).expect_err("no room");
        assert_eq!(refused.error, UnmapError::BatchFull);
        assert_eq!(batch.commit().unwrap().len(), BATCH_MAX);
        assert_eq!((iommu.take_commands(), domain.usage().live_ranges), (vec![], 1));

        // A mapping of another domain is refused, also by a batch that has nothing to invalidate.
        let other = Identity::open(iommu, host, Protection::Strict).unwrap();
        let [shared, foreign] = [domain.map(half(1), WRITES), other.map(half(1), WRITES)];
        let (Ok(shared), Ok(foreign)) = (shared, foreign) else { panic!("room") };
        let mut batch = domain.batch();
        assert!(batch.unmap(shared).is_ok());
        let foreign = batch.unmap(foreign).expect_err("another domain's");
        assert_eq!(foreign.error, UnmapError::WrongDomain);
        drop(batch);
        assert!(other.unmap(foreign.value).is_ok());
        iommu.take_commands();

        // One commit with the last unmap of a page and one that is not the last.
        let shared = domain.map(half(0), WRITES).ok().expect("room");
        let mut batch = domain.batch();
        assert!(batch.unmap(refused.value).is_ok() && batch.unmap(shared).is_ok());
        assert_eq!(reach(iommu, iova), [None, None], "no entry, and nothing was cached");
        assert_eq!(batch.commit().unwrap().len(), 2);
        assert_eq!((iommu.take_commands(), domain.usage().live_ranges), (vec![one_page(&domain, iova)], 0));
    });
}

/// A page that is mapped again before the flush has the same address, and stays mapped after the flush. Only last
/// unmaps wait.
#[test]
fn deferred_unmaps_of_pages_that_are_mapped_again() {
    with_config(&DomainConfig::new(Protection::Deferred), |host, iommu, domain| {
        let phys = page(0x30);
        let map = || domain.raw_map(phys, PAGE_SIZE, WRITES).unwrap();
        let unmap = |iova| domain.unmap_raw(iova, PAGE_SIZE).unwrap();
        let usage = || (domain.usage().queued_unmaps, domain.usage().live_ranges);
        let iova = map();
        assert_eq!((map(), reach(iommu, iova)), (iova, [None, Some(phys)]));
        unmap(iova);
        assert_eq!(usage(), (0, 1), "another mapping has the page, so nothing waits");
        unmap(iova);
        assert_eq!((usage(), reach(iommu, iova)), ((1, 1), [None, Some(phys)]), "in the stale window");
        assert_eq!(map(), iova);
        unmap(iova);
        assert_eq!((map(), usage()), (iova, (2, 3)));
        assert_eq!(iommu.take_commands(), []);
        host.advance_us(QUEUE_TIMEOUT_US);
        domain.tick().unwrap();
        assert_eq!(iommu.take_commands(), [Invalidation::Domain(domain.id())]);
        assert_eq!((usage(), reach(iommu, iova)), ((0, 1), [None, Some(phys)]), "mapped");
        unmap(iova);
        host.advance_us(QUEUE_TIMEOUT_US);
        domain.tick().unwrap();
        assert_eq!((usage(), reach(iommu, iova)), ((0, 0), [None, None]));
    });
}

/// Pages that are mapped on one CPU and unmapped on another: the counts of the CPUs wrap, and their sum is right.
#[test]
fn mappings_are_counted_across_cpus() {
    strict(|_, domain| {
        let iovas: Vec<Iova> = (0..6)
            .map(|number| {
                run_on(number % 3);
                domain.raw_map(page(0x50 + u64::from(number)), 1, READS).unwrap()
            })
            .collect();
        run_on(3);
        for (number, iova) in iovas.into_iter().enumerate() {
            assert_eq!(domain.usage().live_ranges, 6 - number);
            domain.unmap_raw(iova, 1).unwrap();
        }
        assert_eq!(domain.usage().live_ranges, 0);
        run_on(0);
    });
}

/// S11: with failing hardware, a buffer that needs no invalidation is handed back, and the last buffer of the page is
/// not.
#[test]
fn the_last_unmap_fails_with_the_hardware() {
    strict(|iommu, domain| {
        let iovas = [0, 2048].map(|offset| domain.raw_map(PhysAddr::new(0x7000 + offset), 2048, WRITES).unwrap());
        assert_eq!(reach(iommu, iovas[0])[1], Some(page(7)));
        iommu.behave(Behaviour::Failing);
        assert_eq!(domain.unmap_raw(iovas[0], 2048), Ok(()));
        let failed = Err(RawUnmapError::Commit(CommitError(QueueError::Descriptor)));
        assert_eq!(domain.unmap_raw(iovas[1], 2048), failed);
        assert_eq!(domain.usage().live_ranges, 1, "quarantined");
        assert_eq!(reach(iommu, iovas[0])[1], Some(page(7)), "the device still has it");
        iommu.behave(Behaviour::Prompt);
        assert_eq!(domain.raw_map(page(7), 1, WRITES), Err(MapError::Poisoned));
    });
}

/// S9: a range that is reserved across the end of the fourth region is handed out neither there nor in the next region.
#[test]
fn a_range_reserved_across_the_end_of_the_fourth_region() {
    const BITS: u8 = 32;
    /// Pages of each region.
    const REGION: u64 = 1 << (BITS - 2 - 12);
    for (before, behind) in [(2, 3), (1, 1), (4, 2)] {
        let reserved = [range(REGION - before, before + behind)];
        let config = DomainConfig { address_bits: BITS, reserved: &reserved, ..DomainConfig::new(Protection::Strict) };
        with_config(&config, |_, iommu, domain| {
            for pfn in 0..behind + 3 {
                let iova = domain.raw_map(page(pfn), PAGE_SIZE, READS).expect("room");
                assert!(!reserved[0].contains(iova.pfn()), "S9: {iova} is reserved");
                assert_eq!(in_fourth(iova, BITS), pfn < behind, "{pfn}");
                assert_eq!(reach(iommu, iova), [Some(page(pfn)), None]);
            }
            // Requests of two segments go to the fourth region, which is filled from its end.
            let segments = [10, 20].map(|pfn| Segment { phys: page(pfn), len: PAGE_SIZE });
            let request = Request::new(&segments, WRITES).expect("a request");
            for _ in 0..8 {
                let taken = domain.raw_map_request(&request).expect("room");
                assert!(!reserved[0].overlaps(taken), "S9: {taken} is handed out");
            }
        });
    }
}

/// S7: the fourth region gives back surplus magazines when a tick is due.
#[test]
fn the_fourth_region_gives_back_what_it_keeps() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Identity::open(&iommu, &host, Protection::Strict).expect("a domain");
    let segments = [10, 20].map(|pfn| Segment { phys: page(pfn), len: PAGE_SIZE });
    let request = Request::new(&segments, WRITES).expect("a request");
    let taken: Vec<IovaRange> = (0..8000).map(|_| domain.raw_map_request(&request).expect("room")).collect();
    for taken in taken {
        domain.unmap_raw(taken.start(), taken.pages() * PAGE_SIZE).expect("mapped");
    }
    let kept = domain.usage().kept_ranges;
    let due_us = domain.due_us().expect("a tick is due");
    host.advance_us(due_us + 1);
    domain.tick().expect("the hardware answers");
    assert!(domain.usage().kept_ranges < kept, "{kept} are kept");
}
