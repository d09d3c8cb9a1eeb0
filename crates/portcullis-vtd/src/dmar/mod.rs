//! The ACPI table DMAR (§8): the remapping units, the devices behind each of them, and the memory that firmware
//! reserves.
//!
//! ```text
//!  0         4        8   9   10    36    37      38     48
//! +---------+--------+---+---+-----+-----+-------+------+---------------------------
//! | "DMAR"  | length |rev|sum| OEM | HAW | flags | rsvd | remapping structures ...
//! +---------+--------+---+---+-----+-----+-------+------+---------------------------
//! ```
//!
//! All numbers are little-endian. `HAW` is the width of physical addresses less one. All bytes together add up to
//! zero. Each remapping structure begins with its type and its length ([`Structure`]), and most structures end with a
//! list of the devices that they apply to ([`DeviceScope`]). Structures of unknown types are skipped.
//!
//! [`Dmar::parse`] checks the whole table once, in time linear in its length and without allocating. Its results
//! borrow the bytes of the table. No input makes this module panic. Firmware has errors in what no driver needs; the
//! table is read without that, and [`Dmar::warnings`] tells.
//!
//! # From table to domain
//!
//! 1. Find the unit of the device ([`Dmar::unit_for`]), map [`register_bytes`](Drhd::register_bytes) from its
//!    [`register_base`](Drhd::register_base) on, and give them to [`Unit::bring_up`](crate::Unit::bring_up) as
//!    [`Mmio`](crate::Mmio). [`Dmar::host_address_bits`] is its `physical_bits`. Devices behind several units can
//!    share a domain through [`Units`](crate::Units), whose `unit_of` returns the index of a device's unit among the
//!    joined units.
//! 2. Collect [`Dmar::reserved_for`] over all devices that will share a domain. They are the `reserved` ranges of its
//!    [`DomainConfig`](portcullis::DomainConfig), besides the windows of bridges.
//! 3. Open the domain and attach the devices.
//!
//! The example `bring_up` of the crate `portcullis-qemu` performs all of these steps.
//!
//! # Devices that firmware still uses
//!
//! A reserved region (RMRR, §8.4) belongs to a device that does DMA on firmware's behalf, such as a USB controller
//! that emulates a keyboard. That DMA faults unless each address of the region is mapped to itself.
//!
//! - A [`Domain`](portcullis::Domain) of design [`Static`](portcullis::designs::Static) whose `memory` is the
//!   regions, and whose `reserved` leaves them out, maps the regions to themselves and nothing else. The device can
//!   stay in this domain until its driver starts.
//! - A domain of a strict or deferred design holds the regions beside all other mappings: map each with
//!   [`Domain::map_raw_with`](portcullis::Domain::map_raw_with) and
//!   [`MapOptions::fixed`](portcullis::MapOptions::fixed) at its own address before the device is attached.
//!   `reserved` alone only keeps the addresses from being handed out. When the driver has taken the device over from
//!   firmware (for USB, the hand-off of its host controller), unmap the regions.
//! - `bring_up` turns translation on with every device shut out, and devices are attached afterwards. DMA of
//!   firmware's devices in between faults. If that matters, quiesce these devices first.

mod scope;
mod structure;

use core::iter;
use core::ops::RangeInclusive;
use portcullis::iommu::SourceId;
use portcullis::{IovaRange, PAGE_SIZE, PhysAddr};
use thiserror::Error;

pub use scope::{DeviceScope, ScopeKind, Scopes};
pub use structure::{Andd, Atsr, Drhd, Rhsa, Rmrr, Satc, Sidp, Structure};

/// Bytes before the first remapping structure.
const HEADER_BYTES: usize = 48;
/// Offsets of the header fields that are used.
const LENGTH: usize = 4;
const WIDTH: usize = 36;
/// The widest physical address that a table entry holds, in bits.
const PHYSICAL_BITS_MAX: u8 = 52;

