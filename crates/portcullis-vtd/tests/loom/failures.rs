//! Hardware refuses the command of one commit, while others are in the same submission.

use super::{Bench, Ordering, Submitted, Tally, command, page, run_on, thread};
use loom::model::Builder;
use portcullis::iommu::Iommu;

/// The page whose invalidation hardware refuses.
const REFUSED: u64 = 0;

/// Waits for a commit. One that has failed is submitted again, alone.
fn finish(bench: &Bench, number: u64, submitted: Submitted) {
    if bench.try_finish(page(number), submitted, || {}).is_ok() {
        return;
    }
    bench.tally.failed_with_another.fetch_add(u64::from(number != REFUSED), Ordering::Relaxed);
    let alone = bench.unit.submit(&[command(page(number))]).expect("room");
    let alone = bench.try_finish(page(number), Some((alone, None)), || {});
    assert_eq!(alone.is_err(), number == REFUSED, "S11: page {number}, alone");
}

/// Two commits are in flight, so others are posted. A CPU submits two more before it waits for any; hardware refuses
/// the first of them. The second finds the cell of its CPU in use, so it takes the ring and the posts. Another CPU
/// commits meanwhile, and may be in the submission that fails.
fn a_refusal_among_others(returns_early: bool, tally: &'static Tally) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(1);
    builder.max_branches = 100_000;
    builder.check(move || {
        let bench = Bench::refusing(Some(page(REFUSED)), true, returns_early, tally);
        run_on(0);
        let flying = [4, 5].map(|number| (number, bench.submit(page(number))));
        let other = bench.clone();
        let other = thread::spawn(move || {
            run_on(1);
            finish(&other, 1, other.submit(page(1)));
        });
        let halves = [REFUSED, 2].map(|number| (number, bench.submit(page(number))));
        // The latest first: the order of the waits is free.
        halves.into_iter().rev().chain(flying).for_each(|(number, submitted)| finish(&bench, number, submitted));
        other.join().unwrap();
    });
}

/// Every commit whose submission has failed hears of it, each on its own CPU. The others are done, and were not told
/// too early.
#[test]
fn a_shared_submission_fails_for_all_in_it() {
    static TALLY: Tally = Tally::new();
    a_refusal_among_others(false, &TALLY);
    assert_eq!(TALLY.stale.load(Ordering::Relaxed), 0, "S11: a commit that failed was reported as done");
    let shared = TALLY.failed_with_another.load(Ordering::Relaxed);
    assert!(shared > 0, "in some interleavings another commit is in the submission that fails");
}

/// Shows that the model can fail.
#[test]
fn planted_a_commit_that_hears_of_another_submission() {
    static TALLY: Tally = Tally::new();
    a_refusal_among_others(true, &TALLY);
    assert!(TALLY.stale.load(Ordering::Relaxed) > 0, "S11: the flaw was not found");
}
