//! A design on the CPUs of this machine: each of its maps and unmaps is checked, and what they take is printed. How much that is decides nothing.

use portcullis::design::{Info, Options};
use portcullis_bench::{Effort, TimedDesign, Workload, time};

/// As much as gives a first idea of what a pair takes. To compare designs there is `portcullis bench`.
const EFFORT: Effort = Effort { samples: 5, sample_us: 1000 };
/// One map at a time, through the raw face, over an IOMMU that does nothing and the one that writes descriptors; in batches; by the typed face.
const WORKLOADS: [Workload; 4] = [Workload::Page1, Workload::Page1Queued, Workload::Page1Batch64, Workload::Page1Typed];

/// Has the design do each workload, under each protection that it offers.
///
/// # Panics
/// If it does not do what it should: leaves an entry, say, or does not invalidate what it unmaps.
pub fn check<D: TimedDesign>() {
    let Info { id, protections, .. } = D::INFO;
    for workload in WORKLOADS {
        for &protection in protections.iter().filter(|protection| workload.is_offered(**protection)) {
            let who = format!("{id} {protection}, {}", workload.id());
            match time::<D>(Options::NONE, protection, workload, EFFORT) {
                Ok(timed) => {
                    let cycles = timed.cycles.map(|cycles| format!(", {:.0} cycles", cycles.median));
                    println!("{who}: {:.0} ns per pair{}", timed.ns.median, cycles.unwrap_or_default());
                }
                Err(error) => panic!("{who}: {error}"),
            }
        }
    }
}
