//! Replays a trace: every CPU of the trace becomes a virtual core that makes the same maps and unmaps in the same
//! order.

use super::Pace;
use super::driver::{Driver, close_windows};
use super::footprint::{Replay, cpus};
use super::live::{Buffer, Slot};
use super::world::{Wanted, World};
use portcullis::table::Rights;
use portcullis::{Access, PAGE_SIZE, Segment};
use portcullis_trace::{Joined, LoggedAccess, OperationKind, Target, Trace, TraceMapping};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// Makes the mappings that precede the trace.
pub(super) fn prepare(world: &Rc<World>, replay: &Replay) {
    let Some(joined) = replay.joined.clone() else { return };
    let (inner, trace) = (world.clone(), replay.trace.clone());
    let body = move || {
        let mut driver = Driver::new(&inner, 0, 1);
        for (index, page) in joined.persistent.iter().enumerate() {
            let access = match page.rights {
                Rights::READ => Access::DeviceReads,
                Rights::WRITE => Access::DeviceWrites,
                _ => Access::DeviceReadsAndWrites,
            };
            let segments = Buffer::from(Segment { phys: page.phys, len: PAGE_SIZE });
            let device = trace.devices.iter().position(|device| *device == page.device).unwrap_or(0);
            let slot = persistent_slot(&trace, index as u32);
            driver.map_untouched(slot, &segments, access, device);
        }
    };
    world.run(vec![Box::new(body)]);
}

/// Slots of mappings made before the trace follow those of the trace's own mappings.
fn persistent_slot(trace: &Trace, index: u32) -> Slot {
    trace.mappings.len() as Slot + index
}

/// Replays the trace. Operations begin in the order of the whole trace, although those of different CPUs overlap.
/// Otherwise CPUs would drift apart, and a driver's ring would seem to grow without bound. With logged accesses, the
/// device makes only those, and each operation also waits for the end of the one before, because only this keeps the
/// accesses in their place.
pub(super) fn run(world: &Rc<World>, Replay { trace, joined }: &Replay, batch: usize, pace: Pace) {
    let cpus = cpus(trace);
    let segments = trace.segments.as_slice().into();
    let (trace_of, joined_of) = (trace.clone(), joined.clone());
    let script = Rc::new(Script { turn: Cell::new(0), trace: trace_of, segments, joined: joined_of, pace });
    let mut operations: Vec<Vec<u32>> = vec![Vec::new(); cpus.len()];
    for (index, operation) in trace.operations.iter().enumerate() {
        let core = cpus.binary_search(&operation.cpu).expect("the list has every CPU");
        operations[core].push(index as u32);
    }
    let bodies = operations.into_iter().enumerate().map(|(core, operations)| {
        let (world, script) = (world.clone(), script.clone());
        Box::new(move || {
            let mut driver = Driver::new(&world, core, batch);
            script.core(&world, &mut driver, &operations);
            driver.finish();
        }) as Box<dyn FnOnce()>
    });
    world.run(bodies.collect());
    match joined.clone() {
        Some(joined) => {
            let (inner, last) = (world.clone(), trace.operations.len() as u32);
            let body = move || script.accesses_before(&inner, &Driver::new(&inner, 0, 1), &joined, last);
            world.run(vec![Box::new(body)]);
        }
        None => access_leftovers(world, trace),
    }
    close_windows(world, batch);
}

/// Lets the device access the buffers that the trace never unmaps, in the order of their maps.
fn access_leftovers(world: &Rc<World>, trace: &Arc<Trace>) {
    let left = |(slot, mapping): (usize, &TraceMapping)| {
        (mapping.unmap_operation.is_none() && mapping.access != Access::DeviceReads).then_some(slot as Slot)
    };
    let left: Vec<Slot> = trace.mappings.iter().enumerate().filter_map(left).collect();
    if left.is_empty() {
        return;
    }
    let inner = world.clone();
    let body = move || {
        let driver = Driver::new(&inner, 0, 1);
        left.into_iter().for_each(|slot| driver.device_accesses(slot));
    };
    world.run(vec![Box::new(body)]);
}

