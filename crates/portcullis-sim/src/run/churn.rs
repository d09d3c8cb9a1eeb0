//! A synthetic workload for growing page tables. Buffers of one page, each from the host's page allocator, are mapped
//! for a random time, while other programs use the same memory (ATC'15, §6.1, Figure 6). At the end the device is
//! closed, and everything is unmapped.

use super::driver::{Driver, close_windows};
use super::live::{Buffer, Slot};
use super::parameter::{self, OPERATIONS_MAX, Parameter, Range, WorkloadError};
use super::workload::Workload;
use super::world::World;
use super::{Pace, RunError};
use crate::machine::Machine;
use crate::platform::buffers_end;
use portcullis::{Access, NoMemory, PAGE_SIZE, PhysAddr, Segment};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::Serialize;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::rc::Rc;

/// The parameters of the workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Churn {
    /// Mappings that are live at a time, on all cores together.
    pub live: u32,
    /// Cores that map and unmap.
    pub cores: u32,
    /// Buffers that a core unmaps, and then maps, at a time.
    pub burst: u32,
    /// Steps of other programs per mapping. In each step they take an object, and in some also a page.
    pub background: f64,
    /// Buffers mapped after warm-up.
    pub operations: u64,
}

impl Default for Churn {
    fn default() -> Self {
        Self { live: 16_384, cores: 4, burst: 16, background: 0.0, operations: 100_000 }
    }
}

/// The name on the command line.
pub(super) const ID: &str = "churn";

pub(super) const PARAMETERS: &[Parameter<Churn>] = &[
    Parameter {
        key: "live",
        range: Range::Whole(1..=1 << 18),
        description: "mappings that are live at a time, on all cores together",
        set: |churn, value| churn.live = value as u32,
    },
    Parameter {
        key: "cores",
        range: Range::Whole(1..=1024),
        description: "cores that map and unmap",
        set: |churn, value| churn.cores = value as u32,
    },
    Parameter {
        key: "burst",
        range: Range::Whole(1..=1 << 16),
        description: "buffers that a core unmaps, and then maps, at a time",
        set: |churn, value| churn.burst = value as u32,
    },
    Parameter {
        key: "background",
        range: Range::Any(0..=16),
        description: "steps of other programs for each mapping: in each they take an object, and with some a page",
        set: |churn, value| churn.background = value,
    },
    Parameter {
        key: "operations",
        range: Range::Whole(1..=OPERATIONS_MAX),
        description: "buffers mapped after warm-up",
        set: |churn, value| churn.operations = value as u64,
    },
];

impl Workload for Churn {
    fn cores(&self) -> usize {
        self.cores as usize
    }

    fn live_pages_max(&self) -> u64 {
        self.live.into()
    }

    fn memory_end(&self, _: &Machine) -> u64 {
        buffers_end()
    }

    fn parameters(&self) -> Value {
        json!(self)
    }
}

impl Churn {
    /// Parses `live=16384,cores=4,burst=16,background=1,operations=1000000`. Each parameter is optional.
    pub(super) fn parse(text: &str) -> Result<Self, WorkloadError> {
        parameter::parse(ID, PARAMETERS, text)
    }

    /// The number of live mappings of a core.
    fn live_per_core(&self) -> u32 {
        self.live.div_ceil(self.cores)
    }
}

/// The running workload.
pub(super) struct Service<'w> {
    world: &'w Rc<World>,
    churn: Churn,
    batch: usize,
    pace: Pace,
    cores: Vec<Rc<RefCell<Core>>>,
}

/// The mappings of one core.
struct Core {
    number: usize,
    churn: Churn,
    random: Pcg64Mcg,
    /// The page of each live mapping, and its slot.
    live: Vec<(PhysAddr, Slot)>,
    /// Slots without a live mapping.
    slots: Vec<Slot>,
    /// Steps of other programs that are due.
    background: f64,
}

