//! A number of a figure.

use super::{Class, Tolerance, number_or_null};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A number of a figure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// The id of its figure.
    pub id: Cow<'static, str>,
    /// The name of the number.
    pub point: String,
    /// The published number, in the same unit. `None` if only a shape was published, or nothing.
    pub published: Option<f64>,
    /// The number from our runs. `null` in JSON, and not a number here, if a run could not be made.
    #[serde(with = "number_or_null")]
    pub ours: f64,
    /// The range in which it must lie. `None` if it is only shown.
    pub tolerance: Option<Tolerance>,
    /// Whether it lies in that range.
    pub within: Option<bool>,
    /// Whether the model was calibrated with the published number, so that agreement shows nothing.
    pub calibration: bool,
    /// The class of a number of the laboratory.
    pub class: Option<Class>,
    /// Why it is outside its class, if it is.
    pub why: Option<Cow<'static, str>>,
}

impl Point {
    /// A number that is only shown.
    pub(super) fn new(point: impl Into<String>, ours: f64) -> Self {
        let (id, point) = ("".into(), point.into());
        Self {
            id,
            point,
            published: None,
            ours,
            tolerance: None,
            within: None,
            calibration: false,
            class: None,
            why: None,
        }
    }

    /// A number of the laboratory, by its class.
    pub(super) fn of(class: Class, point: impl Into<String>, published: f64, ours: f64) -> Self {
        let held = Self::new(point, ours).beside(published).held(class.tolerance(published));
        Self { class: Some(class), calibration: class == Class::Cal, ..held }
    }

    /// A shape, which is there or not.
    pub(super) fn shape(point: impl Into<String>, is_there: bool) -> Self {
        Self::of(Class::S, point, 1.0, f64::from(u8::from(is_there)))
    }

    /// Adds the published number.
    pub(super) fn beside(self, published: f64) -> Self {
        Self { published: Some(published), ..self }
    }

    /// Adds the tolerance, if there is one.
    pub(super) fn held(self, tolerance: impl Into<Option<Tolerance>>) -> Self {
        let tolerance = tolerance.into();
        Self { tolerance, within: tolerance.map(|tolerance| tolerance.holds(self.ours)), ..self }
    }

    /// Whether it is a number of the laboratory outside its class.
    pub fn is_outside(&self) -> bool {
        self.class.is_some() && self.within == Some(false)
    }

    /// Says so if the number is outside its class and no reason is given.
    pub fn unexplained(&self) -> Option<String> {
        let is_unexplained = self.is_outside() && self.why.is_none();
        is_unexplained.then(|| format!("{}, {}: outside its class, and no reason is given", self.id, self.point))
    }

    /// Says what is wrong if the number is out of its tolerance.
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
        let point = Point { id: "x".into(), ..Point::new("a number", 0.5) };
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
