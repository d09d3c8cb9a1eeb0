//! A network card: it reads and writes rings in memory through the IOMMU, and has a link, a receive buffer and
//! moderated interrupts.
//!
//! The card is passive: [`Nic::advance`] performs its events, and [`Nic::next_event_ps`] tells when the next one is
//! due. Frames have a length and a cookie, but no bytes. Descriptors, completions and doorbell records do lie in
//! memory.

mod bus;
mod format;
mod joining;
mod moderation;
mod parameters;
mod posted;
mod receive;
mod ring;

pub use bus::BusCounters;
pub use format::{
    COMPLETION_BYTES, Completion, DESCRIPTOR_BYTES, Descriptor, Direction, EVENT_BYTES, Event, EventQueue,
    JOINED_PAGES_MAX, JOINING_COMPLETION_BYTES, Joined, Joins, PIECES_MAX, PagesOfPacket, RingConfig, RingFormat,
    STRIDING_COMPLETION_BYTES, STRIDING_PIECES_MAX, entry_bytes,
};
pub use joining::TcpSegment;
pub use parameters::{Moderation, NicParameters};

use crate::schedule::Schedule;
use crate::vtd::{Requests, Vtd};
use bus::Bus;
use joining::Arrived;
use moderation::Announce;
use portcullis::{PhysAddr, SourceId};
use posted::{Completed, Write};
use ring::{Entry, Reading, Ring, pages};
use std::collections::VecDeque;
use std::sync::Arc;

/// A frame without its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Its length in bytes, including headers.
    pub bytes: u32,
    /// Its meaning, in place of its headers.
    pub cookie: u32,
}

/// An action of the card that its surroundings see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// The last bit of a frame was sent.
    Sent(Frame),
    /// An interrupt.
    Interrupt(u8),
}

/// Counters of a card.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NicCounters {
    /// Frames sent.
    pub sent: u64,
    /// Frames received and written to memory.
    pub received: u64,
    /// Frames dropped because the receive buffer was full.
    pub dropped: u64,
    /// Frames dropped because their ring had no entry for them, if it drops them then.
    pub out_of_buffer: u64,
    /// Interrupts raised.
    pub interrupts: u64,
    /// Counters of the bus.
    pub bus: BusCounters,
}

/// The number of a ring, in the order of [`Nic::open`].
pub type RingNumber = usize;

/// An event.
enum Due {
    Doorbell(RingNumber),
    Record(RingNumber, Option<PhysAddr>),
    Fetch(RingNumber),
    Descriptors(RingNumber, Option<PhysAddr>, u32),
    ReadOn(RingNumber),
    Sent(RingNumber, u32, Frame),
    Arrived(RingNumber, Arrived),
    Drained(u32),
    Silence(RingNumber, u32),
    WriteOn,
    Completed(RingNumber, Completed),
    Arm(RingNumber, u32),
    Announce(RingNumber, u32),
    Raise(RingNumber),
}

/// A network card behind a [`Vtd`].
pub struct Nic {
    vtd: Arc<Vtd>,
    card: Card,
}

/// The card without the unit that it is behind.
struct Card {
    parameters: NicParameters,
    bus: Bus,
    rings: Vec<Ring>,
    /// The event queues, and how many events were written to each.
    event_queues: Vec<(EventQueue, u32)>,
    now_ps: u64,
    due: Schedule<Due>,
    /// Posted writes in order, and whether there is an event for the first of them.
    writes: VecDeque<Write>,
    writes_on: bool,
    link_free_ps: u64,
    buffered_bytes: u64,
    /// Bytes of frames that the card has begun to read and has not sent, and the rings that wait for room.
    unsent_bytes: u64,
    unsent_rings: VecDeque<RingNumber>,
    outputs: VecDeque<(u64, Output)>,
    counters: NicCounters,
}

