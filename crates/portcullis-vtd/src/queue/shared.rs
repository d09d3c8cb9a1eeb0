//! Submissions that several commits share. A *ride* is their descriptors in one run, with one wait behind it.
//!
//! ```text
//!   head                              doorbell            tail
//!    | departed ride, in flight, wait | boarding ride ...  |
//! ```
//!
//! At most two rides are in flight, unless one was full or had no room for the next commit. The hardware performs one
//! ride after the other: with two it is never idle, and a third could only wait in the hardware instead of here. A
//! commit that finds fewer than two in flight, and no open ride, departs at once, as a ride of its own. A commit that
//! finds two writes its descriptors behind them, where the hardware does not look yet. It has then boarded the next
//! ride. When the older of the two has landed, the first caller on board that polls after its waiting time closes the
//! ride with a wait and rings the doorbell. The ride has then departed. A submission that is not shared closes the
//! open ride first, and its doorbell covers both.
//!
//! Only callers that submit or poll do this work, under the lock of the ring. The lock masks interrupts and is held
//! for a few stores and the doorbell. So a caller that stops polling, is interrupted or never polls delays no other
//! caller, and an interrupt handler may board the ride of the code that it has interrupted.

use super::{BURST_MAX, Queue, Ring, SLOTS, Submission, Ticket, Words, distance, has_landed, look, ring_doorbell};
use crate::Mmio;
use crate::hardware::Hardware;
use crate::sync::Ordering;
use portcullis::iommu::TrySubmit;
use portcullis::platform::{CpuHint, Step};
use portcullis::table::Frame;
use portcullis::{Platform, QueueError};

/// How long each caller on board waits for each descriptor that was on board before its own, in microseconds, once
/// the ride may depart. The leader does not wait. Without this time, all callers would contend for the lock at once.
/// New callers would queue behind them, find that the ride has departed, and depart alone, and so on without end. The
/// time is longer than it takes to see that a ride has landed, and short enough that a preempted leader delays the
/// others little.
const PATIENCE_US: u32 = if cfg!(loom) { 1 } else { 10 };

/// No caller has seen the landing.
pub(super) const UNSEEN: u64 = u64::MAX;

/// A ride that can still be joined.
#[derive(Clone, Copy)]
pub(super) struct Ride {
    submission: Submission,
    /// The CPU of the first caller on board, which should close the ride.
    leader: CpuHint,
}

/// When a caller on board may close the ride.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Turn {
    /// The submission that must have landed.
    behind: Submission,
    /// How long to wait after a caller has first seen that, in microseconds. Zero for the leader.
    patience_us: u32,
}

impl<P: Platform> Queue<P> {
    /// Submits `descriptors`, at most [`BURST_MAX`], with a wait that other commits may share. Spins for room, without
    /// the lock.
    pub(crate) fn submit_shared<M: Mmio, D: ExactSizeIterator<Item = Words>>(
        &self,
        hardware: &Hardware<M, P>,
        descriptors: impl Fn() -> D,
    ) -> Result<Ticket, QueueError> {
        self.when_there_is_room(hardware, |ring| {
            // The iterator is built in place, because it may be large.
            let mut descriptors = descriptors();
            self.board_next(ring, hardware, &mut descriptors)
        })
    }

    /// Does what [`submit_shared`](Self::submit_shared) does if there is room; `None` if there is none.
    #[inline]
    pub(crate) fn try_submit_shared<M: Mmio, D: ExactSizeIterator<Item = Words>>(
        &self,
        hardware: &Hardware<M, P>,
        descriptors: impl Fn() -> D,
    ) -> Result<Option<Ticket>, QueueError> {
        self.once(|ring| {
            let statuses = self.statuses.entries(&hardware.platform);
            let alone = self.go_alone(ring, hardware, statuses, descriptors());
            alone.map(Ticket::from).or_else(|| self.board(ring, hardware, descriptors()))
        })
    }

