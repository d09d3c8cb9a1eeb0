//! Figures 4 to 7: a stream again and again on the same addresses, under bounds of the free lists.

use super::super::class::Class::{C2, R25, Z};
use super::super::lab::{Lab, bar};
use super::super::served::{Length, Numbers};
use super::super::shape::{greatest, have_one_trend, is_flat, least, mean};
use super::super::{Figure, Grid, Made, Make, Point, Reason};
use super::EIOVAR;
use Length::Full;
use portcullis::Protection::{self, Deferred, Strict};

pub(super) const FIGURE_4: Figure = Figure {
    id: "eiovar-fig4",
    title: "A stream under strict protection, again and again",
    reasons: &[
        Reason::only_in(
            Full,
            &["EiovaR is 20 to 60 % faster"],
            "Long runs make all nine iterations, and not the first, the fifth and the ninth alone. The baseline searches \
             little in most of those between, so on average EiovaR gains less.",
        ),
        Reason::only_in(
            Full,
            &[
                "average free list, k = 8",
                "average free list, k = 64",
                "average free list, k = 512",
                "average free list, unbounded",
            ],
            "The lists hold 1.5 addresses in some iterations and half of one in others, and the three that short runs \
             make are among the former. Not explained: why that changes from one iteration to the next.",
        ),
    ],
    make: Make::FromRuns(figure_4),
    ..EIOVAR
};
pub(super) const FIGURE_5: Figure = Figure {
    id: "eiovar-fig5",
    title: "What a map of such a stream consists of",
    reasons: &[Reason::new(
        &["an allocation of EiovaR is negligible"],
        "In the first run after the card was opened, the baseline hardly searches, so that EiovaR takes more than a tenth \
         of its time; in later runs it does not. Not explained: the published first run searches. Two control messages \
         in place of one, and transmit buffers that a timer of the driver unmaps, did not change ours.",
    )],
    make: Make::FromRuns(figure_5),
    ..EIOVAR
};
pub(super) const FIGURE_6: Figure = Figure {
    id: "eiovar-fig6",
    title: "What an unmap of such a stream consists of",
    make: Make::FromRuns(figure_6),
    ..EIOVAR
};
pub(super) const FIGURE_7: Figure = Figure {
    id: "eiovar-fig7",
    title: "A stream under deferred protection, again and again",
    make: Make::FromRuns(figure_7),
    ..EIOVAR
};

/// The variants: the baseline, and EiovaR by its bound.
const VARIANTS: [(&str, &str); 6] = [
    ("baseline", "stock"),
    ("k = 1", "eiovar:k=1"),
    ("k = 8", "eiovar:k=8"),
    ("k = 64", "eiovar:k=64"),
    ("k = 512", "eiovar:k=512"),
    ("unbounded", "eiovar"),
];
const BASELINE: usize = 0;
const K_1: usize = 1;
const K_8: usize = 2;
const K_64: usize = 3;
const K_512: usize = 4;
const UNBOUNDED: usize = 5;

/// The iterations that are made, from 1 on. The paper has nine.
fn iterations(length: Length) -> Vec<u32> {
    match length {
        Length::Short => vec![1, 5, 9],
        Length::Full => (1..=9).collect(),
    }
}

/// The numbers of a variant at each iteration.
fn of_variant(lab: &Lab<'_>, variant: usize, protection: Protection) -> Vec<Numbers> {
    let (name, design) = VARIANTS[variant];
    let run = |iteration| {
        let mut run = lab.stream(bar(name, design, protection));
        run.earlier_runs = Some(iteration - 1);
        lab.of(&run)
    };
    iterations(lab.length).into_iter().map(run).collect()
}

fn each_variant(lab: &Lab<'_>, protection: Protection) -> Vec<Vec<Numbers>> {
    (0..VARIANTS.len()).map(|variant| of_variant(lab, variant, protection)).collect()
}

fn series(numbers: &[Numbers], of: impl Fn(&Numbers) -> f64) -> Vec<f64> {
    numbers.iter().map(of).collect()
}

/// A grid with a row for each name, by iteration.
fn grid(lab: &Lab<'_>, quantity: &str, rows: &[(&str, Vec<f64>)]) -> Grid {
    let names: Vec<String> = iterations(lab.length).iter().map(u32::to_string).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Grid::of(quantity, quantity, "iteration", &names, rows)
}

/// The four parts of Figures 4 and 7.
fn four_grids(lab: &Lab<'_>, all: &[Vec<Numbers>]) -> Vec<Grid> {
    type Of = fn(&Numbers) -> f64;
    let parts: [(&str, Of); 4] = [
        ("throughput, Gb/s", |one| one.rate),
        ("allocations that the free lists satisfied, percent", |one| 100.0 * one.lists.satisfied),
        ("average length of the free lists", |one| one.lists.mean),
        ("steps per search", |one| one.search),
    ];
    let rows = |of: Of| -> Vec<(&str, Vec<f64>)> {
        VARIANTS.iter().zip(all).map(|((name, _), numbers)| (*name, series(numbers, of))).collect()
    };
    parts.into_iter().map(|(quantity, of)| grid(lab, quantity, &rows(of))).collect()
}

