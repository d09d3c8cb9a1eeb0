//! Device scopes: the devices that a structure applies to (§8.3.1).

use super::{Cursor, DmarError};
use core::iter;
use core::ops::RangeInclusive;
use portcullis::iommu::SourceId;

const PART: &str = "a device scope";
/// Bytes before the path. The path has at least one hop.
const FIELDS: usize = 6;
const HOP: usize = 2;

/// The kind of device that a device scope names (§8.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ScopeKind {
    /// 1: one PCI function.
    Endpoint,
    /// 2: a PCI bridge and everything behind it.
    Bridge,
    /// 3: an I/O APIC. Its source id is that of its interrupts.
    IoApic,
    /// 4: an HPET that sends messages. Its source id is that of its interrupts.
    Hpet,
    /// 5: a device of the ACPI namespace, described by an [`Andd`](super::Andd).
    Namespace,
    /// Any other number.
    Other(u8),
}

impl ScopeKind {
    const fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Endpoint,
            2 => Self::Bridge,
            3 => Self::IoApic,
            4 => Self::Hpet,
            5 => Self::Namespace,
            other => Self::Other(other),
        }
    }
}

/// A device scope (§8.3.1): a device, named by the path to it from a known bus. Revisions before 4 reserve the flags.
///
/// ```text
///  0      1        2       3      4             5           6
/// +------+--------+-------+------+-------------+-----------+--------+----------+--- ...
/// | type | length | flags | rsvd | enumeration | start bus | device | function |
/// +------+--------+-------+------+-------------+-----------+--------+----------+--- ...
/// ```
///
/// Each hop of the path is a function on the bus behind the previous hop; the first is on the start bus. All but the
/// last are bridges. So for a device that is more than one hop away, only configuration space tells its bus.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceScope<'t> {
    /// The kind of device.
    pub kind: ScopeKind,
    /// In a [`Sidp`](super::Sidp), properties of the device.
    pub flags: u8,
    /// The id of an I/O APIC, or the number of an HPET or an ACPI device. Otherwise without meaning.
    pub enumeration_id: u8,
    /// The bus on which the path begins.
    pub start_bus: u8,
    /// Device and function of each hop, at least one. For known kinds they are at most 31 and 7.
    pub path: &'t [[u8; HOP]],
}

impl<'t> DeviceScope<'t> {
    fn read(cursor: &mut Cursor<'t>) -> Result<Self, DmarError> {
        let start = *cursor;
        let [kind, length] = cursor.take(PART)?;
        let length = usize::from(length);
        if length < FIELDS + HOP {
            return Err(DmarError::Length { offset: start.offset, part: PART, least: FIELDS + HOP, found: length });
        }
        let (mut scope, rest) = start.split(length, PART)?;
        *cursor = rest;
        let [_, _, flags, _, enumeration_id, start_bus] = scope.take(PART)?;
        let (path, []) = scope.bytes.as_chunks() else {
            return Err(DmarError::OddPath { offset: start.offset, found: length });
        };
        let kind = ScopeKind::from_code(kind);
        if !matches!(kind, ScopeKind::Other(_))
            && let Some(hop) = path.iter().position(|&[device, function]| device > 0x1f || function > 7)
        {
            let [device, function] = path[hop];
            return Err(DmarError::Hop { offset: scope.offset + hop * HOP, device, function });
        }
        Ok(Self { kind, flags, enumeration_id, start_bus, path })
    }

    /// The source id of the device or bridge. `buses` is as in [`Dmar`](super::Dmar), and is called once for each hop
    /// but the last. `None` if a bridge on the path has nothing behind it.
    pub fn source(&self, buses: impl Fn(SourceId) -> Option<RangeInclusive<u8>>) -> Option<SourceId> {
        let (last, bridges) = self.path.split_last()?;
        let mut bus = self.start_bus;
        for bridge in bridges {
            bus = *behind(function(bus, *bridge), &buses)?.start();
        }
        Some(function(bus, *last))
    }

    /// Whether this scope covers the DMA of `source`: `source` is the device that it names, or is behind the bridge
    /// that it names. Scopes of an I/O APIC or an HPET concern interrupts only, and cover no DMA.
    pub fn covers(&self, source: SourceId, buses: impl Fn(SourceId) -> Option<RangeInclusive<u8>>) -> bool {
        match (self.kind, self.source(&buses)) {
            (ScopeKind::Endpoint | ScopeKind::Namespace, named) => named == Some(source),
            (ScopeKind::Bridge, Some(bridge)) => {
                bridge == source || behind(bridge, &buses).is_some_and(|buses| buses.contains(&bus_of(source)))
            }
            _ => false,
        }
    }
}

/// The device scopes of one structure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scopes<'t>(Cursor<'t>);

impl<'t> Scopes<'t> {
    /// Reads and checks all scopes in the rest of a structure.
    pub(super) fn read(cursor: Cursor<'t>) -> Result<Self, DmarError> {
        let mut rest = cursor;
        while !rest.bytes.is_empty() {
            DeviceScope::read(&mut rest)?;
        }
        Ok(Self(cursor))
    }

    /// The scopes, in table order.
    pub fn iter(&self) -> impl Iterator<Item = DeviceScope<'t>> + use<'t> {
        let mut rest = self.0;
        // `read` has read all scopes before, so an error can only be their end.
        iter::from_fn(move || DeviceScope::read(&mut rest).ok())
    }

    /// Whether one of them covers the DMA of `source`.
    pub fn cover(&self, source: SourceId, buses: impl Fn(SourceId) -> Option<RangeInclusive<u8>>) -> bool {
        self.iter().any(|scope| scope.covers(source, &buses))
    }
}

const fn function(bus: u8, [device, function]: [u8; HOP]) -> SourceId {
    SourceId::from_requester((bus as u16) << 8 | (device as u16 & 0x1f) << 3 | function as u16 & 7)
}

const fn bus_of(source: SourceId) -> u8 {
    (source.requester() >> 8) as u8
}

/// The buses behind a bridge. Their numbers are higher than that of its own bus. A bridge without bus numbers shows
/// bus 0.
fn behind(bridge: SourceId, buses: impl Fn(SourceId) -> Option<RangeInclusive<u8>>) -> Option<RangeInclusive<u8>> {
    buses(bridge).filter(|buses| *buses.start() > bus_of(bridge))
}
