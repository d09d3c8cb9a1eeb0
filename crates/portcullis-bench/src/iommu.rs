//! IOMMUs for benchmarks: every submission is done at once, because there is no hardware to wait for.
//!
//! The timings are those of the protection layer. [`Empty`] only counts a submission, like the Linux peer with its
//! empty invalidation. [`Queued`] writes VT-d descriptors and a wait behind them to a ring in memory, under a lock. It
//! stores the tail where a driver would ring the doorbell. The uncached write itself and the hardware's time are not
//! included. The ring is separate from the driver's in `portcullis-vtd`, which would poll memory for statuses that no
//! hardware writes here.

use super::host::{Native, SpinLock};
use super::tables::Tables;
use portcullis::iommu::{AttachError, Capabilities, DomainId, Invalidation, Iommu, QueueError, SourceId, Translation};
use portcullis::platform::{Lock, LockClass, Padded};
use portcullis::{PhysAddr, Platform};
use portcullis_vtd::spec::descriptors::{DESCRIPTOR_BYTES, InvalidationDescriptor, IotlbScope, StatusWrite};
use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An IOMMU that a benchmark can inspect.
pub(super) trait Watched: Iommu {
    /// The tables of its one domain.
    fn tables(&self) -> Option<Tables>;
}

thread_local! {
    /// Submissions made by this thread.
    static SUBMISSIONS: Cell<u64> = const { Cell::new(0) };
}

/// Submissions made by this thread, to any IOMMU of a benchmark.
pub(super) fn submissions() -> u64 {
    SUBMISSIONS.get()
}

/// Counts one submission.
#[inline(always)]
pub(super) fn count_submission() {
    SUBMISSIONS.set(SUBMISSIONS.get() + 1);
}

/// The one domain of an IOMMU.
#[derive(Debug, Default)]
pub(super) struct OneDomain(Mutex<Option<Translation>>);

/// The id of the domain.
const DOMAIN: DomainId = DomainId(1);

impl OneDomain {
    fn translation(&self) -> MutexGuard<'_, Option<Translation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn open(&self, translation: Translation) -> Result<DomainId, AttachError> {
        let mut current = self.translation();
        match *current {
            Some(_) => Err(AttachError::NoDomainId),
            None => {
                *current = Some(translation);
                Ok(DOMAIN)
            }
        }
    }

    pub(super) fn close(&self, domain: DomainId) -> Result<(), AttachError> {
        self.translation().take().map(drop).ok_or(AttachError::NoSuchDomain(domain))
    }

    pub(super) fn tables(&self) -> Option<Tables> {
        self.translation().map(Tables)
    }
}

/// Counts submissions, and does nothing else with them.
#[derive(Debug)]
pub struct Empty {
    coherent: bool,
    domain: OneDomain,
}

impl Empty {
    pub(super) fn new(coherent: bool) -> Self {
        Self { coherent, domain: OneDomain::default() }
    }
}

/// Writes submissions to a ring.
pub struct Queued {
    domain: OneDomain,
    /// The ring's fields other than the page of descriptors share the lock's line.
    ring: Padded<SpinLock<Ring>>,
}

/// Descriptors of a ring: a page of them, as in a driver.
const SLOTS: usize = 256;

/// The page of descriptors.
#[repr(align(4096))]
struct Descriptors([[AtomicU64; 2]; SLOTS]);

/// The ring, and its next position. It is never read by hardware, so it is never full.
struct Ring {
    descriptors: Box<Descriptors>,
    /// The status for waits.
    status: u32,
    /// Descriptors written in total.
    written: usize,
    /// In place of the tail register of a driver.
    tail: AtomicU64,
}

impl Queued {
    pub(super) fn new(platform: &Native<true>) -> Self {
        let ring = Ring {
            descriptors: Box::new(Descriptors([const { [const { AtomicU64::new(0) }; 2] }; SLOTS])),
            status: 0,
            written: 0,
            tail: AtomicU64::new(0),
        };
        Self { domain: OneDomain::default(), ring: Padded(platform.lock(LockClass::InvalidationQueue, ring)) }
    }

    /// Descriptors written so far.
    pub(super) fn written(&self) -> usize {
        self.ring.0.with(|ring| ring.written)
    }

