//! A submission to the hardware, and the wait for it.

use crate::iommu::{Iommu, QueueError};
use crate::platform::{Platform, WAIT_US_LEAST, Wait};
use crate::proof::Proof;

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
        // The clock is read first: a CPU that was stopped for a long time asks once more before it gives up.
        let waited_us = platform.now_us().saturating_sub(self.submitted_us);
        match Proof::ask(iommu, self.ticket)? {
            None if waited_us > WAIT_US_LEAST && waited_us > platform.wait_us_max() => {
                Err(QueueError::Timeout(platform.wait_us_max().max(WAIT_US_LEAST)))
            }
            done => Ok(done),
        }
    }

    /// Waits until it has taken effect, for at most [`Platform::wait_us_max`] from its submission.
    ///
    /// # Errors
    /// Those of [`look`](Self::look).
    #[inline(never)]
    pub(crate) fn spin(self, platform: &impl Platform, iommu: &impl Iommu<Ticket = T>) -> Result<Proof, QueueError> {
        loop {
            if let Some(proof) = self.look(platform, iommu)? {
                return Ok(proof);
            }
            platform.pause(Wait::Invalidation);
        }
    }
}
