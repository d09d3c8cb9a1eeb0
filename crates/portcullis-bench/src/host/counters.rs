//! The processor's own counters, of one thread in user mode.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Cycles and instructions.
pub(crate) struct Counters([OwnedFd; 2]);

/// `PERF_TYPE_HARDWARE`, and in it `PERF_COUNT_HW_CPU_CYCLES` and `PERF_COUNT_HW_INSTRUCTIONS`.
const HARDWARE: u32 = 0;
const CYCLES: u64 = 0;
const INSTRUCTIONS: u64 = 1;
/// `exclude_kernel` and `exclude_hv` in the flags.
const USER_ONLY: u64 = 1 << 5 | 1 << 6;

/// The first version of `struct perf_event_attr`, which every kernel accepts.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint: u32,
    address: u64,
}

impl Counters {
    /// The counters of the calling thread. `None` if the machine has none, or denies access to them.
    pub(crate) fn open() -> Option<Self> {
        Some(Self([open(CYCLES)?, open(INSTRUCTIONS)?]))
    }

    /// The values of the counters.
    pub(crate) fn read(&mut self) -> [u64; 2] {
        let counter = |counter: &OwnedFd| {
            let mut value = 0u64;
            // SAFETY: the length is that of the word.
            let read = unsafe { libc::read(counter.as_raw_fd(), (&raw mut value).cast(), size_of::<u64>()) };
            assert_eq!(read, size_of::<u64>() as isize, "an open counter can be read");
            value
        };
        [counter(&self.0[0]), counter(&self.0[1])]
    }
}

fn open(config: u64) -> Option<OwnedFd> {
    let size = size_of::<Attributes>() as u32;
    let attributes = Attributes { kind: HARDWARE, size, config, flags: USER_ONLY, ..Attributes::default() };
    // SAFETY: the attributes live as long as the call. The arguments mean this thread, any CPU, no group and no flags.
    let file = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attributes, 0, -1, -1, 0) };
    let file = i32::try_from(file).ok().filter(|file| *file >= 0)?;
    // SAFETY: this code has just opened the file.
    Some(unsafe { OwnedFd::from_raw_fd(file) })
}
