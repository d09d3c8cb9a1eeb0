//! How much a saturated device can move, depending on what hides its walks: a prefetcher and its buffer, or leaves of
//! 2 MiB.

use super::runs::{Bench, Run};
use super::{Figure, FigureError, Grid, GridRow, Made, Make, Point, Tolerance};
use crate::number::gbps;
use crate::run::Pace;
use portcullis::Protection;
use portcullis_designs::DesignId;

pub(super) const FIGURE: Figure = Figure {
    id: "ceiling",
    title: "What a saturated device moves through strict protection, with no link in its way",
    source: "this project",
    is_hypothetical: true,
    group: None,
    reasons: &[],
    make: Make::Whole(make),
};

/// 16 rings with buffers of one page.
const PAGES: &str = "rings:count=16,ring=256,burst=16";
/// 16 rings with buffers of 2 MiB.
const LARGE: &str = "rings:count=16,ring=16,burst=1,pages=512,operations=1600";
const DEPTHS: [u32; 3] = [1, 2, 4];
const BUFFERS: [u32; 6] = [4, 8, 12, 16, 32, 64];
const BATCH: usize = 64;

fn make(bench: &mut Bench<'_>) -> Result<Made, FigureError> {
    let (pages, large) = (bench.subject(PAGES)?, bench.subject(LARGE)?);
    let run = |subject, design| Run { batch: BATCH, pace: Pace::Gaps(0.0), ..bench.run(subject, design) };
    let free = |subject| Run { protection: Protection::None, ..run(subject, DesignId::Unprotected) };
    let [strict, strict_large] = [&pages, &large].map(|subject| run(subject, DesignId::Portcullis));
    let mut runs = vec![free(&pages), free(&large), strict.clone(), strict_large];
    for depth in DEPTHS {
        let with = |buffer| Run { prefetch: format!("next:depth={depth}:buffer={buffer}"), ..strict.clone() };
        runs.extend(BUFFERS.map(with));
    }
    let numbers = bench.make(&runs)?;
    let rate = |at: usize| numbers[at].outcome.achieved_gbps.unwrap_or(f64::NAN);
    let large_misses = numbers[3].outcome.iotlb_misses_per_page;
    let with: Vec<f64> = (4..numbers.len()).map(rate).collect();
    let of = |depth: u32, buffer: u32| {
        let depth = DEPTHS.iter().position(|one| *one == depth).expect("one of them");
        let buffer = BUFFERS.iter().position(|one| *one == buffer).expect("one of them");
        with[depth * BUFFERS.len() + buffer]
    };
    let tolerance = |depth, buffer| match (depth, buffer) {
        (1, 16) => Some(Tolerance::AtLeast(430.0)),
        (1, 12) => Some(Tolerance::AtMost(160.0)),
        _ => None,
    };
    let mut points = vec![
        Point::new("unprotected, buffers of 4 KiB: Gb/s", rate(0)),
        Point::new("unprotected, buffers of 2 MiB: Gb/s", rate(1)),
        Point::new("no prefetcher, buffers of 4 KiB: Gb/s", rate(2)).held(Tolerance::Between(120.0, 126.0)),
        Point::new("no prefetcher, buffers of 2 MiB: Gb/s", rate(3)).held(Tolerance::AtLeast(490.0)),
        Point::new("no prefetcher, buffers of 2 MiB: misses per page", large_misses).held(Tolerance::AtMost(0.0021)),
    ];
    for depth in DEPTHS {
        points.extend(BUFFERS.map(|buffer| {
            let point = format!("next, depth {depth}, buffer {buffer}: Gb/s");
            Point::new(point, of(depth, buffer)).held(tolerance(depth, buffer))
        }));
    }
    let by_buffer = |depth: u32| GridRow {
        name: format!("next, depth {depth}"),
        values: BUFFERS.map(|buffer| Some(of(depth, buffer))).into(),
    };
    let flat =
        |name: &str, at: usize| GridRow { name: name.to_owned(), values: BUFFERS.map(|_| Some(rate(at))).into() };
    let rows = [flat("unprotected", 0), flat("no prefetcher", 2), flat("no prefetcher, leaves of 2 MiB", 3)];
    let grid = Grid {
        title: format!("{PAGES}, portcullis strict, batches of {BATCH}"),
        quantity: "Gb/s achieved; no link is modelled".to_owned(),
        across: "entries of the prefetcher's buffer".to_owned(),
        columns: BUFFERS.map(|buffer| buffer.to_string()).into(),
        rows: rows.into_iter().chain(DEPTHS.map(by_buffer)).collect(),
    };
    let findings = vec![
        format!(
            "Unprotected, the device moves {} Gb/s. With strict protection and no prefetcher it moves {} Gb/s: every page waits for its walk.",
            gbps(rate(0)),
            gbps(rate(2)),
        ),
        format!(
            "A prefetcher of the next page needs an entry for each of the 16 rings: {} Gb/s with 16, but {} with 12, because each prediction then evicts another before it is used.",
            gbps(of(1, 16)),
            gbps(of(1, 12)),
        ),
        format!(
            "Prefetching further ahead needs proportionally more entries: with 4 pages ahead, 16 entries reach {} Gb/s and 64 reach {}.",
            gbps(of(4, 16)),
            gbps(of(4, 64)),
        ),
        format!(
            "Buffers of 2 MiB on leaves of 2 MiB need no prefetcher: they reach {} Gb/s without one. This is the only row that today's hardware can have.",
            gbps(rate(3)),
        ),
    ];
    Ok(Made { findings, tables: vec![grid], points })
}
