//! The processor's atomics, or those of loom while a loom model is checked.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::AtomicU64;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::AtomicU64;

pub(crate) use core::sync::atomic::Ordering;
