//! S8: what a device reaches of a page that a buffer uses only in part, in domains that expose it, refuse it, or bounce
//! it.

mod lent;

use crate::raw_face::RawFace;
use portcullis::domain::{DmaBuffer, RingConfig, SharedBuffer};
use portcullis::iommu::fake::{Behaviour, FakeIommu};
use portcullis::platform::fake::{FakeHost, lost_here};
use portcullis::sub_page::BOUNCE_PAGES_MAX;
use portcullis::table::Rights;
use portcullis::{
    Access, DomainConfig, DynDomain, Iova, IovaRange, Lifetime, MapError, MapOptions, NewDomainError, Open, PAGE_SIZE,
    PhysAddr, Protection, Segment, SourceId, SubPage,
};
use portcullis_designs::{DesignId, Portcullis, Unprotected};
use proptest::prelude::*;
use std::alloc::{Layout, alloc, dealloc};

const DEVICE: SourceId = SourceId::from_requester(7);
const PAGE: usize = PAGE_SIZE as usize;
const SECRET: u8 = 0x5e;

/// Pages of this process, read and written a byte at a time, because the device has pointers to them too.
#[derive(Debug)]
struct Memory {
    at: *mut u8,
    pages: usize,
}

impl Memory {
    /// Fills all pages with the secret.
    fn new(pages: usize) -> Self {
        // SAFETY: the number of pages is not zero.
        let at = unsafe { alloc(Self::layout(pages)) };
        assert!(!at.is_null());
        // SAFETY: just allocated.
        unsafe { at.write_bytes(SECRET, pages * PAGE) };
        Self { at, pages }
    }

    fn layout(pages: usize) -> Layout {
        Layout::from_size_align(pages * PAGE, PAGE).expect("pages")
    }

    fn get(&self, offset: usize) -> u8 {
        assert!(offset < self.pages * PAGE);
        // SAFETY: within the allocation, to which no reference exists.
        unsafe { self.at.add(offset).read_volatile() }
    }

    fn set(&self, offset: usize, byte: u8) {
        assert!(offset < self.pages * PAGE);
        // SAFETY: as above.
        unsafe { self.at.add(offset).write_volatile(byte) }
    }

    fn phys(&self, offset: usize) -> PhysAddr {
        PhysAddr::new((self.at.expose_provenance() + offset) as u64)
    }

    fn segment(&self, offset: usize, len: usize) -> Segment {
        Segment { phys: self.phys(offset), len: len as u64 }
    }

    fn bytes(&self) -> Vec<u8> {
        (0..self.pages * PAGE).map(|offset| self.get(offset)).collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was allocated by `new`.
        unsafe { dealloc(self.at, Self::layout(self.pages)) };
    }
}

/// A part of some pages, which it owns.
#[derive(Debug)]
struct Buffer {
    memory: Memory,
    segments: [Segment; 1],
}

// SAFETY: the buffer owns the pages, and they do not move.
unsafe impl Send for Buffer {}
// SAFETY: the segment lies in pages that the buffer owns; they are read and written through pointers.
unsafe impl DmaBuffer for Buffer {
    fn segments(&self) -> &[Segment] {
        &self.segments
    }
}
// SAFETY: every access to the memory is volatile, a byte at a time.
unsafe impl SharedBuffer for Buffer {}

impl Buffer {
    fn new(pages: usize, offset: usize, len: usize) -> Self {
        let memory = Memory::new(pages);
        Self { segments: [memory.segment(offset, len)], memory }
    }
}

struct Bench {
    host: &'static FakeHost,
    iommu: &'static FakeIommu<'static>,
}

impl Bench {
    fn new() -> Self {
        let host: &FakeHost = Box::leak(Box::new(FakeHost::of_process()));
        Self { host, iommu: Box::leak(Box::new(FakeIommu::new(host))) }
    }

    fn domain(&self, design: DesignId, protection: Protection, sub_page: SubPage) -> Box<DynDomain> {
        let domain = self.empty_domain(design, protection, sub_page);
        domain.attach(DEVICE).expect("a device");
        domain
    }

