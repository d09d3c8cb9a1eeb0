//! Figure 11: applications with an MTU of 9000 on eight cores. Redis stores values, Nginx sends pages, and SPDK reads
//! blocks from another host.
//!
//! The paper measures Redis and Nginx where they serve, and varies the number of clients for the best rate. Its rates
//! of Nginx are those of the application. Published rates were read from the vector drawings.

use super::super::class::Class::{Cal, R25};
use super::super::lab::{Bar, NONE};
use super::super::served::{Length, Numbers, ServedRun};
use super::super::{Figure, Grid, Lab, Made, Make, Point, Reason};
use super::{CHUNKS, FANDS, LINUX, SEEDS, WINDOWS, is_as_fast, run_under};

pub(super) const FIGURE_11: Figure = Figure {
    id: "fands-fig11",
    title: "Redis, Nginx and SPDK",
    reasons: &[
        Reason::only_in(
            Length::Full,
            &["Redis, 4 KiB, Linux, of no protection"],
            "In ours the driver keeps nearly all pages mapped, as with five flows in Figure 2. If it kept none, Linux would \
             have .24 of the unprotected rate (recycle=never). What stops some of the keeping in the published run is not \
             known.",
        ),
        Reason::new(
            &["Nginx, 128 KiB, Linux, of no protection", "Nginx, 2 MiB, Linux, of no protection"],
            "Each page of a file has an invalidation of its own, and eight cores wait for each other in the one queue of the \
             unit. If it took the unit half as long again, Linux would have .36 of the unprotected rate. The times \
             are those of 2012, because none are published for this machine.",
        ),
        Reason::new(
            &["Redis, F&S, IOTLB misses with 4 KiB, of those with 128 KiB"],
            "Redis answers the requests of one read together, by its source, with one packet for about four requests. The \
             paper speaks of a reply for each. Replies apart, as clients get that do not write requests together, were not \
             tried.",
        ),
        Reason::only_in(
            Length::Full,
            &["SPDK, F&S, IOTLB misses with 32 KiB, of those with 256 KiB"],
            "With as many clients as give the best rate, requests that come together leave with few packets: 1.10 times \
             as many misses, where 1.13 would be within.",
        ),
    ],
    make: Make::FromRuns(figure_11),
    ..FANDS
};

const MACHINE: &str = "cascadelake-cx5-9k";
const CORES: u32 = 8;
/// Regions of 2 MiB over which the addresses of Linux are spread: an input, as many for each page of the rings as with
/// five flows in Figure 2, where 46 are published for 2,560 pages. Here are 8,192.
const REGIONS: u32 = 147;

/// An application with messages of one size.
pub(super) struct Work {
    name: &'static str,
    workload: &'static str,
    size: u32,
    /// Published, in Gb/s: no protection, Linux and F&S.
    published: [f64; 3],
    /// The seeds of Linux. Where it loses packets, its rates differ by a tenth from seed to seed.
    seeds: u64,
}

const REDIS_4K: Work =
    Work { name: "Redis, 4 KiB", workload: "redis:value", size: 4 << 10, published: [91.0, 31.2, 72.5], seeds: SEEDS };
/// Of Figure 12. Its rates are not published.
pub(super) const REDIS_8K: Work = Work { name: "Redis, 8 KiB", size: 8 << 10, published: [f64::NAN; 3], ..REDIS_4K };
const NGINX_128K: Work =
    Work { name: "Nginx, 128 KiB", workload: "nginx:page", size: 128 << 10, published: [90.7, 20.2, 89.0], seeds: 1 };
const SPDK_32K: Work =
    Work { name: "SPDK, 32 KiB", workload: "spdk:block", size: 32 << 10, published: [90.8, 53.6, 80.8], seeds: SEEDS };
/// The least and the greatest size of each.
const WORKS: [Work; 6] = [
    REDIS_4K,
    Work { name: "Redis, 128 KiB", size: 128 << 10, published: [97.9, 62.5, 97.8], ..REDIS_4K },
    NGINX_128K,
    Work { name: "Nginx, 2 MiB", size: 2 << 20, published: [91.4, 25.9, 91.3], ..NGINX_128K },
    SPDK_32K,
    Work { name: "SPDK, 256 KiB", size: 256 << 10, published: [99.1, 63.7, 98.0], ..SPDK_32K },
];

