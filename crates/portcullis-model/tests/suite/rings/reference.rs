//! Checks any sequence of requests, table changes and invalidations against the rules. An entry is reachable with its
//! present value in the table, or with a value since the last invalidation of its ring, if hardware had a reason to
//! read it: the entry, or the one before it, was requested. Of entries that are no longer in the table, a device
//! reaches at most two per ring.

use super::*;
use portcullis::Iova;
use portcullis_model::Scope;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeSet;

const SIZES: [u32; 3] = [1, 2, 5];
/// Each device is in a separate domain: 1 and 2.
const SOURCES: [SourceId; 2] = [DEVICE, OTHER];

#[derive(Clone, Debug)]
enum Step {
    Ask {
        device: usize,
        ring: u16,
        entry: u32,
    },
    /// Sets an entry in the table. All devices use the same rings.
    Set {
        ring: u16,
        entry: u32,
    },
    Clear {
        ring: u16,
        entry: u32,
    },
    Forget {
        domain: u16,
        ring: u16,
    },
    ForgetDomain {
        domain: u16,
    },
    ForgetAll,
    Pass {
        ps: u64,
    },
}

/// What is known about an entry of a device.
#[derive(Clone, Default)]
struct Known {
    /// All addresses to which it has led since the last invalidation of its ring.
    was: BTreeSet<u64>,
    is_asked: bool,
}

/// An entry, by device, ring and index.
type Place = (usize, u16, u32);

struct Reference {
    ringed: Ringed,
    now: Vec<(Place, Option<u64>, Known)>,
    /// Makes the address of an entry differ from all its earlier ones.
    versions: u64,
}

fn size_of(ring: u16) -> u32 {
    SIZES[usize::from(ring) - 1]
}

fn places() -> impl Iterator<Item = Place> {
    let of_ring = |device, ring| (0..size_of(ring)).map(move |entry| (device, ring, entry));
    (0..SOURCES.len()).flat_map(move |device| (1..=3).flat_map(move |ring| of_ring(device, ring)))
}

impl Reference {
    fn new(parameters: Parameters, flaw: Option<RingFlaw>) -> Self {
        let mut ringed = Ringed::new(parameters, &SIZES);
        ringed.machine.poke_context(OTHER, rings(2, ringed.device).encode());
        ringed.machine.vtd.record_invalidations(true);
        flaw.into_iter().for_each(|flaw| ringed.machine.vtd.plant_in_rings(flaw));
        ringed.machine.now_ps = 1;
        let now = places().map(|(device, ring, entry)| {
            let phys = value(ring, entry).phys.as_u64();
            ((device, ring, entry), Some(phys), Known { was: [phys].into(), is_asked: false })
        });
        Self { now: now.collect(), ringed, versions: 0 }
    }

    fn known(&self, place: Place) -> &(Place, Option<u64>, Known) {
        self.now.iter().find(|(other, ..)| *other == place).expect("a place")
    }

    fn change(&mut self, ring: u16, entry: u32, to: Option<u64>) {
        match to {
            Some(phys) => self.ringed.set(ring, entry, RingEntry { phys: PhysAddr::new(phys), ..value(ring, entry) }),
            None => self.ringed.clear(ring, entry),
        }
        for (_, now, known) in self.now.iter_mut().filter(|((_, of, at), ..)| (*of, *at) == (ring, entry)) {
            *now = to;
            known.was.extend(to);
        }
    }

