//! Machines: a cost book, an IOMMU, and what the machine reaches unprotected. Every value has its source.
//!
//! Sources: \[E\] EiovaR, FAST'15; \[R\] rIOMMU, ASPLOS'15, Table 1; \[F\] Fast & Safe, SOSP'24; *peers*: Linux 6.12's own code
//! timed in user space on a recent two-core machine; *assumed*: neither published nor measured.

use crate::engine::{CostBook, Frequency};
use portcullis_model::Parameters;
use serde::Serialize;

/// A machine.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The name on the command line and in JSON.
    pub id: &'static str,
    /// What it is.
    pub description: &'static str,
    /// Where the values come from.
    pub source: &'static str,
    /// Clock of a core, in hertz.
    pub core_hz: f64,
    /// Cores that serve the device when it is unprotected at full rate.
    pub cores: u32,
    /// What the device transfers with no IOMMU, in Gb/s.
    pub unprotected_gbps: f64,
    /// What the CPUs do per byte with no protection, in cycles of one core.
    pub unprotected_cycles_per_byte: f64,
    /// Bytes that the device keeps in flight.
    pub bytes_in_flight: u64,
    /// Bytes in a transaction on the bus.
    pub transaction_bytes: u64,
    /// What each step costs.
    pub costs: CostBook,
    /// The IOMMU.
    pub iommu: Parameters,
}

impl Machine {
    /// Every machine.
    pub fn all() -> Vec<Self> {
        vec![r210_cx3(), cascadelake_cx5()]
    }

    /// The machine called `id`.
    pub fn by_id(id: &str) -> Option<Self> {
        Self::all().into_iter().find(|machine| machine.id == id)
    }

    /// The clock of a core.
    pub fn frequency(&self) -> Frequency {
        Frequency::new(self.core_hz)
    }
}

/// Cycles in which a core copies 1,024 bytes: `memcpy` moves 13 GB/s from memory to memory on an i7-6700HQ with DDR4-2400 (the 26 GB/s of
/// Stack Overflow question 43343231 count what is read and what is written). What lies in the caches takes less, so it is a price from
/// above.
const fn copy_kib(core_hz: f64) -> u64 {
    const COPIED_PER_SECOND: f64 = 13e9;
    (core_hz * 1024.0 / COPIED_PER_SECOND) as u64
}

