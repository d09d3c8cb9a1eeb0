//! Errors of the queue: who pays, and how the others go on (§6.5.2.10).

use super::{Queue, Ring, SLOTS, Submission, distance, ring_doorbell};
use crate::Mmio;
use crate::hardware::Hardware;
use crate::spec::faults::status;
use crate::spec::registers::{FSTS, IQH, QUEUE_INDEX_SHIFT, QUEUE_OFFSET_MASK};
use portcullis::{Platform, QueueError};

/// The last submission of a slot that failed, as one word: the sequence shifted left, and in bit 0 whether a device was at
/// fault. Zero: none.
#[derive(Clone, Copy)]
pub(super) struct Failure {
    pub(super) sequence: u64,
    pub(super) error: QueueError,
}

impl Failure {
    fn encode(sequence: u64, device: bool) -> u64 {
        sequence << 1 | u64::from(device)
    }

    pub(super) fn decode(word: u64) -> Option<Self> {
        let error = if word & 1 == 0 { QueueError::Descriptor } else { QueueError::Device };
        (word != 0).then_some(Self { sequence: word >> 1, error })
    }
}

impl<P: Platform> Queue<P> {
    /// Fails the submissions that an error hit, and lets the queue go on with the others.
    pub(super) fn resume<M: Mmio>(&self, ring: &mut Ring, hardware: &Hardware<M, P>) {
        // Another CPU may have been here since the error was seen.
        let errors = hardware.read32(FSTS) & status::QUEUE_ERRORS;
        if errors == 0 || ring.broken {
            return;
        }
        // Every descriptor has a wait behind it then, and who boarded fails or goes on with the others.
        self.close_boarding(ring, &hardware.platform);
        let raw_head = hardware.read64(IQH);
        let head = (raw_head >> QUEUE_INDEX_SHIFT) as usize;
        // `ring.head` follows the hardware's head and never passes it.
        let sane = raw_head & !QUEUE_OFFSET_MASK == 0
            && head < SLOTS
            && distance(ring.head, head) <= distance(ring.head, ring.tail);
        // The submission that has the descriptor at the head: the first that ends behind it.
        let has_head = |&(_, end): &(Submission, usize)| distance(ring.head, head) < distance(ring.head, end);
        let owner = if sane { ring.submissions().find(has_head) } else { None };
        let refused = errors & status::QUEUE_ERROR != 0;
        // Stopped at no descriptor of ours, or in front of a wait that has landed: hardware could not fetch, or is gone and
        // reads as all ones.
        let lost = owner.is_none_or(|(owner, _)| self.has_landed(&hardware.platform, owner));
        if !sane || (refused && lost) {
            ring.broken = true;
            self.drop_waits(ring, hardware, ring.tail, false);
            return;
        }
        if errors & status::TIMEOUT_ERROR != 0 {
            // Hardware has dropped every wait that it had fetched and not finished; those from the head on it has not seen.
            self.drop_waits(ring, hardware, head, true);
        }
        if let Some((owner, end)) = owner.filter(|_| refused) {
            self.replace_refused(hardware, head, (end + SLOTS - 1) % SLOTS, owner);
        }
        // A completion that no invalidation of ours asked for, `COMPLETION_ERROR`, stops nothing and hits no submission.
        hardware.write32(FSTS, errors);
        // Some implementations look at the queue again only when told.
        ring_doorbell(ring, hardware);
    }

    /// Fails `owner`, which has the refused descriptor at `head`, and puts a harmless one there: hardware has stopped in front
    /// of it. The rest of the owner stays, its wait at `wait` too, which tells when the hardware is through: the failure is
    /// written before the wait can land, and outweighs it.
    fn replace_refused<M: Mmio>(&self, hardware: &Hardware<M, P>, head: usize, wait: usize, owner: Submission) {
        self.fail(hardware, owner, false);
        // Not a wait without any effect, which some implementations refuse too: one that writes to the status of the slot that
        // the owner's wait is in. Nobody unfinished has begun there, unless the owner is nothing but that wait.
        self.write(&hardware.platform, head, self.wait(Submission::new(wait, owner.sequence())));
        self.make_visible(&hardware.platform, head, 1);
    }

    /// Fails every submission whose wait lies before `end` and has not landed, and lands it in the hardware's stead.
    fn drop_waits<M: Mmio>(&self, ring: &Ring, hardware: &Hardware<M, P>, end: usize, device: bool) {
        let is_before = |&(_, behind): &(Submission, usize)| distance(ring.head, behind) <= distance(ring.head, end);
        for (submission, _) in ring.submissions().take_while(is_before) {
            if !self.has_landed(&hardware.platform, submission) {
                self.fail(hardware, submission, device);
                self.status(&hardware.platform, submission).store_bits(u64::from(submission.sequence() as u32));
            }
        }
    }

    fn fail<M: Mmio>(&self, hardware: &Hardware<M, P>, submission: Submission, device: bool) {
        self.failure(&hardware.platform, submission).store_bits(Failure::encode(submission.sequence(), device));
    }
}
