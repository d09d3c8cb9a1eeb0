//! Submissions that several commits share, by *combining*.
//!
//! A commit of one command that finds the ring held by another CPU does not wait for it. It *posts* its command: one
//! word, in the cell of its CPU. The holder of the ring takes all posts along into its submission: one run of
//! descriptors, one wait, one doorbell. It then tells each cell which submission that was.
//!
//! ```text
//!  posted ──> taken into a submission ──> landed
//!         └─────────────────────────────────^   if it has landed before the cell is told
//! ```
//!
//! At most two shared submissions are in flight, unless commits of several commands come, which do not post. The
//! hardware performs one after the other: with two it is never idle, and a third could only wait in the hardware
//! instead of in the cells, where others can still join it. So a commit also posts if two are in flight: if the one
//! *behind* which it would be the third has not landed.
//!
//! Three kinds of callers submit what is posted:
//! * a commit that takes the ring;
//! * the caller *on duty*, while it waits for its own submission: the holder of the ring, whose cache has what the next
//!   submission needs, or the first one whose post was taken if that submission is of posts alone. It submits as soon
//!   as fewer than two submissions are in flight;
//! * every poster that has waited for longer than a holder needs.
//!
//! While a submission is in flight, posts wait until they are a group, or until the patience of a poster ends. A group
//! is some part of the CPUs that post, and as many as are merged if crowds are. The hardware is busy meanwhile.
//!
//! So a caller that stops polling, is interrupted or never polls delays no other caller for long. Only the holder of
//! the ring does, as the holder of any lock. Interrupts are masked there, for some hundred accesses at most.
//!
//! An interrupt within a commit finds the cell of its CPU in use, and so does a caller that shares the cell. Such a
//! commit takes the ring, even if it must wait for its holder. So do commits of several commands. Both take posts
//! along.

use super::cells::{Answer, Cell, CellSet, Fate, NO_POSTS, Place, Post};
use super::merging::Merging;
use super::ring::{Ring, distance, has_landed, probe_write, write};
use super::{
    BURST_MAX, Discipline, ERRORS_US, Handed, Queue, REFUSES, Submission, Ticket, Words, has_error, ring_doorbell,
};
use crate::Mmio;
use crate::hardware::Hardware;
use crate::sync::{Ordering, pause};
use core::iter;
use portcullis::iommu::TrySubmit;
use portcullis::platform::Step;
use portcullis::table::Frame;
use portcullis::{Platform, QueueError};

/// A poster that was not taken for this time looks whether it may take the ring itself, in microseconds. It is longer
/// than a holder needs with hardware that answers at once.
const PATIENCE_US: u32 = if cfg!(loom) { 0 } else { 2 };
/// For so many posters before it, by the numbers of their CPUs, a poster waits a microsecond longer. If all looked,
/// they would take the line of the ring from its holder, and then that would need longer.
const POSTERS_PER_US: u32 = 4;

/// For so many pauses, in groups that double up to [`PAUSES_MAX`], a commit tries to take the ring before it posts,
/// unless the ring is crowded. Of few CPUs, one that takes the ring again finds its lines still there: two threads took
/// 780 cycles a pair with 127 pauses, and 375 with these.
const PAUSES: u32 = if cfg!(loom) { 0 } else { 1023 };
/// Each try takes the line of the ring from its holder.
const PAUSES_MAX: u32 = 128;

/// While a submission is in flight, the next one departs once one in so many of the CPUs that post has posted. If
/// hardware takes 130 cycles a command and 1,700 there and back, a pair of 64 CPUs takes a tenth more without that.
const POSTERS_PER_MEMBER: u32 = 8;

/// How often a holder looks for posts before it rings the doorbell: some come while it takes the others.
const LOOKS: u32 = if cfg!(loom) { 1 } else { 2 };

/// How many further submissions a holder makes if one was full.
const FURTHER: u32 = 3;

/// In so many turns of holders, each cell without a post is left out, until its CPU posts again.
const TURNS: u16 = if cfg!(loom) { 2 } else { 4096 };

