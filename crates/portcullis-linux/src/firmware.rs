//! What firmware and the machine's functions say of the units: where they are, which devices they serve, and what a
//! chipset does not bear.

use crate::errno::{EINVAL, ENODEV, ENOENT};
use crate::host::DIRECT_MAP;
use crate::kernel::{pcs_buses, pcs_is_display};
use crate::log::print;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use portcullis::SourceId;
use portcullis_vtd::chipset::{Chipset, PciFunction};
use portcullis_vtd::dmar::{Dmar, ScopeKind, Structure};

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

pub(crate) fn chipset() -> Chipset {
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
