//! How a unit comes to this driver: off, or from firmware, from another kernel or beside another driver.

use crate::attachments::Attachments;
use crate::closable_lock::ClosableLock;
use crate::foreign::{Foreign, Interrupts};
use crate::hardware::{Hardware, RegisterError};
use crate::inherit::{InheritanceError, inherit};
use crate::page::{Page, Stopped};
use crate::queue::{BURST_MAX, Queue};
use crate::spec::descriptors::{ContextScope, InvalidationDescriptor, IotlbScope, OnePage};
use crate::spec::faults::status;
use crate::spec::registers::{
    CAP, Capability, ECAP, ExtendedCapability, FECTL, FSTS, GSTS, IEUADDR, PMEN, RTADDR, VER, fault_event, global,
    protected_memory, widths,
};
use crate::tables::DeviceTables;
use crate::{Mmio, Unit, UnitConfig};
use core::sync::atomic::{AtomicBool, Ordering};
use portcullis::iommu::AttachError;
use portcullis::platform::LockClass;
use portcullis::table::Walker;
use portcullis::{NoMemory, Platform, QueueError};
use thiserror::Error;

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
    /// Interrupt remapping is on, and [`UnitConfig::interrupts`] does not allow for that; or it does, and the call is
    /// not [`take_over`](Unit::take_over) or [`prepare`](Unit::prepare), which alone share a unit. The invalidation
    /// queue belongs to the driver that remaps interrupts, even while it is off: without it, that driver cannot change
    /// an entry.
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
    /// The driver that remaps interrupts still has its queue, as it was: the queue has commands that the hardware does
    /// not fetch ([`IQH`](crate::spec::registers::IQH)), it does not go off, or the unit is gone. Nothing was changed.
    #[error("the queue of the driver that remaps interrupts could not be taken: {0}")]
    NotTaken(RegisterError),
    /// The unit was not brought up or resumed, and is not as it was: the driver that remaps interrupts does not have
    /// its queue and can change no entry, or the unit translates.
    #[error("the unit could not be given back as it was: {0}")]
    NotRestored(RegisterError),
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
    /// The unit must be off. The queue may be on if another driver [remaps interrupts](Interrupts::Foreign) with it.
    Never,
    /// From firmware, which may have left translation on. If the invalidation queue is on, an operating system uses
    /// the unit, and the unit is refused, unless that other driver does.
    Firmware,
    /// From any owner. A kernel that was started by a crashed kernel needs this.
    Always,
}

