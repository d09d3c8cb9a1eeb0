//! The receive ring of a core, as mlx5 drives it: entries of many pages, into which the card writes frame after frame.
//! A used entry is given back when all of it is consumed, and a new one is posted.
//!
//! The pages of an entry stay mapped in the driver's cache, if that has room. With batches there is no cache: a poll
//! unmaps all pages that it received in one commit, before the kernel gets them. Frames that are not a page long share
//! pages: such a page is unmapped with the last of them, and the kernel gets the first ones while it is mapped.

use super::Iperf;
use super::pages::Cache;
use crate::run::driver::Driver;
use crate::run::live::Slot;
use crate::run::server::frames::Meaning;
use crate::run::server::memory::{RingMemory, RingShape, address};
use crate::run::world::Wanted;
use portcullis::{Access, PAGE_SIZE};
use portcullis_model::{Completion, Descriptor, RingNumber};
use smallvec::SmallVec;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;

/// So many bytes of a frame are copied, so that a shorter one holds no page: `MLX5E_RX_MAX_HEAD`, from memory.
const COPIED_BYTES: u64 = 256;

/// What a frame lies in, apart from what was copied.
pub(super) type Held = SmallVec<[Slot; 2]>;

/// A posted entry.
struct Row {
    pages: Vec<Slot>,
    /// How many of its bytes were received into or given up.
    used: u64,
}

impl Row {
    /// The pages from byte `start` to byte `end`.
    fn within(&self, start: u64, end: u64) -> &[Slot] {
        let page = |byte: u64| (byte / PAGE_SIZE) as usize;
        let range = page(start)..page(end.next_multiple_of(PAGE_SIZE));
        if start < end { self.pages.get(range).unwrap_or_default() } else { &[] }
    }
}

/// Where a frame lies.
struct Place {
    held: Held,
    /// The pages that it is the first to lie in, and those that it is the last to lie in.
    first: Held,
    last: Held,
}

pub(super) struct Receive {
    pub(super) shape: RingShape,
    pub(super) stream: u32,
    pub(super) open: OnceCell<(RingNumber, RingMemory)>,
    /// Entries ever posted, and completions ever taken.
    posted: Cell<u32>,
    taken: Cell<u32>,
    /// The posted entries, oldest first.
    rows: RefCell<VecDeque<Row>>,
    pub(super) cache: Cache,
}

impl Receive {
    pub(super) fn new(shape: RingShape, stream: u32, cache: Cache) -> Self {
        let (posted, taken) = (Cell::new(0), Cell::new(0));
        Self { shape, stream, open: OnceCell::new(), posted, taken, rows: RefCell::default(), cache }
    }

    fn open(&self) -> &(RingNumber, RingMemory) {
        self.open.get().expect("the card is open")
    }

    /// Posts an entry with these pages, which are mapped.
    pub(super) fn post(&self, host: &Iperf, pages: Vec<Slot>) {
        let (_, memory) = self.open();
        for (piece, slot) in (0..).zip(&pages) {
            let Some(iova) = address(&host.world, *slot) else { return };
            let descriptor = Descriptor { iova, bytes: PAGE_SIZE as u32, ..Descriptor::default() };
            memory.write(&host.world, self.posted.get(), piece, descriptor);
        }
        self.rows.borrow_mut().push_back(Row { pages, used: 0 });
        self.posted.set(self.posted.get().wrapping_add(1));
    }

    /// Tells the card which entries are posted.
    pub(super) fn ring_doorbell(&self, host: &Iperf) {
        let (number, memory) = self.open();
        memory.ring_doorbell(&host.world, &host.nic, *number, self.posted.get());
    }

    /// Requests an interrupt for the next completion.
    pub(super) fn arm(&self, host: &Iperf) {
        let (number, _) = self.open();
        host.world.engine.sync();
        host.nic.borrow_mut().arm(host.world.engine.now_ps(), *number, self.taken.get());
        host.world.engine.notify(Wanted::Link.into());
    }

    fn take(&self, host: &Iperf) -> Option<Completion> {
        host.world.engine.sync();
        let completion = self.open().1.completion(&host.world, self.taken.get())?;
        self.taken.set(self.taken.get().wrapping_add(1));
        Some(completion)
    }

