//! The invalidation queue: a ring of descriptors in one page, and in a second page a status for each of its slots (§6.5.2).
//!
//! A submission is a run of descriptors closed by a wait of its own. The slot in which it begins, known before it is closed,
//! names its status:
//!
//! ```text
//!  byte 0                     4          8                                    16
//! +--------------------------+----------+--------------------------------------+
//! | sequence of the last     | unused   | sequence of the last submission here |
//! | wait done, from hardware |          | that failed, and how, from software  |
//! +--------------------------+----------+--------------------------------------+
//! ```
//!
//! Sequences have 64 bits, hardware writes the low 32, and those are compared modulo 2^32. Three things make that sound:
//! * A slot is taken again only when the wait of the submission that was in it has landed, so two live submissions never share
//!   a status and statuses may land in any order.
//! * Beginning there first writes `sequence - 1` there; what an old revolution left behind cannot pass for something newer.
//! * A failure is kept in the slot, and stands for every earlier submission there too: a ticket asked about late is told of a
//!   failure too many rather than of a completion that never was (S11).

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
use crate::sync::AtomicU64;
use crate::unbroken::Unbroken;
use crate::{BringUpError, Mmio};
use alloc::boxed::Box;
use core::num::NonZeroU64;
use portcullis::platform::{LockClass, Step, Wait};
use portcullis::table::{Entry, Frame};
use portcullis::{NoMemory, PhysAddr, Platform, QueueError};

/// Descriptors that fit into the page.
pub(crate) const SLOTS: usize = ENTRIES / 2;
/// Descriptors of one submission, not counting its wait. They are written with interrupts masked, so there is a limit.
pub(crate) const BURST_MAX: usize = 64;

/// A descriptor, encoded.
pub(crate) type Words = [u64; 2];

/// What was submitted, alone or with others, to be asked about with [`Iommu::is_done`](portcullis::Iommu::is_done).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    pub(crate) submission: Submission,
    /// For a part of a submission that was not yet in the hardware.
    turn: Option<Turn>,
}

impl From<Submission> for Ticket {
    fn from(submission: Submission) -> Self {
        Self { submission, turn: None }
    }
}

/// A run of descriptors and the wait behind them: in the low byte the slot in which it begins, and its status lies; above that its
/// sequence, which begins at one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Submission(NonZeroU64);

impl Submission {
    #[inline]
    fn new(slot: u8, sequence: u64) -> Self {
        debug_assert!(sequence > 0);
        // Sequences begin at one, so it is never zero. 2^56 of them are not used up.
        Self(NonZeroU64::new(sequence << u8::BITS | u64::from(slot)).unwrap_or(NonZeroU64::MIN))
    }

    /// Where it begins, and its status lies.
    #[inline]
    pub(crate) const fn slot(self) -> u8 {
        self.0.get() as u8
    }

    #[inline]
    const fn sequence(self) -> u64 {
        self.0.get() >> u8::BITS
    }
}

/// How often an invalidation queue was used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueueUse {
    /// Times that commands were handed in, in pieces of at most 64.
    pub commits: u64,
    /// Waits written: fewer, where commits were [shared](portcullis::Iommu::submit_shared).
    pub waits: u64,
}

/// What the lock protects. Between `head` and `tail` lie the slots in use.
pub(crate) struct Ring {
    /// The oldest slot that is not known to be over. Behind the hardware's head, never before it.
    head: u8,
    /// The sequence of the submission that begins there, and of the last one: each has the number that follows the one before it.
    oldest: u64,
    sequence: u64,
    /// The slot that is written next.
    tail: u8,
    /// The submission that callers may still join: it ends at `tail`, and hardware does not know of it.
    boarding: Option<Ride>,
    /// The last two that callers have shared, the older first, unless they are known to be over.
    departed: [Option<Submission>; 2],
    /// The queue stopped in a state that cannot be resumed.
    broken: bool,
    /// Times that commands were handed in.
    commits: u64,
    /// For each slot in which a submission begins, the slot behind its wait once that is written.
    ends: Box<[u8; SLOTS]>,
}

const _: () = assert!(SLOTS == 1 << u8::BITS, "a byte is a slot, and wraps as they do");

impl Ring {
    /// Goes on with another sequence. All that was submitted is over.
    #[cfg(test)]
    pub(crate) fn skip(&mut self, sequences: u64) {
        self.head = self.tail;
        self.sequence += sequences;
        self.oldest = self.sequence + 1;
    }

