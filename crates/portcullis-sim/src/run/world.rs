//! A simulated machine: virtual cores, modelled hardware, the real driver, and the design's domains.
//!
//! It owns the time of a run, which is that of its engine, and the domains. Device drivers and workloads borrow it.

use super::backlog::Backlog;
use super::captured_payloads::CapturedPayloads;
use super::design::LabUnit;
use super::event::RunEvent;
use super::live::{Buffer, Leaving, Live, Slot};
use super::mapped::MappedPages;
use super::{Job, RunError};
use crate::engine::{Body, Engine, Event};
use crate::machine::Machine;
use crate::platform::LabPlatform;
use crate::prefetch::Hints;
use crate::rates::CoreWork;
use crate::traffic::{Payload, PayloadRule, PayloadSource, Traffic};
use portcullis::mapper::Info;
use portcullis::{Access, DomainConfig, DynDomain, PhysAddr, Segment, SourceId};
use portcullis_model::{Device, ModelMmio, Ram, Vtd};
use portcullis_vtd::Unit;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Memory for tables. It lies in the upper half of what the machine can address, so that it does not overlap buffers.
pub(super) const TABLES_BYTES: u64 = 512 << 20;

/// Where the memory for tables begins on `machine`.
pub(super) fn tables_base(machine: &Machine) -> PhysAddr {
    PhysAddr::new(1 << (machine.iommu.physical_bits - 1))
}

/// What the cores of a run wait for.
#[derive(Clone, Copy)]
pub(super) enum Wanted {
    /// The turn of an operation of the trace.
    Turn(u32),
    /// That a mapping is made, or that the device is done with it.
    Mapping(Slot),
    /// The end of the map in progress on a core.
    Map(usize),
    /// Work for the card.
    Link,
    /// Work for the clients of a server.
    Clients,
    /// Work for the application of a server on a core.
    Flows(usize),
    /// That no core fills an entry of a ring of a server, by its stream.
    Ring(u32),
}

impl From<Wanted> for Event {
    fn from(wanted: Wanted) -> Self {
        let (kind, number) = match wanted {
            Wanted::Turn(index) => (1, u64::from(index)),
            Wanted::Mapping(slot) => (2, u64::from(slot)),
            Wanted::Map(core) => (3, core as u64),
            Wanted::Link => (0, 0),
            Wanted::Clients => (0, 1),
            Wanted::Flows(core) => (0, 2 + core as u64),
            Wanted::Ring(stream) => (0, 1 << 32 | u64::from(stream)),
        };
        Self(kind << 62 | number)
    }
}

/// The map in progress on a core, if there is one.
#[derive(Default)]
pub(super) struct MapUnderWay {
    /// Maps that have ended on this core.
    pub(super) ended: Cell<u64>,
    /// The device and the buffer that is being mapped.
    pub(super) buffer: RefCell<Option<(usize, Buffer)>>,
}

impl MapUnderWay {
    /// Whether it maps the page of memory at `phys` for `device`.
    pub(super) fn concerns(&self, device: usize, phys: PhysAddr) -> bool {
        let holds =
            |segment: &Segment| (segment.phys.pfn()..segment.phys.pfn() + segment.pages()).contains(&phys.pfn());
        self.buffer.borrow().as_ref().is_some_and(|(of, segments)| *of == device && segments.iter().any(holds))
    }
}

/// How long buffers wait for the end of their batch: from their unmap to their hand-back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BatchTally {
    pub(crate) commits: u64,
    pub(crate) buffers: u64,
    pub(crate) buffers_max: u64,
    pub(crate) wait_ps_sum: u128,
    pub(crate) wait_ps_max: u64,
}

/// Counts that are kept outside the accounts of the cores.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub(super) operations: u64,
    pub(super) pages: u64,
    /// How many bytes of the buffers the device moves.
    pub(super) payload: Payload,
    /// The least number of transactions that these bytes take.
    pub(super) transactions_min: u64,
    /// Transactions to pages that are used again while they stay mapped. They are counted and not made.
    pub(super) transactions_again: u64,
    /// The work that each core has mapped.
    pub(super) work_by_core: Vec<CoreWork>,
    pub(super) batches: BatchTally,
    pub(super) transactions: u64,
    pub(super) latency_ps_sum: u128,
    pub(super) faults: u64,
    pub(super) stale_accesses: u64,
    pub(super) refused_maps: u64,
    /// Refused maps whose buffer was to be unmapped before there was room.
    pub(super) given_up_maps: u64,
    pub(super) table_pages_max: usize,
}