/// What came of an attempt to submit. It fits into two registers.
pub(super) enum Turn {
    /// Another CPU holds the ring.
    Held,
    /// Two submissions are in flight, or one is and commits gather behind it, or the queue refuses submissions.
    Behind,
    NoRoom,
    /// The commit is done.
    Done,
    /// It is in flight, and the caller is on duty.
    OnDuty(Submission),
}

impl Turn {
    /// The ticket of what was submitted.
    pub(super) fn ticket(self) -> Option<Ticket> {
        match self {
            Self::Held | Self::Behind | Self::NoRoom => None,
            Self::Done => Some(Ticket::DONE),
            Self::OnDuty(submission) => Some(Ticket(Handed::Submitted { submission, is_on_duty: true })),
        }
    }
}

impl<P: Platform> Queue<P> {
    /// Submits `descriptors`, at most [`BURST_MAX`], with a wait that other commits may share. Spins for room, without
    /// the lock.
    pub(crate) fn submit_shared<M: Mmio, D: ExactSizeIterator<Item = Words>>(
        &self,
        hardware: &Hardware<M, P>,
        descriptors: impl Fn() -> D,
    ) -> Result<Ticket, QueueError> {
        if self.discipline == Discipline::Linux {
            return self.submit(hardware, descriptors);
        }
        self.when_there_is_room(hardware, descriptors, |ring, own| self.combine(ring, hardware, own).ticket())
    }

    /// Does what [`submit_shared`](Self::submit_shared) does if there is room; `None` if there is none.
    #[inline]
    pub(crate) fn try_submit_shared<M: Mmio, D: ExactSizeIterator<Item = Words>>(
        &self,
        hardware: &Hardware<M, P>,
        descriptors: impl Fn() -> D,
    ) -> TrySubmit<Ticket> {
        match self.discipline {
            Discipline::Combining => self.once(|ring| self.combine(ring, hardware, &mut descriptors()).ticket()),
            Discipline::Linux => self.try_locked(hardware, descriptors),
        }
    }

    /// Submits one descriptor as [`try_submit_shared`](Self::try_submit_shared) does. Returns whether it is done
    /// already. If not, `left` holds the result of the submission; the caller has set it to `Ok(None)`.
    #[inline(always)]
    pub(crate) fn try_one<M: Mmio>(
        &self,
        hardware: &Hardware<M, P>,
        words: Words,
        left: &mut TrySubmit<Ticket>,
    ) -> bool {
        if !self.cell(hardware).posts_first() {
            match self.try_ring(
                hardware,
                #[inline(always)]
                |ring| self.go(ring, hardware, words),
            ) {
                Ok(Turn::Done) => return true,
                // The slow path says why.
                Ok(Turn::Held | Turn::Behind) | Err(_) => {}
                Ok(turn) => {
                    *left = Ok(turn.ticket());
                    return false;
                }
            }
        }
        self.spin_or_post(hardware, words[0], words[1], left)
    }

    /// What [`try_one`](Self::try_one) does if its first attempt has failed.
    #[cold]
    #[inline(never)]
    fn spin_or_post<M: Mmio>(
        &self,
        hardware: &Hardware<M, P>,
        low: u64,
        high: u64,
        left: &mut TrySubmit<Ticket>,
    ) -> bool {
        if self.discipline == Discipline::Linux {
            *left = self.try_locked(hardware, || iter::once([low, high]));
            return false;
        }
        *left = match self.spin(hardware, [low, high]) {
            Some(Ok(Turn::Done)) => return true,
            Some(turn) => turn.map(Turn::ticket),
            None => self.post(hardware, [low, high]),
        };
        false
    }

    /// Submits a descriptor if this CPU gets the ring within a moment.
    #[inline(always)]
    fn spin<M: Mmio>(&self, hardware: &Hardware<M, P>, words: Words) -> Option<Result<Turn, QueueError>> {
        // A CPU that posts first does not look at the line of the ring. A submission in flight takes longer than a
        // moment.
        if self.cells.is_crowded() || self.cell(hardware).posts_first() || !self.may_depart(&hardware.platform) {
            return None;
        }
        let (mut pauses, mut left) = (1, PAUSES);
        while left >= pauses {
            (0..pauses).for_each(|_| pause());
            (pauses, left) = ((2 * pauses).min(PAUSES_MAX), left - pauses);
            match self.try_ring(hardware, |ring| self.combine(ring, hardware, &mut iter::once(words))) {
                Ok(Turn::Held) => {}
                Ok(Turn::Behind) => break,
                turn => return Some(turn),
            }
        }
        None
    }

