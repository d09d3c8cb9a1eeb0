//! Figures 2 and 3: Linux, by the number of flows and by the size of rings.
//!
//! Each is made with both rules for what a page-selective invalidation without the hint takes from the IOTLB. No manual
//! says which is true: `exact` takes what it names, `all` takes the whole domain. `all` is a hypothesis. The rules
//! differ in the misses of the IOTLB alone, so nothing else is scored twice.
//!
//! Misses of PTcache-L3 are not scored: the spread of the addresses is an input, and so is the size of the cache, which
//! was found by misses that this paper published.

use super::super::class::Class::{C2, Cal, Input, R15, R25};
use super::super::served::{Length, Numbers, ServedRun};
use super::super::{Figure, Grid, Lab, Made, Make, Point, Reason};
use super::{CHUNKS, FANDS, FLOWS, RINGS, Row, SEEDS};

pub(super) const FIGURE_2: Figure = Figure {
    id: "fands-fig2",
    title: "Linux by the number of flows, if invalidations take from the IOTLB what they name",
    reasons: &[Reason::new(
        &["40 flows, IOTLB misses per page"],
        "This rule for what an invalidation takes from the IOTLB does not give the published misses. Under the other \
         rule, that it takes all of the domain, ours are within 2 % of them (fands-fig2-all). No manual says which is \
         true, and the rules differ in nothing else.",
    )],
    make: Make::FromRuns(|lab| figure_2(lab, EXACT)),
    ..FANDS
};
pub(super) const FIGURE_2_ALL: Figure = Figure {
    id: "fands-fig2-all",
    title: "The same, if they take all of the domain from it (a hypothesis)",
    make: Make::FromRuns(|lab| figure_2(lab, ALL)),
    ..FANDS
};
pub(super) const FIGURE_3: Figure = Figure {
    id: "fands-fig3",
    title: "Linux by the size of rings, if invalidations take from the IOTLB what they name",
    make: Make::FromRuns(|lab| figure_3(lab, EXACT)),
    ..FANDS
};
pub(super) const FIGURE_3_ALL: Figure = Figure {
    id: "fands-fig3-all",
    title: "The same, if they take all of the domain from it (a hypothesis)",
    make: Make::FromRuns(|lab| figure_3(lab, ALL)),
    ..FANDS
};

const EXACT: &str = "exact";
const ALL: &str = "all";

fn figure_2(lab: &Lab<'_>, drops: &str) -> Made {
    let mut made = by_row(lab, &FLOWS, drops);
    let [first, .., last] = &FLOWS;
    let few = lab.of(&first.linux(lab, drops, ""));
    let many = lab.of(&last.linux(lab, drops, ""));
    let unprotected = last.unprotected(lab);
    if drops == EXACT {
        made.points.extend([
            Point::shape("with 40 flows, at most 60 % of unprotected", many.rate <= 0.6 * unprotected.rate),
            Point::shape(
                "PTcache-L1 misses at least 8 times as often with 40 flows",
                many.stream.l1 >= 8.0 * few.stream.l1,
            ),
            Point::shape(
                "with 40 flows, at least half of the pages are unmapped",
                many.stream.unmapped_percent >= 50.0,
            ),
        ]);
    }
    let [exact, all] = [EXACT, ALL].map(|drops| lab.of(&last.linux(lab, drops, "")).stream.iotlb);
    let half = lab.of(&first.with_half_buffer(lab, drops)).rate;
    let recycling = |rule: &str| lab.of(&last.linux(lab, drops, &format!(",recycle={rule}"))).rate;
    let (always, never) = (recycling("always"), recycling("never"));
    let each = lab.of(&last.linux(lab, drops, ",ack=each"));
    let seeded = |seed| lab.of(&ServedRun { seed, ..last.linux(lab, drops, "") }).rate;
    let mut seeds: Vec<f64> = if lab.length == Length::Full { (1..=SEEDS).map(seeded).collect() } else { Vec::new() };
    seeds.sort_by(f64::total_cmp);
    if many.rate.is_nan() {
        return made;
    }
    made.findings = vec![
        format!(
            "With 40 flows a page misses the IOTLB {exact:.2} times if invalidations take what they name, and {all:.2} \
             times if they take all of the domain; 2.19 were published.",
        ),
        format!(
            "With half of the buffer of the card, 130,944 bytes, 5 flows would reach {half:.1} Gb/s in place of {:.1}.",
            few.rate
        ),
        format!(
            "With 40 flows, a driver that could always use pages again would reach {always:.1} Gb/s, and one that never \
             does {never:.1}; as it is, {:.1}.",
            many.rate
        ),
        format!(
            "If each packet out of order was acknowledged, 40 flows would reach {:.1} Gb/s with {:.2} acknowledgements \
             per page, and Linux's rule gives {:.1} with {:.2}.",
            each.rate, each.stream.acknowledgements, many.rate, many.stream.acknowledgements
        ),
    ];
    if let [least, .., most] = seeds[..] {
        made.findings.push(format!("With 40 flows and {SEEDS} seeds, from {least:.1} to {most:.1} Gb/s."));
    }
    made
}

