//! What a contiguous order of addresses gains: every strict design with every prefetcher.

use super::runs::{Bench, Run};
use super::{Figure, FigureError, Grid, GridRow, Made, Make, Point, Tolerance};
use crate::number::number;
use crate::run::LabDesign;
use portcullis::Protection;
use portcullis_designs::DesignId;

pub(super) const FIGURE: Figure = Figure {
    id: "contiguity",
    title: "What a contiguous order of addresses makes of prefetchers",
    source: "this project",
    is_hypothetical: true,
    group: None,
    reasons: &[],
    make: Make::Whole(make),
};

const RING: &str = "rings:ring=256,burst=16";
const SEND: &str = "e1000e-tx.strict.4cpu";
const SUBJECTS: [&str; 3] = [RING, "q-e1000e-rx.strict.2cpu", SEND];
/// A prefetcher of one page, and a driver that announces the pages that it has mapped for reading.
const HINTED: &str = "next:depth=1:buffer=16+map-hint=reads";
/// The prefetchers, each with the name of its column. `LENGTH` stands for one and a half times the pages that are
/// mapped at once.
const PREFETCHERS: [(&str, &str); 7] = [
    ("none", "none"),
    ("adjacent", "adjacent"),
    ("next", "next:depth=1:buffer=16"),
    ("next, hints at map", HINTED),
    ("markov", "markov:rows=LENGTH"),
    ("recency", "recency:length=LENGTH"),
    ("distance", "distance:rows=LENGTH"),
];

fn make(bench: &mut Bench<'_>) -> Result<Made, FigureError> {
    let subjects = SUBJECTS.map(|name| bench.subject(name)).into_iter().collect::<Result<Vec<_>, _>>()?;
    // Rings have their own prefetcher, and no other.
    let is_strict = |design: &LabDesign| {
        design.info().protections.contains(&Protection::Strict) && !design.info().is_hypothetical()
    };
    let designs: Vec<LabDesign> = bench.designs.iter().copied().filter(is_strict).collect();
    let mut runs = Vec::new();
    for subject in &subjects {
        let length = (subject.live_pages * 3 / 2).to_string();
        for design in &designs {
            let run = bench.run(subject, *design);
            let with =
                |(_, prefetch): (&str, &str)| Run { prefetch: prefetch.replace("LENGTH", &length), ..run.clone() };
            runs.extend(PREFETCHERS.map(with));
        }
    }
    let misses: Vec<f64> = bench.make(&runs)?.into_iter().map(|one| one.outcome.iotlb_misses_per_page).collect();
    let of = |subject: &str, design: DesignId, prefetch: &str| {
        let subject = SUBJECTS.iter().position(|one| *one == subject).expect("one of them");
        let design = designs.iter().position(|one| *one == design.into()).expect("one of them");
        let prefetcher = PREFETCHERS.iter().position(|(_, one)| *one == prefetch).expect("one of them");
        misses[(subject * designs.len() + design) * PREFETCHERS.len() + prefetcher]
    };
    let mut made = Made::default();
    for (subject, of_subject) in subjects.iter().zip(misses.chunks(designs.len() * PREFETCHERS.len())) {
        let rows = designs.iter().zip(of_subject.chunks(PREFETCHERS.len()));
        for (design, misses) in rows.clone() {
            made.points.extend(PREFETCHERS.iter().zip(misses).map(|((prefetcher, _), misses)| {
                Point::new(format!("{}, {}, {prefetcher}: misses per page", subject.name, design.info().id), *misses)
            }));
        }
        let row = |(design, misses): (&LabDesign, &[f64])| GridRow {
            name: design.info().id.to_owned(),
            values: misses.iter().copied().map(Some).collect(),
        };
        made.tables.push(Grid {
            title: format!("{}, strict, single unmaps", subject.name),
            quantity: "IOTLB misses per page".to_owned(),
            across: "prefetcher".to_owned(),
            columns: PREFETCHERS.iter().map(|(name, _)| (*name).to_owned()).collect(),
            rows: rows.map(row).collect(),
        });
    }
    let sent = [DesignId::Portcullis, DesignId::Magazine].map(|design| of(SEND, design, HINTED));
    made.points.extend([
        Point::new(format!("{SEND}, portcullis with hints at map: misses per page, at most"), sent[0])
            .held(Tolerance::AtMost(0.02)),
        Point::new(format!("{SEND}, magazine over portcullis, both with hints at map"), sent[1] / sent[0])
            .held(Tolerance::AtLeast(5.0)),
    ]);
    let next = PREFETCHERS[2].1;
    let without = misses.iter().copied().step_by(PREFETCHERS.len());
    made.findings = vec![
        format!(
            "The simplest prefetcher of all, the next page, leaves {} misses a page on the ring in the order of `portcullis`, {} in that of `magazine` and {} in that of `stock`. If addresses are in order, no history is needed.",
            number(of(RING, DesignId::Portcullis, next)),
            number(of(RING, DesignId::Magazine, next)),
            number(of(RING, DesignId::Stock, next)),
        ),
        format!(
            "If the driver also announces what the device will read, {} misses a page remain for {SEND} under `portcullis`, and {} under `magazine`. The trace has no log of its device, so the replay lets it read a buffer as soon as it is mapped: a device that reads later may find the page evicted from the buffer.",
            number(sent[0]),
            number(sent[1]),
        ),
        format!(
            "Without a prefetcher, strict designs miss {} to {} times a page: every page has a new address and misses once, except for pages that mappings share under `identity`.",
            number(without.clone().fold(f64::INFINITY, f64::min)),
            number(without.fold(0.0, f64::max)),
        ),
    ];
    Ok(made)
}
