//! QEMU's VT-d as the oracle for the model: replays the descriptors and accesses of a device log in their order.
//!
//! The log's descriptors go through the model's registers and queue as raw quadwords. Accesses are translated like
//! those of any device; the model alone decides whether an access hits and where it leads. The log and the model agree
//! on an access if both hit or both walk, and both lead to the same byte.
//!
//! The log lacks the tables. They are written here by two rules:
//!
//! - Before an access that walked in the log, its entry becomes the one that the walk found. The guest had written it
//!   by then.
//! - Before an access that hit in the log, the tables stay as they are, because a hit does not read them. There is one
//!   exception: if the tables never had an entry for the page, they get the cached one. A model that has not cached
//!   the page then finds it by a walk. That counts as one disagreement, instead of a fault that causes more.
//!
//! Only descriptors and accesses change the caches, so the consequences of a disagreement remain.
//!
//! Of the bundled logs, the lazy one caches most: at most 574 entries between two flushes. None of the logs fills
//! QEMU's IOTLB, so they say nothing about its eviction.

use portcullis::iommu::DomainId;
use portcullis::table::{ENTRIES, Entry, EntryValue, LEVEL_BITS};
use portcullis::{Iova, NoMemory, PAGE_SHIFT, PAGE_SIZE, PhysAddr, SourceId};
use portcullis_model::{Counters, LookupOutcome, ParameterError, Parameters, Ram, Vtd};
use portcullis_trace::{AccessLog, LogEvent};
use portcullis_vtd::spec::descriptors::{DESCRIPTOR_BYTES, InvalidationDescriptor};
use portcullis_vtd::spec::faults::FaultReason;
use portcullis_vtd::spec::registers::{GCMD, IQA, IQH, IQT, RTADDR, global};
use portcullis_vtd::spec::tables::{ContextEntry, RootEntry, TranslationType, context_index, root_index};
use rustc_hash::FxHashMap;
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// How an access was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// From the IOTLB, with the byte at this address.
    Hit(PhysAddr),
    /// By a walk, with the byte at this address.
    Walk(PhysAddr),
    /// The access was refused.
    Refused(FaultReason),
}

/// An access that the model answers in another way than the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Disagreement {
    /// Index into [`AccessLog::events`].
    pub event: usize,
    /// The address of the access.
    pub iova: Iova,
    /// The answer in the log.
    pub logged: Answer,
    /// The answer of the model.
    pub found: Answer,
}

/// How far the model agrees with a log.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Agreement {
    /// Accesses in the log.
    pub accesses: u64,
    /// Accesses that hit, according to the log.
    pub logged_hits: u64,
    /// Accesses on which the log and the model disagree.
    pub disagreements: u64,
    /// The first few disagreements.
    pub first: Vec<Disagreement>,
    /// The counters of the model: its hits and misses, and the descriptors that it executed.
    pub counters: Counters,
}

/// Why a log could not be replayed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum OracleError {
    /// No hardware can have these parameters.
    #[error(transparent)]
    Parameters(#[from] ParameterError),
    /// The model's queue stopped at a descriptor.
    #[error("event {event} of the access log: the model cannot execute the descriptor {qw1:#018x}:{qw0:#018x}")]
    Descriptor {
        /// Index into [`AccessLog::events`].
        event: usize,
        /// The low quadword.
        qw0: u64,
        /// The high quadword.
        qw1: u64,
    },
    /// The log's accesses are spread so widely that their tables do not fit.
    #[error("event {event} of the access log: the tables for its accesses take more than {} MiB", MEMORY_BYTES >> 20)]
    Memory {
        /// Index into [`AccessLog::events`].
        event: usize,
    },
}

/// How many disagreements are kept.
const KEPT: usize = 16;
/// The size of the model's memory. Only used pages are backed.
const MEMORY_BYTES: u64 = 1 << 30;
/// The log does not give the size of a large page. Nearly all are of 2 MiB.
const LARGE_LEVEL: u8 = 2;

