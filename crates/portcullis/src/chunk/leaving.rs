//! Table pages of the upper half that have been removed from the domain's table and are not freed yet. `reclaim.rs`
//! removes them, and releases them when they can no longer be walked.

use super::two_halves::Halves;
use crate::address::PhysAddr;
use crate::iommu::Iommu;
use crate::mapper::AssembledMapper;
use crate::platform::{Lock, LockClass, Platform};
use crate::proof::Proof;
use alloc::vec::Vec;

/// The table pages that are being freed.
pub(super) struct Reclaim<P: Platform>(pub(super) P::Lock<State>);

pub(super) struct State {
    pub(super) leaving: Option<Leaving>,
    /// A CPU is already freeing table pages. Other CPUs need not wait for it.
    pub(super) is_attended: bool,
}

/// Table pages that have been removed and are not freed yet. Only `unlink_tables` makes it.
pub(super) struct Leaving {
    /// The pages, each with the number of its table.
    pub(super) tables: Vec<(PhysAddr, u32)>,
    /// The token of the software walks that may still use the pages, once the host has supplied it.
    pub(super) walks: Option<u64>,
    /// The proof that the hardware has lost the pages.
    pub(super) proof: Proof,
}

impl<P: Platform> Reclaim<P> {
    /// No pages are being freed.
    pub(super) fn new(platform: &P) -> Self {
        Self(platform.lock(LockClass::Domain, State { leaving: None, is_attended: false }))
    }

    /// Called when the domain is dropped and no CPU walks its tables any more: frees the remaining pages.
    pub(super) fn close<I: Iommu>(&mut self, base: &AssembledMapper<Halves<P>, P, I>) {
        self.0.with(|state| state.leaving.take()).into_iter().for_each(|leaving| leaving.release(base));
    }
}

impl Leaving {
    /// Frees the pages and makes their numbers available for new tables.
    pub(super) fn release<P: Platform, I: Iommu>(self, base: &AssembledMapper<Halves<P>, P, I>) {
        for (page, _) in &self.tables {
            // SAFETY: the page is from `unlink_tables`, and the walks that might have used it have ended.
            unsafe { base.space.release_leaf_table(*page, &self.proof) };
        }
        self.tables.iter().for_each(|(_, number)| base.allocator.chunks.give_number_back(*number, &self.proof));
    }
}
