//! How many numbers of a figure are within their class, and how many were when that was last recorded.
//!
//! A score may rise, and then the new one is recorded. It may not fall.

use super::{Figure, Made, Plan};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// The recorded scores, by figure.
const RECORDED: &str = include_str!("scores.json");

/// The score of a figure, or of a group of figures.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Score {
    /// The figure or the group.
    pub figure: &'static str,
    /// Numbers within their class.
    pub within: usize,
    /// Numbers that have a class by which they are scored.
    pub scored: usize,
    /// The same two numbers as they were recorded. `None` for a new figure, and for long runs.
    pub recorded: Option<[usize; 2]>,
}

/// The scores of all figures of the plan that have scored numbers, and of the groups that are complete.
///
/// # Panics
/// If the recorded scores cannot be read.
pub fn scores(plan: &Plan, made: &[Made]) -> Vec<Score> {
    let recorded: BTreeMap<String, [usize; 2]> = serde_json::from_str(RECORDED).expect("recorded scores");
    let recorded = |id: &str| recorded.get(id).copied().filter(|_| !plan.is_full());
    let within = |made: &Made| -> Vec<bool> {
        made.points.iter().filter(|point| point.class.is_some()).filter_map(|point| point.within).collect()
    };
    let score = |figure: &'static str, within: &[bool]| Score {
        figure,
        within: within.iter().filter(|within| **within).count(),
        scored: within.len(),
        recorded: recorded(figure),
    };
    let all: Vec<(&Figure, Vec<bool>)> = plan.figures().iter().copied().zip(made.iter().map(within)).collect();
    let of_figures = all.iter().map(|(figure, within)| score(figure.id, within));
    let of_groups = Figure::GROUPS.iter().filter_map(|group| {
        let is_complete = Figure::group(group).all(|one| all.iter().any(|(figure, _)| figure.id == one.id));
        let of_group = all.iter().filter(|(figure, _)| figure.group == Some(group));
        is_complete.then(|| score(group, &of_group.flat_map(|(_, within)| within.clone()).collect::<Vec<_>>()))
    });
    of_figures.chain(of_groups).filter(|score| score.scored > 0).collect()
}

impl Score {
    /// Says what is wrong if the score is lower than the recorded one.
    pub fn violation(&self) -> Option<String> {
        let [within, scored] = self.recorded?;
        let has_fewer = self.scored < scored;
        (has_fewer || self.compared_with([within, scored]).is_lt())
            .then(|| format!("{self}; recorded are {within} of {scored}"))
    }

    /// Says what to do if the score is higher than the recorded one, or if none is recorded.
    pub fn advice(&self) -> Option<String> {
        let Self { figure, within, scored, recorded } = self;
        let is_higher = recorded.is_none_or(|recorded| self.compared_with(recorded).is_gt());
        let line = format!("\"{figure}\": [{within}, {scored}]");
        is_higher.then(|| format!("To record it, put {line} into crates/portcullis-sim/src/figures/scores.json."))
    }

    fn compared_with(&self, [within, scored]: [usize; 2]) -> std::cmp::Ordering {
        (self.within * scored).cmp(&(within * self.scored))
    }
}

impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} of {} numbers are within their class", self.figure, self.within, self.scored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(within: usize, scored: usize, recorded: Option<[usize; 2]>) -> Score {
        Score { figure: "a-figure", within, scored, recorded }
    }

    #[test]
    fn a_lower_score_fails_and_a_higher_one_is_to_be_recorded() {
        let same = score(3, 4, Some([3, 4]));
        assert_eq!((same.violation(), same.advice()), (None, None));
        let lower = score(2, 4, Some([3, 4]));
        let expected = "a-figure: 2 of 4 numbers are within their class; recorded are 3 of 4";
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

    #[test]
    fn what_is_recorded_are_scores_of_figures_and_groups() {
        let recorded: BTreeMap<String, [usize; 2]> = serde_json::from_str(RECORDED).expect("recorded scores");
        for (id, [within, scored]) in recorded {
            assert!(Figure::by_id(&id).is_some_and(|figures| figures.iter().all(|one| one.group.is_some())), "{id}");
            assert!(within <= scored && scored > 0, "{id}");
        }
    }
}
