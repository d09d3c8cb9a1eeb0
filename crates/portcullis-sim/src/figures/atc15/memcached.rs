//! Figure 5: Memcached with 256 concurrent requests.

use super::super::class::Class::R25;
use super::super::lab::{Bar, Lab, MEMCACHED, NONE};
use super::super::served::ServedRun;
use super::super::{Figure, Made, Make};
use super::{ATC15, CORES, DESIGNS, EIOVAR, R430, made, point, sample, share, table};

pub(super) const FIGURE_5: Figure =
    Figure { id: "atc15-fig5", title: "Memcached on 1 to 16 cores", make: Make::FromRuns(figure_5), ..ATC15 };

/// Sixteen threads of memslap with sixteen requests each.
const CLIENTS: u32 = 256;
const CORES_SHOWN: [u32; 6] = [1, 4, 8, 9, 12, 16];

fn figure_5(lab: &Lab<'_>) -> Made {
    let run = |bar: Bar, cores| ServedRun { cores, ..lab.run(R430, MEMCACHED, CLIENTS, bar) };
    let share = |bar, cores| share(lab, &run(bar, cores));
    // With all cores, without protection, the link is full.
    let of_line =
        |cores| sample(lab, [&run(EIOVAR, cores), &run(NONE, CORES)], |[eiovar, none]| eiovar.rate / none.rate);
    let [magazine, identity, kmalloc] = DESIGNS;
    let mut points = vec![
        point(R25, "identity over none, 1 core", 0.89, share(identity, 1)),
        point(R25, "kmalloc over none, 1 core", 0.91, share(kmalloc, 1)),
        point(R25, "identity over none, 9 cores", 0.895, share(identity, 9)),
        point(R25, "kmalloc over none, 9 cores", 0.915, share(kmalloc, 9)),
        point(R25, "EiovaR over the line rate, 9 cores", 0.4, of_line(9)),
        point(R25, "EiovaR over the line rate, 16 cores", 0.4, of_line(CORES)),
    ];
    for bar in [magazine, identity, kmalloc] {
        points.push(point(R25, format!("{} over none, 16 cores", bar.name), 1.0, share(bar, CORES)));
    }
    let bars = [NONE, EIOVAR, magazine, identity, kmalloc];
    let rate = |bar, cores| lab.of(&run(bar, cores)).rate;
    let grid = table("thousands of requests per second", "cores", CORES_SHOWN, &bars, rate);
    made(lab, points, vec![grid])
}
