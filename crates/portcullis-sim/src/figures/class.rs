//! How near a number must be to the published one, by the kind of the number.
//!
//! The class of a number is chosen before its figure is made for the first time, and does not change afterwards.

use super::Tolerance;
use serde::{Deserialize, Serialize};

/// The class of a number of the laboratory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Class {
    /// Cycles per packet: within 15 %.
    R15,
    /// Ratios, rates and other costs: within 25 %.
    R25,
    /// Counts: within a factor of 2.
    C2,
    /// Lengths of searches under strict protection: within a factor of 4. The papers themselves differ by a factor of
    /// 2 for one run.
    C4,
    /// Published below .06, so ours must be at most .06.
    Z,
    /// A shape, such as an order or a trend. 1 if it is there, otherwise 0.
    S,
    /// The model is calibrated with the published number, so agreement shows nothing.
    #[serde(rename = "cal")]
    Cal,
    /// The published number is an input of the model, or its quantity is, from another table. So agreement shows
    /// nothing.
    #[serde(rename = "input")]
    Input,
}

/// The most that still counts as nothing.
const NOTHING: f64 = 0.06;

impl Class {
    /// The name in tables and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::R15 => "R15",
            Self::R25 => "R25",
            Self::C2 => "C2",
            Self::C4 => "C4",
            Self::Z => "Z",
            Self::S => "S",
            Self::Cal => "cal",
            Self::Input => "input",
        }
    }

    /// Every class.
    pub const ALL: [Self; 8] = [Self::R15, Self::R25, Self::C2, Self::C4, Self::Z, Self::S, Self::Cal, Self::Input];

    /// What it is for, and how near a number must be.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::R15 => "cycles per packet, and others that vary as little: within 15 %",
            Self::R25 => "ratios, rates and other costs: within 25 %",
            Self::C2 => "counts: within a factor of 2",
            Self::C4 => "searches under strict protection, for which papers differ by 2: within a factor of 4",
            Self::Z => "published below .06: at most .06",
            Self::S => "a shape, such as an order or a trend: there or not",
            Self::Cal => "the model is calibrated with the published number: not scored",
            Self::Input => "an input of the model: not scored",
        }
    }

    /// The range in which a number must lie. `None` if agreement shows nothing.
    pub fn tolerance(self, published: f64) -> Option<Tolerance> {
        let part = |part: f64| Tolerance::Between(published * (1.0 - part), published * (1.0 + part));
        let factor = |factor: f64| Tolerance::Between(published / factor, published * factor);
        match self {
            Self::R15 => Some(part(0.15)),
            Self::R25 => Some(part(0.25)),
            Self::C2 => Some(factor(2.0)),
            Self::C4 => Some(factor(4.0)),
            Self::Z => Some(Tolerance::AtMost(NOTHING)),
            Self::S => Some(Tolerance::AtLeast(1.0)),
            Self::Cal | Self::Input => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_its_limits() {
        let holds = |class: Class, published, ours| class.tolerance(published).expect("scored").holds(ours);
        for (class, published, inside, outside) in [
            (Class::R15, 100.0, [85.1, 114.9], [84.9, 115.1]),
            (Class::R25, 100.0, [75.1, 124.9], [74.9, 125.1]),
            (Class::C2, 100.0, [50.0, 200.0], [49.9, 200.1]),
            (Class::C4, 100.0, [25.0, 400.0], [24.9, 400.1]),
            (Class::Z, 0.0, [0.0, 0.06], [0.061, f64::NAN]),
            (Class::S, 1.0, [1.0, 1.0], [0.0, f64::NAN]),
        ] {
            assert!(inside.iter().all(|ours| holds(class, published, *ours)), "{class:?}");
            assert!(!outside.iter().any(|ours| holds(class, published, *ours)), "{class:?}");
        }
        assert_eq!([Class::Cal, Class::Input].map(|class| class.tolerance(1.0)), [None, None]);
        for class in [Class::R15, Class::C4, Class::Z, Class::Cal, Class::Input] {
            assert_eq!(serde_json::to_value(class).expect("a name"), class.name());
        }
    }
}
