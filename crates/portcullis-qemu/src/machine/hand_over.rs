//! Hands a machine over to another process, as a crashed kernel leaves it to the kernel that is started next. QEMU,
//! its devices and its memory stay as they are.

use super::{MEMORY_BYTES, MachineError, QemuMachine};
use crate::GuestMemory;
use crate::memory::Reserve;
use crate::protocol::{Protocol, QtestError};
use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

/// The environment variable that names the file with the machine's memory.
const MEMORY_VARIABLE: &str = "PORTCULLIS_MACHINE_MEMORY";

impl QemuMachine {
    /// Makes `command` start a process to which the machine [is handed over](Self::handed_over): its standard input
    /// becomes QEMU's socket. Send no commands from here until that process has ended, because each process would
    /// receive answers meant for the other. Memory may be read. QEMU still ends with the thread that started it.
    ///
    /// # Errors
    /// [`QtestError::Start`].
    pub fn hand_over(&self, command: &mut Command) -> Result<(), MachineError> {
        let socket = self.protocol().socket().try_clone().map_err(QtestError::Start)?;
        let memory = format!("/proc/{}/fd/{}", std::process::id(), self.memory.file().as_raw_fd());
        command.stdin(Stdio::from(std::os::fd::OwnedFd::from(socket))).env(MEMORY_VARIABLE, memory);
        Ok(())
    }

    /// The machine that another process has [handed over](Self::hand_over) to this one. Its memory is allocated from
    /// a range that the other process never uses.
    ///
    /// # Errors
    /// [`QtestError::Start`] if no machine was handed over.
    pub fn handed_over() -> Result<Arc<Self>, MachineError> {
        let path = std::env::var_os(MEMORY_VARIABLE).ok_or(QtestError::Start(std::io::ErrorKind::NotFound.into()))?;
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(QtestError::Start)?;
        let memory = Arc::new(GuestMemory::over(file.into(), MEMORY_BYTES, Reserve::CRASH)?);
        let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(QtestError::Start)?;
        let protocol = Mutex::new(Protocol::new(UnixStream::from(socket)));
        Ok(Arc::new(Self { protocol, memory, process: None, monitor: None }))
    }
}
