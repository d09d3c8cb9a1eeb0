//! A machine: QEMU with a VT-d unit and devices behind it.

mod hand_over;
mod pci;

pub use pci::{Bar, Function};

use super::memory::GuestMemory;
use super::process::{Process, memfd};
use super::protocol::{Protocol, QtestError};
use crate::host::QemuHost;
use portcullis::iommu::SourceId;
use portcullis_vtd::Mmio;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The base address of the unit's registers.
pub const VTD_BASE: u64 = 0xfed9_0000;
const MEMORY_BYTES: u64 = 256 << 20;
/// The firmware: 64 KiB that end below 4 GiB.
const FIRMWARE_BYTES: u64 = 64 << 10;
/// Code at the reset vector: `cli`, `hlt`, and a jump back to the `hlt`.
const RESET: (u64, [u8; 4]) = (0xfff0, [0xfa, 0xf4, 0xeb, 0xfd]);

/// An error of a machine.
pub type MachineError = QtestError;

/// How time passes in the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Accelerator {
    /// The processor sleeps, and the clock jumps to the next timer at once. For devices with timers, such as `edu`.
    #[default]
    Jumping,
    /// There is no processor, and the clock stands still. For devices that do all work at once, such as NVMe and
    /// e1000e.
    Stopped,
}

/// The configuration of a machine.
#[derive(Debug, Default)]
pub struct QemuSetup {
    accelerator: Accelerator,
    address_bits: Option<u8>,
    caching_mode: bool,
    is_paused: bool,
    arguments: Vec<OsString>,
    files: Vec<OwnedFd>,
}

impl QemuSetup {
    /// A unit with 48-bit addresses, and no devices.
    pub fn new(accelerator: Accelerator) -> Self {
        Self { accelerator, ..Self::default() }
    }

    /// Sets the width of the addresses that the unit translates: 39 or 48 bits.
    #[must_use]
    pub fn address_bits(mut self, bits: u8) -> Self {
        self.address_bits = Some(bits);
        self
    }

    /// Makes the unit report caching mode: absent entries may be cached.
    #[must_use]
    pub fn caching_mode(mut self) -> Self {
        self.caching_mode = true;
        self
    }

    /// Stops the machine's clock until [`let_go`](QemuMachine::let_go) is called.
    #[must_use]
    pub fn paused(mut self) -> Self {
        self.is_paused = true;
        self
    }

    /// Adds a device, given as for QEMU's `-device`.
    #[must_use]
    pub fn device(self, device: &str) -> Self {
        self.arguments(["-device", device])
    }

    /// Adds arguments to QEMU's command line.
    #[must_use]
    pub fn arguments<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Adds a file of `bytes` zero bytes. `arguments` receives the path under which QEMU opens it.
    ///
    /// # Errors
    /// [`QtestError::Start`].
    pub fn file<A: Into<OsString>, const N: usize>(
        mut self,
        bytes: u64,
        arguments: impl FnOnce(&str) -> [A; N],
    ) -> Result<Self, MachineError> {
        let file = memfd("file")?;
        rustix::fs::ftruncate(&file, bytes).map_err(|error| QtestError::Start(error.into()))?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        self.files.push(file);
        Ok(self.arguments(arguments(&path)))
    }
}

/// A QEMU process, its memory and its socket. Dropping it ends QEMU.
pub struct QemuMachine {
    protocol: Mutex<Protocol>,
    memory: Arc<GuestMemory>,
    /// None if another process started it.
    process: Option<Process>,
    /// The socket for the command that starts a paused clock.
    monitor: Option<UnixStream>,
}

impl QemuMachine {
    /// Starts QEMU. It ends with the machine, or with the thread that calls this. To outlive that thread, a machine
    /// must be started on another thread.
    ///
    /// # Errors
    /// [`QtestError::NoQemu`]; [`QtestError::Start`]; [`QtestError::Silent`] or [`QtestError::Refused`] if QEMU does
    /// not accept the arguments.
    pub fn start(setup: QemuSetup) -> Result<Arc<Self>, MachineError> {
        let memory = Arc::new(GuestMemory::new(MEMORY_BYTES)?);
        let firmware = firmware()?;
        let megabytes = MEMORY_BYTES >> 20;
        let mut arguments: Vec<OsString> = [
            "-m".to_owned(),
            format!("{megabytes}M"),
            "-object".to_owned(),
            format!(
                "memory-backend-file,id=ram,share=on,size={megabytes}M,mem-path=/proc/self/fd/{}",
                memory.file().as_raw_fd()
            ),
            "-machine".to_owned(),
            "q35,memory-backend=ram".to_owned(),
            "-accel".to_owned(),
            "tcg".to_owned(),
            "-smp".to_owned(),
            "1".to_owned(),
        ]
        .map(OsString::from)
        .into();
        match setup.accelerator {
            Accelerator::Jumping => {
                let path = format!("/proc/self/fd/{}", firmware.as_raw_fd());
                arguments.extend(["-bios", &path, "-icount", "shift=0,sleep=off"].map(OsString::from));
            }
            Accelerator::Stopped => arguments.push("-S".into()),
        }
        let caching_mode = if setup.caching_mode { "on" } else { "off" };
        let bits = setup.address_bits.unwrap_or(48);
        arguments.push("-device".into());
        arguments.push(format!("intel-iommu,aw-bits={bits},caching-mode={caching_mode}").into());
        arguments.extend(setup.arguments);
        let mut files = setup.files;
        let mut monitor = None;
        if setup.is_paused {
            let (ours, theirs) = UnixStream::pair().map_err(QtestError::Start)?;
            let socket = format!("socket,id=monitor,fd={}", theirs.as_raw_fd());
            arguments.extend(["-S", "-chardev", &socket, "-mon", "chardev=monitor"].map(OsString::from));
            files.push(theirs.into());
            monitor = Some(ours);
        }
        let mut inherited = vec![memory.file(), &firmware];
        inherited.extend(&files);
        let (process, protocol) = Process::start(&arguments, &inherited)?;
        let machine = Self { protocol: Mutex::new(protocol), memory, process: Some(process), monitor };
        // QEMU answers only if it has accepted its arguments. Its own message is more useful than the error of a
        // closed socket.
        let alive = machine.protocol().read('l', VTD_BASE).map(drop);
        match alive {
            Err(QtestError::Silent { command, .. }) if !machine.messages().is_empty() => {
                Err(QtestError::Refused { command, answer: machine.messages() })
            }
            result => result.map(|()| Arc::new(machine)),
        }
    }

