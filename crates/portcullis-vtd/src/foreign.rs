//! Another driver that remaps interrupts with the unit. Its entries are cached too, and only the invalidation queue can
//! invalidate them. A unit has one queue, so this driver owns it and serves the other.

use crate::hardware::{Hardware, RegisterError};
use crate::queue::{BURST_MAX, Queue};
use crate::spec::descriptors::is_wait;
use crate::spec::faults::status;
use crate::spec::registers::{FECTL, FSTS, GSTS, IQA, IQH, IQT, fault_event, global};
use crate::{BringUpError, Mmio, Unit};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use portcullis::platform::Wait;
use portcullis::{Platform, QueueError};

/// Whether another driver remaps interrupts with the unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interrupts {
    /// None does. A unit that remaps interrupts is
    /// [refused](crate::BringUpError::RemapsInterrupts).
    Unused,
    /// One does, or may, as Linux does. Its invalidation queue is taken over, and it has to use
    /// [`Unit::submit_words`] instead. Interrupt remapping stays on at all times. [`halt`](Unit::halt) and
    /// [`shut_down`](Unit::shut_down) hand the queue back if it was on: at the address where it was, and empty, with
    /// head and tail at its first slot. The fault event gets its former mask.
    ///
    /// What the other driver must keep to:
    /// - While this driver has the queue, it writes no register of the queue (`IQT`, `IQA`). It may unmask the fault
    ///   event (`FECTL`) and take faults, which are then not among [those of this driver](Unit::faults). That call
    ///   masks the event again. The registers of the interrupt table are its own. A command of it (`GCMD`) leaves
    ///   translation and queue as the status shows them, and does not overlap a command of this driver.
    /// - It does nothing with the unit while the queue changes hands: by [`switch`](crate::Prepared::switch),
    ///   [`halt`](Unit::halt), [`halt_open`](Unit::halt_open), [`resume`](Unit::resume) or
    ///   [`shut_down`](Unit::shut_down), which must not overlap each other either.
    /// - After a loss of power its queue is on before [`resume`](Unit::resume), or it stays off until this driver hands
    ///   it back.
    ///
    /// A unit that was dropped, and not shut down, has our queue: it cannot be shared again, because nothing says where
    /// the other driver has its own.
    Foreign,
}

/// The queue of the driver that [remaps interrupts](Interrupts::Foreign) with a unit, while this driver does not use
/// it. Says nothing if there is no such driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForeignQueue {
    /// It goes on as it was.
    Untouched,
    /// It is on, empty, and has head and tail at its first slot.
    Restarted,
    /// It may be off, or not that driver's: the hardware did not answer.
    Unknown,
}

/// The queue of the other driver, as it was when it was taken.
pub(crate) struct Foreign {
    /// Whether that driver has the queue now. Relaxed, as are the others: one call at a time changes hands, and what
    /// orders these calls orders the fields.
    has_queue: AtomicBool,
    was_on: AtomicBool,
    address: AtomicU64,
    fault_event: AtomicU32,
}

impl Foreign {
    pub(crate) const fn new() -> Self {
        Self {
            has_queue: AtomicBool::new(true),
            was_on: AtomicBool::new(false),
            address: AtomicU64::new(0),
            fault_event: AtomicU32::new(0),
        }
    }

    fn has_queue(&self) -> bool {
        self.has_queue.load(Ordering::Relaxed)
    }

    /// Turns the queue of the other driver off.
    fn take<M: Mmio, P: Platform>(&self, hardware: &Hardware<M, P>) -> Result<(), BringUpError> {
        let status = hardware.read_present(GSTS)?;
        let is_on = status & global::QUEUED_INVALIDATION != 0;
        let mut off = Ok(());
        self.was_on.store(is_on, Ordering::Relaxed);
        self.address.store(hardware.read64(IQA), Ordering::Relaxed);
        self.fault_event.store(hardware.read32(FECTL), Ordering::Relaxed);
        if is_on {
            // A command that the hardware has not fetched is lost when the queue is turned off.
            let is_empty = || Queue::is_fetched(hardware);
            let timeout = RegisterError::Timeout { offset: IQH, limit_us: hardware.wait_us_max };
            hardware.spin(Wait::QueueRoom, is_empty).ok_or(BringUpError::NotTaken(timeout))?;
            off = hardware.disable(global::QUEUED_INVALIDATION);
            // It stays on, and this takes the command back.
            if off.is_err() && hardware.enable(global::QUEUED_INVALIDATION).is_ok() && is_empty().is_some() {
                return off.map_err(BringUpError::NotTaken);
            }
        }
        // Also if it went off late, and began again at its first slot: the caller hands it back.
        self.has_queue.store(false, Ordering::Relaxed);
        Ok(off?)
    }

