//! A synthetic workload: receive rings, each served by its own core, all in one domain.
//!
//! A core waits, and then serves a burst: the device has written the oldest buffers of the ring; the core unmaps them
//! and maps as many new ones. For a share of them it also maps a small transmit buffer, which the next burst unmaps.
//!
//! In addition there may be an idle ring. Core 0 maps its buffers during warm-up, one page after every 64 pages that
//! the busy rings have mapped, and they stay for the rest of the run. They are therefore spread over the addresses in
//! use, like buffers that a driver replaces one at a time.

use super::Pace;
use super::driver::{Driver, close_windows};
use super::live::{Buffer, Slot};
use super::parameter::{self, OPERATIONS_MAX, Parameter, Range, WorkloadError};
use super::workload::Workload;
use super::world::World;
use crate::machine::Machine;
use portcullis::{Access, PAGE_SIZE, PhysAddr, Segment};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::Serialize;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// The address of the first buffer in memory.
const BUFFERS_BASE: u64 = 1 << 32;
/// The most pages of receive buffers of all rings: 16 GiB.
const PAGES_MAX: u64 = 1 << 22;
/// Bytes of a transmit buffer, which holds an acknowledgement.
const TRANSMIT_BYTES: u64 = 64;
/// Pages that the busy rings map for each buffer of the idle ring.
const PAGES_PER_IDLE: u64 = 64;

/// The parameters of the workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rings {
    /// The number of rings, and of cores.
    pub count: u32,
    /// Buffers in each ring.
    pub ring: u32,
    /// Buffers that a core serves at a time.
    pub burst: u32,
    /// The share of receive buffers for which a transmit buffer is mapped too.
    pub tx: f64,
    /// Pages of a receive buffer.
    pub pages: u32,
    /// Buffers of one page in an idle ring. They are mapped during warm-up, one for every 64 pages of the other rings,
    /// and never unmapped.
    pub idle: u32,
    /// Receive buffers mapped by all rings together after warm-up.
    pub operations: u64,
    /// Whether a core commits in two halves: it submits the unmaps of a burst, maps the new buffers, and then waits.
    #[serde(skip)]
    pub halves: bool,
}

impl Default for Rings {
    fn default() -> Self {
        Self { count: 1, ring: 256, burst: 16, tx: 0.0, pages: 1, idle: 0, operations: 40_000, halves: false }
    }
}

/// The name on the command line.
pub(super) const ID: &str = "rings";

pub(super) const PARAMETERS: &[Parameter<Rings>] = &[
    Parameter {
        key: "count",
        range: Range::Whole(1..=1024),
        description: "rings, and the cores that serve them",
        set: |rings, value| rings.count = value as u32,
    },
    Parameter {
        key: "ring",
        range: Range::Whole(1..=1 << 16),
        description: "receive buffers in each ring",
        set: |rings, value| rings.ring = value as u32,
    },
    Parameter {
        key: "burst",
        range: Range::Whole(1..=1 << 16),
        description: "buffers that a core serves at a time; no more than are in its ring",
        set: |rings, value| rings.burst = value as u32,
    },
    Parameter {
        key: "tx",
        range: Range::Any(0..=1),
        description: "share of receive buffers for which a transmit buffer of 64 bytes is mapped too, until the next burst",
        set: |rings, value| rings.tx = value,
    },
    Parameter {
        key: "pages",
        range: Range::Whole(1..=1 << 10),
        description: "pages of a receive buffer",
        set: |rings, value| rings.pages = value as u32,
    },
    Parameter {
        key: "idle",
        range: Range::Whole(0..=1 << 16),
        description: "buffers of a page in an idle ring: mapped during warm-up, one for every 64 pages of the other rings, and never unmapped",
        set: |rings, value| rings.idle = value as u32,
    },
    Parameter {
        key: "operations",
        range: Range::Whole(1..=OPERATIONS_MAX),
        description: "receive buffers that all rings together map after warm-up",
        set: |rings, value| rings.operations = value as u64,
    },
];

impl Workload for Rings {
    fn cores(&self) -> usize {
        self.count as usize
    }

    /// Without transmit buffers.
    fn live_pages_max(&self) -> u64 {
        u64::from(self.count) * u64::from(self.ring) * u64::from(self.pages) + u64::from(self.idle)
    }

    fn memory_end(&self, _: &Machine) -> u64 {
        self.idle_base() + u64::from(self.idle) * PAGE_SIZE
    }

    fn commits_in_halves(&self) -> bool {
        self.halves
    }

    fn parameters(&self) -> Value {
        json!(self)
    }
}