    /// Posts a descriptor, or waits for the ring if it cannot be posted.
    #[inline(always)]
    fn post<M: Mmio>(&self, hardware: &Hardware<M, P>, words: Words) -> TrySubmit<Ticket> {
        let platform = &hardware.platform;
        let number = self.cells.number(platform.cpu());
        // A CPU that posts first learns of a refusal while it polls.
        let is_refused = !self.cells.get(number).posts_first() && self.behind() == REFUSES;
        if !is_refused && let Some(post) = Post::of(words, self.form) {
            platform.probe(Step::QueuePost);
            let has_landed = |submission| self.look(platform, submission) == Ok(true);
            if let Some(place) = self.cells.post(number, post, has_landed) {
                return Ok(Some(Ticket(Handed::Posted(place))));
            }
        }
        self.once(|ring| self.combine(ring, hardware, &mut iter::once(words)).ticket())
    }

    /// Runs `act` with the ring if that is free, and if fewer than two submissions are in flight.
    #[inline(always)]
    fn try_ring<M: Mmio>(
        &self,
        hardware: &Hardware<M, P>,
        act: impl FnOnce(&mut Ring) -> Turn,
    ) -> Result<Turn, QueueError> {
        // The lock first: if it is held, this is the only look at its line.
        let turn = self.ring().try_with(
            #[inline(always)]
            |ring| if self.may_depart(&hardware.platform) { act(ring) } else { Turn::Behind },
        );
        turn.map(|turn| turn.unwrap_or(Turn::Held))
    }

    /// Submits a descriptor, with posts if there may be any.
    #[inline(always)]
    fn go<M: Mmio>(&self, ring: &mut Ring, hardware: &Hardware<M, P>, words: Words) -> Turn {
        // Most often, the ring is empty.
        if !self.cells.is_quiet() || ring.unfinished > 0 && ring.room() < 2 {
            return self.combine_one(ring, hardware, words[0], words[1]);
        }
        let pages @ [_, statuses] = self.pages(&hardware.platform);
        let submission = self.write_submission(ring, hardware, pages, iter::once(words));
        // No failure can be noted, because the lock is held.
        if !has_landed(statuses, submission) {
            self.note_flight(ring, Some(submission));
            return Turn::OnDuty(submission);
        }
        if ring.latest.is_some() {
            self.note_flight(ring, None);
        }
        ring.reclaim_only();
        Turn::Done
    }

    #[inline(always)]
    pub(super) fn cell<M: Mmio>(&self, hardware: &Hardware<M, P>) -> &Cell {
        self.cells.get(self.cells.number(hardware.platform.cpu()))
    }

    #[cold]
    #[inline(never)]
    fn combine_one<M: Mmio>(&self, ring: &mut Ring, hardware: &Hardware<M, P>, low: u64, high: u64) -> Turn {
        if self.is_gathering(ring, &hardware.platform, 1) {
            return Turn::Behind;
        }
        self.combine(ring, hardware, &mut iter::once([low, high]))
    }

    /// Submits a commit, with what is posted.
    #[inline(always)]
    fn combine<M: Mmio>(
        &self,
        ring: &mut Ring,
        hardware: &Hardware<M, P>,
        own: &mut impl ExactSizeIterator<Item = Words>,
    ) -> Turn {
        let platform = &hardware.platform;
        let count = own.len();
        self.make_room(ring, platform);
        if !self.has_room(ring, count + 1) {
            return Turn::NoRoom;
        }
        probe_write(platform, count + 1);
        let (first, page) = (ring.tail, self.descriptors.entries(platform));
        own.for_each(|descriptor| ring.append(page, descriptor));
        let turn = self.finish(ring, hardware, first, true);
        self.leave_one_out(ring, platform);
        turn
    }

