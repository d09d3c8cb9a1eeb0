//! Figures 7 and 8: F&S, by the number of flows and by the size of rings, and `portcullis` beside it, with equal
//! batches.

use super::super::class::Class::{R15, Z};
use super::super::{Figure, Grid, Lab, Made, Make, Point};
use super::{CHUNKS, FANDS, FLOWS, RINGS, Row, WINDOWS, is_as_fast};

pub(super) const FIGURE_7: Figure = Figure {
    id: "fands-fig7",
    title: "F&S by the number of flows",
    make: Make::FromRuns(|lab| by_row(lab, &FLOWS)),
    ..FANDS
};
pub(super) const FIGURE_8: Figure = Figure {
    id: "fands-fig8",
    title: "F&S by the size of rings",
    make: Make::FromRuns(|lab| by_row(lab, &RINGS)),
    ..FANDS
};

fn by_row(lab: &Lab<'_>, rows: &[Row]) -> Made {
    let mut made = Made::default();
    let (mut windows_gbps, mut chunks_gbps) = (Vec::new(), Vec::new());
    for row in rows {
        let (windows, chunks) = (row.batched(lab, WINDOWS), row.batched(lab, CHUNKS));
        let name = |what: &str| format!("{}, {what}", row.name);
        if let Some(published) = &row.published {
            made.points.extend([
                Point::of(R15, name("Gb/s"), published.windows_gbps, windows.rate),
                Point::of(R15, name("IOTLB misses per page"), published.windows_iotlb, windows.stream.iotlb),
                Point::of(Z, name("PTcache-L1 misses per page"), 0.0, windows.stream.l1),
                Point::of(Z, name("PTcache-L2 misses per page"), 0.0, windows.stream.l2),
                Point::of(Z, name("PTcache-L3 misses per page"), published.windows_l3, windows.stream.l3),
            ]);
        } else {
            made.points.push(Point::new(name("Gb/s"), windows.rate));
        }
        made.points.push(is_as_fast(&name("portcullis is as fast, with the same batches"), &chunks, &windows));
        windows_gbps.push(windows.rate);
        chunks_gbps.push(chunks.rate);
    }
    let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
    let published = rows.iter().map(|row| row.published.as_ref().map_or(f64::NAN, |one| one.windows_gbps)).collect();
    let rows = [("published", published), ("F&S", windows_gbps), ("portcullis", chunks_gbps)];
    made.tables = vec![Grid::of("Gb/s", "Gb/s", "", &names, &rows)];
    made
}
