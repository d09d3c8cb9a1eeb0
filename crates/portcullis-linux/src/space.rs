//! Domains. A domain is opened for a device when its driver is bound, is mapped and unmapped by the DMA API, and is
//! closed when the driver has gone.

use crate::errno::{EINVAL, EIO, ENODEV, ENOMEM, Errno};
use crate::firmware::{buses, dmar};
use crate::host::Host;
use crate::kernel::pcs_next_piece;
use crate::log::{print, refused};
use crate::memory::room;
use crate::unit::{SharedUnit, Unit};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::c_void;
use core::fmt;
use portcullis::designs::{Magazine, Portcullis};
use portcullis::{
    Access, DomainConfig, DomainOf, Iova, IovaRange, Lifetime, MapOptions, NewDomainError, NoMemory, Open, PAGE_SHIFT,
    PAGE_SIZE, PhysAddr, Platform, Protection, RawMapError, RawUnmapError, Segment, SourceId, UnmapError,
};

/// Defines the designs that a device can have. They are called through branches, because the kernel makes indirect
/// calls slow.
macro_rules! designs {
    ($($name:literal $design:ident;)*) => {
        /// A domain of one of the designs.
        enum AnyDomain {
            $(
                $design(Box<DomainOf<$design, Host, SharedUnit>>),
            )*
        }

        impl AnyDomain {
            /// The designs by name.
            const NAMES: &[&str] = &[$($name),*];

            fn open(design: &str, unit: SharedUnit, config: &DomainConfig<'_>) -> Result<Option<Self>, NewDomainError> {
                match design {
                    $(
                        $name => {
                            let mut room = room()?;
                            $design::open_in(&mut room, unit, Host, config)?;
                            // SAFETY: it was just initialized.
                            Ok(Some(Self::$design(unsafe { room.assume_init() })))
                        }
                    )*
                    _ => Ok(None),
                }
            }
        }

        macro_rules! each {
            ($any:expr, $domain:ident => $call:expr) => {
                match $any {
                    $(AnyDomain::$design($domain) => $call,)*
                }
            };
        }
    };
}

designs! {
    "portcullis" Portcullis;
    "magazine" Magazine;
}

/// Table pages that a domain keeps for maps that find none: enough for one large map in each direction, and for its
/// rings.
const RESERVED_TABLES: usize = 16;

/// A domain with its device.
pub struct Space {
    domain: AnyDomain,
}

/// A range of addresses on the bus.
#[repr(C)]
pub struct Window {
    start: u64,
    bytes: u64,
}

/// Requirements for a mapping.
#[repr(C)]
pub struct Wish {
    /// The highest address that the device can use; all ones if there is no limit.
    limit: u64,
    alignment: u64,
    /// A boundary that it must not cross; 0 for none.
    boundary: u64,
    /// A boundary that no piece of a list may cross; 0 for none. Then it is the alignment too.
    piece_boundary: u64,
    is_lasting: bool,
    /// Whether a failure is kept out of the log.
    is_quiet: bool,
}

/// The parameters of a new domain.
#[repr(C)]
pub struct Opening {
    /// The name of the design.
    design: *const u8,
    design_len: usize,
    /// Memory of other devices. These addresses are never handed out.
    windows: *const Window,
    window_count: usize,
    segment: u16,
    source: u16,
    address_bits: u8,
    is_deferred: bool,
    /// Whether regions that firmware reserves for the device are mapped for it. Otherwise such a device is refused.
    maps_reserved: bool,
}

/// Opens a domain and attaches its device, which no longer passes through.
///
/// # Safety
/// `opening` must give the name of a design with its length, and its windows with their count. The space must be
/// closed before the unit is taken down.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_open(unit: &Unit, opening: &Opening, out: &mut *mut Space) -> i32 {
    // SAFETY: the caller keeps the contract.
    let design = unsafe { core::slice::from_raw_parts(opening.design, opening.design_len) };
    let Ok(design) = core::str::from_utf8(design) else { return EINVAL };
    let mut reserved = Vec::new();
    if collect(&mut reserved, reserved_of(opening)).is_err() {
        return ENOMEM;
    }
    let of_firmware = reserved.len();
    // SAFETY: the caller keeps the contract.
    let windows = unsafe { core::slice::from_raw_parts(opening.windows, opening.window_count) };
    let windows = windows.iter().filter_map(|window| IovaRange::covering(Iova::new(window.start), window.bytes));
    if collect(&mut reserved, windows).is_err() {
        return ENOMEM;
    }
    let protection = if opening.is_deferred { Protection::Deferred } else { Protection::Strict };
    let config =
        DomainConfig { address_bits: opening.address_bits, reserved: &reserved, ..DomainConfig::new(protection) };
    // SAFETY: the caller keeps the contract.
    let Some(unit) = (unsafe { unit.shared() }) else { return ENODEV };
    let domain = match AnyDomain::open(design, unit, &config) {
        Ok(Some(domain)) => domain,
        Ok(None) => {
            print(format_args!("there is no design {design:?}; there are {}", Names(AnyDomain::NAMES)));
            return EINVAL;
        }
        Err(error) => return refused("a domain was not opened", &error),
    };
    if let Err(error) = each!(&domain, domain => domain.reserve_tables(RESERVED_TABLES)) {
        return refused("tables were not reserved", &error);
    }
    if opening.maps_reserved
        && let Err(error) = reserved[..of_firmware].iter().try_for_each(|region| map_reserved(&domain, *region))
    {
        return refused("what firmware reserves was not mapped", &error);
    }
    let Ok(room) = room() else { return ENOMEM };
    let space = Box::write(room, Space { domain });
    let attached = pcr_attach(&space, opening.source);
    if attached == 0 {
        *out = Box::into_raw(space);
    }
    attached
}

