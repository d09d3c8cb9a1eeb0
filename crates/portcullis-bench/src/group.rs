//! Threads that are measured together, each on a separate CPU, and the work between their samples.

use super::BenchError;
use super::check::Checks;
use super::host::cpus::{Undisturbed, pin};
use super::iommu;
use super::meter::{CyclesFrom, Meter, Spent};
use super::work::{Live, Worker};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// How long to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Samples of each run.
    pub samples: usize,
    /// The least time of a sample, in microseconds. A sample is longer if one period of its workload takes longer.
    pub sample_us: u64,
}

impl Default for Effort {
    /// 31 samples of 2 ms.
    fn default() -> Self {
        Self { samples: 31, sample_us: 2_000 }
    }
}

/// The threads of a run and their work.
pub(super) struct ThreadGroup<'t> {
    /// The CPU of each thread.
    pub(super) cpus: &'t [usize],
    pub(super) effort: Effort,
    /// The number of pairs after which a workload is in its initial state again.
    pub(super) period: u64,
}

/// The measurements of a group.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// For each thread, what each of its samples took.
    pub(super) spent: Vec<Vec<Spent>>,
    /// Pairs of a sample, for each thread.
    pub(super) pairs: u64,
    pub(super) cycles_from: Option<CyclesFrom>,
    /// Whether the samples were taken with real-time priority.
    pub(super) undisturbed: bool,
}

/// The state that the threads share.
struct Shared<'t> {
    group: &'t ThreadGroup<'t>,
    barrier: Barrier,
    pairs: AtomicU64,
    /// The live mappings, by thread.
    live: Mutex<Vec<Vec<Live>>>,
    /// Submissions and commits since the workers were made.
    counts: Mutex<(u64, u64)>,
    failed: AtomicBool,
    error: Mutex<Option<BenchError>>,
    measured: Mutex<Measured>,
}

/// Makes the worker of a thread.
type MakeWorker<'l> = dyn Fn(usize) -> Result<Box<dyn Worker + 'l>, BenchError> + Sync + 'l;

/// Runs a group. `worker` makes the worker of each thread, in that thread.
pub(super) fn run(
    group: &ThreadGroup<'_>,
    checks: &Checks<'_>,
    worker: &MakeWorker<'_>,
) -> Result<Measured, BenchError> {
    let threads = group.cpus.len();
    let shared = Shared {
        group,
        barrier: Barrier::new(threads),
        pairs: AtomicU64::new(0),
        live: Mutex::new(vec![Vec::new(); threads]),
        counts: Mutex::default(),
        failed: AtomicBool::new(false),
        error: Mutex::new(None),
        measured: Mutex::new(Measured { spent: vec![Vec::new(); threads], ..Measured::default() }),
    };
    thread::scope(|scope| {
        for index in 0..threads {
            let shared = &shared;
            scope.spawn(move || shared.member(index, checks, worker));
        }
    });
    match into_inner(shared.error) {
        Some(error) => Err(error),
        None => Ok(into_inner(shared.measured)),
    }
}

fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Shared<'_> {
    /// Runs `step`, unless a thread has failed. If it fails, the whole group has failed.
    fn try_step<T>(&self, step: impl FnOnce() -> Result<T, BenchError>) -> Option<T> {
        if self.failed.load(Ordering::Relaxed) {
            return None;
        }
        let error = match step() {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        self.failed.store(true, Ordering::Relaxed);
        let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        // An abandoned wait is only a consequence of the first failure.
        if first.is_none() || matches!(*first, Some(BenchError::Abandoned)) {
            *first = Some(error);
        }
        None
    }

    /// Runs one thread. It reaches every barrier even after a failure, because the others wait there.
    fn member(&self, index: usize, checks: &Checks<'_>, make: &MakeWorker<'_>) {
        let ThreadGroup { cpus, effort, period } = *self.group;
        self.try_step(|| if pin(cpus[index]) { Ok(()) } else { Err(BenchError::Pin(cpus[index])) });
        let mut meter = Meter::new();
        let submissions = iommu::submissions();
        let mut filling = 0;
        let mut worker = self.try_step(|| {
            let worker = make(index);
            filling = iommu::submissions() - submissions;
            worker
        });
        let mut run = |shared: &Self, meter: &mut Meter, pairs| {
            shared.barrier.wait();
            meter.calibrate();
            let spent =
                worker.as_mut().and_then(|worker| shared.try_step(|| worker.run(pairs, meter))).map(|()| meter.take());
            // Mappings of one thread may be unmapped by another, so they are read while all threads rest.
            shared.barrier.wait();
            lock(&shared.live)[index] = worker.as_ref().map_or_else(Vec::new, |worker| worker.live());
            spent
        };
        // Two rounds: the second finds the caches warm.
        let mut warm = None;
        for _ in 0..2 {
            warm = run(self, &mut meter, period);
        }
        if let (0, Some(Spent { ns, .. })) = (index, warm) {
            let periods = (effort.sample_us as f64 * 1e3 / ns).ceil().max(1.0);
            self.pairs.store(periods as u64 * period, Ordering::Relaxed);
        }
        let mut before = self.at_rest(index, |shared| lock(&shared.live).concat()).unwrap_or_default();
        let mut spent = Vec::with_capacity(effort.samples);
        let mut undisturbed = true;
        for _ in 0..effort.samples {
            let pairs = self.pairs.load(Ordering::Relaxed);
            let alone = Undisturbed::new();
            undisturbed &= alone.is_so();
            spent.extend(run(self, &mut meter, pairs));
            drop(alone);
            self.at_rest(index, |shared| {
                let now = lock(&shared.live).concat();
                shared.try_step(|| checks.after_sample(&before, &now));
                before = now;
            });
            // Other programs need the CPU too, and the system stops real-time threads that leave them none.
            thread::sleep(Duration::from_micros(200));
        }
        self.barrier.wait();
        if let Some(mut worker) = worker {
            self.try_step(|| worker.drain());
            let mut counts = lock(&self.counts);
            counts.0 += iommu::submissions() - submissions - filling;
            counts.1 += worker.commits();
        }
        self.at_rest(index, |shared| {
            let (submissions, commits) = *lock(&shared.counts);
            shared.try_step(|| checks.at_end(&lock(&shared.live).concat(), submissions, commits));
        });
        let mut measured = lock(&self.measured);
        measured.undisturbed = undisturbed && (index == 0 || measured.undisturbed);
        measured.cycles_from = meter.cycles_from();
        measured.pairs = self.pairs.load(Ordering::Relaxed);
        measured.spent[index] = spent;
    }

    /// Lets the first thread run `work` while no thread maps or unmaps.
    fn at_rest<T>(&self, index: usize, work: impl FnOnce(&Self) -> T) -> Option<T> {
        self.barrier.wait();
        let result = (index == 0).then(|| work(self));
        self.barrier.wait();
        result
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
