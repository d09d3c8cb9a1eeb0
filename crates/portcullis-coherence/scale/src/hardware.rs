//! Hardware below the driver: the registers of a VT-d unit, with stated times.

use crate::Hardware;
use crate::witness::Witness;
use portcullis::Iova;
use portcullis_coherence::atomic::{AtomicU32, AtomicU64, Ordering};
use portcullis_coherence::{at, device_write, work, write_to_device};
use portcullis_vtd::Mmio;
use portcullis_vtd::spec::descriptors::DESCRIPTOR_BYTES;
use portcullis_vtd::spec::registers::{
    CAP, Capability, ECAP, ExtendedCapability, GCMD, GSTS, IQA, IQH, IQT, VER, global, widths,
};
use std::ptr;
use std::sync::atomic;

const QUEUE_BYTES: u64 = 4096;
/// The types of a wait and of an IOTLB invalidation (Intel VT-d specification, §6.5.2).
const WAIT: u64 = 5;
const IOTLB: u64 = 2;
/// The bits of an IOTLB invalidation that tell how many pages it covers: two to their power.
const ADDRESS_MASK: u64 = 0x3f;
/// What the registers in memory take for a descriptor, in cycles.
const AT_ONCE_CYCLES: u64 = 3;
/// What a read of a register takes, in cycles: it crosses the bus twice.
const REGISTER_READ_CYCLES: u64 = 700;

/// The times of hardware, in cycles.
#[derive(Clone, Copy)]
struct Times {
    command: u64,
    wait: u64,
    /// From the write of the tail to the first descriptor, and from the last wait to its status, together.
    latency: u64,
}

/// The registers.
///
/// If the hardware answers at once, as in the native benchmark `page-1-driven`, they are words of memory that CPUs
/// access, and so are the descriptors that it reads. Otherwise it accesses memory by itself.
pub(crate) struct Registers {
    times: Option<Times>,
    status: AtomicU32,
    queue: AtomicU64,
    tail: AtomicU64,
    /// When the hardware has done all that it knows of.
    busy_until: atomic::AtomicU64,
    pub(crate) witness: Witness,
}

impl Registers {
    pub(crate) fn new(hardware: Hardware) -> Self {
        let times = match hardware {
            Hardware::None | Hardware::AtOnce => None,
            Hardware::Fast => Some(Times { command: 130, wait: 130, latency: 1700 }),
            Hardware::Slow => Some(Times { command: 1181, wait: 590, latency: 0 }),
        };
        Self {
            times,
            status: AtomicU32::new(0),
            queue: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            busy_until: atomic::AtomicU64::new(0),
            witness: Witness::default(),
        }
    }

    /// Executes the descriptors up to `tail`.
    fn run_queue(&self, tail: u64) {
        match self.times {
            None => {
                let (queue, from) = (self.queue.load(Ordering::Relaxed), self.tail.load(Ordering::Relaxed));
                self.execute::<AtomicU64>(
                    queue,
                    from,
                    tail,
                    |word| word.load(Ordering::Relaxed),
                    |wait| {
                        work(AT_ONCE_CYCLES);
                        if let Some((status, data)) = wait {
                            // SAFETY: as for descriptors: a status in a page of the driver.
                            let status: &AtomicU32 = unsafe { &*ptr::with_exposed_provenance(status) };
                            status.store(data, Ordering::Release);
                        }
                    },
                );
                self.tail.store(tail, Ordering::Relaxed);
            }
            Some(times) => self.run_queue_later(times, tail),
        }
    }

    fn run_queue_later(&self, times: Times, tail: u64) {
        let arrives = write_to_device();
        let mut time = self.busy_until.load(Ordering::Relaxed).max(arrives + times.latency / 2);
        // Not accesses of a CPU.
        let (queue, from) = (of_device(&self.queue), of_device(&self.tail));
        let (queue, from) = (queue.load(Ordering::Relaxed), from.swap(tail, Ordering::Relaxed));
        self.execute::<atomic::AtomicU64>(
            queue,
            from,
            tail,
            |word| word.load(Ordering::Relaxed),
            |wait| match wait {
                None => time += times.command,
                Some((status, data)) => {
                    time += times.wait;
                    at(time + times.latency / 2, move || {
                        device_write(status);
                        // SAFETY: as for descriptors: a status in a page of the driver.
                        let status: &atomic::AtomicU32 = unsafe { &*ptr::with_exposed_provenance(status) };
                        status.store(data, Ordering::Release);
                    });
                }
            },
        );
        self.busy_until.store(time, Ordering::Relaxed);
    }

    /// Calls `each` for the descriptors in `from..tail`, with the address and the data of the status if it is a wait.
    /// They are read as words of type `W`.
    fn execute<W: 'static>(
        &self,
        queue: u64,
        from: u64,
        tail: u64,
        read: impl Fn(&W) -> u64,
        mut each: impl FnMut(Option<(usize, u32)>),
    ) {
        let mut offset = from;
        while offset != tail {
            let word = |at: u64| {
                // SAFETY: the driver has set this address as its queue: a page of the host, which consists of such
                // words.
                read(unsafe { &*ptr::with_exposed_provenance::<W>((queue + at) as usize) })
            };
            let low = word(offset);
            // The upper half of the low word is the data of the status; its address is the high word.
            let wait = (low & 0xf == WAIT).then(|| (word(offset + 8) as usize, (low >> 32) as u32));
            if low & 0xf == IOTLB {
                let high = word(offset + 8);
                self.witness.invalidated(Iova::new(high), (high & ADDRESS_MASK) as u8);
            }
            each(wait);
            offset = (offset + DESCRIPTOR_BYTES) % QUEUE_BYTES;
        }
    }

    fn read(&self, register: &AtomicU64) -> u64 {
        if self.times.is_none() {
            return register.load(Ordering::Relaxed);
        }
        work(REGISTER_READ_CYCLES);
        of_device(register).load(Ordering::Relaxed)
    }
}

/// A register that is not in memory.
fn of_device(register: &AtomicU64) -> &atomic::AtomicU64 {
    // SAFETY: `portcullis_coherence` promises that its atomics are transparent.
    unsafe { &*ptr::from_ref(register).cast() }
}

// SAFETY: it has no devices, so no device reaches any memory.
unsafe impl Mmio for Registers {
    fn read32(&self, offset: u32) -> u32 {
        match offset {
            VER => 0x10,
            GSTS => self.status.load(Ordering::Relaxed),
            // No fault, and no protected memory.
            _ => {
                work(if self.times.is_some() { REGISTER_READ_CYCLES } else { 0 });
                0
            }
        }
    }

    fn read64(&self, offset: u32) -> u64 {
        match offset {
            CAP => {
                let widths = widths::LEVELS_3 | widths::LEVELS_4;
                let sizes = Capability(0).with_nd(6).with_sagaw(widths).with_mgaw(47).with_fro(0x20);
                sizes.with_sllps(3).with_mamv(18).with_psi(true).0
            }
            ECAP => ExtendedCapability(0).with_qi(true).with_coherent(true).with_pt(true).with_rings(true).0,
            IQH | IQT => self.read(&self.tail),
            _ => 0,
        }
    }

    unsafe fn write32(&self, offset: u32, value: u32) {
        if offset == GCMD {
            self.status.store(value & !global::ONE_SHOT | value & global::ROOT_TABLE, Ordering::Relaxed);
        }
    }

    unsafe fn write64(&self, offset: u32, value: u64) {
        match offset {
            IQA => self.queue.store(value, Ordering::Relaxed),
            IQT => self.run_queue(value),
            _ => {}
        }
    }
}
