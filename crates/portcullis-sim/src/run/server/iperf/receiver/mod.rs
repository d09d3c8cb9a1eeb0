//! The TCP receiver of the server: the part of Linux 6.0 that decides what is acknowledged when.
//!
//! A poll of the driver hands packets over, in the order of their arrival. GRO joins packets that follow each other
//! into runs, and a run is acknowledged as a whole. The socket holds what a packet lies in until the application reads
//! it.
//!
//! Left out: growth of the buffer, memory pressure, the backlog of a socket that is in use, ECN, data in the other
//! direction, and delays of acknowledgements that adapt. A packet counts as one in the window until it is read; in
//! Linux packets out of order count too, and all with the size of their memory (docs/laboratory.md has what that does).

#[cfg(test)]
mod tests;

use super::ticks::{JIFFY_PS, expires_ps};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ops::Range;

/// So many acknowledgements of packets out of order are sent at once after each progress: `TCP_FASTRETRANS_THRESH`.
const AT_ONCE: u32 = 3;
/// An acknowledgement that was put off is sent before a block is named that would be one more than this:
/// `TCP_SACK_BLOCKS_EXPECTED`.
const BLOCKS_EXPECTED: usize = 2;
/// Blocks that a receiver remembers, `TCP_NUM_SACKS`, and those that fit an acknowledgement with a timestamp
/// (RFC 2018).
const BLOCKS_KEPT: usize = 4;
const BLOCKS_SENT: usize = 3;

/// What an acknowledgement says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acknowledgement {
    /// The first packet that has not arrived.
    pub(super) next: u64,
    /// Packets beyond that arrived, the latest block first. A first block below `next` names a duplicate (RFC 2883).
    pub(super) sacked: SmallVec<[Range<u64>; 4]>,
    /// How many packets from `next` on the sender may send.
    pub(super) window: u64,
}

/// The constants of a receiver.
#[derive(Clone, Debug)]
pub(super) struct ReceiverParameters {
    /// The largest window. 250: Fast & Safe fixes the receive buffer at 2 MB. Half of it is window: 1 MB, and a packet
    /// has 3,948 bytes. A run takes the window of its machine.
    pub(super) window_packets: u64,
    /// Packets of a run of GRO. 16: 64 KiB of 3,948 bytes each (`GRO_LEGACY_MAX_SIZE`).
    pub(super) run_packets: u64,
    /// Whether every packet out of order is acknowledged at once. False: Linux compresses since 4.18.
    pub(super) acknowledges_each: bool,
    /// How many acknowledgements are put off at most. 44: `tcp_comp_sack_nr`.
    pub(super) compressed_max: u32,
    /// For how long at most. 1 ms: `tcp_comp_sack_delay_ns`.
    pub(super) compressed_ps: u64,
    /// How much later the timer expires, as it may. 100 µs: `tcp_comp_sack_slack_ns`. Linux programs the hardware for
    /// the end of the slack; only another high-resolution timer of the CPU makes it earlier.
    pub(super) slack_ps: u64,
    /// The round-trip time that the receiver knows. 5 % of it are another limit. 30 µs: Fast & Safe, Fig. 9, an RPC
    /// without load, because the smaller of two estimates counts and one of them is of the handshake.
    pub(super) rtt_ps: u64,
    /// How many acknowledgements are sent at once when a connection starts, after a pause and after a duplicate. 16:
    /// `TCP_MAX_QUICKACKS`.
    pub(super) quick: u32,
    /// A pause. 200 ms: Linux takes its own retransmission timeout, whose minimum this is.
    pub(super) pause_ps: u64,
    /// The delay of an acknowledgement, in jiffies. 10: `TCP_ATO_MIN`, 40 ms.
    pub(super) delay_jiffies: u64,
    /// A jiffy.
    pub(super) jiffy_ps: u64,
}

