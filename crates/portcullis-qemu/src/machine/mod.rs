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

/// Where the registers of the unit are.
pub const VTD_BASE: u64 = 0xfed9_0000;
const MEMORY_BYTES: u64 = 256 << 20;
/// The firmware: 64 KiB that end below 4 GiB.
const FIRMWARE_BYTES: u64 = 64 << 10;
/// Where the processor begins: `cli`, `hlt`, and back to the `hlt`.
const RESET: (u64, [u8; 4]) = (0xfff0, [0xfa, 0xf4, 0xeb, 0xfd]);

/// What goes wrong with a machine.
pub type MachineError = QtestError;

/// How time passes in the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Accelerator {
    /// A processor that sleeps, and a clock that jumps to the next timer at once: for devices with timers, like `edu`.
    #[default]
    Jumping,
    /// No processor, and a clock that stands still: for devices that do all their work at once, like NVMe and e1000e.
    Stopped,
}

/// What a machine consists of.
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
    /// A unit with 48-bit addresses, and no device.
    pub fn new(accelerator: Accelerator) -> Self {
        Self { accelerator, ..Self::default() }
    }

    /// The unit translates addresses of this many bits: 39 or 48.
    #[must_use]
    pub fn address_bits(mut self, bits: u8) -> Self {
        self.address_bits = Some(bits);
        self
    }

    /// The unit says that it caches absent entries.
    #[must_use]
    pub fn caching_mode(mut self) -> Self {
        self.caching_mode = true;
        self
    }

    /// The machine's clock stands still until it is [let go](QemuMachine::let_go).
    #[must_use]
    pub fn paused(mut self) -> Self {
        self.is_paused = true;
        self
    }

    /// Adds a device, as behind QEMU's `-device`.
    #[must_use]
    pub fn device(self, device: &str) -> Self {
        self.arguments(["-device", device])
    }

    /// Adds arguments of QEMU's command line.
    #[must_use]
    pub fn arguments<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Adds a file of so many zero bytes, which QEMU finds at the path that `arguments` gets.
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

/// A QEMU, its memory and its socket. Dropping it ends QEMU.
pub struct QemuMachine {
    protocol: Mutex<Protocol>,
    memory: Arc<GuestMemory>,
    /// None where another process has started it.
    process: Option<Process>,
    /// Where its commands go by which the clock is let go.
    monitor: Option<UnixStream>,
}

impl QemuMachine {
    /// Starts it. QEMU ends with the machine, or with the thread that calls this: a machine that is to outlive the thread must be
    /// started elsewhere.
    ///
    /// # Errors
    /// [`QtestError::NoQemu`], [`QtestError::Start`]; [`QtestError::Silent`] where QEMU does not take the arguments.
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
        // Answered only by a QEMU that has taken its arguments. What it says otherwise is more use than a closed socket.
        let alive = machine.protocol().read('l', VTD_BASE).map(drop);
        match alive {
            Err(QtestError::Silent { command, .. }) if !machine.messages().is_empty() => {
                Err(QtestError::Refused { command, answer: machine.messages() })
            }
            result => result.map(|()| Arc::new(machine)),
        }
    }

    /// The socket, for commands of one's own.
    pub fn protocol(&self) -> MutexGuard<'_, Protocol> {
        self.protocol.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// A platform over the memory.
    pub fn host(&self) -> QemuHost {
        QemuHost::new(self.memory.clone())
    }

    /// The function at `source` on the bus.
    pub fn function(self: &Arc<Self>, source: SourceId) -> Function {
        Function::new(self.clone(), source)
    }

    /// Lets the clock of a machine go that was [paused](QemuSetup::paused). What waits for it, as a DMA of `edu` does, happens soon after
    /// this has returned.
    ///
    /// # Errors
    /// [`QtestError::Start`] where it was not, or QEMU has gone.
    pub fn let_go(&self) -> Result<(), MachineError> {
        let mut monitor = self.monitor.as_ref().ok_or(QtestError::Start(io::ErrorKind::NotConnected.into()))?;
        monitor.write_all(b"cont\n").map_err(QtestError::Start)
    }

    /// What QEMU has written to standard error so far. Only the process that has started it knows.
    pub fn messages(&self) -> String {
        self.process.as_ref().map(Process::messages).unwrap_or_default()
    }

    /// The id of its process. `None` in another than has started it.
    pub fn process_id(&self) -> Option<u32> {
        self.process.as_ref().map(Process::id)
    }

    /// Reads 4 bytes of a register.
    ///
    /// # Panics
    /// If QEMU has gone, with what it last said; so do the others. A machine without its QEMU cannot go on.
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

    /// Does something with the socket that QEMU answers.
    ///
    /// # Panics
    /// If it does not.
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

// SAFETY: they are those of the machine's unit, at every call. Others may write them too, by the machine itself; but devices reach the
// memory of the machine only, in which nothing of Rust lies.
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
