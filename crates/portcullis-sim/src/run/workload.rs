//! Synthetic workloads by name, with their parameters, as the command line has them: `rings:count=40,ring=256`.

use super::Work;
use super::churn::{self, Churn};
use super::parameter::{ParameterInfo, WorkloadError, describe};
use super::rings::{self, Rings};
use serde_json::{Value, json};

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