    /// Submits what is posted; if no post fits, looks whether the queue has stopped. Returns `is_done`, or an error if
    /// that is false and the queue will not accept any.
    #[inline(never)]
    pub(super) fn combine_posts<M: Mmio>(&self, hardware: &Hardware<M, P>, is_done: bool) -> Result<bool, QueueError> {
        let combined = self.ring().try_with(|ring| {
            // Who leaves duty need not submit a few posts behind what is in flight: another caller is on duty for that.
            // If that one leaves just now and finds the ring held, they wait until the patience of a poster ends.
            if ring.refuses || is_done && self.is_gathering(ring, &hardware.platform, 0) {
                return false;
            }
            let tail = ring.tail;
            self.finish(ring, hardware, tail, false);
            self.leave_one_out(ring, &hardware.platform);
            // Whether no post fits. No caller wants more than this room, so most often what is wanted is not read.
            let is_short = ring.tail == tail && ring.room() <= BURST_MAX + 2;
            !is_done && is_short && self.end_of_room(ring, tail) == tail
        });
        match combined {
            Err(error) if !is_done => Err(error),
            Ok(Some(true)) if self.cell(hardware).has_waited(&hardware.platform, ERRORS_US) => {
                self.resume_if_stopped(hardware)
            }
            _ => Ok(is_done),
        }
    }

    /// Resumes the queue if it has stopped: then it makes no room for posts. Returns false.
    #[cold]
    #[inline(never)]
    fn resume_if_stopped<M: Mmio>(&self, hardware: &Hardware<M, P>) -> Result<bool, QueueError> {
        if has_error(hardware) { self.resume_stopped(hardware).map(|()| false) } else { Ok(false) }
    }

    /// Takes posts into the submission that begins in slot `first`, ends it, and tells those whose posts it has taken.
    /// Goes on with what is posted by then, if the submission was full. `is_commit` tells whether the submission is
    /// that of a commit; otherwise it is made only if there are posts.
    #[inline(never)]
    fn finish<M: Mmio>(&self, ring: &mut Ring, hardware: &Hardware<M, P>, mut first: u8, mut is_commit: bool) -> Turn {
        let platform = &hardware.platform;
        let pages @ [page, statuses] = self.pages(platform);
        let mut turn = Turn::NoRoom;
        for further in 0..FURTHER + 1 {
            if !is_commit {
                self.make_room(ring, platform);
                first = ring.tail;
            }
            let (end, joined) = (self.end_of_room(ring, first), ring.joined);
            let mut taken = NO_POSTS;
            self.take_posts(ring, platform, page, end, &mut taken);
            let has_taken = taken != NO_POSTS;
            if !is_commit && !has_taken {
                break;
            }
            // The first post counts as the submission, unless that is a commit.
            ring.joined -= u64::from(!is_commit);
            let is_full = ring.tail == end;
            if let Some(merging) = self.merging {
                merging.merge(ring, page, first, 1 + ring.joined - joined, self.form);
            }
            let submission = ring.end(platform, pages, first, ring.tail, |submission| self.wait(submission));
            ring_doorbell(ring, hardware);
            // No failure can be noted, because the lock is held.
            let is_done = has_landed(statuses, submission);
            let in_flight = Some(submission).filter(|_| !is_done);
            self.note_flight(ring, in_flight);
            if is_done {
                ring.reclaim_only();
            }
            if has_taken {
                self.cells.tell(&taken, Fate::taken(in_flight), !is_commit);
            }
            if is_commit {
                turn = in_flight.map_or(Turn::Done, Turn::OnDuty);
            }
            is_commit = false;
            if !is_full || further == FURTHER || !self.may_depart(platform) {
                break;
            }
        }
        turn
    }

    /// The slot in front of which the descriptors of a submission that begins in slot `first` must end. Its wait
    /// follows. Posts leave what a great caller wants.
    fn end_of_room(&self, ring: &Ring, first: u8) -> u8 {
        let kept = 1 + self.wanted.load(Ordering::Relaxed) as usize;
        let count = distance(first, ring.tail) + ring.room().saturating_sub(kept);
        first.wrapping_add(count.min(BURST_MAX) as u8)
    }

    /// Makes as much room as a submission may need, if that is done.
    #[inline(always)]
    fn make_room(&self, ring: &mut Ring, platform: &P) {
        if ring.room() <= BURST_MAX {
            self.reclaim(ring, self.statuses(platform));
        }
    }