impl TakeOver {
    /// The bits of the global status that make this policy refuse a unit. The queue of the driver that remaps
    /// interrupts is no reason to.
    const fn refused(self, interrupts: Interrupts) -> u32 {
        let queue = match interrupts {
            Interrupts::Unused => global::QUEUED_INVALIDATION,
            Interrupts::Foreign => 0,
        };
        match self {
            Self::Never => global::TRANSLATION | queue,
            Self::Firmware => queue,
            Self::Always => 0,
        }
    }
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
    /// because the unit accepts no invalidations yet, and must not halt the unit.
    ///
    /// # Errors
    /// Those of [`bring_up`](Unit::bring_up), and [`BringUpError::Admission`]. [`BringUpError::RemapsInterrupts`] if
    /// the unit is to be [shared](Interrupts::Foreign): that takes more care than this call asks for.
    pub fn bring_up_with(
        mmio: M,
        platform: P,
        config: UnitConfig,
        admit: impl FnOnce(&Self) -> Result<(), AttachError>,
    ) -> Result<Self, BringUpError> {
        if config.interrupts == Interrupts::Foreign {
            return Err(BringUpError::RemapsInterrupts);
        }
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
    /// The unit must have no other driver any more, except one that keeps to [`Interrupts::Foreign`]. Another would
    /// wait for invalidations that are never made. The tables of the previous owner, and the memory to which they
    /// lead, must be left to the inherited devices until these are released. An inherited device that is passed through
    /// reaches all memory until then.
    pub unsafe fn take_over(
        mmio: M,
        platform: P,
        config: UnitConfig,
        from: TakeOver,
        admit: impl FnOnce(&Self) -> Result<(), AttachError>,
    ) -> Result<Self, BringUpError> {
        // Without `Prepared`, which would be another copy of the unit on the stack.
        let mut unit = Self::make(mmio, platform, config, from, admit)?;
        unit.change_hands()?;
        Ok(unit)
    }

    /// The first half of [`take_over`](Unit::take_over): all that takes memory. Writes no register. For a host that has
    /// to stop its CPUs while the unit changes hands, because the driver that remaps interrupts
    /// [uses its queue](Interrupts::Foreign).
    ///
    /// # Errors
    /// Those of [`take_over`](Unit::take_over) after which the unit was not touched.
    pub fn prepare(
        mmio: M,
        platform: P,
        config: UnitConfig,
        from: TakeOver,
        admit: impl FnOnce(&Self) -> Result<(), AttachError>,
    ) -> Result<Prepared<M, P>, BringUpError> {
        Ok(Prepared { unit: Some(Self::make(mmio, platform, config, from, admit)?), is_told: false })
    }

    /// See [`prepare`](Unit::prepare).
    #[inline(always)]
    fn make(
        mmio: M,
        platform: P,
        config: UnitConfig,
        from: TakeOver,
        admit: impl FnOnce(&Self) -> Result<(), AttachError>,
    ) -> Result<Self, BringUpError> {
        let hardware = Hardware::new(mmio, platform, config.wait_us_max);
        let identity = identify(&hardware, config.interrupts)?;
        if identity.status & from.refused(config.interrupts) != 0 {
            return Err(BringUpError::InUse { status: identity.status });
        }
        let mut unit = Self::allocate(hardware, &identity, config)?;
        match admit(&unit) {
            Ok(()) => Ok(unit),
            Err(error) => {
                unit.release(&Stopped::never_told());
                Err(error.into())
            }
        }
    }

    /// Allocates the tables and the queue, and copies the context entries of the previous owner. Gives the unit no
    /// command.
    // A separate function, so that its stack frame is gone when the unit gets its commands.
    #[inline(never)]
    fn allocate(hardware: Hardware<M, P>, identity: &Identity, config: UnitConfig) -> Result<Self, BringUpError> {
        let Identity { capability, extended, domain_id_bits, status } = *identity;
        let capability = capability.with_rwbf(capability.rwbf() || config.flushes_writes);
        let platform = &hardware.platform;
        let one_page =
            capability.psi().then(|| OnePage::new(config.leaf_only_hint, capability.dwd(), capability.drd()));
        // A crowd that is never merged must not gather for it.
        let can_merge = !capability.cm() && config.leaf_only_hint;
        let merge_min = config.merge_min.filter(|commits| can_merge && usize::from(*commits) <= BURST_MAX);
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
            // Until the hardware knows our tables.
            is_shut: AtomicBool::new(true),
            capability,
            extended,
            physical_bits: config.physical_bits,
            leaf_only_hint: config.leaf_only_hint,
            segment: config.segment,
            foreign: (config.interrupts == Interrupts::Foreign).then(Foreign::new),
            one_page,
            queue,
            attachments: ClosableLock::new(platform.lock(LockClass::Attachment, attachments)),
            fault_records: platform.lock(LockClass::Attachment, ()),
            is_up: AtomicBool::new(false),
            is_halted: AtomicBool::new(false),
            hardware,
        })
    }

    /// See [`Prepared::switch`].
    #[inline(always)]
    fn change_hands(&mut self) -> Result<(), BringUpError> {
        let found = self.hardware.read_present(GSTS).map_err(BringUpError::from);
        let status = match found.and_then(|status| self.take_queue().map(|()| status)) {
            Ok(status) => status,
            Err(error) => {
                self.release(&Stopped::never_told());
                return Err(match error {
                    BringUpError::Register(error) if self.is_queue_lent() => BringUpError::NotTaken(error),
                    error => self.without_queue(error),
                });
            }
        };
        let shown = self.take_faults_over(status).map_err(BringUpError::from).and_then(|()| self.show());
        if let Err(error) = shown {
            // With translation on, the hardware may use our root table by now, so the pages stay out of use. With
            // translation off, they are ours again once the queue is off too.
            if Queue::turn_off(&self.hardware).is_ok()
                && let Some(stopped) = self.seen_stopped()
            {
                self.release(&stopped);
            }
            return Err(self.without_queue(error));
        }
        if let Err(error) = self.translate() {
            // Translation may be on, or may come on later, so the pages stay out of use.
            let is_to_go_off = self.foreign.is_some() && status & global::TRANSLATION == 0;
            let off = if is_to_go_off { self.hardware.stop_translating() } else { Ok(()) };
            return Err(self.without_queue(off.map_or_else(BringUpError::NotRestored, |()| error)));
        }
        *self.is_up.get_mut() = true;
        Ok(())
    }

    /// Gives the other driver its queue after `error`, and returns what the caller is to hear.
    pub(crate) fn without_queue(&self, error: BringUpError) -> BringUpError {
        self.hand_queue_back().map_or_else(BringUpError::NotRestored, |()| error)
    }

    /// Drops the faults of the previous owner. Firmware may have had them written to a log in memory, where this driver
    /// would not see its own.
    fn take_faults_over(&self, status: u32) -> Result<(), RegisterError> {
        if status & global::ADVANCED_FAULTS != 0 {
            self.hardware.disable(global::ADVANCED_FAULTS)?;
        }
        self.faults(&mut |_| {}).map(drop)
    }

    /// Gives the unit its root table and a queue. If translation is already on, the unit uses that table when this
    /// returns.
    pub(crate) fn show(&self) -> Result<(), BringUpError> {
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
        self.is_shut.store(false, Ordering::Relaxed);
        self.queue.start(hardware)?;
        // Setting the root table drops nothing that was cached before (§6.6). The context cache goes first, because a
        // stale context could otherwise fill the IOTLB again.
        let contexts = InvalidationDescriptor::ContextCache(ContextScope::Global);
        self.invalidate(&[contexts.encode(), self.iotlb(IotlbScope::Global).encode()])?;
        Ok(())
    }

    pub(crate) fn translate(&self) -> Result<(), BringUpError> {
        let hardware = &self.hardware;
        hardware.keep_translating(true);
        hardware.enable(global::TRANSLATION)?;
        if self.capability.plmr() || self.capability.phmr() {
            // Firmware may have protected regions while nothing translated. No domain could reach them if they stayed
            // protected.
            let protection = hardware.read32(PMEN);
            if protection & protected_memory::ENABLED != 0 {
                hardware.write32(PMEN, protection & !protected_memory::ENABLE);
                let open = hardware.settle(PMEN, protected_memory::ENABLED, 0);
                // They may be all that protects them once the unit has been given up.
                open.inspect_err(|_| {
                    hardware.write32(PMEN, protection);
                    let _ = hardware.settle(PMEN, protected_memory::ENABLED, protected_memory::ENABLED);
                })?;
            }
        }
        Ok(())
    }
}

