//! Runs a design on the CPUs of this machine. Each map and unmap is checked, and the time per pair is printed. The
//! check does not depend on the time.

use portcullis::mapper::{Info, Options};
use portcullis_bench::{Effort, TimedDesign, Workload, time};

/// Enough samples for a first idea of the time per pair. Use `portcullis bench` to compare designs.
const EFFORT: Effort = Effort { samples: 5, sample_us: 1000 };
/// One map at a time, through the raw interface, over an IOMMU that does nothing and over one that writes descriptors;
/// in batches; and through the typed interface.
const WORKLOADS: [Workload; 4] = [Workload::Page1, Workload::Page1Queued, Workload::Page1Batch64, Workload::Page1Typed];

/// Runs each workload on the design, under each protection that it offers.
///
/// # Panics
/// If the design misbehaves: for example, it leaves an entry, or does not invalidate an unmapped page.
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
