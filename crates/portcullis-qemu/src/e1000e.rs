//! A small driver for the e1000e (Intel 82574L): a transmit ring and a receive ring. Every frame that is sent is
//! looped back.
//!
//! It shows how a driver uses a [`Domain`]:
//! * The rings live as long as the driver, and driver and device use them at the same time: they are one mapping,
//!   made by [`Domain::map_shared`].
//! * A buffer is mapped when it goes on a ring, and unmapped when the device is done with it. It may begin and end
//!   anywhere in a page. Two buffers may share a page, and a buffer may extend into the next page.
//! * All buffers that one poll finds done are unmapped in one batch, with one wait for the hardware.
//! * To stop, the driver first resets the device and then removes its mappings.
//!
//! The driver owns buffers while they are mapped, and returns them when the device is done. The typed interface needs
//! strict protection.
//!
//! ```no_run
//! use portcullis::designs::Magazine;
//! use portcullis::{Open, Protection, SourceId};
//! use portcullis_qemu::e1000e::{E1000e, RECEIVE_BYTES};
//! use portcullis_qemu::{Accelerator, GuestBuffer, QemuMachine, QemuSetup, VtdMmio};
//! use portcullis_vtd::{UnitConfig, Unit};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let setup = QemuSetup::new(Accelerator::Stopped)
//!     .arguments(["-netdev", "hubport,id=hub,hubid=0"])
//!     .device("e1000e,addr=6,netdev=hub");
//! let (machine, source) = (QemuMachine::start(setup)?, SourceId::from_requester(6 << 3));
//! let unit = Unit::bring_up(VtdMmio(machine.clone()), machine.host(), UnitConfig::default())?;
//! let domain = Magazine::open(&unit, machine.host(), Protection::Strict)?;
//! domain.attach(source)?;
//!
//! let mut nic = E1000e::start(&machine.function(source), &domain)?;
//! // Two halves of one page.
//! let [frame, room] = GuestBuffer::new(machine.memory(), 1)?.split_at(RECEIVE_BYTES);
//! nic.post(room)?;
//! nic.send(frame.lending(0, 60))?;
//! nic.ring();
//! for frame in nic.sent()? { /* the device no longer reads it */ }
//! for received in nic.received()? { /* nor does it write `received.buffer` */ }
//! nic.stop()?;
//! # Ok(())
//! # }
//! ```

use crate::dma::{DriverError, NotTaken, Returning, Shared, give_up, lend, take_back, wait, within};
use crate::{Bar, Function, GuestBuffer};
use portcullis::domain::{Mapping, RingConfig};
use portcullis::invalidation::BATCH_MAX;
use portcullis::mapper::Mapper;
use portcullis::{Access, Domain, Iova, PAGE_SIZE};
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
/// Enabled; every unicast address and broadcasts; loopback in the MAC; buffers of 2048 bytes; checksum stripped.
const RECEIVE: u32 = 1 << 1 | 1 << 3 | 1 << 6 | 1 << 15 | 1 << 26;
const TRANSMIT_CONTROL: u64 = 0x400;
/// Enabled; short packets padded.
const TRANSMIT: u32 = 1 << 1 | 1 << 3;
/// The registers of a ring, as offsets from its base.
const RECEIVE_RING: u64 = 0x2800;
const TRANSMIT_RING: u64 = 0x3800;
const ADDRESS_LOW: u64 = 0x00;
const ADDRESS_HIGH: u64 = 0x04;
const LENGTH: u64 = 0x08;
const HEAD: u64 = 0x10;
const TAIL: u64 = 0x18;

/// Command of a transmit descriptor: end of the frame, insert the checksum, report completion.
const WHOLE_FRAME: u64 = 0x0b << 24;
/// Status of a descriptor: the device is done with it.
const DONE: u64 = 1 << 32;
/// Status of a receive descriptor: the frame ends in this buffer.
const END_OF_FRAME: u64 = 1 << 33;
const ERRORS: u64 = 0xff << 40;

/// The number of descriptors in a ring.
const ENTRIES: u16 = 64;
/// The most buffers that a ring holds. Equal head and tail mean an empty ring.
pub const RING_BUFFERS: usize = ENTRIES as usize - 1;
const _: () = assert!(RING_BUFFERS <= BATCH_MAX, "one batch unmaps a ring");
/// The most pages that a buffer spans: it may extend into the next page.
const BUFFER_PAGES_MAX: u64 = 2;
/// The length of a receive buffer in bytes.
pub const RECEIVE_BYTES: u64 = 2048;
/// The longest frame, in bytes, without its checksum.
pub const FRAME_BYTES_MAX: u64 = 1522;

