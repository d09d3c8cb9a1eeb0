//! Windows of four pages, handed out by one CPU and taken back by another.

use super::{Bench, check_with};
use crate::raw_face::RawFace;
use loom::thread;
use portcullis::platform::fake::run_on;
use portcullis::{Access, Iova, PAGE_SIZE, PhysAddr, Protection, RawUnmapError, Request, Segment, Stream, UnmapError};
use portcullis_designs::FastAndSafe;
use std::sync::atomic::{AtomicUsize, Ordering};

const WINDOW: u64 = 4;

fn bench() -> Bench<FastAndSafe> {
    Bench::new(Protection::Strict)
}

/// Maps pages for a ring that all CPUs serve.
fn map_for_ring(bench: &Bench<FastAndSafe>, pfn: u64, pages: u64) -> Iova {
    let segments = [Segment { phys: PhysAddr::from_pfn(pfn), len: pages * PAGE_SIZE }];
    let mut request = Request::new(&segments, Access::DeviceWrites).expect("pages");
    request.stream = Stream(Some(0));
    let range = bench.domain.raw_map_request(&request).expect("room");
    assert!(!bench.iommu.is_cached(bench.domain.id(), range.first_pfn()), "S3: {range} is cached");
    range.start()
}

/// Checks that everything is unmapped, and that no window has come back twice, because then two requests would get
/// it.
fn every_window_is_there_once(bench: &Bench<FastAndSafe>) {
    let usage = bench.domain.usage();
    assert_eq!(usage.live_ranges, 0);
    assert!(usage.kept_ranges_max.is_some_and(|most| usage.kept_ranges <= most), "S7: {usage:?}");
    let mut windows = [100, 200, 300, 400].map(|pfn| bench.map(pfn, WINDOW));
    windows.sort_unstable();
    assert!(windows.windows(2).all(|pair| pair[0].pfn() + WINDOW <= pair[1].pfn()), "S3: {windows:?}");
}

/// Two CPUs take pages for one ring, from a window whose earlier range a third CPU frees meanwhile.
#[test]
fn two_cpus_serve_a_ring_beside_the_last_free() {
    static SAME_WINDOW: AtomicUsize = AtomicUsize::new(0);
    static NEXT_WINDOW: AtomicUsize = AtomicUsize::new(0);
    check_with(Some(2), || {
        let bench = bench();
        let gone = map_for_ring(&bench, 10, 2);
        let others = [(0, 20, 1), (1, 30, 2)].map(|(cpu, pfn, pages)| {
            let other = bench.clone();
            thread::spawn(move || {
                run_on(cpu);
                (pfn, pages, map_for_ring(&other, pfn, pages))
            })
        });
        bench.unmap(gone, 2).expect("mapped");
        let mapped = others.map(|other| other.join().unwrap());
        let mut pages: Vec<u64> = Vec::new();
        for (pfn, count, iova) in mapped {
            assert_eq!(bench.reach(iova), Some(pfn));
            pages.extend(iova.pfn()..iova.pfn() + count);
        }
        let in_window = pages.iter().filter(|pfn| **pfn / WINDOW == gone.pfn() / WINDOW).count();
        SAME_WINDOW.fetch_add(usize::from(in_window > 0), Ordering::Relaxed);
        NEXT_WINDOW.fetch_add(usize::from(in_window < pages.len()), Ordering::Relaxed);
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len(), 3, "S3: no page is handed out twice");
        for (_, pages, iova) in mapped {
            bench.unmap(iova, pages).expect("mapped");
        }
        every_window_is_there_once(&bench);
        bench.close();
    });
    assert!(SAME_WINDOW.load(Ordering::Relaxed) > 0 && NEXT_WINDOW.load(Ordering::Relaxed) > 0);
}

/// One CPU leaves a window for another while the last pages of the first come back. That window comes back once, and
/// at once.
#[test]
fn a_seal_beside_the_last_free() {
    check_with(None, || {
        let bench = bench();
        let gone = bench.map(10, 3);
        let other = bench.clone();
        let freed = thread::spawn(move || other.unmap(gone, 3));
        let new = bench.map(20, 2);
        assert_ne!(new.pfn() / WINDOW, gone.pfn() / WINDOW, "one page is left there");
        freed.join().unwrap().expect("mapped");
        let usage = bench.domain.usage();
        assert_eq!((usage.live_ranges, usage.kept_ranges), (1, 2), "one window has come back, and the other is open");
        assert_eq!(bench.reach(new), Some(20));
        bench.unmap(new, 2).expect("mapped");
        every_window_is_there_once(&bench);
        bench.close();
    });
}