/// The machine of EiovaR and rIOMMU.
///
/// The cost book adds up to the unit costs of \[R\] Table 1, strict, for what a map and an unmap of one page execute: table
/// 588 and 438, find 249, free 159, other 44 and 26, invalidation 2127 (of which the hardware takes what the software steps
/// leave); 205 for queueing a deferred unmap. An allocation without a search is its 92; a step of the search is 50, from the
/// 47–57 that \[E\] Table 2 implies.
fn r210_cx3() -> Machine {
    const LOCK: u64 = 20; // assumed: two atomics on a line in the L1 cache
    const ATOMIC: u64 = 25; // assumed: one on a line in the L1 cache
    const WINDOW_FIND: u64 = 10; // assumed: two loads from the L1 cache, one after the other
    const CHUNK_SPEND: u64 = 5; // assumed: a load and a store in the L1 cache
    // MFENCE on Sandy Bridge, from memory of published instruction tables, unverified. The published driver makes one for every
    // entry that it changes, whether or not walks snoop; what flushing takes where they do not comes on top.
    const BARRIER: u64 = 33;
    const SECOND_CACHE: u64 = 12; // from memory, unverified: a load from the L2 cache, where a ring of 64 KiB lies
    const LINE_FLUSH: u64 = 279; // [R] derived
    const TABLE_READ: u64 = 30; // assumed; with four levels, table_clear makes up the sum
    const CORE_HZ: f64 = 3.1e9;
    const UNPROTECTED_GBPS: f64 = 19.79; // [R] calibration, Netperf stream
    Machine {
        id: "r210-cx3",
        description: "Xeon E3-1220 3.1 GHz, one core, walks that do not snoop, ConnectX-3 40 GbE (2012)",
        source: "unit costs of rIOMMU Table 1, search step of EiovaR Table 2; IOMMU sizes derived or assumed",
        core_hz: CORE_HZ,
        cores: 1,
        unprotected_gbps: UNPROTECTED_GBPS,
        // The unprotected run is bound by the CPU [R]: all of its cycles go into the bytes.
        unprotected_cycles_per_byte: CORE_HZ * 8.0 / (UNPROTECTED_GBPS * 1e9),
        bytes_in_flight: 4096,
        transaction_bytes: 512,
        costs: CostBook {
            map: 44,
            unmap: 26,
            tree_search: 50,
            tree_find: 249 - LOCK,
            tree_insert: 92 - LOCK,
            tree_erase: 159 - LOCK,
            list_pop: 92 - LOCK,  // [R]: an allocation under EiovaR
            list_push: 62 - LOCK, // likewise a free
            depot_exchange: 50,   // assumed
            hash_find: 60,        // assumed: a chain of one or two, in the caches
            segment_split: 60,    // assumed: two lines in the caches, written
            segment_join: 60,     // assumed: likewise
            window_take: WINDOW_FIND + 2 * ATOMIC,
            window_claim: WINDOW_FIND + ATOMIC,
            window_return: WINDOW_FIND + ATOMIC,
            chunk_take: WINDOW_FIND + ATOMIC, // a host without cheaper words of a CPU's own
            chunk_find: WINDOW_FIND,
            chunk_return: WINDOW_FIND + CHUNK_SPEND,
            // The tail and the state of the entry are exchanged. That a map and an unmap take about 131 cycles each where walks snoop
            // [R] is no price here, but what the sum is held against.
            ring_take: WINDOW_FIND + SECOND_CACHE + 2 * ATOMIC,
            ring_write: CHUNK_SPEND + BARRIER,
            ring_find: WINDOW_FIND,
            ring_clear: SECOND_CACHE + ATOMIC + BARRIER,
            ring_return: CHUNK_SPEND,
            ring_entry: 10, // assumed, as `table_entry`
            table_read: TABLE_READ,
            table_scan: 1, // assumed: a load and a comparison
            table_write: 588 - LINE_FLUSH - 4 * TABLE_READ,
            table_claim: ATOMIC,
            table_exchange: ATOMIC,
            table_clear: 438 - LINE_FLUSH - 4 * TABLE_READ,
            table_entry: 10,  // assumed
            table_page: 1000, // assumed: zeroing and flushing 64 lines overlaps
            line_flush: LINE_FLUSH,
            // CLFLUSH over arrays of 1 to 17 MB takes 50.4 ns a line on a Xeon with 20 MB of last-level cache (the slope of the
            // table in Stack Overflow question 35900401); at 3.1 GHz that is 156 cycles.
            line_flush_next: 156,
            store_fence: 0,
            flush_queue_push: 205 - LOCK,
            queue_descriptor: 30, // assumed
            register_write: 100,  // assumed: a posted write
            register_read: 500,   // assumed: a round trip to the chipset
            lock: LOCK,
            line_transfer: 100,     // assumed: one socket, shared L3
            handoff_per_waiter: 50, // assumed: waiters read the line one after the other
            poll: 20,               // assumed
            copy_kib: copy_kib(CORE_HZ),
        },
        iommu: Parameters::sandybridge(),
    }
}

