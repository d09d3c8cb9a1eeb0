//! A unit for tests: registers with their handshakes, and a queue that can execute, stay silent, refuse or reorder.

use super::host::Host;
use crate::Mmio;
use crate::spec::descriptors::{ContextScope, InvalidationDescriptor, StatusWrite};
use crate::spec::faults::{FaultRecord, status};
use crate::spec::registers::*;
use crate::spec::tables::{ContextEntry, RootEntry, context_index, root_index};
use portcullis::iommu::SourceId;
use portcullis::{PAGE_SIZE, PhysAddr, Platform};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

/// QEMU's capabilities.
pub(super) const CAPABILITY: Capability = Capability(0x00d2_008c_222f_0606);
pub(super) const EXTENDED: ExtendedCapability = ExtendedCapability(0x00f0_0f4a);

/// How the queue behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Behaviour {
    #[default]
    Prompt,
    /// Fetches nothing.
    Silent,
    /// Fetches nothing until the fault status has been read this many times, and is prompt afterwards.
    Slow(usize),
    /// Fetches only when the fault status is read.
    Lagging,
    /// Fetches everything and holds back the waits.
    Holding,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) version: u32,
    pub(super) capability: u64,
    pub(super) extended: u64,
    pub(super) status: u32,
    pub(super) faults: u32,
    /// Bits of the fault status that read as set, whatever is written.
    pub(super) stuck_faults: u32,
    pub(super) protected: u32,
    pub(super) root: u64,
    pub(super) queue: u64,
    pub(super) head: u64,
    pub(super) tail: u64,
    /// The fault event control register.
    pub(super) fault_event: u32,
    pub(super) behaviour: Behaviour,
    /// A descriptor with these quadwords raises a queue error.
    pub(super) refuse: Option<[u64; 2]>,
    /// The queue stops in front of a descriptor with these quadwords, without an error.
    pub(super) stall: Option<[u64; 2]>,
    /// Bits of the global status that no longer change.
    pub(super) stuck: u32,
    /// Bits of the global status that no longer come on.
    pub(super) dead: u32,
    /// Bits of the global status that no longer go off.
    pub(super) undying: u32,
    /// A stuck queue goes off when the next command comes, and starts again with it.
    pub(super) goes_off_late: bool,
    /// The protected regions stay protected.
    pub(super) stuck_protected: bool,
    /// All registers read as all ones, as when the unit is gone.
    pub(super) gone: bool,
    pub(super) held: VecDeque<StatusWrite>,
    pub(super) executed: Vec<InvalidationDescriptor>,
    /// For each device whose context was flushed, the context entry that a request would have found at that time.
    pub(super) flushed_contexts: Vec<(SourceId, Option<ContextEntry>)>,
    pub(super) records: BTreeMap<u32, [u64; 2]>,
    pub(super) write_buffer_flushes: usize,
    pub(super) tail_writes: usize,
    /// The commands in order: which bits of the global status changed.
    pub(super) commands: Vec<u32>,
    /// How often translation was turned off.
    pub(super) opened: usize,
    /// How often interrupt remapping was turned off.
    pub(super) unmapped_interrupts: usize,
    /// A watched device, and below its context entry each time the root table was set.
    pub(super) watched: Option<SourceId>,
    pub(super) seen_at_root: Vec<Option<ContextEntry>>,
}

pub(super) struct FakeUnit<'h> {
    host: &'h Host,
    /// Whether its walker snoops.
    snoops: bool,
    state: Mutex<State>,
}

impl<'h> FakeUnit<'h> {
    pub(super) fn new(host: &'h Host) -> Self {
        Self::with_capabilities(host, CAPABILITY, EXTENDED.with_coherent(host.coherent))
    }

    pub(super) fn with_capabilities(host: &'h Host, capability: Capability, extended: ExtendedCapability) -> Self {
        let state = State { version: 0x10, capability: capability.0, extended: extended.0, ..State::default() };
        Self { host, snoops: extended.coherent(), state: Mutex::new(state) }
    }

