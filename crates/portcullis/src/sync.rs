//! Atomics: the processor's, or loom's while a model is checked.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, fence};

pub(crate) use core::sync::atomic::Ordering;

/// For statics, which loom cannot model: counters that nothing is ordered by.
pub(crate) use core::sync::atomic::AtomicUsize as StaticCounter;

/// For what only a panic sets: no model goes on after one.
pub(crate) use core::sync::atomic::AtomicBool as PanicFlag;
pub(crate) use core::sync::atomic::AtomicU64 as PanicTag;