    /// A domain without a device.
    fn empty_domain(&self, design: DesignId, protection: Protection, sub_page: SubPage) -> Box<DynDomain> {
        let config = DomainConfig { sub_page, ..DomainConfig::new(protection) };
        DynDomain::open(design, self.iommu, self.host, &config).expect("a domain")
    }

    fn pointer(&self, iova: u64, rights: Rights) -> Option<*mut u8> {
        let phys = self.iommu.access(DEVICE, Iova::new(iova), rights)?;
        Some(core::ptr::with_exposed_provenance_mut(phys.as_u64() as usize))
    }

    fn reads(&self, iova: u64) -> Option<u8> {
        // SAFETY: mapped memory is memory of this process.
        self.pointer(iova, Rights::READ).map(|at| unsafe { at.read_volatile() })
    }

    fn writes(&self, iova: u64, byte: u8) -> bool {
        // SAFETY: as above.
        self.pointer(iova, Rights::WRITE).map(|at| unsafe { at.write_volatile(byte) }).is_some()
    }

    /// Drops the domain, and checks that every page of it has been returned.
    fn end(self, domain: Box<DynDomain>) {
        let name = domain.info().id;
        drop(domain);
        assert_eq!(self.host.frames_lent(), 0, "{name}");
    }
}

/// Designs that restrict devices, with their protections.
fn protected() -> impl Iterator<Item = (DesignId, Protection)> {
    let all = DesignId::ALL.iter().copied();
    all.flat_map(|design| design.info().protections.iter().map(move |protection| (design, *protection)))
        .filter(|(design, _)| !design.info().physical_addresses() && !design.info().is_hypothetical())
}

fn maps(domain: &DynDomain, memory: &Memory, offset: usize, len: usize, access: Access) -> Result<u64, MapError> {
    domain.raw_map_either_way(memory.phys(offset), len as u64, access).map(Iova::as_u64)
}

#[test]
fn expose_opens_whole_pages_refuse_opens_none_and_bounce_opens_the_part() {
    const OFFSET: usize = 0x123;
    const LEN: usize = 2 * PAGE;
    for (design, protection) in protected() {
        for sub_page in SubPage::ALL {
            let name = format!("{} {protection} {sub_page}", design.info().id);
            let (bench, memory) = (Bench::new(), Memory::new(3));
            let domain = bench.domain(design, protection, sub_page);
            assert_eq!(domain.sub_page(), sub_page);
            (0..LEN).for_each(|at| memory.set(OFFSET + at, at as u8));
            let mapped = maps(&domain, &memory, OFFSET, LEN, Access::DeviceReadsAndWrites);
            if sub_page == SubPage::Refuse {
                assert_eq!(mapped, Err(MapError::PartialPage(memory.phys(OFFSET))), "{name}");
                // Whole pages are mapped.
                let iova = maps(&domain, &memory, 0, PAGE, Access::DeviceReads).expect(&name);
                assert_eq!(bench.reads(iova), Some(SECRET), "{name}");
                domain.unmap_raw(Iova::new(iova), PAGE_SIZE).expect(&name);
                bench.end(domain);
                continue;
            }
            let iova = mapped.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(iova % PAGE_SIZE, OFFSET as u64, "{name}");
            for at in 0..LEN {
                assert_eq!(bench.reads(iova + at as u64), Some(at as u8), "{name}: {at}");
            }
            let rest = if sub_page == SubPage::Expose { SECRET } else { 0 };
            for before in 1..=OFFSET {
                assert_eq!(bench.reads(iova - before as u64), Some(rest), "{name}: {before}");
            }
            for behind in 0..PAGE - OFFSET {
                assert_eq!(bench.reads(iova + (LEN + behind) as u64), Some(rest), "{name}: {behind}");
                assert!(bench.writes(iova + (LEN + behind) as u64, 0xbad_u32 as u8), "{name}");
            }
            assert!(bench.writes(iova + 7, 0xaa) && bench.writes(iova + LEN as u64 - 1, 0xbb), "{name}");
            let usage = domain.usage();
            let expected = if sub_page == SubPage::Bounce { (2, BOUNCE_PAGES_MAX) } else { (0, 0) };
            assert_eq!((usage.bounce_pages, usage.bounce_pages_max), expected, "{name}");
            domain.unmap_raw(Iova::new(iova), LEN as u64).expect(&name);
            assert_eq!(domain.usage().bounce_pages, 0, "{name}");
            let mut expected = vec![SECRET; 3 * PAGE];
            (0..LEN).for_each(|at| expected[OFFSET + at] = at as u8);
            (expected[OFFSET + 7], expected[OFFSET + LEN - 1]) = (0xaa, 0xbb);
            if sub_page == SubPage::Expose {
                expected[OFFSET + LEN..].fill(0xad);
            }
            assert_eq!(memory.bytes(), expected, "{name}");
            bench.end(domain);
        }
    }
}

