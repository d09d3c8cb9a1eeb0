//! Words and walks under threads that are migrated and interrupted.

use super::cpus::{available, pin};
use super::{Native, walks};
use portcullis::forward_platform;
use portcullis::platform::{CPU_WORDS, Context, CpuWords, WordLines};
use portcullis::{PhysAddr, Platform};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;

const THREADS: usize = 4;
const TURNS: u64 = 500_000;

/// The words to which signal handlers add, as interrupts would, and the total that they have added.
static WORDS: AtomicPtr<WordLines> = AtomicPtr::new(std::ptr::null_mut());
static BY_SIGNALS: AtomicU64 = AtomicU64::new(0);
/// There is only one handler, so these tests run one at a time.
static HANDLER: Mutex<()> = Mutex::new(());

extern "C" fn interrupt(_: libc::c_int) {
    // SAFETY: null, or words that live until the last signal.
    if let Some(words) = unsafe { WORDS.load(Ordering::Relaxed).as_ref() } {
        Native::coherent().add_here(words, 3, 1);
        BY_SIGNALS.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sends signals to this thread continuously while it lives.
struct Signals(libc::timer_t);

impl Signals {
    const EVERY_NS: libc::c_long = 20_000;

    fn to_this_thread() -> Self {
        // SAFETY: the handler only does what a handler may do, for a signal that no other code here uses. Interrupted
        // calls continue. All arguments live as long as the calls. The timer takes the thread id from `gettid`.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = interrupt as *const () as usize;
            action.sa_flags = libc::SA_RESTART;
            assert_eq!(libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()), 0);
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = libc::SIGALRM;
            event.sigev_notify_thread_id = libc::gettid();
            let mut timer = std::mem::zeroed();
            assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer), 0);
            let every = libc::timespec { tv_sec: 0, tv_nsec: Self::EVERY_NS };
            let times = libc::itimerspec { it_interval: every, it_value: every };
            assert_eq!(libc::timer_settime(timer, 0, &raw const times, std::ptr::null_mut()), 0);
            Self(timer)
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: `to_this_thread` made the timer, and it is deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}

/// Lets threads and their interrupts change word 3 while the threads migrate between CPUs, and checks the sum.
fn hammer<P: Platform<CpuWords = WordLines>>(platform: &P) {
    let _one = HANDLER.lock().unwrap_or_else(PoisonError::into_inner);
    let words = WordLines::new(platform, 0).expect("memory");
    let cpus = available();
    let begin = Barrier::new(THREADS);
    BY_SIGNALS.store(0, Ordering::Relaxed);
    WORDS.store((&raw const words).cast_mut(), Ordering::Relaxed);
    let added: u64 = thread::scope(|scope| {
        let member = |number: usize| {
            let (cpus, begin, words) = (&cpus, &begin, &words);
            scope.spawn(move || {
                begin.wait();
                let _signals = Signals::to_this_thread();
                let turn = |turn: u64| {
                    if turn.is_multiple_of(1024) {
                        assert!(pin(cpus[(turn as usize / 1024 + number) % cpus.len()]));
                    }
                    change(platform, words, turn)
                };
                (0..TURNS).map(turn).sum::<u64>()
            })
        };
        let members: Vec<_> = (0..THREADS).map(member).collect();
        members.into_iter().map(|member| member.join().expect("no panic")).sum()
    });
    WORDS.store(std::ptr::null_mut(), Ordering::Relaxed);
    assert_eq!(sum(&words, 3), added + BY_SIGNALS.load(Ordering::Relaxed));
    assert!(BY_SIGNALS.load(Ordering::Relaxed) > 100, "signals came");
    // Not every exchange can have failed, because most follow their addition directly.
    assert!(added > THREADS as u64 * TURNS * 2);
    assert!((0..CPU_WORDS).filter(|word| *word != 3).all(|word| sum(&words, word) == 0));
}

fn sum(words: &WordLines, word: usize) -> u64 {
    (0..words.as_slice().len()).map(|line| words.word(line, word).load(Ordering::Relaxed)).sum()
}

/// Adds to the word, and sometimes exchanges the result for a larger value.
fn change<P: Platform<CpuWords = WordLines>>(platform: &P, words: &WordLines, turn: u64) -> u64 {
    let (line, before) = platform.add_here(words, 3, 1);
    let exchanged = turn.is_multiple_of(3) && platform.exchange_at(words, line, 3, before + 1, before + 1001);
    1 + if exchanged { 1000 } else { 0 }
}

#[test]
fn nothing_is_lost_from_words_of_a_cpu() {
    hammer(&Native::coherent());
}

/// This machine, but it reports one CPU: threads on other CPUs have no line, and share the last with locked
/// instructions.
struct OneCpu(Native<true>);

// SAFETY: it forwards to a platform that keeps the promises.
unsafe impl Platform for OneCpu {
    type Lock<T: Send> = <Native<true> as Platform>::Lock<T>;
    type CpuWords = WordLines;

    forward_platform!(self => self.0;
        lock, cpu, cpu_words, add_here, exchange_at, allocate_frame, frame, free_frame, table_barrier, now_us, pause);

