//! VT-d as a device.

mod caches;
mod counters;
mod faults;
mod prefetching;
mod queue;
mod registers;
mod rings;
mod translation;
mod walk;
mod writes;

pub use counters::Counters;
pub use prefetching::PrefetchFlaw;
pub use rings::RingFlaw;

use crate::iotlb_log::IotlbLog;
use crate::parameters::Parameters;
use crate::ram::Ram;
use faults::FaultLog;
use portcullis::iommu::DomainId;
use portcullis::table::Rights;
use portcullis::{Iova, PhysAddr, SourceId};
use portcullis_vtd::spec::faults::{FaultReason, FaultRecord, FaultRequest};
use queue::Queue;
use registers::Stored;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;
use translation::Translation;
use walk::is_interrupt;
use writes::Writes;

/// The end of time, in picoseconds: 53 days. Later calls happen then, so that nothing overflows.
pub(crate) const END_PS: u64 = u64::MAX / 4;

/// How a request was translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookupOutcome {
    /// From the IOTLB, or without translation.
    Hit,
    /// By a walk for the same page that was under way. Counts as a hit.
    Joined,
    /// By a walk of its own.
    Miss {
        /// Table entries read.
        reads: u8,
    },
}

/// Where a request goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translated {
    /// The address in memory.
    pub phys: PhysAddr,
    /// When the translation is known, in picoseconds.
    pub ready_ps: u64,
    /// How it came about.
    pub outcome: LookupOutcome,
}

/// A request that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("device {:04x} was refused at {iova}: {reason:?} (fault {})", .source_id.0, .reason.code())]
pub struct Fault {
    /// Who asked.
    pub source_id: SourceId,
    /// For which address.
    pub iova: Iova,
    /// Why it was refused.
    pub reason: FaultReason,
}

/// What a completed invalidation covered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Some pages of a domain.
    Pages {
        /// The domain.
        domain: DomainId,
        /// The first page.
        first_pfn: u64,
        /// How many.
        pages: u64,
    },
    /// All of a domain.
    Domain(DomainId),
    /// Everything.
    Global,
}

/// An Intel VT-d, driven through its registers. Shared by reference: the CPUs and every device talk to the same one.
///
/// All times are picoseconds of one clock outside. A call with a time before that of an earlier call happens at the later
/// time, and the clock ends after 53 days. Whatever the hardware does by itself (walks that complete, invalidations, writes
/// that land) is made up for at the start of each call; who waits for memory to change without calling must
/// [`advance`](Vtd::advance) it.
///
/// A walk reads the paging-structure caches and the tables when it is asked for, even if it must wait for a walker; what it
/// found is cached when it completes.
pub struct Vtd {
    ram: Arc<Ram>,
    parameters: Parameters,
    state: Mutex<State>,
}

struct State {
    ram: Arc<Ram>,
    parameters: Parameters,
    now_ps: u64,
    /// When something happens next by itself, `u64::MAX` for never.
    next_ps: u64,
    stored: Stored,
    queue: Queue,
    translation: Translation,
    writes: Writes,
    faults: FaultLog,
    counters: Counters,
    records_invalidations: bool,
    completed: Vec<(u64, Scope)>,
    refuses_invalidations: bool,
}

impl Vtd {
    /// A unit out of reset: not translating, queue off, caches empty.
    ///
    /// # Panics
    /// If the parameters do not [hold](Parameters::check), or say that walks are coherent where the memory does not.
    pub fn new(parameters: Parameters, ram: Arc<Ram>) -> Self {
        if let Err(error) = parameters.check() {
            panic!("{error}");
        }
        assert!(!(parameters.coherent && ram.needs_flushing()), "coherent walks need memory without `with_flushing`");
        let state = State {
            ram: Arc::clone(&ram),
            parameters: parameters.clone(),
            now_ps: 0,
            next_ps: u64::MAX,
            stored: Stored::default(),
            queue: Queue::new(),
            translation: Translation::new(&parameters),
            writes: Writes::default(),
            faults: FaultLog::new(parameters.fault_registers.into()),
            counters: Counters::default(),
            records_invalidations: false,
            completed: Vec::new(),
            refuses_invalidations: false,
        };
        Self { ram, parameters, state: Mutex::new(state) }
    }

    /// What it is made of.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The memory it reads.
    pub fn ram(&self) -> &Arc<Ram> {
        &self.ram
    }

    /// Reads the 4 or 8 bytes of a register at `offset`, a multiple of `bytes`. Anything else, and what is no register,
    /// reads zero.
    pub fn read_register(&self, now_ps: u64, offset: u32, bytes: u8) -> u64 {
        let state = self.at(now_ps);
        match bytes {
            4 if offset.is_multiple_of(4) => state.read32(offset).into(),
            8 if offset.is_multiple_of(8) => {
                u64::from(state.read32(offset)) | u64::from(state.read32(offset + 4)) << 32
            }
            _ => 0,
        }
    }

