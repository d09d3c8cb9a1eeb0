//! Typed buffers with bounced parts: who may use them, and when they are copied to.

use super::{Bench, Buffer, Memory, PAGE, SECRET, maps};
use portcullis::domain::{Mapping, RingConfig, UnmapFailure};
use portcullis::iommu::fake::Behaviour;
use portcullis::{Access, Iova, MapOptions, Protection, SubPage, UnmapError};
use portcullis_designs::DesignId;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The device does not see a buffer with bounced parts, and the unmap writes to the buffer. Such a buffer must not be
/// used while it is mapped, through the typed or the raw interface. Whole pages are mapped directly.
#[test]
fn what_is_bounced_is_not_shared() {
    let shows = |mapping: &Mapping<Buffer>| {
        let shown = catch_unwind(AssertUnwindSafe(|| mapping.shared().memory.get(0)));
        shown.is_ok_and(|byte| byte == SECRET)
    };
    for (sub_page, len) in
        [(SubPage::Expose, 100), (SubPage::Expose, PAGE), (SubPage::Bounce, 100), (SubPage::Bounce, PAGE)]
    {
        let bench = Bench::new();
        let domain = bench.domain(DesignId::Portcullis, Protection::Strict, sub_page);
        let is_shared = sub_page == SubPage::Expose || len == PAGE;
        let mapped = domain.map(Buffer::new(1, 0, len), Access::DeviceWrites).unwrap();
        let options = MapOptions { limit: u32::MAX.into(), ..MapOptions::default() };
        let with = domain.map_with(Buffer::new(1, 0, len), Access::DeviceWrites, &options).unwrap();
        let mut ring = domain.ring(RingConfig::default()).unwrap();
        let descriptor = ring.map([Buffer::new(1, 0, len)].into_iter().collect()).unwrap();
        for mapping in [&mapped, &with, &descriptor.mappings()[0]] {
            assert_eq!(shows(mapping), is_shared, "{sub_page}: {len}");
        }
        // A shared mapping that could not be used is refused.
        let shared = domain.map_shared(Buffer::new(1, 0, len), Access::DeviceWrites);
        assert_eq!(shared.is_ok(), is_shared, "{sub_page}: {len}");
        if let Ok(mapping) = shared {
            assert!(shows(&mapping), "{sub_page}: {len}");
            domain.unmap(mapping).unwrap();
        }
        for mapping in [mapped, with] {
            domain.unmap(mapping).unwrap();
        }
        ring.unmap(descriptor).unwrap();
        bench.end(domain);
    }
}

/// The raw interface may unmap a typed mapping early, and another mapping may then get its address. An unmap of the
/// first mapping would take the second, and a copy to the first buffer may still be under way. The buffer is lost, and
/// no memory that its owner can reach is written.
#[test]
fn a_buffer_that_was_unmapped_early_never_comes_back() {
    for batched in [false, true] {
        let bench = Bench::new();
        let domain = bench.domain(DesignId::Stock, Protection::Strict, SubPage::Bounce);
        let first = domain.map(Buffer::new(1, 8, 64), Access::DeviceWrites).unwrap();
        domain.unmap_raw(first.iova(), 64).unwrap();
        let second = domain.map(Buffer::new(1, 16, 64), Access::DeviceWrites).unwrap();
        assert_eq!(first.range(), second.range());
        let unmap = |mapping| match batched {
            true => {
                let mut batch = domain.batch();
                let refused = batch.unmap(mapping).expect_err("not the mapping of this buffer");
                assert!(batch.commit().unwrap().is_empty());
                refused
            }
            false => match domain.unmap(mapping) {
                Err(UnmapFailure::Refused(refused)) => refused,
                other => panic!("{other:?}"),
            },
        };
        for mapping in [first, second] {
            let range = mapping.range();
            let refused = unmap(mapping);
            assert_eq!(refused.error, UnmapError::NotMapped(range.start()));
            // It stays lent for good, because no domain can take it back.
            std::mem::forget(refused.value);
        }
        assert_eq!((domain.usage().live_ranges, domain.usage().bounce_pages), (0, 0));
        bench.end(domain);
    }
}

/// What the device has written to a bounce page is in the buffer after the second half of the commit, and not before.
#[test]
fn bounced_parts_are_copied_by_the_second_half() {
    for design in [DesignId::Portcullis, DesignId::Magazine] {
        let bench = Bench::new();
        let domain = bench.domain(design, Protection::Strict, SubPage::Bounce);
        let memory = Memory::new(1);
        let iova = maps(&domain, &memory, 100, 8, Access::DeviceWrites).expect("room");
        assert!(bench.writes(iova, 7));
        bench.iommu.behave(Behaviour::Slow);
        let mut batch = domain.raw_batch();
        batch.unmap_raw(Iova::new(iova), 8).expect("mapped");
        let mut submitted = batch.submit().expect("room");
        assert!(!submitted.is_done());
        assert_eq!((memory.get(100), domain.usage().bounce_pages), (SECRET, 1));
        assert!(bench.writes(iova + 1, 8), "the device still has the bounce page");
        submitted.wait().expect("the hardware answers");
        assert_eq!([99, 100, 101, 102].map(|at| memory.get(at)), [SECRET, 7, 8, SECRET]);
        assert_eq!(domain.usage().bounce_pages, 0);
        bench.iommu.behave(Behaviour::Prompt);
        bench.end(domain);
    }
}
