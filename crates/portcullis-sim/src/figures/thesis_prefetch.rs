//! The prefetchers of the thesis behind rIOMMU (Malka, Technion 2014; ASPLOS'15, §5.4): what they gain, depending on
//! the length of their history.
//!
//! The thesis's numbers are not public. Three shapes are, and these are compared here: baseline forms are useless;
//! modified forms predict most requests once their history is longer than what is mapped at once; and distance
//! prefetching does not.

use super::runs::{Bench, Numbers, Run, Subject};
use super::{Figure, FigureError, Grid, GridRow, Made, Make, Point, Tolerance};
use crate::number::{number, percent};
use crate::outcome::RiotlbCounts;
use portcullis_designs::DesignId;

pub(super) const FIGURE: Figure = Figure {
    id: "thesis-prefetch",
    title: "IOTLB prefetchers by the length of their history",
    source: "Malka's thesis (Technion, 2014), as rIOMMU (ASPLOS'15, §5.4) tells it: shapes, no numbers",
    is_hypothetical: true,
    group: None,
    reasons: &[],
    make: Make::Whole(make),
};

const RING: &str = "rings:ring=256,burst=16";
const NVME: &str = "nvme-seqread128k.strict.4cpu";
const SHORT_RECEIVE: &str = "q-e1000e-rx.strict.2cpu";
const RECEIVE: &str = "e1000e-rx.strict.4cpu";
const SUBJECTS: [&str; 4] = [RING, NVME, SHORT_RECEIVE, RECEIVE];
const DESIGNS: [DesignId; 2] = [DesignId::Magazine, DesignId::Portcullis];
/// Lengths of the history, as multiples of the pages that are mapped at once.
const TIMES: [f64; 6] = [0.25, 0.5, 1.0, 1.5, 2.0, 4.0];
/// The multiple at which the history is longer than what is mapped.
const LONGER: f64 = 1.5;
/// The multiple at which the history is shorter.
const SHORTER: f64 = 0.5;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Markov,
    Recency,
    Distance,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Prefetcher {
    kind: Kind,
    is_modified: bool,
}

const PREFETCHERS: [Prefetcher; 6] = {
    const fn both(kind: Kind) -> [Prefetcher; 2] {
        [Prefetcher { kind, is_modified: false }, Prefetcher { kind, is_modified: true }]
    }
    let ([a, b], [c, d], [e, f]) = (both(Kind::Markov), both(Kind::Recency), both(Kind::Distance));
    [a, b, c, d, e, f]
};

impl Prefetcher {
    fn name(self) -> String {
        let kind = match self.kind {
            Kind::Markov => "markov",
            Kind::Recency => "recency",
            Kind::Distance => "distance",
        };
        format!("{kind} {}", self.form())
    }

