//! Virtual CPUs, their clocks, and the lines of memory.

use crate::Access;
use crate::costs::Costs;
use crate::line::{Line, Transfer};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::ops::Sub;

/// The size of a cache line in bytes.
pub(crate) const LINE_BYTES: usize = 64;

/// What has happened so far, on all CPUs.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Count {
    /// Lines that came from the cache of another CPU, or of which other CPUs had to drop their copies.
    pub transfers: u64,
    /// Lines that came from memory: the first use of a line, and the first after a device wrote it.
    pub from_memory: u64,
    /// Locked instructions and full fences.
    pub locked: u64,
    /// Iterations of spin loops.
    pub pauses: u64,
    /// Uncached writes to devices.
    pub device_writes: u64,
}

impl Sub for Count {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            transfers: self.transfers - before.transfers,
            from_memory: self.from_memory - before.from_memory,
            locked: self.locked - before.locked,
            pauses: self.pauses - before.pauses,
            device_writes: self.device_writes - before.device_writes,
        }
    }
}

/// The clock of a virtual CPU, in cycles.
#[derive(Clone, Copy, Default)]
struct Clock {
    now: u64,
    /// When all of its stores are visible.
    stored: u64,
    /// When its store buffer may request the next line.
    next_store: u64,
    /// Set while loads do not wait for each other: when the next line may be requested, and when all are there.
    beside: Option<(u64, u64)>,
}

/// What a device does at a later time.
pub(crate) type Act = Box<dyn FnOnce()>;

pub(crate) struct Machine {
    costs: Costs,
    clocks: Vec<Clock>,
    /// The CPUs that wait for their turn, by their clocks.
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    /// What devices do later, by the time and by how many acts there were before.
    events: BTreeMap<(u64, u64), Act>,
    acts: u64,
    lines: HashMap<usize, Line>,
    pub(crate) count: Count,
}

/// What comes before the next access of a CPU.
pub(crate) enum Before {
    Nothing,
    /// A device acts first.
    Device(Act),
    /// CPUs whose clocks are behind come first.
    Cpus,
}

impl Machine {
    pub(crate) fn new(costs: Costs, cpus: usize) -> Self {
        let mut machine = Self {
            costs,
            clocks: vec![Clock::default(); cpus],
            waiting: BinaryHeap::new(),
            events: BTreeMap::new(),
            acts: 0,
            lines: HashMap::new(),
            count: Count::default(),
        };
        for cpu in 0..cpus {
            // Not all begin at the same moment.
            machine.clocks[cpu].now = (cpu as u64 * 37) % 997;
            machine.wait(cpu);
        }
        machine
    }

    /// Puts a CPU among those that wait for their turn.
    pub(crate) fn wait(&mut self, cpu: usize) {
        self.waiting.push(Reverse((self.clocks[cpu].now, cpu)));
    }

    /// The waiting CPU whose clock is the earliest.
    pub(crate) fn next(&mut self) -> Option<usize> {
        self.waiting.pop().map(|Reverse((_, cpu))| cpu)
    }

    /// What comes before the next access of `cpu`.
    pub(crate) fn before(&mut self, cpu: usize) -> Before {
        let now = self.clocks[cpu].now;
        let cpu_at = self.waiting.peek().map(|Reverse(first)| *first).filter(|first| *first < (now, cpu));
        // Events up to this moment come before the CPU that has waited longest, or before this one.
        let until = cpu_at.map_or(now, |(at, _)| at);
        match self.events.first_entry().filter(|event| event.key().0 <= until) {
            Some(event) => Before::Device(event.remove()),
            None if cpu_at.is_some() => Before::Cpus,
            None => Before::Nothing,
        }
    }

    pub(crate) fn now(&self, cpu: usize) -> u64 {
        self.clocks[cpu].now
    }

    pub(crate) fn work(&mut self, cpu: usize, cycles: u64) {
        self.clocks[cpu].now += cycles;
    }

    pub(crate) fn pause(&mut self, cpu: usize) {
        self.count.pauses += 1;
        self.work(cpu, self.costs.pause);
    }

    pub(crate) fn at(&mut self, time: u64, act: Act) {
        self.events.insert((time, self.acts), act);
        self.acts += 1;
    }

    pub(crate) fn device_write(&mut self, address: usize) {
        self.lines.entry(address / LINE_BYTES).or_default().take_away();
    }

    /// From now on, or until now, loads of `cpu` do not wait for each other.
    pub(crate) fn beside(&mut self, cpu: usize, begins: bool) {
        let clock = &mut self.clocks[cpu];
        clock.now = clock.now.max(clock.beside.map_or(0, |(_, there)| there));
        clock.beside = begins.then_some((clock.now, clock.now));
    }

    pub(crate) fn fence(&mut self, cpu: usize) {
        self.count.locked += 1;
        let clock = &mut self.clocks[cpu];
        clock.now = clock.now.max(clock.stored) + self.costs.locked;
    }

    /// An uncached write, behind all earlier stores. Returns when it arrives.
    pub(crate) fn write_to_device(&mut self, cpu: usize) -> u64 {
        self.count.device_writes += 1;
        let clock = &mut self.clocks[cpu];
        clock.now += self.costs.hit;
        clock.stored = clock.stored.max(clock.now) + self.costs.device_write;
        clock.stored
    }

    /// An access of `cpu`.
    pub(crate) fn access(&mut self, cpu: usize, address: usize, access: Access) {
        let costs = &self.costs;
        let line = self.lines.entry(address / LINE_BYTES).or_default();
        let clock = &mut self.clocks[cpu];
        let transfer = match access {
            Access::Load => line.read(cpu, costs),
            Access::Store | Access::Locked => line.write(cpu, costs),
        };
        match transfer {
            Some(Transfer { is_between_cpus: true, .. }) => self.count.transfers += 1,
            Some(_) => self.count.from_memory += 1,
            None => {}
        }
        let (latency, busy) = transfer.map_or((0, 0), |transfer| (transfer.latency, transfer.busy));
        match access {
            Access::Load => match transfer {
                None => clock.now += costs.hit,
                Some(_) => match &mut clock.beside {
                    None => {
                        let begin = clock.now.max(line.free_at);
                        line.free_at = begin + busy;
                        clock.now = begin + latency;
                    }
                    Some((next, there)) => {
                        let requested = clock.now.max(*next);
                        let begin = requested.max(line.free_at);
                        line.free_at = begin + busy;
                        *next = requested + costs.gap;
                        *there = (*there).max(begin + latency);
                        clock.now += costs.hit;
                    }
                },
            },
            Access::Store => {
                let requested = if transfer.is_some() { clock.now.max(clock.next_store) } else { clock.now };
                clock.now += costs.hit;
                let there = requested.max(line.free_at) + latency;
                if transfer.is_some() {
                    clock.next_store = requested + costs.gap;
                }
                // In order: not before the stores that were made earlier.
                clock.stored = clock.stored.max(there).max(clock.now);
                if transfer.is_some() {
                    line.free_at = clock.stored;
                }
            }
            Access::Locked => {
                self.count.locked += 1;
                clock.now = clock.now.max(clock.stored).max(line.free_at) + latency + costs.locked;
                clock.stored = clock.now;
                if transfer.is_some() {
                    line.free_at = clock.now;
                }
            }
        }
    }
}
