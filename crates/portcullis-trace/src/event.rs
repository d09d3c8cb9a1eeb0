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
    /// A `dma:` event of a map that failed: its I/O address is all ones, the kernel's `DMA_MAPPING_ERROR`.
    FailedMap,
    /// An unmap of no bytes, or of a map that failed. Drivers make both by mistake.
    UnmapOfNothing,
    /// `intel_iommu:qi_submit` of an IOTLB invalidation: the two quadwords of the descriptor.
    Invalidate { qw0: u64, qw1: u64 },
    /// `iommu:io_page_fault`: the IOMMU has refused an access.
    Fault { device: &'a [u8], iova: u64 },
    /// Any other event.
    Other,
}

/// Whether [`Event::parse`] reads the text of this event.
pub(super) fn is_known(name: &[u8]) -> bool {
    let dma = name.strip_prefix(b"dma_map_").or_else(|| name.strip_prefix(b"dma_unmap_"));
    matches!(
        name,
        b"map" | b"unmap" | b"io_page_fault" | b"qi_submit" | b"dma_sync_single_for_cpu" | b"dma_sync_sg_for_cpu"
    ) || matches!(name, b"portcullis_map" | b"portcullis_unmap")
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
            b"io_page_fault" => fault(text),
            _ => Ok(Self::Other),
        }
    }
}

/// A number that must end at a blank or at the end of the line.
fn whole<'a>(scan: Option<Scan<'a>>, number: fn(&mut Scan<'a>) -> Option<u64>, expected: Flaw) -> Result<u64, Flaw> {
    let mut scan = scan.ok_or(expected)?;
    number(&mut scan).filter(|_| scan.at_gap()).ok_or(expected)
}

/// A number of bytes. The kernel prints decimal digits, some vendors' kernels `0x` and hexadecimal ones.
fn bytes(scan: &mut Scan<'_>) -> Option<u64> {
    if scan.0.starts_with(b"0x") { scan.hexadecimal() } else { scan.decimal() }
}

const SIZE: Flaw = Flaw::Expected("`size=` and a number of bytes, decimal or with `0x`");

/// `trace-cmd report -R` prints the fields of a record without the words of the event.
const BARE: Flaw = Flaw::Expected("the event in words, as trace-cmd report prints it without its option -R");

/// The run of an event: where it begins, where it ends if that is printed, its size, and the text after its addresses.
struct Run<'a> {
    start: u64,
    end: Option<u64>,
    size: u64,
    rest: &'a [u8],
}

/// Parses `IOMMU: iova=0x… - 0x…` and the `size=` behind it.
///
/// Linux before 5.17 does not print the end of the run. Some vendors' kernels print fields of their own in front of
/// the address, such as the name of the device.
fn run(text: &[u8]) -> Result<Run<'_>, Flaw> {
    const EXPECTED: Flaw = Flaw::Expected("`IOMMU:` and `iova=0x…` or `iova=0x… - 0x…` with hexadecimal addresses");
    if !text.starts_with(b"IOMMU:") {
        return Err(if text.starts_with(b"iova=") { BARE } else { EXPECTED });
    }
    let mut scan = field(text, b"iova=").ok_or(EXPECTED)?;
    let start = scan.hexadecimal().filter(|_| scan.at_gap()).ok_or(EXPECTED)?;
    let end = match scan.literal(b" - ") {
        Some(()) => Some(scan.hexadecimal().filter(|_| scan.at_gap()).ok_or(EXPECTED)?),
        None => None,
    };
    Ok(Run { start, end, size: whole(field(scan.0, b"size="), bytes, SIZE)?, rest: scan.0 })
}

