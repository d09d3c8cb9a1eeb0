//! The driver of the card: it fills rings, sends frames, and handles completions. The order of its maps and unmaps is
//! that of the published driver ([`NicDriver`]).

use super::flows::flow_of;
use super::memory::{Packets, Part, RingMemory, RingShape};
use super::rate::Rate;
use super::{Host, ServerWork, ServerWorkload};
use crate::machine::{Machine, NicDriver};
use crate::run::driver::Driver;
use crate::run::live::{Buffer, Slot};
use crate::run::world::Wanted;
use portcullis::{Access, Iova};
use portcullis_model::{Completion, Descriptor, Direction, PIECES_MAX, RingNumber};
use smallvec::SmallVec;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;

/// The buffers of an entry.
type Pieces = SmallVec<[Slot; 2]>;

/// A ring that is open.
struct Open {
    number: RingNumber,
    memory: RingMemory,
}

/// The driver's state of a ring.
struct Ring {
    shape: RingShape,
    /// The stream for the memory of the ring. The next numbers are the streams for its buffers. A receive ring has a
    /// stream for each piece, because small frames use only the first piece.
    stream: u32,
    open: OnceCell<Open>,
    /// How many entries were ever filled, and how many completions were ever taken.
    filled: Cell<u32>,
    taken: Cell<u32>,
    /// The mapped buffers: for a transmit ring in the order of its frames, for a receive ring by the index of the
    /// entry.
    live: RefCell<VecDeque<Pieces>>,
    /// The rate of a receive ring.
    rate: RefCell<Rate>,
}

/// The card's driver.
pub(super) struct Card {
    transmit: Vec<Ring>,
    receive: Vec<Ring>,
    packets: Packets,
}

impl Ring {
    fn new(shape: RingShape, stream: u32, driver: &NicDriver) -> Self {
        Self {
            shape,
            stream: stream * (1 + PIECES_MAX),
            open: OnceCell::new(),
            filled: Cell::new(0),
            taken: Cell::new(0),
            live: RefCell::default(),
            rate: RefCell::new(Rate::new(driver)),
        }
    }

    fn memory(&self) -> &RingMemory {
        &self.open.get().expect("the card is open").memory
    }

    /// Takes the next completion, if it has landed.
    fn take(&self, host: &Host) -> Option<Completion> {
        host.world.engine.sync();
        let completion = self.memory().completion(&host.world, self.taken.get())?;
        self.taken.set(self.taken.get().wrapping_add(1));
        Some(completion)
    }

    /// Tells the card how many entries are filled.
    fn ring_doorbell(&self, host: &Host) {
        let (world, open) = (&host.world, self.open.get().expect("the card is open"));
        world.engine.sync();
        open.memory.write_record(world, self.filled.get());
        host.nic.borrow_mut().doorbell(world.engine.now_ps(), open.number);
        world.engine.notify(Wanted::Link.into());
    }

    /// Requests an interrupt for the next completion.
    fn arm(&self, host: &Host) {
        let (engine, open) = (&host.world.engine, self.open.get().expect("the card is open"));
        engine.sync();
        host.nic.borrow_mut().arm(engine.now_ps(), open.number, self.taken.get());
        engine.notify(Wanted::Link.into());
    }
}

impl Card {
    pub(super) fn new(machine: &Machine, driver: &NicDriver, work: &ServerWork) -> Self {
        let transmit = |index: u32| {
            // If completions raise an interrupt, it is that of the receive ring.
            let vector = if driver.reaps_every.is_some() { driver.receive_rings + index } else { index };
            let (direction, entries, pieces) = (Direction::Transmit, work.transmit_entries, 2);
            let shape =
                RingShape { direction, entries, pieces, moderation: driver.transmit_moderation, vector: vector as u8 };
            Ring::new(shape, driver.receive_rings + index, driver)
        };
        let receive = |index: u32| {
            let (direction, entries) = (Direction::Receive, work.receive_entries);
            let (pieces, vector) = (driver.receive_buffers.len() as u32, index as u8);
            let shape = RingShape { direction, entries, pieces, moderation: driver.receive_moderation, vector };
            Ring::new(shape, index, driver)
        };
        Self {
            transmit: (0..driver.transmit_rings).map(transmit).collect(),
            receive: (0..driver.receive_rings).map(receive).collect(),
            packets: Packets::new(machine, driver, work),
        }
    }

