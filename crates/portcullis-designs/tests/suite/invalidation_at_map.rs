//! Designs whose unmaps do nothing and whose maps invalidate their new addresses: what the device reaches, for how
//! long, and in which order (ATC'15, §3.4, on Solaris).

use crate::forwarding::forward_domains;
use crate::raw_face::RawFace;
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::FakeHost;
use portcullis::table::Rights;
use portcullis::{
    Access, Capabilities, DomainOf, Invalidation, Iommu, Iova, IovaRange, NewDomainError, Open, PAGE_SIZE, PhysAddr,
    Protection, QueueError, SourceId,
};
use portcullis_designs::Solaris;
use std::sync::Mutex;

const DEVICE: SourceId = SourceId::new(0, 3, 0);

fn domain<I: Iommu>(iommu: I, host: &FakeHost) -> DomainOf<Solaris, &FakeHost, I> {
    let domain = Solaris::open(iommu, host, Protection::Deferred).expect("it offers that");
    domain.attach(DEVICE).expect("a device");
    domain
}

/// Maps `pages` pages from physical page `pfn` on.
fn map<I: Iommu>(domain: &DomainOf<Solaris, &FakeHost, I>, pfn: u64, pages: u64) -> IovaRange {
    let iova = domain.raw_map(PhysAddr::from_pfn(pfn), pages * PAGE_SIZE, Access::DeviceWrites).expect("room");
    IovaRange::new(iova.pfn(), pages).expect("mapped")
}

fn unmap<I: Iommu>(domain: &DomainOf<Solaris, &FakeHost, I>, range: IovaRange) {
    domain.unmap_raw(range.start(), range.pages() * PAGE_SIZE).expect("mapped");
}

/// The physical page that the device reaches at page `pfn`.
fn reach(iommu: &FakeIommu<'_>, pfn: u64) -> Option<u64> {
    iommu.access(DEVICE, Iova::from_pfn(pfn), Rights::WRITE).map(PhysAddr::pfn)
}

#[test]
fn no_other_protection_is_offered() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    for protection in [Protection::Strict, Protection::None] {
        let refused = Solaris::open(&iommu, &host, protection).err();
        assert!(matches!(refused, Some(NewDomainError::Protection)), "{protection}");
    }
}

#[test]
fn a_map_sends_one_command_and_an_unmap_none() {
    let host = FakeHost::default();
    for (caches_absent, address_mask_max) in [(false, Some(18)), (true, Some(18)), (false, Some(1)), (true, None)] {
        let base = FakeIommu::new(&host).capabilities();
        let iommu = FakeIommu::with_capabilities(&host, Capabilities { caches_absent, address_mask_max, ..base });
        let domain = domain(&iommu, &host);
        for (pages, mask) in [(1, 0), (2, 1), (16, 4), (1, 0)] {
            let range = map(&domain, 9, pages);
            let expected = match address_mask_max {
                Some(max) if mask <= max => {
                    // Absent directory entries may be cached too; then the invalidation must cover all levels.
                    let leaf_only = !caches_absent;
                    Invalidation::Pages { domain: domain.id(), first: range.start(), mask, leaf_only }
                }
                _ => Invalidation::Domain(domain.id()),
            };
            assert_eq!(iommu.take_commands(), [expected], "{pages} pages");
            unmap(&domain, range);
            assert_eq!(iommu.take_commands(), []);
        }
    }
}

/// The passage of time changes nothing. The translation is still in the table, so it survives an invalidation too.
#[test]
fn the_device_keeps_a_buffer_until_its_address_is_used_again() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = domain(&iommu, &host);
    let gone = map(&domain, 100, 3);
    let pages = || [0, 1, 2].map(|page| reach(&iommu, gone.first_pfn() + page));
    assert_eq!(pages(), [Some(100), Some(101), Some(102)]);
    unmap(&domain, gone);
    let usage = domain.usage();
    assert_eq!((usage.live_ranges, usage.queued_unmaps, usage.window_us_max), (0, 0, None));
    assert_eq!(domain.due_us(), None);
    host.advance_us(3_600_000_000);
    domain.tick().unwrap();
    assert_eq!(pages(), [Some(100), Some(101), Some(102)], "an hour later");
    assert_eq!(iommu.submit(&[Invalidation::Global]).and_then(|ticket| iommu.is_done(ticket)), Ok(true));
    assert_eq!(pages(), [Some(100), Some(101), Some(102)], "and after a flush by other code");
    assert_eq!(map(&domain, 200, 3), gone);
    assert_eq!(pages(), [Some(200), Some(201), Some(202)]);
}

