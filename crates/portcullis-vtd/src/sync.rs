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

/// A hint: any value is right. Loom does not model it.
#[cfg(not(coherence))]
pub(crate) use core::sync::atomic::AtomicU32 as Hint;
#[cfg(coherence)]
pub(crate) use portcullis_coherence::atomic::AtomicU32 as Hint;

pub(crate) use core::sync::atomic::Ordering;

/// For loom, which takes sequentially consistent accesses for acquiring and releasing ones: the fence that these
/// accesses make superfluous.
#[inline(always)]
pub(crate) fn fence_of_sequential_accesses() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Runs `act`, whose loads do not depend on each other: a processor has many of them under way at once. Counts of cache
/// lines need to know that.
#[inline(always)]
pub(crate) fn beside<R>(act: impl FnOnce() -> R) -> R {
    #[cfg(coherence)]
    return portcullis_coherence::beside(act);
    #[cfg(not(coherence))]
    act()
}

/// A turn of a spin on another CPU.
#[inline(always)]
pub(crate) fn pause() {
    #[cfg(coherence)]
    portcullis_coherence::pause();
    #[cfg(not(coherence))]
    core::hint::spin_loop();
}
