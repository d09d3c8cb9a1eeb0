//! Domains that cannot be made, and devices that cannot be attached.

use crate::raw_face::{RawFace, open};
use portcullis::invalidation::Deferral;
use portcullis::iommu::fake::{FakeIommu, Ticket};
use portcullis::iommu::{AttachError, Translation};
use portcullis::iova::{Claim, IovaAllocator, IovaRequest};
use portcullis::mapper::{AssembledMapper, Design, DesignInfo, DomainSetup, Info};
use portcullis::platform::fake::FakeHost;
use portcullis::proof::Proof;
use portcullis::table::Rights;
use portcullis::{
    Access, Capabilities, DomainConfig, DomainId, Invalidation, Iommu, Iova, IovaRange, MapError, NewDomainError, Open,
    PAGE_SIZE, PhysAddr, Platform, Protection, QueueError, Request, Segment, SourceId, UnmapError,
};
use portcullis_designs::{Static, Stock, Unprotected};
use std::mem::MaybeUninit;

const DEVICE: SourceId = SourceId::new(0, 1, 0);

const fn segment(phys: u64, len: u64) -> Segment {
    Segment { phys: PhysAddr::new(phys), len }
}

/// An IOMMU with no domain left.
struct NoDomains<'h>(FakeIommu<'h>);

// SAFETY: no memory is behind it.
unsafe impl Iommu for NoDomains<'_> {
    type Ticket = Ticket;

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    unsafe fn open_domain(&self, _: Translation) -> Result<DomainId, AttachError> {
        Err(AttachError::NoDomainId)
    }

    unsafe fn close_domain(&self, domain: DomainId) -> Result<(), AttachError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.0.close_domain(domain) }
    }

    fn attach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        self.0.attach(domain, device)
    }

    fn detach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        self.0.detach(domain, device)
    }

    fn submit(&self, commands: &[Invalidation]) -> Result<Ticket, QueueError> {
        self.0.submit(commands)
    }

    fn is_done(&self, ticket: Ticket) -> Result<bool, QueueError> {
        self.0.is_done(ticket)
    }
}

#[test]
fn domains_that_cannot_be_made() {
    fn refused<D: for<'h> Design<&'h FakeHost, &'h FakeIommu<'h>>>(
        config: &DomainConfig<'_>,
        capabilities: Capabilities,
    ) -> NewDomainError {
        let host = FakeHost::default();
        let iommu = FakeIommu::with_capabilities(&host, capabilities);
        let error = open::<D, _, _>(&iommu, &host, config).err().expect("no such domain");
        assert_eq!(host.frames_lent(), 0);
        error
    }
    let host = FakeHost::default();
    let all = FakeIommu::new(&host).capabilities();
    let strict = DomainConfig::new(Protection::Strict);
    let none = DomainConfig::new(Protection::None);
    assert_eq!(refused::<Stock>(&none, all), NewDomainError::Protection);
    assert_eq!(refused::<Unprotected>(&strict, all), NewDomainError::Protection);
    // Without protection and without `unsafe`: such a domain would let devices reach all memory.
    assert_eq!(
        Unprotected::open(FakeIommu::new(&host), &host, Protection::None).err(),
        Some(NewDomainError::Unprotected)
    );
    for bits in [0, 12, 65, 255] {
        assert_eq!(refused::<Stock>(&DomainConfig { address_bits: bits, ..strict }, all), NewDomainError::Width(bits));
    }
    for bits in [49, 64] {
        // A device may have more address bits than its IOMMU: then the IOMMU's width counts.
        let config = DomainConfig { address_bits: bits, ..strict };
        let domain = Stock::open_with(FakeIommu::new(&host), &host, &config);
        assert!(domain.is_ok());
    }
    let narrow = Capabilities { four_level: false, ..all };
    {
        // Three levels translate 39 bits, whatever the device supports.
        let domain = Stock::open_with(FakeIommu::with_capabilities(&host, narrow), &host, &strict);
        let domain = domain.unwrap();
        let segments = [segment(0, PAGE_SIZE)];
        let request = Request::new(&segments, Access::DeviceReads).unwrap();
        assert!(domain.raw_map_request(&request).unwrap().end_pfn() <= 1 << 27);
    }
    for bits in [0, 8, 12] {
        let tiny = Capabilities { address_bits: bits, ..all };
        assert_eq!(refused::<Stock>(&strict, tiny), NewDomainError::Width(48));
    }
    let unable = Capabilities { three_level: false, ..narrow };
    assert_eq!(refused::<Stock>(&strict, unable), NewDomainError::Width(48));

    for (phys, len) in [(0x1234, 0x1000), (0x1000, 0x1234), (0x1000, 0), (u64::MAX - 0xfff, 0x2000)] {
        let memory = [segment(phys, len)];
        let error = refused::<Static>(&DomainConfig { memory: &memory, ..none }, all);
        assert_eq!(error, NewDomainError::BadRange(PhysAddr::new(phys)));
    }
    let memory = [segment(0x1000, 0x4000), segment(0x4000, 0x1000)];
    let error = refused::<Static>(&DomainConfig { memory: &memory, ..none }, all);
    assert_eq!(error, NewDomainError::Identity(MapError::Overlap(Iova::new(0x4000)).into()));

    for protection in [Protection::Strict, Protection::Deferred] {
        let iommu = NoDomains(FakeIommu::new(&host));
        let error = Stock::open(&iommu, &host, protection).err();
        assert_eq!(error, Some(NewDomainError::Attach(AttachError::NoDomainId)));
        assert_eq!(host.frames_lent(), 0);
    }
}

