//! Strict commits that share a submission: a commit whose shared submission fails is submitted again alone, and only a
//! commit that also fails alone loses its buffers (S11).

use crate::forwarding::forward_domains;
use crate::raw_face::RawFace;
use portcullis::invalidation::{Commands, Deferral, Submissions};
use portcullis::iommu::fake::{Behaviour, FakeIommu, Ticket};
use portcullis::iova::TreeAllocator;
use portcullis::mapper::{
    AddressOverhead, Addressing, AssembledMapper, Design, DesignInfo, DomainSetup, Info, LockFree, Parts,
};
use portcullis::platform::fake::FakeHost;
use portcullis::table::{Rights, TableRule};
use portcullis::{
    Access, CommitError, DomainOf, INVALIDATION_TIMEOUT_US, Invalidation, Iommu, Iova, MapError, NewDomainError, Open,
    PAGE_SIZE, PhysAddr, Platform, Protection, QueueError, RawUnmapError, SourceId,
};
use std::mem::MaybeUninit;
use std::sync::Mutex;

const DEVICE: SourceId = SourceId::new(0, 2, 0);
const BUFFER: PhysAddr = PhysAddr::new(0x4000);

/// The stock design, with shared commits.
struct SharedCommits;

impl DesignInfo for SharedCommits {
    const INFO: Info = Info {
        id: "shared-commits",
        source: "the stock design, its strict commits shared",
        allocator: "red-black tree",
        invalidation: "shared",
        tables: "as stock",
        protections: &[Protection::Strict],
        breaches: &[],
        addressing: Addressing::Own,
        address_overhead: Some(AddressOverhead::NONE),
        batch_default: 1,
        options: &[],
    };
}

// SAFETY: a mapper assembled from sound parts is sound.
unsafe impl<P: Platform, I: Iommu> Design<P, I> for SharedCommits {
    type Mapper = AssembledMapper<TreeAllocator<P>, P, I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let allocator = TreeAllocator::new(&setup.platform, setup.width, setup.reserved)?;
        let parts = Parts {
            commands: Commands::PerUnmap,
            submissions: Submissions::Shared,
            deferral: Deferral::Global,
            rule: TableRule::FreedWhenCovered,
            locking: LockFree,
        };
        Ok(to.write(AssembledMapper::with_parts(allocator, parts, setup)?))
    }
}

/// The outcome of a shared submission.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fate {
    Lands,
    IsRefusedAtOnce,
    Fails,
    NeverLands,
}

/// The fake, with shared submissions that fail because of another commit in them.
struct Sharing<'h> {
    fake: &'h FakeIommu<'h>,
    fate: Mutex<Fate>,
    /// For each submission, whether it was shared.
    shared: Mutex<Vec<bool>>,
}

impl<'h> Sharing<'h> {
    fn new(fake: &'h FakeIommu<'h>, fate: Fate) -> Self {
        Self { fake, fate: Mutex::new(fate), shared: Mutex::default() }
    }

    fn take_shared(&self) -> Vec<bool> {
        std::mem::take(&mut *self.shared.lock().expect("not poisoned"))
    }
}

// SAFETY: no memory is behind it.
unsafe impl Iommu for Sharing<'_> {
    /// A ticket of the fake, or a fixed answer.
    type Ticket = Result<Ticket, Result<bool, QueueError>>;

    forward_domains!(fake);

    fn submit(&self, commands: &[Invalidation]) -> Result<Self::Ticket, QueueError> {
        self.shared.lock().expect("not poisoned").push(false);
        self.fake.submit(commands).map(Ok)
    }

    fn submit_shared(&self, commands: &[Invalidation]) -> Result<Self::Ticket, QueueError> {
        self.shared.lock().expect("not poisoned").push(true);
        match *self.fate.lock().expect("not poisoned") {
            Fate::Lands => self.fake.submit(commands).map(Ok),
            Fate::IsRefusedAtOnce => Err(QueueError::Descriptor),
            Fate::Fails => Ok(Err(Err(QueueError::Device))),
            Fate::NeverLands => Ok(Err(Ok(false))),
        }
    }

    fn is_done(&self, ticket: Self::Ticket) -> Result<bool, QueueError> {
        match ticket {
            Ok(ticket) => self.fake.is_done(ticket),
            Err(answer) => answer,
        }
    }
}

