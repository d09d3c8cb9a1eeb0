//! How long invalidations take in the hardware of this host, as counted by the kernel.
//!
//! Linux counts them if it is built with `CONFIG_DMAR_PERF` and the counting is enabled. It shows them to root in
//! `/sys/kernel/debug/iommu/intel/dmar_perf_latency`. For each unit there is a line per kind of invalidation: a
//! histogram of latencies, then the minimum, the maximum and the mean in whole microseconds. Each sample is a
//! submission together with the wait behind it.

/// The bounds of the histogram's columns, in nanoseconds. The last column has no upper end; 100 ms is taken for it,
/// because anything longer has gone wrong.
const COLUMNS_NS: [(f64, f64); 7] =
    [(10.0, 1e2), (1e2, 1e3), (1e3, 1e4), (1e4, 1e5), (1e5, 1e6), (1e6, 1e7), (1e7, 1e8)];
/// Numbers of a line: those of the columns, and the minimum, maximum and mean.
const NUMBERS: usize = COLUMNS_NS.len() + 3;
/// The kind of the line for invalidations of translations.
const KIND: &str = "inv_iotlb";

/// How long an invalidation and its wait take together, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Latency {
    pub(super) ns: f64,
    /// The shortest and the longest time that it may be.
    pub(super) range_ns: [f64; 2],
}

/// Reads the kernel's text and combines all units. Returns `None` if nothing was counted, or if the text is not
/// understood.
pub(super) fn parse(text: &str) -> Option<Latency> {
    let (mut counts, mut sum_us) = ([0.0; COLUMNS_NS.len()], 0.0);
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if words.next() != Some(KIND) {
            continue;
        }
        let numbers: Vec<f64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
        let numbers: [f64; NUMBERS] = numbers.try_into().ok()?;
        for (count, of_unit) in counts.iter_mut().zip(numbers) {
            *count += of_unit;
        }
        sum_us += numbers[NUMBERS - 1] * numbers[..COLUMNS_NS.len()].iter().sum::<f64>();
    }
    let all: f64 = counts.iter().sum();
    if all <= 0.0 {
        return None;
    }
    let mean_ns = sum_us / all * 1e3;
    if mean_ns >= 1e3 {
        // The kernel truncates to whole microseconds.
        return Some(Latency { ns: mean_ns + 500.0, range_ns: [mean_ns, mean_ns + 1e3] });
    }
    // Below a microsecond the mean prints as 0. The column of the median says more.
    let mut below = 0.0;
    let middle = counts.iter().position(|count| {
        below += count;
        below * 2.0 >= all
    })?;
    let (low, high) = COLUMNS_NS[middle];
    Some(Latency { ns: (low * high).sqrt(), range_ns: [low, high] })
}

#[cfg(test)]
mod tests {
    use super::{Latency, parse};

    const HEAD: &str = "IOMMU: dmar0 Register Base Address: fed90000\n                  <0.1us   0.1us-1us    1us-10us  10us-100us   \
                        100us-1ms    1ms-10ms      >=10ms     min(us)     max(us) average(us)\n";

    #[test]
    fn the_mean_where_it_is_microseconds() {
        let line = "   inv_iotlb           0           0          80          20           0           0           0           2          31           6\n";
        let text = format!(
            "{HEAD}{line}  inv_devtlb           0           0           0           0           0           0           0           0           0           0\n\n"
        );
        assert_eq!(parse(&text), Some(Latency { ns: 6500.0, range_ns: [6000.0, 7000.0] }));
        // Two units. The second one never had an invalidation.
        let idle = "   inv_iotlb 0 0 0 0 0 0 0 0 0 0\n";
        assert_eq!(parse(&format!("{text}{HEAD}{idle}")), parse(&text));
    }

    #[test]
    fn the_column_where_it_is_less() {
        let text = format!("{HEAD}   inv_iotlb  0  900  100  0  0  0  0  0  3  0\n");
        let latency = parse(&text).expect("counted");
        assert_eq!(latency.range_ns, [100.0, 1000.0]);
        assert!((316.0..317.0).contains(&latency.ns));
    }

    #[test]
    fn nothing_where_nothing_was_counted_or_understood() {
        for text in [
            "",
            HEAD,
            "   inv_iotlb 0 0 0 0 0 0 0 0 0 0\n",
            "   inv_iotlb 1 2 3\n",
            "   inv_iotlb a b c d e f g h i j\n",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
