//! Runs random scripts on a design, under every protection that it offers. The design must keep the safety rules,
//! except those that it declares to break, and it must break those.

use crate::checker::script;
use crate::{Subject, machine};
use portcullis::mapper::{OptionInfo, OptionKind, Options};
use portcullis::{Protection, Rule};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread;

/// Scripts per design and protection, unless `PROPTEST_CASES` says otherwise.
const SCRIPTS: u32 = 256;
/// Scripts per design and protection if a parameter is not at its default.
const SCRIPTS_PER_PARAMETER: u32 = 96;
/// How many pages the hardware must have held when they were unmapped. A run with fewer is not conclusive.
pub const CACHED_MIN: u64 = 1000;

/// Runs the scripts on each of the designs, with its defaults and with each of its parameters, on all CPUs.
///
/// # Panics
/// - If a rule is broken that the design does not declare to break, with the smallest failing script that was found.
/// - If a rule that the design declares to break is not broken.
/// - If fewer than [`CACHED_MIN`] pages were in the hardware's caches when they were unmapped.
pub fn check(subjects: &[Subject]) {
    let runs = subjects.iter().flat_map(|&subject| {
        let protections = subject.info().protections.iter();
        protections.flat_map(move |&protection| choices(subject).into_iter().map(move |choice| (choice, protection)))
    });
    // A CPU that is free takes the next run.
    let runs = Mutex::new(runs);
    let next = || runs.lock().expect("not poisoned").next();
    thread::scope(|scope| {
        let work = || {
            while let Some(((subject, options), protection)) = next() {
                keeps_the_rules(subject, options, protection);
            }
        };
        let threads: Vec<_> =
            (0..thread::available_parallelism().map_or(1, usize::from)).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            if let Err(panic) = thread.join() {
                // Keeps the panic's own message.
                std::panic::resume_unwind(panic);
            }
        }
    });
}

fn keeps_the_rules(subject: Subject, options: Options, protection: Protection) {
    let who = format!("{}{options} {protection}", subject.info().id);
    let (cached, breaches) = run_scripts(subject, options, protection).unwrap_or_else(|why| panic!("{who}: {why}"));
    let declared = subject.info().breaches.iter().filter(|breach| breach.protection == protection);
    let declared: BTreeSet<Rule> = declared.map(|breach| breach.rule).collect();
    assert_eq!(breaches, declared, "{who}: the breaches found are not those declared");
    assert!(
        protection == Protection::None || cached >= CACHED_MIN,
        "{who}: only {cached} pages were cached before their unmap"
    );
}

/// The design with its defaults, and with each of its parameters by itself: each word but the default, or the two
/// smallest numbers, or the flag.
fn choices(subject: Subject) -> Vec<(Subject, Options)> {
    let mut choices = vec![(subject, Options::NONE)];
    let info = subject.info();
    for OptionInfo { key, kind, default, .. } in info.options {
        let values: Vec<String> = match kind {
            OptionKind::Word(words) => words.iter().filter(|word| *word != default).map(ToString::to_string).collect(),
            OptionKind::Count(range) => range.clone().take(2).map(|count| count.to_string()).collect(),
            OptionKind::Flag => vec![String::new()],
        };
        let written = |value: &String| if value.is_empty() { (*key).to_owned() } else { format!("{key}={value}") };
        let parse = |value| Options::parse(info.options, &written(value)).expect("a value that the parameter names");
        choices.extend(values.iter().map(|value| (subject, parse(value))));
    }
    choices
}

/// Runs the scripts. Returns how many pages were cached before their unmap, and which declared breaches were found.
fn run_scripts(subject: Subject, options: Options, protection: Protection) -> Result<(u64, BTreeSet<Rule>), String> {
    let scripts = if options == Options::NONE { SCRIPTS } else { SCRIPTS_PER_PARAMETER };
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { Config::default().cases } else { scripts };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let seen = RefCell::new((0, BTreeSet::new()));
    // The first rule that was found broken. A smaller script must break the same rule.
    let broken = Cell::new(None);
    let result = runner.run(&(machine(), script(1..50)), |(machine, script)| {
        let tally = match subject.check(options, &machine, protection, &script) {
            Ok(tally) => tally,
            Err((rule, what)) if broken.get().is_none_or(|first| first == rule) => {
                broken.set(Some(rule));
                return Err(TestCaseError::fail(format!("{rule} ({rule:?}) is broken: {what}")));
            }
            Err(_) => return Ok(()),
        };
        let mut seen = seen.borrow_mut();
        seen.0 += tally.cached_before_unmap;
        seen.1.extend(tally.breaches);
        Ok(())
    });
    result.map_err(|error| error.to_string())?;
    Ok(seen.into_inner())
}
