//! Commits that are done at once, or are posted and share a submission, on two CPUs and in an interrupt, in every
//! interleaving, checked by loom:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p portcullis-vtd --release --test loom --target-dir target/loom
//! ```
//!
//! Under loom a poster looks after the posts at each other poll, and idle cells are left out after each search, so that
//! the few steps of a model reach these hand-overs. The models show that the release of a post is missing, because the
//! hardware then reads the entry that its CPU has cleared. That the release of a fate is missing only [`cells`] shows:
//! a status that is read as it was before its reset tells of no landing either, unless 2^31 submissions lie in between.
#![cfg(loom)]

extern crate alloc;

mod cells;
mod failures;
mod hardware;
// What the files of [`cells`] need of their crate.
#[allow(dead_code, reason = "the cells need few of its items")]
#[path = "../../src/sorted.rs"]
mod sorted;
#[allow(dead_code, unused_imports, reason = "the cells need few of its items")]
#[path = "../../src/sync.rs"]
mod sync;

use hardware::Hardware;
use loom::model::Builder;
use loom::sync::Mutex;
use loom::thread;
use portcullis::iommu::{DomainId, Invalidation, Iommu};
use portcullis::platform::Wait;
use portcullis::platform::fake::{FakeHost, run_on};
use portcullis::{Iova, Platform, QueueError};
use portcullis_vtd::{Ticket, Unit, UnitConfig};
// Not those of loom, because they count over all interleavings.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type Driver = Unit<&'static Hardware, &'static FakeHost>;

/// A unit whose hardware and host are leaked, because loom has no scoped threads.
struct Bench {
    host: &'static FakeHost,
    hardware: &'static Hardware,
    unit: Driver,
    /// The latest submission, for the planted flaw.
    latest: Mutex<Option<Ticket>>,
    returns_early: bool,
    tally: &'static Tally,
}

/// Observations over all interleavings.
struct Tally {
    /// Waits that also served another commit.
    waits_saved: AtomicU64,
    /// Commits that returned while their page could still be cached, or whose entry the hardware could still read when
    /// it invalidated the page (S2).
    stale: AtomicU64,
    /// Commits that were done when they had been submitted.
    at_once: AtomicU64,
    /// Commits that failed although nothing is wrong with their own command.
    failed_with_another: AtomicU64,
}

/// A commit that is not done, with the previous one for the planted flaw.
type Submitted = Option<(Ticket, Option<Ticket>)>;

impl Tally {
    const fn new() -> Self {
        Self {
            waits_saved: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            at_once: AtomicU64::new(0),
            failed_with_another: AtomicU64::new(0),
        }
    }
}

impl Bench {
    fn new(is_slow: bool, returns_early: bool, tally: &'static Tally) -> Arc<Self> {
        Self::refusing(None, is_slow, returns_early, tally)
    }

    /// The same, with hardware that refuses to invalidate this page.
    fn refusing(refused: Option<Iova>, is_slow: bool, returns_early: bool, tally: &'static Tally) -> Arc<Self> {
        let host: &FakeHost = Box::leak(Box::default());
        let hardware: &Hardware = Box::leak(Box::new(Hardware::new(host, is_slow, refused)));
        let unit = Unit::bring_up(hardware, host, UnitConfig::default()).expect("a sound unit");
        Arc::new(Self { host, hardware, unit, latest: Mutex::new(None), returns_early, tally })
    }

    /// Submits as an unmap does: at once where that is possible.
    fn submit(&self, page: Iova) -> Submitted {
        self.hardware.clear(page);
        match self.unit.try_invalidate(command(page)) {
            Ok(()) => None,
            Err(Ok(Some(ticket))) => self.note(ticket),
            Err(_) => self.note(self.unit.submit_shared(&[command(page)]).expect("room")),
        }
    }

    fn note(&self, ticket: Ticket) -> Submitted {
        let before = if self.returns_early { self.latest.lock().unwrap().replace(ticket) } else { None };
        Some((ticket, before))
    }

    /// Polls until the commit is done. An interrupt may come in every turn. The planted flaw reports the commit as
    /// done when the previous one is.
    fn finish(&self, page: Iova, submitted: Submitted, interrupt: impl Fn()) {
        self.try_finish(page, submitted, interrupt).expect("no error");
    }

    fn try_finish(&self, page: Iova, submitted: Submitted, interrupt: impl Fn()) -> Result<(), QueueError> {
        if let Some((ticket, before)) = submitted {
            let is_done = |ticket| self.unit.is_done(ticket);
            while !is_done(ticket)? && !before.is_some_and(|before| is_done(before) == Ok(true)) {
                self.host.pause(Wait::Invalidation);
                interrupt();
            }
        } else {
            self.tally.at_once.fetch_add(1, Ordering::Relaxed);
        }
        // Counted and not asserted, because a model that panics cannot shut its unit down.
        self.tally.stale.fetch_add(u64::from(!self.hardware.has_invalidated(page)), Ordering::Relaxed);
        Ok(())
    }

