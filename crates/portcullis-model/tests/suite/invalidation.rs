//! Exactly what an invalidation drops, and what it keeps.

use super::common::*;
use portcullis::iommu::DomainId;
use portcullis::table::Rights;
use portcullis::{PAGE_SIZE, PhysAddr};
use portcullis_model::{LookupOutcome, Parameters, PsiDrops, Scope};
use portcullis_vtd::spec::descriptors::InvalidationDescriptor;

fn cached(machine: &Machine, iovas: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let before = machine.counters().iotlb_hits;
    let mut hits = Vec::new();
    for iova in iovas {
        if machine.ask(DEVICE, iova, Rights::READ).unwrap().outcome == LookupOutcome::Hit {
            hits.push(iova / PAGE_SIZE);
        }
    }
    assert_eq!(machine.counters().iotlb_hits - before, hits.len() as u64);
    hits
}

fn warm(first: u64, count: u64) -> Machine {
    let parameters = Parameters { invalidation_ps: 400_000, wait_ps: 200_000, ..Parameters::cascadelake() };
    let (mut machine, _) = Machine::with_pages(parameters, first * PAGE_SIZE, count);
    for page in first..first + count {
        machine.touch(page * PAGE_SIZE);
    }
    machine
}

#[test]
fn a_page_selective_invalidation_covers_its_mask_and_no_page_more() {
    for mask in 0..=5 {
        let mut machine = warm(64, 64);
        machine.run(pages(1, 64 * PAGE_SIZE, mask, true));
        let survivors: Vec<u64> = (64 + (1 << mask)..128).collect();
        assert_eq!(cached(&machine, (64..128).map(|page| page * PAGE_SIZE)), survivors, "mask {mask}");
    }
    // AM 4: sixteen pages are dropped, and the seventeenth stays.
    let mut machine = warm(64, 17);
    machine.run(pages(1, 64 * PAGE_SIZE, 4, true));
    assert_eq!(cached(&machine, (64..81).map(|page| page * PAGE_SIZE)), [80]);
}

#[test]
fn address_bits_under_the_mask_are_ignored() {
    let mut machine = warm(64, 32);
    machine.run(pages(1, 75 * PAGE_SIZE, 3, true));
    let survivors: Vec<u64> = (64..72).chain(80..96).collect();
    assert_eq!(cached(&machine, (64..96).map(|page| page * PAGE_SIZE)), survivors, "72 to 79, not 75 to 82");
}

#[test]
fn a_wide_mask_goes_through_the_cache_instead_of_the_pages() {
    let mut machine = warm(512 - 8, 16);
    machine.run(pages(1, 512 * PAGE_SIZE, 18, true));
    assert!(cached(&machine, (504..520).map(|page| page * PAGE_SIZE)).is_empty(), "2^18 pages begin at 0");
    let mut machine = warm(512 - 8, 16);
    machine.run(pages(1, 512 * PAGE_SIZE, 9, true));
    assert_eq!(cached(&machine, (504..520).map(|page| page * PAGE_SIZE)), (504..512).collect::<Vec<_>>());

    let mut machine = warm(0, 1);
    let other_top = machine.ram.allocate().unwrap();
    machine.attach(OTHER, 2, other_top, 4);
    machine.map(other_top, 0, 0xabc000);
    machine.ask(OTHER, 0, Rights::READ).unwrap();
    machine.settle();
    machine.run(pages(1, 0, 18, true));
    assert_eq!(machine.ask(OTHER, 0, Rights::READ).unwrap().outcome, LookupOutcome::Hit, "another domain's page");
    assert!(cached(&machine, [0]).is_empty());
}

#[test]
fn the_hint_spares_pointers_and_its_absence_drops_those_of_every_level() {
    let reads_after = |descriptor: InvalidationDescriptor, iova: u64| {
        let (mut machine, top) = Machine::with_pages(Parameters::cascadelake(), 0x1000, 2);
        machine.map(top, 2 << 20, phys_of(2 << 20));
        machine.map(top, 3 << 30, phys_of(3 << 30));
        for iova in [0x1000, 2 << 20, 3 << 30] {
            machine.touch(iova);
        }
        machine.run(descriptor);
        match machine.touch(iova) {
            LookupOutcome::Miss { reads } => reads,
            outcome => panic!("{outcome:?}"),
        }
    };
    assert_eq!(reads_after(pages(1, 0x1000, 0, true), 0x1000), 1);
    assert_eq!(reads_after(pages(1, 0x1000, 0, false), 0x1000), 4, "L3, L2 and L1 serve the page, and go");
    assert_eq!(reads_after(pages(1, 0x1000, 0, false), 0x2000), 4, "they serve its neighbour too");
    // A command for page 512 drops its own L3 entry, and the L2 and L1 entries that it shares.
    assert_eq!(reads_after(pages(1, 2 << 20, 0, false), 0x2000), 1, "the L3 entry of another 2 MiB stays");
    assert_eq!(reads_after(pages(1, 3 << 30, 0, false), 0x2000), 1, "and of another 1 GiB");
    assert_eq!(reads_after(domain(1), 0x2000), 4);
    assert_eq!(reads_after(global_flush(), 0x2000), 4);
    assert_eq!(reads_after(domain(2), 0x2000), 1, "another domain's flush is no flush");
    assert_eq!(reads_after(pages(2, 0x1000, 0, false), 0x2000), 1);
}

