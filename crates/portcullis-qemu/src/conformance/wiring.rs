//! The connection between the driver and a rig: platform, registers, IOMMU. It changes nothing, unless a test alters
//! it to see that the suite notices.

use super::rig::{MEMORY_END, Rig};
use portcullis::iommu::{AttachError, Capabilities, Invalidation, Iommu, SourceId, Translation};
use portcullis::platform::{Context, CpuHint, Lock, LockClass, Platform, Unreadable, Wait, WordLines};
use portcullis::table::{Entry, Frame};
use portcullis::{Access, DomainId, NoMemory, PhysAddr, QueueError};
use portcullis_vtd::spec::descriptors::InvalidationDescriptor;
use portcullis_vtd::spec::registers::{IQA, IQT, QUEUE_INDEX_SHIFT};
use portcullis_vtd::spec::tables::TABLE_ENTRIES;
use portcullis_vtd::{Mmio, Ticket, Unit};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// The points at which a test can break the driver. The default methods change nothing.
pub trait Wiring: Send + Sync {
    /// Receives a descriptor that the driver hands to the hardware, and returns the one that the hardware gets.
    fn descriptor(&self, descriptor: InvalidationDescriptor) -> InvalidationDescriptor {
        descriptor
    }

    /// Receives the driver's answer about a submission, and returns the answer that its caller gets.
    fn is_done(&self, done: bool) -> bool {
        done
    }

    /// Returns whether a flush makes these entries visible to a page walker that does not snoop.
    fn reaches_walker(&self, _entries: &[Entry]) -> bool {
        true
    }

    /// Receives the access that a map requests, and returns the access that the domain gets.
    fn access(&self, access: Access) -> Access {
        access
    }
}

/// Wiring that leaves the driver unchanged.
pub struct Straight;

impl Wiring for Straight {}

/// The means of a check to change the queue and to observe it.
#[derive(Default)]
pub(super) struct QueueTap {
    /// New tails do not reach the unit, and the clock runs fast.
    pub(super) stalled: AtomicBool,
    /// A reserved bit is set in the next IOTLB descriptor.
    pub(super) spoils_next: AtomicBool,
    /// The descriptors that were handed over, as the driver wrote them.
    log: Mutex<Vec<InvalidationDescriptor>>,
    base: AtomicU64,
    tail: AtomicU64,
    /// The number of writes to the tail register.
    pub(super) tails: AtomicU64,
    /// How far the clock is ahead of the rig's clock, in microseconds.
    pub(super) skipped_us: AtomicU64,
}

impl QueueTap {
    /// The descriptors handed over since the last call, without waits.
    pub(super) fn commands(&self) -> Vec<InvalidationDescriptor> {
        let log = core::mem::take(&mut *self.log.lock().unwrap_or_else(PoisonError::into_inner));
        log.into_iter().filter(|descriptor| !matches!(descriptor, InvalidationDescriptor::Wait { .. })).collect()
    }
}

/// A rig and its wiring: the host of the design under test.
#[derive(Clone)]
pub struct Wired {
    pub(super) rig: Arc<dyn Rig>,
    pub(super) wiring: Arc<dyn Wiring>,
    pub(super) tap: Arc<QueueTap>,
}

impl Wired {
    pub(super) fn new(rig: Arc<dyn Rig>, wiring: Arc<dyn Wiring>) -> Self {
        Self { rig, wiring, tap: Arc::default() }
    }

    /// Passes the descriptors from the old tail to the new one through the wiring. The driver's queue has one page.
    fn hand_over(&self, tail: u64) {
        let slots = TABLE_ENTRIES as u64;
        let begin = self.tap.tail.swap(tail, Ordering::Relaxed) >> QUEUE_INDEX_SHIFT;
        let end = tail >> QUEUE_INDEX_SHIFT;
        let frame = self.rig.frame(PhysAddr::new(self.tap.base.load(Ordering::Relaxed)));
        let mut log = self.tap.log.lock().unwrap_or_else(PoisonError::into_inner);
        for step in 0..(end + slots - begin) % slots {
            let slot = 2 * ((begin + step) % slots) as usize;
            let words = [frame[slot].load_bits(), frame[slot + 1].load_bits()];
            let Ok(descriptor) = InvalidationDescriptor::decode(words) else { continue };
            log.push(descriptor);
            let [mut low, high] = self.wiring.descriptor(descriptor).encode();
            let is_iotlb = matches!(descriptor, InvalidationDescriptor::Iotlb { .. });
            if is_iotlb && self.tap.spoils_next.swap(false, Ordering::Relaxed) {
                low |= 1 << 12;
            }
            frame[slot].store_bits(low);
            frame[slot + 1].store_bits(high);
        }
    }
}

// SAFETY: these are the registers of one unit, at every call. The unit's devices reach only the memory of the rig,
// which holds no Rust objects.
unsafe impl Mmio for Wired {
    fn read32(&self, offset: u32) -> u32 {
        self.rig.read32(offset)
    }

