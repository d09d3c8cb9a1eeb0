//! What it costs to move cache lines between CPUs, and locks with the data behind them.

use super::{Core, CostBook, Engine, LockKind, Sharing};
use portcullis::platform::LockClass;

/// The lines of a machine.
pub(super) struct Lines {
    /// The socket of each CPU.
    sockets: Vec<u32>,
    /// Moving a line within a socket, and between sockets, in cycles.
    near: u64,
    far: u64,
    /// What each core that still waits adds to a hand-off.
    per_waiter: u64,
    iova_lock_lines: u64,
    queue_lock_lines: u64,
}

impl Lines {
    /// All CPUs are in one socket, and locks stand alone.
    pub(super) fn of_one_socket(costs: &CostBook) -> Self {
        Self::new(costs, &Sharing::default(), 1, 0)
    }

    /// Those of `cpus` CPUs of a machine of `cores` cores.
    pub(super) fn new(costs: &CostBook, sharing: &Sharing, cores: u32, cpus: usize) -> Self {
        let per_waiter = match sharing.lock_kind {
            LockKind::Ticket => costs.handoff_per_waiter,
            LockKind::Queued => 0,
        };
        Self {
            sockets: (0..cpus).map(|cpu| sharing.socket_of(cpu, cores)).collect(),
            near: costs.line_transfer,
            far: sharing.line_transfer_far,
            per_waiter,
            iova_lock_lines: sharing.iova_lock_lines,
            queue_lock_lines: sharing.queue_lock_lines,
        }
    }

    /// Whether two CPUs are in one socket.
    pub(super) fn are_near(&self, one: Core, other: Core) -> bool {
        // An actor is in no socket.
        let socket = |core: Core| self.sockets.get(core);
        socket(one).zip(socket(other)).is_none_or(|(one, other)| one == other)
    }

    /// Moving a line from one CPU to another.
    pub(super) fn transfer(&self, from: Core, to: Core) -> u64 {
        if self.are_near(from, to) { self.near } else { self.far }
    }

    /// Moving a line between two CPUs, on average over all pairs.
    pub(super) fn mean(&self) -> u64 {
        let cpus = 0..self.sockets.len();
        let pairs = cpus.clone().flat_map(|from| cpus.clone().filter(move |to| *to != from).map(move |to| (from, to)));
        let (sum, count) = pairs.fold((0, 0), |(sum, count), (from, to)| (sum + self.transfer(from, to), count + 1));
        sum.checked_div(count).unwrap_or(self.near)
    }

    /// Moving a lock from the CPU that held it last, with the lines of data behind it.
    pub(super) fn lock(&self, class: LockClass, from: Core, to: Core) -> u64 {
        let behind = match class {
            LockClass::IovaAllocator => self.iova_lock_lines,
            LockClass::InvalidationQueue | LockClass::CentralFlushQueue => self.queue_lock_lines,
            _ => 0,
        };
        self.transfer(from, to) * (1 + behind)
    }

    /// Handing a lock on to the first of its waiters, while `waiters` more wait. After the hand-off writes the line of
    /// a ticket lock, every waiter reads it, one after the other.
    pub(super) fn handoff(&self, class: LockClass, from: Core, to: Core, waiters: usize) -> u64 {
        self.lock(class, from, to) + self.per_waiter * waiters as u64
    }
}

impl Engine {
    /// Spreads its CPUs over the sockets of a machine of `cores` cores.
    #[must_use]
    pub fn with_sharing(mut self, sharing: &Sharing, cores: u32) -> Self {
        self.lines = Lines::new(&self.costs, sharing, cores, self.cpus);
        // What steps move goes from any CPU to any other.
        self.costs.line_transfer = self.lines.mean();
        self
    }

    /// Whether two CPUs are in one socket.
    pub fn are_near(&self, one: Core, other: Core) -> bool {
        self.lines.are_near(one, other)
    }
}
