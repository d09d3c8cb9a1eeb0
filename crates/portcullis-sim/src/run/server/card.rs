//! The driver of the card: it fills rings, sends frames, and handles completions. The order of its maps and unmaps is
//! that of the published driver ([`NicDriver`]).

use super::frames::Meaning;
use super::memory::{Packets, RingMemory, RingShape, address};
use super::pages::PageRing;
use super::rate::Rate;
use super::{Host, ServerWork};
use crate::machine::{Machine, NicDriver};
use crate::run::driver::{Driver, Submitted};
use crate::run::live::{Buffer, Slot};
use crate::run::world::Wanted;
use portcullis::{Access, Iova, PAGE_SIZE};
use portcullis_model::{Completion, Descriptor, Joined, PIECES_MAX, RingNumber};
use smallvec::SmallVec;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::mem;
use std::ops::Range;

/// The buffers of an entry.
type Pieces = SmallVec<[Slot; 2]>;

/// A frame to be sent.
pub(super) struct Outgoing {
    /// The bytes in one buffer: headers, and what was copied behind them.
    pub(super) linear_bytes: u32,
    /// The bytes of a file that follow. They are sent from its pages.
    pub(super) file: Range<u32>,
    pub(super) meaning: Meaning,
}

/// What the card has sent and the driver has unmapped.
struct Sent {
    /// Whether the ring was full, so that processes may wait for room.
    was_full: bool,
    slots: SmallVec<[Slot; 64]>,
    flows: SmallVec<[usize; 4]>,
}

/// What has arrived and the driver has unmapped.
#[derive(Default)]
pub(super) struct Received {
    /// How many entries were used.
    pub(super) entries: u32,
    pub(super) frames: SmallVec<[Completion; 64]>,
    pub(super) slots: SmallVec<[Slot; 64]>,
    /// The entries, and the pieces of each, that need new buffers.
    pub(super) empty: SmallVec<[(u32, u32); 64]>,
    /// The same for entries in which a packet of joined segments began, and for pages.
    pub(super) begun: SmallVec<[u32; 8]>,
    pub(super) empty_pages: SmallVec<[u16; 64]>,
}

/// A ring that is open.
struct Open {
    number: RingNumber,
    memory: RingMemory,
}

/// The driver's state of a ring.
pub(super) struct Ring {
    shape: RingShape,
    /// The pages of a receive ring whose card joins segments.
    pub(super) pages: Option<PageRing>,
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
    /// The batches of sent frames whose commit is between its halves, and their buffers.
    in_flight: RefCell<(Vec<Submitted>, SmallVec<[Slot; 64]>)>,
    /// Frames that found a transmit ring full.
    waiting: RefCell<VecDeque<Outgoing>>,
    /// Whether a core fills an entry. Another may want to, because cores may share a ring, and a core that polls
    /// answers for processes that have moved.
    is_held: Cell<bool>,
    /// The rate of a receive ring.
    rate: RefCell<Rate>,
}

/// The card's driver.
pub(super) struct Card {
    transmit: Vec<Ring>,
    receive: Vec<Ring>,
    pub(super) packets: Packets,
}

impl Ring {
    fn new(shape: RingShape, stream: u32, driver: &NicDriver) -> Self {
        Self {
            shape,
            pages: None,
            stream: stream * (1 + PIECES_MAX),
            open: OnceCell::new(),
            filled: Cell::new(0),
            taken: Cell::new(0),
            live: RefCell::default(),
            in_flight: RefCell::default(),
            waiting: RefCell::default(),
            is_held: Cell::new(false),
            rate: RefCell::new(Rate::new(driver)),
        }
    }

    /// Whether a frame must wait: no entry is free, or others wait already.
    fn is_full(&self) -> bool {
        !self.has_room() || !self.waiting.borrow().is_empty()
    }

    /// Whether an entry is free.
    fn has_room(&self) -> bool {
        self.filled.get().wrapping_sub(self.taken.get()) < self.shape.entries
    }

    /// Runs `fill` while no other core fills an entry. The kernel spins until that is so.
    fn hold<R>(&self, host: &Host, fill: impl FnOnce() -> R) -> R {
        let (engine, event) = (&host.world.engine, Wanted::Ring(self.stream).into());
        let since_ps = engine.now_ps();
        while self.is_held.replace(true) {
            engine.wait_until(event, || !self.is_held.get());
        }
        engine.was_busy_since(since_ps);
        let result = fill();
        self.is_held.set(false);
        engine.notify(event);
        result
    }

