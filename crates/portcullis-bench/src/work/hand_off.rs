//! Mappings that one thread makes and another unmaps, with a queue between them.

use super::{Buffers, Live, Worker};
use crate::BenchError;
use crate::meter::Meter;
use portcullis::platform::Padded;
use portcullis::{Access, Iova, PAGE_SIZE, PhysAddr};
use std::hint;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Addresses that the queue holds.
const CAPACITY: u64 = 1024;
/// Addresses handed over at a time. The wait for them is not timed: it is not work of the layer, and on a busy machine
/// it would depend on other programs.
pub(crate) const CHUNK: u64 = 128;
/// Addresses in the queue between samples, so that neither thread begins with a wait.
const AT_REST: u64 = CAPACITY / 2;
/// Turns of a wait before the thread yields its CPU, in case there are fewer CPUs than threads.
const SPINS: u32 = 1 << 14;

/// A bounded queue from one thread to another.
pub(crate) struct Queue {
    slots: Box<[AtomicU64]>,
    /// Addresses put in, in total.
    put: Padded<AtomicU64>,
    /// Addresses taken out, in total.
    taken: Padded<AtomicU64>,
    /// Set when either thread has failed.
    abandoned: Padded<AtomicBool>,
}

impl Queue {
    pub(crate) fn new() -> Self {
        let slots = (0..CAPACITY).map(|_| AtomicU64::new(0)).collect();
        Self { slots, put: Padded::default(), taken: Padded::default(), abandoned: Padded::default() }
    }

    fn slot(&self, number: u64) -> &AtomicU64 {
        &self.slots[(number % CAPACITY) as usize]
    }

    /// Waits until `ready` holds.
    fn wait(&self, ready: impl Fn() -> bool) -> Result<(), BenchError> {
        let mut spins = 0u32;
        while !ready() {
            if self.abandoned.0.load(Ordering::Relaxed) {
                return Err(BenchError::Abandoned);
            }
            hint::spin_loop();
            spins += 1;
            if spins.is_multiple_of(SPINS) {
                thread::yield_now();
            }
        }
        Ok(())
    }

    /// After an error, tells the other thread that this one will not continue.
    fn watched(&self, result: Result<(), BenchError>) -> Result<(), BenchError> {
        if result.is_err() {
            self.abandoned.0.store(true, Ordering::Relaxed);
        }
        result
    }

    fn in_it(&self) -> std::ops::Range<u64> {
        self.taken.0.load(Ordering::Relaxed)..self.put.0.load(Ordering::Relaxed)
    }
}

/// The thread that maps, with `map`.
pub(crate) struct Producer<'q, F> {
    queue: &'q Queue,
    map: F,
    buffers: Buffers,
}

impl<'q, F: FnMut(PhysAddr) -> Result<Iova, BenchError>> Producer<'q, F> {
    /// Makes the thread's state, and fills the queue to its level between samples.
    pub(crate) fn new(queue: &'q Queue, worker: u64, map: F) -> Result<Self, BenchError> {
        let mut producer = Self { queue, map, buffers: Buffers::new(worker, CAPACITY * 2, 1) };
        for _ in 0..AT_REST / CHUNK {
            producer.chunk()?;
        }
        Ok(producer)
    }

    #[inline(always)]
    fn chunk(&mut self) -> Result<(), BenchError> {
        let put = self.queue.put.0.load(Ordering::Relaxed);
        for number in put..put + CHUNK {
            let iova = (self.map)(self.buffers.take())?;
            self.queue.slot(number).store(iova.as_u64(), Ordering::Relaxed);
        }
        self.queue.put.0.store(put + CHUNK, Ordering::Release);
        Ok(())
    }

    #[inline(never)]
    fn chunks(&mut self, pairs: u64, meter: &mut Meter) -> Result<(), BenchError> {
        for _ in 0..pairs / CHUNK {
            let put = self.queue.put.0.load(Ordering::Relaxed);
            self.queue.wait(|| put + CHUNK - self.queue.taken.0.load(Ordering::Acquire) <= CAPACITY)?;
            meter.start();
            self.chunk()?;
            meter.stop();
        }
        Ok(())
    }
}

impl<F: FnMut(PhysAddr) -> Result<Iova, BenchError>> Worker for Producer<'_, F> {
    fn run(&mut self, pairs: u64, meter: &mut Meter) -> Result<(), BenchError> {
        let done = self.chunks(pairs, meter);
        self.queue.watched(done)
    }

    /// The addresses that it has put into the queue and that were not taken out.
    fn live(&self) -> Vec<Live> {
        let put = self.queue.in_it();
        let mut buffers = self.buffers;
        let all = (buffers.end - buffers.first) / PAGE_SIZE;
        buffers.next = buffers.first + put.start % all * PAGE_SIZE;
        let live = |number| Live {
            iova: Iova::new(self.queue.slot(number).load(Ordering::Relaxed)),
            phys: buffers.take(),
            pages: 1,
            access: Access::DeviceWrites,
        };
        put.map(live).collect()
    }

    fn commits(&self) -> u64 {
        0
    }

    fn drain(&mut self) -> Result<(), BenchError> {
        Ok(())
    }
}

/// The thread that unmaps, with `unmap`.
pub(crate) struct Consumer<'q, F> {
    queue: &'q Queue,
    unmap: F,
    commits: u64,
}

impl<'q, F: FnMut(Iova) -> Result<(), BenchError>> Consumer<'q, F> {
    pub(crate) fn new(queue: &'q Queue, unmap: F) -> Self {
        Self { queue, unmap, commits: 0 }
    }

    #[inline(always)]
    fn chunk(&mut self) -> Result<(), BenchError> {
        let taken = self.queue.taken.0.load(Ordering::Relaxed);
        for number in taken..taken + CHUNK {
            (self.unmap)(Iova::new(self.queue.slot(number).load(Ordering::Relaxed)))?;
        }
        self.queue.taken.0.store(taken + CHUNK, Ordering::Release);
        self.commits += CHUNK;
        Ok(())
    }

    #[inline(never)]
    fn chunks(&mut self, pairs: u64, meter: &mut Meter) -> Result<(), BenchError> {
        for _ in 0..pairs / CHUNK {
            let taken = self.queue.taken.0.load(Ordering::Relaxed);
            self.queue.wait(|| self.queue.put.0.load(Ordering::Acquire) - taken >= CHUNK)?;
            meter.start();
            self.chunk()?;
            meter.stop();
        }
        Ok(())
    }
}

impl<F: FnMut(Iova) -> Result<(), BenchError>> Worker for Consumer<'_, F> {
    fn run(&mut self, pairs: u64, meter: &mut Meter) -> Result<(), BenchError> {
        let done = self.chunks(pairs, meter);
        self.queue.watched(done)
    }

    fn live(&self) -> Vec<Live> {
        Vec::new()
    }

    fn commits(&self) -> u64 {
        self.commits
    }

    fn drain(&mut self) -> Result<(), BenchError> {
        while !self.queue.in_it().is_empty() {
            self.chunk()?;
        }
        Ok(())
    }
}
