//! What the events say: the words after the event's name, the same in every tool that prints them.

use super::error::Flaw;
use super::list::{List, Numbers, Pieces, UNPARSED, check_run};
use super::scan::{Scan, field};
use portcullis::{Access, PAGE_SIZE};

/// No device of today puts more than this on the bus: five levels of table.
const IOVA_END: u64 = 1 << 57;
/// What a table entry can hold.
pub(super) const PHYSICAL_END: u64 = 1 << 52;

/// An event that the trace is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event<'a> {
    /// `iommu:map`: a physically contiguous piece appears in a table. Whole pages.
    Map { iova: u64, size: u64, phys: u64 },
    /// `iommu:unmap`: a run of pages goes. Whole pages.
    Unmap { iova: u64, size: u64 },
    /// `dma:dma_map_page` and its like, among them `portcullis:portcullis_map`: who mapped these bytes, and why.
    DmaMap { device: &'a [u8], access: Access, iova: u64, size: u64, phys: u64 },
    /// `dma:dma_map_sg`: the same for a scatter list.
    DmaMapList { device: &'a [u8], access: Access, list: List<'a> },
    /// `dma:dma_unmap_page` and its like, after its `iommu:unmap`.
    DmaUnmap { device: &'a [u8], iova: u64, size: u64 },
    /// `dma:dma_unmap_sg`, before its `iommu:unmap`.
    DmaUnmapList { device: &'a [u8], phys: Numbers<'a> },
    /// `dma:dma_sync_single_for_cpu` of what a device has written: the driver is about to look at these bytes.
    Sync { device: &'a [u8], iova: u64, size: u64 },
    /// `dma:dma_sync_sg_for_cpu`: the same for a scatter list.
    SyncList { device: &'a [u8], pieces: Pieces<'a> },
    /// `intel_iommu:qi_submit` of an IOTLB invalidation: the descriptor's two quadwords.
    Invalidate { qw0: u64, qw1: u64 },
    /// Any other.
    Other,
}

/// Whether [`Event::parse`] reads the words of this event.
pub(super) fn is_known(name: &[u8]) -> bool {
    let dma = name.strip_prefix(b"dma_map_").or_else(|| name.strip_prefix(b"dma_unmap_"));
    matches!(name, b"map" | b"unmap" | b"qi_submit" | b"dma_sync_single_for_cpu" | b"dma_sync_sg_for_cpu")
        || matches!(name, b"portcullis_map" | b"portcullis_unmap")
        || matches!(dma, Some(b"page" | b"resource" | b"phys" | b"sg"))
}

impl<'a> Event<'a> {
    /// The event `name`, which says `text`.
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

/// A number that a blank or the end follows.
fn whole<'a>(scan: Option<Scan<'a>>, number: fn(&mut Scan<'a>) -> Option<u64>, expected: Flaw) -> Result<u64, Flaw> {
    let mut scan = scan.ok_or(expected)?;
    number(&mut scan).filter(|_| scan.at_gap()).ok_or(expected)
}

/// `IOMMU: iova=0x… - 0x…` and the `size=` behind it: the run, and what follows its addresses.
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

/// The first word; behind a key where the tool fell back on the fields of the record.
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

/// `dma_addr=… size=…`: any bytes, also those of a device that no IOMMU serves.
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

/// Linux lets a driver sync no bytes at all. What only the CPU has written tells nothing of what the device did.
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