    fn cpus(&self) -> u32 {
        2
    }
}

#[test]
fn nothing_is_lost_where_some_have_no_line() {
    hammer(&OneCpu(Native::coherent()));
}

#[test]
fn an_exchange_needs_what_it_was_told() {
    let platform = Native::coherent();
    let words = WordLines::new(&platform, 7).expect("memory");
    assert!(pin(available()[0]));
    let (line, before) = platform.add_here(&words, 0, 5);
    assert_eq!(before, 7);
    assert!(!platform.exchange_at(&words, line, 0, 7, 1));
    assert!(platform.exchange_at(&words, line, 0, 12, 1));
    assert_eq!(words.word(line, 0).load(Ordering::Relaxed), 1);
}

/// Without locked instructions, only the line's own CPU changes it.
#[cfg(target_arch = "x86_64")]
#[test]
fn no_other_cpu_exchanges() {
    let platform = Native::coherent();
    let words = WordLines::new(&platform, 0).expect("memory");
    let cpus = available();
    let (Some(_), [here, there, ..]) = (super::rseq::cpu(), &cpus[..]) else { return };
    assert!(pin(*here));
    let (line, _) = platform.add_here(&words, 0, 1);
    assert!(pin(*there));
    assert!(!platform.exchange_at(&words, line, 0, 1, 2));
    assert!(pin(*here));
    assert!(platform.exchange_at(&words, line, 0, 1, 2));
}

#[test]
fn a_page_lent_twice_is_zero_both_times() {
    let platform = Native::coherent();
    let page = platform.allocate_frame(Context::Atomic).expect("memory");
    // SAFETY: the page was just allocated, and is not used after it is freed.
    unsafe {
        let frame = platform.frame(page);
        assert!(frame.iter().all(|entry| entry.load_bits() == 0));
        frame[5].store_bits(3);
        platform.free_frame(page);
    }
    assert_eq!(super::look(page).map(|frame| frame[5].load_bits()), Some(0));
    assert!(super::look(PhysAddr::new(page.as_u64() + 8)).is_none());
    assert!(super::look(PhysAddr::new(1 << 40)).is_none());
}

#[test]
fn time_passes_at_its_pace() {
    let platform = Native::coherent();
    let (begun, begun_us) = (std::time::Instant::now(), platform.now_us());
    thread::sleep(std::time::Duration::from_millis(20));
    let (passed_us, real_us) = (platform.now_us() - begun_us, begun.elapsed().as_micros() as u64);
    assert!(passed_us >= 20_000 * 9 / 10 && passed_us <= real_us * 11 / 10, "{passed_us} of {real_us}");
}

#[test]
fn walks_that_go_on_are_waited_for_and_others_are_not() {
    let platform = Native::coherent();
    if platform.walks_now().is_none() {
        return;
    }
    let (entered, leave, later, done) = (Barrier::new(2), Barrier::new(2), Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            platform.walk(|| {
                // A nested walk, which ends before the outer one.
                platform.walk(|| ());
                entered.wait();
                leave.wait();
            });
            platform.walk(|| {
                later.wait();
                done.wait();
            });
        });
        entered.wait();
        let then = platform.walks_now().expect("it could just now");
        assert!(!platform.walks_are_over(then));
        platform.walk(|| assert!(!platform.walks_are_over(then)));
        leave.wait();
        later.wait();
        // Other tests may walk at the same time. Their walks began later, or will end.
        while !platform.walks_are_over(then) {
            thread::yield_now();
        }
        assert!(!platform.walks_are_over(platform.walks_now().expect("it could just now")), "the second walk goes on");
        done.wait();
    });
    let now = platform.walks_now().expect("it could just now");
    while !platform.walks_are_over(now) {
        thread::yield_now();
    }
}

/// A writer unlinks a value, waits for the walks of that moment, and spoils the value. No walker must ever see it
/// spoilt.
#[test]
fn nobody_is_still_there_when_walks_are_over() {
    const SPOILT: u64 = 1;
    let platform = Native::coherent();
    if platform.walks_now().is_none() {
        return;
    }
    let values: Vec<AtomicU64> = (0..2).map(|_| AtomicU64::new(0)).collect();
    let reachable = AtomicPtr::new((&raw const values[0]).cast_mut());
    let (stop, walked) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for _ in 0..100 {
                        let found = platform.walk(|| {
                            // SAFETY: the pointer is to one of `values`, which outlive the scope.
                            unsafe { &*reachable.load(Ordering::Relaxed) }.load(Ordering::Relaxed)
                        });
                        assert_ne!(found, SPOILT);
                    }
                    walked.fetch_add(100, Ordering::Relaxed);
                }
            });
        }
        while walked.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        for turn in 1..3000 {
            let (old, new) = (&values[(turn - 1) % 2], &values[turn % 2]);
            new.store(0, Ordering::Relaxed);
            reachable.store((&raw const *new).cast_mut(), Ordering::Relaxed);
            let then = walks::now().expect("it could just now");
            while !walks::are_over(then) {
                thread::yield_now();
            }
            old.store(SPOILT, Ordering::Relaxed);
        }
        stop.store(true, Ordering::Relaxed);
    });
}
