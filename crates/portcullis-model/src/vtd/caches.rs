//! Caches of leaves (the IOTLB is one) and the three paging-structure caches: their keys, and what an invalidation
//! drops.
//!
//! ```text
//!  63     48 47  46 45              0
//! +---------+------+-----------------+
//! | domain  | kind | address >> kind |   kind: 0 a 4 KiB page, 1 of 2 MiB, 2 of 1 GiB
//! +---------+------+-----------------+
//! ```
//!
//! The literature numbers the paging-structure caches from the root, L1 to L3. Here their index is the level of the
//! table that their entries point to: entries of L3 point to leaf tables, at level 1.

use super::walk::{Leaf, level_shift};
use crate::cache::{Cache, Replacement};
use crate::parameters::Parameters;
use crate::prefetch::{Covered, Page};
use portcullis::table::{EntryValue, LEVEL_BITS};
use portcullis::{Iova, PAGE_SHIFT};

const DOMAIN_SHIFT: u32 = 48;
const KIND_SHIFT: u32 = 46;
const ADDRESS_MASK: u64 = (1 << KIND_SHIFT) - 1;

/// A cache of leaves.
pub(super) struct Leaves {
    cache: Cache<EntryValueOrZero>,
    /// Whether a leaf of 4 KiB, 2 MiB, 1 GiB was ever cached. Only sizes in use are looked up.
    in_use: [bool; 3],
}

pub(super) struct Caches {
    pub(super) iotlb: Leaves,
    /// Indexed by the level of the table pointed to, less one.
    pointers: [Cache<EntryValueOrZero>; 3],
}

/// The bits of an entry. Zero, which is not a valid entry, fills empty slots.
type EntryValueOrZero = u64;

#[inline]
fn key(domain: u16, kind: usize, iova: Iova, shift: u32) -> u64 {
    u64::from(domain) << DOMAIN_SHIFT | (kind as u64) << KIND_SHIFT | iova.as_u64() >> shift
}

const fn leaf_shift(kind: usize) -> u32 {
    PAGE_SHIFT + LEVEL_BITS * kind as u32
}

const fn leaf_kind(leaf: Leaf) -> usize {
    ((leaf.shift - PAGE_SHIFT) / LEVEL_BITS) as usize
}

/// The page of a key, if the key is that of a 4 KiB page.
fn page_of(key: u64) -> Option<Page> {
    let (domain, kind) = ((key >> DOMAIN_SHIFT) as u16, key >> KIND_SHIFT & 3);
    (kind == 0).then_some(Page { domain, pfn: key & ADDRESS_MASK })
}

impl Leaves {
    pub(super) fn new(entries: usize, ways: usize, replacement: Replacement) -> Self {
        Self { cache: Cache::new(entries, ways, replacement), in_use: [true, false, false] }
    }

    /// The number of leaves held.
    pub(super) fn len(&self) -> usize {
        self.cache.len()
    }

    /// The number of leaves that fit.
    pub(super) fn capacity(&self) -> usize {
        self.cache.capacity()
    }

    #[inline]
    pub(super) fn get(&mut self, domain: u16, iova: Iova) -> Option<Leaf> {
        for kind in 0..3 {
            if self.in_use[kind] {
                let shift = leaf_shift(kind);
                if let Some(bits) = self.cache.get(key(domain, kind, iova, shift)) {
                    return Some(Leaf { entry: EntryValue::from_bits(bits), shift });
                }
            }
        }
        None
    }

    pub(super) fn peek(&self, domain: u16, iova: Iova) -> Option<Leaf> {
        (0..3).filter(|kind| self.in_use[*kind]).find_map(|kind| {
            let shift = leaf_shift(kind);
            let bits = self.cache.peek(key(domain, kind, iova, shift))?;
            Some(Leaf { entry: EntryValue::from_bits(bits), shift })
        })
    }

    /// Caches `leaf`. Returns the evicted page, if it was a 4 KiB page.
    pub(super) fn insert(&mut self, domain: u16, iova: Iova, leaf: Leaf) -> Option<Page> {
        let kind = leaf_kind(leaf);
        self.in_use[kind] = true;
        page_of(self.cache.insert(key(domain, kind, iova, leaf.shift), leaf.entry.bits())?)
    }

    /// Makes the leaf that serves `iova`, if present, the next of its set to be evicted.
    pub(super) fn make_oldest(&mut self, domain: u16, iova: Iova) {
        if let Some(leaf) = self.peek(domain, iova) {
            self.cache.make_oldest(key(domain, leaf_kind(leaf), iova, leaf.shift));
        }
    }

