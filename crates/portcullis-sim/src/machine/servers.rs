//! The servers of the named machines. Every value has its source; see [`named`](super::named) for the letters.

use super::server::{EARLIER_RUNS, OFFLOAD_PACKETS, SEGMENT_BYTES};
use super::{
    Adaptation, Applications, Fragments, NicDriver, Reader, SegmentJoining, Server, Software, Striding, Writer,
};
use portcullis::PAGE_SIZE;
use portcullis_model::{Moderation, NicParameters};

pub(super) const PS_PER_US: u64 = 1_000_000;
/// The headers of a packet: 20 of IP and 32 of TCP with time stamps, which follow 14 of Ethernet.
const HEADER_BYTES: u32 = 66;

/// What both machines have in common: two servers back to back, with an MTU of 1500 bytes.
fn software() -> Software {
    Software {
        segment_bytes: SEGMENT_BYTES,
        header_bytes: HEADER_BYTES,
        small_frame_bytes: 60, // the least of Ethernet, without the checksum
        cycles_per_packet: 0,
        cycles_per_transaction: 0,
        cycles_per_apache_1m: 0,
        cycles_per_apache_1k: 0,
        cycles_per_memcached: 0,
        window_bytes: 4 << 20, // tcp_wmem's most, Linux's Documentation/networking/ip-sysctl
        queued_bytes_max: None,
        propagation_ps: 10_000,   // assumed: two metres of cable
        client_ps: 2 * PS_PER_US, // assumed
        client_transaction_ps: 0,
        client_request_ps: 10 * PS_PER_US,              // assumed
        client_message_ps: 300_000,                     // assumed: a system call that copies a short message
        delayed_acknowledgement_ps: 40_000 * PS_PER_US, // TCP_DELACK_MIN of Linux
        earlier_runs: EARLIER_RUNS,
        reader: None,
        writer: None,
        applications: None,
    }
}

/// A card on a PCIe bus of 2012.
fn nic(link_gbps: f64) -> NicParameters {
    NicParameters {
        link_gbps,
        segment_bytes: SEGMENT_BYTES,
        header_bytes: HEADER_BYTES,
        frame_overhead_bytes: 24,        // preamble 8, checksum 4, gap 12 (IEEE 802.3)
        doorbell_ps: 200_000,            // assumed: a posted write, half a read's way
        read_ps: 550_000,                // SIGCOMM'18, a read of 64 bytes that hits the cache, from memory, unverified
        read_gbps: None,                 // the links of these machines are slower
        read_window_bytes: 16_384,       // PCIe: 32 tags without extended ones, requests of at most 512 bytes
        write_window_bytes: 4096,        // Fast & Safe: p, which goes with the IOMMU's l0 and lm
        transaction_bytes: 512,          // Fast & Safe, derived
        fetch_entries: 8,                // assumed
        receive_buffer_bytes: 512 << 10, // assumed
        transmit_buffer_bytes: None,     // a card with few flows reads little ahead
    }
}

/// The server `r210-cx3`: a ConnectX-3 at 40 Gb/s under mlx4_en of Linux 3.4.
///
/// Sources: the driver is the published `drivers/net/ethernet/mellanox/mlx4` of that kernel (`mlx4_en.h`, `en_rx.c`,
/// `en_tx.c`, `en_netdev.c`). The 12 K live addresses of EiovaR §7 imply six receive rings, because each ring has 1024
/// entries of two buffers. Cycles and rates: rIOMMU's unprotected columns.
pub(super) fn r210_cx3() -> Server {
    Server {
        nic: nic(40.0),
        driver: NicDriver {
            name: "mlx4_en of Linux 3.4".to_owned(),
            transmit_rings: 8,
            transmit_entries: 512,
            receive_rings: 6,
            receive_entries: 1024,
            entries_range: [64, 8192],
            entries_power_of_two: true,
            receive_buffers: vec![510, 1024],
            fills_across_rings: true,
            inline_bytes: 104,
            inlines_headers_to_cut: true,
            maps_headers_last: true,
            offload_packets: OFFLOAD_PACKETS,
            reaps_every: Some(16),
            budget: 64,
            transmit_moderation: Moderation { delay_ps: 128 * PS_PER_US, frames: Some(5) },
            receive_moderation: Moderation { delay_ps: 16 * PS_PER_US, frames: Some(44) },
            adapts: Some(Adaptation {
                // The published driver measures for 250 ms. A run is shorter than that.
                sample_ps: 5_000 * PS_PER_US,
                low_rate: 400_000.0,
                high_rate: 450_000.0,
                longest_ps: 128 * PS_PER_US,
                small_bytes: 256,
            }),
            fragments: None,
            joining: None,
            striding: None,
        },
        software: Software {
            cycles_per_packet: 1816, // [R] calibration: stream, none
            // As on `r210-bcm57810`. At 74.8 k/s that is 30 % of a core, and EiovaR reports 29 %.
            cycles_per_transaction: 12_500,
            cycles_per_apache_1m: 1_620_000, // [R] calibration: 1.914 k/s with no protection
            cycles_per_apache_1k: 256_000,   // [R] calibration: 12.09 k/s
            cycles_per_memcached: 23_100,    // [R] calibration: 134.3 k/s
            client_transaction_ps: 7_920_000, // [R] calibration: 74.8 k/s with no protection
            ..software()
        },
    }
}