    /// Submits one descriptor as [`try_submit_shared`](Self::try_submit_shared) does. Returns whether it is done
    /// already. If not, `left` holds the result of the submission; the caller has set it to `Ok(None)`.
    #[inline(always)]
    pub(crate) fn try_one<M: Mmio>(
        &self,
        hardware: &Hardware<M, P>,
        [low, high]: Words,
        left: &mut TrySubmit<Ticket>,
    ) -> bool {
        let submitted = self.once(
            #[inline(always)]
            |ring| {
                let statuses = self.statuses.entries(&hardware.platform);
                let alone = self.go_alone(ring, hardware, statuses, core::iter::once([low, high]));
                if alone.is_none() {
                    *left = Ok(self.board_one(ring, hardware, low, high));
                }
                alone.map(|submission| (submission, statuses))
            },
        );
        let handed_in = match submitted {
            Ok(Some((submission, statuses))) if look(statuses, submission) == Ok(true) => return true,
            Ok(Some((submission, _))) => Ok(Some(submission.into())),
            // Those on board are not done so soon.
            Ok(None) => return false,
            Err(error) => Err(error),
        };
        *left = handed_in;
        false
    }

    #[cold]
    #[inline(never)]
    fn board_one<M: Mmio>(&self, ring: &mut Ring, hardware: &Hardware<M, P>, low: u64, high: u64) -> Option<Ticket> {
        self.board(ring, hardware, core::iter::once([low, high]))
    }

    /// Writes a commit as a ride of its own that departs at once. `None` if a ride is open, if two are in flight, or
    /// if there is no room.
    #[inline(always)]
    fn go_alone<M: Mmio>(
        &self,
        ring: &mut Ring,
        hardware: &Hardware<M, P>,
        statuses: &Frame,
        descriptors: impl ExactSizeIterator<Item = Words>,
    ) -> Option<Submission> {
        let [older, _] = ring.departed;
        let in_flight = older.is_some_and(|departed| !has_landed(statuses, departed));
        if ring.boarding.is_some() || in_flight {
            return None;
        }
        if ring.room() <= descriptors.len() {
            self.reclaim(ring, &hardware.platform);
            if ring.room() <= descriptors.len() {
                return None;
            }
        }
        let submission = self.write_submission(ring, hardware, statuses, descriptors);
        // Read again: a reclaim may have emptied it.
        ring.departed = [ring.departed[1], Some(submission)];
        Some(submission)
    }

    /// Writes a commit into the next ride, and has that depart where there is nothing to wait for.
    #[inline(never)]
    fn board<M: Mmio>(
        &self,
        ring: &mut Ring,
        hardware: &Hardware<M, P>,
        descriptors: impl ExactSizeIterator<Item = Words>,
    ) -> Option<Ticket> {
        if ring.room() <= descriptors.len() {
            // Here, not in `board_next`: the two frames must not add up.
            self.reclaim(ring, &hardware.platform);
        }
        self.board_next(ring, hardware, descriptors)
    }

    #[inline(never)]
    fn board_next<M: Mmio>(
        &self,
        ring: &mut Ring,
        hardware: &Hardware<M, P>,
        descriptors: impl ExactSizeIterator<Item = Words>,
    ) -> Option<Ticket> {
        let platform = &hardware.platform;
        let count = descriptors.len();
        if ring.boarding.is_some_and(|ride| ride.descriptors(ring) + count > BURST_MAX) {
            self.depart(ring, hardware);
        }
        if ring.room() < count + usize::from(ring.boarding.is_none()) {
            return None;
        }
        platform.probe(Step::QueueWrite { descriptors: count });
        let cpu = platform.cpu();
        let ride = ring.boarding.unwrap_or_else(|| {
            // Relaxed: see `is_out_of_patience`.
            self.landing_seen_us.store(UNSEEN, Ordering::Relaxed);
            let first = ring.tail;
            let sequence = Self::begin(ring, self.statuses.entries(platform));
            Ride { submission: Submission::new(first, sequence), leader: cpu }
        });
        let before = ride.descriptors(ring);
        ring.tail = Self::append(ring, ring.tail, self.descriptors.entries(platform), descriptors);
        self.set_boarding(ring, Some(ride));
        // A full ride gains nothing by waiting.
        let [older, _] = ring.departed;
        let in_flight = older.filter(|departed| !self.has_landed(platform, *departed));
        let Some(behind) = in_flight.filter(|_| ride.descriptors(ring) < BURST_MAX) else {
            self.depart(ring, hardware);
            return Some(ride.submission.into());
        };
        // A caller on the leader's CPU has interrupted the leader, or the leader has moved to another CPU. So it may
        // act in the leader's place.
        let patience_us = if ride.leader == cpu { 0 } else { PATIENCE_US * before as u32 };
        Some(Ticket { submission: ride.submission, turn: Some(Turn { behind, patience_us }) })
    }