#[test]
fn a_part_of_one_page_is_treated_as_parts_of_several() {
    for (design, protection) in protected() {
        for sub_page in SubPage::ALL {
            let name = format!("{} {protection} {sub_page}", design.info().id);
            let (bench, memory) = (Bench::new(), Memory::new(1));
            let domain = bench.domain(design, protection, sub_page);
            let mapped = maps(&domain, &memory, 8, 64, Access::DeviceReads);
            if sub_page == SubPage::Refuse {
                assert_eq!(mapped, Err(MapError::PartialPage(memory.phys(8))), "{name}");
                bench.end(domain);
                continue;
            }
            let iova = mapped.expect(&name);
            let rest = if sub_page == SubPage::Expose { SECRET } else { 0 };
            assert_eq!([bench.reads(iova - 1), bench.reads(iova + 64)], [Some(rest); 2], "{name}");
            domain.unmap_raw(Iova::new(iova), 64).expect(&name);
            bench.end(domain);
        }
    }
}

#[test]
fn what_a_device_may_only_read_is_not_copied_back() {
    let (bench, memory) = (Bench::new(), Memory::new(1));
    let domain = bench.domain(DesignId::Portcullis, Protection::Strict, SubPage::Bounce);
    let iova = maps(&domain, &memory, 8, 16, Access::DeviceReads).unwrap();
    assert!(!bench.writes(iova, 1), "S5");
    memory.set(8, 0x77);
    domain.unmap_raw(Iova::new(iova), 16).unwrap();
    assert_eq!(memory.get(8), 0x77);
    bench.end(domain);
}

#[test]
fn a_page_that_is_used_again_holds_nothing_of_before() {
    let (bench, memory) = (Bench::new(), Memory::new(1));
    let domain = bench.domain(DesignId::Magazine, Protection::Strict, SubPage::Bounce);
    let iova = maps(&domain, &memory, 0, PAGE - 1, Access::DeviceReadsAndWrites).unwrap();
    assert!(bench.writes(iova + PAGE_SIZE - 1, 0xaa));
    domain.unmap_raw(Iova::new(iova), PAGE_SIZE - 1).unwrap();
    let lent = bench.host.frames_lent();
    let iova = maps(&domain, &memory, 100, 1, Access::DeviceReads).unwrap();
    assert_eq!(bench.host.frames_lent(), lent, "the same page is used again");
    let seen: Vec<_> = (0..PAGE_SIZE).map(|at| bench.reads(iova - 100 + at)).collect();
    assert!(seen.iter().enumerate().all(|(at, byte)| *byte == Some(if at == 100 { SECRET } else { 0 })));
    domain.unmap_raw(Iova::new(iova), 1).unwrap();
    bench.end(domain);
}

