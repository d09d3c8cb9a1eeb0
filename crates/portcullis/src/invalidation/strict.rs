//! Strict protection: invalidate and wait before anything is given back.

use super::revocation::{Counted, is_within};
use super::{BATCH_MAX, InFlight, Place, Revocation, Revoked, Room, Runs, Unfinished, look};
use crate::address::IovaRange;
use crate::error::CommitError;
use crate::iommu::{Capabilities, Invalidation, Iommu, QueueError, TrySubmit};
use crate::iova::IovaAllocator;
use crate::platform::{Phase, Platform, Step};
use crate::proof::{Committed, Proof};
use crate::space::{AddressSpace, Space};

/// What one command of a commit covers under strict protection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Commands {
    /// One unmap.
    PerUnmap,
    /// All unmaps of the batch whose pages touch, within aligned runs of `within_pages` pages, a power of two.
    PerRun {
        /// Pages on both sides of a boundary between such runs are neighbours only by accident.
        within_pages: u64,
    },
}

/// Which commands a commit waits for under strict protection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Submissions {
    /// The commit's commands have their own wait.
    Alone,
    /// They share one wait with the commands of other commits ([`Iommu::submit_shared`]).
    Shared,
}

/// How a commit tells the hardware at once.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub(super) commands: Commands,
    pub(super) submissions: Submissions,
}

/// Submits page-selective commands for the unmaps with one wait behind all of them, waits, and frees the addresses
/// and tables.
#[inline(never)]
pub(super) fn commit<P: Platform, I: Iommu, R: Room + ?Sized>(
    space: &AddressSpace<P, I>,
    allocator: &impl IovaAllocator<P>,
    revocation: &mut Revocation<R>,
    &At { commands, submissions }: &At,
) -> Result<Committed, CommitError> {
    space.platform().probe(Step::Enter(Phase::Invalidate));
    if R::IS_NONE {
        let Revoked { range, leaf_only, .. } = revocation.the_run();
        let invalidated = invalidate(space, &[space.covering(range, leaf_only)], submissions);
        return conclude(space, allocator, revocation, invalidated);
    }
    let invalidated = tell(space, revocation, commands, Invalidate(submissions));
    conclude(space, allocator, revocation, invalidated)
}

/// The first half of [`commit`]: submits the commands and does not wait. `None` if there is no room for them.
#[inline(never)]
pub(super) fn submit<P: Platform, I: Iommu>(
    space: &AddressSpace<P, I>,
    revocation: &mut Runs,
    &At { commands, submissions }: &At,
    waits_for_room: bool,
) -> TrySubmit<I::Ticket> {
    space.platform().probe(Step::Enter(Phase::Invalidate));
    tell(space, revocation, commands, Depart { shares: submissions == Submissions::Shared, waits_for_room })
}

