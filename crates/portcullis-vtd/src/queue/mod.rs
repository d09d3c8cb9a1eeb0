//! The invalidation queue: a ring of descriptors in one page, and a second page with a status for each slot of the
//! ring (§6.5.2).
//!
//! A submission is a run of descriptors that ends with a wait descriptor. The slot in which the submission begins
//! selects its status. That slot is known before the wait is written.
//!
//! ```text
//!  byte 0                     4          8                                    16
//! +--------------------------+----------+--------------------------------------+
//! | sequence of the last     | unused   | sequence of the last submission here |
//! | wait done, from hardware |          | that failed, and how, from software  |
//! +--------------------------+----------+--------------------------------------+
//! ```
//!
//! Sequences have 64 bits. Hardware writes the low 32 bits, and these are compared modulo 2^32. Three rules make that
//! sound:
//! * A slot is reused only after the wait of the submission that began there has landed. So two live submissions
//!   never share a status, and statuses may land in any order.
//! * A submission that begins in a slot first writes `sequence - 1` to its status. So a value from an earlier
//!   revolution of the ring never looks newer than it is.
//! * A failure is kept in the slot, and also counts for every earlier submission that began there. So a ticket that
//!   is queried late may report a failure that was not its own, but never a completion that did not happen (S11).

mod recovery;
mod shared;

use recovery::Failure;
use shared::{Ride, Turn, UNSEEN};

use crate::hardware::{Hardware, Patience};
use crate::page::{Page, Stopped};
use crate::sorted::try_zeros;
use crate::spec::descriptors::{DESCRIPTOR_BYTES, InvalidationDescriptor, StatusWrite};
use crate::spec::registers::{FSTS, IQA, IQH, IQT, QUEUE_INDEX_SHIFT, global};
use crate::spec::{faults::status, tables::ENTRIES};
use crate::sync::{AtomicU64, plain};
use crate::unbroken::Unbroken;
use crate::{BringUpError, Mmio};
use alloc::boxed::Box;
use core::num::NonZeroU64;
use portcullis::platform::{LockClass, Step, Wait};
use portcullis::table::{Entry, Frame};
use portcullis::{NoMemory, PhysAddr, Platform, QueueError};

/// The number of descriptors that fit into the page.
pub(crate) const SLOTS: usize = ENTRIES / 2;
/// The most descriptors in one submission, without its wait. They are written with interrupts masked, so there is a
/// limit.
pub(crate) const BURST_MAX: usize = 64;

/// A descriptor, encoded.
pub(crate) type Words = [u64; 2];

/// What was submitted, alone or with others, to be asked about with [`Iommu::is_done`](portcullis::Iommu::is_done).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    pub(crate) submission: Submission,
    /// Set if the submission was not yet handed to the hardware when it was joined.
    turn: Option<Turn>,
}

impl From<Submission> for Ticket {
    fn from(submission: Submission) -> Self {
        Self { submission, turn: None }
    }
}

/// A run of descriptors and the wait behind it. The low byte is the slot in which it begins, which also selects its
/// status. The bits above are its sequence, which begins at one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Submission(NonZeroU64);

impl Submission {
    #[inline]
    fn new(slot: u8, sequence: u64) -> Self {
        debug_assert!(sequence > 0);
        // Sequences begin at one, so it is never zero. 2^56 of them are not used up.
        Self(NonZeroU64::new(sequence << u8::BITS | u64::from(slot)).unwrap_or(NonZeroU64::MIN))
    }

    /// The slot in which the submission begins, and in which its status lies.
    #[inline]
    pub(crate) const fn slot(self) -> u8 {
        self.0.get() as u8
    }

    #[inline]
    pub(crate) const fn sequence(self) -> u64 {
        self.0.get() >> u8::BITS
    }
}

