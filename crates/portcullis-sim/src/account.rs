//! The cycles that virtual cores have spent, by purpose.

use portcullis::platform::{LockClass, Phase};

/// Number of phases and of lock classes.
const PHASES: usize = 6;
const CLASSES: usize = 8;

/// Cycles by phase, and the waits among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    phases: [u64; PHASES],
    lock_waits: [u64; CLASSES],
    hardware_wait: u64,
    allocations: u64,
    search_steps: u64,
    search_steps_max: u64,
    /// Search steps of the allocation in progress.
    searching: u64,
    phase: usize,
}

const fn phase_index(phase: Phase) -> usize {
    match phase {
        Phase::Other => 0,
        Phase::IovaAllocate => 1,
        Phase::IovaFind => 2,
        Phase::IovaFree => 3,
        Phase::Table => 4,
        Phase::Invalidate => 5,
    }
}

const PHASE_BY_INDEX: [Phase; PHASES] =
    [Phase::Other, Phase::IovaAllocate, Phase::IovaFind, Phase::IovaFree, Phase::Table, Phase::Invalidate];

const fn class_index(class: LockClass) -> usize {
    match class {
        LockClass::Attachment => 0,
        LockClass::CentralFlushQueue | LockClass::FlushQueue => 1,
        LockClass::InvalidationQueue => 2,
        LockClass::IovaAllocator => 3,
        LockClass::Magazine => 4,
        LockClass::Depot => 5,
        LockClass::Table | LockClass::TableReserve => 7,
        LockClass::Domain => 6,
        // The assertion below holds this list against the classes.
        _ => unreachable!(),
    }
}

/// The last class, and with it their number: another one needs an index above.
const _: () = assert!(LockClass::TableReserve as usize == 9);

impl Account {
    pub(crate) fn enter(&mut self, phase: Phase) {
        if phase == Phase::IovaAllocate {
            self.allocations += 1;
        }
        self.search_steps_max = self.search_steps_max.max(std::mem::take(&mut self.searching));
        self.phase = phase_index(phase);
    }

    /// Returns to the phase that an interrupt interrupted.
    pub(crate) fn resume(&mut self, phase: Phase) {
        self.phase = phase_index(phase);
    }

    pub(crate) fn phase(&self) -> Phase {
        PHASE_BY_INDEX[self.phase]
    }

    pub(crate) fn work(&mut self, cycles: u64) {
        self.phases[self.phase] += cycles;
    }

    pub(crate) fn forget_longest_search(&mut self) {
        self.search_steps_max = 0;
    }

    pub(crate) fn search(&mut self, nodes: u64) {
        self.search_steps += nodes;
        self.searching += nodes;
    }

    pub(crate) fn hardware_wait(&mut self, cycles: u64) {
        self.work(cycles);
        self.of_which_hardware_wait(cycles);
    }

    /// Counts `cycles` of the work already charged as a wait for hardware.
    pub(crate) fn of_which_hardware_wait(&mut self, cycles: u64) {
        self.hardware_wait += cycles;
    }

    pub(crate) fn lock_wait(&mut self, class: LockClass, cycles: u64) {
        self.work(cycles);
        self.lock_waits[class_index(class)] += cycles;
    }

    /// Adds the account of another core.
    pub(crate) fn add(&mut self, other: &Self) {
        self.combine(other, |mine, theirs| mine + theirs);
        self.search_steps_max = self.search_steps_max.max(other.search_steps_max);
    }

    /// What has been spent since `earlier`, a copy of this account. The longest search is that of the whole account.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut spent = *self;
        spent.combine(earlier, |now, then| now - then);
        spent
    }

    fn combine(&mut self, other: &Self, with: impl Fn(u64, u64) -> u64) {
        for (mine, theirs) in self.phases.iter_mut().zip(other.phases) {
            *mine = with(*mine, theirs);
        }
        for (mine, theirs) in self.lock_waits.iter_mut().zip(other.lock_waits) {
            *mine = with(*mine, theirs);
        }
        self.hardware_wait = with(self.hardware_wait, other.hardware_wait);
        self.allocations = with(self.allocations, other.allocations);
        self.search_steps = with(self.search_steps, other.search_steps);
    }

    /// Cycles charged in all phases, including spins.
    pub fn cycles(&self) -> u64 {
        self.phases.iter().sum()
    }

    /// Cycles charged to one phase, including spins.
    pub fn phase_cycles(&self, phase: Phase) -> u64 {
        self.phases[phase_index(phase)]
    }

    /// Cycles spent waiting for hardware.
    pub fn hardware_wait_cycles(&self) -> u64 {
        self.hardware_wait
    }

    /// Cycles spent waiting for locks of a class.
    pub fn lock_wait_cycles(&self, class: LockClass) -> u64 {
        self.lock_waits[class_index(class)]
    }

    /// Number of address allocations.
    pub fn allocations(&self) -> u64 {
        self.allocations
    }

    /// Tree nodes passed in all searches.
    pub fn search_steps(&self) -> u64 {
        self.search_steps
    }

    /// The most nodes that one search passed.
    pub fn search_steps_max(&self) -> u64 {
        self.search_steps_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LockClass::{Attachment, Depot, Domain, FlushQueue, InvalidationQueue, IovaAllocator, Magazine, Table};

    #[test]
    fn every_lock_class_and_every_phase_is_counted_by_itself() {
        let mut account = Account::default();
        let classes = [Attachment, FlushQueue, InvalidationQueue, IovaAllocator, Magazine, Depot, Domain, Table];
        for (cycles, (class, phase)) in (1..).zip(classes.into_iter().zip(PHASE_BY_INDEX.into_iter().cycle())) {
            account.enter(phase);
            assert_eq!(account.phase(), phase);
            account.lock_wait(class, cycles);
        }
        let waits = classes.map(|class| account.lock_wait_cycles(class));
        assert_eq!(waits, [1, 2, 3, 4, 5, 6, 7, 8]);
        let phases = PHASE_BY_INDEX.map(|phase| account.phase_cycles(phase));
        assert_eq!((phases, account.cycles()), ([1 + 7, 2 + 8, 3, 4, 5, 6], 36));
    }
}
