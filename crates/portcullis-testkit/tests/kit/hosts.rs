//! Tests the kit with the fake host, and with flawed hosts.

use super::fails;
use portcullis::forward_platform;
use portcullis::platform::fake::FakeHost;
use portcullis::platform::{Context, CpuHint, Lock, LockClass, WordLines};
use portcullis::{NoMemory, PhysAddr, Platform};
use portcullis_testkit::host::{Panics, check, check_where};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::thread;

#[test]
fn the_fake_keeps_its_promises() {
    check(&FakeHost::default());
}

/// The flaws, as numbers because they are type parameters.
const NONE: u8 = 0;
const LENDS_WITHOUT_ZEROING: u8 = 1;
const LENDS_TWICE: u8 = 2;
const GOES_BACK_IN_TIME: u8 = 3;
const NAMES_A_CPU_THAT_IS_NOT_THERE: u8 = 4;
const FORGETS_A_PANIC: u8 = 5;
const LOSES_EXCHANGES: u8 = 6;
const ENDS_WALKS_EARLY: u8 = 7;
const FORGETS_A_PANIC_IF_TRIED: u8 = 8;
const IS_NEVER_TAKEN_IF_TRIED: u8 = 9;
/// No flaw where panics abort.
const STAYS_LOCKED_AFTER_A_PANIC: u8 = 10;
/// The same, with a copy of the `try_with` that every lock has by default.
const STAYS_LOCKED_AND_HAS_THE_DEFAULT: u8 = 11;

struct Flawed<const FLAW: u8> {
    fake: FakeHost,
    lent: Mutex<Option<PhysAddr>>,
    looks: AtomicU64,
}

/// A mutex that ignores a panic of the last thread that held it.
struct Careless<T, const FLAW: u8>(Mutex<T>);

impl<T: Send, const FLAW: u8> Lock<T> for Careless<T, FLAW> {
    fn with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> R {
        let stays = matches!(FLAW, STAYS_LOCKED_AFTER_A_PANIC | STAYS_LOCKED_AND_HAS_THE_DEFAULT);
        while stays && self.0.is_poisoned() {
            thread::yield_now();
        }
        let inside = self.0.lock();
        let mut inside = if FLAW == FORGETS_A_PANIC {
            inside.unwrap_or_else(PoisonError::into_inner)
        } else {
            inside.expect("whole")
        };
        critical(&mut inside)
    }

    fn try_with<R>(&self, critical: impl FnOnce(&mut T) -> R) -> Option<R> {
        if FLAW == STAYS_LOCKED_AND_HAS_THE_DEFAULT {
            return Some(self.with(critical));
        }
        match self.0.try_lock() {
            _ if FLAW == IS_NEVER_TAKEN_IF_TRIED => None,
            Err(TryLockError::Poisoned(inside)) if FLAW == FORGETS_A_PANIC_IF_TRIED => {
                Some(critical(&mut inside.into_inner()))
            }
            inside => inside.ok().map(|mut inside| critical(&mut inside)),
        }
    }
}

// SAFETY: it breaks a promise on purpose, so that the kit finds out. The fake keeps the memory.
unsafe impl<const FLAW: u8> Platform for Flawed<FLAW> {
    type Lock<T: Send> = Careless<T, FLAW>;
    type CpuWords = WordLines;

    forward_platform!(self => self.fake; walk, cpus, frame, free_frame, table_barrier, pause);

    fn lock<T: Send>(&self, _: LockClass, value: T) -> Careless<T, FLAW> {
        Careless(Mutex::new(value))
    }

    fn cpu(&self) -> CpuHint {
        if FLAW == NAMES_A_CPU_THAT_IS_NOT_THERE { CpuHint(self.cpus()) } else { self.fake.cpu() }
    }

    fn allocate_frame(&self, context: Context) -> Result<PhysAddr, NoMemory> {
        let mut lent = self.lent.lock().expect("not poisoned");
        if FLAW == LENDS_TWICE
            && let Some(page) = *lent
        {
            return Ok(page);
        }
        let page = self.fake.allocate_frame(context)?;
        if FLAW == LENDS_WITHOUT_ZEROING {
            // SAFETY: the fake has just lent it.
            let frame = unsafe { self.fake.frame(page) };
            frame[511].store_bits(1);
        }
        *lent = Some(page);
        Ok(page)
    }

