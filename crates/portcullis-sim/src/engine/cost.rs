//! What each step of the protection layer costs a CPU, in core cycles.

use portcullis::platform::Step;
use serde::{Deserialize, Serialize};

/// The cost book of a machine. All values are in core cycles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostBook {
    /// A map, apart from the steps below: entry, checks, exit.
    pub map: u64,
    /// An unmap, apart from the steps below.
    pub unmap: u64,
    /// Visiting one more node in the search of a tree, or on the way up from a change of the tree, or one more segment
    /// in the search of a list.
    pub tree_search: u64,
    /// Descending a tree to a node.
    pub tree_find: u64,
    /// Inserting a node into a tree, including its allocation.
    pub tree_insert: u64,
    /// Finding a node and removing it from a tree.
    pub tree_erase: u64,
    /// Taking an address off a list or out of a magazine.
    pub list_pop: u64,
    /// Putting an address on a list or into a magazine.
    pub list_push: u64,
    /// Exchanging one magazine for another, apart from the lock of the depot.
    pub depot_exchange: u64,
    /// Looking a range up in a hash table.
    pub hash_find: u64,
    /// Cutting a part off a segment of addresses.
    pub segment_split: u64,
    /// Merging two neighbouring segments into one.
    pub segment_join: u64,
    /// Finding a window, taking pages from it and marking them.
    pub window_take: u64,
    /// Finding a window and claiming a mapping in it.
    pub window_claim: u64,
    /// Finding a window and giving pages back to it.
    pub window_return: u64,
    /// A map that takes a place in a chunk, apart from the steps below. Its path is shorter, and it is charged instead
    /// of `map`.
    pub chunk_map: u64,
    /// An unmap whose mapping lies in a chunk, apart from the steps below. It is charged instead of `unmap`.
    pub chunk_unmap: u64,
    /// Moving the cursor of a chunk.
    pub chunk_take: u64,
    /// Writing translations of a chunk, whose entries are already located.
    pub chunk_write: u64,
    /// Finding the table of a chunk by an address.
    pub chunk_find: u64,
    /// Clearing translations of a chunk, whose entries are already located.
    pub chunk_clear: u64,
    /// Each further entry written or cleared in a chunk.
    pub chunk_entry: u64,
    /// Spending pages of a chunk.
    pub chunk_return: u64,
    /// Finding the ring of a stream, and taking the entry at its tail.
    pub ring_take: u64,
    /// Writing an entry of a ring, and the barrier behind it.
    pub ring_write: u64,
    /// Finding a ring by an address.
    pub ring_find: u64,
    /// Claiming the mapping of an entry, invalidating the entry, and the barrier behind it.
    pub ring_clear: u64,
    /// Making an entry free.
    pub ring_return: u64,
    /// Each further entry in one of the ring steps.
    pub ring_entry: u64,
    /// Reading one level of a translation table.
    pub table_read: u64,
    /// Reading each further neighbouring entry.
    pub table_scan: u64,
    /// Writing translations: once per run of neighbouring entries.
    pub table_write: u64,
    /// Claiming a mapping by the mark in its first entry.
    pub table_claim: u64,
    /// Clearing translations: once per run of neighbouring entries.
    pub table_clear: u64,
    /// Writing or clearing each further neighbouring entry.
    pub table_entry: u64,
    /// What each entry takes in addition if it is written or cleared by compare-exchange, and counted.
    pub table_exchange: u64,
    /// Allocating a table page from the host, or freeing it.
    pub table_page: u64,
    /// Flushing one cache line and waiting for it, if the walker does not snoop.
    pub line_flush: u64,
    /// Each further line of one flush. There is one wait for all lines.
    pub line_flush_next: u64,
    /// A store fence, if the walker snoops.
    pub store_fence: u64,
    /// Putting an unmap into a flush queue.
    pub flush_queue_push: u64,
    /// Joining an unmap to a run of unmaps that waits on its CPU.
    pub flush_queue_join: u64,
    /// Writing one descriptor.
    pub queue_descriptor: u64,
    /// Writing a register of the IOMMU.
    pub register_write: u64,
    /// Reading a register of the IOMMU.
    pub register_read: u64,
    /// Taking and releasing an uncontended lock.
    pub lock: u64,
    /// Moving a cache line between cores. Part of taking a lock last held on another core, of each hand-off, and of
    /// each command that is posted for the holder of the invalidation queue.
    pub line_transfer: u64,
    /// What each core that still waits adds to a hand-off.
    pub handoff_per_waiter: u64,
    /// One turn of a spin on the hardware.
    pub poll: u64,
    /// Copying 1,024 bytes of memory. Clearing them takes no longer, and is charged the same.
    pub copy_kib: u64,
    /// Whether steps that [bring their price](Step::Own) cost nothing either.
    #[serde(skip)]
    pub own_is_free: bool,
}