impl Rings {
    /// Parses `count=40,ring=256,burst=16,tx=0.05,pages=1,idle=0,operations=40000`. Each parameter is optional.
    pub(super) fn parse(text: &str) -> Result<Self, WorkloadError> {
        let mut rings: Self = parameter::parse(ID, PARAMETERS, text)?;
        rings.burst = rings.burst.min(rings.ring);
        let pages = u64::from(rings.count) * u64::from(rings.ring) * u64::from(rings.pages);
        if pages > PAGES_MAX {
            return Err(WorkloadError::TooMany { pages, most: PAGES_MAX });
        }
        Ok(rings)
    }

    /// The address where the buffers of the idle ring begin, behind the others.
    fn idle_base(&self) -> u64 {
        BUFFERS_BASE + u64::from(self.count) * self.pages_per_ring() * PAGE_SIZE
    }

    /// Receive buffers that a core has in memory: those of the ring, and one more. Between the halves of a commit, the
    /// core has none of the buffers of the burst, so there are as many more.
    fn receive_buffers(&self) -> u64 {
        u64::from(self.ring) + if self.halves { u64::from(self.burst) } else { 1 }
    }

    /// Pages of these buffers.
    fn receive_pages(&self) -> u64 {
        self.receive_buffers() * u64::from(self.pages)
    }

    /// Pages that a core has in memory. A transmit buffer has a whole page. Receive buffers whose size is a power of
    /// two pages are aligned to their size.
    fn pages_per_ring(&self) -> u64 {
        let pages = self.receive_pages() + self.slots_per_ring().1;
        pages.next_multiple_of(u64::from(self.pages).next_power_of_two())
    }

    /// Pages that all rings together map if each serves one burst.
    fn pages_per_burst(&self) -> u64 {
        u64::from(self.burst) * u64::from(self.pages) * u64::from(self.count)
    }

    /// Bursts of each core during warm-up: enough to go round the ring once, and to map the idle ring.
    fn warm_up_bursts(&self) -> u64 {
        let idle = (u64::from(self.idle) * PAGES_PER_IDLE).div_ceil(self.pages_per_burst());
        idle.max(u64::from(self.ring.div_ceil(self.burst)))
    }

    /// Buffers that a core has in memory: receive, transmit.
    fn slots_per_ring(&self) -> (u64, u64) {
        let mut transmit = (f64::from(self.burst) * (self.tx + 1.0)).ceil() as u64;
        if self.halves {
            // Those of the burst before are not back when others are sent.
            transmit = transmit.max(2 * u64::from(self.burst) * self.tx.ceil() as u64);
        }
        (u64::from(self.ring), transmit)
    }
}

/// The running workload.
pub(super) struct Service<'w> {
    world: &'w Rc<World>,
    rings: Rings,
    batch: usize,
    pace: Pace,
    cores: Vec<Rc<RefCell<Ring>>>,
}

/// A ring, and its core's state between bursts.
struct Ring {
    core: usize,
    rings: Rings,
    random: Pcg64Mcg,
    /// The number of the oldest buffer, counted from the first that was ever mapped.
    at: u64,
    transmitted: VecDeque<Slot>,
    next_transmit: u64,
    /// The number of mapped buffers of the idle ring, and the pages that the others have mapped since the last of
    /// them. Used by core 0 only.
    idle: u32,
    pages_since: u64,
}

impl<'w> Service<'w> {
    pub(super) fn new(world: &'w Rc<World>, rings: &Rings, batch: usize, pace: Pace, seed: u64) -> Self {
        let ring = |core: u32| Ring {
            core: core as usize,
            rings: rings.clone(),
            random: Pcg64Mcg::seed_from_u64(seed ^ (u64::from(core) << 32)),
            at: 0,
            transmitted: VecDeque::new(),
            next_transmit: 0,
            idle: 0,
            pages_since: 0,
        };
        let cores = (0..rings.count).map(|core| Rc::new(RefCell::new(ring(core)))).collect();
        Self { world, rings: rings.clone(), batch, pace, cores }
    }

    /// Fills the rings one after the other, as a driver does when it opens its queues. Then goes round each ring once,
    /// or until the idle ring is mapped.
    pub(super) fn warm_up(&self, machine: &Machine) {
        let (world, cores) = (self.world.clone(), self.cores.clone());
        let fill = move || {
            let mut driver = Driver::new(&world, 0, 1);
            for ring in &cores {
                let ring = ring.borrow();
                driver.serve(ring.core as u32);
                for number in 0..u64::from(ring.rings.ring) {
                    let (slot, segments) = ring.receive(number);
                    driver.map(slot, &segments, Access::DeviceWrites, 0);
                }
            }
        };
        self.world.run(vec![Box::new(fill)]);
        self.bursts(machine, self.rings.warm_up_bursts());
    }

    /// Serves the rings until the operations are done.
    pub(super) fn serve(&self, machine: &Machine) {
        let per_core = self.rings.operations.div_ceil(u64::from(self.rings.count));
        self.bursts(machine, per_core.div_ceil(u64::from(self.rings.burst)));
    }