type SharedDomain<'h> = DomainOf<SharedCommits, &'h FakeHost, &'h Sharing<'h>>;

/// A domain with a mapping that the device has used.
fn with_mapping<'h>(host: &'h FakeHost, iommu: &'h Sharing<'h>) -> (SharedDomain<'h>, Iova) {
    let domain = SharedCommits::open(iommu, host, Protection::Strict).unwrap();
    domain.attach(DEVICE).unwrap();
    let iova = map(&domain).unwrap();
    assert_eq!(iommu.fake.access(DEVICE, iova, Rights::WRITE), Some(BUFFER));
    (domain, iova)
}

fn map(domain: &SharedDomain<'_>) -> Result<Iova, MapError> {
    domain.raw_map(BUFFER, PAGE_SIZE, Access::DeviceWrites)
}

#[test]
fn a_commit_is_shared() {
    let host = FakeHost::default();
    let fake = FakeIommu::new(&host);
    let iommu = Sharing::new(&fake, Fate::Lands);
    let (domain, iova) = with_mapping(&host, &iommu);
    assert_eq!(domain.unmap_raw(iova, PAGE_SIZE), Ok(()));
    assert_eq!(fake.access(DEVICE, iova, Rights::WRITE), None);
    assert_eq!(iommu.take_shared(), [true]);
}

/// An error of another commit costs a second submission, and nothing else.
#[test]
fn a_failed_shared_submission_is_tried_again_alone() {
    for fate in [Fate::IsRefusedAtOnce, Fate::Fails] {
        let host = FakeHost::default();
        let fake = FakeIommu::new(&host);
        let iommu = Sharing::new(&fake, fate);
        let (domain, iova) = with_mapping(&host, &iommu);
        assert_eq!(domain.unmap_raw(iova, PAGE_SIZE), Ok(()), "{fate:?}");
        assert_eq!(fake.access(DEVICE, iova, Rights::WRITE), None);
        assert_eq!(iommu.take_shared(), [true, false]);
        assert!(map(&domain).is_ok(), "the domain is not poisoned");
        assert_eq!(domain.usage().live_ranges, 1);
    }
}

#[test]
fn what_fails_alone_too_is_lost() {
    let host = FakeHost::default();
    let fake = FakeIommu::new(&host);
    let iommu = Sharing::new(&fake, Fate::Fails);
    let (domain, iova) = with_mapping(&host, &iommu);
    fake.behave(Behaviour::Failing);
    let lost = Err(RawUnmapError::Commit(CommitError(QueueError::Descriptor)));
    assert_eq!(domain.unmap_raw(iova, PAGE_SIZE), lost);
    assert_eq!(iommu.take_shared(), [true, false]);
    assert_eq!((map(&domain), domain.usage().live_ranges), (Err(MapError::Poisoned), 1));
    fake.behave(Behaviour::Prompt);
}

/// A shared submission that is never answered uses up the time limit of the commit.
#[test]
fn a_shared_submission_that_never_lands_is_not_tried_again() {
    let host = FakeHost::default();
    let fake = FakeIommu::new(&host);
    let iommu = Sharing::new(&fake, Fate::NeverLands);
    let (domain, iova) = with_mapping(&host, &iommu);
    let started_us = host.now_us();
    let lost = Err(RawUnmapError::Commit(CommitError(QueueError::Timeout(INVALIDATION_TIMEOUT_US))));
    assert_eq!(domain.unmap_raw(iova, PAGE_SIZE), lost);
    assert!(host.now_us() - started_us <= INVALIDATION_TIMEOUT_US + 2, "the wait is bounded");
    assert_eq!(iommu.take_shared(), [true]);
    assert_eq!((map(&domain), domain.usage().live_ranges), (Err(MapError::Poisoned), 1));
}
