//! Figure 9: the latency of calls on a core of their own, beside streams on five others.
//!
//! A percentile is known if twenty calls took longer. So the runs of short calls are long, but those of Linux, which
//! timeouts make longer than all others: nothing beyond P99.9 is asked of it.

use super::super::class::Class::{C2, Cal, R25};
use super::super::lab::{Bar, NONE};
use super::super::served::{Length, ServedRun};
use super::super::{Figure, Grid, Lab, Made, Make, Point, Reason};
use super::{CHUNKS, CORES, FANDS, FLOWS, LINUX, MACHINE, WINDOWS, run_under};

pub(super) const FIGURE_9: Figure = Figure {
    id: "fands-fig9",
    title: "Calls beside streams",
    reasons: &[Reason::only_in(
        Length::Full,
        &["32 KiB, Linux, us, P90", "32 KiB, Linux, us, P99"],
        "A call of 32 KiB takes 48 us without protection here, and 103 were published: its packets follow each other \
         without gaps, and the time of the client does not grow with its length. Losses within a call, which make P99 \
         milliseconds, are found by what follows in the same burst.",
    )],
    make: Make::FromRuns(figure_9),
    ..FANDS
};

/// A timeout of TCP, in microseconds.
const TIMEOUT_US: f64 = 200_000.0;
const PERCENTILES: [&str; 5] = ["P50", "P90", "P99", "P99.9", "P99.99"];

/// The published latencies in microseconds, by percentile.
struct Published {
    name: &'static str,
    bytes: u32,
    none: [f64; 5],
    windows: [f64; 5],
    /// Without P99.99, of which a range was read.
    linux: [f64; 4],
}

const PUBLISHED: [Published; 3] = [
    Published {
        name: "128 B",
        bytes: 128,
        none: [30.7, 32.3, 38.0, 44.0, 50.3],
        windows: [31.3, 35.0, 39.3, 50.7, 71.0],
        linux: [44.6, 65.7, 120.7, 206_450.0],
    },
    Published {
        name: "2 KiB",
        bytes: 2 << 10,
        none: [32.6, 34.0, 40.6, 47.4, 56.7],
        windows: [34.0, 35.3, 43.3, 58.0, 68.3],
        linux: [49.0, 74.3, 124.1, 206_450.0],
    },
    Published {
        name: "32 KiB",
        bytes: 32 << 10,
        none: [102.7, 113.3, 124.7, 137.0, 161.8],
        windows: [95.7, 114.7, 144.3, 166.0, 184.0],
        linux: [116.7, 169.6, 4_584.0, 191_485.0],
    },
];

impl Published {
    fn run(&self, lab: &Lab<'_>, bar: Bar) -> ServedRun {
        let is_long = bar.design != LINUX.design && self.bytes == 128;
        let length = if is_long { Length::Full } else { Length::Short };
        // As Linux with five flows in Figure 2.
        let workload = format!("rpc-tail:bytes={}", self.bytes);
        let run = run_under(lab, bar, MACHINE, &workload, CORES + 1, FLOWS[0].regions);
        ServedRun { cores: CORES + 1, length, ..run }
    }
}

fn figure_9(lab: &Lab<'_>) -> Made {
    if lab.length == Length::Short {
        let findings = vec!["Its runs are long: --full makes them.".to_owned()];
        return Made { findings, ..Made::default() };
    }
    let mut made = Made::default();
    for published in &PUBLISHED {
        let all = [NONE, LINUX, WINDOWS, CHUNKS].map(|bar| lab.of(&published.run(lab, bar)).calls.percentiles_us());
        let [none, linux, windows, chunks] = &all;
        for (at, percentile) in PERCENTILES.iter().enumerate() {
            let name = |bar: &str| format!("{}, {bar}, {percentile}", published.name);
            let ratio = published.windows[at] / published.none[at];
            // P99.99 is looked for with the shortest calls only.
            if at < 4 || published.bytes == 128 {
                made.points.push(Point::of(Cal, name("no protection"), published.none[at], none[at]));
                made.points.push(Point::of(R25, name("F&S, of no protection"), ratio, windows[at] / none[at]));
            }
            if let Some(microseconds) = published.linux.get(at) {
                made.points.push(Point::of(C2, name("Linux, us"), *microseconds, linux[at]));
            }
        }
        let name = |what: &str| format!("{}, {what}", published.name);
        let within = |ours: &[f64; 5], others: &[f64; 5], factor: f64| {
            let known = ours.iter().zip(others).filter(|(ours, _)| !ours.is_nan());
            known.clone().count() >= 4 && known.clone().all(|(ours, other)| *ours <= factor * other)
        };
        made.points.extend([
            Point::shape(name("the P99.9 of Linux is a timeout"), linux[3] >= TIMEOUT_US),
            Point::shape(name("the median of Linux is below twice that of no protection"), linux[0] < 2.0 * none[0]),
            Point::shape(name("F&S is within 1.5 times no protection"), within(windows, none, 1.5)),
            // Where a call waits for a burst of the streams, it does so by chance.
            Point::shape(name("portcullis is as fast as F&S"), within(chunks, windows, 1.05)),
        ]);
        let rows = [
            ("no protection, published", published.none.to_vec()),
            ("ours", none.to_vec()),
            ("Linux, published", [&published.linux[..], &[f64::NAN]].concat()),
            ("Linux", linux.to_vec()),
            ("F&S, published", published.windows.to_vec()),
            ("F&S", windows.to_vec()),
            ("portcullis", chunks.to_vec()),
        ];
        made.tables.push(Grid::of(&format!("calls of {}", published.name), "us", "", &PERCENTILES, &rows));
    }
    made
}
