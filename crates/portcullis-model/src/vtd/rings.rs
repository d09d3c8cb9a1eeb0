//! Requests of devices that use rings (rIOMMU, ASPLOS'15, §4). For each ring, one entry is cached, and the entry
//! behind it.
//!
//! ```text
//! request --entry is the cached one--> done
//!         --is the next one, which was fetched ahead--> it becomes the cached one, and the one behind it is fetched
//!         --anything else--> ring and entry are read in its place, and the one behind it is fetched
//! ```
//!
//! An entry whose fetch is under way already has its place in the cache. So a device reaches at most two entries of a
//! ring, whichever entries are valid.

use super::walk::{ContextRefusal, is_interrupt, refusal};
use super::{Counters, LookupOutcome, Translated};
use crate::ram::Ram;
use portcullis::iommu::rings::{DeviceHeader, RingAddress, RingEntry, RingPointer, SLOT_BYTES};
use portcullis::table::Rights;
use portcullis::{Iova, PhysAddr, SourceId};
use portcullis_vtd::spec::faults::FaultReason;
use portcullis_vtd::spec::tables::{ContextEntry, TranslationType};
use rustc_hash::FxHashMap;

/// Reads to obtain an entry: one for its ring, one for itself.
const READS: u8 = 2;

/// A flaw in the hardware, for tests of the checks that must detect it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingFlaw {
    /// An invalidation keeps the entry that was fetched ahead.
    KeepsNext,
}

/// A device and one of its rings.
type Key = (SourceId, u16);

/// The cached state of a ring.
struct Cached {
    domain: u16,
    index: u32,
    current: Option<RingEntry>,
    /// The entry behind it, if it was valid when it was fetched.
    next: Option<RingEntry>,
    /// The number of entries in the ring. The first entry follows the last one.
    size: u32,
    /// When the ring was last used, as a count of requests.
    used: u64,
}

/// An entry that has been read, and is cached when its time has passed.
struct Fetch {
    completes_ps: u64,
    key: Key,
    domain: u16,
    index: u32,
    size: u32,
    entry: RingEntry,
    /// The entry was fetched ahead, and no request waits for it.
    is_ahead: bool,
    /// Cleared by an invalidation.
    inserts: bool,
}

/// The last request to a ring, for the counters.
#[derive(Clone, Copy)]
struct Last {
    index: u32,
    /// The ring was invalidated since.
    is_invalidated: bool,
    /// The entry behind it was fetched ahead and was not valid.
    is_next_absent: bool,
}

/// An entry found in the tables.
struct Found {
    entry: RingEntry,
    size: u32,
}

/// The cached entries of rings, and the fetches under way.
pub(super) struct Rings {
    capacity: usize,
    cached: FxHashMap<Key, Cached>,
    fetches: Vec<Fetch>,
    last: FxHashMap<Key, Last>,
    requests: u64,
    memory_read_ps: u64,
    flaw: Option<RingFlaw>,
}

/// A request and the state that it needs besides the rings.
pub(super) struct Request<'r> {
    pub(super) ram: &'r Ram,
    pub(super) counters: &'r mut Counters,
    pub(super) context: ContextEntry,
    /// When each walker becomes free.
    pub(super) walkers: &'r mut [u64],
    pub(super) now_ps: u64,
    pub(super) source: SourceId,
    pub(super) iova: Iova,
    pub(super) rights: Rights,
}

impl Rings {
    pub(super) fn new(capacity: usize, memory_read_ps: u64) -> Self {
        Self {
            capacity,
            cached: FxHashMap::default(),
            fetches: Vec::new(),
            last: FxHashMap::default(),
            requests: 0,
            memory_read_ps,
            flaw: None,
        }
    }

    pub(super) fn plant(&mut self, flaw: RingFlaw) {
        self.flaw = Some(flaw);
    }

    /// When the next fetch completes; `u64::MAX` if none is under way.
    #[inline]
    pub(super) fn next_ps(&self) -> u64 {
        self.fetches.iter().map(|fetch| fetch.completes_ps).min().unwrap_or(u64::MAX)
    }

