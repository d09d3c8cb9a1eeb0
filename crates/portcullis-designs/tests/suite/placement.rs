//! Requests with placement: limits, alignments, boundaries and fixed addresses, among other mappings.

mod apart;
mod options;

use crate::raw_face::RawFace;
use portcullis::domain::DmaBuffer;
use portcullis::iommu::fake::{Behaviour, FakeIommu};
use portcullis::mapper::Addressing;
use portcullis::platform::fake::FakeHost;
use portcullis::table::Rights;
use portcullis::{
    Access, CommitError, DomainConfig, DynDomain, Iova, IovaRange, Lifetime, MapError, MapOptions, PAGE_SIZE, PhysAddr,
    Protection, RawUnmapError, Segment, SourceId, UnmapError, pages_spanned,
};
use portcullis_designs::DesignId;

const DEVICE: SourceId = SourceId::from_requester(7);
const ANYWHERE: MapOptions = MapOptions {
    stream: portcullis::Stream(None),
    lifetime: Lifetime::Persistent,
    limit: u64::MAX,
    alignment: 1,
    boundary: None,
    apart: false,
    at: None,
};
const BELOW_4_GIB: MapOptions = MapOptions { limit: 0xffff_ffff, ..ANYWHERE };
/// A region that firmware uses, as an RMRR reports it.
const REGION: Segment = Segment { phys: PhysAddr::new(0x7a00_0000), len: 16 * PAGE_SIZE };
/// Another region, in the highest addresses, where `portcullis` has its chunks and `identity` has its addresses for
/// reads and writes.
const HIGH_REGION: Segment = Segment { phys: PhysAddr::new(0xffff_7a00_0000), len: 3 * PAGE_SIZE };
/// Designs that cannot choose their addresses. Outside reserved regions, they refuse such a request with an error.
const CANNOT_CHOOSE: [&str; 5] = ["none", "static", "solaris", "macos", "kmalloc"];

fn pages_of(segment: Segment) -> IovaRange {
    IovaRange::covering(Iova::new(segment.phys.as_u64()), segment.len).expect("a region")
}

struct Bench {
    host: &'static FakeHost,
    iommu: &'static FakeIommu<'static>,
    domain: Box<DynDomain>,
    /// The highest address.
    last: u64,
    mapped: Vec<Placed>,
}

/// A mapping: its address, its memory, and its length.
#[derive(Clone, Copy, Debug)]
struct Placed {
    iova: Iova,
    phys: PhysAddr,
    len: u64,
    is_placed: bool,
}

impl Placed {
    fn pages(&self) -> IovaRange {
        IovaRange::covering(self.iova, self.len).expect("a mapping")
    }
}

impl Bench {
    fn new(design: DesignId, protection: Protection, address_bits: u8) -> Self {
        let host: &FakeHost = Box::leak(Box::default());
        let iommu: &FakeIommu<'_> = Box::leak(Box::new(FakeIommu::new(host)));
        let reserved = [pages_of(REGION), pages_of(HIGH_REGION)];
        let config = DomainConfig { reserved: &reserved, address_bits, ..DomainConfig::new(protection) };
        let domain = DynDomain::open(design, iommu, host, &config).expect("a protection that the design offers");
        domain.attach(DEVICE).expect("a device");
        Self { host, iommu, domain, last: (1 << address_bits) - 1, mapped: Vec::new() }
    }

    fn name(&self) -> String {
        format!("{} {}", self.domain.info().id, self.domain.protection())
    }

    /// Maps a buffer and checks what the device reaches: the memory, with the rights, at addresses that no other
    /// mapping has.
    fn map(&mut self, phys: PhysAddr, len: u64, options: &MapOptions) -> Result<Placed, MapError> {
        let iova = self.domain.raw_map_with(phys, len, Access::DeviceWrites, options)?;
        let new = Placed {
            iova,
            phys,
            len,
            // A constraint that holds at any address of the pages places nothing.
            is_placed: options.at.is_some()
                || options.limit < self.last
                || options.alignment > PAGE_SIZE
                || options.boundary.is_some_and(|boundary| boundary <= self.last)
                    && pages_spanned(phys.page_offset(), len) > 1,
        };
        let last = iova.as_u64() + (len - 1);
        assert!(last <= options.limit, "{}: {new:?} is beyond the limit of {options:?}", self.name());
        assert_eq!(iova.as_u64() % options.alignment, 0, "{}: {new:?} is not aligned", self.name());
        assert!(options.boundary.is_none_or(|boundary| iova.as_u64() / boundary == last / boundary), "{new:?}");
        assert!(options.at.is_none_or(|at| at == iova), "{}: {new:?} is elsewhere", self.name());
        if self.domain.info().addressing == Addressing::Own {
            let met = self.mapped.iter().find(|other| other.pages().overlaps(new.pages()));
            assert!(met.is_none(), "{}: {new:?} and {met:?}", self.name());
        }
        self.mapped.push(new);
        self.look(new);
        Ok(new)
    }

