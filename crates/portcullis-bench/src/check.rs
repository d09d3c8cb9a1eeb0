//! Conditions that the timed work must fulfil.

use super::BenchError;
use super::tables::Tables;
use super::work::Live;
use portcullis::{Iova, PAGE_SIZE};
use std::collections::HashSet;

/// What a design is checked for.
pub(super) struct Checks<'c> {
    /// The tables to check. `None` if devices see physical addresses.
    pub(super) tables: Option<Tables>,
    /// Whether an unmap clears the entries. All designs do so, except those that leave it to the next map.
    pub(super) clears: bool,
    /// Whether every commit makes a submission. This holds under strict protection, except if commits of several
    /// threads share one.
    pub(super) submits: bool,
    /// Whether maps are made beside a batch in flight.
    pub(super) in_halves: bool,
    pub(super) threads: u64,
    /// The number of ranges that are handed out, as the domain reports it.
    pub(super) live_ranges: &'c (dyn Fn() -> usize + Sync),
    /// Called between samples.
    pub(super) tick: &'c (dyn Fn() -> Result<(), BenchError> + Sync),
}

impl Checks<'_> {
    /// The checks for work that maps nothing.
    pub(super) fn of_nothing(&self) -> Self {
        Self { tables: None, submits: false, ..*self }
    }

    /// Checks that the mappings `now` translate as they should, and that mappings of `before` the sample that are gone
    /// do not translate.
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

    /// Checks that the last mappings are gone, and that each commit was submitted.
    pub(super) fn at_end(&self, last: &[Live], submissions: u64, commits: u64) -> Result<(), BenchError> {
        if let Some(tables) = self.tables.filter(|_| self.clears) {
            self.gone(tables, last, &[])?;
        }
        if !self.submits {
            return Ok(());
        }
        // A submission that several threads share serves at most one commit of each. There may be a few more
        // submissions than commits: some designs submit occasionally for a map, or for table pages that they free.
        // While such pages are in flight, each map does so.
        let more = if self.in_halves { commits } else { commits / 16 };
        if submissions > commits + more || submissions * self.threads < commits {
            return Err(BenchError::Check(format!("{commits} commits made {submissions} submissions")));
        }
        match (self.live_ranges)() {
            0 => Ok(()),
            left => Err(BenchError::Check(format!("{left} ranges are left when all is unmapped"))),
        }
    }
}
