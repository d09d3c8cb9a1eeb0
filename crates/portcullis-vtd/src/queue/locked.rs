//! The queue as Linux has it (`qi_submit_sync`), so that the two can be compared.
//!
//! Every commit has a submission and a wait descriptor of its own. Each turn of its wait takes the lock of the ring, to
//! look at the status and to read the fault status register, and frees it again. So many waiting CPUs keep the lock
//! busy, and a new commit queues behind them. Linux also masks interrupts from the submission to the end of the wait.
//! Here they are masked while the lock is held only.

use super::ring::Ring;
use super::{Handed, Queue, Submission, Ticket, Words, has_error};
use crate::Mmio;
use crate::hardware::Hardware;
use portcullis::iommu::TrySubmit;
use portcullis::{Platform, QueueError};

/// How commits use the queue of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Discipline {
    /// Commits of several CPUs share submissions, and no CPU holds the lock while it waits.
    #[default]
    Combining,
    /// As in Linux: each commit is submitted alone, and each look of its wait takes the lock. It is as safe, and slower
    /// with many CPUs.
    Linux,
}

impl<P: Platform> Queue<P> {
    /// Submits a commit alone if there is room, and looks once.
    pub(super) fn try_locked<M: Mmio, D: ExactSizeIterator<Item = Words>>(
        &self,
        hardware: &Hardware<M, P>,
        descriptors: impl Fn() -> D,
    ) -> TrySubmit<Ticket> {
        self.once(|ring| self.push_locked(ring, hardware, &mut descriptors()))
    }

    /// Writes a submission if there is room, and looks once.
    pub(super) fn push_locked<M: Mmio>(
        &self,
        ring: &mut Ring,
        hardware: &Hardware<M, P>,
        descriptors: &mut impl ExactSizeIterator<Item = Words>,
    ) -> Option<Ticket> {
        let submission = self.push(ring, hardware, descriptors)?;
        // The first turn. If there is an error, the next one handles it, because this stack is deep.
        if self.look(&hardware.platform, submission) == Ok(false) {
            let _ = has_error(hardware);
        }
        Some(Ticket(Handed::Locked(submission)))
    }

    /// A turn of the wait of a commit.
    #[inline(never)]
    pub(super) fn ask_locked<M: Mmio>(
        &self,
        hardware: &Hardware<M, P>,
        submission: Submission,
    ) -> Result<bool, QueueError> {
        // While the queue is halted no caller gets the ring. What has landed is done all the same.
        let asked = self.ring().with(|ring| self.turn(ring, hardware, submission));
        asked.unwrap_or_else(|_| self.look(&hardware.platform, submission))
    }

    fn turn<M: Mmio>(
        &self,
        ring: &mut Ring,
        hardware: &Hardware<M, P>,
        submission: Submission,
    ) -> Result<bool, QueueError> {
        match self.look(&hardware.platform, submission) {
            // This reads the fault status register.
            Ok(false) => self.resume(ring, hardware),
            over => return over,
        }
        self.look(&hardware.platform, submission)
    }
}