/// A unit that is [prepared](Unit::prepare) to change hands: it has its tables and its queue, and the hardware knows
/// nothing of them. Dropping it gives them back.
pub struct Prepared<M: Mmio, P: Platform> {
    /// `None` once it has changed hands.
    pub(crate) unit: Option<Unit<M, P>>,
    /// Whether the hardware may know its pages.
    is_told: bool,
}

impl<M: Mmio, P: Platform> Prepared<M, P> {
    /// The second half of [`take_over`](Unit::take_over): the unit changes hands. Takes no memory, and waits for the
    /// hardware at most sixteen times for [`UnitConfig::wait_us_max`]. So it may be called with interrupts off, and
    /// while all other CPUs are stopped.
    ///
    /// # Errors
    /// Those of [`take_over`](Unit::take_over). Under [`Interrupts::Foreign`] a unit that did not translate is then as
    /// it was: it does not translate, it remaps interrupts, and the other driver has its queue. After
    /// [`BringUpError::NotTaken`] that queue goes on. After any other error it is empty and begins at its first slot,
    /// as it does after [`shut_down`](Unit::shut_down). After [`BringUpError::NotRestored`] none of that is certain. A
    /// fault log of firmware stays off.
    ///
    /// # Safety
    /// That of [`take_over`](Unit::take_over), from [`Unit::prepare`] on. Under [`Interrupts::Foreign`] there may be
    /// the driver that remaps interrupts. It must keep to what is said there from now on.
    pub unsafe fn switch(mut self) -> Result<Unit<M, P>, BringUpError> {
        self.change()?;
        self.unit.take().ok_or(BringUpError::Changing)
    }

    /// After an error the pages of the unit were given back, or stay out of use.
    pub(crate) fn change(&mut self) -> Result<(), BringUpError> {
        self.is_told = true;
        // In place, because a unit is large and kernel stacks are small.
        self.unit.as_mut().map_or(Err(BringUpError::Changing), Unit::change_hands)
    }
}

impl<M: Mmio, P: Platform> Drop for Prepared<M, P> {
    fn drop(&mut self) {
        // After a panic in the middle of a switch the pages stay out of use.
        if let Some(unit) = self.unit.as_mut().filter(|_| !self.is_told) {
            unit.release(&Stopped::never_told());
        }
    }
}

/// What the registers tell of a unit.
pub(crate) struct Identity {
    capability: Capability,
    extended: ExtendedCapability,
    domain_id_bits: u8,
    /// The global status register.
    pub(crate) status: u32,
}

/// Reads the registers of a unit, and refuses a unit that this driver cannot drive.
pub(crate) fn identify<M: Mmio, P: Platform>(
    hardware: &Hardware<M, P>,
    interrupts: Interrupts,
) -> Result<Identity, BringUpError> {
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
    if interrupts == Interrupts::Unused && status & global::INTERRUPT_REMAPPING != 0 {
        return Err(BringUpError::RemapsInterrupts);
    }
    Ok(Identity { capability, extended, domain_id_bits, status })
}
