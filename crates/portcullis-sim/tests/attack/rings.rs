//! The malicious device in rings: inside a burst, it reaches at most two cleared entries of a ring, and none after the
//! burst. Each planted flaw is found.

use super::hardware::{self, FlawedUnit, OnUnit};
use super::{attack_design, machine, replay, rings};
use portcullis::invalidation::{Revocation, Runs};
use portcullis::iommu::rings::{RING_ADDRESS_MASK, RingAddress};
use portcullis::mapper::{Design, DesignInfo, DomainSetup, Info, Mapper, Options, Usage};
use portcullis::platform::Wait;
use portcullis::proof::Committed;
use portcullis::{
    Access, CommitError, Invalidation, Iommu, IovaRange, Lifetime, MapError, NewDomainError, PhysAddr, Platform,
    Protection, QueueError, RawMapError, Request, Rule, Segment, Space, UnmapError,
};
use portcullis_designs::riommu::RingMapper;
use portcullis_designs::{Choice, DesignId, RIommu};
use portcullis_model::RingFlaw;
use portcullis_sim::attack::{Attacked, attack, attack_on_flawed_rings};
use portcullis_sim::{Job, Machine, Work};
use portcullis_testkit::attack::passes;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem::MaybeUninit;
use std::sync::{Mutex, OnceLock};

fn with_ring(entries: u32) -> Options {
    Choice::parse(&format!("riommu:ring={entries}")).expect("a design").options
}

fn in_rings<'m>(machine: &'m Machine, work: Work, entries: u32) -> Job<'m> {
    Job { options: with_ring(entries), ..Job::new(machine, work, DesignId::RIommu, Protection::Strict) }
}

fn rules(attacked: &Attacked) -> BTreeSet<Rule> {
    attacked.found.iter().map(|found| found.rule).collect()
}

const TRACES: [&str; 3] = ["q-e1000e-rx.strict.2cpu", "q-e1000e-tx.lazy.2cpu", "nvme-seqread128k.strict.4cpu"];

/// The attack on trace number `index`, with rings that have room for all of it.
fn with_room(index: usize) -> &'static Attacked {
    static ATTACKED: [OnceLock<Attacked>; TRACES.len()] = [const { OnceLock::new() }; TRACES.len()];
    ATTACKED[index].get_or_init(|| attack(&in_rings(&machine(), replay(TRACES[index]), 4096)))
}

/// The burst is the unit of unmap. Until it ends, the device may reach the entry of a ring that it used last, and the
/// next one.
#[test]
fn inside_a_burst_two_entries_of_a_ring_are_within_reach_and_after_it_none() {
    let machine = machine();
    for (index, name) in TRACES.into_iter().enumerate() {
        let attacked = with_room(index);
        passes(attacked, name);
        assert!(attacked.found.is_empty(), "{name}: {:?}", attacked.found);
        assert!((1..=2).contains(&attacked.in_burst_entries_max.expect("rings")), "{name}: {attacked:?}");
        // The run asks the hardware which bytes beyond a buffer are within reach.
        assert_eq!((attacked.residual_accesses, attacked.residual_bytes_us), (0, Some(0.0)), "{name}");
    }
    // Other designs have no bursts in hardware.
    let other = attack(&Job::new(&machine, rings("operations=2000"), DesignId::Stock, Protection::Strict));
    assert_eq!(other.in_burst_entries_max, None);
}

/// Cores whose rings are full do not wait for each other: every map with room is made, and the others are counted.
#[test]
fn rings_that_are_far_too_small_let_nothing_through() {
    let machine = machine();
    for (index, name) in TRACES.into_iter().enumerate() {
        for entries in [1, 3, 16] {
            let attacked = attack(&in_rings(&machine, replay(name), entries));
            assert!(attacked.error.is_none(), "{name}, {entries}: {attacked:?}");
            assert!(attacked.found.is_empty(), "{name}, {entries}: {attacked:?}");
            let (refused, given_up) = (attacked.refused_maps.expect("rings"), attacked.given_up_maps.expect("rings"));
            assert!(0 < given_up && given_up <= refused, "{name}, {entries}: {attacked:?}");
        }
        let attacked = with_room(index);
        assert_eq!((attacked.refused_maps, attacked.given_up_maps), (Some(0), Some(0)), "{name}");
    }
}

#[test]
fn s2_no_invalidation_at_the_end_of_a_burst() {
    let machine = machine();
    let job = in_rings(&machine, rings("operations=6000"), 4096);
    passes(&attack_design::<OnUnit<RIommu, { hardware::NONE }>>(&job), "without the flaw");
    let attacked = attack_design::<OnUnit<RIommu, { hardware::LOSES_COMMANDS }>>(&job);
    assert!(rules(&attacked).contains(&Rule::Strict), "{attacked:?}");
}

