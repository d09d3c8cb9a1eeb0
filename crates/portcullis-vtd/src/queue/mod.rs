//! The invalidation queue: a ring of descriptors in one page, and in a second page a status for each of its slots (§6.5.2).
//!
//! A submission is a run of descriptors closed by a wait of its own, whose slot names the submission's status:
//!
//! ```text
//!  byte 0                     4          8                                    16
//! +--------------------------+----------+--------------------------------------+
//! | sequence of the last     | unused   | sequence of the last submission here |
//! | wait done, from hardware |          | that failed, and how, from software  |
//! +--------------------------+----------+--------------------------------------+
//! ```
//!
//! Sequences have 64 bits, hardware writes the low 32, and those are compared modulo 2^32. Three things make that sound:
//! * A slot is taken again only when the wait that was in it has landed, so two live submissions never share a status and
//!   statuses may land in any order.
//! * Taking it first writes `sequence - 1` there; what an old revolution left behind cannot pass for something newer.
//! * A failure is kept in the slot, and stands for every earlier submission there too: a ticket asked about late is told of a
//!   failure too many rather than of a completion that never was (S11).

mod recovery;

use recovery::Failure;

use crate::Mmio;
use crate::hardware::{Hardware, RegisterTimeout};
use crate::page::{Page, Stopped};
use crate::spec::descriptors::{DESCRIPTOR_BYTES, Descriptor, StatusWrite};
use crate::spec::registers::{FSTS, IQA, IQH, IQT, QUEUE_INDEX_SHIFT, global};
use crate::spec::{faults::status, tables::ENTRIES};
use portcullis::platform::{Lock, LockClass, Step, Wait};
use portcullis::table::Entry;
use portcullis::{PhysAddr, Platform, QueueError};

/// Descriptors that fit into the page.
pub(crate) const SLOTS: usize = ENTRIES / 2;
/// Descriptors of one submission, not counting its wait. They are written with interrupts masked, so there is a limit.
pub(crate) const BURST_MAX: usize = 64;

/// A submission, to be asked about with [`Iommu::is_done`](portcullis::Iommu::is_done).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    pub(crate) slot: u16,
    sequence: u64,
}

/// What the lock protects. Between `head` and `tail` lie the slots in use.
pub(crate) struct Ring {
    /// The oldest slot that is not known to be over. Behind the hardware's head, never before it.
    head: usize,
    /// The slot that is written next.
    tail: usize,
    /// Of the last submission.
    pub(crate) sequence: u64,
    /// The sequence of the wait in each slot; zero where there is another descriptor.
    waits: [u64; SLOTS],
    /// The queue stopped in a state that cannot be resumed.
    broken: bool,
}

impl Ring {
    /// Slots that may be written. One always stays free, for a full ring would look empty.
    fn room(&self) -> usize {
        SLOTS - 1 - distance(self.head, self.tail)
    }

    /// The waits in the slots from `from` to before `to`, oldest first.
    fn waits(&self, from: usize, to: usize) -> impl Iterator<Item = Ticket> + '_ {
        (0..distance(from, to)).map(move |step| (from + step) % SLOTS).filter_map(|slot| {
            let sequence = self.waits[slot];
            (sequence != 0).then_some(Ticket { slot: slot as u16, sequence })
        })
    }
}

/// Slots from `from` forward to `to`.
fn distance(from: usize, to: usize) -> usize {
    (to + SLOTS - from) % SLOTS
}

/// The queue of one unit.
pub(crate) struct Queue<P: Platform> {
    descriptors: Page,
    statuses: Page,
    pub(crate) ring: P::Lock<Ring>,
}

impl<P: Platform> Queue<P> {
    pub(crate) fn new(platform: &P, descriptors: Page, statuses: Page) -> Self {
        let ring = Ring { head: 0, tail: 0, sequence: 0, waits: [0; SLOTS], broken: false };
        Self { descriptors, statuses, ring: platform.lock(LockClass::InvalidationQueue, ring) }
    }

