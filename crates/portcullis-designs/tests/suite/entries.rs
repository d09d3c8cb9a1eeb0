//! A design whose addresses are entries, exact to the byte, in a domain, through every interface. Its hardware is a
//! flat table in which each entry leads to a segment.

use crate::raw_face::RawFace;
use portcullis::domain::{DmaBuffer, RingConfig};
use portcullis::invalidation::Runs;
use portcullis::iommu::{AttachError, Translation};
use portcullis::mapper::{AddressOverhead, Addressing, Design, DesignInfo, DomainSetup, Info, Mapper, Usage};
use portcullis::platform::fake::FakeHost;
use portcullis::proof::{Committed, Proof};
use portcullis::table::Rights;
use portcullis::{
    Access, Capabilities, CommitError, DomainConfig, DomainId, DynDomain, Invalidation, Iommu, Iova, IovaRange,
    MapError, MapOptions, NewDomainError, Open, PAGE_SIZE, PhysAddr, Platform, Protection, QueueError, RawMapError,
    RawUnmapError, Request, Segment, SourceId, Space, SubPage, UnmapError,
};
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex};

/// As large as an entry of rIOMMU: 1 GiB.
const ENTRY_PAGES: u64 = 1 << 18;
const ENTRY_BYTES: u64 = ENTRY_PAGES * PAGE_SIZE;
const ENTRIES: usize = 16;
const ADDRESSING: Addressing = Addressing::Entries { pages: ENTRY_PAGES };

/// The segment and rights of an entry, and the numbers of the first and of one past the last entry of its mapping.
#[derive(Clone, Copy)]
struct Entry {
    segment: Segment,
    rights: Rights,
    mapping: (usize, usize),
}

/// The table. It is read at each access, so that no invalidation is needed.
#[derive(Clone, Default)]
struct Table(Arc<Mutex<[Option<Entry>; ENTRIES]>>);

impl Table {
    /// The physical address that a device reaches.
    fn reached(&self, iova: u64, rights: Rights) -> Option<PhysAddr> {
        let (number, offset) = ((iova / ENTRY_BYTES) as usize, iova % ENTRY_BYTES);
        let entry = (*self.0.lock().unwrap().get(number)?)?;
        let may = offset < entry.segment.len && entry.rights.allows(rights);
        may.then(|| PhysAddr::new(entry.segment.phys.as_u64() + offset))
    }
}

// SAFETY: it translates by the table alone.
unsafe impl Iommu for Table {
    type Ticket = ();

    fn capabilities(&self) -> Capabilities {
        let host = FakeHost::default();
        portcullis::iommu::fake::FakeIommu::new(&host).capabilities()
    }

    unsafe fn open_domain(&self, _: Translation) -> Result<DomainId, AttachError> {
        Ok(DomainId(1))
    }

    unsafe fn close_domain(&self, _: DomainId) -> Result<(), AttachError> {
        Ok(())
    }

    fn attach(&self, _: DomainId, _: SourceId) -> Result<(), AttachError> {
        Ok(())
    }

    fn detach(&self, _: DomainId, _: SourceId) -> Result<(), AttachError> {
        Ok(())
    }

    fn submit(&self, _: &[Invalidation]) -> Result<(), QueueError> {
        Ok(())
    }

    fn is_done(&self, (): ()) -> Result<bool, QueueError> {
        Ok(true)
    }
}

struct ByEntry;

impl DesignInfo for ByEntry {
    const INFO: Info = Info {
        id: "by-entry",
        source: "a flat table",
        allocator: "the first free entries",
        invalidation: "none is needed",
        tables: "one",
        protections: &[Protection::Strict],
        breaches: &[],
        addressing: ADDRESSING,
        address_overhead: Some(AddressOverhead { grain_pages: ENTRY_PAGES, ..AddressOverhead::NONE }),
        batch_default: 1,
        options: &[],
    };
}

// SAFETY: its addresses are as its description says.
unsafe impl<P: Platform> Design<P, Table> for ByEntry {
    type Mapper = EntryMapper;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, Table>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        Ok(to.write(EntryMapper(setup.iommu)))
    }
}