impl Nic {
    /// A card without rings, known to `vtd` as `source`.
    pub fn new(source: SourceId, parameters: NicParameters, vtd: Arc<Vtd>) -> Self {
        let card = Card {
            bus: Bus::new(source, &parameters),
            parameters,
            rings: Vec::new(),
            event_queues: Vec::new(),
            now_ps: 0,
            due: Schedule::default(),
            writes: VecDeque::new(),
            writes_on: false,
            link_free_ps: 0,
            buffered_bytes: 0,
            unsent_bytes: 0,
            unsent_rings: VecDeque::new(),
            outputs: VecDeque::new(),
            counters: NicCounters::default(),
        };
        Self { vtd, card }
    }

    /// Opens a ring.
    ///
    /// # Panics
    /// If it has no entries, no buffers in one, no completions or no events, if a size is beyond the limits that
    /// [`RingConfig`] and [`RingFormat`] state, if a transmit ring is striding or joins segments, or if one that joins
    /// segments has no ring of pages.
    pub fn open(&mut self, config: RingConfig) -> RingNumber {
        let Card { rings, event_queues, .. } = &mut self.card;
        let events = config.events.map(|queue| {
            event_queues.iter().position(|(known, _)| *known == queue).unwrap_or_else(|| {
                event_queues.push((queue, 0));
                event_queues.len() - 1
            })
        });
        if let Some(joins) = config.format.joins {
            rings[joins.pages].pages_of = Some(rings.len());
        }
        rings.push(Ring::new(config, events));
        rings.len() - 1
    }

    /// The description of a ring.
    pub fn ring(&self, ring: RingNumber) -> &RingConfig {
        &self.card.rings[ring].config
    }

    /// Changes how completions of a ring are announced.
    pub fn moderate(&mut self, ring: RingNumber, moderation: Moderation) {
        self.card.rings[ring].config.moderation = moderation;
    }

    /// Tells the card that the driver has filled entries of a ring and written its record.
    pub fn doorbell(&mut self, now_ps: u64, ring: RingNumber) {
        self.card.set_due(now_ps + self.card.parameters.doorbell_ps, Due::Doorbell(ring));
    }

    /// Requests an interrupt when there are completions after the first `seen`.
    pub fn arm(&mut self, now_ps: u64, ring: RingNumber, seen: u32) {
        self.card.set_due(now_ps + self.card.parameters.doorbell_ps, Due::Arm(ring, seen));
    }

    /// The last bit of a frame arrives at `at_ps`. The card puts the frame into `ring`.
    pub fn receive(&mut self, at_ps: u64, ring: RingNumber, frame: Frame) {
        self.card.set_due(at_ps, Due::Arrived(ring, Arrived { frame, segment: None }));
    }

    /// The same for a segment of a TCP stream, which a ring may join to others.
    pub fn receive_segment(&mut self, at_ps: u64, ring: RingNumber, frame: Frame, segment: TcpSegment) {
        self.card.set_due(at_ps, Due::Arrived(ring, Arrived { frame, segment: Some(segment) }));
    }

    /// When the next event is due.
    pub fn next_event_ps(&self) -> Option<u64> {
        self.card.due.first_ps()
    }

    /// Performs all events up to `now_ps`.
    pub fn advance(&mut self, now_ps: u64) {
        let Self { vtd, card } = self;
        if card.due.first_ps().is_some_and(|first_ps| first_ps <= now_ps) {
            let mut unit = vtd.requests();
            while let Some((at_ps, due)) = card.due.take(now_ps) {
                card.now_ps = at_ps;
                card.act(&mut unit, due);
            }
        }
        card.now_ps = card.now_ps.max(now_ps);
    }

    /// Takes the oldest output, with its time.
    pub fn take_output(&mut self) -> Option<(u64, Output)> {
        self.card.outputs.pop_front()
    }

    /// The counters so far.
    pub fn counters(&self) -> NicCounters {
        NicCounters { bus: self.card.bus.counters, ..self.card.counters }
    }
}

impl Card {
    fn set_due(&mut self, at_ps: u64, due: Due) {
        self.due.add(at_ps.max(self.now_ps), due);
    }