#[test]
fn batches_copy_back_when_they_commit() {
    for (design, protection) in protected() {
        let name = format!("{} {protection}", design.info().id);
        let (bench, memory) = (Bench::new(), Memory::new(8));
        let domain = bench.domain(design, protection, SubPage::Bounce);
        let iovas: Vec<u64> = (0..8)
            .map(|page| maps(&domain, &memory, page * PAGE + 4 * page, 64, Access::DeviceWrites).expect(&name))
            .collect();
        let mut batch = domain.raw_batch();
        for (byte, iova) in (1..).zip(&iovas) {
            assert!(bench.writes(*iova, byte), "{name}");
            batch.unmap(IovaRange::covering(Iova::new(*iova), 64).expect("a page")).expect(&name);
        }
        assert_eq!(memory.bytes(), vec![SECRET; 8 * PAGE], "{name}");
        batch.commit().expect(&name);
        let mut expected = vec![SECRET; 8 * PAGE];
        (0..8).for_each(|page| expected[page * PAGE + 4 * page] = page as u8 + 1);
        assert_eq!(memory.bytes(), expected, "{name}");
        assert_eq!(domain.usage().bounce_pages, 0, "{name}");
        bench.end(domain);
    }
}

#[test]
fn typed_buffers_come_back_with_what_the_device_has_written() {
    let strict = protected().filter(|(_, protection)| *protection == Protection::Strict);
    for (design, name) in strict.map(|(design, _)| (design, design.info().id)) {
        let bench = Bench::new();
        let domain = bench.domain(design, Protection::Strict, SubPage::Bounce);
        // By itself, in a batch, and as a descriptor.
        let mapping = domain.map(Buffer::new(1, 0x800, 0x200), Access::DeviceWrites).expect(name);
        assert!(bench.writes(mapping.iova().as_u64(), 1), "{name}");
        let back = domain.unmap(mapping).expect(name);
        assert_eq!((back.memory.get(0x7ff), back.memory.get(0x800), back.memory.get(0x801)), (SECRET, 1, SECRET));
        let mut batch = domain.batch();
        let mapping = domain.map(back, Access::DeviceWrites).expect(name);
        assert!(bench.writes(mapping.iova().as_u64(), 2), "{name}");
        batch.unmap(mapping).expect(name);
        let back = batch.commit().expect(name).pop().expect("one");
        assert_eq!(back.memory.get(0x800), 2, "{name}");
        let mut ring = domain.ring(RingConfig::default()).expect(name);
        let descriptor = ring.map([back].into_iter().collect()).expect(name);
        assert!(bench.writes(descriptor.mappings()[0].iova().as_u64(), 3), "{name}");
        let back = ring.unmap(descriptor).expect(name).pop().expect("one");
        assert_eq!(back.memory.get(0x800), 3, "{name}");
        // A mapping of another domain is refused, as in any domain.
        let other = bench.empty_domain(design, Protection::Strict, SubPage::Bounce);
        let mapping = domain.map(back, Access::DeviceWrites).expect(name);
        let refused = other.unmap(mapping).expect_err(name);
        let portcullis::domain::UnmapFailure::Refused(refused) = refused else { panic!("{name}: lost") };
        assert!(domain.unmap(refused.value).is_ok(), "{name}");
        drop(other);
        bench.end(domain);
    }
}

/// Batches and rings own their domain if they are made from an `Arc`.
#[test]
fn a_batch_may_own_its_domain() {
    use portcullis::domain::{Batch, RawBatch, Ring};
    let bench = Bench::new();
    let domain: std::sync::Arc<DynDomain> =
        std::sync::Arc::from(bench.domain(DesignId::Portcullis, Protection::Strict, SubPage::Expose));
    let mut batch = RawBatch::new(domain.clone());
    let mut typed = Batch::new(domain.clone());
    let mut ring = Ring::new(domain.clone(), RingConfig::default()).unwrap();
    let iova = domain.raw_map(PhysAddr::new(0x5000), 100, Access::DeviceReads).unwrap();
    typed.unmap(domain.map(Buffer::new(1, 0, 100), Access::DeviceReads).unwrap()).unwrap();
    let descriptor = ring.map([Buffer::new(1, 0, 100)].into_iter().collect()).unwrap();
    drop(domain);
    let ends = std::thread::spawn(move || {
        batch.unmap(IovaRange::covering(iova, 100).unwrap()).unwrap();
        batch.commit().unwrap();
        (typed.commit().unwrap().len(), ring.unmap(descriptor).unwrap().len())
    });
    assert_eq!(ends.join().unwrap(), (1, 1));
    assert_eq!(bench.host.frames_lent(), 0, "the last of them has closed the domain");
}

