//! Table pages of the upper half that have not been needed for a while go back to the host: out of the table, out of the hardware
//! at all levels, out of reach of wrong unmaps, which walk without a mapping to keep the page there, and only then (S4).

use super::chunks::TABLE_IDLE_US;
use super::halves::Halves;
use super::mapper::Chunked;
use crate::address::{IovaRange, PhysAddr};
use crate::design::AssembledMapper;
use crate::error::CommitError;
use crate::iommu::{COMMANDS_MAX, Iommu};
use crate::platform::memory::{push_within, try_reserve};
use crate::platform::{Context, Lock, LockClass, Phase, Platform, Step};
use crate::proof::Proof;
use crate::table::ENTRIES;
use alloc::vec::Vec;
use core::mem;

/// Table pages that go back together at most.
const LEAVING_MAX: usize = COMMANDS_MAX;

/// What is on its way to the host.
pub(super) struct Reclaim<P: Platform>(P::Lock<State>);

struct State {
    leaving: Option<Leaving>,
    /// A CPU sees to it. Another need not wait for it.
    is_attended: bool,
}

/// Table pages on their way to the host.
struct Leaving {
    /// Each with its number.
    tables: Vec<(PhysAddr, u32)>,
    /// The walks of software that may still be at them, once the host has named them.
    walks: Option<u64>,
    /// That the hardware has lost them.
    proof: Proof,
}

impl<P: Platform> Reclaim<P> {
    /// Nothing is on its way.
    pub(super) fn new(platform: &P) -> Self {
        Self(platform.lock(LockClass::Domain, State { leaving: None, is_attended: false }))
    }

    /// The domain goes, and no CPU walks its tables any more: gives back what is on its way.
    pub(super) fn close<I: Iommu>(&mut self, base: &AssembledMapper<Halves<P>, P, I>) {
        self.0.with(|state| state.leaving.take()).into_iter().for_each(|leaving| leaving.release(base));
    }
}

impl<P: Platform, I: Iommu> Chunked<P, I> {
    /// Gives back the table pages that have left and that no CPU walks, and picks those that leave next.
    pub(super) fn give_tables_back(&self) -> Result<(), CommitError> {
        let AssembledMapper { allocator: Halves { chunks, .. }, space, .. } = &self.base;
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Table));
        let Some(walks) = platform.walks_now() else {
            // No table could go before the domain does, so there is nothing to look for.
            return Ok(());
        };
        let is_mine = self.reclaim.0.with(|state| !mem::replace(&mut state.is_attended, true));
        if !is_mine {
            // What this tick was due for is the other's, if it has not looked yet, and otherwise the next one's.
            chunks.sweep_due.set_if_none(platform, TABLE_IDLE_US);
            return Ok(());
        }
        // Before the sweep looks at anything: what is unmapped after it has looked schedules the next.
        let is_left_to_unmaps = self.is_sweep_left_to_unmaps();
        let (gone, is_empty) = self.reclaim.0.with(|state| {
            let gone = state.leaving.take_if(|leaving| platform.walks_are_over(*leaving.walks.get_or_insert(walks)));
            (gone, state.leaving.is_none())
        });
        gone.into_iter().for_each(|leaving| leaving.release(&self.base));
        // In a poisoned domain nothing leaves the hardware any more.
        let unlinked = if is_empty && !space.is_poisoned() { self.unlink_tables() } else { Ok(None) };
        chunks.sweep(platform);
        let (unlinked, leaving) = match unlinked {
            Ok(leaving) => (Ok(()), leaving),
            Err(error) => (Err(error), None),
        };
        let leaves = self.reclaim.0.with(|state| {
            state.is_attended = false;
            state.leaving = leaving.or(state.leaving.take());
            state.leaving.is_some()
        });
        if leaves || chunks.has_superfluous() && !space.is_poisoned() {
            chunks.sweep_due.set_if_none(platform, TABLE_IDLE_US);
        } else if chunks.is_large() && !is_left_to_unmaps {
            // An unmap that has read that it need not schedule a sweep may be spent after this one has looked: so one more, by when
            // such unmaps are over. If that finds nothing either, there will be none until an unmap asks for it. One that has waited
            // for its invalidation all that time leaves its table until then.
            self.leave_sweep_to_unmaps();
            chunks.sweep_due.set_if_none(platform, TABLE_IDLE_US);
        }
        unlinked
    }

    /// Takes tables out that were not needed since the last sweep: those that have left the hardware, if there were any.
    #[inline(never)]
    fn unlink_tables(&self) -> Result<Option<Leaving>, CommitError> {
        let AssembledMapper { allocator: Halves { chunks, .. }, space, .. } = &self.base;
        if !chunks.has_superfluous() {
            return Ok(None);
        }
        let Ok(mut tables) = try_reserve(space.platform(), Context::Atomic, LEAVING_MAX) else {
            // They leave when there is memory for a list of them.
            return Ok(None);
        };
        while tables.len() < LEAVING_MAX
            && let Some(number) = chunks.unlink()
        {
            // SAFETY: `add_leaf_table` has added it for `Chunks::take`, and nothing is mapped in it; what `Leaving` waits for
            // comes before it is freed.
            let page = unsafe { space.remove_leaf_table(chunks.table_pfn(number)) };
            push_within(&mut tables, (page, number));
        }
        if tables.is_empty() {
            return Ok(None);
        }
        let command = |(_, number): &(PhysAddr, u32)| {
            space.covering(IovaRange::of(chunks.table_pfn(*number), ENTRIES as u64), false)
        };
        // Where it fails the pages are lost for good: the hardware may walk them (S4).
        let proof = space.invalidate_each(&|| tables.iter().map(command), false)?;
        // Named after they were taken out: a walk that begins later does not find them.
        let walks = space.platform().walks_now();
        Ok(Some(Leaving { tables, walks, proof }))
    }
}

impl<P: Platform, I: Iommu> Drop for Chunked<P, I> {
    fn drop(&mut self) {
        if !self.base.space.has_panicked() {
            self.reclaim.close(&self.base);
        }
    }
}

impl Leaving {
    /// Gives the pages back to the host, and their numbers to the tables that come.
    fn release<P: Platform, I: Iommu>(self, base: &AssembledMapper<Halves<P>, P, I>) {
        for (page, _) in &self.tables {
            // SAFETY: from `unlink_tables`, and the walks that might have been at it are over.
            unsafe { base.space.release_leaf_table(*page, &self.proof) };
        }
        self.tables.iter().for_each(|(_, number)| base.allocator.chunks.give_number_back(*number, &self.proof));
    }
}