    pub(super) fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        act(&mut self.state.lock().expect("not poisoned"))
    }

    pub(super) fn behave(&self, behaviour: Behaviour) {
        self.with(|state| state.behaviour = behaviour);
    }

    pub(super) fn take_executed(&self) -> Vec<InvalidationDescriptor> {
        self.with(|state| core::mem::take(&mut state.executed))
    }

    /// Simulates a loss of power: the registers get their reset values.
    pub(super) fn lose_power(&self) {
        self.with(|state| {
            let State { version, capability, extended, .. } = *state;
            *state = State { version, capability, extended, ..State::default() };
        });
    }

    /// Writes the status of the held wait number `index`.
    pub(super) fn land(&self, index: usize) {
        let write = self.with(|state| state.held.remove(index)).expect("a held wait with this number");
        self.write_status(write);
    }

    /// Drops the held waits, as hardware does if a device does not answer.
    pub(super) fn time_out(&self) {
        self.with(|state| {
            state.held.clear();
            state.faults |= status::TIMEOUT_ERROR;
        });
    }

    /// The context entry that a request of `device` would find.
    pub(super) fn context(&self, device: SourceId) -> Option<ContextEntry> {
        let root = self.with(|state| state.root);
        self.context_below(root, device)
    }

    fn context_below(&self, root: u64, device: SourceId) -> Option<ContextEntry> {
        let read = |address: u64| {
            let word = |at| self.host.hardware_read(PhysAddr::new(at), self.snoops).expect("a table");
            [word(address), word(address + 8)]
        };
        let root = RootEntry::decode(read(root + 16 * root_index(device) as u64)).expect("a valid root entry")?;
        let context = root.context_table.as_u64() + 16 * context_index(device) as u64;
        ContextEntry::decode(read(context)).expect("a valid context entry")
    }

    /// Hardware writes 32 bits; the other half of the word is kept.
    fn write_status(&self, StatusWrite { address, data }: StatusWrite) {
        let page = PhysAddr::new(address.as_u64() & !(PAGE_SIZE - 1));
        assert_eq!(address.as_u64() % 8, 0, "statuses lie in the low half of a word");
        // SAFETY: the driver frees its pages only after the queue is off, and then nothing is fetched or landed.
        let word = unsafe { &self.host.frame(page)[(address.page_offset() / 8) as usize] };
        word.store_bits(word.load_bits() >> 32 << 32 | u64::from(data));
    }

    fn run_queue(&self, state: &mut State) {
        // Hardware snoops the queue in any case (ECAP.C, §10.4.3).
        let word = |address: u64| {
            self.host.fake.hardware_read(PhysAddr::new(address), true).expect("the queue is in an allocated page")
        };
        while state.status & global::QUEUED_INVALIDATION != 0
            && state.faults & (status::QUEUE_ERROR | status::TIMEOUT_ERROR) == 0
            && state.head != state.tail
            && !matches!(state.behaviour, Behaviour::Silent | Behaviour::Slow(_) | Behaviour::Lagging)
        {
            let words = [word(state.queue + state.head), word(state.queue + state.head + 8)];
            if state.stall == Some(words) {
                return;
            }
            let descriptor = match InvalidationDescriptor::decode(words) {
                Ok(descriptor) if state.refuse != Some(words) => descriptor,
                _ => {
                    state.faults |= status::QUEUE_ERROR;
                    return;
                }
            };
            state.head = (state.head + 16) % PAGE_SIZE;
            state.executed.push(descriptor);
            match (descriptor, state.behaviour) {
                (InvalidationDescriptor::Wait { status: Some(write), .. }, Behaviour::Holding) => {
                    state.held.push_back(write)
                }
                (InvalidationDescriptor::Wait { status: Some(write), .. }, _) => self.write_status(write),
                (InvalidationDescriptor::Wait { status: None, .. }, _) => {
                    panic!("some hardware refuses a wait without effect")
                }
                (InvalidationDescriptor::ContextCache(ContextScope::Device { source, .. }), _) => {
                    let context = self.context_below(state.root, source);
                    state.flushed_contexts.push((source, context));
                }
                _ => {}
            }
        }
    }

    fn command(&self, state: &mut State, value: u32) {
        let interrupts = global::INTERRUPT_REMAPPING | global::COMPATIBILITY_INTERRUPTS;
        let lasting = global::TRANSLATION | global::QUEUED_INVALIDATION | global::ADVANCED_FAULTS | interrupts;
        let mut next = state.status & !lasting | value & lasting;
        if value & global::ROOT_TABLE != 0 {
            next |= global::ROOT_TABLE;
            let watched = state.watched;
            state.seen_at_root.extend(watched.map(|device| self.context_below(state.root, device)));
        }
        if value & global::WRITE_BUFFER_FLUSH != 0 {
            state.write_buffer_flushes += 1;
            // The flush never ends if the bit is stuck.
            next |= state.stuck & global::WRITE_BUFFER_FLUSH;
        }
        let lasting_stuck = state.stuck & !global::WRITE_BUFFER_FLUSH;
        next = next & !lasting_stuck | state.status & lasting_stuck;
        next = next & (!state.dead | state.status) | state.status & state.undying;
        if state.goes_off_late && value & global::QUEUED_INVALIDATION != 0 {
            (state.head, state.goes_off_late) = (0, false);
            state.stuck &= !global::QUEUED_INVALIDATION;
        }
        state.commands.push(value & !state.status);
        state.opened += usize::from(state.status & !next & global::TRANSLATION != 0);
        state.unmapped_interrupts += usize::from(state.status & !next & global::INTERRUPT_REMAPPING != 0);
        if next & global::QUEUED_INVALIDATION == 0 {
            state.head = 0;
        }
        state.status = next;
    }
}

