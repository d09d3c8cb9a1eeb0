//! What a flush of waiting unmaps invalidates: a range of translations that covers them, and no pointers to table
//! pages.

use super::{DEVICE, Small, TABLE, map, tick_after, unmap};
use portcullis::designs::Portcullis;
use portcullis::iommu::fake::{Behaviour, FakeIommu};
use portcullis::platform::fake::{CPUS, FakeHost, run_on};
use portcullis::table::{ENTRIES, Rights};
use portcullis::{Capabilities, Invalidation, Iommu, Iova, Open, PAGE_SIZE, Protection};

/// The longest time that an unmap waits, in microseconds.
const WINDOW_US: u64 = 500;
/// The largest number of waiting unmaps of a CPU.
const QUEUED_MAX: usize = 128;

/// Runs `test` on a domain whose hardware takes page-selective commands of up to `2^address_mask_max` pages.
fn deferred(address_mask_max: Option<u8>, test: impl FnOnce(&FakeHost, &FakeIommu<'_>, &Small<'_>)) {
    run_on(0);
    let host = FakeHost::default();
    let capabilities = Capabilities { address_mask_max, ..FakeIommu::new(&host).capabilities() };
    let iommu = FakeIommu::with_capabilities(&host, capabilities);
    let domain = Portcullis::open(&iommu, &host, Protection::Deferred).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    test(&host, &iommu, &domain);
    run_on(0);
}

/// Maps single pages that fill this many tables, and returns them in order.
fn map_pages(domain: &Small<'_>, tables: usize) -> Vec<Iova> {
    let pages: Vec<Iova> = (0..tables * ENTRIES).map(|page| map(domain, 0x1000 + page as u64, 1)).collect();
    assert!(pages.windows(2).all(|two| two[0].pfn() + 1 == two[1].pfn()));
    pages
}

/// The command for the aligned `2^mask` pages around `iova`.
fn pages_around(domain: &Small<'_>, iova: Iova, mask: u8) -> Invalidation {
    let first = Iova::from_pfn(iova.pfn() >> mask << mask);
    Invalidation::Pages { domain: domain.id(), first, mask, leaf_only: true }
}

/// Unmaps on two CPUs, then others: one command, for the range that covers all waiting ones.
#[test]
fn one_command_around_all_that_waits() {
    deferred(Some(18), |host, iommu, domain| {
        let pages = map_pages(domain, 4);
        let within_reach = || pages.iter().filter(|page| iommu.access(DEVICE, **page, Rights::WRITE).is_some()).count();
        assert_eq!(within_reach(), pages.len());
        let tables = [&pages[ENTRIES..2 * ENTRIES], &pages[2 * ENTRIES..3 * ENTRIES]];
        for (cpu, table) in tables.into_iter().enumerate() {
            run_on(cpu as u32);
            table[30..40].iter().for_each(|page| unmap(domain, *page, 1));
        }
        run_on(2);
        assert_eq!((domain.usage().queued_unmaps, iommu.take_commands()), (20, vec![]));
        tick_after(host, domain, WINDOW_US);
        // The unmapped pages lie in the middle two of four tables.
        assert_eq!(iommu.take_commands(), [pages_around(domain, pages[0], 11)]);
        assert_eq!((domain.usage().queued_unmaps, within_reach()), (0, pages.len() - 20));
        // The next flush does not cover what was flushed before.
        unmap(domain, pages[3 * ENTRIES + 6], 1);
        unmap(domain, pages[3 * ENTRIES + 9], 1);
        tick_after(host, domain, WINDOW_US);
        assert_eq!(iommu.take_commands(), [pages_around(domain, pages[3 * ENTRIES], 4)]);
        assert_eq!(within_reach(), pages.len() - 22);
    });
}

