//! The functions of the C half.

use core::arch::asm;
use core::ffi::{c_char, c_void};

/// `PCS_HELD`. No state of interrupts has all bits set.
pub(crate) const HELD: usize = usize::MAX;

unsafe extern "C" {
    /// Memory of the kernel's general allocator. It may sleep only between `pcs_may_sleep` and `pcs_may_not_sleep`.
    /// Null if there is no memory.
    pub(crate) fn pcs_alloc(bytes: usize, align: usize) -> *mut u8;
    pub(crate) fn pcs_free(at: *mut u8);
    /// Lets the current task sleep for memory until the returned value is passed to `pcs_may_not_sleep`.
    pub(crate) fn pcs_may_sleep() -> i32;
    pub(crate) fn pcs_may_not_sleep(slot: i32);
    /// A zeroed page, as its physical address; 0 if there is none.
    pub(crate) fn pcs_page_alloc(may_sleep: bool) -> u64;
    pub(crate) fn pcs_page_free(phys: u64);
    /// Makes an unlocked lock of class `class` in memory with room for one.
    pub(crate) fn pcs_lock_init(lock: *mut c_void, class: u32);
    /// Takes a lock, disables interrupts, and returns their previous state.
    pub(crate) fn pcs_lock(lock: *mut c_void) -> usize;
    /// Takes a lock as `pcs_lock` does, or returns [`HELD`].
    pub(crate) fn pcs_try_lock(lock: *mut c_void) -> usize;
    pub(crate) fn pcs_unlock(lock: *mut c_void, flags: usize);
    /// The per-CPU variable that holds the number of its CPU. It is read relative to `gs`.
    pub(crate) static pcs_cpu: u32;
    pub(crate) fn pcs_cpus() -> u32;
    /// A cache line of words for each CPU, all zero. Null if there is no memory.
    pub(crate) fn pcs_words_alloc() -> *mut u64;
    pub(crate) fn pcs_words_free(words: *mut u64);
    /// The line of `cpu`.
    pub(crate) fn pcs_words_of(words: *mut u64, cpu: u32) -> *mut u64;
    /// Changes word `word` of the current CPU from `old` to `new`, if the current CPU is `cpu`.
    pub(crate) fn pcs_exchange_at(words: *mut u64, cpu: u32, word: usize, old: u64, new: u64) -> bool;
    pub(crate) fn pcs_now_ns() -> u64;
    /// Called only by [`rcu_lock`]. It changes no register, which no declaration in Rust can express.
    fn pcs_rcu_lock();
    /// Called only by [`rcu_unlock`]. It changes no register either.
    fn pcs_rcu_unlock();
    /// A token for the grace period of all read-side sections that are running now.
    pub(crate) fn pcs_rcu_now() -> u64;
    pub(crate) fn pcs_rcu_is_over(name: u64) -> bool;
    pub(crate) fn pcs_panic(text: *const c_char, len: usize) -> !;
    pub(crate) fn pcs_print(text: *const c_char, len: usize);
    /// The buses behind a bridge: 0 if there is no bridge, else secondary | subordinate << 8 | 1 << 16.
    pub(crate) fn pcs_buses(segment: u16, bridge: u16) -> u32;
    /// Whether a function is a display controller; negative if there is no such function.
    pub(crate) fn pcs_is_display(segment: u16, source: u16) -> i32;
    /// The next piece of the scatter list at `list`. Advances `list`.
    pub(crate) fn pcs_next_piece(list: *mut *mut c_void, len: *mut u64) -> u64;
    /// Reports a refused request: one for memory, or one for the interrupt with this index if that is not negative.
    pub(crate) fn pcs_fault(context: *mut c_void, source: u16, page: u64, is_write: bool, reason: u32, interrupt: i32);
}

/// Begins a read-side section of RCU.
#[inline(always)]
pub(crate) fn rcu_lock() {
    // SAFETY: sections may begin anywhere, and nest.
    unsafe { asm!("call {}", sym pcs_rcu_lock) }
}

/// Ends a read-side section of RCU.
///
/// # Safety
/// This CPU has begun the section.
#[inline(always)]
pub(crate) unsafe fn rcu_unlock() {
    // SAFETY: the caller's promise.
    unsafe { asm!("call {}", sym pcs_rcu_unlock) }
}
