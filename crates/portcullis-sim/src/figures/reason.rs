//! Why numbers are outside their class. The reasons stand beside the figures to which they belong.

use super::Figure;
use super::served::Length;

/// Why some numbers of a figure are outside their class, or what is known if the cause is not.
pub(super) struct Reason {
    /// The names of the numbers.
    points: &'static [&'static str],
    /// The runs in which they are outside. `None` stands for short and long ones.
    length: Option<Length>,
    why: &'static str,
}

impl Reason {
    /// A reason for these numbers.
    pub(super) const fn new(points: &'static [&'static str], why: &'static str) -> Self {
        Self { points, length: None, why }
    }

    /// The same, if they are outside in runs of one length only.
    pub(super) const fn only_in(length: Length, points: &'static [&'static str], why: &'static str) -> Self {
        Self { points, length: Some(length), why }
    }

    fn is_for(&self, length: Length) -> bool {
        self.length.is_none_or(|only| only == length)
    }
}

impl Figure {
    /// Why a number of this figure is outside its class in runs of this length.
    pub(super) fn why(&self, point: &str, length: Length) -> Option<&'static str> {
        let mut reasons = self.reasons.iter().filter(|reason| reason.is_for(length));
        reasons.find(|reason| reason.points.contains(&point)).map(|reason| reason.why)
    }
}

#[cfg(test)]
mod tests {
    use super::super::lab::Lab;
    use super::super::served::{MapCycles, Numbers};
    use super::super::{Make, Outcome, Plan, score};
    use super::*;
    use std::collections::BTreeSet;

    /// Numbers of a figure that have a class by which they are scored.
    fn scored(figure: &Figure, length: Length) -> BTreeSet<String> {
        let Make::FromRuns(draw) = figure.make else { return BTreeSet::new() };
        let made = draw(&Lab::new(length, &|_| Numbers::UNKNOWN));
        let scored = made.points.into_iter().filter(|point| point.class.is_some() && point.within.is_some());
        scored.map(|point| point.point).collect()
    }

    /// Which numbers are outside is known only from runs, and `figures --check` tells. How many are is recorded.
    #[test]
    fn each_number_that_is_recorded_as_outside_has_a_reason_and_no_other() {
        for length in [Length::Short, Length::Full] {
            for figure in Figure::all() {
                let scored = scored(figure, length);
                let reasons = figure.reasons.iter().filter(|reason| reason.is_for(length));
                let named: Vec<&str> = reasons.flat_map(|reason| reason.points).copied().collect();
                for point in &named {
                    assert!(scored.contains(*point), "{}: {point} is not a scored number", figure.id);
                    assert!(figure.why(point, length).is_some());
                }
                let distinct: BTreeSet<&&str> = named.iter().collect();
                assert_eq!(distinct.len(), named.len(), "{}: a number has two reasons", figure.id);
                let outside = score::recorded(figure.id, length).map_or(0, |[within, scored]| scored - within);
                assert_eq!(named.len(), outside, "{}: reasons, and numbers outside ({length:?})", figure.id);
            }
        }
    }

    #[test]
    fn a_reason_is_whole_sentences() {
        for (figure, reason) in Figure::all().flat_map(|figure| figure.reasons.iter().map(move |it| (figure, it))) {
            let why = reason.why;
            assert!(why.len() > 40 && why.ends_with('.') && !why.contains("  "), "{}: {why}", figure.id);
        }
    }

    #[test]
    fn what_is_outside_gets_its_reason_and_what_is_within_does_not() {
        const OF_MAP: &str = "map: cycles for the address";
        let plan = Plan::new(Figure::by_id("eiovar-table3").expect("a figure"), false);
        let drawn = |allocate| {
            let map = MapCycles { allocate, ..Numbers::UNKNOWN.map };
            let outcome = Outcome::Numbers(Numbers { map, ..Numbers::UNKNOWN });
            plan.draw(&vec![outcome; plan.pieces().len()]).remove(0).points
        };
        for (allocate, is_outside) in [(1555.0, true), (1103.0, false)] {
            for point in drawn(allocate) {
                let has_reason = is_outside && point.point == OF_MAP;
                assert_eq!(point.why.is_some(), has_reason, "{point:?}");
                assert_eq!(point.unexplained().is_some(), point.is_outside() && !has_reason, "{point:?}");
                assert!(point.is_outside() || point.point == OF_MAP, "{point:?}");
            }
        }
    }
}