struct EntryMapper(Table);

// SAFETY: from the map to the unmap, an entry leads to its segment and to nothing else.
unsafe impl Mapper for EntryMapper {
    unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        let (segments, rights) = (request.segments(), request.access().rights());
        let mut table = self.0.0.lock().unwrap();
        let free = |first: &usize| table[*first..].iter().take(segments.len()).all(Option::is_none);
        let full = MapError::Exhausted { pages: request.pages(), limit_bits: 48 };
        // Addresses below the first entry are reserved.
        let first = (1..=ENTRIES.saturating_sub(segments.len())).find(free).ok_or(full)?;
        for (number, segment) in (first..).zip(segments) {
            table[number] = Some(Entry { segment: *segment, rights, mapping: (first, first + segments.len()) });
        }
        Ok(IovaRange::new(first as u64 * ENTRY_PAGES, segments.len() as u64 * ENTRY_PAGES).expect("some entries"))
    }

    fn unmap(&self, asked: IovaRange, _: &mut Runs) -> Result<(), UnmapError> {
        let mut table = self.0.0.lock().unwrap();
        let asked = ADDRESSING.whole(asked);
        let number = (asked.first_pfn() / ENTRY_PAGES) as usize;
        let entry = table.get(number).copied().flatten().ok_or(UnmapError::NotMapped(asked.start()))?;
        let (first, end) = entry.mapping;
        let mapped = IovaRange::new(first as u64 * ENTRY_PAGES, (end - first) as u64 * ENTRY_PAGES).expect("some");
        if asked != mapped {
            return Err(UnmapError::Partial { asked, mapped });
        }
        table[first..end].fill(None);
        Ok(())
    }

    fn commit(&self, revocation: &mut Runs) -> Result<Committed, CommitError> {
        assert!(revocation.is_empty(), "a revocation must be committed by the mapper of its unmaps");
        // SAFETY: the table has no cache.
        Ok(Committed::Proven(unsafe { Proof::trusted() }))
    }

    fn tick(&self) -> Result<(), CommitError> {
        Ok(())
    }

    fn due_us(&self) -> Option<u64> {
        None
    }

    fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        usage.live_ranges = self.0.0.lock().unwrap().iter().flatten().count();
        usage
    }

    fn space(&self) -> &dyn Space {
        self
    }
}

impl Space for EntryMapper {
    fn id(&self) -> DomainId {
        DomainId(1)
    }

    fn attach(&self, _: SourceId) -> Result<(), AttachError> {
        Ok(())
    }

    fn detach(&self, _: SourceId) -> Result<(), AttachError> {
        Ok(())
    }

    fn table_pages(&self) -> usize {
        1
    }
}

#[derive(Debug)]
struct Buffer(Vec<Segment>);

// SAFETY: the segments never change, and only the table leads to them.
unsafe impl DmaBuffer for Buffer {
    fn segments(&self) -> &[Segment] {
        &self.0
    }
}

fn segment(phys: u64, len: u64) -> Segment {
    Segment { phys: PhysAddr::new(phys), len }
}

const LIST: [(u64, u64); 3] = [(0x7010, 100), (0x9000, 3 * PAGE_SIZE), (0x2_0fff, 2)];

fn list() -> Vec<Segment> {
    LIST.map(|(phys, len)| segment(phys, len)).to_vec()
}

fn domain(sub_page: SubPage) -> (Table, Box<DynDomain>) {
    let table = Table::default();
    let host: &'static FakeHost = Box::leak(Box::default());
    let config = DomainConfig { sub_page, ..DomainConfig::new(Protection::Strict) };
    let domain = ByEntry::open_with(table.clone(), host, &config).unwrap();
    (table, Box::new(domain))
}

/// Asserts that the device reaches exactly the bytes of a segment.
fn assert_exact(table: &Table, iova: Iova, segment: Segment) {
    let reached = |offset: u64| table.reached(iova.as_u64().wrapping_add(offset), Rights::WRITE);
    for offset in [0, segment.len / 2, segment.len - 1] {
        assert_eq!(reached(offset), Some(PhysAddr::new(segment.phys.as_u64() + offset)));
    }
    assert_eq!([reached(segment.len), reached(u64::MAX)], [None; 2]);
}

