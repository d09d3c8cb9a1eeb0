//! Pages that the hardware may still walk stay until it has finished with them: table pages outlive the command that
//! invalidates them (S4), and the tables of a domain outlive the domain (S10).

use crate::raw_face::RawFace;
use portcullis::iommu::fake::{FakeIommu, Ticket};
use portcullis::iommu::{AttachError, Translation};
use portcullis::platform::fake::FakeHost;
use portcullis::{
    Access, Capabilities, DomainId, DomainOf, Invalidation, Iommu, Iova, IovaRange, Open, PAGE_SIZE, PhysAddr,
    Protection, QueueError, SourceId,
};
use portcullis_designs::Stock;
use std::sync::Mutex;

/// The fake, recording how many table pages are lent at each submission and each poll.
struct Watching<'h> {
    host: &'h FakeHost,
    fake: FakeIommu<'h>,
    lent: Mutex<Vec<usize>>,
}

impl<'h> Watching<'h> {
    /// Hardware without large leaves.
    fn new(host: &'h FakeHost) -> Self {
        let capabilities = Capabilities { leaf_2m: false, leaf_1g: false, ..FakeIommu::new(host).capabilities() };
        Self { host, fake: FakeIommu::with_capabilities(host, capabilities), lent: Mutex::default() }
    }

    fn note(&self) {
        self.lent.lock().expect("not poisoned").push(self.host.frames_lent());
    }

    fn take_notes(&self) -> Vec<usize> {
        std::mem::take(&mut *self.lent.lock().expect("not poisoned"))
    }
}

// SAFETY: no memory is behind it.
unsafe impl Iommu for Watching<'_> {
    type Ticket = Ticket;

    fn capabilities(&self) -> Capabilities {
        self.fake.capabilities()
    }

    unsafe fn open_domain(&self, translation: Translation) -> Result<DomainId, AttachError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.fake.open_domain(translation) }
    }

    unsafe fn close_domain(&self, domain: DomainId) -> Result<(), AttachError> {
        self.note();
        // SAFETY: the caller's promise, passed on.
        unsafe { self.fake.close_domain(domain) }
    }

    fn attach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        self.fake.attach(domain, device)
    }

    fn detach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        self.fake.detach(domain, device)
    }

    fn submit(&self, commands: &[Invalidation]) -> Result<Ticket, QueueError> {
        self.note();
        self.fake.submit(commands)
    }

    /// Done when it is polled for the second time.
    fn is_done(&self, ticket: Ticket) -> Result<bool, QueueError> {
        self.note();
        Ok(self.fake.is_done(ticket)? && self.lent.lock().expect("not poisoned").len() > 2)
    }
}

/// Maps 512 pages, which fill a leaf table: with the root and two directories, four table pages.
fn map_a_whole_table(domain: &DomainOf<Stock, &FakeHost, &Watching<'_>>) -> Iova {
    domain.raw_map(PhysAddr::new(0), 512 * PAGE_SIZE, Access::DeviceReads).expect("room")
}

#[test]
fn a_strict_unmap_frees_tables_last() {
    let host = FakeHost::default();
    let iommu = Watching::new(&host);
    let domain = Stock::open(&iommu, &host, Protection::Strict).unwrap();
    let iova = map_a_whole_table(&domain);
    domain.unmap_raw(iova, 512 * PAGE_SIZE).unwrap();
    // At the submission, and at both polls.
    assert_eq!((iommu.take_notes(), host.frames_lent()), (vec![4, 4, 4], 3));
}

#[test]
fn a_deferred_unmap_frees_tables_after_the_flush() {
    let host = FakeHost::default();
    let iommu = Watching::new(&host);
    let domain = Stock::open(&iommu, &host, Protection::Deferred).unwrap();
    let iovas = [map_a_whole_table(&domain), map_a_whole_table(&domain)];
    let mut batch = domain.raw_batch();
    for iova in iovas {
        batch.unmap(IovaRange::covering(iova, 512 * PAGE_SIZE).unwrap()).unwrap();
    }
    batch.commit().unwrap();
    assert_eq!((iommu.take_notes(), host.frames_lent()), (vec![], 5));
    host.advance_us(10_000);
    domain.tick().unwrap();
    assert_eq!((iommu.take_notes(), host.frames_lent()), (vec![5, 5, 5], 3));
}

#[test]
fn a_domain_frees_tables_after_it_is_closed() {
    for protection in [Protection::Strict, Protection::Deferred] {
        let host = FakeHost::default();
        let iommu = Watching::new(&host);
        let domain = Stock::open(&iommu, &host, protection).unwrap();
        let (queued, _live) = (map_a_whole_table(&domain), map_a_whole_table(&domain));
        let lent = host.frames_lent();
        if protection == Protection::Deferred {
            domain.unmap_raw(queued, 512 * PAGE_SIZE).unwrap();
        }
        drop(domain);
        assert_eq!((iommu.take_notes(), host.frames_lent()), (vec![lent], 0), "{protection}");
    }
}
