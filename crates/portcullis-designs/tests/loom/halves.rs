//! Commits in two halves: what other CPUs and interrupts do between the halves.

use super::{Bench, check_with};
use loom::thread;
use portcullis::domain::{RawBatch, Submitted};
use portcullis::iommu::fake::FakeIommu;
use portcullis::mapper::Design;
use portcullis::platform::fake::{FakeHost, interrupt, run_on};
use portcullis::{DomainOf, Iova, IovaRange, PAGE_SIZE, Protection};
use portcullis_designs::{Portcullis, Stock};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

type Shared<D> = Arc<DomainOf<D, &'static FakeHost, &'static FakeIommu<'static>>>;

/// Unmaps the pages and submits that. The batch owns a share of the domain, so any CPU can wait for it.
fn submit<D: Design<&'static FakeHost, &'static FakeIommu<'static>>>(
    bench: &Bench<D>,
    pages: &[Iova],
) -> Submitted<RawBatch<Shared<D>>> {
    let mut batch = RawBatch::new(bench.domain.clone());
    pages.iter().for_each(|page| batch.unmap(IovaRange::covering(*page, PAGE_SIZE).expect("a page")).expect("mapped"));
    batch.submit().expect("the hardware answers")
}

/// A CPU maps while the unmaps of another are submitted and waited for. It gets their addresses only after the wait
/// (S3, which the map of the bench checks).
fn a_map_beside<D: Design<&'static FakeHost, &'static FakeIommu<'static>> + 'static>(
    is_waited_for_there: bool,
    reuses: bool,
) {
    let reused: &AtomicUsize = Box::leak(Box::default());
    check_with(Some(3), move || {
        let bench = Bench::<D>::new(Protection::Strict);
        run_on(0);
        let gone = [10, 11].map(|pfn| bench.map(pfn, 1));
        assert_eq!(gone.map(|page| bench.reach(page)), [Some(10), Some(11)]);
        let other = bench.clone();
        let new = if is_waited_for_there {
            let submitted = submit(&bench, &gone);
            let waited = thread::spawn(move || {
                run_on(1);
                submitted.wait().expect("the hardware answers");
                drop(other);
            });
            let new = bench.map(20, 1);
            waited.join().unwrap();
            new
        } else {
            let mapped = thread::spawn(move || {
                run_on(1);
                other.map(20, 1)
            });
            submit(&bench, &gone).wait().expect("the hardware answers");
            mapped.join().unwrap()
        };
        assert_eq!(bench.reach(new), Some(20));
        let others = gone.iter().filter(|page| **page != new);
        assert!(others.clone().all(|page| bench.reach(*page).is_none()), "S2");
        reused.fetch_add(usize::from(others.count() < 2), Ordering::Relaxed);
        let usage = bench.domain.usage();
        assert_eq!((usage.live_ranges, usage.batches_in_flight), (1, 0));
        bench.close();
    });
    assert_eq!(reused.load(Ordering::Relaxed) > 0, reuses, "in some interleavings the map comes last");
}

#[test]
fn a_map_beside_both_halves() {
    a_map_beside::<Stock>(false, true);
    // A stream uses the rest of its chunk first.
    a_map_beside::<Portcullis>(false, false);
}

#[test]
fn a_map_beside_a_wait_on_another_cpu() {
    a_map_beside::<Stock>(true, true);
    // A stream uses the rest of its chunk first.
    a_map_beside::<Portcullis>(true, false);
}

/// An interrupt unmaps, and submits and waits, between the halves of the code that it has interrupted. Another CPU
/// does so at the same time.
#[test]
fn an_interrupt_between_the_halves() {
    check_with(Some(3), || {
        let bench = Bench::<Portcullis>::new(Protection::Strict);
        run_on(0);
        let pages = [10, 11, 12, 13].map(|pfn| bench.map(pfn, 1));
        assert_eq!(pages.map(|page| bench.reach(page)), [Some(10), Some(11), Some(12), Some(13)]);
        let other = bench.clone();
        let there = thread::spawn(move || {
            run_on(1);
            submit(&other, &pages[3..]).wait().expect("the hardware answers");
            assert_eq!(other.reach(pages[3]), None, "S2");
        });
        let mut submitted = submit(&bench, &pages[..1]);
        interrupt(|| {
            bench.unmap(pages[1], 1).expect("mapped");
            submit(&bench, &pages[2..3]).wait().expect("the hardware answers");
            assert_eq!([pages[1], pages[2]].map(|page| bench.reach(page)), [None, None], "S2");
        });
        while !submitted.is_done() {
            thread::yield_now();
        }
        submitted.wait().expect("it is done");
        assert_eq!(bench.reach(pages[0]), None, "S2");
        there.join().unwrap();
        let usage = bench.domain.usage();
        assert_eq!((usage.live_ranges, usage.batches_in_flight), (0, 0));
        bench.close();
    });
}