    /// The buffer of a piece of a receive entry.
    pub(super) fn buffer(&self, entry: u32, piece: usize) -> Slot {
        self.live.borrow()[(entry % self.shape.entries) as usize][piece]
    }

    /// Puts another one in its place.
    pub(super) fn put_buffer(&self, entry: u32, piece: usize, buffer: Slot) {
        self.live.borrow_mut()[(entry % self.shape.entries) as usize][piece] = buffer;
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
        let Open { number, memory } = self.open.get().expect("the card is open");
        memory.ring_doorbell(&host.world, &host.nic, *number, self.filled.get());
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
            let shape = RingShape::to_transmit(driver, work, index);
            Ring::new(shape, driver.receive_rings + index, driver)
        };
        let receive = |index: u32| {
            let ring = Ring::new(RingShape::to_receive(driver, work, index), index, driver);
            // The streams behind those of the ring and of its buffers.
            Ring { pages: PageRing::new(driver, index, ring.stream + ring.shape.pieces + 1), ..ring }
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
            let joins = ring.pages.as_ref().map(|pages| pages.open(host, driver, &self.packets));
            driver.serve(ring.stream);
            let parts = ring.shape.parts().map(|bytes| self.packets.map_shared(&host.world, driver, bytes));
            let mut memory = ring.shape.with_memory(parts, None);
            memory.config.format.joins = joins;
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
            if let Some(pages) = &ring.pages {
                pages.fill(host, driver, &self.packets);
            }
            ring.ring_doorbell(host);
            ring.arm(host);
        }
        if host.server.driver.reaps_every.is_none() {
            self.transmit.iter().for_each(|ring| ring.arm(host));
        }
    }

    /// Maps a buffer for a piece of entry `number` of a receive ring, and writes it there.
    fn give(&self, host: &Host, driver: &mut Driver<'_>, ring: &Ring, number: u32, piece: u32) -> Option<Slot> {
        let buffer = self.packets.take_received(host, host.server.driver.receive_buffers[piece as usize]);
        self.give_buffer(host, driver, ring, number, piece, buffer)
    }

    /// The same for a buffer that was taken before.
    pub(super) fn give_buffer(
        &self,
        host: &Host,
        driver: &mut Driver<'_>,
        ring: &Ring,
        number: u32,
        piece: u32,
        (slot, buffer): (Slot, Buffer),
    ) -> Option<Slot> {
        let bytes = host.server.driver.receive_buffers[piece as usize];
        driver.serve(ring.stream + 1 + piece);
        driver.map_untouched(slot, &buffer, Access::DeviceWrites, 0);
        let iova = address(&host.world, slot)?;
        ring.memory().write(&host.world, number, piece, Descriptor { iova, bytes, ..Descriptor::default() });
        Some(slot)
    }

    /// Maps a buffer to be sent. `None` after a refusal, which ends the run.
    fn map(&self, host: &Host, driver: &mut Driver<'_>, bytes: u32) -> Option<(Slot, Iova)> {
        let (slot, buffer) = self.packets.take(bytes);
        driver.map_untouched(slot, &buffer, Access::DeviceReads, 0);
        Some((slot, address(&host.world, slot)?))
    }

    /// Whether a transmit ring has room for a frame.
    pub(super) fn has_room(&self, ring: usize) -> bool {
        !self.transmit[ring].is_full()
    }

    /// Requests an interrupt for a full transmit ring, if its completions raise none otherwise.
    pub(super) fn ask_for_room(&self, host: &Host, ring: usize) {
        self.arm_if_full(host, &self.transmit[ring]);
    }

    fn arm_if_full(&self, host: &Host, ring: &Ring) {
        if host.server.driver.reaps_every.is_some() && ring.is_full() {
            ring.arm(host);
        }
    }

    /// Does so for the rings of all flows of a core.
    pub(super) fn ask_for_room_of(&self, host: &Host, core: usize) {
        if host.server.driver.reaps_every.is_some() {
            let of_core = |flow: &usize| host.flows.borrow()[*flow].core == core;
            let flows = (0..host.work.flows as usize).filter(of_core);
            flows.for_each(|flow| self.ask_for_room(host, host.transmit_ring(flow)));
        }
    }

    /// Sends a frame, or keeps it until the ring has room.
    pub(super) fn transmit(&self, host: &Host, driver: &mut Driver<'_>, ring: usize, frame: Outgoing) {
        if self.has_room(ring) {
            self.put(host, driver, &self.transmit[ring], frame);
        } else {
            self.transmit[ring].waiting.borrow_mut().push_back(frame);
            self.ask_for_room(host, ring);
        }
    }

    /// Fills an entry of a ring that has room, or keeps the frame if another core has taken that. Interrupts are
    /// disabled, because their handlers send frames too.
    fn put(&self, host: &Host, driver: &mut Driver<'_>, ring: &Ring, frame: Outgoing) {
        host.world.engine.uninterrupted(|| {
            ring.hold(host, || match ring.has_room() {
                true => self.fill(host, driver, ring, &frame),
                false => {
                    ring.waiting.borrow_mut().push_back(frame);
                    self.arm_if_full(host, ring);
                }
            });
            if host.server.driver.reaps_every.is_some_and(|every| ring.filled.get().is_multiple_of(every)) {
                self.reap(host, driver, ring);
            }
        });
    }

    fn fill(&self, host: &Host, driver: &mut Driver<'_>, ring: &Ring, frame: &Outgoing) {
        driver.serve(ring.stream + 1);
        let number = ring.filled.get();
        let cookie = frame.meaning.cookie();
        let lengths = self.pieces(host, frame);
        let mut slots = Pieces::from_elem(Slot::MAX, lengths.len());
        let mut order: SmallVec<[usize; 18]> = (0..lengths.len()).collect();
        if host.server.driver.maps_headers_last {
            order.reverse();
        }
        for piece in order {
            let (bytes, is_inline) = lengths[piece];
            let mut descriptor = Descriptor { iova: Iova::new(0), bytes, is_inline, cookie };
            if !is_inline {
                let Some((slot, iova)) = self.map(host, driver, bytes) else { return };
                (slots[piece], descriptor.iova) = (slot, iova);
            }
            ring.memory().write(&host.world, number, piece as u32, descriptor);
        }
        (lengths.len() as u32..ring.shape.pieces)
            .for_each(|piece| ring.memory().write(&host.world, number, piece, Descriptor::default()));
        slots.retain(|slot| *slot != Slot::MAX);
        ring.live.borrow_mut().push_back(slots);
        let bytes: u32 = lengths.iter().map(|(bytes, _)| bytes).sum();
        host.flows.borrow_mut()[frame.meaning.flow].queued_bytes += u64::from(bytes);
        ring.filled.set(number.wrapping_add(1));
        ring.ring_doorbell(host);
    }

    /// The lengths of the buffers of a frame, headers first, and whether the descriptor holds the bytes itself.
    fn pieces(&self, host: &Host, frame: &Outgoing) -> SmallVec<[(u32, bool); 18]> {
        let (spec, Outgoing { linear_bytes, file, .. }) = (&host.server.driver, frame);
        let total = linear_bytes + file.len() as u32;
        let is_cut = host.server.nic.packets(total) > 1;
        let is_inline = total <= spec.inline_bytes || is_cut && spec.inlines_headers_to_cut;
        let mut pieces = SmallVec::from_slice(&[(*linear_bytes, is_inline)]);
        let mut at = file.start;
        while at < file.end {
            let end = ((at / PAGE_SIZE as u32 + 1) * PAGE_SIZE as u32).min(file.end);
            pieces.push((end - at, false));
            at = end;
        }
        pieces
    }

    /// Unmaps the buffers of frames that were sent, as one batch.
    fn reap(&self, host: &Host, driver: &mut Driver<'_>, ring: &Ring) {
        let sent = Self::unmap_sent(host, driver, ring);
        driver.commit();
        self.have_sent(host, driver, ring, sent);
    }

    /// Begins to unmap the buffers of frames that were sent.
    fn unmap_sent(host: &Host, driver: &mut Driver<'_>, ring: &Ring) -> Sent {
        let was_full = ring.is_full();
        let (mut slots, mut flows) = (SmallVec::new(), SmallVec::<[usize; 4]>::new());
        // As bnx2x does, only what is in the ring by now: another core may fill it as fast as this one empties it.
        let until = ring.filled.get();
        while ring.taken.get() != until
            && let Some(completion) = ring.take(host)
        {
            let pieces = ring.live.borrow_mut().pop_front().unwrap_or_default();
            pieces.iter().for_each(|slot| driver.unmap_only(*slot));
            slots.extend(pieces);
            let flow = Meaning::of(completion.cookie).flow;
            host.flows.borrow_mut()[flow].queued_bytes -= u64::from(completion.bytes);
            if !flows.contains(&flow) {
                flows.push(flow);
            }
        }
        Sent { was_full, slots, flows }
    }

    /// The pages of buffers whose unmap is over are ours again.
    fn give_back(&self, driver: &Driver<'_>, slots: SmallVec<[Slot; 64]>) {
        debug_assert!(!slots.iter().any(|slot| driver.is_unmapping(*slot)), "S2: a page is given back before its wait");
        self.packets.give_back(slots);
    }

    /// The buffers of frames that were sent are ours again.
    fn have_sent(&self, host: &Host, driver: &mut Driver<'_>, ring: &Ring, mut sent: Sent) {
        self.give_back(driver, mem::take(&mut sent.slots));
        self.send_on(host, driver, ring, sent);
    }

    /// Others may use the entries of frames that were sent.
    fn send_on(&self, host: &Host, driver: &mut Driver<'_>, ring: &Ring, sent: Sent) {
        while ring.has_room() {
            let Some(frame) = ring.waiting.borrow_mut().pop_front() else { break };
            self.put(host, driver, ring, frame);
        }
        sent.flows.into_iter().for_each(|flow| host.notify_flow(flow));
        // A process of any core may have found the ring full.
        if sent.was_full && host.work.cores > 1 {
            (0..host.work.cores as usize).for_each(|core| host.world.engine.notify(Wanted::Flows(core).into()));
        }
    }

    /// Takes frames that have arrived, up to the budget, and replaces their buffers. Returns whether there may be more.
    fn poll(&self, host: &Host, driver: &mut Driver<'_>, ring: &Ring) -> bool {
        let Some(received) = self.unmap_received(host, driver, ring) else { return false };
        // With batches the new buffers are mapped behind this, because a map ends the batch.
        driver.commit();
        if !self.refill(host, driver, ring, &received) {
            return false;
        }
        self.have_received(host, driver, ring, received)
    }

    /// Begins to unmap the buffers of frames that have arrived. Without batches, also replaces them. `None` after a
    /// refusal.
    fn unmap_received(&self, host: &Host, driver: &mut Driver<'_>, ring: &Ring) -> Option<Received> {
        let mut received = Received::default();
        while received.entries < host.server.driver.budget {
            let Some(completion) = ring.take(host) else { break };
            match completion.joined {
                Joined::Alone => self.unmap_frame(host, driver, ring, completion, &mut received)?,
                Joined::Start => self.begin_packet(host, driver, ring, completion, &mut received)?,
                Joined::End { pages, .. } => self.end_packet(host, driver, ring, completion, pages, &mut received)?,
            }
        }
        Some(received)
    }

    /// Begins to unmap the buffers of a frame.
    fn unmap_frame(
        &self,
        host: &Host,
        driver: &mut Driver<'_>,
        ring: &Ring,
        completion: Completion,
        received: &mut Received,
    ) -> Option<()> {
        let mut left = completion.bytes;
        for (piece, bytes) in (0..).zip(&host.server.driver.receive_buffers) {
            if left == 0 {
                break;
            }
            left = left.saturating_sub(*bytes);
            // The published drivers map the new buffer before they unmap the old one.
            let old = ring.buffer(completion.entry, piece);
            if host.batch == 1 {
                let new = self.give(host, driver, ring, completion.entry, piece as u32)?;
                ring.put_buffer(completion.entry, piece, new);
            } else {
                received.empty.push((completion.entry, piece as u32));
            }
            driver.unmap_only(old);
            received.slots.push(old);
        }
        received.entries += 1;
        received.frames.push(completion);
        Some(())
    }

    /// Maps new buffers where the old ones are unmapped, and gives them to the card. Returns false after a refusal.
    fn refill(&self, host: &Host, driver: &mut Driver<'_>, ring: &Ring, received: &Received) -> bool {
        for (entry, piece) in &received.empty {
            let Some(new) = self.give(host, driver, ring, *entry, *piece) else { return false };
            ring.put_buffer(*entry, *piece as usize, new);
        }
        self.refill_joined(host, driver, ring, received)
    }

    /// The buffers of frames that have arrived are ours: hands the frames on. Returns whether there may be more.
    fn have_received(&self, host: &Host, driver: &mut Driver<'_>, ring: &Ring, received: Received) -> bool {
        let Received { entries, frames, slots, .. } = received;
        self.give_back(driver, slots);
        if entries > 0 {
            ring.filled.set(ring.filled.get().wrapping_add(entries));
            ring.ring_doorbell(host);
        }
        if let Some(pages) = &ring.pages {
            pages.give_blocks(host);
        }
        let is_full = entries == host.server.driver.budget;
        for frame in &frames {
            self.note_rate(host, ring, frame);
            host.frame_came(driver, frame);
        }
        host.poll_ended(driver);
        is_full
    }

    /// Handles the rings of a vector in two halves: submits what has arrived, then what was sent, refills, and waits
    /// for what has arrived before it hands that on. The buffers of sent frames are not needed at once: they come back
    /// with the next poll. Returns whether there may be more.
    fn poll_in_halves(&self, host: &Host, driver: &mut Driver<'_>, vector: u8) -> bool {
        driver.commits_in_halves(true);
        self.transmit_of(vector).for_each(|ring| {
            let (submitted, slots) = mem::take(&mut *ring.in_flight.borrow_mut());
            driver.take_back_those(submitted);
            self.give_back(driver, slots);
        });
        let received = self.receive_of(vector).map(|ring| Some((ring, self.unmap_received(host, driver, ring)?)));
        let Some(received) = received.collect::<Option<SmallVec<[_; 2]>>>() else { return false };
        let arrived = driver.put_aside();
        let sent = self.transmit_of(vector).map(|ring| {
            let mut sent = Self::unmap_sent(host, driver, ring);
            ring.in_flight.replace((driver.put_aside(), mem::take(&mut sent.slots)));
            (ring, sent)
        });
        let sent: SmallVec<[_; 2]> = sent.collect();
        if !received.iter().all(|(ring, received)| self.refill(host, driver, ring, received)) {
            return false;
        }
        driver.take_back_those(arrived);
        // From here on commits are whole: a transmit path that handles completions hands their buffers on at once.
        driver.commits_in_halves(false);
        sent.into_iter().for_each(|(ring, sent)| self.send_on(host, driver, ring, sent));
        let mut is_full = false;
        for (ring, received) in received {
            is_full |= self.have_received(host, driver, ring, received);
        }
        is_full
    }

    fn note_rate(&self, host: &Host, ring: &Ring, frame: &Completion) {
        let (now_ps, open) = (host.world.engine.now_ps(), ring.open.get().expect("the card is open"));
        let mut rate = ring.rate.borrow_mut();
        if rate.note(now_ps, frame.bytes, &host.server.driver) {
            host.nic.borrow_mut().moderate(open.number, rate.moderation);
        }
    }

    /// The transmit rings of a vector.
    fn transmit_of(&self, vector: u8) -> impl Iterator<Item = &Ring> {
        self.transmit.iter().filter(move |ring| ring.shape.vector == vector)
    }

    /// The receive rings of a vector.
    fn receive_of(&self, vector: u8) -> impl Iterator<Item = &Ring> {
        self.receive.iter().filter(move |ring| ring.shape.vector == vector)
    }

    /// The CPU that handles a vector.
    pub(super) fn cpu_of(&self, host: &Host, vector: u8) -> usize {
        let index = match usize::from(vector).checked_sub(self.receive.len()) {
            Some(transmit) => transmit,
            None => usize::from(vector),
        };
        host.work.core_of_ring(index)
    }

    /// Handles an interrupt on the running CPU.
    pub(super) fn interrupt(&self, host: &Host, vector: u8) {
        let engine = &host.world.engine;
        let core = engine.current().expect("an interrupt is handled on a core");
        if host.is_over() {
            return;
        }
        engine.mask(vector);
        let mut driver = Driver::new(&host.world, core, host.batch);
        let mut is_full = false;
        if host.work.halves && host.batch > 1 {
            is_full = self.poll_in_halves(host, &mut driver, vector);
        } else {
            self.transmit_of(vector).for_each(|ring| self.reap(host, &mut driver, ring));
            for ring in self.receive_of(vector) {
                is_full |= self.poll(host, &mut driver, ring);
            }
        }
        if is_full {
            engine.raise(core, engine.now_ps(), vector);
        } else {
            self.receive_of(vector).for_each(|ring| ring.arm(host));
            // A transmit path that handles completions requests an interrupt only when it needs one.
            if host.server.driver.reaps_every.is_none() {
                self.transmit_of(vector).for_each(|ring| ring.arm(host));
            }
        }
        engine.unmask(vector);
    }

    /// The number of a receive ring in the card.
    pub(super) fn receive_ring_number(&self, ring: usize) -> RingNumber {
        self.receive[ring].open.get().expect("the card is open").number
    }
}
