//! How many numbers of a figure are within their class, and how many were when that was last recorded.
//!
//! A score may rise, and then the new one is recorded. It may not fall.

use super::served::Length;
use super::{Figure, Made, Plan, Tally};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The recorded scores of runs of each length.
const RECORDED: &str = include_str!("scores.json");

/// The recorded scores, by figure: numbers within their class, and numbers that have one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    short: BTreeMap<String, [usize; 2]>,
    full: BTreeMap<String, [usize; 2]>,
}

impl Recorded {
    fn read() -> Self {
        serde_json::from_str(RECORDED).expect("recorded scores")
    }

    fn of(&self, length: Length) -> &BTreeMap<String, [usize; 2]> {
        match length {
            Length::Short => &self.short,
            Length::Full => &self.full,
        }
    }

    /// See [`unrecorded`].
    fn missing(&self, plan: &Plan) -> Option<&'static str> {
        // A figure of long runs alone has no score without `--full`.
        let is_missing = |id: &str| {
            let is_in = |length| self.of(length).contains_key(id);
            is_in(Length::Short) && !is_in(plan.length())
        };
        plan.figures().iter().map(|figure| figure.id).find(|id| is_missing(id))
    }
}

/// The recorded score of a figure or a group, for runs of this length.
#[cfg(test)]
pub(super) fn recorded(id: &str, length: Length) -> Option<[usize; 2]> {
    Recorded::read().of(length).get(id).copied()
}

/// The first figure of the plan whose score was never recorded for runs of this length, although it was recorded for
/// runs of the other length. There is nothing to check it with.
///
/// # Panics
/// If the recorded scores cannot be read.
pub fn unrecorded(plan: &Plan) -> Option<&'static str> {
    Recorded::read().missing(plan)
}

/// The score of a figure, or of a group of figures.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Score {
    /// The figure or the group.
    pub figure: &'static str,
    /// Its numbers.
    #[serde(flatten)]
    pub tally: Tally,
    /// Whether the runs were long.
    pub full: bool,
    /// The numbers within their class, and those that are scored, as they were recorded. `None` for a new figure.
    pub recorded: Option<[usize; 2]>,
}

/// The scores of all figures of the plan that have scored numbers, and of the groups that are complete.
///
/// # Panics
/// If the recorded scores cannot be read.
pub fn scores(plan: &Plan, made: &[Made]) -> Vec<Score> {
    let recorded = Recorded::read();
    let recorded = |id: &str| recorded.of(plan.length()).get(id).copied();
    let score =
        |figure: &'static str, tally: Tally| Score { figure, tally, full: plan.is_full(), recorded: recorded(figure) };
    let all: Vec<(&Figure, Tally)> = plan.figures().iter().copied().zip(made.iter().map(Made::tally)).collect();
    let of_figures = all.iter().map(|(figure, tally)| score(figure.id, *tally));
    let of_groups = Figure::GROUPS.iter().filter_map(|group| {
        let is_complete = Figure::group(group).all(|one| all.iter().any(|(figure, _)| figure.id == one.id));
        let mut tally = Tally::default();
        all.iter().filter(|(figure, _)| figure.group == Some(group)).for_each(|(_, more)| tally += *more);
        is_complete.then(|| score(group, tally))
    });
    of_figures.chain(of_groups).filter(|score| score.tally.scored > 0).collect()
}

impl Score {
    /// Says what is wrong if the score is lower than the recorded one.
    pub fn violation(&self) -> Option<String> {
        let [within, scored] = self.recorded?;
        let has_fewer = self.tally.scored < scored;
        (has_fewer || self.compared_with([within, scored]).is_lt())
            .then(|| format!("{self}; recorded are {within} of {scored}"))
    }