    /// Serves `bursts` bursts on every core.
    fn bursts(&self, machine: &Machine, bursts: u64) {
        let gap_ps = self.gap_ps(machine);
        let bodies = self.cores.iter().map(|ring| {
            let (world, ring, batch) = (self.world.clone(), ring.clone(), self.batch);
            Box::new(move || {
                let mut ring = ring.borrow_mut();
                let mut driver = Driver::new(&world, ring.core, batch);
                driver.commits_in_halves(ring.rings.halves);
                driver.serve(ring.core as u32);
                for _ in 0..bursts {
                    // Half to one and a half times the mean, so that rings are not served in lockstep.
                    let wait_ps = gap_ps * ring.random.random_range(0.5..1.5);
                    world.engine.sleep_until(world.engine.now_ps() + wait_ps as u64);
                    ring.burst(&mut driver);
                    if ring.core == 0 {
                        ring.go_idle(&mut driver);
                    }
                    if world.failed() {
                        break;
                    }
                }
                driver.finish();
            }) as Box<dyn FnOnce()>
        });
        self.world.run(bodies.collect());
        close_windows(self.world, self.batch);
    }

    /// The pause before a burst: the time that the bursts of all rings take at the machine's rate.
    fn gap_ps(&self, machine: &Machine) -> f64 {
        self.pace.gap_ps(machine, self.rings.pages_per_burst() * PAGE_SIZE)
    }
}

impl Ring {
    /// One burst: unmaps the oldest buffers and maps new ones.
    fn burst(&mut self, driver: &mut Driver<'_>) {
        // What was not done after the last burst, in which case the core has gone on.
        driver.take_back();
        while let Some(slot) = self.transmitted.pop_front() {
            driver.unmap(slot);
        }
        let (ring, burst) = (u64::from(self.rings.ring), u64::from(self.rings.burst));
        let served = self.at..self.at + burst;
        for number in served.clone() {
            driver.unmap(self.slot(number % ring));
        }
        driver.commit();
        // In two halves, this is the time in which the hardware invalidates.
        for number in served {
            let (slot, segments) = self.receive(number + ring);
            driver.map(slot, &segments, Access::DeviceWrites, 0);
            let share = self.rings.tx;
            let sends = share as u32 + u32::from(self.random.random_bool(share.fract()));
            for _ in 0..sends {
                let (slot, segments) = self.transmit();
                driver.map(slot, &segments, Access::DeviceReads, 0);
                self.transmitted.push_back(slot);
            }
        }
        driver.take_back_done();
        self.at += burst;
    }

    /// Maps the buffers of the idle ring that are due after a burst.
    fn go_idle(&mut self, driver: &mut Driver<'_>) {
        let rings = &self.rings;
        let (receive, transmit) = rings.slots_per_ring();
        self.pages_since += rings.pages_per_burst();
        while self.idle < rings.idle && self.pages_since >= PAGES_PER_IDLE {
            let slot = (u64::from(rings.count) * (receive + transmit)) as Slot + self.idle as Slot;
            let phys = PhysAddr::new(rings.idle_base() + u64::from(self.idle) * PAGE_SIZE);
            let buffer = Buffer::from(Segment { phys, len: PAGE_SIZE });
            driver.map(slot, &buffer, Access::DeviceWrites, 0);
            self.idle += 1;
            self.pages_since -= PAGES_PER_IDLE;
        }
    }

    /// Receive buffer `number` of this ring. Its memory is the one that has been free for longest, and never that of
    /// the previous buffer in the same place. Otherwise an address reused in turn would lead to the same memory as
    /// before, whether or not it was invalidated.
    fn receive(&self, number: u64) -> (Slot, Buffer) {
        let (ring, pages) = (u64::from(self.rings.ring), u64::from(self.rings.pages));
        self.buffer(number % ring, number % self.rings.receive_buffers() * pages, pages * PAGE_SIZE)
    }

    /// The next transmit buffer. There are as many as can be in use at once.
    fn transmit(&mut self) -> (Slot, Buffer) {
        let (receive, transmit) = self.rings.slots_per_ring();
        let index = self.next_transmit % transmit;
        self.next_transmit += 1;
        self.buffer(receive + index, self.rings.receive_pages() + index, TRANSMIT_BYTES)
    }

    /// Buffer `index` of this core, `page` pages into the core's memory.
    fn buffer(&self, index: u64, page: u64, len: u64) -> (Slot, Buffer) {
        let first = self.core as u64 * self.rings.pages_per_ring();
        let phys = PhysAddr::new(BUFFERS_BASE + (first + page) * PAGE_SIZE);
        (self.slot(index), Buffer::from(Segment { phys, len }))
    }

    /// The slot of buffer `index` of this core.
    fn slot(&self, index: u64) -> Slot {
        let (receive, transmit) = self.rings.slots_per_ring();
        (self.core as u64 * (receive + transmit) + index) as Slot
    }
}
