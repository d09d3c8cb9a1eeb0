//! What the kernel of the server does with packets, on the CPU that polls the card, and the applications that read
//! them and write others.

use super::Iperf;
use super::receive::Held;
use super::receiver::Acknowledgement;
use crate::run::driver::Driver;
use crate::run::server::frames::{Kind, Meaning};
use crate::run::world::Wanted;

impl Iperf {
    /// Handles a packet, whose pages the kernel holds.
    pub(super) fn packet_came(&self, meaning: Meaning, held: Held) {
        let (flow, core) = (meaning.flow, self.work.core_of(meaning.flow));
        let now_ps = self.world.engine.now_ps();
        let dropped = if meaning.kind == Kind::Acknowledgement {
            self.acknowledged(now_ps, meaning);
            Some(held)
        } else {
            let receiver = &mut self.receivers.borrow_mut()[flow];
            let number = meaning.number_near(receiver.next());
            receiver.receive(now_ps, number, held)
        };
        self.let_go(dropped.unwrap_or_default());
        let polled = &mut self.polled.borrow_mut()[core];
        if !polled.contains(&flow) {
            polled.push(flow);
        }
    }

    pub(super) fn let_go(&self, held: Held) {
        held.into_iter().for_each(|slot| self.pages.let_go(slot));
    }

    /// Ends a poll: acknowledges, sends what acknowledgements allow, and wakes the applications.
    fn poll_ended(&self, driver: &mut Driver<'_>, core: usize) {
        let flows = std::mem::take(&mut self.polled.borrow_mut()[core]);
        if flows.is_empty() {
            return;
        }
        for flow in flows {
            let now_ps = self.world.engine.now_ps();
            let due = self.receivers.borrow_mut()[flow].poll_ended(now_ps);
            due.into_iter().for_each(|due| self.acknowledge(driver, flow, due));
            self.send(driver, flow);
        }
        self.world.engine.notify(Wanted::Flows(core).into());
        // They keep the timers of the receivers too.
        self.world.engine.notify(Wanted::Clients.into());
    }

    fn acknowledge(&self, driver: &mut Driver<'_>, flow: usize, acknowledgement: Acknowledgement) {
        self.world.engine.uninterrupted(|| {
            let meaning = self.answers.borrow_mut()[flow].add(flow, acknowledgement);
            self.transmit[self.work.core_of(flow)].send(self, driver, meaning);
        });
    }

    /// Polls the rings of a core. After a full poll, the core polls on when its applications have had a turn: the
    /// kernel leaves long work to a thread (ksoftirqd).
    fn poll(&self, driver: &mut Driver<'_>, core: usize) {
        self.transmit[core].reap(self, driver);
        if self.transmit[core].take_stall() {
            self.flows_of(core).for_each(|flow| self.send(driver, flow));
        }
        let is_full = self.receive[core].poll(self, driver);
        self.poll_ended(driver, core);
        self.polls_on[core].set(is_full);
        if !is_full {
            self.receive[core].arm(self);
            self.transmit[core].arm(self);
            self.world.engine.unmask(core as u8);
        }
    }

    pub(super) fn interrupt(&self, vector: u8) {
        let core = self.world.engine.current().expect("an interrupt is handled on a core");
        if self.is_over() {
            return;
        }
        self.world.engine.mask(vector);
        let mut driver = Driver::new(&self.world, core, self.batch);
        self.poll(&mut driver, core);
    }

    pub(super) fn core(&self, core: usize) {
        let (world, engine) = (&self.world, &self.world.engine);
        let mut driver = Driver::new(world, core, self.batch);
        if core == 0 {
            self.open(&mut driver);
            self.is_open.set(true);
            engine.notify_all();
        }
        engine.wait_until(Wanted::Flows(core).into(), || self.is_open.get() || self.is_over());
        let flows: Vec<usize> = self.flows_of(core).collect();
        let mut latest = usize::MAX;
        flows.iter().for_each(|flow| self.ask(&mut driver, *flow));
        while !self.is_over() {
            if self.polls_on[core].get() {
                engine.uninterrupted(|| self.poll(&mut driver, core));
            }
            for flow in &flows {
                self.read(&mut driver, *flow, &mut latest);
                self.write(&mut driver, *flow);
            }
            self.look_at_progress();
            self.expire(&mut driver, &flows);
            let has_work = |flow: &usize| {
                let receiver = &self.receivers.borrow()[*flow];
                let timers = [receiver.timer_ps(), self.senders.borrow()[*flow].timer_ps()];
                let is_due = timers.into_iter().flatten().any(|due_ps| due_ps <= engine.now_ps());
                receiver.readable() > 0 || self.can_write(*flow) || is_due
            };
            let has_work = || self.polls_on[core].get() || flows.iter().any(has_work) || self.is_over();
            engine.wait_until(Wanted::Flows(core).into(), has_work);
        }
    }

    /// The flows that a core serves.
    fn flows_of(&self, core: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.work.flows as usize).filter(move |flow| self.work.core_of(*flow) == core)
    }

    /// One read of an application, if there is something to read.
    fn read(&self, driver: &mut Driver<'_>, flow: usize, latest: &mut usize) {
        let packets: Vec<Held> = self.receivers.borrow_mut()[flow].read(self.read_packets(flow)).collect();
        if packets.is_empty() {
            return;
        }
        let switches = std::mem::replace(latest, flow) != flow;
        let cycles = self.reader.copy_cycles + if switches { self.reader.switch_cycles } else { 0 };
        let (segment_bytes, mut cycles_per_kib) = (u64::from(self.server.software.segment_bytes), 0);
        let (bytes, messages) = match &mut self.dialogues.borrow_mut()[flow] {
            Some(dialogue) => {
                cycles_per_kib = dialogue.exchange.cycles_per_kib;
                dialogue.read().read(packets.len() as u64)
            }
            None => (segment_bytes * packets.len() as u64, 0),
        };
        self.world.engine.busy(cycles * bytes / segment_bytes + cycles_per_kib * bytes / 1024);
        self.read_bytes.set(self.read_bytes.get() + bytes);
        packets.into_iter().for_each(|held| self.let_go(held));
        let due = self.receivers.borrow_mut()[flow].read_ended();
        if let Some(due) = due {
            self.acknowledge(driver, flow, due);
        }
        if messages > 0 {
            self.messages_came(driver, flow, messages);
        }
    }

    /// The packets of a read of a flow, at most.
    fn read_packets(&self, flow: usize) -> usize {
        let bytes = self.dialogues.borrow()[flow].as_ref().map(|dialogue| dialogue.exchange.read_bytes);
        let packets = bytes.map(|bytes| bytes.div_ceil(self.server.software.segment_bytes.into()) as usize);
        packets.unwrap_or(self.reader.read_packets as usize)
    }

    fn expire(&self, driver: &mut Driver<'_>, flows: &[usize]) {
        for flow in flows {
            let now_ps = self.world.engine.now_ps();
            let due = {
                let receiver = &mut self.receivers.borrow_mut()[*flow];
                receiver.timer_ps().filter(|due_ps| *due_ps <= now_ps).and_then(|_| receiver.expire(now_ps))
            };
            if let Some(due) = due {
                self.acknowledge(driver, *flow, due);
            }
            let is_due = self.senders.borrow()[*flow].timer_ps().is_some_and(|due_ps| due_ps <= now_ps);
            if is_due {
                self.senders.borrow_mut()[*flow].expire(now_ps);
                self.world.engine.uninterrupted(|| self.send(driver, *flow));
            }
        }
    }
}