/// A frame that was received.
#[derive(Debug)]
pub struct Received {
    /// The buffer that was posted. The device can no longer reach it.
    pub buffer: GuestBuffer,
    /// The length of the frame in bytes, from the beginning of the lent part.
    pub len: u64,
    /// Whether the whole frame is there, without errors.
    pub whole: bool,
}

/// The driver of one device.
///
/// Dropping it leaves the device running and everything mapped, until the domain ends. The buffers are lost for good.
/// Use [`stop`](E1000e::stop).
pub struct E1000e<'d, M: Mapper + ?Sized> {
    registers: Bar,
    domain: &'d Domain<M>,
    shared: Shared,
    receive: Ring<'d, M>,
    transmit: Ring<'d, M>,
}

impl<'d, M: Mapper + ?Sized> E1000e<'d, M> {
    /// Takes the device over. The device must be attached to `domain`.
    ///
    /// # Errors
    /// A [`DriverError`]; nothing stays mapped, unless the device does not reset.
    pub fn start(function: &Function, domain: &'d Domain<M>) -> Result<Self, DriverError> {
        let found = function.identity();
        if found != IDENTITY {
            return Err(DriverError::Identity { found, expected: "0x10d38086, an e1000e" });
        }
        let registers = function.enable();
        let receive = Ring::new(domain, Access::DeviceWrites, RECEIVE_RING, 0)?;
        let transmit = Ring::new(domain, Access::DeviceReads, TRANSMIT_RING, PAGE_SIZE)?;
        let shared = Shared::new(domain, registers.machine().memory(), 2)?;
        let this = Self { registers, domain, shared, receive, transmit };
        match this.bring_up() {
            Ok(()) => Ok(this),
            Err(error) => Err(this.stop().err().unwrap_or(error)),
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

    /// Maps a buffer of [`RECEIVE_BYTES`] bytes and puts it on the receive ring.
    ///
    /// # Errors
    /// [`NotTaken`] returns the buffer, unless it is lost, with [`DriverError::Full`], [`DriverError::Buffer`],
    /// [`DriverError::Descriptor`] or [`DriverError::Map`].
    pub fn post(&mut self, buffer: GuestBuffer) -> Result<(), NotTaken> {
        if buffer.lent().len != RECEIVE_BYTES {
            return Err(wrong_length(buffer, "a receive buffer of 2048 bytes"));
        }
        self.receive.put(&self.shared, buffer, 0)
    }

    /// Maps a frame, which begins with its addresses and has no checksum, and puts it on the transmit ring.
    ///
    /// # Errors
    /// As for [`post`](E1000e::post).
    pub fn send(&mut self, frame: GuestBuffer) -> Result<(), NotTaken> {
        let len = frame.lent().len;
        if !(14..=FRAME_BYTES_MAX).contains(&len) {
            return Err(wrong_length(frame, "a frame of 14 to 1522 bytes"));
        }
        self.transmit.put(&self.shared, frame, len | WHOLE_FRAME)
    }

    /// Tells the device about everything that was put on its rings: first the receive buffers, then the frames to
    /// send.
    pub fn ring(&self) {
        for ring in [&self.receive, &self.transmit] {
            self.registers.write32(ring.registers + TAIL, ring.tail.into());
        }
    }

    /// The frames that were sent since the last call. The device can no longer reach them.
    ///
    /// # Errors
    /// [`DriverError::Unmap`]: the buffers are lost.
    pub fn sent(&mut self) -> Result<Vec<GuestBuffer>, DriverError> {
        self.collect_sent()?.wait()
    }

    /// The same frames, whose unmaps are only submitted.
    ///
    /// # Errors
    /// Those of [`sent`](Self::sent).
    pub fn collect_sent(&mut self) -> Result<Collected<'d, M, GuestBuffer>, DriverError> {
        self.transmit.take_done(self.domain, &self.shared, |frame, _| frame)
    }

    /// The frames that were received since the last call. The device can no longer reach their buffers.
    ///
    /// # Errors
    /// [`DriverError::Unmap`]: the buffers are lost.
    pub fn received(&mut self) -> Result<Vec<Received>, DriverError> {
        self.collect_received()?.wait()
    }

    /// The same frames. The unmaps of their buffers are only submitted, so that the driver can post others in the
    /// meantime.
    ///
    /// # Errors
    /// Those of [`received`](Self::received).
    pub fn collect_received(&mut self) -> Result<Collected<'d, M, Received>, DriverError> {
        self.receive.take_done(self.domain, &self.shared, |buffer, word| {
            // The device wrote this word, and it may be wrong.
            let len = word & 0xffff;
            let whole = word & (END_OF_FRAME | ERRORS) == END_OF_FRAME && len <= RECEIVE_BYTES;
            Received { buffer, len: len.min(RECEIVE_BYTES), whole }
        })
    }