/// Replays the log on a model with these parameters, and compares the answers. The log's own hardware is
/// [`Parameters::qemu`](Parameters::qemu).
///
/// # Errors
/// Returns an [`OracleError`] if no hardware can have these parameters, if hardware with these parameters refuses a
/// descriptor of the log, or if the tables do not fit.
pub fn replay(log: &AccessLog, parameters: &Parameters) -> Result<Agreement, OracleError> {
    parameters.check()?;
    let mut unit = Unit::bring_up(parameters).map_err(|NoMemory| OracleError::Memory { event: 0 })?;
    let mut agreement = Agreement::default();
    for (event, logged) in log.events.iter().enumerate() {
        match *logged {
            LogEvent::Descriptor { qw0, qw1 } => {
                if !unit.execute([qw0, qw1]) {
                    return Err(OracleError::Descriptor { event, qw0, qw1 });
                }
            }
            LogEvent::Access { source, domain, hit, iova, entry } => {
                let slot = unit.slot(source, domain, iova, entry).map_err(|NoMemory| OracleError::Memory { event })?;
                if !hit || !slot.load().is_present() {
                    slot.store(entry);
                }
                let at = PhysAddr::new(entry.phys().as_u64() | iova.as_u64() & (page_bytes(entry) - 1));
                let logged = if hit { Answer::Hit(at) } else { Answer::Walk(at) };
                let found = unit.access(source, iova, entry);
                agreement.accesses += 1;
                agreement.logged_hits += u64::from(hit);
                if found != logged {
                    agreement.disagreements += 1;
                    if agreement.first.len() < KEPT {
                        agreement.first.push(Disagreement { event, iova, logged, found });
                    }
                }
            }
        }
    }
    agreement.counters = unit.vtd.counters();
    Ok(agreement)
}

impl Agreement {
    /// The share of accesses on which the log and the model agree, in percent. 100 if there are no accesses.
    pub fn percent(&self) -> f64 {
        match self.accesses {
            0 => 100.0,
            accesses => 100.0 * (accesses - self.disagreements) as f64 / accesses as f64,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hit(at) => write!(f, "a hit that leads to {at}"),
            Self::Walk(at) => write!(f, "a walk that leads to {at}"),
            Self::Refused(reason) => write!(f, "a refusal ({reason:?})"),
        }
    }
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "event {}, {}: the log has {}, the model {}", self.event, self.iova, self.logged, self.found)
    }
}

/// The model with its queue, and the tables that the log implies: one tree for each domain, and the context entries of
/// each device.
struct Unit {
    vtd: Vtd,
    ram: Arc<Ram>,
    root: PhysAddr,
    queue: PhysAddr,
    status: PhysAddr,
    levels: u8,
    /// Offset of the first free descriptor of the queue, in bytes.
    tail: u64,
    now_ps: u64,
    /// The top table of each domain.
    domains: FxHashMap<u16, PhysAddr>,
    /// The domain of each device.
    attached: FxHashMap<SourceId, u16>,
}

impl Unit {
    /// Enables the queue and translation, with no device attached.
    fn bring_up(parameters: &Parameters) -> Result<Self, NoMemory> {
        let ram = Arc::new(Ram::new(PhysAddr::new(0), MEMORY_BYTES));
        let unit = Self {
            vtd: Vtd::new(parameters.clone(), Arc::clone(&ram)),
            root: ram.allocate()?,
            queue: ram.allocate()?,
            status: ram.allocate()?,
            ram,
            levels: if parameters.four_level { 4 } else { 3 },
            tail: 0,
            now_ps: 0,
            domains: FxHashMap::default(),
            attached: FxHashMap::default(),
        };
        unit.write(RTADDR, 8, unit.root.as_u64());
        unit.write(GCMD, 4, global::ROOT_TABLE.into());
        unit.write(IQA, 8, unit.queue.as_u64());
        unit.write(GCMD, 4, global::QUEUED_INVALIDATION.into());
        unit.write(GCMD, 4, (global::QUEUED_INVALIDATION | global::TRANSLATION).into());
        Ok(unit)
    }

    fn write(&self, register: u32, bytes: u8, value: u64) {
        self.vtd.write_register(self.now_ps, register, bytes, value);
    }

    /// Lets the hardware finish. The log has no times: each of its lines is complete before the next.
    fn settle(&mut self) {
        while let Some(at_ps) = self.vtd.next_event_ps() {
            self.now_ps = at_ps;
            self.vtd.advance(at_ps);
        }
    }