    fn look(&self, mapped: Placed) {
        for offset in [0, mapped.len / 2, mapped.len - 1] {
            let iova = Iova::new(mapped.iova.as_u64() + offset);
            let phys = PhysAddr::new(mapped.phys.as_u64() + offset);
            assert_eq!(self.iommu.access(DEVICE, iova, Rights::WRITE), Some(phys), "{}: {mapped:?}", self.name());
            assert_eq!(self.iommu.access(DEVICE, iova, Rights::READ), None, "{}: {mapped:?}", self.name());
        }
    }

    /// Unmaps a mapping, and checks that a placed one is unreachable at once, under any protection.
    fn unmap(&mut self, index: usize) {
        let mapped = self.mapped.swap_remove(index);
        self.domain.unmap_raw(mapped.iova, mapped.len).unwrap_or_else(|error| panic!("{}: {error}", self.name()));
        if mapped.is_placed {
            assert_eq!(self.iommu.access(DEVICE, mapped.iova, Rights::WRITE), None, "{}: {mapped:?}", self.name());
        }
    }

    /// Unmaps everything, and checks that nothing is left.
    fn end(mut self) {
        while !self.mapped.is_empty() {
            self.unmap(self.mapped.len() / 2);
        }
        while let Some(due_us) = self.domain.due_us() {
            self.host.advance_us(due_us + 1);
            self.domain.tick().expect("the hardware answers");
        }
        assert_eq!(self.domain.usage().live_ranges, 0, "{}", self.name());
        let host = self.host;
        drop(self);
        assert_eq!(host.frames_lent(), 0);
    }
}

/// Runs `test` for every design with every protection that it offers, except `none`.
fn each(test: impl Fn(Bench)) {
    // Addresses of entries cannot be chosen: see `riommu.rs`.
    for design in DesignId::ALL.iter().copied().filter(|design| !design.info().is_hypothetical()) {
        for protection in design.info().protections.iter().filter(|protection| **protection != Protection::None) {
            test(Bench::new(design, *protection, 48));
        }
    }
}

/// Runs `test` for the designs that can choose addresses. The others must refuse such requests.
fn each_that_chooses(test: impl Fn(Bench)) {
    each(|mut bench| {
        if CANNOT_CHOOSE.contains(&bench.domain.info().id) {
            for options in [BELOW_4_GIB, MapOptions { alignment: 1 << 16, ..ANYWHERE }, at(0x1234_5000)] {
                let refused = bench.map(PhysAddr::new(0), PAGE_SIZE, &options).map(|placed| placed.iova);
                assert_eq!(refused, Err(MapError::Unplaceable), "{}", bench.name());
            }
        } else {
            test(bench);
        }
    });
}

const fn at(iova: u64) -> MapOptions {
    MapOptions::fixed(Iova::new(iova))
}

#[test]
fn a_domain_holds_all_kinds_at_once() {
    each_that_chooses(|mut bench| {
        bench.map(REGION.phys, REGION.len, &at(REGION.phys.as_u64())).expect("an identity mapping");
        bench.map(PhysAddr::new(0x2_0000_0000), 2 * PAGE_SIZE, &BELOW_4_GIB).expect("a coherent allocation");
        let aligned = MapOptions { alignment: 1 << 16, ..ANYWHERE };
        bench.map(PhysAddr::new(0x2_0001_0000), PAGE_SIZE, &aligned).expect("4 KiB at 64 KiB");
        bench.map(PhysAddr::new(0x2_0002_0000), 1 << 16, &aligned).expect("64 KiB at 64 KiB");
        let within = MapOptions { boundary: Some(1 << 16), ..ANYWHERE };
        for number in 0..20 {
            let phys = PhysAddr::new(0x2_0010_0800 + number * 0x1_0000);
            bench.map(phys, 12 << 10, &within).expect("12 KiB not across 64 KiB");
        }
        for number in 0..300 {
            let phys = PhysAddr::new(0x3_0000_0000 + number * 0x1_0000);
            bench.map(phys, 1 + number * 97, &MapOptions::default()).expect("48-bit streaming");
        }
        bench.mapped.iter().for_each(|mapped| bench.look(*mapped));
        bench.end();
    });
}

