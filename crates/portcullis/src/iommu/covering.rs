//! Covering several pages with one command.

use super::{Capabilities, DomainId, Invalidation};
use crate::address::{Iova, IovaRange};

/// The command that covers `range`: the smallest aligned power of two of pages around it, or the whole domain if the
/// hardware has no page-selective command of that size. A domain-selective command drops all levels, so it is correct
/// with and without the hint.
#[inline]
pub(crate) fn covering(
    domain: DomainId,
    range: IovaRange,
    leaf_only: bool,
    capabilities: &Capabilities,
) -> Invalidation {
    let differing = range.first_pfn() ^ (range.end_pfn() - 1);
    let mask = (u64::BITS - differing.leading_zeros()) as u8;
    match capabilities.address_mask_max {
        Some(max) if mask <= max => {
            Invalidation::Pages { domain, first: Iova::from_pfn(range.first_pfn() >> mask << mask), mask, leaf_only }
        }
        _ => Invalidation::Domain(domain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iommu::Iommu;
    use crate::iommu::fake::FakeIommu;
    use crate::platform::fake::FakeHost;

    /// For each start and length, the command covers the range and is aligned, and half of it would not be enough.
    #[test]
    fn commands_are_the_smallest_that_cover() {
        let host = FakeHost::default();
        let capabilities = FakeIommu::new(&host).capabilities();
        for first in 0..70 {
            for pages in 1..70 {
                let range = IovaRange::new(0x1000 + first, pages).unwrap();
                let command = covering(DomainId(1), range, true, &capabilities);
                let Invalidation::Pages { first, mask, .. } = command else { panic!("{command:?}") };
                let end = first.pfn() + (1 << mask);
                assert!(first.pfn() % (1 << mask) == 0 && first <= range.start() && range.end_pfn() <= end, "{range}");
                let half = |pfn: u64| pfn >> mask.saturating_sub(1);
                assert!(mask == 0 || half(range.first_pfn()) != half(range.end_pfn() - 1), "{range}: {command:?}");
            }
        }
    }
}
