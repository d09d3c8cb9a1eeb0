//! The scale of exposure: how long a device reached a buffer after its unmap. "Never" and "always" have separate
//! bands. The part between them is logarithmic.

use super::canvas::Axis;
use crate::document::Protection;
use std::ops::Range;

/// The longest time for which a device still reached a buffer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Reach {
    Never,
    /// In microseconds.
    For(f64),
    Always,
}

impl Reach {
    /// The reach that a document gives. Without protection no window ends.
    pub(super) fn new(protection: Protection, window_us_max: Option<f64>) -> Option<Self> {
        match (protection, window_us_max) {
            (Protection::None, None) => Some(Self::Always),
            (_, Some(window_us)) if window_us > 0.0 => Some(Self::For(window_us)),
            (_, Some(_)) => Some(Self::Never),
            (_, None) => None,
        }
    }
}

/// Room for each band, in pixels.
#[derive(Clone, Copy)]
pub(super) struct Bands {
    pub(super) never: f64,
    pub(super) between: f64,
    pub(super) always: f64,
}

/// The room between the logarithmic part and its neighbours.
const EDGE: f64 = 14.0;
/// How far beyond a power of ten a window may extend into that room, as a power of ten. A timer of 10 ms always fires a
/// little late.
const OVER: f64 = 0.1;

/// The scale, in pixels from its beginning.
pub(super) struct Scale {
    bands: Bands,
    /// The exponents at both ends of the logarithmic part, as powers of ten of a microsecond.
    exponents: (i32, i32),
}

impl Scale {
    /// A scale for all of `reaches`. Bands without any reach get no room.
    pub(super) fn new(reaches: &[Reach], bands: Bands) -> Self {
        let room = |wanted: bool, px: f64| if wanted { px } else { 0.0 };
        let windows =
            || reaches.iter().filter_map(|reach| if let Reach::For(us) = reach { Some(us.log10()) } else { None });
        let high = (windows().fold(f64::NEG_INFINITY, f64::max) - OVER).ceil();
        let low = windows().fold(f64::INFINITY, f64::min).floor();
        // The scale covers at least two powers of ten, so that similar windows look similar.
        let exponents = if high.is_finite() { (low.min(high - 2.0) as i32, high as i32) } else { (0, 0) };
        let bands = Bands {
            never: bands.never,
            between: room(high.is_finite(), bands.between),
            always: room(reaches.contains(&Reach::Always), bands.always),
        };
        Self { bands, exponents }
    }

    /// The band of "never".
    pub(super) fn never(&self) -> Range<f64> {
        0.0..self.bands.never
    }

    /// The band of "always", if there is one.
    pub(super) fn always(&self) -> Option<Range<f64>> {
        let start = self.bands.never + self.bands.between;
        (self.bands.always > 0.0).then_some(start..start + self.bands.always)
    }

    /// The logarithmic part.
    pub(super) fn between(&self) -> Range<f64> {
        self.bands.never..self.bands.never + self.bands.between
    }

    /// The position of a reach. Never and always are in the middle of their bands.
    pub(super) fn at(&self, reach: Reach) -> f64 {
        let (low, high) = (f64::from(self.exponents.0), f64::from(self.exponents.1));
        match reach {
            Reach::Never => self.bands.never / 2.0,
            Reach::For(us) => {
                let share = (us.log10() - low) / (high - low);
                self.bands.never + EDGE + (self.bands.between - 2.0 * EDGE) * share
            }
            Reach::Always => self.bands.never + self.bands.between + self.bands.always / 2.0,
        }
    }

    /// The length of the whole scale.
    pub(super) fn length(&self) -> f64 {
        self.bands.never + self.bands.between + self.bands.always
    }

    /// The scale as an axis. With less than `apart` pixels between powers of ten, only some of them have names.
    pub(super) fn axis(&self, apart: f64) -> Axis {
        let mut ticks = vec![(self.at(Reach::Never), "never".to_owned())];
        let (low, high) = self.exponents;
        let every = (apart * f64::from(high - low) / self.bands.between.max(1.0)).ceil().max(1.0) as i32;
        if self.bands.between > 0.0 {
            let named = (low..=high).filter(|exponent| (high - exponent) % every == 0);
            ticks.extend(named.map(|exponent| (self.at(Reach::For(10f64.powi(exponent))), duration(exponent))));
        }
        if self.bands.always > 0.0 {
            ticks.push((self.at(Reach::Always), "always".to_owned()));
        }
        Axis { range: 0.0..self.length(), ticks }
    }
}

/// The name of ten to the power of `exponent` microseconds.
fn duration(exponent: i32) -> String {
    let (unit, smallest) = match exponent {
        ..-3 => ("ps", -6),
        -3..0 => ("ns", -3),
        0..3 => ("µs", 0),
        3..6 => ("ms", 3),
        6.. => ("s", 6),
    };
    let zeros = usize::try_from(exponent - smallest).unwrap_or(0);
    format!("1{} {unit}", "0".repeat(zeros))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BANDS: Bands = Bands { never: 100.0, between: 200.0, always: 50.0 };

    #[test]
    fn what_is_never_and_always_reached_lies_outside_of_the_windows() {
        let scale = Scale::new(&[Reach::Never, Reach::For(6911.0), Reach::For(9999.0), Reach::Always], BANDS);
        assert_eq!(scale.length(), 350.0);
        assert_eq!((scale.at(Reach::Never), scale.at(Reach::Always)), (50.0, 325.0));
        assert_eq!((scale.at(Reach::For(100.0)), scale.at(Reach::For(10_000.0))), (100.0 + EDGE, 300.0 - EDGE));
        assert!(scale.at(Reach::For(6911.0)) > 200.0);
        let names: Vec<_> = scale.axis(10.0).ticks.into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["never", "100 µs", "1 ms", "10 ms", "always"]);
        let late = Scale::new(&[Reach::For(11_186.0), Reach::Always], BANDS);
        assert!(late.at(Reach::For(11_186.0)) < late.always().unwrap().start - 6.0, "a mark's width off the next band");
        assert_eq!(late.axis(10.0).ticks.len(), 5);
    }

    #[test]
    fn a_band_without_points_takes_no_room() {
        let scale = Scale::new(&[Reach::Never], BANDS);
        assert_eq!((scale.length(), scale.always()), (100.0, None));
        assert_eq!(scale.axis(10.0).ticks.len(), 1);
    }

    #[test]
    fn many_powers_of_ten_are_not_all_named() {
        let scale = Scale::new(&[Reach::For(0.002), Reach::For(50_000.0)], BANDS);
        let names: Vec<_> = scale.axis(50.0).ticks.into_iter().map(|(_, name)| name).collect();
        assert_eq!(names, ["never", "1 ns", "100 ns", "10 µs", "1 ms", "100 ms"]);
    }

    #[test]
    fn a_document_tells_the_reach() {
        use Protection::{Deferred, None as Unprotected, Strict};
        assert_eq!(Reach::new(Strict, Some(0.0)), Some(Reach::Never));
        assert_eq!(Reach::new(Deferred, Some(12.5)), Some(Reach::For(12.5)));
        assert_eq!(Reach::new(Unprotected, None), Some(Reach::Always));
        assert_eq!(Reach::new(Strict, None), None, "a run that failed has no place");
    }
}