    /// Gives the queue back. Ours is off.
    fn hand_back<M: Mmio, P: Platform>(&self, hardware: &Hardware<M, P>) -> Result<(), RegisterError> {
        if self.was_on.load(Ordering::Relaxed) {
            // An error that ours has left would stop this one.
            hardware.write32(FSTS, status::QUEUE_ERRORS);
            hardware.write64(IQT, 0);
            hardware.write64(IQA, self.address.load(Ordering::Relaxed));
            hardware.enable(global::QUEUED_INVALIDATION)?;
        }
        hardware.write32(FECTL, self.fault_event.load(Ordering::Relaxed));
        self.has_queue.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl<M: Mmio, P: Platform> Unit<M, P> {
    /// Submits descriptors for the driver that remaps interrupts, and waits until the hardware has done them all. For
    /// the [other user](Interrupts::Foreign) of the queue: it must not use what an invalidation protects before this
    /// has returned `Ok`. Descriptors of 128 bits, the low quadword first, in their order. May be called with
    /// interrupts off. Waits at most twice for [`UnitConfig::wait_us_max`](crate::UnitConfig::wait_us_max) for each 64
    /// of them: for room, and for their completion.
    ///
    /// # Errors
    /// [`QueueError`]: the hardware may still use what it has cached (S11). [`QueueError::Descriptor`] also for a wait
    /// descriptor among them, which could write to any memory; then none is submitted.
    pub fn submit_words(&self, words: &[[u64; 2]]) -> Result<(), QueueError> {
        if words.iter().any(|words| is_wait(*words)) {
            return Err(QueueError::Descriptor);
        }
        words.chunks(BURST_MAX).try_for_each(|burst| self.invalidate(burst))
    }

    /// The queue of the other driver, once this one has left the unit or halted it.
    pub(crate) fn foreign_queue(&self) -> ForeignQueue {
        let is_ours = self.foreign.as_ref().is_some_and(|foreign| !foreign.has_queue());
        if is_ours { ForeignQueue::Unknown } else { ForeignQueue::Restarted }
    }

    /// Whether another driver has the queue now.
    pub(crate) fn is_queue_lent(&self) -> bool {
        self.foreign.as_ref().is_some_and(Foreign::has_queue)
    }

    /// Turns the queue of the unit off, ours or that of the other driver.
    pub(crate) fn take_queue(&self) -> Result<(), BringUpError> {
        match &self.foreign {
            Some(foreign) if foreign.has_queue() => foreign.take(&self.hardware),
            _ => Ok(Queue::turn_off(&self.hardware)?),
        }
    }

    /// Turns our queue off, and gives the other driver its own.
    pub(crate) fn leave_queue(&self) -> Result<(), RegisterError> {
        let Some(foreign) = &self.foreign else { return Queue::turn_off(&self.hardware) };
        if foreign.has_queue() {
            return Ok(());
        }
        if self.hardware.read_present(GSTS)? & (global::TRANSLATION | global::ROOT_TABLE) == 0 {
            // Power was lost. A unit must not translate that has no table.
            self.hardware.keep_translating(false);
        }
        Queue::turn_off(&self.hardware)?;
        foreign.hand_back(&self.hardware)
    }

    /// Masks the fault event again, which the other driver unmasks when it moves the event to another CPU.
    pub(crate) fn keep_fault_event_masked(&self) {
        if self.foreign.as_ref().is_some_and(|foreign| !foreign.has_queue())
            && self.hardware.read32(FECTL) & fault_event::MASKED == 0
        {
            self.hardware.write32(FECTL, fault_event::MASKED);
        }
    }

    /// Gives the other driver its queue, if there is one.
    pub(crate) fn hand_queue_back(&self) -> Result<(), RegisterError> {
        if self.foreign.is_some() { self.leave_queue() } else { Ok(()) }
    }

    /// The queue that is on is ours, whatever another call has done in between.
    pub(crate) fn claim_queue(&self) {
        if let Some(foreign) = &self.foreign {
            foreign.has_queue.store(false, Ordering::Relaxed);
        }
    }
}
