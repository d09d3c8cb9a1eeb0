//! The cost of buffers that stay mapped beside a busy ring.

use super::{job, machine, measured, rings};
use portcullis::Protection;
use portcullis::chunk::{CHUNK_PAGES, TABLE_RESERVE};
use portcullis_designs::DesignId;
use portcullis_sim::RunOutcome;

const IDLE: usize = 256;

fn beside(design: DesignId, idle: usize) -> RunOutcome {
    let machine = machine("cascadelake-cx5");
    let work = rings(&format!("ring=64,idle={idle},operations=640"));
    measured(&job(&machine, work, design, Protection::Strict))
}

/// Each of the idle buffers gets a separate chunk. That much stays in the tables, and what the busy ring leaves of the
/// tables that it fills.
#[test]
fn an_idle_buffer_pins_a_chunk_and_not_a_table() {
    let [without, with] = [0, IDLE].map(|idle| beside(DesignId::Portcullis, idle).table_pages_max as usize);
    let pinned = IDLE * CHUNK_PAGES as usize / 512;
    assert!(with >= without + pinned / 2, "{with} beside {without}: they are spread");
    assert!(with <= without + pinned + TABLE_RESERVE, "{with} beside {without}");
}

/// The idle ring is mapped before the measured part begins.
#[test]
fn idle_buffers_are_mapped_during_warm_up() {
    for design in [DesignId::Magazine, DesignId::Portcullis] {
        let [without, with] = [0, IDLE].map(|idle| beside(design, idle));
        assert_eq!((without.operations, with.operations), (640, 640), "{}", design.info().id);
    }
}
