//! The QEMU process: found, started with its memory and its socket, and never outliving this one.

use super::protocol::{Protocol, QtestError};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The environment variable that names the QEMU to use; otherwise it is looked for in `PATH`.
pub const EXECUTABLE_VARIABLE: &str = "PORTCULLIS_QEMU";
const EXECUTABLE: &str = "qemu-system-x86_64";

/// The QEMU that will be started, if there is one.
pub fn find_executable() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(EXECUTABLE_VARIABLE) {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(EXECUTABLE)).find(|file| file.is_file())
}

/// A running QEMU. It is killed when this is dropped, and by the kernel should the thread that started it end first.
pub(super) struct Process {
    child: Child,
    /// What it has written to standard error.
    messages: File,
}

impl Process {
    /// Starts QEMU with `arguments` behind those that make it listen; `inherited` stay open in it under their own numbers.
    pub(super) fn start(arguments: &[OsString], inherited: &[&OwnedFd]) -> Result<(Self, Protocol), QtestError> {
        let executable = find_executable().ok_or(QtestError::NoQemu)?;
        let (ours, theirs) = UnixStream::pair().map_err(QtestError::Start)?;
        let messages = File::from(memfd("messages")?);
        let mut command = Command::new(executable);
        command
            .args(["-nodefaults", "-no-user-config", "-display", "none"])
            .arg("-chardev")
            .arg(format!("socket,id=qtest,fd={}", theirs.as_raw_fd()))
            .args(["-qtest", "chardev:qtest", "-qtest-log", "none"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(messages.try_clone().map_err(QtestError::Start)?);
        let mut keep: Vec<RawFd> = inherited.iter().map(|fd| fd.as_raw_fd()).collect();
        keep.push(theirs.as_raw_fd());
        let parent = Some(getpid());
        // SAFETY: between fork and exec only system calls are made, on memory that was allocated before.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                // Had the parent gone before, no signal would come.
                if getppid() != parent {
                    return Err(io::ErrorKind::NotConnected.into());
                }
                for fd in &keep {
                    // SAFETY: these descriptors are open in the parent, and so in its fork.
                    let fd = rustix::fd::BorrowedFd::borrow_raw(*fd);
                    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
                }
                Ok(())
            });
        }
        let child = command.spawn().map_err(QtestError::Start)?;
        Ok((Self { child, messages }, Protocol::new(ours)))
    }

    /// What QEMU has written to standard error so far.
    pub(super) fn messages(&self) -> String {
        let mut text = Vec::new();
        // A descriptor of our own shares its place in the file with QEMU's, which appends.
        let read = self.messages.try_clone().and_then(|mut file| {
            file.seek(SeekFrom::Start(0))?;
            file.read_to_end(&mut text)
        });
        match read {
            Ok(_) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) => format!("(its messages cannot be read: {error})"),
        }
    }

    /// Its process id.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It fails only where QEMU has ended by itself, and then there is nothing to wait for but its status.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file in memory.
pub(super) fn memfd(name: &str) -> Result<OwnedFd, QtestError> {
    rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|error| QtestError::Start(io::Error::from(error)))
}
