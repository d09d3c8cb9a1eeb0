//! A receive ring served as in [`bursts`](super::bursts), whose commits are made in two halves: the buffers that a poll
//! finds done are submitted, and those of the poll before, which come back now, take their place.

use super::bursts::{BURST, unmap_all};
use super::typed::Page;
use super::{Buffers, Live, Worker};
use crate::BenchError;
use crate::meter::Meter;
use portcullis::domain::{Batch, Mapping, Ring, RingConfig, Submitted};
use portcullis::mapper::Mapper;
use portcullis::{Access, CommitError, Domain, PAGE_SIZE, PhysAddr, Segment};
use std::hint::black_box;

/// The ring, through the typed interface. Its buffers and the spare ones are sets of a burst each, which change places.
pub(crate) struct Halves<'d, M: Mapper> {
    domain: &'d Domain<M>,
    ring: Ring<&'d Domain<M>>,
    batches: [Batch<&'d Domain<M>, Page>; 2],
    descriptors: Box<[Option<Mapping<Page>>]>,
    /// The set that is not in the ring.
    spare: Vec<Page>,
    /// The index of the oldest descriptor.
    at: usize,
    first: Buffers,
    access: Access,
    /// Until the ring is drained, the bursts served so far.
    commits: u64,
}

impl<'d, M: Mapper> Halves<'d, M> {
    /// A ring of `live` descriptors of a page each, for worker `worker`. `live` must be a multiple of [`BURST`].
    pub(crate) fn new(domain: &'d Domain<M>, worker: u64, live: usize, access: Access) -> Result<Self, BenchError> {
        let first = Buffers::new(worker, live as u64 + BURST, 1);
        let mut buffers = first;
        // The lengths and directions of a driver are only known at run time.
        let (len, access) = (black_box(PAGE_SIZE), black_box(access));
        let config = RingConfig { access, ..RingConfig::default() };
        let mut ring = domain.ring(config).map_err(|error| BenchError::Check(error.to_string()))?;
        let mut descriptors = Vec::with_capacity(live);
        let mut set = || (0..BURST).map(|_| Page(Segment { phys: buffers.take(), len })).collect::<Vec<_>>();
        for _ in 0..live as u64 / BURST {
            ring.map_batch(set(), |mapping| descriptors.push(Some(mapping))).map_err(|refused| refused.error)?;
        }
        let (spare, descriptors) = (set(), descriptors.into());
        Ok(Self {
            domain,
            ring,
            batches: [domain.batch(), domain.batch()],
            descriptors,
            spare,
            at: 0,
            first,
            access,
            commits: 0,
        })
    }

    /// The buffer in descriptor `index`. Each turn puts the spare set into the ring, and the set that comes out of the
    /// ring is the next spare one. With one set more than the ring has places, turn `k` puts in set `k - 1`, modulo
    /// their number.
    fn buffer_of(&self, index: usize) -> PhysAddr {
        let (places, place) = (self.descriptors.len() as u64 / BURST, index as u64 / BURST);
        let set = match self.commits.checked_sub(place + 1) {
            None => place,
            Some(since) => (since / places * places + place + places) % (places + 1),
        };
        let mut buffers = self.first;
        (0..set * BURST + index as u64 % BURST).for_each(|_| _ = buffers.take());
        buffers.take()
    }
}

/// The descriptors of a ring, and the index of the next burst.
struct Bursts<'r> {
    descriptors: &'r mut [Option<Mapping<Page>>],
    at: usize,
}

impl Bursts<'_> {
    /// Submits the buffers of a burst. Then puts others in their place.
    #[inline(always)]
    fn serve<'b, 'd, M: Mapper, B: IntoIterator<Item = Page>>(
        &mut self,
        ring: &mut Ring<&'d Domain<M>>,
        batch: &'b mut Batch<&'d Domain<M>, Page>,
        others: impl FnOnce() -> Result<B, CommitError>,
    ) -> Result<Submitted<&'b mut Batch<&'d Domain<M>, Page>>, BenchError> {
        let done = &mut self.descriptors[self.at..self.at + BURST as usize];
        for mapping in done.iter_mut().filter_map(Option::take) {
            batch.unmap(mapping).map_err(|refused| refused.error)?;
        }
        let submitted = batch.submit_so_far()?;
        let mut descriptors = done.iter_mut();
        let fill = |mapping| {
            if let Some(descriptor) = descriptors.next() {
                *descriptor = Some(mapping);
            }
        };
        ring.map_batch(others()?, fill).map_err(|refused| refused.error)?;
        self.at += BURST as usize;
        if self.at == self.descriptors.len() {
            self.at = 0;
        }
        Ok(submitted)
    }
}

impl<M: Mapper> Worker for Halves<'_, M> {
    #[inline(never)]
    fn run(&mut self, pairs: u64, meter: &mut Meter) -> Result<(), BenchError> {
        let Self { ring, batches: [batch, other], descriptors, spare, at, .. } = self;
        let mut bursts = Bursts { descriptors, at: *at };
        let count = pairs / BURST;
        meter.start();
        // The spare buffers are those of an earlier poll, which came back then.
        let mut submitted = bursts.serve(ring, batch, || Ok(spare.drain(..)))?;
        for _ in 0..(count - 1) / 2 {
            let next = bursts.serve(ring, other, || submitted.wait())?;
            submitted = bursts.serve(ring, batch, || next.wait())?;
        }
        if count.is_multiple_of(2) {
            let last = bursts.serve(ring, other, || submitted.wait())?;
            spare.extend(last.wait()?);
        } else {
            spare.extend(submitted.wait()?);
        }
        meter.stop();
        *at = bursts.at;
        self.commits += count;
        Ok(())
    }

    fn live(&self) -> Vec<Live> {
        let live = self.descriptors.iter().enumerate().filter_map(|(index, mapping)| {
            let (phys, access) = (self.buffer_of(index), self.access);
            mapping.as_ref().map(|mapping| Live { iova: mapping.iova(), phys, pages: 1, access })
        });
        live.collect()
    }

    fn commits(&self) -> u64 {
        self.commits
    }

    fn drain(&mut self) -> Result<(), BenchError> {
        self.commits += unmap_all(self.domain, &mut self.descriptors)?;
        Ok(())
    }
}