#[test]
fn devices_in_the_wrong_place() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = || Stock::open(&iommu, &host, Protection::Strict).unwrap();
    let (one, other) = (domain(), domain());
    one.attach(DEVICE).unwrap();
    assert_eq!(one.attach(DEVICE), Err(AttachError::Attached(DEVICE)));
    assert_eq!(other.attach(DEVICE), Err(AttachError::Attached(DEVICE)));
    assert_eq!(other.detach(DEVICE), Err(AttachError::NotAttached(DEVICE)));
    let iova = one.raw_map(PhysAddr::new(0x9000), PAGE_SIZE, Access::DeviceWrites).unwrap();
    assert_eq!(iommu.access(DEVICE, iova, Rights::WRITE), Some(PhysAddr::new(0x9000)));
    one.detach(DEVICE).unwrap();
    assert_eq!(iommu.access(DEVICE, iova, Rights::WRITE), None);
    other.attach(DEVICE).unwrap();
    assert_eq!(iommu.access(DEVICE, iova, Rights::WRITE), None);
}

/// Hands out one page that three levels of tables do not translate.
struct Beyond;

// SAFETY: it keeps its promises for 48 bits. The test is that the domain has fewer.
unsafe impl<P: Platform> IovaAllocator<P> for Beyond {
    fn allocate(&self, _platform: &P, _request: &IovaRequest) -> Result<IovaRange, MapError> {
        Ok(IovaRange::new(1 << 30, 1).expect("a range"))
    }

    fn claim(&self, _platform: &P, _range: IovaRange) -> Result<Claim, UnmapError> {
        Ok(Claim::Held)
    }

    fn free(&self, _platform: &P, _range: IovaRange, _proof: &Proof) {}

    fn live(&self) -> usize {
        0
    }
}

/// A design with that allocator.
struct TooWide;

impl DesignInfo for TooWide {
    const INFO: Info = Info { id: "too-wide", ..Stock::INFO };
}

// SAFETY: its mapper is an assembled one.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for TooWide {
    type Mapper = AssembledMapper<Beyond, P, I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        Ok(to.write(AssembledMapper::new(Beyond, Deferral::Global, setup)?))
    }
}

/// S1, S13: an address beyond the table would be translated as another address. The map panics before anything is
/// written, and the domain is poisoned.
#[test]
fn an_address_beyond_the_table_is_not_mapped() {
    let host = FakeHost::default();
    let all = FakeIommu::new(&host).capabilities();
    let iommu = FakeIommu::with_capabilities(&host, Capabilities { four_level: false, ..all });
    let domain = TooWide::open(&iommu, &host, Protection::Strict).expect("a domain");
    domain.attach(DEVICE).expect("a device");
    let map = || domain.raw_map(PhysAddr::from_pfn(5), PAGE_SIZE, Access::DeviceWrites);
    let message = std::panic::catch_unwind(std::panic::AssertUnwindSafe(map)).expect_err("it cannot be mapped");
    assert_eq!(message.downcast_ref(), Some(&"an allocator of more addresses than its domain translates"));
    assert_eq!(iommu.reachable(DEVICE, Rights::WRITE), []);
    assert_eq!(map(), Err(MapError::Poisoned));
}

/// S7: the table pages of an identity map are counted.
#[test]
fn the_tables_of_an_identity_map_are_counted() {
    let host = FakeHost::default();
    let memory = [segment(0x1000, 0x4000)];
    let config = DomainConfig { memory: &memory, ..DomainConfig::new(Protection::None) };
    // SAFETY: the fake's memory has no owner.
    let domain = unsafe { Static::open_unprotected(FakeIommu::new(&host), &host, &config) }.unwrap();
    let usage = domain.usage();
    assert_eq!((usage.table_pages, usage.live_ranges), (host.frames_lent(), 0));
    assert_eq!(usage.table_pages, 4, "one table page of each level");
}

/// All devices of a list come into a domain, or none.
#[test]
fn attach_all_attaches_all_or_none() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = Stock::open(&iommu, &host, Protection::Strict).expect("a domain");
    let other = Stock::open(&iommu, &host, Protection::Strict).expect("another");
    let [one, two, three] = [1, 2, 3].map(|device| SourceId::new(0, device, 0));
    other.attach(three).expect("free");
    assert_eq!(domain.attach_all(&[one, two, three]), Err(AttachError::Attached(three)));
    // Those before it are free again.
    other.attach_all(&[one, two]).expect("free");
    [one, two, three].iter().try_for_each(|device| other.detach(*device)).expect("attached");
    domain.attach_all(&[one, two, three]).expect("free");
    assert_eq!(other.attach_all(&[one]), Err(AttachError::Attached(one)));
    iommu.attach_all(other.id(), &[]).expect("nothing to do");
}
