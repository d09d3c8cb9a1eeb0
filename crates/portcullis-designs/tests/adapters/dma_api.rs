//! An adapter for `DmaOp` of the crate `dma-api`.

use crate::machine::{DEVICE, Machine, designs, first_iova, pages_of, phys, whole_pages};
use core::alloc::Layout;
use core::num::NonZeroUsize;
use core::ptr::NonNull;
use dma_api::{
    DeviceDma, DmaAllocHandle, DmaCoherency, DmaConstraints, DmaDeviceInfo, DmaDirection, DmaDomainId, DmaError,
    DmaMapHandle, DmaOp,
};
use portcullis::iommu::fake::Behaviour;
use portcullis::table::Rights;
use portcullis::{Access, DynDomain, Iova, Lifetime, MapOptions, PAGE_SIZE, RawMapError, SubPage};
use std::alloc::{alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicUsize, Ordering};

struct Adapter {
    domain: Box<DynDomain>,
    /// Allocations that the device may still reach (S11): they are never freed.
    lost: AtomicUsize,
}

impl Adapter {
    fn lose(&self) {
        // Relaxed: a statistic.
        self.lost.fetch_add(1, Ordering::Relaxed);
    }
}

fn access(direction: DmaDirection) -> Access {
    match direction {
        DmaDirection::ToDevice => Access::DeviceReads,
        DmaDirection::FromDevice => Access::DeviceWrites,
        DmaDirection::Bidirectional => Access::DeviceReadsAndWrites,
    }
}

fn options(constraints: &DmaConstraints, lifetime: Lifetime) -> MapOptions {
    MapOptions {
        lifetime,
        limit: constraints.addr_mask,
        alignment: constraints.align as u64,
        boundary: constraints.boundary.map(|boundary| boundary as u64),
        ..MapOptions::default()
    }
}

/// The layout of memory that lives as long as the driver uses it: whole pages.
fn lasting(layout: Layout) -> Layout {
    whole_pages(layout.size(), layout.align())
}

impl DmaOp for Adapter {
    fn page_size(&self) -> usize {
        PAGE_SIZE as usize
    }

    unsafe fn alloc_contiguous(&self, constraints: DmaConstraints, layout: Layout) -> Option<DmaAllocHandle> {
        let pages = lasting(layout);
        // SAFETY: the trait never requests zero bytes.
        let memory = NonNull::new(unsafe { alloc_zeroed(pages) })?;
        // The requested alignment is that of the device's address. The memory is aligned to a page.
        let options = options(&constraints, Lifetime::Persistent);
        let (phys, len) = (phys(memory), pages.size() as u64);
        // SAFETY: only the driver and the device use the pages until they are freed.
        match unsafe { self.domain.map_raw_with(phys, len, Access::DeviceReadsAndWrites, &options) } {
            // SAFETY: it was just allocated and mapped.
            Ok(iova) => Some(unsafe { DmaAllocHandle::new(memory, memory, iova.as_u64().into(), layout) }),
            Err(RawMapError::Refused(_)) => {
                // SAFETY: it was allocated above, and no device has seen it.
                unsafe { dealloc(memory.as_ptr(), pages) };
                None
            }
            Err(RawMapError::Lost(_)) => {
                self.lose();
                None
            }
        }
    }

    unsafe fn dealloc_contiguous(&self, handle: DmaAllocHandle) {
        let layout = Layout::from_size_align(handle.size(), handle.align()).expect("that of the allocation");
        let pages = lasting(layout);
        match self.domain.unmap_raw(Iova::new(handle.dma_addr().as_u64()), pages.size() as u64) {
            // SAFETY: it is from `alloc_contiguous`, and the device has lost it.
            Ok(()) => unsafe { dealloc(handle.allocation_ptr().as_ptr(), pages) },
            Err(_) => self.lose(),
        }
    }

    unsafe fn alloc_coherent(&self, _: DmaConstraints, _: Layout) -> Option<DmaAllocHandle> {
        // This is for devices that do not snoop. The device here does.
        None
    }

    unsafe fn dealloc_coherent(&self, _: DmaAllocHandle) -> Result<(), DmaError> {
        Err(DmaError::CoherentReleaseFailed)
    }

    unsafe fn map_streaming(
        &self,
        constraints: DmaConstraints,
        buffer: NonNull<u8>,
        size: NonZeroUsize,
        direction: DmaDirection,
    ) -> Result<DmaMapHandle, DmaError> {
        let options = options(&constraints, Lifetime::Transient);
        // SAFETY: until `unmap_streaming`, only the driver uses the buffer, and it follows the order of syncs.
        let mapped = unsafe { self.domain.map_list(pages_of(buffer, size.get()), access(direction), &options) };
        // A lost buffer must not be used again either, but the trait cannot express that.
        let range = mapped.map_err(|error| match error {
            RawMapError::Refused(_) => DmaError::NoMemory,
            RawMapError::Lost(error) => panic!("{error}"),
        })?;
        let first = pages_of(buffer, size.get()).next().expect("the buffer is not empty");
        let iova = first_iova(&self.domain, first, range).as_u64();
        let layout = Layout::from_size_align(size.get(), 1)?;
        // SAFETY: it was just mapped.
        Ok(unsafe { DmaMapHandle::new(buffer, iova.into(), layout, None) })
    }

    unsafe fn unmap_streaming(&self, handle: DmaMapHandle) {
        let unmapped = self.domain.unmap_raw(Iova::new(handle.dma_addr().as_u64()), handle.size() as u64);
        unmapped.expect("the trait has no way to say that the device keeps the buffer");
    }

