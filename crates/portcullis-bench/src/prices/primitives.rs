//! Operations of processors: locks, barriers, flushes, copies, and transfers of cache lines.

use super::sampler::{RING, Subject, check};
use crate::BenchError;
use crate::host::Native;
use crate::host::cpus::{Undisturbed, pin};
use crate::work::raw::parts;
use portcullis::Platform;
use portcullis::platform::{Lock, LockClass, Padded, Wait};
use portcullis::table::{ENTRIES, Entry, Frame};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{Builder, JoinHandle};

/// Entries of a cache line.
const LINE_ENTRIES: usize = 8;
/// Entries of eight cache lines.
const PIECE: usize = 8 * LINE_ENTRIES;
/// The number of flushed tables. There are many lines, so that none is used again soon.
const TABLES: usize = 16;

fn tables(count: usize) -> Vec<Box<Frame>> {
    (0..count).map(|_| Box::new(std::array::from_fn(|_| Entry::new(0)))).collect()
}

/// A free lock, and one turn of a spin.
pub(super) fn locks(platform: &Native<true>) -> Subject<'static> {
    let lock = Padded(platform.lock(LockClass::IovaAllocator, 0u64));
    let (word, platform) = (AtomicU64::new(0), *platform);
    let take_sample = move |part, meter: &mut crate::meter::Meter| {
        let counted = || lock.0.with(|value| *value) + word.load(Ordering::Relaxed);
        let before = counted();
        meter.start();
        for _ in 0..RING {
            match part {
                0 => lock.0.with(|value| *value = black_box(*value + 1)),
                1 => {
                    black_box(word.load(Ordering::Acquire));
                    platform.pause(Wait::Invalidation);
                }
                // Counting alone, in the lock's line.
                _ => word.store(black_box(word.load(Ordering::Relaxed) + 1), Ordering::Relaxed),
            }
        }
        meter.stop();
        check(part == 1 || counted() - before == RING as u64, "counting, with a lock and without")
    };
    let ring = RING as f64;
    Subject { parts: vec![("lock", ring), ("poll", ring), ("counting", ring)], take_sample: Box::new(take_sample) }
}

/// Entries written one by one, with stores and with compare-exchange, and read.
pub(super) fn entries() -> Subject<'static> {
    // These operations are short, so a sample has many.
    const TURNS: usize = 64;
    let table = tables(1);
    let words: Box<[AtomicU64]> = (0..ENTRIES).map(|_| AtomicU64::new(0)).collect();
    let mut bits = 0;
    let take_sample = move |part, meter: &mut crate::meter::Meter| {
        // The other parts read what the first part of this round has written.
        bits = black_box(if part == 0 { bits + 1 } else { bits });
        let mut read = bits;
        meter.start();
        for _ in 0..TURNS {
            let entries = black_box(&table[0][..]);
            match part {
                0 => entries.iter().for_each(|entry| entry.store_bits(bits)),
                1 => words.iter().for_each(|word| {
                    let seen = word.load(Ordering::Acquire);
                    black_box(word.compare_exchange(seen, bits, Ordering::AcqRel, Ordering::Acquire).is_ok());
                }),
                _ => {
                    read = black_box(entries.iter().fold(0, |all, entry| all | entry.load_bits()));
                }
            }
        }
        meter.stop();
        let are_written = table[0].iter().all(|entry| entry.load_bits() == bits)
            && (part != 1 || words.iter().all(|word| word.load(Ordering::Relaxed) == bits));
        check(are_written && read == bits, "entries written and read")
    };
    let ring = (TURNS * ENTRIES) as f64;
    let parts = vec![("store", ring), ("exchange", ring), ("scan", ring)];
    Subject { parts, take_sample: Box::new(take_sample) }
}

/// Lines of entries, flushed one at a time and eight at a time. `None` if single lines cannot be flushed.
pub(super) fn flushes() -> Option<Subject<'static>> {
    let platform = Native::not_coherent()?;
    let tables = tables(TABLES);
    let mut turn = 0;
    let take_sample = move |part, meter: &mut crate::meter::Meter| {
        turn += 1;
        let table = &tables[if part == 0 { turn % TABLES } else { TABLES - 1 }];
        let pieces = || tables.iter().flat_map(|table| table.chunks(PIECE));
        let store = |entry: &Entry| entry.store_bits(black_box(turn as u64));
        meter.start();
        match part {
            0 => table.iter().for_each(|entry| {
                store(entry);
                platform.table_barrier(std::slice::from_ref(entry), false);
            }),
            1 => pieces().for_each(|lines| {
                lines.iter().for_each(store);
                platform.table_barrier(lines, false);
            }),
            // The first line of each such piece.
            _ => pieces().for_each(|lines| {
                lines.iter().for_each(store);
                platform.table_barrier(&lines[..LINE_ENTRIES], false);
            }),
        }
        meter.stop();
        // Only the last entry is checked, because a read brings its line into the caches again.
        check(table.last().is_some_and(|entry| entry.load_bits() == turn as u64), "entries written and flushed")
    };
    let (single, pieces) = (ENTRIES as f64, (TABLES * ENTRIES / PIECE) as f64);
    let parts = vec![("flushed entry", single), ("eight flushed lines", pieces), ("one flushed line", pieces)];
    Some(Subject { parts, take_sample: Box::new(take_sample) })
}

