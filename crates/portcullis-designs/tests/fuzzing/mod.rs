//! Runs random cases, each from its own seed, so that one number repeats a failure.
//!
//! By default, a fixed number of cases runs from a fixed seed. `PORTCULLIS_FUZZ_SECONDS` sets a running time instead,
//! and `PORTCULLIS_FUZZ_SEED` sets the first seed.

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use std::env;
use std::process;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

const SECONDS: &str = "PORTCULLIS_FUZZ_SECONDS";
const SEED: &str = "PORTCULLIS_FUZZ_SEED";

/// No case takes this long, even on a busy machine: a case that does has hung. The program then ends, with all its
/// tests.
const CASE_MAX: Duration = Duration::from_secs(120);

/// Runs `case` on values that `strategy` draws: `cases` times, or for as long as the environment says. A case fails by
/// panicking; it is then made smaller while it still fails.
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
        // With this seed, the first case is the case itself.
        let seed = first_seed.wrapping_add(done);
        let config = Config { cases: 1, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(config, rng(seed));
        let drawn = strategy.new_tree(&mut runner).expect("nothing is filtered out");
        let outcome = runner.run_one(drawn, |value| {
            // Sent for each try: a failing case is made smaller in many tries.
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

/// The command that runs the case of `seed` first. `cargo xtask fuzz` would start from its own seed.
fn repeat(seed: u64) -> String {
    // In a program with other tests, the fuzz test is in a module.
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

/// Receives the seed of each case as it starts, and ends the process with that seed if no other follows in time: a case
/// that hangs cannot report itself.
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
