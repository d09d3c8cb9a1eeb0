//! The invalidation queue: a ring of descriptors in one page, and a second page with a status for each slot of the
//! ring (§6.5.2).
//!
//! A submission is a run of descriptors that ends with a wait descriptor. The slot in which the submission begins
//! selects its status. That slot is known before the wait is written.
//!
//! ```text
//!  byte 0                     4          8                                    16
//! +--------------------------+----------+--------------------------------------+
//! | sequence of the last     | slot     | sequence of the last submission here |
//! | wait done, from hardware | behind   | that failed, and how, from software  |
//! +--------------------------+----------+--------------------------------------+
//! ```
//!
//! The slot behind is the one that follows the wait of the submission, from software.
//!
//! Sequences have 52 bits, which are not used up. Hardware writes the low 32 bits, and these are compared modulo 2^32.
//! Three rules make that sound:
//! * A slot is reused only after the wait of the submission that began there has landed. So two live submissions
//!   never share a status, and statuses may land in any order.
//! * A submission that begins in a slot first writes `sequence - 1` to its status. So a value from an earlier
//!   revolution of the ring never looks newer than it is.
//! * A failure is kept in the slot, and also counts for every earlier submission that began there. So a ticket that
//!   is queried late may report a failure that was not its own, but never a completion that did not happen (S11).

mod cells;
mod combining;
mod failure;
mod locked;
mod merging;
mod recovery;
mod ring;

pub use locked::Discipline;

use cells::{Cells, Place};
use merging::Merging;
use ring::{Ring, has_landed, look, probe_write, status_index, write};

use crate::closable_lock::ClosableLock;
use crate::hardware::{Hardware, Patience, RegisterError};
use crate::page::{Page, Stopped};
use crate::sorted::{OnLines, try_on_lines};
use crate::spec::descriptors::{InvalidationDescriptor, OnePage, StatusWrite};
use crate::spec::registers::{FSTS, GSTS, IQA, IQH, IQT, QUEUE_INDEX_SHIFT, global};
use crate::spec::{faults::status, tables::ENTRIES};
use crate::sync::{AtomicU64, Hint, Ordering};
use crate::{BringUpError, Mmio};
use core::num::NonZeroU64;
use portcullis::platform::{LockClass, Wait};
use portcullis::table::Frame;
use portcullis::{NoMemory, PAGE_SIZE, PhysAddr, Platform, QueueError};

/// The number of descriptors that fit into the page.
pub(crate) const SLOTS: usize = ENTRIES / 2;
/// The most descriptors in one submission, without its wait. They are written with interrupts masked, so there is a
/// limit.
pub(crate) const BURST_MAX: usize = 64;

/// The most submissions in flight on a unit: each takes a slot at least, and one slot stays free.
pub const SUBMISSIONS_MAX: usize = SLOTS - 1;

/// A descriptor, encoded.
pub(crate) type Words = [u64; 2];

/// What was submitted or posted, alone or with others, to be asked about with
/// [`Iommu::is_done`](portcullis::Iommu::is_done).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(Handed);

/// Where a commit was handed in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Handed {
    /// It is done.
    Done,
    Submitted {
        submission: Submission,
        /// Whether the caller submits, while it waits, what other CPUs post.
        is_on_duty: bool,
    },
    Posted(Place),
    /// Alone, under [`Discipline::Linux`].
    Locked(Submission),
}

impl From<Submission> for Ticket {
    fn from(submission: Submission) -> Self {
        Self(Handed::Submitted { submission, is_on_duty: false })
    }
}

impl Ticket {
    /// That of a commit that is done.
    pub(crate) const DONE: Self = Self(Handed::Done);

    /// The submission, if the commit was not posted.
    #[cfg(test)]
    pub(crate) fn submission(self) -> Submission {
        match self.0 {
            Handed::Submitted { submission, .. } | Handed::Locked(submission) => submission,
            other => panic!("it was not submitted: {other:?}"),
        }
    }
}

/// A run of descriptors and the wait behind it. The low byte is the slot in which it begins, which also selects its
/// status. The next bit is always set: so the compiler knows without a comparison that the word is not zero, and which
/// slot it has. The bits above are its sequence, which begins at one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Submission(NonZeroU64);

