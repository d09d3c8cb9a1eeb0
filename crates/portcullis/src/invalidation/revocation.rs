//! What a batch of unmaps leaves to invalidate: runs of pages. Unmaps of neighbouring pages join one run as they are
//! made.

use super::BATCH_MAX;
use super::packed::{Closed, Packed, Room, Slot};
use super::revoked::{Due, Revoked};
use crate::address::IovaRange;
use crate::error::UnmapError;
use crate::sort::sort_by_key;
use crate::space::{NO_TAG, TAG_SHIFT};
use crate::sub_page::Chain;
use crate::table::FreedTables;

/// What a batch of unmaps leaves to invalidate: up to [`BATCH_MAX`] unmaps, or [one](Self::one), which needs no room
/// for more. Everything else is the same for both, and takes them as [`Runs`].
///
/// Dropping it leaks addresses and table pages, which is safe. It should be passed to
/// [`Mapper::commit`](crate::mapper::Mapper::commit) instead.
#[must_use = "addresses and buffers come back only through a commit"]
#[derive(Debug)]
pub struct Revocation<R: ?Sized = [Slot; BATCH_MAX]> {
    /// The last run, from page `first` to before page `end`. The next unmap may extend it, unless it is
    /// [`ALONE`](Self::ALONE). There is no run if both are 0. The run is not packed, because most batches of designs
    /// that join nothing have no other.
    first: u64,
    end: u64,
    /// The tag of the address space that the unmaps belong to, once there is one. The bits below it hold an upper
    /// bound of the room that the unmaps take: two for a long mapping, one for any other. Most unmaps check both with
    /// one comparison.
    owner_and_room: u64,
    pub(crate) tables: FreedTables,
    /// The bounce pages of the unmapped mappings.
    pub(crate) bounced: Chain,
    /// The room taken by unmaps that are not in the last run.
    closed_room: u8,
    /// The number of long mappings.
    long: u8,
    /// For a last run that nothing joins: what is due, and whether its unmap freed no table page.
    due: Due,
    leaf_only: bool,
    /// Whether any run is due for something other than an invalidation now or later.
    is_mixed: bool,
    /// The runs before the last, packed, and room for more.
    closed: Closed<R>,
}

/// A [`Revocation`] with room for any number of unmaps.
pub type Runs = Revocation<[Slot]>;

impl Default for Revocation {
    fn default() -> Self {
        Self::new()
    }
}

impl Revocation {
    /// Makes an empty revocation.
    pub const fn new() -> Self {
        Self::of(NO_TAG)
    }
}

/// A [`Revocation`] of a single unmap.
pub type One = Revocation<[Slot; 0]>;

impl One {
    /// Makes an empty revocation for a single unmap.
    pub const fn one() -> Self {
        Self::of(NO_TAG)
    }

    /// Makes a revocation of a single unmap, which was made in the space `tag`.
    pub(crate) fn of_one(tag: u64, revoked: Revoked) -> Self {
        let mut one = Self::of(tag);
        one.note(revoked);
        one
    }
}

impl<const N: usize> Revocation<[Slot; N]> {
    /// Makes an empty revocation for the space `tag`. The first unmap may be noted without
    /// [`admit`](Self::admit).
    pub(crate) const fn of(tag: u64) -> Self {
        Self {
            first: 0,
            end: 0,
            owner_and_room: tag,
            tables: FreedTables::new(),
            bounced: Chain::EMPTY,
            closed_room: 0,
            long: 0,
            due: Due::Invalidation,
            leaf_only: true,
            is_mixed: false,
            closed: Closed::new(),
        }
    }
}

impl<R: Room + ?Sized> Revocation<R> {
    /// A flag in `end`: the run is a mapping that nothing joins. No page number has this bit.
    const ALONE: u64 = 1 << 63;