/// How often an invalidation queue was used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct QueueUse {
    /// The number of commits: batches of commands, of at most 64 each.
    pub commits: u64,
    /// The number of wait descriptors. There are fewer waits than commits if commits were
    /// [shared](portcullis::Iommu::submit_shared).
    pub waits: u64,
}

/// The state that the lock protects. The slots from `head` up to `tail` are in use.
pub(crate) struct Ring {
    /// The oldest slot that is not known to be done. It may lag behind the hardware's head, and is never ahead of it.
    head: u8,
    /// The sequence of the submission that begins at `head`, and below it that of the last submission. Each submission
    /// has the number that follows the one before it.
    oldest: u64,
    sequence: u64,
    /// The slot that is written next.
    tail: u8,
    /// The submission that callers may still join: it ends at `tail`, and hardware does not know of it.
    boarding: Option<Ride>,
    /// The last two shared submissions, the older one first, unless they are known to be done.
    departed: [Option<Submission>; 2],
    /// The queue stopped in a state that cannot be resumed.
    broken: bool,
    /// The oldest submission in flight, if a caller has waited for it for the whole time limit. Nothing is submitted
    /// until it has landed.
    overdue: Option<Submission>,
    /// Either of the two. One word to ask for in each submission.
    refuses: bool,
    /// The number of commits.
    commits: u64,
    /// For each slot in which a submission begins: the slot behind its wait. It is set when the wait is written.
    ends: Box<[u8; SLOTS]>,
}

const _: () = assert!(SLOTS == 1 << u8::BITS, "a byte is a slot, and wraps as they do");

impl Ring {
    /// Skips a number of sequences. All submissions must be done.
    #[cfg(test)]
    pub(crate) fn skip(&mut self, sequences: u64) {
        self.head = self.tail;
        self.sequence += sequences;
        self.oldest = self.sequence + 1;
    }

    /// The number of slots that may be written. One slot always stays free, because a full ring would look empty. One
    /// more is kept for the wait of a submission that is still open to others.
    fn room(&self) -> usize {
        SLOTS - 1 - distance(self.head, self.tail) - usize::from(self.boarding.is_some())
    }

    /// The slot behind the last submission that has a wait.
    fn end_of_submissions(&self) -> u8 {
        self.boarding.map_or(self.tail, |ride| ride.first())
    }

    /// The submissions that have a wait and are not known to be over, oldest first, each with the slot behind its wait.
    fn submissions(&self) -> impl Iterator<Item = (Submission, u8)> + '_ {
        let end = self.end_of_submissions();
        let (mut first, mut sequence) = (self.head, self.oldest);
        core::iter::from_fn(move || {
            if first == end {
                return None;
            }
            let submission = Submission::new(first, sequence);
            (first, sequence) = (self.ends[usize::from(first)], sequence + 1);
            Some((submission, first))
        })
    }
}

/// Memory for [`Ring::ends`]. An array in the ring itself would be in every stack frame through which a new unit
/// passes.
pub(crate) struct SlotEnds(Box<[u8; SLOTS]>);

impl SlotEnds {
    pub(crate) fn new<P: Platform>(platform: &P) -> Result<Self, NoMemory> {
        try_zeros(platform, SLOTS)?.try_into().map(Self).map_err(|_| NoMemory)
    }
}

/// Tells the hardware how far the ring is written.
fn ring_doorbell<M: Mmio, P: Platform>(ring: &Ring, hardware: &Hardware<M, P>) {
    hardware.write64(IQT, u64::from(ring.tail) << QUEUE_INDEX_SHIFT);
}

/// Whether the hardware reports an error of the queue.
fn has_error<M: Mmio, P: Platform>(hardware: &Hardware<M, P>) -> bool {
    hardware.read32(FSTS) & status::QUEUE_ERRORS != 0
}

/// Slots from `from` forward to `to`.
fn distance(from: u8, to: u8) -> usize {
    usize::from(to.wrapping_sub(from))
}

