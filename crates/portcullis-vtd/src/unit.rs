//! One remapping unit: how it comes up and how it is shut down.

use crate::attach::Attachments;
use crate::hardware::{Hardware, RegisterTimeout};
use crate::page::{Page, Stopped};
use crate::queue::{Queue, QueueUse};
use crate::spec::descriptors::{ContextScope, InvalidationDescriptor, IotlbScope};
use crate::spec::faults::status;
use crate::spec::registers::{
    CAP, Capability, ECAP, ExtendedCapability, FECTL, FSTS, GSTS, IEUADDR, PMEN, RTADDR, VER, fault_event, global,
    protected_memory, widths,
};
use crate::{Mmio, tables::DeviceTables};
use portcullis::platform::{Lock, LockClass};
use portcullis::{NoMemory, Platform, QueueError};
use thiserror::Error;

/// What the registers do not tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnitConfig {
    /// Width of the host's physical addresses, in bits.
    pub physical_bits: u8,
    /// How long a register or the invalidation queue may take, in microseconds.
    pub wait_us_max: u64,
    /// Whether page-selective invalidations carry the hint that only leaves have changed. Without it every one of them drops
    /// the cached table pointers as well, as in Linux before October 2025: as safe, and slower.
    pub leaf_only_hint: bool,
}

impl Default for UnitConfig {
    /// 52 bits, all that a table entry holds; 100 ms; the hint.
    fn default() -> Self {
        Self { physical_bits: 52, wait_us_max: 100_000, leaf_only_hint: true }
    }
}

