//! Packets of segments that the card has joined, in the order of bnx2x (`bnx2x_tpa_start`, `bnx2x_tpa_stop`).
//!
//! When a packet begins, a spare buffer is mapped for its entry, and the buffer with its first segment stays mapped.
//! When it ends, that buffer is unmapped, and then each page: a new one is mapped, and the old one is unmapped. As with
//! other frames, with batches all maps come behind the commit.

use super::Host;
use super::card::{Card, Received, Ring};
use super::pages::PageRing;
use crate::run::driver::Driver;
use portcullis_model::{Completion, PagesOfPacket};

impl Ring {
    fn page_ring(&self) -> &PageRing {
        self.pages.as_ref().expect("only a ring with pages joins segments")
    }
}

impl Card {
    /// A packet has begun in an entry. `None` after a refusal.
    pub(super) fn begin_packet(
        &self,
        host: &Host,
        driver: &mut Driver<'_>,
        ring: &Ring,
        completion: Completion,
        received: &mut Received,
    ) -> Option<()> {
        ring.page_ring().begin(completion.entry, ring.buffer(completion.entry, 0));
        received.entries += 1;
        if host.batch > 1 {
            received.begun.push(completion.entry);
            return Some(());
        }
        self.replace_first(host, driver, ring, completion.entry)
    }

    /// Maps a spare buffer for an entry in which a packet has begun.
    fn replace_first(&self, host: &Host, driver: &mut Driver<'_>, ring: &Ring, entry: u32) -> Option<()> {
        let new = self.give_buffer(host, driver, ring, entry, 0, ring.page_ring().spare())?;
        ring.put_buffer(entry, 0, new);
        Some(())
    }

    /// A packet has ended. Begins to unmap its buffer and its pages. `None` after a refusal.
    pub(super) fn end_packet(
        &self,
        host: &Host,
        driver: &mut Driver<'_>,
        ring: &Ring,
        completion: Completion,
        pages: PagesOfPacket,
        received: &mut Received,
    ) -> Option<()> {
        let page_ring = ring.page_ring();
        let first = page_ring.end(host, &self.packets, completion.entry)?;
        driver.unmap_only(first);
        received.slots.push(first);
        for entry in pages.entries() {
            let old = page_ring.page(*entry);
            if host.batch > 1 {
                received.empty_pages.push(*entry);
            } else if !page_ring.renew(host, driver, &self.packets, *entry) {
                return None;
            }
            driver.unmap_only(old);
            received.slots.push(old);
        }
        received.frames.push(completion);
        Some(())
    }

    /// Maps what packets need where the old buffers and pages are unmapped. Returns false after a refusal.
    pub(super) fn refill_joined(&self, host: &Host, driver: &mut Driver<'_>, ring: &Ring, received: &Received) -> bool {
        received.begun.iter().all(|entry| self.replace_first(host, driver, ring, *entry).is_some())
            && received.empty_pages.iter().all(|entry| ring.page_ring().renew(host, driver, &self.packets, *entry))
    }
}
