//! Tables that are given back: never with a mapping in them, never before the hardware and all software walks have left
//! them, and never unseen by a page walker that does not snoop.

use super::{DEVICE, KEPT, Small, TABLE, map_tables, tick_after, unmap};
use crate::interrupted::{Interrupted, Moment};
use crate::raw_face::RawFace;
use portcullis::chunk::TABLE_IDLE_US;
use portcullis::designs::Portcullis;
use portcullis::iommu::fake::{Behaviour, FakeIommu};
use portcullis::platform::Step;
use portcullis::platform::fake::FakeHost;
use portcullis::table::Rights;
use portcullis::{
    Access, Capabilities, DomainOf, Iommu, Iova, IovaRange, Open, PAGE_SIZE, PhysAddr, Platform, Protection, Request,
    Segment, Stream,
};
use std::collections::VecDeque;
use std::sync::Mutex;

/// Rings beside the slow one, which is the first. There are many, so that it is soon rated as slow.
const RINGS: u32 = 40;

/// S4: a straggler keeps its table, in whichever unit of the table it lies. The table belongs to a slow stream, whose
/// chunks have one unit: in a larger chunk, the first mapped page holds back the units behind it too.
#[test]
fn a_straggler_keeps_its_table() {
    for unit in [0, 1, 6] {
        a_straggler_keeps_its_table_in(unit);
    }
}

fn a_straggler_keeps_its_table_in(unit: u64) {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let map_for = |ring, pfn| {
        let segments = [Segment { phys: PhysAddr::from_pfn(pfn), len: PAGE_SIZE }];
        let mut request = Request::new(&segments, Access::DeviceWrites).expect("a page");
        request.stream = Stream(Some(ring));
        domain.raw_map_request(&request).expect("room").start()
    };
    let mut others = VecDeque::new();
    let mut straggler: Option<Iova> = None;
    let mut turns = 0;
    let mut is_over = false;
    // Until the stream has left the table.
    while !is_over {
        let slow = map_for(0, 0x1000);
        for ring in 1..=RINGS {
            for page in 0..6 {
                others.push_back(map_for(ring, 0x10_0000 + page));
            }
        }
        // By then, the stream is rated as slow.
        if straggler.is_none() && turns > 200 && slow.pfn() % 512 == unit * 16 {
            straggler = Some(slow);
        } else {
            others.push_back(slow);
        }
        is_over = straggler.is_some_and(|straggler| straggler.pfn() / 512 != slow.pfn() / 512);
        while others.len() > 2000 {
            others.pop_front().into_iter().for_each(|iova| unmap(&domain, iova, 1));
        }
        turns += 1;
        assert!(turns < 2000, "the slow stream never reached that place");
    }
    let straggler = straggler.expect("the loop has waited for it");
    let reached = || iommu.access(DEVICE, straggler, Rights::WRITE).map(PhysAddr::pfn);
    assert_eq!(reached(), Some(0x1000));
    // A peak of other mappings, so that there is much to give back.
    let peak = map_tables(&domain, 40);
    others.into_iter().for_each(|iova| unmap(&domain, iova, 1));
    peak.into_iter().for_each(|iova| unmap(&domain, iova, TABLE));
    let before = host.frames_lent();
    (0..8).for_each(|_| tick_after(&host, &domain, TABLE_IDLE_US));
    assert!(host.frames_lent() < before, "no table was given back");
    assert_eq!(reached(), Some(0x1000), "S1, S4: unit {unit}");
    // No other mapping gets its page.
    for new in map_tables(&domain, 40) {
        let new = IovaRange::new(new.pfn(), TABLE).expect("a range");
        assert!(!new.contains(straggler.pfn()), "S3: unit {unit}, {new}");
    }
    assert_eq!(reached(), Some(0x1000), "S1: unit {unit}");
    unmap(&domain, straggler, 1);
}

/// S4: for a page walker that does not snoop, too, the entry that led to a table is cleared before the table goes back
/// to the host, and an entry that is linked again is visible.
#[test]
fn walkers_that_do_not_snoop_see_tables_leave_and_come() {
    let host = FakeHost::default();
    let all = FakeIommu::new(&host).capabilities();
    let iommu = FakeIommu::with_capabilities(&host, Capabilities { coherent: false, ..all });
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let reached = |iova| iommu.access(DEVICE, iova, Rights::WRITE).map(PhysAddr::pfn);
    for _ in 0..3 {
        let mapped = map_tables(&domain, 40);
        for (number, iova) in (0..).zip(&mapped) {
            assert_eq!(reached(*iova), Some(0x10_0000 + number * 512), "S1");
        }
        mapped.iter().for_each(|iova| unmap(&domain, *iova, TABLE));
        (0..6).for_each(|_| {
            tick_after(&host, &domain, TABLE_IDLE_US);
            assert_eq!(host.unflushed(), None);
        });
        assert!(host.frames_lent() <= KEPT, "{}", host.frames_lent());
        // A walk into a freed page makes the fake panic.
        mapped.iter().for_each(|iova| assert_eq!(reached(*iova), None));
    }
}

