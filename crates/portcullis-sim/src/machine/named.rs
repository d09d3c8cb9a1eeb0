//! The machines that have a name. Every value has its source.
//!
//! Sources: \[E\] EiovaR, FAST'15; \[R\] rIOMMU, ASPLOS'15, Table 1; \[F\] Fast & Safe, SOSP'24; *peers*: Linux 6.12's
//! own code timed in user space on a recent two-core machine; *assumed*: neither published nor measured.

use super::{Machine, servers};
use crate::engine::{CostBook, LockKind, Numbering, Sharing};
use portcullis_model::Parameters;
use std::collections::BTreeMap;

/// Cycles in which a core copies 1,024 bytes. `memcpy` moves 13 GB/s from memory to memory on an i7-6700HQ with
/// DDR4-2400. (The 26 GB/s of Stack Overflow question 43343231 count both the bytes read and the bytes written.)
/// Copies within the caches take less, so this is an upper bound.
const fn copy_kib(core_hz: f64) -> u64 {
    const COPIED_PER_SECOND: f64 = 13e9;
    (core_hz * 1024.0 / COPIED_PER_SECOND) as u64
}

/// The machine of EiovaR and rIOMMU.
///
/// The cost book adds up to the unit costs of \[R\] Table 1, strict, for the steps of a map and an unmap of one page:
/// table 588 and 438, find 249, free 159, other 44 and 26, invalidation 2127 (the hardware takes the part that the
/// software steps do not), and 205 for queueing a deferred unmap. An allocation without a search is its 92. A step of
/// the search is 50, from the 47–57 that \[E\] Table 2 implies.
pub(super) fn r210_cx3() -> Machine {
    const LOCK: u64 = 20; // assumed: two atomics on a line in the L1 cache
    const ATOMIC: u64 = 25; // assumed: one on a line in the L1 cache
    const WINDOW_FIND: u64 = 10; // assumed: two loads from the L1 cache, one after the other
    const CHUNK_SPEND: u64 = 5; // assumed: a load and a store in the L1 cache
    // MFENCE on Sandy Bridge, from memory of published instruction tables, unverified. The published driver executes
    // one for every entry that it changes, whether or not walks snoop. If they do not, the cost of flushing is added.
    const BARRIER: u64 = 33;
    const SECOND_CACHE: u64 = 12; // from memory, unverified: a load from the L2 cache, where a ring of 64 KiB lies
    const LINE_FLUSH: u64 = 279; // [R] derived
    const TABLE_READ: u64 = 30; // assumed; table_clear is chosen so that the sum with four levels is right
    const CORE_HZ: f64 = 3.1e9;
    const UNPROTECTED_GBPS: f64 = 19.79; // [R] calibration, Netperf stream
    Machine {
        id: "r210-cx3".to_owned(),
        description: "Xeon E3-1220 3.1 GHz, one core, walks that do not snoop, ConnectX-3 40 GbE (2012)".to_owned(),
        source: "unit costs of rIOMMU Table 1, search step of EiovaR Table 2; IOMMU sizes derived or assumed"
            .to_owned(),
        core_hz: CORE_HZ,
        cores: 1, // [R]: one of its four is used
        link_gbps: Some(UNPROTECTED_GBPS),
        // The CPU limits the unprotected run [R]: all its cycles go into the bytes.
        unprotected_cycles_per_byte: CORE_HZ * 8.0 / (UNPROTECTED_GBPS * 1e9),
        disks: 1,
        disk_iops: None,
        disk_bytes_per_second: None,
        disk_bytes_in_flight: None,
        unprotected_cycles_per_request: 0.0,
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
            chunk_map: 44,                    // as `map`, because no shorter path was measured
            chunk_unmap: 26,                  // as `unmap`, likewise
            chunk_take: WINDOW_FIND + ATOMIC, // for a host without cheaper per-CPU words
            chunk_write: CHUNK_SPEND,         // assumed: a load and a store in the L1 cache
            chunk_find: WINDOW_FIND,
            chunk_clear: CHUNK_SPEND, // assumed: likewise
            chunk_entry: 10,          // assumed, as `table_entry`
            chunk_return: WINDOW_FIND + CHUNK_SPEND,
            // The tail and the state of the entry are exchanged. The published sum, about 131 cycles each for a map
            // and an unmap if walks snoop [R], is not used as a price; the sum of these steps is compared with it.
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
            // CLFLUSH over arrays of 1 to 17 MB takes 50.4 ns a line on a Xeon with 20 MB of last-level cache (the
            // slope of the table in Stack Overflow question 35900401). At 3.1 GHz that is 156 cycles.
            line_flush_next: 156,
            store_fence: 0,
            flush_queue_push: 205 - LOCK,
            flush_queue_join: WINDOW_FIND + ATOMIC, // assumed: a per-CPU word, exchanged
            queue_descriptor: 30,                   // assumed
            register_write: 100,                    // assumed: a posted write
            register_read: 500,                     // assumed: a round trip to the chipset
            lock: LOCK,
            line_transfer: 100,     // assumed: one socket, shared L3
            handoff_per_waiter: 50, // assumed: waiters read the line one after the other
            poll: 20,               // assumed
            copy_kib: copy_kib(CORE_HZ),
            own_is_free: false,
        },
        sharing: Sharing::default(),
        iommu: Parameters::sandybridge(),
        assumed: ranges(&[
            ("depot_exchange", 25.0, 100.0),
            ("hash_find", 30.0, 120.0),
            ("segment_split", 30.0, 120.0),
            ("segment_join", 30.0, 120.0),
            ("window_take", 30.0, 120.0),
            ("window_claim", 20.0, 70.0),
            ("window_return", 20.0, 70.0),
            ("chunk_map", 10.0, 90.0),
            ("chunk_unmap", 10.0, 60.0),
            ("chunk_take", 20.0, 70.0),
            ("chunk_write", 3.0, 20.0),
            ("chunk_find", 5.0, 20.0),
            ("chunk_clear", 3.0, 20.0),
            ("chunk_entry", 1.0, 20.0),
            ("chunk_return", 8.0, 30.0),
            ("table_read", 15.0, 60.0),
            ("table_scan", 0.0, 4.0),
            ("table_claim", 12.0, 50.0),
            ("table_exchange", 12.0, 50.0),
            ("table_entry", 5.0, 20.0),
            ("table_page", 500.0, 4000.0),
            ("flush_queue_join", 20.0, 70.0),
            ("queue_descriptor", 10.0, 100.0),
            ("register_write", 50.0, 300.0),
            ("register_read", 200.0, 1500.0),
            ("lock", 10.0, 60.0),
            ("line_transfer", 50.0, 200.0),
            ("handoff_per_waiter", 0.0, 100.0),
            ("poll", 5.0, 60.0),
            ("copy_kib", 60.0, 244.0),
            ("iotlb_entries", 32.0, 512.0),
            ("ptcache_l1_entries", 16.0, 64.0),
            ("ptcache_l2_entries", 16.0, 64.0),
            ("ptcache_l3_entries", 16.0, 64.0),
            ("memory_read_ps", 100_000.0, 300_000.0),
            ("invalidation_ps", 250_000.0, 450_000.0),
            ("wait_ps", 90_000.0, 290_000.0),
        ]),
        only_traffic: None,
        server: Some(servers::r210_cx3()),
    }
}