    /// Checks that another unmap may be added: one of the space `tag`, of a mapping of `pages` pages.
    ///
    /// # Errors
    /// [`UnmapError::Poisoned`] for the tag of no domain, [`UnmapError::WrongDomain`] while it holds unmaps of another
    /// space, [`UnmapError::BatchFull`].
    #[inline(always)]
    pub fn admit(&mut self, tag: u64, pages: u64) -> Result<(), UnmapError> {
        // It holds unmaps of the same space, and has room for one more.
        let goes_on = (self.owner_and_room ^ tag).wrapping_sub(1) < (self.closed.capacity() as u64).saturating_sub(1);
        if goes_on && pages < Packed::LONG { Ok(()) } else { self.admit_first_or_long(tag, pages) }
    }

    #[cold]
    #[inline(never)]
    fn admit_first_or_long(&mut self, tag: u64, pages: u64) -> Result<(), UnmapError> {
        if tag == NO_TAG {
            return Err(UnmapError::Poisoned);
        }
        if self.is_empty() {
            self.owner_and_room = tag;
        }
        if !self.is_of(tag) {
            return Err(UnmapError::WrongDomain);
        }
        // The first needs no slot, because only the runs before the last are packed.
        let is_full = !self.is_empty() && self.room_taken() + Packed::room(pages) > self.closed.capacity();
        if is_full { Err(UnmapError::BatchFull) } else { Ok(()) }
    }

    /// Adds an admitted unmap.
    #[inline]
    pub(crate) fn note(&mut self, Revoked { range, due, leaf_only, .. }: Revoked) {
        if !R::IS_NONE {
            self.close_run();
        }
        (self.first, self.end) = (range.first_pfn(), range.end_pfn() | Self::ALONE);
        (self.due, self.leaf_only) = (due, leaf_only);
        self.is_mixed |= due != Due::Invalidation;
        // Where there is no room, nothing is packed.
        let room = if R::IS_NONE { 1 } else { Packed::room(range.pages()) };
        self.owner_and_room += room as u64;
        self.long += room as u8 - 1;
    }

    /// Adds an admitted unmap, for a mapper outside of this crate.
    ///
    /// # Safety
    /// The mapper has claimed the mapping for this unmap, and has taken its translations down, or leaves them as its
    /// design declares. Nothing else notes the mapping.
    #[allow(unsafe_code, reason = "addresses come back because of this promise")]
    #[inline]
    pub unsafe fn note_unmap(&mut self, revoked: Revoked) {
        self.note(revoked);
    }

    /// Takes the table pages that the unmaps have freed.
    pub fn take_tables(&mut self) -> FreedTables {
        core::mem::take(&mut self.tables)
    }

    /// Adds an admitted unmap that is due for invalidation and freed no table page. Neighbours in an aligned run of
    /// `WITHIN` pages become one run: their allocator finds by itself which mappings were there.
    #[inline(always)]
    pub(crate) fn join<const WITHIN: u64>(&mut self, range: IovaRange) {
        const { assert!(WITHIN < 1 << (Packed::UNMAPS_SHIFT - Packed::LENGTH_SHIFT)) };
        // Drivers mostly unmap in order, so the next unmap is the neighbour of the last.
        if self.end == range.first_pfn() && !self.end.is_multiple_of(WITHIN) && is_within(range, WITHIN) {
            self.end = range.end_pfn();
            self.owner_and_room += 1;
        } else {
            self.begin_run(range, WITHIN);
        }
    }

    /// Joins an unmap at the front of the run or to the run before it, if it fits there, or begins another run.
    #[cold]
    #[inline(never)]
    fn begin_run(&mut self, range: IovaRange, within: u64) {
        if !is_within(range, within) {
            return self.note(Revoked::one(range, Due::Invalidation, true));
        }
        let is_alone = self.end & Self::ALONE != 0;
        let is_in_front = range.end_pfn() == self.first && !is_alone && !self.first.is_multiple_of(within);
        if is_in_front {
            self.first = range.first_pfn();
        } else if !self.resume_run(range, within) {
            self.close_run();
            (self.first, self.end) = (range.first_pfn(), range.end_pfn());
        }
        self.owner_and_room += 1;
    }