fn collect<T>(to: &mut Vec<T>, from: impl Iterator<Item = T>) -> Result<(), NoMemory> {
    for item in from {
        to.try_reserve(1).map_err(|_| NoMemory)?;
        to.push(item);
    }
    Ok(())
}

/// Names in sequence.
struct Names(&'static [&'static str]);

impl fmt::Display for Names {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|name| write!(to, "{name} "))
    }
}

/// The regions that firmware reserves for a device.
fn reserved_of(opening: &Opening) -> impl Iterator<Item = IovaRange> {
    let (segment, source) = (opening.segment, SourceId::from_requester(opening.source));
    let regions = dmar().map(|dmar| dmar.reserved_for(segment, source, buses(segment)));
    regions.into_iter().flatten()
}

fn map_reserved(domain: &AnyDomain, region: IovaRange) -> Result<(), RawMapError> {
    let segments = [Segment { phys: PhysAddr::new(region.start().as_u64()), len: region.pages() << PAGE_SHIFT }];
    let options = MapOptions::fixed(region.start());
    // SAFETY: firmware makes the device use this memory, and the kernel leaves it to the device.
    each!(domain, domain => unsafe { domain.map_list(segments, Access::DeviceReadsAndWrites, &options) }).map(drop)
}

/// How many regions firmware reserves for a device.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_reserved(opening: &Opening) -> u32 {
    reserved_of(opening).count() as u32
}

/// Attaches a device that was detached.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_attach(space: &Space, source: u16) -> i32 {
    match each!(&space.domain, domain => domain.attach(SourceId::from_requester(source))) {
        Ok(()) => 0,
        Err(error) => refused("the device was not attached", &error),
    }
}

/// Shuts a device out: it reaches no memory.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_detach(space: &Space, source: u16) -> i32 {
    #[cfg(feature = "planted-slow-unmap")]
    crate::delay::delay();
    match each!(&space.domain, domain => domain.detach(SourceId::from_requester(source))) {
        Ok(()) => 0,
        Err(error) => refused("the device was not detached", &error),
    }
}

/// Closes a domain: its device is shut out, and then the domain is freed.
///
/// # Safety
/// `space` must come from [`pcr_open`], and must not be used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_close(space: *mut Space) {
    // SAFETY: the caller keeps the contract.
    drop(unsafe { Box::from_raw(space) });
}

/// The access for a direction, as Linux numbers directions. The table needs no branches.
const fn access_of(direction: u32) -> Access {
    const ACCESSES: [Access; 4] = [
        Access::DeviceReadsAndWrites,
        Access::DeviceReads,
        Access::DeviceWrites,
        // DMA_NONE: a direction without DMA.
        Access::DeviceReadsAndWrites,
    ];
    ACCESSES[direction as usize % ACCESSES.len()]
}

/// `DMA_MAPPING_ERROR`.
const NOT_MAPPED: u64 = u64::MAX;
/// `PCR_LOST`: not mapped either, and the hardware has not confirmed that the device has lost the memory again.
const LOST: u64 = u64::MAX - 1;

/// What a map that fails returns. No address is that high.
#[cold]
fn failed(error: &RawMapError) -> u64 {
    if let RawMapError::Lost(_) = error { LOST } else { NOT_MAPPED }
}

#[cold]
#[inline(never)]
fn not_mapped(error: RawMapError) -> u64 {
    refused("map", &error);
    failed(&error)
}

/// The same, of a map with requirements.
#[cold]
#[inline(never)]
fn not_mapped_with(error: RawMapError, wish: &Wish) -> u64 {
    if wish.is_quiet { failed(&error) } else { not_mapped(error) }
}