fn check_pages(start: u64, end: Option<u64>, size: u64) -> Result<(), Flaw> {
    if size == 0 {
        return Err(Flaw::Expected("a size above zero"));
    }
    if start.checked_add(size).is_none_or(|end| end > IOVA_END) {
        return Err(Flaw::Expected("a run that ends below 2^57, the widest I/O address"));
    }
    if end.is_some_and(|end| end != start + size) {
        return Err(Flaw::Expected("a run as long as its `size=`"));
    }
    if !(start | size).is_multiple_of(PAGE_SIZE) {
        return Err(Flaw::Expected("whole pages of 4096 bytes"));
    }
    Ok(())
}

fn map<'a>(text: &[u8]) -> Result<Event<'a>, Flaw> {
    let Run { start: iova, end, size, rest } = run(text)?;
    check_pages(iova, end, size)?;
    let phys = whole(field(rest, b"paddr="), Scan::hexadecimal, Flaw::Expected("`paddr=` and a hexadecimal address"))?;
    if phys.checked_add(size).is_none_or(|end| end > PHYSICAL_END) || !phys.is_multiple_of(PAGE_SIZE) {
        return Err(Flaw::Expected("a page-aligned physical address below 2^52"));
    }
    Ok(Event::Map { iova, size, phys })
}

/// What counts is what was unmapped: all of a large leaf if an IOMMU cannot split it, or less than was asked for.
fn unmap<'a>(text: &[u8]) -> Result<Event<'a>, Flaw> {
    let Run { start: iova, end, size: asked, rest } = run(text)?;
    let expected = Flaw::Expected("`unmapped_size=` and a number of bytes, decimal or with `0x`");
    let size = whole(field(rest, b"unmapped_size="), bytes, expected)?;
    if asked == 0 || size == 0 {
        return Ok(Event::UnmapOfNothing);
    }
    check_pages(iova, end, asked)?;
    check_pages(iova, None, size)?;
    Ok(Event::Unmap { iova, size })
}

/// Parses `IOMMU:driver device iova=0x… flags=0x…`. The driver may be missing.
fn fault(text: &[u8]) -> Result<Event<'_>, Flaw> {
    const EXPECTED: Flaw = Flaw::Expected("`IOMMU:`, a driver, a device, and `iova=0x…` with a hexadecimal address");
    let mut scan = Scan(text);
    scan.until(b':').filter(|word| *word == b"IOMMU").ok_or(EXPECTED)?;
    scan.word();
    scan.spaces();
    let device = scan.word();
    let iova = whole(field(text, b"iova="), Scan::hexadecimal, EXPECTED)?;
    Ok(Event::Fault { device, iova })
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

/// What the kernel returns for a map that failed, `DMA_MAPPING_ERROR`.
const FAILED: u64 = u64::MAX;

fn dma_map(text: &[u8]) -> Result<Event<'_>, Flaw> {
    let (iova, size) = dma_numbers(text)?;
    if iova == FAILED {
        return Ok(Event::FailedMap);
    }
    check_run(iova, size)?;
    let expected = Flaw::Expected("`phys_addr=` and a hexadecimal address");
    let phys = whole(field(text, b"phys_addr="), Scan::hexadecimal, expected)?;
    Ok(Event::DmaMap { device: device(text)?, access: access(text)?, iova, size, phys })
}

fn dma_unmap(text: &[u8]) -> Result<Event<'_>, Flaw> {
    let (iova, size) = dma_numbers(text)?;
    if size == 0 || iova == FAILED {
        return Ok(Event::UnmapOfNothing);
    }
    check_run(iova, size)?;
    Ok(Event::DmaUnmap { device: device(text)?, iova, size })
}

/// Parses `dma_addr=… size=…`. The run may be any bytes, because the device may not be behind an IOMMU.
fn dma_numbers(text: &[u8]) -> Result<(u64, u64), Flaw> {
    if text.starts_with(UNPARSED) {
        return Err(Flaw::Expected("the event in words, not the fields of a record that the tool could not read"));
    }
    let expected = Flaw::Expected("`dma_addr=` and a hexadecimal address");
    let iova = whole(field(text, b"dma_addr="), Scan::hexadecimal, expected)?;
    Ok((iova, whole(field(text, b"size="), bytes, SIZE)?))
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