    fn act(&mut self, unit: &mut Requests<'_>, due: Due) {
        match due {
            Due::Doorbell(ring) => self.read_record(unit, ring),
            Due::Record(ring, phys) => self.learn_record(unit, ring, phys),
            Due::Fetch(ring) => {
                self.rings[ring].fetches = false;
                self.fetch(unit, ring);
            }
            Due::Descriptors(ring, phys, count) => self.take_descriptors(unit, ring, phys, count),
            Due::ReadOn(ring) => {
                self.rings[ring].goes_on = false;
                self.read_on(unit, ring);
            }
            Due::Sent(ring, entry, frame) => {
                self.counters.sent += 1;
                self.outputs.push_back((self.now_ps, Output::Sent(frame)));
                self.unsent_bytes -= u64::from(frame.bytes);
                self.complete(ring, Completion::of_frame(entry, frame));
                self.write_on(unit);
                self.read_on_unsent(unit);
            }
            Due::Arrived(ring, arrived) => self.buffer(unit, ring, arrived),
            Due::Drained(bytes) => self.drain(bytes),
            Due::Silence(ring, id) => self.look_for_silence(unit, ring, id),
            Due::WriteOn => {
                self.writes_on = false;
                self.write_on(unit);
            }
            Due::Completed(ring, Completed { drained_bytes, has_landed }) => {
                if let Some(bytes) = drained_bytes {
                    self.drain(bytes);
                }
                if has_landed {
                    let (now_ps, Ring { config, announcer, .. }) = (self.now_ps, &mut self.rings[ring]);
                    let announce = announcer.landed(now_ps, config.moderation);
                    self.announce(unit, ring, announce);
                }
            }
            Due::Arm(ring, seen) => {
                let (now_ps, Ring { config, announcer, .. }) = (self.now_ps, &mut self.rings[ring]);
                let announce = announcer.arm(now_ps, seen, config.moderation);
                self.announce(unit, ring, announce);
            }
            Due::Announce(ring, arming) => {
                if self.rings[ring].announcer.due(arming) {
                    self.announce(unit, ring, Announce::Now);
                }
            }
            Due::Raise(ring) => self.raise(ring),
        }
    }

    fn announce(&mut self, unit: &mut Requests<'_>, ring: RingNumber, announce: Announce) {
        match announce {
            Announce::Nothing => {}
            Announce::Now => self.interrupt(unit, ring),
            Announce::At(at_ps, arming) => self.set_due(at_ps, Due::Announce(ring, arming)),
        }
    }

    fn raise(&mut self, ring: RingNumber) {
        self.counters.interrupts += 1;
        self.outputs.push_back((self.now_ps, Output::Interrupt(self.rings[ring].config.vector)));
    }

    fn read_record(&mut self, unit: &mut Requests<'_>, number: RingNumber) {
        let ring = &mut self.rings[number];
        if std::mem::replace(&mut ring.reads_record, true) {
            ring.rung_again = true;
            return;
        }
        let record = ring.config.record;
        let read = self.bus.read(unit, self.now_ps, record, 8);
        self.set_due(read.done_ps, Due::Record(number, read.phys));
    }

    fn learn_record(&mut self, unit: &mut Requests<'_>, number: RingNumber, phys: Option<PhysAddr>) {
        let ring = &mut self.rings[number];
        if let Some(filled) = phys.and_then(|phys| unit.ram().read_u64(phys)) {
            ring.filled = filled as u32;
        }
        ring.reads_record = false;
        if std::mem::take(&mut ring.rung_again) {
            self.read_record(unit, number);
        }
        self.fetch(unit, number);
    }

