//! `magazine` does what the traced kernel, Linux 6.12, did: it sends the same invalidation for every unmap.

use super::{STRICT_TRACES, bundled};
use portcullis::designs::Magazine;
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::{FakeHost, run_on};
use portcullis::{Invalidation, IovaRange, Open, PAGE_SHIFT, Protection, Request};
use portcullis_trace::{OperationKind, Trace, TracedInvalidation};
use portcullis_vtd::spec::descriptors::{InvalidationDescriptor, IotlbScope};
use std::collections::BTreeMap;

/// The number of unmaps of so many pages that sent a page-selective command with this mask and this hint. The key is
/// the pages, the mask and the hint.
type Histogram = BTreeMap<(u32, u8, bool), usize>;

/// The first page, the mask and the hint of a traced descriptor.
fn page_selective(traced: &TracedInvalidation) -> (u64, u8, bool) {
    match InvalidationDescriptor::decode([traced.qw0, traced.qw1]) {
        Ok(InvalidationDescriptor::Iotlb { scope: IotlbScope::Pages { first, mask, leaf_only, .. }, .. }) => {
            (first.pfn(), mask, leaf_only)
        }
        other => panic!("{other:?} is no page-selective command"),
    }
}

/// The commands that the traced kernel sent. A command belongs to the last unmap before it, on any CPU, that it
/// covers.
fn traced(name: &str, trace: &Trace) -> Histogram {
    let mut histogram = Histogram::new();
    let mut unmapped: Vec<u32> = Vec::new();
    let (mut next, mut of_unmatched) = (0, 0);
    for traced in &trace.invalidations {
        for operation in &trace.operations[next..traced.at_operation as usize] {
            if operation.kind == OperationKind::Unmap {
                unmapped.push(operation.mapping);
            }
        }
        next = traced.at_operation as usize;
        let (first, mask, leaf_only) = page_selective(traced);
        let covered = |mapping: u32| {
            let mapping = &trace.mappings[mapping as usize];
            first <= mapping.iova_pfn && mapping.iova_pfn + u64::from(mapping.pages) <= first + (1 << mask)
        };
        match unmapped.iter().rposition(|mapping| covered(*mapping)) {
            Some(at) => {
                let mapping = unmapped.remove(at);
                *histogram.entry((trace.mappings[mapping as usize].pages, mask, leaf_only)).or_default() += 1;
            }
            None => of_unmatched += 1,
        }
    }
    assert_eq!(of_unmatched, trace.unmatched.len(), "{name}: what no unmap explains precedes the capture");
    assert!(unmapped.is_empty(), "{name}: {} unmaps sent nothing", unmapped.len());
    histogram
}

/// The commands that `magazine` sends for the same operations.
fn ours(trace: &Trace) -> Histogram {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Magazine::open(&iommu, &host, Protection::Strict).expect("a domain");
    let mut histogram = Histogram::new();
    let mut live: BTreeMap<u32, IovaRange> = BTreeMap::new();
    for operation in &trace.operations {
        run_on(u32::from(operation.cpu));
        let mapping = &trace.mappings[operation.mapping as usize];
        match operation.kind {
            OperationKind::Map => {
                let request = Request::new(trace.segments_of(mapping), mapping.access).expect("a buffer");
                // SAFETY: no memory is behind the model but its own.
                let range = unsafe { domain.map_request(&request) }.expect("room");
                live.insert(operation.mapping, range);
                assert_eq!(iommu.take_commands(), [], "a map sends nothing");
            }
            OperationKind::Unmap => {
                let range = live.remove(&operation.mapping).expect("mapped before");
                domain.unmap_raw(range.start(), range.pages() << PAGE_SHIFT).expect("mapped");
                match iommu.take_commands()[..] {
                    [Invalidation::Pages { first, mask, leaf_only, .. }] => {
                        assert!(first <= range.start() && range.end_pfn() <= first.pfn() + (1 << mask));
                        *histogram.entry((mapping.pages, mask, leaf_only)).or_default() += 1;
                    }
                    ref other => panic!("{other:?} for one unmap"),
                }
            }
        }
    }
    run_on(0);
    histogram
}

#[test]
fn every_strict_unmap_sends_the_command_that_linux_sent() {
    let mut masks = Vec::new();
    for name in STRICT_TRACES {
        let trace = bundled(name);
        let (traced, ours) = (traced(name, &trace), ours(&trace));
        assert_eq!(ours, traced, "{name}: (pages, mask, leaf only)");
        masks.extend(traced.keys().map(|(_, mask, leaf_only)| (*mask, *leaf_only)));
    }
    masks.sort_unstable();
    masks.dedup();
    // One page, two pages, and the 32 pages of a large read. The hint is always set.
    assert_eq!(masks, [(0, true), (1, true), (5, true)]);
}
