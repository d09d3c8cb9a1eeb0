//! Pages that stay mapped between their mappings: a page pool, found by physical page.
//!
//! The pool has [`PARTS`] parts, each with a lock, a hash table and a list of the pages that are not in use. A page
//! belongs to the part that its number hashes to, so CPUs that work on different pages rarely meet. A part keeps a
//! stated number of pages at most. Its records are allocated as pages come, and kept until the domain is closed.
//!
//! A page counts its mappings. All of them have its one address. Until the unmap of each is committed, the page is in
//! use and keeps its address.

use crate::sync::{AtomicUsize, Ordering};
use alloc::boxed::Box;
use alloc::vec::Vec;
use portcullis::PhysAddr;
use portcullis::error::NoMemory;
use portcullis::platform::memory::{Spare, move_into, push_within, try_fill, try_reserve, try_slice, with_spare};
use portcullis::platform::{Context, Lock, LockClass, Platform, Step};

/// The parts of a pool.
pub(super) const PARTS: usize = if cfg!(loom) { 1 } else { 64 };
/// The most pages that a part can be given room for. All parts together then keep 64 MiB of memory mapped: 16,384
/// pages, which is also the most that a pool of Linux holds back for one ring.
pub(crate) const PART_PAGES_MAX: usize = 256;
/// Records that a part has room for at first.
const RECORDS_FIRST: usize = 8;

/// The index of a record in its part.
type Link = Option<u16>;

/// A page in the pool, or a record that has none.
struct Page {
    phys_pfn: u64,
    iova_pfn: u64,
    /// Its mappings.
    users: u32,
    /// Its mappings that are unmapped and not yet committed. Without these and those, the page is on the list of pages
    /// that are not in use.
    leaving: u32,
    /// The next page in its chain of the hash table, or the next record without a page.
    chained: Link,
    /// Its neighbours on the list of pages that are not in use.
    before: Link,
    after: Link,
}

/// What the end of a mapping has left of its page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Left {
    /// The page stays in the pool.
    Pooled,
    /// The page is no longer in the pool. Its entry must be cleared and invalidated, and its address freed.
    Out,
}

/// A part of the pool.
struct Part {
    pages: Vec<Page>,
    /// The most pages.
    most: usize,
    /// The heads of the chains of the hash table. Their number is a power of two.
    chains: Box<[Link]>,
    /// Records without a page.
    spare: Link,
    /// The page that has been out of use for the longest time, and the one for the shortest.
    oldest: Link,
    latest: Link,
    /// Pages that are not in use.
    idle: usize,
}

/// The pool.
pub(super) struct Pool<P: Platform> {
    parts: Box<[P::Lock<Part>]>,
    part_pages: usize,
    /// Where the next search for addresses begins. Relaxed: any part will do.
    hand: AtomicUsize,
}