// SAFETY: the only memory behind these registers belongs to the test.
unsafe impl Mmio for &FakeUnit<'_> {
    fn read32(&self, offset: u32) -> u32 {
        self.with(|state| match offset {
            _ if state.gone => u32::MAX,
            VER => state.version,
            GSTS => state.status,
            FSTS => {
                if state.behaviour == Behaviour::Lagging {
                    state.behaviour = Behaviour::Prompt;
                    self.run_queue(state);
                    state.behaviour = Behaviour::Lagging;
                }
                if let Behaviour::Slow(reads) = state.behaviour {
                    state.behaviour = reads.checked_sub(1).map_or(Behaviour::Prompt, Behaviour::Slow);
                    self.run_queue(state);
                }
                let pending = state.records.values().any(|[_, high]| high & FaultRecord::FAULT != 0);
                state.faults | state.stuck_faults | if pending { status::PENDING } else { 0 }
            }
            PMEN => state.protected,
            FECTL => state.fault_event,
            other => panic!("a 32-bit read of {other:#x}"),
        })
    }

    fn read64(&self, offset: u32) -> u64 {
        self.with(|state| match offset {
            _ if state.gone => u64::MAX,
            CAP => state.capability,
            ECAP => state.extended,
            IQH => state.head,
            IQT => state.tail,
            IQA => state.queue,
            RTADDR => state.root,
            other => match state.records.get(&(other & !15)) {
                Some(record) => record[usize::from(other & 8 != 0)],
                None => 0,
            },
        })
    }

    unsafe fn write32(&self, offset: u32, value: u32) {
        self.with(|state| match offset {
            GCMD => self.command(state, value),
            FSTS => state.faults &= !(value & (status::QUEUE_ERRORS | status::OVERFLOW)),
            FECTL => state.fault_event = value,
            PMEN => {
                let enabled = if state.stuck_protected { protected_memory::ENABLED } else { value >> 31 };
                state.protected = value & protected_memory::ENABLE | enabled;
            }
            other => {
                assert_eq!((other & 15, value), (12, FaultRecord::FAULT_UPPER), "a 32-bit write of {other:#x}");
                state.records.get_mut(&(other & !15)).expect("a recording register")[1] &= !FaultRecord::FAULT;
            }
        });
    }

    unsafe fn write64(&self, offset: u32, value: u64) {
        self.with(|state| match offset {
            RTADDR => state.root = value,
            IQA => state.queue = value,
            IQT => {
                state.tail = value;
                state.tail_writes += 1;
                self.run_queue(state);
            }
            other => panic!("a 64-bit write of {other:#x}"),
        });
    }
}
