//! Memory that may not be there.

use crate::error::NoMemory;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// `Box::new` that reports exhaustion.
pub(crate) fn try_box<T>(value: T) -> Result<Box<T>, NoMemory> {
    let mut one = Vec::new();
    one.try_reserve_exact(1).map_err(|_| NoMemory)?;
    one.push(value);
    let slice: Box<[T]> = one.into_boxed_slice();
    // SAFETY: a slice of one value has the layout of the value, so the box may own it as such.
    Ok(unsafe { Box::from_raw(Box::into_raw(slice).cast::<T>()) })
}
