//! The text of events, after the event's name. Every tool prints the same text.

use super::error::Flaw;
use super::list::{List, Numbers, Pieces, UNPARSED, check_run};
use super::scan::{Scan, field};
use portcullis::{Access, PAGE_SIZE};

/// No device of today issues a wider address: this is five levels of table.
const IOVA_END: u64 = 1 << 57;
/// The end of the physical addresses that a table entry can hold.
pub(super) const PHYSICAL_END: u64 = 1 << 52;

/// An event from which a trace is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event<'a> {
    /// `iommu:map`: a table gets a physically contiguous piece of whole pages.
    Map { iova: u64, size: u64, phys: u64 },
    /// `iommu:unmap`: a run of whole pages is unmapped.
    Unmap { iova: u64, size: u64 },
    /// `dma:dma_map_page` and similar events, including `portcullis:portcullis_map`: the device that the bytes were
    /// mapped for, and its access.
    DmaMap { device: &'a [u8], access: Access, iova: u64, size: u64, phys: u64 },
    /// `dma:dma_map_sg`: likewise for a scatter list.
    DmaMapList { device: &'a [u8], access: Access, list: List<'a> },
    /// `dma:dma_unmap_page` and similar events. They follow their `iommu:unmap`.
    DmaUnmap { device: &'a [u8], iova: u64, size: u64 },
    /// `dma:dma_unmap_sg`. It precedes its `iommu:unmap`.
    DmaUnmapList { device: &'a [u8], phys: Numbers<'a> },
    /// `dma:dma_sync_single_for_cpu` of bytes that a device may have written: the driver is about to read them.
    Sync { device: &'a [u8], iova: u64, size: u64 },
    /// `dma:dma_sync_sg_for_cpu`: likewise for a scatter list.
    SyncList { device: &'a [u8], pieces: Pieces<'a> },
    /// `intel_iommu:qi_submit` of an IOTLB invalidation: the two quadwords of the descriptor.
    Invalidate { qw0: u64, qw1: u64 },
    /// Any other event.
    Other,
}

/// Whether [`Event::parse`] reads the text of this event.
pub(super) fn is_known(name: &[u8]) -> bool {
    let dma = name.strip_prefix(b"dma_map_").or_else(|| name.strip_prefix(b"dma_unmap_"));
    matches!(name, b"map" | b"unmap" | b"qi_submit" | b"dma_sync_single_for_cpu" | b"dma_sync_sg_for_cpu")
        || matches!(name, b"portcullis_map" | b"portcullis_unmap")
        || matches!(dma, Some(b"page" | b"resource" | b"phys" | b"sg"))
}

impl<'a> Event<'a> {
    /// Parses the event `name` with this text.
    pub(super) fn parse(name: &[u8], text: &'a [u8]) -> Result<Self, Flaw> {
        match name {
            b"map" => map(text),
            b"unmap" => unmap(text),
            b"dma_map_page" | b"dma_map_resource" | b"dma_map_phys" | b"portcullis_map" => dma_map(text),
            b"dma_map_sg" => dma_map_list(text),
            b"dma_unmap_page" | b"dma_unmap_resource" | b"dma_unmap_phys" | b"portcullis_unmap" => dma_unmap(text),
            b"dma_unmap_sg" => dma_unmap_list(text),
            b"dma_sync_single_for_cpu" => sync(text),
            b"dma_sync_sg_for_cpu" => sync_list(text),
            b"qi_submit" => invalidate(text),
            _ => Ok(Self::Other),
        }
    }
}

/// A number that must end at a blank or at the end of the line.
fn whole<'a>(scan: Option<Scan<'a>>, number: fn(&mut Scan<'a>) -> Option<u64>, expected: Flaw) -> Result<u64, Flaw> {
    let mut scan = scan.ok_or(expected)?;
    number(&mut scan).filter(|_| scan.at_gap()).ok_or(expected)
}

/// Parses `IOMMU: iova=0x… - 0x…` and the `size=` behind it. Returns the run, and the text after its addresses.
fn run(text: &[u8]) -> Result<(u64, u64, &[u8]), Flaw> {
    const EXPECTED: Flaw = Flaw::Expected("`IOMMU: iova=0x… - 0x…` with hexadecimal addresses");
    let mut scan = Scan(text);
    scan.literal(b"IOMMU: iova=").ok_or(EXPECTED)?;
    let start = scan.hexadecimal().ok_or(EXPECTED)?;
    scan.literal(b" - ").ok_or(EXPECTED)?;
    let end = scan.hexadecimal().filter(|_| scan.at_gap()).ok_or(EXPECTED)?;
    let size = whole(field(scan.0, b"size="), Scan::decimal, Flaw::Expected("`size=` and a decimal number of bytes"))?;
    if size == 0 {
        return Err(Flaw::Expected("a size above zero"));
    }
    if start.checked_add(size).is_none_or(|end| end > IOVA_END) {
        return Err(Flaw::Expected("a run that ends below 2^57, the widest I/O address"));
    }
    if end != start + size {
        return Err(Flaw::Expected("a run as long as its `size=`"));
    }
    if !(start | size).is_multiple_of(PAGE_SIZE) {
        return Err(Flaw::Expected("whole pages of 4096 bytes"));
    }
    Ok((start, size, scan.0))
}

fn map<'a>(text: &[u8]) -> Result<Event<'a>, Flaw> {
    let (iova, size, rest) = run(text)?;
    let phys = whole(field(rest, b"paddr="), Scan::hexadecimal, Flaw::Expected("`paddr=` and a hexadecimal address"))?;
    if phys.checked_add(size).is_none_or(|end| end > PHYSICAL_END) || !phys.is_multiple_of(PAGE_SIZE) {
        return Err(Flaw::Expected("a page-aligned physical address below 2^52"));
    }
    Ok(Event::Map { iova, size, phys })
}

fn unmap<'a>(text: &[u8]) -> Result<Event<'a>, Flaw> {
    let (iova, size, rest) = run(text)?;
    let expected = Flaw::Expected("`unmapped_size=` and a decimal number of bytes");
    whole(field(rest, b"unmapped_size="), Scan::decimal, expected)?;
    Ok(Event::Unmap { iova, size })
}

/// The first word. If the tool printed the bare fields of the record, the name follows a key.
fn device(text: &[u8]) -> Result<&[u8], Flaw> {
    let mut scan = if text.starts_with(UNPARSED) { field(text, b"device=") } else { Some(Scan(text)) };
    match scan.as_mut().map(Scan::word) {
        None | Some(b"") => Err(Flaw::Expected("the name of a device")),
        Some(name) => Ok(name),
    }
}

fn access(text: &[u8]) -> Result<Access, Flaw> {
    match field(text, b"dir=").map(|mut scan| scan.word()) {
        Some(b"TO_DEVICE" | b"1") => Ok(Access::DeviceReads),
        Some(b"FROM_DEVICE" | b"2") => Ok(Access::DeviceWrites),
        Some(b"BIDIRECTIONAL" | b"0") => Ok(Access::DeviceReadsAndWrites),
        _ => Err(Flaw::Expected("`dir=` and TO_DEVICE, FROM_DEVICE or BIDIRECTIONAL")),
    }
}

fn dma_map(text: &[u8]) -> Result<Event<'_>, Flaw> {
    let (iova, size) = dma_run(text)?;
    let expected = Flaw::Expected("`phys_addr=` and a hexadecimal address");
    let phys = whole(field(text, b"phys_addr="), Scan::hexadecimal, expected)?;
    Ok(Event::DmaMap { device: device(text)?, access: access(text)?, iova, size, phys })
}

fn dma_unmap(text: &[u8]) -> Result<Event<'_>, Flaw> {
    let (iova, size) = dma_run(text)?;
    Ok(Event::DmaUnmap { device: device(text)?, iova, size })
}

