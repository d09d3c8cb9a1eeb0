//! Atomics: those of `core`, those of loom in a model check, or those that count the cache lines that move.

#[cfg(not(any(loom, coherence)))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence};
#[cfg(coherence)]
pub(crate) use portcullis_coherence::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, fence,
};

pub(crate) use core::sync::atomic::Ordering;

/// For statics, which loom cannot model: counters that order nothing.
pub(crate) use core::sync::atomic::AtomicUsize as StaticCounter;

/// For state that only a panic changes: a model ends with a panic.
pub(crate) use core::sync::atomic::AtomicBool as PanicFlag;
pub(crate) use core::sync::atomic::AtomicU64 as PanicTag;

/// Reports that plain memory is accessed which other CPUs access too, under a lock.
#[inline(always)]
pub(crate) fn plain<T: ?Sized>(_value: &T, _is_written: bool) {
    #[cfg(coherence)]
    portcullis_coherence::plain(_value, _is_written);
}
