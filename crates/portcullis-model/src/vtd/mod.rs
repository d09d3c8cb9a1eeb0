//! VT-d as a device.

mod caches;
mod counters;
mod faults;
mod interrupts;
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
use interrupts::Interrupts;
use portcullis::iommu::DomainId;
use portcullis::table::Rights;
use portcullis::{Iova, PhysAddr, SourceId};
use portcullis_vtd::spec::faults::{FaultReason, FaultRecord, FaultRequest};
use portcullis_vtd::spec::interrupts::Interrupt;
use queue::Queue;
use registers::Stored;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use thiserror::Error;
use translation::Translation;
use walk::is_interrupt;
use writes::Writes;

/// The end of time, in picoseconds: 53 days. Later calls happen at this time, so that nothing overflows.
pub(crate) const END_PS: u64 = u64::MAX / 4;

/// How a request was translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LookupOutcome {
    /// From the IOTLB, the buffer of the prefetcher or the cached entries of a ring, or without translation.
    Hit,
    /// By a walk for the same page that was already under way. Counts as a hit.
    Joined,
    /// By a new walk.
    Miss {
        /// The number of table entries read.
        reads: u8,
    },
}

/// The result of translating a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Translated {
    /// The physical address.
    pub phys: PhysAddr,
    /// When the translation is known, in picoseconds.
    pub ready_ps: u64,
    /// How the translation was found.
    pub outcome: LookupOutcome,
}

/// A request that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("device {source_id} was refused at {iova}: {reason:?} (fault {})", .reason.code())]
pub struct Fault {
    /// The device.
    pub source_id: SourceId,
    /// The address that it requested.
    pub iova: Iova,
    /// Why it was refused.
    pub reason: FaultReason,
}

/// The scope of a completed invalidation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Some pages of a domain.
    Pages {
        /// The domain.
        domain: DomainId,
        /// The first page.
        first_pfn: u64,
        /// The number of pages.
        pages: u64,
    },
    /// All of a domain.
    Domain(DomainId),
    /// All domains.
    Global,
}

/// An Intel VT-d unit, driven through its registers. It is shared by reference: the CPUs and all devices use the same
/// unit.
///
/// All times are picoseconds of one external clock. A call with a time before that of an earlier call happens at the
/// later time, and the clock ends after 53 days. What the hardware does on its own (completing walks, invalidations,
/// landing writes) is caught up at the start of each call. Code that waits for memory to change without calling the
/// unit must [`advance`](Vtd::advance) it.
///
/// A walk reads the paging-structure caches and the tables when it is requested, even if it must wait for a walker.
/// Its results are cached when it completes.
pub struct Vtd {
    ram: Arc<Ram>,
    parameters: Parameters,
    state: Mutex<State>,
}

