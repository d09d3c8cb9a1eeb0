//! Limits of counts, which are held in files.

/// The limit after a new count, for which `renewed` would be one. It only rises if the count is above it, so small
/// losses cannot add up.
pub(crate) fn limit(count: f64, limit: f64, renewed: f64) -> f64 {
    if count > limit { renewed } else { renewed.min(limit) }
}

#[cfg(test)]
mod tests {
    use super::limit;

    #[test]
    fn a_limit_falls_and_rises_only_when_exceeded() {
        assert_eq!([limit(9.0, 10.0, 9.3), limit(10.0, 10.0, 10.3), limit(10.1, 10.0, 10.4)], [9.3, 10.0, 10.4]);
    }
}
