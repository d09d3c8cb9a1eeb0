//! Walks by software through table pages that nothing else keeps, and when those of a moment are over.
//!
//! Each thread has a word that holds, while it walks, the era in which it began, and 0 otherwise. Whoever has taken a page out
//! of the table begins a new era ([`now`]); when no word holds the old one or an earlier one, nobody is left who could have
//! found the page ([`are_over`]). Two plain stores per walk are enough, without a fence, for this reason: after it has begun the
//! new era, `now` has the kernel run a full barrier on every CPU where a thread of this process runs (membarrier(2); a thread
//! that does not run has had one). A walker's store to its word comes either before the barrier on its CPU, and whoever looks
//! after the barrier sees it; or after it, and then so do its loads from the table, and they find that the page is gone. A
//! walker that holds a later era has acquired it from `now`, and with it what was done before. A thread that walks for the
//! first time enters its word in the list before its first load: who looks sees it there, or it takes the list's lock after that
//! look, and with it what was done before.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Not walking.
const IDLE: u64 = 0;
/// Never walked: not yet among [`WALKERS`].
const UNKNOWN: u64 = u64::MAX;

/// The era that walks begin in.
static ERA: AtomicU64 = AtomicU64::new(1);
/// Whether the kernel runs barriers for us.
static BARRIERS: AtomicBool = AtomicBool::new(false);
/// The words of all threads that have ever walked and still run.
static WALKERS: Mutex<Vec<Walker>> = Mutex::new(Vec::new());

/// The word of a thread that has not ended.
struct Walker(*const AtomicU64);

// SAFETY: the word is an atomic, and its thread takes it out of the list before it ends.
unsafe impl Send for Walker {}

thread_local! {
    static WORD: AtomicU64 = const { AtomicU64::new(UNKNOWN) };
    /// Takes the thread out of the list when it ends.
    static MEMBERSHIP: Cell<Option<Membership>> = const { Cell::new(None) };
}

struct Membership;

impl Drop for Membership {
    fn drop(&mut self) {
        WORD.with(|word| {
            walkers().retain(|walker| !std::ptr::eq(walker.0, word));
            word.store(UNKNOWN, Ordering::Relaxed);
        });
    }
}

fn walkers() -> MutexGuard<'static, Vec<Walker>> {
    // Pushes and removals leave a sound list whatever panics.
    WALKERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: a command without arguments in memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

pub(super) fn prepare() {
    BARRIERS.store(membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED), Ordering::Relaxed);
}

/// Runs a walk.
#[inline(always)]
pub(super) fn walk<R>(walk: impl FnOnce() -> R) -> R {
    let after = begin();
    let result = walk();
    // A walk that panics goes on for good, which is safe.
    end(after);
    result
}

/// Begins a walk. Returns what [`end`] wants: the walk itself stays out of the closure, for then it is not inlined.
#[inline(always)]
fn begin() -> u64 {
    WORD.with(|word| {
        let before = word.load(Ordering::Relaxed);
        let (inside, after) = if before == IDLE { (ERA.load(Ordering::Acquire), IDLE) } else { not_idle(before) };
        word.store(inside, Ordering::Relaxed);
        // The processor may do the walk's loads before this store; `now` sees to that. The compiler must not.
        compiler_fence(Ordering::SeqCst);
        after
    })
}

#[inline(always)]
fn end(after: u64) {
    // Release: who sees that the walk is over sees it behind its loads.
    WORD.with(|word| word.store(after, Ordering::Release));
}

/// What the word holds during a walk inside another one, or during the first walk of a thread, and after it.
#[cold]
fn not_idle(before: u64) -> (u64, u64) {
    if before != UNKNOWN {
        return (before, before);
    }
    WORD.with(|word| {
        // Before anybody can look at it. The thread is counted as walking from now on.
        word.store(ERA.load(Ordering::Acquire), Ordering::Relaxed);
        // First: a thread that is ending has no membership any more, and walking there is a panic.
        MEMBERSHIP.set(Some(Membership));
        walkers().push(Walker(word));
        (word.load(Ordering::Relaxed), IDLE)
    })
}

/// Begins a new era, and names the one before it. `None` where the kernel runs no barriers.
pub(super) fn now() -> Option<u64> {
    if !BARRIERS.load(Ordering::Relaxed) {
        return None;
    }
    // Release: a walker that begins in the new era sees what was done before it.
    let era = ERA.fetch_add(1, Ordering::AcqRel);
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED).then_some(era)
}

/// Whether no walk of this era or an earlier one goes on.
pub(super) fn are_over(era: u64) -> bool {
    // SAFETY: a thread's word lives for as long as it is in the list, which is locked.
    let word = |walker: &Walker| unsafe { &*walker.0 }.load(Ordering::Acquire);
    walkers().iter().map(word).all(|since| since == IDLE || since > era)
}