    /// Slots that may be written. One always stays free, for a full ring would look empty, and one for a wait that is owed.
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

/// Memory for [`Ring::ends`]: in the ring itself it would be in every frame through which a new unit goes.
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
    /// The sequence of [`Ring::boarding`], zero for none: written under the lock, read without.
    boarding: AtomicU64,
    /// When one of those on board has seen that what they wait for has landed, in microseconds.
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
            commits: 0,
            ends: ends.0,
        };
        let ring = Unbroken::closed(platform.lock(LockClass::InvalidationQueue, ring));
        let landing_seen_us = AtomicU64::new(UNSEEN);
        let statuses_at = statuses.phys();
        Self { descriptors, statuses, statuses_at, ring, boarding: AtomicU64::new(0), landing_seen_us }
    }

    /// Tells the hardware where the queue is, turns it on, and lets submissions in. It was off, from the beginning or since it was
    /// [closed](Self::close). A CPU that had looked before that, and comes now, writes behind the beginning of the new ring; should its
    /// doorbell be lost, the next one is for it as well, and one follows: the caller flushes.
    pub(crate) fn start<M: Mmio>(&self, hardware: &Hardware<M, P>) -> Result<(), BringUpError> {
        self.begin_anew(hardware)?;
        hardware.write64(IQT, 0);
        // Size 0: one page, of 128-bit descriptors.
        hardware.write64(IQA, self.descriptors.phys().as_u64());
        hardware.enable(global::QUEUED_INVALIDATION)?;
        self.ring.open();
        Ok(())
    }

    /// Refuses submissions from now on. Takes no lock.
    pub(crate) fn close(&self) {
        self.ring.close();
    }

    /// Waits until the hardware has fetched everything, as it must before the queue is turned off.
    pub(crate) fn drain<M: Mmio>(hardware: &Hardware<M, P>) {
        // Where it does not, because the queue stopped on an error, turning it off is all that is left.
        hardware.spin(Wait::QueueRoom, || (hardware.read64(IQH) == hardware.read64(IQT)).then_some(()));
    }

    /// Gives the pages back.
    pub(crate) fn release(&mut self, platform: &P, stopped: &Stopped) {
        self.descriptors.release(platform, stopped);
        self.statuses.release(platform, stopped);
    }

    /// How often it was used.
    pub(crate) fn used(&self) -> QueueUse {
        // Every submission has a wait, but the one that boards.
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
            // Where it is: it may be large.
            let mut descriptors = descriptors();
            self.push(ring, hardware, &mut descriptors).map(Ticket::from)
        })
    }

    /// Tries, with the lock for each try, until there is room.
    #[inline]
    fn when_there_is_room<M: Mmio>(
        &self,
        hardware: &Hardware<M, P>,
        attempt: impl Fn(&mut Ring) -> Option<Ticket>,
    ) -> Result<Ticket, QueueError> {
        let (mut is_full, mut patience) = (false, Patience::new(hardware.wait_us_max));
        loop {
            // What is over makes room, for this attempt and no other: the lock is held from one to the other.
            let tried = self.once(|ring| {
                if is_full {
                    self.reclaim(ring, &hardware.platform);
                }
                attempt(ring)
            })?;
            match tried {
                Some(ticket) => return Ok(ticket),
                None if !is_full => is_full = true,
                None if self.await_room(hardware, &mut patience) => {}
                None => return Err(QueueError::Timeout(hardware.wait_us_max)),
            }
        }
    }

    /// Tries once. `None` where there is no room.
    #[inline(always)]
    fn once<T>(&self, attempt: impl FnOnce(&mut Ring) -> Option<T>) -> Result<Option<T>, QueueError> {
        self.ring.with(|ring| if ring.broken { Err(QueueError::Descriptor) } else { Ok(attempt(ring)) })?
    }

    /// Waits a moment for room. False where that has taken too long.
    // No more than a yes, so that `resume_alone` takes the place of this frame: the next attempt says why the ring is not to be taken.
    #[cold]
    #[inline(never)]
    fn await_room<M: Mmio>(&self, hardware: &Hardware<M, P>, patience: &mut Patience) -> bool {
        // A queue that has stopped makes no room.
        match has_error(hardware) {
            true => self.resume_alone(hardware, patience),
            false => patience.pause(&hardware.platform, Wait::QueueRoom),
        }
    }

    /// Takes the queue out of an error, and does the rest of [`await_room`](Self::await_room).
    #[inline(never)]
    fn resume_alone<M: Mmio>(&self, hardware: &Hardware<M, P>, patience: &mut Patience) -> bool {
        let _ = self.ring.with(
            #[inline(always)]
            |ring| self.resume(ring, hardware),
        );
        patience.pause(&hardware.platform, Wait::QueueRoom)
    }

    /// Writes a submission where there is room for it.
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
        // A submission is one run of slots, so those who wait for submissions go now. The doorbell is for both.
        self.close_boarding(ring, &hardware.platform);
        Some(self.write_submission(ring, hardware, self.statuses.entries(&hardware.platform), descriptors))
    }

    /// Writes a submission, for which there is room while nobody boards, and tells the hardware.
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
        // Software's own word, never read by hardware, so no barrier. Whoever still asks about the last submission that began
        // here sees that it is over: that is what let the slot be taken.
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

    /// Writes the wait of a submission that begins in slot `first` and ends in slot `tail`, and makes all of it visible.
    #[inline(always)]
    fn end(&self, ring: &mut Ring, tail: u8, platform: &P, page: &Frame, first: u8, sequence: u64) {
        write(page, tail, self.wait(first, sequence));
        ring.tail = tail.wrapping_add(1);
        ring.ends[usize::from(first)] = ring.tail;
        make_visible(platform, page, first, distance(first, ring.tail));
    }

    /// Moves `head` past every submission that is over, in ring order.
    ///
    /// A wait that has landed was fetched, and so was everything ahead of it: memory tells what the head register would,
    /// without a read across the bus, and tells also that nothing more will be written to the slot's status.
    #[cold]
    #[inline(never)]
    fn reclaim(&self, ring: &mut Ring, platform: &P) {
        let statuses = self.statuses.entries(platform);
        let end = ring.end_of_submissions();
        // As `submissions` has them, without a word for each.
        while ring.head != end && landed(statuses, ring.head, ring.oldest) {
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

    /// Looks after a submission that has not landed.
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

    /// Takes the queue out of an error, and looks what has become of `submission`.
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
                return Err(QueueError::Timeout(hardware.wait_us_max));
            }
        }
        Ok(())
    }

    /// What memory tells of `submission`.
    #[inline]
    fn look(&self, platform: &P, submission: Submission) -> Result<bool, QueueError> {
        look(self.statuses.entries(platform), submission)
    }

    /// Whether hardware is through with the wait of `submission`, well or badly.
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

/// Makes `count` descriptors from `first` on visible to the hardware, which snoops the queue even where its walker does not snoop (§10.4.3).
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
