//! Published tables and figures made again by running what they are of, and some of our own.
//!
//! A figure is a file: the runs that it takes, the numbers that come of them, and what they are held against.

mod amit_2010;
mod ceiling;
mod contiguity;
mod point;
mod riommu_cycles;
mod runs;
mod thesis_prefetch;

pub use point::{Point, Tolerance};

use crate::machine::Machine;
use crate::run::RunError;
use portcullis_trace::{Trace, TraceError};
use runs::Bench;
use serde::Serialize;
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
    /// Whether it is of hardware that does not exist.
    pub is_hypothetical: bool,
    make: fn(&mut Bench<'_>) -> Result<Made, FigureError>,
}

/// What came of a figure.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Made {
    /// What was found, a sentence or a few each.
    pub findings: Vec<String>,
    /// The numbers as one looks at them.
    pub tables: Vec<Grid>,
    /// The same numbers one by one, with what they are held against.
    #[serde(skip)]
    pub points: Vec<Point>,
}

/// Numbers in rows and columns.
#[derive(Clone, Debug, Serialize)]
pub struct Grid {
    /// What they are of.
    pub title: String,
    /// What they say, with the unit.
    pub quantity: &'static str,
    /// What the columns are.
    pub across: &'static str,
    /// The columns.
    pub columns: Vec<String>,
    /// The rows, each with its name and a number for each column.
    pub rows: Vec<GridRow>,
}

/// A row.
#[derive(Clone, Debug, Serialize)]
pub struct GridRow {
    /// Its name.
    pub name: String,
    /// A number for each column, if there is one.
    pub values: Vec<Option<f64>>,
}

/// Why there is no figure.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FigureError {
    /// A trace could not be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A run ended early.
    #[error("{run}: {error}")]
    Run {
        /// Which.
        run: String,
        /// Why.
        error: RunError,
    },
}

/// Traces by their names, without the endings.
pub type Traces<'t> = &'t dyn Fn(&str) -> Result<Arc<Trace>, TraceError>;

impl Figure {
    /// Every figure.
    pub const ALL: &'static [Self] =
        &[thesis_prefetch::FIGURE, amit_2010::FIGURE, riommu_cycles::FIGURE, contiguity::FIGURE, ceiling::FIGURE];

    /// The figure called `id`.
    pub fn by_id(id: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|figure| figure.id == id)
    }

    /// Makes it, several runs at a time. `progress` is told of each run when it begins, and how many there are.
    ///
    /// # Errors
    /// A [`FigureError`].
    pub fn make(&self, traces: Traces<'_>, progress: &mut dyn FnMut(usize, &str)) -> Result<Made, FigureError> {
        let machine = Machine::by_id("cascadelake-cx5").expect("a machine");
        let mut made = (self.make)(&mut Bench::new(self.id, machine, traces, progress))?;
        made.points.iter_mut().for_each(|point| point.id = self.id);
        Ok(made)
    }
}
