//! The synthetic workload: receive rings, each served by a core of its own, all in one domain.
//!
//! A core waits, then serves a burst: the device has written the oldest buffers of the ring; they are unmapped, and as many
//! fresh ones mapped. For a share of them a small transmit buffer is mapped too, which the next burst unmaps.
//!
//! Beside them there may be an idle ring, whose buffers core 0 maps during warm-up, one page after every 64 pages that the
//! busy rings have mapped, and that stay for the rest of the run. So they are spread as far over the addresses in use as
//! buffers get that a driver replaces one at a time.

use super::driver::Driver;
use super::live::{Buffer, Slot};
use super::workload::{self, OPERATIONS_MAX, Parameter, Range, WorkloadError};
use super::world::World;
use super::{Pace, replay};
use crate::machine::Machine;
use portcullis::{Access, PAGE_SIZE, PhysAddr, Segment, SourceId};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::Serialize;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

/// The device behind the rings.
pub(super) const DEVICE: SourceId = SourceId(0x20);
/// Where the first buffer lies in memory.
const BUFFERS_BASE: u64 = 1 << 32;
/// Pages of receive buffers in all: 16 GiB.
const PAGES_MAX: u64 = 1 << 22;
/// Bytes of a transmit buffer: an acknowledgement.
const TRANSMIT_BYTES: u64 = 64;
/// Pages that the busy rings map for each buffer of the idle one.
const PAGES_PER_IDLE: u64 = 64;

/// The parameters of the workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rings {
    /// Rings, and cores.
    pub count: u32,
    /// Buffers in each ring.
    pub ring: u32,
    /// Buffers served at a time.
    pub burst: u32,
    /// The share of receive buffers for which a transmit buffer is mapped too.
    pub tx: f64,
    /// Pages of a receive buffer.
    pub pages: u32,
    /// Buffers of a page in an idle ring: mapped during warm-up, one for every 64 pages of the other rings, and never unmapped.
    pub idle: u32,
    /// Receive buffers mapped by all rings together after warm-up.
    pub operations: u64,
}

impl Default for Rings {
    fn default() -> Self {
        Self { count: 1, ring: 256, burst: 16, tx: 0.0, pages: 1, idle: 0, operations: 40_000 }
    }
}

/// What it is called on the command line.
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

impl Rings {
    /// Reads `count=40,ring=256,burst=16,tx=0.05,pages=1,idle=0,operations=40000`, each of them optional.
    pub(super) fn parse(text: &str) -> Result<Self, WorkloadError> {
        let mut rings: Self = workload::parse(ID, PARAMETERS, text)?;
        rings.burst = rings.burst.min(rings.ring);
        let pages = u64::from(rings.count) * u64::from(rings.ring) * u64::from(rings.pages);
        if pages > PAGES_MAX {
            return Err(WorkloadError::TooMany { pages, most: PAGES_MAX });
        }
        Ok(rings)
    }

    /// One past the last byte of the buffers.
    pub(super) fn memory_end(&self) -> u64 {
        self.idle_base() + u64::from(self.idle) * PAGE_SIZE
    }

    /// The most pages that are mapped at once, but for what is sent.
    pub(super) fn live_pages_max(&self) -> u64 {
        u64::from(self.count) * u64::from(self.ring) * u64::from(self.pages) + u64::from(self.idle)
    }

    /// Where the buffers of the idle ring begin: behind the others.
    fn idle_base(&self) -> u64 {
        BUFFERS_BASE + u64::from(self.count) * self.pages_per_ring() * PAGE_SIZE
    }

    /// Pages of receive buffers that a core has in memory: those of the ring, and of one buffer more.
    fn receive_pages(&self) -> u64 {
        (u64::from(self.ring) + 1) * u64::from(self.pages)
    }

    /// Pages that a core has in memory. A transmit buffer has one to itself. Receive buffers of a power of two of pages are aligned
    /// to their size.
    fn pages_per_ring(&self) -> u64 {
        let pages = self.receive_pages() + self.slots_per_ring().1;
        pages.next_multiple_of(u64::from(self.pages).next_power_of_two())
    }

    /// Pages that all rings map while each is served a burst.
    fn pages_per_burst(&self) -> u64 {
        u64::from(self.burst) * u64::from(self.pages) * u64::from(self.count)
    }

