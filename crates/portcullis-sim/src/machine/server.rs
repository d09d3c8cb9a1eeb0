//! The rest of a server: its network card, the driver of the card, the costs of its software, and the client at the
//! other end of the link.

use super::{Fragments, SegmentJoining};
use portcullis::PAGE_SIZE;
use portcullis_model::{Moderation, NicParameters, PIECES_MAX, STRIDING_PIECES_MAX};
use serde::{Deserialize, Serialize};

/// What the lab needs to know of a machine in addition to its CPUs and its IOMMU.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// The network card.
    pub nic: NicParameters,
    /// The driver of the card.
    pub driver: NicDriver,
    /// The software of the server, and of its clients.
    pub software: Software,
}

/// The most rings in a direction: each has a vector of its own.
const RINGS_MAX: u32 = 128;
/// The most released pages that a ring keeps, and the most events of a queue.
const CACHED_PAGES_MAX: u32 = 1 << 16;
const EVENTS_MAX: u32 = 1 << 16;

impl Server {
    /// The first value that no server can have, and its range.
    pub(super) fn out_of_range(&self) -> Option<(&'static str, &'static str)> {
        let Self { nic, driver, software } = self;
        let [least, most] = driver.entries_range;
        let is_buffer = |bytes: &u32| (1..=PAGE_SIZE as u32).contains(bytes);
        let checks = [
            ("transmit_rings", (1..=RINGS_MAX).contains(&driver.transmit_rings), "from 1 to 128"),
            ("receive_rings", (1..=RINGS_MAX).contains(&driver.receive_rings), "from 1 to 128"),
            ("entries_range", 1 <= least && least <= most && most <= 1 << 16, "within 1 to 65536, the least first"),
            ("transmit_entries", (least..=most).contains(&driver.transmit_entries), "within `entries_range`"),
            ("receive_entries", (least..=most).contains(&driver.receive_entries), "within `entries_range`"),
            (
                "receive_buffers",
                (1..=PIECES_MAX as usize).contains(&driver.receive_buffers.len())
                    && driver.receive_buffers.iter().all(is_buffer),
                "from 1 to 18 lengths from 1 to 4096",
            ),
            (
                "fragments",
                driver.fragments.is_none() || driver.receive_buffers.len() == 1,
                "given only if entries have one buffer",
            ),
            (
                "joining",
                driver.joining.is_none() || driver.receive_buffers.len() == 1 && driver.striding.is_none(),
                "given only if entries have one buffer and no strides",
            ),
            ("budget", driver.budget > 0, "at least 1"),
            ("offload_packets", (1..=OFFLOAD_PACKETS).contains(&driver.offload_packets), "from 1 to 45"),
            ("link_gbps", (1e-3..=1e7).contains(&nic.link_gbps), "from 0.001 to 10000000, in Gb/s"),
            ("fetch_entries", nic.fetch_entries > 0, "at least 1"),
            ("receive_buffer_bytes", nic.receive_buffer_bytes <= 1 << 40, "at most 2^40"),
            ("segment_bytes", (64..=9000).contains(&nic.segment_bytes), "from 64 to 9000"),
            (
                "segment_bytes",
                nic.segment_bytes == software.segment_bytes,
                "the same for the card and for the software",
            ),
            ("window_bytes", software.window_bytes >= 2 * u64::from(software.segment_bytes), "at least two segments"),
            (
                "reader",
                software.reader.is_some() == driver.striding.is_some(),
                "given if and only if the driver has `striding`",
            ),
            (
                "writer",
                software.writer.is_none() || driver.striding.is_some(),
                "given only if the driver has `striding`",
            ),
            (
                "applications",
                software.applications.is_none() || software.writer.is_some(),
                "given only if there is a `writer`",
            ),
        ];
        let of_rings = driver.striding.iter().flat_map(|striding| striding.checks(software));
        let buffer_bytes = driver.receive_buffers.first().copied().unwrap_or_default();
        let of_fragments = driver.fragments.iter().flat_map(|fragments| fragments.checks(buffer_bytes));
        let of_joining = driver.joining.iter().flat_map(SegmentJoining::checks);
        let checks = checks.into_iter().chain(of_rings).chain(of_fragments).chain(of_joining);
        checks.into_iter().find(|(_, holds, _)| !holds).map(|(key, _, expected)| (key, expected))
    }
}