    /// Tells the hardware where the queue is, and turns it on.
    pub(crate) fn start<M: Mmio>(&self, hardware: &Hardware<M, P>) -> Result<(), RegisterTimeout> {
        hardware.write64(IQT, 0);
        // Size 0: one page, of 128-bit descriptors.
        hardware.write64(IQA, self.descriptors.phys().as_u64());
        hardware.enable(global::QUEUED_INVALIDATION)
    }

    /// Waits until the hardware has fetched everything, as it must before the queue is turned off.
    pub(crate) fn drain<M: Mmio>(hardware: &Hardware<M, P>) {
        // Where it does not, because the queue stopped on an error, turning it off is all that is left.
        hardware.spin(Wait::QueueRoom, || (hardware.read64(IQH) == hardware.read64(IQT)).then_some(()));
    }

    /// Gives the pages back.
    pub(crate) fn release(&mut self, platform: &P, stopped: &Stopped) {
        self.descriptors.release(platform, stopped);
        self.statuses.release(platform, stopped);
    }

    /// Submits `descriptors`, at most [`BURST_MAX`], and a wait behind them. Spins for room, without the lock.
    ///
    /// The wait needs no fence: hardware completes a wait only after everything ahead of it in the queue (§6.5.2.11).
    pub(crate) fn submit<M: Mmio>(
        &self,
        hardware: &Hardware<M, P>,
        descriptors: impl ExactSizeIterator<Item = Descriptor> + Clone,
    ) -> Result<Ticket, QueueError> {
        debug_assert!(descriptors.len() <= BURST_MAX);
        let submitted = hardware.spin(Wait::QueueRoom, || {
            let attempt = self.ring.with(|ring| self.push(ring, hardware, descriptors.clone()));
            if attempt.is_none() {
                // A queue that has stopped makes no room.
                self.resume_if_stopped(hardware);
            }
            attempt
        });
        submitted.unwrap_or(Err(QueueError::Timeout(hardware.wait_us_max)))
    }

    /// Writes a submission where there is room for it.
    fn push<M: Mmio>(
        &self,
        ring: &mut Ring,
        hardware: &Hardware<M, P>,
        descriptors: impl ExactSizeIterator<Item = Descriptor>,
    ) -> Option<Result<Ticket, QueueError>> {
        if ring.broken {
            return Some(Err(QueueError::Descriptor));
        }
        let needed = descriptors.len() + 1;
        if ring.room() < needed {
            self.reclaim(ring, &hardware.platform);
            if ring.room() < needed {
                return None;
            }
        }
        hardware.platform.probe(Step::QueueWrite { descriptors: needed });
        let first = ring.tail;
        for descriptor in descriptors {
            self.write(&hardware.platform, ring.tail, descriptor);
            ring.waits[ring.tail] = 0;
            ring.tail = (ring.tail + 1) % SLOTS;
        }
        ring.sequence += 1;
        let ticket = Ticket { slot: ring.tail as u16, sequence: ring.sequence };
        // Software's own word, never read by hardware, so no barrier. Whoever still asks about the last submission in this
        // slot sees that it is over: that is what let the slot be taken.
        self.status(&hardware.platform, ticket.slot).store_bits(u64::from((ticket.sequence as u32).wrapping_sub(1)));
        self.write(&hardware.platform, ring.tail, self.wait(ticket.slot, ticket.sequence));
        ring.waits[ring.tail] = ticket.sequence;
        ring.tail = (ring.tail + 1) % SLOTS;
        self.make_visible(&hardware.platform, first, needed);
        hardware.write64(IQT, (ring.tail as u64) << QUEUE_INDEX_SHIFT);
        Some(Ok(ticket))
    }

