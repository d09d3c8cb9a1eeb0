//! A receive ring and a transmit ring, served in turn.

use super::{Fifo, Live, Worker, replace};
use crate::BenchError;
use crate::meter::Meter;
use portcullis::Domain;
use portcullis::mapper::Mapper;

/// Replaces one mapping of each ring in turn.
pub(crate) struct Interleaved<'d, M: Mapper> {
    domain: &'d Domain<M>,
    receive: Fifo,
    transmit: Fifo,
    commits: u64,
}

impl<'d, M: Mapper> Interleaved<'d, M> {
    pub(crate) fn new(domain: &'d Domain<M>, receive: Fifo, transmit: Fifo) -> Self {
        Self { domain, receive, transmit, commits: 0 }
    }
}

impl<M: Mapper> Worker for Interleaved<'_, M> {
    #[inline(never)]
    fn run(&mut self, pairs: u64, meter: &mut Meter) -> Result<(), BenchError> {
        meter.start();
        let Self { domain, receive, transmit, .. } = self;
        let (lens, accesses) = ([receive.len, transmit.len], [receive.access, transmit.access]);
        let mut buffers = [receive.place.buffers, transmit.place.buffers];
        let mut left = (pairs / 2) as usize;
        while left > 0 {
            let (received, transmitted) = (receive.oldest(left), transmit.oldest(left));
            let count = received.len().min(transmitted.len());
            for (received, transmitted) in received.iter_mut().zip(transmitted).take(count) {
                replace(domain, received, &mut buffers[0], lens[0], accesses[0])?;
                replace(domain, transmitted, &mut buffers[1], lens[1], accesses[1])?;
            }
            receive.pass(count, buffers[0]);
            transmit.pass(count, buffers[1]);
            left -= count;
        }
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