    /// Closes the ride of `submission` if it is still open and may depart.
    ///
    /// # Errors
    /// [`QueueError::Panicked`]: the ride will not depart.
    #[inline(never)]
    pub(super) fn move_along<M: Mmio>(
        &self,
        hardware: &Hardware<M, P>,
        submission: Submission,
        turn: Turn,
    ) -> Result<(), QueueError> {
        // Relaxed: the value was this sequence when the caller boarded, which happened before. This load returns that
        // value or a later one, and the same sequence is never stored again. A caller that reads a stale value checks
        // again under the lock.
        let is_boarding = || self.boarding.load(Ordering::Relaxed) == submission.sequence();
        let platform = &hardware.platform;
        if is_boarding() && self.has_landed(platform, turn.behind) && self.is_out_of_patience(platform, turn) {
            self.ring.with(|ring| {
                if is_boarding() {
                    self.depart(ring, hardware);
                }
            })?;
        }
        Ok(())
    }

    /// Whether the callers with precedence have had their time. The time begins when one of the callers on board sees
    /// the landing.
    fn is_out_of_patience(&self, platform: &P, turn: Turn) -> bool {
        if turn.patience_us == 0 {
            return true;
        }
        // Relaxed: this is only a hint. A late caller may store a time that it read for the previous ride. Then
        // another caller only takes the lock too early.
        let seen_us = self.landing_seen_us.load(Ordering::Relaxed);
        if seen_us == UNSEEN {
            self.landing_seen_us.store(platform.now_us(), Ordering::Relaxed);
            return false;
        }
        platform.now_us() >= seen_us + u64::from(turn.patience_us)
    }

    /// Closes the open ride and rings the doorbell.
    #[inline(always)]
    fn depart<M: Mmio>(&self, ring: &mut Ring, hardware: &Hardware<M, P>) {
        self.close_boarding(ring, &hardware.platform);
        ring_doorbell(ring, hardware);
    }

    /// Writes the wait of the open ride, if there is one. The caller must ring the doorbell afterwards.
    #[inline(always)]
    pub(super) fn close_boarding(&self, ring: &mut Ring, platform: &P) {
        if let Some(ride) = ring.boarding {
            platform.probe(Step::QueueWrite { descriptors: 1 });
            self.set_boarding(ring, None);
            let page = self.descriptors.entries(platform);
            self.end(ring, ring.tail, platform, page, ride.first(), ride.submission.sequence());
            ring.departed = [ring.departed[1], Some(ride.submission)];
        }
    }

    fn set_boarding(&self, ring: &mut Ring, ride: Option<Ride>) {
        ring.boarding = ride;
        // Relaxed: see `move_along`.
        self.boarding.store(ride.map_or(0, |ride| ride.submission.sequence()), Ordering::Relaxed);
    }
}

impl Ride {
    /// The slot in which it begins.
    pub(super) fn first(&self) -> u8 {
        self.submission.slot()
    }

    /// The number of descriptors on board.
    fn descriptors(&self, ring: &Ring) -> usize {
        distance(self.submission.slot(), ring.tail)
    }
}

const _: () = assert!(2 * (BURST_MAX + 1) < SLOTS, "room for a submission becomes free while a ride is boarding");