/// Every design maps the regions that firmware requests, since it never hands them out: anywhere, including their
/// neighbors.
#[test]
fn a_reserved_region_is_mapped_when_it_is_asked_for() {
    each(|mut bench| {
        for region in [REGION, HIGH_REGION] {
            let iova = region.phys.as_u64();
            let whole = bench.map(region.phys, region.len, &at(iova)).expect("a region");
            let part = bench.map(region.phys, PAGE_SIZE, &at(iova)).map(|placed| placed.iova);
            assert_eq!(part, Err(MapError::Overlap(Iova::new(iova))), "{}", bench.name());
            let asked = IovaRange::new(whole.pages().first_pfn() + 1, 1).expect("a page");
            let partial = bench.domain.unmap_raw(asked.start(), PAGE_SIZE);
            let mapped = whole.pages();
            assert_eq!(partial, Err(UnmapError::Partial { asked, mapped }.into()), "{}", bench.name());
            bench.look(whole);
            bench.unmap(bench.mapped.len() - 1);
            let again = bench.domain.unmap_raw(whole.iova, whole.len);
            assert_eq!(again, Err(UnmapError::NotMapped(whole.iova).into()), "{}", bench.name());
            bench.map(region.phys, PAGE_SIZE, &at(iova)).expect("it is free again");
        }
        bench.end();
    });
}

#[test]
fn an_address_in_use_is_refused() {
    each_that_chooses(|mut bench| {
        let picked = bench.map(PhysAddr::new(0x2_0000_0000), PAGE_SIZE, &BELOW_4_GIB).expect("room");
        let taken = bench.map(PhysAddr::new(0x2_0001_0000), PAGE_SIZE, &at(picked.iova.as_u64()));
        assert_eq!(taken.map(|placed| placed.iova), Err(MapError::Overlap(picked.iova)), "{}", bench.name());
        // A persistent mapping has an address of the allocator, under every design whose mappings share no addresses.
        if bench.domain.info().addressing == Addressing::Own {
            let stays = MapOptions { lifetime: Lifetime::Persistent, ..MapOptions::default() };
            let stays = bench.map(PhysAddr::new(0x2_0002_0000), PAGE_SIZE, &stays).expect("room");
            let iova = stays.iova.as_u64();
            let over = bench.map(PhysAddr::new(0x2_0003_0000), 3 * PAGE_SIZE, &at(iova - PAGE_SIZE));
            assert_eq!(over.map(|placed| placed.iova), Err(MapError::Overlap(Iova::new(iova - PAGE_SIZE))));
            // Once it is unmapped, its address may be requested, although the allocator keeps such ranges.
            bench.unmap(bench.mapped.len() - 1);
            while let Some(due_us) = bench.domain.due_us() {
                bench.host.advance_us(due_us + 1);
                bench.domain.tick().expect("the hardware answers");
            }
            bench.map(PhysAddr::new(0x2_0003_0000), PAGE_SIZE, &at(iova)).expect("the address is free");
        }
        bench.end();
    });
}

/// A request for an address that waits in a flush queue causes the flush: no tick runs in between.
#[test]
fn an_address_that_was_just_unmapped_may_be_asked_for() {
    each_that_chooses(|mut bench| {
        let name = bench.name();
        let pages = [0x20_0000, 0x20_0008].map(|pfn| Segment { phys: PhysAddr::from_pfn(pfn), len: PAGE_SIZE });
        // SAFETY: no memory is behind the IOMMU.
        let list = unsafe { bench.domain.map_list(pages, Access::DeviceWrites, &ANYWHERE) };
        let range = list.expect("room");
        let (first, len) = (range.start(), range.pages() * PAGE_SIZE);
        let refused = bench.map(PhysAddr::new(0x3_0000_0000), len, &at(first.as_u64())).map(|placed| placed.iova);
        assert_eq!(refused, Err(MapError::Overlap(first)), "{name}: it is in use");
        assert!(bench.iommu.access(DEVICE, first, Rights::WRITE).is_some(), "{name}");
        bench.domain.unmap_raw(first, len).expect("mapped");
        bench
            .map(PhysAddr::new(0x3_0000_0000), len, &at(first.as_u64()))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        bench.end();
    });
}

