//! The pages that driver and controller share: queues, the lists of data pages, and the drive's description of
//! itself.

use crate::Bar;
use crate::dma::Shared;
use portcullis::{Iova, PAGE_SIZE, pages_spanned};

/// The number of entries of each queue: one page of submissions.
pub(super) const ENTRIES: u16 = 64;
/// The most commands in flight, fewer than a queue holds.
pub const DEPTH: usize = 32;
const _: () = assert!(DEPTH < ENTRIES as usize, "a full queue would look empty");
/// The number of pages after the first that a command's PRP list can name.
const LIST_ENTRIES: u64 = 16;
const LIST_BYTES: u64 = LIST_ENTRIES * 8;
const _: () = assert!(DEPTH as u64 * LIST_BYTES == PAGE_SIZE, "the lists of all commands fill a page");
/// The most bytes that one command moves, wherever the buffer begins in its first page.
pub const DATA_BYTES_MAX: u64 = LIST_ENTRIES * PAGE_SIZE;

/// Two pairs of queues of two pages each, the lists, and a page for the drive's description of itself.
const LISTS: u64 = 4 * PAGE_SIZE;
pub(super) const IDENTITY: u64 = 5 * PAGE_SIZE;
pub(super) const SHARED_PAGES: u64 = 6;

/// A submission queue and its completion queue, a page each.
pub(super) struct Queue {
    pub(super) id: u16,
    /// Offsets of the queues in the shared pages.
    pub(super) submissions: u64,
    pub(super) completions: u64,
    /// The registers that tell the controller the values of `tail` and `head`.
    tail_doorbell: u64,
    head_doorbell: u64,
    tail: u16,
    head: u16,
    /// The phase bit of new completions. The controller inverts it in each round.
    phase: u64,
}

impl Queue {
    /// Empty queues with the number `id`. The doorbells begin at `doorbells`, and are `doorbell_bytes` apart.
    pub(super) fn new(id: u16, doorbells: u64, doorbell_bytes: u64) -> Self {
        let submissions = u64::from(id) * 2 * PAGE_SIZE;
        let tail_doorbell = doorbells + u64::from(id) * 2 * doorbell_bytes;
        let (completions, head_doorbell) = (submissions + PAGE_SIZE, tail_doorbell + doorbell_bytes);
        Self { id, submissions, completions, tail_doorbell, head_doorbell, tail: 0, head: 0, phase: 1 }
    }

    /// Writes a submission. The controller reads it after [`Queue::ring`].
    pub(super) fn put(&mut self, shared: &Shared, entry: [u64; 8]) {
        let at = self.submissions + u64::from(self.tail) * 64;
        (0..).zip(entry).for_each(|(word, value)| shared.write(at + word * 8, value));
        self.tail = (self.tail + 1) % ENTRIES;
    }

    /// Tells the controller about all submissions so far.
    pub(super) fn ring(&self, registers: &Bar) {
        registers.write32(self.tail_doorbell, self.tail.into());
    }

    /// Takes the next completion: the number of the command, and its status.
    pub(super) fn take(&mut self, shared: &Shared) -> Option<(u16, u16)> {
        // The controller writes the half with the phase bit last.
        let word = shared.read(self.completions + u64::from(self.head) * 16 + 8);
        if word >> 48 & 1 != self.phase {
            return None;
        }
        self.head = (self.head + 1) % ENTRIES;
        if self.head == 0 {
            self.phase ^= 1;
        }
        Some(((word >> 32) as u16, (word >> 49) as u16))
    }

    /// Returns the slots of all completions taken so far to the controller.
    pub(super) fn acknowledge(&self, registers: &Bar) {
        registers.write32(self.head_doorbell, self.head.into());
    }
}

/// The two pointers (PRP 1 and 2) to `len` bytes at `iova` for command number `id`. The first is the address of the
/// first byte. The second is zero, the second page, or the command's list of all pages after the first.
pub(super) fn data_pointers(shared: &Shared, id: usize, iova: Iova, len: u64) -> [u64; 2] {
    let second_page = iova.as_u64() - iova.page_offset() + PAGE_SIZE;
    let others = match pages_spanned(iova.page_offset(), len) - 1 {
        0 => 0,
        1 => second_page,
        pages => {
            let list = LISTS + id as u64 * LIST_BYTES;
            (0..pages).for_each(|page| shared.write(list + page * 8, second_page + page * PAGE_SIZE));
            shared.iova(list)
        }
    };
    [iova.as_u64(), others]
}
