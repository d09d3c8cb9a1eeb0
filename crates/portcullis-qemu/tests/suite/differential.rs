//! The same random steps on the model and on QEMU: every DMA must have the same outcome.

use portcullis::PhysAddr;
use portcullis::table::Rights;
use portcullis_qemu::conformance::sequence::{
    DOMAINS, Leaf, MASK_MAX, Observed, PAGES, PLACES, Place, REGIONS, SequenceStep, play, same,
};
use portcullis_qemu::conformance::{DEVICES, Hardware, Seen, Side};
use portcullis_vtd::spec::descriptors::{ContextScope, InvalidationDescriptor, IotlbScope};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::cell::Cell;

/// The seed of all runs here.
const SEED: [u8; 32] = *b"the same steps on both machines.";
/// The most steps of a sequence; on average it has half of them.
const STEPS_MAX: usize = 520;
/// Each needs a QEMU of its own, and to start one takes as long as many steps.
const SEQUENCES: u32 = 50;

fn runner(cases: u32, shrinks: u32) -> TestRunner {
    let config = ProptestConfig { cases, max_shrink_iters: shrinks, failure_persistence: None, ..Default::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &SEED))
}

fn rights() -> impl Strategy<Value = Rights> {
    prop_oneof![3 => Just(Rights::READ_WRITE), 1 => Just(Rights::READ), 1 => Just(Rights::WRITE)]
}

fn leaf() -> impl Strategy<Value = Leaf> {
    prop_oneof![
        3 => Just(Leaf::Absent),
        9 => (0..PLACES, rights()).prop_map(|(place, rights)| Leaf::To(place, rights)),
        1 => Just(Leaf::Reserved),
    ]
}

/// Few pages, so that steps affect each other.
fn page() -> impl Strategy<Value = u8> {
    prop_oneof![5 => 0..4u8, 1 => 0..PAGES]
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![
        8 => (0..REGIONS, page()).prop_map(|(region, page)| Place::Page(region, page)),
        1 => page().prop_map(Place::Huge),
    ]
}

fn to() -> impl Strategy<Value = Option<usize>> {
    prop_oneof![1 => Just(None), 6 => (0..DOMAINS).prop_map(Some)]
}

fn step() -> impl Strategy<Value = SequenceStep> {
    let (domain, region, device) = (0..DOMAINS, 0..REGIONS, 0..DEVICES.len());
    prop_oneof![
        14 => (domain.clone(), region.clone(), page(), leaf())
            .prop_map(|(domain, region, page, leaf)| SequenceStep::Page { domain, region, page, leaf }),
        2 => (domain.clone(), region, prop::option::of(leaf()))
            .prop_map(|(domain, region, leaf)| SequenceStep::Region { domain, region, leaf }),
        2 => (domain.clone(), leaf()).prop_map(|(domain, leaf)| SequenceStep::Huge { domain, leaf }),
        30 => (device.clone(), place()).prop_map(|(device, place)| SequenceStep::Write { device, place }),
        20 => (device.clone(), place()).prop_map(|(device, place)| SequenceStep::Read { device, place }),
        8 => (domain.clone(), place(), 0..=MASK_MAX, any::<bool>())
            .prop_map(|(domain, place, mask, leaf_only)| SequenceStep::Pages { domain, place, mask, leaf_only }),
        1 => domain.prop_map(SequenceStep::Domain),
        1 => Just(SequenceStep::Global),
        1 => Just(SequenceStep::Contexts),
        2 => (device.clone(), to()).prop_map(|(device, to)| SequenceStep::Move { device, to }),
        1 => (device, to()).prop_map(|(device, to)| SequenceStep::Slip { device, to }),
    ]
}

fn steps() -> impl Strategy<Value = Vec<SequenceStep>> {
    prop::collection::vec(step(), 1..=STEPS_MAX)
}

/// Before the random steps, every device is in a separate domain, in which the most frequent pages are mapped.
fn beginning() -> Vec<SequenceStep> {
    let mut all: Vec<_> = (0..DEVICES.len()).map(|device| SequenceStep::Move { device, to: Some(device) }).collect();
    for (region, page) in (0..REGIONS).flat_map(|region| (0..4).map(move |page| (region, page))) {
        let leaf = Leaf::To(page % PLACES, Rights::READ_WRITE);
        all.extend((0..DOMAINS).map(|domain| SequenceStep::Page { domain, region, page, leaf }));
    }
    all
}

type Tamper = fn(InvalidationDescriptor) -> InvalidationDescriptor;

/// Plays the steps on both sides; the descriptors of the second side are changed by `tamper`. The first step that
/// differs is an error.
fn compare(steps: &[SequenceStep], other: Side, tamper: Tamper, tally: &Tally) -> Result<(), TestCaseError> {
    let rig = |side: Side| side.rig(Hardware::Standard).map_err(|trouble| TestCaseError::fail(trouble.to_string()));
    let broken = |trouble: portcullis_qemu::conformance::Trouble| TestCaseError::fail(trouble.to_string());
    let begin = beginning();
    let all = [&begin[..], steps].concat();
    let mut model = play(rig(Side::Model)?, &all, |descriptor| descriptor).map_err(broken)?;
    let mut second = play(rig(other)?, &all, tamper).map_err(broken)?;
    let [model, second] = [&mut model, &mut second].map(|observed| observed.split_off(begin.len()));
    tally.count(&model);
    for (index, (one, two)) in model.iter().zip(&second).enumerate() {
        let agrees = if other == Side::Qemu { same(one, two) } else { outcome(one) == outcome(two) };
        if !agrees {
            let step = &steps[index];
            return Err(TestCaseError::fail(format!("step {index}, {step:?}: model {one:?}; {other} {two:?}")));
        }
    }
    Ok(())
}