/// S11: the flush for such an address may fail like any other.
#[test]
fn s11_a_failed_flush_gives_no_address() {
    each_that_chooses(|mut bench| {
        let pages = [0x20_0000, 0x20_0008].map(|pfn| Segment { phys: PhysAddr::from_pfn(pfn), len: PAGE_SIZE });
        // SAFETY: no memory is behind the IOMMU.
        let range = unsafe { bench.domain.map_list(pages, Access::DeviceWrites, &ANYWHERE) }.expect("room");
        let (at, len) = (at(range.start().as_u64()), range.pages() * PAGE_SIZE);
        bench.domain.unmap_raw(range.start(), len).expect("mapped");
        if bench.domain.usage().queued_unmaps == 0 {
            return bench.end();
        }
        bench.iommu.behave(Behaviour::Failing);
        let refused = bench.map(PhysAddr::new(0), len, &at).map(|placed| placed.iova);
        assert!(matches!(refused, Err(MapError::Queue(_))), "{}: {refused:?}", bench.name());
        bench.iommu.behave(Behaviour::Prompt);
        let refused = bench.map(PhysAddr::new(0), len, &at).map(|placed| placed.iova);
        assert_eq!(refused, Err(MapError::Poisoned), "{}", bench.name());
    });
}

/// Across the ends of a reserved region, and over a whole region.
#[test]
fn a_fixed_range_may_be_reserved_in_part() {
    each_that_chooses(|mut bench| {
        let (first, end) = (REGION.phys.as_u64(), REGION.phys.as_u64() + REGION.len);
        for (from, to) in [(first - 2 * PAGE_SIZE, first + PAGE_SIZE), (end - PAGE_SIZE, end + PAGE_SIZE)] {
            bench.map(PhysAddr::new(from), to - from, &at(from)).expect("two parts");
        }
        let over = bench.map(PhysAddr::new(end), 3 * PAGE_SIZE, &at(end)).map(|placed| placed.iova);
        assert_eq!(over, Err(MapError::Overlap(Iova::new(end))), "{}: its first page is in use", bench.name());
        bench.unmap(0);
        // The page in front of the region is set aside before the page behind it is found to be in use; it is then
        // given back.
        let over = bench.map(PhysAddr::new(0), REGION.len + 2 * PAGE_SIZE, &at(first - PAGE_SIZE));
        let over = over.map(|placed| placed.iova);
        assert_eq!(over, Err(MapError::Overlap(Iova::new(end))), "{}", bench.name());
        bench.map(PhysAddr::new(0), PAGE_SIZE, &at(first - PAGE_SIZE)).expect("the page was given back");
        bench.unmap(1);
        bench.unmap(0);
        // Likewise if a page of the region is in use.
        bench.map(REGION.phys, PAGE_SIZE, &at(first)).expect("reserved");
        let over = bench.map(PhysAddr::new(0), 2 * PAGE_SIZE, &at(first - PAGE_SIZE)).map(|placed| placed.iova);
        assert_eq!(over, Err(MapError::Overlap(Iova::new(first - PAGE_SIZE))), "{}", bench.name());
        bench.unmap(0);
        bench.map(PhysAddr::new(0), REGION.len + 2 * PAGE_SIZE, &at(first - PAGE_SIZE)).expect("all of it is free");
        bench.end();
    });
}

