//! A file replaced as a whole: a crash or a full disk leaves the old one as it was.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// A new file beside the one that it is to replace. Removed unless it has.
pub(crate) struct Replacement<'a> {
    target: &'a Path,
    path: PathBuf,
    file: File,
}

impl<'a> Replacement<'a> {
    /// An empty one.
    pub(crate) fn of(target: &'a Path) -> io::Result<Self> {
        // A rename replaces a file only within one file system, and so within one folder.
        let folder = target.parent().unwrap_or(Path::new(""));
        let mut number = 0_u32;
        loop {
            // Short, for a long name of the target would leave no room for more.
            let path = folder.join(format!(".portcullis-{}-{number}.tmp", std::process::id()));
            match File::create_new(&path) {
                Ok(file) => return Ok(Self { target, path, file }),
                // Left by a process of that number that crashed.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Puts it in the place of the target, with these contents and the permissions of what was there.
    pub(crate) fn put(mut self, contents: &[u8]) -> io::Result<()> {
        self.file.write_all(contents)?;
        if let Ok(old) = fs::metadata(self.target) {
            self.file.set_permissions(old.permissions())?;
        }
        // The contents must be on the disk before the name is.
        self.file.sync_all()?;
        fs::rename(&self.path, self.target)
    }
}

impl Drop for Replacement<'_> {
    fn drop(&mut self) {
        // After the rename there is nothing at this path. An error here has no remedy, and what matters has been reported.
        let _ = fs::remove_file(&self.path);
    }
}