    fn sync_map_for_device(&self, handle: &DmaMapHandle, _: usize, _: usize, _: DmaDirection, _: DmaCoherency) {
        // SAFETY: the driver holds the handle and does not use the buffer meanwhile.
        unsafe { self.domain.sync_for_device(Iova::new(handle.dma_addr().as_u64())) };
    }

    fn sync_map_for_cpu(&self, handle: &DmaMapHandle, _: usize, _: usize, _: DmaDirection, _: DmaCoherency) {
        // SAFETY: as above.
        unsafe { self.domain.sync_for_cpu(Iova::new(handle.dma_addr().as_u64())) };
    }
}

/// A device in a domain of 48 bits.
fn device(machine: Machine, domain: Box<DynDomain>) -> DeviceDma {
    device_of(machine, adapter(domain))
}

fn adapter(domain: Box<DynDomain>) -> &'static Adapter {
    Box::leak(Box::new(Adapter { domain, lost: AtomicUsize::new(0) }))
}

fn device_of(machine: Machine, adapter: &'static Adapter) -> DeviceDma {
    let number = 1u64.try_into().expect("not zero");
    let (domain, all) = (DmaDomainId::Translated(number), DmaConstraints::new(u64::MAX >> 16));
    assert_eq!(machine.reached(0, Rights::READ), None, "{DEVICE:?} reaches a page that is not mapped");
    DeviceDma::new(DmaDeviceInfo::new(domain, DmaCoherency::Coherent, all), adapter)
}

#[test]
fn rings_and_streams_work_under_any_design() {
    for (design, sub_page) in designs().flat_map(|design| [(design, SubPage::Expose), (design, SubPage::Bounce)]) {
        let machine = Machine::new();
        let dma = device(machine, machine.domain(design, 48, sub_page));
        let mut ring = dma.coherent_array_zero::<u64>(512).expect("a ring");
        ring.set_cpu(3, 0x1234);
        assert_eq!(u64::from_le_bytes(machine.read(ring.dma_addr().as_u64() + 24)), 0x1234);
        let mut buffer = vec![0xee_u8; 1500];
        let iova = {
            let map = dma.map_streaming_slice_for_device(&mut buffer, 1, DmaDirection::FromDevice).expect("room");
            let iova = map.dma_addr().as_u64();
            machine.write(iova, &[0x11; 600]);
            map.complete_for_cpu(0..1500);
            machine.write(iova + 600, &[0x22; 600]);
            iova
        };
        assert_eq!(machine.reached(iova, Rights::WRITE), None, "S2");
        // The bytes that the device has not written are unchanged.
        let expected: Vec<u8> = [[0x11; 600], [0x22; 600], [0xee; 600]].concat();
        assert_eq!(buffer, expected[..1500], "{} {sub_page}", design.info().id);
    }
}

/// S11: memory that the device may still reach is freed neither by the failing allocation nor when the adapter is
/// dropped.
#[test]
fn s11_memory_that_is_lost_is_not_freed() {
    for design in designs() {
        let name = design.info().id;
        let machine = Machine::that_caches_absent();
        let adapter = adapter(machine.domain(design, 48, SubPage::Expose));
        let dma = device_of(machine, adapter);
        let ring = dma.coherent_array_zero::<u64>(512).expect("a ring");
        machine.iommu.behave(Behaviour::Failing);
        assert!(dma.coherent_array_zero::<u64>(512).is_err(), "{name}");
        let lost = adapter.lost.load(Ordering::Relaxed);
        assert_eq!(lost, 1, "{name}: the invalidation at the map failed");
        assert!(dma.coherent_array_zero::<u64>(512).is_err(), "{name}");
        assert_eq!(adapter.lost.load(Ordering::Relaxed), 1, "{name}: a poisoned domain refuses");
        drop(ring);
        assert_eq!(adapter.lost.load(Ordering::Relaxed), 2, "{name}: the invalidation at its unmap failed");
    }
}

/// Without constraints in the request, 4 KiB at 64 KiB took up to 30 tries, and an address below 4 GiB in a wide domain
/// was not available at all.
#[test]
fn constraints_are_kept_at_once() {
    let wide = DmaConstraints::new(u64::MAX >> 16);
    let wanted = [
        (wide.with_align(1 << 16), 4096_usize),
        (wide.with_align(1 << 16), 1 << 16),
        (wide.with_boundary(1 << 16), 3 * 4096),
        (DmaConstraints::new(u32::MAX.into()), 4096),
    ];
    let mut able = Vec::new();
    for design in designs() {
        let machine = Machine::new();
        let dma = device(machine, machine.domain(design, 48, SubPage::Expose));
        let mut kept = 0;
        for (constraints, bytes) in &wanted {
            let Ok(ring) = dma.with_constraints(*constraints).coherent_array_zero::<u8>(*bytes) else { continue };
            let first = ring.dma_addr().as_u64();
            let last = first + *bytes as u64 - 1;
            let boundary = constraints.boundary.map_or(u64::MAX, |boundary| boundary as u64);
            assert!(last <= constraints.addr_mask && first % constraints.align as u64 == 0, "{first:#x}");
            assert_eq!(first / boundary, last / boundary, "{first:#x}");
            kept += 1;
        }
        assert!(kept == 0 || kept == wanted.len(), "{}: {kept}", design.info().id);
        able.extend((kept > 0).then_some(design.info().id));
    }
    assert!(able.len() >= 7 && able.contains(&"portcullis"), "{able:?}");
}
