//! Checks the promises of a [`Platform`] on a host: memory, locks, words of CPUs, walks, time.
//!
//! Two of its promises cannot be tested here: that entries reach a page walker that does not snoop, and that interrupts
//! are masked while a lock is held.

use portcullis::platform::{CPU_WORDS, Context, CopyMemory, CpuWords, Lock, LockClass, Wait};
use portcullis::table::{ENTRIES, Entry, Frame};
use portcullis::{PAGE_SIZE, PhysAddr, Platform};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// How many table pages are allocated at a time.
const FRAMES: usize = 16;
const THREADS: u64 = 4;
/// How often each thread takes a lock, or changes a word.
const TURNS: u64 = 5_000;
/// How long the host may take to notice the end of a walk.
const WALK_MAX: Duration = Duration::from_secs(20);

/// How long a lock may take to refuse a thread.
const LOCK_MAX: Duration = Duration::from_secs(5);

/// What a panic does on a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Panics {
    /// It unwinds the stack, so the lock that a thread holds has to refuse others afterwards.
    Unwind,
    /// It ends everything, as in a kernel: no thread runs afterwards, so a lock need not notice a panic.
    Abort,
}

/// Checks the promises of a host on which panics unwind. See [`check_where`].
///
/// # Panics
/// If the host breaks a promise.
pub fn check<P: Platform>(host: &P) {
    check_where(host, Panics::Unwind);
}

/// Checks the host's promises, from several threads. Where panics abort, the checks of what comes after a panic are
/// skipped; their names are printed and returned. It takes less than a second, but much longer on a busy machine whose
/// locks spin in turn: the thread whose turn it is may then have no CPU.
///
/// # Panics
/// If the host breaks a promise. A lock that is never free again after a panic inside aborts the process, because the
/// thread that waits for it cannot be ended: [`Panics::Abort`] is for such hosts.
pub fn check_where<P: Platform>(host: &P, panics: Panics) -> Vec<&'static str> {
    frames(host);
    side_by_side(host);
    bytes(host);
    cpus_and_time(host);
    one_at_a_time(host);
    words(host);
    walks(host);
    if let Some(memory) = host.copies() {
        copies(host, memory);
    }
    match panics {
        Panics::Unwind => {
            no_one_after_a_panic(host);
            Vec::new()
        }
        Panics::Abort => {
            let skipped = vec!["no_one_after_a_panic"];
            println!("skipped, because panics abort: {}", skipped.join(", "));
            skipped
        }
    }
}

fn take<P: Platform>(host: &P) -> PhysAddr {
    host.allocate_frame(Context::MaySleep).expect("a table page")
}

/// The entries of a table page of `host`. The caller frees the page only when it no longer uses them.
fn entries<P: Platform>(host: &P, page: PhysAddr) -> &[Entry; ENTRIES] {
    // SAFETY: the page is from this host. No caller frees it before it has finished with the entries.
    unsafe { host.frame(page) }
}

fn give_back<P: Platform>(host: &P, page: PhysAddr) {
    // SAFETY: the page is from this host, no reference to it is left, and no hardware has ever used it.
    unsafe { host.free_frame(page) };
}

fn assert_zero<P: Platform>(host: &P, page: PhysAddr) {
    assert!(entries(host, page).iter().all(|entry| entry.load_bits() == 0), "the table page at {page} is not all zero");
}

/// Table pages are aligned, all zero, distinct, and never move.
fn frames<P: Platform>(host: &P) {
    for context in [Context::MaySleep, Context::Atomic] {
        let pages: Vec<PhysAddr> = (0..FRAMES).map(|_| host.allocate_frame(context).expect("a table page")).collect();
        assert_eq!(pages.iter().collect::<BTreeSet<_>>().len(), FRAMES, "a table page was lent twice: {pages:?}");
        for (number, &page) in pages.iter().enumerate() {
            assert_eq!(page.page_offset(), 0, "the table page at {page} is not aligned");
            assert_zero(host, page);
            assert!(ptr::eq(entries(host, page), entries(host, page)), "the table page at {page} has moved");
            entries(host, page).iter().for_each(|entry| entry.store_bits(0x1000 + number as u64));
        }
        for (number, &page) in pages.iter().enumerate() {
            let kept = entries(host, page).iter().all(|entry| entry.load_bits() == 0x1000 + number as u64);
            assert!(kept, "the table page at {page} has lost its contents");
            give_back(host, page);
        }
        // Table pages that were freed are lent again, and are all zero again.
        let again: Vec<PhysAddr> = (0..FRAMES).map(|_| take(host)).collect();
        for page in again {
            assert_zero(host, page);
            give_back(host, page);
        }
    }
}