#[test]
fn what_is_to_last_or_is_shared_is_refused_where_it_would_be_bounced() {
    let (bench, memory) = (Bench::new(), Memory::new(2));
    let domain = bench.domain(DesignId::Portcullis, Protection::Strict, SubPage::Bounce);
    let lasting = MapOptions { lifetime: Lifetime::Persistent, ..MapOptions::default() };
    let refused = domain.raw_map_with(memory.phys(8), 100, Access::DeviceWrites, &lasting);
    assert_eq!(refused, Err(MapError::PartialPage(memory.phys(8))));
    let whole = domain.raw_map_with(memory.phys(0), 2 * PAGE_SIZE, Access::DeviceWrites, &lasting).unwrap();
    let failure = domain.map_shared(Buffer::new(1, 0, 100), Access::DeviceReads).err().unwrap();
    assert!(matches!(failure.error(), portcullis::RawMapError::Refused(MapError::PartialPage(_))), "{failure:?}");
    let shared = domain.map_shared(Buffer::new(1, 0, PAGE), Access::DeviceReads).unwrap();
    assert_eq!(domain.usage().bounce_pages, 0);
    assert!(domain.unmap(shared).is_ok());
    domain.unmap_raw(whole, 2 * PAGE_SIZE).unwrap();
    bench.end(domain);
}

#[test]
fn only_domains_that_can_are_made() {
    let bench = Bench::new();
    let memory = [Segment { phys: PhysAddr::new(0), len: 64 << 20 }];
    for sub_page in [SubPage::Refuse, SubPage::Bounce] {
        let config = DomainConfig { sub_page, memory: &memory, ..DomainConfig::new(Protection::None) };
        // SAFETY: no memory is behind the IOMMU.
        let refused = unsafe { Unprotected::open_unprotected(bench.iommu, bench.host, &config) };
        assert_eq!(refused.err(), Some(NewDomainError::Exposed));
    }
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let config = DomainConfig { sub_page: SubPage::Bounce, ..DomainConfig::new(Protection::Strict) };
    let refused = Portcullis::open_with(&iommu, &host, &config);
    assert_eq!(refused.err(), Some(NewDomainError::CannotBounce));
    assert_eq!(host.frames_lent(), 0);
}

/// S7: the pool has a bound. A domain that has reached it maps again once pages are returned.
#[test]
fn bounce_pages_have_a_bound() {
    let (bench, memory) = (Bench::new(), Memory::new(1));
    let domain = bench.domain(DesignId::Portcullis, Protection::Strict, SubPage::Bounce);
    let map = || maps(&domain, &memory, 8, 1, Access::DeviceReads);
    let iovas: Vec<u64> = (0..BOUNCE_PAGES_MAX).map(|_| map().unwrap()).collect();
    let lent = bench.host.frames_lent();
    assert_eq!(map(), Err(MapError::NoBouncePage { most: BOUNCE_PAGES_MAX }));
    assert_eq!((domain.usage().bounce_pages, bench.host.frames_lent()), (BOUNCE_PAGES_MAX, lent), "S6");
    domain.unmap_raw(Iova::new(iovas[5]), 1).unwrap();
    let again = map().unwrap();
    assert_eq!(domain.usage().bounce_pages, BOUNCE_PAGES_MAX);
    for iova in iovas.into_iter().enumerate().filter(|(index, _)| *index != 5).map(|(_, iova)| iova).chain([again]) {
        domain.unmap_raw(Iova::new(iova), 1).unwrap();
    }
    assert_eq!(domain.usage().bounce_pages, 0);
    bench.end(domain);
}

