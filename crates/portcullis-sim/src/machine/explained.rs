//! What each value of a machine means that users may set: a sentence for `list machines`.

use super::Machine;
use super::value::names;

/// The values of the machine, of its cost book, of its sharing, of its IOMMU and of its server, with their meanings.
/// Prices are in core cycles unless another unit is said.
const MEANINGS: &[(&str, &str)] = &[
    ("core_hz", "clock of a core, in hertz"),
    ("cores", "cores that may serve devices"),
    ("link_gbps", "what the link carries, in Gb/s; null: no link, so all traffic is a disk's"),
    ("unprotected_cycles_per_byte", "CPU work of network traffic without protection, per byte of the buffers"),
    ("disks", "disks behind a device: more than one for a controller"),
    ("disk_iops", "requests that a disk serves a second; null: no disks, so all traffic is a network card's"),
    ("disk_bytes_per_second", "bytes that a disk moves a second"),
    ("disk_bytes_in_flight", "bytes that a disk keeps in flight; null: as many as a network card"),
    ("unprotected_cycles_per_request", "CPU work of a disk request without protection"),
    ("bytes_in_flight", "bytes that a network card keeps in flight"),
    ("transaction_bytes", "bytes in a transaction on the bus"),
    ("map", "a map, apart from the steps below"),
    ("unmap", "an unmap, apart from the steps below"),
    ("tree_search", "one more node in the search of a tree of addresses"),
    ("tree_find", "descending such a tree to a node"),
    ("tree_insert", "inserting a node"),
    ("tree_erase", "removing a node"),
    ("list_pop", "taking an address from a list or a magazine"),
    ("list_push", "putting an address into a list or a magazine"),
    ("depot_exchange", "exchanging a magazine at the depot"),
    ("hash_find", "looking a range up in a hash table"),
    ("segment_split", "cutting a part off a segment of addresses"),
    ("segment_join", "merging two segments"),
    ("window_take", "taking pages from a window (fast-and-safe)"),
    ("window_claim", "claiming a mapping in a window"),
    ("window_return", "giving pages back to a window"),
    ("chunk_map", "a map in a chunk (portcullis), in place of `map`"),
    ("chunk_unmap", "an unmap in a chunk, in place of `unmap`"),
    ("chunk_take", "moving the cursor of a chunk"),
    ("chunk_write", "writing entries of a chunk"),
    ("chunk_find", "finding the table of a chunk"),
    ("chunk_clear", "clearing entries of a chunk"),
    ("chunk_entry", "each further entry in a chunk"),
    ("chunk_return", "spending pages of a chunk"),
    ("ring_take", "taking the entry at the tail of a ring (riommu)"),
    ("ring_write", "writing an entry of a ring"),
    ("ring_find", "finding a ring by an address"),
    ("ring_clear", "clearing an entry of a ring"),
    ("ring_return", "making an entry of a ring free"),
    ("ring_entry", "each further entry of a ring"),
    ("table_read", "reading one level of a translation table"),
    ("table_scan", "reading a neighbouring entry"),
    ("table_write", "writing a run of entries"),
    ("table_claim", "claiming a mapping in its first entry"),
    ("table_clear", "clearing a run of entries"),
    ("table_entry", "each further entry of a run"),
    ("table_exchange", "what an entry takes more if it is exchanged atomically"),
    ("table_page", "allocating or freeing a table page"),
    ("line_flush", "flushing a cache line, where walks do not snoop"),
    ("line_flush_next", "each further line of a flush"),
    ("store_fence", "a store fence, where walks snoop"),
    ("flush_queue_push", "putting an unmap into a flush queue"),
    ("flush_queue_join", "joining an unmap to those that wait on its CPU"),
    ("queue_descriptor", "writing an invalidation descriptor"),
    ("register_write", "writing a register of the IOMMU"),
    ("register_read", "reading a register of the IOMMU"),
    ("lock", "taking and releasing a free lock"),
    ("line_transfer", "moving a cache line between cores"),
    ("handoff_per_waiter", "what each waiting core adds when a lock changes hands"),
    ("poll", "one look at the hardware while waiting"),
    ("copy_kib", "copying 1,024 bytes"),
    ("sockets", "sockets, over which the CPUs are spread"),
    ("numbering", "how CPUs are numbered: blocks, or alternating over the sockets"),
    ("line_transfer_far", "moving a cache line from the other socket"),
    ("lock_kind", "the host's locks: ticket or queued"),
    ("iova_lock_lines", "lines of data behind the lock of an address allocator"),
    ("queue_lock_lines", "lines of data behind the lock of an invalidation queue"),
    ("iotlb_entries", "entries of the IOTLB; 0: none"),
    ("iotlb_ways", "entries in a set of the IOTLB; 0: fully associative"),
    ("iotlb_replacement", "which entry of the IOTLB gives way"),
    ("ptcache_l1_entries", "entries of PTcache-L1, for 512 GiB each"),
    ("ptcache_l2_entries", "entries of PTcache-L2, for 1 GiB each"),
    ("ptcache_l3_entries", "entries of PTcache-L3, for 2 MiB each"),
    ("walkers", "page walks under way at once"),
    ("memory_read_ps", "reading one level of a table in a walk, in picoseconds"),
    ("hit_ps", "a transaction that needs no walk, in picoseconds"),
    ("invalidation_ps", "executing an invalidation descriptor, in picoseconds"),
    ("wait_ps", "executing a wait descriptor, in picoseconds"),
    ("honours_hint", "whether the invalidation hint spares the paging-structure caches"),
    ("psi_drops", "what a page-selective invalidation without the hint drops from the IOTLB"),
    ("queued_invalidation", "whether there is an invalidation queue"),
    ("page_selective", "whether single pages can be invalidated"),
    ("mamv", "the largest address mask of such an invalidation"),
    ("drains", "whether an invalidation can drain DMA in flight"),
    ("coherent", "whether walks snoop the CPUs' caches"),
    ("caching_mode", "whether absent entries may be cached, so that maps invalidate too"),
    ("rwbf", "whether the write buffer needs flushing"),
    ("pass_through", "whether devices can be passed through"),
    ("rings", "whether devices can use rings (riommu); no real unit has them"),
    ("three_level", "whether tables of 3 levels are supported"),
    ("four_level", "whether tables of 4 levels are supported"),
    ("leaf_2m", "whether 2 MiB leaves are supported"),
    ("leaf_1g", "whether 1 GiB leaves are supported"),
    ("address_bits", "width of the widest IOVA"),
    ("physical_bits", "width of a physical address"),
    ("domain_id_bits", "width of a domain id"),
    ("fault_registers", "fault recording registers"),
    ("prefetcher", "the prefetcher of the IOTLB, as `--prefetch` takes it; no real unit has one"),
    ("receive_buffer_bytes", "the card's buffer for what it receives (`simulate`)"),
    ("transmit_rings", "transmit rings of the driver (`simulate`)"),
    ("receive_rings", "receive rings of the driver (`simulate`)"),
    ("fragment_bytes", "bytes of a run from which receive buffers are cut (`simulate`)"),
    ("joined_bytes", "bytes of segments that the card joins at most; 0: it joins none (`simulate`)"),
    ("silence_ps", "how long the card waits for the next segment to join, in picoseconds (`simulate`)"),
    ("cycles_per_transaction", "CPU work of a request and its reply (`simulate`)"),
];

impl Machine {
    /// The values that may be set on one of `machines`, each with its meaning, in the order in which they belong
    /// together.
    pub fn explained(machines: &[Self]) -> Vec<(&'static str, &'static str)> {
        let there: Vec<String> =
            machines.iter().filter_map(|machine| machine.values().ok()).flat_map(|all| names(&all)).collect();
        MEANINGS.iter().copied().filter(|(key, _)| there.iter().any(|name| name == key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_that_may_be_set_has_a_meaning_and_every_meaning_a_value() {
        let machines = Machine::all();
        let mut there: Vec<String> =
            machines.iter().flat_map(|machine| names(&machine.values().expect("values"))).collect();
        there.sort_unstable();
        there.dedup();
        let mut explained: Vec<&str> = MEANINGS.iter().map(|(key, _)| *key).collect();
        explained.sort_unstable();
        assert_eq!(explained, there);
        assert_eq!(Machine::explained(&machines).len(), there.len());
    }
}
