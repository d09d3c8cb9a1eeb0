//! Published tables and figures, reproduced by running their subject, and some of our own.
//!
//! Each figure is a file: its runs, the numbers that result, and the numbers with which they are compared.

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
    /// Whether it concerns hardware that does not exist.
    pub is_hypothetical: bool,
    make: fn(&mut Bench<'_>) -> Result<Made, FigureError>,
}

/// The results of a figure.
#[derive(Clone, Debug, Default, Serialize)]
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
#[derive(Clone, Debug, Serialize)]
pub struct Grid {
    /// What the numbers concern.
    pub title: String,
    /// The quantity, with its unit.
    pub quantity: &'static str,
    /// What the columns stand for.
    pub across: &'static str,
    /// The columns.
    pub columns: Vec<String>,
    /// The rows, each with its name and a number for each column.
    pub rows: Vec<GridRow>,
}

/// A row of a grid.
#[derive(Clone, Debug, Serialize)]
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

impl Figure {
    /// Every figure.
    pub const ALL: &'static [Self] =
        &[thesis_prefetch::FIGURE, amit_2010::FIGURE, riommu_cycles::FIGURE, contiguity::FIGURE, ceiling::FIGURE];

    /// The figure called `id`.
    pub fn by_id(id: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|figure| figure.id == id)
    }

    /// Makes the figure, several runs at a time. When a run begins, calls `progress` with the number of runs and the
    /// name of this run.
    ///
    /// # Errors
    /// Fails if a trace cannot be read, or if a run ends early.
    pub fn make(&self, traces: Traces<'_>, progress: &mut dyn FnMut(usize, &str)) -> Result<Made, FigureError> {
        let machine = Machine::by_id("cascadelake-cx5").expect("a machine");
        let mut made = (self.make)(&mut Bench::new(self.id, machine, traces, progress))?;
        made.points.iter_mut().for_each(|point| point.id = self.id);
        Ok(made)
    }
}
