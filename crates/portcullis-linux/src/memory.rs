//! Memory for values that are constructed in place. The allocation may fail.

use crate::host::Host;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::MaybeUninit;
use portcullis::platform::Context;
use portcullis::{NoMemory, Platform};

/// Room for a value. The caller may sleep.
pub(crate) fn room<T>() -> Result<Box<MaybeUninit<T>>, NoMemory> {
    let mut room = Vec::<MaybeUninit<T>>::new();
    Host.allocate(Context::MaySleep, || room.try_reserve_exact(1)).map_err(|_| NoMemory)?;
    // SAFETY: the capacity was just reserved, and uninitialized room may have any bytes.
    unsafe { room.set_len(1) };
    // The length equals the capacity, so this does not allocate.
    let room: Box<[MaybeUninit<T>]> = room.into_boxed_slice();
    // SAFETY: a slice of one value has the layout of the value.
    Ok(unsafe { Box::from_raw(Box::into_raw(room).cast()) })
}
