//! The QEMU process: finds it, starts it with its memory and its socket, and makes sure that it does not outlive this
//! process.

use super::protocol::{Protocol, QtestError};
use rustix::process::{Pid, Signal, getpid, getppid, kill_process_group, set_parent_process_death_signal};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// The environment variable that names the QEMU to use. If it is not set, QEMU is searched in `PATH`.
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

/// The QEMU series whose differences from the specification are all known.
const KNOWN_SERIES: &str = "QEMU emulator version 7.2.";

/// Whether the QEMU that will be started belongs to the known series.
pub(crate) fn is_known_version() -> bool {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let output = find_executable().and_then(|qemu| Command::new(qemu).arg("--version").output().ok());
        output.is_some_and(|output| output.stdout.starts_with(KNOWN_SERIES.as_bytes()))
    })
}

/// A running QEMU. It is killed when this is dropped. If the thread that started it ends before, the kernel kills it.
pub(super) struct Process {
    child: Child,
    /// What QEMU has written to standard error.
    messages: File,
}

impl Process {
    /// Starts QEMU with `arguments` after those that make it listen. The descriptors in `inherited` stay open in it
    /// under their numbers.
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
            // A process group, so that children are killed too: the executable may be a script that starts QEMU.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(messages.try_clone().map_err(QtestError::Start)?);
        let mut keep: Vec<RawFd> = inherited.iter().map(|fd| fd.as_raw_fd()).collect();
        keep.push(theirs.as_raw_fd());
        let parent = Some(getpid());
        // SAFETY: between fork and exec, only system calls are made, on memory that was allocated before.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                // If the parent has ended before this call, no signal will come.
                if getppid() != parent {
                    return Err(io::ErrorKind::NotConnected.into());
                }
                for fd in &keep {
                    // SAFETY: these descriptors are open in the parent and so in its fork.
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
        // Reads at an offset. Moving the file position would move QEMU's too, because both share it, and QEMU would
        // overwrite its output.
        let read = (|| {
            text.resize(usize::try_from(self.messages.metadata()?.len()).unwrap_or(usize::MAX), 0);
            let read = self.messages.read_at(&mut text, 0)?;
            text.truncate(read);
            Ok::<_, io::Error>(())
        })();
        match read {
            Ok(()) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) => format!("(its messages cannot be read: {error})"),
        }
    }

    /// The process id.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // This fails only if QEMU has already ended. Then only its exit status is left to collect.
        if let Some(group) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Creates a file in memory.
pub(super) fn memfd(name: &str) -> Result<OwnedFd, QtestError> {
    rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|error| QtestError::Start(io::Error::from(error)))
}
