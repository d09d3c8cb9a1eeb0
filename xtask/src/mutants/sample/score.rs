//! The verdicts of cargo-mutants, and the score of a sample.

use super::list::{Mutant, PAGE};
use crate::failure::Failure;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The smallest share of mutants that the tests have to catch, among those that can be built and change something,
/// in percent.
const SCORE_MIN: usize = 95;
/// The largest share of a sample that may be listed as equivalent, in percent.
const EQUIVALENT_MAX: usize = 10;

/// The verdict on a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum Verdict {
    #[serde(rename = "CaughtMutant")]
    Caught,
    /// The tests took far longer than without the mutant; it counts as caught.
    Timeout,
    /// The mutant cannot be built.
    Unviable,
    /// Every test has passed.
    #[serde(rename = "MissedMutant")]
    Missed,
}

/// The verdicts of all runs that have a folder in `folder`, by mutant. A run that was cut off may have none.
pub(super) fn outcomes(folder: &Path) -> Result<BTreeMap<String, Verdict>, Failure> {
    let mut verdicts = BTreeMap::new();
    let runs = fs::read_dir(folder).into_iter().flatten();
    // A run that was interrupted early has no outcome.
    let paths = runs.flatten().map(|run| run.path().join("mutants.out/outcomes.json")).filter(|path| path.is_file());
    for path in paths {
        let text = fs::read_to_string(&path).map_err(Failure::file(&path))?;
        let Ok(document) = serde_json::from_str::<Value>(&text) else { continue };
        for outcome in document["outcomes"].as_array().into_iter().flatten() {
            // The first scenario is that of the tests without a mutant.
            if let Some(name) = outcome["scenario"]["Mutant"]["name"].as_str() {
                let verdict = Verdict::deserialize(&outcome["summary"]).map_err(Failure::contents(&path))?;
                verdicts.insert(name.to_owned(), verdict);
            }
        }
    }
    Ok(verdicts)
}

/// The score of mutants with these verdicts, and the goals that they miss. `equivalent` are the mutants that are listed
/// as equivalent.
pub(super) fn score(judged: &[(&Mutant, Verdict)], equivalent: &BTreeSet<String>) -> (String, Vec<String>) {
    let count = |wanted: Verdict| judged.iter().filter(|(_, verdict)| *verdict == wanted).count();
    let (caught, timeout, unviable) = (count(Verdict::Caught), count(Verdict::Timeout), count(Verdict::Unviable));
    let (listed, others): (Vec<_>, Vec<_>) =
        judged.iter().partition(|(mutant, _)| equivalent.contains(&mutant.listed_as));
    let is_missed = |(_, verdict): &&(&Mutant, Verdict)| *verdict == Verdict::Missed;
    let (same, missed) = (listed.iter().filter(is_missed).count(), others.iter().filter(is_missed).count());
    let (seen, size) = (caught + timeout, judged.len());
    let viable = seen + missed;
    let mut said = format!(
        "caught {caught}, timeout {timeout}, unviable {unviable}, missed {missed}, equivalent {same}\n\
         score: {seen} of {viable}, {:.1} %",
        100.0 * seen as f64 / viable.max(1) as f64
    );
    for (mutant, _) in others.iter().filter(is_missed) {
        said += &format!("\nmissed: {}", mutant.name);
    }
    let mut wrong = Vec::new();
    // A sample in which nothing can be caught proves nothing.
    if viable == 0 || seen * 100 < viable * SCORE_MIN {
        wrong.push(format!("the tests catch {seen} of {viable} mutants; at least {SCORE_MIN} % are required"));
    }
    if same * 100 > size * EQUIVALENT_MAX {
        wrong.push(format!("{same} of {size} mutants are equivalent; at most {EQUIVALENT_MAX} % are allowed"));
    }
    let are_seen = listed.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Caught | Verdict::Timeout));
    wrong.extend(are_seen.map(|(mutant, _)| format!("{PAGE} lists a mutant that is caught: `{}`", mutant.name)));
    (said, wrong)
}