/// S6: if the second bounce page or the address cannot be had, the first page is returned.
#[test]
fn a_map_that_is_refused_keeps_no_bounce_page() {
    let (bench, memory) = (Bench::new(), Memory::new(3));
    let domain = bench.domain(DesignId::Stock, Protection::Strict, SubPage::Bounce);
    bench.host.limit_frames(1);
    let refused = maps(&domain, &memory, 8, 2 * PAGE, Access::DeviceReads);
    assert!(matches!(refused, Err(MapError::NoMemory(_))), "{refused:?}");
    assert_eq!(domain.usage().bounce_pages, 0);
    bench.host.limit_frames(100);
    let far = MapOptions { limit: 0xfff, ..MapOptions::default() };
    let refused = domain.raw_map_with(memory.phys(8), 2 * PAGE_SIZE, Access::DeviceReads, &far);
    assert!(refused.is_err());
    assert_eq!(domain.usage().bounce_pages, 0);
    let iova = maps(&domain, &memory, 8, 2 * PAGE, Access::DeviceReads).unwrap();
    assert_eq!(domain.usage().bounce_pages, 2);
    // An unmap of a wrong range is refused, and the mapping keeps its pages.
    assert!(domain.unmap_raw(Iova::new(iova), 1).is_err());
    assert_eq!((domain.usage().bounce_pages, bench.reads(iova)), (2, Some(SECRET)));
    domain.unmap_raw(Iova::new(iova), 2 * PAGE_SIZE).unwrap();
    bench.end(domain);
}

/// S11: if the hardware fails, the pages are lost with the buffer, and nothing is copied.
#[test]
fn a_failed_commit_copies_nothing_and_loses_the_pages() {
    for is_batch in [false, true] {
        let (bench, memory) = (Bench::new(), Memory::new(1));
        let domain = bench.domain(DesignId::Portcullis, Protection::Strict, SubPage::Bounce);
        let before = lost_here();
        let iova = maps(&domain, &memory, 8, 64, Access::DeviceWrites).unwrap();
        let mapping = domain.map(Buffer::new(1, 8, 64), Access::DeviceWrites).unwrap();
        assert!(bench.writes(iova, 0xaa));
        bench.iommu.behave(Behaviour::Failing);
        if is_batch {
            let mut batch = domain.raw_batch();
            batch.unmap_raw(Iova::new(iova), 64).expect("mapped");
            assert!(batch.commit().is_err());
        } else {
            let failed = domain.unmap_raw(Iova::new(iova), 64);
            assert!(matches!(failed, Err(portcullis::RawUnmapError::Commit(_))), "{failed:?}");
        }
        assert!(domain.unmap(mapping).is_err());
        assert_eq!((memory.bytes(), lost_here() - before), (vec![SECRET; PAGE], 1));
        assert_eq!(domain.usage().bounce_pages, 2, "the device may still reach them");
        assert_eq!(maps(&domain, &memory, 8, 64, Access::DeviceWrites), Err(MapError::Poisoned));
        assert_eq!(domain.usage().bounce_pages, 2);
        bench.iommu.behave(Behaviour::Prompt);
        bench.end(domain);
    }
}