/// Why a unit was not brought up. Nothing of it is left behind, unless it did not stop again; then its pages stay out of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum BringUpError {
    /// The registers read what no unit shows.
    #[error("no VT-d unit answers: version {version:#x}, capabilities {capability:#x} and {extended:#x}")]
    NoUnit {
        /// The version register.
        version: u32,
        /// The capability register.
        capability: u64,
        /// The extended capability register.
        extended: u64,
    },
    /// No queued invalidation.
    #[error("the VT-d unit has no invalidation queue")]
    NoInvalidationQueue,
    /// No tables of 3 or 4 levels.
    #[error("the VT-d unit has no tables of 3 or 4 levels (SAGAW {0:#07b})")]
    NoTableFormat(u8),
    /// The width of domain ids has the reserved value.
    #[error("the VT-d unit shows no valid width of domain ids")]
    DomainIds,
    /// The fault recording registers overlap others.
    #[error("the VT-d unit shows its fault recording registers at {0:#x}, on top of others")]
    FaultRecords(u32),
    /// Interrupt remapping is on, and whoever turned it on has the invalidation queue.
    #[error("the VT-d unit remaps interrupts for another owner of its invalidation queue")]
    InUse,
    /// A register did not take the state that was asked for.
    #[error(transparent)]
    Register(#[from] RegisterTimeout),
    /// The first invalidation failed.
    #[error("the first invalidation failed: {0}")]
    Queue(#[from] QueueError),
    /// No memory for the tables.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
}

/// One remapping unit, translating.
///
/// A device that is attached to no domain reaches nothing. Dropping the unit shuts it down.
pub struct Unit<M: Mmio, P: Platform> {
    pub(crate) hardware: Hardware<M, P>,
    pub(crate) capability: Capability,
    pub(crate) extended: ExtendedCapability,
    pub(crate) physical_bits: u8,
    pub(crate) leaf_only_hint: bool,
    pub(crate) queue: Queue<P>,
    pub(crate) attachments: P::Lock<Attachments>,
    /// Reading a fault record and clearing it are one step.
    pub(crate) fault_records: P::Lock<()>,
    stopped: bool,
}

impl<M: Mmio, P: Platform> Unit<M, P> {
    /// Takes a unit over, in whatever state firmware left it, and turns its translation on with every device shut out.
    ///
    /// # Errors
    /// [`BringUpError`]. Where the unit was refused before it was touched, it keeps the state in which it was.
    pub fn bring_up(mmio: M, platform: P, config: UnitConfig) -> Result<Self, BringUpError> {
        let hardware = Hardware::new(mmio, platform, config.wait_us_max);
        let Identity { capability, extended, domain_id_bits } = identify(&hardware)?;
        halt(&hardware)?;
        let [root, descriptors, statuses] = Page::allocate_all(&hardware.platform)?;
        let queue = Queue::new(&hardware.platform, descriptors, statuses);
        let attachments = Attachments::new(DeviceTables::new(root), domain_id_bits);
        let unit = Self {
            capability,
            extended,
            physical_bits: config.physical_bits,
            leaf_only_hint: config.leaf_only_hint,
            queue,
            attachments: hardware.platform.lock(LockClass::Attachment, attachments),
            fault_records: hardware.platform.lock(LockClass::Attachment, ()),
            stopped: false,
            hardware,
        };
        // From here on an error drops the unit, which stops it and gives the pages back.
        unit.start()?;
        Ok(unit)
    }

    fn start(&self) -> Result<(), BringUpError> {
        let hardware = &self.hardware;
        // Faults are polled for. What was recorded for the owner before is nobody's.
        hardware.write32(FECTL, fault_event::MASKED);
        self.faults(&mut |_| {});
        hardware.write32(FSTS, status::QUEUE_ERRORS);
        if self.capability.rwbf() {
            hardware.flush_write_buffer()?;
        }
        let root = self.attachments.with(|attachments| attachments.tables.root());
        hardware.write64(RTADDR, root.as_u64());
        hardware.enable(global::ROOT_TABLE)?;
        self.queue.start(hardware)?;
        // Setting the root table drops nothing that was cached before (§6.6); contexts go first, or what they lead to could
        // be cached again.
        self.invalidate(&[InvalidationDescriptor::ContextCache(ContextScope::Global), self.iotlb(IotlbScope::Global)])?;
        hardware.enable(global::TRANSLATION)?;
        if self.capability.plmr() || self.capability.phmr() {
            // The regions that firmware protected while nothing translated would stay out of reach of every domain.
            let protection = hardware.read32(PMEN);
            if protection & protected_memory::ENABLED != 0 {
                hardware.write32(PMEN, protection & !protected_memory::ENABLE);
                hardware.settle(PMEN, protected_memory::ENABLED, 0)?;
            }
        }
        Ok(())
    }

    /// Turns translation off and gives the tables back. Every device reaches all memory from then on, as before
    /// [`bring_up`](Unit::bring_up): quiesce them first.
    ///
    /// # Errors
    /// [`RegisterTimeout`] where the unit does not stop; its pages then stay out of use for good (S4).
    pub fn shut_down(mut self) -> Result<(), RegisterTimeout> {
        self.stop()
    }

    fn stop(&mut self) -> Result<(), RegisterTimeout> {
        if core::mem::replace(&mut self.stopped, true) {
            return Ok(());
        }
        let stopped = halt(&self.hardware)?;
        let platform = &self.hardware.platform;
        self.attachments.with(|attachments| attachments.tables.release(platform, &stopped));
        self.queue.release(platform, &stopped);
        Ok(())
    }

    /// The capability register.
    pub fn capability(&self) -> Capability {
        self.capability
    }

    /// The extended capability register.
    pub fn extended_capability(&self) -> ExtendedCapability {
        self.extended
    }

    /// Width of the widest address that the unit translates, in bits. It may be narrower than the tables are deep; a domain
    /// must then hand out no wider ones.
    pub fn address_bits(&self) -> u8 {
        self.capability.address_bits()
    }

    /// How often the invalidation queue was used since bring-up. Takes its lock.
    pub fn queue_use(&self) -> QueueUse {
        self.queue.used()
    }

    /// An IOTLB invalidation that drains what is in flight, where the unit can: else DMA that was translated before the
    /// invalidation could land after it.
    pub(crate) fn iotlb(&self, scope: IotlbScope) -> InvalidationDescriptor {
        InvalidationDescriptor::Iotlb { scope, drain_writes: self.capability.dwd(), drain_reads: self.capability.drd() }
    }

    /// Submits a few descriptors and waits for them.
    ///
    /// Context-cache and IOTLB invalidations may go together, in this order: hardware starts the second kind only after the
    /// first kind ahead of it is done (§6.5.2.11).
    pub(crate) fn invalidate(&self, descriptors: &[InvalidationDescriptor]) -> Result<(), QueueError> {
        let ticket = self.queue.submit(&self.hardware, descriptors.iter().copied())?;
        self.queue.wait_for(&self.hardware, ticket)
    }
}

impl<M: Mmio, P: Platform> Drop for Unit<M, P> {
    fn drop(&mut self) {
        // Where it does not stop, the pages are leaked: nobody is left to be told, and freeing them would break S4.
        let _ = self.stop();
    }
}

/// Who is there.
struct Identity {
    capability: Capability,
    extended: ExtendedCapability,
    domain_id_bits: u8,
}

/// Reads who is there, and refuses what cannot be driven.
fn identify<M: Mmio, P: Platform>(hardware: &Hardware<M, P>) -> Result<Identity, BringUpError> {
    let version = hardware.read32(VER);
    let capability = Capability(hardware.read64(CAP));
    let extended = ExtendedCapability(hardware.read64(ECAP));
    let running = hardware.read32(GSTS);
    // A version has one byte, and the major half of it began at one. All ones is what an empty bus reads.
    if !(0x10..=0xff).contains(&version) || capability.0 == u64::MAX || extended.0 == u64::MAX || running == u32::MAX {
        return Err(BringUpError::NoUnit { version, capability: capability.0, extended: extended.0 });
    }
    if !extended.qi() {
        return Err(BringUpError::NoInvalidationQueue);
    }
    if capability.sagaw() & (widths::LEVELS_3 | widths::LEVELS_4) == 0 {
        return Err(BringUpError::NoTableFormat(capability.sagaw()));
    }
    let domain_id_bits = capability.domain_id_bits().ok_or(BringUpError::DomainIds)?;
    if capability.fault_record_offset(0) <= IEUADDR {
        return Err(BringUpError::FaultRecords(capability.fault_record_offset(0)));
    }
    let foreign = global::QUEUED_INVALIDATION | global::INTERRUPT_REMAPPING;
    if running & foreign == foreign {
        return Err(BringUpError::InUse);
    }
    Ok(Identity { capability, extended, domain_id_bits })
}

/// Turns translation and queue off, where they are on.
fn halt<M: Mmio, P: Platform>(hardware: &Hardware<M, P>) -> Result<Stopped, RegisterTimeout> {
    let running = hardware.read32(GSTS);
    if running & global::TRANSLATION != 0 {
        hardware.disable(global::TRANSLATION)?;
    }
    if running & global::QUEUED_INVALIDATION != 0 {
        Queue::drain(hardware);
        hardware.disable(global::QUEUED_INVALIDATION)?;
    }
    Ok(Stopped::seen())
}