impl Submission {
    const NEVER_ZERO: NonZeroU64 = NonZeroU64::new(1 << u8::BITS).expect("a bit is set");
    const SEQUENCE_AT: u32 = u8::BITS + 1;

    #[inline]
    fn new(slot: u8, sequence: u64) -> Self {
        debug_assert!((1..1 << 52).contains(&sequence));
        Self(Self::NEVER_ZERO | (sequence << Self::SEQUENCE_AT | u64::from(slot)))
    }

    /// The slot in which the submission begins, and in which its status lies.
    #[inline]
    pub(crate) const fn slot(self) -> u8 {
        self.0.get() as u8
    }

    #[inline]
    pub(crate) const fn sequence(self) -> u64 {
        self.0.get() >> Self::SEQUENCE_AT
    }

    /// The submission as one word, which is not zero and has its three highest bits clear: 2^52 sequences are not used
    /// up.
    #[inline]
    const fn word(self) -> u64 {
        self.0.get()
    }

    /// The submission of a word; `None` for zero.
    #[inline]
    fn of_word(word: u64) -> Option<Self> {
        NonZeroU64::new(word).map(Self)
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

/// Tells the hardware how far the ring is written.
fn ring_doorbell<M: Mmio, P: Platform>(ring: &Ring, hardware: &Hardware<M, P>) {
    hardware.write64(IQT, u64::from(ring.tail) << QUEUE_INDEX_SHIFT);
}

/// Whether the hardware reports an error of the queue.
fn has_error<M: Mmio, P: Platform>(hardware: &Hardware<M, P>) -> bool {
    hardware.read32(FSTS) & status::QUEUE_ERRORS != 0
}

/// The words that every commit looks at, with the lock and the ring, on one line.
#[repr(C)]
struct Hot<L> {
    /// The submission that must land before the next shared one departs; zero if there is none, and [`REFUSES`]. It is
    /// written with the lock held, and read without it.
    behind: AtomicU64,
    ring: ClosableLock<L>,
}

/// A CPU that waits looks for errors of the queue once in so many microseconds. Errors are rare, and the read of a
/// register takes as long as a dozen polls of memory.
pub(crate) const ERRORS_US: u32 = if cfg!(loom) { 0 } else { 4 };

/// The queue refuses submissions.
const REFUSES: u64 = u64::MAX;

/// The queue of one unit.
pub(crate) struct Queue<P: Platform> {
    descriptors: Page,
    statuses: Page,
    /// Where that page is, for waits.
    statuses_at: PhysAddr,
    /// The low quadword of page-selective descriptors, without a domain.
    form: u64,
    merging: Option<Merging>,
    discipline: Discipline,
    /// The most slots that a caller has found missing; zero once such a caller has got them, or has given up. Used with
    /// the lock of the ring held.
    wanted: Hint,
    cells: Cells,
    hot: OnLines<Hot<P::Lock<Ring>>>,
}

impl<P: Platform> Queue<P> {
    /// A queue without pages. Commands that have the form of `one_page` can be posted. If `merge_min` commits or more
    /// share a submission, one command whose mask is `mask_max` at most may replace theirs.
    pub(crate) fn new(
        platform: &P,
        one_page: Option<OnePage>,
        merge_min: Option<u8>,
        mask_max: u8,
        discipline: Discipline,
    ) -> Result<Self, NoMemory> {
        let ring = || ClosableLock::closed(platform.lock(LockClass::InvalidationQueue, Ring::default()));
        let hot = try_on_lines(platform, || Hot { behind: AtomicU64::new(0), ring: ring() })?;
        let (none, form) = (Page::none, one_page.map_or(0, OnePage::form));
        // Then every commit takes the path of posts, which looks at the discipline. So the fast path has no more steps.
        let posts_first = discipline == Discipline::Linux;
        let (cells, statuses_at) = (Cells::new(platform, posts_first)?, PhysAddr::new(0));
        let merging = merge_min.map(|commits_min| Merging { commits_min, mask_max });
        let (descriptors, statuses, wanted) = (none(), none(), Hint::default());
        Ok(Self { descriptors, statuses, statuses_at, form, merging, discipline, wanted, cells, hot })
    }

    /// Gives the queue its pages, before it is started.
    pub(crate) fn set_pages(&mut self, descriptors: Page, statuses: Page) {
        self.statuses_at = statuses.phys();
        (self.descriptors, self.statuses) = (descriptors, statuses);
    }

    #[inline(always)]
    fn hot(&self) -> &Hot<P::Lock<Ring>> {
        &self.hot[0].0
    }

    #[inline(always)]
    pub(crate) fn ring(&self) -> &ClosableLock<P::Lock<Ring>> {
        &self.hot().ring
    }

    #[inline(always)]
    fn statuses<'q>(&'q self, platform: &'q P) -> &'q Frame {
        self.statuses.entries(platform)
    }

    /// The pages: descriptors and statuses.
    #[inline(always)]
    fn pages<'q>(&'q self, platform: &'q P) -> [&'q Frame; 2] {
        [self.descriptors.entries(platform), self.statuses(platform)]
    }

    #[inline(always)]
    fn behind(&self) -> u64 {
        // Relaxed: a hint.
        self.hot().behind.load(Ordering::Relaxed)
    }

    /// The lock of the ring must be held.
    fn set_behind(&self, behind: u64) {
        // It is stored only if it changes, because others read its line.
        if self.behind() != behind {
            self.hot().behind.store(behind, Ordering::Relaxed);
        }
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
        self.ring().open();
        Ok(())
    }

    /// Whether the queue address register has our ring.
    pub(crate) fn is_at(&self, address: u64) -> bool {
        address & !(PAGE_SIZE - 1) == self.descriptors.phys().as_u64()
    }

    /// Refuses submissions from now on. Takes no lock.
    pub(crate) fn close(&self) {
        self.ring().close();
    }

    /// Turns the queue of the unit off if it is on.
    pub(crate) fn turn_off<M: Mmio>(hardware: &Hardware<M, P>) -> Result<(), RegisterError> {
        if hardware.read_present(GSTS)? & global::QUEUED_INVALIDATION != 0 {
            Self::drain(hardware);
            hardware.disable(global::QUEUED_INVALIDATION)?;
        }
        Ok(())
    }

    /// Waits until the hardware has fetched every descriptor, which must happen before the queue is turned off.
    fn drain<M: Mmio>(hardware: &Hardware<M, P>) {
        // If the queue has stopped on an error, this times out, and the caller can only turn the queue off.
        hardware.spin(Wait::QueueRoom, || Self::is_fetched(hardware));
    }

    /// `Some` if the hardware has fetched every descriptor.
    pub(crate) fn is_fetched<M: Mmio>(hardware: &Hardware<M, P>) -> Option<()> {
        (hardware.read64(IQH) == hardware.read64(IQT)).then_some(())
    }

    /// Gives the pages back.
    pub(crate) fn release(&mut self, platform: &P, stopped: &Stopped) {
        self.descriptors.release(platform, stopped);
        self.statuses.release(platform, stopped);
    }

    /// How often the queue was used.
    pub(crate) fn used(&self) -> QueueUse {
        // Every submission has a wait, and is that of one commit at least.
        let used = |ring: &mut Ring| QueueUse { commits: ring.sequence + ring.joined, waits: ring.sequence };
        self.ring().with_closed(used).unwrap_or_default()
    }

    /// The submissions that have not landed.
    pub(crate) fn in_flight(&self, platform: &P) -> usize {
        let statuses = self.statuses(platform);
        let flying =
            |ring: &mut Ring| ring.submissions(statuses).filter(|(one, _)| !has_landed(statuses, *one)).count();
        self.ring().with_closed(flying).unwrap_or_default()
    }

    /// Submits `descriptors`, at most [`BURST_MAX`], and a wait behind them. Spins for room, without the lock.
    ///
    /// The wait needs no fence: hardware completes a wait only after everything ahead of it in the queue (§6.5.2.11).
    pub(crate) fn submit<M: Mmio, D: ExactSizeIterator<Item = Words>>(
        &self,
        hardware: &Hardware<M, P>,
        descriptors: impl Fn() -> D,
    ) -> Result<Ticket, QueueError> {
        self.when_there_is_room(hardware, descriptors, |ring, own| match self.discipline {
            Discipline::Combining => self.push(ring, hardware, own).map(Ticket::from),
            Discipline::Linux => self.push_locked(ring, hardware, own),
        })
    }

    /// Repeats `attempt` with `descriptors`, taking the lock each time, until there is room.
    #[inline]
    fn when_there_is_room<M: Mmio, D: ExactSizeIterator<Item = Words>>(
        &self,
        hardware: &Hardware<M, P>,
        descriptors: impl Fn() -> D,
        attempt: impl Fn(&mut Ring, &mut D) -> Option<Ticket>,
    ) -> Result<Ticket, QueueError> {
        // The submission that was the oldest when the wait began; 0 while the queue refuses all.
        let mut oldest = 0;
        let (mut is_full, mut patience) = (false, Patience::new(hardware.wait_us_max));
        loop {
            // The lock is held from `reclaim` to the attempt, so no other CPU takes the reclaimed room in between.
            let tried = self.once(|ring| {
                if is_full {
                    self.reclaim(ring, self.statuses(&hardware.platform));
                    oldest = if oldest == 0 { ring.oldest() } else { oldest };
                }
                // The iterator is built in place, because it may be large.
                attempt(ring, &mut descriptors())
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
        self.ring().with(
            #[inline(always)]
            |ring| match ring.refuses {
                false => Ok(attempt(ring)),
                true => ring.broken.map_or(Ok(None), |broken| Err(broken.into())),
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
        let _ = self.resume_stopped(hardware);
        patience.pause(&hardware.platform, Wait::QueueRoom)
    }

    /// Writes a submission if there is room for it.
    fn push<M: Mmio>(
        &self,
        ring: &mut Ring,
        hardware: &Hardware<M, P>,
        descriptors: &mut impl ExactSizeIterator<Item = Words>,
    ) -> Option<Submission> {
        let needed = descriptors.len() + 1;
        debug_assert!(needed <= BURST_MAX + 1);
        if !self.has_room(ring, needed) {
            return None;
        }
        Some(self.write_submission(ring, hardware, self.pages(&hardware.platform), descriptors))
    }

    /// Whether a caller may take `needed` slots of the ring.
    #[inline(always)]
    fn has_room(&self, ring: &Ring, needed: usize) -> bool {
        let room = ring.room();
        match self.wanted.load(Ordering::Relaxed) {
            0 if room >= needed => true,
            wanted => self.share_room(room, needed, wanted as usize),
        }
    }

    /// Decides who gets room where it is short. A caller leaves what the greatest caller has found missing: small ones
    /// would take all room as it comes, and a great one might never find enough. Callers that need the same get it in
    /// no order. If the greatest does not come back, its room is kept until the ring is empty, and others go on with
    /// the rest: two of the greatest fit into an empty ring.
    #[cold]
    #[inline(never)]
    fn share_room(&self, room: usize, needed: usize, wanted: usize) -> bool {
        let is_greatest = needed >= wanted;
        let may_take = room >= if is_greatest { needed } else { needed + wanted };
        if is_greatest || room == SLOTS - 1 {
            self.wanted.store(if may_take { 0 } else { needed as u32 }, Ordering::Relaxed);
        }
        may_take
    }

    /// Writes a submission and tells the hardware. There must be room.
    #[inline(always)]
    fn write_submission<M: Mmio>(
        &self,
        ring: &mut Ring,
        hardware: &Hardware<M, P>,
        pages: [&Frame; 2],
        descriptors: impl ExactSizeIterator<Item = Words>,
    ) -> Submission {
        let platform = &hardware.platform;
        probe_write(platform, descriptors.len() + 1);
        let (first, mut tail) = (ring.tail, ring.tail);
        for descriptor in descriptors {
            write(pages[0], tail, descriptor);
            tail = tail.wrapping_add(1);
        }
        let submission = ring.end(platform, pages, first, tail, |submission| self.wait(submission));
        ring_doorbell(ring, hardware);
        submission
    }

    /// Finds out what is done. Called at least once in each revolution of the ring.
    #[cold]
    #[inline(never)]
    fn reclaim(&self, ring: &mut Ring, statuses: &Frame) {
        ring.reclaim(statuses);
        // Within a revolution, so that no later one can take its status out of the reach of comparison.
        ring.latest = ring.latest.filter(|latest| !has_landed(statuses, *latest));
        let behind = Submission::of_word(self.behind()).filter(|_| !ring.refuses);
        if behind.is_some_and(|behind| has_landed(statuses, behind)) {
            self.set_behind(0);
        }
    }

    /// Whether everything under `ticket` is done.
    // Each slow path takes over this stack frame (a tail call). Waits may be deep.
    #[inline(always)]
    pub(crate) fn is_done<M: Mmio>(&self, hardware: &Hardware<M, P>, ticket: Ticket) -> Result<bool, QueueError> {
        match ticket.0 {
            Handed::Done => Ok(true),
            Handed::Submitted { submission, is_on_duty } => {
                match (self.look(&hardware.platform, submission), is_on_duty) {
                    (Ok(false), true) => self.ask_on_duty(hardware, submission),
                    (Ok(false), false) => self.ask_again(hardware, submission),
                    (Ok(true), true) => self.leave_duty(hardware),
                    (over, _) => over,
                }
            }
            Handed::Posted(place) => self.ask_for_post(hardware, place),
            Handed::Locked(submission) => self.ask_locked(hardware, submission),
        }
    }

    /// Handles a submission that has not landed: resumes the queue after an error.
    #[inline(never)]
    fn ask_again<M: Mmio>(&self, hardware: &Hardware<M, P>, submission: Submission) -> Result<bool, QueueError> {
        if self.cell(hardware).has_waited(&hardware.platform, ERRORS_US) && has_error(hardware) {
            return self.resume_and_look(hardware, submission);
        }
        self.look(&hardware.platform, submission)
    }

    // Called in tail position, as in `is_done`.
    #[cold]
    #[inline(never)]
    fn resume_and_look<M: Mmio>(&self, hardware: &Hardware<M, P>, submission: Submission) -> Result<bool, QueueError> {
        self.resume_stopped(hardware)?;
        self.look(&hardware.platform, submission)
    }

    /// The same for a caller on duty, which first submits what others have posted.
    #[inline(never)]
    fn ask_on_duty<M: Mmio>(&self, hardware: &Hardware<M, P>, submission: Submission) -> Result<bool, QueueError> {
        match self.has_work(&hardware.platform, self.group_min()) {
            true => self.combine_posts(hardware, false),
            false => self.ask_again(hardware, submission),
        }
    }

    #[cold]
    #[inline(never)]
    fn resume_stopped<M: Mmio>(&self, hardware: &Hardware<M, P>) -> Result<(), QueueError> {
        self.ring().with(
            #[inline(always)]
            |ring| self.resume(ring, hardware),
        )
    }

    /// Spins until everything under `ticket` is done.
    pub(crate) fn wait_for<M: Mmio>(&self, hardware: &Hardware<M, P>, ticket: Ticket) -> Result<(), QueueError> {
        let mut patience = Patience::new(hardware.wait_us_max);
        while !self.is_done(hardware, ticket)? {
            if !patience.pause(&hardware.platform, Wait::Invalidation) {
                return Err(self.gave_up(hardware, ticket));
            }
        }
        Ok(())
    }

    /// A caller has waited for `ticket` for its whole time limit. Returns its error.
    #[cold]
    pub(crate) fn gave_up<M: Mmio>(&self, hardware: &Hardware<M, P>, ticket: Ticket) -> QueueError {
        let waited_for = match ticket.0 {
            Handed::Submitted { submission, .. } | Handed::Locked(submission) => submission.sequence(),
            Handed::Posted(place) => self.waited_for(place),
            Handed::Done => 0,
        };
        self.give_up(hardware, waited_for)
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

    /// The wait that lands `submission`.
    #[inline(always)]
    fn wait(&self, submission: Submission) -> Words {
        let address = self.statuses_at.as_u64() + (status_index(submission.slot()) * size_of::<u64>()) as u64;
        let wait = InvalidationDescriptor::Wait {
            status: Some(StatusWrite { address: PhysAddr::new(address), data: submission.sequence() as u32 }),
            interrupt: false,
            fence: false,
            drain_page_requests: false,
        };
        wait.encode()
    }
}
