//! Devices that use rings (rIOMMU). Their tables are written by hand, with the types of the format.

mod entries;
mod invalidation;
mod order;
mod reference;

use super::common::*;
use portcullis::iommu::rings::{DeviceHeader, RING_ADDRESS_MASK, RingAddress, RingEntry, RingPointer, SLOTS_PER_PAGE};
use portcullis::iommu::{DomainId, SourceId};
use portcullis::table::Rights;
use portcullis::{PAGE_SIZE, PhysAddr};
use portcullis_model::{LookupOutcome, Parameters, Ram, RingFlaw};
use portcullis_vtd::spec::descriptors::InvalidationDescriptor;
use portcullis_vtd::spec::tables::{ContextEntry, TranslationType};
use std::sync::Arc;

/// The time to read a ring and an entry.
const WALK_PS: u64 = 2 * 197_000;

fn parameters() -> Parameters {
    Parameters::cascadelake()
}

/// Walks so slow that the queue finishes before a walk does.
fn slow_walks() -> Parameters {
    Parameters { memory_read_ps: 10_000_000, ..parameters() }
}

/// What an entry leads to unless a test sets otherwise. The address is not page-aligned.
fn value(ring: u16, entry: u32) -> RingEntry {
    let phys = PhysAddr::new(0x8000_0123 | u64::from(ring) << 24 | u64::from(entry) << 12);
    RingEntry { phys, size: 0x800, rights: Rights::READ_WRITE }
}

fn address(ring: u16, entry: u32, offset: u32) -> u64 {
    RingAddress { ring, entry, offset }.iova().as_u64()
}

fn rings(domain: u16, table: PhysAddr) -> ContextEntry {
    let translation_type = TranslationType::Rings;
    ContextEntry { faults_disabled: false, translation_type, table, levels: 4, domain: DomainId(domain) }
}

/// The page-selective command that covers a whole ring.
fn forget(domain: u16, ring: u16) -> InvalidationDescriptor {
    pages(domain, address(ring, 0, 0), RING_ADDRESS_MASK, true)
}

/// A machine with a table of rings. `DEVICE` uses it, in domain 1.
struct Ringed {
    machine: Machine,
    device: PhysAddr,
    /// The tables of rings 1, 2 and so on.
    tables: Vec<PhysAddr>,
}

impl Ringed {
    /// Ring *r* has `sizes[r - 1]` entries, all of them valid.
    fn new(parameters: Parameters, sizes: &[u32]) -> Self {
        Self::on(Arc::new(Ram::new(BASE, 64 << 20)), parameters, sizes)
    }

    fn on(ram: Arc<Ram>, parameters: Parameters, sizes: &[u32]) -> Self {
        let machine = Machine::on(ram, parameters);
        let device = machine.ram.allocate().unwrap();
        let mut this = Self { machine, device, tables: Vec::new() };
        this.machine.poke_context(DEVICE, rings(1, device).encode());
        this.poke(device, 0, DeviceHeader { rings: sizes.len() as u16 }.encode());
        for (ring, &size) in (1..).zip(sizes) {
            let table = this.machine.ram.allocate_run(size.div_ceil(SLOTS_PER_PAGE) as usize).unwrap();
            this.tables.push(table);
            this.poke(device, ring.into(), RingPointer { table, size }.encode());
            (0..size).for_each(|entry| this.set(ring, entry, value(ring, entry)));
        }
        this
    }

    /// Writes a slot of a table as a CPU does.
    fn poke(&self, table: PhysAddr, slot: u32, words: [u64; 2]) {
        let page = PhysAddr::new(table.as_u64() + u64::from(slot / SLOTS_PER_PAGE) * PAGE_SIZE);
        self.machine.poke128(page, (slot % SLOTS_PER_PAGE) as usize, words);
    }

    fn table(&self, ring: u16) -> PhysAddr {
        self.tables[usize::from(ring) - 1]
    }

    fn set(&self, ring: u16, entry: u32, value: RingEntry) {
        self.poke(self.table(ring), entry, value.encode());
    }

    fn clear(&self, ring: u16, entry: u32) {
        self.poke(self.table(ring), entry, [0; 2]);
    }

    fn clear_all(&self, ring: u16, size: u32) {
        (0..size).for_each(|entry| self.clear(ring, entry));
    }

    /// Makes the contents of a page visible to walks that do not snoop.
    fn flush(&self, page: PhysAddr) {
        self.machine.ram.flush(self.machine.ram.frame(page));
    }

    /// Reads through an entry that has its first value. Returns the outcome of the lookup and when the address is
    /// known.
    fn ask(&self, ring: u16, entry: u32) -> (LookupOutcome, u64) {
        let translated = self.machine.ask(DEVICE, address(ring, entry, 5), Rights::READ).unwrap();
        assert_eq!(translated.phys.as_u64(), value(ring, entry).phys.as_u64() + 5);
        (translated.outcome, translated.ready_ps)
    }

    /// Does what [`ask`](Self::ask) does, and waits for everything under way.
    fn touch(&mut self, ring: u16, entry: u32) -> LookupOutcome {
        let (outcome, _) = self.ask(ring, entry);
        self.machine.settle();
        outcome
    }

    fn touch_all(&mut self, entries: &[(u16, u32)]) -> Vec<LookupOutcome> {
        entries.iter().map(|&(ring, entry)| self.touch(ring, entry)).collect()
    }

    /// The entries of a ring that a device can reach.
    fn reached_by(&self, source: SourceId, ring: u16, size: u32) -> Vec<u32> {
        (0..size).filter(|&entry| self.machine.reaches(source, address(ring, entry, 0))).collect()
    }

    fn reached(&self, ring: u16, size: u32) -> Vec<u32> {
        self.reached_by(DEVICE, ring, size)
    }
}

const MISS: LookupOutcome = LookupOutcome::Miss { reads: 2 };
const HIT: LookupOutcome = LookupOutcome::Hit;
const JOINED: LookupOutcome = LookupOutcome::Joined;
