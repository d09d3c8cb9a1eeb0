//! The checks, with one file for each subject.

mod attach;
mod bring_up;
mod context;
mod context_cache;
mod designs;
mod errors;
mod faults;
mod invalidation;
mod leaves;
mod life;
mod maps;
mod queue;
mod queue_errors;
mod ranges;
mod reserved;
mod rights;
mod teardown;
mod translation;
mod unmaps;

use super::Check;
use super::wiring::{Wired, WiredUnit};
use portcullis::mapper::Design;

/// All checks.
pub(super) fn all() -> Vec<Check> {
    [
        translation::CHECKS,
        rights::CHECKS,
        leaves::CHECKS,
        invalidation::CHECKS,
        ranges::CHECKS,
        context::CHECKS,
        context_cache::CHECKS,
        queue::CHECKS,
        queue_errors::CHECKS,
        faults::CHECKS,
        bring_up::CHECKS,
        attach::CHECKS,
        maps::CHECKS,
        unmaps::CHECKS,
        designs::CHECKS,
        life::CHECKS,
        reserved::CHECKS,
        errors::CHECKS,
        teardown::CHECKS,
    ]
    .concat()
}

/// The checks of one design, for each protection that it offers. The design need not be in any list. There are no
/// checks for a design whose addresses are physical, nor for one that needs hardware that does not exist.
pub fn of_design<D: Design<Wired, WiredUnit>>() -> Vec<Check> {
    designs::of::<D>()
}
