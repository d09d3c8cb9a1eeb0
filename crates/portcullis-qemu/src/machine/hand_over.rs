//! A machine that goes from one process to another, as from a kernel that has crashed to the one that is started then: QEMU, its devices
//! and its memory stay as they are.

use super::{MEMORY_BYTES, MachineError, QemuMachine};
use crate::GuestMemory;
use crate::memory::Reserve;
use crate::protocol::{Protocol, QtestError};
use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

/// The environment variable that says where the machine's memory is.
const MEMORY_VARIABLE: &str = "PORTCULLIS_MACHINE_MEMORY";

impl QemuMachine {
    /// Has `command` start a process to which the machine [was handed over](Self::handed_over): its standard input is QEMU's socket. Give
    /// no command here until that process has ended, for each would get the other's answers. Memory may be looked at. QEMU still ends with
    /// the thread that has started it.
    ///
    /// # Errors
    /// [`QtestError::Start`].
    pub fn hand_over(&self, command: &mut Command) -> Result<(), MachineError> {
        let socket = self.protocol().socket().try_clone().map_err(QtestError::Start)?;
        let memory = format!("/proc/{}/fd/{}", std::process::id(), self.memory.file().as_raw_fd());
        command.stdin(Stdio::from(std::os::fd::OwnedFd::from(socket))).env(MEMORY_VARIABLE, memory);
        Ok(())
    }

    /// The machine that another process has [handed over](Self::hand_over) to this one. Memory is allocated where that process never does.
    ///
    /// # Errors
    /// [`QtestError::Start`] where there is none.
    pub fn handed_over() -> Result<Arc<Self>, MachineError> {
        let path = std::env::var_os(MEMORY_VARIABLE).ok_or(QtestError::Start(std::io::ErrorKind::NotFound.into()))?;
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(QtestError::Start)?;
        let memory = Arc::new(GuestMemory::over(file.into(), MEMORY_BYTES, Reserve::CRASH)?);
        let socket = std::io::stdin().as_fd().try_clone_to_owned().map_err(QtestError::Start)?;
        let protocol = Mutex::new(Protocol::new(UnixStream::from(socket)));
        Ok(Arc::new(Self { protocol, memory, process: None, monitor: None }))
    }
}
