//! A cache line: who has it.

use crate::costs::Costs;

/// The largest number of virtual CPUs.
pub const CPUS_MAX: usize = 256;

/// A set of CPUs.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct CpuSet([u64; CPUS_MAX / 64]);

impl CpuSet {
    fn of(cpu: usize) -> Self {
        let mut set = Self::default();
        set.insert(cpu);
        set
    }

    fn insert(&mut self, cpu: usize) {
        self.0[cpu / 64] |= 1 << (cpu % 64);
    }

    fn contains(&self, cpu: usize) -> bool {
        self.0[cpu / 64] >> (cpu % 64) & 1 != 0
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        (0..CPUS_MAX).filter(|cpu| self.contains(*cpu))
    }
}

/// Where the only valid contents are.
#[derive(Clone, Copy, Default)]
enum Holder {
    #[default]
    Memory,
    /// In the caches of these CPUs, unmodified.
    Copies(CpuSet),
    /// In the cache of this CPU.
    Modified(usize),
}

/// A line, and when it can next be transferred.
#[derive(Clone, Copy, Default)]
pub(crate) struct Line {
    holder: Holder,
    /// When the transfer that was requested last is over, in cycles.
    pub(crate) free_at: u64,
}

/// A line that comes from elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Transfer {
    /// Cycles until it is there.
    pub(crate) latency: u64,
    /// Cycles until the next transfer of the line may begin.
    pub(crate) busy: u64,
    /// Whether it comes from the cache of another CPU, or makes another CPU drop its copy.
    pub(crate) is_between_cpus: bool,
}

impl Line {
    /// Gives `cpu` a copy. `None` if it has one.
    pub(crate) fn read(&mut self, cpu: usize, costs: &Costs) -> Option<Transfer> {
        let clean = |latency| Transfer { latency, busy: costs.clean_busy, is_between_cpus: true };
        match self.holder {
            Holder::Modified(owner) if owner == cpu => None,
            Holder::Modified(owner) => {
                let mut both = CpuSet::of(owner);
                both.insert(cpu);
                self.holder = Holder::Copies(both);
                let latency = if costs.are_together(owner, cpu) { costs.modified } else { costs.other_socket };
                Some(Transfer { latency, busy: latency, is_between_cpus: true })
            }
            Holder::Copies(copies) if copies.contains(cpu) => None,
            Holder::Copies(mut copies) => {
                let is_near = copies.iter().any(|other| costs.are_together(other, cpu));
                copies.insert(cpu);
                self.holder = Holder::Copies(copies);
                Some(clean(if is_near { costs.clean } else { costs.other_socket }))
            }
            Holder::Memory => {
                self.holder = Holder::Copies(CpuSet::of(cpu));
                Some(Transfer { is_between_cpus: false, ..clean(costs.clean) })
            }
        }
    }

    /// Makes `cpu` the only one to have the line, which it modifies. `None` if it is that already.
    pub(crate) fn write(&mut self, cpu: usize, costs: &Costs) -> Option<Transfer> {
        let before = self.holder;
        self.holder = Holder::Modified(cpu);
        let others = match before {
            Holder::Modified(owner) => CpuSet::of(owner),
            Holder::Copies(copies) => copies,
            Holder::Memory => {
                return Some(Transfer { latency: costs.clean, busy: costs.clean, is_between_cpus: false });
            }
        };
        let mut others = others.iter().filter(|other| *other != cpu).peekable();
        // A CPU that has the only copy modifies it without asking anyone.
        others.peek()?;
        let latency =
            if others.all(|other| costs.are_together(other, cpu)) { costs.modified } else { costs.other_socket };
        Some(Transfer { latency, busy: latency, is_between_cpus: true })
    }

    /// A device has written the line in memory, so no cache has it any more.
    pub(crate) fn take_away(&mut self) {
        self.holder = Holder::Memory;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_SOCKETS: Costs = Costs { socket_cpus: 2, ..Costs::XEON };

    fn latency(transfer: Option<Transfer>) -> Option<u64> {
        transfer.map(|transfer| transfer.latency)
    }

    #[test]
    fn a_line_moves_when_another_cpu_wants_it() {
        let (mut line, costs) = (Line::default(), Costs::XEON);
        assert!(!line.read(0, &costs).expect("from memory").is_between_cpus);
        assert_eq!(line.write(0, &costs), None, "the only copy");
        assert_eq!(latency(line.read(1, &costs)), Some(costs.modified));
        assert_eq!(line.read(0, &costs), None, "the owner keeps a copy");
        assert_eq!(latency(line.read(2, &costs)), Some(costs.clean));
        assert_eq!(latency(line.write(1, &costs)), Some(costs.modified), "two others drop theirs");
        assert_eq!((line.write(1, &costs), line.read(1, &costs)), (None, None));
        assert_eq!(latency(line.write(2, &costs)), Some(costs.modified));
        line.take_away();
        assert!(!line.read(2, &costs).expect("from memory").is_between_cpus);
    }

    #[test]
    fn the_other_socket_is_farther_away() {
        let (mut line, costs) = (Line::default(), TWO_SOCKETS);
        let _ = line.write(0, &costs);
        assert_eq!(latency(line.read(2, &costs)), Some(costs.other_socket));
        assert_eq!(latency(line.read(3, &costs)), Some(costs.clean), "its own socket has a copy now");
        assert_eq!(latency(line.write(3, &costs)), Some(costs.other_socket), "one of the others is far away");
        assert_eq!(latency(line.write(2, &costs)), Some(costs.modified));
    }
}
