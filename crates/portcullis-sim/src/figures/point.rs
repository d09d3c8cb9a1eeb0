//! A number of a figure, and what it is held against.

use serde::Serialize;

/// What a number must be.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tolerance {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
    /// From the first to the second.
    Between(f64, f64),
}

impl Tolerance {
    /// Whether `ours` is such a number.
    pub fn holds(self, ours: f64) -> bool {
        match self {
            Self::AtLeast(least) => ours >= least,
            Self::AtMost(most) => ours <= most,
            Self::Between(least, most) => (least..=most).contains(&ours),
        }
    }
}

/// A number of a figure.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// Of which figure.
    pub id: &'static str,
    /// Which of its numbers.
    pub point: String,
    /// What was published, in the same unit; none where only a shape was, or nothing.
    pub published: Option<f64>,
    /// What came of the runs.
    pub ours: f64,
    /// What it must be; none where it is only shown.
    pub tolerance: Option<Tolerance>,
    /// Whether it is that.
    pub within: Option<bool>,
    /// Whether the model was set by the published number, so that the agreement shows nothing.
    pub calibration: bool,
}

impl Point {
    /// A number that is only shown.
    pub(super) fn new(point: impl Into<String>, ours: f64) -> Self {
        let (id, point) = ("", point.into());
        Self { id, point, published: None, ours, tolerance: None, within: None, calibration: false }
    }

    /// Beside what was published.
    pub(super) fn beside(self, published: f64) -> Self {
        Self { published: Some(published), ..self }
    }

    /// Held against `tolerance`, if there is one.
    pub(super) fn held(self, tolerance: impl Into<Option<Tolerance>>) -> Self {
        let tolerance = tolerance.into();
        Self { tolerance, within: tolerance.map(|tolerance| tolerance.holds(self.ours)), ..self }
    }

    /// What is wrong with it, if it is not what it must be.
    pub fn violation(&self) -> Option<String> {
        let tolerance = self.tolerance.filter(|_| self.within == Some(false))?;
        let expected = match tolerance {
            Tolerance::AtLeast(least) => format!("at least {least}"),
            Tolerance::AtMost(most) => format!("at most {most}"),
            Tolerance::Between(least, most) => format!("{least} to {most}"),
        };
        Some(format!("{}, {}: {:.4}, and should be {expected}", self.id, self.point, self.ours))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_tolerance_is_named_and_what_is_only_shown_is_not() {
        let point = Point { id: "x", ..Point::new("a number", 0.5) };
        assert!(point.violation().is_none() && point.within.is_none());
        for (tolerance, holds) in [
            (Tolerance::AtLeast(0.5), true),
            (Tolerance::AtLeast(0.51), false),
            (Tolerance::AtMost(0.5), true),
            (Tolerance::AtMost(0.49), false),
            (Tolerance::Between(0.4, 0.6), true),
            (Tolerance::Between(0.6, 0.7), false),
        ] {
            let held = point.clone().held(tolerance);
            assert_eq!((held.within, held.violation().is_none()), (Some(holds), holds), "{tolerance:?}");
        }
        assert!(!Tolerance::AtMost(1.0).holds(f64::NAN) && !Tolerance::AtLeast(0.0).holds(f64::NAN));
        let violation = point.held(Tolerance::AtLeast(0.9)).violation().expect("out of tolerance");
        assert_eq!(violation, "x, a number: 0.5000, and should be at least 0.9");
    }
}
