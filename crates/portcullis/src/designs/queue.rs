//! Which flush queue a design has under deferred protection, as a parameter.

use crate::invalidation::Deferral;
use crate::mapper::{OptionInfo, OptionKind, Options};
use crate::safety::{Breach, Protection, Rule};

/// The parameter that chooses the flush queue.
pub const fn queue_option(default: &'static str) -> OptionInfo {
    OptionInfo {
        key: "queue",
        kind: OptionKind::Word(&["global", "per-core"]),
        default,
        description: "the flush queue under deferred protection",
    }
}

/// The flush queue that the options choose, or `default`.
pub fn queue_kind(options: &Options, default: Deferral) -> Deferral {
    match options.word("queue") {
        Some("global") => Deferral::Global,
        Some("per-core") => Deferral::PER_CPU,
        _ => default,
    }
}

/// The breach of deferred protection with the global queue.
pub const GLOBAL_WINDOW: Breach = Breach {
    protection: Protection::Deferred,
    rule: Rule::Strict,
    bound: "250 unmaps or 10 ms, whichever comes first",
};
/// The breach of deferred protection with a queue per CPU.
pub const PER_CPU_WINDOW: Breach = Breach {
    protection: Protection::Deferred,
    rule: Rule::Strict,
    bound: "256 unmaps of a CPU or 10 ms, whichever comes first",
};
