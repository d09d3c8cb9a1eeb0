//! Replaces a file as a whole: after a crash or on a full disk, the old file is unchanged.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A new file beside its target. It is removed when dropped, unless it has replaced the target.
pub(crate) struct Replacement<'a> {
    target: &'a Path,
    path: PathBuf,
    file: File,
}

impl<'a> Replacement<'a> {
    /// Creates an empty file beside `target`.
    pub(crate) fn of(target: &'a Path) -> io::Result<Self> {
        // A rename replaces a file only within one file system, and so within one folder.
        let folder = target.parent().unwrap_or(Path::new(""));
        let mut number = 0_u32;
        loop {
            // The name is short: a name derived from a long target name could exceed the limit.
            let path = folder.join(format!(".portcullis-{}-{number}.tmp", std::process::id()));
            match File::create_new(&path) {
                Ok(file) => return Ok(Self { target, path, file }),
                // A crashed process with the same process id left this file.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes `contents`, takes over the permissions of the old file if there is one, and renames the new file to the
    /// target.
    pub(crate) fn put(mut self, contents: &[u8]) -> io::Result<()> {
        self.file.write_all(contents)?;
        if let Ok(old) = fs::metadata(self.target) {
            self.file.set_permissions(old.permissions())?;
        }
        // The contents must reach the disk before the rename does.
        self.file.sync_all()?;
        fs::rename(&self.path, self.target)
    }
}

impl Drop for Replacement<'_> {
    fn drop(&mut self) {
        // After the rename there is nothing at this path. An error here cannot be handled, and errors that matter were
        // reported before.
        let _ = fs::remove_file(&self.path);
    }
}