/// The queue of one unit.
pub(crate) struct Queue<P: Platform> {
    descriptors: Page,
    statuses: Page,
    /// Where that page is, for waits.
    statuses_at: PhysAddr,
    pub(crate) ring: Unbroken<P::Lock<Ring>>,
    /// The sequence of [`Ring::boarding`], zero for none. It is written with the lock held, and read without it.
    boarding: AtomicU64,
    /// When one of the callers that wait in the ride first saw that its predecessor has landed, in microseconds.
    landing_seen_us: AtomicU64,
}

impl<P: Platform> Queue<P> {
    pub(crate) fn new(platform: &P, descriptors: Page, statuses: Page, ends: SlotEnds) -> Self {
        let ring = Ring {
            head: 0,
            oldest: 1,
            sequence: 0,
            tail: 0,
            boarding: None,
            departed: [None; 2],
            broken: false,
            overdue: None,
            refuses: false,
            commits: 0,
            ends: ends.0,
        };
        let ring = Unbroken::closed(platform.lock(LockClass::InvalidationQueue, ring));
        let landing_seen_us = AtomicU64::new(UNSEEN);
        let statuses_at = statuses.phys();
        Self { descriptors, statuses, statuses_at, ring, boarding: AtomicU64::new(0), landing_seen_us }
    }

    /// Tells the hardware where the queue is, turns it on, and accepts submissions. The queue was off, from the
    /// beginning or since it was [closed](Self::close). A CPU that found the lock open before the close may take it
    /// only now. It then writes into the new ring. If its doorbell is lost, the next doorbell covers its descriptors
    /// too, and one follows because the caller flushes.
    pub(crate) fn start<M: Mmio>(&self, hardware: &Hardware<M, P>) -> Result<(), BringUpError> {
        self.begin_anew(hardware)?;
        hardware.write64(IQT, 0);
        // Size 0: one page of 128-bit descriptors.
        hardware.write64(IQA, self.descriptors.phys().as_u64());
        hardware.enable(global::QUEUED_INVALIDATION)?;
        self.ring.open();
        Ok(())
    }

    /// Refuses submissions from now on. Takes no lock.
    pub(crate) fn close(&self) {
        self.ring.close();
    }

    /// Waits until the hardware has fetched every descriptor, which must happen before the queue is turned off.
    pub(crate) fn drain<M: Mmio>(hardware: &Hardware<M, P>) {
        // If the queue has stopped on an error, this times out, and the caller can only turn the queue off.
        hardware.spin(Wait::QueueRoom, || (hardware.read64(IQH) == hardware.read64(IQT)).then_some(()));
    }

    /// Gives the pages back.
    pub(crate) fn release(&mut self, platform: &P, stopped: &Stopped) {
        self.descriptors.release(platform, stopped);
        self.statuses.release(platform, stopped);
    }

    /// How often the queue was used.
    pub(crate) fn used(&self) -> QueueUse {
        // Every submission has a wait, except the one that is still open to others.
        let used = |ring: &mut Ring| QueueUse {
            commits: ring.commits,
            waits: ring.sequence - u64::from(ring.boarding.is_some()),
        };
        self.ring.with_closed(used).unwrap_or_default()
    }

    /// Submits `descriptors`, at most [`BURST_MAX`], and a wait behind them. Spins for room, without the lock.
    ///
    /// The wait needs no fence: hardware completes a wait only after everything ahead of it in the queue (§6.5.2.11).
    pub(crate) fn submit<M: Mmio, D: ExactSizeIterator<Item = Words>>(
        &self,
        hardware: &Hardware<M, P>,
        descriptors: impl Fn() -> D,
    ) -> Result<Ticket, QueueError> {
        self.when_there_is_room(hardware, |ring| {
            // The iterator is built in place, because it may be large.
            let mut descriptors = descriptors();
            self.push(ring, hardware, &mut descriptors).map(Ticket::from)
        })
    }

