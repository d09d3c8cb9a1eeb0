//! The processor's atomics, those of loom while a loom model is checked, or those that count the cache lines that move.

#[cfg(not(any(loom, coherence)))]
pub(crate) use core::sync::atomic::AtomicU64;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::AtomicU64;
#[cfg(coherence)]
pub(crate) use portcullis_coherence::atomic::AtomicU64;

/// For state that only a panic changes. Loom does not model it, because no loom model continues after a panic.
#[cfg(not(coherence))]
pub(crate) use core::sync::atomic::AtomicU8 as PanicState;
#[cfg(coherence)]
pub(crate) use portcullis_coherence::atomic::AtomicU8 as PanicState;

pub(crate) use core::sync::atomic::Ordering;

/// Reports that plain memory is accessed which other CPUs access too, under a lock.
#[inline(always)]
pub(crate) fn plain<T: ?Sized>(_value: &T, _is_written: bool) {
    #[cfg(coherence)]
    portcullis_coherence::plain(_value, _is_written);
}