fn figure_3(lab: &Lab<'_>, drops: &str) -> Made {
    by_row(lab, &RINGS, drops)
}

/// The numbers of each row, with what was published of it.
fn by_row(lab: &Lab<'_>, rows: &[Row], drops: &str) -> Made {
    let mut made = Made::default();
    let (mut ours, mut published) = (Vec::new(), Vec::new());
    for row in rows {
        let one = lab.of(&row.linux(lab, drops, ""));
        made.points.push(Point::of(
            Cal,
            format!("{}, Gb/s without protection", row.name),
            row.unprotected,
            row.unprotected(lab).rate,
        ));
        made.points.extend(points(row, &one, drops == EXACT));
        ours.push(one);
        published.push(row.published.as_ref());
    }
    let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
    let grid = |quantity: &str, of: fn(&Numbers) -> f64, published_of: fn(&super::Published) -> f64| {
        let theirs = published.iter().map(|one| one.map_or(f64::NAN, published_of)).collect();
        let rows = [("published", theirs), ("ours", ours.iter().map(of).collect())];
        Grid::of(quantity, quantity, "", &names, &rows)
    };
    let chunks = rows.iter().map(|row| row.batched(lab, CHUNKS).rate).collect();
    made.tables = vec![
        grid("Gb/s", |one| one.rate, |one| one.gbps),
        grid("IOTLB misses per page", |one| one.stream.iotlb, |one| one.iotlb),
        grid("PTcache-L1 misses per page", |one| one.stream.l1, |one| one.caches[0]),
        grid("PTcache-L3 misses per page", |one| one.stream.l3, |one| one.caches[2]),
        grid("packets sent again, percent", |one| one.stream.retransmit_percent, |one| one.retransmit_percent),
        Grid::of("Gb/s of strict portcullis, in batches of 64", "Gb/s", "", &names, &[("portcullis", chunks)]),
    ];
    made
}

/// The numbers of a row. Unless it is scored as a whole, only the misses of the IOTLB are.
fn points(row: &Row, one: &Numbers, is_whole: bool) -> Vec<Point> {
    let name = |what: &str| format!("{}, {what}", row.name);
    let stream = &one.stream;
    let acknowledgements =
        Point::new(name("acknowledgements per page"), stream.acknowledgements).beside(row.acknowledgements);
    let Some(published) = &row.published else {
        let kept =
            [("Gb/s", one.rate), ("IOTLB misses", stream.iotlb), ("L1 misses", stream.l1), ("L3 misses", stream.l3)];
        let kept = kept.map(|(what, ours)| Point::new(name(what), ours));
        return kept.into_iter().chain([acknowledgements]).collect();
    };
    let rate = if row.flows == 5 { R15 } else { R25 };
    let scored = |class, what: &str, published: f64, ours: f64| match is_whole {
        true => Point::of(class, name(what), published, ours),
        false => Point::new(name(what), ours).beside(published),
    };
    let mut points = vec![
        scored(rate, "Gb/s", published.gbps, one.rate),
        scored(C2, "packets sent again, percent", published.retransmit_percent, stream.retransmit_percent),
        Point::of(R15, name("IOTLB misses per page"), published.iotlb, stream.iotlb),
        scored(C2, "PTcache-L1 misses per page", published.caches[0], stream.l1),
        Point::of(Input, name("PTcache-L3 misses per page"), published.caches[2], stream.l3),
        acknowledgements,
    ];
    if let Some(distance) = published.reuse_distance {
        points.push(Point::of(Input, name("regions between two uses of one"), distance, stream.reuse_distance));
    }
    points
}