/// Parses `dma_addr=… size=…`. The run may be any bytes, because the device may not be behind an IOMMU.
fn dma_run(text: &[u8]) -> Result<(u64, u64), Flaw> {
    let (iova, size) = dma_numbers(text)?;
    check_run(iova, size)?;
    Ok((iova, size))
}

fn dma_numbers(text: &[u8]) -> Result<(u64, u64), Flaw> {
    if text.starts_with(UNPARSED) {
        return Err(Flaw::Expected("the event in words, not the fields of a record that the tool could not read"));
    }
    let expected = Flaw::Expected("`dma_addr=` and a hexadecimal address");
    let iova = whole(field(text, b"dma_addr="), Scan::hexadecimal, expected)?;
    let size = whole(field(text, b"size="), Scan::decimal, Flaw::Expected("`size=` and a decimal number of bytes"))?;
    Ok((iova, size))
}

/// Linux lets a driver sync zero bytes. A sync of a buffer that the device only reads says nothing about what the
/// device did.
fn sync(text: &[u8]) -> Result<Event<'_>, Flaw> {
    let (iova, size) = dma_numbers(text)?;
    match size > 0 && access(text)? != Access::DeviceReads {
        true => Ok(Event::Sync { device: device(text)?, iova, size }),
        false => Ok(Event::Other),
    }
}

fn sync_list(text: &[u8]) -> Result<Event<'_>, Flaw> {
    let pieces = Pieces::parse(text)?;
    match access(text)? {
        Access::DeviceReads => Ok(Event::Other),
        _ => Ok(Event::SyncList { device: device(text)?, pieces }),
    }
}

fn dma_map_list(text: &[u8]) -> Result<Event<'_>, Flaw> {
    let list = List::parse(text)?;
    Ok(Event::DmaMapList { device: device(text)?, access: access(text)?, list })
}

fn dma_unmap_list(text: &[u8]) -> Result<Event<'_>, Flaw> {
    let device = device(text)?;
    Ok(Event::DmaUnmapList { device, phys: Numbers::phys(text)? })
}

fn invalidate<'a>(text: &[u8]) -> Result<Event<'a>, Flaw> {
    const EXPECTED: Flaw = Flaw::Expected("`iotlb_inv unit: ` and four hexadecimal quadwords");
    let mut scan = Scan(text);
    if scan.word() != b"iotlb_inv" {
        return Ok(Event::Other);
    }
    scan.spaces();
    if !scan.word().ends_with(b":") {
        return Err(EXPECTED);
    }
    let mut quadwords = [0; 4];
    for quadword in &mut quadwords {
        scan.spaces();
        *quadword = scan.hexadecimal().filter(|_| scan.at_gap()).ok_or(EXPECTED)?;
    }
    Ok(Event::Invalidate { qw0: quadwords[0], qw1: quadwords[1] })
}