    /// Repeats `attempt`, taking the lock each time, until there is room.
    #[inline]
    fn when_there_is_room<M: Mmio>(
        &self,
        hardware: &Hardware<M, P>,
        attempt: impl Fn(&mut Ring) -> Option<Ticket>,
    ) -> Result<Ticket, QueueError> {
        // The submission that was the oldest when the wait began; 0 while the queue refuses all.
        let mut oldest = 0;
        let (mut is_full, mut patience) = (false, Patience::new(hardware.wait_us_max));
        loop {
            // The lock is held from `reclaim` to the attempt, so no other CPU takes the reclaimed room in between.
            let tried = self.once(|ring| {
                if is_full {
                    self.reclaim(ring, &hardware.platform);
                    oldest = if oldest == 0 { ring.oldest } else { oldest };
                }
                attempt(ring)
            })?;
            match tried {
                Some(ticket) => return Ok(ticket),
                None if !is_full => is_full = true,
                None if oldest == 0 && self.is_overdue(hardware) => {
                    return Err(QueueError::Unresponsive);
                }
                None if self.await_room(hardware, &mut patience) => {}
                None => return Err(self.give_up(hardware, oldest)),
            }
        }
    }

    /// Tries once. `None` where there is no room, and while a submission is overdue.
    #[inline(always)]
    fn once<T>(&self, attempt: impl FnOnce(&mut Ring) -> Option<T>) -> Result<Option<T>, QueueError> {
        self.ring.with(
            #[inline(always)]
            |ring| match ring.refuses {
                false => Ok(attempt(ring)),
                true if ring.broken => Err(QueueError::Descriptor),
                true => Ok(None),
            },
        )?
    }

    /// Pauses before the next attempt. Returns false if the time limit has passed.
    // Returns only a bool, so that `resume_alone` takes over this stack frame (a tail call). The next attempt reports
    // why the ring cannot be used.
    #[cold]
    #[inline(never)]
    fn await_room<M: Mmio>(&self, hardware: &Hardware<M, P>, patience: &mut Patience) -> bool {
        // A queue that has stopped makes no room.
        match has_error(hardware) {
            true => self.resume_alone(hardware, patience),
            false => patience.pause(&hardware.platform, Wait::QueueRoom),
        }
    }

    /// Resumes the queue after an error, and then pauses as [`await_room`](Self::await_room) does.
    #[inline(never)]
    fn resume_alone<M: Mmio>(&self, hardware: &Hardware<M, P>, patience: &mut Patience) -> bool {
        let _ = self.ring.with(
            #[inline(always)]
            |ring| self.resume(ring, hardware),
        );
        patience.pause(&hardware.platform, Wait::QueueRoom)
    }

    /// Writes a submission if there is room for it.
    fn push<M: Mmio>(
        &self,
        ring: &mut Ring,
        hardware: &Hardware<M, P>,
        descriptors: impl ExactSizeIterator<Item = Words>,
    ) -> Option<Submission> {
        let needed = descriptors.len() + 1;
        debug_assert!(needed <= BURST_MAX + 1);
        if ring.room() < needed {
            return None;
        }
        // A submission is one run of slots, so the open ride is closed first. One doorbell covers both.
        self.close_boarding(ring, &hardware.platform);
        Some(self.write_submission(ring, hardware, self.statuses.entries(&hardware.platform), descriptors))
    }

    /// Writes a submission and tells the hardware. There must be room, and no open ride.
    #[inline(always)]
    fn write_submission<M: Mmio>(
        &self,
        ring: &mut Ring,
        hardware: &Hardware<M, P>,
        statuses: &Frame,
        descriptors: impl ExactSizeIterator<Item = Words>,
    ) -> Submission {
        let platform = &hardware.platform;
        platform.probe(Step::QueueWrite { descriptors: descriptors.len() + 1 });
        let page = self.descriptors.entries(platform);
        let (first, sequence) = (ring.tail, Self::begin(ring, statuses));
        let tail = Self::append(ring, first, page, descriptors);
        self.end(ring, tail, platform, page, first, sequence);
        ring_doorbell(ring, hardware);
        Submission::new(first, sequence)
    }

