//! Which pieces of work some figures take, and the figures made from the results.
//!
//! Pieces are independent: any of them can be made anywhere, in any order. The figures are the same in the end.

use super::lab::Lab;
use super::served::{Length, Numbers, ServedRun};
use super::{Figure, FigureError, Made, Make, Point, Traces};
use crate::parallel;
use crate::run::LabDesign;
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::HashMap;

/// A piece of work.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Piece {
    /// A whole figure.
    Figure(String),
    /// A run that figures share.
    Run(ServedRun),
}

/// The result of a piece of work.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "nearly all are numbers")]
pub enum Outcome {
    /// A whole figure.
    Figure {
        /// What was made.
        made: Made,
        /// Its points.
        points: Vec<Point>,
    },
    /// The numbers of a run.
    Numbers(Numbers),
    /// The run could not be made, for this reason.
    Refused(String),
}

/// Figures to make, and the pieces of work that they take. Each piece is there once.
pub struct Plan {
    figures: Vec<&'static Figure>,
    length: Length,
    pieces: Vec<Piece>,
}

impl Plan {
    /// The plan of these figures. `is_full` stands for long runs.
    pub fn new(figures: Vec<&'static Figure>, is_full: bool) -> Self {
        let length = if is_full { Length::Full } else { Length::Short };
        let pieces = RefCell::new(Vec::new());
        let add = |piece: Piece| {
            if !pieces.borrow().contains(&piece) {
                pieces.borrow_mut().push(piece);
            }
        };
        let ask = |run: &ServedRun| {
            add(Piece::Run(run.clone()));
            Numbers::UNKNOWN
        };
        for figure in &figures {
            match figure.make {
                Make::Whole(_) => add(Piece::Figure(figure.id.to_owned())),
                Make::FromRuns(draw) => drop(draw(&Lab::new(length, &ask))),
            }
        }
        let pieces = pieces.into_inner();
        Self { figures, length, pieces }
    }

    /// The figures.
    pub fn figures(&self) -> &[&'static Figure] {
        &self.figures
    }

    /// How long the runs are.
    pub(super) fn length(&self) -> Length {
        self.length
    }

    /// Whether the runs are long.
    pub fn is_full(&self) -> bool {
        self.length == Length::Full
    }

    /// The pieces of work, in an order that depends on the figures alone.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Makes some of the pieces, each given by its place, and returns the results in their order. Figures that show all
    /// designs show `designs`. When a run begins,
    /// calls `progress` with the number of runs of this kind and the name of this run.
    ///
    /// # Errors
    /// Fails if a trace cannot be read, or if a run of a whole figure ends early.
    ///
    /// # Panics
    /// If there is no such piece.
    pub fn make(
        &self,
        places: &[usize],
        designs: &[LabDesign],
        traces: Traces<'_>,
        progress: &mut dyn FnMut(usize, &str),
    ) -> Result<Vec<Outcome>, FigureError> {
        let runs: Vec<&ServedRun> = places.iter().filter_map(|place| self.pieces[*place].run()).collect();
        let make = |run: &&ServedRun| run.make().map_or_else(Outcome::Refused, Outcome::Numbers);
        let made = parallel::each(&runs, make, |run| progress(runs.len(), &run.label()));
        let mut made = made.into_iter();
        let outcome = |place: &usize| match &self.pieces[*place] {
            Piece::Run(_) => Ok(made.next().expect("as many as runs")),
            Piece::Figure(id) => {
                let figure = self.figures.iter().find(|figure| figure.id == *id).expect("one of the plan");
                figure
                    .whole(designs, traces, progress)
                    .map(|made| Outcome::Figure { points: made.points.clone(), made })
            }
        };
        places.iter().map(outcome).collect()
    }

    /// Makes the figures from the results of all pieces, in the order of [`pieces`](Self::pieces).
    ///
    /// # Panics
    /// If a result is missing, or is not one of its piece.
    pub fn draw(&self, outcomes: &[Outcome]) -> Vec<Made> {
        assert_eq!(outcomes.len(), self.pieces.len(), "a result for each piece");
        let by_piece: HashMap<&Piece, &Outcome> = self.pieces.iter().zip(outcomes).collect();
        self.figures.iter().map(|figure| self.draw_one(figure, &by_piece)).collect()
    }

