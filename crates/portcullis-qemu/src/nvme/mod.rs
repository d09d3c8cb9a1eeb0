//! A small NVMe driver: reads and writes, with many commands in flight.
//!
//! It shows how a driver uses a [`Domain`]:
//! * Queues and PRP lists live as long as the driver, and driver and device use them at the same time: they are one
//!   mapping, made by [`Domain::map_shared`].
//! * A data buffer is mapped just before its command is written, and unmapped after the command has completed. The
//!   mapping has the rights for the one direction that the command needs.
//! * All commands that one poll finds completed are unmapped in one batch, with one wait for the hardware. No buffer
//!   is returned before that.
//! * To stop, the driver first stops the device and then removes its mappings.
//!
//! The driver owns buffers while they are mapped, and returns them with their commands. The typed interface needs
//! strict protection.
//!
//! ```no_run
//! use portcullis::designs::Magazine;
//! use portcullis::{Open, Protection, SourceId};
//! use portcullis_qemu::nvme::{Nvme, Operation};
//! use portcullis_qemu::{Accelerator, GuestBuffer, QemuMachine, QemuSetup, VtdMmio};
//! use portcullis_vtd::{UnitConfig, Unit};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let setup = QemuSetup::new(Accelerator::Stopped)
//!     .arguments(["-blockdev", "driver=null-co,node-name=drive,size=1048576,read-zeroes=on"])
//!     .device("nvme,addr=5,serial=1,drive=drive");
//! let (machine, source) = (QemuMachine::start(setup)?, SourceId::from_requester(5 << 3));
//! let unit = Unit::bring_up(VtdMmio(machine.clone()), machine.host(), UnitConfig::default())?;
//! let domain = Magazine::open(&unit, machine.host(), Protection::Strict)?;
//! domain.attach(source)?;
//!
//! let mut nvme = Nvme::start(&machine.function(source), &domain)?;
//! let data = GuestBuffer::new(machine.memory(), 1)?;
//! let command = nvme.submit(Operation::Read, 0, data)?;
//! nvme.ring();
//! for done in nvme.reap()? {
//!     // The device has lost it.
//!     let data = done.data.expect("it was submitted with one");
//!     assert_eq!((done.command, done.status, data.read_u64(0)), (command, 0, 0));
//! }
//! nvme.stop()?;
//! # Ok(())
//! # }
//! ```

mod queue;

pub use queue::{DATA_BYTES_MAX, DEPTH};

use crate::dma::{DriverError, NotTaken, Returning, Shared, give_up, lend, take_back, wait, within};
use crate::{Bar, Function, GuestBuffer};
use portcullis::domain::{Mapping, Ring, RingConfig};
use portcullis::invalidation::BATCH_MAX;
use portcullis::mapper::Mapper;
use portcullis::{Access, Domain, Iova, PAGE_SIZE};
use queue::{ENTRIES, IDENTITY, Queue, SHARED_PAGES, data_pointers};

/// Class code of an NVMe controller.
const CLASS: u32 = 0x01_0802;
const CAPABILITIES: u64 = 0x00;
const CONFIGURATION: u64 = 0x14;
/// Enabled; entries of 2^6 and 2^4 bytes; pages of 4 KiB.
const ENABLE: u32 = 4 << 20 | 6 << 16 | 1;
const STATUS: u64 = 0x1c;
const READY: u32 = 1 << 0;
const ADMIN_SIZES: u64 = 0x24;
const ADMIN_SUBMISSION: u64 = 0x28;
const ADMIN_COMPLETION: u64 = 0x30;
const DOORBELLS: u64 = 0x1000;

const CREATE_SUBMISSION: u64 = 0x01;
const CREATE_COMPLETION: u64 = 0x05;
const IDENTIFY: u64 = 0x06;
/// Bits of the drive's settings: each block has protection information.
const PROTECTION_TYPE: u64 = 0x7;
/// The controller generates and removes that information (PRACT), so it never reaches memory.
const PROTECTION_BY_DEVICE: u64 = 1 << 29;
/// The only namespace.
const NAMESPACE: u64 = 1;

