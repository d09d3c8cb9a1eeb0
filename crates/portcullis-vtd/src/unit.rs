//! One remapping unit: bring-up, take-over, halt and resume, shutdown.

use crate::attachments::Attachments;
use crate::hardware::{Hardware, RegisterError};
use crate::inherit::{InheritanceError, inherit};
use crate::page::{Page, Stopped};
use crate::queue::{Discipline, Queue, QueueUse};
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

/// Settings that the registers do not provide.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnitConfig {
    /// Width of the host's physical addresses, in bits.
    pub physical_bits: u8,
    /// How long a register or the invalidation queue may take, in microseconds.
    pub wait_us_max: u64,
    /// Whether page-selective invalidations carry the invalidation hint that only leaves have changed. Without the
    /// hint, each of them also drops the cached table pointers, as Linux did before October 2025. That is as safe,
    /// but slower.
    pub leaf_only_hint: bool,
    /// If so many commits or more share a submission, one invalidation that covers all their pages replaces theirs, if
    /// all are page-selective and for leaves only, in one domain, and within one block that the unit can name
    /// (CAP.MAMV: of 1 GiB mostly). It also drops the cached leaves of other pages in that block. A submission has at
    /// most 64 commands. `None`: never. A hypervisor that has to look for what has changed (CAP.CM) would look at the
    /// whole block, so a unit with that flag never does this. Under [`Discipline::Linux`] commits share no submission.
    pub merge_min: Option<u8>,
    /// The PCI segment of the devices behind the unit: [`Drhd::segment`](crate::dmar::Drhd::segment). The unit itself
    /// sees requester ids only. `attach` refuses a device of another segment
    /// ([`OtherSegment`](portcullis::iommu::AttachError::OtherSegment)).
    pub segment: u16,
    /// How commits use the invalidation queue.
    pub discipline: Discipline,
    /// Whether the chipset has a write buffer that the unit does not report (CAP.RWBF): see
    /// [`Chipset::flushes_writes`](crate::chipset::Chipset::flushes_writes).
    pub flushes_writes: bool,
}

impl Default for UnitConfig {
    /// Physical addresses of 52 bits (the widest that a table entry holds), 100 ms, the hint, no merging, segment 0,
    /// and a queue by combining.
    fn default() -> Self {
        Self {
            physical_bits: 52,
            wait_us_max: 100_000,
            leaf_only_hint: true,
            merge_min: None,
            segment: 0,
            discipline: Discipline::Combining,
            flushes_writes: false,
        }
    }
}