    fn draw_one(&self, figure: &'static Figure, outcomes: &HashMap<&Piece, &Outcome>) -> Made {
        let mut made = match figure.make {
            Make::Whole(_) => match outcomes.get(&Piece::Figure(figure.id.to_owned())) {
                Some(Outcome::Figure { made, points }) => Made { points: points.clone(), ..made.clone() },
                other => panic!("{}: {other:?} is not a figure", figure.id),
            },
            Make::FromRuns(draw) => {
                let refused = RefCell::new(Vec::<String>::new());
                let of = |run: &ServedRun| match outcomes.get(&Piece::Run(run.clone())) {
                    Some(Outcome::Numbers(numbers)) => *numbers,
                    Some(Outcome::Refused(reason)) => {
                        refused.borrow_mut().push(format!("Not made: {}: {reason}", run.label()));
                        Numbers::UNKNOWN
                    }
                    other => panic!("{}: {other:?} is not the result of {run:?}", figure.id),
                };
                let mut made = draw(&Lab::new(self.length, &of));
                made.findings.extend(refused.into_inner());
                made
            }
        };
        for point in &mut made.points {
            point.id = figure.id.into();
            let why = point.is_outside().then(|| figure.why(&point.point, self.length)).flatten();
            point.why = why.map(Into::into);
        }
        made
    }
}

impl Piece {
    fn run(&self) -> Option<&ServedRun> {
        match self {
            Self::Run(run) => Some(run),
            Self::Figure(_) => None,
        }
    }
}

impl Outcome {
    /// Whether it is a result of this kind of piece.
    pub fn is_of(&self, piece: &Piece) -> bool {
        matches!(piece, Piece::Figure(_)) == matches!(self, Self::Figure { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(ids: &[&str]) -> Plan {
        Plan::new(ids.iter().flat_map(|id| Figure::by_id(id).expect("a figure")).collect(), false)
    }

    #[test]
    fn equal_runs_are_made_once() {
        let pieces = |ids: &[&str]| plan(ids).pieces().len();
        assert_eq!(pieces(&["eiovar-fig4", "eiovar-fig5", "eiovar-fig6"]), pieces(&["eiovar-fig4"]));
        assert_eq!(pieces(&["eiovar-fig10", "eiovar-table2"]), pieces(&["eiovar-fig10"]));
        assert_eq!(pieces(&["eiovar-fig3"]) + pieces(&["eiovar-fig9"]), pieces(&["eiovar-fig3", "eiovar-fig9"]));
        assert_eq!((pieces(&["eiovar-fig9"]), pieces(&["ceiling", "eiovar-fig9"])), (3, 4));
    }

    /// Every figure of the laboratory can be drawn when none of its runs could be made: nothing is within its class.
    #[test]
    fn without_runs_no_number_is_within_its_class() {
        let plan = plan(Figure::GROUPS);
        let outcomes = vec![Outcome::Refused("no reason".to_owned()); plan.pieces().len()];
        for (figure, made) in plan.figures().iter().zip(plan.draw(&outcomes)) {
            // Figures of long runs alone say that.
            let is_made = !made.points.is_empty() && made.findings.iter().all(|it| it.ends_with(": no reason"));
            assert!(is_made || made.findings.iter().any(|it| it.contains("--full")), "{}", figure.id);
            for point in made.points {
                assert_eq!(point.id, figure.id, "{point:?}");
                // What has no class is printed and never scored.
                assert!(point.class.is_some() || point.within.is_none(), "{point:?}");
                assert_ne!(point.within, Some(true), "{point:?}");
            }
        }
    }

    #[test]
    fn a_run_that_cannot_be_made_is_a_result() {
        let mut plan = plan(&["eiovar-fig3"]);
        let Piece::Run(run) = &mut plan.pieces[0] else { panic!("a run") };
        run.workload = "netperf-nothing".to_owned();
        let mut names = Vec::new();
        let outcomes = plan.make(&[0], &[], &|_| unreachable!(), &mut |runs, name| names.push((runs, name.to_owned())));
        assert!(matches!(&outcomes.expect("results")[..], [Outcome::Refused(reason)] if reason.contains("`netperf-")));
        assert_eq!(names, [(1, "r210-cx3 netperf-nothing stock strict".to_owned())]);
    }
}
