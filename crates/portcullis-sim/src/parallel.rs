//! Runs independent jobs in parallel, as many at a time as this machine has CPUs.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// What a thread reports about a job.
enum Report<R> {
    Begins(usize),
    Ends(usize, R),
}

/// Calls `run` for each of `jobs`, and returns the results in order. Calls `begins` when a job begins.
pub(crate) fn each<J: Sync, R: Send>(jobs: &[J], run: impl Fn(&J) -> R + Sync, mut begins: impl FnMut(&J)) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(jobs.len());
    let next = AtomicUsize::new(0);
    let (reports, all) = mpsc::channel();
    let mut results: Vec<Option<R>> = jobs.iter().map(|_| None).collect();
    thread::scope(|scope| {
        for _ in 0..threads {
            let (reports, next, run) = (reports.clone(), &next, &run);
            scope.spawn(move || {
                // Relaxed: only the number is shared, and the channel carries the results.
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(at) else { break };
                    // The receiver is gone only if a thread has panicked, and then the scope panics too.
                    let _ = reports.send(Report::Begins(at));
                    let _ = reports.send(Report::Ends(at, run(job)));
                }
            });
        }
        drop(reports);
        for report in all {
            match report {
                Report::Begins(at) => begins(&jobs[at]),
                Report::Ends(at, result) => results[at] = Some(result),
            }
        }
    });
    results.into_iter().map(|result| result.expect("every job has ended")).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn results_come_in_the_order_of_the_jobs_and_each_is_announced_once() {
        let jobs: Vec<u64> = (0..100).collect();
        let mut begun = Vec::new();
        let squares = super::each(&jobs, |job| job * job, |job| begun.push(*job));
        assert_eq!(squares, jobs.iter().map(|job| job * job).collect::<Vec<_>>());
        begun.sort_unstable();
        assert_eq!(begun, jobs);
        assert!(super::each(&[], |job: &u64| *job, |_| {}).is_empty());
    }

    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn a_panic_of_one_is_a_panic_of_all() {
        super::each(&[1, 2], |job| assert_eq!(*job, 1), |_| {});
    }
}
