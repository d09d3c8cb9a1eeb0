//! Translations that the fake has cached.

use super::DomainId;
use crate::entry::EntryValue;
use core::ops::RangeInclusive;
use std::boxed::Box;
use std::collections::BTreeMap;
use std::vec::Vec;

/// The number of pages in a group. Neighboring pages are mostly used together.
const GROUP_PAGES: u64 = 64;

type Group = Box<[Option<EntryValue>; GROUP_PAGES as usize]>;

/// The translations that devices have used, including absent ones. For speed the key is a single number: the domain in
/// the upper bits, the group of pages in the lower.
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
        let group = self.0.entry(key(domain, pfn)).or_insert_with(|| Box::new([None; GROUP_PAGES as usize]));
        group[(pfn % GROUP_PAGES) as usize] = Some(entry);
    }

    /// All translations of a domain.
    pub(super) fn of_domain(&self, domain: DomainId) -> impl Iterator<Item = (u64, EntryValue)> + '_ {
        let groups = self.0.range(key(domain, 0)..=key(domain, u64::MAX));
        groups.flat_map(|(&number, group)| {
            // The cast drops the domain.
            let first = (number as u64) * GROUP_PAGES;
            group.iter().enumerate().filter_map(move |(at, entry)| entry.map(|entry| (first + at as u64, entry)))
        })
    }

    /// Drops the translations of these pages.
    pub(super) fn forget(&mut self, domain: DomainId, pages: RangeInclusive<u64>) {
        let groups = key(domain, *pages.start())..=key(domain, *pages.end());
        let mut empty = Vec::new();
        for (&number, group) in self.0.range_mut(groups) {
            // The cast drops the domain.
            let first = (number as u64) * GROUP_PAGES;
            for (at, entry) in group.iter_mut().enumerate() {
                if pages.contains(&(first + at as u64)) {
                    *entry = None;
                }
            }
            if group.iter().all(Option::is_none) {
                empty.push(number);
            }
        }
        for number in empty {
            self.0.remove(&number);
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: DomainId = DomainId(7);

    fn cached(pages: &[u64]) -> Cached {
        let mut cached = Cached::default();
        for domain in [6, 7, 8].map(DomainId) {
            pages.iter().for_each(|pfn| cached.insert(domain, *pfn, EntryValue::ABSENT));
        }
        cached
    }

    fn left(cached: &Cached, domain: DomainId, pages: &[u64]) -> Vec<u64> {
        pages.iter().copied().filter(|pfn| cached.get(domain, *pfn).is_some()).collect()
    }

    /// Pages in the same group, in the next group, and in the domains before and after stay cached. Absent entries are
    /// dropped like all others.
    #[test]
    fn only_the_named_pages_are_forgotten() {
        let pages = [0, 1, 62, 63, 64, 65, 127, 128];
        for (forgotten, stay) in [
            (1..=1, vec![0, 62, 63, 64, 65, 127, 128]),
            (63..=64, vec![0, 1, 62, 65, 127, 128]),
            (64..=127, vec![0, 1, 62, 63, 128]),
            (2..=61, pages.to_vec()),
            (0..=u64::MAX, vec![]),
        ] {
            let mut cached = cached(&pages);
            cached.forget(DOMAIN, forgotten.clone());
            assert_eq!(left(&cached, DOMAIN, &pages), stay, "{forgotten:?}");
            for other in [6, 8].map(DomainId) {
                assert_eq!(left(&cached, other, &pages), pages, "{forgotten:?}");
            }
        }
    }
}