/// The other machine of EiovaR, which differs only in its network card.
pub(super) fn r210_bcm57810() -> Machine {
    const CYCLES_PER_PACKET: f64 = 1200.0; // [R] calibration: 9.40 Gb/s at 31.4 % of a core
    const SEGMENT_BYTES: f64 = 1448.0; // 1500 less headers
    Machine {
        id: "r210-bcm57810".to_owned(),
        description: "Xeon E3-1220 3.1 GHz, one core, walks that do not snoop, BCM57810 10 GbE (2013)".to_owned(),
        source: "as `r210-cx3`, the same computer; the rate and the cycles with no protection of rIOMMU".to_owned(),
        link_gbps: Some(9.40), // [R] calibration, Netperf stream: the line rate
        unprotected_cycles_per_byte: CYCLES_PER_PACKET / SEGMENT_BYTES,
        only_traffic: None,
        server: Some(servers::r210_bcm57810()),
        ..r210_cx3()
    }
}

/// The machine of ATC'15: two sockets of eight cores.
///
/// Software costs are those of `r210-cx3` in cycles, because the kernel is of the same years and nothing else is
/// published. What CPUs do to each other has the values of two-socket Haswell machines, named below. Walks snoop: the
/// units of that generation report ECAP f020df (kernel logs of two-socket Xeon E5 machines).
pub(super) fn r430_bcm57810() -> Machine {
    const CORE_HZ: f64 = 2.4e9;
    let r210 = r210_bcm57810();
    let mut assumed = r210.assumed;
    // What another value was taken for here has another range.
    assumed.extend(ranges(&[("register_read", 300.0, 1000.0), ("line_transfer", 100.0, 141.0)]));
    Machine {
        id: "r430-bcm57810".to_owned(),
        description: "two Xeon E5-2630 v3 2.4 GHz, 16 cores, walks that snoop, BCM57810 10 GbE (2014)".to_owned(),
        source: "unit costs of `r210-cx3`; lines between cores by Intel's Memory Latency Checker on a Haswell server; \
                 cycles of a transaction calibrated with ATC'15 at one core"
            .to_owned(),
        core_hz: CORE_HZ,
        cores: 16,
        costs: CostBook {
            // Memory Latency Checker on a two-socket Haswell-EP (FD.io CSIT's test bed t1-sut1): a modified line of
            // another core of the socket takes 47.0 ns.
            line_transfer: 113,
            // Not published. Half a transfer for each that still reads the line. Figures are printed at 0 and 100 too.
            handoff_per_waiter: 50,
            // Not published. Figures are printed at 300 and 1000 too.
            register_read: 600,
            copy_kib: copy_kib(CORE_HZ),
            ..r210.costs
        },
        sharing: Sharing {
            sockets: 2,
            // Dell numbers CPUs over the sockets in turn. From memory, unverified.
            numbering: Numbering::Alternating,
            line_transfer_far: 257,      // the same listing: 106.6 to 108 ns
            lock_kind: LockKind::Ticket, // Linux up to 4.1, from memory
            // Counted in Linux's structures: the root and the cached node of an IOVA allocator, in two lines; and the
            // indices of a queue, in one.
            iova_lock_lines: 2,
            queue_lock_lines: 1,
        },
        iommu: Parameters::haswell(),
        assumed,
        server: Some(servers::r430_bcm57810()),
        ..r210
    }
}