    /// Opens the run before the last again, if `range` is its next neighbour. So unmaps that alternate between two
    /// streams leave two runs: a packet often has its headers in a buffer of another stream than its data.
    fn resume_run(&mut self, range: IovaRange, within: u64) -> bool {
        let Some(before) = self.closed.entries().last().and_then(|packed| packed.joined()) else { return false };
        if before.range.end_pfn() != range.first_pfn() || range.first_pfn().is_multiple_of(within) {
            return false;
        }
        self.closed.truncate(self.closed.entries().len() - 1);
        self.close_run();
        self.closed_room -= before.unmaps as u8;
        (self.first, self.end) = (before.range.first_pfn(), range.end_pfn());
        true
    }

    /// Closes the last run, so that the next unmap begins another.
    #[inline]
    fn close_run(&mut self) {
        if self.end != 0 {
            self.pack_run();
        }
    }

    #[cold]
    #[inline(never)]
    fn pack_run(&mut self) {
        if let Some(run) = self.last_run() {
            self.closed.push(run, self.end & Self::ALONE == 0);
        }
        (self.first, self.end, self.closed_room) = (0, 0, self.room_taken() as u8);
    }

    #[inline]
    fn last_run(&self) -> Option<Revoked> {
        let range = IovaRange::new(self.first, (self.end & !Self::ALONE) - self.first)?;
        if self.end & Self::ALONE != 0 {
            return Some(Revoked::one(range, self.due, self.leaf_only));
        }
        let unmaps = self.room_taken() - usize::from(self.closed_room);
        Some(Revoked { range, due: Due::Invalidation, leaf_only: true, unmaps })
    }

    /// Whether all its unmaps, if it has any, belong to the space `tag`.
    pub fn is_of(&self, tag: u64) -> bool {
        self.is_empty() || self.owner_and_room >> TAG_SHIFT == tag >> TAG_SHIFT
    }

    /// Whether there is nothing to invalidate.
    pub const fn is_empty(&self) -> bool {
        self.room_taken() == 0
    }

    /// Whether it has no room for another unmap. A mapping of 512 MiB or more takes
    /// the room of two, so it may be refused even if a shorter one is not.
    pub fn is_full(&self) -> bool {
        !self.is_empty() && self.room_taken() >= self.closed.capacity()
    }

    /// The number of unmaps in it.
    pub const fn unmaps(&self) -> usize {
        self.room_taken() - self.long as usize
    }

    const fn room_taken(&self) -> usize {
        (self.owner_and_room & ((1 << TAG_SHIFT) - 1)) as usize
    }

    /// The runs that the unmaps left. Neighbours that were unmapped one after the other, or in turn with those of
    /// another run, may have become one run. Runs that nothing joined are in the order of their unmaps.
    #[inline]
    pub fn revoked(&self) -> impl Iterator<Item = Revoked> + Clone {
        Packed::all(self.closed.entries()).chain(self.last_run())
    }

    /// The runs after [`sort`](Self::sort), which packs them all.
    pub(super) fn closed_runs(&self) -> impl Iterator<Item = Revoked> + Clone {
        Packed::all(self.closed.entries())
    }

    /// The runs and their number. No unmap may have joined another, so each run is one unmap.
    pub fn counted(&self) -> impl ExactSizeIterator<Item = Revoked> {
        Counted::new(self.revoked(), self.unmaps())
    }

    /// The run, if there is only one.
    #[inline]
    pub(crate) fn only_run(&self) -> Option<Revoked> {
        if self.closed.is_empty() { self.last_run() } else { None }
    }

    /// The run, if there is only one and unmaps may [join](Self::join) it.
    #[inline(always)]
    pub(crate) fn only_joined_run(&self) -> Option<IovaRange> {
        let is_joined = self.closed.is_empty() && self.end & Self::ALONE == 0;
        if is_joined { IovaRange::new(self.first, self.end - self.first) } else { None }
    }

    /// The run of a batch that has room for no other, and is not empty.
    #[inline(always)]
    pub(super) const fn the_run(&self) -> Revoked {
        debug_assert!(R::IS_NONE && !self.is_empty());
        Revoked::one(IovaRange::of(self.first, (self.end & !Self::ALONE) - self.first), self.due, self.leaf_only)
    }