/// The unmap that finds its queue full flushes for all CPUs. Unmaps that were flushed are not flushed again.
#[test]
fn a_flush_serves_all_cpus() {
    deferred(Some(18), |host, iommu, domain| {
        let pages = map_pages(domain, 1);
        let (mine, others) = pages.split_at(QUEUED_MAX);
        let (last, others) = others.split_last().expect("a table has more pages");
        for cpu in 1..CPUS {
            run_on(cpu);
            others[cpu as usize * 64..][..64].iter().for_each(|page| unmap(domain, *page, 1));
        }
        run_on(0);
        mine.iter().for_each(|page| unmap(domain, *page, 1));
        assert_eq!(iommu.take_commands(), []);
        unmap(domain, *last, 1);
        assert_eq!(iommu.take_commands(), [pages_around(domain, pages[0], 9)]);
        assert!(others[64..][..192].iter().all(|page| iommu.access(DEVICE, *page, Rights::WRITE).is_none()));
        tick_after(host, domain, WINDOW_US);
        assert_eq!(iommu.take_commands(), [pages_around(domain, *last, 0)]);
        assert_eq!((domain.usage().queued_unmaps, domain.usage().live_ranges), (0, 512 - 128 - 192 - 1));
    });
}

/// If the hardware has no command for this many pages, the whole domain is flushed.
#[test]
fn hardware_without_such_commands() {
    for (address_mask_max, in_one) in [(Some(10), true), (Some(9), false), (None, false)] {
        deferred(address_mask_max, |host, iommu, domain| {
            let pages = map_pages(domain, 2);
            pages[ENTRIES - 1..=ENTRIES].iter().for_each(|page| unmap(domain, *page, 1));
            tick_after(host, domain, WINDOW_US);
            let (around, all) = (pages_around(domain, pages[0], 10), Invalidation::Domain(domain.id()));
            assert_eq!(iommu.take_commands(), [if in_one { around } else { all }], "{address_mask_max:?}");
        });
    }
}

/// The whole domain is also flushed if the waiting unmaps lie in both halves of the addresses.
#[test]
fn what_waits_lies_far_apart() {
    deferred(Some(18), |host, iommu, domain| {
        let (large, small) = (map(domain, 0x10_0000, 3 * TABLE), map(domain, 0x1000, 1));
        unmap(domain, large, 3 * TABLE);
        tick_after(host, domain, WINDOW_US);
        assert!(matches!(iommu.take_commands()[..], [Invalidation::Pages { mask: 9..=12, leaf_only: true, .. }]));
        let large = map(domain, 0x10_0000, 3 * TABLE);
        unmap(domain, large, 3 * TABLE);
        unmap(domain, small, 1);
        tick_after(host, domain, WINDOW_US);
        assert_eq!(iommu.take_commands(), [Invalidation::Domain(domain.id())]);
        assert_eq!(domain.usage().live_ranges, 0);
    });
}

/// Unmaps that are left from failed flushes are flushed by the first one that succeeds.
#[test]
fn what_failed_flushes_have_left() {
    deferred(Some(18), |host, iommu, domain| {
        let pages = map_pages(domain, 4);
        let within_reach = |page| iommu.access(DEVICE, page, Rights::WRITE).is_some();
        let gone = [0, 2 * ENTRIES, 3 * ENTRIES].map(|page| pages[page]);
        assert!(gone.into_iter().all(within_reach));
        iommu.behave(Behaviour::Failing);
        unmap(domain, gone[0], 1);
        host.advance_us(WINDOW_US);
        domain.tick().expect_err("the hardware refuses");
        // In a poisoned domain, no unmap waits.
        domain.unmap_raw(gone[1], PAGE_SIZE).expect_err("the hardware refuses");
        assert_eq!(domain.usage().queued_unmaps, 2);
        iommu.behave(Behaviour::Prompt);
        iommu.take_commands();
        unmap(domain, gone[2], 1);
        assert_eq!(iommu.take_commands(), [pages_around(domain, pages[0], 11)]);
        assert!(!gone.into_iter().any(within_reach));
        assert_eq!(domain.usage().queued_unmaps, 0);
    });
}