    fn commit(&self, page: Iova) {
        self.finish(page, self.submit(page), || {});
    }
}

fn page(number: u64) -> Iova {
    Iova::from_pfn(number)
}

fn command(page: Iova) -> Invalidation {
    Invalidation::Pages { domain: DomainId(1), first: page, mask: 0, leaf_only: true }
}

/// Two commits are submitted first, so that slow hardware has two submissions in flight. Then two CPUs commit. With
/// `is_interrupted`, an interrupt that also commits comes on one of them between the submission and the first poll. It
/// ends before the code that it has interrupted continues.
fn commits_share(bound: usize, [is_slow, is_interrupted, returns_early]: [bool; 3], tally: &'static Tally) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(bound);
    builder.max_branches = 100_000;
    builder.check(move || {
        let bench = Bench::new(is_slow, returns_early, tally);
        let before = bench.unit.queue_use();
        run_on(0);
        let flying = [4, 5].map(|number| bench.submit(page(number)));
        let other = bench.clone();
        let other = thread::spawn(move || {
            run_on(1);
            other.commit(page(1));
        });
        let interrupted = bench.submit(page(2));
        if is_interrupted {
            bench.commit(page(3));
        }
        bench.finish(page(2), interrupted, || {});
        flying.into_iter().zip([4, 5]).for_each(|(flying, number)| bench.finish(page(number), flying, || {}));
        other.join().unwrap();
        tally.stale.fetch_add(bench.hardware.refilled() as u64, Ordering::Relaxed);
        let after = bench.unit.queue_use();
        let commits = 4 + u64::from(is_interrupted);
        // A thread that returns early may leave its post behind.
        assert!(after.commits - before.commits == commits || returns_early);
        tally.waits_saved.fetch_add(after.commits - before.commits - (after.waits - before.waits), Ordering::Relaxed);
    });
}

#[test]
fn two_cpus_share_submissions() {
    static TALLY: Tally = Tally::new();
    commits_share(3, [true, false, false], &TALLY);
    assert_eq!(TALLY.stale.load(Ordering::Relaxed), 0, "S2");
    assert!(TALLY.waits_saved.load(Ordering::Relaxed) > 0, "in some interleavings a wait serves several");
}

#[test]
fn two_cpus_and_an_interrupt_share_submissions() {
    static TALLY: Tally = Tally::new();
    commits_share(2, [true, true, false], &TALLY);
    assert_eq!(TALLY.stale.load(Ordering::Relaxed), 0, "S2");
    assert!(TALLY.waits_saved.load(Ordering::Relaxed) > 0, "in some interleavings a wait serves several");
}

/// Hardware answers at once, so a CPU posts only if it finds the ring held.
#[test]
fn two_cpus_and_an_interrupt_at_once() {
    static TALLY: Tally = Tally::new();
    commits_share(3, [false, true, false], &TALLY);
    assert_eq!(TALLY.stale.load(Ordering::Relaxed), 0, "S2");
    assert!(TALLY.at_once.load(Ordering::Relaxed) > 0, "most are done at once");
    assert!(TALLY.waits_saved.load(Ordering::Relaxed) > 0, "in some interleavings the holder takes a post along");
}

/// Two submissions are in flight, and the interrupt comes while a commit spins.
#[test]
fn an_interrupt_in_the_spin_of_a_commit() {
    static TALLY: Tally = Tally::new();
    let mut builder = Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 100_000;
    builder.check(|| {
        let bench = Bench::new(true, false, &TALLY);
        run_on(0);
        let flying = [4, 5].map(|number| bench.submit(page(number)));
        let other = bench.clone();
        let other = thread::spawn(move || {
            run_on(1);
            other.commit(page(1));
        });
        let came = std::cell::Cell::new(false);
        bench.finish(page(2), bench.submit(page(2)), || {
            if !came.replace(true) {
                bench.commit(page(3));
            }
        });
        flying.into_iter().zip([4, 5]).for_each(|(flying, number)| bench.finish(page(number), flying, || {}));
        other.join().unwrap();
        TALLY.stale.fetch_add(bench.hardware.refilled() as u64, Ordering::Relaxed);
    });
    assert_eq!(TALLY.stale.load(Ordering::Relaxed), 0, "S2");
}

/// Shows that the model can fail.
#[test]
fn planted_a_combiner_that_returns_early() {
    static TALLY: Tally = Tally::new();
    commits_share(2, [true, false, true], &TALLY);
    assert!(TALLY.stale.load(Ordering::Relaxed) > 0, "S2: the flaw was not found");
}
