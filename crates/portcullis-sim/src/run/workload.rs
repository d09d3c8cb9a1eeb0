//! Synthetic workloads by name, with parameters as users write them: `rings:count=40,ring=256`.

use super::Work;
use super::churn::Churn;
use super::rings::Rings;
use std::ops::RangeInclusive;
use thiserror::Error;

/// A workload, for a list of them.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadInfo {
    /// The name on the command line.
    pub id: &'static str,
    /// What it does, and its parameters at their defaults.
    pub description: &'static str,
}

/// The workloads that [`Work::parse`] knows.
pub const WORKLOADS: &[WorkloadInfo] = &[
    WorkloadInfo {
        id: "rings",
        description: "receive rings, each served by a core of its own; rings:count=1,ring=256,burst=16,tx=0,pages=1,idle=0,operations=40000",
    },
    WorkloadInfo {
        id: "churn",
        description: "mappings of random lifetimes in memory that others use too, all unmapped at the end; churn:live=16384,cores=4,burst=16,background=0,operations=100000",
    },
];

/// A workload that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WorkloadError {
    /// No such workload.
    #[error("no workload `{0}`; there are: rings, churn")]
    Unknown(String),
    /// Not of the form `key=value`.
    #[error("`{0}` is not a parameter of the form key=value")]
    Form(String),
    /// No such parameter.
    #[error("the workload `{workload}` has no parameter `{key}`; it has {expected}")]
    Parameter {
        /// The workload.
        workload: &'static str,
        /// What was given.
        key: String,
        /// What it has.
        expected: &'static str,
    },
    /// More buffers than the simulated host has memory for.
    #[error("count × ring × pages is {pages} pages of buffers; expected at most {most}")]
    TooMany {
        /// Pages of all receive buffers together.
        pages: u64,
        /// The most that there may be.
        most: u64,
    },
    /// Not a number, or one out of bounds.
    #[error("`{key}={value}`: expected {expected}")]
    Value {
        /// The parameter.
        key: String,
        /// The value given.
        value: String,
        /// What it must be.
        expected: String,
    },
}

/// One parameter as it was written.
pub(super) struct Parameter<'t> {
    pub(super) key: &'t str,
    value: &'t str,
}

impl Work {
    /// Reads the name of a synthetic workload and its parameters, each of them optional: `rings`, `rings:count=40,ring=256`.
    ///
    /// # Errors
    /// A [`WorkloadError`].
    pub fn parse(text: &str) -> Result<Self, WorkloadError> {
        let (name, parameters) = text.split_once(':').unwrap_or((text, ""));
        match name {
            "rings" => Rings::parse(parameters).map(Self::Rings),
            "churn" => Churn::parse(parameters).map(Self::Churn),
            _ => Err(WorkloadError::Unknown(name.to_owned())),
        }
    }

    /// The parameters of synthetic work; null for a trace.
    pub fn parameters(&self) -> serde_json::Value {
        match self {
            Self::Trace(..) => serde_json::Value::Null,
            Self::Rings(rings) => serde_json::json!(rings),
            Self::Churn(churn) => serde_json::json!(churn),
        }
    }
}

/// The parameters in `text`.
pub(super) fn parameters(text: &str) -> impl Iterator<Item = Result<Parameter<'_>, WorkloadError>> {
    text.split(',').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').ok_or_else(|| WorkloadError::Form(pair.to_owned()))?;
        Ok(Parameter { key, value })
    })
}

impl Parameter<'_> {
    /// A whole number in `range`.
    pub(super) fn whole(&self, range: RangeInclusive<u64>) -> Result<u64, WorkloadError> {
        let number = self.value.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| self.refused(format!("a whole number from {} to {}", range.start(), range.end())))
    }

    /// A number in `range`.
    pub(super) fn share(&self, range: RangeInclusive<u32>) -> Result<f64, WorkloadError> {
        let bounds = f64::from(*range.start())..=f64::from(*range.end());
        let number = self.value.parse().ok().filter(|number| bounds.contains(number));
        number.ok_or_else(|| self.refused(format!("a number from {} to {}", range.start(), range.end())))
    }

    fn refused(&self, expected: String) -> WorkloadError {
        WorkloadError::Value { key: self.key.to_owned(), value: self.value.to_owned(), expected }
    }

    /// That the workload has no such parameter, but those.
    pub(super) fn unknown(&self, workload: &'static str, expected: &'static str) -> WorkloadError {
        WorkloadError::Parameter { workload, key: self.key.to_owned(), expected }
    }
}