/// The machine of Fast & Safe.
/// Software costs are those of Linux 6.12's own code on a recent machine (*peers*, medians). A search step is the
/// slope of the two-ring runs; a lock and a line transfer come from the two-thread runs. The invalidation hardware is
/// assumed to take as long as on `r210-cx3`, because no value is published.
pub(super) fn cascadelake_cx5() -> Machine {
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
        id: "cascadelake-cx5".to_owned(),
        description: "four Xeon Gold 6234 3.3 GHz, 32 cores, ConnectX-5 100 GbE, one NVMe disk (2019)".to_owned(),
        source: "Fast & Safe (SOSP'24) for rates and walks; software costs of Linux 6.12 measured on a recent machine; IOMMU sizes, \
                 invalidation time and the disk derived or assumed"
            .to_owned(),
        core_hz: CORE_HZ,
        cores: 32, // [F]: four sockets of eight
        link_gbps: Some(UNPROTECTED_GBPS),
        // Five cores are the fewest that fill the link [F §2.2], so each of four would carry at most a quarter of it.
        unprotected_cycles_per_byte: CORE_HZ * 8.0 / (UNPROTECTED_GBPS * 1e9 / 4.0),
        // [F] has no disk. This is an Intel SSD DC P4510 of that time, by its product brief, from memory, unverified.
        disks: 1,
        disk_iops: Some(637_500.0),
        disk_bytes_per_second: Some(3.2e9),
        disk_bytes_in_flight: Some(4096), // assumed: as the card
        // libaio makes 608,000 requests of 4 KiB a second on one core ("Efficient IO with io_uring", Axboe 2019, from
        // memory, unverified). The clock is not given there, and is taken to be this one.
        unprotected_cycles_per_request: CORE_HZ / 608_000.0,
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
            chunk_map: 30,   // as `map`, because no shorter path was measured
            chunk_unmap: 30, // as `unmap`, likewise
            chunk_take: WINDOW_FIND + ATOMIC, // for a host without cheaper per-CPU words
            chunk_write: CHUNK_SPEND, // assumed: a load and a store in the L1 cache
            chunk_find: WINDOW_FIND,
            chunk_clear: CHUNK_SPEND, // assumed: likewise
            chunk_entry: 11,          // assumed, as `table_entry`
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
            // peers: flushing eight lines with CLFLUSHOPT and one fence takes 745 cycles, and flushing one line,
            // always at another place, takes 683; so this is (745 - 683) / 7.
            line_flush_next: 9,
            store_fence: 0,
            flush_queue_push: 60, // assumed
            flush_queue_join: WINDOW_FIND + EXCHANGE, // assumed: a per-CPU word, exchanged
            queue_descriptor: 15, // assumed
            register_write: 100,  // assumed: a posted write
            register_read: 700,   // assumed: a round trip to the root complex
            lock: LOCK,
            line_transfer: 157,     // peers: half a round trip between two cores
            handoff_per_waiter: 78, // assumed: half a transfer for each core that still reads the line
            poll: 20,               // assumed
            copy_kib: copy_kib(CORE_HZ),
            own_is_free: false,
        },
        sharing: Sharing::default(),
        iommu: Parameters::cascadelake(),
        assumed: ranges(&[
            // From five cores that just fill the link, to four that nearly do [F].
            ("unprotected_cycles_per_byte", 1.08, 1.36),
            ("disk_iops", 100_000.0, 3_000_000.0),
            ("disk_bytes_per_second", 1e9, 14e9),
            ("disk_bytes_in_flight", 2_048.0, 32_768.0),
            ("unprotected_cycles_per_request", 2_700.0, 21_600.0),
            ("map", 10.0, 100.0),
            ("unmap", 10.0, 100.0),
            ("depot_exchange", 10.0, 60.0),
            ("hash_find", 10.0, 60.0),
            ("segment_split", 10.0, 60.0),
            ("segment_join", 10.0, 60.0),
            ("window_take", 13.0, 52.0),
            ("window_claim", 9.0, 34.0),
            ("window_return", 9.0, 34.0),
            ("chunk_map", 10.0, 100.0),
            ("chunk_unmap", 10.0, 100.0),
            ("chunk_take", 9.0, 34.0),
            ("chunk_write", 3.0, 20.0),
            ("chunk_find", 5.0, 20.0),
            ("chunk_clear", 3.0, 20.0),
            ("chunk_entry", 1.0, 22.0),
            ("chunk_return", 8.0, 30.0),
            ("table_read", 4.0, 16.0),
            ("table_scan", 0.0, 4.0),
            ("table_claim", 8.0, 40.0),
            ("table_page", 200.0, 2000.0),
            ("flush_queue_push", 20.0, 200.0),
            ("flush_queue_join", 9.0, 38.0),
            ("queue_descriptor", 5.0, 50.0),
            ("register_write", 50.0, 300.0),
            ("register_read", 300.0, 1500.0),
            ("handoff_per_waiter", 0.0, 157.0),
            ("poll", 5.0, 60.0),
            ("copy_kib", 60.0, 259.0),
            ("iotlb_entries", 32.0, 1024.0),
            ("ptcache_l1_entries", 16.0, 64.0),
            ("ptcache_l2_entries", 16.0, 64.0),
            ("ptcache_l3_entries", 16.0, 64.0),
            // From the asynchronous invalidation of an older part (128 cycles) to four times the value of Sandy
            // Bridge.
            ("invalidation_ps", 40_000.0, 1_400_000.0),
            ("wait_ps", 20_000.0, 700_000.0),
        ]),
        only_traffic: None,
        server: Some(servers::cascadelake_cx5()),
    }
}

