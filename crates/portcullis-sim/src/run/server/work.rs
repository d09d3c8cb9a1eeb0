//! The workloads of servers: the applications, and how much of them a run does. `admission` says which of them a
//! machine can run.

use super::choices::{IperfChoices, StreamDirection};
use portcullis_model::PIECES_MAX;
use std::ops::RangeInclusive;

/// An application and its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerWorkload {
    /// One client per flow sends a TCP stream, as fast as the server takes it.
    NetperfStream,
    /// One client per flow sends a request of one byte, and the next one after a response of one byte.
    NetperfRr,
    /// ApacheBench: one client per flow asks for a file of 1 MiB, on a connection for each request.
    Apache1m,
    /// The same, with a file of 1 KiB.
    Apache1k,
    /// Memslap: one client per flow asks for a value of 1 KiB, or stores one.
    Memcached,
    /// One client per flow sends a TCP stream, on a link that loses packets when the server is too slow.
    Iperf,
    /// On the same link: one client per flow stores values in Redis, 32 at a time.
    Redis,
    /// On the same link: one client per flow asks Nginx for a page.
    Nginx,
    /// On the same link: SPDK on the server reads blocks from other hosts, eight at a time on each flow.
    Spdk,
    /// On the same link: streams as of `iperf`, and on the last flow calls, one after the other.
    RpcTail,
}

impl ServerWorkload {
    /// Whether each request has a connection of its own.
    pub(super) fn has_connections(self) -> bool {
        matches!(self, Self::Apache1m | Self::Apache1k)
    }

    /// The length of the file that each request asks for, if it asks for one.
    pub(super) fn file_bytes(self) -> Option<u32> {
        match self {
            Self::Apache1m => Some(1 << 20),
            Self::Apache1k => Some(1 << 10),
            _ => None,
        }
    }

    /// Whether its clients make runs, which begin and end with control messages.
    pub(super) fn has_runs(self) -> bool {
        matches!(self, Self::NetperfStream | Self::NetperfRr) || self.loses_packets()
    }

    /// Whether its rate is one of bytes.
    pub(crate) fn has_streams(self) -> bool {
        self == Self::NetperfStream || self.loses_packets()
    }

    /// Whether it runs under a driver with striding rings, on a link that loses packets when the server is too slow.
    pub fn loses_packets(self) -> bool {
        matches!(self, Self::Iperf | Self::Redis | Self::Nginx | Self::Spdk | Self::RpcTail)
    }

    /// The parameter that says how large its messages are, with the default and the range. The work is measured in
    /// bytes, so that runs with smaller messages would be long.
    pub(super) fn size(self) -> Option<(&'static str, u32, RangeInclusive<u32>)> {
        match self {
            Self::Redis => Some(("value", 8 << 10, 256..=1 << 20)),
            Self::Nginx => Some(("page", 2 << 20, 4096..=16 << 20)),
            Self::Spdk => Some(("block", 128 << 10, 4096..=1 << 20)),
            Self::RpcTail => Some(("bytes", 128, 1..=64 << 10)),
            _ => None,
        }
    }
}

/// Every application: its name on the command line, and what it does.
pub const SERVER_WORKLOADS: &[(&str, ServerWorkload, &str)] = &[
    (
        STREAM,
        ServerWorkload::NetperfStream,
        "a client per flow sends a TCP stream as fast as the server takes it; `:message=BYTES` sets what it writes at once",
    ),
    (
        RR,
        ServerWorkload::NetperfRr,
        "a client per flow sends a byte, and waits for a byte; with `:background=N` other programs take N small objects \
         from the kernel's allocator for each request",
    ),
    ("apache-1m", ServerWorkload::Apache1m, "a client per flow asks for a file of 1 MiB, on a connection per request"),
    ("apache-1k", ServerWorkload::Apache1k, "a client per flow asks for a file of 1 KiB, on a connection per request"),
    ("memcached", ServerWorkload::Memcached, "a client per flow asks for a value of 1 KiB, or stores one"),
    (IPERF, ServerWorkload::Iperf, IPERF_WHAT),
    (
        "redis",
        ServerWorkload::Redis,
        "a client per flow stores 32 values at a time in Redis; `:value=BYTES`, and the parameters of iperf but \
         `direction`",
    ),
    ("nginx", ServerWorkload::Nginx, "a client per flow asks Nginx for a page; `:page=BYTES`, and the same"),
    (
        "spdk",
        ServerWorkload::Spdk,
        "the server reads eight blocks at a time from another host on each flow; `:block=BYTES`, and the same",
    ),
    (
        "rpc-tail",
        ServerWorkload::RpcTail,
        "as iperf, but on the last flow a client makes calls; `:bytes=BYTES` of a call and of its answer, and the same",
    ),
];