    /// Fetches entries if there are any and the card has room for them.
    fn fetch(&mut self, unit: &mut Requests<'_>, number: RingNumber) {
        let most = self.parameters.fetch_entries;
        let ring = &mut self.rings[number];
        if ring.fetches || ring.ready.len() >= most as usize {
            return;
        }
        let Some((at, count)) = ring.next_fetch(most) else { return };
        ring.fetches = true;
        let len = u64::from(count) * ring.config.entry_bytes();
        let room_ps = self.bus.read_room_ps(self.now_ps, len);
        if room_ps > self.now_ps {
            return self.set_due(room_ps, Due::Fetch(number));
        }
        let read = self.bus.read(unit, self.now_ps, at, len);
        self.set_due(read.done_ps, Due::Descriptors(number, read.phys, count));
    }

    fn take_descriptors(&mut self, unit: &mut Requests<'_>, number: RingNumber, phys: Option<PhysAddr>, count: u32) {
        let (ram, ring) = (unit.ram(), &mut self.rings[number]);
        ring.fetches = false;
        // A ring that the card may not read stops. The fault was counted.
        let Some(phys) = phys else { return };
        for index in 0..count {
            let at = PhysAddr::new(phys.as_u64() + u64::from(index) * ring.config.entry_bytes());
            let entry = ring.entry(ring.fetched, at, |word| ram.read_u64(word).unwrap_or(0));
            ring.ready.push_back(entry);
            ring.fetched = ring.fetched.wrapping_add(1);
        }
        match ring.config.direction {
            Direction::Transmit => self.read_on(unit, number),
            Direction::Receive => self.deliver(unit, self.rings[number].pages_of.unwrap_or(number)),
        }
        self.fetch(unit, number);
    }

    /// Reads buffers to be sent, page by page, while the bus has room.
    fn read_on(&mut self, unit: &mut Requests<'_>, number: RingNumber) {
        while !self.rings[number].goes_on {
            let ring = &mut self.rings[number];
            let Some(reading) = &mut ring.reading else {
                let Some(bytes) = ring.ready.front().map(|entry| u64::from(entry.bytes())) else { return };
                if self.parameters.is_full(self.unsent_bytes, bytes) {
                    ring.goes_on = true;
                    return self.unsent_rings.push_back(number);
                }
                self.unsent_bytes += bytes;
                let Some(entry) = ring.ready.pop_front() else { return };
                let buffers = entry.pieces.iter().filter(|piece| !piece.is_inline);
                let mut left: Vec<_> = buffers.flat_map(|piece| pages(piece.iova, piece.bytes.into())).collect();
                left.reverse();
                ring.reading = Some(Reading { entry, left, there_ps: self.now_ps });
                self.fetch(unit, number);
                continue;
            };
            let Some(&(at, len)) = reading.left.last() else {
                let Some(Reading { entry, there_ps, .. }) = ring.reading.take() else { return };
                self.send(number, &entry, there_ps);
                continue;
            };
            let room_ps = self.bus.read_room_ps(self.now_ps, len);
            if room_ps > self.now_ps {
                ring.goes_on = true;
                return self.set_due(room_ps, Due::ReadOn(number));
            }
            reading.left.pop();
            reading.there_ps = reading.there_ps.max(self.bus.read(unit, self.now_ps, at, len).done_ps);
        }
    }

    /// Lets rings go on that wait until frames are sent, in their order.
    fn read_on_unsent(&mut self, unit: &mut Requests<'_>) {
        while let Some(&number) = self.unsent_rings.front() {
            let bytes = self.rings[number].ready.front().map_or(0, |entry| entry.bytes().into());
            if self.parameters.is_full(self.unsent_bytes, bytes) {
                return;
            }
            self.unsent_rings.pop_front();
            self.rings[number].goes_on = false;
            self.read_on(unit, number);
        }
    }

    /// Sends a frame when all of it was read and the link is free.
    fn send(&mut self, number: RingNumber, entry: &Entry, there_ps: u64) {
        let cookie = entry.pieces.first().map_or(0, |piece| piece.cookie);
        let frame = Frame { bytes: entry.bytes(), cookie };
        self.link_free_ps = self.link_free_ps.max(there_ps) + self.parameters.wire_ps(frame.bytes);
        self.set_due(self.link_free_ps, Due::Sent(number, entry.number, frame));
    }
}