fn figure_4(lab: &Lab<'_>) -> Made {
    let all = each_variant(lab, Strict);
    let rates: Vec<Vec<f64>> = all.iter().map(|one| series(one, |one| one.rate)).collect();
    let rate = |variant: usize| mean(&rates[variant]);
    let bounded: Vec<f64> = (K_1..=UNBOUNDED).map(rate).collect();
    let (first, later) = (rates[BASELINE][0], mean(&rates[BASELINE][1..]));
    let average = |variant: usize| mean(&series(&all[variant], |one| one.lists.mean));
    let satisfied = series(&all[K_1], |one| one.lists.satisfied);
    let mut points = vec![
        Point::shape("EiovaR is about as fast with any bound", is_flat(&bounded, 0.1)),
        Point::shape("EiovaR is 20 to 60 % faster", (1.2..=1.6).contains(&(mean(&bounded) / rate(BASELINE)))),
        Point::shape("the baseline gets slower with iterations", later < first),
        Point::shape("k = 1 satisfies nearly all allocations", least(&satisfied) >= 0.9),
        Point::of(C2, "average free list, k = 1", 0.5, average(K_1)),
    ];
    let larger = [K_8, K_64, K_512, UNBOUNDED];
    points.extend(larger.map(|k| Point::of(C2, format!("average free list, {}", VARIANTS[k].0), 2.5, average(k))));
    let search = greatest(&series(&all[UNBOUNDED], |one| one.search));
    points.push(Point::of(Z, "steps per search, unbounded", 0.0, search));
    Made { tables: four_grids(lab, &all), points, ..Made::default() }
}

fn figure_5(lab: &Lab<'_>) -> Made {
    let [stock, lists] = [BASELINE, UNBOUNDED].map(|variant| of_variant(lab, variant, Strict));
    let allocate = |numbers: &[Numbers]| series(numbers, |one| one.map.allocate);
    let rest = |numbers: &[Numbers]| series(numbers, |one| one.map.table + one.map.other);
    let points = vec![
        // The paper does not say which part is larger. It says that this one has the trend of Figure 4d (§6.1).
        Point::shape(
            "an allocation of the baseline has the trend of its searches",
            have_one_trend(&allocate(&stock), &series(&stock, |one| one.search)),
        ),
        Point::shape("the rest of a map of the baseline stays constant", is_flat(&rest(&stock), 0.1)),
        Point::shape(
            "an allocation of EiovaR is negligible",
            greatest(&allocate(&lists)) <= 0.1 * least(&allocate(&stock)),
        ),
    ];
    let rows = [
        ("baseline, allocation", allocate(&stock)),
        ("baseline, the rest", rest(&stock)),
        ("EiovaR, allocation", allocate(&lists)),
        ("EiovaR, the rest", rest(&lists)),
    ];
    Made { tables: vec![grid(lab, "cycles of a map", &rows)], points, ..Made::default() }
}

fn figure_6(lab: &Lab<'_>) -> Made {
    let [stock, lists] = [BASELINE, UNBOUNDED].map(|variant| of_variant(lab, variant, Strict));
    let free = |numbers: &[Numbers]| series(numbers, |one| one.unmap.free);
    let invalidate = |numbers: &[Numbers]| series(numbers, |one| one.unmap.invalidate);
    let rest = |numbers: &[Numbers]| series(numbers, |one| one.unmap.find + one.unmap.table + one.unmap.other);
    let is_most = |numbers: &[Numbers]| numbers.iter().all(|one| one.unmap.invalidate > 0.5 * one.unmap.sum());
    let points = vec![
        Point::shape("a free of the baseline takes the same at each iteration", is_flat(&free(&stock), 0.2)),
        Point::shape("a free of EiovaR takes the same at each iteration", is_flat(&free(&lists), 0.2)),
        Point::shape("a free of EiovaR is faster", greatest(&free(&lists)) < least(&free(&stock))),
        Point::shape("invalidating is most of an unmap", is_most(&stock) && is_most(&lists)),
    ];
    let rows = [
        ("baseline, free", free(&stock)),
        ("baseline, invalidation", invalidate(&stock)),
        ("baseline, the rest", rest(&stock)),
        ("EiovaR, free", free(&lists)),
        ("EiovaR, invalidation", invalidate(&lists)),
        ("EiovaR, the rest", rest(&lists)),
    ];
    Made { tables: vec![grid(lab, "cycles of an unmap", &rows)], points, ..Made::default() }
}

fn figure_7(lab: &Lab<'_>) -> Made {
    let all = each_variant(lab, Deferred);
    let average = |variant: usize, of: fn(&Numbers) -> f64| mean(&series(&all[variant], of));
    let rate = |variant| average(variant, |one| one.rate);
    let list = |variant| average(variant, |one| one.lists.mean);
    let name = |variant: usize| VARIANTS[variant].0;
    let (slow, fast) = ([BASELINE, K_1, K_8, K_64], [K_512, UNBOUNDED]);
    let mut points = vec![Point::shape(
        "two groups: k = 512 and unbounded, and all others",
        least(&fast.map(rate)) > 1.2 * greatest(&slow.map(rate)),
    )];
    points.extend(slow.map(|k| Point::of(R25, format!("throughput, Gb/s, {}", name(k)), 4.0, rate(k))));
    points.extend(fast.map(|k| Point::of(R25, format!("throughput, Gb/s, {}", name(k)), 6.0, rate(k))));
    let satisfied = average(K_64, |one| one.lists.satisfied);
    points.push(Point::of(R25, "share that the free lists satisfied, k = 64", 0.25, satisfied));
    let below = [(K_1, 0.5), (K_8, 4.0), (K_64, 32.0)];
    points.extend(below.map(|(k, half)| Point::of(C2, format!("average free list, {}", name(k)), half, list(k))));
    points.extend(fast.map(|k| Point::of(C2, format!("average free list, {}", name(k)), 128.0, list(k))));
    let search = |k: usize| greatest(&series(&all[k], |one| one.search));
    points.extend(fast.map(|k| Point::of(Z, format!("steps per search, {}", name(k)), 0.0, search(k))));
    Made { tables: four_grids(lab, &all), points, ..Made::default() }
}