impl Default for ReceiverParameters {
    fn default() -> Self {
        Self {
            window_packets: 250,
            run_packets: 16,
            acknowledges_each: false,
            compressed_max: 44,
            compressed_ps: 1_000_000_000,
            slack_ps: 100_000_000,
            rtt_ps: 30_000_000,
            quick: 16,
            pause_ps: 200_000_000_000,
            delay_jiffies: 10,
            jiffy_ps: JIFFY_PS,
        }
    }
}

/// What a receiver counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    /// Acknowledgements.
    pub(super) acknowledgements: u64,
    /// Packets that arrived before one with a smaller number.
    pub(super) out_of_order: u64,
    /// Packets that were dropped, because they had arrived before or lie outside the window.
    pub(super) dropped: u64,
}

/// Packets that GRO has joined in the present poll.
#[derive(Debug)]
struct Run {
    numbers: Range<u64>,
    /// The first missing packet when the run began, and whether later ones were there.
    next: u64,
    had_early: bool,
    /// Whether it has a packet that was below the first missing one, and one outside the window.
    is_old: bool,
    is_outside: bool,
}

/// The receiver of a flow. `P` is what a packet lies in.
#[derive(Debug)]
pub(super) struct Receiver<P> {
    parameters: ReceiverParameters,
    /// The first packet that has not arrived.
    next: u64,
    /// Packets in order that were not read.
    queue: VecDeque<P>,
    /// The packets from `next` on. The first never is there.
    early: VecDeque<Option<P>>,
    early_packets: usize,
    blocks: SmallVec<[Range<u64>; BLOCKS_KEPT]>,
    duplicate: Option<Range<u64>>,
    run: Option<Run>,
    /// Acknowledgements of the present poll.
    ready: SmallVec<[Acknowledgement; 4]>,
    /// What the last acknowledgement said.
    acknowledged: u64,
    advertised: u64,
    /// Whether something arrived since.
    is_due: bool,
    has_read: bool,
    quick: u32,
    received_ps: Option<u64>,
    /// Acknowledgements of packets out of order since `progress` was the first missing packet: sent and put off.
    progress: u64,
    at_once: u32,
    compressed: u32,
    compressed_ends_ps: Option<u64>,
    delay_ends_ps: Option<u64>,
    received: Received,
}

impl<P> Receiver<P> {
    /// A receiver that expects packet 0.
    pub(super) fn new(parameters: &ReceiverParameters) -> Self {
        Self {
            parameters: parameters.clone(),
            next: 0,
            queue: VecDeque::new(),
            early: VecDeque::new(),
            early_packets: 0,
            blocks: SmallVec::new(),
            duplicate: None,
            run: None,
            ready: SmallVec::new(),
            acknowledged: 0,
            advertised: parameters.window_packets,
            is_due: false,
            has_read: false,
            quick: parameters.quick,
            received_ps: None,
            progress: 0,
            at_once: 0,
            compressed: 0,
            compressed_ends_ps: None,
            delay_ends_ps: None,
            received: Received::default(),
        }
    }

    /// What it counted.
    pub(super) fn received(&self) -> Received {
        self.received
    }

    /// The first packet that has not arrived.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// How many packets can be read.
    pub(super) fn readable(&self) -> usize {
        self.queue.len()
    }