#[cfg(test)]
mod tests {
    use super::super::list::tests::mutants;
    use super::Verdict::{Caught, Missed, Timeout, Unviable};
    use super::{outcomes, score};
    use crate::fixture;
    use std::collections::BTreeSet;

    #[test]
    fn goals_that_are_missed_are_named() {
        let few = "the tests catch 94 of 99 mutants; at least 95 % are required";
        let many = "11 of 100 mutants are equivalent; at most 10 % are allowed";
        let none = "the tests catch 0 of 0 mutants; at least 95 % are required";
        let caught = "docs/mutants.md lists a mutant that is caught: `a.rs:1:9: replace || with && in f`";
        // The first ones are listed as equivalent.
        for (verdicts, listed, expected) in [
            ([(Missed, 5), (Caught, 95)], 0, None),
            ([(Missed, 5), (Caught, 94)], 0, Some(few)),
            // Equivalent mutants do not count.
            ([(Missed, 3), (Caught, 19)], 2, None),
            // A timeout counts as caught.
            ([(Missed, 1), (Timeout, 19)], 0, None),
            ([(Missed, 10), (Caught, 90)], 10, None),
            ([(Missed, 11), (Caught, 89)], 11, Some(many)),
            // Mutants that cannot be built are part of the sample, but nothing is tested with them.
            ([(Unviable, 10), (Caught, 89)], 0, None),
            ([(Unviable, 9), (Caught, 0)], 0, Some(none)),
            ([(Caught, 20), (Missed, 0)], 1, Some(caught)),
            ([(Unviable, 1), (Caught, 20)], 1, None),
        ] {
            let all = verdicts.iter().flat_map(|(verdict, count)| vec![*verdict; *count]).collect::<Vec<_>>();
            let mutants = mutants(&(1..=all.len()).map(|line| (line, "f")).collect::<Vec<_>>());
            let equivalent = mutants[..listed].iter().map(|mutant| mutant.listed_as.clone()).collect();
            let (_, wrong) = score(&mutants.iter().zip(all).collect::<Vec<_>>(), &equivalent);
            assert_eq!(wrong, Vec::from_iter(expected), "{verdicts:?}");
        }
    }

    #[test]
    fn what_is_missed_is_named() {
        let mutants = mutants(&[(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]);
        let judged: Vec<_> = mutants.iter().zip([Missed, Missed, Caught, Timeout, Unviable]).collect();
        let (said, _) = score(&judged, &BTreeSet::from([mutants[0].listed_as.clone()]));
        let expected = "caught 1, timeout 1, unviable 1, missed 1, equivalent 1\nscore: 2 of 3, 66.7 %\n\
            missed: a.rs:2:9: replace || with && in b";
        assert_eq!(said, expected);
    }

    #[test]
    fn verdicts_of_all_runs_are_read() {
        let folder = fixture::folder(&[]);
        let folder = &folder.path().join("sample");
        assert!(outcomes(folder).is_ok_and(|verdicts| verdicts.is_empty()));
        for (run, mutant, summary) in [("1", "a", "MissedMutant"), ("2", "b", "CaughtMutant"), ("3", "c", "Timeout")] {
            let text = format!(
                r#"{{"outcomes": [{{"scenario": "Baseline", "summary": "Success"}},
                {{"scenario": {{"Mutant": {{"name": "{mutant}", "package": "p"}}}}, "summary": "{summary}", "log_path": ""}}],
                "total_mutants": 1}}"#
            );
            fixture::write(folder, &format!("{run}/mutants.out/outcomes.json"), &text);
        }
        fixture::write(folder, "4/mutants.out/lock.json", "");
        let verdicts = [("a", Missed), ("b", Caught), ("c", Timeout)].map(|(name, verdict)| (name.to_owned(), verdict));
        assert_eq!(outcomes(folder).expect("readable files"), verdicts.into());
        fixture::write(folder, "1/mutants.out/outcomes.json", "{");
        assert_eq!(outcomes(folder).expect("readable files").len(), 2, "what was cut off counts for nothing");
    }
}
