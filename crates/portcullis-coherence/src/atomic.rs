//! Atomics as those of `core`, whose accesses are charged to the CPU that makes them.
//!
//! Not on a virtual CPU, they are those of `core`, and may be shared by threads.

use crate::Access;
use crate::cpus::access;
use core::sync::atomic;
pub use core::sync::atomic::Ordering;

macro_rules! atomic {
    ($($name:ident $(<$of:ident>)?, $value:ty;)*) => {$(
        /// That of `core`, whose accesses are charged.
        #[derive(Debug)]
        #[repr(transparent)]
        pub struct $name $(<$of>)? (atomic::$name $(<$of>)?);

        impl $(<$of>)? $name $(<$of>)? {
            /// See `core`.
            pub const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            fn touched(&self, kind: Access) -> &atomic::$name $(<$of>)? {
                access((&raw const *self).addr(), kind);
                &self.0
            }

            /// See `core`.
            pub fn load(&self, order: Ordering) -> $value {
                self.touched(Access::Load).load(order)
            }

            /// See `core`. A sequentially consistent store is a locked instruction.
            pub fn store(&self, value: $value, order: Ordering) {
                let kind = if order == Ordering::SeqCst { Access::Locked } else { Access::Store };
                self.touched(kind).store(value, order);
            }

            /// See `core`.
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.touched(Access::Locked).swap(value, order)
            }

            /// See `core`.
            ///
            /// # Errors
            /// The value, if it is not `current`.
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.touched(Access::Locked).compare_exchange(current, new, success, failure)
            }

            /// See `core`. It does not fail without a reason.
            ///
            /// # Errors
            /// The value, if it is not `current`.
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            /// See `core`.
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }
        }
    )*};
}

macro_rules! read_modify_write {
    ($name:ident, $value:ty: $($operation:ident)*) => {
        impl $name {$(
            /// See `core`.
            pub fn $operation(&self, value: $value, order: Ordering) -> $value {
                self.touched(Access::Locked).$operation(value, order)
            }
        )*}
    };
}

macro_rules! update {
    ($($name:ident, $value:ty;)*) => {$(
        read_modify_write!($name, $value: fetch_add fetch_sub fetch_and fetch_or fetch_xor fetch_max fetch_min);

        impl $name {
            /// See `core`.
            ///
            /// # Errors
            /// The value that `update` returned `None` for.
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                mut update: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut current = self.load(fetch);
                while let Some(next) = update(current) {
                    match self.compare_exchange_weak(current, next, set, fetch) {
                        Ok(before) => return Ok(before),
                        Err(now) => current = now,
                    }
                }
                Err(current)
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new(<$value>::default())
            }
        }
    )*};
}

atomic! {
    AtomicBool, bool;
    AtomicU8, u8;
    AtomicU32, u32;
    AtomicU64, u64;
    AtomicUsize, usize;
    AtomicPtr<T>, *mut T;
}

update! {
    AtomicU8, u8;
    AtomicU32, u32;
    AtomicU64, u64;
    AtomicUsize, usize;
}

read_modify_write!(AtomicBool, bool: fetch_and fetch_or fetch_xor);

impl Default for AtomicBool {
    fn default() -> Self {
        Self::new(false)
    }
}

/// See `core`. Only a sequentially consistent fence costs anything.
pub fn fence(order: Ordering) {
    if order == Ordering::SeqCst {
        crate::cpus::fence();
    }
    atomic::fence(order);
}
