//! Errors of the queue: who pays, and how the others go on (§6.5.2.10).

use super::{Queue, Ring, SLOTS, Submission, distance, failure_of, make_visible, ring_doorbell, status_of, write};
use crate::Mmio;
use crate::hardware::Hardware;
use crate::spec::faults::status;
use crate::spec::registers::{FSTS, IQH, QUEUE_INDEX_SHIFT, QUEUE_OFFSET_MASK};
use portcullis::{Platform, QueueError};

/// The last submission of a slot that failed, as one word: the sequence, and below it why. Zero: none.
#[derive(Clone, Copy)]
pub(super) struct Failure {
    pub(super) sequence: u64,
    pub(super) error: QueueError,
}

impl Failure {
    /// Why, by number.
    const ERRORS: [QueueError; 3] = [QueueError::Descriptor, QueueError::Device, QueueError::Halted];
    const SHIFT: u32 = 2;

    fn encode(self) -> u64 {
        let error = Self::ERRORS.iter().position(|error| *error == self.error).unwrap_or(0);
        self.sequence << Self::SHIFT | error as u64
    }

    /// How the submission of this sequence has failed, if it has: `word` is that of its slot.
    #[inline(always)]
    pub(super) fn of(word: u64, sequence: u64) -> Option<QueueError> {
        // The sequence of no failure is zero, which comes before all others.
        if word >> Self::SHIFT < sequence { None } else { Some(Self::error_of(word)) }
    }

    #[cold]
    fn error_of(word: u64) -> QueueError {
        *Self::ERRORS.get(word as usize % (1 << Self::SHIFT)).unwrap_or(&QueueError::Descriptor)
    }
}

impl<P: Platform> Queue<P> {
    /// Fails the submissions that an error hit, and lets the queue go on with the others.
    // In line, so that those who wait have no frame more below their own.
    #[inline(always)]
    pub(super) fn resume<M: Mmio>(&self, ring: &mut Ring, hardware: &Hardware<M, P>) {
        // Another CPU may have been here since the error was seen.
        let errors = hardware.read32(FSTS) & status::QUEUE_ERRORS;
        if errors == 0 || ring.broken {
            return;
        }
        // Every descriptor has a wait behind it then, and who boarded fails or goes on with the others.
        self.close_boarding(ring, &hardware.platform);
        let raw_head = hardware.read64(IQH);
        let head = (raw_head >> QUEUE_INDEX_SHIFT) as u8;
        // `ring.head` follows the hardware's head and never passes it.
        let sane = raw_head & !QUEUE_OFFSET_MASK == 0
            && raw_head >> QUEUE_INDEX_SHIFT < SLOTS as u64
            && distance(ring.head, head) <= distance(ring.head, ring.tail);
        // The submission that has the descriptor at the head: the first that ends behind it.
        let has_head = |&(_, end): &(Submission, u8)| distance(ring.head, head) < distance(ring.head, end);
        let owner = if sane { ring.submissions().find(has_head) } else { None };
        let refused = errors & status::QUEUE_ERROR != 0;
        // Stopped at no descriptor of ours, or in front of a wait that has landed: hardware could not fetch, or is gone and
        // reads as all ones.
        let lost = owner.is_none_or(|(owner, _)| self.has_landed(&hardware.platform, owner));
        ring.broken = !sane || (refused && lost);
        let dropped = if ring.broken {
            Some((ring.tail, QueueError::Descriptor))
        } else if errors & status::TIMEOUT_ERROR != 0 {
            // Hardware has dropped every wait that it had fetched and not finished; those from the head on it has not seen.
            Some((head, QueueError::Device))
        } else {
            None
        };
        if let Some((end, error)) = dropped {
            self.drop_waits(ring, hardware, end, error);
        }
        if ring.broken {
            return;
        }
        if let Some((owner, end)) = owner.filter(|_| refused) {
            self.replace_refused(hardware, head, end.wrapping_sub(1), owner);
        }
        // A completion that no invalidation of ours asked for, `COMPLETION_ERROR`, stops nothing and hits no submission.
        hardware.write32(FSTS, errors);
        // Some implementations look at the queue again only when told.
        ring_doorbell(ring, hardware);
    }

    /// Fails `owner`, which has the refused descriptor at `head`, and puts a harmless one there: hardware has stopped in front
    /// of it. The rest of the owner stays, its wait at `wait` too, which tells when the hardware is through: the failure is
    /// written before the wait can land, and outweighs it.
    #[inline(always)]
    fn replace_refused<M: Mmio>(&self, hardware: &Hardware<M, P>, head: u8, wait: u8, owner: Submission) {
        self.fail(hardware, owner, QueueError::Descriptor);
        // Not a wait without any effect, which some implementations refuse too: one that writes to the status of the slot that
        // the owner's wait is in. Nobody unfinished has begun there, unless the owner is nothing but that wait.
        let page = self.descriptors.entries(&hardware.platform);
        write(page, head, self.wait(wait, owner.sequence()));
        make_visible(&hardware.platform, page, head, 1);
    }

    /// Fails every submission whose wait lies before `end` and has not landed, and lands it in the hardware's stead.
    // In line, as `resume`.
    #[inline(always)]
    fn drop_waits<M: Mmio>(&self, ring: &Ring, hardware: &Hardware<M, P>, end: u8, error: QueueError) {
        let is_before = |&(_, behind): &(Submission, u8)| distance(ring.head, behind) <= distance(ring.head, end);
        for (submission, _) in ring.submissions().take_while(is_before) {
            if !self.has_landed(&hardware.platform, submission) {
                self.fail(hardware, submission, error);
                status_of(self.statuses.entries(&hardware.platform), submission)
                    .store_bits(u64::from(submission.sequence() as u32));
            }
        }
    }

    fn fail<M: Mmio>(&self, hardware: &Hardware<M, P>, submission: Submission, error: QueueError) {
        let failure = Failure { sequence: submission.sequence(), error };
        failure_of(self.statuses.entries(&hardware.platform), submission).store_bits(failure.encode());
    }

    /// Begins anew, now that the hardware's queue is off and ours closed: what it has not done by now it never will.
    ///
    /// # Errors
    /// [`QueueError::Panicked`].
    pub(super) fn begin_anew<M: Mmio>(&self, hardware: &Hardware<M, P>) -> Result<(), QueueError> {
        self.ring.with_closed(|ring| {
            self.close_boarding(ring, &hardware.platform);
            self.drop_waits(ring, hardware, ring.tail, QueueError::Halted);
            // The hardware's head begins at zero, and so does its tail.
            (ring.head, ring.tail, ring.oldest) = (0, 0, ring.sequence + 1);
            (ring.departed, ring.broken) = ([None; 2], false);
        })
    }
}
