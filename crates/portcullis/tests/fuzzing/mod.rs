//! Case after case drawn at random, each from a seed of its own, so that one number repeats a failure.
//!
//! By default a fixed number of cases from a fixed seed. `PORTCULLIS_FUZZ_SECONDS` runs as long instead, and
//! `PORTCULLIS_FUZZ_SEED` says where the seeds begin.

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use std::env;
use std::process;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

const SECONDS: &str = "PORTCULLIS_FUZZ_SECONDS";
const SEED: &str = "PORTCULLIS_FUZZ_SEED";

/// No case takes as long, however busy the machine is: it hangs. Then the program ends, with all tests that are in it.
const CASE_MAX: Duration = Duration::from_secs(120);

/// Runs `case` on what `strategy` draws: `cases` times, or as long as the environment says. A case fails by panicking; it is
/// then made smaller as far as it still fails.
///
/// # Panics
/// If a case fails, with the seed that repeats it.
pub(crate) fn fuzz<S: Strategy>(target: &str, cases: u64, strategy: &S, case: impl Fn(S::Value)) {
    let seconds = variable(SECONDS);
    let first_seed = variable(SEED).unwrap_or(0);
    let begun = Instant::now();
    let more = |done: u64| match seconds {
        Some(seconds) => begun.elapsed() < Duration::from_secs(seconds),
        None => done < cases,
    };
    let started = watchdog(target.to_owned());
    let mut done = 0;
    while more(done) {
        // The first case of this seed is the case itself.
        let seed = first_seed.wrapping_add(done);
        let config = Config { cases: 1, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(config, rng(seed));
        let drawn = strategy.new_tree(&mut runner).expect("nothing is filtered out");
        let outcome = runner.run_one(drawn, |value| {
            // Each time anew: to make a failing case smaller takes many.
            started.send(seed).expect("the watchdog watches");
            case(value);
            Ok(())
        });
        if let Err(error) = outcome {
            match error {
                TestError::Fail(reason, value) => {
                    panic!("{target}: {reason}\nsmallest: {value:#?}\n{}", repeat(seed))
                }
                TestError::Abort(reason) => panic!("{target}: {reason}\n{}", repeat(seed)),
            }
        }
        done += 1;
    }
    println!("{target}: {done} cases in {:.1} s, seeds from {first_seed}", begun.elapsed().as_secs_f64());
}

/// The command whose first case is the one of `seed`. That of `cargo xtask fuzz` would begin with a seed of its own.
fn repeat(seed: u64) -> String {
    // Where it shares a program with other tests, a module of its own has it.
    let module = if env!("CARGO_CRATE_NAME") == "fuzz" { "" } else { " fuzz::" };
    let (package, program) = (env!("CARGO_PKG_NAME"), env!("CARGO_CRATE_NAME"));
    format!("to repeat it: {SEED}={seed} cargo test --package {package} --test {program}{module}")
}

fn variable(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

fn rng(seed: u64) -> TestRng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}

/// Learns the seed of each case as it starts, and ends the process with that seed if none follows in time: a case that
/// hangs cannot say so itself.
fn watchdog(target: String) -> Sender<u64> {
    let (started, starts) = channel();
    thread::spawn(move || {
        let mut running = None;
        loop {
            match (starts.recv_timeout(CASE_MAX), running) {
                (Ok(seed), _) => running = Some(seed),
                (Err(RecvTimeoutError::Timeout), Some(seed)) => {
                    eprintln!("{target}: no end after {} s\n{}", CASE_MAX.as_secs(), repeat(seed));
                    process::exit(1);
                }
                (Err(RecvTimeoutError::Timeout), None) => {}
                (Err(RecvTimeoutError::Disconnected), _) => return,
            }
        }
    });
    started
}
