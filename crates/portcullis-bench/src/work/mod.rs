//! The timed work: the maps and unmaps of one thread, on its own mappings, in a domain that all threads share.

mod batches;
mod bursts;
mod halves;
mod hand_off;
#[allow(unsafe_code, reason = "raw maps, which no device sees")]
pub(super) mod raw;
mod rings;
#[allow(unsafe_code, reason = "a buffer that is lent must be one")]
mod typed;

pub(super) use batches::{BATCH, Batches};
pub(super) use bursts::{BURST, Bursts};
pub(super) use halves::Halves;
pub(super) use hand_off::{CHUNK, Consumer, Producer, Queue};
pub(super) use rings::Interleaved;
pub(super) use typed::{Typed, TypedFifo};

use super::BenchError;
use super::meter::Meter;
use portcullis::mapper::Mapper;
use portcullis::{Access, Domain, Iova, PAGE_SIZE, PhysAddr, Segment};
use std::hint::black_box;

/// A thread's part of a workload.
pub(super) trait Worker {
    /// Maps and unmaps `pairs` times, on `meter`.
    fn run(&mut self, pairs: u64, meter: &mut Meter) -> Result<(), BenchError>;

    /// The live mappings.
    fn live(&self) -> Vec<Live>;

    /// Commits made so far.
    fn commits(&self) -> u64;

    /// Unmaps everything, in single commits.
    fn drain(&mut self) -> Result<(), BenchError>;
}

/// A live mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Live {
    pub(super) iova: Iova,
    pub(super) phys: PhysAddr,
    pub(super) pages: u64,
    pub(super) access: Access,
}

/// Contiguous buffers, used in turn. Their memory is never touched, so there is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers {
    first: u64,
    len: u64,
    end: u64,
    next: u64,
}

impl Buffers {
    /// The address of the buffers of worker 0, and the distance between the buffers of workers.
    const FIRST: u64 = 1 << 32;
    const WORKER_BYTES: u64 = 1 << 30;

    /// The memory in which the buffers of `workers` workers lie.
    pub(super) const fn memory(workers: u64) -> Segment {
        Segment { phys: PhysAddr::new(Self::FIRST), len: workers * Self::WORKER_BYTES }
    }

    /// `count` buffers of `pages` pages each, for worker `worker`.
    pub(super) fn new(worker: u64, count: u64, pages: u64) -> Self {
        let (first, len) = (Self::FIRST + worker * Self::WORKER_BYTES, pages * PAGE_SIZE);
        Self { first, len, end: first + count * len, next: first }
    }

    #[inline(always)]
    pub(super) fn take(&mut self) -> PhysAddr {
        let phys = self.next;
        self.next = if phys + self.len == self.end { self.first } else { phys + self.len };
        PhysAddr::new(phys)
    }
}

/// Mappings that are unmapped in the order in which they were made. Each is replaced by a new one.
pub(super) struct Fifo {
    slots: Box<[Iova]>,
    place: Place,
    len: u64,
    access: Access,
}

/// The position of a ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The index of the oldest mapping.
    at: usize,
    buffers: Buffers,
}

impl Fifo {
    /// Maps `live` buffers of `pages` pages, for worker `worker`. There are twice as many buffers, so that none is
    /// mapped twice, and so that an address that belongs to its buffer also changes.
    pub(super) fn fill<M: Mapper>(
        domain: &Domain<M>,
        worker: u64,
        live: usize,
        pages: u64,
        access: Access,
    ) -> Result<Self, BenchError> {
        let mut buffers = Buffers::new(worker, live as u64 * 2, pages);
        // The lengths and directions of a driver are only known at run time.
        let (len, access) = (black_box(pages * PAGE_SIZE), black_box(access));
        let slots: Result<_, _> = (0..live).map(|_| raw::map(domain, buffers.take(), len, access)).collect();
        Ok(Self { slots: slots?, place: Place { at: 0, buffers }, len, access })
    }