    fn read64(&self, offset: u32) -> u64 {
        self.rig.read64(offset)
    }

    unsafe fn write32(&self, offset: u32, value: u32) {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.rig.write32(offset, value) };
    }

    unsafe fn write64(&self, offset: u32, value: u64) {
        match offset {
            IQA => {
                self.tap.base.store(value, Ordering::Relaxed);
                self.tap.tail.store(0, Ordering::Relaxed);
            }
            IQT if self.tap.base.load(Ordering::Relaxed) != 0 => {
                self.tap.tails.fetch_add(1, Ordering::Relaxed);
                self.hand_over(value);
                if self.tap.stalled.load(Ordering::Relaxed) {
                    return;
                }
            }
            _ => {}
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.rig.write64(offset, value) };
    }
}

/// A lock of [`Wired`].
pub struct RigLock<T>(Mutex<T>);

impl<T: Send> Lock<T> for RigLock<T> {
    fn with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R {
        critical(&mut self.0.lock().expect("no panic while it was held"))
    }

    fn try_with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> Option<R> {
        match self.0.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            taken => Some(critical(&mut taken.expect("no panic while it was held"))),
        }
    }
}

#[allow(unsafe_code, reason = "the contract of table pages")]
// SAFETY: rigs hand a page out to one caller at a time, zeroed, and keep their memory for as long as they live.
unsafe impl Platform for Wired {
    type Lock<T: Send> = RigLock<T>;
    type CpuWords = WordLines;

    fn lock<T: Send>(&self, _class: LockClass, value: T) -> RigLock<T> {
        RigLock(Mutex::new(value))
    }

    fn cpu(&self) -> CpuHint {
        CpuHint(0)
    }

    fn cpus(&self) -> u32 {
        1
    }

    fn allocate_frame(&self, _context: Context) -> Result<PhysAddr, NoMemory> {
        self.rig.allocate()
    }

    unsafe fn frame(&self, frame: PhysAddr) -> &Frame {
        self.rig.frame(frame)
    }

    unsafe fn free_frame(&self, frame: PhysAddr) {
        self.rig.free(frame);
    }

    fn read_foreign(&self, at: PhysAddr, words: &mut [u64]) -> Result<(), Unreadable> {
        let end = at.as_u64().checked_add(words.len() as u64 * 8);
        end.filter(|end| *end <= MEMORY_END).ok_or(Unreadable)?;
        for (address, word) in (at.as_u64()..).step_by(8).zip(words) {
            let mut bytes = [0; 8];
            self.rig.load(PhysAddr::new(address), &mut bytes);
            *word = u64::from_le_bytes(bytes);
        }
        Ok(())
    }

    fn table_barrier(&self, entries: &[Entry], coherent: bool) {
        if !coherent && self.wiring.reaches_walker(entries) {
            self.rig.flush(entries);
        }
    }

    fn cpu_words(&self, value: u64) -> Result<WordLines, NoMemory> {
        WordLines::new(self, value)
    }

    fn now_us(&self) -> u64 {
        self.rig.now_us() + self.tap.skipped_us.load(Ordering::Relaxed)
    }

    fn pause(&self, _wait: Wait) {
        if self.tap.stalled.load(Ordering::Relaxed) {
            // The unit will not answer. Advancing the clock ends the wait without waiting a full second.
            self.tap.skipped_us.fetch_add(10_000, Ordering::Relaxed);
        }
        self.rig.pause();
    }
}

/// The driver as domains see it: the IOMMU of the design under test.
#[derive(Clone)]
pub struct WiredUnit {
    pub(super) unit: Arc<Unit<Wired, Wired>>,
    pub(super) wiring: Arc<dyn Wiring>,
}

// SAFETY: this is a unit of the driver. What a test alters reaches only the memory of the rig.
unsafe impl Iommu for WiredUnit {
    type Ticket = Ticket;

    fn capabilities(&self) -> Capabilities {
        self.unit.capabilities()
    }

    unsafe fn open_domain(&self, translation: Translation) -> Result<DomainId, AttachError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.unit.open_domain(translation) }
    }

    unsafe fn close_domain(&self, domain: DomainId) -> Result<(), AttachError> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.unit.close_domain(domain) }
    }

    fn attach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        self.unit.attach(domain, device)
    }

    fn detach(&self, domain: DomainId, device: SourceId) -> Result<(), AttachError> {
        self.unit.detach(domain, device)
    }

    fn submit(&self, commands: &[Invalidation]) -> Result<Ticket, QueueError> {
        self.unit.submit(commands)
    }

    fn is_done(&self, ticket: Ticket) -> Result<bool, QueueError> {
        self.unit.is_done(ticket).map(|done| self.wiring.is_done(done))
    }
}
