//! Remapping units: where firmware says they are, how they come up under live devices, and how they go.

use crate::errno::{EBUSY, EINVAL, ENODEV, ENOENT, ENOMEM, Errno};
use crate::host::{DIRECT_MAP, Host};
use crate::kernel::{pcs_buses, pcs_fault};
use crate::log::{print, refused};
use crate::memory::room;
use crate::registers::Registers;
use alloc::boxed::Box;
use core::ffi::c_void;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use portcullis::iommu::{AttachError, DomainId, Translation};
use portcullis::{Iommu, SourceId};
use portcullis_vtd::dmar::{Dmar, ScopeKind, Structure};
use portcullis_vtd::spec::faults::FaultRequest;
use portcullis_vtd::spec::registers::{GCMD, GSTS, global};
use portcullis_vtd::{BringUpError, Mmio, RegisterTimeout, UnitConfig};

/// A unit as the driver has it.
pub(crate) type VtdUnit = portcullis_vtd::Unit<Registers, Host>;
/// What domains have of it: it goes after all of them.
#[cfg(not(feature = "planted-no-invalidation"))]
pub(crate) type SharedUnit = &'static VtdUnit;
#[cfg(feature = "planted-no-invalidation")]
pub(crate) type SharedUnit = crate::planted::Deaf<&'static VtdUnit>;

/// A unit that is up.
pub struct Unit {
    vtd: VtdUnit,
    registers: Registers,
    /// The domain of devices that are not protected.
    pass_through: DomainId,
}

impl Unit {
    /// The unit, for a domain.
    ///
    /// # Safety
    /// The domain goes before the unit is taken down.
    pub(crate) unsafe fn shared(&self) -> SharedUnit {
        // SAFETY: the caller's promise.
        let vtd: &'static VtdUnit = unsafe { &*core::ptr::from_ref(&self.vtd) };
        #[cfg(feature = "planted-no-invalidation")]
        let vtd = crate::planted::Deaf(vtd);
        vtd
    }
}

static TABLE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static TABLE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The table of firmware, checked when it was told of.
pub(crate) fn dmar() -> Option<Dmar<'static>> {
    let table = TABLE.load(Ordering::Acquire);
    if table.is_null() {
        return None;
    }
    // SAFETY: `pcr_table` was promised so many bytes for as long as the module is there.
    let bytes = unsafe { core::slice::from_raw_parts(table, TABLE_BYTES.load(Ordering::Relaxed)) };
    Dmar::parse(bytes).ok()
}

/// Which buses a bridge leads to, as the kernel has numbered them.
pub(crate) fn buses(segment: u16) -> impl Fn(SourceId) -> Option<RangeInclusive<u8>> {
    move |bridge| {
        // SAFETY: looks a device up; the caller may sleep.
        let found = unsafe { pcs_buses(segment, bridge.0) };
        (found >> 16 != 0).then_some(found as u8..=(found >> 8) as u8)
    }
}

/// Tells of the DMAR table. Returns how many units it has, or a negative error number.
///
/// # Safety
/// `table` has `len` bytes that do not change until the module goes. The processor has the instruction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_table(table: *const u8, len: usize, direct_map: u64, flush_instruction: u8) -> i32 {
    DIRECT_MAP.store(direct_map, Ordering::Relaxed);
    // SAFETY: the kernel has asked the processor.
    unsafe { crate::flush::use_instruction(flush_instruction) };
    // SAFETY: the caller's promise.
    match Dmar::parse(unsafe { core::slice::from_raw_parts(table, len) }) {
        Ok(dmar) => {
            TABLE_BYTES.store(len, Ordering::Relaxed);
            // Release: a reader that sees the table sees its length.
            TABLE.store(table.cast_mut(), Ordering::Release);
            dmar.units().count() as i32
        }
        Err(error) => {
            print(format_args!("the DMAR table cannot be read: {error}"));
            EINVAL
        }
    }
}

/// Where a unit is.
#[repr(C)]
pub struct Place {
    base: u64,
    bytes: u64,
    segment: u32,
    /// Width of the machine's physical addresses.
    physical_bits: u32,
}

/// Where unit `index` of the table is.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_place(index: u32, out: &mut Place) -> i32 {
    let Some(dmar) = dmar() else { return ENODEV };
    let Some(found) = dmar.units().nth(index as usize) else { return ENODEV };
    *out = Place {
        base: found.register_base.as_u64(),
        bytes: found.register_bytes,
        segment: u32::from(found.segment),
        physical_bits: u32::from(dmar.host_address_bits()),
    };
    0
}

/// Which unit of the table serves a device; a negative error number where none does.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_unit_of(segment: u16, source: u16) -> i32 {
    let Some(dmar) = dmar() else { return ENODEV };
    let Some(found) = dmar.unit_for(segment, SourceId(source), buses(segment)) else { return ENODEV };
    let index = dmar.units().position(|unit| unit.register_base == found.register_base);
    index.map_or(ENODEV, |index| index as i32)
}

/// The id of master `index` behind unit `unit` of the table: what does DMA and is no PCI device, but has a name in the ACPI namespace. A
/// negative error number where there are no more, which is `ENOENT`, or where the way to it leads nowhere.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_master(unit: u32, index: u32) -> i32 {
    let Some(dmar) = dmar() else { return ENODEV };
    let Some(unit) = dmar.units().nth(unit as usize) else { return ENODEV };
    let mut masters = unit.scopes.iter().filter(|scope| scope.kind == ScopeKind::Namespace);
    let Some(scope) = masters.nth(index as usize) else { return ENOENT };
    match scope.source(buses(unit.segment)) {
        Some(source) => i32::from(source.0),
        None => {
            let name = dmar.structures().find_map(|structure| match structure {
                Structure::Andd(master) if master.number == scope.enumeration_id => Some(master.name),
                _ => None,
            });
            print(format_args!(
                "the DMAR table names the device {:?} (number {}), and there is no bridge on its way: it would be shut out",
                name.unwrap_or_default(),
                scope.enumeration_id
            ));
            EINVAL
        }
    }
}

