//! Figure 11: a stream of small messages with the BCM57810.

use super::super::class::Class::R25;
use super::super::lab::{BARS, BCM, Lab, STREAM};
use super::super::served::{Length, Numbers};
use super::super::shape::{falls, is_flat, least, rises};
use super::super::{Figure, Grid, Made, Make, Point};
use super::EIOVAR;

pub(super) const FIGURE_11: Figure = Figure {
    id: "eiovar-fig11",
    title: "A stream with a BCM57810, by the size of messages",
    make: Make::FromRuns(figure_11),
    ..EIOVAR
};

/// The message size from which on the CPU limits the baseline under strict protection.
const SATURATED: u32 = 256;
/// The rate of the link, and the share of it that counts as reached.
const LINK_GBPS: f64 = 9.40;
const REACHED: f64 = 0.97;
/// CPU time that counts as all.
const ALL_PERCENT: f64 = 97.0;

fn messages(length: Length) -> Vec<u32> {
    match length {
        Length::Short => vec![64, 256, 1024, 4096, 16_384],
        Length::Full => (6..=14).map(|bits| 1 << bits).collect(),
    }
}

fn figure_11(lab: &Lab<'_>) -> Made {
    let messages = messages(lab.length);
    let all = BARS.map(|bar| {
        let run = |message: &u32| lab.of(&lab.run(BCM, &format!("{STREAM}:message={message}"), 1, bar));
        messages.iter().map(run).collect::<Vec<Numbers>>()
    });
    let rates = all.each_ref().map(|one| one.iter().map(|one| one.rate).collect::<Vec<f64>>());
    let cpu = all.each_ref().map(|one| one.iter().map(|one| one.cpu_percent).collect::<Vec<f64>>());
    let (last, saturated) = (messages.len() - 1, messages.iter().position(|one| *one == SATURATED).unwrap_or(0));
    let smallest = rates.each_ref().map(|one| one[0]);
    let mut points = vec![
        Point::shape("strict: the CPU is busy from 256 bytes on", least(&cpu[0][saturated..]) >= ALL_PERCENT),
        Point::shape("strict: throughput is flat from 256 bytes on", is_flat(&rates[0][saturated..], 0.15)),
        Point::of(R25, "strict, 16 KiB: Gb/s", 4.0, rates[0][last]),
    ];
    for (bar, rates) in BARS.iter().zip(&rates).skip(1) {
        let name = bar.name;
        points.push(Point::shape(format!("{name}: throughput rises with messages"), rises(rates, 0.02)));
        points.push(Point::shape(format!("{name}, 16 KiB: the link is full"), rates[last] >= REACHED * LINK_GBPS));
    }
    let busy: Vec<f64> = cpu[1..].iter().map(|one| one[last]).collect();
    points.push(Point::shape("16 KiB: CPU time falls from strict+ over defer to defer+", falls(&busy)));
    points.push(Point::shape("64 bytes: all four are about as fast", is_flat(&smallest, 0.1)));
    let names: Vec<String> = messages.iter().map(u32::to_string).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let grid = |quantity: &str, series: [Vec<f64>; 4]| {
        let rows: Vec<_> = BARS.iter().map(|bar| bar.name).zip(series).collect();
        Grid::of(quantity, quantity, "bytes of a message", &names, &rows)
    };
    Made { tables: vec![grid("throughput, Gb/s", rates), grid("CPU time, percent", cpu)], points, ..Made::default() }
}
