//! Submissions of many cores in which one command replaces all.

use super::{job, machine, measured, rings};
use portcullis::Protection::Strict;
use portcullis::table::ENTRIES;
use portcullis_designs::DesignId;
use portcullis_sim::{Job, RunOutcome};

const CORES: usize = 64;

fn crowd(merge_min: Option<u8>) -> RunOutcome {
    let machine = machine("cascadelake-cx5");
    let work = rings(&format!("count={CORES},operations=4000"));
    measured(&Job { batch: 1, merge_min, ..job(&machine, work, DesignId::Portcullis, Strict) })
}

/// The hardware executes fewer commands and is waited for less. The price is IOTLB entries of mapped pages. No page is
/// within reach for longer than its owner waits.
#[test]
fn merged_commands_cost_entries_of_mapped_pages() {
    let [single, merged] = [None, Some(4)].map(crowd);
    // Two CPUs that need a table may both add one. The one that is not needed goes back, and that takes a command for
    // all of its pages (S10).
    let given_back = single.table_pages_max - single.table_pages_end;
    let commands = single.invalidations_per_page * single.pages as f64;
    assert_eq!((commands.round() as u64, single.iotlb_dropped_live_per_page), (single.pages + given_back, 0.0));
    assert_eq!(single.over_invalidated_pages, ENTRIES as u64 * given_back);
    let (commands, dropped) = (merged.invalidations_per_page, merged.iotlb_dropped_live_per_page);
    assert!(commands < 0.8 && dropped > 0.001, "{commands} commands, {dropped} entries a page");
    assert!(merged.over_invalidated_pages > merged.pages, "{} pages", merged.over_invalidated_pages);
    let [before, now] = [&single, &merged].map(|outcome| outcome.wait_cycles_per_page);
    assert!(now < 0.7 * before, "{before} and {now} cycles of waiting a page");
    assert_eq!((single.stale_accesses, merged.stale_accesses), (0, 0));
    assert_eq!((single.faults, merged.faults), (0, 0));
}
