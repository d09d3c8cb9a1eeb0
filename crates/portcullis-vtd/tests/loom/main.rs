//! Commits that are done at once or share a submission, on two CPUs and in an interrupt, in every interleaving, checked
//! by loom:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p portcullis-vtd --release --test loom --target-dir target/loom
//! ```
#![cfg(loom)]

mod hardware;

use hardware::Hardware;
use loom::model::Builder;
use loom::sync::Mutex;
use loom::thread;
use portcullis::iommu::{DomainId, Invalidation, Iommu};
use portcullis::platform::Wait;
use portcullis::platform::fake::{FakeHost, run_on};
use portcullis::{Iova, Platform};
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
    /// Commits that returned while their page could still be cached (S2).
    stale: AtomicU64,
    /// Commits that were done when they had been submitted.
    at_once: AtomicU64,
}

/// A commit that is not done, with the previous one for the planted flaw.
type Submitted = Option<(Ticket, Option<Ticket>)>;

impl Tally {
    const fn new() -> Self {
        Self { waits_saved: AtomicU64::new(0), stale: AtomicU64::new(0), at_once: AtomicU64::new(0) }
    }
}

impl Bench {
    fn new(returns_early: bool, tally: &'static Tally) -> Arc<Self> {
        let host: &FakeHost = Box::leak(Box::default());
        let hardware: &Hardware = Box::leak(Box::new(Hardware::new(host)));
        let unit = Unit::bring_up(hardware, host, UnitConfig::default()).expect("a sound unit");
        Arc::new(Self { host, hardware, unit, latest: Mutex::new(None), returns_early, tally })
    }

    /// Makes a ride depart that stays in flight until a caller polls.
    fn fly(&self) -> Submitted {
        self.note(self.unit.submit_shared(&[command(page(0))]).expect("room"))
    }

    /// Submits as an unmap does: at once where that is possible.
    fn submit(&self, page: Iova) -> Submitted {
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
        let is_done = |ticket| self.unit.is_done(ticket).expect("no error");
        if let Some((ticket, before)) = submitted {
            while !is_done(ticket) && !before.is_some_and(is_done) {
                self.host.pause(Wait::Invalidation);
                interrupt();
            }
        } else {
            self.tally.at_once.fetch_add(1, Ordering::Relaxed);
        }
        // Counted and not asserted, because a model that panics cannot shut its unit down.
        self.tally.stale.fetch_add(u64::from(!self.hardware.has_invalidated(page)), Ordering::Relaxed);
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

/// One ride is in flight. Two CPUs commit. On one of them, an interrupt that also commits comes between the
/// submission and the first poll. It ends before the code that it has interrupted continues.
fn commits_share(returns_early: bool, tally: &'static Tally) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 100_000;
    builder.check(move || {
        let bench = Bench::new(returns_early, tally);
        let before = bench.unit.queue_use();
        run_on(0);
        let flying = bench.fly();
        let other = bench.clone();
        let other = thread::spawn(move || {
            run_on(1);
            other.commit(page(1));
        });
        let interrupted = bench.submit(page(2));
        bench.commit(page(3));
        bench.finish(page(2), interrupted, || {});
        bench.finish(page(0), flying, || {});
        other.join().unwrap();
        let after = bench.unit.queue_use();
        assert_eq!(after.commits - before.commits, 4);
        tally.waits_saved.fetch_add(4 - (after.waits - before.waits), Ordering::Relaxed);
    });
}

#[test]
fn two_cpus_and_an_interrupt_share_submissions() {
    static TALLY: Tally = Tally::new();
    commits_share(false, &TALLY);
    assert_eq!(TALLY.stale.load(Ordering::Relaxed), 0, "S2");
    assert!(TALLY.at_once.load(Ordering::Relaxed) > 0, "in some interleavings the other CPU polls before the look");
    assert!(TALLY.waits_saved.load(Ordering::Relaxed) > 0, "in some interleavings a wait serves several");
}

/// One ride is in flight, and the interrupt comes while a commit spins.
#[test]
fn an_interrupt_in_the_spin_of_a_commit() {
    static TALLY: Tally = Tally::new();
    let mut builder = Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 100_000;
    builder.check(|| {
        let bench = Bench::new(false, &TALLY);
        run_on(0);
        let flying = bench.fly();
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
        bench.finish(page(0), flying, || {});
        other.join().unwrap();
    });
    assert_eq!(TALLY.stale.load(Ordering::Relaxed), 0, "S2");
}

/// Shows that the model can fail.
#[test]
fn planted_a_combiner_that_returns_early() {
    static TALLY: Tally = Tally::new();
    commits_share(true, &TALLY);
    assert!(TALLY.stale.load(Ordering::Relaxed) > 0, "S2: the flaw was not found");
}
