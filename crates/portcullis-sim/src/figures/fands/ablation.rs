//! Figure 12: what each part of F&S saves, with 5 flows: contiguous addresses, paging-structure caches that are kept,
//! and one invalidation for many pages. Only ranges were published. `portcullis` stands beside it.
//!
//! The first and the last take more than their part: without contiguity the allocator is Linux's, and as its addresses
//! are apart, each page has a command of its own; page by page, a page is unmapped when its descriptor is used up.

use super::super::served::{Numbers, ServedRun};
use super::super::{Figure, Grid, Lab, Made, Make, Point};
use super::{BATCH, FANDS, FLOWS, WINDOWS, is_as_fast};

pub(super) const FIGURE_12: Figure =
    Figure { id: "fands-fig12", title: "F&S without one of its parts", make: Make::FromRuns(figure_12), ..FANDS };

fn figure_12(lab: &Lab<'_>) -> Made {
    let row = &FLOWS[0];
    let whole = ServedRun { batch: Some(BATCH), ..row.run(lab, WINDOWS, "iperf") };
    let runs = [
        ("whole", whole.clone()),
        // The addresses of Linux, which are spread as in Figure 2, with all else as in F&S.
        (
            "not contiguous",
            ServedRun {
                design: "magazine".to_owned(),
                workload: format!("iperf:regions={}", row.regions),
                ..whole.clone()
            },
        ),
        ("caches dropped", ServedRun { no_hint: true, ..whole.clone() }),
        (
            "page by page",
            ServedRun { batch: Some(1), workload: "iperf:recycle=never,regions=0".to_owned(), ..whole.clone() },
        ),
        ("portcullis", ServedRun { design: "portcullis".to_owned(), ..whole.clone() }),
    ];
    let ours = runs.each_ref().map(|(_, run)| lab.of(run));
    let [whole, scattered, dropped, single, chunks] = &ours;
    let reads = |one: &Numbers| one.stream.iotlb + one.stream.l1 + one.stream.l2 + one.stream.l3;
    let points = vec![
        Point::shape("without contiguity, PTcache-L3 misses more often", scattered.stream.l3 > 2.0 * whole.stream.l3),
        Point::shape("with caches dropped, the walks read more", reads(dropped) > 1.05 * reads(whole)),
        Point::shape("page by page, a packet takes more cycles", single.packet > 1.05 * whole.packet),
        is_as_fast("portcullis is as fast as the whole", chunks, whole),
    ];
    let names = runs.each_ref().map(|(name, _)| *name);
    let rows = [
        ("Gb/s", ours.iter().map(|one| one.rate).collect()),
        ("reads per page", ours.iter().map(reads).collect()),
        ("cycles per packet", ours.iter().map(|one| one.packet).collect()),
    ];
    let tables = vec![Grid::of("F&S without one of its parts", "", "", &names, &rows)];
    Made { points, tables, ..Made::default() }
}