/// Mixes a page number (Fibonacci hashing): the upper half of the product is well mixed.
const fn hash(phys_pfn: u64) -> usize {
    (phys_pfn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

impl<P: Platform> Pool<P> {
    /// Makes a pool whose parts keep at most `part_pages` pages each.
    ///
    /// # Errors
    /// [`NoMemory`].
    #[inline(never)]
    pub(super) fn new(platform: &P, part_pages: usize) -> Result<Self, NoMemory> {
        let part_pages = part_pages.clamp(1, PART_PAGES_MAX);
        let part = || Ok(platform.lock(LockClass::IovaAllocator, Part::new(platform, part_pages)?));
        Ok(Self { parts: try_slice(platform, Context::MaySleep, PARTS, part)?, part_pages, hand: AtomicUsize::new(0) })
    }

    /// The number of the part that a page belongs to.
    pub(super) const fn part_of(phys_pfn: u64) -> usize {
        hash(phys_pfn) % PARTS
    }

    fn part(&self, phys_pfn: u64) -> &P::Lock<Part> {
        &self.parts[Self::part_of(phys_pfn)]
    }

    /// Adds a mapping of a page. Returns the page's address, if the pool has the page.
    pub(super) fn take(&self, platform: &P, phys_pfn: u64) -> Option<u64> {
        platform.probe(Step::HashFind);
        self.part(phys_pfn).with(|part| {
            let link = part.find(phys_pfn)?;
            let page = part.page_mut(link);
            // A page has not that many mappings. If it had, the next would get an address of its own.
            let (was_idle, iova_pfn) = (page.is_idle(), page.iova_pfn);
            page.users = page.users.checked_add(1)?;
            if was_idle {
                part.unlist(link);
            }
            Some(iova_pfn)
        })
    }

    /// Puts a page with one mapping into the pool, if it is not there and there is room, and if `claim` then claims the
    /// mapping. Returns whether it was put there.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub(super) fn put(
        &self,
        platform: &P,
        phys_pfn: u64,
        iova_pfn: u64,
        claim: &impl Fn() -> bool,
    ) -> Result<bool, NoMemory> {
        platform.probe(Step::HashFind);
        with_spare(
            |records| try_reserve(platform, Context::Atomic, records),
            |spare| {
                self.part(phys_pfn).with(|part| {
                    if part.find(phys_pfn).is_some() || !part.make_record(spare)? || !claim() {
                        return Ok(false);
                    }
                    platform.probe(Step::ListPush);
                    part.insert(phys_pfn, iova_pfn);
                    Ok(true)
                })
            },
        )
    }

    /// Begins the end of a mapping of the page at address `iova_pfn`. Returns whether the page has a mapping there.
    pub(super) fn leave(&self, platform: &P, phys: PhysAddr, iova_pfn: u64) -> bool {
        platform.probe(Step::HashFind);
        self.part(phys.pfn()).with(|part| part.leave(phys.pfn(), iova_pfn).is_some())
    }

    /// Ends a mapping that has begun to [leave](Self::leave). The last one leaves the page in the pool, or takes it out
    /// if `takes_out`.
    pub(super) fn end(&self, platform: &P, phys: PhysAddr, iova_pfn: u64, takes_out: bool) -> Option<Left> {
        platform.probe(Step::HashFind);
        platform.probe(Step::ListPush);
        self.part(phys.pfn()).with(|part| {
            let link = part.find_at(phys.pfn(), iova_pfn)?;
            part.end(link, takes_out)
        })
    }

    /// Does both, [`leave`](Self::leave) and [`end`](Self::end). `None` if the page has no mapping at this address.
    pub(super) fn leave_and_end(&self, platform: &P, phys: PhysAddr, iova_pfn: u64, takes_out: bool) -> Option<Left> {
        platform.probe(Step::HashFind);
        platform.probe(Step::ListPush);
        self.part(phys.pfn()).with(|part| {
            let link = part.leave(phys.pfn(), iova_pfn)?;
            part.end(link, takes_out)
        })
    }

    /// Takes the page out of part `number` that has been out of use for the longest time. Returns its address.
    pub(super) fn evict(&self, platform: &P, number: usize) -> Option<u64> {
        self.parts[number].with(|part| {
            let link = part.oldest?;
            platform.probe(Step::ListPop);
            Some(part.remove(link))
        })
    }

    /// Whether there is no room for another page in the part that this page belongs to.
    pub(super) fn is_full_for(&self, phys_pfn: u64) -> bool {
        self.part(phys_pfn).with(|part| part.spare.is_none() && part.pages.len() >= part.most)
    }

    /// The numbers of all parts, beginning with another at each call.
    pub(super) fn parts(&self) -> impl Iterator<Item = usize> + use<P> {
        let first = self.hand.fetch_add(1, Ordering::Relaxed) % PARTS;
        (first..PARTS).chain(0..first)
    }

    /// Pages that are not in use.
    pub(super) fn idle(&self) -> usize {
        self.parts.iter().map(|part| part.with(|part| part.idle)).sum()
    }

    /// The most pages.
    pub(super) const fn most(&self) -> usize {
        PARTS * self.part_pages
    }
}

impl Page {
    const fn is_idle(&self) -> bool {
        self.users == 0 && self.leaving == 0
    }
}

impl Part {
    fn new<P: Platform>(platform: &P, most: usize) -> Result<Self, NoMemory> {
        let chains = try_fill(platform, Context::MaySleep, most.next_power_of_two(), || None)?;
        let chains = chains.into_boxed_slice();
        Ok(Self { pages: Vec::new(), most, chains, spare: None, oldest: None, latest: None, idle: 0 })
    }

    fn page(&self, link: u16) -> &Page {
        &self.pages[usize::from(link)]
    }

    fn page_mut(&mut self, link: u16) -> &mut Page {
        &mut self.pages[usize::from(link)]
    }

    /// The chain of a page. The lower bits of the hash have chosen the part.
    fn chain(&mut self, phys_pfn: u64) -> &mut Link {
        let number = (hash(phys_pfn) / PARTS) & (self.chains.len() - 1);
        &mut self.chains[number]
    }

    fn find(&mut self, phys_pfn: u64) -> Link {
        let mut link = *self.chain(phys_pfn);
        while let Some(other) = link.filter(|link| self.page(*link).phys_pfn != phys_pfn) {
            link = self.page(other).chained;
        }
        link
    }

    /// The page with this memory, if it has this address.
    fn find_at(&mut self, phys_pfn: u64, iova_pfn: u64) -> Link {
        self.find(phys_pfn).filter(|link| self.page(*link).iova_pfn == iova_pfn)
    }

    fn leave(&mut self, phys_pfn: u64, iova_pfn: u64) -> Link {
        let link = self.find_at(phys_pfn, iova_pfn)?;
        let page = self.page_mut(link);
        let leaving = page.leaving.checked_add(1)?;
        (page.users, page.leaving) = (page.users.checked_sub(1)?, leaving);
        Some(link)
    }

    fn end(&mut self, link: u16, takes_out: bool) -> Option<Left> {
        let page = self.page_mut(link);
        page.leaving = page.leaving.checked_sub(1)?;
        if page.is_idle() {
            self.list(link);
            if takes_out {
                self.remove(link);
                return Some(Left::Out);
            }
        }
        Some(Left::Pooled)
    }

    /// Ensures that there is a record without a page. Returns whether there is.
    ///
    /// # Errors
    /// [`NoMemory`] if there is room for one, but no memory in `larger`.
    fn make_record(&mut self, larger: &mut Spare<Vec<Page>>) -> Result<bool, NoMemory> {
        if self.spare.is_some() {
            return Ok(true);
        }
        if self.pages.len() >= self.most {
            return Ok(false);
        }
        if self.pages.len() == self.pages.capacity() {
            let records = (2 * self.pages.len()).clamp(RECORDS_FIRST.min(self.most), self.most);
            move_into(&mut self.pages, &mut larger.take(records)?);
        }
        let link = self.pages.len() as u16;
        let page = Page { phys_pfn: 0, iova_pfn: 0, users: 0, leaving: 0, chained: None, before: None, after: None };
        push_within(&mut self.pages, page);
        self.spare = Some(link);
        Ok(true)
    }

    /// Adds a page with one mapping. There must be a record for it.
    fn insert(&mut self, phys_pfn: u64, iova_pfn: u64) {
        let Some(link) = self.spare else { return };
        self.spare = self.page(link).chained;
        let chained = self.chain(phys_pfn).replace(link);
        *self.page_mut(link) = Page { phys_pfn, iova_pfn, users: 1, leaving: 0, chained, before: None, after: None };
    }

    /// Removes a page that is not in use. Returns its address.
    fn remove(&mut self, link: u16) -> u64 {
        self.unlist(link);
        let &Page { phys_pfn, iova_pfn, chained, .. } = self.page(link);
        let mut before = None;
        let mut at = *self.chain(phys_pfn);
        while let Some(other) = at.filter(|at| *at != link) {
            (before, at) = (at, self.page(other).chained);
        }
        match before {
            Some(before) => self.page_mut(before).chained = chained,
            None => *self.chain(phys_pfn) = chained,
        }
        let rest = self.spare.replace(link);
        self.page_mut(link).chained = rest;
        iova_pfn
    }

    /// Puts a page on the list of those that are not in use.
    fn list(&mut self, link: u16) {
        let before = self.latest.replace(link);
        match before {
            Some(before) => self.page_mut(before).after = Some(link),
            None => self.oldest = Some(link),
        }
        let page = self.page_mut(link);
        (page.before, page.after) = (before, None);
        self.idle += 1;
    }

    /// Takes a page off that list.
    fn unlist(&mut self, link: u16) {
        let page = self.page_mut(link);
        let (before, after) = (page.before.take(), page.after.take());
        match before {
            Some(before) => self.page_mut(before).after = after,
            None => self.oldest = after,
        }
        match after {
            Some(after) => self.page_mut(after).before = before,
            None => self.latest = before,
        }
        self.idle -= 1;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use portcullis::platform::fake::FakeHost;
    use std::vec::Vec;

    const ADDRESS: u64 = 0x1000;

    fn put(pool: &Pool<FakeHost>, host: &FakeHost, phys_pfn: u64) -> bool {
        pool.put(host, phys_pfn, ADDRESS + phys_pfn, &|| true).expect("memory")
    }

    fn give_up(pool: &Pool<FakeHost>, host: &FakeHost, phys_pfn: u64) -> Option<Left> {
        pool.leave_and_end(host, PhysAddr::from_pfn(phys_pfn), ADDRESS + phys_pfn, false)
    }

    #[test]
    fn a_page_counts_its_mappings() {
        let host = FakeHost::default();
        let pool = Pool::new(&host, 4).expect("memory");
        assert_eq!(pool.take(&host, 7), None);
        assert!(!pool.put(&host, 7, 1, &|| false).expect("memory"), "not claimed");
        assert!(put(&pool, &host, 7));
        assert!(!pool.put(&host, 7, 1, &|| panic!("it is not claimed a second time")).expect("memory"));
        assert_eq!((pool.take(&host, 7), pool.idle()), (Some(ADDRESS + 7), 0));
        assert_eq!(pool.leave_and_end(&host, PhysAddr::from_pfn(7), 1, false), None, "another address");
        assert_eq!((give_up(&pool, &host, 7), pool.idle()), (Some(Left::Pooled), 0));
        assert_eq!((give_up(&pool, &host, 7), pool.idle()), (Some(Left::Pooled), 1));
        assert_eq!(give_up(&pool, &host, 7), None, "it has no mapping left");
        assert_eq!((pool.take(&host, 7), pool.idle()), (Some(ADDRESS + 7), 0));
        assert_eq!(pool.leave_and_end(&host, PhysAddr::from_pfn(7), ADDRESS + 7, true), Some(Left::Out));
        assert_eq!((pool.take(&host, 7), pool.idle()), (None, 0));
    }

    #[test]
    fn a_page_is_in_use_until_its_last_unmap_is_committed() {
        let host = FakeHost::default();
        let pool = Pool::new(&host, 4).expect("memory");
        let (page, address, part) = (PhysAddr::from_pfn(7), ADDRESS + 7, Pool::<FakeHost>::part_of(7));
        assert!(put(&pool, &host, 7) && pool.leave(&host, page, address));
        assert!(!pool.leave(&host, page, address), "its one mapping is already leaving");
        assert_eq!((pool.evict(&host, part), pool.idle()), (None, 0));
        assert_eq!((pool.take(&host, 7), pool.end(&host, page, address, false)), (Some(address), Some(Left::Pooled)));
        assert_eq!((pool.end(&host, page, address, false), pool.idle()), (None, 0));
        assert_eq!((give_up(&pool, &host, 7), pool.evict(&host, part)), (Some(Left::Pooled), Some(address)));
    }

    #[test]
    fn a_full_part_gives_up_the_page_that_waited_longest() {
        let host = FakeHost::default();
        let pool = Pool::new(&host, 3).expect("memory");
        let part = Pool::<FakeHost>::part_of(1);
        let mut pages = (1..).filter(|pfn| Pool::<FakeHost>::part_of(*pfn) == part);
        let [first, second, third, other] = core::array::from_fn(|_| pages.next().expect("one more"));
        for pfn in [first, second, third] {
            assert!(!pool.is_full_for(pfn) && put(&pool, &host, pfn));
        }
        assert!(pool.is_full_for(other) && !put(&pool, &host, other));
        assert_eq!(pool.evict(&host, part), None, "all are in use");
        for pfn in [second, third, first] {
            assert_eq!(give_up(&pool, &host, pfn), Some(Left::Pooled));
        }
        assert_eq!(pool.take(&host, third), Some(ADDRESS + third), "taken from the middle of the list");
        assert_eq!(pool.evict(&host, part), Some(ADDRESS + second));
        assert!(put(&pool, &host, other));
        assert_eq!(pool.evict(&host, part), Some(ADDRESS + first));
        assert_eq!((pool.evict(&host, part), pool.idle()), (None, 0));
    }

    #[test]
    fn it_keeps_as_many_pages_as_it_says() {
        let host = FakeHost::default();
        let pool = Pool::new(&host, 16).expect("memory");
        let kept: Vec<u64> = (0..4 * pool.most() as u64).filter(|pfn| put(&pool, &host, *pfn)).collect();
        assert_eq!(kept.len(), pool.most());
        assert!(kept.iter().all(|pfn| give_up(&pool, &host, *pfn) == Some(Left::Pooled)));
        assert_eq!(pool.idle(), pool.most());
        let evicted = pool.parts().flat_map(|part| core::iter::from_fn(|| pool.evict(&host, part)).collect::<Vec<_>>());
        assert_eq!((evicted.count(), pool.idle()), (pool.most(), 0));
    }

    #[test]
    fn every_part_comes_first_in_turn() {
        let pool = Pool::new(&FakeHost::default(), 1).expect("memory");
        for round in 0..2 * PARTS {
            let parts: Vec<usize> = pool.parts().collect();
            assert_eq!((parts[0], parts.len()), (round % PARTS, PARTS));
        }
    }
}