/// The second half: gives addresses and tables back if what was submitted is done, or once it is. `None` if it is not
/// done and the caller does not wait.
///
/// # Safety
/// That of [`look`].
#[inline(never)]
pub(super) unsafe fn take_back<P: Platform, I: Iommu>(
    space: &AddressSpace<P, I>,
    allocator: &impl IovaAllocator<P>,
    revocation: &mut Runs,
    (at, place): (&At, &Place<'_, I::Ticket>),
    in_flight: &InFlight,
    waits: bool,
) -> Result<Option<Committed>, CommitError> {
    space.platform().probe(Step::Enter(Phase::Invalidate));
    // SAFETY: the caller's promise, passed on.
    let invalidated = match unsafe { look(space, place, in_flight) } {
        Ok(proof) => Ok(proof),
        Err(Unfinished::InTime(_)) if !waits => return Ok(None),
        // The time limit counts from here: a submission of other CPUs may make progress only while it is polled.
        Err(Unfinished::InTime(ticket) | Unfinished::Late(ticket)) => {
            await_again(space, revocation, at.commands, ticket)
        }
    };
    conclude(space, allocator, revocation, invalidated).map(Some)
}

#[cold]
#[inline(never)]
fn await_again<P: Platform, I: Iommu>(
    space: &AddressSpace<P, I>,
    revocation: &mut Runs,
    commands: Commands,
    ticket: I::Ticket,
) -> Result<Proof, QueueError> {
    // If it has failed, that may be due to the commands of another commit.
    space.await_shared(Ok(ticket)).unwrap_or_else(|| tell(space, revocation, commands, Invalidate(Submissions::Alone)))
}

/// What is done with the commands of a commit.
trait Telling<P: Platform, I: Iommu>: Copy {
    type Told;

    fn one(self, space: &AddressSpace<P, I>, command: Invalidation) -> Self::Told;

    fn each<C: ExactSizeIterator<Item = Invalidation>>(
        self,
        space: &AddressSpace<P, I>,
        commands: &impl Fn() -> C,
    ) -> Self::Told;
}

/// They are submitted and waited for.
#[derive(Clone, Copy)]
struct Invalidate(Submissions);

impl<P: Platform, I: Iommu> Telling<P, I> for Invalidate {
    type Told = Result<Proof, QueueError>;

    fn one(self, space: &AddressSpace<P, I>, command: Invalidation) -> Self::Told {
        invalidate(space, &[command], self.0)
    }

    fn each<C: ExactSizeIterator<Item = Invalidation>>(
        self,
        space: &AddressSpace<P, I>,
        commands: &impl Fn() -> C,
    ) -> Self::Told {
        space.invalidate_each(commands, self.0 == Submissions::Shared)
    }
}

/// They are submitted.
#[derive(Clone, Copy)]
struct Depart {
    shares: bool,
    waits_for_room: bool,
}

impl<P: Platform, I: Iommu> Telling<P, I> for Depart {
    type Told = TrySubmit<I::Ticket>;

    fn one(self, space: &AddressSpace<P, I>, command: Invalidation) -> Self::Told {
        space.depart(command, self.shares, self.waits_for_room)
    }

    fn each<C: ExactSizeIterator<Item = Invalidation>>(
        self,
        space: &AddressSpace<P, I>,
        commands: &impl Fn() -> C,
    ) -> Self::Told {
        space.depart_each(commands, self.shares, self.waits_for_room)
    }
}

/// Does `act` with the commands for the unmaps.
#[inline(always)]
fn tell<P: Platform, I: Iommu, R: Room + ?Sized, T: Telling<P, I>>(
    space: &AddressSpace<P, I>,
    revocation: &mut Revocation<R>,
    commands: Commands,
    act: T,
) -> T::Told {
    match (only_command(space, revocation), commands) {
        (Some(command), _) => act.one(space, command),
        (None, Commands::PerUnmap) => tell_each(space, revocation, act),
        (None, Commands::PerRun { within_pages }) => tell_runs(space, revocation, within_pages, act),
    }
}

/// The command for all unmaps, if they form one run that one command covers. This is how drivers mostly unmap, and it
/// needs no list.
#[inline]
fn only_command<P: Platform, I: Iommu, R: Room + ?Sized>(
    space: &AddressSpace<P, I>,
    revocation: &Revocation<R>,
) -> Option<Invalidation> {
    let run = revocation.only_run()?;
    let command = space.covering(run.range, run.leaf_only);
    (run.unmaps == 1 || matches!(command, Invalidation::Pages { .. })).then_some(command)
}

/// Gives addresses and tables back, if they were invalidated. This is a separate function, so that its iterators are
/// not on the stack during the wait.
#[inline(never)]
fn conclude<P: Platform, I: Iommu, R: Room + ?Sized>(
    space: &AddressSpace<P, I>,
    allocator: &impl IovaAllocator<P>,
    revocation: &mut Revocation<R>,
    invalidated: Result<Proof, QueueError>,
) -> Result<Committed, CommitError> {
    let platform = space.platform();
    // If it fails, the ranges and tables leak: they are quarantined for good (S11).
    let proof = invalidated.inspect_err(|_| revocation.forget())?;
    platform.probe(Step::Enter(Phase::IovaFree));
    match revocation.only_run() {
        _ if R::IS_NONE => allocator.free(platform, revocation.the_run().range, &proof),
        Some(run) => allocator.free(platform, run.range, &proof),
        None => revocation.revoked().for_each(|revoked| allocator.free(platform, revoked.range, &proof)),
    }
    revocation.clear_runs();
    space.release(core::mem::take(&mut revocation.tables), &proof);
    Ok(Committed::Proven(proof))
}

#[inline(never)]
fn tell_each<P: Platform, I: Iommu, R: Room + ?Sized, T: Telling<P, I>>(
    space: &AddressSpace<P, I>,
    revocation: &Revocation<R>,
    act: T,
) -> T::Told {
    act.each(space, &|| revocation.counted().map(|run| space.covering(run.range, run.leaf_only)))
}

#[inline(never)]
fn tell_runs<P: Platform, I: Iommu, R: Room + ?Sized, T: Telling<P, I>>(
    space: &AddressSpace<P, I>,
    revocation: &mut Revocation<R>,
    within_pages: u64,
    act: T,
) -> T::Told {
    let within_pages = within_one_command(within_pages, space.capabilities());
    // Invalidations complete in any order, so the order of the batch no longer matters.
    revocation.sort();
    let count = count_joined(revocation, within_pages);
    if count > BATCH_MAX {
        // Commands of this hardware cover very little, so invalidate the whole domain.
        return act.one(space, Invalidation::Domain(space.id()));
    }
    let revocation = &*revocation;
    act.each(space, &|| {
        let runs = Counted::new(Joined::new(revocation.closed_runs(), within_pages), count);
        runs.map(|run| space.covering(run.range, run.leaf_only))
    })
}

/// The number of commands that the runs take. This is a separate function, so that its iterators are not on the stack
/// during the submission.
#[inline(never)]
fn count_joined<R: Room + ?Sized>(revocation: &Revocation<R>, within_pages: u64) -> usize {
    Joined::new(revocation.closed_runs(), within_pages).count()
}

/// Turns sorted runs into ranges for one command each. Neighbours are joined as far as one command covers them. A run
/// of several mappings is cut into pieces where a command ends, but a single mapping is never cut.
struct Joined<R> {
    runs: R,
    /// The rest of the last run.
    rest: Option<Revoked>,
    within_pages: u64,
}

impl<R: Iterator<Item = Revoked>> Joined<R> {
    const fn new(runs: R, within_pages: u64) -> Self {
        Self { runs, rest: None, within_pages }
    }

    #[inline(always)]
    fn piece(&mut self) -> Option<Revoked> {
        let run = self.rest.take().or_else(|| self.runs.next())?;
        let (first, end) = (run.range.first_pfn(), run.range.end_pfn());
        let piece_end = if run.unmaps == 1 { end } else { end.min((first | (self.within_pages - 1)) + 1) };
        self.rest = IovaRange::new(piece_end, end - piece_end).map(|range| Revoked { range, ..run });
        Some(Revoked { range: IovaRange::of(first, piece_end - first), ..run })
    }

    /// Puts back the piece that was taken last.
    fn put_back(&mut self, piece: Revoked) {
        let end = self.rest.map_or(piece.range, |rest| rest.range).end_pfn();
        let first = piece.range.first_pfn();
        self.rest = Some(Revoked { range: IovaRange::of(first, end - first), ..piece });
    }
}

impl<R: Iterator<Item = Revoked>> Iterator for Joined<R> {
    type Item = Revoked;

    fn next(&mut self) -> Option<Revoked> {
        let mut run = self.piece()?;
        while let Some(next) = self.piece() {
            match join(run, next, self.within_pages) {
                Some(longer) => run = longer,
                None => {
                    self.put_back(next);
                    break;
                }
            }
        }
        Some(run)
    }
}

#[inline(never)]
fn invalidate<P: Platform, I: Iommu>(
    space: &AddressSpace<P, I>,
    commands: &[Invalidation],
    submissions: Submissions,
) -> Result<Proof, QueueError> {
    match submissions {
        Submissions::Alone => space.invalidate(commands),
        Submissions::Shared => space.invalidate_shared(commands),
    }
}

/// The number of pages within which neighbours may share a command. A range beyond what one command covers would
/// invalidate the whole domain.
fn within_one_command(pages: u64, capabilities: &Capabilities) -> u64 {
    capabilities.address_mask_max.map_or(pages, |mask| pages.min(1 << mask))
}

/// The run that joins `run` and `next`, if `next` begins where `run` ends and both lie within an aligned run of
/// `within_pages`.
fn join(run: Revoked, next: Revoked, within_pages: u64) -> Option<Revoked> {
    if run.range.end_pfn() != next.range.first_pfn() {
        return None;
    }
    let range = IovaRange::of(run.range.first_pfn(), run.range.pages() + next.range.pages());
    is_within(range, within_pages).then(|| Revoked {
        range,
        leaf_only: run.leaf_only && next.leaf_only,
        unmaps: run.unmaps + next.unmaps,
        ..run
    })
}

#[cfg(test)]
mod tests {
    use super::super::Due;
    use super::*;
    use alloc::vec::Vec;

    /// A run of several mappings is cut into aligned pieces. A single mapping stays whole, however long it is.
    #[test]
    fn several_mappings_are_cut_where_a_command_ends() {
        let run = Revoked { unmaps: 3, ..Revoked::one(IovaRange::new(6, 11).unwrap(), Due::Invalidation, true) };
        let cut = |run| {
            Joined::new(core::iter::once(run), 8)
                .map(|piece| (piece.range.first_pfn(), piece.range.pages()))
                .collect::<Vec<_>>()
        };
        assert_eq!(cut(run), [(6, 2), (8, 8), (16, 1)]);
        assert_eq!(cut(Revoked { unmaps: 1, ..run }), [(6, 11)]);
    }

    /// A run is invalidated at all levels if any of its unmaps freed a table page.
    #[test]
    fn all_levels_go_if_any_do() {
        let revoked = |first, leaf_only| Revoked::one(IovaRange::new(first, 1).unwrap(), Due::Invalidation, leaf_only);
        for (run, next) in [(true, true), (true, false), (false, true)] {
            let joined = join(revoked(4, run), revoked(5, next), 8).unwrap();
            assert_eq!((joined.range, joined.leaf_only), (IovaRange::new(4, 2).unwrap(), run && next));
        }
    }
}
