//! How the driver opens the card: it maps and opens all rings, and posts the entries.

use super::Iperf;
use crate::run::driver::Driver;
use crate::run::live::Slot;
use crate::run::server::choices::{REGION_PAGES, REGIONS};
use crate::run::server::memory::{Part, RingMemory, RingShape};
use portcullis_model::{EVENT_BYTES, EventQueue, RingNumber};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;

impl Iperf {
    /// Maps and opens all rings, and fills the receive rings.
    pub(super) fn open(&self, driver: &mut Driver<'_>) {
        for (receive, transmit) in self.receive.iter().zip(&self.transmit) {
            // Both rings of a core announce themselves in one queue.
            let part = self.map_part(driver, receive.stream, u64::from(self.striding.events) * EVENT_BYTES);
            let events = EventQueue { base: part.iova, events: self.striding.events };
            let _ = receive.open.set(self.open_ring(driver, &receive.shape, receive.stream, events));
            let _ = transmit.open.set(self.open_ring(driver, &transmit.shape, transmit.stream, events));
        }
        self.fill(driver);
        for ring in &self.receive {
            ring.ring_doorbell(self);
            ring.arm(self);
        }
        self.transmit.iter().for_each(|ring| ring.arm(self));
    }

    /// Maps memory that the driver and the card share.
    fn map_part(&self, driver: &mut Driver<'_>, stream: u32, bytes: u64) -> Part {
        driver.serve(stream);
        self.pages.packets().map_shared(&self.world, driver, bytes)
    }

    fn open_ring(
        &self,
        driver: &mut Driver<'_>,
        shape: &RingShape,
        stream: u32,
        events: EventQueue,
    ) -> (RingNumber, RingMemory) {
        let parts = shape.parts().map(|bytes| self.map_part(driver, stream, bytes));
        let memory = shape.with_memory(parts, Some(events));
        (self.nic.borrow_mut().open(memory.config), memory)
    }

    /// Posts all entries. A driver that keeps pages mapped has used its addresses for hours: they are spread over
    /// many regions, in no order.
    fn fill(&self, driver: &mut Driver<'_>) {
        let needed: u32 = self.receive.iter().map(|ring| ring.shape.entries * ring.shape.pieces).sum();
        let regions = self.work.iperf.regions.unwrap_or(if self.batch > 1 { 0 } else { REGIONS });
        if regions == 0 {
            for ring in &self.receive {
                for _ in 0..ring.shape.entries {
                    let pages: Option<Vec<Slot>> = (0..ring.shape.pieces).map(|_| ring.map(self, driver)).collect();
                    let Some(pages) = pages else { return };
                    ring.post(self, pages);
                }
            }
            return;
        }
        let all = needed.max(regions * REGION_PAGES);
        let first = &self.receive[0];
        let Some(mut pages) = (0..all).map(|_| first.map(self, driver)).collect::<Option<Vec<Slot>>>() else { return };
        pages.shuffle(&mut Pcg64Mcg::seed_from_u64(self.seed));
        for slot in pages.split_off(needed as usize) {
            driver.unmap_only(slot);
            driver.commit();
            self.pages.release(slot);
        }
        let mut pages = pages.into_iter();
        for ring in &self.receive {
            for _ in 0..ring.shape.entries {
                ring.post(self, pages.by_ref().take(ring.shape.pieces as usize).collect());
            }
        }
    }
}
