//! The rate of arriving frames, and the delay of their announcement.

use crate::machine::NicDriver;
use portcullis_model::Moderation;

/// The rate of a receive ring, and the moderation that follows from it.
pub(super) struct Rate {
    pub(super) moderation: Moderation,
    since_ps: u64,
    frames: u64,
    bytes: u64,
}

impl Rate {
    pub(super) fn new(driver: &NicDriver) -> Self {
        Self { moderation: driver.receive_moderation, since_ps: 0, frames: 0, bytes: 0 }
    }

    /// Notes a frame that has arrived. Returns whether the moderation has changed.
    pub(super) fn note(&mut self, now_ps: u64, bytes: u32, driver: &NicDriver) -> bool {
        self.frames += 1;
        self.bytes += u64::from(bytes);
        let Some(adapts) = driver.adapts.filter(|adapts| now_ps >= self.since_ps + adapts.sample_ps) else {
            return false;
        };
        let delay_ps = adapts.delay_ps(self.frames, self.bytes, now_ps - self.since_ps);
        (self.since_ps, self.frames, self.bytes) = (now_ps, 0, 0);
        std::mem::replace(&mut self.moderation.delay_ps, delay_ps) != delay_ps
    }
}
