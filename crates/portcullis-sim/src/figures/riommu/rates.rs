//! Cycles per packet, throughput and round trips of rings, over `stock` and EiovaR.

use super::super::class::Class::{Cal, Input, R15, R25};
use super::super::eiovar::SHORT_SEARCHES;
use super::super::lab::{
    APACHE_1K, APACHE_1M, APPLICATIONS, BARS, BCM, Bar, CX3, DEFER, DEFER_PLUS, Lab, MEMCACHED, NONE, RR, STREAM,
    STRICT, STRICT_PLUS,
};
use super::super::served::{Length, Numbers};
use super::super::{Figure, Grid, Made, Make, Point, Reason};
use super::{COHERENT, NOT_COHERENT, RIOMMU, run};

pub(super) const PACKETS: Figure =
    Figure { id: "riommu-packets", title: "Cycles per packet of a stream", make: Make::FromRuns(packets), ..RIOMMU };
pub(super) const RATIOS: Figure = Figure {
    id: "riommu-ratios",
    title: "Throughput of rings over that of others",
    reasons: &[
        Reason::new(&["apache-1m, riommu- over strict", "apache-1m, riommu over strict"], SHORT_SEARCHES),
        Reason::only_in(
            Length::Full,
            &[
                "memcached, riommu- over strict",
                "memcached, riommu- over strict+",
                "memcached, riommu- over defer",
                "memcached, riommu- over defer+",
                "memcached, riommu- over none",
                "memcached, riommu over strict",
                "memcached, riommu over strict+",
                "memcached, riommu over defer",
                "memcached, riommu over defer+",
                "memcached, riommu over none",
            ],
            "The long run is refused. Only a request that stores a value uses the second buffer of its entry, and these \
             are rare, so some buffers stay in a ring of 4,096 until its tail comes round and finds them there.",
        ),
    ],
    make: Make::FromRuns(ratios),
    ..RIOMMU
};
pub(super) const ROUND_TRIPS: Figure = Figure {
    id: "riommu-rtt",
    title: "Round trips of requests and responses",
    make: Make::FromRuns(round_trips),
    ..RIOMMU
};
pub(super) const UNPROTECTED: Figure = Figure {
    id: "riommu-none",
    title: "Rates with no protection, with which the machines are calibrated",
    is_hypothetical: false,
    make: Make::FromRuns(unprotected),
    ..RIOMMU
};

const SEVEN: [Bar; 7] = [STRICT, STRICT_PLUS, DEFER, DEFER_PLUS, NOT_COHERENT, COHERENT, NONE];
/// Clients of each application.
const CLIENTS: [u32; 5] = [1, 1, 32, 32, 32];

/// In the order of `SEVEN`.
const PUBLISHED_PACKETS: [f64; 7] = [17_738.0, 10_027.0, 8888.0, 6020.0, 3455.0, 2340.0, 1816.0];
/// In microseconds, in the order of `SEVEN`.
const PUBLISHED_ROUND_TRIPS: [f64; 7] = [17.3, 15.1, 14.9, 14.4, 14.1, 13.9, 13.4];
/// For each application, `riommu-` and `riommu` over the four of `BARS` and over none.
const PUBLISHED_RATIOS: [[[f64; 5]; 2]; 5] = [
    [[5.12, 2.90, 2.57, 1.74, 0.52], [7.56, 4.28, 3.79, 2.57, 0.77]],
    [[1.23, 1.07, 1.05, 1.02, 0.95], [1.25, 1.09, 1.07, 1.03, 0.96]],
    [[5.30, 1.62, 1.58, 1.20, 0.76], [5.80, 1.77, 1.73, 1.31, 0.83]],
    [[2.32, 1.08, 1.07, 1.03, 0.92], [2.32, 1.08, 1.07, 1.03, 0.92]],
    [[4.77, 1.17, 1.25, 1.03, 0.82], [4.88, 1.19, 1.28, 1.05, 0.83]],
];
/// Rates with no protection and, where it was published, the CPU time in percent.
const PUBLISHED_UNPROTECTED: [(&str, &str, u32, f64, Option<f64>); 10] = [
    (CX3, STREAM, 1, 19.79, None),
    (CX3, RR, 1, 74.8, None),
    (CX3, APACHE_1M, 32, 1.914, None),
    (CX3, APACHE_1K, 32, 12.09, None),
    (CX3, MEMCACHED, 32, 134.3, None),
    (BCM, STREAM, 1, 9.40, Some(31.4)),
    (BCM, RR, 1, 29.0, Some(11.7)),
    (BCM, APACHE_1M, 32, 1.12, Some(33.5)),
    (BCM, APACHE_1K, 32, 13.37, Some(97.0)),
    (BCM, MEMCACHED, 32, 159.7, Some(99.0)),
];