/// Why a unit was not brought up. Translation that was on before stays on. Pages whose addresses the hardware may
/// have been given stay out of use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum BringUpError {
    /// The registers read all ones: the unit, or the way to it, is gone, or there never was one.
    #[error("no VT-d unit answers: its registers read all ones")]
    Gone,
    /// The registers do not read like those of a VT-d unit.
    #[error("no VT-d unit answers: version {version:#x}, capabilities {capability:#x} and {extended:#x}")]
    NoUnit {
        /// The version register.
        version: u32,
        /// The capability register.
        capability: u64,
        /// The extended capability register.
        extended: u64,
    },
    /// The unit has no queued invalidation.
    #[error("the VT-d unit has no invalidation queue")]
    NoInvalidationQueue,
    /// The unit supports neither 3-level nor 4-level tables.
    #[error("the VT-d unit has no tables of 3 or 4 levels (SAGAW {0:#07b})")]
    NoTableFormat(u8),
    /// The width of domain ids has the reserved value.
    #[error("the VT-d unit reports an invalid width of domain ids")]
    DomainIds,
    /// The fault recording registers overlap other registers.
    #[error("the VT-d unit reports fault recording registers at {0:#x}, where other registers are")]
    FaultRecords(u32),
    /// The unit has registers beyond the block that it was given: see [`Mmio::bytes`]. More of it has to be mapped.
    #[error("the VT-d unit has registers up to {needed:#x}, and {bytes:#x} bytes of them are mapped")]
    Block {
        /// The bytes that have to be mapped.
        needed: u32,
        /// The bytes that are mapped.
        bytes: u32,
    },
    /// The unit is on, and the policy does not allow taking it over: another driver uses it, or its last driver left
    /// it on. See [`TakeOver`].
    #[error("the VT-d unit is in use (status {status:#x}), and the policy does not allow taking it over")]
    InUse {
        /// The global status register.
        status: u32,
    },
    /// Interrupt remapping is on. The invalidation queue belongs to the driver that remaps interrupts, even while it is
    /// off: without it, that driver cannot change an entry.
    #[error("the VT-d unit remaps interrupts for another owner of its invalidation queue")]
    RemapsInterrupts,
    /// A register did not reach the requested state, or the unit has gone in the meantime.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The first invalidation failed, or an earlier panic left the queue unusable.
    #[error("the first invalidation failed: {0}")]
    Queue(#[from] QueueError),
    /// No memory for the tables.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// Another call is bringing the unit up or resuming it, or has halted it in the meantime.
    #[error("the VT-d unit is being brought up, resumed or halted by another call")]
    Changing,
    /// The unit translates, and this driver cannot continue with the tables that the previous owner left.
    #[error(transparent)]
    Inheritance(#[from] InheritanceError),
    /// A device that was to be attached during bring-up was refused.
    #[error("a device could not be attached during bring-up: {0}")]
    Admission(#[from] AttachError),
}

/// The previous owners from which [`Unit::take_over`] takes a unit that is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TakeOver {
    /// The unit must be off.
    Never,
    /// From firmware, which may have left translation on. If the invalidation queue is on, an operating system uses
    /// the unit, and the unit is refused.
    Firmware,
    /// From any owner. A kernel that was started by a crashed kernel needs this.
    Always,
}

impl TakeOver {
    /// The bits of the global status that make this policy refuse a unit.
    const fn refused(self) -> u32 {
        match self {
            Self::Never => global::TRANSLATION | global::QUEUED_INVALIDATION,
            Self::Firmware => global::QUEUED_INVALIDATION,
            Self::Always => 0,
        }
    }
}

/// One remapping unit that translates.
///
/// A device that is attached to no domain reaches no memory, unless it is [inherited](Unit::take_over). Dropping or
/// forgetting the unit leaves translation on: the unit goes on translating through its tables, whose pages stay out
/// of use for good. Only [`shut_down`](Unit::shut_down) turns translation off.
pub struct Unit<M: Mmio, P: Platform> {
    pub(crate) hardware: Hardware<M, P>,
    pub(crate) capability: Capability,
    pub(crate) extended: ExtendedCapability,
    pub(crate) physical_bits: u8,
    pub(crate) leaf_only_hint: bool,
    pub(crate) segment: u16,
    /// What takes the leaves of a page out, where the unit has such commands.
    pub(crate) one_page: Option<OnePage>,
    pub(crate) queue: Queue<P>,
    pub(crate) attachments: Unbroken<P::Lock<Attachments>>,
    /// A root table with no entry, for [`shut_out_all`](Self::shut_out_all).
    nothing: Page,
    /// Whether the unit was told to use that table.
    is_shut: AtomicBool,
    /// Makes reading and clearing a fault record one step.
    pub(crate) fault_records: P::Lock<()>,
    /// Whether the unit was brought up and no call is resuming it.
    is_up: AtomicBool,
    /// Whether the unit was halted since a call began to resume it.
    is_halted: AtomicBool,
}

impl<M: Mmio, P: Platform> Unit<M, P> {
    /// Takes a unit that is off and turns its translation on with every device shut out.
    ///
    /// # Errors
    /// [`BringUpError`]; [`BringUpError::InUse`] if the unit is on. A unit that is refused before the driver has
    /// written to it keeps its state.
    pub fn bring_up(mmio: M, platform: P, config: UnitConfig) -> Result<Self, BringUpError> {
        Self::bring_up_with(mmio, platform, config, |_| Ok(()))
    }

    /// Does what [`bring_up`](Unit::bring_up) does, but does not shut out the devices that `admit` attaches. These
    /// devices are never shut out, because `admit` runs before the hardware sees the tables. `admit` must not unmap,
    /// because the unit accepts no invalidations yet.
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

    /// Takes over a unit that is on, if `from` allows it: from firmware, from another kernel, or from a [`Unit`] that
    /// was dropped, which needs [`TakeOver::Always`]. Translation is on afterwards. If it was on before, it is never
    /// off in between.
    ///
    /// If translation was on, the devices of the previous owner are *inherited*: they keep their old domain ids and
    /// the second-level tables of that owner. So DMA in flight lands where that owner directed it, and nowhere else.
    /// [`inherited_devices`](Unit::inherited_devices) lists these devices. The caller should reset each of them and
    /// then [release](Unit::release_inherited) it. Until then, [`attach`](portcullis::Iommu::attach) refuses the
    /// device with [`AttachError::Inherited`], in `admit` too. `admit` may release an inherited device first and then
    /// attach it; that device changes from the old tables to the new ones in one step. The ids of inherited domains
    /// are not used again. All other devices are shut out, except those that `admit` [attaches](Unit::bring_up_with).
    ///
    /// # Errors
    /// [`BringUpError`]; [`BringUpError::InUse`] if `from` does not allow taking the unit,
    /// [`BringUpError::Inheritance`] if the driver cannot continue with what the previous owner left. After either of
    /// them, and after [`BringUpError::NoMemory`] and [`BringUpError::Admission`], the unit was not touched.
    /// Translation that was on stays on, and may still serve the devices of that owner.
    ///
    /// # Safety
    /// The unit must have no other driver any more. Such a driver would wait for invalidations that are never made.
    /// The tables of the previous owner, and the memory to which they lead, must be left to the inherited devices
    /// until these are released. An inherited device that is passed through reaches all memory until then.
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
        let shown = unit.take_faults_over(&identity).map_err(BringUpError::from).and_then(|()| unit.show());
        if let Err(error) = shown {
            // With translation on, the hardware may use our root table by now, so the pages stay out of use. With
            // translation off, they are ours again once the queue is off too.
            if halt_queue(&unit.hardware).is_ok()
                && let Some(stopped) = seen_stopped(&unit.hardware)
            {
                unit.release(&stopped);
            }
            return Err(error);
        }
        // If this fails, translation may be on, or may come on later, so the pages stay out of use.
        unit.translate()?;
        *unit.is_up.get_mut() = true;
        Ok(unit)
    }

    /// Allocates the tables and the queue, and copies the context entries of the previous owner. Gives the unit no
    /// command.
    // A separate function, so that its stack frame is gone when the unit gets its commands.
    #[inline(never)]
    fn prepare(hardware: Hardware<M, P>, identity: &Identity, config: UnitConfig) -> Result<Self, BringUpError> {
        let Identity { capability, extended, domain_id_bits, status } = *identity;
        let capability = capability.with_rwbf(capability.rwbf() || config.flushes_writes);
        let platform = &hardware.platform;
        let one_page =
            capability.psi().then(|| OnePage::new(config.leaf_only_hint, capability.dwd(), capability.drd()));
        let merge_min = config.merge_min.filter(|_| !capability.cm());
        let mut queue = Queue::new(platform, one_page, merge_min, capability.mamv(), config.discipline)?;
        let [root, descriptors, statuses, mut nothing] =
            Page::allocate_all(Walker::new(platform, extended.coherent()))?;
        queue.set_pages(descriptors, statuses);
        let mut attachments = Attachments::new(DeviceTables::new(root), domain_id_bits);
        if status & global::TRANSLATION != 0
            && let Err(error) = inherit(&hardware, capability, extended, config.segment, &mut attachments)
        {
            let stopped = Stopped::never_told();
            attachments.tables.release(platform, &stopped);
            queue.release(platform, &stopped);
            nothing.release(platform, &stopped);
            return Err(error);
        }
        Ok(Self {
            nothing,
            is_shut: AtomicBool::new(false),
            capability,
            extended,
            physical_bits: config.physical_bits,
            leaf_only_hint: config.leaf_only_hint,
            segment: config.segment,
            one_page,
            queue,
            attachments: Unbroken::new(platform.lock(LockClass::Attachment, attachments)),
            fault_records: platform.lock(LockClass::Attachment, ()),
            is_up: AtomicBool::new(false),
            is_halted: AtomicBool::new(false),
            hardware,
        })
    }

    /// Drops the faults of the previous owner. Firmware may have had them written to a log in memory, where this driver
    /// would not see its own.
    fn take_faults_over(&self, identity: &Identity) -> Result<(), RegisterError> {
        if identity.status & global::ADVANCED_FAULTS != 0 {
            self.hardware.disable(global::ADVANCED_FAULTS)?;
        }
        self.faults(&mut |_| {}).map(drop)
    }

    /// Gives the unit its root table and a queue. If translation is already on, the unit uses that table when this
    /// returns.
    fn show(&self) -> Result<(), BringUpError> {
        let hardware = &self.hardware;
        // Faults are polled, so no interrupt is wanted.
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
        // Setting the root table drops nothing that was cached before (§6.6). The context cache goes first, because a
        // stale context could otherwise fill the IOTLB again.
        self.invalidate(&[InvalidationDescriptor::ContextCache(ContextScope::Global), self.iotlb(IotlbScope::Global)])?;
        Ok(())
    }

    fn translate(&self) -> Result<(), BringUpError> {
        let hardware = &self.hardware;
        hardware.keep_translating(true);
        hardware.enable(global::TRANSLATION)?;
        if self.capability.plmr() || self.capability.phmr() {
            // Firmware may have protected regions while nothing translated. No domain could reach them if they stayed
            // protected.
            let protection = hardware.read32(PMEN);
            if protection & protected_memory::ENABLED != 0 {
                hardware.write32(PMEN, protection & !protected_memory::ENABLE);
                hardware.settle(PMEN, protected_memory::ENABLED, 0)?;
            }
        }
        Ok(())
    }

    /// Turns the invalidation queue off, for a suspend, a reboot or another kernel, and leaves translation on:
    /// devices keep the access that they have, and gain none. The driver uses no interrupts. This takes no lock, and
    /// waits for the hardware at most twice for [`UnitConfig::wait_us_max`]. So it may be called with interrupts off,
    /// and while CPUs that hold locks are stopped.
    ///
    /// Callers must not map, unmap, commit, tick, attach or detach until the unit has [resumed](Unit::resume). An
    /// invalidation that they submit in the meantime fails with [`QueueError::Halted`], which poisons its domain
    /// (S11). An invalidation that is still in the queue fails when the unit resumes, or times out before that. One
    /// that its CPU has only posted is made once the unit has resumed.
    ///
    /// # Errors
    /// [`RegisterError`] if the queue does not stop, or the unit is gone.
    pub fn halt(&self) -> Result<(), RegisterError> {
        // SeqCst, as in `resume_alone`: either its last load sees this store, or `halt_queue` sees its queue on.
        self.is_halted.store(true, Ordering::SeqCst);
        self.queue.close();
        halt_queue(&self.hardware)
    }

    /// [Halts](Unit::halt) a unit, and turns its translation off for the next kernel of the machine, which does not
    /// expect it. The pages of the unit stay in use. Takes no lock.
    ///
    /// # Errors
    /// [`RegisterError`] if the queue does not stop, if translation does not read as off after that, or if the unit is
    /// gone.
    ///
    /// # Safety
    /// As for [`shut_down`](Unit::shut_down).
    pub unsafe fn halt_open(&self) -> Result<(), RegisterError> {
        self.halt()?;
        self.hardware.keep_translating(false);
        self.hardware.disable(global::TRANSLATION)
    }

    /// Brings back a unit that was [halted](Unit::halt) and may have lost power since: restores registers, tables,
    /// queue and translation. Call it before devices can do DMA again, with interrupts on or off. A unit that was not
    /// halted is halted first. This takes locks, so no CPU that holds one may be stopped.
    ///
    /// # Errors
    /// [`BringUpError`]. [`BringUpError::Changing`] means that another call is resuming the unit, or that the unit
    /// was halted in the meantime. If this call has begun to resume the unit and fails, the queue accepts no
    /// submissions.
    pub fn resume(&self) -> Result<(), BringUpError> {
        // Acquire and Release: the next call sees everything that the last one wrote.
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
        self.is_shut.store(false, Ordering::Relaxed);
        self.queue.close();
        let Identity { status, .. } = identify(hardware)?;
        if status & global::TRANSLATION == 0 {
            // Power was lost. Translation comes on with the last command, after the tables are in place.
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

    /// Shuts every device behind the unit out, without the invalidation queue: the last resort of a host whose queue
    /// does not answer and whose device still reaches memory that it has lost (S11). The unit gets a root table with no
    /// entry, and translation stays on. Takes no lock, and waits for the hardware at most for
    /// [`UnitConfig::wait_us_max`]. Does nothing if it has succeeded before, or while another call is at it. Only
    /// [`resume`](Unit::resume), on a queue that answers again, brings the devices back.
    ///
    /// A unit drops what it has cached when it gets a root table if its `ESRTPS` capability says so (§6.6). Another
    /// unit may go on using cached translations.
    ///
    /// It must not run at the same time as [`halt`](Unit::halt), [`resume`](Unit::resume) or bring-up, which also give
    /// the unit commands.
    ///
    /// # Errors
    /// [`RegisterError`] if the unit does not take the table, or is gone.
    pub fn shut_out_all(&self) -> Result<(), RegisterError> {
        // Relaxed: it only keeps two calls from giving the same command at the same time.
        if self.is_shut.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        self.hardware.write64(RTADDR, self.nothing.phys().as_u64());
        let taken = self.hardware.enable(global::ROOT_TABLE);
        self.is_shut.store(taken.is_ok(), Ordering::Relaxed);
        taken
    }

    /// Turns translation off and gives the tables back. The tables of a previous owner, which inherited devices use,
    /// stay with that owner.
    ///
    /// # Errors
    /// [`RegisterError`] if the unit does not stop, or is gone. Its pages then stay out of use for good (S4).
    ///
    /// # Safety
    /// From then on, every device behind the unit reaches all memory. The caller must make sure that this does no
    /// harm: there is no such device, or none does DMA.
    pub unsafe fn shut_down(mut self) -> Result<(), RegisterError> {
        let hardware = &self.hardware;
        hardware.keep_translating(false);
        if hardware.read32(GSTS) & global::TRANSLATION != 0 {
            hardware.disable(global::TRANSLATION)?;
        }
        halt_queue(hardware)?;
        let timeout = RegisterError::Timeout { offset: GSTS, limit_us: hardware.wait_us_max };
        let stopped = seen_stopped(hardware).ok_or(timeout)?;
        self.release(&stopped);
        Ok(())
    }

    /// Gives the pages back. After a panic with the lock held they are kept, because the list of pages may be half
    /// changed.
    fn release(&mut self, stopped: &Stopped) {
        let platform = &self.hardware.platform;
        if let Ok(mut tables) = self.attachments.with(|attachments| attachments.tables.take()) {
            tables.release(platform, stopped);
            self.queue.release(platform, stopped);
            self.nothing.release(platform, stopped);
        }
    }

    /// The capability register, with the write buffer of [`UnitConfig::flushes_writes`].
    pub fn capability(&self) -> Capability {
        self.capability
    }

    /// The extended capability register.
    pub fn extended_capability(&self) -> ExtendedCapability {
        self.extended
    }

    /// Width of the widest address that the unit translates, in bits. It may be narrower than the depth of the tables
    /// allows. A domain must not hand out wider addresses.
    pub fn address_bits(&self) -> u8 {
        self.capability.address_bits()
    }

    /// How often the invalidation queue was used since bring-up. Takes the lock of the queue. After a panic with the
    /// lock held the counts are not known, and zero is returned.
    pub fn queue_use(&self) -> QueueUse {
        self.queue.used()
    }

    /// The submissions that the hardware has not completed, at most [`SUBMISSIONS_MAX`](crate::SUBMISSIONS_MAX).
    /// Commits that share one count once, and those that wait for another CPU to submit them do not count. Takes the
    /// lock of the queue. After a panic with the lock held the number is not known, and zero is returned.
    pub fn submissions_in_flight(&self) -> usize {
        self.queue.in_flight(&self.hardware.platform)
    }

    /// An IOTLB invalidation that also drains the requests in flight, if the unit can. Without that, DMA that was
    /// translated before the invalidation could land after it.
    pub(crate) fn iotlb(&self, scope: IotlbScope) -> InvalidationDescriptor {
        InvalidationDescriptor::Iotlb { scope, drain_writes: self.capability.dwd(), drain_reads: self.capability.drd() }
    }

    /// Submits a few descriptors and waits for them.
    ///
    /// Context-cache and IOTLB invalidations may go together in this order, because hardware starts the second kind
    /// only after the first kind ahead of it is done (§6.5.2.11).
    pub(crate) fn invalidate(&self, descriptors: &[InvalidationDescriptor]) -> Result<(), QueueError> {
        let ticket = self.queue.submit(&self.hardware, || descriptors.iter().map(|descriptor| descriptor.encode()))?;
        self.queue.wait_for(&self.hardware, ticket)
    }
}

/// What the registers tell of a unit.
struct Identity {
    capability: Capability,
    extended: ExtendedCapability,
    domain_id_bits: u8,
    /// The global status register.
    status: u32,
}

/// Reads the registers of a unit, and refuses a unit that this driver cannot drive.
fn identify<M: Mmio, P: Platform>(hardware: &Hardware<M, P>) -> Result<Identity, BringUpError> {
    let version = hardware.read32(VER);
    let capability = Capability(hardware.read64(CAP));
    let extended = ExtendedCapability(hardware.read64(ECAP));
    let status = hardware.read32(GSTS);
    // An empty bus reads as all ones.
    if version == u32::MAX || capability.0 == u64::MAX || extended.0 == u64::MAX || status == u32::MAX {
        return Err(BringUpError::Gone);
    }
    // A version has one byte, and major versions begin at one.
    if !(0x10..=0xff).contains(&version) {
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
    let (needed, bytes) = (capability.register_bytes(), hardware.bytes());
    if needed > bytes {
        return Err(BringUpError::Block { needed, bytes });
    }
    if status & global::INTERRUPT_REMAPPING != 0 {
        return Err(BringUpError::RemapsInterrupts);
    }
    Ok(Identity { capability, extended, domain_id_bits, status })
}

/// Turns the queue off if it is on.
fn halt_queue<M: Mmio, P: Platform>(hardware: &Hardware<M, P>) -> Result<(), RegisterError> {
    if hardware.read_present(GSTS)? & global::QUEUED_INVALIDATION != 0 {
        Queue::drain(hardware);
        hardware.disable(global::QUEUED_INVALIDATION)?;
    }
    Ok(())
}

/// Reads whether translation and queue are off.
fn seen_stopped<M: Mmio, P: Platform>(hardware: &Hardware<M, P>) -> Option<Stopped> {
    let running = hardware.read32(GSTS) & (global::TRANSLATION | global::QUEUED_INVALIDATION);
    (running == 0).then(Stopped::seen)
}
