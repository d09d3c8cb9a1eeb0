//! How many entries PTcache-L3 has: no source says it. Which sizes give the published misses at the published reuse
//! distances?

use super::super::{Figure, Grid, Lab, Made, Make, Point};
use super::{FANDS, FLOWS, RINGS};

pub(super) const FIGURE: Figure =
    Figure { id: "fands-l3", title: "PTcache-L3 misses of Linux by its size", make: Make::FromRuns(by_size), ..FANDS };

const SIZES: [u32; 7] = [16, 24, 28, 32, 48, 64, 128];

fn by_size(lab: &Lab<'_>) -> Made {
    let rows = [&FLOWS[0], &FLOWS[3], &RINGS[2]];
    let mut made = Made::default();
    let mut series = Vec::new();
    for row in rows {
        let published = row.published.as_ref().map_or(f64::NAN, |one| one.caches[2]);
        let of_size = |size: u32| {
            let mut run = row.linux(lab, "exact", "");
            run.set.push(("ptcache_l3_entries".to_owned(), size.to_string()));
            lab.of(&run).stream.l3
        };
        let misses = SIZES.map(of_size);
        let off = misses.map(|one| (one / published).ln().abs());
        let nearest = (0..SIZES.len()).min_by(|a, b| off[*a].total_cmp(&off[*b])).map_or(0, |at| SIZES[at]);
        made.points.push(Point::new(format!("{}, the size with the nearest misses", row.name), nearest.into()));
        series.push((row.name, published, misses));
    }
    let few = series[0].2;
    made.points.push(Point::shape("misses fall with the size at 5 flows", few.is_sorted_by(|a, b| a >= b)));
    let names = SIZES.map(|size| size.to_string());
    let columns: Vec<&str> = names.iter().map(String::as_str).chain(["published"]).collect();
    let rows: Vec<(&str, Vec<f64>)> = series
        .iter()
        .map(|(name, published, misses)| (*name, misses.iter().copied().chain([*published]).collect()))
        .collect();
    made.tables = vec![Grid::of("PTcache-L3 misses per page", "misses per page", "entries", &columns, &rows)];
    made
}
