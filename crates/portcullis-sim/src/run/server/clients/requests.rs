//! Clients of Apache and Memcached: each has one request at a time. Apache has a connection for each request.

use super::{Host, Kind};
use crate::run::server::application::VALUE_BYTES;
use crate::run::server::frames::{ASK, SET};
use rand::RngExt;

/// The share of requests that store a value: rIOMMU §5, and EiovaR §7.
const SETS: f64 = 0.1;
/// The key of a request, rIOMMU §5, and the words around it.
const KEY_LINE_BYTES: u32 = 64 + 6;
/// A request of ApacheBench. Assumed.
const HTTP_REQUEST_BYTES: u32 = 100;

impl Host {
    pub(super) fn begin_request(&self, now_ps: u64, flow: usize) {
        let software = &self.server.software;
        if self.begins_run(flow) {
            self.connect(flow, true);
        }
        let (at_ps, is_set) = {
            let mut clients = self.clients.borrow_mut();
            clients.flows[flow].asked_ps = now_ps;
            let at_ps = now_ps + clients.around(software.client_request_ps, 0.5);
            (at_ps, clients.random.random_bool(SETS))
        };
        if self.work.workload.has_connections() {
            self.connect(flow, true);
            return self.client_sends(at_ps, flow, software.header_bytes, Kind::Open, 0);
        }
        let bytes = software.header_bytes + KEY_LINE_BYTES;
        match is_set {
            true => self.client_sends(at_ps, flow, bytes + VALUE_BYTES, Kind::Request, SET),
            false => self.client_sends(at_ps, flow, bytes, Kind::Request, ASK),
        }
    }

    /// Whether this is the first request of a client in a run of Memslap, which is a program of its own and opens new
    /// connections. These use other rings. A run is as long as it takes to use all entries of the rings that its
    /// clients use, which are one each, or all.
    fn begins_run(&self, flow: usize) -> bool {
        let clients = &mut *self.clients.borrow_mut();
        let requests = self.work.earlier_packets * self.work.flows.min(self.server.driver.receive_rings);
        let runs = clients.latencies_ps.len() as u32 / requests;
        !self.work.workload.has_connections() && std::mem::replace(&mut clients.flows[flow].runs, runs) != runs
    }

    /// Asks for the file, on a connection that is open now.
    pub(super) fn connected(&self, now_ps: u64, flow: usize) {
        let headers = self.server.software.header_bytes;
        self.client_sends(now_ps, flow, headers, Kind::Acknowledgement, 0);
        self.client_sends(now_ps, flow, headers + HTTP_REQUEST_BYTES, Kind::Request, ASK);
    }

    /// Acknowledges the rest of the response, and closes the connection.
    pub(super) fn closed(&self, now_ps: u64, flow: usize) {
        let headers = self.server.software.header_bytes;
        let (after_ps, rest) = {
            let mut clients = self.clients.borrow_mut();
            let after_ps = clients.around(self.server.software.client_ps, 0.5);
            let one = &mut clients.flows[flow];
            (one.poll_ps, one.at_latest_ps) = (None, None);
            let rest = (one.receiver.fresh() > 0).then(|| one.receiver.acknowledge());
            clients.list(flow);
            (after_ps, rest)
        };
        if let Some((number, _)) = rest {
            self.client_sends(now_ps + after_ps, flow, headers, Kind::Acknowledgement, number);
        }
        self.client_sends(now_ps + after_ps, flow, headers, Kind::Close, 0);
        self.request_ended(now_ps, flow);
    }

    pub(super) fn request_ended(&self, now_ps: u64, flow: usize) {
        {
            let mut clients = self.clients.borrow_mut();
            let latency_ps = now_ps - clients.flows[flow].asked_ps;
            clients.latencies_ps.push(latency_ps);
        }
        self.look_at_progress();
        self.begin_request(now_ps, flow);
    }
}
