//! Submissions that several commits share: a *ride*, their descriptors in one run with one wait behind it.
//!
//! ```text
//!   head                              doorbell            tail
//!    | departed ride, in flight, wait | boarding ride ...  |
//! ```
//!
//! At most two rides are in flight, unless one was full: the hardware does one after the other, so that with two it is never
//! idle, and a third would only wait there for what it can wait for here. Who finds fewer departs at once, alone. Who finds two
//! writes descriptors behind them, where hardware does not look yet, and with that has boarded the next. When the older of the
//! two has landed, one of those on board, whoever is first to ask, closes the next ride with a wait and rings the doorbell. A
//! submission of somebody who does not share takes those on board along.
//!
//! All of it is done by those who ask, under the lock of the ring, which masks interrupts and is held for a few stores and
//! the doorbell. So who stops asking, is interrupted or never asks holds nobody up, and an interrupt may board what it has
//! interrupted.

use super::{BURST_MAX, Queue, Ring, SLOTS, Submission, Ticket, Words, distance, has_landed, look, ring_doorbell};
use crate::Mmio;
use crate::hardware::Hardware;
use crate::sync::Ordering;
use portcullis::iommu::HandedIn;
use portcullis::platform::{CpuHint, Step};
use portcullis::table::Frame;
use portcullis::{Platform, QueueError};

/// How long the others on board leave it to the leader to depart once it may, and then each to those who have boarded before,
/// in microseconds. They would all want the lock at once, and those who come to board would wait behind them, find that the
/// ride has gone, and depart alone, so that it would never end. So longer than it takes to see that a ride has landed, and no
/// longer than one might be missed.
const PATIENCE_US: u32 = if cfg!(loom) { 1 } else { 10 };

/// Nobody has seen it.
pub(super) const UNSEEN: u64 = u64::MAX;

/// A ride that can still be joined.
#[derive(Clone, Copy)]
pub(super) struct Ride {
    submission: Submission,
    /// Where the first on board runs, who is to depart.
    leader: CpuHint,
}

/// When a ride may depart, to one of those on board.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Turn {
    /// When this has landed,
    behind: Submission,
    /// and so long after that was seen, in microseconds.
    patience_us: u32,
}

impl<P: Platform> Queue<P> {
    /// Submits `descriptors`, at most [`BURST_MAX`], behind one wait with those of others. Spins for room, without the lock.
    pub(crate) fn submit_shared<M: Mmio, D: ExactSizeIterator<Item = Words>>(
        &self,
        hardware: &Hardware<M, P>,
        descriptors: impl Fn() -> D,
    ) -> Result<Ticket, QueueError> {
        self.when_there_is_room(hardware, |ring| {
            // Where it is: it may be large.
            let mut descriptors = descriptors();
            self.board_next(ring, hardware, &mut descriptors)
        })
    }

    /// The same where there is room; `None` where there is none.
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

    /// Submits one descriptor as [`try_submit_shared`](Self::try_submit_shared) does, and looks whether it is done. What has been handed in,
    /// if it is not, is in `left` then, where nothing was before.
    #[inline(always)]
    pub(crate) fn try_one<M: Mmio>(
        &self,
        hardware: &Hardware<M, P>,
        [low, high]: Words,
        left: &mut HandedIn<Ticket>,
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

    /// Writes a commit, and has it depart, where there is nothing to wait for and nobody on board: a ride of its own.
    #[inline(always)]
    fn go_alone<M: Mmio>(
        &self,
        ring: &mut Ring,
        hardware: &Hardware<M, P>,
        statuses: &Frame,
        descriptors: impl ExactSizeIterator<Item = Words>,
    ) -> Option<Submission> {
        let [older, last] = ring.departed;
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
        ring.departed = [last, Some(submission)];
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
        // Whoever boards on the leader's CPU has interrupted it, or it has moved: act in its stead.
        let patience_us = if ride.leader == cpu { 0 } else { PATIENCE_US * before as u32 };
        Some(Ticket { submission: ride.submission, turn: Some(Turn { behind, patience_us }) })
    }

    /// Has `submission` depart if it has not and may.
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
        // Relaxed: this was the submission's sequence when it was boarded, which comes before; what is read here is that or
        // something later, and it is never set to that again. Who reads it too late looks again under the lock.
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

    /// Whether those who may have it depart first have had their time. It begins when one of those on board sees the landing.
    fn is_out_of_patience(&self, platform: &P, turn: Turn) -> bool {
        if turn.patience_us == 0 {
            return true;
        }
        // Relaxed: a hint. Who is late may store what was seen for the ride before, and somebody asks for the lock too early.
        let seen_us = self.landing_seen_us.load(Ordering::Relaxed);
        if seen_us == UNSEEN {
            self.landing_seen_us.store(platform.now_us(), Ordering::Relaxed);
            return false;
        }
        platform.now_us() >= seen_us + u64::from(turn.patience_us)
    }

    /// Tells the hardware of those on board.
    #[inline(always)]
    fn depart<M: Mmio>(&self, ring: &mut Ring, hardware: &Hardware<M, P>) {
        self.close_boarding(ring, &hardware.platform);
        ring_doorbell(ring, hardware);
    }

    /// Writes the wait behind those on board, if there are any. The doorbell has to follow.
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

    /// Descriptors on board.
    fn descriptors(&self, ring: &Ring) -> usize {
        distance(self.submission.slot(), ring.tail)
    }
}

const _: () = assert!(2 * (BURST_MAX + 1) < SLOTS, "there comes room for a submission while a ride is boarding");
