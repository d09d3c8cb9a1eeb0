//! Figures 3, 8 and 9: how long searches are, and the bound from which on there are none.

use super::super::class::Class::{R25, Z};
use super::super::lab::{Lab, STRICT, bar};
use super::super::served::Numbers;
use super::super::shape::{falls, rises};
use super::super::{Figure, Grid, Made, Make, Point, Reason};
use super::EIOVAR;
use portcullis::Protection::Deferred;

pub(super) const FIGURE_3: Figure =
    Figure { id: "eiovar-fig3", title: "The length of searches in a stream", make: Make::FromRuns(figure_3), ..EIOVAR };
pub(super) const FIGURE_8: Figure = Figure {
    id: "eiovar-fig8",
    title: "A stream under deferred protection, by the bound of the free lists",
    reasons: &[Reason::new(
        &["growth from 240 to 300"],
        "Without searches ours is faster than the published stream, and with them it is not, so the step between the two \
         is higher. In part it is faster because the cost book has one price for finding an address at an unmap, that of \
         stock in Table 1 of rIOMMU, and under EiovaR that table has 1.8 times as much.",
    )],
    make: Make::FromRuns(figure_8),
    ..EIOVAR
};
pub(super) const FIGURE_9: Figure = Figure {
    id: "eiovar-fig9",
    title: "The length of searches under three bounds",
    make: Make::FromRuns(figure_9),
    ..EIOVAR
};

/// Bounds of the free lists. 250 addresses are freed together.
const BOUNDS: [(&str, &str); 8] = [
    ("1", "eiovar:k=1"),
    ("64", "eiovar:k=64"),
    ("128", "eiovar:k=128"),
    ("192", "eiovar:k=192"),
    ("240", "eiovar:k=240"),
    ("250", "eiovar:k=250"),
    ("300", "eiovar:k=300"),
    ("512", "eiovar:k=512"),
];
const K_64: usize = 1;
const K_240: usize = 4;
const K_250: usize = 5;
const K_300: usize = 6;

fn with_bound(lab: &Lab<'_>, bound: usize) -> Numbers {
    let (name, design) = BOUNDS[bound];
    lab.of(&lab.stream(bar(name, design, Deferred)))
}

fn grid(quantity: &str, names: &[&str], rows: &[(&str, Vec<f64>)]) -> Grid {
    Grid::of(quantity, quantity, "k", names, rows)
}

fn figure_3(lab: &Lab<'_>) -> Made {
    let stock = lab.of(&lab.stream(STRICT));
    let points = vec![
        Point::shape("searches pass addresses", stock.search > 1.0),
        Point::shape("some searches are far longer than others", stock.search_max >= 10.0 * stock.search),
    ];
    let rows = [("baseline, strict", vec![stock.search, stock.search_max])];
    let tables = vec![Grid::of("steps of a search", "steps", "", &["mean", "longest"], &rows)];
    Made { tables, points, ..Made::default() }
}

fn figure_8(lab: &Lab<'_>) -> Made {
    let all: Vec<Numbers> = (0..BOUNDS.len()).map(|bound| with_bound(lab, bound)).collect();
    let rates: Vec<f64> = all.iter().map(|one| one.rate).collect();
    let gain = |bound: usize| rates[bound] / rates[bound - 1];
    // The bound at which throughput grows most over the next smaller one.
    let knee = (1..BOUNDS.len()).max_by(|one, other| gain(*one).total_cmp(&gain(*other)));
    let is_known = rates.iter().all(|rate| !rate.is_nan());
    let points = vec![
        Point::shape("throughput grows most at 250 or 300", is_known && matches!(knee, Some(K_250 | K_300))),
        Point::of(R25, "growth from 240 to 300", 0.26, rates[K_300] / rates[K_240] - 1.0),
        Point::shape("below, throughput does not fall with the bound", rises(&rates[..=K_240], 0.05)),
        Point::of(Z, "steps per search at 300", 0.0, all[K_300].search),
    ];
    let names = BOUNDS.map(|(name, _)| name);
    let tables = vec![
        grid("throughput, Gb/s", &names, &[("deferred", rates)]),
        grid("steps per search", &names, &[("deferred", all.iter().map(|one| one.search).collect())]),
    ];
    Made { tables, points, ..Made::default() }
}

fn figure_9(lab: &Lab<'_>) -> Made {
    let bounds = [K_64, K_240, K_250];
    let all = bounds.map(|bound| with_bound(lab, bound));
    let search = all.map(|one| one.search);
    let points = vec![
        Point::shape("searches get shorter with the bound", falls(&search)),
        Point::of(Z, "steps per search at 250", 0.0, search[2]),
    ];
    let rows = [("mean", search.to_vec()), ("longest", all.map(|one| one.search_max).to_vec())];
    let tables = vec![grid("steps of a search, deferred", &bounds.map(|bound| BOUNDS[bound].0), &rows)];
    Made { tables, points, ..Made::default() }
}
