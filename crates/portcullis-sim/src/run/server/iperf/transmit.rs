//! The transmit ring of a core: it sends acknowledgements, which are headers in a buffer of their own.

use super::Iperf;
use crate::run::driver::Driver;
use crate::run::live::Slot;
use crate::run::server::frames::{Kind, Meaning};
use crate::run::server::memory::{RingMemory, RingShape};
use crate::run::world::Wanted;
use portcullis::Access;
use portcullis_model::{Descriptor, RingNumber};
use smallvec::SmallVec;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;

pub(super) struct Transmit {
    pub(super) shape: RingShape,
    /// The queue for which its buffers are mapped.
    pub(super) stream: u32,
    pub(super) open: OnceCell<(RingNumber, RingMemory)>,
    filled: Cell<u32>,
    taken: Cell<u32>,
    live: RefCell<VecDeque<Slot>>,
}

impl Transmit {
    pub(super) fn new(shape: RingShape, stream: u32) -> Self {
        let (filled, taken) = (Cell::new(0), Cell::new(0));
        Self { shape, stream, open: OnceCell::new(), filled, taken, live: RefCell::default() }
    }

    /// Sends an acknowledgement of a flow. Returns false if the ring is full: the kernel then drops it.
    pub(super) fn send(&self, host: &Iperf, driver: &mut Driver<'_>, flow: usize) -> bool {
        let (number, memory) = self.open.get().expect("the card is open");
        if self.filled.get().wrapping_sub(self.taken.get()) >= self.shape.entries {
            return false;
        }
        let bytes = host.server.software.header_bytes;
        driver.serve(self.stream);
        let (slot, buffer) = host.pages.packets().take(bytes);
        driver.map_untouched(slot, &buffer, Access::DeviceReads, 0);
        let Some(iova) = host.address(slot) else { return false };
        let cookie = Meaning::new(flow, Kind::Acknowledgement, 0).cookie();
        memory.write(&host.world, self.filled.get(), 0, Descriptor { iova, bytes, is_inline: false, cookie });
        self.live.borrow_mut().push_back(slot);
        self.filled.set(self.filled.get().wrapping_add(1));
        host.world.engine.sync();
        memory.write_record(&host.world, self.filled.get());
        host.nic.borrow_mut().doorbell(host.world.engine.now_ps(), *number);
        host.world.engine.notify(Wanted::Link.into());
        true
    }

    /// Requests an interrupt for the next completion.
    pub(super) fn arm(&self, host: &Iperf) {
        let (number, _) = self.open.get().expect("the card is open");
        host.world.engine.sync();
        host.nic.borrow_mut().arm(host.world.engine.now_ps(), *number, self.taken.get());
        host.world.engine.notify(Wanted::Link.into());
    }

    /// Unmaps what was sent.
    pub(super) fn reap(&self, host: &Iperf, driver: &mut Driver<'_>) {
        let (_, memory) = self.open.get().expect("the card is open");
        let mut sent = SmallVec::<[Slot; 64]>::new();
        host.world.engine.sync();
        while memory.completion(&host.world, self.taken.get()).is_some() {
            self.taken.set(self.taken.get().wrapping_add(1));
            let slot = self.live.borrow_mut().pop_front();
            if let Some(slot) = slot {
                driver.unmap_only(slot);
                sent.push(slot);
            }
            host.world.engine.sync();
        }
        driver.commit();
        host.pages.packets().give_back(sent);
    }
}