#[test]
fn addresses_of_entries_are_exact_to_the_byte() {
    for sub_page in SubPage::ALL {
        let (table, domain) = domain(sub_page);
        assert_eq!(domain.sub_page(), SubPage::Expose, "no rest of a page is within reach, so nothing has to be done");
        let one = segment(0x12_3456, 100);
        let iova = domain.raw_map(one.phys, one.len, Access::DeviceWrites).unwrap();
        assert_eq!(iova.as_u64() % ENTRY_BYTES, 0);
        assert_exact(&table, iova, one);
        assert_eq!(table.reached(iova.as_u64(), Rights::READ), None, "S5");
        domain.unmap_raw(iova, one.len).unwrap();
        assert_eq!(table.reached(iova.as_u64(), Rights::WRITE), None);
        let refused = domain.unmap_raw(iova, one.len);
        assert_eq!(refused, Err(RawUnmapError::Refused(UnmapError::NotMapped(iova))));
        // A limit and an alignment that any address meets.
        let met = MapOptions { limit: u64::MAX, alignment: 2, ..MapOptions::default() };
        let iova = domain.raw_map_with(one.phys, one.len, Access::DeviceWrites, &met).unwrap();
        assert_exact(&table, iova, one);
        assert_eq!(domain.unmap_raw_at(iova).unwrap().pages(), ENTRY_PAGES);
    }
}

#[test]
fn a_list_is_a_run_of_addresses_for_each_segment() {
    let (table, domain) = domain(SubPage::Expose);
    // SAFETY: no memory is behind the addresses.
    let map = || unsafe { domain.map_list(list(), Access::DeviceWrites, &MapOptions::default()) };
    let range = map().unwrap();
    for (index, one) in list().into_iter().enumerate() {
        let iova = domain.info().addressing.segment_iova(&list(), index, range);
        assert_eq!(iova.as_u64(), range.start().as_u64() + index as u64 * ENTRY_BYTES);
        assert_exact(&table, iova, one);
    }
    // A part of the mapping is refused. Its first address alone is enough.
    let second = Iova::new(range.start().as_u64() + ENTRY_BYTES);
    assert!(matches!(domain.unmap_raw_at(second), Err(RawUnmapError::Refused(UnmapError::Partial { .. }))));
    assert_eq!(domain.unmap_raw_at(range.start()), Ok(range));
    let range = map().unwrap();
    domain.unmap_raw(range.start(), range.pages() * PAGE_SIZE).unwrap();
    let range = map().unwrap();
    let mut batch = domain.raw_batch();
    batch.unmap(range).unwrap();
    batch.commit().unwrap();
    assert_eq!(domain.usage().live_ranges, 0);
    let ranges: Vec<IovaRange> = core::iter::from_fn(|| map().ok()).collect();
    assert_eq!(ranges.len(), (ENTRIES - 1) / LIST.len(), "as many as there is room for");
    assert!(matches!(map(), Err(RawMapError::Refused(MapError::Exhausted { .. }))));
}

/// A driver finds the segments of its list by number, so each has its own entry, even if two are adjacent.
#[test]
fn segments_that_touch_stay_apart() {
    let (table, domain) = domain(SubPage::Expose);
    let touching = [segment(0x7010, 0xff0), segment(0x8000, PAGE_SIZE), segment(0x9000, 64)];
    // SAFETY: no memory is behind the addresses.
    let range = unsafe { domain.map_list(touching, Access::DeviceWrites, &MapOptions::default()) }.unwrap();
    assert_eq!(range.pages(), 3 * ENTRY_PAGES);
    for (index, one) in touching.into_iter().enumerate() {
        assert_exact(&table, domain.info().addressing.segment_iova(&touching, index, range), one);
    }
    domain.unmap_raw(range.start(), range.pages() * PAGE_SIZE).unwrap();
    let mapping = domain.map_with(Buffer(touching.to_vec()), Access::DeviceWrites, &MapOptions::default()).unwrap();
    for (index, one) in touching.into_iter().enumerate() {
        assert_exact(&table, mapping.segment_iova(index), one);
    }
    domain.unmap(mapping).unwrap();
}

