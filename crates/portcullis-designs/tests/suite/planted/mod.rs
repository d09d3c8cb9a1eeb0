//! The checker can fail: one flaw is planted in a copy of a correct part, and the checker must name the rule that it
//! breaks. Without the flaw, the same scripts pass.

mod design;
mod hardware;
mod host;
mod reclaim;

use crate::checker::{Bench, Buffer, Machine, Operation, Tally, Violation, check, on_bench, script};
use design::{DesignFlaw, DoesNotWait, Planted};
use hardware::{HardwareFlaw, PlantedIommu};
use host::{HostFlaw, PlantedHost};
use portcullis::Protection::{self, Deferred, Strict};
use portcullis::{Access, PAGE_SIZE, PhysAddr, Rule, Segment};
use portcullis_designs::{Portcullis, Solaris};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

/// Number of scripts that every case runs. One of them finds each flaw.
const SCRIPTS: usize = 64;

/// A machine for tests of flaws.
pub(crate) const MACHINE: Machine = Machine {
    address_bits: 32,
    coherent: true,
    caches_absent: false,
    large_leaves: true,
    address_mask_max: Some(18),
    slow: false,
};

type Plant = fn(&Bench<'_>, &[Operation]) -> Result<Tally, Violation>;

/// A design with flaw number `FLAW` on good hardware.
fn on_design<const FLAW: u8>(bench: &Bench<'_>, script: &[Operation]) -> Result<Tally, Violation> {
    check::<Planted<FLAW>, _, _>(bench, bench.host, bench.hardware, script)
}

/// The same design without a flaw, on flawed hardware.
fn on_hardware(flaw: HardwareFlaw, bench: &Bench<'_>, script: &[Operation]) -> Result<Tally, Violation> {
    let iommu = PlantedIommu::new(bench.hardware, flaw);
    check::<Planted<{ DesignFlaw::NONE }>, _, _>(bench, bench.host, &iommu, script)
}

/// `portcullis` on flawed hardware.
fn portcullis_on_hardware(flaw: HardwareFlaw, bench: &Bench<'_>, script: &[Operation]) -> Result<Tally, Violation> {
    check::<Portcullis, _, _>(bench, bench.host, &PlantedIommu::new(bench.hardware, flaw), script)
}

/// `portcullis` on a flawed host.
fn portcullis_on_host(flaw: HostFlaw, bench: &Bench<'_>, script: &[Operation]) -> Result<Tally, Violation> {
    check::<Portcullis, _, _>(bench, &PlantedHost::new(bench.host, flaw), bench.hardware, script)
}

/// Runs the scripts until one fails.
fn first_violation(machine: &Machine, protection: Protection, plant: Plant) -> Option<Violation> {
    let mut runner = TestRunner::deterministic();
    let mut next_script = || script(1..50).new_tree(&mut runner).expect("no script is filtered out").current();
    (0..SCRIPTS).find_map(|_| on_bench(machine, protection, |bench| plant(bench, &next_script()).err()))
}

/// `solaris` on flawed hardware: only its maps wait.
fn solaris_on_hardware(flaw: HardwareFlaw, bench: &Bench<'_>, script: &[Operation]) -> Result<Tally, Violation> {
    check::<Solaris, _, _>(bench, bench.host, &PlantedIommu::new(bench.hardware, flaw), script)
}

/// Asserts that the flaw is found as a breach of `rule`, and that nothing is found without it.
fn finds(rule: Rule, machine: &Machine, protection: Protection, plant: Plant) {
    finds_beside(on_design::<{ DesignFlaw::NONE }>, rule, machine, protection, plant);
}

/// Like [`finds`], for a flaw of hardware or host: `without` has none.
fn finds_beside(without: Plant, rule: Rule, machine: &Machine, protection: Protection, plant: Plant) {
    assert_eq!(first_violation(machine, protection, without), None, "without the flaw");
    match first_violation(machine, protection, plant) {
        Some((found, what)) => assert_eq!(found, rule, "{what}"),
        None => panic!("the flaw was not found in {SCRIPTS} scripts"),
    }
}

#[test]
fn hardware_without_a_flaw_passes() {
    assert_eq!(first_violation(&MACHINE, Strict, |bench, script| on_hardware(HardwareFlaw::None, bench, script)), None);
}

#[test]
fn s1_a_host_that_does_not_flush() {
    let plant: Plant = |bench, script| {
        let host = PlantedHost::new(bench.host, HostFlaw::ForgetsToFlush);
        check::<Planted<{ DesignFlaw::NONE }>, _, _>(bench, &host, bench.hardware, script)
    };
    finds(Rule::Reach, &Machine { coherent: false, ..MACHINE }, Strict, plant);
}

#[test]
fn s1_a_unit_that_says_that_it_snoops() {
    let plant: Plant = |bench, script| portcullis_on_hardware(HardwareFlaw::HidesItsCoherence, bench, script);
    let without: Plant = |bench, script| portcullis_on_hardware(HardwareFlaw::None, bench, script);
    finds_beside(without, Rule::Reach, &Machine { coherent: false, ..MACHINE }, Strict, plant);
}

/// Single pages that fill three cache lines of their table, and then the steps of `unmap`.
fn pages_and(unmap: &[Operation]) -> Vec<Operation> {
    let pages = (0..PAGES).map(|page| Operation::Map(Buffer::page(100 + 2 * page as u64)));
    pages.chain(unmap.iter().cloned()).collect()
}

const PAGES: usize = 24;

/// Entries that were cleared and not flushed are still reached: of a single mapping, of a batch, and of unmaps that
/// wait for a flush.
#[test]
fn s2_a_host_that_does_not_flush_what_is_cleared() {
    let machine = Machine { coherent: false, ..MACHINE };
    fn single(flaw: HostFlaw, bench: &Bench<'_>) -> Result<Tally, Violation> {
        portcullis_on_host(flaw, bench, &pages_and(&[Operation::Unmap(0)]))
    }
    fn batch(flaw: HostFlaw, bench: &Bench<'_>) -> Result<Tally, Violation> {
        let batch = Operation::Batch { unmaps: (0..PAGES / 2).collect(), map: None, dropped: false };
        portcullis_on_host(flaw, bench, &pages_and(&[batch, Operation::Advance(10_000)]))
    }
    fn run(flaw: HostFlaw, bench: &Bench<'_>) -> Result<Tally, Violation> {
        let unmaps = vec![Operation::Unmap(0); PAGES];
        portcullis_on_host(flaw, bench, &pages_and(&[&unmaps[..], &[Operation::Advance(10_000)]].concat()))
    }
    const CLEARED: HostFlaw = HostFlaw::ForgetsToFlushWhatIsCleared;
    finds_beside(
        |bench, _| single(HostFlaw::None, bench),
        Rule::Strict,
        &machine,
        Strict,
        |bench, _| single(CLEARED, bench),
    );
    // Under deferred protection, the device may still use cached translations, but the page walker must see the entry
    // cleared.
    for (protection, rule) in [(Strict, Rule::Strict), (Deferred, Rule::Reach)] {
        let without: Plant = |bench, _| batch(HostFlaw::None, bench);
        finds_beside(without, rule, &machine, protection, |bench, _| batch(CLEARED, bench));
        // The unmapped entries lie in two cache lines.
        finds_beside(without, rule, &machine, protection, |bench, _| batch(HostFlaw::FlushesOneLine, bench));
    }
    let without: Plant = |bench, _| run(HostFlaw::None, bench);
    finds_beside(without, Rule::Reach, &machine, Deferred, |bench, _| run(CLEARED, bench));
}

/// Entries that a map has written and not flushed are not reached.
#[test]
fn s1_a_host_that_flushes_one_line_of_a_mapping() {
    fn long(flaw: HostFlaw, bench: &Bench<'_>) -> Result<Tally, Violation> {
        let segments = vec![Segment { phys: PhysAddr::from_pfn(1000), len: PAGES as u64 * PAGE_SIZE }];
        portcullis_on_host(flaw, bench, &[Operation::Map(Buffer { segments, access: Access::DeviceWrites })])
    }
    let machine = Machine { coherent: false, ..MACHINE };
    finds_beside(
        |bench, _| long(HostFlaw::None, bench),
        Rule::Reach,
        &machine,
        Strict,
        |bench, _| long(HostFlaw::FlushesOneLine, bench),
    );
}

#[test]
fn s1_a_map_that_leaves_an_absent_entry_cached() {
    let plant: Plant = |bench, script| on_hardware(HardwareFlaw::HidesCachingMode, bench, script);
    finds(Rule::Reach, &Machine { caches_absent: true, ..MACHINE }, Strict, plant);
}

#[test]
fn s2_an_unmap_that_is_not_committed() {
    finds(Rule::Strict, &MACHINE, Strict, on_design::<{ DesignFlaw::FORGETS_THE_COMMIT }>);
}

#[test]
fn s2_commands_that_are_lost() {
    finds(Rule::Strict, &MACHINE, Strict, |bench, script| on_hardware(HardwareFlaw::LosesCommands, bench, script));
}

#[test]
fn s2_completion_that_is_announced_too_early() {
    finds(Rule::Strict, &MACHINE, Strict, |bench, script| on_hardware(HardwareFlaw::CompletesEarly, bench, script));
    let without: Plant = |bench, script| portcullis_on_hardware(HardwareFlaw::None, bench, script);
    let plant: Plant = |bench, script| portcullis_on_hardware(HardwareFlaw::CompletesEarly, bench, script);
    finds_beside(without, Rule::Strict, &MACHINE, Strict, plant);
}

#[test]
fn s2_a_wait_that_is_not_waited_for() {
    finds(Rule::Strict, &MACHINE, Strict, |bench, script| {
        check::<DoesNotWait, _, _>(bench, bench.host, bench.hardware, script)
    });
}

#[test]
fn s2_a_window_longer_than_declared() {
    finds(Rule::Strict, &MACHINE, Deferred, on_design::<{ DesignFlaw::NEVER_TICKS }>);
}

#[test]
fn s3_reuse_before_the_flush() {
    finds(Rule::Reuse, &MACHINE, Deferred, on_design::<{ DesignFlaw::REUSES_WHAT_IS_CLAIMED }>);
}

#[test]
fn s3_reuse_before_the_commit() {
    finds(Rule::Reuse, &MACHINE, Strict, on_design::<{ DesignFlaw::REUSES_WHAT_IS_CLAIMED }>);
}

#[test]
fn s3_reuse_after_a_flush_announced_too_early() {
    // More unmaps than the queue takes, with no time passing: the first symptom of the early flush is an address that
    // is handed out again.
    let plant: Plant = |bench, _| on_hardware(HardwareFlaw::CompletesEarly, bench, &[Operation::Burst(260)]);
    finds(Rule::Reuse, &MACHINE, Deferred, plant);
}

/// One stream takes pages from a chunk, and another stream is given the same chunk.
#[test]
fn s3_reuse_of_a_chunk_before_it_is_left() {
    /// Two of these buffers fill a chunk, and sixteen of them a table.
    fn script() -> Vec<Operation> {
        let buffer = |at: u64| {
            let segments = vec![Segment { phys: PhysAddr::from_pfn(100 * (at + 1)), len: 32 * PAGE_SIZE }];
            Operation::Map(Buffer { segments, access: Access::DeviceWrites })
        };
        (0..20).map(buffer).collect()
    }
    let without: Plant = |bench, _| portcullis_on_host(HostFlaw::None, bench, &script());
    let plant: Plant = |bench, _| portcullis_on_host(HostFlaw::ForgetsACursor, bench, &script());
    for protection in [Strict, Deferred] {
        finds_beside(without, Rule::Reuse, &MACHINE, protection, plant);
    }
}

/// The map finds the whole table spent, because the pages that the batch has unmapped were counted before the wait.
#[test]
fn s3_reuse_of_pages_that_are_spent_before_the_wait() {
    fn script() -> [Operation; 2] {
        // Two of these buffers do not fit in one table.
        let buffer = |pfn| {
            let segments = vec![Segment { phys: PhysAddr::from_pfn(pfn), len: 300 * PAGE_SIZE }];
            Buffer { segments, access: Access::DeviceWrites }
        };
        let batch = Operation::Batch { unmaps: vec![0], map: Some(buffer(1000)), dropped: false };
        [Operation::Map(buffer(100)), batch]
    }
    let without: Plant = |bench, _| portcullis_on_host(HostFlaw::None, bench, &script());
    let plant: Plant = |bench, _| portcullis_on_host(HostFlaw::SpendsWhatIsCleared, bench, &script());
    finds_beside(without, Rule::Reuse, &MACHINE, Strict, plant);
}

/// A map that does not invalidate its new address returns an address that leads elsewhere.
#[test]
fn s3_reuse_by_a_map_that_does_not_invalidate() {
    let without: Plant = |bench, script| solaris_on_hardware(HardwareFlaw::None, bench, script);
    let lost: Plant = |bench, script| solaris_on_hardware(HardwareFlaw::LosesCommands, bench, script);
    let early: Plant = |bench, script| solaris_on_hardware(HardwareFlaw::CompletesEarly, bench, script);
    for plant in [lost, early] {
        finds_beside(without, Rule::Reuse, &MACHINE, Deferred, plant);
    }
}

#[test]
fn s5_wider_rights() {
    finds(Rule::Rights, &MACHINE, Strict, on_design::<{ DesignFlaw::WIDENS_RIGHTS }>);
}

#[test]
fn s6_a_refusal_that_changes_something() {
    finds(Rule::Errors, &MACHINE, Strict, on_design::<{ DesignFlaw::REFUSAL_MAPS }>);
}

#[test]
fn s6_an_unmap_of_what_is_not_mapped() {
    finds(Rule::Errors, &MACHINE, Strict, on_design::<{ DesignFlaw::UNMAPS_GARBAGE }>);
}

#[test]
fn s6_a_live_address_is_refused_as_an_overlap() {
    finds(Rule::Errors, &MACHINE, Strict, on_design::<{ DesignFlaw::ALLOCATES_THE_LAST_AGAIN }>);
}

#[test]
fn s7_a_queue_beyond_its_limit() {
    finds(Rule::Bounds, &MACHINE, Deferred, on_design::<{ DesignFlaw::UNDERSTATES_ITS_QUEUE }>);
}

#[test]
fn s9_a_reserved_page() {
    finds(Rule::Reserved, &MACHINE, Strict, on_design::<{ DesignFlaw::IGNORES_WHAT_IS_RESERVED }>);
}

#[test]
fn s10_a_domain_that_stays_open() {
    // A mapping that the hardware has cached. Otherwise its next walk fails, in the fake.
    finds(Rule::Teardown, &MACHINE, Strict, |bench, _| {
        on_hardware(HardwareFlaw::NeverCloses, bench, &[Operation::Map(Buffer::page(7))])
    });
}

#[test]
fn s11_an_error_that_is_swallowed() {
    finds(Rule::Completion, &MACHINE, Strict, |bench, script| on_hardware(HardwareFlaw::HidesErrors, bench, script));
}

#[test]
fn s13_an_address_that_the_device_cannot_drive() {
    finds(
        Rule::Exhaustion,
        &Machine { address_bits: 20, ..MACHINE },
        Strict,
        on_design::<{ DesignFlaw::IGNORES_WIDTH }>,
    );
}