    /// Puts a descriptor into the queue and waits for it. Returns whether the hardware executed it.
    fn execute(&mut self, [qw0, qw1]: [u64; 2]) -> bool {
        // The status of a wait lies in the guest's memory, which does not exist here. One of our pages takes its
        // place.
        let qw1 = match InvalidationDescriptor::decode([qw0, qw1]) {
            Ok(InvalidationDescriptor::Wait { status: Some(_), .. }) => self.status.as_u64(),
            _ => qw1,
        };
        let slot = (self.tail / DESCRIPTOR_BYTES) as usize;
        store_pair(self.ram.frame(self.queue), slot, [qw0, qw1]);
        self.tail = (self.tail + DESCRIPTOR_BYTES) % PAGE_SIZE;
        self.write(IQT, 8, self.tail);
        self.settle();
        self.vtd.read_register(self.now_ps, IQH, 8) == self.tail
    }

    /// Translates an access with all rights that the log shows, and lets the walk complete.
    fn access(&mut self, source: SourceId, iova: Iova, entry: EntryValue) -> Answer {
        let answer = match self.vtd.translate(self.now_ps, source, iova, entry.rights()) {
            Ok(translated) => match translated.outcome {
                LookupOutcome::Hit | LookupOutcome::Joined => Answer::Hit(translated.phys),
                LookupOutcome::Miss { .. } => Answer::Walk(translated.phys),
            },
            Err(fault) => Answer::Refused(fault.reason),
        };
        self.settle();
        answer
    }

    /// The entry for `iova` in the tables of a device. The device is in `domain` from now on.
    fn slot(&mut self, source: SourceId, domain: u16, iova: Iova, entry: EntryValue) -> Result<&Entry, NoMemory> {
        let mut table = match self.domains.get(&domain) {
            Some(&top) => top,
            None => {
                let top = self.ram.allocate()?;
                self.domains.insert(domain, top);
                top
            }
        };
        if self.attached.get(&source) != Some(&domain) {
            self.attach(source, domain, table)?;
        }
        let last = if entry.is_large() { LARGE_LEVEL } else { 1 };
        for level in (last + 1..=self.levels).rev() {
            let slot = &self.ram.frame(table)[index_at(level, iova)];
            let pointer = slot.load();
            table = if pointer.is_present() && !pointer.is_large() {
                pointer.phys()
            } else {
                let lower = self.ram.allocate()?;
                slot.store(EntryValue::table(lower));
                lower
            };
        }
        Ok(&self.ram.frame(table)[index_at(last, iova)])
    }

    /// Writes the context entry of a device. A cached older entry stays until the log invalidates it.
    fn attach(&mut self, source: SourceId, domain: u16, table: PhysAddr) -> Result<(), NoMemory> {
        let root = self.ram.frame(self.root);
        let bus = EntryValue::from_bits(root[2 * root_index(source)].load_bits());
        let contexts = if bus.bits() == 0 { self.ram.allocate()? } else { bus.phys() };
        store_pair(root, root_index(source), RootEntry { context_table: contexts }.encode());
        let context = ContextEntry {
            faults_disabled: false,
            translation_type: TranslationType::Untranslated,
            table,
            levels: self.levels,
            domain: DomainId(domain),
        };
        store_pair(self.ram.frame(contexts), context_index(source), context.encode());
        self.attached.insert(source, domain);
        Ok(())
    }
}

fn index_at(level: u8, iova: Iova) -> usize {
    (iova.pfn() >> (LEVEL_BITS * u32::from(level - 1))) as usize % ENTRIES
}

fn page_bytes(entry: EntryValue) -> u64 {
    let level = if entry.is_large() { LARGE_LEVEL } else { 1 };
    1 << (PAGE_SHIFT + LEVEL_BITS * u32::from(level - 1))
}

/// Stores 128 bits as entry `index` of a page of 128-bit entries.
fn store_pair(page: &[Entry; ENTRIES], index: usize, [low, high]: [u64; 2]) {
    page[2 * index].store_bits(low);
    page[2 * index + 1].store_bits(high);
}