    /// Whether any run is due for something other than an invalidation now or later.
    pub const fn is_mixed(&self) -> bool {
        self.is_mixed
    }

    /// Sorts the runs by address, unless some of them have their length in the next entry.
    #[inline(never)]
    pub(crate) fn sort(&mut self) {
        self.close_run();
        let closed = self.closed.entries_mut();
        if closed.iter().all(|packed| packed.field(Packed::LENGTH_SHIFT, Packed::KIND_SHIFT) != 0) {
            sort_by_key(closed, |packed| packed.field(0, Packed::LENGTH_SHIFT));
        }
    }

    /// Keeps only the runs that are due for invalidation, now or later.
    pub(crate) fn keep_invalidations(&mut self) {
        if let Some(only) = self.only_run() {
            self.is_mixed = false;
            if only.due != Due::Invalidation {
                self.clear_runs();
            }
            return;
        }
        self.close_run();
        // This works in place, because a second list would take kilobytes of stack.
        let (mut from, mut to, mut room, mut long) = (0, 0, 0, 0);
        loop {
            let Some(run) = Packed::all(&self.closed.entries()[from..]).next() else { break };
            let next = from + if run.unmaps == 1 { Packed::room(run.range.pages()) } else { 1 };
            if run.due == Due::Invalidation {
                let taken = run.unmaps.max(next - from);
                (room, long) = (room + taken, long + taken - run.unmaps);
                self.closed.entries_mut().copy_within(from..next, to);
                to += next - from;
            }
            from = next;
        }
        self.closed.truncate(to);
        self.owner_and_room = self.owner_and_room - self.room_taken() as u64 + room as u64;
        (self.closed_room, self.long, self.is_mixed) = (room as u8, long as u8, false);
    }

    /// Leaks its contents, except the bounce pages: an invalidation has failed (S11).
    pub fn forget(&mut self) {
        self.clear_runs();
        self.tables = FreedTables::new();
    }

    /// Removes the runs.
    pub fn clear_runs(&mut self) {
        self.owner_and_room -= self.room_taken() as u64;
        (self.first, self.end, self.is_mixed) = (0, 0, false);
        if !R::IS_NONE {
            (self.closed_room, self.long) = (0, 0);
            self.closed.truncate(0);
        }
    }
}

/// An iterator over runs that knows how many are left.
pub struct Counted<R> {
    runs: R,
    left: usize,
}

impl<R> Counted<R> {
    /// The iterator, which gives `left` runs.
    pub const fn new(runs: R, left: usize) -> Self {
        Self { runs, left }
    }
}

impl<R: Iterator> Iterator for Counted<R> {
    type Item = R::Item;

