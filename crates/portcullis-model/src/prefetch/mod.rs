//! IOTLB prefetchers: hardware that walks for pages before a device asks for them.
//!
//! No VT-d has one. They are those that the thesis behind rIOMMU (ASPLOS'15, §5.4) puts to the test, after what was proposed for
//! the TLBs of CPUs, and what "IOMMU: Strategies for Mitigating the IOTLB Bottleneck" (Amit et al., 2010) has: adjacent pages. Each
//! sees the requests that the IOTLB did not serve, and names pages that it expects next. The unit walks for these and keeps what
//! it finds in a small buffer beside the IOTLB, from where the first use moves it.

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

/// Page frame numbers have so many bits at most; above them a key has the domain.
const PFN_BITS: u32 = u64::BITS - u16::BITS;

impl Page {
    /// Both in one number.
    pub(crate) fn key(self) -> u64 {
        u64::from(self.domain) << PFN_BITS | self.pfn
    }

    pub(crate) fn of_key(key: u64) -> Self {
        Self { domain: (key >> PFN_BITS) as u16, pfn: key & ((1 << PFN_BITS) - 1) }
    }

    /// The page `distance` further on in its domain, if there is one.
    fn at(self, distance: i64) -> Option<Self> {
        let pfn = self.pfn.checked_add_signed(distance)?;
        (pfn >> PFN_BITS == 0).then_some(Self { pfn, ..self })
    }
}

/// What an invalidation covers: a domain or all, and of a domain a range of pages, first to last, or all.
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

    /// Calls `each` with every page, where these are no more than `most`; whether they were.
    pub(crate) fn each(&self, most: usize, mut each: impl FnMut(Page)) -> bool {
        let (Some(domain), Some((first, last))) = (self.domain, self.pages) else { return false };
        let few = last - first < most as u64;
        if few {
            (first..=last).for_each(|pfn| each(Page { domain, pfn }));
        }
        few
    }
}

/// What predicts.
pub(crate) trait Prefetcher: Send {
    /// A request for `page` was not served by the IOTLB. Adds the pages that are expected next to `predicted`, the likeliest
    /// first.
    fn missed(&mut self, page: Page, predicted: &mut Vec<Page>);

    /// `page` has left the IOTLB to make room.
    fn evicted(&mut self, _page: Page) {}

    /// An invalidation; the IOTLB held `dropped` of what it covers, of each set the least recent first.
    fn invalidated(&mut self, _covered: Covered, _dropped: &mut dyn Iterator<Item = Page>) {}
}

/// Whether what is learned outlives the addresses that it was learned of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    /// An invalidation takes the history of its pages with it.
    Baseline,
    /// History stays. A prediction may lead to what is mapped no longer, so the walk that checks it is all that protects.
    Modified,
}