/// Brings a unit up with all of `sources` passed through, none of which is shut out at any moment.
///
/// # Safety
/// `registers` is the mapped register block of a unit without another driver. `sources` has `count` ids.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_bring_up(
    registers: *mut u8,
    physical_bits: u8,
    sources: *const u16,
    count: usize,
    out: &mut *mut Unit,
) -> i32 {
    // SAFETY: the caller's promise.
    let sources = unsafe { core::slice::from_raw_parts(sources, count) };
    // SAFETY: the caller's promise. The second handle is used once, when the first no longer is.
    let (driven, spare) = unsafe { (Registers::new(registers), Registers::new(registers)) };
    let room = match room::<Unit>() {
        Ok(room) => room,
        Err(_) => return ENOMEM,
    };
    let config = UnitConfig { physical_bits, ..UnitConfig::default() };
    let mut pass_through = DomainId(0);
    let admit = |unit: &VtdUnit| -> Result<(), AttachError> {
        // SAFETY: the kernel has let these devices reach all memory until now.
        pass_through = unsafe { unit.open_domain(Translation::PassThrough) }?;
        sources.iter().try_for_each(|source| unit.attach(pass_through, SourceId(*source)))
    };
    match VtdUnit::bring_up_with(driven, Host, config, admit) {
        Ok(vtd) => {
            let unit = Box::write(room, Unit { vtd, registers: spare, pass_through });
            *out = Box::into_raw(unit);
            0
        }
        Err(error @ (BringUpError::InUse { .. } | BringUpError::RemapsInterrupts)) => {
            print(format_args!("{error}: boot with intel_iommu=off intremap=off"));
            EBUSY
        }
        Err(error) => refused("a unit was not brought up", &error),
    }
}

/// Turns the unit off: its devices reach all memory from then on, as before it was brought up.
///
/// # Safety
/// From [`pcr_bring_up`], and not used any more. Its domains have gone, and with them all devices that were not passed through.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_take_down(unit: *mut Unit) -> i32 {
    // SAFETY: the caller's promise.
    let unit = *unsafe { Box::from_raw(unit) };
    // SAFETY: only passed-through devices are left, for which all memory is meant.
    match unsafe { unit.vtd.shut_down() } {
        Ok(()) => 0,
        Err(error) => refused("a unit does not stop", &error),
    }
}

impl Errno for RegisterTimeout {
    fn errno(&self) -> i32 {
        crate::errno::EIO
    }
}

/// Stops the queue of a unit for a reboot; translation stays on. No lock is taken.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_halt(unit: &Unit) -> i32 {
    match unit.vtd.halt() {
        Ok(()) => 0,
        Err(error) => refused("a unit does not halt", &error),
    }
}

/// Stops the queue of a unit and turns its translation off, for the kernel that takes this one's place.
///
/// # Safety
/// No device behind the unit does DMA any more, but those that were passed through.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_open_gate(unit: &Unit) -> i32 {
    let halted = pcr_halt(unit);
    if halted != 0 {
        return halted;
    }
    // What is on, without translation; what acts once must not be written again.
    let stays = unit.registers.read32(GSTS) & !global::ONE_SHOT & !global::TRANSLATION;
    // SAFETY: the driver was halted, and the caller promises that no device relies on translation.
    unsafe { unit.registers.write32(GCMD, stays) };
    0
}

/// Lets a device through, or shuts it out.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_pass_through(unit: &Unit, source: u16, on: bool) -> i32 {
    let source = SourceId(source);
    let done = match on {
        true => unit.vtd.attach(unit.pass_through, source),
        false => unit.vtd.detach(unit.pass_through, source),
    };
    match done {
        Ok(()) => 0,
        // For the caller to judge: it may be so already.
        Err(error @ (AttachError::Attached(_) | AttachError::NotAttached(_))) => error.errno(),
        Err(error) => refused("pass-through", &error),
    }
}

/// What a unit is and has done.
#[repr(C)]
pub struct UnitUse {
    capability: u64,
    extended_capability: u64,
    commits: u64,
    waits: u64,
    address_bits: u32,
    pass_through: u32,
}

/// Says what a unit is and has done.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_unit_use(unit: &Unit, out: &mut UnitUse) {
    let used = unit.vtd.queue_use();
    *out = UnitUse {
        capability: unit.vtd.capability().0,
        extended_capability: unit.vtd.extended_capability().0,
        commits: used.commits,
        waits: used.waits,
        address_bits: u32::from(unit.vtd.capabilities().address_bits),
        pass_through: u32::from(unit.pass_through.0),
    };
}

/// Hands recorded faults to the C half. Returns whether others were lost.
///
/// # Safety
/// `context` is what `pcs_fault` takes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_faults(unit: &Unit, context: *mut c_void) -> bool {
    unit.vtd.faults(&mut |fault| {
        let is_write = fault.request == FaultRequest::Write;
        // SAFETY: the caller's promise.
        unsafe { pcs_fault(context, fault.source.0, fault.page.as_u64(), is_write, u32::from(fault.reason.code())) }
    })
}