    const fn form(self) -> &'static str {
        if self.is_modified { "modified" } else { "baseline" }
    }

    /// The prefetcher in the form of the command line, with a history of `length` entries.
    fn spec(self, length: u64) -> String {
        let form = self.form();
        match self.kind {
            Kind::Markov => format!("markov:rows={length}:slots=2:form={form}"),
            Kind::Recency => format!("recency:length={length}:form={form}"),
            Kind::Distance => format!("distance:rows={length}:slots=2:form={form}"),
        }
    }

    /// The range in which the share that it covers must lie.
    fn tolerance(self, subject: &str, design: DesignId, times: f64) -> Option<Tolerance> {
        use Tolerance::{AtLeast, AtMost};
        let is_receive = subject == SHORT_RECEIVE || subject == RECEIVE;
        match (self.kind, design) {
            (Kind::Markov | Kind::Recency, _) if !self.is_modified => Some(AtMost(0.02)),
            (Kind::Markov | Kind::Recency, DesignId::Magazine) if times == LONGER => {
                Some(AtLeast(if is_receive { 0.6 } else { 0.9 }))
            }
            (Kind::Markov | Kind::Recency, DesignId::Magazine) if times == SHORTER => {
                Some(AtMost(if subject == NVME { 0.35 } else { 0.05 }))
            }
            (Kind::Markov | Kind::Recency, DesignId::Portcullis) if times == LONGER => {
                (subject == RING || subject == SHORT_RECEIVE).then_some(AtMost(0.01))
            }
            (Kind::Distance, DesignId::Magazine) if times == LONGER && self.is_modified => match subject {
                RING => Some(AtLeast(0.97)),
                _ if is_receive => Some(AtMost(0.5)),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The runs of one work under one design: without a prefetcher, and with each prefetcher at each length.
struct Part<'s> {
    subject: &'s Subject,
    design: DesignId,
    without: Numbers,
    /// The results by prefetcher, then by length.
    with: Vec<Vec<Numbers>>,
}

impl Part<'_> {
    /// The share of the misses without prefetching that the prefetcher avoids.
    fn covered(&self, with: &Numbers) -> f64 {
        1.0 - with.outcome.iotlb_misses_per_page / self.without.outcome.iotlb_misses_per_page
    }

    fn covered_by(&self, prefetcher: Prefetcher, times: f64) -> f64 {
        let of = PREFETCHERS.iter().position(|one| *one == prefetcher).expect("one of them");
        let at = TIMES.iter().position(|one| *one == times).expect("one of them");
        self.covered(&self.with[of][at])
    }
}

fn make(bench: &mut Bench<'_>) -> Result<Made, FigureError> {
    let subjects = SUBJECTS.map(|name| bench.subject(name)).into_iter().collect::<Result<Vec<_>, _>>()?;
    of_subjects(bench, &subjects)
}

/// A run on rings, which need no history: the entry behind the cached one is fetched ahead.
struct InRings<'s> {
    subject: &'s Subject,
    counts: RiotlbCounts,
}

impl InRings<'_> {
    /// The share of the switches between entries that do not go to the next entry.
    fn out_of_order(&self) -> f64 {
        self.counts.out_of_order as f64 / self.counts.switches as f64
    }

    fn points(&self) -> [Point; 2] {
        let name = self.subject.name;
        // A disk completes its requests in any order.
        let tolerance = (name != NVME).then_some(Tolerance::AtMost(0.001));
        let known = self.counts.switches - self.counts.out_of_order;
        let missed = self.counts.after_invalidation + self.counts.mapped_later + self.counts.close_behind;
        let fetched = 1.0 - missed as f64 / known as f64;
        [
            Point::new(format!("{name}, riommu: out of order, of the switches"), self.out_of_order()).held(tolerance),
            Point::new(format!("{name}, riommu: fetched ahead, of those in order"), fetched),
        ]
    }

    /// An entry was fetched ahead if it was mapped in time and not invalidated since.
    fn row(&self) -> GridRow {
        let RiotlbCounts { switches, out_of_order, after_invalidation, mapped_later, close_behind, first, .. } =
            self.counts;
        let counts = [switches, out_of_order, after_invalidation, mapped_later, close_behind, first];
        let values = counts.map(|count| Some(count as f64));
        GridRow { name: self.subject.name.to_owned(), values: values.into() }
    }
}

fn in_rings<'s>(bench: &mut Bench<'_>, subjects: &'s [Subject]) -> Result<Vec<InRings<'s>>, FigureError> {
    let batch = DesignId::RIommu.info().batch_default;
    let run = |subject| Run { batch, ..bench.run(subject, DesignId::RIommu) };
    let runs: Vec<Run<'s>> = subjects.iter().map(run).collect();
    let counts = bench.make(&runs)?.into_iter().map(|one| one.outcome.riotlb.expect("there are rings"));
    Ok(subjects.iter().zip(counts).map(|(subject, counts)| InRings { subject, counts }).collect())
}