    /// Leaves out a cell, if its turn has come and it is idle.
    // Not in `finish`, whose frame is large.
    #[inline(never)]
    fn leave_one_out(&self, ring: &mut Ring, platform: &P) {
        ring.turns = (ring.turns + 1) % TURNS;
        self.cells.leave_out(ring.turns.into(), |submission| self.look(platform, submission) == Ok(true));
    }

    /// Writes the posted descriptors into the slots up to `end`, and puts the cells that they come from into `taken`.
    #[inline(always)]
    fn take_posts(&self, ring: &mut Ring, platform: &P, page: &Frame, end: u8, taken: &mut CellSet) {
        if self.cells.is_quiet() {
            return;
        }
        for _ in 0..LOOKS {
            let before = ring.tail;
            let Ring { tail, joined, .. } = ring;
            let left = self.cells.search(usize::from(ring.search_from), taken, |post| {
                if *tail == end {
                    return false;
                }
                platform.probe(Step::QueueTake);
                write(page, *tail, post.descriptor(self.form));
                (*tail, *joined) = (tail.wrapping_add(1), *joined + 1);
                true
            });
            if let Some(number) = left {
                // The next search begins with the first that was left.
                ring.search_from = number as u8;
            }
            if left.is_some() || ring.tail == before {
                break;
            }
        }
    }

    /// Notes the last submission; `None` if that is done.
    #[cold]
    #[inline(never)]
    fn note_flight(&self, ring: &mut Ring, submission: Option<Submission>) {
        // The next one departs when the one before the last has landed. What is done was behind that one in the queue.
        let behind = submission.and(ring.latest).map_or(0, Submission::word);
        ring.latest = submission;
        self.set_behind(behind);
    }

    /// Whether fewer than two shared submissions are in flight, and the queue refuses nothing.
    #[inline(always)]
    fn may_depart(&self, platform: &P) -> bool {
        // A stale value makes a commit post that need not, or makes a third submission.
        match self.behind() {
            0 => true,
            REFUSES => false,
            behind => Submission::of_word(behind).is_none_or(|behind| self.has_landed(platform, behind)),
        }
    }

    /// Whether a posted command is done.
    // Calls in tail position, as in `is_done`.
    #[inline(never)]
    pub(super) fn ask_for_post<M: Mmio>(&self, hardware: &Hardware<M, P>, place: Place) -> Result<bool, QueueError> {
        let number = usize::from(place.cell);
        let cell = self.cells.get(number);
        let (submission, fate) = match cell.answer(place) {
            Answer::Waits => return self.wait_for_holder(hardware, number),
            Answer::Over(result) => return result.map(|()| true),
            Answer::Told(submission, fate) => (submission, fate),
        };
        // Who was told to go on duty takes the ring with its next commit. The others post, if there are many of them.
        cell.set_posts_first(!fate.is_on_duty() && self.cells.is_crowded());
        let Some(submission) = submission else { return Ok(true) };
        match self.look(&hardware.platform, submission) {
            Ok(false) => self.ask_again_for_post(hardware, cell, submission, fate),
            Ok(true) if fate.is_on_duty() => self.leave_duty(hardware),
            Err(error) => cell.note_failed(fate, error),
            done => done,
        }
    }

    /// Handles a post that was not taken.
    #[inline(never)]
    fn wait_for_holder<M: Mmio>(&self, hardware: &Hardware<M, P>, number: usize) -> Result<bool, QueueError> {
        let patience_us = PATIENCE_US + self.cells.used_before(number) / POSTERS_PER_US;
        match self.cells.get(number).has_waited(&hardware.platform, patience_us) {
            true => self.look_after_posts(hardware, number),
            false => Ok(false),
        }
    }

    /// Handles a post that was taken into `submission`, which has not landed.
    #[inline(never)]
    fn ask_again_for_post<M: Mmio>(
        &self,
        hardware: &Hardware<M, P>,
        cell: &Cell,
        submission: Submission,
        fate: Fate,
    ) -> Result<bool, QueueError> {
        let asked = match fate.is_on_duty() {
            true => self.ask_on_duty(hardware, submission),
            false => self.ask_again(hardware, submission),
        };
        asked.or_else(|error| cell.note_failed(fate, error))
    }