    /// Takes frames that have arrived, up to the budget, hands them to the kernel, and posts new entries. Returns
    /// whether there may be more.
    pub(super) fn poll(&self, host: &Iperf, driver: &mut Driver<'_>) -> bool {
        let budget = host.server.driver.budget as usize;
        let mut frames = 0;
        let mut came = SmallVec::<[(Meaning, Held); 64]>::new();
        let mut unmapped = SmallVec::<[Slot; 64]>::new();
        while frames < budget {
            let Some(completion) = self.take(host) else { break };
            frames += 1;
            let meaning = Meaning::of(completion.cookie);
            host.world.engine.busy(host.poll_cycles(&completion, meaning));
            let Some(place) = self.place_of(host, &completion) else { break };
            if host.start.get().is_some() {
                let iovas = place.first.iter().filter_map(|slot| address(&host.world, *slot));
                iovas.for_each(|iova| host.reuse.borrow_mut().note(iova));
            }
            if host.batch > 1 {
                for slot in place.last {
                    driver.unmap_only(slot);
                    self.cache.note_unmapped();
                    unmapped.push(slot);
                }
                if !completion.is_filler {
                    // From now on the pages count as held, though the kernel gets them below.
                    place.held.iter().for_each(|slot| host.pages.hold(*slot));
                    came.push((meaning, place.held));
                }
            } else if !completion.is_filler {
                place.held.iter().for_each(|slot| host.pages.hold(*slot));
                host.packet_came(meaning, place.held);
            }
            self.give_back_used(host, driver);
        }
        driver.commit();
        came.into_iter().for_each(|(meaning, held)| host.packet_came(meaning, held));
        unmapped.into_iter().for_each(|slot| host.pages.release(slot));
        self.refill(host, driver);
        frames == budget
    }

    /// Where a frame lies, in the oldest entry that is not used up.
    fn place_of(&self, host: &Iperf, completion: &Completion) -> Option<Place> {
        let mut rows = self.rows.borrow_mut();
        let row = rows.front_mut()?;
        let in_strides = |strides: u32| u64::from(strides) * u64::from(host.striding.stride_bytes);
        let start = in_strides(completion.first_stride);
        let end = start + in_strides(completion.strides);
        debug_assert_eq!(row.used, start, "frames follow each other");
        row.used = end;
        let bytes_end = start + u64::from(completion.bytes);
        Some(Place {
            held: row.within(start + COPIED_BYTES, bytes_end).into(),
            first: row.within(start.next_multiple_of(PAGE_SIZE), end).into(),
            last: row.within(start, end - end % PAGE_SIZE).into(),
        })
    }

    /// Gives the pages of a consumed entry back, one after the other.
    fn give_back_used(&self, host: &Iperf, driver: &mut Driver<'_>) {
        let is_used = self.rows.borrow().front().is_some_and(|row| row.used == row.pages.len() as u64 * PAGE_SIZE);
        let Some(row) = is_used.then(|| self.rows.borrow_mut().pop_front()).flatten() else { return };
        if host.batch > 1 {
            return;
        }
        for slot in row.pages {
            if !self.cache.keep(slot) {
                driver.unmap_only(slot);
                driver.commit();
                host.pages.release(slot);
            }
        }
    }

    /// Posts new entries for those that were consumed.
    fn refill(&self, host: &Iperf, driver: &mut Driver<'_>) {
        let missing = self.shape.entries as usize - self.rows.borrow().len();
        if missing < host.striding.entries_at_once as usize {
            return;
        }
        for _ in 0..missing {
            let pages: Option<Vec<Slot>> = (0..self.shape.pieces).map(|_| self.page(host, driver)).collect();
            let Some(pages) = pages else { return };
            self.post(host, pages);
        }
        self.ring_doorbell(host);
    }

    /// A mapped page: one that is used again, or a new one. `None` after a refusal, which ends the run.
    fn page(&self, host: &Iperf, driver: &mut Driver<'_>) -> Option<Slot> {
        if host.batch == 1
            && let Some(slot) = self.cache.take(&host.pages)
        {
            return Some(slot);
        }
        self.map(host, driver)
    }

    /// Maps a page.
    pub(super) fn map(&self, host: &Iperf, driver: &mut Driver<'_>) -> Option<Slot> {
        driver.serve(self.stream);
        let (slot, buffer) = host.pages.take();
        driver.map_untouched(slot, &buffer, Access::DeviceWrites, 0);
        address(&host.world, slot).map(|_| slot)
    }
}
