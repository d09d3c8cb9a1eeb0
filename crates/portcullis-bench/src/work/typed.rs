//! The same work through the typed interface: buffers are owned, lent while they are mapped, and returned.

use super::{Buffers, Live, Worker};
use crate::BenchError;
use crate::meter::Meter;
use portcullis::domain::{DmaBuffer, MapFailure, Mapping, UnmapFailure};
use portcullis::mapper::Mapper;
use portcullis::{Access, Domain, PAGE_SIZE, PhysAddr, Segment};
use std::hint::black_box;
use std::mem;

/// A page of memory that does not exist: see [`Buffers`].
#[derive(Debug)]
pub(super) struct Page(pub(super) Segment);

// SAFETY: nothing uses the memory of its segment except a device, and there is none. The segment never changes.
unsafe impl DmaBuffer for Page {
    #[inline(always)]
    fn segments(&self) -> &[Segment] {
        std::slice::from_ref(&self.0)
    }
}

impl From<MapFailure<Page>> for BenchError {
    fn from(failure: MapFailure<Page>) -> Self {
        failure.error().into()
    }
}

impl From<UnmapFailure<Page>> for BenchError {
    fn from(failure: UnmapFailure<Page>) -> Self {
        match failure {
            UnmapFailure::Refused(refused) => refused.error.into(),
            UnmapFailure::Commit(error) => error.into(),
        }
    }
}

/// Mappings that are unmapped in the order in which they were made. Each is replaced by one of the buffer that was
/// returned before, so the buffers are used in turn.
pub(crate) struct TypedFifo {
    slots: Box<[Mapping<Page>]>,
    /// The buffers without a mapping: as many as a turn takes.
    spare: Vec<Page>,
    /// The index of the oldest mapping.
    at: usize,
    /// Mappings replaced so far.
    replaced: u64,
    first: Buffers,
    access: Access,
}

impl TypedFifo {
    /// Maps `live` single pages for worker `worker`, and keeps `spare` more to map.
    pub(crate) fn fill<M: Mapper>(
        domain: &Domain<M>,
        worker: u64,
        live: usize,
        spare: usize,
        access: Access,
    ) -> Result<Self, BenchError> {
        let first = Buffers::new(worker, (live + spare) as u64, 1);
        let mut buffers = first;
        // The lengths and directions of a driver are only known at run time.
        let (len, access) = (black_box(PAGE_SIZE), black_box(access));
        let mut page = || Page(Segment { phys: buffers.take(), len });
        let slots: Result<_, BenchError> = (0..live).map(|_| Ok(domain.map(page(), access)?)).collect();
        let spare = (0..spare).map(|_| page()).collect();
        Ok(Self { slots: slots?, spare, at: 0, replaced: 0, first, access })
    }

    /// The oldest mappings, at most `most`, and not beyond the end of the ring.
    #[inline(always)]
    fn oldest(&mut self, most: usize) -> &mut [Mapping<Page>] {
        let (count, at) = (self.slots.len(), self.at);
        let end = count.min(at + most);
        self.at = if end == count { 0 } else { end };
        &mut self.slots[at..end]
    }

    fn live(&self) -> Vec<Live> {
        let Self { slots, spare, at, replaced, first, access } = self;
        let mut buffers = *first;
        let pages: Vec<PhysAddr> = (0..slots.len() + spare.len()).map(|_| buffers.take()).collect();
        let oldest_first = slots[*at..].iter().chain(&slots[..*at]);
        let live = |(number, mapping): (u64, &Mapping<Page>)| {
            let phys = pages[(number % pages.len() as u64) as usize];
            Live { iova: mapping.iova(), phys, pages: 1, access: *access }
        };
        (*replaced..).zip(oldest_first).map(live).collect()
    }

    fn drain<M: Mapper>(&mut self, domain: &Domain<M>) -> Result<(), BenchError> {
        let mut slots = mem::take(&mut self.slots).into_vec();
        slots.rotate_left(self.at);
        for mapping in slots {
            domain.unmap(mapping)?;
        }
        Ok(())
    }
}

/// One mapping at a time, first in first out.
pub(crate) struct Typed<'d, M: Mapper> {
    domain: &'d Domain<M>,
    fifo: TypedFifo,
    commits: u64,
}

impl<'d, M: Mapper> Typed<'d, M> {
    pub(crate) fn new(domain: &'d Domain<M>, fifo: TypedFifo) -> Self {
        Self { domain, fifo, commits: 0 }
    }

    #[inline(never)]
    fn singles(&mut self, pairs: usize) -> Result<(), BenchError> {
        let (domain, fifo) = (self.domain, &mut self.fifo);
        let (access, mut left) = (fifo.access, pairs);
        let Some(mut next) = fifo.spare.pop() else { return Ok(()) };
        while left > 0 {
            let slots = fifo.oldest(left);
            left -= slots.len();
            for slot in slots {
                let new = domain.map(next, access)?;
                next = domain.unmap(mem::replace(slot, new))?;
            }
        }
        fifo.spare.push(next);
        Ok(())
    }
}

impl<M: Mapper> Worker for Typed<'_, M> {
    fn run(&mut self, pairs: u64, meter: &mut Meter) -> Result<(), BenchError> {
        meter.start();
        self.singles(pairs as usize)?;
        meter.stop();
        self.fifo.replaced += pairs;
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