/// The same with an MTU of 9000, with which Fast & Safe runs applications (§4.2). With five cores it is not calibrated:
/// a packet costs as many cycles as one of `cascadelake-cx5`, apart from its copy.
pub(super) fn cascadelake_cx5_9k() -> Machine {
    let usual = cascadelake_cx5();
    let server = servers::cascadelake_cx5_9k();
    let software = &server.software;
    let mut assumed = usual.assumed;
    // From what a copy takes to what a byte takes on `cascadelake-cx5`.
    assumed.extend(ranges(&[("unprotected_cycles_per_byte", 0.61, 1.09)]));
    Machine {
        assumed,
        id: "cascadelake-cx5-9k".to_owned(),
        description: format!("{}, MTU 9000", usual.description),
        unprotected_cycles_per_byte: software.cycles_per_packet as f64 / f64::from(software.segment_bytes),
        server: Some(server),
        ..usual
    }
}

/// The machine on which Fast & Safe receives and sends at once.
///
/// Caches and times of its IOMMU are those of `cascadelake-cx5`, because nothing newer is published, and so are the
/// costs of software in cycles. How many walks it makes at once follows from "Overcoming the IOTLB wall" (2023), of the
/// same generation: throughput falls from 7 million misses a second on, and 9.5 million are the most. At 197 ns a walk
/// that are 1.9 walkers, if each walk reads once: the least. It was derived after the first run of Figure 10, which had
/// six.
pub(super) fn icelake_cx5() -> Machine {
    const CORE_HZ: f64 = 2.8e9; // its base clock, from memory of Intel's data, unverified
    const RECEIVED_GBPS: f64 = 35.0; // [F] calibration, Figure 10: one core receives, no protection
    let cascadelake = cascadelake_cx5();
    let mut assumed = cascadelake.assumed;
    // It has no disk here.
    assumed.retain(|key, _| !key.starts_with("disk") && key != "unprotected_cycles_per_request");
    assumed.extend(ranges(&[
        // From the base clock to 3.6 GHz, the highest.
        ("core_hz", 2.8e9, 3.6e9),
        ("unprotected_cycles_per_byte", 0.64, 0.83),
        ("line_transfer", 120.0, 184.0),
        ("walkers", 2.0, 6.0),
    ]));
    Machine {
        id: "icelake-cx5".to_owned(),
        description: "one socket of Xeon Platinum 8362 2.8 GHz, 32 cores, ConnectX-5 100 GbE (2021)".to_owned(),
        source: "Fast & Safe (SOSP'24), Figure 10, for rates; software costs and IOMMU of `cascadelake-cx5`; lines of an Ice \
                 Lake 8375C"
            .to_owned(),
        core_hz: CORE_HZ,
        cores: 32, // [F]: per socket
        unprotected_cycles_per_byte: CORE_HZ * 8.0 / (RECEIVED_GBPS * 1e9),
        disk_iops: None,
        disk_bytes_per_second: None,
        disk_bytes_in_flight: None,
        unprotected_cycles_per_request: 0.0,
        costs: CostBook {
            line_transfer: 143, // 51 ns on an Ice Lake 8375C (nviennot/core-to-core-latency)
            copy_kib: copy_kib(CORE_HZ),
            ..cascadelake.costs
        },
        iommu: Parameters { walkers: 2, ..cascadelake.iommu },
        assumed,
        server: Some(servers::icelake_cx5()),
        ..cascadelake
    }
}