/// What devices must look up again though it is still mapped.
#[test]
fn live_entries_that_a_wide_command_drops_are_counted() {
    let dropped = |command: InvalidationDescriptor| {
        let (mut machine, top) = Machine::with_pages(Parameters::cascadelake(), 0x8000, 4);
        (0..4).for_each(|page| _ = machine.touch(0x8000 + page * PAGE_SIZE));
        machine.poke(machine.entry(top, 4, 0x9000, 1), 0);
        machine.run(command);
        machine.counters().iotlb_dropped_live
    };
    assert_eq!(dropped(pages(1, 0x9000, 0, true)), 0, "the page that was unmapped");
    assert_eq!(dropped(pages(1, 0x8000, 0, true)), 0, "one page, whatever it is, is what was asked for");
    assert_eq!(dropped(pages(1, 0x8000, 1, true)), 1);
    assert_eq!(dropped(pages(1, 0x8000, 2, true)), 3);
    assert_eq!(dropped(domain(1)), 3);
    assert_eq!(dropped(global_flush()), 3);
    assert_eq!(dropped(domain(2)), 0);
}

#[test]
fn pointers_are_dropped_by_what_they_serve() {
    // Far from zero, where the keys of the levels differ.
    const FAR: u64 = (5 << 39) + (7 << 30) + (9 << 21);
    let reads_after = |invalidated: u64, mask: u8| {
        let (mut machine, _) = Machine::with_pages(Parameters::cascadelake(), FAR, 2);
        machine.touch(FAR);
        machine.run(pages(1, invalidated, mask, false));
        match machine.touch(FAR + PAGE_SIZE) {
            LookupOutcome::Miss { reads } => reads,
            outcome => panic!("{outcome:?}"),
        }
    };
    assert_eq!(reads_after(FAR, 0), 4);
    assert_eq!(reads_after(FAR + (1 << 21), 0), 1, "L2 and L1 are gone, L3 is not and is asked first");
    assert_eq!(reads_after(FAR - PAGE_SIZE, 0), 1);
    assert_eq!(reads_after(FAR - (1 << 21), 9), 1, "the 2 MiB below");
    assert_eq!(reads_after(FAR, 18), 4, "the 1 GiB around");
    // Another 2 MiB shows what is left of L2 and L1.
    let (mut machine, top) = Machine::with_pages(Parameters::cascadelake(), FAR, 1);
    machine.map(top, FAR + (1 << 21), phys_of(FAR + (1 << 21)));
    machine.touch(FAR);
    machine.run(pages(1, FAR + (3 << 21), 0, false));
    assert_eq!(machine.touch(FAR + (1 << 21)), LookupOutcome::Miss { reads: 4 });
}

#[test]
fn hardware_that_ignores_the_hint_drops_pointers_always() {
    let parameters = Parameters { honours_hint: false, ..Parameters::cascadelake() };
    let (mut machine, _) = Machine::with_pages(parameters, 0x1000, 1);
    machine.touch(0x1000);
    machine.run(pages(1, 0x1000, 0, true));
    assert_eq!(machine.touch(0x1000), LookupOutcome::Miss { reads: 4 });
}

