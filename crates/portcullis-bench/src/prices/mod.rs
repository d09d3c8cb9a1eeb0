//! What each step of the layer takes on this machine, for a cost book of it.
//!
//! A step that can be timed by itself is; of another the price is what two timings differ by, and where steps take a few cycles each,
//! they are timed as they follow each other. No price comes from a pair of a design that such prices are used for.

mod addresses;
mod chunk;
mod mapping;
mod primitives;
mod sampler;

use super::BenchError;
use super::host::{Native, cpus};
use super::iommu::{Empty, Queued};
use super::meter::CyclesFrom;
use addresses::NODES;
use mapping::{COMMANDS, SEVERAL};
use sampler::{Sampler, Subject};
use std::collections::BTreeMap;
use std::thread;

/// Rounds: samples of each part.
pub const ROUNDS: usize = 120;

/// What was measured.
#[derive(Clone, Debug)]
pub struct Prices {
    /// The clock of a core, in hertz.
    pub core_hz: f64,
    /// Where cycles come from; `None` where they are those of the clock that was assumed.
    pub cycles_from: Option<CyclesFrom>,
    /// Whether nothing else ran on the CPU during samples.
    pub undisturbed: bool,
    /// Cycles of each step, by its name in a cost book. Those that this machine cannot show are missing.
    pub cycles: BTreeMap<&'static str, f64>,
}

/// Measures for a few seconds, on one CPU, and for a moment on two; tells `progress` after each of [`ROUNDS`].
///
/// `assumed_hz` is the clock of a machine on which nothing counts cycles.
///
/// # Errors
/// A [`BenchError`].
pub fn prices(assumed_hz: Option<f64>, progress: impl FnMut() + Send) -> Result<Prices, BenchError> {
    // A thread of its own, for it is pinned.
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
    let empty = [(); 5].map(|()| Empty::new(true));
    let queue = Queued::new(&platform);
    let (table, levels) = mapping::table(platform, &empty[0])?;
    let mut subjects: Vec<Subject<'_>> = vec![
        table,
        mapping::bare(&empty[1])?,
        mapping::queued(&empty[2])?,
        mapping::face(&empty[3])?,
        chunk::chunk(platform, &empty[4])?,
        mapping::submissions(&empty[4], &queue),
        addresses::magazines(platform)?,
        addresses::tree(platform)?,
        addresses::searches(platform)?,
        addresses::windows(platform)?,
        primitives::locks(&platform),
        primitives::entries(platform),
        primitives::frames(platform),
        primitives::copies(),
    ];
    subjects.extend(primitives::flushes());
    let mut sampler = Sampler::new(assumed_hz)?;
    for _ in 0..ROUNDS {
        sampler.round(&mut subjects)?;
        progress();
    }
    if let Some(&second) = cpus.get(1) {
        let partner = primitives::Partner::new(second);
        let mut transfers = [partner.transfers()];
        for _ in 0..ROUNDS {
            sampler.round(&mut transfers)?;
        }
    }
    Ok(Prices {
        core_hz: sampler.hz(),
        cycles_from: sampler.cycles_from(),
        undisturbed: sampler.undisturbed,
        cycles: of_steps(&sampler, levels),
    })
}

/// From what was timed to prices.
fn of_steps(sampler: &Sampler, levels: f64) -> BTreeMap<&'static str, f64> {
    let timed = |name| sampler.cycles(name);
    let less = |name, than: f64| (timed(name) - than).max(0.0);
    let mut cycles = BTreeMap::new();
    let lock = less("lock", timed("counting"));
    cycles.insert("lock", lock);
    cycles.insert("poll", timed("poll"));

    // Of a walk the levels are alike; what a map or an unmap takes beyond its walk is writing, clearing or claiming.
    let walk = timed("table, walk");
    cycles.insert("table_read", walk / levels);
    cycles.insert("table_write", less("table, map", walk));
    cycles.insert("table_clear", less("table, unmap", walk));
    cycles.insert("table_claim", less("table, claim and unmap", timed("table, unmap")));
    let further = 2.0 * (SEVERAL - 1) as f64;
    let several =
        less("table, map of several", timed("table, map")) + less("table, unmap of several", timed("table, unmap"));
    cycles.insert("table_entry", several / further);
    cycles.insert("table_exchange", less("exchange", timed("store")));
    cycles.insert("table_scan", timed("scan"));
    cycles.insert("chunk_entry", timed("store"));
    cycles.insert("store_fence", less("store and barrier", timed("store")));
    cycles.insert("table_page", timed("lent frame") / 2.0);

    // What a mapper takes beyond its table, split as its maps and unmaps by themselves are.
    let by_maps =
        |pair: f64, maps: f64, unmaps: f64| pair * if maps + unmaps > 0.0 { maps / (maps + unmaps) } else { 0.5 };
    let bare = less("bare", timed("table, map") + timed("table, claim and unmap"));
    let maps = less("bare, maps", timed("table, map"));
    let unmaps = less("bare, unmaps", timed("table, claim and unmap"));
    let map = by_maps(bare, maps, unmaps);
    cycles.insert("map", map);
    cycles.insert("unmap", bare - map);
    cycles.insert("flush_queue_push", less("deferred, unmaps", timed("bare, batches") + lock));

    // Of a command's submission the ring is the rest, which is priced as a lock and a register.
    cycles.insert("queue_descriptor", less("queued commands", timed("queued command")) / (COMMANDS - 1) as f64);

    let pair = timed("magazine");
    cycles.insert("list_pop", (pair / 2.0 - lock).max(0.0));
    cycles.insert("list_push", (pair / 2.0 - lock).max(0.0));
    cycles.insert("tree_insert", less("tree, taken", lock));
    cycles.insert("tree_find", less("tree, claimed", lock));
    cycles.insert("tree_erase", less("tree, given back", timed("tree, claimed") + lock));
    cycles.insert("tree_search", less("search, long", timed("search, short")) / (NODES[1] - NODES[0]) as f64);
    cycles.insert("window_take", timed("window, taken"));
    cycles.insert("window_claim", timed("window, claimed"));
    cycles.insert("window_return", timed("window, returned"));

    // The short way in and out, with the submission that is a part of it; its steps one more at a time.
    let step = |part: usize| less(chunk::PARTS[part], timed(chunk::PARTS[part - 1]));
    let face_map = by_maps(timed("face"), timed("face, maps"), timed("face, unmaps"));
    cycles.insert("chunk_map", face_map);
    cycles.insert("chunk_unmap", timed("face") - face_map + step(5));
    cycles.insert("chunk_take", step(1));
    cycles.insert("chunk_write", step(2));
    cycles.insert("chunk_find", step(3));
    cycles.insert("chunk_clear", step(4));
    cycles.insert("chunk_return", step(6));

    if sampler.has("flushed entry") {
        cycles.insert("line_flush", less("flushed entry", timed("store")));
        cycles.insert("line_flush_next", less("eight flushed lines", timed("one flushed line")) / 7.0);
    }
    if sampler.has("line transfer") {
        cycles.insert("line_transfer", timed("line transfer"));
    }
    cycles.insert("copy_kib", timed("copied KiB"));
    cycles
}