    /// How many packets it holds, in and out of order.
    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.queue.len() + self.early_packets
    }

    /// Takes a packet during a poll. Returns what is dropped.
    pub(super) fn receive(&mut self, now_ps: u64, number: u64, held: P) -> Option<P> {
        let goes_on = self
            .run
            .as_ref()
            .is_some_and(|run| run.numbers.end == number && number - run.numbers.start < self.parameters.run_packets);
        if !goes_on {
            self.flush(now_ps);
        }
        let (next, had_early) = (self.next, self.early_packets > 0);
        let (is_old, is_outside) = (number < next, number >= self.edge());
        let run =
            self.run.get_or_insert(Run { numbers: number..number, next, had_early, is_old: false, is_outside: false });
        run.numbers.end = number + 1;
        run.is_old |= is_old;
        run.is_outside |= is_outside;
        let dropped = if is_old || is_outside { Some(held) } else { self.store((number - next) as usize, held) };
        self.received.dropped += u64::from(dropped.is_some());
        dropped
    }

    /// Stores the packet that is `ahead` packets after the first missing one. Returns it if it is there already.
    fn store(&mut self, ahead: usize, held: P) -> Option<P> {
        if ahead > 0 {
            if self.early.len() <= ahead {
                self.early.resize_with(ahead + 1, || None);
            }
            let place = &mut self.early[ahead];
            if place.is_some() {
                return Some(held);
            }
            *place = Some(held);
            self.early_packets += 1;
            self.received.out_of_order += 1;
            return None;
        }
        self.queue.push_back(held);
        self.next += 1;
        self.early.pop_front();
        while let Some(early) = self.early.front_mut().and_then(Option::take) {
            self.early.pop_front();
            self.early_packets -= 1;
            self.queue.push_back(early);
            self.next += 1;
        }
        None
    }

    /// Ends a poll. Returns the acknowledgements to send.
    pub(super) fn poll_ended(&mut self, now_ps: u64) -> SmallVec<[Acknowledgement; 4]> {
        self.flush(now_ps);
        std::mem::take(&mut self.ready)
    }

    /// Handles the run that GRO hands over.
    fn flush(&mut self, now_ps: u64) {
        let Some(run) = self.run.take() else { return };
        self.is_due = true;
        let is_wrong = run.is_old || run.is_outside;
        if is_wrong {
            self.quick = self.parameters.quick;
            if run.numbers.start < run.next {
                self.duplicate.get_or_insert(run.numbers.start..run.numbers.end.min(run.next));
            }
        }
        let has_progressed = self.next > run.next;
        if has_progressed {
            let paused = self.received_ps.is_some_and(|ps| now_ps.saturating_sub(ps) > self.parameters.pause_ps);
            if paused {
                self.quick = self.parameters.quick;
            }
            self.received_ps = Some(now_ps);
            let next = self.next;
            self.blocks.retain(|block| block.end > next);
        } else if !is_wrong {
            if self.parameters.acknowledges_each {
                for number in run.numbers {
                    self.name(number..number + 1);
                    self.ready_one();
                }
                return;
            }
            self.name(run.numbers);
        }
        let fills_all = has_progressed && run.had_early && self.early_packets == 0;
        if is_wrong || fills_all || self.is_urgent() {
            self.ready_one();
        } else if self.early_packets == 0 {
            self.delay(now_ps);
        } else {
            self.compress(now_ps);
        }
    }

    /// Whether the state alone asks for an acknowledgement now.
    fn is_urgent(&self) -> bool {
        // If the window would shrink, the read acknowledges.
        let free = self.free_window();
        let many = self.next - self.acknowledged > 1 && free >= self.advertised;
        many || self.quick > 0 && 2 * free >= self.parameters.window_packets
    }

    /// Puts an acknowledgement off until the application reads, or for a while.
    fn delay(&mut self, now_ps: u64) {
        let (jiffies, jiffy_ps) = (self.parameters.delay_jiffies, self.parameters.jiffy_ps);
        match self.delay_ends_ps {
            // Linux does not wait for a timer that expires within a quarter of the delay.
            Some(end_ps) if end_ps <= now_ps + jiffies * jiffy_ps / 4 => self.ready_one(),
            Some(_) => {}
            None => self.delay_ends_ps = Some(expires_ps(now_ps, jiffies, jiffy_ps)),
        }
    }

    /// Acknowledges packets out of order, at once or later.
    fn compress(&mut self, now_ps: u64) {
        let ReceiverParameters { compressed_max, compressed_ps, slack_ps, rtt_ps, .. } = self.parameters;
        if self.parameters.acknowledges_each || self.compressed >= compressed_max {
            return self.ready_one();
        }
        if self.progress != self.next {
            (self.progress, self.at_once) = (self.next, 0);
        }
        if self.at_once < AT_ONCE {
            self.at_once += 1;
            return self.ready_one();
        }
        self.compressed += 1;
        self.compressed_ends_ps.get_or_insert(now_ps + compressed_ps.min(rtt_ps / 20) + slack_ps);
    }

    /// Puts the block of packets out of order first that a run belongs to.
    fn name(&mut self, mut run: Range<u64>) {
        let found = self.blocks.iter().position(|block| touch(block, &run));
        // The sender has to hear of a block before it may be forgotten.
        if found.unwrap_or(self.blocks.len()) >= BLOCKS_EXPECTED && self.compressed > 0 {
            self.ready_one();
            self.is_due = true;
        }
        // A block that the run joins to another one may touch a third.
        while let Some(index) = self.blocks.iter().position(|block| touch(block, &run)) {
            let block = self.blocks.remove(index);
            run = run.start.min(block.start)..run.end.max(block.end);
        }
        self.blocks.truncate(BLOCKS_KEPT - 1);
        self.blocks.insert(0, run);
    }

    /// The application takes at most so many packets.
    pub(super) fn read(&mut self, most: usize) -> impl Iterator<Item = P> + '_ {
        let packets = most.min(self.queue.len());
        self.has_read |= packets > 0;
        self.queue.drain(..packets)
    }

    /// Ends a call of the application that read, before it waits or returns.
    pub(super) fn read_ended(&mut self) -> Option<Acknowledgement> {
        let has_read = std::mem::take(&mut self.has_read);
        let owes = self.is_due && self.next - self.acknowledged > 1;
        let left = self.edge() - self.next;
        let free = self.free_window();
        // A window that is at least half open waits for the next acknowledgement.
        let opens = has_read && 2 * left <= self.parameters.window_packets && free > 0 && free >= 2 * left;
        (owes || opens).then(|| self.acknowledgement())
    }

    /// When [`expire`](Self::expire) has something to do.
    pub(super) fn timer_ps(&self) -> Option<u64> {
        self.compressed_ends_ps.into_iter().chain(self.delay_ends_ps).min()
    }

    /// Handles timers that have expired. An acknowledgement stops both.
    pub(super) fn expire(&mut self, now_ps: u64) -> Option<Acknowledgement> {
        self.timer_ps().filter(|&end_ps| end_ps <= now_ps).map(|_| self.acknowledgement())
    }

    /// The first number beyond the window that the sender knows.
    fn edge(&self) -> u64 {
        self.acknowledged + self.advertised
    }

    /// The window that the free memory allows. Less than a sixteenth counts as none, so that it never opens a little.
    fn free_window(&self) -> u64 {
        let most = self.parameters.window_packets;
        let free = most.saturating_sub(self.queue.len() as u64);
        if free < most / 16 { 0 } else { free }
    }

    fn ready_one(&mut self) {
        let acknowledgement = self.acknowledgement();
        self.ready.push(acknowledgement);
    }

    /// The acknowledgement of the present state, which is sent. Its right edge never moves back.
    fn acknowledgement(&mut self) -> Acknowledgement {
        let free = self.free_window();
        if 2 * free < self.parameters.window_packets {
            self.quick = 0;
        }
        self.advertised = free.max(self.edge() - self.next);
        self.acknowledged = self.next;
        self.quick = self.quick.saturating_sub(1);
        (self.is_due, self.compressed) = (false, 0);
        (self.compressed_ends_ps, self.delay_ends_ps) = (None, None);
        self.received.acknowledgements += 1;
        let blocks = self.duplicate.take().into_iter().chain(self.blocks.iter().cloned());
        Acknowledgement { next: self.next, sacked: blocks.take(BLOCKS_SENT).collect(), window: self.advertised }
    }
}

/// Whether two blocks are one.
fn touch(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start <= other.end && other.start <= one.end
}