/// The card of a BCM57810 joins segments ("TPA") unless the driver is told not to (`bnx2x_main.c`, `disable_tpa`).
///
/// Sources: `bnx2x.h`, `bnx2x_cmn.c`, `bnx2x_main.c` and `bnx2x_hsi.h`, read in Linux 3.10 and 3.18, which agree here.
/// What ends a packet is in firmware. The message of the commit that brought TPA (7a9b25577c8a) names the order of the
/// segments, flags such as PSH, and a timeout, whose length is not published.
const TPA: SegmentJoining = SegmentJoining {
    joined_bytes: 8 * 4096, // min(8, MAX_SKB_FRAGS) pages. `max_agg_size` is the "maximal size" of a packet (hsi).
    packets_max: 64,        // ETH_MAX_AGGREGATION_QUEUES_E1H_E2
    silence_ps: 24 * PS_PER_US, // assumed: as long as an interrupt is delayed. Figures are printed with others too.
    pages: 1020,            // MAX_RX_SGE_CNT * NUM_RX_SGE_PAGES, each of one page
    block_pages: 64,        // BIT_VEC64_ELEM_SZ: `bnx2x_update_sge_prod`
    completion_bytes: 64,   // union eth_rx_cqe
};

/// Where bnx2x has its receive buffers from (`bnx2x_frag_alloc`), with an MTU of 1500.
///
/// Sources: `bnx2x.h` and `bnx2x_cmn.c` (`bnx2x_set_rx_buf_size`), and `__netdev_alloc_frag`, which takes 32 KiB from
/// Linux 3.7 on. Later drivers round the length up, to 1,984 bytes with what is not mapped.
const BNX2X_FRAGMENTS: Fragments = Fragments {
    fragment_bytes: 64 + BNX2X_BUFFER_BYTES, // NET_SKB_PAD first
    unmapped_bytes: 64,
    run_bytes: 32 << 10, // NETDEV_FRAG_PAGE_MAX_ORDER
    opens_with_pages: false,
};
/// The alignment of the card, that of an IP header, the headers of a frame with two VLAN tags and SNAP, the MTU, and
/// `skb_shared_info`. All of it is mapped.
const BNX2X_BUFFER_BYTES: u32 = 64 + 2 + 30 + 1500 + 320;

