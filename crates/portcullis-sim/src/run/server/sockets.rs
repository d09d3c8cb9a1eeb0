//! What the kernel of the server does with frames that arrive, on the CPU that polls the card.

use super::Host;
use super::card::Outgoing;
use super::frames::{Kind, Meaning};
use crate::run::driver::Driver;
use portcullis_model::{Completion, Joined};

/// The bytes that the kernel merges into one packet before it handles them.
const MERGED_BYTES: u32 = 64 << 10;

impl Host {
    /// Handles a frame.
    pub(super) fn frame_came(&self, driver: &mut Driver<'_>, frame: &Completion) {
        let Meaning { flow, kind, number } = Meaning::of(frame.cookie);
        match kind {
            Kind::Data => match frame.joined {
                Joined::End { segments, .. } => self.packets_came(driver, flow, number, segments.into(), true),
                _ => self.packets_came(driver, flow, number, 1, false),
            },
            Kind::Acknowledgement => self.flows.borrow_mut()[flow].sender.acknowledge(number),
            Kind::Gap => self.flows.borrow_mut()[flow].sender.lose(number),
            Kind::Request => {
                if self.work.workload.has_connections() {
                    // The first segments of a connection are acknowledged at once.
                    self.send_control(driver, flow, Kind::Acknowledgement, 0);
                }
                self.flows.borrow_mut()[flow].requests.push(number);
                self.note_work(flow);
            }
            Kind::Open | Kind::Close => {
                let answer = if kind == Kind::Open { Kind::Open } else { Kind::Acknowledgement };
                self.send_control(driver, flow, answer, 0);
            }
            Kind::Response => {}
        }
        self.notify_flow(flow);
    }

    /// Handles packets of a stream, the last of which has this number: all of their software.
    fn packets_came(&self, driver: &mut Driver<'_>, flow: usize, number: u32, packets: u32, are_joined: bool) {
        let software = &self.server.software;
        self.world.engine.busy(software.cycles_per_packet * u64::from(packets));
        let is_full = {
            let one = &mut self.flows.borrow_mut()[flow];
            one.receiver.receive(packets, number);
            self.packets.set(self.packets.get() + u64::from(packets) * u64::from(one.is_measured));
            if one.receiver.fresh() >= 2 {
                self.unacknowledged.borrow_mut().insert(flow);
            }
            // The kernel merges nothing with a packet that the card has joined (`dev_gro_receive` of Linux, from
            // memory), and acknowledges every second segment at the latest.
            one.receiver.fresh() >= if are_joined { 2 } else { MERGED_BYTES / software.segment_bytes }
        };
        if is_full {
            self.acknowledge(driver, flow);
        }
    }

    /// Acknowledges what a poll has received. A single packet waits for the next one.
    pub(super) fn poll_ended(&self, driver: &mut Driver<'_>) {
        for flow in self.unacknowledged.take() {
            let fresh = self.flows.borrow()[flow].receiver.fresh();
            if fresh >= 2 {
                self.acknowledge(driver, flow);
            }
        }
        self.look_at_progress();
    }

    fn acknowledge(&self, driver: &mut Driver<'_>, flow: usize) {
        let (number, has_gap) = self.flows.borrow_mut()[flow].receiver.acknowledge();
        let kind = if has_gap { Kind::Gap } else { Kind::Acknowledgement };
        self.send_control(driver, flow, kind, number);
    }

    /// Sends a frame that consists of headers.
    pub(super) fn send_control(&self, driver: &mut Driver<'_>, flow: usize, kind: Kind, number: u32) {
        self.send_linear(driver, flow, self.server.software.header_bytes, Meaning::new(flow, kind, number));
    }

    /// Sends a frame of one buffer.
    pub(super) fn send_linear(&self, driver: &mut Driver<'_>, flow: usize, linear_bytes: u32, meaning: Meaning) {
        let frame = Outgoing { linear_bytes, file: 0..0, meaning };
        self.card.transmit(self, driver, self.transmit_ring(flow), frame);
    }
}