/// What is wrong with a table. Offsets are in bytes from its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum DmarError {
    /// A part goes past the end of what contains it.
    #[error("DMAR byte {offset}: expected {expected} bytes of {part}, found {found}")]
    Truncated {
        /// Where the part begins.
        offset: usize,
        /// Name of the part.
        part: &'static str,
        /// Bytes that the part needs.
        expected: usize,
        /// Bytes that are left.
        found: usize,
    },
    /// A length, zero included, that leaves no room for the fixed fields of the part.
    #[error("DMAR byte {offset}: {part} of {found} bytes, expected at least {least}")]
    Length {
        /// Where the part begins.
        offset: usize,
        /// Name of the part.
        part: &'static str,
        /// Bytes of its fixed fields.
        least: usize,
        /// The length that the table states.
        found: usize,
    },
    /// The signature is not that of a DMAR table.
    #[error("DMAR byte 0: signature \"{}\", expected \"DMAR\"", .0.escape_ascii())]
    Signature([u8; 4]),
    /// The bytes do not add up to zero.
    #[error("the bytes of the DMAR table add up to {0:#04x}, expected 0x00")]
    Checksum(u8),
    /// Physical addresses are wider than a table entry holds.
    #[error("DMAR byte {WIDTH}: physical addresses of {0} bits, expected at most {PHYSICAL_BITS_MAX}")]
    AddressWidth(u16),
    /// A register block has an invalid base.
    #[error("DMAR byte {offset}: registers at {base:#x}, expected a multiple of {PAGE_SIZE} other than zero")]
    RegisterBase {
        /// Offset of the field with the base.
        offset: usize,
        /// The base.
        base: u64,
    },
    /// The base of a reserved region is not page-aligned: a [warning](Dmar::warnings).
    #[error("DMAR byte {offset}: a reserved region from {base:#x} on, expected a multiple of {PAGE_SIZE}")]
    RegionBase {
        /// Offset of the field with the base.
        offset: usize,
        /// The base.
        base: u64,
    },
    /// A reserved region ends before it begins, or beyond 52-bit physical addresses: a [warning](Dmar::warnings).
    #[error(
        "DMAR byte {offset}: a reserved region from {base:#x} to {limit:#x}, expected an end from there to 52 bits"
    )]
    RegionLimit {
        /// Offset of the field with the limit.
        offset: usize,
        /// The base.
        base: u64,
        /// The limit.
        limit: u64,
    },
    /// The path of a device scope ends in the middle of a hop.
    #[error("DMAR byte {offset}: a device scope of {found} bytes, expected an even number")]
    OddPath {
        /// Where the scope begins.
        offset: usize,
        /// Its length.
        found: usize,
    },
    /// A hop of a path is not a PCI function.
    #[error("DMAR byte {offset}: device {device:#x} function {function:#x}, expected at most 0x1f and 7")]
    Hop {
        /// Where the hop begins.
        offset: usize,
        /// The device number.
        device: u8,
        /// The function number.
        function: u8,
    },
    /// The name of an ACPI device has no terminating zero byte.
    #[error("DMAR byte {offset}: the name of an ACPI device does not end with a zero byte")]
    Name {
        /// Where the name begins.
        offset: usize,
    },
}

/// A DMAR table that has been checked.
///
/// Some methods take `buses`, a function that reads configuration space. For a bridge of the segment in question it
/// returns the buses behind that bridge, from its secondary to its subordinate bus; it returns `None` if no bridge is
/// there. Call these methods after the buses have their numbers, because a bridge without numbers has nothing behind
/// it.
#[derive(Clone, Copy, Debug)]
pub struct Dmar<'t> {
    width: u8,
    flags: u8,
    structures: Cursor<'t>,
}