/// The behavior of the driver of a network card, taken from the published driver.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicDriver {
    /// The name of the driver, and its kernel.
    pub name: String,
    /// The number of transmit rings. Flows are spread over them.
    pub transmit_rings: u32,
    /// The entries of a transmit ring.
    pub transmit_entries: u32,
    /// The number of receive rings. All of them are kept full of buffers.
    pub receive_rings: u32,
    /// The entries of a receive ring.
    pub receive_entries: u32,
    /// The least and the greatest number of entries that a ring may have.
    pub entries_range: [u32; 2],
    /// Whether this number must be a power of two.
    pub entries_power_of_two: bool,
    /// The bytes of each buffer of a receive entry. A frame uses as many buffers as it needs. The others stay mapped.
    pub receive_buffers: Vec<u32>,
    /// Whether the driver fills the receive rings in parallel, one entry of each at a time.
    pub fills_across_rings: bool,
    /// Frames of at most this many bytes are written into the descriptor, so that nothing is mapped.
    pub inline_bytes: u32,
    /// Whether the headers of a frame that the card cuts into packets are written there too.
    pub inlines_headers_to_cut: bool,
    /// Whether the headers of a frame are mapped after its pages. They are unmapped first in any case.
    pub maps_headers_last: bool,
    /// The most packets into which the card cuts a frame.
    pub offload_packets: u32,
    /// If set, the transmit path handles completions after every so many frames. Otherwise they raise an interrupt,
    /// which is that of the receive ring with the same number.
    pub reaps_every: Option<u32>,
    /// The number of frames that a poll of a receive ring handles at most.
    pub budget: u32,
    /// How transmit completions are announced.
    pub transmit_moderation: Moderation,
    /// How received frames are announced.
    pub receive_moderation: Moderation,
    /// How the driver adapts that, if it does.
    pub adapts: Option<Adaptation>,
    /// If the buffers of receive entries are cut from runs of pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fragments: Option<Fragments>,
    /// If the card joins segments of TCP streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joining: Option<SegmentJoining>,
    /// If the entries of a receive ring have many pages, into which the card writes frame after frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub striding: Option<Striding>,
}

impl NicDriver {
    /// How buffers are cut from runs of pages, unless each has a page of its own.
    pub(crate) fn cuts(&self) -> Option<Fragments> {
        self.fragments.filter(|fragments| fragments.fragment_bytes > 0)
    }

    /// How the card joins segments, unless that is switched off.
    pub(crate) fn joins(&self) -> Option<SegmentJoining> {
        self.joining.filter(|joining| joining.joined_bytes > 0)
    }
}

/// Receive rings of mlx5 ("striding RQ"), and its page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Striding {
    /// The pages of an entry.
    pub entry_pages: u32,
    /// A frame begins at a multiple of so many bytes.
    pub stride_bytes: u32,
    /// The frames for which the driver takes an entry to have room, when it computes how many entries a ring of so many
    /// frames needs.
    pub entry_frames: u32,
    /// The released pages of a ring that stay mapped, at most.
    pub cached_pages: u32,
    /// New entries are posted when so many are missing.
    pub entries_at_once: u32,
    /// The bytes of a completion.
    pub completion_bytes: u32,
    /// The bytes of an entry of a transmit ring.
    pub transmit_entry_bytes: u32,
    /// The events that an event queue has room for.
    pub events: u32,
}

impl Striding {
    /// The entries of a ring for `frames` frames.
    pub fn entries(&self, frames: u32) -> u32 {
        (frames / self.entry_frames).max(2)
    }

    /// The pages of an entry that a frame of this software may lie in.
    pub fn frame_pages(&self, software: &Software) -> u32 {
        let bytes = (software.header_bytes + software.segment_bytes).next_multiple_of(self.stride_bytes);
        // Frames that do not fill pages begin within them.
        bytes.div_ceil(PAGE_SIZE as u32) + u32::from(!bytes.is_multiple_of(PAGE_SIZE as u32))
    }