const _: () = assert!(DEPTH <= BATCH_MAX, "one batch unmaps all data");
/// The most pages that a buffer spans; it may begin anywhere in its first page.
const DATA_PAGES_MAX: u64 = DATA_BYTES_MAX / PAGE_SIZE + 1;

/// The operation of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// From the drive to memory: the device writes the buffer.
    Read,
    /// From memory to the drive: the device reads the buffer.
    Write,
}

/// The number of a command in flight. It is free again once the command has been reaped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CommandId(pub u16);

/// A command that has completed.
#[derive(Debug)]
pub struct Done {
    /// The number of the command.
    pub command: CommandId,
    /// The controller's status, zero for success.
    ///
    /// On QEMU, the status does not show that the IOMMU refused the DMA: the drive gets zeros, or memory gets
    /// nothing, and the command succeeds. Read the unit's fault records.
    pub status: u16,
    /// The buffer of the command, unless it was submitted by [`submit_mapped`](Nvme::submit_mapped). The device can
    /// no longer reach it.
    pub data: Option<GuestBuffer>,
}

/// The driver of a controller with one I/O queue.
///
/// Dropping it leaves the controller running and everything mapped, until the domain ends. The buffers are lost for
/// good. Use [`stop`](Nvme::stop).
pub struct Nvme<'d, M: Mapper + ?Sized> {
    registers: Bar,
    domain: &'d Domain<M>,
    shared: Shared,
    admin: Queue,
    io: Queue,
    reads: Ring<&'d Domain<M>>,
    writes: Ring<&'d Domain<M>>,
    /// Indexed by command number. `None` is a free number. A command in flight may or may not have a buffer.
    commands: [Option<Option<Mapping<GuestBuffer>>>; DEPTH],
    blocks: u64,
    block_bytes: u64,
    /// Flags that every read and write carries.
    flags: u64,
}

impl<'d, M: Mapper + ?Sized> Nvme<'d, M> {
    /// Takes the controller over. It must be attached to `domain`.
    ///
    /// # Errors
    /// A [`DriverError`]; nothing stays mapped, unless the controller does not stop.
    pub fn start(function: &Function, domain: &'d Domain<M>) -> Result<Self, DriverError> {
        let registers = enable(function)?;
        let ring = |access| domain.ring(RingConfig { pages_per_descriptor: DATA_PAGES_MAX, access });
        let (reads, writes) = (ring(Access::DeviceWrites)?, ring(Access::DeviceReads)?);
        let shared = Shared::new(domain, registers.machine().memory(), SHARED_PAGES)?;
        let doorbell_bytes = 4 << (registers.read64(CAPABILITIES) >> 32 & 0xf);
        let [admin, io] = [0, 1].map(|id| Queue::new(id, DOORBELLS, doorbell_bytes));
        let commands = [const { None }; DEPTH];
        let (blocks, block_bytes, flags) = (0, 0, 0);
        let mut this =
            Self { registers, domain, shared, admin, io, reads, writes, commands, blocks, block_bytes, flags };
        match this.bring_up() {
            Ok(()) => Ok(this),
            Err(error) => Err(this.stop().err().unwrap_or(error)),
        }
    }

    fn bring_up(&mut self) -> Result<(), DriverError> {
        disable(&self.registers)?;
        self.registers.write32(ADMIN_SIZES, u32::from(ENTRIES - 1) << 16 | u32::from(ENTRIES - 1));
        self.registers.write64(ADMIN_SUBMISSION, self.shared.iova(self.admin.submissions));
        self.registers.write64(ADMIN_COMPLETION, self.shared.iova(self.admin.completions));
        self.registers.write32(CONFIGURATION, ENABLE);
        within("get ready", || (self.registers.read32(STATUS) & READY != 0).then_some(()))?;
        let queue = u64::from(ENTRIES - 1) << 16 | u64::from(self.io.id);
        // Physically contiguous, without interrupts. The submission queue completes into the completion queue with
        // the same id.
        self.administer(CREATE_COMPLETION, 0, self.io.completions, queue | 1 << 32)?;
        self.administer(CREATE_SUBMISSION, 0, self.io.submissions, queue | (u64::from(self.io.id) << 16 | 1) << 32)?;
        self.administer(IDENTIFY, NAMESPACE, IDENTITY, 0)?;
        let settings = self.shared.read(IDENTITY + 24);
        let format = settings >> 16 & 0xf;
        self.flags = if settings >> 40 & PROTECTION_TYPE != 0 { PROTECTION_BY_DEVICE } else { 0 };
        let formats = self.shared.read(IDENTITY + 128 + format / 2 * 8) >> (format % 2 * 32);
        let block_shift = formats >> 16 & 0xff;
        if !(9..=12).contains(&block_shift) {
            return Err(DriverError::Identity { found: block_shift as u32, expected: "blocks of 2^9 to 2^12 bytes" });
        }
        self.blocks = self.shared.read(IDENTITY);
        self.block_bytes = 1 << block_shift;
        Ok(())
    }

