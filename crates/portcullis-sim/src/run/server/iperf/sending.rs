//! What the server sends: applications write streams or messages, and the kernel sends what the window allows, in
//! frames of up to 64 KiB.
//!
//! Left out: small queues (a flow may have a megabyte in the card, as much as its window), waiting for a fuller frame
//! when less than one may leave, acknowledgements that ride on data, and packets that carry several messages written
//! one after the other.

use super::Iperf;
use super::exchange::Dialogue;
use crate::machine::Writer;
use crate::run::driver::Driver;
use crate::run::server::frames::{Kind, Meaning};
use portcullis_model::Completion;

/// The most bytes of a frame: the most of an IP packet.
pub(super) const FRAME_BYTES: u32 = 64 << 10;

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
        self.is_stream(flow) && self.senders.borrow()[flow].queued() + self.frame_packets() <= most
    }

    /// Whether the server sends a stream on a flow.
    fn is_stream(&self, flow: usize) -> bool {
        self.work.iperf.direction.sends(flow) && !self.work.exchanges(flow)
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
        if !self.is_stream(flow) && !self.work.exchanges(flow) {
            return;
        }
        let transmit = &self.transmit[self.work.core_of(flow)];
        while !self.is_over() {
            if !transmit.has_room() {
                return transmit.stall();
            }
            let Some((packet, bytes)) = self.next_frame(flow) else { return };
            self.world.engine.busy(self.frame_cycles(flow));
            transmit.send_data(self, driver, flow, packet, bytes);
        }
    }

    /// What a frame of a flow costs. That of a message of one packet is with the cycles of its request.
    fn frame_cycles(&self, flow: usize) -> u64 {
        let mut dialogues = self.dialogues.borrow_mut();
        let is_short = dialogues[flow].as_mut().is_some_and(|dialogue| dialogue.written().is_short());
        if is_short { 0 } else { self.writer().frame_cycles }
    }

    /// The first packet and the bytes of the next frame of a flow. It is of one write.
    fn next_frame(&self, flow: usize) -> Option<(u64, u64)> {
        let now_ps = self.world.engine.now_ps();
        let (mut senders, mut dialogues) = (self.senders.borrow_mut(), self.dialogues.borrow_mut());
        let sender = &mut senders[flow];
        let Some(written) = dialogues[flow].as_mut().map(Dialogue::written) else {
            let packets = sender.next_frame(now_ps, self.frame_packets())?;
            return Some((
                packets.start,
                (packets.end - packets.start) * u64::from(self.server.software.segment_bytes),
            ));
        };
        let most = self.frame_packets().min(written.left_from(sender.end()));
        let packets = sender.next_frame(now_ps, most)?;
        Some((packets.start, packets.map(|packet| written.bytes_of(packet)).sum()))
    }

    /// The application of a flow has read so many messages: it answers requests, or asks again.
    pub(super) fn messages_came(&self, driver: &mut Driver<'_>, flow: usize, messages: u64) {
        let cycles = match &self.dialogues.borrow()[flow] {
            Some(dialogue) => dialogue.exchange.cycles * messages,
            None => return,
        };
        self.world.engine.busy(cycles);
        let now_ps = self.world.engine.now_ps();
        let writes = self.dialogues.borrow_mut()[flow].as_mut().map(|dialogue| dialogue.server_read(now_ps, messages));
        self.write_messages(driver, flow, writes.unwrap_or_default());
    }

    /// The application of a flow of a server that asks begins.
    pub(super) fn ask(&self, driver: &mut Driver<'_>, flow: usize) {
        let now_ps = self.world.engine.now_ps();
        let asks = |dialogue: &&mut Dialogue| dialogue.exchange.server_asks;
        let writes = self.dialogues.borrow_mut()[flow].as_mut().filter(asks).map(|dialogue| dialogue.ask(now_ps));
        self.write_messages(driver, flow, writes.unwrap_or_default());
    }

    fn write_messages(&self, driver: &mut Driver<'_>, flow: usize, writes: Vec<u64>) {
        if !writes.is_empty() {
            writes.into_iter().for_each(|packets| self.senders.borrow_mut()[flow].write(packets));
            self.world.engine.uninterrupted(|| self.send(driver, flow));
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
