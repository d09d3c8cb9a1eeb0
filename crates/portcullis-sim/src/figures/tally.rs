//! The numbers of figures, counted by what they show.

use super::{Class, Made, Plan, Point};
use serde::Serialize;
use std::ops::AddAssign;

/// How many numbers there are of each kind, and how many are where they should be.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Tally {
    /// Numbers that have a class by which they are scored.
    pub scored: usize,
    /// Those within their class.
    pub within: usize,
    /// How many would be within their class if every number were 1, as if nothing made a difference. No shape would be
    /// there then.
    pub within_if_one: usize,
    /// The scored numbers that were published as nothing.
    pub zeros: usize,
    /// Those within their class.
    pub zeros_within: usize,
    /// The scored numbers that are shapes.
    pub shapes: usize,
    /// Those that are there.
    pub shapes_within: usize,
    /// Numbers with which the model was calibrated. They are not scored.
    pub calibrated: usize,
    /// Numbers that are inputs of the model. They are not scored.
    pub inputs: usize,
    /// Numbers that have a tolerance and no class. They are not scored.
    pub held: usize,
    /// Those within their tolerance.
    pub held_within: usize,
}

impl Tally {
    fn of(points: &[Point]) -> Self {
        let mut tally = Self::default();
        points.iter().for_each(|point| tally += Self::of_one(point));
        tally
    }

    fn of_one(point: &Point) -> Self {
        let is = |class| usize::from(point.class == Some(class));
        let (calibrated, inputs) = (is(Class::Cal), is(Class::Input));
        let within = usize::from(point.within == Some(true));
        let unscored = Self { calibrated, inputs, ..Self::default() };
        match (point.class, point.tolerance) {
            (Some(class), Some(tolerance)) => Self {
                scored: 1,
                within,
                within_if_one: usize::from(class != Class::S && tolerance.holds(1.0)),
                zeros: is(Class::Z),
                zeros_within: is(Class::Z) * within,
                shapes: is(Class::S),
                shapes_within: is(Class::S) * within,
                ..unscored
            },
            (None, Some(_)) => Self { held: 1, held_within: within, ..unscored },
            (_, None) => unscored,
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        for (sum, more) in [
            (&mut self.scored, other.scored),
            (&mut self.within, other.within),
            (&mut self.within_if_one, other.within_if_one),
            (&mut self.zeros, other.zeros),
            (&mut self.zeros_within, other.zeros_within),
            (&mut self.shapes, other.shapes),
            (&mut self.shapes_within, other.shapes_within),
            (&mut self.calibrated, other.calibrated),
            (&mut self.inputs, other.inputs),
            (&mut self.held, other.held),
            (&mut self.held_within, other.held_within),
        ] {
            *sum += more;
        }
    }
}

impl Made {
    /// The numbers of this figure, counted.
    pub fn tally(&self) -> Tally {
        Tally::of(&self.points)
    }
}

/// The figures of a plan that come from one publication.
#[derive(Clone, Debug, Serialize)]
pub struct Paper {
    /// The publication.
    pub source: &'static str,
    /// The ids of its figures in the plan.
    pub figures: Vec<&'static str>,
    /// All their numbers.
    #[serde(flatten)]
    pub tally: Tally,
}

/// The publications from which the figures of a plan come, in the order of the figures.
pub fn papers(plan: &Plan, made: &[Made]) -> Vec<Paper> {
    let mut papers: Vec<Paper> = Vec::new();
    for (figure, made) in plan.figures().iter().zip(made) {
        let paper = match papers.iter_mut().find(|paper| paper.source == figure.source) {
            Some(paper) => paper,
            None => {
                papers.push(Paper { source: figure.source, figures: Vec::new(), tally: Tally::default() });
                papers.last_mut().expect("the new one")
            }
        };
        paper.figures.push(figure.id);
        paper.tally += made.tally();
    }
    papers
}

#[cfg(test)]
mod tests {
    use super::super::Figure;
    use super::*;

    #[test]
    fn each_kind_of_number_is_counted_apart() {
        let points = [
            Point::of(Class::R25, "near one, and within", 1.1, 1.2),
            Point::of(Class::R25, "outside", 4.0, 9.0),
            Point::of(Class::Z, "nothing", 0.0, 0.01),
            Point::of(Class::Z, "something", 0.0, 0.5),
            Point::shape("there", true),
            Point::shape("not there", false),
            Point::of(Class::Cal, "calibrated", 1.0, 1.0),
            Point::of(Class::Input, "given", 1.0, 1.0),
            Point::new("held", 3.0).held(super::super::Tolerance::AtLeast(2.0)),
            Point::new("shown", 3.0).beside(2.0),
        ];
        let expected = Tally {
            scored: 6,
            within: 3,
            within_if_one: 1,
            zeros: 2,
            zeros_within: 1,
            shapes: 2,
            shapes_within: 1,
            calibrated: 1,
            inputs: 1,
            held: 1,
            held_within: 1,
        };
        assert_eq!(Tally::of(&points), expected);
        let mut twice = expected;
        twice += expected;
        assert_eq!(twice, Tally::of(&[points.clone(), points].concat()));
    }

    #[test]
    fn a_paper_has_all_numbers_of_its_figures() {
        let ids = ["eiovar-fig3", "atc15-fig1", "eiovar-fig9"];
        let plan = Plan::new(ids.iter().flat_map(|id| Figure::by_id(id).expect("a figure")).collect(), false);
        let one = |point| Made { points: vec![point], ..Made::default() };
        let made = [
            one(Point::shape("there", true)),
            one(Point::of(Class::R25, "a ratio", 1.0, 1.0)),
            one(Point::of(Class::Z, "nothing", 0.0, 1.0)),
        ];
        let papers = papers(&plan, &made);
        let figures: Vec<&[&str]> = papers.iter().map(|paper| &paper.figures[..]).collect();
        assert_eq!(figures, [&["eiovar-fig3", "eiovar-fig9"][..], &["atc15-fig1"]]);
        let tally = |at: usize| papers[at].tally;
        assert_eq!((tally(0).scored, tally(0).within, tally(0).zeros, tally(0).shapes), (2, 1, 1, 1));
        assert_eq!((tally(1).scored, tally(1).within, tally(1).within_if_one), (1, 1, 1));
    }
}
