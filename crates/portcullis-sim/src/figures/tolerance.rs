//! The tolerance of a number.

use serde::{Deserialize, Serialize};

/// The range in which a number must lie.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tolerance {
    /// This value or more.
    AtLeast(f64),
    /// This value or less.
    AtMost(f64),
    /// From the first value to the second.
    Between(f64, f64),
}

impl Tolerance {
    /// Whether `ours` lies in the range.
    pub fn holds(self, ours: f64) -> bool {
        match self {
            Self::AtLeast(least) => ours >= least,
            Self::AtMost(most) => ours <= most,
            Self::Between(least, most) => (least..=most).contains(&ours),
        }
    }
}