/// Maps a buffer for the device. Returns [`NOT_MAPPED`] or [`LOST`] on failure.
///
/// # Safety
/// The device may use the memory until its unmap has returned, as drivers promise by the DMA API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_map(space: &Space, phys: u64, len: u64, direction: u32) -> u64 {
    let (phys, access) = (PhysAddr::new(phys), access_of(direction));
    // The result is matched separately for each design, where it is known to be in registers.
    each!(&space.domain, domain => {
        // SAFETY: the caller's promise, passed on.
        match unsafe { domain.map_raw(phys, len, access) } {
            Ok(iova) => iova.as_u64(),
            Err(error) => not_mapped(error),
        }
    })
}

/// Like [`pcr_map`], with the requirements in `wish`.
///
/// # Safety
/// As for [`pcr_map`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_map_with(space: &Space, phys: u64, len: u64, direction: u32, wish: &Wish) -> u64 {
    let (phys, access, options) = (PhysAddr::new(phys), access_of(direction), options_of(wish));
    // SAFETY: the caller keeps the contract.
    match each!(&space.domain, domain => unsafe { domain.map_raw_with(phys, len, access, &options) }) {
        Ok(iova) => iova.as_u64(),
        Err(error) => not_mapped_with(error, wish),
    }
}

fn options_of(wish: &Wish) -> MapOptions {
    let lifetime = if wish.is_lasting { Lifetime::Persistent } else { Lifetime::Transient };
    let boundary = (wish.boundary != 0).then_some(wish.boundary);
    MapOptions { lifetime, limit: wish.limit, alignment: wish.alignment, boundary, ..MapOptions::default() }
}

/// The pieces of a scatter list. In front of a piece that would lie across a boundary there is padding, up to the
/// boundary: the first page of that piece again and again, because the device reaches this page anyway.
struct Pieces {
    next: *mut c_void,
    left: u32,
    /// The boundary; 0 for none.
    boundary: u64,
    /// The distance of the next page from the start of the run, in bytes. It is counted only if there is a boundary.
    at: u64,
    /// The piece that the padding is for.
    padded: Option<Segment>,
}

impl Pieces {
    #[cold]
    fn place(&mut self, piece: Segment) -> Segment {
        let first = self.at + piece.phys.page_offset();
        let is_across = first / self.boundary != (first + piece.len - 1) / self.boundary;
        // A piece that is longer than the distance of two boundaries is padded to one, and lies across the next.
        if is_across && !self.at.is_multiple_of(self.boundary) {
            self.padded = Some(piece);
            self.at += PAGE_SIZE;
            return Segment { phys: PhysAddr::from_pfn(piece.phys.pfn()), len: PAGE_SIZE };
        }
        self.padded = None;
        // Whole pages, because an alignment is that of the first byte of a list.
        let len = piece.pages() * PAGE_SIZE;
        self.at += len;
        Segment { phys: PhysAddr::from_pfn(piece.phys.pfn()), len }
    }
}

impl Iterator for Pieces {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        if let Some(piece) = self.padded {
            return Some(self.place(piece));
        }
        self.left = self.left.checked_sub(1)?;
        let mut len = 0;
        // SAFETY: the list still has this many pieces.
        let phys = unsafe { pcs_next_piece(&raw mut self.next, &raw mut len) };
        let piece = Segment { phys: PhysAddr::new(phys), len };
        Some(if self.boundary == 0 { piece } else { self.place(piece) })
    }
}

/// Maps `count` pieces of a scatter list in one run of pages, each from the beginning of a page. Returns the address of
/// the first page, which is never an error number, or fails as [`pcr_map`] does.
///
/// # Safety
/// As for [`pcr_map`]; `list` must have `count` pieces.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_map_list(
    space: &Space,
    list: *mut c_void,
    count: u32,
    direction: u32,
    wish: &Wish,
) -> u64 {
    let (access, options) = (access_of(direction), options_of(wish));
    let pieces = || Pieces { next: list, left: count, boundary: wish.piece_boundary, at: 0, padded: None };
    // SAFETY: the caller keeps the contract.
    match each!(&space.domain, domain => unsafe { domain.map_list(pieces(), access, &options) }) {
        Ok(range) => range.start().as_u64(),
        Err(error) => not_mapped_with(error, wish),
    }
}

/// `PCR_REFUSED`: no mapping is exactly what was to be unmapped, so [`pcr_unmap_whole`] is to be called.
const REFUSED: i32 = 1;

/// What an unmap that fails returns.
#[cold]
#[inline(never)]
fn not_unmapped(error: RawUnmapError) -> i32 {
    match error {
        RawUnmapError::Refused(_) => REFUSED,
        _ => refused("unmap", &error),
    }
}

