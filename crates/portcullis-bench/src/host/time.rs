//! Time, and the current CPU if there is no faster source.

#[cfg(target_arch = "x86_64")]
use super::cpuid::cpuid;
use portcullis::platform::CpuHint;
use std::cell::Cell;
use std::ptr;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// The origin of time, and how it is counted.
struct Epoch {
    start: Instant,
    #[cfg(target_arch = "x86_64")]
    counter: Option<Counter>,
}

/// The processor's time stamp counter, if it counts time.
#[cfg(target_arch = "x86_64")]
struct Counter {
    start: u64,
    /// Microseconds per tick, times 2^64.
    us_per_tick: u64,
}

static EPOCH: OnceLock<Epoch> = OnceLock::new();

pub(super) fn prepare() {
    epoch();
}

fn epoch() -> &'static Epoch {
    EPOCH.get_or_init(|| Epoch {
        start: Instant::now(),
        #[cfg(target_arch = "x86_64")]
        counter: Counter::new(),
    })
}

/// Microseconds since the first call.
#[inline]
pub(super) fn now_us() -> u64 {
    let epoch = epoch();
    #[cfg(target_arch = "x86_64")]
    if let Some(counter) = &epoch.counter {
        return counter.now_us();
    }
    epoch.start.elapsed().as_micros() as u64
}

/// How often an answer of the system is used.
const CPU_USES: u32 = 64;

thread_local! {
    /// The CPU that the system last named, and how often it may still be used.
    static CPU: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// The current CPU. It is requested from the system only from time to time, because it is a hint, and the scheduler
/// rarely moves a running thread.
#[inline]
pub(super) fn slow_cpu() -> CpuHint {
    // Only the look-up is in the closure, which is a call where it is not inlined.
    // SAFETY: the variable lives as long as its thread, which is this one.
    let known = unsafe { &*CPU.with(ptr::from_ref) };
    let (cpu, uses) = known.get();
    if uses == 0 {
        return ask_cpu();
    }
    known.set((cpu, uses - 1));
    CpuHint(cpu)
}

#[cold]
fn ask_cpu() -> CpuHint {
    // SAFETY: the call takes no arguments. If it fails, the first CPU is as good a hint as any.
    let cpu = u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0);
    CPU.set((cpu, CPU_USES));
    CpuHint(cpu)
}

/// The time stamp counter, read after all earlier loads. On other architectures, nanoseconds.
#[inline]
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE2 and the counter are part of the architecture.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        epoch().start.elapsed().as_nanos() as u64
    }
}

/// The same moment on both clocks. The thread may be preempted in between, so the fastest of several readings is
/// taken.
pub(crate) fn moment() -> (Instant, u64) {
    let look = |_| {
        let before = ticks();
        let now = Instant::now();
        (ticks() - before, now, before)
    };
    let (took, now, before) = (0..8).map(look).min_by_key(|(took, ..)| *took).expect("eight looks");
    (now, before + took / 2)
}

/// Executes `additions` additions, a multiple of 100, each of which needs the result of the one before. Each takes one
/// cycle on every known processor. They add two registers, because additions of a constant may cost nothing. Returns
/// whether it ran: not on architectures whose additions it does not know.
pub(crate) fn chain_of_additions(additions: u64) -> bool {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: arithmetic on registers.
    unsafe {
        std::arch::asm!(
            "22:",
            ".rept 100",
            "add {sum}, {one}",
            ".endr",
            "dec {turns}",
            "jnz 22b",
            sum = inout(reg) 0u64 => _,
            one = in(reg) 1u64,
            turns = inout(reg) additions.div_ceil(100) => _,
            options(nomem, nostack),
        );
    }
    let _ = additions;
    cfg!(target_arch = "x86_64")
}

#[cfg(target_arch = "x86_64")]
impl Counter {
    /// How long the counter is observed to learn its rate.
    const WATCHED: Duration = Duration::from_millis(2);

    /// The counter, if the processor reports that it runs at a constant rate (CPUID leaf 0x80000007, EDX bit 8).
    fn new() -> Option<Self> {
        let highest = cpuid(0x8000_0000).eax;
        if highest < 0x8000_0007 || cpuid(0x8000_0007).edx >> 8 & 1 == 0 {
            return None;
        }
        let (begun, start) = moment();
        thread::sleep(Self::WATCHED);
        let (ended, end) = moment();
        let us_per_tick = (ended - begun).as_secs_f64() * 1e6 / (end - start) as f64;
        Some(Self { start, us_per_tick: (us_per_tick * 2f64.powi(64)) as u64 })
    }

    /// Not ordered with other loads, because a clock of microseconds does not need it.
    #[inline]
    fn now_us(&self) -> u64 {
        // SAFETY: the counter is part of the architecture.
        let ticks = unsafe { core::arch::x86_64::_rdtsc() }.saturating_sub(self.start);
        ((u128::from(ticks) * u128::from(self.us_per_tick)) >> 64) as u64
    }
}
