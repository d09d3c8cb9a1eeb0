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
