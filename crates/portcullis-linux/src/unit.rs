//! Remapping units: how they are prepared, what they do while they are up, and their faults.

use crate::errno::{ENODEV, ENOMEM, Errno};
use crate::firmware::chipset;
use crate::host::Host;
use crate::kernel::pcs_fault;
use crate::log::{print, refused};
use crate::memory::room;
use alloc::boxed::Box;
use core::ffi::c_void;
use portcullis::iommu::{AttachError, DomainId, Translation};
use portcullis::{Iommu, SourceId};
use portcullis_vtd::spec::faults::{FaultRecord, FaultRequest};
use portcullis_vtd::spec::registers::{BLOCK_BYTES, CAP, Capability, GSTS};
use portcullis_vtd::{Handover, Interrupts, MappedRegisters, Mmio, RegisterError, TakeOver, UnitConfig};

/// The driver's unit.
pub(crate) type VtdUnit = portcullis_vtd::Unit<MappedRegisters, Host>;
/// The handle that domains have of a unit. The unit outlives all of them.
#[cfg(not(any(feature = "planted-no-invalidation", feature = "planted-no-answer")))]
pub(crate) type SharedUnit = &'static VtdUnit;
#[cfg(any(feature = "planted-no-invalidation", feature = "planted-no-answer"))]
pub(crate) type SharedUnit = crate::planted::Deaf<&'static VtdUnit>;

/// A unit: prepared, then up, then left.
pub struct Unit {
    pub(crate) vtd: Handover<MappedRegisters, Host>,
    registers: MappedRegisters,
    /// The domain of devices that are not protected.
    pass_through: DomainId,
}

impl AsMut<Handover<MappedRegisters, Host>> for Unit {
    fn as_mut(&mut self) -> &mut Handover<MappedRegisters, Host> {
        &mut self.vtd
    }
}

impl Unit {
    /// Does something with the unit. `ENODEV` if it is not up.
    pub(crate) fn with(&self, act: impl FnOnce(&VtdUnit) -> i32) -> i32 {
        self.vtd.unit().map_or(ENODEV, act)
    }

    /// The unit, for a domain, if it is up.
    ///
    /// # Safety
    /// The domain must be closed before the unit is handed back.
    pub(crate) unsafe fn shared(&self) -> Option<SharedUnit> {
        // SAFETY: the caller keeps the contract.
        let vtd: &'static VtdUnit = unsafe { &*core::ptr::from_ref(self.vtd.unit()?) };
        #[cfg(any(feature = "planted-no-invalidation", feature = "planted-no-answer"))]
        let vtd = crate::planted::Deaf(vtd);
        Some(vtd)
    }
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

/// Prepares a unit to be brought up with all of `sources` passed through, none of which is shut out at any moment. If
/// `merge` commits or more share a submission, one command may replace theirs; zero: never. Writes no register.
///
/// # Safety
/// `registers` must be the register block of a unit of which `bytes` are mapped. It must have no other driver, except,
/// if it `is_shared`, the kernel's that remaps interrupts with it. `sources` must have `count` ids.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_prepare(
    registers: *mut u8,
    bytes: u32,
    physical_bits: u8,
    merge: u8,
    is_shared: bool,
    sources: *const u16,
    count: usize,
    out: &mut *mut Unit,
) -> i32 {
    // SAFETY: the caller keeps the contract.
    let sources = unsafe { core::slice::from_raw_parts(sources, count) };
    // SAFETY: the caller keeps the contract. The second handle only reads, or is used when the first no longer is.
    let (driven, spare) = unsafe { (MappedRegisters::new(registers, bytes), MappedRegisters::new(registers, bytes)) };
    let room = match room::<Unit>() {
        Ok(room) => room,
        Err(_) => return ENOMEM,
    };
    let merge_min = (merge > 0).then_some(merge);
    let flushes_writes = chipset().flushes_writes;
    let interrupts = if is_shared { Interrupts::Foreign } else { Interrupts::Unused };
    let config = UnitConfig { physical_bits, merge_min, flushes_writes, interrupts, ..UnitConfig::default() };
    let mut pass_through = DomainId(0);
    let admit = |unit: &VtdUnit| -> Result<(), AttachError> {
        // SAFETY: until now the kernel has let these devices reach all memory.
        pass_through = unsafe { unit.open_domain(Translation::PassThrough) }?;
        sources.iter().try_for_each(|source| unit.attach(pass_through, SourceId::from_requester(*source)))
    };
    match VtdUnit::prepare(driven, Host, config, TakeOver::Never, admit) {
        Ok(prepared) => {
            let vtd = Handover::Prepared(prepared);
            *out = Box::into_raw(Box::write(room, Unit { vtd, registers: spare, pass_through }));
            0
        }
        Err(error) => refused("a unit was not brought up", &error),
    }
}

