//! The data that firmware would find: the ACPI tables that QEMU provides through its configuration device, fw_cfg.
//!
//! The device has numbered items. Item 0x19 is a directory of the items that are files. The device copies an item
//! into memory when it receives the address of a command, which is big-endian:
//!
//! ```text
//!  0                     4        8
//! +---------------------+--------+---------+
//! | item 31:16, bits    | length | address |
//! +---------------------+--------+---------+
//! ```
//!
//! When the copy is done, the device clears the first word, before it completes the write that started the command.

use crate::protocol::Protocol;
use crate::{GuestMemory, QemuMachine, QtestError};
use portcullis::PhysAddr;
use std::ops::Range;
use thiserror::Error;

/// The ports for a command's address: the upper half, then the lower half, which starts the command. Both are
/// big-endian.
const COMMAND_PORTS: [u16; 2] = [0x514, 0x518];
/// Bits of a command.
const READ: u32 = 1 << 1;
const SELECT: u32 = 1 << 3;
/// Items.
const SIGNATURE: u16 = 0x00;
const DIRECTORY: u16 = 0x19;
/// An entry of the directory: size and item, big-endian, and a zero-terminated name.
const ENTRY_BYTES: usize = 64;
const ENTRY_NAME: usize = 8;

const TABLES: &str = "etc/acpi/tables";
/// The file with firmware's instructions for the other files, in commands of 128 bytes.
const LOADER: &str = "etc/table-loader";
const LOADER_COMMAND_BYTES: usize = 128;
/// The file name is at offset 4. After it come the offset of the checksum, and start and length of the covered bytes,
/// little-endian.
const LOADER_CHECKSUM: u32 = 3;
const LOADER_NAME: Range<usize> = 4..60;

/// Memory below the table pages that is otherwise unused: the command, and after it the copy that the device makes.
const COMMAND: PhysAddr = PhysAddr::new(1 << 20);
const COPY: PhysAddr = PhysAddr::new((1 << 20) + 0x1000);
const COPY_BYTES_MAX: usize = 8 << 20;

/// Why the tables could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FirmwareError {
    /// QEMU does not answer.
    #[error(transparent)]
    Protocol(#[from] QtestError),
    /// Another device answers.
    #[error("no fw_cfg device: the signature reads \"{}\", expected \"QEMU\"", .0.escape_ascii())]
    NoDevice([u8; 4]),
    /// The device did not copy an item, or there is no such item.
    #[error("the fw_cfg device does not copy item {item:#x}: its command reads {control:#x}, expected 0")]
    Refused {
        /// The item.
        item: u16,
        /// The first word of the command after the attempt.
        control: u32,
    },
    /// An item is larger than the memory reserved for it.
    #[error("fw_cfg item {item:#x} has {bytes} bytes, expected at most {COPY_BYTES_MAX}")]
    TooLarge {
        /// The item.
        item: u16,
        /// Its size.
        bytes: usize,
    },
    /// The device does not have a file.
    #[error("the fw_cfg device has no file {0}")]
    NoFile(&'static str),
    /// A checksum covers bytes that the tables do not have.
    #[error("{LOADER} byte {0}: a checksum over bytes that {TABLES} does not have")]
    Checksum(usize),
}

/// The ACPI tables, one after the other, with their checksums; zeros follow the last one ([`find_table`]). They are
/// laid out as in the file, so pointers from one table to another count from the beginning of the file.
///
/// Memory from 1 MiB to below the table pages is overwritten.
///
/// # Errors
/// A [`FirmwareError`].
pub fn acpi_tables(machine: &QemuMachine) -> Result<Vec<u8>, FirmwareError> {
    // The lock is held to the end, because two readers would share the memory of the command.
    let mut device = Device { protocol: &mut machine.protocol(), memory: machine.memory() };
    let mut signature = [0; 4];
    device.copy(SIGNATURE, &mut signature)?;
    if signature != *b"QEMU" {
        return Err(FirmwareError::NoDevice(signature));
    }
    let directory = device.directory()?;
    let mut tables = device.file(&directory, TABLES)?;
    let commands = device.file(&directory, LOADER)?;
    add_checksums(&mut tables, &commands)?;
    Ok(tables)
}

/// The table with this signature in the result of [`acpi_tables`], including its header. `None` if it is not there,
/// or if the walk from header to header ends before it.
pub fn find_table(tables: &[u8], signature: [u8; 4]) -> Option<&[u8]> {
    let mut rest = tables;
    loop {
        let length = little_endian(rest, 4)? as usize;
        // FACS has a different header, which is the shortest: only these two fields.
        let (table, others) = rest.split_at_checked(length).filter(|_| length >= 8)?;
        if table.starts_with(&signature) {
            return Some(table);
        }
        rest = others;
    }
}

/// Executes the loader's checksum commands: each checksum byte makes the bytes that it covers add up to zero.
fn add_checksums(tables: &mut [u8], commands: &[u8]) -> Result<(), FirmwareError> {
    for (index, command) in commands.chunks_exact(LOADER_COMMAND_BYTES).enumerate() {
        if little_endian(command, 0) != Some(LOADER_CHECKSUM) || name(&command[LOADER_NAME]) != TABLES.as_bytes() {
            continue;
        }
        let [sum, start, length] = [60, 64, 68].map(|at| little_endian(command, at).unwrap_or(0) as usize);
        let covered = start.checked_add(length).and_then(|end| tables.get(start..end));
        let added = covered.map(|bytes| bytes.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte)));
        match tables.get_mut(sum).zip(added) {
            Some((byte, added)) => *byte = byte.wrapping_sub(added),
            None => return Err(FirmwareError::Checksum(index * LOADER_COMMAND_BYTES)),
        }
    }
    Ok(())
}

