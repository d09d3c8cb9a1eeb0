//! Table pages that `portcullis` gives back to the host: the hardware must have lost all pointers to them.

use super::hardware::{HardwareFlaw, PlantedIommu};
use crate::raw_face::RawFace;
use portcullis::chunk::TABLE_IDLE_US;
use portcullis::chunk::{CHUNKED_PAGES_MAX, TABLE_RESERVE};
use portcullis::designs::Portcullis;
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::FakeHost;
use portcullis::table::Rights;
use portcullis::{Access, Iova, Open, PAGE_SIZE, PhysAddr, Protection, SourceId};
use std::panic::{AssertUnwindSafe, catch_unwind};

const DEVICE: SourceId = SourceId::new(0, 5, 0);
/// The longest mappings that are placed in chunks: each has its own table.
const LEN: u64 = CHUNKED_PAGES_MAX * PAGE_SIZE;

/// Has tables given back, and then the device tries all addresses again. Returns the panic of the walk, if any.
fn walk_after_reclaim(flaw: HardwareFlaw) -> Option<String> {
    let host = FakeHost::default();
    let hardware = FakeIommu::new(&host);
    let iommu = PlantedIommu::new(&hardware, flaw);
    let domain = Portcullis::open(&iommu, &host, Protection::Strict).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let map = |number| domain.raw_map(PhysAddr::from_pfn((1 + number) * 512), LEN, Access::DeviceWrites).expect("room");
    // The stream still uses the table of the last mapping.
    let mapped: Vec<Iova> = (0..=2 * TABLE_RESERVE as u64).map(map).collect();
    let reach = |iova: &Iova| hardware.access(DEVICE, *iova, Rights::WRITE);
    assert!(mapped.iter().all(|iova| reach(iova).is_some()));
    mapped.iter().for_each(|iova| domain.unmap_raw(*iova, LEN).expect("mapped"));
    let before = host.frames_lent();
    for _ in 0..3 {
        host.advance_us(TABLE_IDLE_US);
        domain.tick().expect("the hardware answers");
    }
    assert_eq!(host.frames_lent(), before - TABLE_RESERVE, "the tables beyond the reserve were given back");
    let freed_too_early = host.take_freed_while_walked();
    let walked = catch_unwind(AssertUnwindSafe(|| mapped.iter().filter_map(reach).count()));
    assert_eq!(freed_too_early.is_some(), walked.is_err(), "the host knows what the walk finds");
    match walked {
        Ok(reached) => {
            assert_eq!(reached, 0, "S2");
            drop(domain);
            assert_eq!(host.frames_lent(), 0);
            None
        }
        Err(panic) => {
            // Its hardware is in no state to close it.
            std::mem::forget(domain);
            let text = panic.downcast_ref::<&str>().map(ToString::to_string);
            Some(text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default())
        }
    }
}

#[test]
fn s4_a_table_page_that_goes_after_a_leaf_only_invalidation() {
    assert_eq!(walk_after_reclaim(HardwareFlaw::None), None, "without the flaw");
    let found = walk_after_reclaim(HardwareFlaw::LeavesPointers).expect("the flaw was not found");
    assert!(found.contains("S4"), "{found}");
}
