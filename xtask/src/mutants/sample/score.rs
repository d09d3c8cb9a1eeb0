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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
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

/// The verdicts of all runs that have a folder in `folder`, by the name of the mutant.
pub(super) fn outcomes(folder: &Path) -> Result<BTreeMap<String, Verdict>, Failure> {
    let mut verdicts = BTreeMap::new();
    let runs = fs::read_dir(folder).into_iter().flatten();
    // A run that was interrupted early has no outcome.
    let paths = runs.flatten().map(|run| run.path().join("mutants.out/outcomes.json")).filter(|path| path.is_file());
    for path in paths {
        let text = fs::read_to_string(&path).map_err(Failure::file(&path))?;
        let document: Value = serde_json::from_str(&text).map_err(Failure::contents(&path))?;
        for outcome in document["outcomes"].as_array().into_iter().flatten() {
            // The first scenario is that of the tests without a mutant.
            if let Some(name) = outcome["scenario"]["Mutant"]["name"].as_str() {
                verdicts.insert(
                    name.to_owned(),
                    Verdict::deserialize(&outcome["summary"]).map_err(Failure::contents(&path))?,
                );
            }
        }
    }
    Ok(verdicts)
}

/// The verdicts of a sample: the names of the mutants.
#[derive(Default)]
pub(super) struct Score<'m> {
    by_verdict: BTreeMap<Verdict, Vec<&'m str>>,
    /// Missed mutants that are listed as equivalent.
    equivalent: usize,
    /// Mutants that are listed as equivalent but were caught.
    falsely_listed: Vec<&'m str>,
}

