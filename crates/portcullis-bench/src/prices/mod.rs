//! Prices of the layer's steps on this machine, for a cost book.
//!
//! A step that can be timed alone is. For others, the price is the difference of two timings. Steps that take a few
//! cycles each are timed in sequence. No price comes from a pair of a design for which such prices are used.

mod addresses;
mod chunk;
mod mapping;
mod primitives;
mod sampler;

use super::BenchError;
use super::host::{Native, cpus};
use super::iommu::{Empty, Queued};
use super::meter::CyclesFrom;
use super::work::raw::parts::LEVELS;
use addresses::NODES;
use mapping::{COMMANDS, SEVERAL};
use sampler::{Sampler, Subject};
use std::collections::BTreeMap;
use std::thread;

/// The number of rounds, and so of samples of each part.
pub const ROUNDS: usize = 480;
/// Sets of everything that is timed, each in separate memory. Rounds use them in turn. The location of memory decides
/// which lines conflict in the caches, and would otherwise affect whole runs.
const SETS: usize = 8;

/// The measurements.
#[derive(Clone, Debug)]
pub struct Prices {
    /// The clock of a core, in hertz.
    pub core_hz: f64,
    /// Where cycles come from. `None` if the assumed clock was used.
    pub cycles_from: Option<CyclesFrom>,
    /// Whether samples ran at real-time priority, so that other programs did not get the CPU.
    pub has_priority: bool,
    /// Cycles of each step, by its name in a cost book. Steps that this machine cannot show are missing, and so are
    /// those whose two timings contradict each other.
    pub cycles: BTreeMap<&'static str, f64>,
}