#[test]
fn syncs_copy_while_a_mapping_goes_on() {
    for sub_page in [SubPage::Expose, SubPage::Bounce] {
        let (bench, memory) = (Bench::new(), Memory::new(1));
        let domain = bench.domain(DesignId::Portcullis, Protection::Strict, sub_page);
        let (iova, other) = (0x10, 0x410);
        let [iova, other] =
            [iova, other].map(|at| maps(&domain, &memory, at, 64, Access::DeviceReadsAndWrites).unwrap());
        assert!(bench.writes(iova, 1) && bench.writes(other, 2));
        // SAFETY: only this test uses the memory.
        unsafe { domain.sync_for_cpu(Iova::new(iova)) };
        let seen_of_other = if sub_page == SubPage::Expose { 2 } else { SECRET };
        assert_eq!((memory.get(0x10), memory.get(0x410)), (1, seen_of_other));
        memory.set(0x11, 3);
        // SAFETY: as above.
        unsafe { domain.sync_for_device(Iova::new(iova)) };
        assert_eq!(bench.reads(iova + 1), Some(3));
        for iova in [iova, other] {
            domain.unmap_raw(Iova::new(iova), 64).unwrap();
        }
        assert_eq!((memory.get(0x10), memory.get(0x11), memory.get(0x410)), (1, 3, 2));
        bench.end(domain);
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Map { offset: usize, len: usize, access: Access },
    Write { mapping: usize, at: usize, byte: u8 },
    Unmap { mapping: usize, batched: bool },
}

fn operation() -> impl Strategy<Value = Operation> {
    let access = prop_oneof![Just(Access::DeviceReads), Just(Access::DeviceWrites), Just(Access::DeviceReadsAndWrites)];
    prop_oneof![
        (0..16 * PAGE, 1..3 * PAGE, access).prop_map(|(offset, len, access)| Operation::Map { offset, len, access }),
        (any::<usize>(), any::<usize>(), any::<u8>()).prop_map(|(mapping, at, byte)| Operation::Write {
            mapping,
            at,
            byte
        }),
        (any::<usize>(), any::<bool>()).prop_map(|(mapping, batched)| Operation::Unmap { mapping, batched }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Compares with a plain model: each live buffer has its own bytes, which are copied back at its unmap. The device
    /// sees those bytes and, in the rest of its pages, only zeros and its own writes.
    #[test]
    fn bounced_buffers_behave_as_if_they_were_alone(
        operations in proptest::collection::vec(operation(), 1..60),
        protection in prop_oneof![Just(Protection::Strict), Just(Protection::Deferred)],
    ) {
        struct Live { iova: u64, offset: usize, len: usize, access: Access, bytes: Vec<u8> }
        let (bench, memory) = (Bench::new(), Memory::new(20));
        let domain = bench.domain(DesignId::Portcullis, protection, SubPage::Bounce);
        let mut expected = vec![SECRET; 20 * PAGE];
        let mut live: Vec<Live> = Vec::new();
        for operation in operations {
            match operation {
                Operation::Map { offset, len, access } => {
                    let overlaps = live.iter().any(|other| offset < other.offset + other.len && other.offset < offset + len);
                    // Whole pages are mapped directly, so buffers that share one see each other's writes.
                    if overlaps {
                        continue;
                    }
                    let iova = maps(&domain, &memory, offset, len, access).expect("room");
                    live.push(Live { iova, offset, len, access, bytes: expected[offset..offset + len].to_vec() });
                }
                Operation::Write { mapping, at, byte } if !live.is_empty() => {
                    let index = mapping % live.len();
                    let buffer = &mut live[index];
                    let at = at % buffer.len;
                    let may = buffer.access != Access::DeviceReads;
                    prop_assert_eq!(bench.writes(buffer.iova + at as u64, byte), may);
                    if may {
                        buffer.bytes[at] = byte;
                    }
                }
                Operation::Unmap { mapping, batched } if !live.is_empty() => {
                    let buffer = live.swap_remove(mapping % live.len());
                    let (iova, len) = (Iova::new(buffer.iova), buffer.len as u64);
                    if batched {
                        let mut batch = domain.raw_batch();
                        batch.unmap(IovaRange::covering(iova, len).expect("pages")).expect("mapped");
                        batch.commit().expect("the hardware answers");
                    } else {
                        domain.unmap_raw(iova, len).expect("mapped");
                    }
                    expected[buffer.offset..buffer.offset + buffer.len].copy_from_slice(&buffer.bytes);
                    prop_assert_eq!(
                        (buffer.offset..buffer.offset + buffer.len).map(|at| memory.get(at)).collect::<Vec<u8>>(),
                        buffer.bytes
                    );
                }
                _ => {}
            }
            for buffer in &live {
                if buffer.access != Access::DeviceWrites {
                    let seen: Vec<u8> = (0..buffer.len as u64).filter_map(|at| bench.reads(buffer.iova + at)).collect();
                    prop_assert_eq!(&seen, &buffer.bytes);
                    let start = buffer.iova - buffer.iova % PAGE_SIZE;
                    prop_assert!((start..buffer.iova).all(|at| bench.reads(at) == Some(0)));
                }
            }
        }
        for buffer in live {
            domain.unmap_raw(Iova::new(buffer.iova), buffer.len as u64).expect("mapped");
            expected[buffer.offset..buffer.offset + buffer.len].copy_from_slice(&buffer.bytes);
        }
        prop_assert_eq!(memory.bytes(), expected);
        prop_assert_eq!(domain.usage().bounce_pages, 0);
        bench.end(domain);
    }
}
