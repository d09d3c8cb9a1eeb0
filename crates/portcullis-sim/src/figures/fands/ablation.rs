//! Figure 12: what each part of F&S saves Redis with values of 8 KiB. The paper adds to Linux the caches that are kept
//! (A), or contiguous addresses with one invalidation for many pages (B), or both. It publishes that neither alone is
//! enough. Page by page, and `portcullis`, stand beside it.
//!
//! Page by page takes more than its part: a page is unmapped when its descriptor is used up.

use super::super::served::{Numbers, ServedRun};
use super::super::{Figure, Grid, Lab, Made, Make, Point, Reason};
use super::applications::REDIS_8K;
use super::{CHUNKS, FANDS, LINUX, WINDOWS, is_as_fast};

pub(super) const FIGURE_12: Figure = Figure {
    id: "fands-fig12",
    title: "F&S by its parts",
    reasons: &[Reason::new(
        &["contiguity and one invalidation are not enough"],
        "One invalidation for 64 pages empties the caches of tables rarely. Walks read 1.9 times per page in place of 1.5, \
         and the link stays full.",
    )],
    make: Make::FromRuns(figure_12),
    ..FANDS
};

const CLIENTS: u32 = 16;

fn figure_12(lab: &Lab<'_>) -> Made {
    let [linux, whole, chunks] = [LINUX, WINDOWS, CHUNKS].map(|bar| REDIS_8K.run(lab, bar, CLIENTS));
    let runs = [
        ("Linux", linux.clone()),
        ("A: caches kept", ServedRun { no_hint: false, ..linux }),
        ("B: contiguous, one invalidation", ServedRun { no_hint: true, ..whole.clone() }),
        ("F&S", whole.clone()),
        (
            "F&S page by page",
            ServedRun { batch: Some(1), workload: format!("{},recycle=never,regions=0", whole.workload), ..whole },
        ),
        ("portcullis", chunks),
    ];
    let ours = runs.each_ref().map(|(_, run)| lab.of(run));
    let [linux, kept, contiguous, whole, single, chunks] = &ours;
    let reads = |one: &Numbers| one.stream.iotlb + one.stream.l1 + one.stream.l2 + one.stream.l3;
    let is_short = |one: &Numbers| one.rate < 0.95 * whole.rate;
    let points = vec![
        Point::shape("caches that are kept are not enough", is_short(kept)),
        Point::shape("contiguity and one invalidation are not enough", is_short(contiguous)),
        Point::shape("each is faster than Linux", kept.rate.min(contiguous.rate) > linux.rate),
        Point::shape("without contiguity, PTcache-L3 misses more often", kept.stream.l3 > 2.0 * whole.stream.l3),
        Point::shape("with caches dropped, the walks read more", reads(contiguous) > 1.05 * reads(whole)),
        Point::shape("page by page, a packet takes more cycles", single.packet > 1.05 * whole.packet),
        is_as_fast("portcullis is as fast as the whole", chunks, whole),
    ];
    let names = runs.each_ref().map(|(name, _)| *name);
    let rows = [
        ("Gb/s", ours.iter().map(|one| one.rate).collect()),
        ("reads per page", ours.iter().map(reads).collect()),
        ("cycles per packet", ours.iter().map(|one| one.packet).collect()),
    ];
    let tables = vec![Grid::of("F&S by its parts", "", "", &names, &rows)];
    Made { points, tables, ..Made::default() }
}
