//! A run with a malicious device.

use super::super::observers::Residual;
use super::super::world::World;
use super::super::{Job, RunError, perform};
use super::{Adversary, Found};
use portcullis::Protection;
use portcullis_model::{PrefetchFlaw, RingFlaw};
use std::cell::RefCell;
use std::rc::Rc;

/// The number of cached translations that must be seen before their unmap. A run with fewer shows nothing.
pub const PROBES_CACHED_MIN: u64 = 1000;

const PS_PER_US: f64 = 1e6;

/// What a malicious device found out about a design.
#[derive(Clone, Debug, Default)]
pub struct Attacked {
    /// The accesses that got through, by rule.
    pub found: Vec<Found>,
    /// Accesses that the device made in addition to those of the work.
    pub probes: u64,
    /// Pages whose translation the hardware had cached when their unmap began; `None` if addresses are physical.
    pub probes_cached: Option<u64>,
    /// Accesses that reached bytes of a page outside the buffer for which it was mapped (S8). This is no breach,
    /// because an IOMMU translates whole pages.
    pub residual_accesses: u64,
    /// Accesses that reached buffers between the two halves of their commits, when the device still has them; `None`
    /// if commits are whole.
    pub between_halves: Option<u64>,
    /// The most entries of one ring that the device reached at once although they were cleared: inside a burst, before
    /// the invalidation at its end. `None` if there are no rings.
    pub in_burst_entries_max: Option<u64>,
    /// Maps that found their ring full; `None` if there are no rings.
    pub refused_maps: Option<u64>,
    /// Refused maps that were never made, because no later commit made room, or because the ring is too small.
    pub given_up_maps: Option<u64>,
    /// Such bytes (S8), each times how long it was exposed, in byte-microseconds; `None` if addresses are physical.
    pub residual_bytes_us: Option<f64>,
    /// Walks for prefetches, requested by a prefetcher or by the driver, that found a page.
    pub prefetches: u64,
    /// The design's bound on how long an unmap waits until the hardware is told, in microseconds; `None` if there is
    /// no bound.
    pub bound_us: Option<u64>,
    /// How much longer than the bound a buffer may be reached before this counts as a breach: the time that timers and
    /// the hardware may add, in microseconds. `None` if there is no bound.
    pub grace_us: Option<f64>,
    /// Why the run ended early, if it did. Findings up to then are valid.
    pub error: Option<RunError>,
}

impl Attacked {
    /// Whether too little was cached for a conclusion about a design that should protect.
    pub fn proves_nothing(&self) -> bool {
        self.probes_cached.is_some_and(|cached| cached < PROBES_CACHED_MIN)
    }
}

/// Makes the run of `job` with a malicious device. The device's choices are drawn from the seed of the job.
pub fn attack(job: &Job<'_>) -> Attacked {
    run(job, Broken::Nothing)
}

/// Like [`attack`], on hardware that refuses every invalidation once `hand_backs` buffers have been handed back. A
/// design that keeps S11 ends the run there, with an error.
pub fn attack_on_breaking_hardware(job: &Job<'_>, hand_backs: u64) -> Attacked {
    run(job, Broken::After(hand_backs))
}

/// Like [`attack`], on hardware whose prefetcher has a flaw.
pub fn attack_on_flawed_prefetcher(job: &Job<'_>, flaw: PrefetchFlaw) -> Attacked {
    run(job, Broken::Prefetcher(flaw))
}

/// Like [`attack`], on hardware whose rings have a flaw.
pub fn attack_on_flawed_rings(job: &Job<'_>, flaw: RingFlaw) -> Attacked {
    run(job, Broken::Rings(flaw))
}

/// The flaw of the hardware.
enum Broken {
    Nothing,
    /// The hardware refuses every invalidation after this many hand-backs.
    After(u64),
    Prefetcher(PrefetchFlaw),
    Rings(RingFlaw),
}

fn run(job: &Job<'_>, broken: Broken) -> Attacked {
    let bystander = Adversary::stranger(&job.work.workload().devices());
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
    let error = error.or_else(|| world.failure.borrow_mut().take());
    // Closing the domains needs invalidations.
    world.vtd.refuse_invalidations(false);
    let grace_us = bound_us.map(|_| job.grace_ps() as f64 / PS_PER_US);
    let translated = (!world.info.physical_addresses()).then_some(());
    let residual_bytes_ps = residual.borrow().total(world.worked_ps.get());
    let mut adversary = adversary.borrow_mut();
    let (probes, counters) = (adversary.probes(), world.vtd.counters());
    let has_rings = world.info.is_hypothetical();
    let tally = world.tally.borrow();
    // Maps that still wait were never made either.
    let (refused_maps, given_up_maps) = (tally.refused_maps, tally.given_up_maps + world.backlog.borrow().len());
    Attacked {
        found: adversary.found(),
        probes: probes.all,
        prefetches: counters.prefetches_issued - counters.prefetches_unmapped,
        probes_cached: translated.map(|()| probes.cached),
        residual_accesses: probes.residual,
        between_halves: job.work.commits_in_halves().then_some(probes.between_halves),
        in_burst_entries_max: adversary.in_burst_entries_max(),
        refused_maps: has_rings.then_some(refused_maps),
        given_up_maps: has_rings.then_some(given_up_maps),
        residual_bytes_us: translated.map(|()| residual_bytes_ps as f64 / PS_PER_US),
        bound_us,
        grace_us,
        error,
    }
}

/// Waits until no handed-back buffer may be reached any more, and then tries everything once more.
fn outstay(world: &Rc<World>, adversary: &Rc<RefCell<Adversary>>) {
    let (inner, adversary) = (world.clone(), adversary.clone());
    let body = move || {
        let until_ps = adversary.borrow().over_ps();
        inner.idle_until(until_ps);
        inner.engine.sync();
        adversary.borrow_mut().rake(inner.engine.now_ps());
    };
    world.run(vec![Box::new(body)]);
}
