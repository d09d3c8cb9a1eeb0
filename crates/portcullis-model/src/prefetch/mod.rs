//! IOTLB prefetchers: hardware that walks for pages before a device requests them.
//!
//! No VT-d unit has one. These are the prefetchers that the thesis behind rIOMMU (ASPLOS'15, §5.4) evaluates, taken
//! from proposals for the TLBs of CPUs, and the adjacent-page prefetcher of "IOMMU: Strategies for Mitigating the
//! IOTLB Bottleneck" (Amit et al., 2010). Each sees the requests that the IOTLB did not serve, and predicts pages.
//! The unit walks for these pages and keeps the results in a small buffer beside the IOTLB. Their first use moves
//! them into the IOTLB.

mod adjacent;
mod distance;
mod history;
mod markov;
mod next;
mod recency;
mod spec;

pub use spec::{PrefetcherError, PrefetcherSpec};

/// A page of 4 KiB of a domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Page {
    pub(crate) domain: u16,
    pub(crate) pfn: u64,
}

/// The most bits of a page frame number. The bits above them hold the domain in a key.
const PFN_BITS: u32 = u64::BITS - u16::BITS;

impl Page {
    /// Domain and page frame number as one number.
    pub(crate) fn key(self) -> u64 {
        u64::from(self.domain) << PFN_BITS | self.pfn
    }

    pub(crate) fn of_key(key: u64) -> Self {
        Self { domain: (key >> PFN_BITS) as u16, pfn: key & ((1 << PFN_BITS) - 1) }
    }

    /// The page at `distance` pages from this one in its domain, if there is one.
    fn at(self, distance: i64) -> Option<Self> {
        let pfn = self.pfn.checked_add_signed(distance)?;
        (pfn >> PFN_BITS == 0).then_some(Self { pfn, ..self })
    }
}

/// The pages that an invalidation covers: all domains or one domain, and of one domain all pages or a range, first to
/// last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Covered {
    pub(crate) domain: Option<u16>,
    pub(crate) pages: Option<(u64, u64)>,
}

impl Covered {
    pub(crate) fn contains(&self, page: Page) -> bool {
        self.domain.is_none_or(|domain| domain == page.domain)
            && self.pages.is_none_or(|(first, last)| (first..=last).contains(&page.pfn))
    }

    /// Calls `each` with every page if there are at most `most` pages. Returns whether it did.
    pub(crate) fn each(&self, most: usize, mut each: impl FnMut(Page)) -> bool {
        let (Some(domain), Some((first, last))) = (self.domain, self.pages) else { return false };
        let few = last - first < most as u64;
        if few {
            (first..=last).for_each(|pfn| each(Page { domain, pfn }));
        }
        few
    }
}

/// A predictor of pages.
pub(crate) trait Prefetcher: Send {
    /// A request for `page` was not served by the IOTLB. Adds the predicted pages to `predicted`, the likeliest
    /// first.
    fn missed(&mut self, page: Page, predicted: &mut Vec<Page>);

    /// `page` was evicted from the IOTLB to make room.
    fn evicted(&mut self, _page: Page) {}

    /// An invalidation. `dropped` are the pages that it drops from the IOTLB, from the least recent of each set on.
    fn invalidated(&mut self, _covered: Covered, _dropped: &mut dyn Iterator<Item = Page>) {}
}

/// Whether history outlives the invalidation of its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// An invalidation removes the history of its pages.
    Baseline,
    /// History stays. A predicted page may no longer be mapped, so protection rests on the walk for it alone.
    Modified,
}
