//! The ring of descriptors, and a status for each submission in it.

use super::failure::Failure;
use super::{BURST_MAX, SLOTS, Submission, Words};
use portcullis::platform::Step;
use portcullis::table::{Entry, Frame};
use portcullis::{Platform, QueueError};

/// The state that the lock protects. The slots from `head` up to `tail` are in use. With the words around it, it fits
/// into one cache line.
#[derive(Default)]
pub(crate) struct Ring {
    /// The oldest slot that is not known to be done. It may lag behind the hardware's head, and is never ahead of it.
    pub(super) head: u8,
    /// The slot that is written next.
    pub(super) tail: u8,
    /// The submissions from `head` on. Each has the number that follows the one before it.
    pub(super) unfinished: u8,
    /// The cell where the next search for posts begins.
    pub(super) search_from: u8,
    /// Why the queue cannot be resumed, if it cannot.
    pub(super) broken: Option<Broken>,
    /// Nothing is to be submitted: `broken`, or a submission is `overdue`.
    pub(super) refuses: bool,
    /// The number of the cell that may be left out next.
    pub(super) turns: u16,
    /// The sequence of the last submission.
    pub(super) sequence: u64,
    /// The last shared submission, unless it is known to be done.
    pub(super) latest: Option<Submission>,
    /// The oldest submission in flight, if a caller has waited for it for the whole time limit. Nothing is submitted
    /// until it has landed.
    pub(super) overdue: Option<Submission>,
    /// The number of commits beyond one for each submission.
    pub(super) joined: u64,
}

/// Why a queue cannot be resumed.
#[derive(Clone, Copy)]
pub(super) enum Broken {
    /// It stopped at no descriptor of ours.
    Lost,
    /// Its registers read all ones.
    Gone,
}

impl From<Broken> for QueueError {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Lost => Self::Descriptor,
            Broken::Gone => Self::Gone,
        }
    }
}

impl Ring {
    /// Skips a number of sequences. All submissions must be done.
    #[cfg(test)]
    pub(crate) fn skip(&mut self, sequences: u64) {
        (self.head, self.unfinished) = (self.tail, 0);
        self.sequence += sequences;
    }

    /// The number of slots that may be written. One slot always stays free, because a full ring would look empty.
    pub(super) fn room(&self) -> usize {
        SLOTS - 1 - distance(self.head, self.tail)
    }

    /// The sequence of the submission that begins at `head`.
    pub(super) fn oldest(&self) -> u64 {
        self.sequence + 1 - u64::from(self.unfinished)
    }

    /// The submissions that are not known to be over, oldest first, each with the slot behind its wait.
    pub(super) fn submissions<'r>(&'r self, statuses: &'r Frame) -> impl Iterator<Item = (Submission, u8)> + 'r {
        let (mut first, mut sequence) = (self.head, self.oldest());
        core::iter::from_fn(move || {
            if first == self.tail {
                return None;
            }
            let submission = Submission::new(first, sequence);
            (first, sequence) = (end_of(statuses, first), sequence + 1);
            Some((submission, first))
        })
    }

    /// Moves `head` past every submission that is done, in ring order.
    ///
    /// A wait that has landed was fetched, and so was everything ahead of it. So memory shows what the head register
    /// would show, without a read across the bus. It also shows that nothing more will be written to the status of
    /// the slot.
    pub(super) fn reclaim(&mut self, statuses: &Frame) {
        while self.head != self.tail && landed(statuses, self.head, self.oldest()) {
            (self.head, self.unfinished) = (end_of(statuses, self.head), self.unfinished - 1);
        }
    }

    /// What [`reclaim`](Self::reclaim) would do after the last submission has landed, if it is the only one.
    #[inline(always)]
    pub(super) fn reclaim_only(&mut self) {
        if self.unfinished == 1 {
            (self.head, self.unfinished) = (self.tail, 0);
        }
    }

    /// Writes a descriptor of a commit into the next slot.
    #[inline(always)]
    pub(super) fn append(&mut self, page: &Frame, descriptor: Words) {
        write(page, self.tail, descriptor);
        self.tail = self.tail.wrapping_add(1);
    }