/// The server `r210-bcm57810`: a BCM57810 at 10 Gb/s under bnx2x of Linux 3.11.
///
/// Sources: the driver is the published `drivers/net/ethernet/broadcom/bnx2x` of that kernel (`bnx2x.h`, `bnx2x_cmn.c`,
/// `bnx2x_main.c`). It has a queue for each CPU (`bnx2x_calc_num_queues`), and EiovaR §7 uses one CPU. Another queue is
/// for FCoE (`CNIC_SUPPORT`), whose ring is not filled, and each is given a part of 4078 entries
/// (`bnx2x_alloc_fp_mem_at`). With the pages of TPA, which is on by default, 3,059 addresses are live, and EiovaR
/// observed around 3 K. Four CPUs would have 815 entries each: 3,260 addresses without TPA and 7,340 with it.
/// Cycles and rates: rIOMMU's unprotected columns.
pub(super) fn r210_bcm57810() -> Server {
    Server {
        nic: nic(10.0),
        driver: NicDriver {
            name: "bnx2x of Linux 3.11".to_owned(),
            transmit_rings: 1,
            transmit_entries: 2039, // 4078 descriptors, of which the smallest packet takes two
            receive_rings: 1,
            receive_entries: 2039, // MAX_RX_AVAIL / 2
            entries_range: [64, 4078],
            entries_power_of_two: false,
            receive_buffers: vec![BNX2X_BUFFER_BYTES],
            fills_across_rings: false,
            inline_bytes: 0,
            inlines_headers_to_cut: false,
            maps_headers_last: false,
            offload_packets: OFFLOAD_PACKETS,
            reaps_every: None,
            budget: 64,
            transmit_moderation: Moderation { delay_ps: 48 * PS_PER_US, frames: None },
            receive_moderation: Moderation { delay_ps: 24 * PS_PER_US, frames: None },
            adapts: None,
            fragments: Some(BNX2X_FRAGMENTS),
            joining: Some(TPA),
            striding: None,
        },
        software: Software {
            cycles_per_packet: 1200,          // [R] calibration: 9.40 Gb/s at 31.4 % of a core
            cycles_per_transaction: 12_500,   // [R] calibration: 29.0 k/s at 11.7 %
            cycles_per_apache_1m: 927_000,    // [R] calibration: 1.12 k/s at 33.5 %
            cycles_per_apache_1k: 225_000,    // [R] calibration: 13.37 k/s at 97 %
            cycles_per_memcached: 19_200,     // [R] calibration: 159.7 k/s at 99 %
            queued_bytes_max: Some(131_072),  // tcp_limit_output_bytes, Linux 3.6 and later
            client_transaction_ps: 4_381_000, // [R] calibration: 29.0 k/s with no protection
            ..software()
        },
    }
}

/// The server `r430-bcm57810`: the same card under bnx2x of Linux 3.17, with as many rings as it has (ATC'15, §6).
///
/// Sources: as `r210-bcm57810`. Of 16 queues one is for FCoE, and each is given a part of 4078 entries.
pub(super) fn r430_bcm57810() -> Server {
    let r210 = r210_bcm57810();
    Server {
        driver: NicDriver {
            name: "bnx2x of Linux 3.17".to_owned(),
            transmit_rings: 15,
            receive_rings: 15,
            receive_entries: 254, // MAX_RX_AVAIL / 16
            // `bnx2x_frag_alloc` takes a page where it may sleep. So in Linux 3.18, and not in 3.10. The commit is of
            // January 2014, from memory.
            fragments: Some(Fragments { opens_with_pages: true, ..BNX2X_FRAGMENTS }),
            ..r210.driver
        },
        software: Software {
            // [U] calibration: EiovaR at one core has 86 % of the unprotected rate. That point is excluded. The 93 to
            // 95 % that the designs of ATC'15 have there ask for more.
            cycles_per_transaction: 14_200,
            earlier_runs: 2, // [U] §6.1: the median of five runs is published. This is the middle one.
            ..r210.software
        },
        ..r210
    }
}

