//! Several units change hands together: all of them, or none. A driver that remaps interrupts does so with all units of
//! a machine, and goes on with all of them or with none.

use crate::{BringUpError, ForeignQueue, Mmio, Prepared, RegisterError, Unit};
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

    /// The queue of the other driver, if this one does not have it.
    pub fn foreign_queue(&self) -> ForeignQueue {
        match self {
            Self::Prepared(_) => ForeignQueue::Untouched,
            Self::Taken(unit) => unit.foreign_queue(),
            Self::Left(queue) => *queue,
        }
    }

    /// [Shuts the unit down](Unit::shut_down) if it is this driver's. Nothing is left of it in any case.
    ///
    /// # Errors
    /// Those of [`Unit::shut_down`]. [`foreign_queue`](Handover::foreign_queue) then tells whether the other driver has
    /// its queue.
    ///
    /// # Safety
    /// As for [`Unit::shut_down`].
    pub unsafe fn hand_back(&mut self) -> Result<(), RegisterError> {
        let ended = match self {
            Self::Taken(unit) => unit.end(),
            Self::Prepared(_) | Self::Left(_) => Ok(()),
        };
        *self = Self::Left(self.foreign_queue());
        ended
    }

    /// See [`Prepared::switch`]. [`BringUpError::Changing`] if the unit is not prepared.
    fn switch(&mut self) -> Result<(), BringUpError> {
        let Self::Prepared(prepared) = self else { return Err(BringUpError::Changing) };
        let changed = prepared.change();
        let queue = match (changed, &prepared.unit) {
            (Err(BringUpError::NotTaken(_)), _) => ForeignQueue::Untouched,
            (_, Some(unit)) => unit.foreign_queue(),
            (_, None) => ForeignQueue::Unknown,
        };
        *self = match prepared.unit.take().filter(|_| changed.is_ok()) {
            Some(unit) => Self::Taken(unit),
            None => Self::Left(queue),
        };
        changed
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
        if let Err(error) = units[index].as_mut().switch() {
            for unit in units[..index].iter_mut().rev() {
                // SAFETY: as before the switch, devices reach all memory. What the unit is then says whether it failed.
                let _ = unsafe { unit.as_mut().hand_back() };
            }
            return Err(NotSwitched { index, error });
        }
    }
    Ok(())
}
