//! Receive buffers that are cut from runs of pages, as the driver's allocator does ([`Fragments`]).

use crate::machine::Fragments;
use crate::run::live::{Buffer, Slot};
use portcullis::{PhysAddr, Segment};
use std::cell::RefCell;

/// The buffers that were cut, and the runs.
pub(super) struct Cuts {
    layout: Fragments,
    /// Where the first run begins.
    base: u64,
    /// The slot of the first buffer. Those of one run follow one another.
    first_slot: Slot,
    state: RefCell<State>,
}

struct State {
    /// By core, the run that it cuts and how many buffers it has cut from it.
    present: Vec<Option<(u32, u32)>>,
    /// Runs without buffers. The one that was freed last is used first, as by the page allocator of Linux
    /// (`__free_one_page`, from memory).
    free: Vec<u32>,
    /// How many buffers of each run are in use.
    used: Vec<u32>,
}

impl Cuts {
    /// Runs from `base` on, whose buffers have the slots from `first_slot` on.
    pub(super) fn new(layout: Fragments, base: u64, first_slot: Slot, runs: u32, cores: u32) -> Self {
        let state = State {
            present: vec![None; cores as usize],
            free: (0..runs).rev().collect(),
            used: vec![0; runs as usize],
        };
        Self { layout, base, first_slot, state: RefCell::new(state) }
    }

    /// The slots of so many runs.
    pub(super) fn slots(layout: Fragments, runs: u32) -> Slot {
        runs * layout.of_run()
    }

    /// The bytes of so many runs.
    pub(super) fn bytes(layout: Fragments, runs: u32) -> u64 {
        u64::from(runs) * u64::from(layout.run_bytes)
    }

    /// Whether buffers are pages now.
    pub(super) fn takes_pages(&self, is_open: bool) -> bool {
        self.layout.opens_with_pages && !is_open
    }

    /// Whether a slot is that of such a buffer.
    pub(super) fn has(&self, slot: Slot) -> bool {
        slot >= self.first_slot
    }

    /// Cuts the next buffer of the run of a core. A run that is used up is begun again at once if all of its buffers
    /// are free, and otherwise later.
    pub(super) fn take(&self, core: usize, len: u32) -> (Slot, Buffer) {
        let (layout, state) = (self.layout, &mut *self.state.borrow_mut());
        let (run, cut) = match state.present[core] {
            Some((run, cut)) if cut < layout.of_run() => (run, cut),
            Some((run, _)) if state.used[run as usize] == 0 => (run, 0),
            _ => (state.free.pop().expect("there are more runs than buffers"), 0),
        };
        state.present[core] = Some((run, cut + 1));
        state.used[run as usize] += 1;
        let at = u64::from(run) * u64::from(layout.run_bytes) + u64::from(cut) * u64::from(layout.fragment_bytes);
        let phys = PhysAddr::new(self.base + at + u64::from(layout.unmapped_bytes));
        (self.first_slot + run * layout.of_run() + cut, Buffer::from(Segment { phys, len: len.into() }))
    }

    /// Returns a buffer.
    pub(super) fn give_back(&self, slot: Slot) {
        let state = &mut *self.state.borrow_mut();
        let run = (slot - self.first_slot) / self.layout.of_run();
        state.used[run as usize] -= 1;
        let is_present = |present: &Option<(u32, u32)>| present.is_some_and(|(present, _)| present == run);
        if state.used[run as usize] == 0 && !state.present.iter().any(is_present) {
            state.free.push(run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two and a half buffers fit in a page, and five in a run.
    const LAYOUT: Fragments =
        Fragments { fragment_bytes: 1600, unmapped_bytes: 100, run_bytes: 8192, opens_with_pages: false };

    /// Where the runs begin.
    const BASE: u64 = 7 << 20;

    fn place((slot, buffer): &(Slot, Buffer)) -> (Slot, u64, u64) {
        (*slot, buffer[0].phys.as_u64() - BASE, buffer[0].pages())
    }

    #[test]
    fn buffers_follow_one_another_and_some_cross_the_end_of_a_page() {
        let cuts = Cuts::new(LAYOUT, BASE, 10, 3, 2);
        let taken: Vec<_> = (0..6).map(|_| cuts.take(0, 1500)).collect();
        let places: Vec<_> = taken.iter().map(place).collect();
        let expected = [(10, 100, 1), (11, 1700, 1), (12, 3300, 2), (13, 4900, 1), (14, 6500, 1), (15, 8192 + 100, 1)];
        assert_eq!(places, expected);
        assert_eq!(place(&cuts.take(1, 1500)), (20, 2 * 8192 + 100, 1), "another core has a run of its own");
    }

    #[test]
    fn a_run_is_used_again_when_all_of_its_buffers_are_free() {
        let cuts = Cuts::new(LAYOUT, BASE, 10, 2, 1);
        let first: Vec<Slot> = (0..5).map(|_| cuts.take(0, 1500).0).collect();
        let second: Vec<Slot> = (0..5).map(|_| cuts.take(0, 1500).0).collect();
        second.iter().for_each(|slot| cuts.give_back(*slot));
        assert_eq!(cuts.take(0, 1500).0, second[0], "the present run has no buffer in use");
        first.iter().for_each(|slot| cuts.give_back(*slot));
        (0..4).for_each(|_| {
            cuts.take(0, 1500);
        });
        assert_eq!(cuts.take(0, 1500).0, first[0], "the other one is free by now");
    }
}
