//! Errors of the queue: which submissions fail, and how the others continue (§6.5.2.10).

use super::failure::Failure;
use super::ring::{Broken, Ring, distance, failure_of, make_visible, status, status_of, write};
use super::{Queue, REFUSES, SLOTS, Submission, ring_doorbell};
use crate::Mmio;
use crate::hardware::{GONE, Hardware};
use crate::spec::faults;
use crate::spec::registers::{FSTS, IQH, QUEUE_INDEX_SHIFT, QUEUE_OFFSET_MASK};
use crate::sync::Ordering;
use portcullis::{Platform, QueueError};

impl<P: Platform> Queue<P> {
    /// A caller has waited for the submission of this sequence for its whole time limit, or was refused because another
    /// caller has. If hardware has not passed that submission, nothing more is submitted until its oldest one lands:
    /// other callers would wait too, each for itself. If it has, the queue moves, and only this caller had no luck.
    /// Returns the error for the caller.
    #[cold]
    #[inline(never)]
    pub(crate) fn give_up<M: Mmio>(&self, hardware: &Hardware<M, P>, waited_for: u64) -> QueueError {
        let noted = self.ring().with(|ring| {
            // Perhaps it was this caller that wanted most. Another that still does says so again.
            self.wanted.store(0, Ordering::Relaxed);
            if ring.overdue.is_some() {
                return QueueError::Unresponsive;
            }
            let in_flight = |(submission, _): &_| !self.has_landed(&hardware.platform, *submission);
            let oldest =
                ring.submissions(self.statuses(&hardware.platform)).find(in_flight).map(|(submission, _)| submission);
            ring.overdue = oldest.filter(|oldest| oldest.sequence() <= waited_for);
            self.set_refuses(ring);
            QueueError::Timeout(hardware.wait_us_max)
        });
        noted.unwrap_or_else(|error| error)
    }

    /// Whether a submission is overdue that has not landed by now. Hardware that reports an error is first told to go
    /// on. It may report the same error for ever, so the error alone is no reason to wait.
    #[cold]
    #[inline(never)]
    pub(super) fn is_overdue<M: Mmio>(&self, hardware: &Hardware<M, P>) -> bool {
        let asked = self.ring().with(|ring| {
            self.resume(ring, hardware);
            let Some(overdue) = ring.overdue.filter(|_| ring.broken.is_none()) else { return false };
            // Some implementations read the queue again only after a doorbell.
            ring_doorbell(ring, hardware);
            if self.has_landed(&hardware.platform, overdue) {
                ring.overdue = None;
                self.set_refuses(ring);
            }
            ring.overdue.is_some()
        });
        asked.unwrap_or(true)
    }

    /// Fails the submissions that an error has hit, and lets the queue continue with the others.
    // Inline, so that a waiting caller needs no further stack frame.
    #[inline(always)]
    pub(super) fn resume<M: Mmio>(&self, ring: &mut Ring, hardware: &Hardware<M, P>) {
        // Another CPU may have resumed the queue since the error was seen.
        let found = hardware.read32(FSTS);
        let errors = found & faults::status::QUEUE_ERRORS;
        if errors == 0 || ring.broken.is_some() {
            return;
        }
        let statuses = self.statuses(&hardware.platform);
        let raw_head = hardware.read64(IQH);
        let head = (raw_head >> QUEUE_INDEX_SHIFT) as u8;
        // `ring.head` follows the hardware's head and never passes it.
        let sane = raw_head & !QUEUE_OFFSET_MASK == 0
            && raw_head >> QUEUE_INDEX_SHIFT < SLOTS as u64
            && distance(ring.head, head) <= distance(ring.head, ring.tail);
        // The submission that has the descriptor at the head: the first that ends behind it.
        let has_head = |&(_, end): &(Submission, u8)| distance(ring.head, head) < distance(ring.head, end);
        let owner = if sane { ring.submissions(statuses).find(has_head) } else { None };
        let refused = errors & faults::status::QUEUE_ERROR != 0;
        // The hardware stopped at no descriptor of ours, or in front of a submission that has landed: it could not
        // fetch.
        let lost = owner.is_none_or(|(owner, _)| self.has_landed(&hardware.platform, owner));
        ring.broken = match found {
            GONE => Some(Broken::Gone),
            _ => (!sane || (refused && lost)).then_some(Broken::Lost),
        };
        self.set_refuses(ring);
        let dropped = if let Some(broken) = ring.broken {
            Some((ring.tail, broken.into()))
        } else if errors & faults::status::TIMEOUT_ERROR != 0 {
            // Hardware has dropped every wait that it had fetched and not finished. It has not seen the waits from
            // the head on.
            Some((head, QueueError::Device))
        } else {
            None
        };
        if let Some((end, error)) = dropped {
            self.drop_waits(ring, hardware, end, error);
        }
        if ring.broken.is_some() {
            return;
        }
        if let Some((owner, end)) = owner.filter(|_| refused) {
            self.replace_refused(hardware, head, end.wrapping_sub(1), owner);
        }
        // `COMPLETION_ERROR` reports a completion that no invalidation of ours requested. It stops nothing and
        // affects no submission.
        hardware.write32(FSTS, errors);
        // Some implementations read the queue again only after a doorbell.
        ring_doorbell(ring, hardware);
    }