/// Measures for a few seconds on one CPU, and for a moment on two. Calls `progress` after each of [`ROUNDS`] rounds.
///
/// `assumed_hz` is the clock for a machine on which nothing counts cycles.
///
/// # Errors
/// Returns a [`BenchError`] if something cannot be timed.
pub fn prices(assumed_hz: Option<f64>, progress: impl FnMut() + Send) -> Result<Prices, BenchError> {
    // A separate thread, because it is pinned.
    thread::scope(|scope| {
        let measured = scope.spawn(|| measure(assumed_hz, progress)).join();
        measured.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn measure(assumed_hz: Option<f64>, mut progress: impl FnMut()) -> Result<Prices, BenchError> {
    let cpus = cpus::available();
    let first = cpus.first().copied().unwrap_or(0);
    if !cpus::pin(first) {
        return Err(BenchError::Pin(first));
    }
    let platform = Native::coherent();
    let hardware: Vec<Hardware> = (0..SETS).map(|_| Hardware::new(&platform)).collect();
    let sets: Result<Vec<_>, BenchError> = hardware.iter().map(|hardware| subjects(platform, hardware)).collect();
    let mut sets = sets?;
    let mut copied = [primitives::copies()];
    let other = cpus::of_another_core(first, &cpus);
    let mut sampler = Sampler::new(assumed_hz)?;
    for _ in 0..ROUNDS / SETS {
        for (set, subjects) in sets.iter_mut().enumerate() {
            sampler.round(set, subjects)?;
            sampler.round(set, &mut copied)?;
            progress();
        }
        // Measured last, because its partner keeps the other CPU busy.
        if let Some(partner) = other.and_then(primitives::Partner::new) {
            let mut transfers = [partner.transfers()];
            for set in 0..SETS {
                sampler.round(set, &mut transfers)?;
            }
        }
    }
    Ok(Prices {
        core_hz: sampler.hz(),
        cycles_from: sampler.cycles_from(),
        has_priority: sampler.has_priority,
        cycles: of_steps(&sampler),
    })
}

/// The IOMMUs for the domains of a set.
struct Hardware {
    empty: [Empty; 5],
    queue: Queued,
}

impl Hardware {
    fn new(platform: &Native<true>) -> Self {
        Self { empty: [(); 5].map(|()| Empty::new(true)), queue: Queued::new(platform) }
    }
}

/// A set: everything that one CPU can time, except copying, which takes much memory.
fn subjects<'h>(platform: Native<true>, hardware: &'h Hardware) -> Result<Vec<Subject<'h>>, BenchError> {
    let Hardware { empty, queue } = hardware;
    let mut subjects = vec![
        mapping::table(platform, &empty[0])?,
        mapping::bare(&empty[1])?,
        mapping::queued(&empty[2])?,
        mapping::face(&empty[3])?,
        chunk::chunk(platform, &empty[4])?,
        mapping::queue(queue),
        addresses::magazines(platform)?,
        addresses::tree(platform)?,
        addresses::searches(platform)?,
        addresses::windows(platform)?,
        primitives::locks(&platform),
        primitives::entries(),
        primitives::frames(platform),
    ];
    subjects.extend(primitives::flushes());
    Ok(subjects)
}

/// Computes prices from the timings. A difference further below zero than rounding explains is not a price, and is
/// left out.
fn of_steps(sampler: &Sampler) -> BTreeMap<&'static str, f64> {
    let timed = |name| sampler.cycles(name);
    let mut cycles = BTreeMap::new();
    let mut price = |name, of_step: f64| {
        // If a timing is missing, the difference is not a number, and this comparison is false.
        if of_step > -0.5 {
            cycles.insert(name, of_step.max(0.0));
        }
    };
    let lock = timed("lock") - timed("counting");
    price("lock", lock);
    price("poll", timed("poll"));

    // The levels of a walk cost the same. A map or an unmap takes its walk, and the rest is writing, clearing or
    // claiming.
    let walk = timed("table, walk");
    price("table_read", walk / f64::from(LEVELS));
    price("table_write", timed("table, map") - walk);
    price("table_clear", timed("table, unmap") - walk);
    price("table_claim", timed("table, claim and unmap") - timed("table, unmap"));
    // Barriers are timed together with the stores before them, and must not be charged twice.
    price("store_fence", 0.0);
    let of_several = timed("table, map of several") + timed("table, unmap of several");
    let further = 2.0 * (SEVERAL - 1) as f64;
    price("table_entry", (of_several - timed("table, map") - timed("table, unmap")) / further);
    price("table_exchange", timed("exchange") - timed("store"));
    price("table_scan", timed("scan"));
    price("chunk_entry", timed("store"));
    price("table_page", timed("lent frame") / 2.0);

    // The cost of a mapper beyond its table is split in the ratio of its maps and unmaps.
    let bare = timed("bare") - timed("table, map") - timed("table, claim and unmap");
    let maps = timed("bare, maps") - timed("table, map");
    let map = bare * share(maps, timed("bare, unmaps") - timed("table, claim and unmap"));
    price("map", map);
    price("unmap", bare - map);
    price("flush_queue_push", timed("deferred, unmaps") - timed("bare, batches") - lock);

    // The rest of a submission is the ring, which is priced as a lock and a register.
    price("queue_descriptor", (timed("queued commands") - timed("queued command")) / (COMMANDS - 1) as f64);

    let list = timed("magazine") / 2.0 - lock;
    price("list_pop", list);
    price("list_push", list);
    price("tree_insert", timed("tree, taken") - lock);
    price("tree_find", timed("tree, claimed") - lock);
    price("tree_erase", timed("tree, given back") - timed("tree, claimed") - lock);
    price("tree_search", (timed("search, long") - timed("search, short")) / (NODES[1] - NODES[0]) as f64);
    price("window_take", timed("window, taken"));
    price("window_claim", timed("window, claimed"));
    price("window_return", timed("window, returned"));

    // The short path in and out, including its submission. Its steps are added one at a time.
    let step = |part: usize| timed(chunk::PARTS[part]) - timed(chunk::PARTS[part - 1]);
    let face_map = timed("face") * share(timed("face, maps"), timed("face, unmaps"));
    price("chunk_map", face_map);
    price("chunk_unmap", timed("face") - face_map + step(5));
    price("chunk_take", step(1));
    price("chunk_write", step(2));
    price("chunk_find", step(3));
    price("chunk_clear", step(4));
    price("chunk_return", step(6));
    price("flush_queue_join", step(7));

    price("line_flush", timed("flushed entry") - timed("store"));
    price("line_flush_next", (timed("eight flushed lines") - timed("one flushed line")) / 7.0);
    price("line_transfer", timed("line transfer"));
    price("copy_kib", timed("copied KiB"));
    cycles
}

/// The share of `part` in the sum of both. Not a number if either is below zero.
fn share(part: f64, other: f64) -> f64 {
    if part >= 0.0 && other >= 0.0 { part / (part + other) } else { f64::NAN }
}

#[cfg(test)]
mod tests;