/// The best number of clients is looked for in long runs only.
fn clients(lab: &Lab<'_>) -> &'static [u32] {
    match lab.length {
        Length::Short => &[16],
        Length::Full => &[8, 16, 32],
    }
}

impl Work {
    /// A run with so many clients. Linux waits as it does.
    pub(super) fn run(&self, lab: &Lab<'_>, bar: Bar, clients: u32) -> ServedRun {
        let run = run_under(lab, bar, MACHINE, &format!("{}={}", self.workload, self.size), clients, REGIONS);
        ServedRun { cores: CORES, linux_wait: bar.design == LINUX.design, length: Length::Short, ..run }
    }

    /// The numbers of the seed in the middle.
    fn median(&self, lab: &Lab<'_>, bar: Bar, clients: u32) -> Numbers {
        let seeds = if bar.design == LINUX.design { self.seeds } else { 1 };
        let of_seed = |seed| lab.of(&ServedRun { seed, ..self.run(lab, bar, clients) });
        let mut all: Vec<Numbers> = (1..=seeds).map(of_seed).collect();
        all.sort_by(|one, other| one.rate.total_cmp(&other.rate));
        all.swap_remove(all.len() / 2)
    }

    /// The numbers with as many clients as give the best rate.
    fn best(&self, lab: &Lab<'_>, bar: Bar) -> Numbers {
        let all = clients(lab).iter().map(|clients| self.median(lab, bar, *clients));
        all.reduce(|best, other| if other.rate > best.rate { other } else { best }).expect("a number of clients")
    }
}

fn figure_11(lab: &Lab<'_>) -> Made {
    let all = WORKS.each_ref().map(|work| [NONE, LINUX, WINDOWS, CHUNKS].map(|bar| work.best(lab, bar)));
    let mut points = Vec::new();
    for (work, [none, linux, windows, chunks]) in WORKS.iter().zip(&all) {
        let name = |what: &str| format!("{}, {what}", work.name);
        let [off, strict, safe] = work.published;
        points.extend([
            Point::of(Cal, name("no protection, Gb/s"), off, none.rate),
            Point::of(R25, name("Linux, of no protection"), strict / off, linux.rate / none.rate),
            Point::of(R25, name("F&S, of no protection"), safe / off, windows.rate / none.rate),
            is_as_fast(&name("portcullis is as fast as F&S"), chunks, windows),
        ]);
    }
    let [least, _, _, _, blocks, large_blocks] = &all;
    let iotlb = |[_, _, windows, _]: &[Numbers; 4]| windows.stream.iotlb;
    points.extend([
        Point::shape("Linux loses most with the least values of Redis", {
            let share = |[none, linux, ..]: &[Numbers; 4]| linux.rate / none.rate;
            share(least) < share(&all[1])
        }),
        Point::of(
            R25,
            "Redis, F&S, IOTLB misses with 4 KiB, of those with 128 KiB",
            2.0,
            iotlb(least) / iotlb(&all[1]),
        ),
        Point::of(
            R25,
            "SPDK, F&S, IOTLB misses with 32 KiB, of those with 256 KiB",
            1.5,
            iotlb(blocks) / iotlb(large_blocks),
        ),
    ]);
    let columns = WORKS.each_ref().map(|work| work.name);
    let table = |title: &str, number: fn(&Numbers) -> f64| {
        let row = |bar: usize| all.iter().map(|one| number(&one[bar])).collect::<Vec<f64>>();
        let rows = [("no protection", row(0)), ("Linux", row(1)), ("F&S", row(2)), ("portcullis", row(3))];
        Grid::of(title, title, "", &columns, &rows)
    };
    let tables = vec![
        table("Gb/s", |one| one.rate),
        table("CPU time, percent of eight cores", |one| one.cpu_percent),
        table("IOTLB misses per 4 KiB", |one| one.stream.iotlb),
    ];
    Made { points, tables, ..Made::default() }
}