    /// The values, whether rings can have them, and their ranges.
    fn checks(&self, software: &Software) -> [(&'static str, bool, &'static str); 8] {
        let power_within =
            |bytes: u32, least: u32| bytes.is_power_of_two() && (least..=PAGE_SIZE as u32).contains(&bytes);
        let frame_bytes = software.header_bytes.saturating_add(software.segment_bytes);
        let entry_bytes = u64::from(self.entry_pages) * PAGE_SIZE;
        let fits = |stride_bytes: u32| u64::from(frame_bytes).next_multiple_of(stride_bytes.into()) <= entry_bytes;
        [
            ("entry_pages", (1..=STRIDING_PIECES_MAX).contains(&self.entry_pages), "from 1 to 64"),
            ("stride_bytes", power_within(self.stride_bytes, 64), "a power of two from 64 to 4096"),
            (
                "stride_bytes",
                self.stride_bytes == 0 || fits(self.stride_bytes),
                "such that a frame of `segment_bytes` with its header fits an entry",
            ),
            ("entry_frames", self.entry_frames > 0, "at least 1"),
            ("cached_pages", self.cached_pages <= CACHED_PAGES_MAX, "at most 65536"),
            ("completion_bytes", power_within(self.completion_bytes, 32), "a power of two from 32 to 4096"),
            ("transmit_entry_bytes", power_within(self.transmit_entry_bytes, 16), "a power of two from 16 to 4096"),
            ("events", (1..=EVENTS_MAX).contains(&self.events), "from 1 to 65536"),
        ]
    }
}

/// The cycles of a core that receives streams, with no protection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reader {
    /// Cycles per packet in the driver and the kernel, up to the socket.
    pub poll_cycles: u64,
    /// Cycles per packet in the application that reads it, most of them to copy it.
    pub copy_cycles: u64,
    /// Further cycles per packet of a read, if the core's read before it was of another flow.
    pub switch_cycles: u64,
    /// The packets of a read, at most.
    pub read_packets: u32,
}

/// The cycles of a core that sends streams, with no protection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Writer {
    /// Cycles per packet in the application that writes it, most of them to copy it.
    pub copy_cycles: u64,
    /// Cycles per frame of up to 64 KiB in the kernel and the driver, with its completion.
    pub frame_cycles: u64,
    /// Cycles per acknowledgement that arrives.
    pub acknowledgement_cycles: u64,
}

/// The cycles of a core for each request, with no protection: those of the application and of its system calls, and of
/// the kernel for a message of one packet. What the kernel does with longer messages is counted apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Applications {
    /// Redis, which stores a value.
    pub redis_cycles: u64,
    /// Redis, for each KiB that it reads, if it copies the value once more.
    pub redis_cycles_per_kib: u64,
    /// Nginx, which sends a file.
    pub nginx_cycles: u64,
    /// SPDK, which reads a block from another host.
    pub spdk_cycles: u64,
    /// A call of `rpc-tail`.
    pub rpc_cycles: u64,
}

/// How a driver adapts the delay of the announcement of received frames. Up to the low rate there is no delay, and from
/// the high rate on it is the longest. In between it grows linearly.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Adaptation {
    /// The interval over which the rate is measured.
    pub sample_ps: u64,
    /// The low rate, in frames per second.
    pub low_rate: f64,
    /// The high rate, in frames per second.
    pub high_rate: f64,
    /// The longest delay.
    pub longest_ps: u64,
    /// If frames have at most this many bytes on average, there is no delay.
    pub small_bytes: u32,
}

impl Adaptation {
    /// The delay after `frames` frames of `bytes` bytes in total have arrived in `span_ps`.
    pub fn delay_ps(&self, frames: u64, bytes: u64, span_ps: u64) -> u64 {
        if bytes <= frames * u64::from(self.small_bytes) {
            return 0;
        }
        let rate = frames as f64 * 1e12 / span_ps.max(1) as f64;
        let share = ((rate - self.low_rate) / (self.high_rate - self.low_rate)).clamp(0.0, 1.0);
        (share * self.longest_ps as f64) as u64
    }
}

