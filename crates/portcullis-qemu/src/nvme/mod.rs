//! A small NVMe driver: reads and writes, many in flight.
//!
//! It shows how a driver uses a [`Domain`]:
//! * queues and PRP lists live as long as the driver, and both sides use them at once: one mapping, by [`Domain::map_shared`];
//! * a data buffer is mapped just before its command is written and unmapped when it has completed, with rights for the one
//!   direction that the command needs;
//! * all commands that one look finds completed are unmapped in one batch: one wait for the hardware, and no buffer goes back
//!   before it;
//! * to stop, first the device is quiesced, then its mappings go.
//!
//! Buffers are the driver's while they are mapped, and come back with the command. The typed face needs strict protection.
//!
//! ```no_run
//! use portcullis::designs::Magazine;
//! use portcullis::{Domain, Protection, SourceId};
//! use portcullis_qemu::nvme::{Nvme, Operation};
//! use portcullis_qemu::{Accelerator, GuestBuffer, QemuMachine, QemuSetup, VtdMmio};
//! use portcullis_vtd::{UnitConfig, Unit};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let setup = QemuSetup::new(Accelerator::Stopped)
//!     .arguments(["-blockdev", "driver=null-co,node-name=drive,size=1048576,read-zeroes=on"])
//!     .device("nvme,addr=5,serial=1,drive=drive");
//! let (machine, source) = (QemuMachine::start(setup)?, SourceId(5 << 3));
//! let unit = Unit::bring_up(VtdMmio(machine.clone()), machine.host(), UnitConfig::default())?;
//! let domain = Domain::<Magazine, _, _>::new(&unit, machine.host(), Protection::Strict)?;
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

use crate::dma::{DriverError, NotTaken, Shared, lend, take_back, within};
use crate::{Bar, Function, GuestBuffer};
use portcullis::design::Design;
use portcullis::domain::{Mapping, Ring, RingConfig};
use portcullis::invalidation::BATCH_MAX;
use portcullis::{Access, Domain, Iommu, Iova, PAGE_SIZE, Platform};
use queue::{ENTRIES, IDENTITY, Queue, SHARED_PAGES, data_pointers};

/// Class code of an NVMe controller.
const CLASS: u32 = 0x01_0802;
const CAPABILITIES: u64 = 0x00;
const CONFIGURATION: u64 = 0x14;
/// Enable, entries of 2^6 and 2^4 bytes, pages of 4 KiB.
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
/// Of the drive's settings: it keeps what protects a block beside it.
const PROTECTION_TYPE: u64 = 0x7;
/// The controller makes that and takes it off again (PRACT), so it never reaches memory.
const PROTECTION_BY_DEVICE: u64 = 1 << 29;
/// The only namespace.
const NAMESPACE: u64 = 1;

const _: () = assert!(DEPTH <= BATCH_MAX, "one batch unmaps all data");
/// Pages of the longest data, which may begin anywhere in the first.
const DATA_PAGES_MAX: u64 = DATA_BYTES_MAX / PAGE_SIZE + 1;

/// What a command does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// From the drive to memory: the device writes the buffer.
    Read,
    /// From memory to the drive: the device reads the buffer.
    Write,
}

/// A command in flight. The number is free for the next one once it has been reaped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CommandId(pub u16);

/// A command that has completed.
#[derive(Debug)]
pub struct Done {
    /// Which.
    pub command: CommandId,
    /// The controller's status, zero for success.
    ///
    /// What the IOMMU refused does not show here on QEMU: the drive gets zeros, or memory nothing, and the command succeeds.
    /// Look at the unit's fault records.
    pub status: u16,
    /// Its buffer, unless it was [`submit_mapped`](Nvme::submit_mapped). The device has lost it.
    pub data: Option<GuestBuffer>,
}

/// The controller, with one I/O queue.
///
/// Dropping it leaves the controller running and everything mapped, which only the end of the domain then takes away; the buffers
/// are lost for good. Use [`stop`](Nvme::stop).
pub struct Nvme<'d, D: Design<P, I>, P: Platform, I: Iommu> {
    registers: Bar,
    domain: &'d Domain<D, P, I>,
    shared: Shared,
    admin: Queue,
    io: Queue,
    reads: Ring<&'d Domain<D, P, I>>,
    writes: Ring<&'d Domain<D, P, I>>,
    /// By number: `None` for a free one; a command in flight has a buffer, or none.
    commands: [Option<Option<Mapping<GuestBuffer>>>; DEPTH],
    blocks: u64,
    block_bytes: u64,
    /// What every read and write says besides where it goes.
    flags: u64,
}