impl<'t> Dmar<'t> {
    /// Reads the table at the beginning of `bytes`, and ignores what follows it.
    ///
    /// # Errors
    /// A [`DmarError`], which says what is wrong and where: with the header, with the length of a structure, or with a
    /// unit or a reserved region. What concerns hints only is one of the [warnings](Self::warnings).
    pub fn parse(bytes: &'t [u8]) -> Result<Self, DmarError> {
        const PART: &str = "the table";
        let mut cursor = Cursor { bytes, offset: 0 };
        let signature = cursor.take(PART)?;
        if signature != *b"DMAR" {
            return Err(DmarError::Signature(signature));
        }
        let length = cursor.u32(PART)? as usize;
        if length < HEADER_BYTES {
            return Err(DmarError::Length { offset: LENGTH, part: PART, least: HEADER_BYTES, found: length });
        }
        let (mut table, _) = Cursor { bytes, offset: 0 }.split(length, PART)?;
        match table.bytes.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte)) {
            0 => {}
            sum => return Err(DmarError::Checksum(sum)),
        }
        table.take::<WIDTH>(PART)?;
        let width = match table.u8(PART)? {
            less_one if less_one < PHYSICAL_BITS_MAX => less_one + 1,
            less_one => return Err(DmarError::AddressWidth(u16::from(less_one) + 1)),
        };
        let flags = table.u8(PART)?;
        table.take::<10>(PART)?;
        let mut rest = table;
        while !rest.bytes.is_empty() {
            Structure::read(&mut rest)?;
        }
        Ok(Self { width, flags, structures: table })
    }

    /// Width of the machine's physical addresses, in bits: 1 to 52.
    pub const fn host_address_bits(&self) -> u8 {
        self.width
    }

    /// `INTR_REMAP`: the platform supports interrupt remapping.
    pub const fn interrupt_remapping(&self) -> bool {
        self.flags & 1 << 0 != 0
    }

    /// `X2APIC_OPT_OUT`: firmware asks that x2APIC mode stay off.
    pub const fn x2apic_opt_out(&self) -> bool {
        self.flags & 1 << 1 != 0
    }

    /// `DMA_CTRL_PLATFORM_OPT_IN_FLAG`: firmware restricts DMA to its reserved regions until the system takes over,
    /// and asks that devices which can be plugged in stay restricted.
    pub const fn dma_opt_in(&self) -> bool {
        self.flags & 1 << 2 != 0
    }

    /// The remapping structures of known types, in table order.
    pub fn structures(&self) -> impl Iterator<Item = Structure<'t>> + use<'t> {
        let mut rest = self.structures;
        // `parse` has read the whole table, so an error can only be its end.
        iter::from_fn(move || Structure::read(&mut rest).ok()).filter_map(|found| found.structure)
    }

    /// What is wrong with the table and does not matter, in table order. A structure that is only a hint (of any type
    /// but DRHD and RMRR) is left out, and so is a reserved region that ends before it begins. A reserved region of odd
    /// bytes, or beyond 52 bits, is taken as the pages that it touches.
    pub fn warnings(&self) -> impl Iterator<Item = DmarError> + use<'t> {
        let mut rest = self.structures;
        iter::from_fn(move || Structure::read(&mut rest).ok()).filter_map(|found| found.warning)
    }

    /// The remapping units.
    pub fn units(&self) -> impl Iterator<Item = Drhd<'t>> + use<'t> {
        self.structures().filter_map(|structure| match structure {
            Structure::Drhd(unit) => Some(unit),
            _ => None,
        })
    }

    /// The regions that firmware reserves, for all devices.
    pub fn reserved_regions(&self) -> impl Iterator<Item = Rmrr<'t>> + use<'t> {
        self.structures().filter_map(|structure| match structure {
            Structure::Rmrr(region) => Some(region),
            _ => None,
        })
    }

    /// The unit that serves `source`, a device on PCI segment `segment`: the first unit that names the device or a
    /// bridge above it, otherwise the unit of the segment that serves all other devices (§8.3). `None` if the
    /// device's DMA is not remapped.
    ///
    /// `source` is the source id in the device's requests. Behind a bridge to conventional PCI that is the id of the
    /// bridge, or function 0 of its secondary bus. For a virtual function, pass its physical function, which has the
    /// same unit.
    pub fn unit_for(
        &self,
        segment: u16,
        source: SourceId,
        buses: impl Fn(SourceId) -> Option<RangeInclusive<u8>>,
    ) -> Option<Drhd<'t>> {
        let units = || self.units().filter(|unit| unit.segment == segment);
        units().find(|unit| unit.scopes.cover(source, &buses)).or_else(|| units().find(|unit| unit.include_all))
    }

    /// The pages that firmware reserves for `source`, a device on PCI segment `segment` (§8.4), in order. Regions that
    /// overlap, that touch, or that firmware lists twice are one range. A domain with the device must not hand out
    /// these addresses (S9). If firmware still lets the device do DMA there, each of them must be mapped to itself.
    pub fn reserved_for<B: Fn(SourceId) -> Option<RangeInclusive<u8>>>(
        &self,
        segment: u16,
        source: SourceId,
        buses: B,
    ) -> impl Iterator<Item = IovaRange> + use<'t, B> {
        let (dmar, mut from_pfn) = (*self, 0);
        iter::from_fn(move || {
            let is_of = |region: &Rmrr<'_>| region.segment == segment && region.scopes.cover(source, &buses);
            let ranges = || dmar.reserved_regions().filter(is_of).map(|region| region.range);
            let first = ranges().map(|range| range.first_pfn()).filter(|first| *first >= from_pfn).min()?;
            let mut end = first;
            let longer = |end| ranges().filter(|range| range.first_pfn() <= end).map(|range| range.end_pfn()).max();
            while let Some(further) = longer(end).filter(|further| *further > end) {
                end = further;
            }
            // What touches this range is in it.
            from_pfn = end + 1;
            IovaRange::new(first, end - first)
        })
    }
}

