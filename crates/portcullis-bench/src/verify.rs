//! Checks a design closely before it is timed: one mapping after the other, with each descriptor read back from the
//! ring.
//!
//! Timed work can only be counted. Here every unmap under strict protection must have, when it returns, a clear entry
//! and one submission. The descriptors of the submission must cover its pages and end in one wait.

use super::BenchError;
use super::host::Native;
use super::iommu::{Queued, Watched};
use super::work::raw;
use super::workload::Workload;
use portcullis::mapper::{Design, Options};
use portcullis::{Access, DomainConfig, Iova, IovaRange, PAGE_SIZE, PhysAddr, Protection, UnmapError};
use portcullis_vtd::spec::descriptors::{InvalidationDescriptor, IotlbScope};

/// Rounds of maps and unmaps.
const ROUNDS: u64 = 16;
/// Mappings of a round.
const MAPPINGS: u64 = 8;

/// Maps and unmaps like the workload, over an IOMMU that has no domain yet.
pub(super) fn verify<'i, D: Design<Native<true>, &'i Queued>>(
    iommu: &'i Queued,
    options: Options,
    protection: Protection,
    workload: Workload,
) -> Result<(), BenchError> {
    if D::INFO.physical_addresses() {
        return Ok(());
    }
    let config = DomainConfig { options, ..DomainConfig::new(protection) };
    let domain = raw::domain::<D, _, _>(iommu, Native::coherent(), &config)?;
    let len = workload.pages() * PAGE_SIZE;
    let watch =
        Watch { iommu, clears: domain.usage().window_us_max.is_some(), submits: protection == Protection::Strict };
    for round in 0..ROUNDS {
        let phys = |mapping| PhysAddr::new((1 << 32) + (round * MAPPINGS + mapping) * len);
        let map = |mapping| raw::map(&domain, phys(mapping), len, Access::DeviceWrites);
        let mapped = (0..MAPPINGS).map(map).collect::<Result<Vec<_>, _>>()?;
        let pages = |iova: Iova| IovaRange::covering(iova, len).ok_or(UnmapError::BadRange);
        if workload.is_batched() {
            let written = iommu.written();
            let mut batch = domain.raw_batch();
            let ranges = mapped.into_iter().map(pages).collect::<Result<Vec<_>, _>>()?;
            ranges.iter().try_for_each(|range| batch.unmap(*range))?;
            batch.commit()?;
            watch.unmapped(&ranges, written)?;
        } else {
            for iova in mapped {
                let written = iommu.written();
                domain.unmap_raw(iova, len)?;
                watch.unmapped(&[pages(iova)?], written)?;
            }
        }
    }
    Ok(())
}

/// Checks the unmaps of a design.
struct Watch<'i> {
    iommu: &'i Queued,
    clears: bool,
    submits: bool,
}

impl Watch<'_> {
    /// Checks the state after a commit of these unmaps, and the descriptors written since `written`.
    fn unmapped(&self, ranges: &[IovaRange], written: usize) -> Result<(), BenchError> {
        let tables = self.iommu.tables().filter(|_| self.clears);
        let pages = || ranges.iter().flat_map(|range| range.first_pfn()..range.end_pfn());
        if let Some(pfn) = tables.and_then(|tables| pages().find(|pfn| tables.leaf(Iova::from_pfn(*pfn)).is_some())) {
            return Err(BenchError::Check(format!("{:#x} was unmapped and still translates", pfn * PAGE_SIZE)));
        }
        if !self.submits {
            return Ok(());
        }
        let refused = |what: &str| Err(BenchError::Check(format!("{what} for the unmap of {ranges:?}")));
        let Some(words) = self.iommu.since(written) else { return refused("too many descriptors") };
        let Ok(descriptors) = words.into_iter().map(InvalidationDescriptor::decode).collect::<Result<Vec<_>, _>>()
        else {
            return refused("a descriptor that hardware refuses");
        };
        let Some((InvalidationDescriptor::Wait { .. }, commands)) = descriptors.split_last() else {
            return refused("no wait");
        };
        if commands.iter().any(|command| !matches!(command, InvalidationDescriptor::Iotlb { .. })) {
            return refused("more than one submission");
        }
        let covers = |pfn: u64, command: &InvalidationDescriptor| match *command {
            InvalidationDescriptor::Iotlb { scope: IotlbScope::Pages { first, mask, .. }, .. } => {
                first.pfn() >> mask == pfn >> mask
            }
            _ => true,
        };
        match pages().all(|pfn| commands.iter().any(|command| covers(pfn, command))) {
            true => Ok(()),
            false => refused("no invalidation of every page"),
        }
    }
}
