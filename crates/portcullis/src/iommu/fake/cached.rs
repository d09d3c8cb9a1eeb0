//! Translations that the fake has cached.

use super::DomainId;
use crate::entry::EntryValue;
use core::ops::RangeInclusive;
use std::boxed::Box;
use std::collections::BTreeMap;
use std::vec::Vec;

/// Pages whose translations lie side by side: neighbours are mostly used together.
const GROUP_PAGES: u64 = 64;

type Group = Box<[Option<EntryValue>; GROUP_PAGES as usize]>;

/// The translations that devices have used, absent ones among them: by domain and group of pages, one number, for it is looked
/// up at every access.
#[derive(Debug, Default)]
pub(super) struct Cached(BTreeMap<u128, Group>);

fn key(domain: DomainId, pfn: u64) -> u128 {
    u128::from(domain.0) << 64 | u128::from(pfn / GROUP_PAGES)
}

impl Cached {
    pub(super) fn get(&self, domain: DomainId, pfn: u64) -> Option<EntryValue> {
        self.0.get(&key(domain, pfn))?[(pfn % GROUP_PAGES) as usize]
    }

    pub(super) fn insert(&mut self, domain: DomainId, pfn: u64, entry: EntryValue) {
        let group = self.0.entry(key(domain, pfn)).or_insert_with(|| Box::new([None; _]));
        group[(pfn % GROUP_PAGES) as usize] = Some(entry);
    }

    /// Drops the translations of these pages.
    pub(super) fn forget(&mut self, domain: DomainId, pages: RangeInclusive<u64>) {
        let groups = key(domain, *pages.start())..=key(domain, *pages.end());
        let mut empty = Vec::new();
        for (&key, group) in self.0.range_mut(groups) {
            let first = (key as u64) * GROUP_PAGES;
            for (pfn, entry) in (first..).zip(group.iter_mut()) {
                if pages.contains(&pfn) {
                    *entry = None;
                }
            }
            if group.iter().all(Option::is_none) {
                empty.push(key);
            }
        }
        for key in empty {
            self.0.remove(&key);
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