    fn cpu_words(&self, value: u64) -> Result<WordLines, NoMemory> {
        WordLines::new(self, value)
    }

    fn exchange_at(&self, words: &WordLines, line: usize, word: usize, old: u64, new: u64) -> bool {
        self.fake.exchange_at(words, line, word, old, new) && FLAW != LOSES_EXCHANGES
    }

    fn walks_now(&self) -> Option<u64> {
        if FLAW == ENDS_WALKS_EARLY { Some(0) } else { self.fake.walks_now() }
    }

    fn walks_are_over(&self, then: u64) -> bool {
        FLAW == ENDS_WALKS_EARLY || self.fake.walks_are_over(then)
    }

    fn now_us(&self) -> u64 {
        let looks = self.looks.fetch_add(1, Ordering::Relaxed);
        if FLAW == GOES_BACK_IN_TIME && looks % 100 == 99 { 0 } else { looks }
    }
}

fn flawed<const FLAW: u8>() -> Flawed<FLAW> {
    Flawed { fake: FakeHost::default(), lent: Mutex::default(), looks: AtomicU64::new(0) }
}

fn check_flaw<const FLAW: u8>() {
    check(&flawed::<FLAW>());
}

#[test]
fn without_a_flaw_it_passes() {
    check_flaw::<NONE>();
}

/// The name of the test below, and the variable that makes it hang.
const HANGS: &str = "hosts::a_host_that_aborts_on_panics_is_checked_and_never_hangs";
const HANG: &str = "PORTCULLIS_TEST_HANG";

#[test]
fn a_host_that_aborts_on_panics_is_checked_and_never_hangs() {
    match std::env::var(HANG).as_deref() {
        Ok("with") => return check_flaw::<STAYS_LOCKED_AFTER_A_PANIC>(),
        Ok("try_with") => return check_flaw::<STAYS_LOCKED_AND_HAS_THE_DEFAULT>(),
        _ => {}
    }
    let skipped = ["no_one_after_a_panic"];
    assert_eq!(check_where(&flawed::<STAYS_LOCKED_AFTER_A_PANIC>(), Panics::Abort), skipped);
    assert_eq!(check_where(&flawed::<STAYS_LOCKED_AND_HAS_THE_DEFAULT>(), Panics::Abort), skipped);
    assert_eq!(check_where(&FakeHost::default(), Panics::Unwind), [""; 0]);
    // Checked as hosts that unwind, they end with a message.
    let this = std::env::current_exe().expect("this program");
    let child = |call: &str| {
        let mut child = Command::new(&this);
        child.args(["--exact", HANGS, "--nocapture"]).env(HANG, call).stdout(Stdio::null()).stderr(Stdio::piped());
        child.spawn().expect("it starts")
    };
    for child in ["with", "try_with"].map(child) {
        let child = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&child.stderr);
        assert!(!child.status.success() && said.contains("call check_where(host, Panics::Abort)"), "{said}");
    }
}

#[test]
fn a_flaw_is_found() {
    fails("is not all zero", check_flaw::<LENDS_WITHOUT_ZEROING>);
    fails("was lent twice", check_flaw::<LENDS_TWICE>);
    fails("time went back", check_flaw::<GOES_BACK_IN_TIME>);
    fails("CPU 4 of 4", check_flaw::<NAMES_A_CPU_THAT_IS_NOT_THERE>);
    fails("lets in another after a panic", check_flaw::<FORGETS_A_PANIC>);
    fails("another that tries after a panic", check_flaw::<FORGETS_A_PANIC_IF_TRIED>);
    fails("that is free is not taken", check_flaw::<IS_NEVER_TAKEN_IF_TRIED>);
    fails("were lost", check_flaw::<LOSES_EXCHANGES>);
    fails("is said to be over", check_flaw::<ENDS_WALKS_EARLY>);
}
