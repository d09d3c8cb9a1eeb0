//! A receive ring and a transmit ring, served in turn.

use super::{Fifo, Lane, Live};
use crate::bench::BenchError;
use crate::bench::meter::Meter;
use portcullis::design::Design;
use portcullis::{Domain, Iommu, Platform};

/// One mapping of either ring at a time.
pub(in crate::bench) struct Interleaved<'d, D: Design<P, I>, P: Platform, I: Iommu> {
    domain: &'d Domain<D, P, I>,
    receive: Fifo,
    transmit: Fifo,
    commits: u64,
}

impl<'d, D: Design<P, I>, P: Platform, I: Iommu> Interleaved<'d, D, P, I> {
    pub(in crate::bench) fn new(domain: &'d Domain<D, P, I>, receive: Fifo, transmit: Fifo) -> Self {
        Self { domain, receive, transmit, commits: 0 }
    }
}

impl<D: Design<P, I>, P: Platform, I: Iommu> Lane for Interleaved<'_, D, P, I> {
    #[inline(never)]
    fn run(&mut self, pairs: u64, meter: &mut Meter) -> Result<(), BenchError> {
        meter.start();
        let (mut receive, mut transmit) = (self.receive.place, self.transmit.place);
        for _ in 0..pairs / 2 {
            self.receive.turn(self.domain, &mut receive)?;
            self.transmit.turn(self.domain, &mut transmit)?;
        }
        (self.receive.place, self.transmit.place) = (receive, transmit);
        meter.stop();
        self.commits += pairs / 2 * 2;
        Ok(())
    }

    fn live(&self) -> Vec<Live> {
        [self.receive.live(), self.transmit.live()].concat()
    }

    fn commits(&self) -> u64 {
        self.commits
    }

    fn drain(&mut self) -> Result<(), BenchError> {
        self.commits += (self.receive.slots.len() + self.transmit.slots.len()) as u64;
        self.receive.drain(self.domain)?;
        self.transmit.drain(self.domain)
    }
}
