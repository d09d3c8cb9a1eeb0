//! Figure 10: a server that receives and sends at once, each flow on a core of its own.
//!
//! Posted writes land in order and few are in flight, while reads have tags: so one unit that walks for both delays
//! what the server receives far more than what it sends.

use super::super::class::Class::{Cal, R15, R25};
use super::super::lab::{Bar, NONE};
use super::super::served::{Length, Numbers, ServedRun};
use super::super::{Figure, Grid, Lab, Made, Make, Point, Reason};
use super::{BATCH, CHUNKS, FANDS, LINUX, WINDOWS};

pub(super) const FIGURE_10: Figure = Figure {
    id: "fands-fig10",
    title: "Streams in both directions, by the cores of each",
    reasons: &[
        Reason::new(
            &["1 + 1 cores, Linux, Gb/s received"],
            "Not explained: hardly any page is unmapped in ours. Counting the memory of packets, as Linux does, lets a \
             socket hold more of them than the driver keeps. That was tried: Linux then receives 24.9 Gb/s.",
        ),
        Reason::new(
            &[
                "4 + 4 cores, Linux, Gb/s received",
                "4 + 4 cores, Linux receives less than 30 % of unprotected",
                "16 + 16 cores, F&S receives at least 90 %",
            ],
            "The walks of what is sent delay what is received, and how much depends on the number of walkers, for which \
             two follow from a published limit. More walkers help both designs, so no number of them gives both \
             published rates.",
        ),
        Reason::only_in(
            Length::Full,
            &["16 + 16 cores, F&S, Gb/s received"],
            "Two walkers leave it 82.5 Gb/s, where 82.8 would be within.",
        ),
        Reason::new(
            &["16 + 16 cores, portcullis is as fast as F&S, with the same batches"],
            "64 streams, each with a chunk of addresses of its own, miss PTcache-L3, which has 32 entries, .21 times per \
             page. The windows of F&S miss it .10 times.",
        ),
    ],
    make: Make::FromRuns(figure_10),
    ..FANDS
};

const MACHINE: &str = "icelake-cx5";
const WORKLOAD: &str = "iperf:direction=both";
/// From so many cores on, the link is full without protection.
const FULL: u32 = 4;

/// What was published of a number of cores: Gb/s received and sent.
struct Published {
    cores: u32,
    unprotected: [f64; 2],
    linux: [f64; 2],
    windows: [f64; 2],
}

const PUBLISHED: [Published; 3] = [
    Published { cores: 1, unprotected: [35.0, 30.6], linux: [11.7, 31.9], windows: [30.4, 31.5] },
    Published { cores: FULL, unprotected: [97.7, 96.8], linux: [18.4, 77.6], windows: [93.3, 97.7] },
    Published { cores: 16, unprotected: [97.3, 97.4], linux: [18.1, 86.6], windows: [97.4, 97.4] },
];

/// A run in which so many cores receive and as many send.
fn run(lab: &Lab<'_>, cores: u32, bar: Bar) -> ServedRun {
    let run = lab.run(MACHINE, WORKLOAD, 2 * cores, bar);
    ServedRun { cores: 2 * cores, batch: Some(BATCH), ..run }
}

/// Linux 6.0. Up to 32 CPUs use one queue here, so it matters how they wait.
fn linux(lab: &Lab<'_>, cores: u32) -> ServedRun {
    ServedRun { batch: Some(1), no_hint: true, linux_wait: true, ..run(lab, cores, LINUX) }
}

/// Gb/s received and sent.
fn rates(numbers: &Numbers) -> [f64; 2] {
    [numbers.stream.receive_gbps, numbers.stream.transmit_gbps]
}

fn figure_10(lab: &Lab<'_>) -> Made {
    let mut made = Made::default();
    let mut all = Vec::new();
    for published in &PUBLISHED {
        let cores = published.cores;
        let runs = [run(lab, cores, NONE), linux(lab, cores), run(lab, cores, WINDOWS), run(lab, cores, CHUNKS)];
        let ours = runs.each_ref().map(|run| rates(&lab.of(run)));
        let [unprotected, linux, windows, chunks] = ours;
        for (at, what) in ["received", "sent"].into_iter().enumerate() {
            let name = |bar: &str| format!("{cores} + {cores} cores, {bar}, Gb/s {what}");
            made.points.extend([
                Point::of(Cal, name("no protection"), published.unprotected[at], unprotected[at]),
                Point::of(R25, name("Linux"), published.linux[at], linux[at]),
                Point::of(R15, name("F&S"), published.windows[at], windows[at]),
            ]);
        }
        let name = |what: &str| format!("{cores} + {cores} cores, {what}");
        if cores >= FULL {
            let share = |ours: [f64; 2], at: usize| ours[at] / unprotected[at];
            made.points.extend([
                Point::shape(name("Linux receives less than 30 % of unprotected"), share(linux, 0) < 0.3),
                Point::shape(name("Linux sends more than 70 %"), share(linux, 1) > 0.7),
                Point::shape(name("F&S receives at least 90 %"), share(windows, 0) >= 0.9),
                Point::shape(name("F&S sends at least 90 %"), share(windows, 1) >= 0.9),
            ]);
        }
        let [both_windows, both_chunks] = [windows, chunks].map(|[received, sent]| received + sent);
        let is_as_fast = both_chunks >= 0.999 * both_windows;
        made.points.push(Point::shape(name("portcullis is as fast as F&S, with the same batches"), is_as_fast));
        all.push(ours);
    }
    made.findings = findings(lab);
    made.tables = ["received", "sent"].into_iter().enumerate().map(|(at, what)| table(&all, at, what)).collect();
    made
}

/// The rates of each bar in a direction, beside the published ones.
fn table(all: &[[[f64; 2]; 4]], at: usize, what: &str) -> Grid {
    let names = PUBLISHED.each_ref().map(|one| format!("{} + {} cores", one.cores, one.cores));
    let columns: Vec<&str> = names.iter().map(String::as_str).collect();
    let published = |of: fn(&Published) -> [f64; 2]| PUBLISHED.iter().map(|one| of(one)[at]).collect();
    let ours = |bar: usize| all.iter().map(|one| one[bar][at]).collect();
    let rows = [
        ("no protection, published", published(|one| one.unprotected)),
        ("ours", ours(0)),
        ("Linux, published", published(|one| one.linux)),
        ("Linux", ours(1)),
        ("F&S, published", published(|one| one.windows)),
        ("F&S", ours(2)),
        ("portcullis", ours(3)),
    ];
    Grid::of(&format!("Gb/s {what}"), &format!("Gb/s {what}"), "", &columns, &rows)
}

/// What hangs on choices that no source makes.
fn findings(lab: &Lab<'_>) -> Vec<String> {
    let usual = linux(lab, FULL);
    let all = ServedRun { set: vec![("psi_drops".to_owned(), "all".to_owned())], ..usual.clone() };
    let ours = ServedRun { linux_wait: false, ..usual.clone() };
    let [usual, all, ours] = [usual, all, ours].map(|run| lab.of(&run));
    if usual.rate.is_nan() {
        return Vec::new();
    }
    let [[received, sent], of_all, of_ours] = [usual, all, ours].each_ref().map(rates);
    vec![format!(
        "With {FULL} + {FULL} cores, Linux receives {received:.1} and sends {sent:.1} Gb/s. If invalidations take all of \
         the domain from the IOTLB, these are {:.1} and {:.1}; if CPUs wait as our driver does, {:.1} and {:.1}.",
        of_all[0], of_all[1], of_ours[0], of_ours[1],
    )]
}
