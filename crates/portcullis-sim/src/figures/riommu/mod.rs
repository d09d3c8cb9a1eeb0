//! rIOMMU (ASPLOS'15): rings as a translation, beside `stock` and EiovaR, with a ConnectX-3.

mod costs;
mod rates;

use super::Figure;
use super::lab::{Bar, Lab, RINGS};
use super::served::ServedRun;
use portcullis::Protection;

/// The figures and tables.
pub(super) const FIGURES: [Figure; 5] =
    [costs::TABLE_1, rates::PACKETS, rates::RATIOS, rates::ROUND_TRIPS, rates::UNPROTECTED];

/// What each of them has in common.
const RIOMMU: Figure = Figure {
    id: "",
    title: "",
    source: "rIOMMU (ASPLOS'15)",
    group: Some("riommu"),
    is_hypothetical: true,
    ..Figure::OF_LABORATORY
};

/// Rings, with walks that do not snoop the caches as on that machine, and with walks that do.
const NOT_COHERENT: Bar = Bar { name: "riommu-", design: RINGS, protection: Protection::Strict };
const COHERENT: Bar = Bar { name: "riommu", ..NOT_COHERENT };

/// The run of a bar. Only [`COHERENT`] has walks that snoop.
fn run(lab: &Lab<'_>, machine: &str, workload: &str, clients: u32, bar: Bar) -> ServedRun {
    let run = lab.run(machine, workload, clients, bar);
    ServedRun { coherent: (bar.name == COHERENT.name).then_some(true), ..run }
}
