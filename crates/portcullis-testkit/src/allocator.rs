//! Checks the promises of an [`IovaAllocator`] on the allocator alone: random operations, compared with a plain list of
//! the ranges in use.

use portcullis::iova::{Claim, INTERRUPT_RANGE, IovaAllocator, IovaRequest};
use portcullis::platform::fake::{CPUS, FakeHost, run_on};
use portcullis::proof::Proof;
use portcullis::{Access, Iova, IovaRange, Lifetime, MapError, PAGE_SHIFT, Platform, Rule, Stream, UnmapError};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use std::cell::Cell;

/// Scripts for each width of addresses.
const SCRIPTS: u32 = 128;
/// Widths of addresses, in bits. With the last two, the allocator runs out of addresses.
const WIDTHS: [u8; 4] = [48, 32, 24, 18];
/// How many ranges must have been handed out after others had come back. A run with fewer is not conclusive.
const ALLOCATED_MIN: u64 = 1000;

/// The rule that was broken, and how.
type Violation = (Rule, String);

/// One step of a script. A range is named by a number, taken modulo the number of ranges.
#[derive(Clone, Debug)]
enum Step {
    /// Allocates this many pages.
    Allocate { pages: u64, access: Access, ring: Option<u32> },
    /// Claims a live range, as an unmap does.
    Claim(usize),
    /// Claims a range that is already claimed.
    ClaimAgain(usize),
    /// Claims a live range without its first or last pages.
    ClaimPart { which: usize, front: u64, back: u64 },
    /// Claims a range that was never handed out.
    ClaimGarbage { pfn: u64, pages: u64 },
    /// Frees a claimed range.
    Free(usize),
    /// Frees every range, claimed or not.
    Drain,
    /// Advances the clock by this many microseconds, and ticks if a tick is due.
    Advance(u64),
    /// The driver continues on this CPU.
    RunOn(u32),
}

/// The ranges in use: the reference that the allocator is compared with.
struct Ledger<A> {
    allocator: A,
    host: &'static FakeHost,
    limit: u64,
    forbidden: Vec<IovaRange>,
    live: Vec<IovaRange>,
    claimed: Vec<IovaRange>,
}

