//! Remapping units: where firmware says that they are, how they are brought up under live devices, and how they are
//! taken down.

use crate::errno::{EBUSY, EINVAL, ENODEV, ENOENT, ENOMEM, Errno};
use crate::host::{DIRECT_MAP, Host};
use crate::kernel::{pcs_buses, pcs_fault, pcs_is_display};
use crate::log::{print, refused};
use crate::memory::room;
use alloc::boxed::Box;
use core::ffi::c_void;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use portcullis::iommu::{AttachError, DomainId, Translation};
use portcullis::{Iommu, SourceId};
use portcullis_vtd::chipset::{Chipset, PciFunction};
use portcullis_vtd::dmar::{Dmar, ScopeKind, Structure};
use portcullis_vtd::spec::faults::FaultRequest;
use portcullis_vtd::spec::registers::{BLOCK_BYTES, CAP, Capability, GSTS};
use portcullis_vtd::{BringUpError, MappedRegisters, Mmio, RegisterError, UnitConfig};

/// The driver's unit.
pub(crate) type VtdUnit = portcullis_vtd::Unit<MappedRegisters, Host>;
/// The handle that domains have of a unit. The unit outlives all of them.
#[cfg(not(any(feature = "planted-no-invalidation", feature = "planted-no-answer")))]
pub(crate) type SharedUnit = &'static VtdUnit;
#[cfg(any(feature = "planted-no-invalidation", feature = "planted-no-answer"))]
pub(crate) type SharedUnit = crate::planted::Deaf<&'static VtdUnit>;

/// A unit that is up.
pub struct Unit {
    vtd: VtdUnit,
    registers: MappedRegisters,
    /// The domain of devices that are not protected.
    pass_through: DomainId,
}

impl Unit {
    /// The unit, for a domain.
    ///
    /// # Safety
    /// The domain must be closed before the unit is taken down.
    pub(crate) unsafe fn shared(&self) -> SharedUnit {
        // SAFETY: the caller keeps the contract.
        let vtd: &'static VtdUnit = unsafe { &*core::ptr::from_ref(&self.vtd) };
        #[cfg(any(feature = "planted-no-invalidation", feature = "planted-no-answer"))]
        let vtd = crate::planted::Deaf(vtd);
        vtd
    }
}

static TABLE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static TABLE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Firmware's DMAR table, which `pcr_table` has checked.
pub(crate) fn dmar() -> Option<Dmar<'static>> {
    let table = TABLE.load(Ordering::Acquire);
    if table.is_null() {
        return None;
    }
    // SAFETY: the caller of `pcr_table` promised this many bytes for as long as the module is loaded.
    let bytes = unsafe { core::slice::from_raw_parts(table, TABLE_BYTES.load(Ordering::Relaxed)) };
    Dmar::parse(bytes).ok()
}

/// The buses behind a bridge, as the kernel has numbered them.
pub(crate) fn buses(segment: u16) -> impl Fn(SourceId) -> Option<RangeInclusive<u8>> {
    move |bridge| {
        // SAFETY: it looks up a device, and the caller may sleep.
        let found = unsafe { pcs_buses(segment, bridge.requester()) };
        (found >> 16 != 0).then_some(found as u8..=(found >> 8) as u8)
    }
}