/// The machine of Fast & Safe.
///
/// Software costs are those of Linux 6.12's own code on a recent machine (*peers*, medians): a search step is the slope of
/// the two-ring runs, a lock and a line transfer the two-thread runs. The invalidation hardware is assumed to take as long
/// as on `r210-cx3`, for want of a published value.
fn cascadelake_cx5() -> Machine {
    const CORE_HZ: f64 = 3.3e9;
    const LOCK: u64 = 8; // peers: uncontended spinlock
    const CHUNK_SPEND: u64 = 5; // assumed: a load and a store in the L1 cache
    const BARRIER: u64 = 7; // peers: a store and a locked add
    const SECOND_CACHE: u64 = 14; // from memory, unverified: a load from the L2 cache, where a ring of 64 KiB lies
    const EXCHANGE: u64 = 9; // peers: lock cmpxchg
    const ATOMIC: u64 = 7; // peers: lock xadd
    const WINDOW_FIND: u64 = 10; // assumed: two loads from the L1 cache, one after the other
    const TABLE_READ: u64 = 8; // assumed share of the 224 cycles per map and unmap of a page (peers)
    const UNPROTECTED_GBPS: f64 = 97.6; // [F] calibration, 5 flows
    Machine {
        id: "cascadelake-cx5",
        description: "Xeon Gold 6234 3.3 GHz, 5 cores, ConnectX-5 100 GbE (2019)",
        source: "Fast & Safe (SOSP'24) for rates and walks; software costs of Linux 6.12 measured on a recent machine; IOMMU sizes and invalidation time derived or assumed",
        core_hz: CORE_HZ,
        cores: 5,
        unprotected_gbps: UNPROTECTED_GBPS,
        // Five cores are the fewest that fill the link [F §2.2], so one of four would carry a quarter of it at most.
        unprotected_cycles_per_byte: CORE_HZ * 8.0 / (UNPROTECTED_GBPS * 1e9 / 4.0),
        bytes_in_flight: 4096,  // [F]: p
        transaction_bytes: 512, // [F] derived
        costs: CostBook {
            map: 30,   // assumed share of the 328 cycles of a dma_map and dma_unmap (peers)
            unmap: 30, // likewise
            tree_search: 18,
            tree_find: 50 - LOCK,
            tree_insert: 65 - LOCK, // with the erase: 120 cycles per allocation and free on one ring (peers)
            tree_erase: 55 - LOCK,
            list_pop: 21 - LOCK, // peers: with the push, 42 cycles per allocation and free from magazines
            list_push: 21 - LOCK,
            depot_exchange: 20, // assumed
            hash_find: 20,      // assumed: a chain of one or two, in the caches
            segment_split: 20,  // assumed: two lines in the caches, written
            segment_join: 20,   // assumed: likewise
            window_take: WINDOW_FIND + EXCHANGE + ATOMIC,
            window_claim: WINDOW_FIND + ATOMIC,
            window_return: WINDOW_FIND + ATOMIC,
            chunk_take: WINDOW_FIND + ATOMIC, // a host without cheaper words of a CPU's own
            chunk_find: WINDOW_FIND,
            chunk_return: WINDOW_FIND + CHUNK_SPEND,
            ring_take: WINDOW_FIND + SECOND_CACHE + 2 * EXCHANGE,
            ring_write: CHUNK_SPEND + BARRIER,
            ring_find: WINDOW_FIND,
            ring_clear: SECOND_CACHE + EXCHANGE + BARRIER,
            ring_return: CHUNK_SPEND,
            ring_entry: 11, // as `table_entry`
            table_read: TABLE_READ,
            table_scan: 1, // assumed: a load and a comparison
            table_write: 120 - 4 * TABLE_READ,
            table_claim: 20, // assumed: an atomic on a line in the L1 cache
            // peers: a load and a locked cmpxchg in the L1 cache, 9, instead of a store, 1
            table_exchange: 8,
            table_clear: 104 - 4 * TABLE_READ,
            table_entry: 11, // peers: 64 pages cost 906 cycles, one 224, both ways
            table_page: 400, // assumed: zeroing a page
            line_flush: 600, // peers: 544-977
            // peers: eight lines flushed with CLFLUSHOPT and one fence take 745 cycles, one line of ever another place 683; so
            // (745 - 683) / 7.
            line_flush_next: 9,
            store_fence: 0,
            flush_queue_push: 60, // assumed
            queue_descriptor: 15, // assumed
            register_write: 100,  // assumed: a posted write
            register_read: 700,   // assumed: a round trip to the root complex
            lock: LOCK,
            line_transfer: 157,     // peers: half a round trip between two cores
            handoff_per_waiter: 78, // assumed: half a transfer for each core that still reads the line
            poll: 20,               // assumed
            copy_kib: copy_kib(CORE_HZ),
        },
        iommu: Parameters::cascadelake(),
    }
}