/// The costs of software on the machine, and its clients.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Software {
    /// The payload of a full packet.
    pub segment_bytes: u32,
    /// The headers of a packet, which are all of an acknowledgement.
    pub header_bytes: u32,
    /// A frame with a request or a response of one byte.
    pub small_frame_bytes: u32,
    /// Cycles per packet of a stream with no protection, including acknowledgements and completions. Calibrated.
    pub cycles_per_packet: u64,
    /// Cycles per request and response of Netperf with no protection. Calibrated.
    pub cycles_per_transaction: u64,
    /// Cycles per request of Apache for a file of 1 MiB with no protection. Calibrated, as the next two.
    pub cycles_per_apache_1m: u64,
    /// The same for a file of 1 KiB.
    pub cycles_per_apache_1k: u64,
    /// Cycles per request of Memcached.
    pub cycles_per_memcached: u64,
    /// The bytes that may be sent without an acknowledgement.
    pub window_bytes: u64,
    /// The bytes that a flow may have queued in the card, if the kernel limits them.
    pub queued_bytes_max: Option<u64>,
    /// The propagation delay of the link.
    pub propagation_ps: u64,
    /// The mean time from an interrupt at the client to its acknowledgement.
    pub client_ps: u64,
    /// The mean time from a response to the next request of a client of Netperf. Calibrated.
    pub client_transaction_ps: u64,
    /// The mean time from a response to the next request of a client of Apache or Memcached.
    pub client_request_ps: u64,
    /// The time in which a client writes a message of a stream.
    pub client_message_ps: u64,
    /// How long a client may delay the acknowledgement of a single packet.
    pub delayed_acknowledgement_ps: u64,
    /// Runs that were made since the card was opened, when the published one began.
    #[serde(default = "earlier_runs", skip_serializing_if = "is_usual")]
    pub earlier_runs: u32,
    /// How a core receives streams, if the driver has many pages in an entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reader: Option<Reader>,
    /// How a core sends streams, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writer: Option<Writer>,
    /// What requests cost applications that exchange messages, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applications: Option<Applications>,
}

/// The payload of a packet: an MTU of 1500 bytes, less 20 of IP and 32 of TCP with time stamps.
pub(super) const SEGMENT_BYTES: u32 = 1448;
/// 64 KiB, the most of an IP packet.
pub(super) const OFFLOAD_PACKETS: u32 = (64 << 10) / SEGMENT_BYTES;

/// EiovaR §7: 150 runs are made after the card was opened, and the mean is published. This is the middle one.
pub(super) const EARLIER_RUNS: u32 = 75;

