//! The kernel's general allocator, as far as its addresses matter: slabs of objects of equal size in the pages of one
//! zone.
//!
//! Object sizes are powers of two from 8 to 4096 bytes, and each object is aligned to its size. A slab is one page.
//! Objects freed last are handed out first, and a slab that becomes empty goes back to its zone. There is no memory
//! behind the addresses here. A machine with memory must keep the zone out of all other use.

use portcullis::{NoMemory, PAGE_SIZE, PhysAddr};
use rustc_hash::FxHashMap;

/// The smallest object, in bytes.
const OBJECT_BYTES_MIN: u64 = 8;
/// The number of object sizes: 8 to 4096 bytes.
const CLASSES: usize = 10;

/// A pool of pages. It hands out the page given back last, then pages that were never used, from the lowest address
/// up.
#[derive(Clone, Debug)]
pub struct PagePool {
    freed: Vec<PhysAddr>,
    next: PhysAddr,
    end: PhysAddr,
}

impl PagePool {
    /// The `bytes` bytes (rounded down to whole pages) from `base` (rounded down to a page) on.
    pub fn new(base: PhysAddr, bytes: u64) -> Self {
        let next = PhysAddr::from_pfn(base.pfn());
        Self { freed: Vec::new(), next, end: PhysAddr::from_pfn(base.pfn() + bytes / PAGE_SIZE) }
    }

    /// Takes a page out of the pool, if one is left.
    pub fn take(&mut self) -> Option<PhysAddr> {
        self.freed.pop().or_else(|| {
            let page = self.next;
            (page < self.end).then(|| {
                self.next = PhysAddr::from_pfn(page.pfn() + 1);
                page
            })
        })
    }

    /// Gives a page back to the pool.
    pub fn give(&mut self, page: PhysAddr) {
        self.freed.push(page);
    }
}

/// One page of objects.
#[derive(Clone, Debug)]
struct SlabPage {
    class: usize,
    /// Indices of the free objects.
    free: Vec<u16>,
    /// Its index in the list of partly free pages of its class, if it is in that list.
    place: Option<usize>,
}

/// The allocator and its zone.
#[derive(Clone, Debug)]
pub struct Slab {
    zone: PagePool,
    pages: FxHashMap<PhysAddr, SlabPage>,
    /// Pages with free objects, by class.
    partial: [Vec<PhysAddr>; CLASSES],
}

/// The class of objects of `bytes` bytes.
fn class_of(bytes: u64) -> Option<usize> {
    let size = bytes.checked_next_power_of_two()?.max(OBJECT_BYTES_MIN);
    (size <= PAGE_SIZE).then(|| (size / OBJECT_BYTES_MIN).trailing_zeros() as usize)
}

/// The size of the objects of a class, in bytes.
const fn object_bytes(class: usize) -> u64 {
    OBJECT_BYTES_MIN << class
}

impl Slab {
    /// An allocator of objects in the pages of `zone`.
    pub fn new(zone: PagePool) -> Self {
        Self { zone, pages: FxHashMap::default(), partial: Default::default() }
    }

    /// The pool of pages that slabs are made from, for other users of these pages.
    pub fn zone(&mut self) -> &mut PagePool {
        &mut self.zone
    }

    /// Allocates an object of at least `bytes` bytes that ends at or below the address `below`.
    ///
    /// # Errors
    /// [`NoMemory`] if the zone has no page left or only pages that are too high, or if `bytes` is more than a page.
    pub fn allocate(&mut self, bytes: u64, below: PhysAddr) -> Result<PhysAddr, NoMemory> {
        let class = class_of(bytes).ok_or(NoMemory)?;
        let page = match self.partial[class].last() {
            Some(&page) => page,
            None => self.add_page(class).ok_or(NoMemory)?,
        };
        let slab = self.pages.get_mut(&page).expect("a partly free page is a slab");
        let number = *slab.free.last().expect("it is partly free");
        let object = PhysAddr::new(page.as_u64() + u64::from(number) * object_bytes(class));
        if object.as_u64() + object_bytes(class) > below.as_u64() {
            self.drop_if_empty(page);
            return Err(NoMemory);
        }
        slab.free.pop();
        if slab.free.is_empty() {
            slab.place = None;
            self.partial[class].pop();
        }
        Ok(object)
    }