    /// Writes the 4 or 8 bytes of a register at `offset`, a multiple of `bytes`. Anything else, and a write to what is no
    /// register or to one that is read-only, is ignored.
    pub fn write_register(&self, now_ps: u64, offset: u32, bytes: u8, value: u64) {
        let mut state = self.at(now_ps);
        let now_ps = state.now_ps;
        match bytes {
            4 if offset.is_multiple_of(4) => state.write32(now_ps, offset, value as u32),
            8 if offset.is_multiple_of(8) => {
                state.write32(now_ps, offset, value as u32);
                state.write32(now_ps, offset + 4, (value >> 32) as u32);
            }
            _ => {}
        }
        state.plan();
    }

    /// Lets the hardware do what it does by itself until `now_ps`.
    pub fn advance(&self, now_ps: u64) {
        drop(self.at(now_ps));
    }

    /// When the hardware next does something by itself: a descriptor takes effect, a walk completes, a write lands.
    pub fn next_event_ps(&self) -> Option<u64> {
        let next_ps = self.lock().next_ps;
        (next_ps != u64::MAX).then_some(next_ps)
    }

    /// Translates a request of `source` for one address.
    ///
    /// # Errors
    /// [`Fault`]; it is recorded in the fault recording registers unless the context entry forbids it, or the request is for
    /// the interrupt range: that is a message and no access, and reaches no memory.
    #[inline]
    pub fn translate(&self, now_ps: u64, source: SourceId, iova: Iova, rights: Rights) -> Result<Translated, Fault> {
        self.at(now_ps).translate((source, iova, rights))
    }

    /// Many requests in a row, without letting go of the unit in between.
    #[inline]
    pub(crate) fn requests(&self) -> Requests<'_> {
        Requests(self.lock())
    }

    /// Asks for the translation of the page at `iova` before `source` does, as AMD-Vi's `PREFETCH_IOMMU_PAGES` does: it is walked
    /// for and put into the buffer of the prefetcher. Nothing happens where there is none, or nothing is mapped.
    pub fn prefetch(&self, now_ps: u64, source: SourceId, iova: Iova) {
        let mut state = self.at(now_ps);
        if state.stored.translates {
            let State { translation, ram, counters, stored, now_ps, .. } = &mut *state;
            translation.hint(ram, counters, stored.root_table, *now_ps, source, iova);
            state.plan();
        }
    }

    /// Says that `source` will not ask for the page at `iova` again, so that its entry in the IOTLB makes room first. No VT-d can be
    /// told so; Amit et al. (2010) propose it.
    pub fn unmap_hint(&self, now_ps: u64, source: SourceId, iova: Iova) {
        let mut state = self.at(now_ps);
        if state.stored.translates {
            let State { translation, ram, counters, stored, .. } = &mut *state;
            translation.unmap_hint(ram, counters, stored.root_table, source, iova);
        }
    }

    /// From now on notes what the IOTLB is asked for, until [`take_iotlb_log`](Vtd::take_iotlb_log). The log grows meanwhile.
    pub fn record_iotlb(&self) {
        self.lock().translation.record();
    }

    /// What was noted since [`record_iotlb`](Vtd::record_iotlb); nothing if that was not called.
    pub fn take_iotlb_log(&self) -> IotlbLog {
        self.lock().translation.take_log()
    }

    /// Breaks the prefetcher, for tests of what notices it. Nothing happens where there is none.
    pub fn plant(&self, flaw: PrefetchFlaw) {
        self.lock().translation.plant(flaw);
    }

    /// Breaks what serves rings, for tests of what notices it.
    pub fn plant_in_rings(&self, flaw: RingFlaw) {
        self.lock().translation.plant_in_rings(flaw);
    }

    /// Where a request of `source` would lead if it came now, through whatever is cached or under way. Leaves no trace: no
    /// count, no recency, no fault.
    pub fn reaches(&self, now_ps: u64, source: SourceId, iova: Iova, rights: Rights) -> Option<PhysAddr> {
        let state = self.at(now_ps);
        if is_interrupt(iova.as_u64()) {
            return None;
        }
        if !state.stored.translates {
            return Some(PhysAddr::new(iova.as_u64()));
        }
        state.translation.reaches(&self.ram, state.stored.root_table, source, iova, rights)
    }

    /// Where the tables in memory lead a request of `source` now, whatever is cached and whatever the rights. Leaves no
    /// trace.
    pub fn in_tables(&self, now_ps: u64, source: SourceId, iova: Iova) -> Option<PhysAddr> {
        let state = self.at(now_ps);
        if is_interrupt(iova.as_u64()) {
            return None;
        }
        if !state.stored.translates {
            return Some(PhysAddr::new(iova.as_u64()));
        }
        state.translation.in_tables(&self.ram, state.stored.root_table, source, iova)
    }

    /// Puts a translated write into flight; it lands at `lands_ps`, but not before the present.
    pub(crate) fn post(&self, lands_ps: u64, phys: PhysAddr, bytes: &[u8]) {
        let mut state = self.lock();
        let lands_ps = lands_ps.clamp(state.now_ps, END_PS);
        state.writes.post(lands_ps, phys, bytes);
        state.plan();
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        self.lock().counters
    }

    /// Whether completed IOTLB invalidations are recorded for [`drain_completed`](Vtd::drain_completed). At first they are
    /// not. Whoever turns this on must drain, for the record grows until then.
    pub fn record_invalidations(&self, record: bool) {
        let mut state = self.lock();
        state.records_invalidations = record;
        if !record {
            state.completed.clear();
        }
    }

    /// Hands over the IOTLB invalidations that have completed by `now_ps` and since the last time, oldest first, each with
    /// the time of its completion in picoseconds. `f` must not call the unit: it is locked meanwhile.
    pub fn drain_completed(&self, now_ps: u64, mut f: impl FnMut(u64, Scope)) {
        self.at(now_ps).completed.drain(..).for_each(|(at_ps, scope)| f(at_ps, scope));
    }

    /// Breaks the hardware, or mends it: while broken, it takes every IOTLB invalidation that it comes to for a descriptor that
    /// cannot be executed, and stops there (`FSTS.IQE`). For tests of what software does then.
    pub fn refuse_invalidations(&self, refuse: bool) {
        self.lock().refuses_invalidations = refuse;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state as it is at `now_ps`.
    #[inline]
    fn at(&self, now_ps: u64) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.advance(now_ps);
        state
    }
}

