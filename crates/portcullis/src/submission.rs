//! A submission to the hardware, and the wait for it.

use crate::iommu::{Iommu, QueueError};
use crate::platform::{Platform, WAIT_US_LEAST, Wait};
use crate::proof::Proof;
use crate::sync::{AtomicU64, Ordering};

/// For how long a domain still waits for hardware that has once not answered within the time limit: for a hundredth of
/// it, in all. A driver that returns a whole ring of buffers to dead hardware then waits once. Hardware that answers
/// after all needs microseconds, so it is still heard. Relaxed: CPUs that wait at the same time may each wait for as
/// long as is left.
pub struct Patience {
    left_us: AtomicU64,
}

impl Patience {
    /// The hardware has always answered.
    const WHOLE: u64 = u64::MAX;
    /// The part of the limit that is left after the first wait without an answer.
    const PART: u64 = 100;

    /// The patience of a domain whose hardware has always answered.
    pub fn whole() -> Self {
        Self { left_us: AtomicU64::new(Self::WHOLE) }
    }

    /// The time limit of a wait now.
    fn limit_us(&self, platform: &impl Platform) -> u64 {
        self.left_us.load(Ordering::Relaxed).min(limit_us(platform))
    }

    /// A wait of this limit has ended without an answer. If another one has ended since it began, it spends nothing.
    fn spend(&self, limit_us: u64) {
        let left_us = match self.left_us.load(Ordering::Relaxed) {
            Self::WHOLE => limit_us / Self::PART,
            left_us => left_us.checked_sub(limit_us).unwrap_or(left_us),
        };
        self.left_us.store(left_us, Ordering::Relaxed);
    }
}

/// A submission to the hardware, with its time on the platform's clock.
#[derive(Clone, Copy, Debug)]
pub struct Submission<T> {
    ticket: T,
    submitted_us: u64,
}

impl<T: Copy + Send> Submission<T> {
    /// A submission made just now.
    pub fn now(platform: &impl Platform, ticket: T) -> Self {
        Self { ticket, submitted_us: platform.now_us() }
    }

    /// Whether it has taken effect.
    ///
    /// # Errors
    /// A [`QueueError`]; [`QueueError::Timeout`] if it has not taken effect for more than [`Platform::wait_us_max`].
    pub fn look(self, platform: &impl Platform, iommu: &impl Iommu<Ticket = T>) -> Result<Option<Proof>, QueueError> {
        // The clock is read first: a CPU that was stopped for a long time asks once more before it gives up.
        let waited_us = platform.now_us().saturating_sub(self.submitted_us);
        match Proof::ask(iommu, self.ticket)? {
            None if waited_us > limit_us(platform) => Err(QueueError::Timeout(limit_us(platform))),
            done => Ok(done),
        }
    }

    /// Waits until it has taken effect, for at most [`Platform::wait_us_max`] from its submission, or for as long as
    /// the domain still has `patience`.
    ///
    /// # Errors
    /// Those of [`look`](Self::look), and [`QueueError::Unresponsive`] if the patience is at its end.
    #[inline(never)]
    pub fn spin(
        self,
        platform: &impl Platform,
        iommu: &impl Iommu<Ticket = T>,
        patience: &Patience,
    ) -> Result<Proof, QueueError> {
        let limit_us = patience.limit_us(platform);
        loop {
            // As in `look`.
            let waited_us = platform.now_us().saturating_sub(self.submitted_us);
            match Proof::ask(iommu, self.ticket) {
                Ok(Some(proof)) => return Ok(proof),
                Ok(None) if limit_us > 0 && waited_us <= limit_us => platform.pause(Wait::Invalidation),
                Ok(None) => return Err(self.give_up(iommu, patience, limit_us)),
                Err(error) => return Err(error),
            }
        }
    }

    /// The error of a wait that has ended without an answer.
    #[cold]
    #[inline(never)]
    fn give_up(self, iommu: &impl Iommu<Ticket = T>, patience: &Patience, limit_us: u64) -> QueueError {
        if limit_us == 0 {
            return QueueError::Unresponsive;
        }
        patience.spend(limit_us);
        iommu.gave_up(self.ticket);
        QueueError::Timeout(limit_us)
    }
}

/// The time limit of a wait.
pub fn limit_us(platform: &impl Platform) -> u64 {
    platform.wait_us_max().max(WAIT_US_LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::fake::FakeHost;

    #[test]
    fn a_wait_that_began_before_another_gave_up_spends_nothing() {
        let (host, patience) = (FakeHost::default(), Patience::whole());
        let whole_us = patience.limit_us(&host);
        patience.spend(whole_us);
        let left_us = patience.limit_us(&host);
        assert_eq!(left_us, whole_us / Patience::PART);
        patience.spend(whole_us);
        assert_eq!(patience.limit_us(&host), left_us);
        patience.spend(left_us);
        assert_eq!(patience.limit_us(&host), 0);
    }
}