#[test]
fn psi_that_drops_all_costs_the_domain_its_leaves_but_no_further_pointers() {
    // The outcomes for a page, its neighbour, a page of another GiB, and a page of another domain.
    let outcomes = |psi_drops, honours_hint, leaf_only| {
        let parameters = Parameters { psi_drops, honours_hint, ..Parameters::cascadelake() };
        let (mut machine, top) = Machine::with_pages(parameters, 0x1000, 2);
        machine.map(top, 3 << 30, phys_of(3 << 30));
        let other_top = machine.ram.allocate().unwrap();
        machine.attach(OTHER, 2, other_top, 4);
        machine.map(other_top, 0x1000, 0xabc000);
        let all = [(DEVICE, 0x1000), (DEVICE, 0x2000), (DEVICE, 3 << 30), (OTHER, 0x1000)];
        let touch = |machine: &mut Machine, (source, iova)| {
            let outcome = machine.ask(source, iova, Rights::READ).unwrap().outcome;
            machine.settle();
            outcome
        };
        all.iter().for_each(|request| _ = touch(&mut machine, *request));
        machine.run(pages(1, 0x1000, 0, leaf_only));
        let before = machine.counters().iotlb_misses;
        let [page, far, neighbour, other] =
            [all[0], all[2], all[1], all[3]].map(|request| touch(&mut machine, request));
        ([page, neighbour, far, other], machine.counters().iotlb_misses - before)
    };
    const HIT: LookupOutcome = LookupOutcome::Hit;
    const ONE: LookupOutcome = LookupOutcome::Miss { reads: 1 };
    const FOUR: LookupOutcome = LookupOutcome::Miss { reads: 4 };
    assert_eq!(outcomes(PsiDrops::Exact, true, false), ([FOUR, HIT, HIT, HIT], 1));
    assert_eq!(outcomes(PsiDrops::All, true, false), ([FOUR, ONE, ONE, HIT], 3), "L3 of the other GiB stays");
    for psi_drops in [PsiDrops::Exact, PsiDrops::All] {
        assert_eq!(outcomes(psi_drops, true, true), ([ONE, HIT, HIT, HIT], 1), "{psi_drops:?} with the hint");
    }
    assert_eq!(outcomes(PsiDrops::All, false, true), ([FOUR, ONE, ONE, HIT], 3), "the hint is not honoured");
}

/// Takes a leaf table out of the tree while PTcache-L3 points to it.
fn detach_a_table(leaf_only: bool) -> (Machine, PhysAddr) {
    let (mut machine, top) = Machine::with_pages(Parameters::cascadelake(), 0x1000, 2);
    machine.touch(0x1000);
    let leaf_table = PhysAddr::from_pfn(machine.entry(top, 4, 0x1000, 1).pfn());
    machine.poke(machine.entry(top, 4, 0x1000, 2), 0);
    machine.run(pages(1, 0x1000, 0, leaf_only));
    (machine, leaf_table)
}

#[test]
fn a_detached_table_stays_reachable_until_all_levels_are_invalidated() {
    let (machine, _) = detach_a_table(true);
    assert!(machine.reaches(DEVICE, 0x2000), "a leaf-only invalidation leaves the stale path");
    assert!(machine.ask(DEVICE, 0x2000, Rights::READ).is_ok());
    let (machine, leaf_table) = detach_a_table(true);
    machine.ram.free(leaf_table);
    machine.ask(DEVICE, 0x2000, Rights::READ).unwrap();
    assert_eq!(machine.counters().walks_into_freed, 1);

    let (machine, leaf_table) = detach_a_table(false);
    machine.ram.free(leaf_table);
    assert!(!machine.reaches(DEVICE, 0x2000));
    assert!(machine.ask(DEVICE, 0x2000, Rights::READ).is_err());
    assert_eq!(machine.counters().walks_into_freed, 0);
}

#[test]
fn domains_do_not_share() {
    let (mut machine, _) = Machine::with_pages(Parameters::cascadelake(), 0x1000, 1);
    let other_top = machine.ram.allocate().unwrap();
    machine.attach(OTHER, 2, other_top, 4);
    machine.map(other_top, 0x1000, 0xabc000);
    let ask = |machine: &mut Machine| {
        let [mine, theirs] = [DEVICE, OTHER].map(|source| machine.ask(source, 0x1000, Rights::READ).unwrap());
        assert_eq!([mine.phys.as_u64(), theirs.phys.as_u64()], [phys_of(0x1000), 0xabc000]);
        machine.settle();
        [mine, theirs].map(|translated| translated.outcome == LookupOutcome::Hit)
    };
    assert_eq!(ask(&mut machine), [false, false]);
    assert_eq!(ask(&mut machine), [true, true]);
    machine.run(pages(1, 0x1000, 0, true));
    assert_eq!(ask(&mut machine), [false, true]);
    machine.run(domain(2));
    assert_eq!(ask(&mut machine), [true, false]);
    machine.run(global_flush());
    assert_eq!(ask(&mut machine), [false, false]);
    let counters = machine.counters();
    let by_scope = [counters.invalidations_page, counters.invalidations_domain, counters.invalidations_global];
    assert_eq!(by_scope, [1, 1, 1]);
}

/// Starts a cold walk for 0x1000 and executes `descriptor` while it is under way.
fn walk_across(psi_drops: PsiDrops, descriptor: InvalidationDescriptor) -> Machine {
    let (memory_read_ps, invalidation_ps) = (1_000_000, 100_000);
    let parameters = Parameters { memory_read_ps, invalidation_ps, psi_drops, ..Parameters::cascadelake() };
    let (mut machine, _) = Machine::with_pages(parameters, 0x1000, 2);
    let walk = machine.ask(DEVICE, 0x1000, Rights::READ).unwrap();
    machine.push(descriptor);
    machine.ring();
    machine.now_ps += 100_000;
    assert_eq!(machine.head(), 1, "the invalidation has completed");
    assert!(machine.now_ps < walk.ready_ps, "the walk has not");
    machine
}

