//! Remapping structures (§8.2 to §8.9). Each begins with its type and its length, 16 bits each.

use super::{Cursor, DmarError, PHYSICAL_BITS_MAX, ScopeKind, Scopes, register_base};
use core::ffi::CStr;
use core::ops::RangeInclusive;
use portcullis::iommu::SourceId;
use portcullis::{IovaRange, PAGE_SHIFT, PAGE_SIZE, PhysAddr};

/// One past the last page frame number of a physical address.
const PFN_LIMIT: u64 = 1 << (PHYSICAL_BITS_MAX as u32 - PAGE_SHIFT);

/// A remapping structure (§8.2). Each variant states the number of its type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Structure<'t> {
    /// 0: a remapping unit.
    Drhd(Drhd<'t>),
    /// 1: a reserved region.
    Rmrr(Rmrr<'t>),
    /// 2: root ports that support address translation services.
    Atsr(Atsr<'t>),
    /// 3: the proximity domain of a unit.
    Rhsa(Rhsa),
    /// 4: the name of a device that is not on PCI.
    Andd(Andd<'t>),
    /// 5: integrated devices with a device-TLB.
    Satc(Satc<'t>),
    /// 6: properties of integrated devices.
    Sidp(Sidp<'t>),
}

/// A remapping unit (DRHD, §8.3).
///
/// ```text
///  0          2        4       5      6         8               16
/// +----------+--------+-------+------+---------+---------------+------------------
/// | type = 0 | length | flags | size | segment | register base | device scopes ...
/// +----------+--------+-------+------+---------+---------------+------------------
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Drhd<'t> {
    /// `INCLUDE_PCI_ALL`: the unit serves every device of its segment that no other unit names.
    pub include_all: bool,
    /// The PCI segment that the unit serves.
    pub segment: u16,
    /// Physical address of its registers, page-aligned.
    pub register_base: PhysAddr,
    /// Size of its register block in bytes: 2^size pages.
    pub register_bytes: u64,
    /// The devices that it serves. With `include_all`, these are I/O APICs and HPETs.
    pub scopes: Scopes<'t>,
}

/// A reserved region (RMRR, §8.4): memory that firmware lets devices reach.
///
/// ```text
///  0          2        4      6         8      16      24
/// +----------+--------+------+---------+------+-------+------------------
/// | type = 1 | length | rsvd | segment | base | limit | device scopes ...
/// +----------+--------+------+---------+------+-------+------------------
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Rmrr<'t> {
    /// The PCI segment of its devices.
    pub segment: u16,
    /// The pages of the region, as IOVAs; the physical addresses are equal to them. A base or a limit inside a page
    /// includes the whole page.
    pub range: IovaRange,
    /// The devices that use it.
    pub scopes: Scopes<'t>,
}

impl Rmrr<'_> {
    /// Physical address of the region.
    pub const fn base(&self) -> PhysAddr {
        PhysAddr::from_pfn(self.range.first_pfn())
    }

    /// Length of the region in bytes, a multiple of the page size.
    pub const fn bytes(&self) -> u64 {
        self.range.pages() << PAGE_SHIFT
    }
}

/// Root ports that support address translation services (ATSR, §8.5).
///
/// ```text
///  0          2        4       5      6         8
/// +----------+--------+-------+------+---------+------------------
/// | type = 2 | length | flags | rsvd | segment | device scopes ...
/// +----------+--------+-------+------+---------+------------------
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Atsr<'t> {
    /// `ALL_PORTS`: all root ports of the segment support it.
    pub all_ports: bool,
    /// The PCI segment.
    pub segment: u16,
    /// The root ports, if not all.
    pub scopes: Scopes<'t>,
}

/// The proximity domain of a unit (RHSA, §8.6), numbered as in the ACPI table SRAT.
///
/// ```text
///  0          2        4      8               16                 20
/// +----------+--------+------+---------------+------------------+
/// | type = 3 | length | rsvd | register base | proximity domain |
/// +----------+--------+------+---------------+------------------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Rhsa {
    /// The unit, identified by the address of its registers.
    pub register_base: PhysAddr,
    /// The proximity domain that the unit is in.
    pub proximity_domain: u32,
}

/// The name of a device that is not on PCI (ANDD, §8.7).
///
/// ```text
///  0          2        4      7        8
/// +----------+--------+------+--------+-------------------------
/// | type = 4 | length | rsvd | number | name, ends with zero ...
/// +----------+--------+------+--------+-------------------------
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Andd<'t> {
    /// Its number, which is the enumeration id of a scope of kind [`Namespace`](super::ScopeKind::Namespace).
    pub number: u8,
    /// Its path in the ACPI namespace.
    pub name: &'t CStr,
}

/// Integrated devices with a device-TLB (SATC, §8.8).
///
/// ```text
///  0          2        4       5      6         8
/// +----------+--------+-------+------+---------+------------------
/// | type = 5 | length | flags | rsvd | segment | device scopes ...
/// +----------+--------+-------+------+---------+------------------
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Satc<'t> {
    /// `ATC_REQUIRED`: the devices do not work with their device-TLB off.
    pub required: bool,
    /// The PCI segment.
    pub segment: u16,
    /// The devices.
    pub scopes: Scopes<'t>,
}

/// Properties of integrated devices (SIDP, §8.9), in the flags of the device scopes.
///
/// ```text
///  0          2        4      6         8
/// +----------+--------+------+---------+------------------
/// | type = 6 | length | rsvd | segment | device scopes ...
/// +----------+--------+------+---------+------------------
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Sidp<'t> {
    /// The PCI segment.
    pub segment: u16,
    /// The devices.
    pub scopes: Scopes<'t>,
}