    /// Drops the leaf that serves `iova`, of the size of `leaf`.
    pub(super) fn remove(&mut self, domain: u16, iova: Iova, leaf: Leaf) {
        self.cache.remove(key(domain, leaf_kind(leaf), iova, leaf.shift));
    }

    /// The 4 KiB pages that an invalidation would drop, each set from the least recent on.
    pub(super) fn pages_in(&self, covered: Covered) -> impl Iterator<Item = Page> {
        self.cache.keys().filter_map(page_of).filter(move |page| covered.contains(*page))
    }

    /// Drops the leaves, of every size, that serve a covered page.
    pub(super) fn invalidate(&mut self, covered: Covered) {
        match (covered.domain, covered.pages) {
            (Some(domain), Some(pages)) => {
                for kind in 0..3 {
                    if self.in_use[kind] {
                        let tag = key(domain, kind, Iova::new(0), 0);
                        drop_keys(&mut self.cache, tag, LEVEL_BITS * kind as u32, pages);
                    }
                }
            }
            (Some(domain), None) => self.cache.remove_where(|key| key >> DOMAIN_SHIFT == u64::from(domain)),
            (None, _) => self.cache.clear(),
        }
    }
}

impl Caches {
    pub(super) fn new(parameters: &Parameters) -> Self {
        let pointers = [parameters.ptcache_l3_entries, parameters.ptcache_l2_entries, parameters.ptcache_l1_entries];
        Self {
            iotlb: Leaves::new(
                parameters.iotlb_entries as usize,
                parameters.iotlb_ways as usize,
                parameters.iotlb_replacement,
            ),
            pointers: pointers.map(|entries| Cache::new(entries as usize, 0, Replacement::Lru)),
        }
    }

    /// The cached pointer nearest the leaf, and the level of the table that it points to. Looks in L3 first, then L2,
    /// then L1.
    pub(super) fn pointer(&mut self, domain: u16, iova: Iova, levels: u8) -> Option<(EntryValue, u8)> {
        (1..levels).find_map(|level| {
            let bits = self.pointers[level as usize - 1].get(key(domain, 0, iova, level_shift(level + 1)))?;
            Some((EntryValue::from_bits(bits), level))
        })
    }

    pub(super) fn peek_pointer(&self, domain: u16, iova: Iova, levels: u8) -> Option<(EntryValue, u8)> {
        (1..levels).find_map(|level| {
            let bits = self.pointers[level as usize - 1].peek(key(domain, 0, iova, level_shift(level + 1)))?;
            Some((EntryValue::from_bits(bits), level))
        })
    }

    pub(super) fn insert_pointer(&mut self, domain: u16, iova: Iova, level: u8, pointer: EntryValue) {
        self.pointers[level as usize - 1].insert(key(domain, 0, iova, level_shift(level + 1)), pointer.bits());
    }

    /// Drops the pointers of every level that serve a covered page, unless an invalidation of pages is `leaf_only`.
    pub(super) fn invalidate_pointers(&mut self, covered: Covered, leaf_only: bool) {
        match (covered.domain, covered.pages) {
            (Some(domain), Some(pages)) if !leaf_only => {
                for (cache, level) in self.pointers.iter_mut().zip(1..) {
                    drop_keys(cache, key(domain, 0, Iova::new(0), 0), LEVEL_BITS * level, pages);
                }
            }
            (Some(_), Some(_)) => {}
            (Some(domain), None) => {
                let of_domain = |key: u64| key >> DOMAIN_SHIFT == u64::from(domain);
                self.pointers.iter_mut().for_each(|cache| cache.remove_where(of_domain));
            }
            (None, _) => self.pointers.iter_mut().for_each(Cache::clear),
        }
    }
}

/// Drops the keys under `tag` (domain and kind) whose 2^`covers` pages touch the range. If the range has few keys
/// they are dropped one by one, otherwise all cached keys are checked.
fn drop_keys(cache: &mut Cache<EntryValueOrZero>, tag: u64, covers: u32, (first, last): (u64, u64)) {
    let (first, last) = (first >> covers, last >> covers);
    if last - first < cache.len() as u64 {
        for page in first..=last {
            // Nothing is cached beyond the widest address, and such a key would overflow into its tag.
            if page <= ADDRESS_MASK {
                cache.remove(tag | page);
            }
        }
    } else {
        cache.remove_where(|key| key & !ADDRESS_MASK == tag && (first..=last).contains(&(key & ADDRESS_MASK)));
    }
}
