//! What the hardware counts.

use serde::Serialize;

/// Events since the hardware was made. `iotlb_hits + iotlb_misses == lookups`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Counters {
    /// Questions to the IOTLB: one for each request of a device that goes through tables.
    pub lookups: u64,
    /// Lookups that started no walk.
    pub iotlb_hits: u64,
    /// Those of the hits that joined a walk under way.
    pub iotlb_joined: u64,
    /// Lookups that started a walk.
    pub iotlb_misses: u64,
    /// Walks that had to read the pointer to a table at level 3, which serves 512 GiB.
    pub ptcache_l1_misses: u64,
    /// Walks that had to read the pointer to a table at level 2, which serves 1 GiB.
    pub ptcache_l2_misses: u64,
    /// Walks that had to read the pointer to a leaf table, which serves 2 MiB. A walk that ends at a large leaf has none.
    pub ptcache_l3_misses: u64,
    /// Table entries read by walks: the misses of the IOTLB and of the three paging-structure caches together.
    pub memory_reads: u64,
    /// Walks that a prefetcher or a driver asked for, whatever they found.
    pub prefetches_issued: u64,
    /// Those of the prefetches that were in the buffer when they were asked for: hits.
    pub prefetches_useful: u64,
    /// Those that were asked for while still under way: hits that wait, and among those that joined.
    pub prefetches_late: u64,
    /// Those that left the buffer, or were invalidated under way, before anybody had asked for them.
    pub prefetches_useless: u64,
    /// Those that found nothing mapped.
    pub prefetches_unmapped: u64,
    /// Table entries read by these walks, and ahead in rings, which has no other count; no part of `memory_reads`.
    pub prefetch_reads: u64,
    /// Walks that read a page which nobody had allocated (a violation of S4).
    pub walks_into_freed: u64,
    /// Root and context entries read, as pairs, because the context cache had none.
    pub context_misses: u64,
    /// Requests for another entry of a ring than the one before.
    pub ring_switches: u64,
    /// Entries of rings that had to be read because they do not follow the one before.
    pub ring_out_of_order: u64,
    /// Those that had to be read because the ring was invalidated after the one before.
    pub ring_after_invalidation: u64,
    /// Those that had to be read because they were not valid when they were read ahead.
    pub ring_mapped_later: u64,
    /// Those that were asked for before the one before had arrived, and with it the time to read ahead.
    pub ring_close_behind: u64,
    /// Those of whose ring nothing was there: the first of it, or the first since it made room for another. With the four counts above
    /// these are all misses of rings but those of requests that were refused.
    pub ring_first: u64,
    /// Requests refused.
    pub faults: u64,
    /// Page-selective invalidations executed.
    pub invalidations_page: u64,
    /// Domain-selective invalidations executed.
    pub invalidations_domain: u64,
    /// Global invalidations executed.
    pub invalidations_global: u64,
    /// Context-cache invalidations executed.
    pub invalidations_context: u64,
    /// Wait descriptors executed.
    pub waits: u64,
    /// Descriptors executed, of every type.
    pub descriptors: u64,
}
