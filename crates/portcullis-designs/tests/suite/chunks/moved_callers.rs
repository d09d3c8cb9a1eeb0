//! Callers that are moved to another CPU between the two halves of an addition: a word of one CPU is added to, and the
//! line of another is returned. That line is only a hint, so no page may be handed out twice for it.

use crate::checker::{Operation, check, on_bench, script};
use crate::planted::MACHINE;
use crate::raw_face::RawFace;
use portcullis::designs::Portcullis;
use portcullis::forward_platform;
use portcullis::iommu::fake::FakeIommu;
use portcullis::platform::fake::{CPUS, FakeHost, FakeLock, run_on};
use portcullis::platform::{CpuWords, WordLines};
use portcullis::{Access, Iova, Open, PAGE_SIZE, PhysAddr, Platform, Protection, Rule};
use proptest::prelude::RngExt;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What an addition returns if its caller is moved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moves {
    /// The line of another CPU.
    Line,
    /// The line of another CPU, and the caller goes on there.
    Caller,
    /// A flaw: the line of another CPU, and what its word holds, to which nothing was added.
    Word,
}

fn rng(seed: u64) -> TestRng {
    TestRng::from_seed(RngAlgorithm::XorShift, &[seed.to_le_bytes(), [1; 8]].concat())
}

/// The fake host, with callers that are moved now and then.
struct Moving<'h> {
    fake: &'h FakeHost,
    moves: Moves,
    random: Mutex<TestRng>,
    moved: AtomicUsize,
}

impl<'h> Moving<'h> {
    fn new(fake: &'h FakeHost, moves: Moves, seed: u64) -> Self {
        Self { fake, moves, random: Mutex::new(rng(seed)), moved: AtomicUsize::new(0) }
    }

    /// Another line than `line`, for one addition in three.
    fn other_line(&self, line: usize, lines: usize) -> Option<usize> {
        let mut random = self.random.lock().expect("not poisoned");
        random.random_ratio(1, 3).then(|| (line + random.random_range(1..lines)) % lines)
    }

    fn moved(&self) -> usize {
        self.moved.load(Ordering::Relaxed)
    }
}

// SAFETY: forwards to the fake, which keeps the promises. With the flaw it breaks one, to be found out; no memory is
// behind the IOMMU.
unsafe impl Platform for Moving<'_> {
    type Lock<T: Send> = FakeLock<T>;
    type CpuWords = WordLines;

    forward_platform!(self => self.fake;
        locks, cpu, cpus, cpu_words, allocate_frame, allocate_frames, frame, free_frame, table_barrier, now_us, pause);

    fn add_here(&self, words: &WordLines, word: usize, amount: u64) -> (usize, u64) {
        let Some(other) = self.other_line(words.line_of(self.cpu()), words.lines()) else {
            return self.fake.add_here(words, word, amount);
        };
        self.moved.fetch_add(1, Ordering::Relaxed);
        if self.moves == Moves::Word {
            return (other, words.word(other, word).load(Ordering::Acquire));
        }
        let (_, before) = self.fake.add_here(words, word, amount);
        if self.moves == Moves::Caller {
            run_on(other as u32);
        }
        (other, before)
    }

    fn exchange_at(&self, words: &WordLines, line: usize, word: usize, old: u64, new: u64) -> bool {
        // The caller may have been moved again, so that the line is no longer its own.
        let is_here = self.other_line(line, words.lines()).is_none();
        is_here && self.fake.exchange_at(words, line, word, old, new)
    }
}

/// Runs scripts with callers that move as `moves` says. The rule that is broken first, with what was found, and how
/// often callers were moved.
fn first_violation(moves: Moves, protection: Protection, scripts: u64) -> (Option<(Rule, String)>, usize) {
    let mut runner = TestRunner::deterministic();
    let mut moved = 0;
    let found = (0..scripts).find_map(|seed| {
        let mut script = script(50..200).new_tree(&mut runner).expect("no script is filtered out").current();
        // On all CPUs from the beginning, each with a chunk of its own.
        for cpu in 0..CPUS {
            script.splice(0..0, [Operation::RunOn(cpu), Operation::Burst(3)]);
        }
        on_bench(&MACHINE, protection, |bench| {
            let host = Moving::new(bench.host, moves, seed);
            let checked = check::<Portcullis, _, _>(bench, &host, bench.hardware, &script);
            moved += host.moved();
            checked.err()
        })
    });
    run_on(0);
    (found, moved)
}

#[test]
fn s3_callers_that_are_moved_get_pages_of_their_own() {
    for protection in [Protection::Strict, Protection::Deferred] {
        for moves in [Moves::Line, Moves::Caller] {
            let (found, moved) = first_violation(moves, protection, 48);
            assert_eq!(found, None, "{protection}");
            assert!(moved > 1000, "{moved} callers were moved: {protection}");
        }
    }
}

/// Shows that the scripts can fail.
#[test]
fn planted_s3_an_addition_that_returns_the_word_of_another_cpu() {
    let (found, _) = first_violation(Moves::Word, Protection::Strict, 48);
    assert_eq!(found.map(|(rule, _)| rule), Some(Rule::Reuse));
}

/// Threads are CPUs here, and are moved while others are at work.
#[test]
fn s3_threads_that_are_moved_get_pages_of_their_own() {
    for moves in [Moves::Line, Moves::Caller] {
        let host = FakeHost::default();
        let iommu = FakeIommu::new(&host);
        let moving = Moving::new(&host, moves, 1);
        let domain = Portcullis::open(&iommu, &moving, Protection::Strict).expect("a domain");
        let live = Mutex::new(HashSet::new());
        std::thread::scope(|scope| {
            for cpu in 0..CPUS {
                let (domain, live) = (&domain, &live);
                scope.spawn(move || {
                    run_on(cpu);
                    let mut own: Vec<Iova> = Vec::new();
                    for turn in 0..3000u64 {
                        let phys = PhysAddr::from_pfn(0x1000 * u64::from(cpu + 1) + turn % 0x1000);
                        let new = domain.raw_map_either_way(phys, PAGE_SIZE, Access::DeviceWrites).expect("room");
                        assert!(live.lock().expect("no page twice").insert(new), "S3: {new} is handed out twice");
                        own.push(new);
                        if own.len() > 20 {
                            let gone = own.swap_remove(turn as usize % own.len());
                            live.lock().expect("no page twice").remove(&gone);
                            domain.unmap_raw(gone, PAGE_SIZE).expect("mapped");
                        }
                    }
                });
            }
        });
        assert!(moving.moved() > 1000, "{} callers were moved", moving.moved());
        assert_eq!(domain.usage().live_ranges, 20 * CPUS as usize);
    }
}
