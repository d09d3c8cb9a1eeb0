//! QEMU's educational device: a buffer of 4 KiB, and one DMA at a time between the buffer and memory.

use crate::{Bar, Function};
use portcullis::Iova;
use thiserror::Error;

/// Vendor and device id.
pub const IDENTITY: u32 = 0x11e8_1234;
/// Address of the buffer in the device's address space.
const BUFFER: u64 = 0x4_0000;
/// The most bytes that one DMA moves. One byte more, up to the end of the buffer, would terminate QEMU 7.2.
pub const DMA_BYTES_MAX: usize = 4095;

const SOURCE: u64 = 0x80;
const DESTINATION: u64 = 0x88;
const COUNT: u64 = 0x90;
const COMMAND: u64 = 0x98;
const START: u64 = 1 << 0;
const TO_MEMORY: u64 = 1 << 1;

/// Why there is no device, or why a DMA failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum EduError {
    /// The function is another device, or does not exist.
    #[error("the function is {0:#010x}, not an edu device")]
    Identity(u32),
    /// The DMA has no bytes, or more than the device can move.
    #[error("a DMA of {0} bytes; expected 1 to {DMA_BYTES_MAX}")]
    Length(usize),
    /// The DMA did not end in time.
    #[error("the device is still busy after {0} polls")]
    Busy(u32),
}

/// The device.
pub struct Edu {
    registers: Bar,
}

impl Edu {
    /// Takes the device over.
    ///
    /// # Errors
    /// [`EduError::Identity`].
    pub fn new(function: &Function) -> Result<Self, EduError> {
        match function.identity() {
            IDENTITY => Ok(Self { registers: function.enable() }),
            other => Err(EduError::Identity(other)),
        }
    }

    /// Makes the device read `len` bytes at `iova` into its buffer. If the access is refused, the device reads zeros.
    ///
    /// # Errors
    /// [`EduError::Length`], [`EduError::Busy`].
    pub fn fetch(&self, iova: Iova, len: usize) -> Result<(), EduError> {
        self.fetch_to(iova, 0, len)
    }

    /// Does what [`fetch`](Edu::fetch) does, but stores the bytes at `at` in the buffer.
    ///
    /// # Errors
    /// [`EduError::Length`] if `at` and `len` go beyond [`DMA_BYTES_MAX`]; [`EduError::Busy`].
    pub fn fetch_to(&self, iova: Iova, at: usize, len: usize) -> Result<(), EduError> {
        self.transfer(iova, (at, len), START)
    }

    /// Makes the device write the first `len` bytes of its buffer to `iova`. If the access is refused, nothing is
    /// written.
    ///
    /// # Errors
    /// [`EduError::Length`], [`EduError::Busy`].
    pub fn store(&self, iova: Iova, len: usize) -> Result<(), EduError> {
        self.store_from(iova, 0, len)
    }

    /// Does what [`store`](Edu::store) does, but takes the bytes from `at` in the buffer.
    ///
    /// # Errors
    /// [`EduError::Length`] if `at` and `len` go beyond [`DMA_BYTES_MAX`]; [`EduError::Busy`].
    pub fn store_from(&self, iova: Iova, at: usize, len: usize) -> Result<(), EduError> {
        self.transfer(iova, (at, len), START | TO_MEMORY)
    }

    fn transfer(&self, iova: Iova, (at, len): (usize, usize), command: u64) -> Result<(), EduError> {
        let state = self.begin(iova, (at, len), command)?;
        self.until_idle(state)
    }

    /// Starts the DMA of [`store`](Edu::store) and does not wait for it.
    ///
    /// # Errors
    /// [`EduError::Length`].
    pub fn begin_store(&self, iova: Iova, len: usize) -> Result<(), EduError> {
        self.begin(iova, (0, len), START | TO_MEMORY).map(drop)
    }

    /// Waits for a DMA that was started.
    ///
    /// # Errors
    /// [`EduError::Busy`].
    pub fn finish(&self) -> Result<(), EduError> {
        self.until_idle(self.registers.read64(COMMAND))
    }

    /// Starts a DMA. Returns the command register as read afterwards.
    fn begin(&self, iova: Iova, (at, len): (usize, usize), command: u64) -> Result<u64, EduError> {
        if len == 0 || at.checked_add(len).is_none_or(|end| end > DMA_BYTES_MAX) {
            return Err(EduError::Length(len));
        }
        let (memory, buffer) = (iova.as_u64(), BUFFER + at as u64);
        let (source, destination) = if command & TO_MEMORY != 0 { (buffer, memory) } else { (memory, buffer) };
        let start = [(SOURCE, source), (DESTINATION, destination), (COUNT, len as u64), (COMMAND, command)];
        Ok(self.registers.write_and_read64(&start, COMMAND))
    }

    fn until_idle(&self, mut state: u64) -> Result<(), EduError> {
        /// The machine's clock jumps to the end of the transfer, so one poll is nearly always enough.
        const LOOKS_MAX: u32 = 100_000;
        let mut looks = 0..LOOKS_MAX;
        let over = looks.find(|_| {
            let busy = state & START != 0;
            if busy {
                state = self.registers.read64(COMMAND);
            }
            !busy
        });
        match over {
            Some(_) => Ok(()),
            None => Err(EduError::Busy(LOOKS_MAX)),
        }
    }
}
