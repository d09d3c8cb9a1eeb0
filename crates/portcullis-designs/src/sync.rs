//! Atomics: those of `core`, those of loom in a model check, or those that count the cache lines that move.

#[cfg(not(any(loom, coherence)))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};
#[cfg(coherence)]
pub(crate) use portcullis_coherence::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize};

pub(crate) use core::sync::atomic::Ordering;