/// The numbers of an application with the ConnectX-3.
fn numbers<const N: usize>(lab: &Lab<'_>, application: usize, bars: [Bar; N]) -> [Numbers; N] {
    bars.map(|bar| lab.of(&run(lab, CX3, APPLICATIONS[application], CLIENTS[application], bar)))
}

fn packets(lab: &Lab<'_>) -> Made {
    let ours = numbers(lab, 0, SEVEN).map(|one| one.packet);
    let points = SEVEN.iter().zip(PUBLISHED_PACKETS.into_iter().zip(ours)).map(|(bar, (published, ours))| {
        // Without searches, only what the cost book has is left.
        let class = match bar.name {
            name if name == NONE.name => Cal,
            name if [STRICT_PLUS.name, DEFER_PLUS.name].contains(&name) => Input,
            _ => R15,
        };
        Point::of(class, bar.name, published, ours)
    });
    let rows = [("published", PUBLISHED_PACKETS.to_vec()), ("ours", ours.to_vec())];
    let tables = vec![Grid::of("a stream", "cycles per packet", "", &SEVEN.map(|bar| bar.name), &rows)];
    Made { points: points.collect(), tables, ..Made::default() }
}

fn ratios(lab: &Lab<'_>) -> Made {
    let (mut points, mut rows) = (Vec::new(), Vec::new());
    let others = [BARS[0], BARS[1], BARS[2], BARS[3], NONE];
    for (at, application) in APPLICATIONS.into_iter().enumerate() {
        let rates = numbers(lab, at, others).map(|one| one.rate);
        let rings = numbers(lab, at, [NOT_COHERENT, COHERENT]).map(|one| one.rate);
        for (rings, (bar, published)) in
            rings.into_iter().zip([NOT_COHERENT, COHERENT].into_iter().zip(PUBLISHED_RATIOS[at]))
        {
            let ours = rates.map(|rate| rings / rate);
            for ((other, ours), published) in others.iter().zip(ours).zip(published) {
                let name = format!("{application}, {} over {}", bar.name, other.name);
                points.push(Point::of(R25, name, published, ours));
            }
            rows.push((format!("{application}, {}", bar.name), ours.to_vec()));
        }
    }
    let rows: Vec<(&str, Vec<f64>)> = rows.iter().map(|(name, values)| (name.as_str(), values.clone())).collect();
    let tables = vec![Grid::of("throughput of rings", "throughput, over", "", &others.map(|bar| bar.name), &rows)];
    Made { points, tables, ..Made::default() }
}

fn round_trips(lab: &Lab<'_>) -> Made {
    let ours = numbers(lab, 1, SEVEN).map(|one| 1e3 / one.rate);
    let points = SEVEN.iter().zip(PUBLISHED_ROUND_TRIPS.into_iter().zip(ours)).map(|(bar, (published, ours))| {
        let class = if bar.name == NONE.name { Cal } else { R25 };
        Point::of(class, bar.name, published, ours)
    });
    let rows = [("published", PUBLISHED_ROUND_TRIPS.to_vec()), ("ours", ours.to_vec())];
    let tables = vec![Grid::of("requests and responses", "microseconds", "", &SEVEN.map(|bar| bar.name), &rows)];
    Made { points: points.collect(), tables, ..Made::default() }
}

fn unprotected(lab: &Lab<'_>) -> Made {
    let mut points = Vec::new();
    for (machine, workload, clients, published, cpu) in PUBLISHED_UNPROTECTED {
        let ours = lab.of(&run(lab, machine, workload, clients, NONE));
        let unit = if workload == STREAM { "Gb/s" } else { "thousands per second" };
        points.push(Point::of(Cal, format!("{machine}, {workload}: {unit}"), published, ours.rate));
        let busy = |cpu| Point::of(Cal, format!("{machine}, {workload}: CPU time, percent"), cpu, ours.cpu_percent);
        points.extend(cpu.map(busy));
    }
    Made { points, ..Made::default() }
}