/// If a smaller mapping takes a part of a larger one's addresses, the rest of the old translations stays.
#[test]
fn only_what_is_used_again_is_invalidated() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = domain(&iommu, &host);
    let gone = map(&domain, 1000, 200);
    let edges = [0, 39, 40, 199].map(|page| gone.first_pfn() + page);
    let reached = || edges.map(|pfn| reach(&iommu, pfn).expect("mapped, or still translated"));
    assert_eq!(reached(), [1000, 1039, 1040, 1199]);
    unmap(&domain, gone);
    let part = map(&domain, 5000, 40);
    assert_eq!(part.first_pfn(), gone.first_pfn());
    assert_eq!(reached(), [5000, 5039, 1040, 1199]);
}

/// A map that is refused after it has got an address gives it back and leaves the old translation there unchanged.
#[test]
fn a_refused_map_leaves_what_was_left() {
    let host = FakeHost::default();
    let iommu = FakeIommu::new(&host);
    let domain = domain(&iommu, &host);
    let gone = map(&domain, 100, 1);
    assert_eq!(reach(&iommu, gone.first_pfn()), Some(100));
    unmap(&domain, gone);
    iommu.take_commands();
    let before = domain.usage();
    domain.raw_map(PhysAddr::from_pfn(1 << 40), PAGE_SIZE, Access::DeviceWrites).expect_err("beyond the entries");
    assert_eq!((iommu.take_commands(), domain.usage()), (vec![], before));
    assert_eq!(reach(&iommu, gone.first_pfn()), Some(100));
    assert_eq!((map(&domain, 200, 1), reach(&iommu, gone.first_pfn())), (gone, Some(200)));
}

/// Hardware with a device that uses an address as soon as the IOMMU has invalidated it.
struct Eager<'h> {
    fake: FakeIommu<'h>,
    reached: Mutex<Vec<Option<u64>>>,
}

// SAFETY: no memory is behind it.
unsafe impl Iommu for Eager<'_> {
    type Ticket = <FakeIommu<'static> as Iommu>::Ticket;

    forward_domains!(fake);

    fn submit(&self, commands: &[Invalidation]) -> Result<Self::Ticket, QueueError> {
        let ticket = self.fake.submit(commands)?;
        // Right away: the fake could delay it otherwise.
        assert!(self.fake.is_done(ticket)?);
        let [Invalidation::Pages { first, .. }] = commands else { panic!("not one page-selective command") };
        self.reached.lock().expect("not poisoned").push(reach(&self.fake, first.pfn()));
        Ok(ticket)
    }

    fn is_done(&self, ticket: Self::Ticket) -> Result<bool, QueueError> {
        self.fake.is_done(ticket)
    }
}

/// New translations are written before the old ones are invalidated, so the device cannot cache the old ones again in
/// between.
#[test]
fn translations_are_written_and_then_invalidated() {
    let host = FakeHost::default();
    for caches_absent in [false, true] {
        let base = FakeIommu::new(&host).capabilities();
        let fake = FakeIommu::with_capabilities(&host, Capabilities { caches_absent, ..base });
        let iommu = Eager { fake, reached: Mutex::default() };
        let domain = domain(&iommu, &host);
        for round in 0..3 {
            let range = map(&domain, 100 + round, 1);
            assert_eq!(reach(&iommu.fake, range.first_pfn()), Some(100 + round));
            unmap(&domain, range);
        }
        assert_eq!(*iommu.reached.lock().unwrap(), [Some(100), Some(101), Some(102)]);
    }
}