    /// Begins a submission in the slot that is written next. Returns its sequence.
    #[inline(always)]
    fn begin(ring: &mut Ring, statuses: &Frame) -> u64 {
        let before = ring.sequence;
        ring.sequence = before + 1;
        // Only software uses this word; hardware never reads it, so no barrier is needed. A caller that still asks
        // about the last submission that began here sees that it is done: the slot is taken only after that.
        statuses[usize::from(ring.tail) * 2].store_bits(u64::from(before as u32));
        ring.sequence
    }

    /// Writes the descriptors of a commit to their page, from slot `tail` on. Returns the slot behind them.
    #[inline(always)]
    fn append(ring: &mut Ring, mut tail: u8, page: &Frame, descriptors: impl Iterator<Item = Words>) -> u8 {
        for descriptor in descriptors {
            write(page, tail, descriptor);
            tail = tail.wrapping_add(1);
        }
        ring.commits += 1;
        tail
    }

    /// Writes the wait of a submission that begins in slot `first` and ends in slot `tail`. Makes all of it visible.
    #[inline(always)]
    fn end(&self, ring: &mut Ring, tail: u8, platform: &P, page: &Frame, first: u8, sequence: u64) {
        write(page, tail, self.wait(first, sequence));
        ring.tail = tail.wrapping_add(1);
        plain(&ring.ends[usize::from(first)], true);
        ring.ends[usize::from(first)] = ring.tail;
        make_visible(platform, page, first, distance(first, ring.tail));
    }

    /// Moves `head` past every submission that is done, in ring order.
    ///
    /// A wait that has landed was fetched, and so was everything ahead of it. So memory shows what the head register
    /// would show, without a read across the bus. It also shows that nothing more will be written to the status of
    /// the slot.
    #[cold]
    #[inline(never)]
    fn reclaim(&self, ring: &mut Ring, platform: &P) {
        let statuses = self.statuses.entries(platform);
        let end = ring.end_of_submissions();
        // As `submissions` has them, without a word for each.
        while ring.head != end && landed(statuses, ring.head, ring.oldest) {
            plain(&ring.ends[usize::from(ring.head)], false);
            (ring.head, ring.oldest) = (ring.ends[usize::from(ring.head)], ring.oldest + 1);
        }
        // Within a revolution, so that no later one can take its status out of the reach of comparison.
        ring.departed = ring.departed.map(|ride| ride.filter(|departed| !has_landed(statuses, *departed)));
    }

    /// Whether everything under `ticket` is done.
    #[inline]
    pub(crate) fn is_done<M: Mmio>(&self, hardware: &Hardware<M, P>, ticket: Ticket) -> Result<bool, QueueError> {
        match self.look(&hardware.platform, ticket.submission) {
            Ok(false) => self.ask_again(hardware, ticket),
            over => over,
        }
    }

    /// Handles a submission that has not landed: closes its ride if it is time, and resumes the queue after an error.
    #[inline(never)]
    fn ask_again<M: Mmio>(&self, hardware: &Hardware<M, P>, ticket: Ticket) -> Result<bool, QueueError> {
        let Ticket { submission, turn } = ticket;
        if let Some(turn) = turn {
            self.move_along(hardware, submission, turn)?;
        }
        match has_error(hardware) {
            true => self.resume_and_look(hardware, submission),
            false => self.look(&hardware.platform, submission),
        }
    }

    /// Resumes the queue after an error, and checks `submission` again.
    #[cold]
    #[inline(never)]
    fn resume_and_look<M: Mmio>(&self, hardware: &Hardware<M, P>, submission: Submission) -> Result<bool, QueueError> {
        self.ring.with(
            #[inline(always)]
            |ring| self.resume(ring, hardware),
        )?;
        self.look(&hardware.platform, submission)
    }