/// What was read of one structure.
pub(super) struct Found<'t> {
    /// `None` if its type is unknown, and if it was skipped.
    pub(super) structure: Option<Structure<'t>>,
    /// What is wrong with it, and does not matter.
    pub(super) warning: Option<DmarError>,
}

impl<'t> Structure<'t> {
    /// Reads the next structure. Only units and reserved regions decide who reaches what. The other types are hints,
    /// and a hint that is wrong is skipped.
    pub(super) fn read(cursor: &mut Cursor<'t>) -> Result<Found<'t>, DmarError> {
        const FIELDS: usize = 4;
        const HEADER: &str = "a remapping structure";
        let start = *cursor;
        let kind = cursor.u16(HEADER)?;
        let length = usize::from(cursor.u16(HEADER)?);
        // Bytes of the fixed part. An ANDD also needs one byte for an empty name.
        let (part, least) = match kind {
            0 => ("a DRHD", 16),
            1 => ("an RMRR", 24),
            2 => ("an ATSR", 8),
            3 => ("an RHSA", 20),
            4 => ("an ANDD", 9),
            5 => ("a SATC", 8),
            6 => ("a SIDP", 8),
            _ => (HEADER, FIELDS),
        };
        let is_short = DmarError::Length { offset: start.offset, part, least, found: length };
        if length < FIELDS {
            return Err(is_short);
        }
        let (mut body, rest) = start.split(length, part)?;
        *cursor = rest;
        body.u32(part)?;
        let read = if length < least { Err(is_short) } else { Self::read_body(kind, body, part) };
        match read {
            Ok(found) => Ok(found),
            Err(error) if matches!(kind, 0 | 1) => Err(error),
            Err(warning) => Ok(Found { structure: None, warning: Some(warning) }),
        }
    }

    fn read_body(kind: u16, mut body: Cursor<'t>, part: &'static str) -> Result<Found<'t>, DmarError> {
        let structure = match kind {
            0 => Self::Drhd(Drhd::read(body, part)?),
            1 => return Rmrr::read(body, part),
            2 => {
                let [flags, _] = body.take(part)?;
                let segment = body.u16(part)?;
                Self::Atsr(Atsr { all_ports: flags & 1 != 0, segment, scopes: Scopes::read(body)? })
            }
            3 => {
                body.u32(part)?;
                let register_base = register_base(&mut body, part)?;
                Self::Rhsa(Rhsa { register_base, proximity_domain: body.u32(part)? })
            }
            4 => {
                let [_, _, _, number] = body.take(part)?;
                let name = CStr::from_bytes_until_nul(body.bytes);
                Self::Andd(Andd { number, name: name.map_err(|_| DmarError::Name { offset: body.offset })? })
            }
            5 => {
                let [flags, _] = body.take(part)?;
                let segment = body.u16(part)?;
                Self::Satc(Satc { required: flags & 1 != 0, segment, scopes: Scopes::read(body)? })
            }
            6 => {
                body.u16(part)?;
                Self::Sidp(Sidp { segment: body.u16(part)?, scopes: Scopes::read(body)? })
            }
            _ => return Ok(Found { structure: None, warning: None }),
        };
        Ok(Found { structure: Some(structure), warning: None })
    }
}

impl<'t> Drhd<'t> {
    /// Whether the unit serves only functions for which `is_such` returns true. `is_such` returns `None` for a function
    /// that is not there, which does not count; `buses` is as in [`Dmar`](super::Dmar). A unit that serves what no
    /// other names, what is behind a bridge, or no function at all serves others.
    pub fn serves_only(
        &self,
        buses: impl Fn(SourceId) -> Option<RangeInclusive<u8>>,
        is_such: impl Fn(SourceId) -> Option<bool>,
    ) -> bool {
        let mut such = self.scopes.iter().filter_map(|scope| match scope.kind {
            ScopeKind::Endpoint => scope.source(&buses).and_then(&is_such),
            ScopeKind::Bridge | ScopeKind::Namespace => Some(false),
            _ => None,
        });
        !self.include_all && such.next() == Some(true) && such.all(|such| such)
    }

    fn read(mut body: Cursor<'t>, part: &'static str) -> Result<Self, DmarError> {
        let [flags, size] = body.take(part)?;
        Ok(Self {
            include_all: flags & 1 != 0,
            segment: body.u16(part)?,
            register_base: register_base(&mut body, part)?,
            register_bytes: PAGE_SIZE << (size & 0xf),
            scopes: Scopes::read(body)?,
        })
    }
}

impl<'t> Rmrr<'t> {
    /// A region whose ends lie inside pages, or beyond physical addresses, is taken as the pages that it touches. One
    /// that ends before it begins has none, and is skipped.
    fn read(mut body: Cursor<'t>, part: &'static str) -> Result<Found<'t>, DmarError> {
        body.u16(part)?;
        let segment = body.u16(part)?;
        let offset = body.offset;
        let [base, limit] = [body.u64(part)?, body.u64(part)?];
        let (first, last) = (base >> PAGE_SHIFT, (limit >> PAGE_SHIFT).min(PFN_LIMIT - 1));
        let range = (base <= limit).then(|| IovaRange::new(first, (last + 1).checked_sub(first)?)).flatten();
        let warning = if range.is_none() || limit >> PAGE_SHIFT != last {
            Some(DmarError::RegionLimit { offset: offset + 8, base, limit })
        } else if !base.is_multiple_of(PAGE_SIZE) {
            Some(DmarError::RegionBase { offset, base })
        } else {
            None
        };
        let scopes = Scopes::read(body)?;
        Ok(Found { structure: range.map(|range| Structure::Rmrr(Self { segment, range, scopes })), warning })
    }
}