fn of_subjects(bench: &mut Bench<'_>, subjects: &[Subject]) -> Result<Made, FigureError> {
    let rings = in_rings(bench, subjects)?;
    let mut runs = Vec::new();
    for subject in subjects {
        for design in DESIGNS {
            let run = bench.run(subject, design);
            runs.push(run.clone());
            for prefetcher in PREFETCHERS {
                let with = TIMES.map(|times| Run { prefetch: prefetcher.spec(length(subject, times)), ..run.clone() });
                runs.extend(with);
            }
        }
    }
    let mut numbers = bench.make(&runs)?.into_iter();
    let mut parts = Vec::new();
    for subject in subjects {
        for design in DESIGNS {
            let without = numbers.next().expect("as many as runs");
            let with = PREFETCHERS.map(|_| numbers.by_ref().take(TIMES.len()).collect()).into();
            parts.push(Part { subject, design, without, with });
        }
    }
    let tables = parts.iter().flat_map(|part| {
        [("covered: the share of the IOTLB's misses without prefetching that are gone", true), (HIT_RATE, false)]
            .map(|(quantity, is_covered)| grid(part, quantity, is_covered))
    });
    let columns = [
        "switches",
        "out of order",
        "first after an invalidation",
        "mapped later",
        "close behind the one before",
        "first of a ring",
    ];
    let riotlb = Grid {
        title: "rIOTLB: one entry of each ring is cached, and the one behind it".to_owned(),
        quantity:
            "requests for another entry than the one before; those that had to be read while a device waited, by reason"
                .to_owned(),
        across: "".to_owned(),
        columns: columns.map(str::to_owned).into(),
        rows: rings.iter().map(InRings::row).collect(),
    };
    let points = parts.iter().flat_map(points).chain(rings.iter().flat_map(InRings::points));
    let found = findings(&parts).into_iter().chain([finding_of_rings(&rings)]).collect();
    Ok(Made { findings: found, tables: tables.chain([riotlb]).collect(), points: points.collect() })
}

const HIT_RATE: &str = "hit rate: the share of transactions that wait for no walk of their own";

/// The entries of a history that is `times` as long as what is mapped at once.
fn length(subject: &Subject, times: f64) -> u64 {
    ((subject.live_pages as f64 * times) as u64).max(1)
}

fn grid(part: &Part<'_>, quantity: &'static str, is_covered: bool) -> Grid {
    let value = |with: &Numbers| if is_covered { part.covered(with) } else { with.hit_rate };
    let row = |(prefetcher, with): (Prefetcher, &Vec<Numbers>)| {
        let values = with.iter().map(|one| Some(value(one))).collect();
        GridRow { name: prefetcher.name(), values }
    };
    let Part { subject, design, .. } = part;
    let title = format!("{}, {}: {} pages mapped at once", subject.name, design.info().id, subject.live_pages);
    let (across, columns) = ("history, by the pages mapped at once", TIMES.map(|times| times.to_string()).into());
    let (quantity, across) = (quantity.to_owned(), across.to_owned());
    Grid { title, quantity, across, columns, rows: PREFETCHERS.into_iter().zip(&part.with).map(row).collect() }
}

fn points(part: &Part<'_>) -> Vec<Point> {
    let Part { subject, design, .. } = part;
    let mut points = Vec::new();
    for (prefetcher, with) in PREFETCHERS.into_iter().zip(&part.with) {
        for (times, with) in TIMES.into_iter().zip(with) {
            let what = format!("{}, {}, {}, {times} x live", subject.name, design.info().id, prefetcher.name());
            let tolerance = prefetcher.tolerance(subject.name, *design, times);
            points.push(Point::new(format!("{what}: covered"), part.covered(with)).held(tolerance));
            points.push(Point::new(format!("{what}: hit rate"), with.hit_rate));
        }
    }
    points
}