    /// Ends a submission that began in slot `first` with `wait`, in slot `last`, which writes the status of that
    /// submission. Makes all of it visible to the hardware.
    #[inline(always)]
    pub(super) fn end<P: Platform>(
        &mut self,
        platform: &P,
        [page, statuses]: [&Frame; 2],
        first: u8,
        last: u8,
        wait: impl FnOnce(Submission) -> Words,
    ) -> Submission {
        let before = self.sequence;
        (self.sequence, self.unfinished) = (before + 1, self.unfinished + 1);
        let submission = Submission::new(first, self.sequence);
        write(page, last, wait(submission));
        self.tail = last.wrapping_add(1);
        // Only software uses this word; hardware writes the lower half later, and never reads it, so no barrier is
        // needed. A caller that still asks about the last submission that began here sees that it is done: the slot is
        // taken only after that.
        status_of(statuses, first).store_bits(status(before, self.tail));
        make_visible(platform, page, first, distance(first, self.tail));
        submission
    }
}

const _: () = assert!(SLOTS == 1 << u8::BITS, "a byte is a slot, and wraps as they do");
const _: () = assert!(size_of::<Ring>() <= 40, "the ring is on the line of its lock");
const _: () = assert!(2 * (BURST_MAX + 1) < SLOTS, "there is room for a submission while another is in flight");

/// Announces that descriptors are written.
#[inline(always)]
pub(super) fn probe_write<P: Platform>(platform: &P, descriptors: usize) {
    platform.probe(Step::QueueWrite { descriptors });
}

/// Slots from `from` forward to `to`.
#[inline(always)]
pub(super) fn distance(from: u8, to: u8) -> usize {
    usize::from(to.wrapping_sub(from))
}

/// Where the status of the submission is that begins in `slot`, in entries of the page. Neighbouring slots lie 64 bytes
/// apart, so that the pollers of a submission, and the hardware, do not write on the line of the next one.
#[inline(always)]
pub(super) const fn status_index(slot: u8) -> usize {
    slot.rotate_left(2) as usize * 2
}

/// The status of the submission that begins in `slot`: its lower half is what hardware has written. Its upper half is
/// the slot behind the wait of that submission.
#[inline(always)]
pub(super) fn status_of(statuses: &Frame, slot: u8) -> &Entry {
    &statuses[status_index(slot)]
}

/// The status of a submission that ends in front of slot `end`, after the wait of this sequence.
#[inline(always)]
pub(super) fn status(sequence: u64, end: u8) -> u64 {
    u64::from(sequence as u32) | u64::from(end) << u32::BITS
}

/// Where a failure of the submission that begins in `slot` is noted.
#[inline(always)]
pub(super) fn failure_of(statuses: &Frame, slot: u8) -> &Entry {
    &statuses[status_index(slot) + 1]
}

/// The slot behind the wait of the submission that begins in `first`.
fn end_of(statuses: &Frame, first: u8) -> u8 {
    (status_of(statuses, first).load_bits() >> u32::BITS) as u8
}

/// What memory tells of `submission`.
#[inline(always)]
pub(super) fn look(statuses: &Frame, submission: Submission) -> Result<bool, QueueError> {
    // The status first: whatever makes it read as landed, a failure was written before that, and the acquiring load
    // shows it.
    let landed = has_landed(statuses, submission);
    let failure = failure_of(statuses, submission.slot()).load_bits();
    Failure::of(failure, submission.sequence()).map_or(Ok(landed), Err)
}

/// Whether hardware is through with the wait of `submission`, well or badly.
#[inline(always)]
pub(super) fn has_landed(statuses: &Frame, submission: Submission) -> bool {
    landed(statuses, submission.slot(), submission.sequence())
}

/// The same of the submission of this sequence that begins in `slot`.
#[inline(always)]
fn landed(statuses: &Frame, slot: u8, sequence: u64) -> bool {
    let status = status_of(statuses, slot).load_bits() as u32;
    status.wrapping_sub(sequence as u32).cast_signed() >= 0
}

/// Writes a descriptor, the quadword with its type last.
#[inline(always)]
pub(super) fn write(page: &Frame, slot: u8, [low, high]: Words) {
    let slot = usize::from(slot);
    page[slot * 2 + 1].store_bits(high);
    page[slot * 2].store_bits(low);
}

/// A descriptor that was written.
#[inline(always)]
pub(super) fn read(page: &Frame, slot: u8) -> Words {
    let slot = usize::from(slot);
    [page[slot * 2].load_bits(), page[slot * 2 + 1].load_bits()]
}

/// Makes `count` descriptors from slot `first` on visible to the hardware. It snoops the queue even if its walker
/// does not snoop (§10.4.3).
#[inline(always)]
pub(super) fn make_visible<P: Platform>(platform: &P, page: &Frame, first: u8, count: usize) {
    let to_end = &page[usize::from(first) * 2..];
    match to_end.get(..count * 2) {
        Some(all) => platform.table_barrier(all, true),
        None => {
            platform.table_barrier(to_end, true);
            platform.table_barrier(&page[..count * 2 - to_end.len()], true);
        }
    }
}
