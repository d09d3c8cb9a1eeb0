//! Units change hands, and the kernel's driver that remaps interrupts is served while they are not its own.

use crate::errno::EIO;
use crate::log::{print, refused};
use crate::unit::Unit;
use portcullis_vtd::{ForeignQueue, switch_all};

/// Brings units up, all of them or none. If one fails, stores its place in `failed`.
///
/// # Safety
/// `units` must have `count` units, each from [`pcr_prepare`]. The machine must be stopped: no other CPU uses a unit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_switch_all(units: *mut &mut Unit, count: usize, failed: &mut usize) -> i32 {
    // SAFETY: the caller keeps the contract.
    let units = unsafe { core::slice::from_raw_parts_mut(units, count) };
    // SAFETY: the caller keeps the contract. Until now the kernel has let all devices reach all memory.
    match unsafe { switch_all(units) } {
        Ok(()) => 0,
        Err(error) => {
            *failed = error.index;
            refused("a unit was not brought up", &error.error)
        }
    }
}

/// Turns a unit off, if it is up. Its devices reach all memory from then on, as before it was brought up.
///
/// # Safety
/// No other call may use the unit. Its domains, and all devices that were not passed through, must be gone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_hand_back(unit: &mut Unit) -> i32 {
    // SAFETY: only passed-through devices are left, which may reach all memory.
    match unsafe { unit.vtd.hand_back() } {
        Ok(()) => 0,
        Err(error) => refused("a unit does not stop", &error),
    }
}

/// The queue of the driver that remaps interrupts: 0 if it is as it was, 1 if it is on, empty and at its first slot, a
/// negative error number if that driver does not have it, or it is not known.
#[unsafe(no_mangle)]
pub extern "C" fn pcr_foreign_queue(unit: &Unit) -> i32 {
    match unit.vtd.foreign_queue() {
        ForeignQueue::Untouched => 0,
        ForeignQueue::Restarted => 1,
        ForeignQueue::Unknown => EIO,
    }
}

/// The commands that are submitted at once. The kernel submits one at a time.
const FOREIGN_BURST: usize = 8;

/// A command of the kernel's driver that remaps interrupts: the first 16 bytes are the hardware's.
type ForeignCommand = [u64; 4];

/// Submits commands of the driver that remaps interrupts, in their order, and waits until the hardware has done them.
/// May be called with interrupts off.
///
/// # Safety
/// `commands` must have `count` commands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pcr_submit(unit: &Unit, commands: *const ForeignCommand, count: usize) -> i32 {
    // SAFETY: the caller keeps the contract.
    let commands = unsafe { core::slice::from_raw_parts(commands, count) };
    unit.with(|vtd| {
        for burst in commands.chunks(FOREIGN_BURST) {
            let mut words = [[0; 2]; FOREIGN_BURST];
            words.iter_mut().zip(burst).for_each(|(to, [low, high, ..])| *to = [*low, *high]);
            if let Err(error) = vtd.submit_words(&words[..burst.len()]) {
                print(format_args!("a change of an interrupt may not have taken effect: {error}"));
                return EIO;
            }
        }
        0
    })
}
