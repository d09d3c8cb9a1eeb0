//! rIOMMU (ASPLOS'15): cycles per packet of a Netperf stream, with and without walks that snoop the caches.
//!
//! A packet of that machine takes two buffers. Its cycles without protection are taken from the paper, and cycles per
//! packet are an estimate here. `riommu-packets` has the same bars from events. Only ratios are compared.

use super::runs::{Bench, Numbers};
use super::{Figure, FigureError, Grid, GridRow, Made, Make, Point, Tolerance};
use crate::machine::Machine;
use crate::number::number;
use portcullis::Protection;
use portcullis_designs::DesignId;

pub(super) const FIGURE: Figure = Figure {
    id: "riommu-cycles",
    title: "Cycles per packet with rings and without (an estimate)",
    source: "rIOMMU (ASPLOS'15), Netperf stream on r210-cx3",
    is_hypothetical: true,
    group: None,
    reasons: &[],
    make: Make::Whole(make),
};

const MACHINE: &str = "r210-cx3";
const WORK: &str = "rings:ring=4096,burst=64";
/// The cycles of a packet without protection, and its number of buffers.
const UNPROTECTED_CYCLES: f64 = 1816.0;
const BUFFERS: f64 = 2.0;
/// The published cycles of a map and of an unmap in rings, with walks that snoop.
const PUBLISHED_STEP: f64 = 131.0;

/// A bar of the figure.
struct Bar {
    name: &'static str,
    design: DesignId,
    protection: Protection,
    is_coherent: bool,
    /// Cycles per packet.
    published: Option<f64>,
}

const fn bar(name: &'static str, design: DesignId, protection: Protection, published: f64) -> Bar {
    Bar { name, design, protection, is_coherent: false, published: Some(published) }
}

const BARS: [Bar; 6] = [
    bar("strict+", DesignId::Eiovar, Protection::Strict, 10_027.0),
    bar("defer+", DesignId::Eiovar, Protection::Deferred, 6020.0),
    bar(NOT_COHERENT, DesignId::RIommu, Protection::Strict, 3455.0),
    Bar { is_coherent: true, ..bar(COHERENT, DesignId::RIommu, Protection::Strict, 2340.0) },
    Bar { published: None, ..bar(OURS_NOT_COHERENT, DesignId::Portcullis, Protection::Strict, 0.0) },
    Bar { published: None, is_coherent: true, ..bar(OURS, DesignId::Portcullis, Protection::Strict, 0.0) },
];
const NOT_COHERENT: &str = "riommu-";
const COHERENT: &str = "riommu";
const OURS_NOT_COHERENT: &str = "portcullis strict, no snooping";
const OURS: &str = "portcullis strict, snooping";
/// Published throughput relative to that of strict+, defer+ and none.
const PUBLISHED: [(&str, [f64; 3]); 2] = [(NOT_COHERENT, [2.90, 1.74, 0.52]), (COHERENT, [4.28, 2.57, 0.77])];
/// A ratio within this share of the published one counts as met.
const NEAR: f64 = 0.25;

fn make(bench: &mut Bench<'_>) -> Result<Made, FigureError> {
    bench.machine = Machine::by_id(MACHINE).expect("a machine");
    let subject = bench.subject(WORK)?;
    let runs = BARS.map(|bar| {
        let mut run = bench.run(&subject, bar.design);
        (run.protection, run.batch) = (bar.protection, bar.design.info().batch_default);
        run.machine.iommu.coherent = bar.is_coherent;
        run
    });
    let per_page: Vec<f64> = bench.make(&runs)?.iter().map(|one: &Numbers| one.outcome.cycles_per_page).collect();
    let per_packet: Vec<f64> = per_page.iter().map(|cycles| UNPROTECTED_CYCLES + BUFFERS * cycles).collect();
    let at = |name: &str| BARS.iter().position(|bar| bar.name == name).expect("one of them");
    let packet = |name: &str| per_packet[at(name)];

    let mut points = Vec::new();
    for (bar, cycles) in BARS.iter().zip(&per_packet) {
        let point = Point::new(format!("{}: cycles per packet (estimate)", bar.name), *cycles);
        points.push(bar.published.map_or(point.clone(), |published| point.beside(published)));
    }
    let mut met = 0;
    for (name, published) in PUBLISHED {
        let others = [("strict+", packet("strict+")), ("defer+", packet("defer+")), ("none", UNPROTECTED_CYCLES)];
        for ((other, cycles), published) in others.into_iter().zip(published) {
            let ours = cycles / packet(name);
            met += usize::from((ours / published - 1.0).abs() <= NEAR);
            points.push(Point::new(format!("{name} over {other}"), ours).beside(published));
        }
    }
    let steps = per_page[at(COHERENT)] / 2.0;
    let calibration = |point: Point| Point { calibration: true, ..point };
    points.extend([
        Point::new("ratios within 25 % of the published ones, of 6", met as f64).held(Tolerance::AtLeast(5.0)),
        calibration(
            Point::new("a map, or an unmap, with its share of the invalidation: cycles", steps)
                .beside(PUBLISHED_STEP)
                .held(Tolerance::Between(120.0, 155.0)),
        ),
        calibration(
            Point::new("riommu-: cycles per page, the sum of published costs", per_page[at(NOT_COHERENT)])
                .held(Tolerance::Between(780.0, 880.0)),
        ),
        calibration(
            Point::new("riommu: cycles per page, the sum of published costs", per_page[at(COHERENT)])
                .held(Tolerance::Between(240.0, 310.0)),
        ),
    ]);
    let ours = [(OURS, COHERENT), (OURS_NOT_COHERENT, NOT_COHERENT)].map(|(ours, rings)| packet(ours) / packet(rings));
    points.extend([
        Point::new("portcullis over riommu, cycles per packet, snooping", ours[0]),
        Point::new("portcullis over riommu, cycles per packet, no snooping", ours[1]),
    ]);
    let rows = BARS.iter().zip(per_page.iter().zip(&per_packet)).map(|(bar, (page, packet))| GridRow {
        name: bar.name.to_owned(),
        values: vec![bar.published, Some(*packet), bar.published.map(|published| packet / published), Some(*page)],
    });
    let grid = Grid {
        title: format!("{WORK} on {MACHINE}"),
        quantity: "cycles, of a packet of two buffers and of a page; a packet's are an estimate".to_owned(),
        across: "".to_owned(),
        columns: ["published, packet", "packet", "over published", "page"].map(str::to_owned).into(),
        rows: rows.collect(),
    };
    let findings = vec![
        format!(
            "{met} of 6 ratios are within 25 % of the published ones. The cost of a map and of an unmap in rings is the sum of separately priced steps: {} cycles each if walks snoop, including the share of an invalidation for every {} of them. The published value is about 131.",
            number(steps),
            DesignId::RIommu.info().batch_default,
        ),
        format!(
            "`portcullis` strict, on hardware that exists, takes {} times the cycles per packet of rings if walks snoop, and {} times if they do not.",
            number(ours[0]),
            number(ours[1]),
        ),
    ];
    Ok(Made { findings, tables: vec![grid], points })
}
