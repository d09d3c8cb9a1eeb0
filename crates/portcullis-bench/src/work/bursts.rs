//! A receive ring, served like a driver: the buffers that a poll finds done are unmapped under one commit, and the
//! descriptors are refilled together.

use super::typed::Page;
use super::{Buffers, Live, Worker};
use crate::BenchError;
use crate::meter::Meter;
use portcullis::domain::{Batch, Mapping, Ring, RingConfig};
use portcullis::mapper::Mapper;
use portcullis::{Access, Domain, PAGE_SIZE, Segment};
use std::hint::black_box;

/// Descriptors that a poll of a ring finds done.
pub(crate) const BURST: u64 = 16;

/// The ring, through the typed interface. A descriptor keeps its buffer.
pub(crate) struct Bursts<'d, M: Mapper> {
    domain: &'d Domain<M>,
    ring: Ring<&'d Domain<M>>,
    batch: Batch<&'d Domain<M>, Page>,
    descriptors: Box<[Option<Mapping<Page>>]>,
    /// Descriptors that are done at once.
    burst: usize,
    /// The index of the oldest descriptor.
    at: usize,
    first: Buffers,
    access: Access,
    commits: u64,
}

impl<'d, M: Mapper> Bursts<'d, M> {
    /// A ring of `live` descriptors of a page each, for worker `worker`. `live` must be a multiple of `burst`.
    pub(crate) fn new(
        domain: &'d Domain<M>,
        worker: u64,
        live: usize,
        burst: u64,
        access: Access,
    ) -> Result<Self, BenchError> {
        let first = Buffers::new(worker, live as u64, 1);
        let mut buffers = first;
        // The lengths and directions of a driver are only known at run time.
        let (len, access) = (black_box(PAGE_SIZE), black_box(access));
        let config = RingConfig { access, ..RingConfig::default() };
        let mut ring = domain.ring(config).map_err(|error| BenchError::Check(error.to_string()))?;
        let mut descriptors = Vec::with_capacity(live);
        for _ in 0..live as u64 / burst {
            let burst = (0..burst).map(|_| Page(Segment { phys: buffers.take(), len }));
            ring.map_batch(burst, |mapping| descriptors.push(Some(mapping))).map_err(|refused| refused.error)?;
        }
        Ok(Self {
            domain,
            ring,
            batch: domain.batch(),
            descriptors: descriptors.into(),
            burst: burst as usize,
            at: 0,
            first,
            access,
            commits: 0,
        })
    }

    #[inline(always)]
    fn turn(&mut self) -> Result<(), BenchError> {
        let done = &mut self.descriptors[self.at..self.at + self.burst];
        for mapping in done.iter_mut().filter_map(Option::take) {
            self.batch.unmap(mapping).map_err(|refused| refused.error)?;
        }
        let mut descriptors = done.iter_mut();
        let fill = |mapping| {
            if let Some(descriptor) = descriptors.next() {
                *descriptor = Some(mapping);
            }
        };
        self.ring.map_batch(self.batch.commit_so_far()?, fill).map_err(|refused| refused.error)?;
        self.at += self.burst;
        if self.at == self.descriptors.len() {
            self.at = 0;
        }
        Ok(())
    }
}

impl<M: Mapper> Worker for Bursts<'_, M> {
    #[inline(never)]
    fn run(&mut self, pairs: u64, meter: &mut Meter) -> Result<(), BenchError> {
        meter.start();
        for _ in 0..pairs as usize / self.burst {
            self.turn()?;
        }
        meter.stop();
        self.commits += pairs / self.burst as u64;
        Ok(())
    }

    fn live(&self) -> Vec<Live> {
        let mut buffers = self.first;
        let pages = (0..self.descriptors.len()).map(|_| buffers.take());
        let live = self.descriptors.iter().zip(pages).filter_map(|(mapping, phys)| {
            mapping.as_ref().map(|mapping| Live { iova: mapping.iova(), phys, pages: 1, access: self.access })
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

/// Unmaps what is in a ring, one by one, and returns the number of commits.
pub(super) fn unmap_all<M: Mapper>(
    domain: &Domain<M>,
    descriptors: &mut [Option<Mapping<Page>>],
) -> Result<u64, BenchError> {
    let mut commits = 0;
    for mapping in descriptors.iter_mut().filter_map(Option::take) {
        domain.unmap(mapping)?;
        commits += 1;
    }
    Ok(commits)
}
