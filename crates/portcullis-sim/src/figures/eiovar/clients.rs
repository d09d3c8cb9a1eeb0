//! Figure 12: Memcached with more and more clients, under strict protection.

use super::super::class::Class::R25;
use super::super::lab::{CX3, Lab, MEMCACHED, STRICT, STRICT_PLUS};
use super::super::shape::rises;
use super::super::{Figure, Grid, Made, Make, Point, Reason};
use super::EIOVAR;

pub(super) const FIGURE_12: Figure = Figure {
    id: "eiovar-fig12",
    title: "Memcached under strict protection, by its number of clients",
    reasons: &[Reason::new(
        &["the baseline falls behind with clients", "an allocation of the baseline takes longer with clients"],
        "Not from step to step: two clients search for longer than four and eight, and published searches grow with each \
         step. Two rings at different places make every search long, and more rings keep more addresses free.",
    )],
    make: Make::FromRuns(figure_12),
    ..EIOVAR
};

const CLIENTS: [u32; 6] = [1, 2, 4, 8, 16, 32];

fn figure_12(lab: &Lab<'_>) -> Made {
    let bars = [STRICT, STRICT_PLUS];
    let all = bars.map(|bar| CLIENTS.map(|clients| lab.of(&lab.run(CX3, MEMCACHED, clients, bar))));
    let rates = all.map(|numbers| numbers.map(|one| one.rate));
    let allocate = all.map(|numbers| numbers.map(|one| one.map.allocate));
    let over: [f64; 6] = std::array::from_fn(|at| rates[1][at] / rates[0][at]);
    let (first, last) = (0, CLIENTS.len() - 1);
    let is_negligible = |at: usize| allocate[1][at] <= 0.1 * allocate[0][at];
    let points = vec![
        Point::of(R25, "EiovaR over the baseline, 32 clients", 5.5, over[last]),
        Point::shape("EiovaR gets faster with clients", rises(&rates[1], 0.02)),
        Point::shape("the baseline falls behind with clients", rises(&over, 0.05) && over[last] > 2.0 * over[first]),
        Point::shape(
            "an allocation of the baseline takes longer with clients",
            rises(&allocate[0], 0.05) && allocate[0][last] > 2.0 * allocate[0][first],
        ),
        Point::shape("an allocation of EiovaR stays negligible", (first..=last).skip(1).all(is_negligible)),
    ];
    let names = CLIENTS.map(|clients| clients.to_string());
    let names = names.each_ref().map(String::as_str);
    let grid = |quantity: &str, series: [[f64; 6]; 2]| {
        let rows = [("baseline", series[0].to_vec()), ("EiovaR", series[1].to_vec())];
        Grid::of(quantity, quantity, "clients", &names, &rows)
    };
    let tables = vec![grid("thousands of requests per second", rates), grid("cycles of an allocation", allocate)];
    Made { tables, points, ..Made::default() }
}
