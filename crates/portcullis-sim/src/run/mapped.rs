//! The pages of address space that live mappings have.

use portcullis::IovaRange;
use portcullis::mapper::Addressing;
use rustc_hash::FxHashMap;

/// How many live mappings have each page, by device. Several may share a page.
pub(super) struct MappedPages {
    /// By device and by number of the table.
    tables: FxHashMap<(usize, u64), Box<Table>>,
    /// What is counted: pages, or entries, which have very many page numbers.
    unit_pages: u64,
}

const TABLE_UNITS: u64 = 512;

/// The counts of neighbouring units. Most designs take neighbours one after the other.
struct Table {
    mappings: [u32; TABLE_UNITS as usize],
    /// The sum of these counts.
    all: u32,
}

impl MappedPages {
    /// Those of a design with such addresses.
    pub(super) fn new(addressing: Addressing) -> Self {
        let unit_pages = if let Addressing::Entries { pages } = addressing { pages } else { 1 };
        Self { tables: FxHashMap::default(), unit_pages }
    }

    pub(super) fn add(&mut self, device: usize, ranges: &[IovaRange]) {
        for unit in self.units(ranges) {
            let empty = || Box::new(Table { mappings: [0; TABLE_UNITS as usize], all: 0 });
            let table = self.tables.entry((device, unit / TABLE_UNITS)).or_insert_with(empty);
            table.mappings[(unit % TABLE_UNITS) as usize] += 1;
            table.all += 1;
        }
    }

    pub(super) fn remove(&mut self, device: usize, ranges: &[IovaRange]) {
        for unit in self.units(ranges) {
            let key = (device, unit / TABLE_UNITS);
            let Some(table) = self.tables.get_mut(&key) else { continue };
            let mappings = &mut table.mappings[(unit % TABLE_UNITS) as usize];
            if *mappings > 0 {
                *mappings -= 1;
                table.all -= 1;
                if table.all == 0 {
                    self.tables.remove(&key);
                }
            }
        }
    }

    pub(super) fn has(&self, device: usize, pfn: u64) -> bool {
        let unit = pfn / self.unit_pages;
        let table = self.tables.get(&(device, unit / TABLE_UNITS));
        table.is_some_and(|table| table.mappings[(unit % TABLE_UNITS) as usize] > 0)
    }

    fn units<'r>(&self, ranges: &'r [IovaRange]) -> impl Iterator<Item = u64> + use<'r> {
        let pages = self.unit_pages;
        ranges.iter().flat_map(move |range| range.first_pfn() / pages..range.end_pfn().div_ceil(pages))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(all: [(u64, u64); 2]) -> [IovaRange; 2] {
        all.map(|(first, pages)| IovaRange::new(first, pages).expect("a range"))
    }

    #[test]
    fn a_page_is_mapped_until_its_last_mapping_is_gone() {
        let [low, high] = ranges([(4, 3), (6, 2)]);
        let mut mapped = MappedPages::new(Addressing::Own);
        mapped.add(0, &[low, high]);
        mapped.add(1, &[high]);
        mapped.remove(0, &[high]);
        let of_device = |device| (0..9).filter(|pfn| mapped.has(device, *pfn)).collect::<Vec<_>>();
        assert_eq!((of_device(0), of_device(1)), (vec![4, 5, 6], vec![6, 7]));
        mapped.remove(1, &[high]);
        mapped.remove(0, &[low]);
        assert!(mapped.tables.is_empty());
    }

    #[test]
    fn an_entry_is_one_unit() {
        let entry = 1 << 40;
        let [first, third] = ranges([(0, entry), (2 * entry, entry)]);
        let mut mapped = MappedPages::new(Addressing::Entries { pages: entry });
        mapped.add(0, &[first, third]);
        assert_eq!(
            [entry - 1, entry, 2 * entry, 3 * entry - 1].map(|pfn| mapped.has(0, pfn)),
            [true, false, true, true]
        );
        assert_eq!(mapped.tables[&(0, 0)].all, 2);
    }
}