    /// Translates a request. A refusal tells whether the fault is recorded.
    pub(super) fn translate(&mut self, mut request: Request<'_>) -> Result<Translated, ContextRefusal> {
        request.counters.lookups += 1;
        self.requests += 1;
        let recorded = !request.context.faults_disabled;
        let (entry, ready_ps, outcome) = self.find(&mut request).map_err(|reason| (reason, recorded))?;
        let phys = admit(entry, request.iova, request.rights).map_err(|reason| (reason, recorded))?;
        Ok(Translated { phys, ready_ps, outcome })
    }

    /// The entry for a request, and when it is known.
    fn find(&mut self, request: &mut Request<'_>) -> Result<(RingEntry, u64, LookupOutcome), FaultReason> {
        let RingAddress { ring, entry: index, .. } = RingAddress::of(request.iova);
        let (key, domain, now_ps) = ((request.source, ring), request.context.domain.0, request.now_ps);
        let requests = self.requests;
        if let Some(cached) = self.cached.get_mut(&key).filter(|cached| cached.domain == domain) {
            cached.used = requests;
            let following = (cached.index + 1) % cached.size;
            if let Some(current) = cached.current.filter(|_| cached.index == index) {
                request.counters.iotlb_hits += 1;
                self.note(request.counters, key, index);
                return Ok((current, now_ps, LookupOutcome::Hit));
            }
            if let Some(next) = cached.next.filter(|_| following == index) {
                (cached.index, cached.current, cached.next) = (index, Some(next), None);
                request.counters.iotlb_hits += 1;
                self.note(request.counters, key, index);
                self.fetch_ahead(request, now_ps, key, index);
                return Ok((next, now_ps, LookupOutcome::Hit));
            }
        }
        let of_ring = |fetch: &&mut Fetch| fetch.inserts && (fetch.key, fetch.domain) == (key, domain);
        if let Some(fetch) = self.fetches.iter_mut().filter(of_ring).find(|fetch| fetch.index == index) {
            fetch.is_ahead = false;
            let (entry, ready_ps) = (fetch.entry, fetch.completes_ps);
            request.counters.iotlb_hits += 1;
            request.counters.iotlb_joined += 1;
            self.note(request.counters, key, index);
            return Ok((entry, ready_ps, LookupOutcome::Joined));
        }
        // If a request waits for the preceding entry, this one would be fetched ahead after that. So this request
        // waits for both.
        let waits_for_before = |fetch: &&mut Fetch| !fetch.is_ahead && (fetch.index + 1) % fetch.size == index;
        let before = self.fetches.iter_mut().filter(of_ring).find(waits_for_before);
        let before_ps = before.map(|fetch| fetch.completes_ps);
        request.counters.iotlb_misses += 1;
        request.counters.memory_reads += u64::from(READS);
        let completes_ps = self.walk_for(request.walkers, before_ps.unwrap_or(now_ps));
        let found = read(request.ram, request.context.table, request.iova, request.counters);
        let Found { entry, size } = found.ok_or(refusal(request.rights))?;
        self.note_miss(request.counters, key, index, size, before_ps.is_some());
        self.note(request.counters, key, index);
        if before_ps.is_none() {
            for fetch in self.fetches.iter_mut().filter(|fetch| fetch.key == key) {
                fetch.inserts = false;
            }
        }
        self.fetch(Fetch { completes_ps, key, domain, index, size, entry, is_ahead: false, inserts: true });
        Ok((entry, completes_ps, LookupOutcome::Miss { reads: READS }))
    }

    /// Starts a fetch that a request waits for. It takes the place of the cached state of its ring. At most one other
    /// fetch of the ring keeps its place in the cache, namely the latest one.
    fn fetch(&mut self, fetch: Fetch) {
        self.cached.remove(&fetch.key);
        let of_ring = |other: &Fetch| other.inserts && other.key == fetch.key;
        let others = self.fetches.iter().filter(|other| of_ring(other)).count();
        if others > 1
            && let Some(oldest) = self.fetches.iter_mut().find(|other| of_ring(other))
        {
            oldest.inserts = false;
        }
        self.fetches.push(fetch);
    }

    /// Occupies the walker that is free first. Returns when it is done.
    fn walk_for(&self, walkers: &mut [u64], now_ps: u64) -> u64 {
        let walker = walkers.iter_mut().min().expect("there is at least one walker");
        *walker = now_ps.max(*walker) + u64::from(READS) * self.memory_read_ps;
        *walker
    }