/// The server `cascadelake-cx5`: a ConnectX-5 at 100 Gb/s under mlx5e of Linux 6.0, with an MTU of 4000.
///
/// Sources: Fast & Safe (SOSP'24) and its scripts for the set-up; for the driver, the published `en.h`, `en_rx.c` and
/// `en/params.c` in `drivers/net/ethernet/mellanox/mlx5/core` of that kernel.
pub(super) fn cascadelake_cx5() -> Server {
    const SEGMENT_BYTES: u32 = 3948; // the MTU, less 20 of IP and 32 of TCP with time stamps
    Server {
        nic: NicParameters {
            segment_bytes: SEGMENT_BYTES,
            read_window_bytes: 65_536, // PCIe 3: 256 extended tags, as many reads of 256 bytes. Assumed.
            // Two buffers of 130,944 bytes (mlnx_qos on an MCX516A). They may not both serve one priority, so figures
            // are also drawn with one.
            receive_buffer_bytes: 261_888,
            ..nic(100.0)
        },
        driver: NicDriver {
            name: "mlx5e of Linux 6.0".to_owned(),
            transmit_rings: 32, // a channel per CPU
            transmit_entries: 1024,
            receive_rings: 32,
            receive_entries: 256, // [F]
            entries_range: [64, 8192],
            entries_power_of_two: true,
            receive_buffers: vec![PAGE_SIZE as u32],
            fills_across_rings: false,
            inline_bytes: 0,
            inlines_headers_to_cut: false,
            maps_headers_last: false,
            offload_packets: 16,
            reaps_every: None,
            budget: 64,
            // MLX5E_PARAMS_DEFAULT_TX_CQ_MODERATION_USEC and _PKTS, and those of RX. The driver adapts them (DIM),
            // which is not modelled.
            transmit_moderation: Moderation { delay_ps: 16 * PS_PER_US, frames: Some(32) },
            receive_moderation: Moderation { delay_ps: 16 * PS_PER_US, frames: Some(32) },
            adapts: None,
            fragments: None,
            joining: None,
            striding: Some(Striding {
                entry_pages: 64,    // MLX5_MPWRQ_LOG_WQE_SZ 18
                stride_bytes: 256,  // [F]'s scripts turn completion compression on
                entry_frames: 32,   // from a linear fragment of 8 KiB at an MTU of 4000
                cached_pages: 255,  // MLX5E_CACHE_SIZE 256, one of which stays empty
                entries_at_once: 2, // MLX5E's UMR_WQE_BULK
                completion_bytes: 64,
                transmit_entry_bytes: 64, // MLX5_SEND_WQE_BB
                events: 64,               // 4 KiB of 64 bytes, one page. Assumed.
            }),
        },
        software: Software {
            segment_bytes: SEGMENT_BYTES,
            header_bytes: HEADER_BYTES,
            // [F]'s `setup-envir.sh`: tcp_rmem of 2,000,000 without auto-tuning, half of which is window.
            window_bytes: 1_000_000,
            client_ps: 5 * PS_PER_US, // assumed: from the interrupt to the end of its handling
            // [F] calibration: 97.6 Gb/s with five cores, of which none can be spared, are from 4,272 to 5,340 cycles
            // per packet. This is the value of `unprotected_cycles_per_byte`.
            cycles_per_packet: POLL_CYCLES + COPY_CYCLES,
            reader: Some(Reader {
                poll_cycles: POLL_CYCLES,
                copy_cycles: COPY_CYCLES,
                switch_cycles: 1_838, // [F] calibration: 85.3 Gb/s with 40 flows and no protection
                read_packets: 33,     // iperf reads 128 KiB at once
            }),
            writer: Some(Writer {
                copy_cycles: COPY_CYCLES,
                frame_cycles: FRAME_CYCLES,
                acknowledgement_cycles: POLL_CYCLES,
            }),
            applications: Some(APPLICATIONS),
            ..software()
        },
    }
}

/// The server `cascadelake-cx5-9k`: the same with an MTU of 9000, with which Fast & Safe runs applications (§4.2).
pub(super) fn cascadelake_cx5_9k() -> Server {
    const SEGMENT_BYTES: u32 = 8948;
    let usual = cascadelake_cx5();
    // A packet costs the kernel as much whatever its length, and a copy as much for each byte. Assumed.
    let copy_cycles = COPY_CYCLES * u64::from(SEGMENT_BYTES) / u64::from(usual.software.segment_bytes);
    Server {
        nic: NicParameters { segment_bytes: SEGMENT_BYTES, ..usual.nic },
        driver: NicDriver {
            offload_packets: 7, // 64 KiB
            striding: usual.driver.striding.map(|striding| Striding {
                entry_frames: 16, // from a linear fragment of 16 KiB, by the rule of mlx5e_mpwqe_log_pkts_per_wqe
                ..striding
            }),
            ..usual.driver
        },
        software: Software {
            segment_bytes: SEGMENT_BYTES,
            cycles_per_packet: POLL_CYCLES + copy_cycles,
            reader: usual.software.reader.map(|reader| Reader {
                copy_cycles,
                // As much for each byte.
                switch_cycles: reader.switch_cycles * u64::from(SEGMENT_BYTES) / 3948,
                read_packets: 15,
                ..reader
            }),
            writer: usual.software.writer.map(|writer| Writer { copy_cycles, ..writer }),
            ..usual.software
        },
    }
}

