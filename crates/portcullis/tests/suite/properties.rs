//! Every design, under every protection that it offers, keeps the safety rules on random scripts, and breaks those that it
//! declares to break. A design is covered as soon as it is in the list of designs.

use crate::checker::check_choice;
use crate::checker::operation::script;
use crate::machines::machine;
use portcullis::design::{OptionInfo, OptionKind, Options};
use portcullis::designs::{Choice, DesignId};
use portcullis::{Protection, Rule};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread;

/// Scripts per design and protection, unless `PROPTEST_CASES` says otherwise.
const SCRIPTS: u32 = 256;
/// The same where a parameter is not at its default.
const SCRIPTS_PER_PARAMETER: u32 = 96;
/// Pages that the hardware must have held when they were unmapped. With fewer a run has proven nothing.
const CACHED_MIN: u64 = 1000;

#[test]
fn every_design_keeps_the_rules_and_breaks_those_it_declares() {
    let runs = DesignId::under_test().into_iter().flat_map(|design| {
        let protections = design.info().protections.iter();
        protections.flat_map(move |&protection| choices(design).into_iter().map(move |choice| (choice, protection)))
    });
    // On every processor, whichever is free.
    let runs = Mutex::new(runs);
    let next = || runs.lock().expect("not poisoned").next();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some((choice, protection)) = next() {
                    keeps_the_rules(choice, protection)
                }
            });
        }
    });
}

fn keeps_the_rules(choice: Choice, protection: Protection) {
    let (cached, breaches) = run_scripts(choice, protection);
    let declared = choice.design.info().breaches.iter().filter(|breach| breach.protection == protection);
    let declared: BTreeSet<Rule> = declared.map(|breach| breach.rule).collect();
    assert_eq!(breaches, declared, "{choice} {protection}: breaches found, and declared");
    assert!(
        protection == Protection::None || cached >= CACHED_MIN,
        "{choice} {protection}: only {cached} pages were cached before their unmap"
    );
}

/// The design with its defaults, and with each of its parameters by itself: every word, and the two smallest numbers.
fn choices(design: DesignId) -> Vec<Choice> {
    let mut choices = vec![Choice::from(design)];
    for OptionInfo { key, kind, default, .. } in design.info().options {
        let values: Vec<String> = match kind {
            OptionKind::Word(words) => words.iter().filter(|word| *word != default).map(ToString::to_string).collect(),
            OptionKind::Count(range) => range.clone().take(2).map(|count| count.to_string()).collect(),
            OptionKind::Flag => vec![String::new()],
        };
        let id = design.info().id;
        let written =
            |value: &String| if value.is_empty() { format!("{id}:{key}") } else { format!("{id}:{key}={value}") };
        choices.extend(values.iter().map(|value| Choice::parse(&written(value)).expect("as it says")));
    }
    choices
}

/// Runs the scripts and returns how many pages were cached before their unmap, and which declared breaches were found.
fn run_scripts(choice: Choice, protection: Protection) -> (u64, BTreeSet<Rule>) {
    let scripts = if choice.options == Options::NONE { SCRIPTS } else { SCRIPTS_PER_PARAMETER };
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { Config::default().cases } else { scripts };
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let seen = RefCell::new((0, BTreeSet::new()));
    let result = runner.run(&(machine(), script(1..50)), |(machine, script)| {
        let tally = check_choice(choice, &machine, protection, &script);
        let tally = tally.map_err(|(rule, what)| TestCaseError::fail(format!("{rule:?}: {what}")))?;
        let mut seen = seen.borrow_mut();
        seen.0 += tally.cached_before_unmap;
        seen.1.extend(tally.breaches);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{choice} {protection}: {error}");
    }
    seen.into_inner()
}