struct State {
    ram: Arc<Ram>,
    parameters: Parameters,
    now_ps: u64,
    /// When the hardware next does something on its own; `u64::MAX` for never.
    next_ps: u64,
    stored: Stored,
    queue: Queue,
    translation: Translation,
    writes: Writes,
    interrupts: Interrupts,
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
    /// If the parameters do not pass [`Parameters::check`], or say that walks are coherent although the memory needs
    /// flushing.
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
            interrupts: Interrupts::default(),
            faults: FaultLog::new(parameters.fault_registers.into()),
            counters: Counters::default(),
            records_invalidations: false,
            completed: Vec::new(),
            refuses_invalidations: false,
        };
        Self { ram, parameters, state: Mutex::new(state) }
    }

    /// The parameters of the unit.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The memory that the unit reads.
    pub fn ram(&self) -> &Arc<Ram> {
        &self.ram
    }

    /// Reads the 4 or 8 bytes of a register at `offset`, a multiple of `bytes`. Other sizes, unaligned offsets and
    /// offsets without a register read as zero.
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

    /// Writes the 4 or 8 bytes of a register at `offset`, a multiple of `bytes`. Other sizes, unaligned offsets,
    /// offsets without a register and read-only registers are ignored.
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

    /// Runs what the hardware does on its own until `now_ps`.
    pub fn advance(&self, now_ps: u64) {
        drop(self.at(now_ps));
    }

    /// When the hardware next does something on its own: a descriptor takes effect, a walk completes, or a write
    /// lands.
    pub fn next_event_ps(&self) -> Option<u64> {
        let next_ps = self.lock().next_ps;
        (next_ps != u64::MAX).then_some(next_ps)
    }

    /// When the invalidation queue next does something: a descriptor takes effect.
    pub fn next_queue_event_ps(&self) -> Option<u64> {
        let next_ps = self.lock().queue.next_ps();
        (next_ps != u64::MAX).then_some(next_ps)
    }

    /// Translates a request of `source` for one address.
    ///
    /// # Errors
    /// [`Fault`]. It is recorded in the fault recording registers, with two exceptions: the context entry forbids it,
    /// or the request is for the interrupt range. Such a request is an interrupt message and not an access; it
    /// reaches no memory.
    #[inline]
    pub fn translate(&self, now_ps: u64, source: SourceId, iova: Iova, rights: Rights) -> Result<Translated, Fault> {
        self.at(now_ps).translate((source, iova, rights))
    }

    /// Remaps an interrupt request: a write of `data` by `source` to an address in the interrupt range. While the unit
    /// remaps no interrupts, a request in compatibility format arrives as it is.
    ///
    /// # Errors
    /// [`Fault`], which is recorded.
    pub fn interrupt(&self, now_ps: u64, source: SourceId, address: u64, data: u32) -> Result<Interrupt, Fault> {
        self.at(now_ps).interrupt(source, address, data)
    }

    /// Locks the unit for several requests in a row.
    #[inline]
    pub(crate) fn requests(&self) -> Requests<'_> {
        Requests(self.lock())
    }

    /// Prefetches the translation of the page at `iova` before `source` requests it, as AMD-Vi's
    /// `PREFETCH_IOMMU_PAGES` does: the unit walks for the page and puts it into the buffer of the prefetcher. Does
    /// nothing if there is no prefetcher or nothing is mapped.
    pub fn prefetch(&self, now_ps: u64, source: SourceId, iova: Iova) {
        let mut state = self.at(now_ps);
        if state.stored.translates {
            let State { translation, ram, counters, stored, now_ps, .. } = &mut *state;
            translation.hint(ram, counters, stored.root_table, *now_ps, source, iova);
            state.plan();
        }
    }

    /// Tells the unit that `source` will not request the page at `iova` again, so that its IOTLB entry is evicted
    /// first. VT-d has no such hint; Amit et al. (2010) propose it.
    pub fn unmap_hint(&self, now_ps: u64, source: SourceId, iova: Iova) {
        let mut state = self.at(now_ps);
        if state.stored.translates {
            let State { translation, ram, counters, stored, .. } = &mut *state;
            translation.unmap_hint(ram, counters, stored.root_table, source, iova);
        }
    }

    /// Logs the requests to the IOTLB from now on, until [`take_iotlb_log`](Vtd::take_iotlb_log). The log grows until
    /// then.
    pub fn record_iotlb(&self) {
        self.lock().translation.record();
    }

    /// The log since [`record_iotlb`](Vtd::record_iotlb); empty if that was not called.
    pub fn take_iotlb_log(&self) -> IotlbLog {
        self.lock().translation.take_log()
    }

    /// Plants a flaw in the prefetcher, for tests of the checks that must detect it. Does nothing if there is no
    /// prefetcher.
    pub fn plant(&self, flaw: PrefetchFlaw) {
        self.lock().translation.plant(flaw);
    }

    /// Plants a flaw in the handling of rings, for tests of the checks that must detect it.
    pub fn plant_in_rings(&self, flaw: RingFlaw) {
        self.lock().translation.plant_in_rings(flaw);
    }

    /// The address that a request of `source` would reach now, with everything that is cached or under way. It
    /// changes nothing: no counter, no recency, no fault.
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

    /// The address to which the tables in memory lead a request of `source` now. Caches and rights are ignored, and
    /// nothing is changed.
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

    /// Posts a translated write. It lands at `lands_ps`, but not before the present.
    pub(crate) fn post(&self, lands_ps: u64, phys: PhysAddr, bytes: &[u8]) {
        self.lock().post(lands_ps, phys, bytes);
    }

    /// The counters so far.
    pub fn counters(&self) -> Counters {
        self.lock().counters
    }

    /// Sets whether completed IOTLB invalidations are recorded for [`drain_completed`](Vtd::drain_completed).
    /// Initially they are not. A caller that turns this on must drain the record, because it grows until then.
    pub fn record_invalidations(&self, record: bool) {
        let mut state = self.lock();
        state.records_invalidations = record;
        if !record {
            state.completed.clear();
        }
    }

    /// Passes to `f` the IOTLB invalidations that have completed by `now_ps` since the last call, oldest first, each
    /// with the time of its completion in picoseconds. `f` must not call the unit, which is locked during the call.
    pub fn drain_completed(&self, now_ps: u64, mut f: impl FnMut(u64, Scope)) {
        self.at(now_ps).completed.drain(..).for_each(|(at_ps, scope)| f(at_ps, scope));
    }

    /// Breaks the hardware, or repairs it. While broken, it treats every IOTLB invalidation at the head of the queue
    /// as a descriptor that cannot be executed, and stops there (`FSTS.IQE`). For tests of how software reacts.
    pub fn refuse_invalidations(&self, refuse: bool) {
        self.lock().refuses_invalidations = refuse;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state after catching up to `now_ps`.
    #[inline]
    fn at(&self, now_ps: u64) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.advance(now_ps);
        state
    }
}