/// A unit that one device has to itself for a few requests.
pub(crate) struct Requests<'v>(MutexGuard<'v, State>);

impl Requests<'_> {
    /// What [`Vtd::translate`] does.
    #[inline]
    pub(crate) fn translate(
        &mut self,
        now_ps: u64,
        source: SourceId,
        iova: Iova,
        rights: Rights,
    ) -> Result<Translated, Fault> {
        self.0.advance(now_ps);
        self.0.translate((source, iova, rights))
    }
}

impl State {
    /// Makes it `now_ps`, unless it is later.
    #[inline]
    fn advance(&mut self, now_ps: u64) {
        self.now_ps = self.now_ps.max(now_ps.min(END_PS));
        if self.next_ps <= self.now_ps {
            self.catch_up();
        }
    }

    /// Everything that has happened by now, in the order of its time. At the same moment writes land before walks complete
    /// before the queue moves on.
    #[cold]
    fn catch_up(&mut self) {
        while self.next_ps <= self.now_ps {
            if self.writes.next_ps() == self.next_ps {
                self.writes.land(&self.ram);
            } else if self.translation.next_ps() == self.next_ps {
                self.translation.complete_walk(&self.ram, &mut self.counters);
            } else {
                self.step_queue();
            }
            self.plan();
        }
    }

    fn plan(&mut self) {
        self.next_ps = self.queue.next_ps().min(self.translation.next_ps()).min(self.writes.next_ps());
    }

    #[inline]
    fn translate(&mut self, request: (SourceId, Iova, Rights)) -> Result<Translated, Fault> {
        let (source_id, iova, rights) = request;
        if is_interrupt(iova.as_u64()) {
            // An interrupt message, whatever the tables say (§3.14): it reaches no memory, and is no fault.
            return Err(Fault { source_id, iova, reason: FaultReason::InterruptRange });
        }
        if !self.stored.translates {
            let phys = PhysAddr::new(iova.as_u64());
            return Ok(Translated { phys, ready_ps: self.now_ps, outcome: LookupOutcome::Hit });
        }
        let root = self.stored.root_table;
        let translated = self.translation.translate(&self.ram, &mut self.counters, root, self.now_ps, request);
        if self.translation.prefetches() {
            self.plan();
        }
        match translated {
            Ok(translated) => {
                self.next_ps = match translated.outcome {
                    LookupOutcome::Miss { .. } => self.next_ps.min(translated.ready_ps),
                    _ => self.next_ps,
                };
                Ok(translated)
            }
            Err((reason, recorded)) => {
                self.counters.faults += 1;
                if recorded {
                    let request = if rights.allows(Rights::WRITE) { FaultRequest::Write } else { FaultRequest::Read };
                    self.faults.record(FaultRecord { source: source_id, page: iova, request, reason });
                }
                Err(Fault { source_id, iova, reason })
            }
        }
    }
}