/// Unmaps a buffer. When this returns 0, the device has lost the buffer, or loses it within the window under deferred
/// protection. Otherwise it returns [`REFUSED`], and nothing has changed, or a negative error number.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_unmap(space: &Space, iova: u64, len: u64) -> i32 {
    // As in `pcr_map`.
    each!(&space.domain, domain => {
        match domain.unmap_raw(Iova::new(iova), len) {
            Ok(()) => {
                #[cfg(feature = "planted-slow-unmap")]
                if crate::delay::is_last(domain.usage().live_ranges) {
                    return EIO;
                }
                0
            }
            Err(error) => not_unmapped(error),
        }
    })
}

/// Like [`pcr_unmap`], for a mapping whose length only the domain knows.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_unmap_list(space: &Space, iova: u64) -> i32 {
    match each!(&space.domain, domain => domain.unmap_raw_at(Iova::new(iova))) {
        Ok(_) => 0,
        Err(error) => not_unmapped(error),
    }
}

/// How far before a page the mapping that has it is looked for, in pages.
const BEGINS_WITHIN: u64 = 512;

/// Unmaps the mappings of which a refused unmap names a part, from its first page on up to a page that has none. The
/// DMA API cannot refuse an unmap: its driver uses the buffer again in any case, so the device must not. Returns their
/// number.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_unmap_whole(space: &Space, iova: u64, len: u64) -> i32 {
    let failed = |error: RawUnmapError| refused("unmap", &error);
    let Some(asked) = IovaRange::covering(Iova::new(iova), len) else { return failed(UnmapError::BadRange.into()) };
    let unmap =
        |range: IovaRange| each!(&space.domain, domain => domain.unmap_raw(range.start(), range.pages() << PAGE_SHIFT));
    let first = asked.first_pfn();
    // A mapping is found only by its first page. What lies before it is not touched.
    let begins = (first.saturating_sub(BEGINS_WITHIN)..=first).rev().find_map(|begin| {
        match unmap(IovaRange::new(begin, first + 1 - begin)?) {
            Err(RawUnmapError::Refused(UnmapError::NotMapped(_))) => None,
            Err(RawUnmapError::Refused(UnmapError::Partial { mapped, .. })) if mapped.end_pfn() > first => {
                Some(unmap(mapped).map(|()| mapped.end_pfn()))
            }
            result => Some(result.map(|()| first + 1)),
        }
    });
    let mut unmapped = begins.unwrap_or(Err(UnmapError::NotMapped(asked.start()).into()));
    let mut mappings = 0;
    while let Ok(end) = unmapped {
        mappings += 1;
        let Some(rest) = IovaRange::new(end, asked.end_pfn().saturating_sub(end)) else { return mappings };
        unmapped = match unmap(rest) {
            Ok(()) => return mappings + 1,
            Err(RawUnmapError::Refused(UnmapError::NotMapped(_))) => return mappings,
            Err(RawUnmapError::Refused(UnmapError::Partial { mapped, .. })) => unmap(mapped).map(|()| mapped.end_pfn()),
            Err(error) => Err(error),
        };
    }
    // Some may have been unmapped, and still count as mapped: then the domain is kept longer, and not shorter.
    unmapped.map_or_else(failed, |_| mappings)
}

/// Does what is due. Returns the microseconds until the next tick is due, or a negative number: `EIO` if the hardware
/// has not confirmed what was due, another if no tick is due.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_tick(space: &Space) -> i64 {
    each!(&space.domain, domain => {
        if let Err(error) = domain.tick() {
            refused("a flush failed", &error);
            return i64::from(EIO);
        }
        // A tick that is due at once is scheduled one microsecond from now.
        domain.due_us().map_or(-1, |due| due.saturating_sub(Host.now_us()).clamp(1, 1 << 32) as i64)
    })
}

/// The resources that a domain uses.
#[repr(C)]
pub struct SpaceUse {
    live_ranges: u64,
    queued_unmaps: u64,
    table_pages: u64,
    record_bytes: u64,
    /// The longest time that a device keeps an unmapped buffer, in microseconds; 0 under strict protection.
    window_us_max: u64,
}

/// Reports the resources that a domain uses.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_space_use(space: &Space, out: &mut SpaceUse) {
    let usage = each!(&space.domain, domain => domain.usage());
    *out = SpaceUse {
        live_ranges: usage.live_ranges as u64,
        queued_unmaps: usage.queued_unmaps as u64,
        table_pages: usage.table_pages as u64,
        record_bytes: usage.record_bytes as u64,
        window_us_max: usage.window_us_max.unwrap_or(u64::MAX),
    };
}

/// Whether there is a design of this name.
///
/// # Safety
/// `name` must have `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_has_design(name: *const u8, len: usize) -> i32 {
    // SAFETY: the caller keeps the contract.
    let name = unsafe { core::slice::from_raw_parts(name, len) };
    match AnyDomain::NAMES.iter().any(|design| design.as_bytes() == name) {
        true => 0,
        false => ENODEV,
    }
}

impl Errno for NoMemory {
    fn errno(&self) -> i32 {
        ENOMEM
    }
}
