//! The file system of a guest: busybox, modules and a job, in the archive that a kernel unpacks when it starts.

use super::modules::Library;
use crate::failure::Failure;
use cpio::newc::{Builder, ModeFileType};
use std::collections::BTreeSet;
use std::fs;
use std::io::Cursor;
use std::path::Path;

/// The first program.
const INIT: &str = include_str!("../../../crates/portcullis-linux/tests/guest/init");
/// The functions that jobs use.
const LIBRARY: &str = include_str!("../../../crates/portcullis-linux/tests/guest/lib.sh");

/// An archive that is being put together.
pub(super) struct Initramfs {
    entries: Vec<(Builder, Cursor<Vec<u8>>)>,
    folders: BTreeSet<String>,
}

impl Initramfs {
    /// An archive whose first program runs the job.
    pub(super) fn new(busybox: &Path, job: &str) -> Result<Self, Failure> {
        let mut archive = Self { entries: Vec::new(), folders: BTreeSet::new() };
        archive.copy("bin/busybox", busybox)?;
        archive.add("bin/sh", ModeFileType::Symlink, b"busybox");
        for (name, text) in [("init", INIT), ("lib.sh", LIBRARY), ("job.sh", job)] {
            archive.add(name, ModeFileType::Regular, text);
        }
        Ok(archive)
    }

    /// Adds a file of this machine.
    pub(super) fn copy(&mut self, name: &str, file: &Path) -> Result<(), Failure> {
        self.add(name, ModeFileType::Regular, fs::read(file).map_err(Failure::file(file))?);
        Ok(())
    }

    /// Adds these modules, and the modules that they need, in `/modules`. For each of these modules, a list has the
    /// order in which `load` inserts modules.
    pub(super) fn modules(&mut self, library: &Library, names: &[&str]) -> Result<(), Failure> {
        let mut there = BTreeSet::new();
        for name in names {
            let order = library.with_needs(name)?;
            let list: String = order.iter().map(|module| format!("{}\n", module.name)).collect();
            self.add(&format!("modules/{}.load", name.replace('-', "_")), ModeFileType::Regular, list);
            for module in order.into_iter().filter(|module| there.insert(module.name.clone())) {
                self.add(&format!("modules/{}.ko", module.name), ModeFileType::Regular, module.bytes);
            }
        }
        Ok(())
    }

    /// Returns the finished archive.
    pub(super) fn finish(self) -> Result<Vec<u8>, Failure> {
        cpio::write_cpio(self.entries.into_iter(), Vec::new()).map_err(Failure::file("the initramfs"))
    }

    /// Adds an entry, and before it the folders that contain it, because a kernel does not create folders by itself.
    fn add(&mut self, name: &str, kind: ModeFileType, bytes: impl Into<Vec<u8>>) {
        let new = |name: &str, kind| Builder::new(name).mode(0o755).set_mode_file_type(kind);
        for (end, _) in name.match_indices('/') {
            if self.folders.insert(name[..end].to_owned()) {
                self.entries.push((new(&name[..end], ModeFileType::Directory), Cursor::default()));
            }
        }
        self.entries.push((new(name, kind), Cursor::new(bytes.into())));
    }
}

#[cfg(test)]
mod tests {
    use super::Initramfs;
    use crate::fixture;
    use cpio::newc::Reader;
    use std::io::{Cursor, Read};

    #[test]
    fn the_archive_holds_the_job_and_every_folder_before_what_is_in_it() {
        let folder = fixture::folder(&[("busybox", "program")]);
        let archive = Initramfs::new(&folder.path().join("busybox"), "echo done\n");
        let mut rest = Cursor::new(archive.expect("a readable file").finish().expect("memory"));
        let mut found = Vec::new();
        loop {
            let mut entry = Reader::new(&mut rest).expect("an entry");
            if entry.entry().is_trailer() {
                break;
            }
            let (name, mode) = (entry.entry().name().to_owned(), entry.entry().mode());
            let mut text = String::new();
            entry.read_to_string(&mut text).expect("text");
            entry.finish().expect("its end");
            found.push((name, mode, text));
        }
        let names: Vec<&str> = found.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["bin", "bin/busybox", "bin/sh", "init", "lib.sh", "job.sh"]);
        assert_eq!(found[0].1, 0o040_755);
        assert_eq!((found[1].1, found[1].2.as_str()), (0o100_755, "program"));
        assert_eq!((found[2].1, found[2].2.as_str()), (0o120_755, "busybox"));
        assert_eq!(found[5].2, "echo done\n");
    }
}
