//! A submission to the hardware, and the wait for it.

use crate::iommu::{Iommu, QueueError};
use crate::platform::{Platform, WAIT_US_LEAST, Wait};
use crate::proof::Proof;
use crate::sync::{AtomicU64, Ordering};

/// For how long a domain still waits for hardware that has once not answered within the time limit: as long again, in
/// all. A driver that returns a whole ring of buffers then waits twice the limit at most, and the domain goes on if the
/// hardware answers after all. Relaxed: CPUs that wait at the same time may each wait for as long as is left.
pub(crate) struct Patience {
    left_us: AtomicU64,
}

impl Patience {
    /// The hardware has always answered.
    const WHOLE: u64 = u64::MAX;

    pub(crate) fn whole() -> Self {
        Self { left_us: AtomicU64::new(Self::WHOLE) }
    }

    /// The time limit of a wait, of which `limit_us` is the longest.
    fn limit_us(&self, limit_us: u64) -> u64 {
        self.left_us.load(Ordering::Relaxed).min(limit_us)
    }

    /// A wait of `waited_us` has ended without an answer. `limit_us` is the longest.
    fn spend(&self, waited_us: u64, limit_us: u64) {
        let left_us = match self.left_us.load(Ordering::Relaxed) {
            Self::WHOLE => limit_us,
            left_us => left_us.saturating_sub(waited_us),
        };
        self.left_us.store(left_us, Ordering::Relaxed);
    }
}

/// A submission to the hardware, with its time on the platform's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submission<T> {
    ticket: T,
    submitted_us: u64,
}

impl<T: Copy + Send> Submission<T> {
    /// A submission made just now.
    pub(crate) fn now(platform: &impl Platform, ticket: T) -> Self {
        Self { ticket, submitted_us: platform.now_us() }
    }

    /// Whether it has taken effect.
    ///
    /// # Errors
    /// A [`QueueError`]; [`QueueError::Timeout`] if it has not taken effect for more than [`Platform::wait_us_max`].
    pub(crate) fn look(
        self,
        platform: &impl Platform,
        iommu: &impl Iommu<Ticket = T>,
    ) -> Result<Option<Proof>, QueueError> {
        self.look_within(platform, iommu, limit_us(platform))
    }

    fn look_within(
        self,
        platform: &impl Platform,
        iommu: &impl Iommu<Ticket = T>,
        limit_us: u64,
    ) -> Result<Option<Proof>, QueueError> {
        // The clock is read first: a CPU that was stopped for a long time asks once more before it gives up.
        let waited_us = platform.now_us().saturating_sub(self.submitted_us);
        match Proof::ask(iommu, self.ticket)? {
            None if waited_us > limit_us => Err(QueueError::Timeout(limit_us)),
            done => Ok(done),
        }
    }

    /// Waits until it has taken effect, for at most [`Platform::wait_us_max`] from its submission, or for as long as
    /// the domain still has `patience`.
    ///
    /// # Errors
    /// Those of [`look`](Self::look), and [`QueueError::Unresponsive`] if the patience is at its end.
    #[inline(never)]
    pub(crate) fn spin(
        self,
        platform: &impl Platform,
        iommu: &impl Iommu<Ticket = T>,
        patience: &Patience,
    ) -> Result<Proof, QueueError> {
        let longest_us = limit_us(platform);
        let limit_us = patience.limit_us(longest_us);
        if limit_us == 0 {
            return self.look(platform, iommu)?.ok_or(QueueError::Unresponsive);
        }
        loop {
            match self.look_within(platform, iommu, limit_us) {
                Ok(Some(proof)) => return Ok(proof),
                Ok(None) => platform.pause(Wait::Invalidation),
                Err(error) => {
                    if matches!(error, QueueError::Timeout(_)) {
                        patience.spend(limit_us, longest_us);
                        iommu.gave_up(self.ticket);
                    }
                    return Err(error);
                }
            }
        }
    }
}

/// The time limit of a wait.
fn limit_us(platform: &impl Platform) -> u64 {
    platform.wait_us_max().max(WAIT_US_LEAST)
}
