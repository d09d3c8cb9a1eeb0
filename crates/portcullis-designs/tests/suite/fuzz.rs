//! Long scripts of random operations on random designs and random machines, with the checker's malicious device.

use crate::checker::script;
use crate::fuzzing::fuzz;
use portcullis::Protection;
use portcullis::mapper::{OptionInfo, OptionKind};
use portcullis_designs::{Choice, DesignId};
use portcullis_testkit::{Subject, machine};
use proptest::prelude::*;
use proptest::sample::select;
use std::cell::Cell;
use std::ops::Range;

/// Scripts of a run, unless the environment says otherwise.
const CASES: u64 = 24;
/// Operations of a script. More than in the scripts of the properties: the first breaches of a bound come later than
/// these end.
const LENGTH: Range<usize> = 50..400;
/// Upper bound of the counts that parameters get, if the design accepts them. It is small, so that limits are reached.
const COUNT_MAX: u64 = 64;

#[test]
fn long_scripts_keep_the_rules_under_any_parameters() {
    let cached = Cell::new(0);
    let strategy = (choice(), machine(), script(LENGTH));
    fuzz("scripts", CASES, &strategy, |((choice, protection), machine, script)| {
        let choice = Choice::parse(&choice).expect("the choice follows the design's description");
        match Subject::from(choice.design).check(choice.options, &machine, protection, &script) {
            Ok(tally) => cached.set(cached.get() + tally.cached_before_unmap),
            Err((rule, what)) => panic!("{choice} {protection}: {rule:?}: {what}"),
        }
    });
    assert!(cached.get() > 0, "no page was cached before its unmap");
}

/// A design, as it is written, with any of its parameters, and one of its protections.
fn choice() -> impl Strategy<Value = (String, Protection)> {
    select(DesignId::ALL).prop_flat_map(|design| {
        let info = design.info();
        let parameters: Vec<_> = info.options.iter().map(parameter).collect();
        (parameters, select(info.protections)).prop_map(move |(parameters, protection)| {
            let given: Vec<String> = parameters.into_iter().flatten().collect();
            let colon = if given.is_empty() { "" } else { ":" };
            (format!("{}{colon}{}", info.id, given.join(":")), protection)
        })
    })
}

/// A parameter as it is written, or none.
fn parameter(info: &'static OptionInfo) -> impl Strategy<Value = Option<String>> {
    let key = info.key;
    let value = match &info.kind {
        OptionKind::Count(range) => {
            let (first, last) = (*range.start(), *range.end());
            (first..=last.min(first + COUNT_MAX)).prop_map(move |count| format!("{key}={count}")).boxed()
        }
        OptionKind::Word(words) => select(*words).prop_map(move |word| format!("{key}={word}")).boxed(),
        OptionKind::Flag => Just(key.to_owned()).boxed(),
    };
    prop::option::of(value)
}
