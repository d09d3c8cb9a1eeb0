//! Files on this machine for a guest: its disks, a program, other files, and a file that the guest can fetch.

use super::packages::Store;
use crate::failure::Failure;
use crate::process::output;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

const KEXEC: &str = include_str!("../../../crates/portcullis-linux/tests/guest/kexec.c");
const DISK_BYTES: u64 = 64 << 20;
const SENT_BYTES: u32 = 3 << 20;

/// Files for one guest.
pub(super) struct Scratch {
    folder: PathBuf,
    sent: PathBuf,
}

impl Scratch {
    /// Creates the files for the guest `name`.
    pub(super) fn new(store: &Store, name: &str) -> Result<Self, Failure> {
        let folder = store.folder.join("scratch").join(name);
        fs::create_dir_all(&folder).map_err(Failure::file(&folder))?;
        // No two pages are the same.
        let bytes: Vec<u8> =
            (0..SENT_BYTES / 4).flat_map(|word| word.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
        let sent = folder.join("sent");
        fs::write(&sent, bytes).map_err(Failure::file(&sent))?;
        Ok(Self { folder, sent })
    }

    /// A network with a router at 10.0.2.2, and 10.0.2.100, which sends a file to each client.
    pub(super) fn card(&self) -> String {
        format!("user,id=net,guestfwd=tcp:10.0.2.100:80-cmd:cat {}", self.sent.display())
    }

    /// Creates an empty disk of this name. Returns QEMU's argument for it.
    pub(super) fn disk(&self, name: &str) -> Result<String, Failure> {
        let path = self.folder.join(name);
        let file = File::create(&path).and_then(|file| file.set_len(DISK_BYTES));
        file.map_err(Failure::file(&path))?;
        Ok(format!("if=none,id={name},file={},format=raw,cache=unsafe", path.display()))
    }

    /// Creates a file with these bytes.
    pub(super) fn file(&self, name: &str, bytes: &[u8]) -> Result<PathBuf, Failure> {
        let path = self.folder.join(name);
        fs::write(&path, bytes).map_err(Failure::file(&path))?;
        Ok(path)
    }

    /// The program with which a guest starts another kernel, because busybox has none. It needs no libraries.
    pub(super) fn kexec(&self) -> Result<PathBuf, Failure> {
        let source = self.file("kexec.c", KEXEC.as_bytes())?;
        let program = source.with_extension("");
        output(Command::new("gcc").args(["-static", "-O1", "-Wall", "-Werror", "-o"]).arg(&program).arg(&source))?;
        Ok(program)
    }
}