fn findings(parts: &[Part<'_>]) -> Vec<String> {
    let of = |subject: &str, design: DesignId, kind: Kind, times: f64| {
        let part = parts.iter().find(|part| part.subject.name == subject && part.design == design)?;
        Some(part.covered_by(Prefetcher { kind, is_modified: true }, times))
    };
    let shown = |share: Option<f64>| share.map_or("?".to_owned(), number);
    let baseline = parts.iter().flat_map(|part| {
        let of = |kind| TIMES.map(|times| part.covered_by(Prefetcher { kind, is_modified: false }, times));
        [Kind::Markov, Kind::Recency].map(of).concat()
    });
    let baseline = baseline.fold(f64::NEG_INFINITY, f64::max);
    let magazine = |subject, kind, times| shown(of(subject, DesignId::Magazine, kind, times));
    let portcullis = |subject, kind, times| shown(of(subject, DesignId::Portcullis, kind, times));
    vec![
        format!(
            "Baseline Markov and recency cover at most {} anywhere: an address is invalidated after one use, and its history is lost with it.",
            number(baseline)
        ),
        format!(
            "If history survives, it has to be longer than what is mapped at once. Under `magazine`, Markov covers {} of the ring's misses with half of that length, and {} with one and a half times that length; on {RECEIVE} it covers {} and {}.",
            magazine(RING, Kind::Markov, SHORTER),
            magazine(RING, Kind::Markov, LONGER),
            magazine(RECEIVE, Kind::Markov, SHORTER),
            magazine(RECEIVE, Kind::Markov, LONGER),
        ),
        format!(
            "Distance prefetching is published as poor. The cause is the order of addresses: the prefetcher only knows the distances between them. Under `magazine` it covers {} on the ring, which is served alone, and {} on {RECEIVE}, where magazines shuffle addresses. In the order of `portcullis` it covers {} there.",
            magazine(RING, Kind::Distance, LONGER),
            magazine(RECEIVE, Kind::Distance, LONGER),
            portcullis(RECEIVE, Kind::Distance, LONGER),
        ),
        format!(
            "Under `portcullis`, Markov covers {} and recency {} of the ring's misses at one and a half times that length: an address is reused only after all others of its table of 512 pages, so no history as long as the ring contains it. The next page is known without any history (see `contiguity`).",
            portcullis(RING, Kind::Markov, LONGER),
            portcullis(RING, Kind::Recency, LONGER),
        ),
    ]
}

fn finding_of_rings(rings: &[InRings<'_>]) -> String {
    let networks = rings.iter().filter(|rings| rings.subject.name != NVME);
    let most = networks.map(InRings::out_of_order).fold(0.0, f64::max);
    let early = match rings.iter().map(|rings| rings.counts.close_behind).sum() {
        0_u64 => String::new(),
        some => format!(", and {some} requests came before the preceding entry had arrived"),
    };
    format!(
        "Rings need two entries each and no history: at most {} of the switches of a network's rings go elsewhere than to the next entry{early}. Every other entry in order that had to be read while a device waited was the first of its ring or after an invalidation, or was not mapped yet when it was read ahead.",
        percent(most),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::runs::tests::on_bench;

    /// The shapes on a ring that wraps around a few times. The whole figure would take half a minute.
    #[test]
    fn the_published_shapes_show_on_a_ring() {
        let made = on_bench(|bench| {
            let subject = bench.subject("rings:ring=256,burst=16,operations=4000").expect("rings");
            let subject = Subject { name: RING, ..subject };
            of_subjects(bench, &[subject]).expect("runs")
        });
        let held: Vec<_> = made.points.iter().filter(|point| point.within.is_some()).collect();
        assert_eq!(held.len(), DESIGNS.len() * 2 * TIMES.len() + 2 * 2 + 2 + 1 + 1);
        for point in held {
            assert_eq!(point.within, Some(true), "{point:?}");
        }
        assert_eq!(made.tables.len(), 5);
        // No request here is out of order, nor close behind another.
        let riotlb = &made.tables[4].rows[0].values;
        assert_eq!(made.tables[4].columns.len(), riotlb.len());
        assert_eq!((riotlb[1], riotlb[4]), (Some(0.0), Some(0.0)), "{riotlb:?}");
        assert!(
            made.findings.iter().any(|it| it.contains("the next entry. Every other entry in order")),
            "{:?}",
            made.findings
        );
        // Half, and one and a half times: the two sides of the published shape.
        let markov = &made.tables[0].rows[1];
        assert_eq!(markov.name, "markov modified");
        assert!(markov.values[1] < Some(0.05) && markov.values[3] > Some(0.9), "{markov:?}");
    }
}