    /// Frees an object.
    ///
    /// # Panics
    /// If `object` is not the address of an object.
    pub fn free(&mut self, object: PhysAddr) {
        let page = PhysAddr::from_pfn(object.pfn());
        let slab = self.pages.get_mut(&page).expect("an object lies in a slab");
        let number = object.page_offset() / object_bytes(slab.class);
        let whole = object.page_offset().is_multiple_of(object_bytes(slab.class));
        assert!(whole, "{object} is not an object");
        debug_assert!(!slab.free.contains(&(number as u16)), "{object} is not in use");
        slab.free.push(number as u16);
        if slab.place.is_none() {
            slab.place = Some(self.partial[slab.class].len());
            self.partial[slab.class].push(page);
        }
        self.drop_if_empty(page);
    }

    /// The number of objects in use.
    pub fn in_use(&self) -> usize {
        let objects = |slab: &SlabPage| (PAGE_SIZE / object_bytes(slab.class)) as usize - slab.free.len();
        self.pages.values().map(objects).sum()
    }

    fn add_page(&mut self, class: usize) -> Option<PhysAddr> {
        let page = self.zone.take()?;
        let objects = (PAGE_SIZE / object_bytes(class)) as u16;
        let place = Some(self.partial[class].len());
        self.partial[class].push(page);
        self.pages.insert(page, SlabPage { class, free: (0..objects).rev().collect(), place });
        Some(page)
    }

    /// Gives the page back to the zone if none of its objects is in use.
    fn drop_if_empty(&mut self, page: PhysAddr) {
        let slab = &self.pages[&page];
        if slab.free.len() as u64 * object_bytes(slab.class) < PAGE_SIZE {
            return;
        }
        let (class, place) = (slab.class, slab.place.expect("an empty page is partly free"));
        self.partial[class].swap_remove(place);
        if let Some(moved) = self.partial[class].get(place) {
            self.pages.get_mut(moved).expect("a partly free page is a slab").place = Some(place);
        }
        self.pages.remove(&page);
        self.zone.give(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64Mcg;
    use std::collections::BTreeMap;

    const BASE: PhysAddr = PhysAddr::new(1 << 20);

    #[test]
    fn objects_in_use_do_not_overlap_and_all_pages_come_back() {
        let mut slab = Slab::new(PagePool::new(BASE, 64 * PAGE_SIZE));
        let (mut random, mut in_use) = (Pcg64Mcg::seed_from_u64(1), BTreeMap::new());
        let mut refused = 0;
        for _ in 0..100_000 {
            if random.random_bool(0.53) {
                let bytes =
                    if random.random_bool(0.9) { random.random_range(1..40) } else { random.random_range(1..=4096) };
                let Ok(object) = slab.allocate(bytes, PhysAddr::new(1 << 32)) else {
                    refused += 1;
                    continue;
                };
                let size = bytes.next_power_of_two().max(8);
                assert!(object.as_u64().is_multiple_of(size), "{object} for {bytes} bytes");
                let before = in_use.range(..=object).next_back();
                assert!(before.is_none_or(|(at, size): (&PhysAddr, &u64)| at.as_u64() + size <= object.as_u64()));
                let after = in_use.range(object..).next();
                assert!(after.is_none_or(|(at, _)| object.as_u64() + size <= at.as_u64()));
                in_use.insert(object, size);
            } else if let Some((&object, _)) = in_use.iter().nth(random.random_range(0..in_use.len().max(1))) {
                in_use.remove(&object);
                slab.free(object);
            }
            assert_eq!(slab.in_use(), in_use.len());
        }
        assert!(refused > 0, "the zone was never full");
        in_use.keys().for_each(|object| slab.free(*object));
        assert_eq!((slab.in_use(), slab.zone().freed.len()), (0, 64));
    }

    #[test]
    fn nothing_lies_beyond_the_limit() {
        let mut slab = Slab::new(PagePool::new(BASE, 4 * PAGE_SIZE));
        assert_eq!(slab.allocate(8, PhysAddr::new(BASE.as_u64() + 7)), Err(NoMemory));
        assert_eq!(slab.allocate(8, PhysAddr::new(BASE.as_u64() + 8)), Ok(BASE));
        assert_eq!(slab.allocate(8, PhysAddr::new(BASE.as_u64() + 8)), Err(NoMemory));
        assert_eq!(slab.allocate(4097, PhysAddr::new(1 << 32)), Err(NoMemory));
        slab.free(BASE);
        assert_eq!(slab.in_use(), 0);
    }
}
