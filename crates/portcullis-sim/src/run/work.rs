//! The works of runs. Synthetic ones have names and parameters, as on the command line: `rings:count=40,ring=256`.

use super::churn::{self, Churn};
use super::footprint::Replay;
use super::parameter::{ParameterInfo, WorkloadError, describe};
use super::rings::{self, Rings};
use super::server::ServerWork;
use super::workload::Workload;
use super::{RunError, SPAN_US_MAX};
use crate::machine::Machine;
use crate::traffic::{Kind, Traffic};
use portcullis::{PhysAddr, Segment};
use serde_json::Value;
use std::iter;

/// The work of a run.
#[derive(Clone)]
#[non_exhaustive]
pub enum Work {
    /// Replays a trace.
    Trace(Replay),
    /// Serves synthetic rings.
    Rings(Rings),
    /// Maps and unmaps in memory that other programs use too.
    Churn(Churn),
    /// Serves clients behind a network card.
    Server(ServerWork),
}

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
    pub(super) fn workload(&self) -> &dyn Workload {
        match self {
            Self::Trace(replay) => replay,
            Self::Rings(rings) => rings,
            Self::Churn(churn) => churn,
            Self::Server(work) => work,
        }
    }

    /// The trace that it replays, if it does.
    pub(crate) fn replay(&self) -> Option<&Replay> {
        if let Self::Trace(replay) = self { Some(replay) } else { None }
    }

    /// The number of virtual cores that it takes.
    pub fn cores(&self) -> usize {
        self.workload().cores()
    }

    /// The kind of device for which it is, on `machine`.
    pub fn traffic(&self, machine: &Machine) -> Traffic {
        self.kind(machine).traffic
    }

    /// What is known about that kind. For a trace, this looks through all of it.
    pub(crate) fn kind(&self, machine: &Machine) -> Kind {
        let known = machine.known_traffic().or_else(|| self.workload().looks());
        Kind { traffic: known.unwrap_or_default(), is_unknown: known.is_none() }
    }

    /// Whether it is a capture that has pages, but neither the lengths of buffers nor the devices.
    pub fn is_of_pages_alone(&self) -> bool {
        self.replay().is_some_and(Replay::is_of_pages_alone)
    }

    /// The most pages that it has mapped at once, including warm-up.
    pub fn live_pages_max(&self) -> u64 {
        self.workload().live_pages_max()
    }

    /// Whether its driver commits in two halves.
    pub(crate) fn commits_in_halves(&self) -> bool {
        self.workload().commits_in_halves()
    }

    /// Checks that virtual time is long enough for it.
    pub(super) fn check_span(&self) -> Result<(), RunError> {
        match self.replay().map_or(0, |replay| replay.trace.statistics.span_us) {
            span_us if span_us > SPAN_US_MAX => Err(RunError::Span(span_us)),
            _ => Ok(()),
        }
    }

    /// The physical memory of the host, for designs that map all of it: everything below the end of the highest
    /// buffer, and the rings of a network card.
    pub(super) fn memory(&self, machine: &Machine) -> Vec<Segment> {
        let end = self.workload().memory_end(machine);
        let below = Segment { phys: PhysAddr::new(0), len: end.next_multiple_of(1 << 30) };
        iter::once(below).chain(self.workload().ring_memory(machine)).collect()
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
        self.workload().parameters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
