//! Figure 5: Memcached with 256 concurrent requests.

use super::super::class::Class::R25;
use super::super::lab::{Bar, Lab, MEMCACHED, NONE};
use super::super::served::ServedRun;
use super::super::{Figure, Grid, Made, Make};
use super::{ATC15, CORES, DESIGNS, EIOVAR, R430, made, point, sample, share};

pub(super) const FIGURE_5: Figure =
    Figure { id: "atc15-fig5", title: "Memcached on 1 to 16 cores", make: Make::FromRuns(figure_5), ..ATC15 };

/// Sixteen threads of memslap with sixteen requests each.
const CLIENTS: u32 = 256;
const CORES_SHOWN: [u32; 6] = [1, 4, 8, 9, 12, 16];

fn figure_5(lab: &Lab<'_>) -> Made {
    let run = |bar: Bar, cores| {
        let earlier_runs = if bar.design == NONE.design { Some(0) } else { None };
        ServedRun { cores, earlier_runs, ..lab.run(R430, MEMCACHED, CLIENTS, bar) }
    };
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
    let names = CORES_SHOWN.map(|cores| cores.to_string());
    let bars = [NONE, EIOVAR, magazine, identity, kmalloc];
    let row = |bar: &Bar| (bar.name, CORES_SHOWN.map(|cores| lab.of(&run(*bar, cores)).rate).to_vec());
    let rows: Vec<(&str, Vec<f64>)> = bars.iter().map(row).collect();
    let quantity = "thousands of requests per second";
    let grid = Grid::of(quantity, quantity, "cores", &names.each_ref().map(String::as_str), &rows);
    made(lab, points, vec![grid])
}