/// Adjacent table pages are like other table pages. A host may refuse to lend any.
fn side_by_side<P: Platform>(host: &P) {
    const COUNT: u64 = 3;
    if let Ok(first) = host.allocate_frames(Context::MaySleep, COUNT as usize) {
        let page = |number: u64| first.checked_add(number * PAGE_SIZE).expect("an address");
        (0..COUNT).for_each(|number| assert_zero(host, page(number)));
        (0..COUNT).for_each(|number| give_back(host, page(number)));
    }
    give_back(host, host.allocate_frames(Context::MaySleep, 1).expect("one table page has no neighbours"));
}

/// A piece of memory is aligned to its size rounded up to a power of two, ends at or below the limit, and is lent only
/// once. A host may refuse to lend any.
fn bytes<P: Platform>(host: &P) {
    let below = PhysAddr::new(1 << 46);
    let mut lent: Vec<(u64, u64)> = Vec::new();
    for bytes in [1, 8, 100, PAGE_SIZE, 3 * PAGE_SIZE] {
        let Ok(at) = host.allocate_bytes(bytes, below) else { continue };
        let (first, end) = (at.as_u64(), at.as_u64() + bytes);
        assert!(end <= below.as_u64(), "{bytes} bytes at {at} end beyond {below}");
        assert!(first.is_multiple_of(bytes.next_power_of_two()), "{bytes} bytes at {at} are not aligned");
        let is_apart = lent.iter().all(|&(other, other_end)| end <= other || other_end <= first);
        assert!(is_apart, "{bytes} bytes at {at} overlap others that are lent");
        lent.push((first, end));
    }
    for (first, end) in lent {
        // SAFETY: it was lent above and has not been freed.
        unsafe { host.free_bytes(PhysAddr::new(first), end - first) };
    }
}

fn cpus_and_time<P: Platform>(host: &P) {
    let cpus = host.cpus();
    assert!(cpus > 0, "the host has no CPU");
    on_threads(|| {
        let mut latest_us = host.now_us();
        for _ in 0..1000 {
            assert!(host.cpu().0 < cpus, "CPU {} of {cpus}", host.cpu().0);
            host.pause(Wait::Register);
            let now_us = host.now_us();
            assert!(now_us >= latest_us, "time went back from {latest_us} to {now_us} µs");
            latest_us = now_us;
        }
    });
}

/// A lock admits one thread at a time and protects one value, also if threads try to take it. While it is held, a lock
/// that is later in the order may be taken.
fn one_at_a_time<P: Platform>(host: &P) {
    let outer = host.lock(LockClass::Domain, 0_u64);
    let inner = host.lock(LockClass::Table, 0_u64);
    let inside = AtomicBool::new(false);
    assert!(outer.try_with(|_| ()).is_some(), "a lock that is free is not taken");
    let add = |value: &mut u64| {
        // Relaxed: the lock itself must order these accesses.
        assert!(!inside.swap(true, Ordering::Relaxed), "two threads hold one lock");
        *value += 1;
        inner.with(|value| *value += 1);
        inside.store(false, Ordering::Relaxed);
    };
    on_threads(|| {
        for turn in 0..TURNS {
            match turn % 2 {
                0 => outer.with(add),
                _ => while outer.try_with(add).is_none() {},
            }
        }
    });
    let found = (outer.with(|value| *value), inner.with(|value| *value));
    assert_eq!(found, (THREADS * TURNS, THREADS * TURNS), "additions under a lock were lost");
}

/// After a panic inside a lock, no thread may enter: the value may be half changed.
fn no_one_after_a_panic<P: Platform>(host: &P) {
    let lock = host.lock(LockClass::Domain, 0_u64);
    let enter = |critical: fn(&mut u64)| catch_unwind(AssertUnwindSafe(|| lock.with(critical)));
    assert!(enter(|_| panic!("planted by the test of the host")).is_err(), "a lock has swallowed a panic");
    // A lock whose `try_with` waits never comes back from this either, if panics abort.
    let tried = or_abort(LOCK_MAX, || catch_unwind(AssertUnwindSafe(|| lock.try_with(|_| ()))));
    assert!(!matches!(tried, Ok(Some(()))), "a lock lets in another that tries after a panic inside");
    let refused = or_abort(LOCK_MAX, || enter(|_| ()).is_err());
    assert!(refused, "a lock lets in another after a panic inside");
}

/// Does `work`. If it takes longer than `limit`, ends the process and says why.
fn or_abort<T>(limit: Duration, work: impl FnOnce() -> T) -> T {
    let (done, ended) = mpsc::channel::<()>();
    thread::spawn(move || {
        if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            eprintln!("a lock neither lets in nor refuses another after a panic inside, and would hang for ever");
            eprintln!("if panics abort on this host, it may: call check_where(host, Panics::Abort)");
            std::process::abort();
        }
    });
    let result = work();
    drop(done);
    result
}

