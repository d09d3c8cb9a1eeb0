//! The score of a sample.

use super::equivalent::PAGE;
use super::journal::{Journal, Verdict};
use super::mutant::Mutant;
use crate::failure::Failure;
use std::collections::BTreeSet;

/// The smallest share of mutants that the tests have to catch, among those that can be built and change something,
/// in percent.
const SCORE_MIN: usize = 95;
/// The largest share of a sample that may be listed as equivalent, in percent.
const EQUIVALENT_MAX: usize = 10;

/// The verdicts of a sample, counted.
#[derive(Debug, Default)]
pub(super) struct Score {
    caught: usize,
    timeout: usize,
    unviable: usize,
    equivalent: usize,
    /// The number of mutants by verdict.
    missed: Vec<String>,
    /// Mutants that are listed as equivalent but were caught, with what caught them.
    falsely_listed: Vec<String>,
}

impl Score {
    /// Counts the verdicts on the mutants of the sample. `equivalent` are the mutants that are listed as
    /// equivalent.
    pub(super) fn of(drawn: &[Mutant], journal: &Journal, equivalent: &BTreeSet<String>) -> Self {
        let mut score = Self::default();
        for (mutant, entry) in drawn.iter().filter_map(|mutant| Some((mutant, journal.entry(&mutant.name)?))) {
            let is_listed = equivalent.contains(&mutant.listed_as);
            match entry.verdict {
                Verdict::Caught => score.caught += 1,
                Verdict::Timeout => score.timeout += 1,
                Verdict::Unviable => score.unviable += 1,
                Verdict::Missed if is_listed => score.equivalent += 1,
                Verdict::Missed => score.missed.push(mutant.name.clone()),
            }
            if is_listed && matches!(entry.verdict, Verdict::Caught | Verdict::Timeout) {
                score.falsely_listed.push(format!("`{}`, by {}", mutant.name, entry.by));
            }
        }
        score
    }

    /// Prints the score, and fails if it is not good enough.
    pub(super) fn report(&self) -> Result<(), Failure> {
        println!(
            "\ncaught {}, timeout {}, unviable {}, missed {}, equivalent {}",
            self.caught,
            self.timeout,
            self.unviable,
            self.missed.len(),
            self.equivalent
        );
        self.missed.iter().for_each(|name| println!("missed: {name}"));
        println!("score: {} of {}, {:.1} %", self.seen(), self.viable(), self.percent());
        let wrong = self.wrong();
        if wrong.is_empty() { Ok(()) } else { Err(Failure::Sample(wrong)) }
    }

    /// The number of mutants that the tests caught.
    fn seen(&self) -> usize {
        self.caught + self.timeout
    }

    /// The number of mutants that the tests should have caught.
    fn viable(&self) -> usize {
        self.seen() + self.missed.len()
    }

    fn percent(&self) -> f64 {
        100.0 * self.seen() as f64 / self.viable().max(1) as f64
    }

    /// The goals that the sample misses.
    fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        // A sample in which nothing can be caught proves nothing.
        if self.viable() == 0 || self.seen() * 100 < self.viable() * SCORE_MIN {
            wrong.push(format!(
                "the tests catch {:.1} % of the mutants; at least {SCORE_MIN} % is required",
                self.percent()
            ));
        }
        let size = self.viable() + self.equivalent + self.unviable;
        if self.equivalent * 100 > size * EQUIVALENT_MAX {
            let equivalent = self.equivalent;
            wrong.push(format!("{equivalent} of {size} mutants are equivalent; at most {EQUIVALENT_MAX} % is allowed"));
        }
        wrong
            .extend(self.falsely_listed.iter().map(|caught| format!("{PAGE} lists a mutant that is caught: {caught}")));
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::super::journal::{Entry, Journal, Verdict};
    use super::super::mutant::tests::mutant;
    use super::Score;
    use std::collections::BTreeSet;

    /// A sample with these numbers of caught, missed and equivalent mutants.
    fn score(caught: usize, missed: usize, equivalent: usize) -> Score {
        Score { caught, missed: vec!["a".to_owned(); missed], equivalent, ..Score::default() }
    }

    #[test]
    fn too_few_that_are_caught_are_refused() {
        assert_eq!(score(95, 5, 0).wrong(), [""; 0]);
        assert_eq!(score(94, 5, 0).wrong(), ["the tests catch 94.9 % of the mutants; at least 95 % is required"]);
        assert_eq!(score(19, 1, 2).wrong(), [""; 0], "equivalent mutants do not count");
        assert_eq!(Score { timeout: 19, ..score(0, 1, 0) }.wrong(), [""; 0], "a timeout counts as caught");
        assert_eq!(Score { unviable: 9, ..score(0, 0, 0) }.wrong().len(), 1, "nothing was tested");
    }

    #[test]
    fn too_many_that_change_nothing_are_refused() {
        assert_eq!(score(90, 0, 10).wrong(), [""; 0]);
        assert_eq!(score(89, 0, 11).wrong(), ["11 of 100 mutants are equivalent; at most 10 % is allowed"]);
        assert_eq!(
            Score { unviable: 10, ..score(89, 0, 11) }.wrong(),
            [""; 0],
            "unviable mutants are part of the sample"
        );
    }

    #[test]
    fn the_list_makes_a_missed_mutant_equivalent_and_a_caught_one_an_error() {
        let path = std::env::temp_dir().join(format!("portcullis-score-{}.jsonl", std::process::id()));
        let mut journal = Journal::open(&path, "aa").expect("a journal");
        let mut drawn: Vec<_> = (1..=5).map(|line| mutant((line, 1), (line, 2), "")).collect();
        let verdicts = [Verdict::Missed, Verdict::Missed, Verdict::Caught, Verdict::Caught, Verdict::Unviable];
        for (mutant, verdict) in drawn.iter_mut().zip(verdicts) {
            mutant.listed_as = format!("{:?} {}", verdict, mutant.name);
            let entry = Entry { mutant: mutant.name.clone(), verdict, by: "a test".to_owned(), build: 0.0, run: 0.0 };
            journal.append(entry).expect("it can be written");
        }
        std::fs::remove_file(&path).expect("ours");
        let none = Score::of(&drawn, &journal, &BTreeSet::new());
        assert_eq!((none.caught, none.unviable, none.missed.len(), none.equivalent), (2, 1, 2, 0));
        let listed = BTreeSet::from([0, 2].map(|index: usize| drawn[index].listed_as.clone()));
        let score = Score::of(&drawn, &journal, &listed);
        assert_eq!((score.caught, score.equivalent), (2, 1));
        assert_eq!(score.missed, [drawn[1].name.clone()]);
        assert_eq!(score.falsely_listed, [format!("`{}`, by a test", drawn[2].name)]);
        assert!(score.wrong().iter().any(|wrong| wrong.contains("lists a mutant that is caught")));
    }
}