    /// The descriptors written since `then`, oldest first. `None` if the ring has wrapped since.
    pub(super) fn since(&self, then: usize) -> Option<Vec<[u64; 2]>> {
        let words = |slot: &[AtomicU64; 2]| [0, 1].map(|half: usize| slot[half].load(Ordering::Relaxed));
        self.ring.0.with(|ring| {
            let new = ring.written - then;
            (new <= SLOTS).then(|| (then..ring.written).map(|slot| words(&ring.descriptors.0[slot % SLOTS])).collect())
        })
    }
}

impl Ring {
    #[inline(always)]
    fn push(&mut self, descriptor: InvalidationDescriptor) {
        // The descriptor is written by words, as a driver writes it for hardware. A single store would first have to
        // combine the halves.
        let [low, high] = descriptor.encode();
        let slot = &self.descriptors.0[self.written % SLOTS];
        slot[1].store(high, Ordering::Relaxed);
        slot[0].store(low, Ordering::Relaxed);
        self.written += 1;
    }
}

fn descriptor(command: Invalidation) -> InvalidationDescriptor {
    let scope = match command {
        Invalidation::Pages { domain, first, mask, leaf_only } => IotlbScope::Pages { domain, first, mask, leaf_only },
        Invalidation::Domain(domain) => IotlbScope::Domain(domain),
        Invalidation::Global => IotlbScope::Global,
    };
    InvalidationDescriptor::Iotlb { scope, drain_writes: true, drain_reads: true }
}

// SAFETY: it has no devices, so no device reaches any memory.
unsafe impl Iommu for Empty {
    type Ticket = ();

    fn capabilities(&self) -> Capabilities {
        Capabilities { coherent: self.coherent, ..Capabilities::COMPLETE }
    }

    unsafe fn open_domain(&self, translation: Translation) -> Result<DomainId, AttachError> {
        self.domain.open(translation)
    }

    unsafe fn close_domain(&self, domain: DomainId) -> Result<(), AttachError> {
        self.domain.close(domain)
    }

    fn attach(&self, _domain: DomainId, _device: SourceId) -> Result<(), AttachError> {
        Err(AttachError::Unsupported)
    }

    fn detach(&self, _domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        Err(AttachError::NotAttached(device))
    }

    #[inline]
    fn submit(&self, commands: &[Invalidation]) -> Result<(), QueueError> {
        for command in commands {
            // Forces the commands to be written, as for a call of a function.
            black_box(*command);
        }
        count_submission();
        Ok(())
    }

    #[inline]
    fn try_submit_shared(&self, commands: &[Invalidation]) -> Result<Option<()>, QueueError> {
        self.submit(commands).map(Some)
    }

    #[inline]
    fn is_done(&self, (): ()) -> Result<bool, QueueError> {
        Ok(true)
    }
}

// SAFETY: as for `Empty`.
unsafe impl Iommu for Queued {
    type Ticket = ();

    fn capabilities(&self) -> Capabilities {
        Capabilities::COMPLETE
    }

    unsafe fn open_domain(&self, translation: Translation) -> Result<DomainId, AttachError> {
        self.domain.open(translation)
    }

    unsafe fn close_domain(&self, domain: DomainId) -> Result<(), AttachError> {
        self.domain.close(domain)
    }

    fn attach(&self, _domain: DomainId, _device: SourceId) -> Result<(), AttachError> {
        Err(AttachError::Unsupported)
    }

    fn detach(&self, _domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        Err(AttachError::NotAttached(device))
    }

    #[inline]
    fn submit(&self, commands: &[Invalidation]) -> Result<(), QueueError> {
        count_submission();
        self.ring.0.with(|ring| {
            for command in commands {
                ring.push(descriptor(*command));
            }
            let address = PhysAddr::new((&raw const ring.status).addr() as u64);
            let status = Some(StatusWrite { address, data: ring.written as u32 });
            ring.push(InvalidationDescriptor::Wait {
                status,
                interrupt: false,
                fence: false,
                drain_page_requests: false,
            });
            // Release: hardware would read the descriptors after it has seen the tail.
            ring.tail.store((ring.written % SLOTS) as u64 * DESCRIPTOR_BYTES, Ordering::Release);
        });
        Ok(())
    }

    #[inline]
    fn try_submit_shared(&self, commands: &[Invalidation]) -> Result<Option<()>, QueueError> {
        self.submit(commands).map(Some)
    }

    #[inline]
    fn is_done(&self, (): ()) -> Result<bool, QueueError> {
        Ok(true)
    }
}

impl Watched for Empty {
    fn tables(&self) -> Option<Tables> {
        self.domain.tables()
    }
}

impl Watched for Queued {
    fn tables(&self) -> Option<Tables> {
        self.domain.tables()
    }
}