    /// Runs an admin command and waits for it. Its buffer is at `offset` in the shared pages.
    fn administer(&mut self, opcode: u64, namespace: u64, offset: u64, arguments: u64) -> Result<(), DriverError> {
        let entry = [opcode | namespace << 32, 0, 0, self.shared.iova(offset), 0, arguments, 0, 0];
        self.admin.put(&self.shared, entry);
        self.admin.ring(&self.registers);
        let (_, status) = within("complete an admin command", || self.admin.take(&self.shared))?;
        self.admin.acknowledge(&self.registers);
        if status == 0 { Ok(()) } else { Err(DriverError::Refused(status)) }
    }

    /// The number of blocks of the drive.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The number of bytes in a block.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Maps `data`, which has whole blocks and begins at a multiple of 4, and writes a command that moves it to or
    /// from the blocks that start at `block`. The device begins at the next [`ring`](Nvme::ring).
    ///
    /// # Errors
    /// [`NotTaken`] returns the buffer, unless it is lost, with [`DriverError::Full`], [`DriverError::Buffer`],
    /// [`DriverError::Descriptor`] or [`DriverError::Map`].
    pub fn submit(&mut self, operation: Operation, block: u64, data: GuestBuffer) -> Result<CommandId, NotTaken> {
        let part = data.lent();
        let id = match self.number_for(part.phys.as_u64(), part.len) {
            Ok(id) => id,
            Err(error) => return Err(NotTaken { buffer: Some(data), error }),
        };
        let ring = match operation {
            Operation::Read => &mut self.reads,
            Operation::Write => &mut self.writes,
        };
        let mapping = lend(ring, data)?;
        Ok(self.program(id, operation, block, mapping.iova(), part.len, Some(mapping)))
    }

    /// Does what [`submit`](Nvme::submit) does for bytes at an address that the caller has mapped. The caller unmaps
    /// it.
    ///
    /// # Errors
    /// [`DriverError::Full`], [`DriverError::Buffer`]; nothing has changed then.
    pub fn submit_mapped(
        &mut self,
        operation: Operation,
        block: u64,
        iova: Iova,
        len: u64,
    ) -> Result<CommandId, DriverError> {
        let id = self.number_for(iova.as_u64(), len)?;
        Ok(self.program(id, operation, block, iova, len, None))
    }

    /// Checks the buffer and returns a free command number.
    fn number_for(&self, at: u64, len: u64) -> Result<usize, DriverError> {
        if len == 0 || len > DATA_BYTES_MAX || !len.is_multiple_of(self.block_bytes) || !at.is_multiple_of(4) {
            let expected = "whole blocks, at most 64 KiB, at a multiple of 4";
            return Err(DriverError::Buffer { at, len, expected });
        }
        self.commands.iter().position(Option::is_none).ok_or(DriverError::Full)
    }

    fn program(
        &mut self,
        id: usize,
        operation: Operation,
        block: u64,
        iova: Iova,
        len: u64,
        data: Option<Mapping<GuestBuffer>>,
    ) -> CommandId {
        let opcode = match operation {
            Operation::Read => 2,
            Operation::Write => 1,
        };
        let head = opcode | (id as u64) << 16 | NAMESPACE << 32;
        let [first, others] = data_pointers(&self.shared, id, iova, len);
        let blocks = (len / self.block_bytes - 1) | self.flags;
        self.io.put(&self.shared, [head, 0, 0, first, others, block, blocks, 0]);
        self.commands[id] = Some(data);
        CommandId(id as u16)
    }

