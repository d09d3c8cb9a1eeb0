//! Software walks through table pages that nothing else keeps alive, and when the walks of a moment are over.
//!
//! Each thread has a word. During a walk it holds the era in which the walk began, and otherwise 0. After code has
//! unlinked a page from the table, it begins a new era ([`now`]). When no word holds the old era or an earlier one, no
//! walker is left that could have found the page ([`are_over`]).
//!
//! Two plain stores per walk are enough, without a fence. After `now` has begun the new era, it makes the kernel run a
//! full barrier on every CPU that runs a thread of this process (membarrier(2); a thread that does not run has had
//! one). A walker's store to its word comes before or after the barrier on its CPU. If it comes before, a check after
//! the barrier sees it. If it comes after, so do the walker's loads from the table, and they find that the page is
//! gone. A walker that holds a later era has acquired it from `now`, and with it everything done before.
//!
//! A thread that walks for the first time adds its word to the list before its first load. A check either sees the
//! word in the list, or the thread takes the list's lock after that check, and with it everything done before.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The thread does not walk.
const IDLE: u64 = 0;
/// The thread has never walked, and is not yet in [`WALKERS`].
const UNKNOWN: u64 = u64::MAX;

/// The era in which walks begin.
static ERA: AtomicU64 = AtomicU64::new(1);
/// Whether the kernel runs barriers for this process.
static BARRIERS: AtomicBool = AtomicBool::new(false);
/// The words of all threads that have ever walked and still run.
static WALKERS: Mutex<Vec<Walker>> = Mutex::new(Vec::new());

/// The word of a thread that has not ended.
struct Walker(*const AtomicU64);

// SAFETY: the word is an atomic, and its thread removes it from the list before it ends.
unsafe impl Send for Walker {}

thread_local! {
    static WORD: AtomicU64 = const { AtomicU64::new(UNKNOWN) };
    /// Removes the thread from the list when it ends.
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
    // Pushes and removals leave the list valid even after a panic.
    WALKERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the command takes no pointers.
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
    // A walk that panics never ends, which is safe.
    end(after);
    result
}

/// Begins a walk. Returns the argument for [`end`]. The walk itself stays out of the closure, because it would not be
/// inlined there.
#[inline(always)]
fn begin() -> u64 {
    WORD.with(|word| {
        let before = word.load(Ordering::Relaxed);
        let (inside, after) = if before == IDLE { (ERA.load(Ordering::Acquire), IDLE) } else { not_idle(before) };
        word.store(inside, Ordering::Relaxed);
        // The processor may reorder the walk's loads before this store; `now` handles that. The compiler must not
        // reorder them.
        compiler_fence(Ordering::SeqCst);
        after
    })
}

#[inline(always)]
fn end(after: u64) {
    // Release: code that sees the end of the walk sees it after the walk's loads.
    WORD.with(|word| word.store(after, Ordering::Release));
}

/// The values of the word during and after a walk that is nested, or that is the first of its thread.
#[cold]
fn not_idle(before: u64) -> (u64, u64) {
    if before != UNKNOWN {
        return (before, before);
    }
    WORD.with(|word| {
        // Stored before other threads can see the word. The thread counts as walking from now on.
        word.store(ERA.load(Ordering::Acquire), Ordering::Relaxed);
        // Set first: a thread that is ending has no membership any more, and walking there panics.
        MEMBERSHIP.set(Some(Membership));
        walkers().push(Walker(word));
        (word.load(Ordering::Relaxed), IDLE)
    })
}

/// Begins a new era, and returns the one before it. `None` if the kernel runs no barriers.
pub(super) fn now() -> Option<u64> {
    if !BARRIERS.load(Ordering::Relaxed) {
        return None;
    }
    // Release: a walker that begins in the new era sees everything done before it.
    let era = ERA.fetch_add(1, Ordering::AcqRel);
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED).then_some(era)
}

/// Whether no walk of this era or an earlier one is in progress.
pub(super) fn are_over(era: u64) -> bool {
    // SAFETY: a thread's word lives as long as it is in the list, which is locked.
    let word = |walker: &Walker| unsafe { &*walker.0 }.load(Ordering::Acquire);
    walkers().iter().map(word).all(|since| since == IDLE || since > era)
}
