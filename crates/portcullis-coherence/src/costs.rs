//! What accesses cost.

/// Costs in cycles, and where the CPUs are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// A load or store that finds its line.
    pub hit: u64,
    /// A locked instruction or full fence, beyond the wait for its line.
    pub locked: u64,
    /// A line that a CPU of the same socket has modified, or of which it must drop its copy.
    pub modified: u64,
    /// A line that no CPU has modified, from the cache of the socket.
    pub clean: u64,
    /// A line that comes from the other socket.
    pub other_socket: u64,
    /// How long a transfer of an unmodified line delays the next.
    pub clean_busy: u64,
    /// The least time between two requests of a CPU that do not wait for each other.
    pub gap: u64,
    /// An iteration of a spin loop.
    pub pause: u64,
    /// An uncached write, which is posted.
    pub device_write: u64,
    /// The first CPU of the second socket. At most this many CPUs are on one socket.
    pub socket_cpus: usize,
}

impl Costs {
    /// One socket of a Xeon; pauses as before Skylake, where one takes 40 cycles and not 140.
    ///
    /// Transfers of 130 cycles within a socket and of 257 between sockets are typical of such machines.
    pub const XEON: Self = Self {
        hit: 1,
        locked: 18,
        modified: 130,
        clean: 70,
        other_socket: 257,
        clean_busy: 25,
        gap: 12,
        pause: 40,
        device_write: 250,
        socket_cpus: usize::MAX,
    };

    /// Whether the CPUs are on one socket.
    pub(crate) const fn are_together(&self, one: usize, other: usize) -> bool {
        (one < self.socket_cpus) == (other < self.socket_cpus)
    }
}
