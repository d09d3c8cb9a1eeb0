//! Several units change hands together: all of them, or none. A driver that remaps interrupts does so with all units of
//! a machine, and goes on with all of them or with none.

use crate::{BringUpError, Mmio, Prepared, RegisterError, Unit};
use core::mem;
use portcullis::Platform;
use thiserror::Error;

/// A unit, and how far it has changed hands.
pub enum Handover<M: Mmio, P: Platform> {
    /// It has all that it needs, and the hardware knows nothing of that.
    Prepared(Prepared<M, P>),
    /// It is this driver's.
    Taken(Unit<M, P>),
    /// It is not, or not any more.
    Left(ForeignQueue),
}

/// The queue of the driver that [remaps interrupts](crate::Interrupts::Foreign) with a unit, once this driver has left
/// the unit. Says nothing if there is no such driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForeignQueue {
    /// It goes on as it was.
    Untouched,
    /// It is empty, with head and tail at its first slot.
    Restarted,
    /// It may be off, or not that driver's: the hardware did not answer.
    Unknown,
}

/// Why units have not changed hands: none of them has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("unit {index} of those that were to change hands has not: {error}")]
pub struct NotSwitched {
    /// Which of them has refused. Those before it were handed back.
    pub index: usize,
    /// Why it has.
    #[source]
    pub error: BringUpError,
}

impl<M: Mmio, P: Platform> Handover<M, P> {
    /// The unit, if it is this driver's.
    pub fn unit(&self) -> Option<&Unit<M, P>> {
        match self {
            Self::Taken(unit) => Some(unit),
            Self::Prepared(_) | Self::Left(_) => None,
        }
    }

    /// [Shuts the unit down](Unit::shut_down) if it is this driver's. Nothing is left of it in any case.
    ///
    /// # Errors
    /// Those of [`Unit::shut_down`].
    ///
    /// # Safety
    /// As for [`Unit::shut_down`].
    pub unsafe fn hand_back(&mut self) -> Result<(), RegisterError> {
        let (queue, handed_back) = match mem::replace(self, Self::Left(ForeignQueue::Unknown)) {
            // SAFETY: the caller keeps the contract.
            Self::Taken(unit) => match unsafe { unit.shut_down() } {
                Ok(()) => (ForeignQueue::Restarted, Ok(())),
                Err(error) => (ForeignQueue::Unknown, Err(error)),
            },
            Self::Prepared(_) => (ForeignQueue::Untouched, Ok(())),
            Self::Left(queue) => (queue, Ok(())),
        };
        *self = Self::Left(queue);
        handed_back
    }

    /// See [`Prepared::switch`]. [`BringUpError::Changing`] if the unit is not prepared.
    ///
    /// # Safety
    /// As there.
    unsafe fn switch(&mut self) -> Result<(), BringUpError> {
        let prepared = match mem::replace(self, Self::Left(ForeignQueue::Unknown)) {
            Self::Prepared(prepared) => prepared,
            other => {
                *self = other;
                return Err(BringUpError::Changing);
            }
        };
        // SAFETY: the caller keeps the contract.
        match unsafe { prepared.switch() } {
            Ok(unit) => *self = Self::Taken(unit),
            Err(error) => {
                *self = Self::Left(match error {
                    BringUpError::NotTaken(_) => ForeignQueue::Untouched,
                    BringUpError::NotRestored(_) => ForeignQueue::Unknown,
                    _ => ForeignQueue::Restarted,
                });
                return Err(error);
            }
        }
        Ok(())
    }
}

/// [Switches](Prepared::switch) units, all of them or none. If one fails, those before it are
/// [shut down](Unit::shut_down) again, the last one first, and those after it stay prepared. Takes no memory, and may
/// be called with interrupts off.
///
/// # Errors
/// [`NotSwitched`]: the error of the first that fails, [`BringUpError::Changing`] if it was not prepared. What the
/// units are then tells which of them could not be handed back.
///
/// # Safety
/// That of [`Prepared::switch`], for each of them. No device behind them may rely on being kept from memory.
pub unsafe fn switch_all<M: Mmio, P: Platform, U: AsMut<Handover<M, P>>>(units: &mut [U]) -> Result<(), NotSwitched> {
    for index in 0..units.len() {
        // SAFETY: the caller keeps the contract.
        if let Err(error) = unsafe { units[index].as_mut().switch() } {
            for unit in units[..index].iter_mut().rev() {
                // SAFETY: as before the switch, devices reach all memory. What the unit is then says whether it failed.
                let _ = unsafe { unit.as_mut().hand_back() };
            }
            return Err(NotSwitched { index, error });
        }
    }
    Ok(())
}
