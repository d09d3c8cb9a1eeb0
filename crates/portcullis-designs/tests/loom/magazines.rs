//! Magazines of one address and depots of one magazine: every second free goes to the depot, and every third to the
//! tree.

use super::{Bench, check_with};
use loom::thread;
use portcullis::designs::Magazine;
use portcullis::platform::fake::run_on;
use portcullis::{Iova, Protection, RawUnmapError, UnmapError};
use std::sync::atomic::{AtomicUsize, Ordering};

/// One CPU frees until its magazines and the depot overflow, while the other allocates from the depot or the tree.
#[test]
fn a_producer_beside_a_consumer() {
    static FROM_THE_DEPOT: AtomicUsize = AtomicUsize::new(0);
    check_with(Some(2), || {
        let bench = Bench::<Magazine>::new(Protection::Strict);
        let mapped: Vec<Iova> = (10..14).map(|pfn| bench.map(pfn, 1)).collect();
        let other = bench.clone();
        let gone = mapped.clone();
        let freed = thread::spawn(move || {
            run_on(1);
            gone.into_iter().for_each(|iova| other.unmap(iova, 1).expect("mapped"));
        });
        run_on(0);
        let new = [20, 21].map(|pfn| (pfn, bench.map(pfn, 1)));
        freed.join().unwrap();
        assert_ne!(new[0].1, new[1].1, "S3");
        for (pfn, iova) in new {
            assert_eq!(bench.reach(iova), Some(pfn));
        }
        let reused = new.iter().filter(|(_, iova)| mapped.contains(iova)).count();
        FROM_THE_DEPOT.fetch_add(reused, Ordering::Relaxed);
        let usage = bench.domain.usage();
        assert_eq!(usage.live_ranges, 2);
        assert!(usage.kept_ranges_max.is_some_and(|most| usage.kept_ranges <= most), "S7: {usage:?}");
        bench.close();
    });
    assert!(FROM_THE_DEPOT.load(Ordering::Relaxed) > 0, "some interleavings reuse what the other CPU freed");
}

/// Both CPUs put magazines into the depot and take them out again.
#[test]
fn two_cpus_exchange_magazines() {
    check_with(Some(2), || {
        let bench = Bench::<Magazine>::new(Protection::Strict);
        let mapped = [[10, 11, 12], [20, 21, 22]].map(|pfns| pfns.map(|pfn| bench.map(pfn, 1)));
        let other = bench.clone();
        let work = |bench: Bench<Magazine>, cpu: u32, mapped: [Iova; 3]| {
            run_on(cpu);
            mapped.into_iter().for_each(|iova| bench.unmap(iova, 1).expect("mapped"));
            let pfns = [100 * (u64::from(cpu) + 1), 100 * (u64::from(cpu) + 1) + 1];
            pfns.map(|pfn| (pfn, bench.map(pfn, 1)))
        };
        let second = thread::spawn(move || work(other, 1, mapped[1]));
        let first = work(bench.clone(), 0, mapped[0]);
        let second = second.join().unwrap();
        for (pfn, iova) in first.into_iter().chain(second) {
            assert_eq!(bench.reach(iova), Some(pfn), "S3: every address has one mapping");
        }
        assert_eq!(bench.domain.usage().live_ranges, 4);
        bench.close();
    });
}

/// Claims are made by the table. Of two unmaps one succeeds, and an unmap with a wrong length beside them does not.
#[test]
fn of_two_claims_one_succeeds() {
    check_with(None, || {
        let bench = Bench::<Magazine>::new(Protection::Strict);
        let iova = bench.map(10, 2);
        let other = bench.clone();
        let second = thread::spawn(move || other.unmap(iova, 2));
        let part = bench.unmap(iova, 1);
        let first = bench.unmap(iova, 2);
        assert!(part.is_err(), "{part:?}");
        let refused = Err(RawUnmapError::Refused(UnmapError::NotMapped(iova)));
        let results = [first, second.join().unwrap()];
        assert!(results == [Ok(()), refused] || results == [refused, Ok(())], "{results:?}");
        bench.close();
    });
}

/// An unmap with a wrong length meets a mapping that is being made, beside a neighbour that ends where the unmap
/// would end. It claims neither.
#[test]
fn a_mapping_half_made_is_not_claimed() {
    check_with(Some(3), || {
        let bench = Bench::<Magazine>::new(Protection::Strict);
        let (upper, lower) = (bench.map(10, 2), bench.map(20, 2));
        assert_eq!(lower.pfn() + 2, upper.pfn(), "neighbours");
        bench.unmap(lower, 2).expect("mapped");
        let other = bench.clone();
        let wrong = thread::spawn(move || other.unmap(lower, 4));
        let again = bench.map(30, 2);
        assert!(wrong.join().unwrap().is_err(), "no mapping of four pages was ever made");
        assert_eq!((again, bench.reach(again), bench.reach(upper)), (lower, Some(30), Some(10)));
        bench.close();
    });
}

/// Between the check of a mapping and its claim, another CPU unmaps it, and maps the same page at the same address
/// with another length. The claim is given back, and the new mapping stays whole.
#[test]
fn a_claim_of_what_was_mapped_anew_is_given_back() {
    static REFUSED: AtomicUsize = AtomicUsize::new(0);
    check_with(Some(3), || {
        let bench = Bench::<Magazine>::new(Protection::Strict);
        // Three pages and four pages have the same size class, so they get the same address.
        let old = bench.map(10, 3);
        let other = bench.clone();
        let stale = thread::spawn(move || other.unmap(old, 3));
        let here = bench.unmap(old, 3);
        let new = bench.map(10, 4);
        let there = stale.join().unwrap();
        assert!(here.is_ok() != there.is_ok(), "{here:?}, {there:?}: unmapped once");
        if new == old {
            REFUSED.fetch_add(
                usize::from(matches!(there, Err(RawUnmapError::Refused(UnmapError::Partial { .. })))),
                Ordering::Relaxed,
            );
        }
        assert_eq!(bench.reach(new), Some(10));
        bench.unmap(new, 4).expect("whole");
        assert_eq!(bench.domain.usage().live_ranges, 0);
        bench.close();
    });
    assert!(REFUSED.load(Ordering::Relaxed) > 0, "some interleavings find the new mapping");
}
