//! One run with a malicious device in it.

use super::super::observers::Residual;
use super::super::world::World;
use super::super::{Job, RunError, perform};
use super::{Adversary, Found};
use portcullis::Protection;
use portcullis_model::{PrefetchFlaw, RingFlaw};
use std::cell::RefCell;
use std::rc::Rc;

/// Cached translations that must have been found before their unmap. A run with fewer has shown nothing.
pub const PROBES_CACHED_MIN: u64 = 1000;

const PS_PER_US: f64 = 1e6;

/// What a malicious device has found out about a design.
#[derive(Clone, Debug, Default)]
pub struct Attacked {
    /// What got through, by rule.
    pub found: Vec<Found>,
    /// Accesses that the device made beside those of the work.
    pub probes: u64,
    /// Pages whose translation the hardware held when their unmap began; `None` where addresses are physical.
    pub probes_cached: Option<u64>,
    /// Accesses that reached bytes of a page beside those of the buffer that it was mapped for (S8). No breach: an IOMMU
    /// translates whole pages.
    pub residual_accesses: u64,
    /// The most entries of one ring that the device reached at once though they were cleared, inside a burst, before the invalidation at
    /// its end; `None` where there are no rings.
    pub in_burst_entries_max: Option<u64>,
    /// Maps that found their ring full; `None` where there are no rings.
    pub refused_maps: Option<u64>,
    /// Those of them that were never made: no later commit made room, or the ring is too small.
    pub given_up_maps: Option<u64>,
    /// Bytes so exposed times how long, in byte-microseconds; `None` where addresses are physical.
    pub residual_bytes_us: Option<f64>,
    /// Walks that a prefetcher or the driver asked for, and that found a page.
    pub prefetches: u64,
    /// How long the design says that an unmap waits for the hardware to be told, in microseconds; `None` without bound.
    pub bound_us: Option<u64>,
    /// How much longer than that a buffer may be reached before it counts as a breach: what timers and the hardware may take
    /// beside it, in microseconds; `None` without bound.
    pub grace_us: Option<f64>,
    /// Why the run ended early, if it did. What was found until then stands.
    pub error: Option<RunError>,
}

impl Attacked {
    /// Whether so little was cached that nothing is shown of a design that should protect.
    pub fn proves_nothing(&self) -> bool {
        self.probes_cached.is_some_and(|cached| cached < PROBES_CACHED_MIN)
    }
}

/// Makes the run of `job` with a malicious device in it, whose choices are drawn from the seed of the job.
pub fn attack(job: &Job<'_>) -> Attacked {
    run(job, Broken::Nothing)
}

/// The same on hardware that refuses every invalidation once `hand_backs` buffers have been handed back. A design that keeps
/// S11 ends the run there, with an error.
pub fn attack_on_breaking_hardware(job: &Job<'_>, hand_backs: u64) -> Attacked {
    run(job, Broken::After(hand_backs))
}

/// The same on hardware whose prefetcher has a flaw.
pub fn attack_on_flawed_prefetcher(job: &Job<'_>, flaw: PrefetchFlaw) -> Attacked {
    run(job, Broken::Prefetcher(flaw))
}

/// The same on hardware whose rings have a flaw.
pub fn attack_on_flawed_rings(job: &Job<'_>, flaw: RingFlaw) -> Attacked {
    run(job, Broken::Rings(flaw))
}

/// What is wrong with the hardware.
enum Broken {
    Nothing,
    /// It refuses every invalidation once so many buffers have been handed back.
    After(u64),
    Prefetcher(PrefetchFlaw),
    Rings(RingFlaw),
}

fn run(job: &Job<'_>, broken: Broken) -> Attacked {
    let bystander = Adversary::stranger(&job.work.devices());
    let mut world = match World::new(job, Some(bystander)) {
        Ok(world) => world,
        Err(error) => return Attacked { error: Some(error), ..Attacked::default() },
    };
    world.waits_for_room = true;
    let residual = world.subscribe(Residual::default());
    let adversary = world.subscribe(Adversary::new(job, &world));
    match broken {
        Broken::Nothing => {}
        Broken::After(hand_backs) => adversary.borrow_mut().break_hardware_after(hand_backs),
        Broken::Prefetcher(flaw) => world.vtd.plant(flaw),
        Broken::Rings(flaw) => world.vtd.plant_in_rings(flaw),
    }
    let world = world.ready();
    perform(&world, job);
    let error = world.failure.borrow_mut().take();
    let bound_us = world.bound_us();
    if error.is_none() && job.protection != Protection::None {
        outstay(&world, &adversary);
    }
    // Closing the domains takes invalidations.
    world.vtd.refuse_invalidations(false);
    let grace_us = bound_us.map(|_| job.grace_ps() as f64 / PS_PER_US);
    let translated = (!world.info.physical_addresses()).then_some(());
    let residual_bytes_ps = residual.borrow().total(world.worked_ps.get());
    let mut adversary = adversary.borrow_mut();
    let (probes, counters) = (adversary.probes(), world.vtd.counters());
    let has_rings = world.info.is_hypothetical();
    let tally = world.tally.borrow();
    // What still waits was never made either.
    let (refused_maps, given_up_maps) = (tally.refused_maps, tally.given_up_maps + world.backlog.borrow().len());
    Attacked {
        found: adversary.found(),
        probes: probes.all,
        prefetches: counters.prefetches_issued - counters.prefetches_unmapped,
        probes_cached: translated.map(|()| probes.cached),
        residual_accesses: probes.residual,
        in_burst_entries_max: adversary.in_burst_entries_max(),
        refused_maps: has_rings.then_some(refused_maps),
        given_up_maps: has_rings.then_some(given_up_maps),
        residual_bytes_us: translated.map(|()| residual_bytes_ps as f64 / PS_PER_US),
        bound_us,
        grace_us,
        error,
    }
}

/// Waits until no buffer that is back may be reached any more, and tries everything once again.
fn outstay(world: &Rc<World>, adversary: &Rc<RefCell<Adversary>>) {
    let (inner, adversary) = (world.clone(), adversary.clone());
    let body = move || {
        let until_ps = adversary.borrow().over_ps();
        inner.idle_until(until_ps);
        inner.engine.sync();
        adversary.borrow_mut().rake(inner.engine.now_ps());
    };
    world.engine.run(vec![Box::new(body)]);
}