/// S7: tables whose mappings are unmapped while the last sweep ends are given back, at whatever point of the sweep. The
/// sweep has already passed them, and no later unmap follows.
#[test]
fn tables_go_that_are_unmapped_during_the_last_sweep() {
    /// The unmaps come at this lock of a tick, counted from 0.
    fn frames_left(at: usize) -> Option<usize> {
        let host: &FakeHost = Box::leak(Box::default());
        let iommu: &FakeIommu<'_> = Box::leak(Box::new(FakeIommu::new(host)));
        let unmaps: &Mutex<Option<(usize, UnmapAll)>> = Box::leak(Box::default());
        let handler = Box::leak(Box::new(|moment| {
            if moment == Moment::AfterLock {
                let mut unmaps = unmaps.lock().unwrap();
                match unmaps.take() {
                    Some((0, unmap_all)) => unmap_all(),
                    Some((locks, unmap_all)) => *unmaps = Some((locks - 1, unmap_all)),
                    None => {}
                }
            }
        }));
        let platform: &Interrupted<'_> = Box::leak(Box::new(Interrupted::new(host, handler)));
        let domain: &DomainOf<Portcullis, _, _> =
            Box::leak(Box::new(Portcullis::open(iommu, platform, Protection::Strict).expect("a domain")));
        let map = |number: u64| {
            domain.raw_map(PhysAddr::from_pfn(0x10_0000 + number * 512), TABLE * PAGE_SIZE, Access::DeviceWrites)
        };
        let mapped: Vec<Iova> = (0..40).map(|number| map(number).expect("room")).collect();
        let unmap_all =
            move || mapped.iter().for_each(|iova| domain.unmap_raw(*iova, TABLE * PAGE_SIZE).expect("mapped"));
        *unmaps.lock().unwrap() = Some((at, Box::new(unmap_all)));
        let tick = || {
            let due_us = domain.due_us()?;
            host.advance_us(due_us.saturating_sub(host.now_us()) + 1);
            domain.tick().expect("the hardware answers");
            Some(())
        };
        let mut ticks = 0;
        while tick().is_some() {
            ticks += 1;
            assert!(ticks < 100, "ticks stay due");
        }
        let came = unmaps.lock().unwrap().is_none();
        came.then(|| host.frames_lent())
    }
    type UnmapAll = Box<dyn FnOnce() + Send>;
    let mut moments = 0;
    for at in 0.. {
        match frames_left(at) {
            Some(frames) => {
                assert!(frames <= KEPT, "unmapped at lock {at} of the ticks, {frames} table pages are left")
            }
            None => break,
        }
        moments += 1;
    }
    assert!(moments > 10, "{moments} moments in a sweep");
}

/// Ticks when a tick is due, until none is.
fn tick_until_at_rest(host: &FakeHost, domain: &Small<'_>) {
    let due = || domain.due_us().map(|due_us| due_us.saturating_sub(host.now_us()) + 1);
    for _ in 0..20 {
        let Some(us) = due() else { return };
        tick_after(host, domain, us);
    }
    panic!("S7: a tick is always due");
}

/// S7: batched unmaps schedule a sweep as single ones do. So does the commit of a batch that was held while that sweep
/// ran.
#[test]
fn tables_go_after_batched_unmaps() {
    for is_held in [false, true] {
        let host = FakeHost::default();
        let iommu = FakeIommu::new(&host);
        let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
        let mapped = map_tables(&domain, 40);
        let lent = host.frames_lent();
        // Nothing was unmapped: the sweeps end.
        tick_until_at_rest(&host, &domain);
        let mut batch = domain.raw_batch();
        for iova in mapped {
            batch.unmap(IovaRange::covering(iova, TABLE * PAGE_SIZE).expect("a range")).expect("mapped");
        }
        if is_held {
            tick_until_at_rest(&host, &domain);
        }
        batch.commit().expect("the hardware answers");
        tick_until_at_rest(&host, &domain);
        assert!(host.frames_lent() <= KEPT, "{} of {lent} table pages are left, held: {is_held}", host.frames_lent());
    }
}