    /// Fetches the entry behind `index`, which was requested, if it is valid.
    fn fetch_ahead(&mut self, request: &mut Request<'_>, now_ps: u64, key: Key, index: u32) {
        let size = self.cached.get(&key).map_or(1, |cached| cached.size);
        let next = (index + 1) % size;
        if next == index || self.fetches.iter().any(|fetch| fetch.inserts && fetch.key == key && fetch.index == next) {
            return;
        }
        let completes_ps = self.walk_for(request.walkers, now_ps);
        request.counters.prefetch_reads += u64::from(READS);
        let iova = RingAddress { ring: key.1, entry: next, offset: 0 }.iova();
        let found = read(request.ram, request.context.table, iova, request.counters);
        if let Some(last) = self.last.get_mut(&key).filter(|last| last.index == index) {
            last.is_next_absent = found.is_none();
        }
        if let Some(Found { entry, size }) = found {
            let domain = request.context.domain.0;
            let fetch = Fetch { completes_ps, key, domain, index: next, size, entry, is_ahead: true, inserts: true };
            self.fetches.push(fetch);
        }
    }

    /// Completes the fetch that is due first. `context` returns the cached context of a device, if there is one.
    pub(super) fn complete(
        &mut self,
        ram: &Ram,
        counters: &mut Counters,
        walkers: &mut [u64],
        context: impl Fn(SourceId) -> Option<ContextEntry>,
    ) {
        let first = (0..self.fetches.len()).min_by_key(|&at| self.fetches[at].completes_ps);
        let Some(first) = first else { return };
        let Fetch { completes_ps, key, domain, index, size, entry, is_ahead, inserts } = self.fetches.remove(first);
        if !inserts || self.capacity == 0 {
            return;
        }
        if is_ahead {
            let before = |cached: &&mut Cached| (cached.index + 1) % cached.size == index && cached.domain == domain;
            if let Some(cached) = self.cached.get_mut(&key).filter(before) {
                cached.next = Some(entry);
            }
            return;
        }
        self.make_room(key);
        let cached = Cached { domain, index, current: Some(entry), next: None, size, used: self.requests };
        self.cached.insert(key, cached);
        // The device may have changed to another domain, or to page tables, while the fetch was under way.
        let here =
            |context: &ContextEntry| (context.domain.0, context.translation_type) == (domain, TranslationType::Rings);
        if let Some(context) = context(key.0).filter(here) {
            let (source, iova) = (key.0, RingAddress { ring: key.1, entry: index, offset: 0 }.iova());
            let now_ps = completes_ps;
            let mut request = Request { ram, counters, context, walkers, now_ps, source, iova, rights: Rights::READ };
            self.fetch_ahead(&mut request, now_ps, key, index);
        }
    }

    /// Evicts the ring that was used longest ago if there is no room for another.
    fn make_room(&mut self, key: Key) {
        if self.cached.len() >= self.capacity && !self.cached.contains_key(&key) {
            let oldest = self.cached.iter().min_by_key(|(_, cached)| cached.used).map(|(key, _)| *key);
            oldest.map(|oldest| self.cached.remove(&oldest));
        }
    }

    /// Records a request for an entry that was found.
    fn note(&mut self, counters: &mut Counters, key: Key, index: u32) {
        let before = self.last.get(&key).copied();
        let is_next_absent = before.is_some_and(|last| last.index == index && last.is_next_absent);
        self.last.insert(key, Last { index, is_invalidated: false, is_next_absent });
        counters.ring_switches += u64::from(before.is_some_and(|last| last.index != index));
    }

    /// Counts a missed entry under the first reason that applies.
    fn note_miss(&self, counters: &mut Counters, key: Key, index: u32, size: u32, is_close_behind: bool) {
        let reason = match self.last.get(&key) {
            Some(last) if last.index != index && (last.index + 1) % size != index => &mut counters.ring_out_of_order,
            Some(last) if last.is_invalidated => &mut counters.ring_after_invalidation,
            _ if is_close_behind => &mut counters.ring_close_behind,
            Some(last) if last.index != index && last.is_next_absent => &mut counters.ring_mapped_later,
            _ => &mut counters.ring_first,
        };
        *reason += 1;
    }