impl CostBook {
    /// A book in which software costs nothing. A turn of a spin keeps its cost, because time must pass while a core
    /// spins.
    #[must_use]
    pub fn free(&self) -> Self {
        Self { poll: self.poll, own_is_free: true, ..Self::default() }
    }

    /// The cost of `entries` neighbouring entries, if the first costs `first`.
    #[inline(always)]
    fn neighbours(&self, first: u64, entries: usize) -> u64 {
        first + self.table_entry * (entries as u64 - 1)
    }

    /// The cost of `entries` entries of a chunk, if the first costs `first`.
    #[inline(always)]
    fn of_chunk(&self, first: u64, entries: usize) -> u64 {
        first + self.chunk_entry * (entries as u64).saturating_sub(1)
    }

    /// The cost of `entries` entries of a ring, if the first costs `first`.
    fn of_ring(&self, first: u64, entries: usize) -> u64 {
        first + self.ring_entry * (entries as u64).saturating_sub(1)
    }

    /// The cost of `step`.
    #[inline(always)]
    pub fn of(&self, step: Step) -> u64 {
        match step {
            Step::Map => self.map,
            Step::Unmap => self.unmap,
            Step::TreeSearch { nodes } | Step::TreeSettle { nodes } => self.tree_search * nodes,
            Step::TreeFind => self.tree_find,
            Step::TreeInsert => self.tree_insert,
            Step::TreeErase => self.tree_erase,
            Step::ListPop => self.list_pop,
            Step::ListPush => self.list_push,
            Step::DepotExchange => self.depot_exchange,
            Step::HashFind => self.hash_find,
            Step::SegmentSplit => self.segment_split,
            Step::SegmentJoin => self.segment_join,
            Step::WindowTake => self.window_take,
            Step::WindowClaim => self.window_claim,
            Step::WindowReturn => self.window_return,
            Step::ChunkMap => self.chunk_map,
            Step::ChunkUnmap => self.chunk_unmap,
            Step::ChunkTake => self.chunk_take,
            Step::ChunkWrite { entries } => self.of_chunk(self.chunk_write, entries),
            Step::ChunkFind => self.chunk_find,
            Step::ChunkClear { entries } => self.of_chunk(self.chunk_clear, entries),
            Step::ChunkReturn => self.chunk_return,
            Step::RingTake { entries } => self.of_ring(self.ring_take, entries),
            Step::RingWrite { entries } => self.of_ring(self.ring_write, entries),
            Step::RingFind => self.ring_find,
            Step::RingClear { entries } => self.of_ring(self.ring_clear, entries),
            Step::RingReturn { entries } => self.of_ring(self.ring_return, entries),
            Step::TableScan { entries } => self.table_read + self.table_scan * (entries as u64 - 1),
            Step::TableWalk { levels } => self.table_read * u64::from(levels),
            Step::TableWrite { entries } => self.neighbours(self.table_write, entries),
            Step::TableShare { entries } => {
                self.neighbours(self.table_write, entries) + self.table_exchange * entries as u64
            }
            Step::TableClaim => self.table_claim,
            Step::TableClear { entries } => self.neighbours(self.table_clear, entries),
            Step::TableUnshare { entries } => {
                self.neighbours(self.table_clear, entries) + self.table_exchange * entries as u64
            }
            Step::TablePage => self.table_page,
            Step::FlushQueuePush => self.flush_queue_push,
            Step::FlushQueueJoin => self.flush_queue_join,
            Step::QueueWrite { descriptors } => self.queue_descriptor * descriptors as u64,
            // The line of the post moves to the holder of the queue and back, and is read and written on both sides.
            // The holder writes without waiting.
            Step::QueuePost => 2 * self.line_transfer,
            Step::QueueTake => self.queue_descriptor + self.line_transfer,
            Step::RegisterWrite => self.register_write,
            Step::RegisterRead => self.register_read,
            Step::Own { cycles } => cycles * u64::from(!self.own_is_free),
            Step::Copy { bytes } | Step::Clear { bytes } => (self.copy_kib * bytes).div_ceil(1024),
            // Entering a phase costs nothing. A step that a later design adds is free until it gets a price here.
            _ => 0,
        }
    }
}
