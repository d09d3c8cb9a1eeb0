//! How many leaf tables many rings use at once: no more than the cache of pointers to them holds.

use super::{job, machine, measured, rings};
use portcullis::Protection::{self, Deferred, Strict};
use portcullis::designs::DesignId;
use portcullis_sim::{Job, PayloadRule, machine_pace};

/// Misses of PTcache-L3 per page.
fn misses(design: DesignId, protection: Protection, parameters: &str) -> f64 {
    let machine = machine("cascadelake-cx5");
    let work = rings(parameters);
    let pace = machine_pace(&machine, &work, PayloadRule::Shown, 1);
    measured(&Job { batch: 64, pace, ..job(&machine, work, design, protection) }).ptcache_l3_misses_per_page
}

#[test]
fn few_tables_at_once_and_their_pointers_stay() {
    for (count, most) in [(16, 0.001), (40, 0.005), (128, 0.02)] {
        for (protection, tx) in [(Strict, 0.0), (Strict, 0.05), (Deferred, 0.0), (Deferred, 0.05)] {
            let parameters = format!("count={count},tx={tx}");
            let misses = misses(DesignId::Portcullis, protection, &parameters);
            assert!(misses <= most, "{misses} misses a page: {protection}, {parameters}");
        }
    }
    // Other designs miss both goals: one hands out the most recently freed address first, and one has flushes that
    // drop the pointers as well.
    let scattered = misses(DesignId::Magazine, Strict, "count=128");
    assert!(scattered > 0.02, "{scattered}");
    let flushed = misses(DesignId::Magazine, Deferred, "count=16");
    assert!(flushed > 0.001, "{flushed}");
}
