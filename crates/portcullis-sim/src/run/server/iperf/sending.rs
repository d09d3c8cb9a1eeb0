//! The streams that the server sends: applications write, and the kernel sends what the window allows, in frames of up
//! to 64 KiB.
//!
//! Left out: small queues (a flow may have a megabyte in the card, as much as its window), and waiting for a fuller
//! frame when less than one may leave.

use super::Iperf;
use crate::machine::Writer;
use crate::run::driver::Driver;
use crate::run::server::frames::{Kind, Meaning};
use portcullis_model::Completion;

/// The most bytes of a frame: the most of an IP packet.
const FRAME_BYTES: u32 = 64 << 10;

impl Iperf {
    fn writer(&self) -> Writer {
        self.server.software.writer.expect("`ServerWork` lets servers with a writer alone send")
    }

    /// The packets of a frame.
    fn frame_packets(&self) -> u64 {
        (FRAME_BYTES / self.server.software.segment_bytes).into()
    }

    /// Whether an application has a frame's worth to write, and room for it. The send buffer is as large as a window.
    pub(super) fn can_write(&self, flow: usize) -> bool {
        let software = &self.server.software;
        let most = software.window_bytes / u64::from(software.segment_bytes);
        self.work.iperf.direction.sends(flow) && self.senders.borrow()[flow].queued() + self.frame_packets() <= most
    }

    /// The application of a flow writes a frame's worth, if it may.
    pub(super) fn write(&self, driver: &mut Driver<'_>, flow: usize) {
        if !self.can_write(flow) {
            return;
        }
        let packets = self.frame_packets();
        self.world.engine.busy(self.writer().copy_cycles * packets);
        self.senders.borrow_mut()[flow].write(packets);
        self.world.engine.uninterrupted(|| self.send(driver, flow));
    }

    /// Sends what may be sent of a flow.
    pub(super) fn send(&self, driver: &mut Driver<'_>, flow: usize) {
        if !self.work.iperf.direction.sends(flow) {
            return;
        }
        let transmit = &self.transmit[self.work.core_of(flow)];
        while !self.is_over() {
            if !transmit.has_room() {
                return transmit.stall();
            }
            let now_ps = self.world.engine.now_ps();
            let frame = self.senders.borrow_mut()[flow].next_frame(now_ps, self.frame_packets());
            let Some(frame) = frame else { return };
            self.world.engine.busy(self.writer().frame_cycles);
            transmit.send_data(self, driver, flow, &frame);
        }
    }

    /// Handles an acknowledgement of a client, unless a later one has come.
    pub(super) fn acknowledged(&self, now_ps: u64, meaning: Meaning) {
        let answer = self.clients.borrow_mut().answers[meaning.flow].take(meaning);
        if let Some(answer) = answer {
            self.senders.borrow_mut()[meaning.flow].acknowledge(now_ps, &answer);
        }
    }

    /// What a completion costs in a poll.
    pub(super) fn poll_cycles(&self, completion: &Completion, meaning: Meaning) -> u64 {
        match meaning.kind {
            _ if completion.is_filler => 0,
            Kind::Acknowledgement => self.writer().acknowledgement_cycles,
            _ => self.reader.poll_cycles,
        }
    }
}
