//! Counts the cache lines that move while many virtual CPUs map and unmap pages in one domain. It runs the code of the
//! library and of the VT-d driver, built with `--cfg coherence`: `cargo xtask scale` does both.
#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "an IOMMU without devices")]
mod absent;
#[allow(unsafe_code, reason = "hardware, which gets addresses from the driver")]
mod hardware;
#[allow(unsafe_code, reason = "table pages, and a lock")]
mod host;
#[allow(unsafe_code, reason = "raw maps, which no device sees")]
mod pairs;
mod witness;

use absent::Absent;
use clap::{Parser, ValueEnum};
use hardware::Registers;
use host::Host;
use pairs::{Extent, measure};
use portcullis_coherence::{CPUS_MAX, Costs, Count};
use portcullis_vtd::{Unit, UnitConfig};
use serde::Serialize;
use std::error::Error;

/// The hardware that answers invalidations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Hardware {
    /// None: no queue, no driver.
    None,
    /// It has answered when the tail register is written.
    AtOnce,
    /// 130 cycles a command, and 1,700 there and back.
    Fast,
    /// 1,181 cycles a command and 590 a wait.
    Slow,
}

/// Counts the cache lines that move while CPUs map and unmap pages. Prints JSON.
#[derive(Parser)]
struct Arguments {
    #[arg(long)]
    hardware: Hardware,
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=CPUS_MAX as i64))]
    cpus: u16,
    /// The fewest commits that share a submission and whose commands one may replace.
    #[arg(long)]
    merge: Option<u8>,
    /// Half of the CPUs are on another socket.
    #[arg(long)]
    two_sockets: bool,
    /// Chooses when each CPU begins.
    #[arg(long, default_value_t = 0)]
    start: u64,
}

/// What a pair of an unmap and a map takes, on average.
#[derive(Clone, Copy, Serialize)]
struct Row {
    /// Lines that come from the caches of other CPUs.
    transfers: f64,
    /// Lines that come from memory.
    from_memory: f64,
    locked: f64,
    cycles: f64,
    /// Commands that the hardware has executed for each unmap of the whole run.
    commands: f64,
}

impl Row {
    /// `commands` is zero.
    fn new(count: Count, pairs: u64, cycles: u64) -> Self {
        let per_pair = |number: u64| number as f64 / pairs as f64;
        let Count { transfers, from_memory, locked, .. } = count;
        let [transfers, from_memory, locked, cycles] = [transfers, from_memory, locked, cycles].map(per_pair);
        Self { transfers, from_memory, locked, cycles, commands: 0.0 }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    if !cfg!(coherence) {
        return Err("the library must be built with --cfg coherence, as `cargo xtask scale` does".into());
    }
    let Arguments { hardware, cpus, merge, two_sockets, start } = Arguments::parse();
    let cpus = usize::from(cpus);
    let socket_cpus = if two_sockets { cpus.div_ceil(2) } else { CPUS_MAX };
    let (costs, host) = (Costs { socket_cpus, ..Costs::XEON }, Host::leaked(cpus));
    let row = if hardware == Hardware::None {
        let iommu = Box::leak(Box::new(Absent::default()));
        let extent = Extent { live: 1024, warm_up: 6, pairs: 4096, start };
        measure(costs, cpus, extent, host, &*iommu, &iommu.witness)
    } else {
        // Hardware that is slow makes CPUs wait, and their waits take most of the time here.
        let (live, pairs) = if hardware == Hardware::Slow && merge.is_none() { (32, 100) } else { (128, 200) };
        let extent = Extent { live, warm_up: 2, pairs, start };
        let registers: &Registers = Box::leak(Box::new(Registers::new(hardware)));
        let config = UnitConfig { merge_min: merge, ..UnitConfig::default() };
        let unit = Box::leak(Box::new(Unit::bring_up(registers, host, config)?));
        measure(costs, cpus, extent, host, &*unit, &registers.witness)
    }?;
    println!("{}", serde_json::to_string(&row)?);
    Ok(())
}
