//! The kit can fail: a subject that keeps its promises passes, and each planted flaw is found by the name of its rule.

mod allocators;
mod designs;
mod hosts;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Asserts that `check` panics with a message that contains `expected`.
fn fails(expected: &str, check: impl FnOnce()) {
    let panic = catch_unwind(AssertUnwindSafe(check)).expect_err("the flaw was not found");
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).expect("a message");
    assert!(text.contains(expected), "expected `{expected}`: {text}");
}