/// An observer of a run.
pub(super) trait Observer {
    /// Records `event`. Nothing else happens in the meantime.
    fn note(&mut self, world: &World, event: &RunEvent<'_>);

    /// Whether it also acts, and so changes the run.
    fn acts(&self) -> bool {
        false
    }

    /// Acts on `event` after recording it. Other cores may have acted in between.
    fn act(&mut self, _world: &World, _event: &RunEvent<'_>) {}
}

/// Everything that the cores of a run share. Used on one thread. No `RefCell` stays borrowed across a step.
pub(super) struct World {
    pub(super) engine: Rc<Engine>,
    pub(super) platform: LabPlatform,
    pub(super) vtd: Arc<Vtd>,
    pub(super) unit: LabUnit,
    /// The description of the design of its domains.
    pub(super) info: &'static Info,
    pub(super) domains: Vec<Arc<DynDomain>>,
    pub(super) devices: RefCell<Vec<Device>>,
    /// By slot. There are many more slots than mappings.
    pub(super) live: RefCell<Vec<Option<Box<Live>>>>,
    /// The pages of the live mappings, if their addresses are not physical.
    pub(super) mapped: RefCell<MappedPages>,
    pub(super) tally: RefCell<Tally>,
    /// The buffers that wait for room in a ring.
    pub(super) backlog: RefCell<Backlog>,
    /// Whether buffers may wait. Otherwise the run fails.
    pub(super) waits_for_room: bool,
    /// Entries of a ring that is large enough for the work.
    pub(super) ring_entries: Option<u32>,
    /// The first refusal of the protection layer. The run ends with it.
    pub(super) failure: RefCell<Option<RunError>>,
    /// Per core, the map in progress.
    pub(super) maps: Vec<MapUnderWay>,
    /// Per core, the single unmap in progress.
    pub(super) unmaps: Vec<RefCell<Option<Leaving>>>,
    /// Per domain, the due time for which a timer is set.
    pub(super) armed_us: Vec<Cell<Option<u64>>>,
    pub(super) warm: Cell<bool>,
    /// When the latest map or hand-back was. Later events only wait for timers.
    pub(super) worked_ps: Cell<u64>,
    /// Whether a run could not end.
    is_stuck: Cell<bool>,
    /// What the driver announces to the hardware.
    pub(super) hints: Hints,
    /// What is known about the fill of buffers: by rule, and from the capture.
    pub(super) transaction_bytes: u64,
    payload: PayloadSource,
    captured: CapturedPayloads,
    /// The observers.
    observers: Vec<Rc<RefCell<dyn Observer>>>,
}

impl World {
    /// Calls `look` with the mapping of a slot, if it is live.
    pub(super) fn look<R>(&self, slot: Slot, look: impl FnOnce(&Live) -> R) -> Option<R> {
        self.live.borrow().get(slot as usize).and_then(Option::as_deref).map(look)
    }

    /// The machine of `job`. Each device has its own domain, and so has `bystander`, in whose domain nothing is ever
    /// mapped.
    pub(super) fn new(job: &Job<'_>, bystander: Option<SourceId>) -> Result<Self, RunError> {
        job.work.check_span()?;
        let design = job.design;
        let (machine, work) = (job.machine, job.work.workload());
        let (cores, mut devices) = (work.cores(), work.devices());
        devices.extend(bystander);
        let iommu = &machine.iommu;
        let engine = Engine::new(cores, machine.frequency(), machine.costs.clone(), iommu.coherent);
        let engine = engine.with_actors(work.actors()).with_sharing(&machine.sharing, machine.cores);
        let engine = Rc::new(engine);
        let base = tables_base(machine);
        let make = if iommu.coherent { Ram::new } else { Ram::with_flushing };
        let ram = make(base, TABLES_BYTES);
        let ram = Arc::new(ram);
        let vtd = Arc::new(Vtd::new(iommu.clone(), ram.clone()));
        engine.connect(vtd.clone());
        let platform = LabPlatform::new(engine.clone(), ram, job.seed);
        let config = portcullis_vtd::UnitConfig {
            physical_bits: iommu.physical_bits,
            leaf_only_hint: job.leaf_only_hint,
            merge_min: job.merge_min,
            discipline: job.discipline,
            ..Default::default()
        };
        let mmio = ModelMmio::new(vtd.clone(), platform.clone());
        let unit = Arc::new(Unit::bring_up(mmio, platform.clone(), config).map_err(RunError::BringUp)?);
        let address_bits = if iommu.four_level { 48 } else { 39 };
        let memory = &*job.work.memory(machine);
        let sub_page = super::sub_page(design.info(), job.sub_page).unwrap_or_default();
        let config =
            DomainConfig { address_bits, memory, options: job.options, sub_page, ..DomainConfig::new(job.protection) };
        let mut domains = Vec::with_capacity(devices.len());
        for device in &devices {
            let domain = design.open(&unit, &platform, &config).map_err(RunError::NewDomain)?;
            domain.attach(*device).map_err(RunError::Attach)?;
            domains.push(domain);
        }
        let in_flight = machine.in_flight(job.traffic());
        let model = |source: &SourceId| Device::new(*source, machine.transaction_bytes, in_flight);
        Ok(Self {
            engine,
            platform,
            vtd,
            unit,
            armed_us: domains.iter().map(|_| Cell::new(None)).collect(),
            info: design.info(),
            domains,
            devices: RefCell::new(devices.iter().map(model).collect()),
            live: RefCell::default(),
            mapped: RefCell::new(MappedPages::new(design.info().addressing)),
            tally: RefCell::new(Tally { work_by_core: vec![CoreWork::default(); cores], ..Tally::default() }),
            backlog: RefCell::default(),
            waits_for_room: work.waits_for_room(),
            ring_entries: if design.info().is_hypothetical() { work.ring_entries(job.batch) } else { None },
            failure: RefCell::default(),
            maps: (0..cores).map(|_| MapUnderWay::default()).collect(),
            unmaps: (0..cores).map(|_| RefCell::default()).collect(),
            warm: Cell::new(true),
            worked_ps: Cell::new(0),
            is_stuck: Cell::new(false),
            hints: job.prefetching().hints,
            transaction_bytes: machine.transaction_bytes,
            payload: PayloadSource { traffic: job.traffic(), rule: job.payload, full: job.work.replay().is_none() },
            captured: CapturedPayloads::of(job.work.replay()),
            observers: Vec::new(),
        })
    }

    /// How many bytes of a buffer of `len` bytes its device moves.
    pub(super) fn payload(&self, slot: Slot, access: Access, len: u64) -> Payload {
        match self.captured.buffer_in_pages(slot) {
            // A disk fills its buffers, and only their pages are known.
            Some(buffer) if self.payload.traffic == Traffic::Disk => buffer,
            buffer => {
                let room = buffer.map_or(len, |buffer| buffer.max);
                self.payload.of(access, room, self.captured.of_mapping(slot, room))
            }
        }
    }

    /// The length of a buffer in `len` bytes of mapped memory. Its device moves `payload` of it. A page that is used
    /// again while it stays mapped is as much work for the CPUs as all that it carries.
    pub(super) fn buffer(&self, slot: Slot, len: u64, payload: Payload) -> Payload {
        match self.captured.buffer_in_pages(slot) {
            None => Payload::exactly(len.max(payload.min)),
            // What the user says about the payload is all that is known about the buffer.
            Some(_) if self.payload.rule != PayloadRule::Shown => payload,
            Some(buffer) => buffer,
        }
    }

    /// Adds an observer.
    pub(super) fn subscribe<O: Observer + 'static>(&mut self, observer: O) -> Rc<RefCell<O>> {
        let observer = Rc::new(RefCell::new(observer));
        self.observers.push(observer.clone());
        observer
    }

    /// All observers are subscribed, so the run may begin.
    pub(super) fn ready(self) -> Rc<Self> {
        let world = Rc::new(self);
        let weak = Rc::downgrade(&world);
        world.engine.on_timer(Some(Rc::new(move || {
            if let Some(world) = weak.upgrade() {
                world.tick();
            }
        })));
        let weak = Rc::downgrade(&world);
        world.engine.on_taken_down(Some(Rc::new(move || {
            if let Some(world) = weak.upgrade() {
                world.taken_down();
            }
        })));
        world
    }

    /// The design's bound on how long an unmap waits until the hardware is told, in microseconds; `None` if there is
    /// no bound.
    pub(super) fn bound_us(&self) -> Option<u64> {
        self.domains.first()?.usage().window_us_max
    }

    /// Tells the observers of an event. Nothing else happens in the meantime.
    pub(super) fn tell(&self, event: &RunEvent<'_>) {
        for observer in &self.observers {
            observer.borrow_mut().note(self, event);
        }
    }

    /// Tells the observers of an event, and then lets those act that do. First, other cores do everything that comes
    /// before.
    #[inline]
    pub(super) fn provoke(&self, event: &RunEvent<'_>) {
        if self.is_watched() {
            self.provoke_observers(event);
        }
    }

    fn provoke_observers(&self, event: &RunEvent<'_>) {
        self.tell(event);
        if self.is_provoking() {
            self.engine.sync();
            for observer in &self.observers {
                observer.borrow_mut().act(self, event);
            }
        }
    }

    /// Whether there are observers.
    pub(super) fn is_watched(&self) -> bool {
        !self.observers.is_empty()
    }

    /// Whether some observers act.
    fn is_provoking(&self) -> bool {
        self.observers.iter().any(|observer| observer.borrow().acts())
    }

    /// Lets the running core sleep until `at_ps`. Observers that act are called from time to time.
    pub(super) fn idle_until(&self, at_ps: u64) {
        const RESTLESS_PS: u64 = 100_000_000;
        while self.is_provoking() && self.engine.now_ps() < at_ps {
            // The last call comes just before `at_ps`, because what ends at `at_ps` is still there.
            let next_ps = (self.engine.now_ps() + RESTLESS_PS).min(at_ps - 1);
            self.engine.sleep_until(next_ps);
            self.provoke(&RunEvent::Idle);
            if next_ps == at_ps - 1 {
                break;
            }
        }
        self.engine.sleep_until(at_ps);
    }

    /// Records that an operation has ended now.
    pub(super) fn worked(&self) {
        self.engine.progress();
        self.worked_ps.set(self.worked_ps.get().max(self.engine.now_ps()));
    }

    /// The handler of the timer.
    fn tick(&self) {
        for (index, domain) in self.domains.iter().enumerate() {
            self.armed_us[index].set(None);
            if let Err(error) = domain.tick() {
                self.fail(RunError::Commit(error));
            }
            self.arm(index);
        }
        self.tell(&RunEvent::Ticked);
    }

    /// The handler for the middle of this core's single unmap.
    fn taken_down(&self) {
        let under_way = &self.unmaps[self.engine.current().expect("a core that unmaps")];
        // Other cores may run in the meantime, but none of them accesses this core's entry.
        let (slot, live) = under_way.take().expect("the unmap that is under way here");
        self.provoke(&RunEvent::Cleared { slot, live: &live, announced: Some(true) });
        under_way.replace(Some((slot, live)));
    }

    /// Arms a timer on this core for the next tick of a domain, unless it is armed already.
    pub(super) fn arm(&self, domain: usize) {
        let due_us = self.domains[domain].due_us();
        if due_us.is_some() && due_us != self.armed_us[domain].get() {
            self.armed_us[domain].set(due_us);
            self.engine.arm_timer(due_us.unwrap_or(0).saturating_mul(1_000_000));
        }
    }

    /// Ends the run with `error`, unless it has already failed.
    pub(super) fn fail(&self, error: RunError) {
        self.failure.borrow_mut().get_or_insert(error);
        self.engine.notify_all();
    }

    /// Runs one body per core. After a run that could not end there are no others.
    pub(super) fn run(&self, bodies: Vec<Body>) {
        if self.is_stuck.get() {
            return;
        }
        if let Err(stuck) = self.engine.run_beside(bodies, Vec::new()) {
            self.is_stuck.set(true);
            self.fail(RunError::Stuck(stuck));
        }
    }

    pub(super) fn failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// Whether a buffer is not mapped because its ring had no room.
    pub(super) fn is_waiting(&self, slot: Slot) -> bool {
        self.backlog.borrow().has(slot)
    }

    /// Table pages in use by all domains.
    pub(super) fn table_pages(&self) -> usize {
        self.domains.iter().map(|domain| domain.table_pages()).sum()
    }
}
