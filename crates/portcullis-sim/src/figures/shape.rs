//! Whether a series of numbers has a shape. No shape holds for what is not a number.

/// Whether each number is at least the one before it, less `slack` of it.
pub(super) fn rises(series: &[f64], slack: f64) -> bool {
    all_known(series) && series.windows(2).all(|pair| pair[1] >= pair[0] * (1.0 - slack))
}

/// Whether each number is below the one before it.
pub(super) fn falls(series: &[f64]) -> bool {
    series.windows(2).all(|pair| pair[1] < pair[0])
}

/// Whether the greatest number is at most `1 + spread` times the least.
pub(super) fn is_flat(series: &[f64], spread: f64) -> bool {
    all_known(series) && greatest(series) <= least(series) * (1.0 + spread)
}

/// Whether two series rise and fall together.
pub(super) fn have_one_trend(one: &[f64], other: &[f64]) -> bool {
    let steps = |series: &[f64]| -> Vec<_> { series.windows(2).map(|pair| pair[1].partial_cmp(&pair[0])).collect() };
    all_known(one) && all_known(other) && steps(one) == steps(other)
}

pub(super) fn greatest(series: &[f64]) -> f64 {
    series.iter().copied().fold(f64::NEG_INFINITY, keep_unknown(f64::max))
}

pub(super) fn least(series: &[f64]) -> f64 {
    series.iter().copied().fold(f64::INFINITY, keep_unknown(f64::min))
}

pub(super) fn mean(series: &[f64]) -> f64 {
    series.iter().sum::<f64>() / series.len() as f64
}

fn all_known(series: &[f64]) -> bool {
    !series.iter().any(|one| one.is_nan())
}

fn keep_unknown(choose: fn(f64, f64) -> f64) -> impl Fn(f64, f64) -> f64 {
    move |one, other| if one.is_nan() || other.is_nan() { f64::NAN } else { choose(one, other) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_hold_and_fail() {
        assert!(rises(&[1.0, 2.0, 1.99], 0.01) && !rises(&[1.0, 2.0, 1.9], 0.01));
        assert!(falls(&[3.0, 2.0, 1.0]) && !falls(&[3.0, 3.0]));
        assert!(is_flat(&[1.0, 1.1], 0.2) && !is_flat(&[1.0, 1.3], 0.2));
        assert!(have_one_trend(&[1.0, 2.0, 1.5], &[7.0, 9.0, 8.0]));
        assert!(!have_one_trend(&[1.0, 2.0, 1.5], &[7.0, 9.0, 9.0]) && !have_one_trend(&[1.0, 2.0], &[1.0, 2.0, 3.0]));
        assert_eq!((greatest(&[1.0, 3.0, 2.0]), least(&[2.0, 1.0]), mean(&[1.0, 2.0])), (3.0, 1.0, 1.5));
    }

    #[test]
    fn what_is_unknown_has_no_shape() {
        for series in [[f64::NAN, 1.0, 2.0], [1.0, f64::NAN, 2.0], [2.0, 1.0, f64::NAN]] {
            assert!(!have_one_trend(&series, &series));
            assert!(!rises(&series, 1.0) && !falls(&series) && !is_flat(&series, 10.0));
            assert!(greatest(&series).is_nan() && least(&series).is_nan());
        }
    }
}
