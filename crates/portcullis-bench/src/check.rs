//! What must be true of the work that was timed.

use super::BenchError;
use super::tables::Tables;
use super::work::Live;
use portcullis::{Iova, PAGE_SIZE};
use std::collections::HashSet;

/// What a design is held to.
pub(super) struct Checks<'c> {
    /// The tables to look into; none where devices see physical addresses.
    pub(super) tables: Option<Tables>,
    /// Whether an unmap clears the entries, as all do but those that leave it to the next map.
    pub(super) clears: bool,
    /// Whether every commit is a submission: so under strict protection, but for commits of several threads that share one.
    pub(super) submits: bool,
    pub(super) threads: u64,
    /// Ranges that the domain says are handed out.
    pub(super) live_ranges: &'c (dyn Fn() -> usize + Sync),
    /// What is done between samples.
    pub(super) tick: &'c (dyn Fn() -> Result<(), BenchError> + Sync),
}

impl Checks<'_> {
    /// For work that maps nothing.
    pub(super) fn of_nothing(&self) -> Self {
        Self { tables: None, submits: false, ..*self }
    }

    /// Whether what is mapped `now` translates as it should, and nothing of what was mapped `before` the sample and is gone.
    pub(super) fn after_sample(&self, before: &[Live], now: &[Live]) -> Result<(), BenchError> {
        (self.tick)()?;
        let Some(tables) = self.tables else { return Ok(()) };
        for live in now {
            for page in 0..live.pages {
                let (iova, phys) = (live.iova.as_u64() + page * PAGE_SIZE, live.phys.as_u64() + page * PAGE_SIZE);
                let leaf = tables.leaf(Iova::new(iova));
                let right = |leaf: portcullis::table::EntryValue| {
                    leaf.phys().as_u64() == phys && leaf.rights() == live.access.rights()
                };
                if !leaf.is_some_and(right) {
                    return Err(BenchError::Check(format!("{iova:#x} translates to {leaf:?}, not to {phys:#x}")));
                }
            }
        }
        if self.clears { self.gone(tables, before, now) } else { Ok(()) }
    }

    fn gone(&self, tables: Tables, before: &[Live], now: &[Live]) -> Result<(), BenchError> {
        let pages = |live: &Live| (0..live.pages).map(move |page| live.iova.pfn() + page).collect::<Vec<_>>();
        let mapped: HashSet<u64> = now.iter().flat_map(pages).collect();
        for pfn in before.iter().flat_map(pages).filter(|pfn| !mapped.contains(pfn)) {
            if let Some(leaf) = tables.leaf(Iova::from_pfn(pfn)) {
                return Err(BenchError::Check(format!(
                    "{:#x} was unmapped and still translates: {leaf:?}",
                    pfn * PAGE_SIZE
                )));
            }
        }
        Ok(())
    }

    /// Whether nothing is left of what was mapped last, and each commit was submitted.
    pub(super) fn at_end(&self, last: &[Live], submissions: u64, commits: u64) -> Result<(), BenchError> {
        if let Some(tables) = self.tables.filter(|_| self.clears) {
            self.gone(tables, last, &[])?;
        }
        if !self.submits {
            return Ok(());
        }
        // A submission that several threads share serves one commit of each at most. There may be a few more than commits: some
        // designs submit for a map now and then, or for table pages that they give back.
        if submissions > commits + commits / 16 || submissions * self.threads < commits {
            return Err(BenchError::Check(format!("{commits} commits made {submissions} submissions")));
        }
        match (self.live_ranges)() {
            0 => Ok(()),
            left => Err(BenchError::Check(format!("{left} ranges are left when all is unmapped"))),
        }
    }
}