    /// Spins until everything under `ticket` is done.
    pub(crate) fn wait_for<M: Mmio>(&self, hardware: &Hardware<M, P>, ticket: Ticket) -> Result<(), QueueError> {
        let mut patience = Patience::new(hardware.wait_us_max);
        while !self.is_done(hardware, ticket)? {
            if !patience.pause(&hardware.platform, Wait::Invalidation) {
                return Err(self.give_up(hardware, ticket.submission.sequence()));
            }
        }
        Ok(())
    }

    /// Reads from memory whether `submission` is done or has failed.
    #[inline]
    fn look(&self, platform: &P, submission: Submission) -> Result<bool, QueueError> {
        look(self.statuses.entries(platform), submission)
    }

    /// Whether the wait of `submission` has landed, with success or failure.
    #[inline]
    fn has_landed(&self, platform: &P, submission: Submission) -> bool {
        has_landed(self.statuses.entries(platform), submission)
    }

    /// The wait that lands the submission of this sequence that begins in slot `first`.
    #[inline(always)]
    fn wait(&self, first: u8, sequence: u64) -> Words {
        let address = PhysAddr::new(self.statuses_at.as_u64() + u64::from(first) * DESCRIPTOR_BYTES);
        let wait = InvalidationDescriptor::Wait {
            status: Some(StatusWrite { address, data: sequence as u32 }),
            interrupt: false,
            fence: false,
            drain_page_requests: false,
        };
        wait.encode()
    }
}

/// The status of `submission` among all of them.
#[inline(always)]
fn status_of(statuses: &Frame, submission: Submission) -> &Entry {
    &statuses[usize::from(submission.slot()) * 2]
}

/// Where a failure of `submission` is noted.
#[inline(always)]
fn failure_of(statuses: &Frame, submission: Submission) -> &Entry {
    &statuses[usize::from(submission.slot()) * 2 + 1]
}

/// What memory tells of `submission`.
#[inline(always)]
fn look(statuses: &Frame, submission: Submission) -> Result<bool, QueueError> {
    // The status first: whatever makes it read as landed, a failure was written before that, and the acquiring load
    // shows it.
    let landed = has_landed(statuses, submission);
    Failure::of(failure_of(statuses, submission).load_bits(), submission.sequence()).map_or(Ok(landed), Err)
}

/// Whether hardware is through with the wait of `submission`, well or badly.
#[inline(always)]
fn has_landed(statuses: &Frame, submission: Submission) -> bool {
    landed(statuses, submission.slot(), submission.sequence())
}

/// The same of the submission of this sequence that begins in `slot`.
#[inline(always)]
fn landed(statuses: &Frame, slot: u8, sequence: u64) -> bool {
    let status = statuses[usize::from(slot) * 2].load_bits() as u32;
    status.wrapping_sub(sequence as u32).cast_signed() >= 0
}

/// Writes a descriptor, the quadword with its type last.
#[inline(always)]
fn write(page: &Frame, slot: u8, [low, high]: Words) {
    let slot = usize::from(slot);
    page[slot * 2 + 1].store_bits(high);
    page[slot * 2].store_bits(low);
}

/// Makes `count` descriptors from slot `first` on visible to the hardware. It snoops the queue even if its walker
/// does not snoop (§10.4.3).
#[inline(always)]
fn make_visible<P: Platform>(platform: &P, page: &Frame, first: u8, count: usize) {
    let to_end = &page[usize::from(first) * 2..];
    match to_end.get(..count * 2) {
        Some(all) => platform.table_barrier(all, true),
        None => {
            platform.table_barrier(to_end, true);
            platform.table_barrier(&page[..count * 2 - to_end.len()], true);
        }
    }
}
