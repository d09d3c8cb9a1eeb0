//! Unmaps of a part of a mapping. VFIO removes what it has mapped in pieces, which end the mapping when they add up; a
//! driver that unmaps fewer pages than it has mapped leaves the rest mapped.

use super::payload::LOOKED_AT_MAX;
use super::{Grouper, Owner, Waiting};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;

/// What was unmapped of each mapping that is still live, by its first piece.
#[derive(Default)]
pub(super) struct Parts(FxHashMap<u32, Unmapped>);

impl Parts {
    /// The mapping with this first piece has ended.
    pub(super) fn forget(&mut self, first: u32) {
        self.0.remove(&first);
    }
}

/// What was unmapped of one mapping.
#[derive(Default)]
struct Unmapped {
    /// Separate runs of pages, each with its end.
    runs: BTreeMap<u64, u64>,
    pages: u64,
    unmaps: u64,
}

impl Unmapped {
    /// Adds a run. Pages that were unmapped before count once.
    fn add(&mut self, Range { mut start, mut end }: Range<u64>) {
        self.unmaps += 1;
        while let Some((&from, &to)) = self.runs.range(..=end).next_back().filter(|(_, to)| **to >= start) {
            self.runs.remove(&from);
            self.pages -= to - from;
            (start, end) = (start.min(from), end.max(to));
        }
        self.runs.insert(start, end);
        self.pages += end - start;
    }
}

/// An unmap of a part of a mapping.
pub(super) struct Part {
    pub(super) owner: Owner,
    /// The pages of the mapping.
    pub(super) run: Range<u64>,
    /// How many of them are still mapped.
    pub(super) rest: u64,
}

impl Grouper {
    /// Records an unmap of a part of a live mapping, which is that of `owner` if it is known. Otherwise it is one that
    /// the same task has mapped, or another that no device has claimed: the unmaps of VFIO are of such. If only one
    /// device has claimed any, it may be that device's. `None` if no such mapping holds these pages.
    pub(super) fn part(&mut self, unmap: &Waiting, owner: Option<Owner>) -> Option<Part> {
        let pages = unmap.iova_pfn..unmap.iova_pfn + unmap.pages;
        let before = self.live.range(..=(unmap.iova_pfn, Owner::Device(u16::MAX))).rev().take(LOOKED_AT_MAX);
        let holders = before.filter_map(|(&(start, holder), &first)| {
            let run = start..start + u64::from(self.pieces[first as usize].pages);
            let rank = match (owner, holder) {
                (Some(owner), holder) if owner == holder => 0,
                (None, holder) if holder == Owner::Context(unmap.context) => 0,
                (None, Owner::Context(_)) => 1,
                (None, Owner::Device(_)) if self.devices.len() == 1 => 2,
                _ => return None,
            };
            (run.end >= pages.end).then_some((rank, holder, first, run))
        });
        let (_, owner, first, run) = holders.min_by_key(|(rank, ..)| *rank)?;
        let unmapped = self.parts.0.entry(first).or_default();
        unmapped.add(pages);
        let rest = (run.end - run.start) - unmapped.pages;
        Some(Part { owner, run, rest })
    }

    /// How many unmaps took a part of a mapping whose rest stayed.
    pub(super) fn partial_unmaps(&self) -> u64 {
        self.parts.0.values().map(|unmapped| unmapped.unmaps).sum()
    }
}
