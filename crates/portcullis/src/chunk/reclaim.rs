//! Frees table pages of the upper half that have not been needed for a while (S4). They are first removed from the
//! domain's table, then invalidated in the hardware at all levels. Then all software walks that might have found them
//! must end: a mistaken unmap may walk without a mapping that keeps the page.

use super::chunk_source::TABLE_IDLE_US;
use super::leaving::Leaving;
use super::mapper::Chunked;
use super::two_halves::Halves;
use crate::address::{IovaRange, PhysAddr};
use crate::error::CommitError;
use crate::iommu::{COMMANDS_MAX, Iommu};
use crate::mapper::AssembledMapper;
use crate::platform::memory::{push_within, try_reserve};
use crate::platform::{Context, Lock, Phase, Platform, Step};
use crate::table::ENTRIES;
use core::mem;

/// The largest number of table pages that are freed together.
const LEAVING_MAX: usize = COMMANDS_MAX;

impl<P: Platform, I: Iommu> Chunked<P, I> {
    /// Frees the table pages that have been removed and that no CPU walks, and removes the next ones.
    pub(super) fn give_tables_back(&self) -> Result<(), CommitError> {
        let AssembledMapper { allocator: Halves { chunks, .. }, space, .. } = &self.base;
        let platform = space.platform();
        platform.probe(Step::Enter(Phase::Table));
        let Some(walks) = platform.walks_now() else {
            // No table could be freed before the domain is dropped, so there is nothing to look for.
            return Ok(());
        };
        let is_mine = self.reclaim.0.with(|state| !mem::replace(&mut state.is_attended, true));
        if !is_mine {
            // The work of this tick is done by the other CPU if it has not looked yet, and otherwise by the next tick.
            chunks.sweep_due().set_if_none(platform, TABLE_IDLE_US);
            return Ok(());
        }
        // Read before the sweep looks at anything: whatever is unmapped after the sweep has looked schedules the next
        // one.
        let is_left_to_unmaps = self.is_sweep_left_to_unmaps();
        let (gone, is_empty) = self.reclaim.0.with(|state| {
            let gone = state.leaving.take_if(|leaving| leaving.walks_are_over(platform, walks));
            (gone, state.leaving.is_none())
        });
        // SAFETY: the walks are over.
        gone.into_iter().for_each(|leaving| unsafe { leaving.release(&self.base) });
        // In a poisoned domain nothing is invalidated any more.
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
            chunks.sweep_due().set_if_none(platform, TABLE_IDLE_US);
        } else if chunks.is_large() && !is_left_to_unmaps {
            // An unmap that has read that it need not schedule a sweep may be spent after this sweep has looked. So
            // there is one more sweep, after the time in which such unmaps finish. If that finds nothing either, there
            // is none until an unmap asks for one. An unmap that has waited for its invalidation all that time leaves
            // its table until then.
            self.leave_sweep_to_unmaps();
            chunks.sweep_due().set_if_none(platform, TABLE_IDLE_US);
        }
        unlinked
    }

    /// Removes tables that were not needed since the last sweep, and has them invalidated. Returns them, if there were
    /// any.
    #[inline(never)]
    fn unlink_tables(&self) -> Result<Option<Leaving>, CommitError> {
        let AssembledMapper { allocator: Halves { chunks, .. }, space, .. } = &self.base;
        if !chunks.has_superfluous() {
            return Ok(None);
        }
        let Ok(mut tables) = try_reserve(space.platform(), Context::Atomic, LEAVING_MAX) else {
            // They are removed when there is memory for the list.
            return Ok(None);
        };
        while tables.len() < LEAVING_MAX
            && let Some(number) = chunks.unlink()
        {
            // SAFETY: `add_leaf_table` has added it for `Chunks::take`, and nothing is mapped in it; everything that
            // `Leaving` waits for happens before it is freed.
            let page = unsafe { space.remove_leaf_table(chunks.table_pfn(number)) };
            push_within(&mut tables, (page, number));
        }
        if tables.is_empty() {
            return Ok(None);
        }
        let command = |(_, number): &(PhysAddr, u32)| {
            space.covering(IovaRange::of(chunks.table_pfn(*number), ENTRIES as u64), false)
        };
        // If this fails, the pages are lost for good: the hardware may walk them (S4).
        let proof = space.invalidate_each(&|| tables.iter().map(command), false)?;
        // The token is taken after the tables were removed: a walk that begins later does not find them.
        let walks = space.platform().walks_now();
        // SAFETY: the tables were removed above.
        Ok(Some(unsafe { Leaving::new(tables, walks, proof) }))
    }
}

impl<P: Platform, I: Iommu> Drop for Chunked<P, I> {
    fn drop(&mut self) {
        if !self.base.space.has_panicked() {
            self.reclaim.close(&self.base);
        }
    }
}
