//! What the processor reports of itself.

use core::arch::x86_64::{__cpuid_count, CpuidResult};

/// The answer of the instruction CPUID for a leaf, in its subleaf 0. A leaf that the processor does not have gives
/// something else.
#[allow(unused_unsafe, reason = "the function is unsafe to the oldest compiler and safe to newer ones")]
pub(super) fn cpuid(leaf: u32) -> CpuidResult {
    // SAFETY: every processor of the architecture has the instruction.
    unsafe { __cpuid_count(leaf, 0) }
}
