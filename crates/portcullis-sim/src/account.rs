//! The cycles that virtual cores have spent, by purpose.

use crate::free_lists::FreeLists;
use portcullis::platform::{LockClass, Phase, Step};

/// Number of lock classes.
const CLASSES: usize = 8;
/// The places where cycles are counted: one for each phase, and as many beside them for maps. There are a few more than
/// phases, so that any number of so many bits is a place.
const PLACES: usize = 16;
const MAPS: usize = 8;

/// Cycles by phase, and the waits among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// By place.
    phases: [u64; PLACES],
    lock_waits: [u64; CLASSES],
    hardware_wait: u64,
    allocations: u64,
    search_steps: u64,
    search_steps_max: u64,
    /// Search steps of the allocation in progress.
    searching: u64,
    address_steps: u64,
    maps: u64,
    unmaps: u64,
    queued: u64,
    free_lists: FreeLists,
    place: Place,
}

/// Where in `Account::phases` cycles are counted now: the number of the phase, and [`MAPS`] inside a map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place(usize);

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

/// Whether an allocator of addresses, or what stands for one, reports this step.
pub(crate) const fn is_of_addresses(step: Step) -> bool {
    use Step::*;
    matches!(step, TreeSearch { .. } | TreeFind | TreeSettle { .. } | TreeInsert | TreeErase | ListPop | ListPush)
        || matches!(
            step,
            DepotExchange | HashFind | SegmentSplit | SegmentJoin | WindowTake | WindowClaim | WindowReturn
        )
        || matches!(
            step,
            ChunkTake | ChunkFind | ChunkReturn | RingTake { .. } | RingFind | RingReturn { .. } | Own { .. }
        )
}

/// The last class, and with it their number: another one needs an index above.
const _: () = assert!(LockClass::TableReserve as usize == 9);

impl Account {
    pub(crate) fn enter(&mut self, phase: Phase) {
        if phase == Phase::IovaAllocate {
            self.allocations += 1;
        }
        if self.searching != 0 {
            self.search_steps_max = self.search_steps_max.max(std::mem::take(&mut self.searching));
        }
        self.place.0 = self.place.0 & MAPS | phase_index(phase);
    }

    /// Returns to the place that an interrupt interrupted.
    pub(crate) fn resume(&mut self, place: Place) {
        self.place = place;
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// A map begins.
    pub(crate) fn map(&mut self) {
        self.maps += 1;
        self.place.0 |= MAPS;
    }

    /// An unmap begins.
    pub(crate) fn unmap(&mut self) {
        self.unmaps += 1;
        self.place.0 &= !MAPS;
    }

    /// A step of an allocator is reported.
    pub(crate) fn address_step(&mut self) {
        self.address_steps += 1;
    }

    /// An unmap is put into a flush queue.
    pub(crate) fn queue(&mut self) {
        self.queued += 1;
    }

    /// An address is taken from a list or put on it, or is taken from the tree or put back there.
    pub(crate) fn free_lists(&mut self) -> &mut FreeLists {
        &mut self.free_lists
    }

    pub(crate) fn work(&mut self, cycles: u64) {
        self.phases[self.place.0 % PLACES] += cycles;
    }

    /// Forgets the longest search and the longest lists.
    pub(crate) fn forget_longest(&mut self) {
        self.search_steps_max = 0;
        self.free_lists.forget_longest();
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
        self.free_lists.add(&other.free_lists);
    }

    /// What has been spent since `earlier`, a copy of this account. The longest search and the longest lists are those
    /// of the whole account.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut spent = *self;
        spent.combine(earlier, |now, then| now - then);
        spent.free_lists = self.free_lists.since(&earlier.free_lists);
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
        self.address_steps = with(self.address_steps, other.address_steps);
        self.maps = with(self.maps, other.maps);
        self.unmaps = with(self.unmaps, other.unmaps);
        self.queued = with(self.queued, other.queued);
    }

    /// Cycles charged in all phases, including spins.
    pub fn cycles(&self) -> u64 {
        self.phases.iter().sum()
    }

    /// Cycles charged to one phase, including spins.
    pub fn phase_cycles(&self, phase: Phase) -> u64 {
        self.phases[phase_index(phase)] + self.map_cycles(phase)
    }

    /// The part of these cycles that maps took. What a timer does while it interrupts a map counts too.
    pub fn map_cycles(&self, phase: Phase) -> u64 {
        self.phases[MAPS + phase_index(phase)]
    }

    /// Number of maps.
    pub fn maps(&self) -> u64 {
        self.maps
    }

    /// Number of steps that concern addresses.
    pub fn address_steps(&self) -> u64 {
        self.address_steps
    }

    /// Number of unmaps.
    pub fn unmaps(&self) -> u64 {
        self.unmaps
    }

    /// Number of unmaps that were put into a flush queue.
    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// The lists of free addresses.
    pub fn lists(&self) -> &FreeLists {
        &self.free_lists
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
    use Phase::{IovaAllocate, IovaFind, IovaFree, Other};

    #[test]
    fn every_lock_class_and_every_phase_is_counted_by_itself() {
        let mut account = Account::default();
        let classes = [Attachment, FlushQueue, InvalidationQueue, IovaAllocator, Magazine, Depot, Domain, Table];
        let all = [Other, IovaAllocate, IovaFind, IovaFree, Phase::Table, Phase::Invalidate];
        for (cycles, (class, phase)) in (1..).zip(classes.into_iter().zip(all.into_iter().cycle())) {
            account.enter(phase);
            account.lock_wait(class, cycles);
        }
        let waits = classes.map(|class| account.lock_wait_cycles(class));
        assert_eq!(waits, [1, 2, 3, 4, 5, 6, 7, 8]);
        let phases = all.map(|phase| account.phase_cycles(phase));
        assert_eq!((phases, account.cycles()), ([1 + 7, 2 + 8, 3, 4, 5, 6], 36));
    }

    #[test]
    fn maps_are_counted_apart_and_an_interrupt_returns_to_its_place() {
        let mut account = Account::default();
        let table = |account: &mut Account, cycles| {
            account.enter(Phase::Table);
            account.work(cycles);
        };
        account.map();
        table(&mut account, 10);
        let place = account.place();
        account.enter(Other);
        account.unmap();
        table(&mut account, 200);
        account.resume(place);
        account.work(1);
        assert_eq!((account.map_cycles(Phase::Table), account.phase_cycles(Phase::Table)), (11, 211));
        assert_eq!((account.maps(), account.unmaps(), account.cycles()), (1, 1, 211));
    }
}
