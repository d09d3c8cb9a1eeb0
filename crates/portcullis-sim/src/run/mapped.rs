//! The pages of address space that live mappings have.

use portcullis::IovaRange;
use rustc_hash::FxHashMap;

/// How many live mappings have each page, by device. Several may share a page.
#[derive(Default)]
pub(super) struct MappedPages(FxHashMap<(usize, u64), u32>);

impl MappedPages {
    pub(super) fn add(&mut self, device: usize, ranges: &[IovaRange]) {
        for pfn in pages(ranges) {
            *self.0.entry((device, pfn)).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, device: usize, ranges: &[IovaRange]) {
        for pfn in pages(ranges) {
            if let Some(mappings) = self.0.get_mut(&(device, pfn)) {
                *mappings -= 1;
                if *mappings == 0 {
                    self.0.remove(&(device, pfn));
                }
            }
        }
    }

    pub(super) fn has(&self, device: usize, pfn: u64) -> bool {
        self.0.contains_key(&(device, pfn))
    }
}

fn pages(ranges: &[IovaRange]) -> impl Iterator<Item = u64> {
    ranges.iter().flat_map(|range| range.first_pfn()..range.end_pfn())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_mapped_until_its_last_mapping_is_gone() {
        let [low, high] = [(4, 3), (6, 2)].map(|(first, pages)| IovaRange::new(first, pages).expect("a range"));
        let mut mapped = MappedPages::default();
        mapped.add(0, &[low, high]);
        mapped.add(1, &[high]);
        mapped.remove(0, &[high]);
        let of_device = |device| (0..9).filter(|pfn| mapped.has(device, *pfn)).collect::<Vec<_>>();
        assert_eq!((of_device(0), of_device(1)), (vec![4, 5, 6], vec![6, 7]));
        mapped.remove(1, &[high]);
        mapped.remove(0, &[low]);
        assert!(mapped.0.is_empty());
    }
}
