//! Which pages of I/O addresses belong to whom: what the device reaches there by right.

use super::world::Ranges;
use rustc_hash::FxHashMap;

/// Counts, by device and page, the mappings whose buffers are not back. Most pages have one; those of designs whose mappings
/// share addresses may have more.
#[derive(Default)]
pub(super) struct Owners {
    pages: FxHashMap<(usize, u64), u32>,
}

impl Owners {
    /// A mapping has been made.
    pub(super) fn mapped(&mut self, device: usize, ranges: &Ranges) {
        for pfn in ranges.iter().flat_map(|range| range.first_pfn()..range.end_pfn()) {
            *self.pages.entry((device, pfn)).or_default() += 1;
        }
    }

    /// Its buffer has gone back to its owner.
    pub(super) fn handed_back(&mut self, device: usize, ranges: &Ranges) {
        for pfn in ranges.iter().flat_map(|range| range.first_pfn()..range.end_pfn()) {
            // A page without mappings stays in the map, for it is likely to have one again.
            if let Some(mappings) = self.pages.get_mut(&(device, pfn)) {
                *mappings -= 1;
            }
        }
    }

    /// Whether a mapping whose buffer is not back has page `pfn`.
    pub(super) fn has(&self, device: usize, pfn: u64) -> bool {
        self.pages.get(&(device, pfn)).is_some_and(|mappings| *mappings > 0)
    }
}
