//! Netperf: runs one after the other, each on connections of its own. A run begins and ends with a control message,
//! whose response is a frame that the server maps: this is what disturbs the order of addresses from run to run.
//!
//! Only the last run is measured. The earlier ones are short, because a stream that goes on for longer uses the same
//! addresses again and again.

use super::{Flow, Host, Kind, Meaning, ServerWorkload, TIMEOUT_PS};
use crate::run::server::application::CONTROL_BYTES;
use crate::run::server::frames::{ASK, CONTROL};
use portcullis_model::Frame;

/// The pause between two runs. All deferred invalidations are done in it.
const PAUSE_PS: u64 = 20_000_000_000;

/// What a run is doing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Step {
    /// It waits for the response to its first control message.
    #[default]
    Beginning,
    /// It sends a stream, or requests.
    Sending,
    /// It waits for the response to its last control message.
    Ending,
}

impl Host {
    /// Begins a run. The last runs of all flows begin together.
    pub(super) fn begin_run(&self, now_ps: u64, flow: usize) {
        if self.clients.borrow().flows[flow].runs < self.work.earlier_runs {
            return self.control(now_ps, flow, Step::Beginning);
        }
        let is_ready = |one: &Flow| one.runs == self.work.earlier_runs;
        if self.clients.borrow().flows.iter().all(is_ready) {
            (0..self.work.flows as usize).for_each(|flow| self.control(now_ps, flow, Step::Beginning));
        }
    }

    fn control(&self, now_ps: u64, flow: usize, step: Step) {
        self.connect(flow, false);
        self.clients.borrow_mut().flows[flow].step = step;
        let bytes = self.server.software.header_bytes + CONTROL_BYTES;
        self.client_sends(now_ps, flow, bytes, Kind::Request, CONTROL);
    }

    /// Handles a response: to a control message, or to a request.
    pub(super) fn step_ended(&self, now_ps: u64, flow: usize) {
        let step = self.clients.borrow().flows[flow].step;
        match step {
            Step::Beginning => self.begin_sending(now_ps, flow),
            Step::Sending => self.answered(now_ps, flow),
            Step::Ending => {
                self.clients.borrow_mut().flows[flow].runs += 1;
                self.begin_run(now_ps + PAUSE_PS, flow);
            }
        }
    }

    fn begin_sending(&self, now_ps: u64, flow: usize) {
        let is_last = self.clients.borrow().flows[flow].runs == self.work.earlier_runs;
        self.connect(flow, is_last);
        {
            let one = &mut self.clients.borrow_mut().flows[flow];
            (one.step, one.left) = (Step::Sending, if is_last { u32::MAX } else { self.work.earlier_packets });
        }
        match self.work.workload {
            ServerWorkload::NetperfStream => self.pump(now_ps, flow),
            _ => self.ask(now_ps, flow),
        }
    }

    /// Sends on, or ends an earlier stream if all of it is acknowledged or lost.
    pub(super) fn go_on(&self, now_ps: u64, flow: usize) {
        let has_ended = {
            let one = &self.clients.borrow().flows[flow];
            one.left == 0 && one.sender.in_flight() <= 1
        };
        if has_ended { self.control(now_ps, flow, Step::Ending) } else { self.pump(now_ps, flow) }
    }

    /// Sends as many packets of a stream as the window allows.
    fn pump(&self, now_ps: u64, flow: usize) {
        let software = &self.server.software;
        let bytes = software.header_bytes + software.segment_bytes;
        // The application writes messages, and the kernel joins them to full packets.
        let cpu_ps =
            software.client_message_ps * u64::from(software.segment_bytes) / u64::from(self.work.message_bytes);
        let (window, ring) = (self.window_packets(), self.card.receive_ring_number(self.receive_ring(flow)));
        loop {
            let mut clients = self.clients.borrow_mut();
            let one = &mut clients.flows[flow];
            if one.left == 0 || one.sender.room(window) == 0 {
                one.timeout_ps = (one.sender.in_flight() > 0).then_some(now_ps + TIMEOUT_PS);
                clients.list(flow);
                return;
            }
            one.left -= 1;
            let (number, is_last) = (one.sender.send(1), one.left == 0);
            clients.cpu_free_ps = clients.cpu_free_ps.max(now_ps) + cpu_ps;
            let at_ps = clients.cpu_free_ps;
            drop(clients);
            let cookie = Meaning::new(flow, Kind::Data, number).cookie();
            self.put_on_link(at_ps, ring, Frame { bytes, cookie }, Some(self.segment(flow, number, is_last)));
        }
    }

    /// Handles an acknowledgement by the server.
    pub(super) fn client_acknowledged(&self, now_ps: u64, flow: usize, kind: Kind, number: u32) {
        {
            let one = &mut self.clients.borrow_mut().flows[flow];
            if self.work.workload != ServerWorkload::NetperfStream || one.step != Step::Sending {
                return;
            }
            match kind {
                Kind::Gap => one.sender.lose(number),
                _ => one.sender.acknowledge(number),
            }
        }
        self.go_on(now_ps, flow);
    }

    /// Sends the next request of one byte.
    fn ask(&self, now_ps: u64, flow: usize) {
        let software = &self.server.software;
        let after_ps = {
            let mut clients = self.clients.borrow_mut();
            clients.flows[flow].asked_ps = now_ps;
            clients.around(software.client_transaction_ps, 0.1)
        };
        self.client_sends(now_ps + after_ps, flow, software.small_frame_bytes, Kind::Request, ASK);
    }

    fn answered(&self, now_ps: u64, flow: usize) {
        let has_ended = {
            let mut clients = self.clients.borrow_mut();
            let one = &mut clients.flows[flow];
            one.left -= 1;
            let (latency_ps, is_last, has_ended) =
                (now_ps - one.asked_ps, one.runs == self.work.earlier_runs, one.left == 0);
            if is_last {
                clients.latencies_ps.push(latency_ps);
            }
            has_ended
        };
        self.look_at_progress();
        if has_ended { self.control(now_ps, flow, Step::Ending) } else { self.ask(now_ps, flow) }
    }
}