    /// Maps and opens all rings, and fills the receive rings.
    pub(super) fn open(&self, host: &Host, driver: &mut Driver<'_>) {
        for ring in self.receive.iter().chain(&self.transmit) {
            driver.serve(ring.stream);
            let parts = ring.shape.parts().map(|bytes| {
                let (slot, segment) = self.packets.ring(bytes);
                driver.map_untouched(slot, &Buffer::from(segment), Access::DeviceReadsAndWrites, 0);
                let iova = address(host, slot).unwrap_or_default();
                Part { phys: segment.phys, iova }
            });
            let memory = ring.shape.with_memory(parts);
            let number = host.nic.borrow_mut().open(memory.config);
            let is_new = ring.open.set(Open { number, memory }).is_ok();
            assert!(is_new, "the card is opened once");
        }
        let entries = host.work.receive_entries;
        let fill = |driver: &mut Driver<'_>, ring: &Ring| {
            let number = ring.filled.get();
            let pieces = (0..ring.shape.pieces).filter_map(|piece| self.give(host, driver, ring, number, piece));
            let pieces: Pieces = pieces.collect();
            ring.live.borrow_mut().push_back(pieces);
            ring.filled.set(number + 1);
        };
        if host.server.driver.fills_across_rings {
            (0..entries).for_each(|_| self.receive.iter().for_each(|ring| fill(driver, ring)));
        } else {
            self.receive.iter().for_each(|ring| (0..entries).for_each(|_| fill(driver, ring)));
        }
        for ring in &self.receive {
            ring.ring_doorbell(host);
            ring.arm(host);
        }
        if host.server.driver.reaps_every.is_none() {
            self.transmit.iter().for_each(|ring| ring.arm(host));
        }
    }

    /// Maps a buffer for a piece of entry `number` of a receive ring, and writes it there.
    fn give(&self, host: &Host, driver: &mut Driver<'_>, ring: &Ring, number: u32, piece: u32) -> Option<Slot> {
        let bytes = host.server.driver.receive_buffers[piece as usize];
        driver.serve(ring.stream + 1 + piece);
        let (slot, iova) = self.map(host, driver, bytes, Access::DeviceWrites)?;
        ring.memory().write(&host.world, number, piece, Descriptor { iova, bytes, cookie: 0 });
        Some(slot)
    }

    /// Maps a buffer. `None` after a refusal, which ends the run.
    fn map(&self, host: &Host, driver: &mut Driver<'_>, bytes: u32, access: Access) -> Option<(Slot, Iova)> {
        let (slot, buffer) = self.packets.take(bytes);
        driver.map_untouched(slot, &buffer, access, 0);
        Some((slot, address(host, slot)?))
    }

    /// Whether a transmit ring has room for a frame.
    pub(super) fn has_room(&self, ring: usize) -> bool {
        let ring = &self.transmit[ring];
        ring.filled.get().wrapping_sub(ring.taken.get()) < ring.shape.entries
    }

    /// Requests an interrupt for a full transmit ring, if its completions raise none otherwise.
    pub(super) fn ask_for_room(&self, host: &Host, ring: usize) {
        if host.server.driver.reaps_every.is_some() && !self.has_room(ring) {
            self.transmit[ring].arm(host);
        }
    }

    /// Sends a frame of these buffers, headers first. The buffers are mapped in reverse order.
    pub(super) fn transmit(&self, host: &Host, driver: &mut Driver<'_>, ring: usize, buffers: &[u32], cookie: u32) {
        let ring = &self.transmit[ring];
        driver.serve(ring.stream + 1);
        let number = ring.filled.get();
        let mut slots = Pieces::new();
        for (piece, bytes) in buffers.iter().enumerate().rev() {
            let Some((slot, iova)) = self.map(host, driver, *bytes, Access::DeviceReads) else { return };
            ring.memory().write(&host.world, number, piece as u32, Descriptor { iova, bytes: *bytes, cookie });
            slots.insert(0, slot);
        }
        (buffers.len() as u32..ring.shape.pieces)
            .for_each(|piece| ring.memory().write(&host.world, number, piece, Descriptor::default()));
        ring.live.borrow_mut().push_back(slots);
        ring.filled.set(number.wrapping_add(1));
        ring.ring_doorbell(host);
        if host.server.driver.reaps_every.is_some_and(|every| ring.filled.get().is_multiple_of(every)) {
            host.world.engine.uninterrupted(|| self.reap(host, driver, ring));
        }
    }

    /// Unmaps the buffers of frames that were sent, as one batch.
    fn reap(&self, host: &Host, driver: &mut Driver<'_>, ring: &Ring) {
        let mut sent = SmallVec::<[Slot; 64]>::new();
        let mut flows = SmallVec::<[usize; 4]>::new();
        while let Some(completion) = ring.take(host) {
            let pieces = ring.live.borrow_mut().pop_front().unwrap_or_default();
            pieces.iter().for_each(|slot| driver.unmap_only(*slot));
            sent.extend(pieces);
            let flow = flow_of(completion.cookie);
            host.flows.borrow_mut()[flow].queued -= 1;
            if !flows.contains(&flow) {
                flows.push(flow);
            }
        }
        driver.commit();
        self.packets.give_back(sent);
        flows.into_iter().for_each(|flow| host.notify_flow(flow));
    }

    /// Takes frames that have arrived, up to the budget, and replaces their buffers. Returns whether there may be more.
    fn poll(&self, host: &Host, driver: &mut Driver<'_>, ring: &Ring) -> bool {
        let spec = &host.server.driver;
        let (mut frames, mut received) = (SmallVec::<[Completion; 64]>::new(), SmallVec::<[Slot; 64]>::new());
        let mut empty = SmallVec::<[(u32, u32); 64]>::new();
        while frames.len() < spec.budget as usize {
            let Some(completion) = ring.take(host) else { break };
            let mut left = completion.bytes;
            for (piece, bytes) in (0..).zip(&spec.receive_buffers) {
                if left == 0 {
                    break;
                }
                left = left.saturating_sub(*bytes);
                // The published drivers map the new buffer before they unmap the old one.
                let place = (completion.entry % ring.shape.entries) as usize;
                let old = ring.live.borrow()[place][piece];
                if host.batch == 1 {
                    let Some(new) = self.give(host, driver, ring, completion.entry, piece as u32) else { return false };
                    ring.live.borrow_mut()[place][piece] = new;
                } else {
                    empty.push((completion.entry, piece as u32));
                }
                driver.unmap_only(old);
                received.push(old);
            }
            frames.push(completion);
        }
        // With batches this is not possible, because a map ends the batch.
        driver.commit();
        for (entry, piece) in empty {
            let Some(new) = self.give(host, driver, ring, entry, piece) else { return false };
            ring.live.borrow_mut()[(entry % ring.shape.entries) as usize][piece as usize] = new;
        }
        self.packets.give_back(received);
        if !frames.is_empty() {
            ring.filled.set(ring.filled.get().wrapping_add(frames.len() as u32));
            ring.ring_doorbell(host);
        }
        let is_full = frames.len() == spec.budget as usize;
        frames.iter().for_each(|frame| self.received(host, ring, frame));
        is_full
    }

    /// Hands a frame to its flow.
    fn received(&self, host: &Host, ring: &Ring, frame: &Completion) {
        let (now_ps, open) = (host.world.engine.now_ps(), ring.open.get().expect("the card is open"));
        let mut rate = ring.rate.borrow_mut();
        if rate.note(now_ps, frame.bytes, &host.server.driver) {
            host.nic.borrow_mut().moderate(open.number, rate.moderation);
        }
        let flow = flow_of(frame.cookie);
        match host.work.workload {
            ServerWorkload::NetperfStream => host.flows.borrow_mut()[flow].acknowledge(frame.cookie),
            ServerWorkload::NetperfRr => host.flows.borrow_mut()[flow].requests += 1,
        }
        host.notify_flow(flow);
    }

    /// The CPU that handles a vector.
    pub(super) fn cpu_of(&self, host: &Host, vector: u8) -> usize {
        let index = match usize::from(vector).checked_sub(self.receive.len()) {
            Some(transmit) => transmit,
            None => usize::from(vector),
        };
        index % host.work.cores as usize
    }

    /// Handles an interrupt on the running CPU.
    pub(super) fn interrupt(&self, host: &Host, vector: u8) {
        let engine = &host.world.engine;
        let core = engine.current().expect("an interrupt is handled on a core");
        engine.mask(vector);
        let mut driver = Driver::new(&host.world, core, host.batch);
        let of_vector = |ring: &&Ring| ring.shape.vector == vector;
        let transmits = || self.transmit.iter().filter(of_vector);
        let receives = || self.receive.iter().filter(of_vector);
        transmits().for_each(|ring| self.reap(host, &mut driver, ring));
        let mut is_full = false;
        for ring in receives() {
            is_full |= self.poll(host, &mut driver, ring);
        }
        if is_full {
            engine.raise(core, engine.now_ps(), vector);
        } else {
            receives().for_each(|ring| ring.arm(host));
            // A transmit path that handles completions requests an interrupt only when it needs one.
            if host.server.driver.reaps_every.is_none() {
                transmits().for_each(|ring| ring.arm(host));
            }
        }
        engine.unmask(vector);
    }

    /// The number of a receive ring in the card.
    pub(super) fn receive_ring_number(&self, ring: usize) -> RingNumber {
        self.receive[ring].open.get().expect("the card is open").number
    }
}

/// The address of the buffer of a slot for the card, if it is mapped.
fn address(host: &Host, slot: Slot) -> Option<Iova> {
    host.world.look(slot, |live| live.address_of(0, 0)).flatten().map(|(iova, _)| iova)
}