#[test]
fn s2_the_entry_that_was_fetched_ahead_outlives_the_invalidation() {
    let mut machine = machine();
    // A prefetched entry is there at once: before the unmap whose beginning the device has seen has cleared it.
    machine.iommu.set("memory_read_ps", "0").expect("a parameter");
    // Lists have several entries: the device uses the last but one, and the last is prefetched.
    let job = in_rings(&machine, replay("nvme-seqread128k.strict.4cpu"), 4096);
    passes(&attack(&job), "without the flaw");
    let attacked = attack_on_flawed_rings(&job, RingFlaw::KeepsNext);
    assert!(rules(&attacked).contains(&Rule::Strict), "{attacked:?}");
}

/// One CPU unmaps another one's mapping, and has not ended its batch when the tail of the other one reaches that entry
/// again.
#[test]
fn s3_an_entry_is_used_again_before_the_commit() {
    let machine = machine();
    let job = in_rings(&machine, replay("q-e1000e-tx.lazy.2cpu"), 12);
    passes(&attack_design::<Published<NONE>>(&job), "without the flaw");
    let attacked = attack_design::<Published<FREES_EARLY>>(&job);
    assert!(rules(&attacked).contains(&Rule::Reuse), "{attacked:?}");
}

/// A disk completes its requests in any order, so the tail meets entries in use. If maps are refused for that reason,
/// the driver waits for room.
#[test]
fn s3_an_occupied_slot_is_overwritten() {
    let machine = machine();
    let job = in_rings(&machine, replay("nvme-seqread128k.strict.4cpu"), 16);
    passes(&attack(&job), "the design itself");
    MAPS.take();
    let sound = attack_design::<Published<NONE>>(&job);
    passes(&sound, "without the flaw");
    assert!(sound.found.is_empty(), "{sound:?}");
    assert!(sound.probes_cached.is_some(), "the entries that rings have cached are counted");
    let Maps { made, refused } = MAPS.take();
    assert!(made > 1000 && refused > 0, "the tail met entries in use: {refused} beside {made}");
    let attacked = attack_design::<Published<OVERWRITES>>(&job);
    assert!(rules(&attacked).contains(&Rule::Reuse), "{attacked:?}");
}

/// The flaws of the published order of map and unmap, as numbers because they are type parameters.
const NONE: u8 = 0;
/// Entries are free as soon as they are cleared.
const FREES_EARLY: u8 = 1;
/// A map does not check whether the entries at the tail are in use.
const OVERWRITES: u8 = 2;

/// The results of the maps by the driver of [`Published`].
#[derive(Clone, Copy, Default)]
struct Maps {
    made: u64,
    /// Refused because the ring was full.
    refused: u64,
}

thread_local! {
    /// A run stays on the thread of its test.
    static MAPS: Cell<Maps> = const { Cell::new(Maps { made: 0, refused: 0 }) };
}

/// The design with flaw number `FLAW`. It has a driver whose own commits only free entries, and makes the invalidations
/// itself.
struct Published<const FLAW: u8>;

impl<const FLAW: u8> DesignInfo for Published<FLAW> {
    const INFO: Info = RIommu::INFO;
}

// SAFETY: it is flawed on purpose, but the devices behind it reach only the model's memory.
unsafe impl<P: Platform + Clone, I: Iommu + Clone, const FLAW: u8> Design<P, I> for Published<FLAW> {
    type Mapper = PublishedMapper<P, I, FLAW>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let (unit, platform) = (setup.iommu.clone(), setup.platform.clone());
        // SAFETY: the caller's promise, passed on.
        let driver = unsafe { OnUnit::<RIommu, { hardware::LOSES_COMMANDS }>::build(setup) }?;
        Ok(to.write(PublishedMapper { driver, unit, platform, live: Mutex::default(), cleared: Mutex::default() }))
    }
}

struct PublishedMapper<P: Platform, I: Iommu, const FLAW: u8> {
    driver: RingMapper<P, FlawedUnit<I, { hardware::LOSES_COMMANDS }>>,
    unit: I,
    platform: P,
    /// The mappings, the oldest first.
    live: Mutex<VecDeque<IovaRange>>,
    /// By CPU, the rings with entries that it has cleared since it last ended a burst. Each CPU waits for its own
    /// commands: those of another may still be in progress.
    cleared: Mutex<BTreeMap<u32, BTreeSet<u16>>>,
}