/// Runs random scripts on allocators that `make` builds. Its arguments are the host, the width of addresses in bits,
/// and the reserved ranges, which the allocator must never hand out.
///
/// # Panics
/// If the allocator breaks a promise, with the rule and the smallest failing script that was found: a range overlaps
/// one that has not been freed (S3); a range has the wrong number of pages, or lies beyond the width (S13); a range is
/// reserved (S9); a claim is granted twice, or for something that is no mapping (S6); the counts are wrong (S7); or an
/// allocation fails although every range has been freed (S13).
pub fn check<A: IovaAllocator<&'static FakeHost>>(make: impl Fn(&'static FakeHost, u8, &[IovaRange]) -> A) {
    let allocated = Cell::new(0);
    for width in WIDTHS {
        let config = Config { cases: SCRIPTS, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
        let outcome = runner.run(&vec(step(), 1..200), |script| {
            // The allocator may keep the reference for as long as it likes.
            let host: &'static FakeHost = Box::leak(Box::default());
            let run = Ledger::new(&make, host, width).and_then(|mut ledger| ledger.run(&script));
            allocated
                .set(allocated.get() + run.map_err(|(rule, what)| TestCaseError::fail(format!("{rule}: {what}")))?);
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("addresses of {width} bits: {error}");
        }
    }
    let allocated = allocated.get();
    assert!(allocated >= ALLOCATED_MIN, "only {allocated} ranges were handed out after others had been freed");
}

fn step() -> impl Strategy<Value = Step> {
    let pages = prop_oneof![8 => Just(1), 4 => 1..9u64, 2 => 9..65u64, 1 => 65..1100u64];
    let access = prop_oneof![Just(Access::DeviceReads), Just(Access::DeviceWrites), Just(Access::DeviceReadsAndWrites)];
    let part = (any::<usize>(), 0..3u64, 0..3u64);
    prop_oneof![
        16 => (pages, access, prop::option::of(0..3u32))
            .prop_map(|(pages, access, ring)| Step::Allocate { pages, access, ring }),
        8 => any::<usize>().prop_map(Step::Claim),
        2 => any::<usize>().prop_map(Step::ClaimAgain),
        2 => part.prop_map(|(which, front, back)| Step::ClaimPart { which, front, back }),
        2 => (0..1u64 << 20, 1..600u64).prop_map(|(pfn, pages)| Step::ClaimGarbage { pfn, pages }),
        8 => any::<usize>().prop_map(Step::Free),
        1 => Just(Step::Drain),
        2 => (1..15_000u64).prop_map(Step::Advance),
        2 => (0..CPUS).prop_map(Step::RunOn),
    ]
}

fn fail<T>(rule: Rule, what: impl Into<String>) -> Result<T, Violation> {
    Err((rule, what.into()))
}

impl<A: IovaAllocator<&'static FakeHost>> Ledger<A> {
    fn new(
        make: &impl Fn(&'static FakeHost, u8, &[IovaRange]) -> A,
        host: &'static FakeHost,
        width: u8,
    ) -> Result<Self, Violation> {
        run_on(0);
        let limit = 1 << (u32::from(width) - PAGE_SHIFT);
        let range = |first, pages| IovaRange::new(first, pages).expect("written down as one");
        // Three pages at the top, where top-down searches begin, and a window in the middle.
        let reserved = [range(limit - 8, 3), range(limit / 2, 16)];
        let mut forbidden = vec![range(0, 1), range(INTERRUPT_RANGE.0, INTERRUPT_RANGE.1)];
        forbidden.extend(reserved);
        let allocator = make(host, width, &reserved);
        Ok(Self { allocator, host, limit, forbidden, live: Vec::new(), claimed: Vec::new() })
    }

    /// Returns how many ranges were handed out after others had come back.
    fn run(&mut self, script: &[Step]) -> Result<u64, Violation> {
        let (mut reused, mut freed) = (0, false);
        for (number, step) in script.iter().enumerate() {
            let at = |(rule, what)| (rule, format!("step {number}, {step:?}: {what}"));
            match step {
                Step::Allocate { .. } => reused += u64::from(self.step(step).map_err(at)? && freed),
                _ => freed |= self.step(step).map_err(at)?,
            }
            self.count().map_err(at)?;
        }
        Ok(reused)
    }

    /// Returns whether the step handed out a range or freed one.
    fn step(&mut self, step: &Step) -> Result<bool, Violation> {
        match *step {
            Step::Allocate { pages, access, ring } => {
                let (stream, lifetime) = (Stream(ring), Lifetime::default());
                self.allocate(&IovaRequest { pages, access, stream, lifetime })
            }
            Step::Claim(which) => match self.live.len() {
                0 => Ok(false),
                live => self.claim(which % live).map(|()| false),
            },
            Step::ClaimAgain(which) => {
                let range = self.claimed.get(which % self.claimed.len().max(1)).copied();
                range.map_or(Ok(()), |range| self.refuse(range)).map(|()| false)
            }
            Step::ClaimPart { which, front, back } => {
                let Some(whole) = self.live.get(which % self.live.len().max(1)) else { return Ok(false) };
                let part = IovaRange::new(whole.first_pfn() + front, whole.pages().saturating_sub(front + back));
                part.filter(|part| part != whole).map_or(Ok(()), |part| self.refuse(part)).map(|()| false)
            }
            Step::ClaimGarbage { pfn, pages } => {
                let range = IovaRange::new(pfn, pages).expect("the strategy makes ranges");
                if self.live.contains(&range) {
                    return Ok(false);
                }
                self.refuse(range).map(|()| false)
            }
            Step::Free(which) => {
                if self.claimed.is_empty() {
                    return Ok(false);
                }
                let range = self.claimed.swap_remove(which % self.claimed.len());
                self.free(range);
                Ok(true)
            }
            Step::Drain => self.drain().map(|()| true),
            Step::Advance(us) => {
                self.advance(us);
                Ok(false)
            }
            Step::RunOn(cpu) => {
                run_on(cpu);
                Ok(false)
            }
        }
    }

    fn allocate(&mut self, request: &IovaRequest) -> Result<bool, Violation> {
        let mut allocated = self.allocator.allocate(&self.host, request);
        // The host has memory. An allocator may ask its caller to fetch it, with `prepare`, and to try again.
        while matches!(allocated, Err(MapError::NoMemory(_))) && self.allocator.prepare(&self.host) == Ok(true) {
            allocated = self.allocator.allocate(&self.host, request);
        }
        let range = match allocated {
            Ok(range) => range,
            Err(MapError::Exhausted { .. }) => return Ok(false),
            Err(error) => return fail(Rule::Errors, format!("refused without a reason: {error}")),
        };
        if range.pages() != request.pages || range.end_pfn() > self.limit {
            return fail(Rule::Exhaustion, format!("{range} was handed out for {} pages", request.pages));
        }
        if let Some(reserved) = self.forbidden.iter().find(|reserved| reserved.overlaps(range)) {
            return fail(Rule::Reserved, format!("{range} was handed out, but {reserved} is reserved"));
        }
        if let Some(held) = self.live.iter().chain(&self.claimed).find(|held| held.overlaps(range)) {
            return fail(Rule::Reuse, format!("{range} was handed out, but {held} has not been freed"));
        }
        self.live.push(range);
        Ok(true)
    }

    /// Claims a live range that is not claimed yet.
    fn claim(&mut self, which: usize) -> Result<(), Violation> {
        let range = self.live.swap_remove(which);
        self.claimed.push(range);
        let by_table = range.pages() <= A::TABLE_CLAIM_PAGES_MAX;
        match self.allocator.claim(&self.host, range) {
            Ok(Claim::ByTable) if by_table => Ok(()),
            Ok(Claim::Held) if !by_table => Ok(()),
            other => fail(Rule::Errors, format!("the claim of {range}, which is live, returned {other:?}")),
        }
    }

    /// Claims a range that is no live mapping. Small ranges may be left to the table to decide, if the allocator says
    /// so.
    fn refuse(&self, range: IovaRange) -> Result<(), Violation> {
        match self.allocator.claim(&self.host, range) {
            Ok(Claim::ByTable) if range.pages() <= A::TABLE_CLAIM_PAGES_MAX => Ok(()),
            Ok(claim) => {
                fail(Rule::Errors, format!("the claim of {range}, which is no live mapping, returned {claim:?}"))
            }
            Err(UnmapError::NotMapped(_) | UnmapError::Partial { .. } | UnmapError::BadRange) => Ok(()),
            Err(error) => fail(Rule::Errors, format!("the claim of {range} was refused without a reason: {error}")),
        }
    }

    fn free(&self, range: IovaRange) {
        // SAFETY: this test has no hardware that could hold a translation.
        let proof = unsafe { Proof::trusted() };
        self.allocator.free(&self.host, range, &proof);
    }

    /// Frees every range, and waits for the time that ranges are kept. An allocation must then succeed.
    fn drain(&mut self) -> Result<(), Violation> {
        while !self.live.is_empty() {
            self.claim(0)?;
        }
        std::mem::take(&mut self.claimed).into_iter().for_each(|range| self.free(range));
        self.advance(20_000_000);
        let request =
            IovaRequest { pages: 1, access: Access::DeviceReads, stream: Stream(None), lifetime: Lifetime::default() };
        if !self.allocate(&request)? {
            return fail(Rule::Exhaustion, "an allocation fails although every range has been freed");
        }
        Ok(())
    }

    fn advance(&self, us: u64) {
        self.host.advance_us(us);
        if self.allocator.due_us().is_some_and(|due_us| due_us <= self.host.now_us()) {
            self.allocator.tick(&self.host);
        }
    }

    /// S7: the allocator's counts of ranges in use and of ranges kept are right.
    fn count(&self) -> Result<(), Violation> {
        let (says, out) = (self.allocator.live(), self.live.len() + self.claimed.len());
        if says != out {
            return fail(Rule::Bounds, format!("{out} ranges are in use, but the allocator says {says}"));
        }
        let kept = self.allocator.kept();
        if kept.ranges_max.is_some_and(|most| kept.ranges > most) {
            return fail(Rule::Bounds, format!("more ranges are kept than allowed: {kept:?}"));
        }
        let around = self
            .live
            .first()
            .and_then(|range| Some((range, self.allocator.live_around(&self.host, range.first_pfn())?)));
        match around {
            Some((range, found)) if *range != found => {
                let at = Iova::from_pfn(range.first_pfn());
                fail(Rule::Errors, format!("{range} is live, but the allocator finds {found} around {at}"))
            }
            _ => Ok(()),
        }
    }
}