/// The state that the cores of a replay share.
struct Script {
    /// The number of operations that have begun or, if accesses are logged, have ended.
    turn: Cell<u32>,
    trace: Arc<Trace>,
    segments: Rc<[Segment]>,
    joined: Option<Arc<Joined>>,
    pace: Pace,
}

impl Script {
    /// Makes the operations of one CPU.
    fn core(&self, world: &World, driver: &mut Driver<'_>, operations: &[u32]) {
        let trace = &*self.trace;
        let Some(first_ns) = trace.operations.first().map(|operation| operation.time_ns) else { return };
        let start_ps = world.engine.now_ps();
        let mut before_ns = first_ns;
        let mut context = None;
        for &index in operations {
            let operation = &trace.operations[index as usize];
            if context.is_some_and(|context| context != operation.context) {
                driver.commit();
            }
            context = Some(operation.context);
            let begin_ps = match self.pace {
                Pace::Timestamps => start_ps + operation.time_ns.saturating_sub(first_ns) * 1_000,
                Pace::Gaps(factor) => {
                    let gap_ns = operation.time_ns.saturating_sub(before_ns);
                    world.engine.now_ps() + (gap_ns as f64 * 1e3 * factor) as u64
                }
            };
            before_ns = operation.time_ns;
            world.engine.sleep_until(begin_ps);
            self.await_turn(world, driver, index);
            let slot = operation.mapping;
            let mapping = &trace.mappings[slot as usize];
            match operation.kind {
                OperationKind::Map => {
                    let segments = Buffer::new(&self.segments, mapping.segments());
                    if self.joined.is_some() {
                        driver.map_untouched(slot, &segments, mapping.access, usize::from(mapping.device));
                    } else {
                        driver.map(slot, &segments, mapping.access, usize::from(mapping.device));
                    }
                }
                OperationKind::Unmap => {
                    if self.joined.is_some() {
                        driver.unmap_only(slot);
                    } else {
                        driver.unmap(slot);
                    }
                }
            }
            if self.joined.is_some() {
                self.pass_turn(world, index);
            }
            if world.failed() {
                return;
            }
        }
    }

    /// Waits for the turn of an operation, and makes the logged accesses that come before it.
    fn await_turn(&self, world: &World, driver: &Driver<'_>, index: u32) {
        world.engine.wait_until(Wanted::Turn(index).into(), || self.turn.get() == index || world.failed());
        match &self.joined {
            Some(joined) => self.accesses_before(world, driver, joined, index),
            None => self.pass_turn(world, index),
        }
    }

    /// Makes the logged accesses that come after this many operations.
    fn accesses_before(&self, world: &World, driver: &Driver<'_>, joined: &Joined, index: u32) {
        let first = joined.accesses.partition_point(|access| access.after_operation < index);
        for access in joined.accesses[first..].iter().take_while(|access| access.after_operation == index) {
            self.access(world, driver, access);
        }
    }

    /// Lets the next operation of the trace begin.
    fn pass_turn(&self, world: &World, index: u32) {
        self.turn.set(index + 1);
        world.engine.notify(Wanted::Turn(index + 1).into());
    }

    /// Makes one access of the log.
    fn access(&self, world: &World, driver: &Driver<'_>, access: &LoggedAccess) {
        /// The log does not give lengths. Descriptors take one cache line.
        const LENGTH: u64 = 64;
        let (slot, page, offset) = match access.target {
            Target::Mapping { mapping, page, offset } => (mapping, page, offset),
            Target::Persistent { index, offset } => (persistent_slot(&self.trace, index), 0, offset),
        };
        let target = world.look(slot, |live| {
            let (iova, len) = live.address_of(page as usize, offset.into())?;
            Some((live.device, iova, len, live.access.rights()))
        });
        match target.flatten() {
            Some((device, iova, len, rights)) => {
                let len = LENGTH.min(len);
                let done_ps = driver.transact(device, iova, len, rights);
                world.engine.sleep_until(done_ps);
            }
            // The join guarantees that the mapping is live here. If it is not, the access counts as a fault.
            None => world.tally.borrow_mut().faults += 1,
        }
    }
}
