//! Measures what a thread spends on something: nanoseconds, cycles and instructions.
//!
//! If the machine has counters (perf_event_open(2)), they count cycles and instructions in user mode. Virtual machines
//! often have none. Then ticks of the time stamp counter, which has a constant rate, are converted to cycles by timing
//! a chain of additions. Each addition waits exactly one cycle for the one before it. The chain runs just before and
//! just after each sample, to find the rate at which the processor ran then.

use super::host::counters::Counters;
use super::host::{chain_of_additions, moment, ticks};
use serde::Serialize;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// Where cycles come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CyclesFrom {
    /// The processor's counter of cycles.
    Counter,
    /// The time stamp counter, scaled by the rate of dependent additions.
    Calibrated,
}

/// What a sample took.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Spent {
    pub(super) ns: f64,
    pub(super) cycles: Option<f64>,
    pub(super) instructions: Option<f64>,
}

/// A stopwatch of one thread.
pub(super) struct Meter {
    counters: Option<Counters>,
    /// Counters and ticks at the last start.
    begun: ([u64; 2], u64),
    /// Sums between starts and stops since the last [`take`](Meter::take).
    counted: [u64; 2],
    ticks: u64,
    cycles_per_tick: Option<f64>,
    ticks_per_ns: f64,
}

/// Additions of a chain. It is short, so that few are interrupted. The fastest of several chains counts.
const CHAIN: u64 = 4_000;
const CHAINS: usize = 4;

impl Meter {
    /// A meter for the calling thread.
    pub(super) fn new() -> Self {
        Self {
            counters: Counters::open(),
            begun: Default::default(),
            counted: [0; 2],
            ticks: 0,
            cycles_per_tick: cycles_per_tick(),
            ticks_per_ns: ticks_per_ns(),
        }
    }

    /// Where its cycles come from, if it has any.
    pub(super) fn cycles_from(&self) -> Option<CyclesFrom> {
        let calibrated = self.cycles_per_tick.map(|_| CyclesFrom::Calibrated);
        self.counters.as_ref().map(|_| CyclesFrom::Counter).or(calibrated)
    }

    /// Measures the processor's speed again. Must be called just before a sample.
    pub(super) fn calibrate(&mut self) {
        if self.counters.is_none() {
            self.cycles_per_tick = cycles_per_tick();
        }
    }

    #[inline]
    pub(super) fn start(&mut self) {
        if let Some(counters) = &mut self.counters {
            self.begun.0 = counters.read();
        }
        self.begun.1 = ticks();
    }

    #[inline]
    pub(super) fn stop(&mut self) {
        self.ticks += ticks() - self.begun.1;
        if let Some(counters) = &mut self.counters {
            for (sum, (now, then)) in self.counted.iter_mut().zip(counters.read().into_iter().zip(self.begun.0)) {
                *sum += now - then;
            }
        }
    }

    /// The measurements since the last call. Must be called just after a sample.
    pub(super) fn take(&mut self) -> Spent {
        let (ticks, [cycles, instructions]) =
            (std::mem::take(&mut self.ticks) as f64, std::mem::take(&mut self.counted));
        let ns = ticks / self.ticks_per_ns;
        if self.counters.is_some() {
            return Spent { ns, cycles: Some(cycles as f64), instructions: Some(instructions as f64) };
        }
        let speed = self.cycles_per_tick.zip(cycles_per_tick()).map(|(before, after)| (before + after) / 2.0);
        Spent { ns, cycles: speed.map(|speed| ticks * speed), instructions: None }
    }
}

/// The present number of cycles per tick. `None` if it is not known.
fn cycles_per_tick() -> Option<f64> {
    let chain = |_| {
        let begun = ticks();
        chain_of_additions(CHAIN).then(|| ticks() - begun)
    };
    let fastest = (0..CHAINS).filter_map(chain).min()?;
    Some(CHAIN as f64 / fastest.max(1) as f64)
}

/// Runs until the processor's speed has been steady for a while, or for the longest time. An idle processor starts
/// slowly.
pub(super) fn warm_up() {
    let begun = Instant::now();
    let mut steady = Steady::default();
    while let Some(speed) = cycles_per_tick() {
        if steady.sees(speed, begun.elapsed()) {
            return;
        }
    }
}

/// A speed, and since when it has been steady.
#[derive(Default)]
struct Steady {
    speed: f64,
    since: Duration,
}

impl Steady {
    const LONG_ENOUGH: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_millis(300);
    /// Differences below this count as no change, because two measurements of one speed differ.
    const NOISE: f64 = 0.02;

    /// Records a measurement at time `now`. Returns whether it is the last one.
    fn sees(&mut self, speed: f64, now: Duration) -> bool {
        if (speed / self.speed - 1.0).abs() > Self::NOISE {
            *self = Self { speed, since: now };
        }
        now - self.since >= Self::LONG_ENOUGH || now >= Self::LONGEST
    }
}

/// Ticks per nanosecond. The counter's rate is constant, so it is measured once.
fn ticks_per_ns() -> f64 {
    static RATE: OnceLock<f64> = OnceLock::new();
    const WATCHED: Duration = Duration::from_millis(20);
    *RATE.get_or_init(|| {
        let (begun, start) = moment();
        thread::sleep(WATCHED);
        let (ended, end) = moment();
        (end - start) as f64 / (ended - begun).as_nanos() as f64
    })
}

#[cfg(test)]
mod tests {
    use super::Steady;
    use std::time::Duration;

    /// When the measurements end, in milliseconds, with one measurement per millisecond. `speed` gives each of them.
    fn ends(speed: impl Fn(u64) -> f64) -> u64 {
        let mut steady = Steady::default();
        (0..).find(|ms| steady.sees(speed(*ms), Duration::from_millis(*ms))).expect("an end")
    }

    #[test]
    fn it_is_warm_when_its_speed_has_not_changed_for_a_while() {
        assert_eq!(ends(|ms| 1.0 + (ms % 2) as f64 / 100.0), 50, "noise is no change");
        assert_eq!(ends(|ms| if ms < 40 { 0.5 } else { 1.0 }), 90, "it begins slowly");
        assert_eq!(ends(|ms| 1.0 + (ms % 2) as f64), 300, "what never rests is not waited for");
    }
}