/// The workload with a parameter: the bytes of a message.
pub(super) const STREAM: &str = "netperf-stream";
/// The workload beside which other programs may run.
pub(super) const RR: &str = "netperf-rr";
/// The workload whose packets may be lost.
pub(super) const IPERF: &str = "iperf";
const IPERF_WHAT: &str = "a client per flow sends a TCP stream, and packets are lost if the server is too slow; \
    `:recycle=driver|never|always`, `:hold=yes|no`, `:ack=linux|each`, `:regions=N`, \
    `:direction=receive|send|both` of the server, where of two flows it receives the first and sends the second";
/// Work that the machine can do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerWork {
    /// The application.
    pub workload: ServerWorkload,
    /// The number of CPUs that serve.
    pub cores: u32,
    /// The number of flows, which are spread over the CPUs.
    pub flows: u32,
    /// The entries of a transmit ring.
    pub transmit_entries: u32,
    /// The entries of a receive ring.
    pub receive_entries: u32,
    /// The bytes that the client of a stream writes at once.
    pub message_bytes: u32,
    /// Small objects that other programs take from the kernel's allocator for each request of Netperf.
    pub background: u32,
    /// The number of runs since the card was opened. They disturb the order of addresses.
    pub earlier_runs: u32,
    /// The packets or requests of each of these runs.
    pub earlier_packets: u32,
    /// The number of packets or requests before the measurement.
    pub warm_up: u64,
    /// The number of packets or requests in the measurement.
    pub measured: u64,
    /// The choices of work that [loses packets](ServerWorkload::loses_packets).
    pub iperf: IperfChoices,
    /// The bytes of a value, a page, a block or a call, of the applications that lose packets. 0 for the others.
    pub size: u32,
    /// Whether the driver of the card commits in two halves: it submits what a poll has unmapped, refills, and then
    /// waits. Not for work that loses packets, nor without batches.
    pub halves: bool,
}

impl ServerWork {
    /// All packets or requests.
    pub fn packets(&self) -> u64 {
        let flows = if self.workload.has_runs() { u64::from(self.flows) } else { 1 };
        flows * u64::from(self.earlier_runs) * u64::from(self.earlier_packets) + self.warm_up + self.measured
    }

    /// The packets or requests that are counted and come before the measurement.
    pub(super) fn unmeasured(&self) -> u64 {
        // The clients of Netperf count those of the last run only.
        let earlier = u64::from(self.earlier_runs) * u64::from(self.earlier_packets);
        if self.workload.has_runs() { self.warm_up } else { earlier + self.warm_up }
    }

    /// The buffers that an entry of a transmit ring may have.
    pub(super) fn transmit_pieces(&self) -> u32 {
        if self.workload.has_connections() { PIECES_MAX } else { 1 }
    }

    /// The flow on which a client makes calls beside streams.
    pub(super) fn call(&self) -> Option<usize> {
        (self.workload == ServerWorkload::RpcTail).then(|| self.flows as usize - 1)
    }

    /// Whether messages are exchanged on a flow, in place of an endless stream.
    pub(super) fn exchanges(&self, flow: usize) -> bool {
        self.workload.size().is_some() && self.call().is_none_or(|call| call == flow)
    }

    /// Whether the server of work that loses packets sends streams or messages, and not only acknowledgements.
    pub(super) fn sends(&self) -> bool {
        self.iperf.direction != StreamDirection::Receive || self.workload.size().is_some()
    }

    /// The core that serves a flow of work that loses packets.
    pub(super) fn core_of(&self, flow: usize) -> usize {
        flow % self.cores as usize
    }

    /// The core that handles the interrupts of a ring.
    pub(super) fn core_of_ring(&self, ring: usize) -> usize {
        ring % self.cores as usize
    }

    /// The receive ring of a connection of a flow, of `rings` rings. The card spreads connections by a hash that is
    /// linear in the bits of their ports (Toeplitz), so those that begin together are spread evenly.
    pub(super) fn receive_ring_of(&self, flow: usize, connection: u32, rings: usize) -> usize {
        (flow + hash(connection)) % rings
    }

    /// The transmit ring of what a core sends for a flow: one of those whose completions it handles. Only if there are
    /// more cores than rings, cores share some. The kernel spreads connections by a hash of their ports that is not
    /// linear (`skb_tx_hash` of Linux), so some rings serve several connections while others serve none.
    pub(super) fn transmit_ring_of(&self, flow: usize, core: usize, connection: u32, rings: usize) -> usize {
        let cores = self.cores as usize;
        let port = ((flow / cores) as u32).wrapping_mul(0x85eb_ca6b) ^ connection;
        let own = (rings / cores).max(1);
        (core + cores * (hash(port) % own)) % rings
    }
}

fn hash(port: u32) -> usize {
    (port.wrapping_mul(0x9e37_79b1) >> 16) as usize
}