/// Table pages, allocated and freed.
pub(super) fn frames(platform: Native<true>) -> Subject<'static> {
    const FRAMES: usize = 64;
    let take_sample = move |_, meter: &mut crate::meter::Meter| {
        meter.start();
        for _ in 0..FRAMES {
            parts::lend_frame(&platform).map_err(|_| BenchError::NoMemory)?;
        }
        meter.stop();
        Ok(())
    };
    Subject { parts: vec![("lent frame", FRAMES as f64)], take_sample: Box::new(take_sample) }
}

/// Copies memory that is in no cache.
pub(super) fn copies() -> Subject<'static> {
    const KIB: usize = 1024;
    const PIECE: usize = 128 * KIB;
    const PIECES: usize = 384;
    // Neither buffer is zero: the system would allocate pages of a zero buffer when they are first written, in the
    // middle of a sample.
    let (from, mut to) = (vec![1u8; PIECE * PIECES], vec![2u8; PIECE * PIECES]);
    let mut turn = 0;
    let take_sample = move |_, meter: &mut crate::meter::Meter| {
        let at = turn % PIECES * PIECE;
        turn += 1;
        let (from, to) = (black_box(&from[at..at + PIECE]), &mut to[at..at + PIECE]);
        meter.start();
        to.copy_from_slice(from);
        meter.stop();
        let to = black_box(to);
        check(to.first() == from.first() && to.last() == from.last(), "copying")
    };
    Subject { parts: vec![("copied KiB", (PIECE / KIB) as f64)], take_sample: Box::new(take_sample) }
}

/// The thread that sends a line back.
pub(super) struct Partner {
    line: Arc<Padded<AtomicU64>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Partner {
    /// Starts the partner on a separate CPU. `None` if it cannot be pinned there, because two threads that spin on one
    /// CPU wait for the scheduler.
    pub(super) fn new(cpu: usize) -> Option<Self> {
        let (line, ends) = (Arc::new(Padded(AtomicU64::new(0))), Arc::new(AtomicBool::new(false)));
        let (theirs, over) = (line.clone(), ends.clone());
        let (said, pinned) = mpsc::channel();
        let body = move || {
            let is_pinned = pin(cpu);
            if said.send(is_pinned).is_err() || !is_pinned {
                return;
            }
            // For a few milliseconds in all.
            let _alone = Undisturbed::new();
            // Both Relaxed: nothing else is transferred with the line. There is no pause, because it would be a part
            // of the price.
            while !over.load(Ordering::Relaxed) {
                let seen = theirs.0.load(Ordering::Relaxed);
                if seen % 2 == 1 {
                    theirs.0.store(seen + 1, Ordering::Relaxed);
                }
            }
        };
        let thread = Some(Builder::new().spawn(body).ok()?);
        let partner = Self { line, ends, thread };
        pinned.recv().unwrap_or(false).then_some(partner)
    }

    /// A line that is sent to the other CPU and back.
    pub(super) fn transfers(&self) -> Subject<'_> {
        const ROUNDS: u64 = 256;
        let take_sample = move |_, meter: &mut crate::meter::Meter| {
            let line = &self.line.0;
            let before = line.load(Ordering::Relaxed);
            meter.start();
            for _ in 0..ROUNDS {
                let next = line.load(Ordering::Relaxed) + 1;
                line.store(next, Ordering::Relaxed);
                while line.load(Ordering::Relaxed) == next {}
            }
            meter.stop();
            check(line.load(Ordering::Relaxed) - before == 2 * ROUNDS, "transfers of a line")
        };
        Subject { parts: vec![("line transfer", 2.0 * ROUNDS as f64)], take_sample: Box::new(take_sample) }
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread does not panic.
            let _ = thread.join();
        }
    }
}
