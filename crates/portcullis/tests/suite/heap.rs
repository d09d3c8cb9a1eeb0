//! What is on the heap, by thread: nothing of a domain stays there when it goes.

use crate::raw_face::{RawFace, open};
use portcullis::chunk::{CHUNKED_PAGES_MAX, TABLE_IDLE_US};
use portcullis::design::Design;
use portcullis::designs::{DesignId, Visitor};
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::FakeHost;
use portcullis::{Access, DomainConfig, PAGE_SIZE, PhysAddr, Protection, Segment};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The allocator of `std`, which counts.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    /// Bytes that this thread has allocated, less those that it has freed.
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    BYTES.with(|all| all.set(all.get() + bytes));
}

// SAFETY: forwards to the allocator of the system.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// A domain comes, maps what takes many tables and addresses, and goes. Returns what it said of its records.
struct Peak<'h> {
    host: &'h FakeHost,
    iommu: &'h FakeIommu<'h>,
    protection: Protection,
}

impl<'h> Visitor<&'h FakeHost, &'h FakeIommu<'h>> for Peak<'h> {
    type Output = usize;

    fn visit<D: Design<&'h FakeHost, &'h FakeIommu<'h>>>(self) -> usize {
        let Self { host, iommu, protection } = self;
        let memory = [Segment { phys: PhysAddr::new(0), len: 1 << 40 }];
        let config = DomainConfig { memory: &memory, ..DomainConfig::new(protection) };
        let domain = open::<D, _, _>(iommu, host, &config).expect("a domain");
        let sizes = (0..40).map(|_| CHUNKED_PAGES_MAX).chain((0..200).map(|number| 1 + number % 5));
        let mapped: Vec<_> = (0..)
            .zip(sizes)
            .map(|(number, pages)| {
                let phys = PhysAddr::from_pfn(0x10_0000 + number * 512);
                (domain.raw_map(phys, pages * PAGE_SIZE, Access::DeviceWrites).expect("room"), pages)
            })
            .collect();
        let records = domain.usage().record_bytes;
        mapped.iter().for_each(|(iova, pages)| domain.unmap_raw(*iova, pages * PAGE_SIZE).expect("mapped"));
        for _ in 0..5 {
            host.advance_us(TABLE_IDLE_US);
            domain.tick().expect("the hardware answers");
        }
        records
    }
}

#[test]
fn a_domain_leaves_nothing_on_the_heap() {
    for design in DesignId::under_test() {
        for protection in design.info().protections {
            let run = || {
                let host = FakeHost::default();
                let iommu = FakeIommu::new(&host);
                design.visit(Peak { host: &host, iommu: &iommu, protection: *protection })
            };
            // What is made once for each thread or process comes now.
            run();
            let before = BYTES.get();
            let records = run();
            assert_eq!(BYTES.get(), before, "{} {protection}, whose records had {records} bytes", design.info().id);
        }
    }
}
