//! What firmware would find: the ACPI tables that QEMU hands out through its configuration device, fw_cfg.
//!
//! The device has numbered items; item 0x19 is a directory of those that are files. It copies an item into memory when it is
//! given the address of a command, big-endian:
//!
//! ```text
//!  0                     4        8
//! +---------------------+--------+---------+
//! | item 31:16, bits    | length | address |
//! +---------------------+--------+---------+
//! ```
//!
//! It clears the first word when it has done so, before it answers the write that set it off.

use crate::protocol::Protocol;
use crate::{GuestMemory, QemuMachine, QtestError};
use portcullis::PhysAddr;
use std::ops::Range;
use thiserror::Error;

/// The ports that take a command's address: the upper half, and then the lower, which sets it off. Both big-endian.
const COMMAND_PORTS: [u16; 2] = [0x514, 0x518];
/// Bits of a command.
const READ: u32 = 1 << 1;
const SELECT: u32 = 1 << 3;
/// Items.
const SIGNATURE: u16 = 0x00;
const DIRECTORY: u16 = 0x19;
/// An entry of the directory: size and item, big-endian, and a name that ends with zero.
const ENTRY_BYTES: usize = 64;
const ENTRY_NAME: usize = 8;

const TABLES: &str = "etc/acpi/tables";
/// What firmware is to do with the files, in commands of 128 bytes.
const LOADER: &str = "etc/table-loader";
const LOADER_COMMAND_BYTES: usize = 128;
/// File name at 4; then offset of the sum, start and length, little-endian.
const LOADER_CHECKSUM: u32 = 3;
const LOADER_NAME: Range<usize> = 4..60;

/// Memory that nobody else uses, below where table pages begin: the command, and behind it what the device copies.
const COMMAND: PhysAddr = PhysAddr::new(1 << 20);
const COPY: PhysAddr = PhysAddr::new((1 << 20) + 0x1000);
const COPY_BYTES_MAX: usize = 8 << 20;

/// Why there are no tables.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FirmwareError {
    /// QEMU does not answer.
    #[error(transparent)]
    Protocol(#[from] QtestError),
    /// Another device answers.
    #[error("no fw_cfg device: the signature reads \"{}\", expected \"QEMU\"", .0.escape_ascii())]
    NoDevice([u8; 4]),
    /// The device did not copy an item, or there is none.
    #[error("the fw_cfg device does not copy item {item:#x}: its command reads {control:#x}, expected 0")]
    Refused {
        /// The item.
        item: u16,
        /// What the device left of the command.
        control: u32,
    },
    /// More than there is room for.
    #[error("fw_cfg item {item:#x} has {bytes} bytes, expected at most {COPY_BYTES_MAX}")]
    TooLarge {
        /// The item.
        item: u16,
        /// Its size.
        bytes: usize,
    },
    /// A file that the device does not have.
    #[error("the fw_cfg device has no file {0}")]
    NoFile(&'static str),
    /// A sum over bytes that the tables do not have.
    #[error("{LOADER} byte {0}: a checksum over bytes that {TABLES} does not have")]
    Checksum(usize),
}

/// The ACPI tables, one behind the other, with their checksums; zeros follow the last one ([`find_table`]). They are as they
/// lie in the file, so that pointers from one to another count from its beginning.
///
/// Memory from 1 MiB to below the table pages is overwritten.
///
/// # Errors
/// A [`FirmwareError`].
pub fn acpi_tables(machine: &QemuMachine) -> Result<Vec<u8>, FirmwareError> {
    // Held to the end: two readers would share the memory of the command.
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

/// The table with this signature in what [`acpi_tables`] returned, header and all. `None` where it is not there, or the walk
/// from header to header ends before it.
pub fn find_table(tables: &[u8], signature: [u8; 4]) -> Option<&[u8]> {
    let mut rest = tables;
    loop {
        let length = little_endian(rest, 4)? as usize;
        // FACS has a header of its own, which is the shortest: these two fields.
        let (table, others) = rest.split_at_checked(length).filter(|_| length >= 8)?;
        if table.starts_with(&signature) {
            return Some(table);
        }
        rest = others;
    }
}

/// Does what the loader's commands say about checksums: each byte of sum makes the bytes it covers add up to zero.
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

/// What stands before the first zero.
fn name(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// The configuration device.
struct Device<'m> {
    protocol: &'m mut Protocol,
    memory: &'m GuestMemory,
}

impl Device<'_> {
    /// The entries of the directory; their number stands before them.
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

    /// Reads the first bytes of an item, which has as many at least.
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
