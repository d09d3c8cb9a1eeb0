//! Access to registers, and handshakes with a time limit on every wait.

use crate::Mmio;
use crate::spec::registers::{GCMD, GSTS, global};
use core::sync::atomic::{AtomicU8, Ordering};
use portcullis::Platform;
use portcullis::platform::{Step, Wait};
use thiserror::Error;

/// What is wrong with a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// It did not reach the requested state.
    #[error("the VT-d register at {offset:#x} did not settle within {limit_us} µs")]
    Timeout {
        /// Offset of the register, in bytes from the base.
        offset: u32,
        /// The time limit, in microseconds.
        limit_us: u64,
    },
    /// It reads all ones, which no register of a unit does: the unit, or the way to it, is gone.
    #[error("the VT-d register at {offset:#x} reads all ones: the unit, or the way to it, is gone")]
    Gone {
        /// Offset of the register, in bytes from the base.
        offset: u32,
    },
}

/// What every register reads if the unit is gone.
pub(crate) const GONE: u32 = u32::MAX;

/// The time limit of a polling loop. The clock is read only after the first poll has failed.
pub(crate) struct Patience {
    limit_us: u64,
    /// When the wait began, or one of the two values below.
    start_us: u64,
}

impl Patience {
    /// No poll has failed yet.
    const NOT_YET: u64 = u64::MAX;
    /// The time limit has passed, and the last poll is being made.
    const OVER: u64 = u64::MAX - 1;

    /// A wait of at most `limit_us` microseconds.
    pub(crate) const fn new(limit_us: u64) -> Self {
        Self { limit_us, start_us: Self::NOT_YET }
    }

    /// Pauses after a failed poll. Returns false if that poll was made after the time limit.
    pub(crate) fn pause<P: Platform>(&mut self, platform: &P, wait: Wait) -> bool {
        match self.start_us {
            Self::OVER => return false,
            Self::NOT_YET => self.start_us = platform.now_us(),
            _ => {}
        }
        platform.pause(wait);
        // The clock is read before the next poll, so a CPU that was held up past the limit still polls once more.
        if platform.now_us().saturating_sub(self.start_us) >= self.limit_us {
            self.start_us = Self::OVER;
        }
        true
    }
}

/// Polls until `done` returns a value; `None` if it returned none within the time limit. Reads no clock if the first
/// poll succeeds.
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

const AS_SHOWN: u8 = 0;
const ON: u8 = 1;
const OFF: u8 = 2;

/// The registers, and the host that pauses the waits.
pub(crate) struct Hardware<M, P> {
    mmio: M,
    pub(crate) platform: P,
    /// Time limit of every wait.
    pub(crate) wait_us_max: u64,
    /// What every later command says of translation: [`ON`], [`OFF`], or what the status shows, until this driver has
    /// said something. The status may show it late. Relaxed: it is a single word, and it is stored before the command
    /// that it stands for.
    translates: AtomicU8,
}

impl<M: Mmio, P: Platform> Hardware<M, P> {
    pub(crate) fn new(mmio: M, platform: P, wait_us_max: u64) -> Self {
        Self { mmio, platform, wait_us_max, translates: AtomicU8::new(AS_SHOWN) }
    }

    /// Length of the register block in bytes.
    pub(crate) fn bytes(&self) -> u32 {
        self.mmio.bytes()
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
        // SAFETY: only a `Unit` makes a `Hardware`, and it writes nothing before it has found that it may use the
        // registers.
        unsafe { self.mmio.write32(offset, value) };
    }

    pub(crate) fn write64(&self, offset: u32, value: u64) {
        self.platform.probe(Step::RegisterWrite);
        // SAFETY: as above.
        unsafe { self.mmio.write64(offset, value) };
    }

    /// Polls until `done` returns a value; `None` if it returned none within the time limit. Reads no clock if the
    /// first poll succeeds.
    pub(crate) fn spin<T>(&self, wait: Wait, done: impl FnMut() -> Option<T>) -> Option<T> {
        spin(&self.platform, wait, self.wait_us_max, done)
    }

    /// Reads a 32-bit register that has a zero bit in any state.
    pub(crate) fn read_present(&self, offset: u32) -> Result<u32, RegisterError> {
        match self.read32(offset) {
            GONE => Err(RegisterError::Gone { offset }),
            value => Ok(value),
        }
    }

    /// Waits until the bits of `mask` in the 32-bit register at `offset` read `value`. Does not wait for a unit that is
    /// gone.
    pub(crate) fn settle(&self, offset: u32, mask: u32, value: u32) -> Result<(), RegisterError> {
        let settled = self.spin(Wait::Register, || match self.read_present(offset) {
            Ok(found) => (found & mask == value).then_some(Ok(())),
            gone => Some(gone.map(drop)),
        });
        settled.unwrap_or(Err(RegisterError::Timeout { offset, limit_us: self.wait_us_max }))
    }

    /// Gives the command `bit` and waits until its status reads set. Commands must not overlap, so no other CPU may
    /// give one.
    pub(crate) fn enable(&self, bit: u32) -> Result<(), RegisterError> {
        self.write32(GCMD, self.lasting()? | bit);
        self.settle(GSTS, bit, bit)
    }

    /// The command bits that stay set.
    fn lasting(&self) -> Result<u32, RegisterError> {
        let shown = self.read_present(GSTS)? & !global::ONE_SHOT;
        Ok(match self.translates.load(Ordering::Relaxed) {
            ON => shown | global::TRANSLATION,
            OFF => shown & !global::TRANSLATION,
            _ => shown,
        })
    }

    /// Records that translation is requested, or that it is off.
    pub(crate) fn keep_translating(&self, translates: bool) {
        self.translates.store(if translates { ON } else { OFF }, Ordering::Relaxed);
    }

    /// Turns translation off. No other CPU may give a command.
    pub(crate) fn stop_translating(&self) -> Result<(), RegisterError> {
        self.keep_translating(false);
        self.disable(global::TRANSLATION)
    }

    /// Clears the command `bit` and waits until its status reads clear. No other CPU may give a command.
    pub(crate) fn disable(&self, bit: u32) -> Result<(), RegisterError> {
        self.write32(GCMD, self.lasting()? & !bit);
        self.settle(GSTS, bit, 0)
    }

    /// Flushes the write buffer between the CPU and memory and waits for it (§6.8). No other CPU may give a command.
    pub(crate) fn flush_write_buffer(&self) -> Result<(), RegisterError> {
        self.write32(GCMD, self.lasting()? | global::WRITE_BUFFER_FLUSH);
        self.settle(GSTS, global::WRITE_BUFFER_FLUSH, 0)
    }
}