/// A server that does not exist: 128 cores and a link of 800 Gb/s, behind one unit.
///
/// What is argued here and not published:
/// * The CPUs are those of `cascadelake-cx5`, 64 in a socket. Lines take 51 ns from the own socket and 108 ns from the
///   other one, as on a two-socket Ice Lake 8375C (nviennot/core-to-core-latency). Locks are queued (Linux since 4.2).
/// * 800 Gb/s are 24.4 million pages a second. At 197 ns a walk, 4.8 walkers are busy if each page misses once. There
///   are 16, so that bursts do not wait. At 65 and 197 ns, 100 GB/s need 26 KB in flight; there are 64 KiB.
/// * The caches of the unit, and the times of an invalidation and of a wait, are those of the older parts. Nothing
///   newer is published. So what the one queue carries is that of 2012.
pub(super) fn future_800g() -> Machine {
    const CORE_HZ: f64 = 3.0e9;
    const LINK_GBPS: f64 = 800.0;
    let cascadelake = cascadelake_cx5();
    let mut assumed = cascadelake.assumed;
    // What the link and the CPUs are is given, so it has no range.
    let given = |key: &str| key.starts_with("unprotected") || key.starts_with("disk");
    assumed.retain(|key, _| !given(key));
    assumed.extend(ranges(&[
        ("line_transfer_far", 200.0, 450.0),
        ("iova_lock_lines", 1.0, 4.0),
        ("queue_lock_lines", 0.0, 2.0),
        ("walkers", 8.0, 32.0),
        ("bytes_in_flight", 26_000.0, 262_144.0),
    ]));
    Machine {
        id: "future-800g".to_owned(),
        description: "a server that does not exist: 128 cores on two sockets, 800 Gb/s, one unit".to_owned(),
        source: "CPUs and software costs of `cascadelake-cx5`; lines of an Ice Lake 8375C; invalidations of 2012"
            .to_owned(),
        core_hz: CORE_HZ,
        cores: 128,
        link_gbps: Some(LINK_GBPS),
        disk_iops: None,
        disk_bytes_per_second: None,
        disk_bytes_in_flight: None,
        unprotected_cycles_per_request: 0.0,
        bytes_in_flight: 65_536,
        costs: CostBook { line_transfer: 153, copy_kib: copy_kib(CORE_HZ), ..cascadelake.costs },
        sharing: Sharing {
            sockets: 2,
            numbering: Numbering::Blocks,
            line_transfer_far: 324,
            lock_kind: LockKind::Queued,
            iova_lock_lines: 2, // as on `r430-bcm57810`
            queue_lock_lines: 1,
        },
        iommu: Parameters { walkers: 16, ..cascadelake.iommu },
        assumed,
        server: Some(servers::future_800g()),
        ..cascadelake
    }
}

