//! The scheduler of the server: which processes have work, and on which core each of them runs.
//!
//! A process serves one flow. It begins on the core that receives the packets of its flow. If it gets work while its
//! core runs another process and some core is idle, it moves there: first to a core of the same socket. A core that
//! becomes idle takes a waiting process from the core where most wait. Linux does both (`select_idle_sibling` and
//! `idle_balance`, from memory). What moving costs is not known, and it costs nothing here.

use super::Host;
use crate::run::world::Wanted;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// What the scheduler knows.
pub(super) struct Schedule {
    /// By core, the flows whose process may have work and does not run.
    ready: RefCell<Vec<BTreeSet<usize>>>,
    /// The flows whose process runs.
    running: RefCell<BTreeSet<usize>>,
    /// The cores that run no process.
    idle: RefCell<BTreeSet<usize>>,
}

impl Schedule {
    pub(super) fn new(cores: u32) -> Self {
        let ready = RefCell::new((0..cores).map(|_| BTreeSet::new()).collect());
        Self { ready, running: RefCell::default(), idle: RefCell::default() }
    }
}

impl Host {
    /// Notes whether the process of a flow may have work: a request, or the rest of a response.
    pub(super) fn note_work(&self, flow: usize) {
        let (core, has_work) = {
            let one = &self.flows.borrow()[flow];
            (one.core, !one.requests.is_empty() || one.left_bytes > 0)
        };
        let schedule = &self.schedule;
        let ready = &mut schedule.ready.borrow_mut()[core];
        if has_work && !schedule.running.borrow().contains(&flow) {
            ready.insert(flow)
        } else {
            ready.remove(&flow)
        };
    }

    /// Whether the process of a flow that is ready can do something now.
    fn can_run(&self, flow: usize) -> bool {
        !self.flows.borrow()[flow].requests.is_empty() || self.sendable(flow) > 0
    }

    /// The next flow of a core whose process can run: in turn, from flow `from` on.
    fn next_of(&self, core: usize, from: usize) -> Option<usize> {
        let ready = &self.schedule.ready.borrow()[core];
        ready.range(from..).chain(ready.range(..from)).copied().find(|flow| self.can_run(*flow))
    }

    /// Begins to run a process on a core. Returns its flow.
    pub(super) fn begin_process(&self, core: usize, from: usize) -> Option<usize> {
        let own = self.next_of(core, from);
        let flow = own.or_else(|| {
            let waiting = |other: usize| self.schedule.ready.borrow()[other].len();
            let others = (0..self.work.cores as usize).filter(|other| *other != core && waiting(*other) > 0);
            let (_, flow) = others.filter_map(|other| Some((waiting(other), self.next_of(other, 0)?))).max()?;
            self.move_to(flow, core);
            Some(flow)
        })?;
        self.schedule.running.borrow_mut().insert(flow);
        self.schedule.ready.borrow_mut()[core].remove(&flow);
        Some(flow)
    }

    /// The process of a flow has done one thing on a core.
    pub(super) fn end_process(&self, core: usize, flow: usize) {
        self.schedule.running.borrow_mut().remove(&flow);
        self.note_work(flow);
        // A new connection may have moved it meanwhile.
        if self.flows.borrow()[flow].core != core {
            self.notify_flow(flow);
        }
    }

    /// Lets a core wait until a process can run there.
    pub(super) fn rest(&self, core: usize) {
        self.schedule.idle.borrow_mut().insert(core);
        let event = Wanted::Flows(core).into();
        self.world.engine.wait_until(event, || self.next_of(core, 0).is_some() || self.is_over());
        self.schedule.idle.borrow_mut().remove(&core);
    }

    /// Wakes the process of a flow, if it has work.
    pub(super) fn notify_flow(&self, flow: usize) {
        let core = self.flows.borrow()[flow].core;
        let core = self.idle_core_for(flow, core).unwrap_or(core);
        self.world.engine.notify(Wanted::Flows(core).into());
    }

    /// Moves a process that waits for a busy core to an idle one. Returns that core.
    fn idle_core_for(&self, flow: usize, core: usize) -> Option<usize> {
        let schedule = &self.schedule;
        if !schedule.ready.borrow()[core].contains(&flow) || !self.can_run(flow) {
            return None;
        }
        let idle = {
            let (idle, ready) = (schedule.idle.borrow(), schedule.ready.borrow());
            // A core that was woken for another process is in the set until it runs.
            let is_free = |other: usize| idle.contains(&other) && ready[other].iter().all(|one| *one == flow);
            if is_free(core) {
                return None;
            }
            let mut free = idle.iter().copied().filter(|other| is_free(*other)).peekable();
            let first = *free.peek()?;
            free.find(|other| self.world.engine.are_near(core, *other)).unwrap_or(first)
        };
        self.move_to(flow, idle);
        Some(idle)
    }

    pub(super) fn move_to(&self, flow: usize, core: usize) {
        let from = std::mem::replace(&mut self.flows.borrow_mut()[flow].core, core);
        let ready = &mut self.schedule.ready.borrow_mut();
        if ready[from].remove(&flow) {
            ready[core].insert(flow);
        }
    }
}
