//! A host that does what another does.

/// Writes the methods of [`Platform`](crate::Platform) that forward to another host: those named, or all those of a
/// group of the trait (`locks`, `processors`, `memory`, `foreign`, `time`), or `probe`. With `through`, each call
/// is made by the function named there, which runs the closure that it is given.
///
/// ```
/// use portcullis::platform::fake::{FakeHost, FakeLock};
/// use portcullis::platform::{LockClass, WordLines};
/// use portcullis::{Platform, forward_platform};
///
/// /// A host whose clock stands still.
/// struct Still(FakeHost);
///
/// // SAFETY: all but the clock is that of a host that keeps the promises.
/// unsafe impl Platform for Still {
///     type Lock<T: Send> = FakeLock<T>;
///     type CpuWords = WordLines;
///
///     forward_platform!(self => self.0; locks, processors, memory, wait_us_max, pause);
///
///     fn now_us(&self) -> u64 {
///         0
///     }
/// }
/// assert_eq!(Still(FakeHost::default()).now_us(), 0);
/// ```
#[macro_export]
macro_rules! forward_platform {
    ($this:ident => $host:expr; $($what:ident),+ $(,)?) => {
        $crate::forward_platform!($this => $host, through $crate::platform::straight; $($what),+);
    };
    ($this:ident => $host:expr, through $through:path; $($what:ident),+ $(,)?) => {
        $($crate::forward_platform!(@$what $this $host, $through);)+
    };
    (# $this:ident $host:expr, $through:path,
        fn $name:ident $(<$T:ident $(: $bound:ident)?>)? ($($arg:ident: $type:ty),*) -> $back:ty) => {
        #[inline(always)]
        fn $name $(<$T $(: $bound)?>)? (&$this, $($arg: $type),*) -> $back {
            $through(|| $host.$name($($arg),*))
        }
    };
    (# $this:ident $host:expr, $through:path, unsafe fn $name:ident ($($arg:ident: $type:ty),*) -> $back:ty) => {
        #[inline(always)]
        unsafe fn $name(&$this, $($arg: $type),*) -> $back {
            // SAFETY: the caller's promise, passed on.
            $through(|| unsafe { $host.$name($($arg),*) })
        }
    };
    (@locks $this:ident $host:expr, $through:path) => {
        $crate::forward_platform!($this => $host, through $through;
            lock, walk, walks_now, walks_are_over);
    };
    (@processors $this:ident $host:expr, $through:path) => {
        $crate::forward_platform!($this => $host, through $through;
            cpu, cpus, cpu_words, add_here, exchange_at);
    };
    (@memory $this:ident $host:expr, $through:path) => {
        $crate::forward_platform!($this => $host, through $through;
            allocate_frame, allocate_frames, allocate, frame, free_frame, table_barrier);
    };
    (@foreign $this:ident $host:expr, $through:path) => {
        $crate::forward_platform!($this => $host, through $through;
            read_foreign, allocate_bytes, free_bytes, copies);
    };
    (@time $this:ident $host:expr, $through:path) => {
        $crate::forward_platform!($this => $host, through $through;
            now_us, wait_us_max, pause);
    };
    (@lock $($to:tt)+) => {
        $crate::forward_platform!(# $($to)+,
            fn lock<T: Send>(class: $crate::platform::LockClass, value: T) -> Self::Lock<T>);
    };
    (@walk $($to:tt)+) => { $crate::forward_platform!(# $($to)+, fn walk<R>(walk: impl FnOnce() -> R) -> R); };
    (@walks_now $($to:tt)+) => { $crate::forward_platform!(# $($to)+, fn walks_now() -> Option<u64>); };
    (@walks_are_over $($to:tt)+) => { $crate::forward_platform!(# $($to)+, fn walks_are_over(then: u64) -> bool); };
    (@cpu $($to:tt)+) => { $crate::forward_platform!(# $($to)+, fn cpu() -> $crate::platform::CpuHint); };
    (@cpus $($to:tt)+) => { $crate::forward_platform!(# $($to)+, fn cpus() -> u32); };
    (@cpu_words $($to:tt)+) => {
        $crate::forward_platform!(# $($to)+,
            fn cpu_words(value: u64) -> Result<Self::CpuWords, $crate::NoMemory>);
    };
    (@add_here $($to:tt)+) => {
        $crate::forward_platform!(# $($to)+,
            fn add_here(words: &Self::CpuWords, word: usize, amount: u64) -> (usize, u64));
    };
    (@exchange_at $($to:tt)+) => {
        $crate::forward_platform!(# $($to)+,
            fn exchange_at(words: &Self::CpuWords, line: usize, word: usize, old: u64, new: u64) -> bool);
    };
    (@allocate_frame $($to:tt)+) => {
        $crate::forward_platform!(# $($to)+,
            fn allocate_frame(context: $crate::platform::Context) -> Result<$crate::PhysAddr, $crate::NoMemory>);
    };
    (@allocate_frames $($to:tt)+) => {
        $crate::forward_platform!(# $($to)+,
            fn allocate_frames(context: $crate::platform::Context, count: usize) -> Result<$crate::PhysAddr, $crate::NoMemory>);
    };
    (@allocate $($to:tt)+) => {
        $crate::forward_platform!(# $($to)+,
            fn allocate<R>(context: $crate::platform::Context, allocate: impl FnOnce() -> R) -> R);
    };
    (@frame $($to:tt)+) => {
        $crate::forward_platform!(# $($to)+,
            unsafe fn frame(frame: $crate::PhysAddr) -> &$crate::table::Frame);
    };
    (@free_frame $($to:tt)+) => {
        $crate::forward_platform!(# $($to)+,
            unsafe fn free_frame(frame: $crate::PhysAddr) -> ());
    };
    (@table_barrier $($to:tt)+) => {
        $crate::forward_platform!(# $($to)+,
            fn table_barrier(entries: &[$crate::table::Entry], coherent: bool) -> ());
    };
    (@read_foreign $($to:tt)+) => {
        $crate::forward_platform!(# $($to)+,
            fn read_foreign(at: $crate::PhysAddr, words: &mut [u64]) -> Result<(), $crate::platform::Unreadable>);
    };
    (@allocate_bytes $($to:tt)+) => {
        $crate::forward_platform!(# $($to)+,
            fn allocate_bytes(bytes: u64, below: $crate::PhysAddr) -> Result<$crate::PhysAddr, $crate::NoMemory>);
    };
    (@free_bytes $($to:tt)+) => {
        $crate::forward_platform!(# $($to)+,
            unsafe fn free_bytes(at: $crate::PhysAddr, bytes: u64) -> ());
    };
    (@copies $($to:tt)+) => {
        $crate::forward_platform!(# $($to)+,
            fn copies() -> Option<&dyn $crate::platform::CopyMemory>);
    };
    (@now_us $($to:tt)+) => { $crate::forward_platform!(# $($to)+, fn now_us() -> u64); };
    (@wait_us_max $($to:tt)+) => { $crate::forward_platform!(# $($to)+, fn wait_us_max() -> u64); };
    (@pause $($to:tt)+) => { $crate::forward_platform!(# $($to)+, fn pause(wait: $crate::platform::Wait) -> ()); };
    (@probe $($to:tt)+) => { $crate::forward_platform!(# $($to)+, fn probe(step: $crate::platform::Step) -> ()); };
}

/// Runs `act` and does nothing else, for [`forward_platform`](crate::forward_platform).
#[doc(hidden)]
#[inline(always)]
pub fn straight<R>(act: impl FnOnce() -> R) -> R {
    act()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::platform::fake::FakeHost;
    use crate::platform::{Context, Platform};
    use alloc::sync::Arc;

    /// What it lends is lent by the host behind the pointer.
    #[test]
    fn a_reference_and_an_arc_are_the_host_behind_them() {
        fn frames_lent<P: Platform>(host: P, fake: &FakeHost) -> usize {
            let frame = host.allocate_frame(Context::Atomic).expect("memory");
            let lent = fake.frames_lent();
            // SAFETY: allocated just now.
            unsafe { host.free_frame(frame) };
            lent
        }
        let fake = Arc::new(FakeHost::default());
        assert_eq!(frames_lent(&*fake, &fake), 1);
        assert_eq!(frames_lent(fake.clone(), &fake), 1);
        assert_eq!(fake.frames_lent(), 0);
    }
}
