//! A log of the pages that an IOTLB was asked for, in order. From it follows how many misses another replacement
//! policy would have had.
//!
//! The optimal policy, OPT, evicts the page whose next request is furthest away (Belady, 1966). It knows the future,
//! so hardware cannot implement it. It is the bound with which Amit et al. (2010) compare their hints. All entries
//! are 4 KiB pages. An invalidated entry is gone under either policy.

use crate::cache::{Cache, Replacement};
use crate::prefetch::{Covered, Page};
use rustc_hash::FxHashMap;

/// The policy by which a full set evicts an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Eviction {
    /// Evicts the page that was requested longest ago.
    LeastRecent,
    /// Evicts the page whose next request is furthest away, or a page that is not requested again before its
    /// invalidation.
    Optimal,
}

/// An event of the log.
#[derive(Clone, Copy, Debug)]
enum Event {
    Asked(Page),
    Invalidated(Covered),
}

/// The log.
#[derive(Clone, Debug, Default)]
pub struct IotlbLog(Vec<Event>);

/// The page is not requested again before its invalidation.
const NEVER: usize = usize::MAX;

impl IotlbLog {
    /// Logs a request for a page. Consecutive requests for one page count as one request.
    pub(crate) fn asked(&mut self, page: Page) {
        if !matches!(self.0.last(), Some(Event::Asked(last)) if *last == page) {
            self.0.push(Event::Asked(page));
        }
    }

    /// Logs an invalidation when it takes effect.
    pub(crate) fn invalidated(&mut self, covered: Covered) {
        self.0.push(Event::Invalidated(covered));
    }

    /// The number of misses of an IOTLB of `entries` in sets of `ways` (0: fully associative) that holds a page as
    /// soon as it is requested.
    pub fn misses(&self, entries: usize, ways: usize, eviction: Eviction) -> u64 {
        let ways = if ways == 0 { entries } else { ways.min(entries) };
        let sets = entries.checked_div(ways).unwrap_or(0);
        if sets == 0 {
            return self.0.iter().filter(|event| matches!(event, Event::Asked(_))).count() as u64;
        }
        match eviction {
            Eviction::LeastRecent => self.least_recent(Cache::new(entries, ways, Replacement::Lru)),
            Eviction::Optimal => self.optimal(sets, ways),
        }
    }

    fn least_recent(&self, mut held: Cache<()>) -> u64 {
        let mut misses = 0;
        for event in &self.0 {
            match event {
                Event::Asked(page) if held.get(page.key()).is_some() => {}
                Event::Asked(page) => {
                    misses += 1;
                    held.insert(page.key(), ());
                }
                Event::Invalidated(covered) => held.remove_where(|key| covered.contains(Page::of_key(key))),
            }
        }
        misses
    }

    fn optimal(&self, sets: usize, ways: usize) -> u64 {
        let next = self.next_asked();
        // Each page with the index of the event that requests it again.
        let mut held: Vec<Vec<(Page, usize)>> = vec![Vec::with_capacity(ways); sets];
        let mut misses = 0;
        for (event, next) in self.0.iter().zip(next) {
            match event {
                Event::Asked(page) => {
                    let set = &mut held[(page.key() % sets as u64) as usize];
                    if let Some((_, again)) = set.iter_mut().find(|(held, _)| held == page) {
                        *again = next;
                        continue;
                    }
                    misses += 1;
                    if set.len() == ways
                        && let Some(last) = (0..ways).max_by_key(|at| set[*at].1)
                    {
                        set.swap_remove(last);
                    }
                    set.push((*page, next));
                }
                Event::Invalidated(covered) => {
                    held.iter_mut().for_each(|set| set.retain(|(page, _)| !covered.contains(*page)));
                }
            }
        }
        misses
    }

    /// For each request, the index of the next request for the same page, or [`NEVER`] if an invalidation of the page
    /// comes first.
    fn next_asked(&self) -> Vec<usize> {
        let mut next = vec![NEVER; self.0.len()];
        let mut asked: FxHashMap<u64, usize> = FxHashMap::default();
        for (at, event) in self.0.iter().enumerate().rev() {
            match event {
                Event::Asked(page) => next[at] = asked.insert(page.key(), at).unwrap_or(NEVER),
                Event::Invalidated(covered) => {
                    if !covered.each(asked.len(), |page| _ = asked.remove(&page.key())) {
                        asked.retain(|key, _| !covered.contains(Page::of_key(*key)));
                    }
                }
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page(pfn: u64) -> Page {
        Page { domain: 1, pfn }
    }

    fn log(text: &str) -> IotlbLog {
        let mut log = IotlbLog::default();
        for letter in text.bytes() {
            match letter {
                b'a'..=b'z' => log.asked(page(letter.into())),
                b'A'..=b'Z' => {
                    let pfn = letter.to_ascii_lowercase().into();
                    log.invalidated(Covered { domain: Some(1), pages: Some((pfn, pfn)) });
                }
                _ => log.invalidated(Covered { domain: Some(1), pages: None }),
            }
        }
        log
    }

    #[test]
    fn the_page_that_is_wanted_last_goes() {
        let misses = |text, eviction| log(text).misses(2, 0, eviction);
        // A loop over one page more than fits: LRU always misses, and every second of OPT's later requests hits.
        assert_eq!([Eviction::LeastRecent, Eviction::Optimal].map(|one| misses("abcabcabc", one)), [9, 6]);
        // A page that is invalidated before its next request is evicted first, and does not hit.
        assert_eq!([Eviction::LeastRecent, Eviction::Optimal].map(|one| misses("abcbAab", one)), [4, 4]);
        assert_eq!(misses("aaa-a", Eviction::Optimal), 2, "one page, and all of it is invalidated");
        assert_eq!(log("aba").misses(0, 0, Eviction::Optimal), 3);
    }

    /// The fewest misses that any choice of evictions allows.
    fn fewest(events: &[Event], held: &mut Vec<Page>, ways: usize) -> u64 {
        let Some((event, rest)) = events.split_first() else { return 0 };
        let before = held.clone();
        let misses = match event {
            Event::Invalidated(covered) => {
                held.retain(|page| !covered.contains(*page));
                fewest(rest, held, ways)
            }
            Event::Asked(page) if held.contains(page) => fewest(rest, held, ways),
            Event::Asked(page) => {
                let places = if held.len() < ways { 0..1 } else { 0..held.len() };
                let try_place = |place: usize| {
                    let mut held = before.clone();
                    if held.len() == ways {
                        held.remove(place);
                    }
                    held.push(*page);
                    1 + fewest(rest, &mut held, ways)
                };
                places.map(try_place).min().expect("a place")
            }
        };
        *held = before;
        misses
    }

    proptest! {
        #[test]
        fn no_choice_misses_less_than_the_best(text in "[a-dA-D-]{1,12}", ways in 1usize..4, sets in 1usize..3) {
            let log = log(&text);
            let best = log.misses(sets * ways, ways, Eviction::Optimal);
            // Each set separately, as if there were no other set.
            let of_set = |set: usize| {
                let is_here = |event: &Event| match event {
                    Event::Asked(page) => page.key() % sets as u64 == set as u64,
                    Event::Invalidated(_) => true,
                };
                let events: Vec<Event> = log.0.iter().copied().filter(is_here).collect();
                fewest(&events, &mut Vec::new(), ways)
            };
            prop_assert_eq!(best, (0..sets).map(of_set).sum::<u64>());
            prop_assert!(best <= log.misses(sets * ways, ways, Eviction::LeastRecent));
        }
    }
}