/// Sets the DMAR table. Returns the number of its units, or a negative error number.
///
/// # Safety
/// `table` must have `len` bytes that do not change until the module is unloaded. The processor must have the flush
/// instruction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_table(table: *const u8, len: usize, direct_map: u64, flush_instruction: u8) -> i32 {
    DIRECT_MAP.store(direct_map, Ordering::Relaxed);
    // SAFETY: the kernel has checked the processor.
    unsafe { crate::flush::use_instruction(flush_instruction) };
    // SAFETY: the caller keeps the contract.
    match Dmar::parse(unsafe { core::slice::from_raw_parts(table, len) }) {
        Ok(dmar) => {
            dmar.warnings()
                .for_each(|warning| print(format_args!("firmware has a mistake that does not matter: {warning}")));
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

/// The location of a unit.
#[repr(C)]
pub struct Place {
    base: u64,
    bytes: u64,
    segment: u32,
    /// The width of the machine's physical addresses.
    physical_bits: u32,
}

/// Stores the location of unit `index` of the table.
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

/// The index of the unit that serves a device; a negative error number if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_unit_of(segment: u16, source: u16) -> i32 {
    let Some(dmar) = dmar() else { return ENODEV };
    let Some(found) = dmar.unit_for(segment, SourceId::from_requester(source), buses(segment)) else { return ENODEV };
    let index = dmar.units().position(|unit| unit.register_base == found.register_base);
    index.map_or(ENODEV, |index| index as i32)
}

/// The id of master `index` behind unit `unit` of the table. A master does DMA and is not a PCI device, but has a name
/// in the ACPI namespace. Returns a negative error number on failure: `ENOENT` if there are no more masters, another
/// one if the path to the master cannot be followed.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_master(unit: u32, index: u32) -> i32 {
    let Some(dmar) = dmar() else { return ENODEV };
    let Some(unit) = dmar.units().nth(unit as usize) else { return ENODEV };
    let mut masters = unit.scopes.iter().filter(|scope| scope.kind == ScopeKind::Namespace);
    let Some(scope) = masters.nth(index as usize) else { return ENOENT };
    match scope.source(buses(unit.segment)) {
        Some(source) => i32::from(source.requester()),
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

/// What the machine's functions say about its chipset. Written before a unit is brought up, by one CPU.
static CHIPSET: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

fn chipset() -> Chipset {
    // Relaxed: loading the module orders the calls.
    let [flushes_writes, leaves_graphics, has_isochronous_unit] =
        CHIPSET.each_ref().map(|flag| flag.load(Ordering::Relaxed));
    let mut chipset = Chipset::default();
    (chipset.flushes_writes, chipset.leaves_graphics) = (flushes_writes, leaves_graphics);
    chipset.has_isochronous_unit = has_isochronous_unit;
    chipset
}

/// Takes a function of the machine into account.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_note_function(vendor: u16, device: u16, is_display: bool) {
    let mut chipset = chipset();
    chipset.note(PciFunction { vendor, device, is_display });
    let flags = [chipset.flushes_writes, chipset.leaves_graphics, chipset.has_isochronous_unit];
    CHIPSET.iter().zip(flags).for_each(|(to, flag)| to.store(flag, Ordering::Relaxed));
}

/// Whether unit `index` of the table must not be brought up, because all that it serves are displays of a chipset that
/// does not bear it.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_stays_off(index: u32) -> bool {
    let Some(unit) = dmar().and_then(|dmar| dmar.units().nth(index as usize)) else { return false };
    let is_display = |source: SourceId| {
        // SAFETY: it looks up a device, and the caller may sleep.
        match unsafe { pcs_is_display(unit.segment, source.requester()) } {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    };
    chipset().leaves_graphics && unit.serves_only(buses(unit.segment), is_display)
}

/// Whether translation would break a function of this chipset. `isochronous_control` is the value of that register, all
/// ones if it cannot be read.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_must_pass(vendor: u16, device: u16, is_display: bool, isochronous_control: u32) -> bool {
    chipset().must_pass(PciFunction { vendor, device, is_display }, || Some(isochronous_control))
}

/// The bytes that have to be mapped of a unit's registers.
///
/// # Safety
/// `registers` must be a mapped page of registers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_register_bytes(registers: *mut u8) -> u32 {
    // SAFETY: the caller keeps the contract, and nothing is written.
    let registers = unsafe { MappedRegisters::new(registers, BLOCK_BYTES) };
    Capability(registers.read64(CAP)).register_bytes()
}

