//! A small driver for the e1000e (Intel 82574L): a transmit and a receive ring, with everything that is sent looped back.
//!
//! It shows how a driver uses a [`Domain`]:
//! * the rings live as long as the driver: one mapping, [`Lifetime::Persistent`];
//! * a buffer is mapped when it goes on a ring and unmapped when the device is done with it. It may begin and end anywhere in
//!   a page; two buffers may share a page, and a buffer may cross into the next;
//! * all buffers that one look finds done are unmapped in one batch: one wait for the hardware;
//! * to stop, first the device is reset, then its mappings go.
//!
//! It maps through the raw face, since that serves every protection. Under deferred protection somebody else calls
//! [`Domain::tick`].
//!
//! ```no_run
//! use portcullis::designs::Magazine;
//! use portcullis::{Domain, PAGE_SIZE, PhysAddr, Protection, Segment, SourceId};
//! use portcullis_qemu::e1000e::{E1000e, RECEIVE_BYTES};
//! use portcullis_qemu::{Accelerator, Buffers, QemuMachine, QemuSetup, VtdMmio};
//! use portcullis_vtd::{UnitConfig, Unit};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let setup = QemuSetup::new(Accelerator::Stopped)
//!     .arguments(["-netdev", "hubport,id=hub,hubid=0"])
//!     .device("e1000e,addr=6,netdev=hub");
//! let (machine, source) = (QemuMachine::start(setup)?, SourceId(6 << 3));
//! let unit = Unit::bring_up(VtdMmio(machine.clone()), machine.host(), UnitConfig::default())?;
//! let domain = Domain::<Magazine, _, _>::new(&unit, machine.host(), Protection::Strict)?;
//! domain.attach(source)?;
//!
//! let mut buffers = Buffers::of(machine.memory());
//! let mut nic = E1000e::start(&machine.function(source), &domain, &mut buffers)?;
//! let page = buffers.take(1)?; // two halves of one page
//! nic.post(PhysAddr::new(page.as_u64() + RECEIVE_BYTES))?;
//! nic.send(Segment { phys: page, len: 60 })?;
//! nic.ring();
//! for sent in nic.sent()? { /* the device no longer reads `sent` */ }
//! for frame in nic.received()? { /* nor does it write `frame.frame` */ }
//! nic.stop()?;
//! # Ok(())
//! # }
//! ```

use crate::dma::{Coherent, DriverError, Lent, within};
use crate::{Bar, Buffers, Function};
use portcullis::design::Design;
use portcullis::invalidation::BATCH_MAX;
use portcullis::{
    Access, Domain, Iommu, Iova, Lifetime, PAGE_SIZE, PhysAddr, Platform, RawUnmapError, Segment, Stream,
};
use std::collections::VecDeque;

/// Vendor and device id.
const IDENTITY: u32 = 0x10d3_8086;

const CONTROL: u64 = 0x0;
const RESET: u32 = 1 << 26;
const LINK_UP: u32 = 1 << 6;
const STATUS: u64 = 0x8;
const LINK_IS_UP: u32 = 1 << 1;
const INTERRUPTS_OFF: u64 = 0xd8;
const RECEIVE_CONTROL: u64 = 0x100;
/// Enabled; every unicast address and broadcasts; loopback inside the MAC; buffers of 2048 bytes; the checksum stripped.
const RECEIVE: u32 = 1 << 1 | 1 << 3 | 1 << 6 | 1 << 15 | 1 << 26;
const TRANSMIT_CONTROL: u64 = 0x400;
/// Enabled; short packets padded.
const TRANSMIT: u32 = 1 << 1 | 1 << 3;
/// Registers of a ring, from its base on.
const RECEIVE_RING: u64 = 0x2800;
const TRANSMIT_RING: u64 = 0x3800;
const ADDRESS_LOW: u64 = 0x00;
const ADDRESS_HIGH: u64 = 0x04;
const LENGTH: u64 = 0x08;
const HEAD: u64 = 0x10;
const TAIL: u64 = 0x18;

/// Command of a transmit descriptor: the frame's end, with a checksum, and report when done.
const WHOLE_FRAME: u64 = 0x0b << 24;
/// Status of a descriptor: the device is done with it.
const DONE: u64 = 1 << 32;
/// Status of a receive descriptor: the frame ends in this buffer.
const END_OF_FRAME: u64 = 1 << 33;
const ERRORS: u64 = 0xff << 40;

/// Descriptors of a ring.
const ENTRIES: u16 = 64;
/// Buffers that a ring holds at most: head and tail that meet mean an empty one.
pub const RING_BUFFERS: usize = ENTRIES as usize - 1;
const _: () = assert!(RING_BUFFERS <= BATCH_MAX, "one batch unmaps a ring");
/// Bytes that a receive buffer has.
pub const RECEIVE_BYTES: u64 = 2048;
/// The longest frame, in bytes, without its checksum.
pub const FRAME_BYTES_MAX: u64 = 1522;

