//! The invalidation queue of the VT-d driver, over registers that answer at once.
//!
//! Hardware would fetch the descriptors when its tail register is written, and write the statuses of waits some time
//! later. Here both happen within the register write, so the timings include the driver but not its waits.

use super::host::Native;
use super::iommu::{OneDomain, Watched, count_submission};
use super::tables::Tables;
use portcullis::iommu::{
    AttachError, Capabilities, DomainId, Invalidation, Iommu, QueueError, SourceId, Translation, TrySubmit,
};
use portcullis_vtd::spec::descriptors::DESCRIPTOR_BYTES;
use portcullis_vtd::spec::registers::{
    CAP, Capability, ECAP, ExtendedCapability, GCMD, GSTS, IQA, IQH, IQT, VER, global, widths,
};
use portcullis_vtd::{BringUpError, Mmio, Ticket, Unit, UnitConfig};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The registers. Relaxed: the lock of the queue, or the thread that brings the unit up, orders all writes.
#[derive(Default)]
struct AtOnce {
    status: AtomicU32,
    queue: AtomicU64,
    tail: AtomicU64,
}

/// The size of the queue in bytes: a page.
const QUEUE_BYTES: u64 = 4096;
/// The type of a wait (Intel VT-d specification, §6.5.2.8).
const WAIT: u64 = 5;

impl AtOnce {
    /// Completes the waits among the descriptors up to `tail`.
    #[inline]
    fn run_queue(&self, tail: u64) {
        let (queue, mut at) = (self.queue.load(Ordering::Relaxed), self.tail.load(Ordering::Relaxed));
        while at != tail {
            let word = |at: u64| {
                // SAFETY: the driver has set this address as its queue: a page of this platform, whose address is that
                // of its memory.
                unsafe { &*((queue + at) as *const AtomicU64) }.load(Ordering::Relaxed)
            };
            // The descriptor is not decoded, because that would take longer than the driver itself. Like hardware,
            // this looks at the type; the status is in the upper half of the word, and its address in the next word.
            let low = word(at);
            if low & 0xf == WAIT {
                // SAFETY: the driver wants the status at this address, in a page of this platform.
                unsafe { &*(word(at + 8) as *const AtomicU32) }.store((low >> 32) as u32, Ordering::Release);
            }
            at = (at + DESCRIPTOR_BYTES) % QUEUE_BYTES;
        }
        self.tail.store(tail, Ordering::Relaxed);
    }
}

// SAFETY: it has no devices, so no device reaches any memory.
unsafe impl Mmio for AtOnce {
    fn read32(&self, offset: u32) -> u32 {
        match offset {
            VER => 0x10,
            GSTS => self.status.load(Ordering::Relaxed),
            // No fault, and no protected memory.
            _ => 0,
        }
    }

    fn read64(&self, offset: u32) -> u64 {
        match offset {
            CAP => {
                let widths = widths::LEVELS_3 | widths::LEVELS_4;
                Capability(0)
                    .with_nd(6)
                    .with_sagaw(widths)
                    .with_mgaw(47)
                    .with_fro(0x20)
                    .with_sllps(3)
                    .with_mamv(18)
                    .with_psi(true)
                    .0
            }
            ECAP => ExtendedCapability(0).with_qi(true).with_coherent(true).with_pt(true).with_rings(true).0,
            IQH | IQT => self.tail.load(Ordering::Relaxed),
            _ => 0,
        }
    }

    unsafe fn write32(&self, offset: u32, value: u32) {
        if offset == GCMD {
            self.status.store(value & !global::ONE_SHOT | value & global::ROOT_TABLE, Ordering::Relaxed);
        }
    }

    #[inline]
    unsafe fn write64(&self, offset: u32, value: u64) {
        match offset {
            IQA => self.queue.store(value, Ordering::Relaxed),
            IQT => self.run_queue(value),
            _ => {}
        }
    }
}

/// The driver's unit over these registers.
pub struct Driven {
    unit: Unit<AtOnce, Native<true>>,
    domain: OneDomain,
}

impl Driven {
    /// A unit that translates.
    ///
    /// # Errors
    /// Returns a [`BringUpError`] if the unit does not come up.
    pub(super) fn new(platform: &Native<true>) -> Result<Self, BringUpError> {
        let unit = Unit::bring_up(AtOnce::default(), *platform, UnitConfig::default())?;
        Ok(Self { unit, domain: OneDomain::default() })
    }
}

// SAFETY: it forwards to a unit that keeps the promises.
unsafe impl Iommu for Driven {
    type Ticket = Ticket;

    fn capabilities(&self) -> Capabilities {
        self.unit.capabilities()
    }

    unsafe fn open_domain(&self, translation: Translation) -> Result<DomainId, AttachError> {
        let _ = self.domain.open(translation)?;
        // SAFETY: the caller keeps the contract.
        unsafe { self.unit.open_domain(translation) }
    }

    unsafe fn close_domain(&self, domain: DomainId) -> Result<(), AttachError> {
        // SAFETY: the caller keeps the contract.
        unsafe { self.unit.close_domain(domain) }?;
        self.domain.close(domain)
    }

    fn attach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        self.unit.attach(domain, device)
    }

    fn detach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        self.unit.detach(domain, device)
    }

    #[inline]
    fn submit(&self, commands: &[Invalidation]) -> Result<Ticket, QueueError> {
        count_submission();
        self.unit.submit(commands)
    }

    #[inline]
    fn submit_shared(&self, commands: &[Invalidation]) -> Result<Ticket, QueueError> {
        count_submission();
        self.unit.submit_shared(commands)
    }

    #[inline]
    fn try_submit_shared(&self, commands: &[Invalidation]) -> Result<Option<Ticket>, QueueError> {
        let ticket = self.unit.try_submit_shared(commands)?;
        if ticket.is_some() {
            count_submission();
        }
        Ok(ticket)
    }

    #[inline]
    fn try_invalidate(&self, command: Invalidation) -> Result<(), TrySubmit<Ticket>> {
        let result = self.unit.try_invalidate(command);
        if !matches!(result, Err(Ok(None) | Err(_))) {
            count_submission();
        }
        result
    }

    #[inline]
    fn is_done(&self, ticket: Ticket) -> Result<bool, QueueError> {
        self.unit.is_done(ticket)
    }
}

impl Watched for Driven {
    fn tables(&self) -> Option<Tables> {
        self.domain.tables()
    }
}