/// Brings a unit up with all of `sources` passed through, none of which is shut out at any moment. If
/// `merge` commits or more share a submission, one command may replace theirs; zero: never.
///
/// # Safety
/// `registers` must be the register block of a unit without another driver, of which `bytes` are mapped. `sources` must
/// have `count` ids.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_bring_up(
    registers: *mut u8,
    bytes: u32,
    physical_bits: u8,
    merge: u8,
    sources: *const u16,
    count: usize,
    out: &mut *mut Unit,
) -> i32 {
    // SAFETY: the caller keeps the contract.
    let sources = unsafe { core::slice::from_raw_parts(sources, count) };
    // SAFETY: the caller keeps the contract. The second handle is used only after the first is no longer in use.
    let (driven, spare) = unsafe { (MappedRegisters::new(registers, bytes), MappedRegisters::new(registers, bytes)) };
    let room = match room::<Unit>() {
        Ok(room) => room,
        Err(_) => return ENOMEM,
    };
    let merge_min = (merge > 0).then_some(merge);
    let flushes_writes = chipset().flushes_writes;
    let config = UnitConfig { physical_bits, merge_min, flushes_writes, ..UnitConfig::default() };
    let mut pass_through = DomainId(0);
    let admit = |unit: &VtdUnit| -> Result<(), AttachError> {
        // SAFETY: until now the kernel has let these devices reach all memory.
        pass_through = unsafe { unit.open_domain(Translation::PassThrough) }?;
        sources.iter().try_for_each(|source| unit.attach(pass_through, SourceId::from_requester(*source)))
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

/// Turns the unit off. Its devices reach all memory from then on, as before it was brought up.
///
/// # Safety
/// `unit` must come from [`pcr_bring_up`], and must not be used any more. Its domains, and all devices that were not
/// passed through, must be gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_take_down(unit: *mut Unit) -> i32 {
    // SAFETY: the caller keeps the contract.
    let unit = *unsafe { Box::from_raw(unit) };
    // SAFETY: only passed-through devices are left, which may reach all memory.
    match unsafe { unit.vtd.shut_down() } {
        Ok(()) => 0,
        Err(error) => refused("a unit does not stop", &error),
    }
}

impl Errno for RegisterError {
    fn errno(&self) -> i32 {
        crate::errno::EIO
    }
}

/// Stops the queue of a unit for a reboot. Translation stays on. Takes no lock.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_halt(unit: &Unit) -> i32 {
    match unit.vtd.halt() {
        Ok(()) => 0,
        Err(error) => refused("a unit does not halt", &error),
    }
}

/// Stops the queue of a unit and turns its translation off, for the next kernel of a kexec. Fails if it does not read
/// as off within the time that every wait for the hardware has.
///
/// # Safety
/// No device behind the unit may still do DMA, except those that were passed through.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_open_gate(unit: &Unit) -> i32 {
    // SAFETY: the caller's promise.
    match unsafe { unit.vtd.halt_open() } {
        Ok(()) => 0,
        Err(error) => {
            print(format_args!("a unit does not open: {error}; its status is {:#x}", unit.registers.read32(GSTS)));
            error.errno()
        }
    }
}

/// Lets a device pass through, or shuts it out.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_pass_through(unit: &Unit, source: u16, on: bool) -> i32 {
    let source = SourceId::from_requester(source);
    let done = match on {
        true => unit.vtd.attach(unit.pass_through, source),
        false => unit.vtd.detach(unit.pass_through, source),
    };
    match done {
        Ok(()) => 0,
        // The caller judges these errors, because the device may already be in this state.
        Err(error @ (AttachError::Attached(_) | AttachError::NotAttached(_))) => error.errno(),
        Err(error) => refused("pass-through", &error),
    }
}

/// Shuts all devices behind a unit out, because its queue does not answer. Takes no lock.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_shut_out_all(unit: &Unit) -> i32 {
    match unit.vtd.shut_out_all() {
        Ok(()) => 0,
        Err(error) => refused("a unit does not shut its devices out", &error),
    }
}

/// The state and the counters of a unit.
#[repr(C)]
pub struct UnitUse {
    capability: u64,
    extended_capability: u64,
    commits: u64,
    waits: u64,
    address_bits: u32,
    pass_through: u32,
}

/// Reports the state and the counters of a unit.
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

/// Passes recorded faults to the C half. Returns 1 if others were lost, or else 0; an error number if the unit is gone.
///
/// # Safety
/// `context` must be valid for `pcs_fault`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_faults(unit: &Unit, context: *mut c_void) -> i32 {
    let polled = unit.vtd.faults(&mut |fault| {
        let is_write = fault.request == FaultRequest::Write;
        // SAFETY: the caller keeps the contract.
        unsafe {
            pcs_fault(context, fault.source.requester(), fault.page.as_u64(), is_write, u32::from(fault.reason.code()))
        }
    });
    polled.map_or_else(|gone| gone.errno(), i32::from)
}
