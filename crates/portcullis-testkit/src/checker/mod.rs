//! Checks the safety rules: runs a script of operations on a domain and, after every step, lets a device try every
//! address that was ever handed out, for reading and for writing.
//!
//! The device is as bad as a device can be: the fake IOMMU keeps every translation that it has used until an
//! invalidation covers it. A plain reference says what the device may reach. The first difference is a [`Violation`]
//! that names its rule. A breach that the design declares is no violation but a finding, since each declared breach
//! must be found.

mod face;
mod map;
mod operation;
mod probe;
mod reference;

pub use operation::{Buffer, Machine, Operation, script};

use crate::raw_face::open;
use face::Owned;
use operation::MEMORY_PAGES;
use portcullis::domain::{Mapping, RawBatch};
use portcullis::iommu::fake::{Behaviour, FakeIommu};
use portcullis::mapper::{Addressing, Design, Info, Mapper, Options, Usage};
use portcullis::platform::fake::{FakeHost, run_on};
use portcullis::table::Rights;
use portcullis::{
    CommitError, Domain, DomainConfig, DomainId, Iommu, Iova, IovaRange, PAGE_SHIFT, PhysAddr, Platform, Protection,
    RawUnmapError, Rule, Segment, SourceId,
};
use reference::{Held, Reference};
use std::collections::BTreeSet;
use std::mem::ManuallyDrop;

/// The rule that was broken, and how.
pub type Violation = (Rule, String);

/// The findings of a run.
#[derive(Clone, Default, Debug)]
pub struct Tally {
    /// Pages whose translation the hardware held when they were unmapped. With too few of these, a run is not
    /// conclusive.
    pub cached_before_unmap: u64,
    /// Rules that the design declares to break and did break.
    pub breaches: BTreeSet<Rule>,
}

/// The machine of one run, with its fakes.
pub struct Bench<'h> {
    /// The host.
    pub host: &'h FakeHost,
    /// The IOMMU.
    pub hardware: &'h FakeIommu<'h>,
    /// The machine that both fakes imitate.
    pub machine: &'h Machine,
    /// The protection of the domain.
    pub protection: Protection,
    /// The parameters of its design.
    pub options: Options,
}

const DEVICE: SourceId = SourceId::new(3, 0, 0);

/// A page of memory that even the device with the fewest address bits can reach.
const LOW_PAGE: u64 = 2;

/// Reserved besides page 0 and the interrupt range: three pages where top-down allocation begins, and a window.
const RESERVED: [(u64, u64); 2] = [(0xf_fff8, 3), (0x8_0000, 0x100)];
/// Reserved on every machine: page 0 and 0xfee00000-0xfeefffff.
const ALWAYS_RESERVED: [(u64, u64); 2] = [(0, 1), (0xf_ee00, 0x100)];

fn ranges(of: [(u64, u64); 2]) -> [IovaRange; 2] {
    of.map(|(first, pages)| IovaRange::new(first, pages).expect("written down as one"))
}