/// A frame that has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// Where it is: the beginning of a buffer that was posted.
    pub frame: Segment,
    /// Whether all of it is there, without errors.
    pub whole: bool,
}

/// The device.
///
/// Dropping it leaves the device running and everything mapped, which only the end of the domain then takes away: use
/// [`stop`](E1000e::stop).
pub struct E1000e<'d, D: Design<P, I>, P: Platform, I: Iommu> {
    registers: Bar,
    domain: &'d Domain<D, P, I>,
    shared: Coherent,
    receive: Ring,
    transmit: Ring,
}

impl<'d, D: Design<P, I>, P: Platform, I: Iommu> E1000e<'d, D, P, I> {
    /// Takes the device over. It must be attached to `domain`; memory for the rings comes from `buffers`.
    ///
    /// # Errors
    /// A [`DriverError`]; nothing stays mapped, unless the device does not reset.
    pub fn start(function: &Function, domain: &'d Domain<D, P, I>, buffers: &mut Buffers) -> Result<Self, DriverError> {
        let found = function.identity();
        if found != IDENTITY {
            return Err(DriverError::Identity { found, expected: "0x10d38086, an e1000e" });
        }
        let registers = function.enable();
        let shared = Coherent::new(domain, registers.machine().memory(), buffers, 2)?;
        let receive = Ring::new(RECEIVE_RING, 0);
        let transmit = Ring::new(TRANSMIT_RING, PAGE_SIZE);
        let this = Self { registers, domain, shared, receive, transmit };
        match this.bring_up() {
            Ok(()) => Ok(this),
            Err(error) => this.stop().and(Err(error)),
        }
    }

    fn bring_up(&self) -> Result<(), DriverError> {
        self.reset()?;
        self.registers.write32(CONTROL, self.registers.read32(CONTROL) | LINK_UP);
        for ring in [&self.receive, &self.transmit] {
            let address = self.shared.iova(ring.descriptors);
            self.registers.write32(ring.registers + ADDRESS_LOW, address as u32);
            self.registers.write32(ring.registers + ADDRESS_HIGH, (address >> 32) as u32);
            self.registers.write32(ring.registers + LENGTH, u32::from(ENTRIES) * 16);
            self.registers.write32(ring.registers + HEAD, 0);
            self.registers.write32(ring.registers + TAIL, 0);
        }
        self.registers.write32(RECEIVE_CONTROL, RECEIVE);
        self.registers.write32(TRANSMIT_CONTROL, TRANSMIT);
        within("bring its link up", || (self.registers.read32(STATUS) & LINK_IS_UP != 0).then_some(()))
    }

    fn reset(&self) -> Result<(), DriverError> {
        self.registers.write32(INTERRUPTS_OFF, u32::MAX);
        self.registers.write32(RECEIVE_CONTROL, 0);
        self.registers.write32(TRANSMIT_CONTROL, 0);
        self.registers.write32(CONTROL, self.registers.read32(CONTROL) | RESET);
        within("reset", || (self.registers.read32(CONTROL) & RESET == 0).then_some(()))
    }

    /// Maps the [`RECEIVE_BYTES`] bytes at `buffer` and puts them on the ring, for a frame to come.
    ///
    /// # Errors
    /// [`DriverError::Full`], [`DriverError::Map`]; nothing has changed then.
    pub fn post(&mut self, buffer: PhysAddr) -> Result<(), DriverError> {
        let buffer = Segment { phys: buffer, len: RECEIVE_BYTES };
        self.receive.put(self.domain, &self.shared, buffer, Access::DeviceWrites, 0)
    }

    /// Maps a frame, addresses first and without checksum, and puts it on the ring, to be sent.
    ///
    /// # Errors
    /// [`DriverError::Full`], [`DriverError::Buffer`], [`DriverError::Map`]; nothing has changed then.
    pub fn send(&mut self, frame: Segment) -> Result<(), DriverError> {
        if !(14..=FRAME_BYTES_MAX).contains(&frame.len) {
            let (at, len) = (frame.phys.as_u64(), frame.len);
            return Err(DriverError::Buffer { at, len, expected: "a frame of 14 to 1522 bytes" });
        }
        self.transmit.put(self.domain, &self.shared, frame, Access::DeviceReads, frame.len | WHOLE_FRAME)
    }

    /// Tells the device of everything that was put on its rings: first of the room, then of the frames to send.
    pub fn ring(&self) {
        for ring in [&self.receive, &self.transmit] {
            self.registers.write32(ring.registers + TAIL, ring.tail.into());
        }
    }

