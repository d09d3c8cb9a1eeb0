//! The parts of a document of `figures`.

use super::Setting;
use serde::Deserialize;

/// A document of `figures`.
#[derive(Deserialize)]
pub(crate) struct Figures {
    #[serde(flatten)]
    pub(crate) setting: Setting,
    pub(crate) full: bool,
    pub(crate) classes: Vec<Class>,
    pub(crate) papers: Vec<Paper>,
    pub(crate) figures: Vec<Figure>,
    pub(crate) points: Vec<Point>,
}

/// A class of numbers.
#[derive(Deserialize)]
pub(crate) struct Class {
    pub(crate) class: String,
    pub(crate) meaning: String,
}

/// A publication, with the ids of its figures.
#[derive(Deserialize)]
pub(crate) struct Paper {
    pub(crate) source: String,
    pub(crate) figures: Vec<String>,
    #[serde(flatten)]
    pub(crate) tally: Tally,
}

/// How many numbers there are of each kind, and how many are where they should be.
#[derive(Clone, Copy, Deserialize)]
pub(crate) struct Tally {
    pub(crate) scored: u64,
    pub(crate) within: u64,
    pub(crate) within_if_one: u64,
    pub(crate) zeros: u64,
    pub(crate) zeros_within: u64,
    pub(crate) shapes: u64,
    pub(crate) shapes_within: u64,
    pub(crate) calibrated: u64,
    pub(crate) inputs: u64,
    pub(crate) held: u64,
    pub(crate) held_within: u64,
}

impl Tally {
    /// Whether there is nothing to count.
    pub(crate) fn is_empty(&self) -> bool {
        self.scored + self.calibrated + self.inputs + self.held == 0
    }
}

/// A figure.
#[derive(Deserialize)]
pub(crate) struct Figure {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) source: String,
    pub(crate) no_such_hardware: bool,
    pub(crate) tally: Tally,
    pub(crate) findings: Vec<String>,
    pub(crate) tables: Vec<Grid>,
}

/// A table of numbers.
#[derive(Deserialize)]
pub(crate) struct Grid {
    pub(crate) title: String,
    pub(crate) quantity: String,
    pub(crate) across: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<GridRow>,
}

/// A row of a table.
#[derive(Deserialize)]
pub(crate) struct GridRow {
    pub(crate) name: String,
    pub(crate) values: Vec<Option<f64>>,
}

/// A number of a figure, and what it is compared with.
#[derive(Deserialize)]
pub(crate) struct Point {
    pub(crate) id: String,
    pub(crate) point: String,
    pub(crate) published: Option<f64>,
    /// `None` if a run could not be made.
    pub(crate) ours: Option<f64>,
    pub(crate) tolerance: Option<Tolerance>,
    pub(crate) within: Option<bool>,
    pub(crate) class: Option<String>,
    pub(crate) why: Option<String>,
}

impl Point {
    /// Whether it has this class.
    pub(crate) fn is_of(&self, class: &str) -> bool {
        self.class.as_deref() == Some(class)
    }

    /// Whether it is a shape, which is there or not and has no value.
    pub(crate) fn is_shape(&self) -> bool {
        self.is_of("S")
    }

    /// Whether it is out of the range in which it must lie.
    pub(crate) fn is_outside(&self) -> bool {
        self.within == Some(false)
    }
}

/// The range in which a number must lie.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Tolerance {
    AtLeast(f64),
    AtMost(f64),
    Between(f64, f64),
}

impl Tolerance {
    /// Both ends of the range.
    pub(crate) fn ends(self) -> [f64; 2] {
        match self {
            Self::AtLeast(least) => [least, f64::INFINITY],
            Self::AtMost(most) => [f64::NEG_INFINITY, most],
            Self::Between(least, most) => [least, most],
        }
    }
}
