//! Registers with their hand-shakes: every wait has a time limit.

use crate::Mmio;
use crate::spec::registers::{GCMD, GSTS, global};
use core::sync::atomic::{AtomicBool, Ordering};
use portcullis::Platform;
use portcullis::platform::{Step, Wait};
use thiserror::Error;

/// A register did not take the state that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the VT-d register at {offset:#x} did not settle within {limit_us} µs")]
pub struct RegisterTimeout {
    /// Which register, in bytes from the base.
    pub offset: u32,
    /// How long it was given.
    pub limit_us: u64,
}

/// How long somebody waits for something, who looks again and again. Reads no clock before the first look was in vain.
pub(crate) struct Patience {
    limit_us: u64,
    /// When it began, or one of the two below.
    start_us: u64,
}

impl Patience {
    /// Nobody has waited yet.
    const NOT_YET: u64 = u64::MAX;
    /// The time limit has passed, and the last look is being made.
    const OVER: u64 = u64::MAX - 1;

    /// So long at most.
    pub(crate) const fn new(limit_us: u64) -> Self {
        Self { limit_us, start_us: Self::NOT_YET }
    }

    /// Pauses before another look, after one that was in vain; false where that one was made after the time limit.
    pub(crate) fn pause<P: Platform>(&mut self, platform: &P, wait: Wait) -> bool {
        match self.start_us {
            Self::OVER => return false,
            Self::NOT_YET => self.start_us = platform.now_us(),
            _ => {}
        }
        platform.pause(wait);
        // The clock is read before the look: whoever was kept from running past the limit still looks once more.
        if platform.now_us().saturating_sub(self.start_us) >= self.limit_us {
            self.start_us = Self::OVER;
        }
        true
    }
}

/// Spins until `done` answers; `None` when the time limit has passed without. Reads no clock where it answers at once.
pub(crate) fn spin<P: Platform, T>(
    platform: &P,
    wait: Wait,
    limit_us: u64,
    mut done: impl FnMut() -> Option<T>,
) -> Option<T> {
    let mut patience = Patience::new(limit_us);
    loop {
        let answer = done();
        if answer.is_some() || !patience.pause(platform, wait) {
            return answer;
        }
    }
}

/// The registers, and the host that waits for them.
pub(crate) struct Hardware<M, P> {
    mmio: M,
    pub(crate) platform: P,
    /// Time limit of every wait.
    pub(crate) wait_us_max: u64,
    /// Translation was requested, and every later command keeps it on, even if the status does not show it yet. Relaxed: the flag is a single
    /// word, and it is stored before the command that it stands for.
    translates: AtomicBool,
}

impl<M: Mmio, P: Platform> Hardware<M, P> {
    pub(crate) fn new(mmio: M, platform: P, wait_us_max: u64) -> Self {
        Self { mmio, platform, wait_us_max, translates: AtomicBool::new(false) }
    }

    pub(crate) fn read32(&self, offset: u32) -> u32 {
        self.platform.probe(Step::RegisterRead);
        self.mmio.read32(offset)
    }

    pub(crate) fn read64(&self, offset: u32) -> u64 {
        self.platform.probe(Step::RegisterRead);
        self.mmio.read64(offset)
    }

    pub(crate) fn write32(&self, offset: u32, value: u32) {
        self.platform.probe(Step::RegisterWrite);
        // SAFETY: a unit makes this for itself, and writes nothing before it has found that it may have the registers.
        unsafe { self.mmio.write32(offset, value) };
    }

    pub(crate) fn write64(&self, offset: u32, value: u64) {
        self.platform.probe(Step::RegisterWrite);
        // SAFETY: as above.
        unsafe { self.mmio.write64(offset, value) };
    }

    /// Spins until `done` answers; `None` when the time limit has passed without. Reads no clock where it answers at once.
    pub(crate) fn spin<T>(&self, wait: Wait, done: impl FnMut() -> Option<T>) -> Option<T> {
        spin(&self.platform, wait, self.wait_us_max, done)
    }

    /// Waits until the bits of `mask` in the 32-bit register at `offset` read `value`.
    pub(crate) fn settle(&self, offset: u32, mask: u32, value: u32) -> Result<(), RegisterTimeout> {
        self.spin(Wait::Register, || (self.read32(offset) & mask == value).then_some(()))
            .ok_or(RegisterTimeout { offset, limit_us: self.wait_us_max })
    }

    /// Gives the command `bit` and waits until its status reads set. Commands must not overlap: the caller is alone.
    pub(crate) fn enable(&self, bit: u32) -> Result<(), RegisterTimeout> {
        self.write32(GCMD, self.lasting() | bit);
        self.settle(GSTS, bit, bit)
    }

    /// What commands leave as it is.
    fn lasting(&self) -> u32 {
        let translation = if self.translates.load(Ordering::Relaxed) { global::TRANSLATION } else { 0 };
        self.read32(GSTS) & !global::ONE_SHOT | translation
    }

    /// Notes that translation is asked for, or is off.
    pub(crate) fn keep_translating(&self, translates: bool) {
        self.translates.store(translates, Ordering::Relaxed);
    }

    /// Takes the command `bit` back and waits until its status reads clear. The caller is alone.
    pub(crate) fn disable(&self, bit: u32) -> Result<(), RegisterTimeout> {
        self.write32(GCMD, self.lasting() & !bit);
        self.settle(GSTS, bit, 0)
    }

    /// Flushes the write buffer between the CPU and memory and waits for it (§6.8). The caller is alone.
    pub(crate) fn flush_write_buffer(&self) -> Result<(), RegisterTimeout> {
        self.write32(GCMD, self.lasting() | global::WRITE_BUFFER_FLUSH);
        self.settle(GSTS, global::WRITE_BUFFER_FLUSH, 0)
    }
}