/// The outcome that must be equal, whether or not it was cached.
fn outcome(observed: &Option<Observed>) -> Option<(&Seen, Option<PhysAddr>)> {
    observed.as_ref().map(|observed| (&observed.seen, observed.at))
}

/// Counts of steps, so that a run that proves nothing fails.
#[derive(Default)]
struct Tally {
    steps: Cell<usize>,
    landed: Cell<usize>,
    refused: Cell<usize>,
    hits: Cell<usize>,
}

impl Tally {
    fn count(&self, observed: &[Option<Observed>]) {
        let add = |cell: &Cell<usize>, count| cell.set(cell.get() + count);
        let dmas = || observed.iter().flatten();
        add(&self.steps, observed.len());
        add(&self.landed, dmas().filter(|dma| dma.seen == Seen::Landed).count());
        add(&self.refused, dmas().filter(|dma| dma.seen.is_blocked()).count());
        add(&self.hits, dmas().filter(|dma| dma.hit == Some(true)).count());
    }
}

#[test]
fn model_and_qemu_agree_on_random_steps() {
    let tally = Tally::default();
    let result =
        runner(SEQUENCES, 300).run(&steps(), |steps| compare(&steps, Side::Qemu, |descriptor| descriptor, &tally));
    if let Err(error) = result {
        panic!("{error}");
    }
    let [steps, landed, refused, hits] = [&tally.steps, &tally.landed, &tally.refused, &tally.hits].map(Cell::get);
    println!("{steps} steps; of the DMAs {landed} landed, {refused} were refused, {hits} were served by the IOTLB");
    assert!(steps >= 10_000, "{steps} steps");
    assert!(landed >= 2_000 && refused >= 1_000 && hits >= 1_000, "{landed} landed, {refused} refused, {hits} hits");
}

/// Runs with one side's invalidations tampered with, and returns the difference that was found.
fn found(tamper: Tamper, other: Side, shrinks: u32) -> (String, Vec<SequenceStep>) {
    let outcome = runner(SEQUENCES, shrinks).run(&steps(), |steps| compare(&steps, other, tamper, &Tally::default()));
    match outcome {
        // A comparison that could not be made counts as no difference.
        Err(TestError::Fail(reason, steps)) if reason.to_string().contains("step ") => (reason.to_string(), steps),
        other => panic!("the flaw was not found: {other:?}"),
    }
}

const HARMLESS: InvalidationDescriptor = InvalidationDescriptor::InterruptEntryCache { entries: None };

/// Every page-selective invalidation covers one page.
fn one_page_only(descriptor: InvalidationDescriptor) -> InvalidationDescriptor {
    match descriptor {
        InvalidationDescriptor::Iotlb {
            scope: IotlbScope::Pages { domain, first, leaf_only, .. },
            drain_writes,
            drain_reads,
        } => {
            let scope = IotlbScope::Pages { domain, first, mask: 0, leaf_only };
            InvalidationDescriptor::Iotlb { scope, drain_writes, drain_reads }
        }
        other => other,
    }
}

/// Every page-selective invalidation covers twice as many pages as intended.
fn mask_too_large(descriptor: InvalidationDescriptor) -> InvalidationDescriptor {
    match descriptor {
        InvalidationDescriptor::Iotlb {
            scope: IotlbScope::Pages { domain, first, mask, leaf_only },
            drain_writes,
            drain_reads,
        } => {
            let scope = IotlbScope::Pages { domain, first, mask: mask + 1, leaf_only };
            InvalidationDescriptor::Iotlb { scope, drain_writes, drain_reads }
        }
        other => other,
    }
}

fn no_domain(descriptor: InvalidationDescriptor) -> InvalidationDescriptor {
    match descriptor {
        InvalidationDescriptor::Iotlb { scope: IotlbScope::Domain(_), .. } => HARMLESS,
        other => other,
    }
}

fn no_context(descriptor: InvalidationDescriptor) -> InvalidationDescriptor {
    match descriptor {
        InvalidationDescriptor::ContextCache(ContextScope::Device { .. }) => HARMLESS,
        other => other,
    }
}

#[test]
fn planted_differences_are_found() {
    for (name, tamper) in [
        ("one page only", one_page_only as Tamper),
        ("a mask too large", mask_too_large),
        ("no domain invalidations", no_domain),
        ("no context invalidations", no_context),
    ] {
        let (reason, _) = found(tamper, Side::Qemu, 0);
        println!("{name}: {reason}");
    }
}

#[test]
fn a_difference_is_shrunk() {
    let (reason, steps) = found(one_page_only, Side::Model, 4_000);
    println!("{reason}\n{steps:#?}");
    assert!(reason.contains("model"), "{reason}");
    // A page is cached, changed, invalidated in a range, and used.
    assert!(steps.len() <= 6, "{steps:#?}");
}