impl<'w> Service<'w> {
    pub(super) fn new(world: &'w Rc<World>, churn: &Churn, batch: usize, pace: Pace, seed: u64) -> Self {
        let core = |number: u32| Core {
            number: number as usize,
            churn: churn.clone(),
            random: Pcg64Mcg::seed_from_u64(seed ^ (u64::from(number) << 32)),
            live: Vec::new(),
            slots: (number * churn.live_per_core()..(number + 1) * churn.live_per_core()).collect(),
            background: 0.0,
        };
        let cores = (0..churn.cores).map(|number| Rc::new(RefCell::new(core(number)))).collect();
        Self { world, churn: churn.clone(), batch, pace, cores }
    }

    /// Maps until the wanted number of mappings is live.
    pub(super) fn warm_up(&self, machine: &Machine) {
        let bursts = self.churn.live_per_core().div_ceil(self.churn.burst);
        self.bursts(machine, u64::from(bursts), Core::fill);
    }

    /// Unmaps and maps until the operations are done, then unmaps everything.
    pub(super) fn serve(&self, machine: &Machine) {
        let per_core = self.churn.operations.div_ceil(u64::from(self.churn.cores));
        self.bursts(machine, per_core.div_ceil(u64::from(self.churn.burst)), Core::replace);
        let bursts = self.churn.live_per_core().div_ceil(self.churn.burst);
        self.bursts(machine, u64::from(bursts), Core::empty);
    }

    /// Runs `burst` `bursts` times on every core.
    fn bursts(&self, machine: &Machine, bursts: u64, burst: fn(&mut Core, &World, &mut Driver<'_>)) {
        let bytes = u64::from(self.churn.burst) * PAGE_SIZE * u64::from(self.churn.cores);
        let gap_ps = self.pace.gap_ps(machine, bytes);
        let bodies = self.cores.iter().map(|core| {
            let (world, core, batch) = (self.world.clone(), core.clone(), self.batch);
            Box::new(move || {
                let mut core = core.borrow_mut();
                let mut driver = Driver::new(&world, core.number, batch);
                for _ in 0..bursts {
                    let wait_ps = gap_ps * core.random.random_range(0.5..1.5);
                    world.engine.sleep_until(world.engine.now_ps() + wait_ps as u64);
                    burst(&mut core, &world, &mut driver);
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
}

impl Core {
    /// Unmaps some buffers and maps others.
    fn replace(&mut self, world: &World, driver: &mut Driver<'_>) {
        self.empty(world, driver);
        self.fill(world, driver);
    }

    /// Maps buffers, of which half are received and half sent.
    fn fill(&mut self, world: &World, driver: &mut Driver<'_>) {
        for _ in 0..self.slots.len().min(self.churn.burst as usize) {
            self.background += self.churn.background;
            while self.background >= 1.0 {
                self.background -= 1.0;
                world.platform.memory().borrow_mut().background_step();
            }
            let Some(phys) = world.platform.memory().borrow_mut().take_buffer() else {
                return world.fail(RunError::Map(NoMemory.into()));
            };
            let Some(slot) = self.slots.pop() else { return };
            let access = if self.random.random_bool(0.5) { Access::DeviceWrites } else { Access::DeviceReads };
            driver.map(slot, &Buffer::from(Segment { phys, len: PAGE_SIZE }), access, 0);
            self.live.push((phys, slot));
        }
    }

    /// Unmaps random buffers.
    fn empty(&mut self, world: &World, driver: &mut Driver<'_>) {
        let count = self.live.len().min(self.churn.burst as usize);
        let kept = self.live.len() - count;
        for place in (kept..self.live.len()).rev() {
            let chosen = self.random.random_range(0..=place);
            self.live.swap(chosen, place);
            driver.unmap(self.live[place].1);
        }
        driver.commit();
        for (phys, slot) in self.live.drain(kept..) {
            world.platform.memory().borrow_mut().give_buffer(phys);
            self.slots.push(slot);
        }
    }
}