/// Every entry meets a constraint or none does: the offset of the memory in its page makes no difference.
#[test]
fn what_not_every_entry_meets_cannot_be_placed() {
    let (table, domain) = domain(SubPage::Expose);
    let any = MapOptions::default();
    let met = [
        MapOptions { alignment: PAGE_SIZE, ..any },
        MapOptions { alignment: ENTRY_BYTES, ..any },
        MapOptions { boundary: Some(128), ..any },
        MapOptions { boundary: Some(PAGE_SIZE), ..any },
        MapOptions { boundary: Some(1 << 63), ..any },
    ];
    let one = segment(0x7fe0, 100);
    for options in met {
        let iova = domain.raw_map_with(one.phys, one.len, Access::DeviceWrites, &options).unwrap();
        assert_exact(&table, iova, one);
        domain.unmap_raw_at(iova).unwrap();
    }
    let unmet = [
        MapOptions { alignment: 2 * ENTRY_BYTES, ..any },
        MapOptions { boundary: Some(64), ..any },
        MapOptions { limit: (1 << 63) - 1, ..any },
        MapOptions { at: Some(Iova::new(ENTRY_BYTES)), ..any },
        MapOptions { at: Some(Iova::new(ENTRY_BYTES + 0xfe0)), ..any },
    ];
    for options in unmet {
        let refused = domain.raw_map_with(one.phys, one.len, Access::DeviceWrites, &options);
        assert_eq!(refused, Err(MapError::Unplaceable), "{options:?}");
    }
    // Two entries: the request does not say which of them begins where.
    let list = [segment(0x7000, 64), segment(0x9000, 64)];
    for boundary in [2 * ENTRY_BYTES, 1 << 48] {
        let options = MapOptions { boundary: Some(boundary), ..any };
        // SAFETY: no memory is behind the addresses.
        let refused = unsafe { domain.map_list(list, Access::DeviceWrites, &options) };
        assert_eq!(refused, Err(MapError::Unplaceable.into()));
    }
    // An invalid constraint gets a specific error.
    for (options, error) in [
        (MapOptions { limit: 5, ..any }, MapError::BadLimit(5)),
        (MapOptions { alignment: 3, ..any }, MapError::BadAlignment(3)),
        (MapOptions { boundary: Some(3), ..any }, MapError::BadBoundary(3)),
    ] {
        assert_eq!(domain.raw_map_with(one.phys, one.len, Access::DeviceWrites, &options), Err(error));
    }
}

#[test]
fn typed_buffers_know_where_their_segments_are() {
    let (table, domain) = domain(SubPage::Bounce);
    let seen = |mapping: &portcullis::domain::Mapping<Buffer>| {
        for (index, one) in list().into_iter().enumerate() {
            assert_exact(&table, mapping.segment_iova(index), one);
        }
        assert_eq!(mapping.iova(), mapping.segment_iova(0));
    };
    let mapping = domain.map(Buffer(list()), Access::DeviceWrites).unwrap();
    seen(&mapping);
    let buffer = domain.unmap(mapping).unwrap();
    let one = domain.map(Buffer(vec![segment(0x5004, 60)]), Access::DeviceWrites).unwrap();
    assert_exact(&table, one.iova(), segment(0x5004, 60));
    let mapping = domain.map(buffer, Access::DeviceWrites).unwrap();
    seen(&mapping);
    let mut batch = domain.batch();
    batch.unmap(mapping).unwrap();
    batch.unmap(one).unwrap();
    assert_eq!(batch.commit().unwrap().len(), 2);
    let mut ring = domain.ring(RingConfig::default()).unwrap();
    let descriptor = ring.map([Buffer(list())].into_iter().collect()).unwrap();
    seen(&descriptor.mappings()[0]);
    assert_eq!(ring.unmap(descriptor).unwrap().len(), 1);
    assert_eq!(domain.usage().live_ranges, 0);
}
