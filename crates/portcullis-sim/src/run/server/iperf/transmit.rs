//! The transmit ring of a core. It sends acknowledgements, which are headers in a buffer of their own, and frames of
//! data, which the card cuts into packets. The headers of these lie in the entry, as mlx5 writes them
//! (`mlx5e_tx_get_gso_ihs`, from memory).

use super::Iperf;
use super::chunks::WRITTEN_BYTES;
use crate::run::driver::Driver;
use crate::run::live::Slot;
use crate::run::server::frames::{Kind, Meaning};
use crate::run::server::memory::{RingMemory, RingShape, address};
use crate::run::server::{ServerWork, ServerWorkload};
use portcullis::{Access, PAGE_SIZE};
use portcullis_model::{Descriptor, PIECES_MAX, RingNumber};
use smallvec::SmallVec;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;

/// The parts of chunks in a frame of 64 KiB, at most.
const PARTS: usize = 1 + (64 << 10) / WRITTEN_BYTES as usize;

/// The descriptors of an entry: the headers, and the parts. A frame of a file has up to 17 (`MAX_SKB_FRAGS`).
pub(super) fn pieces(work: &ServerWork) -> u32 {
    if sends_files(work) { PIECES_MAX } else { 1 + PARTS as u32 }
}

/// The bytes of a chunk of what is sent.
pub(super) fn chunk_bytes(work: &ServerWork) -> u64 {
    if sends_files(work) { PAGE_SIZE } else { WRITTEN_BYTES }
}

/// Whether what is sent are pages of files, without a copy: `sendfile on` stands in the configuration that nginx comes
/// with.
fn sends_files(work: &ServerWork) -> bool {
    work.workload == ServerWorkload::Nginx
}

pub(super) struct Transmit {
    pub(super) shape: RingShape,
    /// The queue for which its buffers are mapped.
    pub(super) stream: u32,
    pub(super) open: OnceCell<(RingNumber, RingMemory)>,
    filled: Cell<u32>,
    taken: Cell<u32>,
    /// The buffers of each entry.
    live: RefCell<VecDeque<SmallVec<[Slot; PARTS]>>>,
    /// Whether frames of data wait for room.
    stalls: Cell<bool>,
}

impl Transmit {
    pub(super) fn new(shape: RingShape, stream: u32) -> Self {
        let (filled, taken) = (Cell::new(0), Cell::new(0));
        let (live, stalls) = (RefCell::default(), Cell::new(false));
        Self { shape, stream, open: OnceCell::new(), filled, taken, live, stalls }
    }

    fn open(&self) -> &(RingNumber, RingMemory) {
        self.open.get().expect("the card is open")
    }

    /// Whether there is room for an entry.
    pub(super) fn has_room(&self) -> bool {
        self.filled.get().wrapping_sub(self.taken.get()) < self.shape.entries
    }

    /// Frames of data wait for room: they are sent after the next completions.
    pub(super) fn stall(&self) {
        self.stalls.set(true);
    }

    /// Whether frames of data have waited for room. They do not any more.
    pub(super) fn take_stall(&self) -> bool {
        self.stalls.take()
    }

    /// Sends an acknowledgement. If the ring is full, the kernel drops it.
    pub(super) fn send(&self, host: &Iperf, driver: &mut Driver<'_>, meaning: Meaning) {
        if !self.has_room() {
            return;
        }
        let bytes = host.server.software.header_bytes;
        driver.serve(self.stream);
        let (slot, buffer) = host.pages.packets().take(bytes);
        driver.map_untouched(slot, &buffer, Access::DeviceReads, 0);
        let Some(iova) = address(&host.world, slot) else { return };
        let descriptor = Descriptor { iova, bytes, is_inline: false, cookie: meaning.cookie() };
        self.post(host, &[descriptor], SmallVec::from_slice(&[slot]));
    }

    /// Sends so many bytes of a flow, from a packet on, as one frame, for which there is room.
    pub(super) fn send_data(&self, host: &Iperf, driver: &mut Driver<'_>, flow: usize, packet: u64, bytes: u64) {
        let software = &host.server.software;
        let cookie = Meaning::new(flow, Kind::Data, packet as u32).cookie();
        let headers = Descriptor { bytes: software.header_bytes, is_inline: true, cookie, ..Descriptor::default() };
        let mut pieces = SmallVec::<[Descriptor; 1 + PARTS]>::from_slice(&[headers]);
        let mut slots = SmallVec::new();
        let mut left = bytes;
        driver.serve(self.stream);
        while left > 0 {
            let (slot, buffer) = host.chunks.take(flow, left);
            let bytes = buffer[0].len;
            driver.map_untouched(slot, &buffer, Access::DeviceReads, 0);
            let Some(iova) = address(&host.world, slot) else { return };
            pieces.push(Descriptor { iova, bytes: bytes as u32, ..Descriptor::default() });
            slots.push(slot);
            left -= bytes;
        }
        self.post(host, &pieces, slots);
    }

    /// Fills an entry, and rings the doorbell.
    fn post(&self, host: &Iperf, pieces: &[Descriptor], slots: SmallVec<[Slot; PARTS]>) {
        let (number, memory) = self.open();
        for piece in 0..self.shape.pieces {
            let descriptor = pieces.get(piece as usize).copied().unwrap_or_default();
            memory.write(&host.world, self.filled.get(), piece, descriptor);
        }
        self.live.borrow_mut().push_back(slots);
        self.filled.set(self.filled.get().wrapping_add(1));
        memory.ring_doorbell(&host.world, &host.nic, *number, self.filled.get());
    }

    /// Requests an interrupt for the next completion.
    pub(super) fn arm(&self, host: &Iperf) {
        let (number, _) = self.open();
        host.world.engine.sync();
        host.nic.borrow_mut().arm(host.world.engine.now_ps(), *number, self.taken.get());
        host.notify_link();
    }

    /// Unmaps what was sent.
    pub(super) fn reap(&self, host: &Iperf, driver: &mut Driver<'_>) {
        let (_, memory) = self.open();
        let mut sent = SmallVec::<[Slot; 64]>::new();
        host.world.engine.sync();
        while memory.completion(&host.world, self.taken.get()).is_some() {
            self.taken.set(self.taken.get().wrapping_add(1));
            let slots = self.live.borrow_mut().pop_front().unwrap_or_default();
            for slot in slots {
                driver.unmap_only(slot);
                sent.push(slot);
            }
            host.world.engine.sync();
        }
        driver.commit();
        for slot in sent {
            if host.chunks.has(slot) { host.chunks.give_back(slot) } else { host.pages.packets().give_back([slot]) }
        }
    }
}
