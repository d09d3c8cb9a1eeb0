//! Counters of the hardware's events.

use serde::Serialize;

/// Events since the unit was made. `iotlb_hits + iotlb_misses == lookups`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Counters {
    /// IOTLB lookups: one for each request of a device that goes through tables or rings.
    pub lookups: u64,
    /// Lookups that started no walk.
    pub iotlb_hits: u64,
    /// Hits that joined a walk under way.
    pub iotlb_joined: u64,
    /// Lookups that started a walk.
    pub iotlb_misses: u64,
    /// Walks that had to read the pointer to a table at level 3, which serves 512 GiB.
    pub ptcache_l1_misses: u64,
    /// Walks that had to read the pointer to a table at level 2, which serves 1 GiB.
    pub ptcache_l2_misses: u64,
    /// Walks that had to read the pointer to a leaf table, which serves 2 MiB. A walk that ends at a large leaf reads
    /// no such pointer.
    pub ptcache_l3_misses: u64,
    /// Table entries read by walks for requests. Without rings, this is the sum of the misses of the IOTLB and of the
    /// three paging-structure caches.
    pub memory_reads: u64,
    /// Walks that a prefetcher or a driver started, whatever they found.
    pub prefetches_issued: u64,
    /// Prefetches that were in the buffer when they were requested. They count as hits.
    pub prefetches_useful: u64,
    /// Prefetches that were requested while still under way. They count as hits that wait, and as joined.
    pub prefetches_late: u64,
    /// Prefetches that left the buffer, or were invalidated under way, before they were requested.
    pub prefetches_useless: u64,
    /// Prefetches that found nothing mapped.
    pub prefetches_unmapped: u64,
    /// Table entries read by prefetch walks and by fetching ahead in rings, which has no other count. Not part of
    /// `memory_reads`.
    pub prefetch_reads: u64,
    /// Walks that read a page that was not allocated (a violation of S4).
    pub walks_into_freed: u64,
    /// Pairs of a root entry and a context entry that were read because the context cache missed.
    pub context_misses: u64,
    /// Requests for a different entry of a ring than the previous request.
    pub ring_switches: u64,
    /// Entries of rings that had to be read because they do not follow the previous one.
    pub ring_out_of_order: u64,
    /// Entries of rings that had to be read because the ring was invalidated after the previous request.
    pub ring_after_invalidation: u64,
    /// Entries of rings that had to be read because they were not valid when they were fetched ahead.
    pub ring_mapped_later: u64,
    /// Entries of rings that were requested before the previous entry had arrived, so that they could not be fetched
    /// ahead.
    pub ring_close_behind: u64,
    /// Entries of rings of which nothing was cached: the first of a ring, or the first since the ring was evicted.
    /// Together with the four counts above, these are all misses of rings, except those of refused requests.
    pub ring_first: u64,
    /// Refused requests.
    pub faults: u64,
    /// Page-selective invalidations executed.
    pub invalidations_page: u64,
    /// Domain-selective invalidations executed.
    pub invalidations_domain: u64,
    /// Global invalidations executed.
    pub invalidations_global: u64,
    /// IOTLB entries of pages that were still mapped, among the pages of commands for more than one page. Only entries
    /// of 4 KiB are counted.
    pub iotlb_dropped_live: u64,
    /// Context-cache invalidations executed.
    pub invalidations_context: u64,
    /// Wait descriptors executed.
    pub waits: u64,
    /// Descriptors executed, of every type.
    pub descriptors: u64,
    /// The time for which descriptors were executed, in picoseconds. One queue executes one after the other.
    pub queue_busy_ps: u64,
}