/// Calls `run` with fresh fakes.
pub fn on_bench<T>(machine: &Machine, protection: Protection, run: impl FnOnce(&Bench<'_>) -> T) -> T {
    let host = FakeHost::default();
    run_on(0);
    let hardware = FakeIommu::with_capabilities(&host, machine.capabilities());
    hardware.behave(machine.behaviour());
    let outcome = run(&Bench { host: &host, hardware: &hardware, machine, protection, options: Options::NONE });
    // The first violation is the one to report. A run without a violation has already asked.
    let _ = host.take_freed_while_walked();
    outcome
}

/// Runs `script` on a domain of design `D` over `platform` and `iommu`, which must forward to the fakes of `bench`.
///
/// # Errors
/// The first [`Violation`].
pub fn check<D, P, I>(bench: &Bench<'_>, platform: P, iommu: I, script: &[Operation]) -> Result<Tally, Violation>
where
    D: Design<P, I>,
    P: Platform,
    I: Iommu,
{
    let memory = [Segment { phys: PhysAddr::new(0), len: MEMORY_PAGES << PAGE_SHIFT }];
    let config = DomainConfig {
        address_bits: bench.machine.address_bits,
        reserved: &ranges(RESERVED),
        memory: &memory,
        options: bench.options,
        ..DomainConfig::new(bench.protection)
    };
    let domain =
        open::<D, P, I>(iommu, platform, &config).map_err(|error| (Rule::Errors, format!("no domain: {error}")))?;
    domain.attach(DEVICE).map_err(|error| (Rule::Errors, format!("no device: {error}")))?;
    let mut reference = Reference::default();
    // These pages are never handed out, so the device must never reach them.
    let reserved = ranges(RESERVED).into_iter().chain(ranges(ALWAYS_RESERVED));
    reference.ever.extend(reserved.flat_map(|range| [range.first_pfn(), range.end_pfn() - 1]));
    let mut checker = Checker {
        bench,
        domain: &domain,
        info: &D::INFO,
        reference,
        tally: Tally::default(),
        failing: false,
        poisoned: false,
        quarantined: 0,
        undefined: false,
        owned: ManuallyDrop::new(Vec::new()),
        pages: Vec::new(),
    };
    // After a driver's mistake that may go unnoticed, nothing can be said about later steps. Such a mistake comes last.
    let last = |operation: &&Operation| checker.declared(Rule::Errors) && operation.is_mistake();
    let (mistakes, proper): (Vec<&Operation>, Vec<&Operation>) = script.iter().partition(last);
    let in_order = proper.into_iter().chain(mistakes);
    for (step, operation) in in_order.enumerate() {
        let mut outcome = checker.run(operation);
        if checker.undefined && outcome.is_ok() {
            break;
        }
        outcome = outcome.and_then(|()| checker.probe());
        outcome.map_err(|(rule, what)| (rule, format!("step {step}, {operation:?}: {what}")))?;
    }
    let Checker { reference, tally, poisoned, .. } = checker;
    let id = domain.id();
    bench.hardware.behave(bench.machine.behaviour());
    drop(domain);
    after_teardown(bench, &reference, id, poisoned)?;
    Ok(tally)
}

/// S10: no translation is cached, no page is reachable, and every table page has been returned. Memory that a failed
/// commit lost stays lost.
fn after_teardown(bench: &Bench<'_>, reference: &Reference, id: DomainId, poisoned: bool) -> Result<(), Violation> {
    // The caches are checked first: a walk into freed tables makes the fake panic.
    if let Some(pfn) = reference.ever.iter().find(|pfn| bench.hardware.is_cached(id, **pfn)) {
        return fail(Rule::Teardown, format!("page {pfn:#x} is cached after the domain was dropped"));
    }
    for &pfn in &reference.ever {
        if bench.hardware.access(DEVICE, Iova::from_pfn(pfn), Rights::READ).is_some() {
            return fail(Rule::Teardown, format!("page {pfn:#x} is reached after the domain was dropped"));
        }
    }
    if let Some(table) = bench.host.take_freed_while_walked() {
        return fail(Rule::Tables, format!("table page {table} was freed while the hardware could walk it"));
    }
    match (bench.host.frames_lent(), bench.host.bytes_lent()) {
        (0, 0) => Ok(()),
        _ if poisoned => Ok(()),
        (pages, pieces) => {
            fail(Rule::Teardown, format!("{pages} table pages and {pieces} other pieces were not returned"))
        }
    }
}

fn fail<T>(rule: Rule, what: impl Into<String>) -> Result<T, Violation> {
    Err((rule, what.into()))
}

struct Checker<'a, M: Mapper + ?Sized> {
    bench: &'a Bench<'a>,
    domain: &'a Domain<M>,
    info: &'static Info,
    reference: Reference,
    tally: Tally,
    /// The hardware refuses every invalidation from now on.
    failing: bool,
    /// The domain has reported that an invalidation failed.
    poisoned: bool,
    /// Ranges of maps that failed after their entries were written.
    quarantined: usize,
    /// An unmap of a range that is no mapping was not refused, and the design declares that this may happen.
    undefined: bool,
    /// Mappings that own their buffers. Those that are mapped at the end stay mapped: that is no mistake of the driver.
    owned: ManuallyDrop<Vec<Mapping<Owned>>>,
    /// The pages that the device tries, in ascending order.
    pages: Vec<u64>,
}

impl<'a, M: Mapper + ?Sized> Checker<'a, M> {
    fn run(&mut self, operation: &Operation) -> Result<(), Violation> {
        let domain = self.domain;
        match operation {
            Operation::Map(buffer) => self.map(buffer).map(drop),
            Operation::MapBatch { pfn, pages, access } => self.map_batch(*pfn, *pages, *access),
            Operation::Unmap(which) => match self.pick(*which) {
                Some(range) => self.unmap_alone(range),
                None => Ok(()),
            },
            Operation::Batch { unmaps, map, dropped } => {
                let mut batch = domain.raw_batch();
                for &which in unmaps {
                    let Some(range) = self.pick(which) else { break };
                    self.unmap(range, |checker| batch.unmap(range).inspect(|()| checker.disown(range)))?;
                }
                self.probe()?;
                if let Some(buffer) = map {
                    self.map(buffer)?;
                    self.probe()?;
                }
                self.commit(batch, *dropped)
            }
            Operation::Burst(pages) => self.burst(*pages),
            Operation::UnmapAgain(which) => {
                let unmapped = &self.reference.unmapped;
                match unmapped.get(which % unmapped.len().max(1)) {
                    Some(&range) => self.unmap_alone(range),
                    None => Ok(()),
                }
            }
            Operation::UnmapPart { which, front, back } => {
                let Some(whole) = self.pick(*which) else { return Ok(()) };
                // With addressing by entries, a part of a mapping is some of its entries.
                let unit = if let Addressing::Entries { pages } = self.info.addressing { pages } else { 1 };
                let pages = whole.pages().saturating_sub((front + back) * unit);
                match IovaRange::new(whole.first_pfn() + front * unit, pages) {
                    Some(part) => self.unmap_alone(part),
                    None => Ok(()),
                }
            }
            Operation::UnmapGarbage { pfn, pages } => {
                self.unmap_alone(IovaRange::new(*pfn, *pages).expect("the strategy makes ranges"))
            }
            Operation::Advance(us) => self.advance(*us),
            Operation::Tick => self.tick(),
            Operation::RunOn(cpu) => {
                run_on(*cpu);
                Ok(())
            }
            Operation::Drain => self.drain(),
            Operation::Recover => {
                self.bench.hardware.behave(self.bench.machine.behaviour());
                self.failing = false;
                self.recovered()
            }
            Operation::Fail => {
                self.bench.hardware.behave(Behaviour::Failing);
                self.failing = true;
                Ok(())
            }
        }
    }

    /// A live mapping, by number.
    fn pick(&self, which: usize) -> Option<IovaRange> {
        let live = &self.reference.live;
        live.get(which % live.len().max(1)).map(|held| held.range)
    }

    /// Whether the design declares to break `rule` under this protection.
    fn declared(&self, rule: Rule) -> bool {
        self.info.breaks(self.bench.protection, rule)
    }

    /// Records a finding if the design declares the breach; returns a violation otherwise.
    fn breach(&mut self, rule: Rule, what: impl FnOnce() -> String) -> Result<(), Violation> {
        if self.declared(rule) {
            self.tally.breaches.insert(rule);
            return Ok(());
        }
        fail(rule, what())
    }

    /// Whether the device always sees memory at its physical addresses.
    fn unprotected(&self) -> bool {
        self.bench.protection == Protection::None
    }

    /// Unmaps `range`, which may be no mapping, through `unmap`.
    fn unmap<E: Into<RawUnmapError>>(
        &mut self,
        range: IovaRange,
        unmap: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<(), Violation> {
        let before = self.domain.usage();
        let live = self.reference.live.iter().find(|held| held.range == range);
        let is_live = live.is_some();
        if let Some(held) = live {
            self.tally.cached_before_unmap += held.pages().filter(|(pfn, _)| self.is_cached(*pfn)).count() as u64;
        }
        match unmap(self).map_err(E::into) {
            Ok(()) if is_live => {
                self.reference.unmap(range);
                Ok(())
            }
            Ok(()) if self.unprotected() => Ok(()),
            Ok(()) => {
                self.undefined = true;
                self.breach(Rule::Errors, || format!("{range} was unmapped, but no such mapping exists"))
            }
            Err(RawUnmapError::Refused(_)) if !is_live => self.unchanged(before),
            Err(error) => fail(Rule::Errors, format!("the unmap of {range} failed: {error}")),
        }
    }

    /// Unmaps `range` by itself.
    fn unmap_alone(&mut self, range: IovaRange) -> Result<(), Violation> {
        let mut committed = Ok(());
        self.unmap(range, |checker| {
            committed = checker.unmap_by_face(range)?;
            Ok::<(), RawUnmapError>(())
        })?;
        self.settle(committed)
    }

    fn commit(&mut self, batch: RawBatch<&Domain<M>>, dropped: bool) -> Result<(), Violation> {
        // A batch that is dropped does not report a failure. On failing hardware, no batch is dropped.
        if dropped && !self.failing {
            drop(batch);
            return self.settle(Ok(()));
        }
        self.settle(batch.commit())
    }

    /// Records what became of the buffers of a commit with this result.
    fn settle(&mut self, committed: Result<(), CommitError>) -> Result<(), Violation> {
        let now_us = self.bench.host.now_us();
        let mut settled = std::mem::take(&mut self.reference.uncommitted);
        match committed {
            // Without protection, no buffer is handed back.
            Ok(()) if self.unprotected() => Ok(()),
            Ok(()) => {
                settled.iter().for_each(|held| self.reference.hand_back(held, now_us));
                let mut pages = settled.iter().flat_map(Held::pages);
                let cached = pages.any(|(pfn, _)| self.is_cached(pfn) && !self.reference.is_held(pfn));
                // No invalidation can have succeeded.
                if self.failing && cached && !self.declared(Rule::Strict) {
                    return fail(Rule::Completion, "buffers came back although the hardware has failed");
                }
                Ok(())
            }
            Err(error) if !self.failing => fail(Rule::Errors, format!("a commit failed on good hardware: {error}")),
            Err(_) => {
                self.reference.lost.append(&mut settled);
                self.poisoned = true;
                Ok(())
            }
        }
    }

    fn burst(&mut self, pages: usize) -> Result<(), Violation> {
        for pfn in (64..).take(pages) {
            let Some(range) = self.map(&Buffer::page(pfn))? else { return Ok(()) };
            self.bench.hardware.access(DEVICE, range.start(), Rights::WRITE);
            self.unmap_alone(range)?;
            let stale = self.is_cached(range.first_pfn()) && !self.reference.is_held(range.first_pfn());
            if stale && !self.poisoned && !self.unprotected() {
                self.breach(Rule::Strict, || format!("{range} is cached after its unmap"))?;
            }
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<(), Violation> {
        match self.domain.tick() {
            Ok(()) => Ok(()),
            Err(_) if self.failing => {
                self.poisoned = true;
                Ok(())
            }
            Err(error) => fail(Rule::Errors, format!("a tick failed on good hardware: {error}")),
        }
    }

    /// Advances the clock. The device must then have lost every page that was handed back longer ago than the declared
    /// window.
    fn advance(&mut self, us: u64) -> Result<(), Violation> {
        self.bench.host.advance_us(us);
        let now_us = self.bench.host.now_us();
        if self.domain.due_us().is_some_and(|due_us| due_us <= now_us) {
            self.tick()?;
        }
        let Some(window_us) = self.domain.usage().window_us_max else { return Ok(()) };
        let old = self.stale().find(|(_, returned)| returned.at_us + window_us <= now_us);
        match old {
            Some((pfn, returned)) if !self.poisoned => {
                let age_us = now_us - returned.at_us;
                fail(Rule::Strict, format!("page {pfn:#x} is reached {age_us} µs after it was handed back"))
            }
            _ => Ok(()),
        }
    }

    /// The declared window, and the time that the hardware takes: the fake completes every submitted invalidation when
    /// the clock advances.
    fn longest_window_us(&self) -> u64 {
        self.domain.usage().window_us_max.unwrap_or(0).max(1)
    }

    /// After a tick on hardware that answers, every waiting unmap has a time when it is due.
    fn recovered(&mut self) -> Result<(), Violation> {
        self.advance(self.longest_window_us())?;
        match (self.domain.usage().queued_unmaps, self.domain.due_us()) {
            (1.., None) => fail(Rule::Bounds, "unmaps wait for a flush that is never due"),
            _ => Ok(()),
        }
    }

    fn drain(&mut self) -> Result<(), Violation> {
        while let Some(range) = self.pick(0) {
            self.unmap_alone(range)?;
        }
        self.advance(self.longest_window_us())?;
        let mapped = self.map(&Buffer::page(LOW_PAGE))?;
        // A machine with few address bits may have no address left besides the reserved ones. Where the host picks
        // addresses, nothing is known.
        let any = self.info.physical_addresses() || self.free_block(1, std::iter::empty()).is_some();
        if mapped.is_none() && any && !self.poisoned {
            return fail(Rule::Exhaustion, "a map fails although everything was unmapped");
        }
        Ok(())
    }

    /// A refused operation has changed nothing (S6). What the device reaches is probed after every step anyway.
    fn unchanged(&self, before: Usage) -> Result<(), Violation> {
        let after = self.domain.usage();
        if before != after {
            return fail(Rule::Errors, format!("a refused operation changed {before:?} to {after:?}"));
        }
        Ok(())
    }

    fn is_cached(&self, pfn: u64) -> bool {
        self.bench.hardware.is_cached(self.domain.id(), pfn)
    }
}