    /// The frames that have been sent since the last call. The device has lost them.
    ///
    /// # Errors
    /// [`DriverError::Unmap`]: no buffer of the batch may be used again.
    pub fn sent(&mut self) -> Result<Vec<Segment>, DriverError> {
        let done = self.transmit.take_done(self.domain, &self.shared)?;
        Ok(done.into_iter().map(|(frame, _)| frame).collect())
    }

    /// The frames that have come since the last call. The device has lost their buffers.
    ///
    /// # Errors
    /// [`DriverError::Unmap`]: no buffer of the batch may be used again.
    pub fn received(&mut self) -> Result<Vec<Received>, DriverError> {
        let done = self.receive.take_done(self.domain, &self.shared)?;
        let received = |(buffer, word): (Segment, u64)| {
            // The device wrote the word, and may lie.
            let len = word & 0xffff;
            let whole = word & (END_OF_FRAME | ERRORS) == END_OF_FRAME && len <= buffer.len;
            Received { frame: Segment { phys: buffer.phys, len: len.min(buffer.len) }, whole }
        };
        Ok(done.into_iter().map(received).collect())
    }

    /// Where the device sees the buffers that it was given last, to send and to receive into, if it has any.
    pub fn latest(&self) -> [Option<Iova>; 2] {
        [&self.transmit, &self.receive].map(|ring| ring.lent.back().map(|lent| lent.iova))
    }

    /// Stops the device and unmaps everything.
    ///
    /// # Errors
    /// [`DriverError::Silent`]: it may still do DMA, so everything stays mapped. [`DriverError::Unmap`].
    pub fn stop(self) -> Result<(), DriverError> {
        self.reset()?;
        for ring in [&self.receive, &self.transmit] {
            unmap(self.domain, ring.lent.iter())?;
        }
        Ok(self.domain.unmap_raw(self.shared.range().start(), self.shared.range().pages() * PAGE_SIZE)?)
    }
}

/// A ring: the device takes from its head, the driver adds at its tail and takes back in the same order.
struct Ring {
    /// Where its registers are.
    registers: u64,
    /// Where its descriptors are in the shared pages: 16 bytes each, an address and a word that both sides write.
    descriptors: u64,
    tail: u16,
    /// What the device has, oldest first.
    lent: VecDeque<Lent>,
}

impl Ring {
    fn new(registers: u64, descriptors: u64) -> Self {
        Self { registers, descriptors, tail: 0, lent: VecDeque::with_capacity(RING_BUFFERS) }
    }

    fn put<D: Design<P, I>, P: Platform, I: Iommu>(
        &mut self,
        domain: &Domain<D, P, I>,
        shared: &Coherent,
        buffer: Segment,
        access: Access,
        word: u64,
    ) -> Result<(), DriverError> {
        if self.lent.len() == RING_BUFFERS {
            return Err(DriverError::Full);
        }
        let stream = Stream(Some(self.registers as u32));
        let lent = Lent::new(domain, buffer, access, stream, Lifetime::Transient)?;
        let descriptor = self.descriptors + u64::from(self.tail) * 16;
        shared.write(descriptor, lent.iova.as_u64());
        shared.write(descriptor + 8, word);
        self.tail = (self.tail + 1) % ENTRIES;
        self.lent.push_back(lent);
        Ok(())
    }

    /// Takes back what the device is done with, with the second word of each descriptor. Unmapped before this returns.
    fn take_done<D: Design<P, I>, P: Platform, I: Iommu>(
        &mut self,
        domain: &Domain<D, P, I>,
        shared: &Coherent,
    ) -> Result<Vec<(Segment, u64)>, DriverError> {
        let oldest = (self.tail + ENTRIES - self.lent.len() as u16) % ENTRIES;
        let words = (0..self.lent.len() as u16)
            .map(|index| shared.read(self.descriptors + u64::from((oldest + index) % ENTRIES) * 16 + 8))
            .take_while(|word| word & DONE != 0);
        let words: Vec<u64> = words.collect();
        unmap(domain, self.lent.iter().take(words.len()))?;
        let done: Vec<Lent> = self.lent.drain(..words.len()).collect();
        Ok(done.iter().map(|lent| lent.buffer).zip(words).collect())
    }
}

/// Unmaps all of them, with one wait for the hardware.
fn unmap<'l, D: Design<P, I>, P: Platform, I: Iommu>(
    domain: &Domain<D, P, I>,
    mut done: impl Iterator<Item = &'l Lent>,
) -> Result<(), DriverError> {
    let mut batch = domain.raw_batch();
    done.try_for_each(|lent| batch.unmap(lent.range)).map_err(RawUnmapError::from)?;
    Ok(batch.commit().map_err(RawUnmapError::from)?)
}