fn ring_of(range: IovaRange) -> u16 {
    RingAddress::of(range.start()).ring
}

// No lock is held during a call of the protection layer: another virtual core may run there.
impl<P: Platform, I: Iommu, const FLAW: u8> PublishedMapper<P, I, FLAW> {
    /// Invalidates every ring with entries that this CPU has cleared, and waits.
    fn invalidate(&self) -> Result<(), QueueError> {
        let rings = self.cleared.lock().expect("no panic").remove(&self.platform.cpu().0).unwrap_or_default();
        let domain = self.driver.id();
        let command = |ring| {
            let first = RingAddress { ring, entry: 0, offset: 0 }.iova();
            Invalidation::Pages { domain, first, mask: RING_ADDRESS_MASK, leaf_only: true }
        };
        let commands: Vec<Invalidation> = rings.into_iter().map(command).collect();
        let ticket = self.unit.submit(&commands)?;
        while !self.unit.is_done(ticket)? {
            self.platform.pause(Wait::Invalidation);
        }
        Ok(())
    }

    /// Records that this CPU is about to clear entries of a mapping.
    fn will_invalidate(&self, range: IovaRange) {
        let mut cleared = self.cleared.lock().expect("no panic");
        cleared.entry(self.platform.cpu().0).or_default().insert(ring_of(range));
    }

    /// Clears a mapping and frees its entries, without a command to the unit.
    fn free(&self, range: IovaRange) -> Result<(), UnmapError> {
        let mut early = Revocation::new();
        self.driver.unmap(range, &mut early)?;
        self.driver.commit(&mut early).map(drop).expect("no command to the unit");
        self.will_invalidate(range);
        Ok(())
    }

    /// Puts an unmap into `out`, so that there is something to commit.
    fn fill(&self, out: &mut Runs) -> Result<(), UnmapError> {
        let segment = [Segment { phys: PhysAddr::new(1 << 30), len: 1 }];
        let mut request = Request::new(&segment, Access::DeviceReadsAndWrites).expect("a byte");
        // A persistent mapping has its own ring.
        request.lifetime = Lifetime::Persistent;
        // SAFETY: no memory is at the address.
        let range = unsafe { self.driver.map(&request) }.expect("a ring that nothing else uses");
        self.driver.unmap(range, out)
    }
}

// SAFETY: as for the design.
unsafe impl<P: Platform, I: Iommu, const FLAW: u8> Mapper for PublishedMapper<P, I, FLAW> {
    unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        loop {
            // SAFETY: the caller's promise, passed on.
            let mapped = unsafe { self.driver.map(request) };
            let mut maps = MAPS.get();
            match mapped {
                Ok(_) => maps.made += 1,
                Err(RawMapError::Refused(MapError::RingFull { .. })) => maps.refused += 1,
                Err(_) => {}
            }
            MAPS.set(maps);
            let full = match mapped {
                Err(RawMapError::Refused(MapError::RingFull { ring, .. })) if FLAW == OVERWRITES => ring,
                _ => {
                    if let Ok(range) = mapped {
                        self.live.lock().expect("no panic").push_back(range);
                    }
                    return mapped;
                }
            };
            let oldest = {
                let mut live = self.live.lock().expect("no panic");
                let at = live.iter().position(|range| ring_of(*range) == full);
                at.and_then(|at| live.remove(at))
            };
            match oldest {
                Some(oldest) => drop(self.free(oldest)),
                None => return mapped,
            }
        }
    }

    fn unmap(&self, range: IovaRange, out: &mut Runs) -> Result<(), UnmapError> {
        let owned = {
            let mut live = self.live.lock().expect("no panic");
            let at = live.iter().position(|mapped| *mapped == range);
            at.and_then(|at| live.remove(at))
        };
        self.will_invalidate(range);
        match owned {
            Some(_) if FLAW != FREES_EARLY => self.driver.unmap(range, out),
            Some(_) => self.free(range).and_then(|()| self.fill(out)),
            // By now, another mapping has its entries.
            None => self.fill(out),
        }
    }

    fn commit(&self, revocation: &mut Runs) -> Result<Committed, CommitError> {
        self.invalidate()?;
        self.driver.commit(revocation)
    }

    fn tick(&self) -> Result<(), CommitError> {
        self.driver.tick()
    }

    fn due_us(&self) -> Option<u64> {
        self.driver.due_us()
    }

    fn usage(&self) -> Usage {
        self.driver.usage()
    }

    fn space(&self) -> &dyn Space {
        self.driver.space()
    }
}