impl<'d, D: Design<P, I>, P: Platform, I: Iommu> Nvme<'d, D, P, I> {
    /// Takes the controller over. It must be attached to `domain`.
    ///
    /// # Errors
    /// A [`DriverError`]; nothing stays mapped, unless the controller does not stop.
    pub fn start(function: &Function, domain: &'d Domain<D, P, I>) -> Result<Self, DriverError> {
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
        // Physically contiguous, no interrupts; the submission queue completes into the completion queue of the same id.
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

    /// An admin command, with its buffer at `offset` of the shared pages, from its beginning to its end.
    fn administer(&mut self, opcode: u64, namespace: u64, offset: u64, arguments: u64) -> Result<(), DriverError> {
        let entry = [opcode | namespace << 32, 0, 0, self.shared.iova(offset), 0, arguments, 0, 0];
        self.admin.put(&self.shared, entry);
        self.admin.ring(&self.registers);
        let (_, status) = within("complete an admin command", || self.admin.take(&self.shared))?;
        self.admin.acknowledge(&self.registers);
        if status == 0 { Ok(()) } else { Err(DriverError::Refused(status)) }
    }

    /// How many blocks the drive has.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// How many bytes a block has.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Maps `data`, whole blocks that begin at a multiple of 4, and writes the command that moves it to or from the blocks
    /// from `block` on. The device begins at the next [`ring`](Nvme::ring).
    ///
    /// # Errors
    /// [`NotTaken`] gives the buffer back, unless it is lost, with [`DriverError::Full`], [`DriverError::Buffer`],
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

    /// As [`submit`](Nvme::submit), for bytes at an address that the caller has mapped, and unmaps.
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

    /// A free number for a command with such a buffer.
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

    /// Where the device sees the data of a command in flight.
    pub fn iova(&self, command: CommandId) -> Option<Iova> {
        self.commands.get(usize::from(command.0))?.as_ref()?.as_ref().map(Mapping::iova)
    }

    /// Tells the device of all commands submitted so far.
    pub fn ring(&self) {
        self.io.ring(&self.registers);
    }

    /// Waits for at least one command to complete and takes all that have: their buffers are unmapped, in one batch, before
    /// this returns. Nothing where none is in flight.
    ///
    /// # Errors
    /// [`DriverError::Silent`]; [`DriverError::Unmap`]: the buffers are lost.
    pub fn reap(&mut self) -> Result<Vec<Done>, DriverError> {
        if self.commands.iter().all(Option::is_none) {
            return Ok(Vec::new());
        }
        let mut found = Some(within("complete a command", || self.io.take(&self.shared))?);
        let (mut done, mut mappings) = (Vec::new(), Vec::new());
        while let Some((id, status)) = found {
            // The device wrote the number, and may lie: about what it was not given there is nothing to be done.
            if let Some(data) = self.commands.get_mut(usize::from(id)).and_then(Option::take) {
                done.push((CommandId(id), status, data.is_some()));
                mappings.extend(data);
            }
            found = self.io.take(&self.shared);
        }
        self.io.acknowledge(&self.registers);
        let mut buffers = take_back(self.domain, mappings)?.into_iter();
        let done = done.into_iter().map(|(command, status, has_data)| Done {
            command,
            status,
            data: if has_data { buffers.next() } else { None },
        });
        Ok(done.collect())
    }

    /// Stops the controller, which ends what is in flight, unmaps everything, and gives back the buffers of what had not
    /// completed.
    ///
    /// # Errors
    /// [`DriverError::Silent`]: it may still do DMA, so everything stays mapped, for good. [`DriverError::Unmap`].
    pub fn stop(self) -> Result<Vec<GuestBuffer>, DriverError> {
        disable(&self.registers)?;
        let unfinished = take_back(self.domain, self.commands.into_iter().flatten().flatten())?;
        self.shared.close(self.domain)?;
        Ok(unfinished)
    }
}

/// Stops a controller that another driver may have started: what is in flight ends, and the controller does no more DMA.
///
/// # Errors
/// [`DriverError::Identity`]. [`DriverError::Silent`]: it may still do DMA.
pub fn reset(function: &Function) -> Result<(), DriverError> {
    disable(&enable(function)?)
}

/// The registers, if it is a controller.
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
