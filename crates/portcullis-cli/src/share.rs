//! A share of the runs of some figures.

use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};

/// The share `number` of `count` equal ones, from 1 on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Share {
    pub(crate) number: usize,
    pub(crate) count: usize,
}

impl Share {
    /// Reads `number/count`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (number, count) = text.split_once('/')?;
        let (number, count) = (number.parse().ok()?, count.parse().ok()?);
        Some(Self { number, count }).filter(Self::is_sound)
    }

    /// Whether there is such a share.
    pub(crate) fn is_sound(&self) -> bool {
        (1..=self.count).contains(&self.number)
    }

    /// The runs of this share, of so many.
    pub(crate) fn of(self, runs: usize) -> Vec<usize> {
        (0..runs).filter(|run| self.has(*run)).collect()
    }

    /// Whether this run is one of the share.
    pub(crate) fn has(self, run: usize) -> bool {
        run % self.count == self.number - 1
    }
}

impl Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.count)
    }
}
