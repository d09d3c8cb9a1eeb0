//! Summarizes many samples.

/// The median of many samples, and their spread.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// The smallest sample.
    pub min: f64,
    /// The median. With an even number of samples, the mean of the two in the middle.
    pub median: f64,
    /// The value that nine of ten samples do not exceed.
    pub p90: f64,
}

impl Spread {
    /// The spread of `samples`. `None` if there are none.
    pub fn of(mut samples: Vec<f64>) -> Option<Self> {
        samples.sort_by(f64::total_cmp);
        let last = samples.len().checked_sub(1)?;
        let median = (samples[last / 2] + samples[last.div_ceil(2)]) / 2.0;
        Some(Self { min: samples[0], median, p90: samples[(last * 9).div_ceil(10)] })
    }
}

#[cfg(test)]
mod tests {
    use super::Spread;

    #[test]
    fn the_middle_and_the_edges() {
        assert_eq!(Spread::of(Vec::new()), None);
        assert_eq!(Spread::of(vec![3.0]), Some(Spread { min: 3.0, median: 3.0, p90: 3.0 }));
        assert_eq!(Spread::of(vec![4.0, 1.0]), Some(Spread { min: 1.0, median: 2.5, p90: 4.0 }));
        let eleven = (0..11).rev().map(f64::from).collect();
        assert_eq!(Spread::of(eleven), Some(Spread { min: 0.0, median: 5.0, p90: 9.0 }));
    }
}
