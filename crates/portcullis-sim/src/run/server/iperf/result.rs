//! What a run has come to.

use super::Iperf;
use super::exchange::Dialogue;
use super::pages::Cache;
use super::receiver::Received;
use crate::run::Start;
use crate::run::server::{Served, ServerWorkload, StreamCounts};
use crate::traffic::Payload;
use portcullis::PAGE_SIZE;
use portcullis::platform::LockClass;
use portcullis_model::NicCounters;
use std::cell::Cell;

/// Counters at a moment of a run.
#[derive(Clone, Default)]
pub(super) struct Moment {
    busy_cycles: u64,
    /// Bytes that were read, at both ends, and those at the clients.
    read_bytes: u64,
    read_by_clients: u64,
    /// How many groups of requests were answered, by flow with messages.
    answered: Vec<usize>,
    done: u64,
    acknowledgements: u64,
    out_of_order: u64,
    duplicates: u64,
    sent: u64,
    again: u64,
    recycled: u64,
    fresh: u64,
    unmapped: u64,
    nic: NicCounters,
}

impl Iperf {
    fn moment(&self) -> Moment {
        let clients = self.clients.borrow();
        let receivers = self.receivers.borrow();
        let received = |of: fn(&Received) -> u64| receivers.iter().map(|one| of(&one.received())).sum();
        let sum = |of: fn(&Cache) -> &Cell<u64>| self.receive.iter().map(|ring| of(&ring.cache).get()).sum();
        Moment {
            busy_cycles: self.world.engine.busy_cycles_by_core().iter().sum(),
            read_bytes: self.read_bytes.get() + clients.read_bytes,
            read_by_clients: clients.read_bytes,
            answered: self.dialogues.borrow().iter().flatten().map(|one| one.latencies_ps.len()).collect(),
            done: self.done(),
            acknowledgements: received(|one| one.acknowledgements),
            out_of_order: received(|one| one.out_of_order),
            duplicates: received(|one| one.dropped),
            sent: clients.senders.iter().map(|sender| sender.sent().packets).sum(),
            again: clients.senders.iter().map(|sender| sender.sent().again).sum(),
            recycled: sum(|cache| &cache.again),
            fresh: sum(|cache| &cache.fresh),
            unmapped: sum(|cache| &cache.unmapped),
            nic: self.nic.borrow().counters(),
        }
    }

    /// What the work counts: calls that were answered, or full packets that were read at both ends.
    fn done(&self) -> u64 {
        if self.work.workload == ServerWorkload::RpcTail {
            return self.dialogues.borrow().iter().flatten().map(|calls| calls.latencies_ps.len() as u64).sum();
        }
        (self.read_bytes.get() + self.clients.borrow().read_bytes) / u64::from(self.server.software.segment_bytes)
    }

    /// Begins and ends the measurement when enough is done.
    pub(super) fn look_at_progress(&self) {
        // The start reads a counter that a lock protects.
        let can_start = || self.world.engine.can_take(LockClass::InvalidationQueue);
        let done = self.done();
        if self.start.get().is_none() {
            if done >= self.work.warm_up && can_start() {
                let _ = self.start.set((Start::of(&self.world), self.moment()));
            }
        } else if self.end.get().is_none()
            && self.start.get().is_some_and(|(_, start)| done >= start.done + self.work.measured)
        {
            let _ = self.end.set(self.moment());
            self.world.worked();
            self.world.engine.notify_all();
        }
    }

    pub(super) fn result(self) -> (Start, Served) {
        let world = self.world;
        // Only a failed run has no start or no end.
        let (start, begun) = self.start.into_inner().unwrap_or_else(|| (Start::of(&world), Moment::default()));
        let end = self.end.into_inner().unwrap_or_else(|| begun.clone());
        let (segment_bytes, payload_bytes) = (self.server.software.segment_bytes, end.read_bytes - begun.read_bytes);
        let packets = |bytes: u64| bytes / u64::from(segment_bytes);
        let dialogues: Vec<Dialogue> = self.dialogues.into_inner().into_iter().flatten().collect();
        let answered = |moment: &Moment, index: usize| moment.answered.get(index).copied().unwrap_or_default();
        let (mut latencies_ps, mut transactions) = (Vec::new(), 0);
        for (index, dialogue) in dialogues.iter().enumerate() {
            let measured = &dialogue.latencies_ps[answered(&begun, index)..answered(&end, index)];
            latencies_ps.extend(measured);
            transactions += measured.len() as u64 * dialogue.exchange.group;
        }
        latencies_ps.sort_unstable();
        let served = Served {
            packets: packets(payload_bytes),
            packets_sent: self.work.sends().then(|| packets(end.read_by_clients - begun.read_by_clients)),
            transactions: transactions as f64,
            latencies_ps,
            payload_bytes,
            busy_cycles: end.busy_cycles - begun.busy_cycles,
            received_in_all: end.nic.received,
            received: end.nic.received - begun.nic.received,
            dropped: end.nic.dropped + end.nic.out_of_buffer - begun.nic.dropped - begun.nic.out_of_buffer,
            stream: Some(StreamCounts {
                acknowledgements: end.acknowledgements - begun.acknowledgements,
                out_of_order: end.out_of_order - begun.out_of_order,
                duplicates: end.duplicates - begun.duplicates,
                sent: end.sent - begun.sent,
                sent_again: end.again - begun.again,
                pages_recycled: end.recycled - begun.recycled,
                pages_fresh: end.fresh - begun.fresh,
                pages_not_kept: end.unmapped - begun.unmapped,
                reuse_distance: self.reuse.into_inner().mean(),
            }),
        };
        let mut tally = world.tally.borrow_mut();
        tally.faults += end.nic.bus.faults;
        tally.transactions = end.nic.bus.transactions - begun.nic.bus.transactions;
        tally.transactions_min = tally.transactions;
        tally.latency_ps_sum = end.nic.bus.latency_ps_sum - begun.nic.bus.latency_ps_sum;
        // Pages that stay mapped are not mapped again. So the divisor of all results is what was received, where a
        // frame that takes a whole page counts as one.
        let takes_a_page = self.striding.frame_pages(&self.server.software) == 1;
        tally.pages = if takes_a_page { served.packets } else { payload_bytes.div_ceil(PAGE_SIZE) };
        tally.payload = Payload::exactly(served.payload_bytes);
        let cores = tally.work_by_core.len() as u64;
        tally.work_by_core.iter_mut().for_each(|work| work.bytes = Payload::exactly(served.payload_bytes / cores));
        drop(tally);
        (start, served)
    }
}