/// The last two ranges of a window come back on two CPUs.
#[test]
fn the_last_two_frees_end_a_window_once() {
    check_with(None, || {
        let bench = bench();
        let [first, second] = [10, 20].map(|pfn| bench.map(pfn, 2));
        let other = bench.clone();
        let freed = thread::spawn(move || other.unmap(first, 2));
        bench.unmap(second, 2).expect("mapped");
        freed.join().unwrap().expect("mapped");
        assert_eq!((bench.domain.usage().live_ranges, bench.domain.usage().kept_ranges), (0, 1));
        every_window_is_there_once(&bench);
        bench.close();
    });
}

/// Both CPUs find that the records of their windows are missing, and each unmaps what the other mapped.
#[test]
fn two_cpus_make_the_first_records() {
    check_with(Some(2), || {
        let bench = bench();
        let other = bench.clone();
        let second = thread::spawn(move || {
            run_on(1);
            other.map(20, 1)
        });
        run_on(0);
        let first = bench.map(10, 1);
        let second = second.join().unwrap();
        assert_ne!(first.pfn() / WINDOW, second.pfn() / WINDOW);
        assert_eq!((bench.reach(first), bench.reach(second)), (Some(10), Some(20)));
        for iova in [second, first] {
            bench.unmap(iova, 1).expect("mapped");
        }
        assert_eq!(bench.domain.usage().live_ranges, 0);
        bench.close();
    });
}

/// Of two unmaps one succeeds. A third, with a wrong length, never does.
#[test]
fn of_two_claims_one_succeeds() {
    check_with(None, || {
        let bench = bench();
        let iova = bench.map(10, 2);
        let other = bench.clone();
        let second = thread::spawn(move || other.unmap(iova, 2));
        let part = bench.unmap(iova, 1);
        let first = bench.unmap(iova, 2);
        assert!(part.is_err(), "{part:?}");
        let refused = Err(RawUnmapError::Refused(UnmapError::NotMapped(iova)));
        let results = [first, second.join().unwrap()];
        assert!(results == [Ok(()), refused] || results == [refused, Ok(())], "{results:?}");
        assert_eq!(bench.domain.usage().live_ranges, 0);
        bench.close();
    });
}

/// Between the check of a mapping and its claim, another CPU unmaps it, the window is opened again, and a mapping of
/// another length begins at the same page. The claim is given back, and the new mapping stays whole.
#[test]
fn a_claim_of_what_was_mapped_anew_is_given_back() {
    static REFUSED: AtomicUsize = AtomicUsize::new(0);
    check_with(Some(3), || {
        let bench = bench();
        let old = bench.map(10, WINDOW);
        let other = bench.clone();
        let stale = thread::spawn(move || other.unmap(old, WINDOW));
        let here = bench.unmap(old, WINDOW);
        let new = bench.map(20, 3);
        let there = stale.join().unwrap();
        assert!(here.is_ok() != there.is_ok(), "{here:?}, {there:?}: unmapped once");
        let partial = matches!(there, Err(RawUnmapError::Refused(UnmapError::Partial { .. })));
        REFUSED.fetch_add(usize::from(new == old && partial), Ordering::Relaxed);
        assert_eq!(bench.reach(new), Some(20));
        bench.unmap(new, 3).expect("whole");
        every_window_is_there_once(&bench);
        bench.close();
    });
    assert!(REFUSED.load(Ordering::Relaxed) > 0, "some interleavings find the new mapping");
}

/// An unmap with a wrong length meets a mapping that is being made. It claims nothing.
#[test]
fn a_mapping_half_made_is_not_claimed() {
    check_with(Some(3), || {
        let bench = bench();
        let first = bench.map(10, 1);
        let next = Iova::from_pfn(first.pfn() + 1);
        let other = bench.clone();
        let wrong = thread::spawn(move || [1, 3].map(|pages| other.unmap(next, pages)));
        let new = bench.map(20, 2);
        assert_eq!(new, next);
        let wrong = wrong.join().unwrap();
        assert!(wrong.iter().all(Result::is_err), "{wrong:?}: no mapping of one page or three was ever made there");
        assert_eq!((bench.reach(first), bench.reach(new)), (Some(10), Some(20)));
        bench.close();
    });
}