#[test]
fn what_cannot_be_has_a_name() {
    each_that_chooses(|mut bench| {
        let name = bench.name();
        let mut refused = |phys: u64, len: u64, options: MapOptions, error: MapError| {
            let result = bench.map(PhysAddr::new(phys), len, &options).map(|placed| placed.iova);
            assert_eq!(result, Err(error), "{name}: {options:?}");
        };
        for limit in [0, 0x7ff, 0xffe] {
            refused(0x1000, 4096, MapOptions { limit, ..ANYWHERE }, MapError::BadLimit(limit));
        }
        refused(0x1000, 1, MapOptions { limit: 0xfff, ..ANYWHERE }, MapError::Exhausted { pages: 1, limit_bits: 12 });
        for alignment in [0, 3, 4097] {
            refused(0, 4096, MapOptions { alignment, ..ANYWHERE }, MapError::BadAlignment(alignment));
        }
        for boundary in [0, 3, 4097] {
            refused(0, 4096, MapOptions { boundary: Some(boundary), ..ANYWHERE }, MapError::BadBoundary(boundary));
        }
        for (phys, len, boundary) in [(0, 4097, 4096), (0x10, 4096, 4096), (0x1f0, 32, 512), (0, 1 << 17, 1 << 16)] {
            let options = MapOptions { boundary: Some(boundary), ..ANYWHERE };
            refused(phys, len, options, MapError::CrossesBoundary { len, boundary });
        }
        for (phys, alignment) in [(0x1010, 32), (0x1800, 4096), (0x1001, 1 << 20)] {
            let options = MapOptions { alignment, ..ANYWHERE };
            refused(phys, 8, options, MapError::Misplaced { phys: PhysAddr::new(phys), alignment });
        }
        let misplaced = |alignment| MapError::Misplaced { phys: PhysAddr::new(0x1010), alignment };
        refused(0x1010, 8, at(0x5000), misplaced(4096));
        refused(0x1010, 8, MapOptions { alignment: 16, ..at(0x5020) }, misplaced(4096));
        let aligned = MapOptions { alignment: 1 << 14, ..at(0x5000) };
        refused(0x1000, 8, aligned, MapError::Misplaced { phys: PhysAddr::new(0x1000), alignment: 1 << 14 });
        refused(0, 4096, at(0xfee0_0000), MapError::Reserved(Iova::new(0xfee0_0000)));
        refused(0, 1 << 21, at(0xfed0_0000), MapError::Reserved(Iova::new(0xfee0_0000)));
        let beyond = |iova, limit_bits| MapError::BeyondWidth { iova: Iova::new(iova), limit_bits };
        refused(0, 4096, at(1 << 48), beyond(1 << 48, 48));
        refused(0, 4096, at(u64::MAX - 4095), beyond(u64::MAX - 4095, 48));
        refused(0, 4096, MapOptions { limit: u32::MAX.into(), ..at(1 << 32) }, beyond(1 << 32, 32));
        refused(0, 0, BELOW_4_GIB, MapError::Empty);
        refused(1 << 53, 4096, BELOW_4_GIB, MapError::PhysicalRange(PhysAddr::new(1 << 53)));
        bench.end();
    });
}

/// S3: in any order of operations, no address has two users, and each mapping lies where it was requested.
#[test]
fn s3_placed_and_picked_addresses_never_meet() {
    each_that_chooses(|mut bench| {
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut placed = 0;
        for step in 0..1500 {
            // Often more pages than fit below 16 MiB.
            if bench.mapped.len() > 200 || draw(3) == 0 && !bench.mapped.is_empty() {
                bench.unmap(draw(bench.mapped.len() as u64) as usize);
                continue;
            }
            let (pages, phys) = (1 + draw(40), PhysAddr::from_pfn(0x100_0000 + step * 64));
            let options = match draw(6) {
                0 => MapOptions { limit: (1 << (22 + draw(20))) - 1, ..ANYWHERE },
                1 => MapOptions { alignment: 4096 << draw(12), limit: (1 << 30) - 1, ..ANYWHERE },
                2 => MapOptions { boundary: Some((pages * PAGE_SIZE).next_power_of_two() << draw(3)), ..ANYWHERE },
                3 => at((16 + draw(4000)) * PAGE_SIZE),
                _ => MapOptions::default(),
            };
            match bench.map(phys, pages * PAGE_SIZE, &options) {
                Ok(mapped) => placed += usize::from(mapped.is_placed),
                Err(MapError::Exhausted { .. } | MapError::Overlap(_)) => {}
                Err(error) => panic!("{}: {options:?}: {error}", bench.name()),
            }
            if step % 64 == 0 {
                bench.mapped.iter().for_each(|mapped| bench.look(*mapped));
                bench.host.advance_us(700);
                bench.domain.tick().expect("the hardware answers");
            }
        }
        assert!(placed > 200, "{}: only {placed} were placed", bench.name());
        bench.end();
    });
}

