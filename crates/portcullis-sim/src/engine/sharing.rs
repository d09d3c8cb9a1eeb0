//! What it costs CPUs of several sockets to share cache lines and locks.

use serde::{Deserialize, Serialize};

/// How the CPUs of a machine share. The default is one socket, whose ticket locks stand alone on their lines.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sharing {
    /// Sockets, over which all CPUs are spread evenly.
    pub sockets: u32,
    /// How CPUs are numbered.
    pub numbering: Numbering,
    /// Moving a cache line from the other socket, in core cycles. From the own socket it costs `line_transfer`.
    pub line_transfer_far: u64,
    /// The kind of the host's locks.
    pub lock_kind: LockKind,
    /// Lines of data behind the lock of an IOVA allocator. They move with it to each next holder.
    pub iova_lock_lines: u64,
    /// Lines of data behind the lock of an invalidation queue, or of the central queue of unmaps.
    pub queue_lock_lines: u64,
}

/// How CPUs are numbered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Numbering {
    /// Over the sockets in turn.
    Alternating,
    /// One socket after the other.
    Blocks,
}

/// Kinds of locks. Both are fair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LockKind {
    /// All waiters read one line, so each of them adds to a hand-off.
    Ticket,
    /// Each waiter has a line of its own.
    Queued,
}

impl Default for Sharing {
    fn default() -> Self {
        Self {
            sockets: 1,
            numbering: Numbering::Blocks,
            line_transfer_far: 0,
            lock_kind: LockKind::Ticket,
            iova_lock_lines: 0,
            queue_lock_lines: 0,
        }
    }
}

impl Sharing {
    /// Whether it is the default, which is not written.
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The first value that no machine of `cores` cores can have, where a line from the own socket costs
    /// `line_transfer`, and its range.
    pub(crate) fn out_of_range(&self, cores: u32, line_transfer: u64) -> Option<(&'static str, &'static str)> {
        let is_far = self.sockets == 1 || self.line_transfer_far >= line_transfer;
        let checks = [
            ("sockets", (1..=cores).contains(&self.sockets), "from 1 to `cores`"),
            ("line_transfer_far", self.line_transfer_far <= CYCLES_MAX, "at most 1000000 cycles"),
            ("line_transfer_far", is_far, "at least `line_transfer` if there are several sockets"),
            ("iova_lock_lines", self.iova_lock_lines <= LINES_MAX, "at most 1000"),
            ("queue_lock_lines", self.queue_lock_lines <= LINES_MAX, "at most 1000"),
        ];
        checks.into_iter().find(|(_, holds, _)| !holds).map(|(key, _, expected)| (key, expected))
    }

    /// The same CPUs, where moving lines costs nothing.
    #[must_use]
    pub(crate) fn free(&self) -> Self {
        Self { line_transfer_far: 0, ..self.clone() }
    }

    /// The socket of a CPU, of `cores` cores.
    pub fn socket_of(&self, cpu: usize, cores: u32) -> u32 {
        let cpu = cpu as u32;
        match self.numbering {
            Numbering::Alternating => cpu % self.sockets,
            Numbering::Blocks => (cpu / cores.div_ceil(self.sockets)).min(self.sockets - 1),
        }
    }
}

const CYCLES_MAX: u64 = 1_000_000;
const LINES_MAX: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_spread_over_sockets() {
        let of = |numbering, sockets| {
            let sharing = Sharing { sockets, numbering, ..Sharing::default() };
            (0..8).map(|cpu| sharing.socket_of(cpu, 8)).collect::<Vec<_>>()
        };
        assert_eq!(of(Numbering::Alternating, 2), [0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(of(Numbering::Blocks, 2), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(of(Numbering::Blocks, 3), [0, 0, 0, 1, 1, 1, 2, 2]);
        assert_eq!(of(Numbering::Alternating, 1), [0; 8]);
    }

    #[test]
    fn what_cannot_be_is_named() {
        let named = |change: fn(&mut Sharing)| {
            let mut sharing = Sharing::default();
            change(&mut sharing);
            sharing.out_of_range(16, 100).map(|(key, _)| key)
        };
        assert_eq!(named(|_| ()), None);
        assert_eq!(named(|sharing| sharing.sockets = 0), Some("sockets"));
        assert_eq!(named(|sharing| sharing.sockets = 17), Some("sockets"));
        assert_eq!(named(|sharing| sharing.sockets = 2), Some("line_transfer_far"));
        assert_eq!(named(|sharing| sharing.line_transfer_far = u64::MAX), Some("line_transfer_far"));
        assert_eq!(named(|sharing| sharing.iova_lock_lines = 1001), Some("iova_lock_lines"));
        assert_eq!(named(|sharing| sharing.queue_lock_lines = u64::MAX), Some("queue_lock_lines"));
    }
}