/// A unit locked for a few requests of one device.
pub(crate) struct Requests<'v>(MutexGuard<'v, State>);

impl Requests<'_> {
    /// Does what [`Vtd::translate`] does.
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

    /// Does what [`Vtd::post`] does.
    pub(crate) fn post(&mut self, lands_ps: u64, phys: PhysAddr, bytes: &[u8]) {
        self.0.post(lands_ps, phys, bytes);
    }

    /// The parameters of the unit.
    pub(crate) fn parameters(&self) -> &Parameters {
        &self.0.parameters
    }

    /// The memory that the unit reads.
    pub(crate) fn ram(&self) -> &Ram {
        &self.0.ram
    }
}

impl State {
    /// Sets the time to `now_ps`, unless it is later already.
    #[inline]
    fn advance(&mut self, now_ps: u64) {
        self.now_ps = self.now_ps.max(now_ps.min(END_PS));
        if self.next_ps <= self.now_ps {
            self.catch_up();
        }
    }

    /// Performs all events up to now, in time order. At the same time, writes land first, then walks complete, then
    /// the queue advances.
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

    fn post(&mut self, lands_ps: u64, phys: PhysAddr, bytes: &[u8]) {
        let lands_ps = lands_ps.clamp(self.now_ps, END_PS);
        self.writes.post(lands_ps, phys, bytes);
        self.next_ps = self.next_ps.min(lands_ps);
    }

    #[inline]
    fn plan(&mut self) {
        self.next_ps = self.queue.next_ps().min(self.translation.next_ps()).min(self.writes.next_ps());
    }

    #[inline]
    fn translate(&mut self, request: (SourceId, Iova, Rights)) -> Result<Translated, Fault> {
        let (source_id, iova, rights) = request;
        if is_interrupt(iova.as_u64()) {
            // An interrupt message, whatever the tables say (§3.14). It reaches no memory, and is not recorded as a
            // fault.
            return Err(Fault { source_id, iova, reason: FaultReason::InterruptRange });
        }
        if !self.stored.translates {
            let phys = PhysAddr::new(iova.as_u64());
            return Ok(Translated { phys, ready_ps: self.now_ps, outcome: LookupOutcome::Hit });
        }
        let root = self.stored.root_table;
        let translated = self.translation.translate(&self.ram, &mut self.counters, root, self.now_ps, request);
        // A new walk may complete before anything else does.
        self.next_ps = self.next_ps.min(self.translation.next_ps());
        translated.map_err(|(reason, recorded)| {
            self.counters.faults += 1;
            if recorded {
                let request = if rights.allows(Rights::WRITE) { FaultRequest::Write } else { FaultRequest::Read };
                self.faults.record(FaultRecord { source: source_id, page: iova, request, reason });
            }
            Fault { source_id, iova, reason }
        })
    }
}