/// S6: a map without memory for a table changes nothing; an address that was set aside for it is available again.
#[test]
fn s6_a_map_without_memory_sets_nothing_aside() {
    // In a separate table: below another directory.
    let far = MapOptions { alignment: 1 << 30, ..BELOW_4_GIB };
    // A new domain for each case, because an existing table stays.
    for options in [far, at(0x4000_0000 + REGION.len)] {
        each_that_chooses(|mut bench| {
            bench.map(PhysAddr::new(0), PAGE_SIZE, &BELOW_4_GIB).expect("room");
            let before = bench.domain.usage();
            bench.host.limit_frames(0);
            let refused = bench.map(PhysAddr::new(0), 2 * PAGE_SIZE, &options).map(|placed| placed.iova);
            assert!(matches!(refused, Err(MapError::NoMemory(_))), "{}: {refused:?}", bench.name());
            assert_eq!(bench.domain.usage().live_ranges, before.live_ranges, "{}", bench.name());
            bench.host.limit_frames(usize::MAX);
            bench.map(PhysAddr::new(0), 2 * PAGE_SIZE, &options).expect("room, as before");
            bench.end();
        });
    }
}

/// S11: if the invalidation fails, the pages stay out of use for good, and do not go back to an allocator.
#[test]
fn s11_a_failed_unmap_keeps_the_place() {
    each_that_chooses(|mut bench| {
        let mapped = bench.map(REGION.phys, PAGE_SIZE, &at(REGION.phys.as_u64())).expect("a region");
        let low = bench.map(PhysAddr::new(0), PAGE_SIZE, &BELOW_4_GIB).expect("room");
        bench.iommu.behave(Behaviour::Failing);
        for mapped in [mapped, low] {
            let failed = bench.domain.unmap_raw(mapped.iova, mapped.len);
            assert!(matches!(failed, Err(RawUnmapError::Commit(CommitError(_)))), "{}: {failed:?}", bench.name());
            let again = bench.domain.unmap_raw(mapped.iova, mapped.len);
            assert!(matches!(again, Err(RawUnmapError::Refused(UnmapError::NotMapped(_)))), "{}", bench.name());
        }
        bench.iommu.behave(Behaviour::Prompt);
        assert_eq!(bench.domain.usage().live_ranges, 2, "{}", bench.name());
        let refused = bench.map(REGION.phys, PAGE_SIZE, &BELOW_4_GIB).map(|placed| placed.iova);
        assert_eq!(refused, Err(MapError::Poisoned));
    });
}

/// A batch takes unmaps of placed and other mappings and skips none, whatever the policy does with the others.
#[test]
fn a_batch_takes_placed_mappings_too() {
    each_that_chooses(|mut bench| {
        for number in 0..10 {
            let options = if number % 3 == 0 { BELOW_4_GIB } else { MapOptions::default() };
            bench.map(PhysAddr::from_pfn(0x10_0000 + number), PAGE_SIZE, &options).expect("room");
        }
        let mut batch = bench.domain.raw_batch();
        bench.mapped.iter().for_each(|mapped| batch.unmap(mapped.pages()).expect("mapped"));
        batch.commit().expect("the hardware answers");
        for mapped in bench.mapped.iter().filter(|mapped| mapped.is_placed) {
            assert_eq!(bench.iommu.access(DEVICE, mapped.iova, Rights::WRITE), None, "{}", bench.name());
        }
        bench.mapped.clear();
        bench.end();
    });
}

#[derive(Debug)]
struct Page(Segment);

// SAFETY: the segment never changes, and only the fake IOMMU reaches it.
unsafe impl DmaBuffer for Page {
    fn segments(&self) -> &[Segment] {
        core::slice::from_ref(&self.0)
    }
}