/// The part of the table that is still to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cursor<'t> {
    bytes: &'t [u8],
    /// Offset of the first byte in the table.
    offset: usize,
}

impl<'t> Cursor<'t> {
    /// The next `N` bytes.
    fn take<const N: usize>(&mut self, part: &'static str) -> Result<[u8; N], DmarError> {
        let (taken, rest) = self.split(N, part)?;
        *self = rest;
        // `split` has returned exactly `N` bytes, which the type does not show.
        taken.bytes.try_into().map_err(|_| taken.truncated(N, part))
    }

    fn u8(&mut self, part: &'static str) -> Result<u8, DmarError> {
        self.take(part).map(|[byte]| byte)
    }

    fn u16(&mut self, part: &'static str) -> Result<u16, DmarError> {
        self.take(part).map(u16::from_le_bytes)
    }

    fn u32(&mut self, part: &'static str) -> Result<u32, DmarError> {
        self.take(part).map(u32::from_le_bytes)
    }

    fn u64(&mut self, part: &'static str) -> Result<u64, DmarError> {
        self.take(part).map(u64::from_le_bytes)
    }

    /// Splits off the next `length` bytes, and returns them and the rest.
    fn split(self, length: usize, part: &'static str) -> Result<(Self, Self), DmarError> {
        let (front, back) = self.bytes.split_at_checked(length).ok_or(self.truncated(length, part))?;
        let offset = self.offset + length;
        Ok((Self { bytes: front, ..self }, Self { bytes: back, offset }))
    }

    fn truncated(&self, expected: usize, part: &'static str) -> DmarError {
        DmarError::Truncated { offset: self.offset, part, expected, found: self.bytes.len() }
    }
}

/// Reads the physical address of a register block.
fn register_base(cursor: &mut Cursor<'_>, part: &'static str) -> Result<PhysAddr, DmarError> {
    let offset = cursor.offset;
    match cursor.u64(part)? {
        base if base == 0 || !base.is_multiple_of(PAGE_SIZE) => Err(DmarError::RegisterBase { offset, base }),
        base => Ok(PhysAddr::new(base)),
    }
}