impl<'m> Score<'m> {
    /// The score of mutants with these verdicts. `equivalent` are the mutants that are listed as equivalent.
    pub(super) fn of(judged: impl Iterator<Item = (&'m Mutant, Verdict)>, equivalent: &BTreeSet<String>) -> Self {
        let mut score = Self::default();
        for (mutant, verdict) in judged {
            match (verdict, equivalent.contains(&mutant.listed_as)) {
                (Verdict::Missed, true) => {
                    score.equivalent += 1;
                    continue;
                }
                (Verdict::Caught | Verdict::Timeout, true) => score.falsely_listed.push(&mutant.name),
                _ => {}
            }
            score.by_verdict.entry(verdict).or_default().push(&mutant.name);
        }
        score
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.by_verdict.get(&verdict).map_or(0, Vec::len)
    }

    /// Prints the score, and fails if it is not good enough.
    pub(super) fn report(&self) -> Result<(), Failure> {
        println!();
        for (verdict, names) in &self.by_verdict {
            println!("{verdict:?}: {}", names.len());
        }
        println!("Equivalent: {}", self.equivalent);
        self.by_verdict.get(&Verdict::Missed).into_iter().flatten().for_each(|name| println!("missed: {name}"));
        let wrong = self.wrong();
        if wrong.is_empty() { Ok(()) } else { Err(Failure::Sample(wrong)) }
    }

    /// The goals that the sample misses.
    fn wrong(&self) -> Vec<String> {
        let seen = self.count(Verdict::Caught) + self.count(Verdict::Timeout);
        let viable = seen + self.count(Verdict::Missed);
        let mut wrong = Vec::new();
        // A sample in which nothing can be caught proves nothing.
        if viable == 0 || seen * 100 < viable * SCORE_MIN {
            wrong.push(format!("the tests catch {seen} of {viable} mutants; at least {SCORE_MIN} % are required"));
        }
        let (equivalent, size) = (self.equivalent, viable + self.equivalent + self.count(Verdict::Unviable));
        if equivalent * 100 > size * EQUIVALENT_MAX {
            wrong
                .push(format!("{equivalent} of {size} mutants are equivalent; at most {EQUIVALENT_MAX} % are allowed"));
        }
        wrong.extend(self.falsely_listed.iter().map(|name| format!("{PAGE} lists a mutant that is caught: `{name}`")));
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::super::list::tests::mutants;
    use super::{Score, Verdict, outcomes};
    use std::collections::BTreeSet;
    use std::fs;

    /// What is wrong with a sample that has so many mutants of each verdict, and so many equivalent ones.
    fn wrong(counts: [(Verdict, usize); 2], equivalent: usize) -> Vec<String> {
        let by_verdict = counts.map(|(verdict, count)| (verdict, vec!["a"; count])).into();
        Score { by_verdict, equivalent, falsely_listed: Vec::new() }.wrong()
    }

    #[test]
    fn goals_that_are_missed_are_named() {
        use Verdict::{Caught, Missed, Timeout, Unviable};
        let few = "the tests catch 94 of 99 mutants; at least 95 % are required";
        let many = "11 of 100 mutants are equivalent; at most 10 % are allowed";
        let none = "the tests catch 0 of 0 mutants; at least 95 % are required";
        for (counts, equivalent, expected) in [
            ([(Caught, 95), (Missed, 5)], 0, None),
            ([(Caught, 94), (Missed, 5)], 0, Some(few)),
            // Equivalent mutants do not count.
            ([(Caught, 19), (Missed, 1)], 2, None),
            // A timeout counts as caught.
            ([(Timeout, 19), (Missed, 1)], 0, None),
            ([(Caught, 90), (Missed, 0)], 10, None),
            ([(Caught, 89), (Missed, 0)], 11, Some(many)),
            // Mutants that cannot be built are part of the sample, but nothing is tested with them.
            ([(Caught, 89), (Unviable, 10)], 11, None),
            ([(Caught, 0), (Unviable, 9)], 0, Some(none)),
        ] {
            assert_eq!(wrong(counts, equivalent), Vec::from_iter(expected), "{counts:?}");
        }
    }

    #[test]
    fn the_list_makes_a_missed_mutant_equivalent_and_a_caught_one_an_error() {
        let drawn = mutants(&[(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]);
        let verdicts = [Verdict::Missed, Verdict::Missed, Verdict::Caught, Verdict::Caught, Verdict::Unviable];
        let listed = BTreeSet::from([0, 2].map(|index: usize| drawn[index].listed_as.clone()));
        let score = Score::of(drawn.iter().zip(verdicts), &listed);
        let counts = [Verdict::Caught, Verdict::Unviable, Verdict::Missed].map(|verdict| score.count(verdict));
        assert_eq!((counts, score.equivalent), ([2, 1, 1], 1));
        let caught = format!("docs/mutants.md lists a mutant that is caught: `{}`", drawn[2].name);
        assert!(score.wrong().contains(&caught), "{:?}", score.wrong());
    }

    #[test]
    fn verdicts_of_all_runs_are_read() {
        let folder = std::env::temp_dir().join(format!("portcullis-outcomes-{}", std::process::id()));
        let before = outcomes(&folder);
        for (run, mutant, summary) in [("1", "a", "MissedMutant"), ("2", "b", "CaughtMutant"), ("3", "c", "Timeout")] {
            let out = folder.join(run).join("mutants.out");
            fs::create_dir_all(&out).expect("a new folder");
            let text = format!(
                r#"{{"outcomes": [{{"scenario": "Baseline", "summary": "Success"}},
                {{"scenario": {{"Mutant": {{"name": "{mutant}", "package": "p"}}}}, "summary": "{summary}", "log_path": ""}}],
                "total_mutants": 1}}"#
            );
            fs::write(out.join("outcomes.json"), text).expect("a new file");
        }
        fs::create_dir_all(folder.join("4")).expect("a new folder");
        let found = outcomes(&folder);
        fs::write(folder.join("1/mutants.out/outcomes.json"), "{").expect("our file");
        let broken = outcomes(&folder);
        fs::remove_dir_all(&folder).expect("ours");
        assert!(before.is_ok_and(|verdicts| verdicts.is_empty()) && broken.is_err());
        let verdicts = [("a", Verdict::Missed), ("b", Verdict::Caught), ("c", Verdict::Timeout)];
        assert_eq!(found.expect("readable files"), verdicts.map(|(name, verdict)| (name.to_owned(), verdict)).into());
    }
}
