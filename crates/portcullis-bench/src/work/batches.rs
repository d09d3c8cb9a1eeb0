//! Unmaps committed together, like those of a driver that polls its ring.

use super::{Fifo, Live, Worker, raw};
use crate::BenchError;
use crate::meter::Meter;
use portcullis::mapper::Mapper;
use portcullis::{Domain, Segment};

/// Mappings of a batch.
pub(crate) const BATCH: u64 = 64;

/// Unmaps the oldest [`BATCH`] mappings under one commit, then maps as many new buffers together.
pub(crate) struct Batches<'d, M: Mapper> {
    domain: &'d Domain<M>,
    fifo: Fifo,
    commits: u64,
}

impl<'d, M: Mapper> Batches<'d, M> {
    /// Requires that the mappings are whole batches.
    pub(crate) fn new(domain: &'d Domain<M>, fifo: Fifo) -> Self {
        assert!((fifo.slots.len() as u64).is_multiple_of(BATCH));
        Self { domain, fifo, commits: 0 }
    }

    #[inline(always)]
    fn turn(&mut self) -> Result<(), BenchError> {
        let (domain, fifo) = (self.domain, &mut self.fifo);
        let (len, access, mut buffers) = (fifo.len, fifo.access, fifo.place.buffers);
        let slots = fifo.oldest(BATCH as usize);
        let mut batch = domain.raw_batch();
        for slot in slots.iter() {
            batch.unmap_raw(*slot, len)?;
        }
        batch.commit()?;
        let new: [Segment; BATCH as usize] = std::array::from_fn(|_| Segment { phys: buffers.take(), len });
        let mut slots = slots.iter_mut();
        raw::map_batch(domain, &new, access, |iova| {
            if let Some(slot) = slots.next() {
                *slot = iova;
            }
        })?;
        fifo.pass(BATCH as usize, buffers);
        Ok(())
    }
}

impl<M: Mapper> Worker for Batches<'_, M> {
    #[inline(never)]
    fn run(&mut self, pairs: u64, meter: &mut Meter) -> Result<(), BenchError> {
        meter.start();
        for _ in 0..pairs / BATCH {
            self.turn()?;
        }
        meter.stop();
        self.commits += pairs / BATCH;
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
