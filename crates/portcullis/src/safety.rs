//! The safety rules by name, and the declaration of a design that breaks one by construction.

use core::fmt;

/// How mappings are protected.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Protection {
    /// Devices reach all memory.
    None,
    /// Once an unmap returns, the device has lost the buffer.
    Strict,
    /// The device may reach an unmapped buffer for a bounded time. Linux calls this lazy.
    Deferred,
}

impl Protection {
    /// The name on the command line and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Strict => "strict",
            Self::Deferred => "deferred",
        }
    }
}

impl fmt::Display for Protection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A safety rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Rule {
    /// S1: a device reaches only memory that is mapped for it, or that a declared stale window still covers.
    Reach,
    /// S2: under strict protection, once an unmap has returned, no access through its addresses succeeds, except to
    /// pages that another live mapping has at the same address (S8).
    Strict,
    /// S3: no address is allocated while it is live, or before its invalidation has completed.
    Reuse,
    /// S4: no table page is freed before an all-levels invalidation of its range has completed and every software walk
    /// of it has ended.
    Tables,
    /// S5: rights are never wider than requested.
    Rights,
    /// S6: a refused operation changes nothing and leaks nothing.
    Errors,
    /// S7: queues, lists and tables stay within stated limits.
    Bounds,
    /// S8: what the device can reach of a page beyond its live buffers is reported.
    SubPage,
    /// S9: reserved addresses are never allocated.
    Reserved,
    /// S10: teardown removes the context, the cached translations and the tables, in that order.
    Teardown,
    /// S11: a time-out or queue error never returns a buffer.
    Completion,
    /// S12: a faulting device cannot make fault handling unbounded.
    Storms,
    /// S13: a full or narrow address space gives a typed error.
    Exhaustion,
}

/// A rule that a design breaks by construction, under one of its protections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Breach {
    /// The protection under which it breaks the rule.
    pub protection: Protection,
    /// The rule.
    pub rule: Rule,
    /// The limits of the damage, in a few words.
    pub bound: &'static str,
}

impl Rule {
    /// The number of the rule.
    const fn number(self) -> u8 {
        match self {
            Self::Reach => 1,
            Self::Strict => 2,
            Self::Reuse => 3,
            Self::Tables => 4,
            Self::Rights => 5,
            Self::Errors => 6,
            Self::Bounds => 7,
            Self::SubPage => 8,
            Self::Reserved => 9,
            Self::Teardown => 10,
            Self::Completion => 11,
            Self::Storms => 12,
            Self::Exhaustion => 13,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S{}", self.number())
    }
}
