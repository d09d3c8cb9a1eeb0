//! A kernel in miniature around the protection layer and the VT-d driver, without std.
//!
//! The proof is that it links. The panic handler below is a lang item that std has too, so a crate that pulls in std
//! breaks the build with a duplicate. Every design is compiled in full, over a host and registers that a kernel could
//! have, and is reached through the C functions here. Each operation of each design is also a separate function, whose
//! stack `cargo xtask frames` measures. Without the feature `designs`, there is one design and none of these functions:
//! what a kernel links that has made its choice.
#![no_std]

extern crate alloc;

mod allocator;
#[cfg(feature = "designs")]
mod frames;
mod host;
#[cfg(not(feature = "designs"))]
mod one;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::panic::PanicInfo;
use host::Host;
#[cfg(not(feature = "designs"))]
use one::One as DesignId;
use portcullis::{Access, DomainConfig, DynDomain, Iommu, Iova, PhysAddr, Protection, Segment, SourceId};
#[cfg(feature = "designs")]
use portcullis_designs::DesignId;
use portcullis_vtd::spec::registers::BLOCK_BYTES;
use portcullis_vtd::{MappedRegisters, Unit, UnitConfig};

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// An open address space and its unit. The domain keeps the unit alive as well.
pub struct Handle(Box<DynDomain>, Arc<Unit<MappedRegisters, Host>>);

/// Brings up the VT-d unit at `registers`, and opens an address space under design number `design` (in the order of
/// the table of designs) with protection 0 (none), 1 (strict) or 2 (deferred), over the first `memory_bytes` of
/// memory. Returns null if any of it is refused. A unit that has come up by then stays on, with every device shut
/// out.
///
/// # Safety
/// `registers` is the mapped register block, a page of it, of a VT-d unit that has no other driver until the space is
/// closed. Without protection, all memory is meant for every device that is attached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_open(
    registers: *mut u8,
    design: usize,
    protection: u8,
    memory_bytes: u64,
) -> *mut Handle {
    let protection = match protection {
        0 => Protection::None,
        1 => Protection::Strict,
        2 => Protection::Deferred,
        _ => return core::ptr::null_mut(),
    };
    let Some(design) = DesignId::ALL.get(design) else { return core::ptr::null_mut() };
    // SAFETY: the caller's promise, passed on.
    let registers = unsafe { MappedRegisters::new(registers, BLOCK_BYTES) };
    let memory = [Segment { phys: PhysAddr::new(0), len: memory_bytes }];
    let Ok(unit) = Unit::bring_up(registers, Host, UnitConfig::default()) else { return core::ptr::null_mut() };
    // This host has no cache-line flush.
    let is_coherent = unit.capabilities().coherent;
    let unit = Arc::new(unit);
    if !is_coherent {
        return core::ptr::null_mut();
    }
    let config = DomainConfig { memory: &memory, ..DomainConfig::new(protection) };
    // SAFETY: without protection, the caller has promised this.
    match unsafe { DynDomain::open_unprotected(*design, unit.clone(), Host, &config) } {
        Ok(domain) => Box::into_raw(Box::new(Handle(domain, unit))),
        Err(_) => core::ptr::null_mut(),
    }
}

/// Attaches the device with this source id to the space.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_attach(handle: &Handle, device: u16) -> bool {
    handle.0.attach(SourceId::from_requester(device)).is_ok()
}

/// Maps a buffer for the device to read (`access` 1), write (2) or both (3). The address for the device is stored in
/// `iova`.
///
/// # Safety
/// The memory is meant for the devices of the space until an unmap of it has returned true and the window of its
/// design is over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_map(handle: &Handle, phys: u64, len: u64, access: u8, iova: &mut u64) -> bool {
    let access = match access {
        1 => Access::DeviceReads,
        2 => Access::DeviceWrites,
        3 => Access::DeviceReadsAndWrites,
        _ => return false,
    };
    // SAFETY: the caller's promise, passed on.
    match unsafe { handle.0.map_raw(PhysAddr::new(phys), len, access) } {
        Ok(mapped) => {
            *iova = mapped.as_u64();
            true
        }
        Err(_) => false,
    }
}

/// Unmaps a mapping. The buffer belongs to the caller again only if this returns true.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_unmap(handle: &Handle, iova: u64, len: u64) -> bool {
    handle.0.unmap_raw(Iova::new(iova), len).is_ok()
}

/// Flushes what has waited long enough. The kernel must call it from a timer.
#[unsafe(no_mangle)]
pub extern "C" fn portcullis_tick(handle: &Handle) -> bool {
    handle.0.tick().is_ok()
}

/// Closes the space and shuts the unit down. Returns whether the unit has stopped.
///
/// # Safety
/// `handle` came from [`portcullis_open`] and is not used again. No device behind the unit does DMA any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn portcullis_close(handle: *mut Handle) -> bool {
    // SAFETY: made by `Box::into_raw`, and the caller gives it up.
    let Handle(domain, unit) = *unsafe { Box::from_raw(handle) };
    drop(domain);
    // SAFETY: the caller's promise, passed on.
    Arc::into_inner(unit).is_some_and(|unit| unsafe { unit.shut_down() }.is_ok())
}