/// The server `icelake-cx5`: the card and the driver of `cascadelake-cx5` in the server that Fast & Safe uses for
/// streams in both directions (§4.1, Figure 10). Each flow has a core of its own there.
pub(super) fn icelake_cx5() -> Server {
    // [F] calibration, one core for each direction and no protection, at 2.8 GHz: 35.0 Gb/s received are 2,527 cycles a
    // packet, which divide as on `cascadelake-cx5`. 30.6 Gb/s sent are 2,890 cycles a packet.
    const POLL_CYCLES: u64 = 1_105;
    const COPY_CYCLES: u64 = 1_422;
    const SENT_CYCLES: u64 = 2_890;
    const FRAME_PACKETS: u64 = 16; // 64 KiB
    let cascadelake = cascadelake_cx5();
    Server {
        nic: NicParameters {
            // Derived: 16 lanes of PCIe 3 carry 126 Gb/s, and each completion has 256 bytes and, from memory, about 24
            // more for headers: 126 * 256 / 280.
            read_gbps: Some(115.0),
            // Two frames of 64 KiB, with which the link never waits for a read. Not published, assumed. Without a limit
            // the card would read a whole window of every flow at once, faster than any bus.
            transmit_buffer_bytes: Some(2 << 16),
            ..cascadelake.nic
        },
        software: Software {
            cycles_per_packet: POLL_CYCLES + COPY_CYCLES,
            reader: cascadelake.software.reader.map(|reader| Reader {
                poll_cycles: POLL_CYCLES,
                copy_cycles: COPY_CYCLES,
                switch_cycles: 0, // no core serves two flows [F]
                ..reader
            }),
            // How the sum divides is assumed: a copy costs as much in either direction, and an acknowledgement as much
            // as a packet, of which one comes for each frame.
            writer: Some(Writer {
                copy_cycles: COPY_CYCLES,
                frame_cycles: (SENT_CYCLES - COPY_CYCLES) * FRAME_PACKETS - POLL_CYCLES,
                acknowledgement_cycles: POLL_CYCLES,
            }),
            ..cascadelake.software
        },
        driver: cascadelake.driver, // a channel for each CPU of the socket
    }
}

/// The server `future-800g`: the card and the driver of `cascadelake-cx5`, eight times as fast, with a ring for each of
/// 128 cores.
pub(super) fn future_800g() -> Server {
    let cascadelake = cascadelake_cx5();
    Server {
        nic: NicParameters {
            link_gbps: 800.0,
            read_window_bytes: 524_288, // eight times that of PCIe 3, as the rate
            write_window_bytes: 65_536, // what the machine has in flight
            receive_buffer_bytes: 8 * 261_888,
            ..cascadelake.nic
        },
        driver: NicDriver {
            name: "mlx5e of Linux 6.0, with 128 rings".to_owned(),
            transmit_rings: 128,
            receive_rings: 128,
            ..cascadelake.driver
        },
        software: Software {
            // Those of `r430-bcm57810`: the kernel has hardly become faster a request.
            cycles_per_transaction: 14_200,
            client_transaction_ps: 4_381_000, // as of `r210-bcm57810`
            earlier_runs: 2,                  // as of `r430-bcm57810`: with 128 rings each takes long
            ..cascadelake.software
        },
    }
}

/// How the calibrated sum divides is assumed: 7 to 9.
const POLL_CYCLES: u64 = 1_869;
const COPY_CYCLES: u64 = 2_403;
/// Per frame that is sent: as much more than a packet that is received as on `icelake-cx5`, where both are calibrated.
/// Assumed.
const FRAME_CYCLES: u64 = 37_850;

/// Assumed: Fast & Safe publishes that without protection each of these fills the link with eight cores, which they do
/// with these and with less. A call costs as much as on `r210-bcm57810`.
const APPLICATIONS: Applications = Applications {
    redis_cycles: 2_000,
    redis_cycles_per_kib: 128, // eight bytes a cycle: the value is in the cache
    nginx_cycles: 50_000,
    spdk_cycles: 3_000,
    rpc_cycles: 12_500,
};