/// Gives up what is left of a unit that is not up.
///
/// # Safety
/// `unit` must come from [`pcr_prepare`], and must not be used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_drop(unit: *mut Unit) {
    // SAFETY: the caller keeps the contract.
    drop(unsafe { Box::from_raw(unit) });
}

impl Errno for RegisterError {
    fn errno(&self) -> i32 {
        crate::errno::EIO
    }
}

/// Stops the queue of a unit for a reboot. Translation stays on. Takes no lock.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_halt(unit: &Unit) -> i32 {
    unit.with(|vtd| match vtd.halt() {
        Ok(()) => 0,
        Err(error) => refused("a unit does not halt", &error),
    })
}

/// Stops the queue of a unit and turns its translation off, for the next kernel of a kexec. Fails if it does not read
/// as off within the time that every wait for the hardware has.
///
/// # Safety
/// No device behind the unit may still do DMA, except those that were passed through.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_open_gate(unit: &Unit) -> i32 {
    // SAFETY: the caller's promise.
    unit.with(|vtd| match unsafe { vtd.halt_open() } {
        Ok(()) => 0,
        Err(error) => {
            print(format_args!("a unit does not open: {error}; its status is {:#x}", unit.registers.read32(GSTS)));
            error.errno()
        }
    })
}

/// Lets a device pass through, or shuts it out.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_pass_through(unit: &Unit, source: u16, on: bool) -> i32 {
    let source = SourceId::from_requester(source);
    unit.with(|vtd| {
        let done = match on {
            true => vtd.attach(unit.pass_through, source),
            false => vtd.detach(unit.pass_through, source),
        };
        match done {
            Ok(()) => 0,
            // The caller judges these errors, because the device may already be in this state.
            Err(error @ (AttachError::Attached(_) | AttachError::NotAttached(_))) => error.errno(),
            Err(error) => refused("pass-through", &error),
        }
    })
}

/// Shuts all devices behind a unit out, because its queue does not answer. Takes no lock.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_shut_out_all(unit: &Unit) -> i32 {
    unit.with(|vtd| match vtd.shut_out_all() {
        Ok(()) => 0,
        Err(error) => refused("a unit does not shut its devices out", &error),
    })
}

/// The state and the counters of a unit.
#[repr(C)]
#[derive(Default)]
pub struct UnitUse {
    capability: u64,
    extended_capability: u64,
    commits: u64,
    waits: u64,
    address_bits: u32,
    pass_through: u32,
}

/// Reports the state and the counters of a unit. Zeros if it is not up.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_unit_use(unit: &Unit, out: &mut UnitUse) {
    *out = unit.vtd.unit().map_or_else(UnitUse::default, |vtd| {
        let used = vtd.queue_use();
        UnitUse {
            capability: vtd.capability().0,
            extended_capability: vtd.extended_capability().0,
            commits: used.commits,
            waits: used.waits,
            address_bits: u32::from(vtd.capabilities().address_bits),
            pass_through: u32::from(unit.pass_through.0),
        }
    });
}

/// Passes recorded faults to the C half. Returns 1 if others were lost, or else 0; an error number if the unit is gone.
///
/// # Safety
/// `context` must be valid for `pcs_fault`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_faults(unit: &Unit, context: *mut c_void) -> i32 {
    let mut pass_on = |fault: FaultRecord| {
        let is_write = fault.request == FaultRequest::Write;
        let reason = u32::from(fault.reason.code());
        let interrupt = fault.interrupt_index().map_or(-1, i32::from);
        // SAFETY: the caller keeps the contract.
        unsafe { pcs_fault(context, fault.source.requester(), fault.page.as_u64(), is_write, reason, interrupt) }
    };
    unit.with(|vtd| vtd.faults(&mut pass_on).map_or_else(|gone| gone.errno(), i32::from))
}