    /// The oldest mappings in order, at most `most`, and not beyond the end of the ring.
    #[inline(always)]
    fn oldest(&mut self, most: usize) -> &mut [Iova] {
        let slots = &mut self.slots[self.place.at..];
        let count = slots.len().min(most);
        &mut slots[..count]
    }

    /// Advances the ring after its `count` oldest mappings were replaced. Its next buffers are `buffers`.
    #[inline(always)]
    fn pass(&mut self, count: usize, buffers: Buffers) {
        let at = self.place.at + count;
        self.place = Place { at: if at == self.slots.len() { 0 } else { at }, buffers };
    }

    /// Replaces the oldest mapping `times` times.
    #[inline(always)]
    fn turn<M: Mapper>(&mut self, domain: &Domain<M>, times: usize) -> Result<(), BenchError> {
        let (len, access, mut buffers, mut left) = (self.len, self.access, self.place.buffers, times);
        while left > 0 {
            let slots = self.oldest(left);
            let count = slots.len();
            for slot in slots {
                replace(domain, slot, &mut buffers, len, access)?;
            }
            self.pass(count, buffers);
            left -= count;
        }
        Ok(())
    }

    /// The live mappings.
    pub(super) fn live(&self) -> Vec<Live> {
        // The buffer of the oldest mapping was taken as many turns ago as there are slots.
        let Place { at, buffers: Buffers { first, end, len, next } } = self.place;
        let back = self.slots.len() as u64 * len;
        let oldest = if next < first + back { next + (end - first) - back } else { next - back };
        let mut buffers = Buffers { next: oldest, ..self.place.buffers };
        let oldest_first = self.slots[at..].iter().chain(&self.slots[..at]);
        let live =
            |iova: &Iova| Live { iova: *iova, phys: buffers.take(), pages: len / PAGE_SIZE, access: self.access };
        oldest_first.map(live).collect()
    }

    /// Unmaps everything, the oldest first.
    pub(super) fn drain<M: Mapper>(&mut self, domain: &Domain<M>) -> Result<(), BenchError> {
        for slot in self.slots[self.place.at..].iter().chain(&self.slots[..self.place.at]) {
            domain.unmap_raw(*slot, self.len)?;
        }
        self.slots = Box::default();
        self.place.at = 0;
        Ok(())
    }
}

/// Unmaps the mapping of `slot`, and maps the next buffer in its place.
///
/// Loops keep `buffers` in registers, because they are not what is measured.
#[inline(always)]
fn replace<M: Mapper>(
    domain: &Domain<M>,
    slot: &mut Iova,
    buffers: &mut Buffers,
    len: u64,
    access: Access,
) -> Result<(), BenchError> {
    domain.unmap_raw(*slot, len)?;
    *slot = raw::map(domain, buffers.take(), len, access)?;
    Ok(())
}

/// One mapping at a time, first in first out.
pub(super) struct Singles<'d, M: Mapper> {
    domain: &'d Domain<M>,
    fifo: Fifo,
    commits: u64,
}

impl<'d, M: Mapper> Singles<'d, M> {
    pub(super) fn new(domain: &'d Domain<M>, fifo: Fifo) -> Self {
        Self { domain, fifo, commits: 0 }
    }
}

impl<M: Mapper> Worker for Singles<'_, M> {
    #[inline(never)]
    fn run(&mut self, pairs: u64, meter: &mut Meter) -> Result<(), BenchError> {
        meter.start();
        self.fifo.turn(self.domain, pairs as usize)?;
        meter.stop();
        self.commits += pairs;
        Ok(())
    }

    fn live(&self) -> Vec<Live> {
        self.fifo.live()
    }

    fn commits(&self) -> u64 {
        self.commits
    }

    fn drain(&mut self) -> Result<(), BenchError> {
        self.commits += self.fifo.slots.len() as u64;
        self.fifo.drain(self.domain)
    }
}
