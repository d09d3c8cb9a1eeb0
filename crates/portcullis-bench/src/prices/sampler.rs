//! Takes many short samples of each subject, spread over the whole time.

use crate::BenchError;
use crate::host::cpus::Undisturbed;
use crate::meter::{CyclesFrom, Meter};
use std::collections::{BTreeMap, HashSet};
use std::thread;
use std::time::Duration;

/// Operations of a sample of most subjects: once round a ring.
pub(super) const RING: usize = 1024;

/// Takes a sample of the part with this number, on the meter.
type TakeSample<'s> = Box<dyn FnMut(usize, &mut Meter) -> Result<(), BenchError> + 's>;

/// Something that is timed, in one or several parts.
pub(super) struct Subject<'s> {
    /// The names of its parts, and the operations of a sample of each.
    pub(super) parts: Vec<(&'static str, f64)>,
    pub(super) take_sample: TakeSample<'s>,
}

/// Takes all samples, and measures the processor's clock.
pub(super) struct Sampler {
    meter: Meter,
    /// The clock for a machine on which nothing counts cycles.
    assumed_hz: Option<f64>,
    hz: Vec<f64>,
    /// Samples of each part, by set.
    cycles: BTreeMap<&'static str, BTreeMap<usize, Vec<f64>>>,
    /// Whether all samples ran at real-time priority.
    pub(super) has_priority: bool,
}

/// Returns an error unless the timed work was done.
pub(super) fn check(is_done: bool, work: &str) -> Result<(), BenchError> {
    if is_done { Ok(()) } else { Err(BenchError::Check(format!("what was timed has not been done: {work}"))) }
}

/// Whether there are `count` numbers, all different.
pub(super) fn all_differ(numbers: impl Iterator<Item = u64>, count: usize) -> bool {
    numbers.collect::<HashSet<u64>>().len() == count
}

/// The lower quartile of the samples. Disturbances only make a sample longer, and a wrongly measured clock does not
/// affect a quarter of the samples.
fn quartile(samples: &[f64]) -> f64 {
    let mut samples = samples.to_vec();
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 4).copied().unwrap_or(f64::NAN)
}

impl Sampler {
    /// A sampler for the calling thread. Without counters and without a chain of additions, cycles are those of a
    /// clock of `assumed_hz`.
    pub(super) fn new(assumed_hz: Option<f64>) -> Result<Self, BenchError> {
        let meter = Meter::new();
        if meter.cycles_from().is_none() && assumed_hz.is_none() {
            return Err(BenchError::NoClock);
        }
        Ok(Self { meter, assumed_hz, hz: Vec::new(), cycles: BTreeMap::new(), has_priority: true })
    }

    /// Takes one sample of each part of each subject of this set.
    pub(super) fn round(&mut self, set: usize, subjects: &mut [Subject<'_>]) -> Result<(), BenchError> {
        for subject in subjects {
            for (number, &(name, operations)) in subject.parts.iter().enumerate() {
                let alone = Undisturbed::new();
                self.has_priority &= alone.is_so();
                self.meter.calibrate();
                (subject.take_sample)(number, &mut self.meter)?;
                let spent = self.meter.take();
                drop(alone);
                let cycles =
                    spent.cycles.or(self.assumed_hz.map(|hz| spent.ns * hz / 1e9)).ok_or(BenchError::NoClock)?;
                self.hz.push(cycles / spent.ns * 1e9);
                self.cycles.entry(name).or_default().entry(set).or_default().push(cycles / operations);
            }
            // Other programs need the CPU too, and the system stops real-time threads that leave them none.
            thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Cycles of an operation of the part `name`, in the set where it takes the fewest. Not a number if there is no
    /// sample of it.
    pub(super) fn cycles(&self, name: &str) -> f64 {
        self.cycles
            .get(name)
            .map_or(f64::NAN, |sets| sets.values().map(|samples| quartile(samples)).fold(f64::NAN, f64::min))
    }

    /// The median of the clock over all samples.
    pub(super) fn hz(&self) -> f64 {
        let mut hz = self.hz.clone();
        hz.sort_by(f64::total_cmp);
        hz.get(hz.len() / 2).copied().unwrap_or(0.0)
    }

    pub(super) fn cycles_from(&self) -> Option<CyclesFrom> {
        self.meter.cycles_from()
    }
}