fn earlier_runs() -> u32 {
    EARLIER_RUNS
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_usual(earlier_runs: &u32) -> bool {
    *earlier_runs == EARLIER_RUNS
}

#[cfg(test)]
mod tests {
    use super::super::servers::{PS_PER_US, cascadelake_cx5, r210_bcm57810, r210_cx3};
    use super::*;
    use crate::{Machine, Sharing};
    use serde_json::json;

    #[test]
    fn the_bus_of_a_card_is_that_of_its_machine() {
        for machine in Machine::all() {
            let Some(server) = machine.server else { continue };
            let of_machine = (machine.bytes_in_flight, machine.transaction_bytes);
            assert_eq!((server.nic.write_window_bytes, server.nic.transaction_bytes), of_machine, "{}", machine.id);
        }
    }

    #[test]
    fn the_calibration_is_that_of_the_machine() {
        // An estimate uses cycles per byte and a simulation cycles per packet. Both come from the same publication.
        for machine in Machine::all() {
            let Some(Server { software, .. }) = machine.server else { continue };
            let per_packet = machine.unprotected_cycles_per_byte * f64::from(software.segment_bytes);
            assert!(
                (per_packet / software.cycles_per_packet as f64 - 1.0).abs() < 0.01,
                "{}: {per_packet}",
                machine.id
            );
        }
    }

    #[test]
    fn what_no_server_can_have_is_named() {
        assert_eq!(r210_cx3().out_of_range(), None);
        assert_eq!(r210_bcm57810().out_of_range(), None);
        type Change = fn(&mut Server);
        let changes: &[(&str, Change)] = &[
            ("transmit_rings", |server| server.driver.transmit_rings = 0),
            ("receive_rings", |server| server.driver.receive_rings = 129),
            ("entries_range", |server| server.driver.entries_range = [0, 8]),
            ("receive_entries", |server| server.driver.receive_entries = 1),
            ("receive_buffers", |server| server.driver.receive_buffers.clear()),
            ("budget", |server| server.driver.budget = 0),
            ("link_gbps", |server| server.nic.link_gbps = 0.0),
            ("segment_bytes", |server| server.nic.segment_bytes = 0),
            ("window_bytes", |server| server.software.window_bytes = 0),
        ];
        let is_named = |whole: fn() -> Server, key: &str, change: Change| {
            let mut server = whole();
            change(&mut server);
            assert_eq!(server.out_of_range().map(|(key, _)| key), Some(key));
        };
        changes.iter().for_each(|(key, change)| is_named(r210_cx3, key, *change));
        fn fragments(server: &mut Server) -> &mut Fragments {
            server.driver.fragments.as_mut().expect("buffers that are cut from runs")
        }
        fn joining(server: &mut Server) -> &mut SegmentJoining {
            server.driver.joining.as_mut().expect("a card that joins segments")
        }
        let changes: &[(&str, Change)] = &[
            ("fragments", |server| server.driver.receive_buffers = vec![510, 1024]),
            ("joining", |server| {
                (server.driver.fragments, server.driver.receive_buffers) = (None, vec![510, 1024]);
            }),
            ("fragment_bytes", |server| fragments(server).fragment_bytes = 1979),
            ("run_bytes", |server| fragments(server).run_bytes = 5000),
            ("joined_bytes", |server| joining(server).joined_bytes = 32_769),
            ("packets_max", |server| joining(server).packets_max = 0),
            ("silence_ps", |server| joining(server).silence_ps = u64::MAX),
            ("block_pages", |server| joining(server).block_pages = 0),
            ("pages", |server| joining(server).pages = 64 * 8 + 64),
            ("completion_bytes", |server| joining(server).completion_bytes = 32),
        ];
        changes.iter().for_each(|(key, change)| is_named(r210_bcm57810, key, *change));
        fn striding(server: &mut Server) -> &mut Striding {
            server.driver.striding.as_mut().expect("a striding ring")
        }
        assert_eq!(cascadelake_cx5().out_of_range(), None);
        let changes: &[(&str, Change)] = &[
            ("reader", |server| server.software.reader = None),
            ("reader", |server| server.driver.striding = None),
            ("writer", |server| {
                (server.driver.striding, server.software.reader) = (None, None);
                server.software.writer = Some(Writer { copy_cycles: 1, frame_cycles: 1, acknowledgement_cycles: 1 });
            }),
            ("entry_pages", |server| striding(server).entry_pages = 65),
            ("stride_bytes", |server| striding(server).stride_bytes = 0),
            ("stride_bytes", |server| {
                (server.nic.segment_bytes, server.software.segment_bytes) = (9000, 9000);
                striding(server).entry_pages = 2;
            }),
            ("applications", |server| server.software.writer = None),
            ("entry_frames", |server| striding(server).entry_frames = 0),
            ("cached_pages", |server| striding(server).cached_pages = u32::MAX),
            ("completion_bytes", |server| striding(server).completion_bytes = 48),
            ("transmit_entry_bytes", |server| striding(server).transmit_entry_bytes = 8192),
            ("events", |server| striding(server).events = 0),
        ];
        changes.iter().for_each(|(key, change)| is_named(cascadelake_cx5, key, *change));
    }

    #[test]
    fn the_delay_grows_with_the_rate_and_small_frames_have_none() {
        let adapts = r210_cx3().driver.adapts.expect("mlx4_en adapts");
        let second = 1_000_000 * PS_PER_US;
        assert_eq!(adapts.delay_ps(300_000, 300_000 * 1500, second), 0);
        assert_eq!(adapts.delay_ps(425_000, 425_000 * 1500, second), 64 * PS_PER_US);
        assert_eq!(adapts.delay_ps(800_000, 800_000 * 1500, second), 128 * PS_PER_US);
        assert_eq!(adapts.delay_ps(800_000, 800_000 * 66, second), 0);
        assert_eq!(adapts.delay_ps(0, 0, second), 0);
    }

    /// FNV-1a, 64 bits.
    fn hash(text: &str) -> u64 {
        text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
    }

    #[test]
    fn the_inputs_are_pinned() {
        // A commit that changes a value names its source and the results that change.
        let pinned = [
            ("r210-cx3", 0x3647_219a_9c8c_a73d),
            ("r210-bcm57810", 0xa81f_b204_f954_1959),
            ("r430-bcm57810", 0x9930_a139_669b_c15c),
            ("cascadelake-cx5", 0x6bfa_b0e6_2b75_bfc2),
            ("cascadelake-cx5-9k", 0x836f_a75a_1574_cfed),
            ("icelake-cx5", 0x56de_c90e_cc52_9b02),
            ("future-800g", 0xec6b_a3dd_bc5a_71fc),
        ];
        for (id, pinned) in pinned {
            let machine = Machine::by_id(id).expect("a machine");
            let mut book = json!([machine.core_hz, machine.costs, machine.iommu, machine.server]).to_string();
            if machine.sharing != Sharing::default() {
                book += &json!(machine.sharing).to_string();
            }
            assert_eq!(hash(&book), pinned, "{id}: {:#x}", hash(&book));
        }
    }
}