    #[inline]
    fn next(&mut self) -> Option<R::Item> {
        self.left = self.left.saturating_sub(1);
        self.runs.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<R: Iterator> ExactSizeIterator for Counted<R> {}

/// Whether all of `range` lies in one aligned run of `within` pages, a power of two.
#[inline(always)]
pub(super) const fn is_within(range: IovaRange, within: u64) -> bool {
    // Two page numbers lie in the same aligned run of 2^n pages exactly if their XOR is below 2^n.
    range.first_pfn() ^ (range.end_pfn() - 1) < within
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const TAG: u64 = 7 << TAG_SHIFT;

    fn page(first: u64) -> IovaRange {
        IovaRange::new(first, 1).expect("a page")
    }

    fn any_revoked() -> impl Strategy<Value = Revoked> {
        let due = prop_oneof![
            Just(Due::Invalidation),
            Just(Due::InvalidationAtOnce),
            Just(Due::Nothing),
            Just(Due::StaysMapped)
        ];
        let pages = prop_oneof![1..100u64, Packed::LONG - 2..Packed::LONG + 2, Just(1 << 35)];
        (0..1u64 << 35, pages, due, any::<bool>()).prop_map(|(first, pages, due, leaf_only)| {
            // Where nothing is due, the flag means nothing, and its bit tells the reason.
            let leaf_only = (leaf_only || due == Due::Nothing) && due != Due::StaysMapped;
            Revoked::one(IovaRange::new(first, pages).expect("a range"), due, leaf_only)
        })
    }

    #[test]
    fn what_is_kept_is_counted_by_its_unmaps() {
        let mut revocation = Revocation::new();
        for first in 8..12 {
            revocation.admit(TAG, 1).expect("room");
            revocation.join::<64>(page(first));
        }
        revocation.admit(TAG, 1).expect("room");
        revocation.note(Revoked::one(page(100), Due::InvalidationAtOnce, true));
        revocation.keep_invalidations();
        assert_eq!((revocation.unmaps(), revocation.revoked().count()), (4, 1));
    }

    proptest! {
        /// Unmaps come back as they were noted, in order and at any length. Unmaps that find no room are refused
        /// first.
        #[test]
        fn runs_come_back_as_they_were_noted(all in prop::collection::vec(any_revoked(), 0..100)) {
            let (mut revocation, mut noted) = (Revocation::new(), Vec::new());
            for revoked in all {
                match revocation.admit(TAG, revoked.range.pages()) {
                    Ok(()) => {
                        revocation.note(revoked);
                        noted.push(revoked);
                    }
                    Err(error) => {
                        prop_assert_eq!(error, UnmapError::BatchFull);
                        prop_assert!(noted.len() >= BATCH_MAX / 2);
                    }
                }
            }
            prop_assert!(revocation.revoked().eq(noted.iter().copied()));
            prop_assert_eq!(revocation.unmaps(), noted.len());
            revocation.sort();
            if noted.iter().all(|revoked| revoked.range.pages() < Packed::LONG) {
                noted.sort_by_key(|revoked| revoked.range.first_pfn());
                prop_assert!(revocation.revoked().map(|revoked| revoked.range.first_pfn()).is_sorted());
            }
            prop_assert!(revocation.revoked().all(|revoked| noted.contains(&revoked)));
            prop_assert_eq!(revocation.revoked().count(), noted.len());
        }

        /// The same pages are in it, joined or not. A run stays within its aligned pages, and unmaps in order form
        /// one run.
        #[test]
        fn neighbours_join(firsts in prop::collection::vec(1..200u64, 1..BATCH_MAX), in_order in any::<bool>(), reversed in any::<bool>()) {
            let mut firsts = firsts;
            firsts.sort_unstable();
            firsts.dedup();
            if in_order {
                firsts = (firsts[0]..firsts[0] + firsts.len() as u64).collect();
            }
            if reversed {
                firsts.reverse();
            }
            let mut revocation = Revocation::new();
            for first in &firsts {
                revocation.admit(TAG, 1).expect("room");
                revocation.join::<64>(IovaRange::new(*first, 1).expect("a page"));
            }
            let mut runs: Vec<_> = revocation.revoked().map(|revoked| revoked.range).collect();
            if reversed {
                runs.reverse();
                firsts.reverse();
            }
            let pages: Vec<u64> = runs.iter().flat_map(|run| run.first_pfn()..run.end_pfn()).collect();
            prop_assert_eq!(&pages, &firsts);
            prop_assert!(revocation.revoked().all(|revoked| revoked.unmaps as u64 == revoked.range.pages()));
            prop_assert!(runs.iter().all(|run| run.first_pfn() / 64 == (run.end_pfn() - 1) / 64));
            let gaps = |pair: &[u64]| pair[0] + 1 != pair[1] || pair[1].is_multiple_of(64);
            prop_assert_eq!(runs.len(), 1 + firsts.windows(2).filter(|pair| gaps(pair)).count());
            prop_assert_eq!(revocation.only_run().is_some(), runs.len() == 1);
            prop_assert_eq!(revocation.only_joined_run(), (runs.len() == 1).then_some(runs[0]));
            // A mapping noted by itself is joined to nothing, neither behind it nor in front.
            let (last, alone) = (runs[runs.len() - 1].end_pfn(), revocation.revoked().count());
            revocation.admit(TAG, 1).expect("room");
            revocation.note(Revoked::one(IovaRange::new(last + 64, 1).expect("a page"), Due::Invalidation, true));
            prop_assert_eq!(revocation.only_joined_run(), None);
            if revocation.admit(TAG, 1).is_ok() {
                revocation.join::<64>(IovaRange::new(last + 65, 1).expect("a page"));
                prop_assert_eq!(revocation.revoked().count(), alone + 2);
            }
        }
    }

    proptest! {
        /// Two streams leave two runs, however their unmaps alternate. Where one comes to other aligned pages, the
        /// other may begin a run too.
        #[test]
        fn two_streams_leave_two_runs(firsts in (1..200u64, 1000..1200u64), turns in prop::collection::vec(any::<bool>(), 1..BATCH_MAX)) {
            let starts = [firsts.0, firsts.1];
            let (mut ends, mut revocation) = (starts, Revocation::new());
            for second in turns.iter().map(|second| usize::from(*second)) {
                revocation.admit(TAG, 1).expect("room");
                revocation.join::<64>(page(ends[second]));
                ends[second] += 1;
            }
            let crossings: u64 = starts.iter().zip(ends).map(|(start, end)| end.saturating_sub(1).max(*start) / 64 - start / 64).sum();
            let runs: Vec<_> = revocation.revoked().collect();
            prop_assert!(runs.len() as u64 <= 2 + 2 * crossings, "{:?}", runs);
            prop_assert_eq!(revocation.unmaps(), turns.len());
            prop_assert!(runs.iter().all(|run| run.unmaps as u64 == run.range.pages()));
            prop_assert!(runs.iter().all(|run| run.range.first_pfn() / 64 == (run.range.end_pfn() - 1) / 64));
            let mut pages: Vec<u64> = runs.iter().flat_map(|run| run.range.first_pfn()..run.range.end_pfn()).collect();
            pages.sort_unstable();
            prop_assert!(pages.into_iter().eq((starts[0]..ends[0]).chain(starts[1]..ends[1])));
        }
    }

    /// Two streams that take strict turns leave a run for each of their aligned pages, and none more.
    #[test]
    fn streams_that_take_turns() {
        let mut revocation = Revocation::new();
        for turn in 0..BATCH_MAX as u64 / 2 {
            for first in [40 + turn, 1000 + turn] {
                revocation.admit(TAG, 1).expect("room");
                revocation.join::<64>(page(first));
            }
        }
        let runs: Vec<_> = revocation.revoked().map(|revoked| (revoked.range.first_pfn(), revoked.unmaps)).collect();
        assert_eq!(runs.iter().map(|run| run.1).sum::<usize>(), BATCH_MAX);
        assert_eq!(runs.len(), 4, "{runs:?}");
    }

    /// A mapping by itself is not taken for a run that others may join, nor is the length of a long one.
    #[test]
    fn nothing_joins_a_mapping_by_itself() {
        let mut revocation = Revocation::new();
        let mut note = |range: IovaRange, joins: bool| {
            revocation.admit(TAG, range.pages()).expect("room");
            match joins {
                true => revocation.join::<64>(range),
                false => revocation.note(Revoked::one(range, Due::Invalidation, true)),
            }
            revocation.revoked().count()
        };
        assert_eq!([note(page(1), false), note(page(64), true), note(page(2), true)], [1, 2, 3]);
        // Behind a long mapping stands a run that others may still join, and behind a run a long mapping.
        let long = IovaRange::new(1 << 20, Packed::LONG).expect("a range");
        assert_eq!([note(page(130), true), note(long, false), note(page(131), true)], [4, 5, 5]);
        assert_eq!([note(page(192), true), note(page(132), true)], [6, 6]);
        assert_eq!(revocation.unmaps(), 8);
    }

    /// C and kernels keep batches on small stacks.
    #[test]
    fn a_batch_is_small() {
        assert!(size_of::<Revocation>() + size_of::<usize>() <= 512, "{}", size_of::<Revocation>());
    }
}
