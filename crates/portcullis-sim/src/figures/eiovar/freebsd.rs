//! Table 3: what the mapping layer of FreeBSD costs.
//!
//! The paper does not say with which card. Here it is the ConnectX-3.

use super::super::class::Class::{C2, R25};
use super::super::lab::{Bar, Lab};
use super::super::served::Numbers;
use super::super::{Figure, Grid, Made, Make, Point, Reason};
use super::EIOVAR;
use portcullis::Protection::Strict;

pub(super) const TABLE_3: Figure = Figure {
    id: "eiovar-table3",
    title: "A map and an unmap of FreeBSD",
    reasons: &[Reason::new(
        &["map: cycles for the address"],
        "Every visit of a node of the tree has one price here. Half of the visits of a map are on the way up, of nodes \
         that the search has just brought into the cache, and are cheaper in truth.",
    )],
    make: Make::FromRuns(table_3),
    ..EIOVAR
};

const AS_IT_IS: Bar = Bar { name: "freebsd", design: "freebsd", protection: Strict };
const FIXED: Bar = Bar { name: "freebsd, fixed", design: "freebsd:fixed", protection: Strict };

fn table_3(lab: &Lab<'_>) -> Made {
    let [as_it_is, fixed] = [AS_IT_IS, FIXED].map(|bar| lab.of(&lab.stream(bar)));
    let map_rest = |one: &Numbers| one.map.sum() - one.map.allocate;
    let unmap_iova = |one: &Numbers| one.unmap.find + one.unmap.free;
    let unmap_rest = |one: &Numbers| one.unmap.sum() - unmap_iova(one);
    let points = vec![
        Point::of(R25, "map: cycles for the address", 1103.0, as_it_is.map.allocate),
        Point::of(R25, "map: cycles of the rest", 8557.0, map_rest(&as_it_is)),
        Point::of(R25, "unmap: cycles for the address", 2178.0, unmap_iova(&as_it_is)),
        Point::of(R25, "unmap: cycles of the rest", 13_825.0, unmap_rest(&as_it_is)),
        Point::of(C2, "tree nodes per allocation", 11.0, as_it_is.search),
        Point::of(R25, "fixed: cycles saved per unmap", 10_000.0, as_it_is.unmap.sum() - fixed.unmap.sum()),
        Point::of(R25, "stream, Gb/s", 0.530, as_it_is.rate),
        Point::of(R25, "stream, fixed, Gb/s", 0.935, fixed.rate),
        Point::of(R25, "stream, fixed over as it is", 1.76, fixed.rate / as_it_is.rate),
    ];
    let row = |name, one: &Numbers| (name, vec![one.map.allocate, map_rest(one), unmap_iova(one), unmap_rest(one)]);
    let rows = [row(AS_IT_IS.name, &as_it_is), row(FIXED.name, &fixed)];
    let columns = ["map, address", "map, rest", "unmap, address", "unmap, rest"];
    Made { tables: vec![Grid::of("cycles", "cycles", "", &columns, &rows)], points, ..Made::default() }
}