/// With physical addresses, the constraints of a request are checked.
#[test]
fn physical_addresses_are_where_they_are() {
    for design in ["none", "static"] {
        let host: &FakeHost = Box::leak(Box::default());
        let iommu: &FakeIommu<'_> = Box::leak(Box::new(FakeIommu::new(host)));
        let memory = [Segment { phys: PhysAddr::new(0), len: 1 << 24 }];
        let config = DomainConfig { memory: &memory, ..DomainConfig::new(Protection::None) };
        let design = DesignId::by_id(design).expect("a design");
        // SAFETY: no memory is behind the IOMMU.
        let domain = unsafe { DynDomain::open_unprotected(design, iommu, host, &config) }.expect("a domain");
        let phys = PhysAddr::new(0x12_3000);
        let map = |options: &MapOptions| domain.raw_map_with(phys, 2 * PAGE_SIZE, Access::DeviceReads, options);
        let here = Ok(Iova::new(0x12_3000));
        for options in [BELOW_4_GIB, at(0x12_3000), MapOptions { alignment: 4096, ..ANYWHERE }] {
            assert_eq!(map(&options), here);
        }
        for (limit, alignment, boundary) in
            [((1 << 20) - 1, 1, None), (u64::MAX, 1 << 16, None), (u64::MAX, 1, Some(8192))]
        {
            assert_eq!(map(&MapOptions { limit, alignment, boundary, ..ANYWHERE }), Err(MapError::Unplaceable));
        }
        assert_eq!(map(&at(0x12_4000)), Err(MapError::Unplaceable));
        let unknown = Err(UnmapError::LengthUnknown(Iova::new(0x12_3000)).into());
        assert_eq!(domain.unmap_raw_at(Iova::new(0x12_3000)), unknown, "the address does not tell the length");
        // Adjacent segments of a list form one run.
        let page = |pfn| Segment { phys: PhysAddr::from_pfn(pfn), len: PAGE_SIZE };
        // SAFETY: as above.
        let list = unsafe { domain.map_list((0x300..0x340).map(page), Access::DeviceReads, &ANYWHERE) };
        assert_eq!(list.expect("one run"), IovaRange::new(0x300, 64).expect("a run"));
    }
}

/// Segments from an iterator, few and many. Segments that meet at a page boundary are joined, and the device sees all
/// of them in order.
#[test]
fn a_list_of_segments_need_not_be_a_slice() {
    each(|bench| {
        for segments in [1, 2, 16, 17, 40] {
            // Two adjacent pages, then a gap: every second page is joined to the one before it.
            let pfn = |number: u64| 0x10_0000 + number + number / 2;
            let list = (0..segments).map(|number| Segment { phys: PhysAddr::from_pfn(pfn(number)), len: PAGE_SIZE });
            // SAFETY: no memory is behind the IOMMU.
            let range = unsafe { bench.domain.map_list(list, Access::DeviceReads, &MapOptions::default()) };
            let range = range.unwrap_or_else(|error| panic!("{}: {error}", bench.name()));
            assert_eq!(range.pages(), segments);
            for number in 0..segments {
                let iova = Iova::from_pfn(range.first_pfn() + number);
                let seen = bench.iommu.access(DEVICE, iova, Rights::READ);
                assert_eq!(seen, Some(PhysAddr::from_pfn(pfn(number))), "{}: {number}", bench.name());
            }
            bench.domain.unmap_raw(range.start(), range.pages() * PAGE_SIZE).expect("mapped");
        }
        let nothing: [Segment; 0] = [];
        for list in [&nothing[..], &[Segment { phys: PhysAddr::new(0x1000), len: 0 }]] {
            // SAFETY: as above.
            let refused =
                unsafe { bench.domain.map_list(list.iter().copied(), Access::DeviceReads, &MapOptions::default()) };
            assert_eq!(refused, Err(MapError::Empty.into()));
        }
        bench.end();
    });
}

/// A driver that keeps addresses only.
#[test]
fn a_mapping_is_unmapped_by_its_first_address_alone() {
    each(|mut bench| {
        let region = at(REGION.phys.as_u64());
        for (pages, options) in [(1, MapOptions::default()), (3, MapOptions::default()), (100, ANYWHERE), (16, region)]
        {
            let mapped = bench.map(REGION.phys, pages * PAGE_SIZE, &options).expect("room");
            if bench.domain.info().addressing == Addressing::Shared {
                let unknown = Err(UnmapError::LengthUnknown(mapped.iova).into());
                assert_eq!(bench.domain.unmap_raw_at(mapped.iova), unknown);
                continue;
            }
            let middle = Iova::new(mapped.iova.as_u64() + (pages - 1) * PAGE_SIZE);
            if pages > 1 {
                assert!(bench.domain.unmap_raw_at(middle).is_err(), "{}: not its first page", bench.name());
                bench.look(mapped);
            }
            assert_eq!(bench.domain.unmap_raw_at(mapped.iova), Ok(mapped.pages()), "{}", bench.name());
            let again = bench.domain.unmap_raw_at(mapped.iova);
            assert_eq!(again, Err(UnmapError::NotMapped(mapped.pages().start()).into()), "{}", bench.name());
            bench.mapped.clear();
        }
        bench.end();
    });
}