#[test]
fn a_walk_whose_range_was_invalidated_inserts_nothing() {
    const FOUR: LookupOutcome = LookupOutcome::Miss { reads: 4 };
    const ONE: LookupOutcome = LookupOutcome::Miss { reads: 1 };
    let page = |iova, leaf_only| pages(1, iova, 0, leaf_only);
    const EXACT: PsiDrops = PsiDrops::Exact;
    for (psi_drops, descriptor, meanwhile, the_page, its_neighbour) in [
        (EXACT, page(0x8000, true), LookupOutcome::Joined, LookupOutcome::Hit, ONE),
        // A neighbour's invalidation leaves the leaf, but drops the pointers, which serve the neighbour too.
        (EXACT, page(0x8000, false), LookupOutcome::Joined, LookupOutcome::Hit, FOUR),
        (EXACT, page(0x1000, true), FOUR, ONE, ONE),
        (EXACT, page(0x1000, false), FOUR, FOUR, FOUR),
        // Every leaf of the domain goes, and only the pointers that serve the invalidated page.
        (PsiDrops::All, page(0x8000, false), FOUR, FOUR, FOUR),
        (PsiDrops::All, page(1 << 30, false), FOUR, ONE, ONE),
        (PsiDrops::All, page(0x8000, true), LookupOutcome::Joined, LookupOutcome::Hit, ONE),
        (EXACT, domain(1), FOUR, FOUR, FOUR),
        (EXACT, domain(2), LookupOutcome::Joined, LookupOutcome::Hit, ONE),
        (EXACT, global_flush(), FOUR, FOUR, FOUR),
    ] {
        let machine = walk_across(psi_drops, descriptor);
        let other = machine.ask(DEVICE, 0x1800, Rights::READ).unwrap();
        assert_eq!(other.outcome, meanwhile, "{descriptor:?}: a request before the walk ends");
        let mut machine = walk_across(psi_drops, descriptor);
        machine.settle();
        assert_eq!(machine.touch(0x1000), the_page, "{descriptor:?}: a request after the walk");
        let mut machine = walk_across(psi_drops, descriptor);
        machine.settle();
        assert_eq!(machine.touch(0x2000), its_neighbour, "{descriptor:?}: a page that shares its tables");
    }
}

#[test]
fn a_cancelled_walk_does_not_insert_what_it_read_before() {
    for (descriptor, stale) in [(pages(1, 0x1000, 0, true), false), (pages(1, 0x8000, 0, true), true)] {
        let parameters = Parameters { memory_read_ps: 1_000_000, ..Parameters::cascadelake() };
        let (mut machine, top) = Machine::with_pages(parameters, 0x1000, 1);
        machine.ask(DEVICE, 0x1000, Rights::READ).unwrap();
        machine.poke(machine.entry(top, 4, 0x1000, 1), 0);
        assert!(machine.reaches(DEVICE, 0x1000), "the walk under way has read the entry, and will insert it");
        machine.push(descriptor);
        machine.ring();
        machine.settle();
        assert_eq!(machine.reaches(DEVICE, 0x1000), stale, "{descriptor:?}");
    }
}

#[test]
fn completed_invalidations_are_handed_over_once_and_in_order() {
    let mut machine = warm(64, 4);
    machine.run(domain(1));
    machine.vtd.record_invalidations(true);
    machine.push(pages(1, 67 * PAGE_SIZE, 1, true));
    machine.push(domain(9));
    machine.push(machine.wait(1));
    machine.push(global_flush());
    let start_ps = machine.now_ps;
    machine.ring();
    let drained = |machine: &Machine| {
        let mut drained = Vec::new();
        machine.vtd.drain_completed(machine.now_ps, |at_ps, scope| drained.push((at_ps - start_ps, scope)));
        drained
    };
    machine.now_ps += 800_000;
    machine.vtd.advance(machine.now_ps);
    let first = Scope::Pages { domain: DomainId(1), first_pfn: 66, pages: 2 };
    assert_eq!(drained(&machine), [(400_000, first), (800_000, Scope::Domain(DomainId(9)))]);
    machine.settle();
    assert_eq!(drained(&machine), [(1_400_000, Scope::Global)]);
    assert!(drained(&machine).is_empty());
    machine.vtd.record_invalidations(false);
    machine.run(domain(1));
    assert!(drained(&machine).is_empty());
}
