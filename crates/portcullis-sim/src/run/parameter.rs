//! The parameters of synthetic workloads in the form of the command line: `count=40,ring=256`.
//!
//! Each workload has one table of its parameters, by which they are parsed, explained, and named in errors.

use serde::Serialize;
use serde_json::{Value, json};
use std::fmt;
use std::ops::RangeInclusive;
use thiserror::Error;

/// The description of a parameter of a workload. The field names are JSON keys.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ParameterInfo {
    /// Its name.
    pub key: &'static str,
    /// Its default value.
    pub default: Value,
    /// Its allowed values, in words.
    pub expected: String,
    /// What it means.
    pub description: &'static str,
}

/// The most operations of synthetic work. A design with a long search for each address takes hours for them.
pub(super) const OPERATIONS_MAX: u64 = 10_000_000;

/// Why a text is not a workload.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// There is no such workload.
    #[error("no workload `{0}`; there are: rings, churn")]
    Unknown(String),
    /// The text is not of the form `key=value`.
    #[error("`{0}` is not a parameter of the form key=value")]
    Form(String),
    /// The workload has no such parameter.
    #[error("the workload `{workload}` has no parameter `{key}`; it has {expected}")]
    Parameter {
        /// The workload.
        workload: &'static str,
        /// The name that was given.
        key: String,
        /// The parameters that it has.
        expected: String,
    },
    /// A parameter is given more than once.
    #[error("`{0}` is given twice; expected each parameter once")]
    Twice(&'static str),
    /// The buffers need more memory than the simulated host has.
    #[error("count × ring × pages is {pages} pages of buffers; expected at most {most}")]
    TooMany {
        /// Pages of all receive buffers together.
        pages: u64,
        /// The most that there may be.
        most: u64,
    },
    /// The value is not a number, or is out of bounds.
    #[error("`{key}={value}`: expected {expected}")]
    Value {
        /// The parameter.
        key: String,
        /// The value given.
        value: String,
        /// The allowed values.
        expected: String,
    },
}

/// A parameter of the workload `W`. It is used to parse, to explain, and to report errors.
pub(super) struct Parameter<W> {
    pub(super) key: &'static str,
    pub(super) range: Range,
    pub(super) description: &'static str,
    /// Stores a value of the range.
    pub(super) set: fn(&mut W, f64),
}

/// The allowed values of a parameter.
pub(super) enum Range {
    /// A whole number in this range. A floating-point number represents it exactly.
    Whole(RangeInclusive<u64>),
    /// Any number in this range.
    Any(RangeInclusive<u32>),
}

impl Range {
    fn parse(&self, text: &str) -> Option<f64> {
        match self {
            Self::Whole(range) => {
                text.parse().ok().filter(|number| range.contains(number)).map(|number: u64| number as f64)
            }
            Self::Any(range) => {
                let bounds = f64::from(*range.start())..=f64::from(*range.end());
                text.parse().ok().filter(|number| bounds.contains(number))
            }
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(range) => write!(formatter, "a whole number from {} to {}", range.start(), range.end()),
            Self::Any(range) => write!(formatter, "a number from {} to {}", range.start(), range.end()),
        }
    }
}

/// Explains the parameters of a table.
pub(super) fn describe<W: Default + Serialize>(parameters: &[Parameter<W>]) -> Vec<ParameterInfo> {
    let defaults = json!(W::default());
    let info = |parameter: &Parameter<W>| ParameterInfo {
        key: parameter.key,
        default: defaults[parameter.key].clone(),
        expected: parameter.range.to_string(),
        description: parameter.description,
    };
    parameters.iter().map(info).collect()
}

/// Parses `key=value,key=value`. Parameters that are not given have their defaults.
pub(super) fn parse<W: Default>(
    workload: &'static str,
    parameters: &[Parameter<W>],
    text: &str,
) -> Result<W, WorkloadError> {
    let mut work = W::default();
    let mut given = Vec::new();
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').ok_or_else(|| WorkloadError::Form(pair.to_owned()))?;
        let Some(parameter) = parameters.iter().find(|parameter| parameter.key == key) else {
            let expected = parameters.iter().map(|parameter| parameter.key).collect::<Vec<_>>().join(", ");
            return Err(WorkloadError::Parameter { workload, key: key.to_owned(), expected });
        };
        if given.contains(&parameter.key) {
            return Err(WorkloadError::Twice(parameter.key));
        }
        given.push(parameter.key);
        let refused = || WorkloadError::Value {
            key: key.to_owned(),
            value: value.to_owned(),
            expected: parameter.range.to_string(),
        };
        (parameter.set)(&mut work, parameter.range.parse(value).ok_or_else(refused)?);
    }
    Ok(work)
}