fn little_endian(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_le_bytes)
}

/// The bytes before the first zero.
fn name(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// The configuration device.
struct Device<'m> {
    protocol: &'m mut Protocol,
    memory: &'m GuestMemory,
}

impl Device<'_> {
    /// The entries of the directory. Their number precedes them.
    fn directory(&mut self) -> Result<Vec<u8>, FirmwareError> {
        let mut count = [0; 4];
        self.copy(DIRECTORY, &mut count)?;
        let entries = self.item(DIRECTORY, 4 + u32::from_be_bytes(count) as usize * ENTRY_BYTES)?;
        Ok(entries[4..].to_vec())
    }

    fn file(&mut self, directory: &[u8], wanted: &'static str) -> Result<Vec<u8>, FirmwareError> {
        let mut entries = directory.chunks_exact(ENTRY_BYTES);
        let entry = entries.find(|entry| name(&entry[ENTRY_NAME..]) == wanted.as_bytes());
        let entry = entry.ok_or(FirmwareError::NoFile(wanted))?;
        let size = u32::from_be_bytes([entry[0], entry[1], entry[2], entry[3]]);
        self.item(u16::from_be_bytes([entry[4], entry[5]]), size as usize)
    }

    fn item(&mut self, item: u16, bytes: usize) -> Result<Vec<u8>, FirmwareError> {
        if bytes > COPY_BYTES_MAX {
            return Err(FirmwareError::TooLarge { item, bytes });
        }
        let mut out = vec![0; bytes];
        self.copy(item, &mut out)?;
        Ok(out)
    }

    /// Reads the first bytes of an item, which must have at least as many.
    fn copy(&mut self, item: u16, out: &mut [u8]) -> Result<(), FirmwareError> {
        let control = u32::from(item) << 16 | READ | SELECT;
        self.memory.write(COMMAND, &control.to_be_bytes());
        self.memory.write(COMMAND.checked_add(4).expect("below 4 GiB"), &(out.len() as u32).to_be_bytes());
        self.memory.write(COMMAND.checked_add(8).expect("below 4 GiB"), &COPY.as_u64().to_be_bytes());
        let address = COMMAND.as_u64();
        for (port, half) in COMMAND_PORTS.into_iter().zip([address >> 32, address]) {
            self.protocol.port_out('l', port, (half as u32).swap_bytes().into())?;
        }
        let mut left = [0; 4];
        self.memory.read(COMMAND, &mut left);
        match u32::from_be_bytes(left) {
            0 => {
                self.memory.read(COPY, out);
                Ok(())
            }
            control => Err(FirmwareError::Refused { item, control }),
        }
    }
}
