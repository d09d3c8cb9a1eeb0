//! Atomics: those of `core`, or those of loom in a model check.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, fence};

pub(crate) use core::sync::atomic::Ordering;

/// For statics, which loom cannot model: counters that order nothing.
pub(crate) use core::sync::atomic::AtomicUsize as StaticCounter;

/// For state that only a panic changes: a model ends with a panic.
pub(crate) use core::sync::atomic::AtomicBool as PanicFlag;
pub(crate) use core::sync::atomic::AtomicU64 as PanicTag;
