//! Synthetic workloads by name, with parameters in the form of the command line: `rings:count=40,ring=256`.

use super::Work;
use super::churn::{self, Churn};
use super::rings::{self, Rings};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt;
use std::ops::RangeInclusive;
use thiserror::Error;

/// The description of a workload.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadInfo {
    /// The name on the command line.
    pub id: &'static str,
    /// What it does.
    pub description: &'static str,
    parameters: fn() -> Vec<ParameterInfo>,
}

impl WorkloadInfo {
    /// Its parameters.
    pub fn parameters(&self) -> Vec<ParameterInfo> {
        (self.parameters)()
    }
}

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

/// The workloads that [`Work::parse`] knows.
pub const WORKLOADS: &[WorkloadInfo] = &[
    WorkloadInfo {
        id: rings::ID,
        description: "receive rings, each served by a core of its own, all in one domain",
        parameters: || describe(rings::PARAMETERS),
    },
    WorkloadInfo {
        id: churn::ID,
        description: "mappings of random lifetimes in memory that others use too, all unmapped at the end",
        parameters: || describe(churn::PARAMETERS),
    },
];

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

fn describe<W: Default + Serialize>(parameters: &[Parameter<W>]) -> Vec<ParameterInfo> {
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

impl Work {
    /// Whether its driver commits in two halves.
    pub(crate) fn commits_in_halves(&self) -> bool {
        matches!(self, Self::Rings(Rings { halves: true, .. }) | Self::Server(super::ServerWork { halves: true, .. }))
    }

    /// Parses the name of a synthetic workload and its parameters, which are optional: `rings`,
    /// `rings:count=40,ring=256`.
    ///
    /// # Errors
    /// Returns a [`WorkloadError`] if there is no such workload or parameter, or if a value is out of bounds.
    pub fn parse(text: &str) -> Result<Self, WorkloadError> {
        let (name, parameters) = text.split_once(':').unwrap_or((text, ""));
        match name {
            rings::ID => Rings::parse(parameters).map(Self::Rings),
            churn::ID => Churn::parse(parameters).map(Self::Churn),
            _ => Err(WorkloadError::Unknown(name.to_owned())),
        }
    }

    /// The parameters of synthetic work; `null` for a trace.
    pub fn parameters(&self) -> Value {
        match self {
            Self::Trace(..) => Value::Null,
            Self::Rings(rings) => json!(rings),
            Self::Churn(churn) => json!(churn),
            Self::Server(_) => Value::Null,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_is_read_and_explained() {
        for info in WORKLOADS {
            let defaults = Work::parse(info.id).expect("a workload").parameters();
            let parameters = info.parameters();
            assert_eq!(defaults.as_object().map(serde_json::Map::len), Some(parameters.len()), "{}", info.id);
            for ParameterInfo { key, default, expected, description } in parameters {
                assert_eq!(defaults[key], default);
                assert!(default.is_number() && !description.is_empty(), "{key}");
                let least = expected.split_whitespace().rev().nth(2).expect("a lower bound");
                let other = if default == json!(1) { "2" } else { least };
                let changed = Work::parse(&format!("{}:{key}={other}", info.id)).map(|work| work.parameters());
                assert_eq!(changed.map(|all| all[key].as_f64()), Ok(other.parse().ok()), "{key}");
            }
        }
    }
}
