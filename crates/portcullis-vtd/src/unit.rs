//! One remapping unit: halt and resume, shutdown, and what it is made of.

use crate::Mmio;
use crate::attachments::Attachments;
use crate::bring_up::{BringUpError, Identity, identify};
use crate::closable_lock::ClosableLock;
use crate::foreign::{Foreign, Interrupts};
use crate::hardware::{Hardware, RegisterError};
use crate::page::{Page, Stopped};
use crate::queue::{Discipline, Queue, QueueUse, Words};
use crate::spec::descriptors::{InvalidationDescriptor, IotlbScope, OnePage};
use crate::spec::registers::{Capability, ExtendedCapability, GSTS, IQA, RTADDR, global};
use core::sync::atomic::{AtomicBool, Ordering};
use portcullis::{Platform, QueueError};

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
    /// Whether another driver remaps interrupts with the unit.
    pub interrupts: Interrupts,
}

impl Default for UnitConfig {
    /// Physical addresses of 52 bits (the widest that a table entry holds), 100 ms, the hint, no merging, segment 0,
    /// and a queue by combining. No other driver remaps interrupts.
    fn default() -> Self {
        Self {
            physical_bits: 52,
            wait_us_max: 100_000,
            leaf_only_hint: true,
            merge_min: None,
            segment: 0,
            discipline: Discipline::Combining,
            flushes_writes: false,
            interrupts: Interrupts::Unused,
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
    /// The other user of the queue, if there is one.
    pub(crate) foreign: Option<Foreign>,
    /// What takes the leaves of a page out, where the unit has such commands.
    pub(crate) one_page: Option<OnePage>,
    pub(crate) queue: Queue<P>,
    pub(crate) attachments: ClosableLock<P::Lock<Attachments>>,
    /// A root table with no entry, for [`shut_out_all`](Self::shut_out_all).
    pub(crate) nothing: Page,
    /// Whether the unit was told to use that table.
    pub(crate) is_shut: AtomicBool,
    /// Makes reading and clearing a fault record one step.
    pub(crate) fault_records: P::Lock<()>,
    /// Whether the unit was brought up and no call is resuming it.
    pub(crate) is_up: AtomicBool,
    /// Whether the unit was halted since a call began to resume it.
    pub(crate) is_halted: AtomicBool,
}

impl<M: Mmio, P: Platform> Unit<M, P> {
    /// Turns the invalidation queue off, for a suspend, a reboot or another kernel, and leaves translation on:
    /// devices keep the access that they have, and gain none. The driver uses no interrupts. This takes no lock, and
    /// waits for the hardware at most three times for [`UnitConfig::wait_us_max`]. So it may be called with interrupts
    /// off, and while CPUs that hold locks are stopped.
    ///
    /// Callers must not map, unmap, commit, tick, attach or detach until the unit has [resumed](Unit::resume). An
    /// invalidation that they submit in the meantime fails with [`QueueError::Halted`], which poisons its domain
    /// (S11). An invalidation that is still in the queue fails when the unit resumes, or times out before that. One
    /// that its CPU has only posted is made once the unit has resumed.
    ///
    /// # Errors
    /// [`RegisterError`] if the queue does not stop, or the unit is gone.
    pub fn halt(&self) -> Result<(), RegisterError> {
        // SeqCst, as in `resume_alone`: either its last load sees this store, or `leave_queue` sees its queue on. If
        // another driver has a queue too, the two calls must not overlap.
        self.is_halted.store(true, Ordering::SeqCst);
        self.queue.close();
        self.leave_queue()
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
        // A unit that does not open goes on translating.
        self.hardware.stop_translating().inspect_err(|_| self.hardware.keep_translating(true))
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
        let resumed = resumed.map_err(|error| {
            self.queue.close();
            self.without_queue(error)
        });
        self.is_up.store(true, Ordering::Release);
        resumed
    }

    fn resume_alone(&self) -> Result<(), BringUpError> {
        let hardware = &self.hardware;
        self.is_halted.store(false, Ordering::SeqCst);
        self.is_shut.store(false, Ordering::Relaxed);
        self.queue.close();
        let interrupts = if self.foreign.is_some() { Interrupts::Foreign } else { Interrupts::Unused };
        let Identity { status, .. } = identify(hardware, interrupts)?;
        // If power was lost, translation comes on with the last command, after the tables are in place.
        hardware.keep_translating(status & global::TRANSLATION != 0);
        self.take_queue()?;
        self.show().and_then(|()| self.translate()).inspect_err(|_| self.claim_queue())?;
        if self.is_halted.load(Ordering::SeqCst) {
            self.queue.close();
            // It was turned on after the halt.
            self.claim_queue();
            self.leave_queue()?;
            return Err(BringUpError::Changing);
        }
        Ok(())
    }

    /// Shuts every device behind the unit out, without the invalidation queue: the last resort of a host whose queue
    /// does not answer and whose device still reaches memory that it has lost (S11). The unit gets a root table with no
    /// entry, and translation stays on. Takes no lock, and waits for the hardware at most for
    /// [`UnitConfig::wait_us_max`]. Does nothing if it has succeeded before, or while another call is at it. Only
    /// [`resume`](Unit::resume), on a queue that answers again, brings the devices back. Before the hardware knows the
    /// unit's tables, while devices are admitted, it does nothing.
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
    /// [`RegisterError`] if the unit does not stop, or is gone. Its pages then stay out of use for good (S4), and the
    /// driver that remaps interrupts gets [its queue](Interrupts::Foreign) back all the same, if that can be done. An
    /// error if not, also if the unit has stopped.
    ///
    /// # Safety
    /// From then on, every device behind the unit reaches all memory. The caller must make sure that this does no
    /// harm: there is no such device, or none does DMA.
    pub unsafe fn shut_down(mut self) -> Result<(), RegisterError> {
        self.end()
    }

    /// See [`shut_down`](Unit::shut_down). Nothing but [`foreign_queue`](Unit::foreign_queue) may be asked afterwards.
    pub(crate) fn end(&mut self) -> Result<(), RegisterError> {
        let stopped = self.stop();
        if let Ok(stopped) = &stopped {
            self.release(stopped);
        }
        // The other driver needs its queue, also if the unit does not stop.
        let left = self.hand_queue_back();
        stopped.map(drop).and(left)
    }

    fn stop(&self) -> Result<Stopped, RegisterError> {
        let hardware = &self.hardware;
        hardware.keep_translating(false);
        let is_lent = self.is_queue_lent();
        // Also if a command may be under way that turns it on, and no command for the queue follows.
        if is_lent || hardware.read32(GSTS) & global::TRANSLATION != 0 {
            hardware.disable(global::TRANSLATION)?;
        }
        if !is_lent {
            Queue::turn_off(hardware)?;
        }
        let timeout = RegisterError::Timeout { offset: GSTS, limit_us: hardware.wait_us_max };
        self.seen_stopped().ok_or(timeout)
    }

    /// Reads whether translation and our queue are off.
    pub(crate) fn seen_stopped(&self) -> Option<Stopped> {
        let status = self.hardware.read32(GSTS);
        let is_on = status & global::QUEUED_INVALIDATION != 0;
        let is_ours = is_on && (self.foreign.is_none() || self.queue.is_at(self.hardware.read64(IQA)));
        (status & global::TRANSLATION == 0 && !is_ours).then(Stopped::seen)
    }

    /// Gives the pages back. After a panic with the lock held they are kept, because the list of pages may be half
    /// changed.
    pub(crate) fn release(&mut self, stopped: &Stopped) {
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

    /// Submits descriptors, at most `BURST_MAX`, and waits for them.
    ///
    /// Context-cache and IOTLB invalidations may go together in this order, because hardware starts the second kind
    /// only after the first kind ahead of it is done (§6.5.2.11).
    #[inline(never)]
    pub(crate) fn invalidate(&self, descriptors: &[Words]) -> Result<(), QueueError> {
        let ticket = self.queue.submit(&self.hardware, || descriptors.iter().copied())?;
        self.queue.wait_for(&self.hardware, ticket)
    }
}
