//! What FreeBSD pays for flushing a whole table page if a few entries were cleared (EiovaR, FAST'15, §7). Also tests
//! that the hardware's cached table pointers do not outlive the table pages that it frees.

use super::unit_costs::Instant;
use super::{bundled, job, machine, measured, replay};
use portcullis::mapper::Options;
use portcullis::platform::Phase;
use portcullis::{Access, DomainConfig, Open, PAGE_SIZE, PhysAddr, Protection};
use portcullis_designs::{Choice, DesignId, FreeBsd};
use portcullis_model::{Parameters, Ram};
use portcullis_sim::engine::Engine;
use portcullis_sim::{Account, CostBook, Job, LabPlatform, Machine};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// Cache lines in a table page.
const LINES: u64 = 64;

/// The charge for the unmap of `pages` pages under `choice`, while neighbours keep the table.
fn unmap(machine: &Machine, choice: &str, pages: u64) -> Account {
    map_and_unmap(machine, choice, pages).1
}

/// The charges for the map and for the unmap of `pages` pages under `choice`, beside two neighbours.
fn map_and_unmap(machine: &Machine, choice: &str, pages: u64) -> (Account, Account) {
    let engine = Rc::new(Engine::new(1, machine.frequency(), machine.costs.clone(), machine.iommu.coherent));
    let ram = Arc::new(Ram::with_flushing(PhysAddr::new(1 << 35), 1 << 20));
    let platform = LabPlatform::new(engine.clone(), ram, 0);
    let options: Options = Choice::parse(choice).expect("a design").options;
    let config = DomainConfig { options, ..DomainConfig::new(Protection::Strict) };
    let instant = Instant { coherent: machine.iommu.coherent };
    let domain = FreeBsd::open_with(instant, platform, &config).expect("a domain");
    let spent = Rc::new(Cell::new(<(Account, Account)>::default()));
    let (inner, out) = (engine.clone(), spent.clone());
    let body = move || {
        // SAFETY: no memory is behind the model but its own.
        let map = |phys, pages| unsafe { domain.map_raw(PhysAddr::new(phys), pages * PAGE_SIZE, Access::DeviceWrites) };
        // The second map fills the reserve of table pages again, from which the first has taken some.
        for page in 0..2 {
            map(0x5000 + page * PAGE_SIZE, 1).expect("mapped");
        }
        let start = inner.account();
        let iova = inner.charged(|| map(0x10_0000, pages)).expect("mapped");
        let mapped = inner.account();
        inner.charged(|| domain.unmap_raw(iova, pages * PAGE_SIZE)).expect("unmapped");
        out.set((mapped.since(&start), inner.account().since(&mapped)));
    };
    engine.run(vec![Box::new(body)]);
    spent.get()
}

#[test]
fn flushing_the_whole_table_page_costs_what_was_published() {
    let machine = machine("r210-cx3");
    let (whole, fixed) = (unmap(&machine, "freebsd", 1), unmap(&machine, "freebsd:fixed", 1));
    let further = whole.cycles() - fixed.cycles();
    assert_eq!(further, (LINES - 1) * machine.costs.line_flush_next, "all lines but the one that was written");
    let table = |account: Account| account.phase_cycles(Phase::Table);
    assert_eq!(table(whole) - table(fixed), further, "nothing else differs");
    // About 10 thousand cycles per unmap.
    assert!((7_500..=12_500).contains(&further), "{further} cycles");
}

#[test]
fn a_map_flushes_the_whole_table_page_too_and_the_fix_is_of_unmaps_alone() {
    let machine = machine("r210-cx3");
    let snooping = Machine { iommu: Parameters { coherent: true, ..machine.iommu.clone() }, ..machine.clone() };
    for choice in ["freebsd", "freebsd:fixed"] {
        let [flushed, snooped] = [&machine, &snooping].map(|machine| map_and_unmap(machine, choice, 1).0);
        let lines = machine.costs.line_flush + (LINES - 1) * machine.costs.line_flush_next;
        assert_eq!(flushed.cycles() - snooped.cycles(), lines, "{choice}");
    }
}

#[test]
fn going_back_up_the_tree_is_charged_and_is_no_search() {
    let free = |price: u64| {
        let mut machine = machine("r210-cx3");
        machine.costs = CostBook { tree_search: price, ..CostBook::default() };
        machine.iommu.coherent = true;
        let (map, unmap) = map_and_unmap(&machine, "freebsd", 1);
        let searched = map.phase_cycles(Phase::IovaAllocate);
        (searched, unmap.phase_cycles(Phase::IovaFree))
    };
    assert_eq!(free(0), (0, 0));
    // The tree has page 0, the interrupt range, two neighbours and the range itself, on three or four levels. An
    // allocation goes down and up, and may move two nodes. A free goes up twice.
    let (allocated, freed) = free(1);
    assert!((5..=10).contains(&allocated) && (3..=8).contains(&freed), "{allocated} and {freed} nodes");
}

#[test]
fn only_the_lines_that_were_not_written_are_wasted() {
    let machine = machine("r210-cx3");
    // The unmap writes two lines.
    let (whole, fixed) = (unmap(&machine, "freebsd", 16), unmap(&machine, "freebsd:fixed", 16));
    assert_eq!(whole.cycles() - fixed.cycles(), (LINES - 2) * machine.costs.line_flush_next);
}

#[test]
fn where_walks_snoop_it_makes_no_difference() {
    let machine = machine("cascadelake-cx5");
    assert_eq!(unmap(&machine, "freebsd", 1), unmap(&machine, "freebsd:fixed", 1));
}

/// Batches on a trace that leaves a leaf table empty from time to time. While an empty table page waits for the commit
/// of its batch, other mappings are made in its range. The device finds these, although it has the old pointer in its
/// caches.
#[test]
fn a_map_where_a_table_page_went_is_found() {
    let (machine, trace) = (machine("cascadelake-cx5"), bundled("q-e1000e-rx.strict.2cpu"));
    let with = |design, batch| {
        let outcome = measured(&Job { batch, ..job(&machine, replay(&trace), design, Protection::Strict) });
        assert_eq!((outcome.faults, outcome.stale_accesses), (0, 0));
        outcome.invalidations_per_page
    };
    // These maps invalidate too.
    assert!(with(DesignId::FreeBsd, 64) > with(DesignId::Stock, 64));
}