    /// The IOVAs of the newest transmit buffer and the newest receive buffer that the device has, if any.
    pub fn latest(&self) -> [Option<Iova>; 2] {
        [&self.transmit, &self.receive].map(|ring| ring.lent.back().map(Mapping::iova))
    }

    /// Stops the device, unmaps everything, and returns the buffers that the device had not used.
    ///
    /// # Errors
    /// [`DriverError::Silent`]: the device may still do DMA, so everything stays mapped for good.
    /// [`DriverError::Unmap`].
    pub fn stop(self) -> Result<Vec<GuestBuffer>, DriverError> {
        self.reset()?;
        let mut unused = Vec::new();
        for ring in [self.receive, self.transmit] {
            unused.extend(take_back(self.domain, ring.lent)?);
        }
        self.shared.close(self.domain)?;
        Ok(unused)
    }
}

fn wrong_length(buffer: GuestBuffer, expected: &'static str) -> NotTaken {
    let part = buffer.lent();
    let error = DriverError::Buffer { at: part.phys.as_u64(), len: part.len, expected };
    NotTaken { buffer: Some(buffer), error }
}

/// A ring. The device takes descriptors from its head; the driver adds at its tail and takes back in the same order.
struct Ring<'d, M: Mapper + ?Sized> {
    /// Offset of its registers.
    registers: u64,
    /// Offset of its descriptors in the shared pages. A descriptor has 16 bytes: an address, and a word that both
    /// sides write.
    descriptors: u64,
    tail: u16,
    mappings: portcullis::domain::Ring<&'d Domain<M>>,
    /// The buffers that the device has, oldest first.
    lent: VecDeque<Mapping<GuestBuffer>>,
}

impl<'d, M: Mapper + ?Sized> Ring<'d, M> {
    fn new(domain: &'d Domain<M>, access: Access, registers: u64, descriptors: u64) -> Result<Self, DriverError> {
        let mappings = domain.ring(RingConfig { pages_per_descriptor: BUFFER_PAGES_MAX, access })?;
        Ok(Self { registers, descriptors, tail: 0, mappings, lent: VecDeque::with_capacity(RING_BUFFERS) })
    }

    fn put(&mut self, shared: &Shared, buffer: GuestBuffer, word: u64) -> Result<(), NotTaken> {
        if self.lent.len() == RING_BUFFERS {
            return Err(NotTaken { buffer: Some(buffer), error: DriverError::Full });
        }
        let mapping = lend(&mut self.mappings, buffer)?;
        let descriptor = self.descriptors + u64::from(self.tail) * 16;
        shared.write(descriptor, mapping.iova().as_u64());
        shared.write(descriptor + 8, word);
        self.tail = (self.tail + 1) % ENTRIES;
        self.lent.push_back(mapping);
        Ok(())
    }

    /// Takes the buffers that the device is done with, and submits their unmaps. `make` is given each buffer and the
    /// second word of its descriptor.
    fn take_done<'m, T>(
        &mut self,
        domain: &'m Domain<M>,
        shared: &Shared,
        make: fn(GuestBuffer, u64) -> T,
    ) -> Result<Collected<'m, M, T>, DriverError> {
        let oldest = (self.tail + ENTRIES - self.lent.len() as u16) % ENTRIES;
        let words = (0..self.lent.len() as u16)
            .map(|index| shared.read(self.descriptors + u64::from((oldest + index) % ENTRIES) * 16 + 8))
            .take_while(|word| word & DONE != 0);
        let words: Vec<u64> = words.collect();
        let buffers = give_up(domain, self.lent.drain(..words.len()))?;
        Ok(Collected { buffers, words, make })
    }
}

/// Frames that the device is done with. It may still reach their buffers.
#[must_use = "the buffers come back from `wait`"]
pub struct Collected<'d, M: Mapper + ?Sized, T> {
    buffers: Returning<'d, M>,
    words: Vec<u64>,
    make: fn(GuestBuffer, u64) -> T,
}

impl<M: Mapper + ?Sized, T> Collected<'_, M, T> {
    /// Waits until the device has lost the buffers, and returns the frames.
    ///
    /// # Errors
    /// [`DriverError::Unmap`]: the buffers are lost.
    pub fn wait(self) -> Result<Vec<T>, DriverError> {
        let buffers = wait(self.buffers)?;
        Ok(buffers.into_iter().zip(self.words).map(|(buffer, word)| (self.make)(buffer, word)).collect())
    }
}