/// S7: if the host cannot tell when walks are over, or if the domain is poisoned, no table is given back before the
/// domain is dropped. Even so, its ticks come to an end.
#[test]
fn ticks_come_to_rest_where_no_table_can_go() {
    let host = FakeHost::default();
    host.tell_no_walks();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    let mapped = map_tables(&domain, 40);
    let lent = host.frames_lent();
    mapped.iter().for_each(|iova| unmap(&domain, *iova, TABLE));
    tick_until_at_rest(&host, &domain);
    assert_eq!(host.frames_lent(), lent);
    drop(domain);
    assert_eq!(host.frames_lent(), 0);

    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    let [one, mapped @ ..] = &map_tables(&domain, 41)[..] else { unreachable!("there are 41") };
    let lent = host.frames_lent();
    mapped.iter().for_each(|iova| unmap(&domain, *iova, TABLE));
    iommu.behave(Behaviour::Failing);
    assert!(domain.unmap_raw(*one, TABLE * PAGE_SIZE).is_err());
    tick_until_at_rest(&host, &domain);
    assert_eq!(host.frames_lent(), lent, "a poisoned domain gives back a table");
}

/// S4: a table is not given back while an unmap walks it, even if the unmap is a mistake and its mapping is gone: a
/// single unmap, a batched one, or the commit of a batch.
#[test]
fn an_unmap_that_comes_too_late_keeps_the_table_that_it_walks() {
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Way {
        Single,
        Batch,
    }
    // The last mapping begins with its table.
    for pages in [1, 4, TABLE] {
        for way in [Way::Single, Way::Batch] {
            let host: &FakeHost = Box::leak(Box::default());
            let iommu: &FakeIommu<'_> = Box::leak(Box::new(FakeIommu::new(host)));
            // Runs once, just before the entries of the mapping are cleared.
            type Meanwhile = Mutex<Option<Box<dyn FnOnce() + Send>>>;
            let meanwhile: &Meanwhile = Box::leak(Box::default());
            let handler = Box::leak(Box::new(|moment: Moment| {
                if matches!(moment, Moment::Before(Step::ChunkClear { .. })) {
                    let run = meanwhile.lock().expect("not poisoned").take();
                    run.into_iter().for_each(|run| run());
                }
            }));
            let platform: &Interrupted<'_> = Box::leak(Box::new(Interrupted::new(host, handler)));
            let domain: DomainOf<Portcullis, _, _> =
                Portcullis::open(iommu, platform, Protection::Strict).expect("a domain");
            let domain: &'static _ = Box::leak(Box::new(domain));
            domain.attach(DEVICE).expect("a device");
            let map = |number: u64, pages| {
                let phys = PhysAddr::from_pfn(0x10_0000 + number * 512);
                domain.raw_map(phys, pages * PAGE_SIZE, Access::DeviceWrites).expect("room")
            };
            let tables: Vec<Iova> = (0..40).map(|number| map(number, TABLE)).collect();
            let gone = map(60, pages);
            let tables_more: Vec<Iova> = (41..60).map(|number| map(number, TABLE)).collect();
            let unmap = move |iova: Iova, pages| domain.unmap_raw(iova, pages * PAGE_SIZE);
            let seen: &'static Mutex<(usize, usize)> = Box::leak(Box::default());
            *meanwhile.lock().expect("not poisoned") = Some(Box::new(move || {
                unmap(gone, pages).expect("mapped");
                tables.into_iter().chain(tables_more).for_each(|iova| unmap(iova, TABLE).expect("mapped"));
                let before = host.frames_lent();
                for _ in 0..8 {
                    host.advance_us(TABLE_IDLE_US);
                    domain.tick().expect("the hardware answers");
                }
                *seen.lock().expect("not poisoned") = (before, host.frames_lent());
            }));
            // The second of two unmaps of one mapping. Its result is unspecified, but it must not walk a page that was
            // given back.
            let _ = match way {
                Way::Single => unmap(gone, pages).is_ok(),
                Way::Batch => {
                    let mut batch = domain.raw_batch();
                    let range = IovaRange::covering(gone, pages * PAGE_SIZE).expect("a range");
                    batch.unmap(range).is_ok() && batch.commit().is_ok()
                }
            };
            let (before, after) = *seen.lock().expect("not poisoned");
            assert!(before > 0, "{way:?} {pages}: nothing ran in between");
            assert_eq!(after, before, "S4: {way:?} {pages}: a table was given back while it was walked");
            // Once the walk is over, the tables are given back.
            for _ in 0..4 {
                host.advance_us(TABLE_IDLE_US);
                domain.tick().expect("the hardware answers");
            }
            assert!(host.frames_lent() < before, "{way:?} {pages}");
        }
    }
}