    fn invalidated(&mut self, scope: Scope) {
        let is_covered = |(device, ring, _): Place| match scope {
            Scope::Global => true,
            Scope::Domain(domain) => domain.0 == device as u16 + 1,
            Scope::Pages { domain, first_pfn, .. } => {
                domain.0 == device as u16 + 1 && RingAddress::of(Iova::from_pfn(first_pfn)).ring == ring
            }
        };
        for (place, now, known) in &mut self.now {
            if is_covered(*place) {
                *known = Known { was: now.iter().copied().collect(), is_asked: false };
            }
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match *step {
            Step::Ask { device, ring, entry } => {
                let iova = address(ring, entry, 0);
                let now_ps = self.ringed.machine.now_ps;
                let reached = self.reached((device, ring, entry));
                let in_tables = self.ringed.machine.vtd.in_tables(now_ps, SOURCES[device], Iova::new(iova));
                let asked = self.ringed.machine.ask(SOURCES[device], iova, Rights::READ).ok();
                let asked = asked.map(|translated| translated.phys.as_u64());
                let place = (device, ring, entry);
                assert_eq!(in_tables.map(PhysAddr::as_u64), self.known(place).1, "what is in the table");
                if asked != reached {
                    return Err(format!("{place:?} got to {asked:x?}, and was said to get to {reached:x?}"));
                }
                let known = self.now.iter_mut().find(|(other, ..)| *other == place).expect("a place");
                known.2.is_asked |= asked.is_some();
            }
            Step::Set { ring, entry } => {
                self.versions += 1;
                self.change(ring, entry, Some(0x1_0000_0000 + 0x1000 * self.versions));
            }
            Step::Clear { ring, entry } => self.change(ring, entry, None),
            Step::Forget { domain, ring } => self.submit(forget(domain, ring)),
            Step::ForgetDomain { domain: id } => self.submit(domain(id)),
            Step::ForgetAll => self.submit(global_flush()),
            Step::Pass { ps } => {
                // Not beyond the next event, so that its effect is known before anything else happens.
                let end_ps = self.ringed.machine.now_ps + ps;
                while self.ringed.machine.vtd.next_event_ps().is_some_and(|at_ps| at_ps <= end_ps) {
                    self.ringed.machine.now_ps = self.ringed.machine.vtd.next_event_ps().expect("an event");
                    self.check()?;
                }
                self.ringed.machine.now_ps = end_ps;
            }
        }
        self.check()
    }

    fn submit(&mut self, descriptor: InvalidationDescriptor) {
        self.ringed.machine.push(descriptor);
        self.ringed.machine.ring();
    }

    fn reached(&self, (device, ring, entry): Place) -> Option<u64> {
        let (now_ps, iova) = (self.ringed.machine.now_ps, Iova::new(address(ring, entry, 0)));
        self.ringed.machine.vtd.reaches(now_ps, SOURCES[device], iova, Rights::READ).map(PhysAddr::as_u64)
    }

    /// Checks that what is reachable follows the rules.
    fn check(&mut self) -> Result<(), String> {
        let mut scopes = Vec::new();
        self.ringed.machine.vtd.drain_completed(self.ringed.machine.now_ps, |_, scope| scopes.push(scope));
        scopes.into_iter().for_each(|scope| self.invalidated(scope));
        let mut stale = [[0; SIZES.len()]; SOURCES.len()];
        for (place, in_table, known) in &self.now {
            let (device, ring, entry) = *place;
            let reached = self.reached(*place);
            if reached == *in_table {
                continue;
            }
            let Some(phys) = reached else { return Err(format!("{place:?} is in the table and not within reach")) };
            let before = (entry + size_of(ring) - 1) % size_of(ring);
            let had_reason = known.is_asked || self.known((device, ring, before)).2.is_asked;
            if !had_reason || !known.was.contains(&phys) {
                return Err(format!(
                    "{place:?} leads to {phys:#x}, which it has not led to since the last invalidation"
                ));
            }
            stale[device][usize::from(ring) - 1] += 1;
        }
        if stale.iter().flatten().any(|stale| *stale > 2) {
            return Err(format!("so many stale entries by device and ring: {stale:?}"));
        }
        let counters = self.ringed.machine.counters();
        assert_eq!(counters.iotlb_hits + counters.iotlb_misses, counters.lookups);
        Ok(())
    }
}

/// Runs the steps. The error names the rule that was broken.
fn run(parameters: Parameters, flaw: Option<RingFlaw>, steps: &[Step]) -> Result<(), String> {
    let mut reference = Reference::new(parameters, flaw);
    steps.iter().try_for_each(|step| reference.step(step))
}

fn entry() -> impl Strategy<Value = (u16, u32)> {
    (1..=3u16).prop_flat_map(|ring| (Just(ring), 0..size_of(ring)))
}

fn step() -> impl Strategy<Value = Step> {
    let device = || 0..SOURCES.len();
    prop_oneof![
        6 => (device(), entry()).prop_map(|(device, (ring, entry))| Step::Ask { device, ring, entry }),
        2 => entry().prop_map(|(ring, entry)| Step::Set { ring, entry }),
        3 => entry().prop_map(|(ring, entry)| Step::Clear { ring, entry }),
        2 => (1..=2u16, 1..=3u16).prop_map(|(domain, ring)| Step::Forget { domain, ring }),
        1 => (1..=2u16).prop_map(|domain| Step::ForgetDomain { domain }),
        1 => Just(Step::ForgetAll),
        // Up to two walks and a descriptor.
        5 => (0..=2 * WALK_PS).prop_map(|ps| Step::Pass { ps }),
    ]
}

/// Devices that go round their rings, disturbed by other steps.
fn in_order() -> impl Strategy<Value = Vec<Step>> {
    let asks = (0..SOURCES.len(), 1..=3u16, 0..=WALK_PS, 1..8u32);
    asks.prop_map(|(device, ring, ps, times)| {
        let ask = |time| Step::Ask { device, ring, entry: time % size_of(ring) };
        (0..times).flat_map(|time| [ask(time), Step::Pass { ps }]).collect()
    })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let some = prop_oneof![3 => vec(step(), 1..8), 1 => in_order()];
    vec(some, 1..20).prop_map(|steps| steps.concat())
}

fn any_parameters() -> impl Strategy<Value = Parameters> {
    let capacity = prop_oneof![Just(0u32), Just(1), Just(2), Just(128)];
    (capacity, 1..=3u32, 1..=4u64).prop_map(|(iotlb_entries, walkers, speed)| {
        let invalidation_ps = 100_000 * speed;
        Parameters { iotlb_entries, walkers, invalidation_ps, ..parameters() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn no_more_is_within_reach_than_the_rules_say(parameters in any_parameters(), steps in steps()) {
        prop_assert_eq!(run(parameters, None, &steps), Ok(()));
    }
}

#[test]
fn the_rules_find_hardware_that_keeps_the_next_entry() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut found = 0;
    for _ in 0..200 {
        let steps = steps().new_tree(&mut runner).expect("some steps").current();
        assert_eq!(run(parameters(), None, &steps), Ok(()));
        found += usize::from(run(parameters(), Some(RingFlaw::KeepsNext), &steps).is_err());
    }
    assert!(found > 20, "{found} of 200");
}
