//! One remapping unit: how it comes up and how it is shut down.

use crate::attachments::Attachments;
use crate::hardware::{Hardware, RegisterTimeout};
use crate::inherit::{InheritanceError, inherit};
use crate::page::{Page, Stopped};
use crate::queue::{Queue, QueueUse, SlotEnds};
use crate::spec::descriptors::{ContextScope, InvalidationDescriptor, IotlbScope, OnePage};
use crate::spec::faults::status;
use crate::spec::registers::{
    CAP, Capability, ECAP, ExtendedCapability, FECTL, FSTS, GSTS, IEUADDR, PMEN, RTADDR, VER, fault_event, global,
    protected_memory, widths,
};
use crate::unbroken::Unbroken;
use crate::{Mmio, tables::DeviceTables};
use core::sync::atomic::{AtomicBool, Ordering};
use portcullis::iommu::AttachError;
use portcullis::platform::LockClass;
use portcullis::table::Walker;
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

/// Why a unit was not brought up. A gate that was shut before is shut still; what the hardware may have been told of stays out of
/// use.
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
    /// The unit is on, and the policy does not allow taking it: it has a driver, or its last one left it on. See [`TakeOver`].
    #[error("the VT-d unit is in use (status {status:#x}), and the policy does not allow taking it over")]
    InUse {
        /// The global status register.
        status: u32,
    },
    /// Interrupt remapping is on, and whoever turned it on has the invalidation queue.
    #[error("the VT-d unit remaps interrupts for another owner of its invalidation queue")]
    RemapsInterrupts,
    /// A register did not take the state that was asked for.
    #[error(transparent)]
    Register(#[from] RegisterTimeout),
    /// The first invalidation failed, or an earlier panic has left the queue unusable.
    #[error("the first invalidation failed: {0}")]
    Queue(#[from] QueueError),
    /// No memory for the tables.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// Another call brings the unit up or back, or has halted it meanwhile.
    #[error("the VT-d unit is being brought up, brought back or halted by another call")]
    Changing,
    /// The unit translates, and what its previous owner has left cannot be carried on.
    #[error(transparent)]
    Inheritance(#[from] InheritanceError),
    /// A device that was to be let in from the start was refused.
    #[error("a device could not be let in: {0}")]
    Admission(#[from] AttachError),
}

/// The owners from which [`Unit::take_over`] takes a unit that is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TakeOver {
    /// The unit has to be off.
    Never,
    /// From firmware, which may have left translation on. Where the invalidation queue is on, an operating system uses the unit.
    Firmware,
    /// From anyone, as a kernel must that was started by one that has crashed.
    Always,
}

impl TakeOver {
    /// Bits of the global status with which it takes no unit.
    const fn refused(self) -> u32 {
        match self {
            Self::Never => global::TRANSLATION | global::QUEUED_INVALIDATION,
            Self::Firmware => global::QUEUED_INVALIDATION,
            Self::Always => 0,
        }
    }
}

/// One remapping unit, translating.
///
/// A device that is attached to no domain reaches nothing, unless it is [inherited](Unit::take_over). Dropping or forgetting the unit
/// leaves the gate shut: it goes on translating as it did, through tables that stay out of use for good. Only
/// [`shut_down`](Unit::shut_down) turns it off.
pub struct Unit<M: Mmio, P: Platform> {
    pub(crate) hardware: Hardware<M, P>,
    pub(crate) capability: Capability,
    pub(crate) extended: ExtendedCapability,
    pub(crate) physical_bits: u8,
    pub(crate) leaf_only_hint: bool,
    /// What takes the leaves of a page out, where the unit has such commands.
    pub(crate) one_page: Option<OnePage>,
    pub(crate) queue: Queue<P>,
    pub(crate) attachments: Unbroken<P::Lock<Attachments>>,
    /// Reading a fault record and clearing it are one step.
    pub(crate) fault_records: P::Lock<()>,
    /// Whether it was brought up, and no call is bringing it back.
    is_up: AtomicBool,
    /// Whether it was halted since a call began to bring it back.
    is_halted: AtomicBool,
}

impl<M: Mmio, P: Platform> Unit<M, P> {
    /// Takes a unit that is off, and turns its translation on with every device shut out.
    ///
    /// # Errors
    /// [`BringUpError`], [`BringUpError::InUse`] where the unit is on. Where it was refused before it was touched, it keeps the state
    /// in which it was.
    pub fn bring_up(mmio: M, platform: P, config: UnitConfig) -> Result<Self, BringUpError> {
        Self::bring_up_with(mmio, platform, config, |_| Ok(()))
    }

    /// Does what [`bring_up`](Unit::bring_up) does, and shuts out every device but those that `admit` attaches, which are never shut out:
    /// `admit` runs before the hardware sees the tables. It must not unmap, for the unit takes no invalidations then.
    ///
    /// # Errors
    /// Those of [`bring_up`](Unit::bring_up), and [`BringUpError::Admission`].
    pub fn bring_up_with(
        mmio: M,
        platform: P,
        config: UnitConfig,
        admit: impl FnOnce(&Self) -> Result<(), AttachError>,
    ) -> Result<Self, BringUpError> {
        // SAFETY: a unit that is off has no driver.
        unsafe { Self::take_over(mmio, platform, config, TakeOver::Never, admit) }
    }

    /// Takes over a unit that is on, if `from` allows it: from firmware, from another kernel, or from a [`Unit`] that was dropped, which needs
    /// [`TakeOver::Always`]. Its translation is on afterwards, and was never off if it was on before.
    ///
    /// Where it was on, the devices of the previous owner are *inherited*: they go on under their old domain ids through the tables
    /// that lie there, so that what is in flight lands where that owner wanted it, and nowhere else.
    /// [`inherited_devices`](Unit::inherited_devices) lists them. Each is to be reset and then
    /// [released](Unit::release_inherited); until it is, [`attach`](portcullis::Iommu::attach) refuses it with
    /// [`AttachError::Inherited`], in `admit` too, which may release it first: then it changes from one owner's tables to the other's
    /// in one step. Ids of inherited domains are not used again. All other devices are shut out but those that `admit`
    /// [attaches](Unit::bring_up_with).
    ///
    /// # Errors
    /// [`BringUpError`], [`BringUpError::InUse`] where it may not be taken, [`BringUpError::Inheritance`] where it cannot go on with what
    /// the previous owner has left: the unit was not touched then, nor after [`BringUpError::NoMemory`] and
    /// [`BringUpError::Admission`]. Translation that was on stays on, and may still serve the devices of that owner.
    ///
    /// # Safety
    /// The unit has no other driver any more. One that went on would wait for invalidations that are never made. The tables of the
    /// previous owner, and the memory to which they lead, are left to the inherited devices until these are released. One that the
    /// previous owner has passed through reaches all memory until then.
    pub unsafe fn take_over(
        mmio: M,
        platform: P,
        config: UnitConfig,
        from: TakeOver,
        admit: impl FnOnce(&Self) -> Result<(), AttachError>,
    ) -> Result<Self, BringUpError> {
        let hardware = Hardware::new(mmio, platform, config.wait_us_max);
        let identity = identify(&hardware)?;
        if identity.status & from.refused() != 0 {
            return Err(BringUpError::InUse { status: identity.status });
        }
        let mut unit = Self::prepare(hardware, &identity, config)?;
        let admitted = admit(&unit).map_err(BringUpError::from);
        if let Err(error) = admitted.and_then(|()| Ok(halt_queue(&unit.hardware)?)) {
            unit.release(&Stopped::never_told());
            return Err(error);
        }
        // Faults of the previous owner are dropped.
        unit.faults(&mut |_| {});
        if let Err(error) = unit.show() {
            // With translation on, the hardware may use our root by now, so the pages stay out of use. With translation off they are
            // ours again once the queue is off, too.
            if halt_queue(&unit.hardware).is_ok()
                && let Some(stopped) = seen_stopped(&unit.hardware)
            {
                unit.release(&stopped);
            }
            return Err(error);
        }
        // Where this fails, translation may be on, or come on later: the pages stay out of use.
        unit.translate()?;
        *unit.is_up.get_mut() = true;
        Ok(unit)
    }

    /// Makes all that the driver needs, with the devices of the previous owner in it, and gives the unit no command.
    // Apart, so that what it takes of the stack is not taken when the unit gets its commands.
    #[inline(never)]
    fn prepare(hardware: Hardware<M, P>, identity: &Identity, config: UnitConfig) -> Result<Self, BringUpError> {
        let Identity { capability, extended, domain_id_bits, status } = *identity;
        let platform = &hardware.platform;
        let ends = SlotEnds::new(platform)?;
        let [root, descriptors, statuses] = Page::allocate_all(Walker::new(platform, extended.coherent()))?;
        let mut queue = Queue::new(platform, descriptors, statuses, ends);
        let mut attachments = Attachments::new(DeviceTables::new(root), domain_id_bits);
        if status & global::TRANSLATION != 0
            && let Err(error) = inherit(&hardware, capability, extended, &mut attachments)
        {
            let stopped = Stopped::never_told();
            attachments.tables.release(platform, &stopped);
            queue.release(platform, &stopped);
            return Err(error);
        }
        Ok(Self {
            capability,
            extended,
            physical_bits: config.physical_bits,
            leaf_only_hint: config.leaf_only_hint,
            one_page: capability.psi().then(|| OnePage::new(config.leaf_only_hint, capability.dwd(), capability.drd())),
            queue,
            attachments: Unbroken::new(platform.lock(LockClass::Attachment, attachments)),
            fault_records: platform.lock(LockClass::Attachment, ()),
            is_up: AtomicBool::new(false),
            is_halted: AtomicBool::new(false),
            hardware,
        })
    }

    /// Gives the unit its root table and a queue. Where translation is on already, it goes by that table when this returns.
    fn show(&self) -> Result<(), BringUpError> {
        let hardware = &self.hardware;
        // Faults are polled for.
        hardware.write32(FECTL, fault_event::MASKED);
        hardware.write32(FSTS, status::QUEUE_ERRORS);
        if self.capability.rwbf() {
            hardware.flush_write_buffer()?;
        }
        let root = self.attachments.with(|attachments| {
            attachments.is_shown = true;
            attachments.tables.root()
        })?;
        hardware.write64(RTADDR, root.as_u64());
        hardware.enable(global::ROOT_TABLE)?;
        self.queue.start(hardware)?;
        // Setting the root table drops nothing that was cached before (§6.6); contexts go first, or what they lead to could
        // be cached again.
        self.invalidate(&[InvalidationDescriptor::ContextCache(ContextScope::Global), self.iotlb(IotlbScope::Global)])?;
        Ok(())
    }

    fn translate(&self) -> Result<(), BringUpError> {
        let hardware = &self.hardware;
        hardware.keep_translating(true);
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

    /// Turns the invalidation queue off, for a suspend, a reboot or another kernel, and leaves translation on: devices reach what they
    /// reached, and no more. The driver uses no interrupts. This takes no lock, and waits for the hardware for [`UnitConfig::wait_us_max`] at
    /// most twice; so it may be called with interrupts off, and when the CPUs that hold locks have been stopped.
    ///
    /// Callers must not map, unmap, commit, tick, attach or detach until the unit has [resumed](Unit::resume). An invalidation that they
    /// submit meanwhile fails with [`QueueError::Halted`], which poisons its domain (S11). One that is still pending fails when the unit
    /// resumes, or times out before that.
    ///
    /// # Errors
    /// [`RegisterTimeout`] where the queue does not stop.
    pub fn halt(&self) -> Result<(), RegisterTimeout> {
        // SeqCst, as in `resume`: either that finds that it is halted, or this finds its queue on.
        self.is_halted.store(true, Ordering::SeqCst);
        self.queue.close();
        halt_queue(&self.hardware)
    }

    /// Brings a unit back that was [halted](Unit::halt), and may have lost power since: registers, tables, queue, translation. To be called
    /// before devices can do DMA again, with interrupts off or on. A unit that was not halted is halted first. This takes locks, so no CPU
    /// that holds one may be stopped.
    ///
    /// # Errors
    /// [`BringUpError`]. [`BringUpError::Changing`] means that another call brings the unit back, or that it was halted meanwhile. After an
    /// error of its own attempt the queue takes no submissions.
    pub fn resume(&self) -> Result<(), BringUpError> {
        // Acquire and Release: the next call sees all that the last one has written.
        if !self.is_up.swap(false, Ordering::Acquire) {
            return Err(BringUpError::Changing);
        }
        let resumed = self.resume_alone();
        if resumed.is_err() {
            self.queue.close();
        }
        self.is_up.store(true, Ordering::Release);
        resumed
    }

    fn resume_alone(&self) -> Result<(), BringUpError> {
        let hardware = &self.hardware;
        self.is_halted.store(false, Ordering::SeqCst);
        self.queue.close();
        let Identity { status, .. } = identify(hardware)?;
        if status & global::TRANSLATION == 0 {
            // Power was lost. It comes on by the last command, and not before the tables are there.
            hardware.keep_translating(false);
        }
        halt_queue(hardware)?;
        self.show()?;
        self.translate()?;
        if self.is_halted.load(Ordering::SeqCst) {
            self.queue.close();
            halt_queue(hardware)?;
            return Err(BringUpError::Changing);
        }
        Ok(())
    }

    /// Turns translation off and gives the tables back. Those of a previous owner, through which inherited devices go, are its own.
    ///
    /// # Errors
    /// [`RegisterTimeout`] where the unit does not stop; its pages then stay out of use for good (S4).
    ///
    /// # Safety
    /// All memory is meant for every device behind the unit from then on: there is none, or none does DMA.
    pub unsafe fn shut_down(mut self) -> Result<(), RegisterTimeout> {
        let hardware = &self.hardware;
        hardware.keep_translating(false);
        if hardware.read32(GSTS) & global::TRANSLATION != 0 {
            hardware.disable(global::TRANSLATION)?;
        }
        halt_queue(hardware)?;
        let timeout = RegisterTimeout { offset: GSTS, limit_us: hardware.wait_us_max };
        let stopped = seen_stopped(hardware).ok_or(timeout)?;
        self.release(&stopped);
        Ok(())
    }

    /// Gives the pages back. After a panic with the lock held they are kept: which of them there are is not known.
    fn release(&mut self, stopped: &Stopped) {
        let platform = &self.hardware.platform;
        if let Ok(mut tables) = self.attachments.with(|attachments| attachments.tables.take()) {
            tables.release(platform, stopped);
            self.queue.release(platform, stopped);
        }
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

    /// How often the invalidation queue was used since bring-up. Takes its lock. Not known, and so zero, after a panic with it held.
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
        let ticket = self.queue.submit(&self.hardware, || descriptors.iter().map(|descriptor| descriptor.encode()))?;
        self.queue.wait_for(&self.hardware, ticket)
    }
}

/// Who is there.
struct Identity {
    capability: Capability,
    extended: ExtendedCapability,
    domain_id_bits: u8,
    /// The global status register.
    status: u32,
}

/// Reads who is there, and refuses what cannot be driven.
fn identify<M: Mmio, P: Platform>(hardware: &Hardware<M, P>) -> Result<Identity, BringUpError> {
    let version = hardware.read32(VER);
    let capability = Capability(hardware.read64(CAP));
    let extended = ExtendedCapability(hardware.read64(ECAP));
    let status = hardware.read32(GSTS);
    // A version has one byte, and the major half of it began at one. All ones is what an empty bus reads.
    if !(0x10..=0xff).contains(&version) || capability.0 == u64::MAX || extended.0 == u64::MAX || status == u32::MAX {
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
    if status & foreign == foreign {
        return Err(BringUpError::RemapsInterrupts);
    }
    Ok(Identity { capability, extended, domain_id_bits, status })
}

/// Turns the queue off, where it is on.
fn halt_queue<M: Mmio, P: Platform>(hardware: &Hardware<M, P>) -> Result<(), RegisterTimeout> {
    if hardware.read32(GSTS) & global::QUEUED_INVALIDATION != 0 {
        Queue::drain(hardware);
        hardware.disable(global::QUEUED_INVALIDATION)?;
    }
    Ok(())
}

/// Looks whether translation and queue are off.
fn seen_stopped<M: Mmio, P: Platform>(hardware: &Hardware<M, P>) -> Option<Stopped> {
    let running = hardware.read32(GSTS) & (global::TRANSLATION | global::QUEUED_INVALIDATION);
    (running == 0).then(Stopped::seen)
}
