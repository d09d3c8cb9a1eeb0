//! Published tables and figures, reproduced by running their subject, and some of our own.
//!
//! Each figure is a file: its runs, the numbers that result, and the numbers with which they are compared. Some make
//! their runs themselves (`runs`). Those of the laboratory say which runs they need (`lab`), so that the runs can be
//! shared and made apart (`plan`).

mod amit_2010;
mod atc15;
mod ceiling;
mod class;
mod contiguity;
mod eiovar;
mod fands;
mod lab;
mod number_or_null;
mod plan;
mod point;
mod reason;
mod riommu;
mod riommu_cycles;
mod runs;
mod scaling;
mod score;
mod served;
mod shape;
mod tally;
mod thesis_prefetch;
mod tolerance;

pub use class::Class;
pub use plan::{Outcome, Piece, Plan};
pub use point::Point;
pub use score::{Score, scores, unrecorded};
pub use served::{
    CallNumbers, Length, ListNumbers, MapCycles, Numbers, ServedRun, SharedNumbers, StreamNumbers, UnmapCycles,
};
pub use tally::{Paper, Tally, papers};
pub use tolerance::Tolerance;

use crate::machine::Machine;
use crate::run::{LabDesign, RunError};
use lab::Lab;
use portcullis_trace::{Trace, TraceError};
use reason::Reason;
use runs::Bench;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use thiserror::Error;

/// A figure that can be made.
pub struct Figure {
    /// The name on the command line and in JSON.
    pub id: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// Where it was published.
    pub source: &'static str,
    /// Whether it concerns hardware that does not exist.
    pub is_hypothetical: bool,
    /// The name of all figures of the same publication together, if its figures have one.
    pub group: Option<&'static str>,
    /// Why some of its numbers are outside their class.
    reasons: &'static [Reason],
    make: Make,
}

/// How a figure is made.
#[derive(Clone, Copy)]
enum Make {
    /// It makes its own runs.
    Whole(fn(&mut Bench<'_>) -> Result<Made, FigureError>),
    /// It is drawn from runs of the laboratory.
    FromRuns(fn(&Lab<'_>) -> Made),
}

/// The results of a figure.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Made {
    /// The findings, each of one or a few sentences.
    pub findings: Vec<String>,
    /// The numbers as tables.
    pub tables: Vec<Grid>,
    /// The same numbers one by one, with what they are compared with.
    #[serde(skip)]
    pub points: Vec<Point>,
}

/// Numbers in rows and columns.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Grid {
    /// What the numbers concern.
    pub title: String,
    /// The quantity, with its unit. It may be the title.
    pub quantity: String,
    /// What the columns stand for.
    pub across: String,
    /// The columns.
    pub columns: Vec<String>,
    /// The rows, each with its name and a number for each column.
    pub rows: Vec<GridRow>,
}

/// A row of a grid.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GridRow {
    /// Its name.
    pub name: String,
    /// The number for each column, if there is one.
    pub values: Vec<Option<f64>>,
}

/// Why a figure could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FigureError {
    /// A trace could not be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A run ended early.
    #[error("{run}: {error}")]
    Run {
        /// The name of the run.
        run: String,
        /// The error of the run.
        error: RunError,
    },
}

/// Reads a trace by its name, without the file name ending.
pub type Traces<'t> = &'t dyn Fn(&str) -> Result<Arc<Trace>, TraceError>;

impl Grid {
    /// A grid of numbers. Those that are not numbers are left out.
    fn of(title: &str, quantity: &str, across: &str, columns: &[&str], rows: &[(&str, Vec<f64>)]) -> Self {
        let known = |value: &f64| Some(*value).filter(|value| !value.is_nan());
        let row = |(name, values): &(&str, Vec<f64>)| GridRow {
            name: (*name).to_owned(),
            values: values.iter().map(known).collect(),
        };
        Self {
            title: title.to_owned(),
            quantity: quantity.to_owned(),
            across: across.to_owned(),
            columns: columns.iter().map(|column| (*column).to_owned()).collect(),
            rows: rows.iter().map(row).collect(),
        }
    }
}

/// Figures that make their own runs.
const WHOLE: [Figure; 5] =
    [thesis_prefetch::FIGURE, amit_2010::FIGURE, riommu_cycles::FIGURE, contiguity::FIGURE, ceiling::FIGURE];

impl Figure {
    /// Every group of figures.
    pub const GROUPS: &'static [&'static str] = &["eiovar", "riommu", "fands", "atc15"];

    /// What all figures of the laboratory have in common.
    const OF_LABORATORY: Self = Self {
        id: "",
        title: "",
        source: "",
        is_hypothetical: false,
        group: None,
        reasons: &[],
        make: Make::FromRuns(|_| Made::default()),
    };

    /// Every figure.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        const OWN: [Figure; 1] = [scaling::FIGURE];
        const ALL: [&[Figure]; 6] =
            [&WHOLE, &eiovar::FIGURES, &riommu::FIGURES, &fands::FIGURES, &atc15::FIGURES, &OWN];
        ALL.into_iter().flatten()
    }

    /// The figures of a group.
    pub fn group(group: &str) -> impl Iterator<Item = &'static Self> {
        Self::all().filter(move |figure| figure.group == Some(group))
    }

    /// The figure called `id`, or all figures of the group called so.
    pub fn by_id(id: &str) -> Option<Vec<&'static Self>> {
        let found: Vec<_> = Self::all().filter(|figure| figure.id == id || figure.group == Some(id)).collect();
        (!found.is_empty()).then_some(found)
    }

    /// Makes a figure that makes its own runs, several at a time.
    fn whole(
        &self,
        designs: &[LabDesign],
        traces: Traces<'_>,
        progress: &mut dyn FnMut(usize, &str),
    ) -> Result<Made, FigureError> {
        let Make::Whole(make) = self.make else { panic!("{} is drawn from runs", self.id) };
        let machine = Machine::by_id("cascadelake-cx5").expect("a machine");
        make(&mut Bench::new(self.id, machine, designs, traces, progress))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_figure_has_its_own_name_and_belongs_to_a_known_group() {
        let ids: BTreeSet<&str> = Figure::all().map(|figure| figure.id).chain(Figure::GROUPS.iter().copied()).collect();
        assert_eq!(ids.len(), Figure::all().count() + Figure::GROUPS.len());
        for figure in Figure::all() {
            assert!(figure.group.is_none_or(|group| Figure::GROUPS.contains(&group)), "{}", figure.id);
            assert!(!figure.id.is_empty() && !figure.title.is_empty() && !figure.source.is_empty(), "{}", figure.id);
        }
        assert_eq!(Figure::by_id("eiovar").map(|all| all.len()), Some(eiovar::FIGURES.len()));
        assert!(Figure::by_id("eiovar-fig").is_none());
    }
}