    /// Fails `owner`, which contains the refused descriptor at `head`, and replaces that descriptor with a harmless
    /// one; hardware has stopped in front of it. The rest of `owner` stays, including its wait in slot `wait`, which
    /// tells when the hardware has passed it. The failure is written before that wait can land, and takes precedence
    /// over it.
    #[inline(always)]
    fn replace_refused<M: Mmio>(&self, hardware: &Hardware<M, P>, head: u8, wait: u8, owner: Submission) {
        self.fail(hardware, owner, QueueError::Descriptor);
        // The harmless descriptor is not a wait without effect, because some implementations refuse that too. It is a
        // wait that writes to the status of the slot in which the owner's wait lies. No unfinished submission has
        // begun in that slot, unless the owner consists of that wait alone.
        let page = self.descriptors.entries(&hardware.platform);
        write(page, head, self.wait(Submission::new(wait, owner.sequence())));
        make_visible(&hardware.platform, page, head, 1);
    }

    /// Fails every submission whose wait lies before `end` and has not landed, and marks it as landed in place of the
    /// hardware.
    // Inline, as `resume`.
    #[inline(always)]
    fn drop_waits<M: Mmio>(&self, ring: &Ring, hardware: &Hardware<M, P>, end: u8, error: QueueError) {
        let is_before = |&(_, behind): &(Submission, u8)| distance(ring.head, behind) <= distance(ring.head, end);
        let statuses = self.statuses(&hardware.platform);
        for (submission, behind) in ring.submissions(statuses).take_while(is_before) {
            if !self.has_landed(&hardware.platform, submission) {
                self.fail(hardware, submission, error);
                status_of(statuses, submission.slot()).store_bits(status(submission.sequence(), behind));
            }
        }
    }

    fn fail<M: Mmio>(&self, hardware: &Hardware<M, P>, submission: Submission, error: QueueError) {
        let failure = Failure { sequence: submission.sequence(), error };
        failure_of(self.statuses(&hardware.platform), submission.slot()).store_bits(failure.encode());
    }

    /// Sets what follows from [`Ring::broken`] and [`Ring::overdue`].
    fn set_refuses(&self, ring: &mut Ring) {
        ring.refuses = ring.broken.is_some() || ring.overdue.is_some();
        self.set_behind(if ring.refuses { REFUSES } else { ring.latest.map_or(0, Submission::word) });
    }

    /// Resets the ring. The hardware's queue is off and ours is closed, so descriptors that are not done now never
    /// will be. What is posted stays posted, and is submitted once the queue is on again.
    ///
    /// # Errors
    /// [`QueueError::Panicked`].
    pub(super) fn begin_anew<M: Mmio>(&self, hardware: &Hardware<M, P>) -> Result<(), QueueError> {
        self.ring().with_closed(|ring| {
            self.drop_waits(ring, hardware, ring.tail, QueueError::Halted);
            // The hardware's head and tail both begin at zero.
            (ring.head, ring.tail, ring.unfinished) = (0, 0, 0);
            (ring.latest, ring.broken, ring.overdue) = (None, None, None);
            self.wanted.store(0, Ordering::Relaxed);
            self.set_refuses(ring);
        })
    }
}