    /// The entry for `iova` that is cached or being fetched.
    fn peek(&self, domain: u16, source: SourceId, iova: Iova) -> Option<RingEntry> {
        let RingAddress { ring, entry: index, .. } = RingAddress::of(iova);
        let key = (source, ring);
        let cached = self.cached.get(&key).filter(|cached| cached.domain == domain);
        let at_hand = cached.and_then(|cached| {
            let current = cached.current.filter(|_| cached.index == index);
            current.or(cached.next.filter(|_| (cached.index + 1) % cached.size == index))
        });
        let serves = |fetch: &&Fetch| fetch.inserts && (fetch.key, fetch.domain, fetch.index) == (key, domain, index);
        at_hand.or_else(|| self.fetches.iter().find(serves).map(|fetch| fetch.entry))
    }

    /// Where a request would lead now. Changes nothing.
    pub(super) fn reaches(
        &self,
        ram: &Ram,
        context: &ContextEntry,
        source: SourceId,
        iova: Iova,
        rights: Rights,
    ) -> Option<PhysAddr> {
        let in_table = || read(ram, context.table, iova, &mut Counters::default()).map(|found| found.entry);
        let entry = self.peek(context.domain.0, source, iova).or_else(in_table)?;
        admit(entry, iova, rights).ok()
    }

    /// Executes an invalidation of the rings `first` to `last`, or of all rings, of one domain, or of every domain if
    /// none is given.
    pub(super) fn invalidate(&mut self, domain: Option<u16>, rings: Option<(u16, u16)>) {
        let is_covered = |of: u16, ring: u16| {
            domain.is_none_or(|domain| domain == of) && rings.is_none_or(|(first, last)| (first..=last).contains(&ring))
        };
        for (key, cached) in &self.cached {
            if is_covered(cached.domain, key.1)
                && let Some(last) = self.last.get_mut(key)
            {
                last.is_invalidated = true;
            }
        }
        let keeps_next = self.flaw == Some(RingFlaw::KeepsNext);
        self.cached.retain(|key, cached| {
            let stays = !is_covered(cached.domain, key.1);
            if !stays && keeps_next {
                cached.current = None;
            }
            stays || keeps_next && cached.next.is_some()
        });
        for fetch in &mut self.fetches {
            if is_covered(fetch.domain, fetch.key.1) {
                fetch.inserts = false;
                if let Some(last) = self.last.get_mut(&fetch.key) {
                    last.is_invalidated = true;
                }
            }
        }
    }
}

/// Where the tables lead, whatever the rights.
pub(super) fn in_tables(ram: &Ram, table: PhysAddr, iova: Iova) -> Option<PhysAddr> {
    let found = read(ram, table, iova, &mut Counters::default())?;
    found.entry.reach(RingAddress::of(iova).offset).filter(|phys| !is_interrupt(phys.as_u64()))
}

/// The address that a request for `iova` with these rights reaches.
fn admit(entry: RingEntry, iova: Iova, rights: Rights) -> Result<PhysAddr, FaultReason> {
    let phys = entry.reach(RingAddress::of(iova).offset).filter(|_| entry.rights.allows(rights));
    let phys = phys.ok_or(refusal(rights))?;
    if is_interrupt(phys.as_u64()) { Err(FaultReason::InterruptRange) } else { Ok(phys) }
}

/// Reads the entry for `iova`, starting from the table of rings. `None` if there is no valid entry.
fn read(ram: &Ram, table: PhysAddr, iova: Iova, counters: &mut Counters) -> Option<Found> {
    let RingAddress { ring, entry, .. } = RingAddress::of(iova);
    let mut into_freed = false;
    let mut slot = |table: PhysAddr, index: u64| {
        let low = PhysAddr::new(table.as_u64().wrapping_add(index * SLOT_BYTES));
        let high = PhysAddr::new(low.as_u64().wrapping_add(8));
        into_freed |= !ram.is_allocated(low);
        Some([ram.hardware_read_u64(low)?, ram.hardware_read_u64(high)?])
    };
    let mut find = || {
        // The hardware has read the number of rings together with the context.
        let header = DeviceHeader::decode(slot(table, 0)?[0]);
        if ring == 0 || ring > header.rings {
            return None;
        }
        let RingPointer { table, size } = RingPointer::decode(slot(table, ring.into())?)?;
        let entry = if entry < size { RingEntry::decode(slot(table, entry.into())?) } else { None };
        entry.map(|entry| Found { entry, size })
    };
    let found = find();
    counters.walks_into_freed += u64::from(into_freed);
    found
}
