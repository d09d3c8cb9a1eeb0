//! Sub-page exposure (S8): bytes that the device can reach because their page is mapped, though no live buffer holds them.

use portcullis::{PAGE_SIZE, Segment};
use rustc_hash::FxHashMap;

/// A physical page with live mappings.
#[derive(Default)]
struct Page {
    mappings: u32,
    /// Bytes of live buffers in the page, a byte counted once for each.
    owned: u64,
    since_ps: u64,
}

/// Integrates those bytes over time.
#[derive(Default)]
pub(super) struct Residual {
    pages: FxHashMap<u64, Page>,
    bytes_ps: u128,
}

impl Residual {
    /// A buffer has been mapped.
    pub(super) fn mapped(&mut self, segments: &[Segment], now_ps: u64) {
        for (pfn, bytes) in pieces(segments) {
            let page = self.settle(pfn, now_ps);
            page.mappings += 1;
            page.owned += bytes;
        }
    }

    /// A buffer has gone back to its owner.
    pub(super) fn handed_back(&mut self, segments: &[Segment], now_ps: u64) {
        for (pfn, bytes) in pieces(segments) {
            let page = self.settle(pfn, now_ps);
            page.mappings -= 1;
            page.owned -= bytes;
            if page.mappings == 0 {
                self.pages.remove(&pfn);
            }
        }
    }

    /// Byte-picoseconds up to `now_ps`.
    pub(super) fn total(&mut self, now_ps: u64) -> u128 {
        // Sums do not depend on the order of the map.
        let open: u128 = self.pages.values().map(|page| page.exposed(now_ps)).sum();
        self.bytes_ps + open
    }

    /// The page, with what it has exposed so far added to the sum.
    fn settle(&mut self, pfn: u64, now_ps: u64) -> &mut Page {
        let page = self.pages.entry(pfn).or_default();
        self.bytes_ps += page.exposed(now_ps);
        page.since_ps = page.since_ps.max(now_ps);
        page
    }
}

impl Page {
    fn exposed(&self, now_ps: u64) -> u128 {
        if self.mappings == 0 {
            return 0;
        }
        let bytes = PAGE_SIZE.saturating_sub(self.owned);
        u128::from(bytes) * u128::from(now_ps.saturating_sub(self.since_ps))
    }
}

/// The pages of a buffer, with the bytes that it has in each.
fn pieces(segments: &[Segment]) -> impl Iterator<Item = (u64, u64)> {
    segments.iter().flat_map(|segment| {
        let (start, end) = (segment.phys.as_u64(), segment.phys.as_u64() + segment.len);
        (segment.phys.pfn()..segment.phys.pfn() + segment.pages()).map(move |pfn| {
            let page_start = pfn * PAGE_SIZE;
            (pfn, end.min(page_start + PAGE_SIZE) - start.max(page_start))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use portcullis::PhysAddr;

    fn half(index: u64) -> [Segment; 1] {
        [Segment { phys: PhysAddr::new(0x5000 + index * 2048), len: 2048 }]
    }

    #[test]
    fn two_halves_of_a_page_expose_each_other_only_while_one_is_gone() {
        let mut residual = Residual::default();
        residual.mapped(&half(0), 0);
        residual.mapped(&half(1), 10);
        assert_eq!(residual.total(10), 2048 * 10, "the second half, before it was mapped");
        assert_eq!(residual.total(50), 2048 * 10, "nothing while both are live");
        residual.handed_back(&half(0), 50);
        assert_eq!(residual.total(60), 2048 * 20, "the first half is reached through the page of the second");
        residual.handed_back(&half(1), 60);
        assert_eq!(residual.total(1000), 2048 * 20);
    }

    #[test]
    fn a_buffer_across_pages_exposes_the_rest_of_both() {
        let mut residual = Residual::default();
        residual.mapped(&[Segment { phys: PhysAddr::new(0x1f00), len: 0x200 }], 0);
        assert_eq!(residual.total(1), u128::from(2 * PAGE_SIZE - 0x200));
    }
}
