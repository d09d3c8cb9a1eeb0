//! The applications: each core answers the requests of the flows whose processes it runs.

use super::Host;
use super::card::Outgoing;
use super::frames::{ASK, CONTROL, Kind, Meaning, SET};
use super::work::ServerWorkload;
use crate::machine::Software;
use crate::run::driver::Driver;

/// The control messages of Netperf: `netperf_request` and `netperf_response` of its version 2.
pub(super) const CONTROL_BYTES: u32 = 656;
/// The headers of an HTTP response of Apache. Assumed.
const HTTP_BYTES: u32 = 270;
/// A value of Memcached, rIOMMU §5, and the lines around it with a key of 64 bytes.
pub(super) const VALUE_BYTES: u32 = 1024;
const VALUE_LINES_BYTES: u32 = 90;
/// `STORED`, and the end of its line.
const STORED_BYTES: u32 = 8;

pub(super) fn run(host: &Host, driver: &mut Driver<'_>, core: usize) {
    let mut turn = 0;
    while !host.is_over() {
        let Some(flow) = host.begin_process(core, turn) else {
            host.card.ask_for_room_of(host, core);
            host.rest(core);
            continue;
        };
        turn = flow + 1;
        let request = host.flows.borrow_mut()[flow].requests.pop();
        match request {
            Some(request) => host.answer(driver, flow, request),
            None => host.send_part(driver, flow),
        }
        host.end_process(core, flow);
    }
}

impl Software {
    /// The cycles of a request. Zero if they are not known.
    pub(super) fn cycles_of(&self, workload: ServerWorkload) -> u64 {
        match workload {
            ServerWorkload::NetperfStream | ServerWorkload::NetperfRr => self.cycles_per_transaction,
            ServerWorkload::Apache1m => self.cycles_per_apache_1m,
            ServerWorkload::Apache1k => self.cycles_per_apache_1k,
            ServerWorkload::Memcached => self.cycles_per_memcached,
            _ => 0,
        }
    }
}

impl Host {
    /// The cycles of a request.
    pub(super) fn cycles_per_request(&self) -> u64 {
        self.server.software.cycles_of(self.work.workload)
    }

    /// Does the work of a request, and begins its response.
    fn answer(&self, driver: &mut Driver<'_>, flow: usize, request: u32) {
        let software = &self.server.software;
        let respond = |driver: &mut Driver<'_>, cycles, bytes| {
            self.world.engine.busy(cycles);
            self.respond(driver, flow, bytes);
        };
        match self.work.workload {
            ServerWorkload::NetperfStream | ServerWorkload::NetperfRr => match request {
                CONTROL => respond(driver, self.cycles_per_request(), software.header_bytes + CONTROL_BYTES),
                _ => {
                    let memory = self.world.platform.memory();
                    (0..self.work.background).for_each(|_| memory.borrow_mut().background_step());
                    respond(driver, self.cycles_per_request(), software.small_frame_bytes);
                }
            },
            ServerWorkload::Memcached => {
                let bytes = if request == SET { STORED_BYTES } else { VALUE_BYTES + VALUE_LINES_BYTES };
                respond(driver, self.cycles_per_request(), software.header_bytes + bytes);
            }
            ServerWorkload::Apache1m | ServerWorkload::Apache1k => {
                debug_assert_eq!(request, ASK);
                let one = &mut self.flows.borrow_mut()[flow];
                (one.done_bytes, one.left_bytes) = (0, self.work.workload.file_bytes().unwrap_or_default());
            }
            other => unreachable!("{other:?} has code of its own"),
        }
    }

    /// Sends a response that the application has copied into one buffer.
    fn respond(&self, driver: &mut Driver<'_>, flow: usize, linear_bytes: u32) {
        self.send_linear(driver, flow, linear_bytes, Meaning::new(flow, Kind::Response, 0));
    }

    /// Sends the next part of a file, and closes the connection after the last one.
    fn send_part(&self, driver: &mut Driver<'_>, flow: usize) {
        let software = &self.server.software;
        let bytes = self.sendable(flow);
        let whole = self.work.workload.file_bytes().unwrap_or(bytes);
        // The cycles of a request are spent with the bytes of its response.
        self.world.engine.busy(self.cycles_per_request() * u64::from(bytes) / u64::from(whole));
        self.file_bytes.set(self.file_bytes.get() + u64::from(bytes));
        let (file, number, is_last) = {
            let one = &mut self.flows.borrow_mut()[flow];
            let file = one.done_bytes..one.done_bytes + bytes;
            (one.done_bytes, one.left_bytes) = (file.end, one.left_bytes - bytes);
            (file, one.sender.send(bytes.div_ceil(software.segment_bytes)), one.left_bytes == 0)
        };
        let http_bytes = if file.start == 0 { HTTP_BYTES } else { 0 };
        let linear_bytes = software.header_bytes + http_bytes;
        let meaning = Meaning::new(flow, Kind::Data, number);
        let frame = Outgoing { linear_bytes, file, meaning };
        self.card.transmit(self, driver, self.transmit_ring(flow), frame);
        if is_last {
            self.send_control(driver, flow, Kind::Close, 0);
        }
    }
}
