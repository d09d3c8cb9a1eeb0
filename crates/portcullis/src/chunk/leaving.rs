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
pub(super) struct LeavingTables<P: Platform>(pub(super) P::Lock<State>);

pub(super) struct State {
    pub(super) leaving: Option<Leaving>,
    /// A CPU is already freeing table pages. Other CPUs need not wait for it.
    pub(super) is_attended: bool,
}

/// Table pages that have been removed and are not freed yet.
pub(super) struct Leaving {
    /// The pages, each with the number of its table.
    tables: Vec<(PhysAddr, u32)>,
    /// The token of the software walks that may still use the pages, once the host has supplied it.
    walks: Option<u64>,
    /// The proof that the hardware has lost the pages.
    proof: Proof,
}

impl<P: Platform> LeavingTables<P> {
    /// No pages are being freed.
    pub(super) fn new(platform: &P) -> Self {
        Self(platform.lock(LockClass::Domain, State { leaving: None, is_attended: false }))
    }

    /// Called when the domain is dropped and no CPU walks its tables any more: frees the remaining pages.
    pub(super) fn close<I: Iommu>(&mut self, base: &AssembledMapper<Halves<P>, P, I>) {
        let leaving = self.0.with(|state| state.leaving.take());
        // SAFETY: the tables are part of a mapper that is borrowed exclusively, so no call of it walks them.
        leaving.into_iter().for_each(|leaving| unsafe { leaving.release(base) });
    }
}

impl Leaving {
    /// Pages that `proof` says the hardware has lost, with the token of the walks that may still use them, if there is
    /// one.
    ///
    /// # Safety
    /// The pages were removed from the domain's table and are not used otherwise.
    pub(super) unsafe fn new(tables: Vec<(PhysAddr, u32)>, walks: Option<u64>, proof: Proof) -> Self {
        Self { tables, walks, proof }
    }

    /// Whether no software walk uses the pages any more. The walks of now are waited for if there is no token yet.
    pub(super) fn walks_are_over(&mut self, platform: &impl Platform, now: u64) -> bool {
        platform.walks_are_over(*self.walks.get_or_insert(now))
    }

    /// Frees the pages and makes their numbers available for new tables.
    ///
    /// # Safety
    /// No software walk uses the pages any more.
    pub(super) unsafe fn release<P: Platform, I: Iommu>(self, base: &AssembledMapper<Halves<P>, P, I>) {
        for (page, _) in &self.tables {
            // SAFETY: `new` has taken the page, and the caller promises that no walk uses it.
            unsafe { base.space.release_leaf_table(*page, &self.proof) };
        }
        self.tables.iter().for_each(|(_, number)| base.allocator.chunks.give_number_back(*number, &self.proof));
    }
}
