//! Counts the cache lines that move between virtual CPUs while they run concurrent code, and estimates what the moves
//! cost. A machine of 128 CPUs runs on one thread, and each run is the same as the last.
//!
//! Code under test takes its atomics from [`atomic`] instead of `core`. [`run`] starts the code on each virtual CPU.
//! Each access is charged to the clock of its CPU by the state of the cache line. Accesses are made in the order of
//! these clocks.
//!
//! # The model
//! * A line is modified in the cache of one CPU, or copied in those of several, or in memory only. Caches have no size:
//!   a line leaves a cache only when another CPU writes it, or a device.
//! * A line serves one transfer after the other, so CPUs queue for it.
//! * Loads and locked instructions wait for their line, but loads that the code says to be [`beside`] each other do not
//!   wait for each other. Stores do not: they go through a store buffer. Their lines come
//!   beside each other, and they become visible in order. Locked instructions, full fences and writes to devices come
//!   after all earlier stores.
//! * All accesses are sequentially consistent. Orderings that are too weak are what loom finds; this crate does not.
//! * Plain memory is seen only where the code calls [`plain`].
//!
//! The costs in cycles are those of [`Costs`]. They are estimates for a server with an Intel Xeon; the counts need none
//! of them, except that costs decide who is first.
#![deny(missing_docs)]
#![deny(unsafe_code)]

/// The example of the README, compiled as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod atomic;
mod costs;
mod cpus;
#[allow(unsafe_code, reason = "a coroutine suspends itself")]
pub mod fiber;
mod line;
mod machine;

pub use costs::Costs;
pub use cpus::{at, beside, count, cpu, device_write, now, pause, plain, run, work, write_to_device};
pub use line::CPUS_MAX;
pub use machine::Count;

/// What an access does to its line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Access {
    /// Reads it.
    Load,
    /// Writes it, through the store buffer.
    Store,
    /// Reads and writes it by one locked instruction.
    Locked,
}