    /// Bursts of each core during warm-up: once round the ring, and until the idle one is there.
    fn warm_up_bursts(&self) -> u64 {
        let idle = (u64::from(self.idle) * PAGES_PER_IDLE).div_ceil(self.pages_per_burst());
        idle.max(u64::from(self.ring.div_ceil(self.burst)))
    }

    /// Buffers that a core has in memory: receive, transmit.
    fn slots_per_ring(&self) -> (u64, u64) {
        let transmit = (f64::from(self.burst) * (self.tx + 1.0)).ceil() as u64;
        (u64::from(self.ring), transmit)
    }
}

/// The rings being served.
pub(super) struct Service<'w> {
    world: &'w Rc<World>,
    rings: Rings,
    batch: usize,
    pace: Pace,
    cores: Vec<Rc<RefCell<Ring>>>,
}

/// One ring and its core's state between bursts.
struct Ring {
    core: usize,
    rings: Rings,
    random: Pcg64Mcg,
    /// The oldest buffer, counted from the first that was ever mapped.
    at: u64,
    transmitted: VecDeque<Slot>,
    next_transmit: u64,
    /// Buffers of the idle ring that are mapped, and pages that the others have mapped since the last of them. Of core 0 only.
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

    /// Fills the rings one after the other, as a driver does when it opens its queues, and goes round each once, or until the
    /// idle ring is there.
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
        self.world.engine.run(vec![Box::new(fill)]);
        self.bursts(machine, self.rings.warm_up_bursts());
    }

    /// Serves the rings until the operations are done.
    pub(super) fn serve(&self, machine: &Machine) {
        let per_core = self.rings.operations.div_ceil(u64::from(self.rings.count));
        self.bursts(machine, per_core.div_ceil(u64::from(self.rings.burst)));
    }

    /// That many bursts on every core.
    fn bursts(&self, machine: &Machine, bursts: u64) {
        let gap_ps = self.gap_ps(machine);
        let bodies = self.cores.iter().map(|ring| {
            let (world, ring, batch) = (self.world.clone(), ring.clone(), self.batch);
            Box::new(move || {
                let mut ring = ring.borrow_mut();
                let mut driver = Driver::new(&world, ring.core, batch);
                driver.serve(ring.core as u32);
                for _ in 0..bursts {
                    // Half to one and a half times the mean: rings are not served in step.
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
        self.world.engine.run(bodies.collect());
        replay::close_windows(self.world, self.batch);
    }

    /// The pause before a burst: what the burst takes at the machine's rate, times the rings that share it.
    fn gap_ps(&self, machine: &Machine) -> f64 {
        self.pace.gap_ps(machine, self.rings.pages_per_burst() * PAGE_SIZE)
    }
}

impl Ring {
    /// One turn: the oldest buffers go, fresh ones come.
    fn burst(&mut self, driver: &mut Driver<'_>) {
        while let Some(slot) = self.transmitted.pop_front() {
            driver.unmap(slot);
        }
        let (ring, burst) = (u64::from(self.rings.ring), u64::from(self.rings.burst));
        let served = self.at..self.at + burst;
        for number in served.clone() {
            driver.unmap(self.slot(number % ring));
        }
        driver.commit();
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
        self.at += burst;
    }

    /// Maps as many buffers of the idle ring as are due after a burst.
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

    /// Receive buffer `number` of this ring. Its memory is what has been free for longest, and never that of the last buffer in
    /// its place: else an address that is used again in turn would lead where it led before, whether or not it was invalidated.
    fn receive(&self, number: u64) -> (Slot, Buffer) {
        let (ring, pages) = (u64::from(self.rings.ring), u64::from(self.rings.pages));
        self.buffer(number % ring, number % (ring + 1) * pages, pages * PAGE_SIZE)
    }

    /// The next transmit buffer. There are as many as can be out at once.
    fn transmit(&mut self) -> (Slot, Buffer) {
        let (receive, transmit) = self.rings.slots_per_ring();
        let index = self.next_transmit % transmit;
        self.next_transmit += 1;
        self.buffer(receive + index, self.rings.receive_pages() + index, TRANSMIT_BYTES)
    }

    /// Buffer `index` of this core, `page` pages into its memory.
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