    /// Submits what is posted, if it may depart, and resumes the queue after an error.
    ///
    /// # Errors
    /// Why the queue will not accept it.
    #[inline(never)]
    fn look_after_posts<M: Mmio>(&self, hardware: &Hardware<M, P>, number: usize) -> Result<bool, QueueError> {
        if self.may_depart(&hardware.platform) {
            self.combine_posts(hardware, false)?;
            if !self.cells.get(number).is_posted() {
                return Ok(false);
            }
        } else if self.behind() == REFUSES {
            return self.why_refused(hardware);
        }
        self.resume_if_stopped(hardware)
    }

    /// Why nothing is to be submitted, if that is still so.
    #[cold]
    #[inline(never)]
    fn why_refused<M: Mmio>(&self, hardware: &Hardware<M, P>) -> Result<bool, QueueError> {
        match self.once(|_| Some(()))? {
            None if self.is_overdue(hardware) => Err(QueueError::Unresponsive),
            _ => Ok(false),
        }
    }

    /// Before a caller leaves duty, it submits what is posted: it may not come back soon. Returns true.
    #[inline(never)]
    pub(super) fn leave_duty<M: Mmio>(&self, hardware: &Hardware<M, P>) -> Result<bool, QueueError> {
        if self.has_work(&hardware.platform, 1) { self.combine_posts(hardware, true) } else { Ok(true) }
    }

    /// Whether `fewest` commands are posted, and may depart.
    pub(super) fn has_work(&self, platform: &P, fewest: u32) -> bool {
        !self.cells.is_quiet() && self.may_depart(platform) && self.cells.are_posted(fewest)
    }

    /// The fewest commits that depart together while another submission is in flight.
    pub(super) fn group_min(&self) -> u32 {
        group_min(self.cells.used_count(), self.merging)
    }

    /// Whether posts, and `own` further commits, wait until they are a group, or until what is in flight has landed.
    // Not in `combine_posts`, whose frame is beneath that of `finish`.
    #[inline(never)]
    fn is_gathering(&self, ring: &Ring, platform: &P, own: u32) -> bool {
        let group_min = self.group_min();
        group_min > 1
            && ring.latest.is_some_and(|latest| !self.has_landed(platform, latest))
            && !self.cells.are_posted(group_min - own)
    }

    /// The sequence of the submission that the owner of a post has waited for: its own, or the one that stood in its
    /// way. Zero if there was none.
    pub(super) fn waited_for(&self, place: Place) -> u64 {
        let submission = match self.cells.get(usize::from(place.cell)).answer(place) {
            // A submission would have taken it along. So the one behind which it waits has not changed.
            Answer::Waits => Some(self.behind()).filter(|behind| *behind != REFUSES).and_then(Submission::of_word),
            Answer::Told(submission, _) => submission,
            Answer::Over(_) => None,
        };
        submission.map_or(0, Submission::sequence)
    }
}

/// The fewest commits that depart together while another submission is in flight, if `posters` CPUs post. The hardware
/// is busy until that has landed; and each submission costs it a wait, or single commands where a few more would have
/// been merged.
fn group_min(posters: u32, merging: Option<Merging>) -> u32 {
    let part = (posters / POSTERS_PER_MEMBER).max(1);
    match merging {
        // All posters but one can be a group while that one is in flight.
        Some(Merging { commits_min, .. }) if posters > commits_min.into() => part.max(commits_min.into()),
        _ => part,
    }
}

#[cfg(test)]
mod tests {
    use super::{Merging, group_min};

    #[test]
    fn a_group_is_some_part_of_those_that_post() {
        let merging = Some(Merging { commits_min: 4, mask_max: 18 });
        assert_eq!([0, 1, 8, 15, 16, 64, 256].map(|posters| group_min(posters, None)), [1, 1, 1, 1, 2, 8, 32]);
        assert_eq!([0, 4, 5, 32, 64].map(|posters| group_min(posters, merging)), [1, 1, 4, 4, 8]);
    }
}