/// The machine with 16 virtual CPUs whose measurements are in docs/performance.md. Its hardware is never the limit, so
/// what CPUs do to each other is all that is left.
///
/// Its unit answers when the tail is written, as the registers of the benchmark `page-1-driven` do, so their reads cost
/// nothing either. Nothing of it is fitted to those measurements.
pub(super) fn xeon_16() -> Machine {
    let cascadelake = cascadelake_cx5();
    let mut assumed = cascadelake.assumed;
    let of_hardware = ["invalidation_ps", "wait_ps", "register_read"];
    let of_disks = |key: &str| key.starts_with("disk") || key == "unprotected_cycles_per_request";
    assumed.retain(|key, _| !of_hardware.contains(&key.as_str()) && !of_disks(key));
    Machine {
        id: "xeon-16".to_owned(),
        description: "16 virtual CPUs of a Xeon, with hardware that answers at once".to_owned(),
        source: "costs of `cascadelake-cx5`; hardware that is never the limit".to_owned(),
        cores: 16,
        disk_iops: None,
        disk_bytes_per_second: None,
        disk_bytes_in_flight: None,
        unprotected_cycles_per_request: 0.0,
        costs: CostBook { register_read: 0, ..cascadelake.costs },
        iommu: Parameters {
            invalidation_ps: 0,
            wait_ps: 0,
            memory_read_ps: 1000,
            hit_ps: 1000,
            walkers: 64,
            ..cascadelake.iommu
        },
        assumed,
        server: None,
        ..cascadelake
    }
}

/// Values by name, each with its range.
fn ranges(all: &[(&str, f64, f64)]) -> BTreeMap<String, [f64; 2]> {
    all.iter().map(|(key, low, high)| ((*key).to_owned(), [*low, *high])).collect()
}
