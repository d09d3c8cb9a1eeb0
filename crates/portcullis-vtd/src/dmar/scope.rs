//! Device scopes: whom a structure is about (§8.3.1).

use super::{Cursor, DmarError};
use core::iter;
use core::ops::RangeInclusive;
use portcullis::iommu::SourceId;

const PART: &str = "a device scope";
/// Bytes before the path, which has one hop at least.
const FIELDS: usize = 6;
const HOP: usize = 2;

/// What a device scope names (§8.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ScopeKind {
    /// 1: one PCI function.
    Endpoint,
    /// 2: a PCI bridge, and all that is behind it.
    Bridge,
    /// 3: an I/O APIC; its source id is that of its interrupts.
    IoApic,
    /// 4: an HPET that sends messages; likewise.
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

/// A device scope (§8.3.1): a device, by the way to it from a bus that is known. Revisions before 4 reserve the flags.
///
/// ```text
///  0      1        2       3      4             5           6
/// +------+--------+-------+------+-------------+-----------+--------+----------+--- ...
/// | type | length | flags | rsvd | enumeration | start bus | device | function |
/// +------+--------+-------+------+-------------+-----------+--------+----------+--- ...
/// ```
///
/// Each hop of the path is a function of the bus before it. All but the last are bridges, so only configuration space tells
/// the bus of a device that is more than one hop away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceScope<'t> {
    /// What it names.
    pub kind: ScopeKind,
    /// What the device can do without, in a [`Sidp`](super::Sidp).
    pub flags: u8,
    /// The id of an I/O APIC, the number of an HPET or ACPI device; without meaning otherwise.
    pub enumeration_id: u8,
    /// The bus that the path begins on.
    pub start_bus: u8,
    /// Device and function of each hop, one at least; of known kinds at most 31 and 7.
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

    /// The source id of the device, or of the bridge. `buses` as in [`Dmar`](super::Dmar); asked once per hop but the last.
    /// `None` where a bridge on the way has nothing behind it.
    pub fn source(&self, buses: impl Fn(SourceId) -> Option<RangeInclusive<u8>>) -> Option<SourceId> {
        let (last, bridges) = self.path.split_last()?;
        let mut bus = self.start_bus;
        for bridge in bridges {
            bus = *behind(function(bus, *bridge), &buses)?.start();
        }
        Some(function(bus, *last))
    }

    /// Whether the DMA of `source` is meant: the device named, or any behind the bridge named. Scopes of an I/O APIC or an
    /// HPET are about interrupts alone.
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
    /// Those in the rest of a structure, all of them checked.
    pub(super) fn read(cursor: Cursor<'t>) -> Result<Self, DmarError> {
        let mut rest = cursor;
        while !rest.bytes.is_empty() {
            DeviceScope::read(&mut rest)?;
        }
        Ok(Self(cursor))
    }

    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = DeviceScope<'t>> + use<'t> {
        let mut rest = self.0;
        // All have been read before, so that an error can only be their end.
        iter::from_fn(move || DeviceScope::read(&mut rest).ok())
    }

    /// Whether one of them covers the DMA of `source`.
    pub fn cover(&self, source: SourceId, buses: impl Fn(SourceId) -> Option<RangeInclusive<u8>>) -> bool {
        self.iter().any(|scope| scope.covers(source, &buses))
    }
}

const fn function(bus: u8, [device, function]: [u8; HOP]) -> SourceId {
    SourceId((bus as u16) << 8 | (device as u16 & 0x1f) << 3 | function as u16 & 7)
}

const fn bus_of(source: SourceId) -> u8 {
    (source.0 >> 8) as u8
}

/// The buses behind a bridge. They come after its own; a bridge that nobody has numbered shows bus 0.
fn behind(bridge: SourceId, buses: impl Fn(SourceId) -> Option<RangeInclusive<u8>>) -> Option<RangeInclusive<u8>> {
    buses(bridge).filter(|buses| *buses.start() > bus_of(bridge))
}
