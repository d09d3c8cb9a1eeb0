//! What unmaps leave for their commit: pages, and what is due for them.

use crate::address::IovaRange;

/// What a commit has to do for a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// Invalidate its pages, now or later, and give them back to their allocator.
    Invalidation,
    /// Invalidate its pages at once, and put them back where they were set aside: for placed mappings.
    InvalidationAtOnce,
    /// Nothing: every page has other mappings at the same address, so no translation was removed.
    Nothing,
    /// Nothing, and the address stays in use: the design keeps the page mapped for a later map of it, as it declares.
    StaysMapped,
}

/// An unmapped mapping, or several side by side, whose translations may still be cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Revoked {
    /// Its pages, or entry numbers if its addresses are those of [entries](crate::mapper::Addressing::Entries).
    pub range: IovaRange,
    /// What has to be done for them.
    pub due: Due,
    /// Whether the unmap freed no table page, so that the invalidation may leave cached table pointers alone. Without
    /// meaning if nothing is due.
    pub leaf_only: bool,
    /// The number of mappings.
    pub unmaps: usize,
}

impl Revoked {
    /// One mapping by itself.
    pub const fn one(range: IovaRange, due: Due, leaf_only: bool) -> Self {
        Self { range, due, leaf_only, unmaps: 1 }
    }
}