    /// The IOVA of the data of a command in flight.
    pub fn iova(&self, command: CommandId) -> Option<Iova> {
        self.commands.get(usize::from(command.0))?.as_ref()?.as_ref().map(Mapping::iova)
    }

    /// Tells the device about all commands submitted so far.
    pub fn ring(&self) {
        self.io.ring(&self.registers);
    }

    /// Waits for at least one command to complete, and takes all that have completed. Their buffers are unmapped in
    /// one batch before this returns. Returns nothing if no command is in flight.
    ///
    /// # Errors
    /// [`DriverError::Silent`]; [`DriverError::Unmap`]: the buffers are lost.
    pub fn reap(&mut self) -> Result<Vec<Done>, DriverError> {
        self.collect()?.wait()
    }

    /// Takes the commands as [`reap`](Self::reap) does, and only submits the unmaps of their buffers. The caller goes
    /// on, for example with other commands, and [waits](Collected::wait) afterwards. Those may have the numbers of the
    /// completed ones.
    ///
    /// # Errors
    /// Those of [`reap`](Self::reap).
    pub fn collect(&mut self) -> Result<Collected<'d, M>, DriverError> {
        let (mut done, mut mappings) = (Vec::new(), Vec::new());
        if self.commands.iter().any(Option::is_some) {
            let mut found = Some(within("complete a command", || self.io.take(&self.shared))?);
            while let Some((id, status)) = found {
                // The device wrote the number, and it may be wrong. A number that is not in flight is ignored.
                if let Some(data) = self.commands.get_mut(usize::from(id)).and_then(Option::take) {
                    done.push((CommandId(id), status, data.is_some()));
                    mappings.extend(data);
                }
                found = self.io.take(&self.shared);
            }
            self.io.acknowledge(&self.registers);
        }
        Ok(Collected { done, buffers: give_up(self.domain, mappings)? })
    }

    /// Stops the controller, which ends the commands in flight, unmaps everything, and returns the buffers of
    /// commands that had not completed.
    ///
    /// # Errors
    /// [`DriverError::Silent`]: the controller may still do DMA, so everything stays mapped for good.
    /// [`DriverError::Unmap`].
    pub fn stop(self) -> Result<Vec<GuestBuffer>, DriverError> {
        disable(&self.registers)?;
        let unfinished = take_back(self.domain, self.commands.into_iter().flatten().flatten())?;
        self.shared.close(self.domain)?;
        Ok(unfinished)
    }
}

/// Completed commands. The device may still reach their buffers.
#[must_use = "the buffers come back from `wait`"]
pub struct Collected<'d, M: Mapper + ?Sized> {
    /// Each with its status, and whether it has a buffer.
    done: Vec<(CommandId, u16, bool)>,
    buffers: Returning<'d, M>,
}

impl<M: Mapper + ?Sized> Collected<'_, M> {
    /// Waits until the device has lost the buffers, and returns the commands with them.
    ///
    /// # Errors
    /// [`DriverError::Unmap`]: the buffers are lost.
    pub fn wait(self) -> Result<Vec<Done>, DriverError> {
        let mut buffers = wait(self.buffers)?.into_iter();
        let done = self.done.into_iter().map(|(command, status, has_data)| Done {
            command,
            status,
            data: if has_data { buffers.next() } else { None },
        });
        Ok(done.collect())
    }
}

/// Stops a controller that another driver may have started. The commands in flight end, and the controller does no
/// more DMA.
///
/// # Errors
/// [`DriverError::Identity`]. [`DriverError::Silent`]: the controller may still do DMA.
pub fn reset(function: &Function) -> Result<(), DriverError> {
    disable(&enable(function)?)
}

/// The registers, if the function is an NVMe controller.
fn enable(function: &Function) -> Result<Bar, DriverError> {
    let found = function.read(0x08) >> 8;
    if found != CLASS {
        return Err(DriverError::Identity { found, expected: "class 0x010802, an NVMe controller" });
    }
    Ok(function.enable())
}

fn disable(registers: &Bar) -> Result<(), DriverError> {
    registers.write32(CONFIGURATION, 0);
    within("stop", || (registers.read32(STATUS) & READY == 0).then_some(()))
}