    /// Says what to do if the score is higher than the recorded one, or if none is recorded.
    pub fn advice(&self) -> Option<String> {
        let Self { figure, tally: Tally { within, scored, .. }, full, recorded } = self;
        let is_higher = recorded.is_none_or(|recorded| self.compared_with(recorded).is_gt());
        let line = format!("\"{figure}\": [{within}, {scored}]");
        let part = if *full { "full" } else { "short" };
        let file = "crates/portcullis-sim/src/figures/scores.json";
        is_higher.then(|| format!("To record it, put {line} into `{part}` of {file}."))
    }

    fn compared_with(&self, [within, scored]: [usize; 2]) -> std::cmp::Ordering {
        (self.tally.within * scored).cmp(&(within * self.tally.scored))
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { figure, tally: Tally { within, scored, within_if_one, .. }, .. } = self;
        write!(
            f,
            "{figure}: {within} of {scored} numbers are within their class; if each were 1, {within_if_one} would be"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::Make;
    use super::super::lab::Lab;
    use super::super::served::Numbers;
    use super::*;

    fn score(within: usize, scored: usize, recorded: Option<[usize; 2]>) -> Score {
        let tally = Tally { within, scored, within_if_one: 1, ..Tally::default() };
        Score { figure: "a-figure", tally, full: false, recorded }
    }

    #[test]
    fn a_lower_score_fails_and_a_higher_one_is_to_be_recorded() {
        let same = score(3, 4, Some([3, 4]));
        assert_eq!((same.violation(), same.advice()), (None, None));
        let lower = score(2, 4, Some([3, 4]));
        let expected =
            "a-figure: 2 of 4 numbers are within their class; if each were 1, 1 would be; recorded are 3 of 4";
        assert_eq!((lower.violation().as_deref(), lower.advice()), (Some(expected), None));
        // Without a number that was out of its class.
        assert!(score(3, 3, Some([3, 4])).violation().is_some());
        // More numbers, and a smaller share of them.
        assert!(score(4, 6, Some([3, 4])).violation().is_some());
        for higher in [score(4, 4, Some([3, 4])), score(0, 4, None)] {
            let advice = higher.advice().expect("something to do");
            assert!(higher.violation().is_none() && advice.contains("\"a-figure\": ["), "{advice}");
        }
    }

    /// The number of scored numbers of a figure. Without results, each of them is out of its class.
    fn scored(figure: &Figure, length: Length) -> usize {
        let Make::FromRuns(draw) = figure.make else { return 0 };
        let made = draw(&Lab::new(length, &|_| Numbers::UNKNOWN));
        made.points.iter().filter(|point| point.class.is_some() && point.within.is_some()).count()
    }

    #[test]
    fn runs_whose_scores_are_not_recorded_cannot_be_checked() {
        let plan = |is_full| Plan::new(Figure::all().collect(), is_full);
        assert_eq!([false, true].map(|is_full| unrecorded(&plan(is_full))), [None; 2]);
        let short_only = Recorded { full: BTreeMap::new(), ..Recorded::read() };
        assert_eq!(short_only.missing(&plan(false)), None);
        assert!(short_only.missing(&plan(true)).is_some());
    }

    #[test]
    fn what_is_recorded_is_every_scored_figure_and_every_group_and_nothing_else() {
        for length in [Length::Short, Length::Full] {
            let mut expected = BTreeMap::new();
            for figure in Figure::all().filter(|figure| scored(figure, length) > 0) {
                let group = figure.group.expect("a scored figure belongs to a group");
                expected.insert(figure.id, scored(figure, length));
                *expected.entry(group).or_default() += scored(figure, length);
            }
            let recorded = Recorded::read();
            let recorded = recorded.of(length);
            let of_recorded: BTreeMap<&str, usize> =
                recorded.iter().map(|(id, [_, scored])| (id.as_str(), *scored)).collect();
            assert_eq!(of_recorded, expected, "{length:?}");
            assert!(recorded.values().all(|[within, scored]| within <= scored), "{recorded:?}");
            for group in Figure::GROUPS {
                let within: usize =
                    Figure::group(group).filter_map(|figure| recorded.get(figure.id)).map(|[within, _]| within).sum();
                assert_eq!(within, recorded[*group][0], "{group}");
            }
        }
    }
}