/// Words are distinct, and no addition to a word is lost.
fn words<P: Platform>(host: &P) {
    const FIRST: u64 = 7;
    let words = host.cpu_words(FIRST).expect("words of CPUs");
    let lines = words.lines();
    assert!(lines > 0, "the host has no lines of words");
    let all = || (0..lines).flat_map(|line| (0..CPU_WORDS).map(move |word| (line, word)));
    let places: BTreeSet<usize> = all().map(|(line, word)| ptr::from_ref(words.word(line, word)).addr()).collect();
    assert_eq!(places.len(), lines * CPU_WORDS, "two words share a place");
    assert!(
        all().all(|(line, word)| words.word(line, word).load(Ordering::Relaxed) == FIRST),
        "a word does not have its first value"
    );
    let sum = |word| (0..lines).map(|line| words.word(line, word).load(Ordering::Relaxed)).sum::<u64>();
    let added = std::sync::atomic::AtomicU64::new(0);
    on_threads(|| {
        for turn in 0..TURNS {
            let (line, before) = host.add_here(&words, 1, 1);
            assert!(line < lines, "line {line} of {lines}");
            let more = turn % 3 == 0 && host.exchange_at(&words, line, 1, before + 1, before + 101);
            added.fetch_add(if more { 101 } else { 1 }, Ordering::Relaxed);
        }
    });
    assert_eq!(sum(1), lines as u64 * FIRST + added.into_inner(), "additions to the words of a CPU were lost");
    assert!(
        (0..CPU_WORDS).filter(|word| *word != 1).all(|word| sum(word) == lines as u64 * FIRST),
        "other words changed"
    );
    let (line, before) = host.add_here(&words, 2, 0);
    assert!(
        !host.exchange_at(&words, line, 2, before + 1, 0),
        "a word was exchanged that did not hold the expected value"
    );
}

/// A walk is not reported as over before its end, and is reported as over some time after it. A host may be unable to
/// tell.
fn walks<P: Platform>(host: &P) {
    let began = Barrier::new(2);
    let may_end = Barrier::new(2);
    thread::scope(|scope| {
        scope.spawn(|| {
            host.walk(|| {
                began.wait();
                may_end.wait();
            });
        });
        began.wait();
        let token = host.walks_now();
        // Much shorter than `WALK_MAX`: the walk is watched for a moment only.
        let deadline = Instant::now() + Duration::from_millis(50);
        let mut early = false;
        while let Some(token) = token.filter(|_| !early && Instant::now() < deadline) {
            early = host.walks_are_over(token);
            host.pause(Wait::Invalidation);
        }
        may_end.wait();
        assert!(!early, "a walk that goes on is said to be over");
    });
    let Some(token) = host.walks_now() else { return };
    let begun = Instant::now();
    while !host.walks_are_over(token) {
        assert!(begun.elapsed() < WALK_MAX, "all walks have ended, but are not reported as over");
        host.pause(Wait::Invalidation);
    }
}

/// Copies the words that it is told to copy, and no others.
fn copies<P: Platform>(host: &P, memory: &dyn CopyMemory) {
    let [from, to] = [take(host), take(host)];
    (0_u64..).zip(entries(host, from)).for_each(|(number, entry)| entry.store_bits(0xc0_0000 + number));
    let at = |page: PhysAddr, word: u64| page.checked_add(8 * word).expect("in the page");
    // SAFETY: both pages were allocated above, nothing else uses them, and the copied ranges lie within them.
    unsafe {
        memory.copy(at(from, 3), at(to, 5), 8 * 4);
        memory.copy(at(from, 0), at(to, 100), 0);
        memory.clear(at(from, 10), 8 * 2);
    }
    for (word, entry) in (0_u64..).zip(entries(host, to)) {
        let expected = if (5..9).contains(&word) { 0xc0_0000 + word - 2 } else { 0 };
        assert_eq!(entry.load_bits(), expected, "word {word} of a page that words were copied to");
    }
    for (word, entry) in (0_u64..).zip(entries(host, from)) {
        let expected = if (10..12).contains(&word) { 0 } else { 0xc0_0000 + word };
        assert_eq!(entry.load_bits(), expected, "word {word} of a page of which words were set to zero");
    }
    [from, to].into_iter().for_each(|page| give_back(host, page));
}

/// Runs `work` on several threads at once. A panic of one is passed on to the caller.
fn on_threads(work: impl Fn() + Sync) {
    let begin = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        let member = |_| {
            let (work, begin) = (&work, &begin);
            scope.spawn(move || {
                begin.wait();
                work();
            })
        };
        for member in (0..THREADS).map(member).collect::<Vec<_>>() {
            if let Err(panic) = member.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}

/// The entries of a table page that grant a right. A function, so that it is optimized where tests are not.
pub fn present(table: &Frame) -> Vec<u64> {
    let mut present = Vec::new();
    for entry in table {
        let bits = entry.load_bits();
        if bits & 3 != 0 {
            present.push(bits);
        }
    }
    present
}