    /// Moves `head` past every submission that is over, in ring order.
    ///
    /// A wait that has landed was fetched, and so was everything ahead of it: memory tells what the head register would,
    /// without a read across the bus, and tells also that nothing more will be written to the slot's status.
    fn reclaim(&self, ring: &mut Ring, platform: &P) {
        if let Some(last) =
            ring.waits(ring.head, ring.tail).take_while(|ticket| self.has_landed(platform, *ticket)).last()
        {
            ring.head = (usize::from(last.slot) + 1) % SLOTS;
        }
    }

    /// Whether everything under `ticket` is done.
    pub(crate) fn is_done<M: Mmio>(&self, hardware: &Hardware<M, P>, ticket: Ticket) -> Result<bool, QueueError> {
        match self.look(&hardware.platform, ticket) {
            Ok(false) => {
                self.resume_if_stopped(hardware);
                self.look(&hardware.platform, ticket)
            }
            over => over,
        }
    }

    /// Spins until everything under `ticket` is done.
    pub(crate) fn wait_for<M: Mmio>(&self, hardware: &Hardware<M, P>, ticket: Ticket) -> Result<(), QueueError> {
        let finished = hardware.spin(Wait::Invalidation, || match self.is_done(hardware, ticket) {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(error) => Some(Err(error)),
        });
        finished.unwrap_or(Err(QueueError::Timeout(hardware.wait_us_max)))
    }

    /// What memory tells of `ticket`.
    fn look(&self, platform: &P, ticket: Ticket) -> Result<bool, QueueError> {
        // The status first: whatever makes it read as landed, a failure was written before that, and the acquiring load
        // shows it.
        let landed = self.has_landed(platform, ticket);
        match Failure::decode(self.failure(platform, ticket.slot).load_bits()) {
            Some(failure) if failure.sequence >= ticket.sequence => Err(failure.error),
            _ => Ok(landed),
        }
    }

    /// Whether hardware is through with the wait of `ticket`, well or badly.
    fn has_landed(&self, platform: &P, ticket: Ticket) -> bool {
        let status = self.status(platform, ticket.slot).load_bits() as u32;
        status.wrapping_sub(ticket.sequence as u32).cast_signed() >= 0
    }

    fn status<'a>(&'a self, platform: &'a P, slot: u16) -> &'a Entry {
        &self.statuses.entries(platform)[usize::from(slot) * 2]
    }

    fn failure<'a>(&'a self, platform: &'a P, slot: u16) -> &'a Entry {
        &self.statuses.entries(platform)[usize::from(slot) * 2 + 1]
    }

    /// The wait that writes `sequence` to the status of `slot`.
    fn wait(&self, slot: u16, sequence: u64) -> Descriptor {
        let address = PhysAddr::new(self.statuses.phys().as_u64() + u64::from(slot) * DESCRIPTOR_BYTES);
        Descriptor::Wait {
            status: Some(StatusWrite { address, data: sequence as u32 }),
            interrupt: false,
            fence: false,
            drain_page_requests: false,
        }
    }

    /// Writes a descriptor, the quadword with its type last.
    fn write(&self, platform: &P, slot: usize, descriptor: Descriptor) {
        let [low, high] = descriptor.encode();
        let entries = self.descriptors.entries(platform);
        entries[slot * 2 + 1].store_bits(high);
        entries[slot * 2].store_bits(low);
    }

    /// Makes `count` descriptors from `first` on visible to the hardware.
    fn make_visible(&self, platform: &P, first: usize, count: usize) {
        let entries = self.descriptors.entries(platform);
        let end = first + count;
        platform.table_barrier(&entries[first * 2..end.min(SLOTS) * 2]);
        if end > SLOTS {
            platform.table_barrier(&entries[..(end - SLOTS) * 2]);
        }
    }

    /// Takes the queue out of an error, where there is one.
    fn resume_if_stopped<M: Mmio>(&self, hardware: &Hardware<M, P>) {
        if hardware.read32(FSTS) & status::QUEUE_ERRORS != 0 {
            self.ring.with(|ring| self.resume(ring, hardware));
        }
    }
}