    /// The socket, for other commands.
    pub fn protocol(&self) -> MutexGuard<'_, Protocol> {
        self.protocol.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory of the machine.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// A platform over the memory of the machine.
    pub fn host(&self) -> QemuHost {
        QemuHost::new(self.memory.clone())
    }

    /// The PCI function with the id `source`.
    pub fn function(self: &Arc<Self>, source: SourceId) -> Function {
        Function::new(self.clone(), source)
    }

    /// Starts the clock of a machine that was [paused](QemuSetup::paused). Work that waits for the clock, such as a
    /// DMA of `edu`, happens soon after this has returned.
    ///
    /// # Errors
    /// [`QtestError::Start`] if the machine was not paused, or QEMU has ended.
    pub fn let_go(&self) -> Result<(), MachineError> {
        let mut monitor = self.monitor.as_ref().ok_or(QtestError::Start(io::ErrorKind::NotConnected.into()))?;
        monitor.write_all(b"cont\n").map_err(QtestError::Start)
    }

    /// What QEMU has written to standard error so far. Empty in a process that did not start it.
    pub fn messages(&self) -> String {
        self.process.as_ref().map(Process::messages).unwrap_or_default()
    }

    /// The process id of QEMU. `None` in a process that did not start it.
    pub fn process_id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// Reads 4 bytes of a register.
    ///
    /// # Panics
    /// If QEMU has ended, with QEMU's last messages; so do the other accesses. A machine without its QEMU cannot
    /// continue.
    pub fn read32(&self, address: u64) -> u32 {
        self.answered(|protocol| protocol.read('l', address)) as u32
    }

    /// Reads 8 bytes of a register.
    pub fn read64(&self, address: u64) -> u64 {
        self.answered(|protocol| protocol.read('q', address))
    }

    /// Writes 4 bytes to a register.
    pub fn write32(&self, address: u64, value: u32) {
        self.answered(|protocol| protocol.write('l', address, value.into()));
    }

    /// Writes 8 bytes to a register.
    pub fn write64(&self, address: u64, value: u64) {
        self.answered(|protocol| protocol.write('q', address, value));
    }

    /// Runs a command on the socket and returns QEMU's answer.
    ///
    /// # Panics
    /// If QEMU does not answer.
    pub fn answered<T>(&self, ask: impl FnOnce(&mut Protocol) -> Result<T, QtestError>) -> T {
        let answer = ask(&mut self.protocol());
        answer.unwrap_or_else(|error| panic!("{error}; QEMU said:\n{}", self.messages()))
    }
}

fn firmware() -> Result<OwnedFd, MachineError> {
    let file = memfd("firmware")?;
    let failed = |error: rustix::io::Errno| QtestError::Start(error.into());
    rustix::fs::ftruncate(&file, FIRMWARE_BYTES).map_err(failed)?;
    rustix::io::pwrite(&file, &RESET.1, RESET.0).map_err(failed)?;
    Ok(file)
}

/// The registers of a machine's unit, for the driver.
#[derive(Clone)]
pub struct VtdMmio(pub Arc<QemuMachine>);

// SAFETY: these are the registers of the machine's unit, at every call. Other code may also write them through the
// machine. But devices reach only the memory of the machine, which holds no Rust objects.
unsafe impl Mmio for VtdMmio {
    fn read32(&self, offset: u32) -> u32 {
        self.0.read32(VTD_BASE + u64::from(offset))
    }

    fn read64(&self, offset: u32) -> u64 {
        self.0.read64(VTD_BASE + u64::from(offset))
    }

    unsafe fn write32(&self, offset: u32, value: u32) {
        self.0.write32(VTD_BASE + u64::from(offset), value);
    }

    unsafe fn write64(&self, offset: u32, value: u64) {
        self.0.write64(VTD_BASE + u64::from(offset), value);
    }
}
