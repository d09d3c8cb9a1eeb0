//! What guests have of this machine: a disk of their own, and something to fetch.

use super::packages::Store;
use crate::failure::Failure;
use std::fs::{self, File};
use std::path::PathBuf;

const DISK_BYTES: u64 = 64 << 20;
const SENT_BYTES: u32 = 3 << 20;

/// Files for one guest.
pub(super) struct Scratch {
    disk: PathBuf,
    sent: PathBuf,
}

impl Scratch {
    /// An empty disk.
    pub(super) fn new(store: &Store) -> Result<Self, Failure> {
        let folder = store.folder.join("scratch");
        fs::create_dir_all(&folder).map_err(Failure::file(&folder))?;
        let (disk, sent) = (folder.join("disk"), folder.join("sent"));
        let file = File::create(&disk).and_then(|file| file.set_len(DISK_BYTES));
        file.map_err(Failure::file(&disk))?;
        // No two pages are the same.
        let bytes: Vec<u8> =
            (0..SENT_BYTES / 4).flat_map(|word| word.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
        fs::write(&sent, bytes).map_err(Failure::file(&sent))?;
        Ok(Self { disk, sent })
    }

    /// A network with a router at 10.0.2.2, and 10.0.2.100 that sends a file to whoever connects.
    pub(super) fn card(&self) -> String {
        format!("user,id=net,guestfwd=tcp:10.0.2.100:80-cmd:cat {}", self.sent.display())
    }

    /// A disk.
    pub(super) fn disk(&self) -> String {
        format!("if=none,id=disk,file={},format=raw,cache=unsafe", self.disk.display())
    }
}
