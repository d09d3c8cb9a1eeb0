//! Runs that would never end: cores that wait for each other, or that take turns without getting anything done.

use super::{Core, CoreState, Engine};
use crate::account::Account;
use std::cell::{Cell, RefMut};
use std::fmt;

/// How often cores and actors may sleep or yield before anything gets done. The longest wait is that for hardware which
/// never answers: on each core, a driver looks every 50 ns or so for a tenth of a second.
const YIELDS_MAX: u64 = 1 << 26;

/// Counts them since something was done: a map, an unmap, an access of a device, an operation or other work.
#[derive(Default)]
pub(super) struct Watchdog(Cell<u64>);

impl Watchdog {
    #[inline(always)]
    pub(super) fn calm(&self) {
        self.0.set(0);
    }

    pub(super) fn count(&self) {
        self.0.set(self.0.get() + 1);
    }

    pub(super) fn has_barked(&self) -> bool {
        self.0.get() > YIELDS_MAX
    }
}

/// A run that cannot end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stuck {
    /// Whether cores still had turns, and got nothing done. Otherwise all wait for each other.
    pub is_endless: bool,
    /// The cores that had not ended.
    pub cores: Vec<StuckCore>,
}

/// The state of a core of a run that cannot end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StuckCore {
    /// Its number.
    pub core: Core,
    /// Its clock, in picoseconds.
    pub now_ps: u64,
    /// The event that it waits for, if it waits.
    pub waits_for: Option<u64>,
    /// When its timer was to fire, in picoseconds, if it was armed.
    pub timer_ps: Option<u64>,
    /// Whether it handled an interrupt.
    pub in_interrupt: bool,
    /// Whether its interrupts were masked.
    pub is_masked: bool,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_MAX: usize = 8;
        f.write_str(match self.is_endless {
            true => "the virtual cores take turns without getting anything done",
            false => "the virtual cores wait for each other",
        })?;
        for (number, core) in self.cores.iter().take(SHOWN_MAX).enumerate() {
            write!(f, "{} {core}", if number == 0 { ":" } else { ";" })?;
        }
        match self.cores.len().saturating_sub(SHOWN_MAX) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl fmt::Display for StuckCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const PS_PER_US: f64 = 1e6;
        write!(f, "core {} at {:.3} µs", self.core, self.now_ps as f64 / PS_PER_US)?;
        if let Some(event) = self.waits_for {
            write!(f, ", waits for event {event}")?;
        }
        if let Some(timer_ps) = self.timer_ps {
            write!(f, ", timer due at {:.3} µs", timer_ps as f64 / PS_PER_US)?;
        }
        if self.in_interrupt {
            f.write_str(", in an interrupt")?;
        }
        if self.is_masked {
            f.write_str(", interrupts masked")?;
        }
        Ok(())
    }
}

impl Engine {
    /// Something was done.
    pub(crate) fn progress(&self) {
        self.watchdog.calm();
    }

    /// The account of a core that does something.
    pub(super) fn done_by<'s>(&self, state: &'s CoreState) -> RefMut<'s, Account> {
        self.progress();
        state.account.borrow_mut()
    }

    /// Counts a sleep or a yield of the running core. The run ends here if nothing has been done for too long.
    pub(super) fn watch(&self, core: Core) {
        self.watchdog.count();
        if self.watchdog.has_barked() {
            // `run_beside` sees it, and unwinds this fiber.
            self.suspend(core);
        }
    }

    /// The cores that have not ended.
    pub(super) fn stuck(&self, is_endless: bool) -> Stuck {
        let waiting = self.cores[..self.cpus].iter().enumerate().filter(|(_, state)| !state.has_ended.get());
        let cores = waiting.map(|(core, state)| StuckCore {
            core,
            now_ps: state.now_ps.get(),
            waits_for: state.waits_for.get().map(|event| event.0),
            timer_ps: state.timer_ps.get(),
            in_interrupt: state.in_interrupt.get(),
            is_masked: state.masked.get() > 0,
        });
        Stuck { is_endless, cores: cores.collect() }
    }
}
