//! A machine whose tables and descriptors are written by hand, with the types of the specification.

use portcullis::iommu::{DomainId, SourceId};
use portcullis::table::{EntryValue, Rights};
use portcullis::{Iova, PAGE_SIZE, PhysAddr};
use portcullis_model::{Counters, Fault, LookupOutcome, Parameters, Ram, Translated, Vtd};
use portcullis_vtd::spec::descriptors::{InvalidationDescriptor, IotlbScope, StatusWrite};
use portcullis_vtd::spec::registers::{GCMD, GSTS, IQA, IQH, IQT, RTADDR, global};
use portcullis_vtd::spec::tables::{ContextEntry, RootEntry, TranslationType, context_index, root_index};
use std::sync::Arc;

pub(crate) const BASE: PhysAddr = PhysAddr::new(0x100_0000);
pub(crate) const DEVICE: SourceId = SourceId::new(3, 2, 0);
pub(crate) const OTHER: SourceId = SourceId::new(5, 3, 0);
/// The number of descriptors in the queue of [`Machine`], which has one page.
pub(crate) const QUEUE_ENTRIES: u64 = 256;

pub(crate) struct Machine {
    pub(crate) ram: Arc<Ram>,
    pub(crate) vtd: Arc<Vtd>,
    pub(crate) root: PhysAddr,
    pub(crate) queue: PhysAddr,
    pub(crate) status: PhysAddr,
    pub(crate) tail: u64,
    pub(crate) now_ps: u64,
}

impl Machine {
    /// A unit with an empty root table, with queue and translation on.
    pub(crate) fn new(parameters: Parameters) -> Self {
        let ram = Arc::new(Ram::new(BASE, 64 << 20));
        Self::on(ram, parameters)
    }

    pub(crate) fn on(ram: Arc<Ram>, parameters: Parameters) -> Self {
        let vtd = Arc::new(Vtd::new(parameters, Arc::clone(&ram)));
        let [root, queue, status] = [(); 3].map(|()| ram.allocate().unwrap());
        let machine = Self { ram, vtd, root, queue, status, tail: 0, now_ps: 0 };
        machine.write(RTADDR, 8, root.as_u64());
        machine.write(GCMD, 4, global::ROOT_TABLE.into());
        machine.write(IQA, 8, queue.as_u64());
        machine.write(GCMD, 4, global::QUEUED_INVALIDATION.into());
        machine.write(GCMD, 4, (global::QUEUED_INVALIDATION | global::TRANSLATION).into());
        let on = global::ROOT_TABLE | global::QUEUED_INVALIDATION | global::TRANSLATION;
        assert_eq!(machine.read(GSTS, 4), u64::from(on));
        machine
    }

    pub(crate) fn read(&self, offset: u32, bytes: u8) -> u64 {
        self.vtd.read_register(self.now_ps, offset, bytes)
    }

    pub(crate) fn write(&self, offset: u32, bytes: u8, value: u64) {
        self.vtd.write_register(self.now_ps, offset, bytes, value);
    }

    /// Writes 128 bits as a CPU does.
    pub(crate) fn poke128(&self, table: PhysAddr, index: usize, [low, high]: [u64; 2]) {
        let frame = self.ram.frame(table);
        frame[2 * index].store_bits(low);
        frame[2 * index + 1].store_bits(high);
    }

    /// Writes the raw context entry of a device, and its root entry if it is missing.
    pub(crate) fn poke_context(&self, source: SourceId, entry: [u64; 2]) {
        let index = root_index(source);
        let at = PhysAddr::new(self.root.as_u64() + 16 * index as u64);
        let table = match RootEntry::decode([self.ram.read_u64(at).unwrap(), 0]).unwrap() {
            Some(root) => root.context_table,
            None => {
                let table = self.ram.allocate().unwrap();
                self.poke128(self.root, index, RootEntry { context_table: table }.encode());
                table
            }
        };
        self.poke128(table, context_index(source), entry);
    }

    pub(crate) fn attach(&self, source: SourceId, domain: u16, table: PhysAddr, levels: u8) {
        self.poke_context(source, tables(domain, table, levels).encode());
    }

    /// The address of the entry for `iova` in the table at `level`. Missing tables on the path are allocated.
    pub(crate) fn entry(&self, top: PhysAddr, levels: u8, iova: u64, level: u8) -> PhysAddr {
        let mut table = top;
        let mut at = levels;
        loop {
            let slot = (iova >> (12 + 9 * (at - 1))) as usize & 511;
            if at == level {
                return PhysAddr::new(table.as_u64() + 8 * slot as u64);
            }
            let entry = &self.ram.frame(table)[slot];
            if !entry.load().is_present() {
                entry.store(EntryValue::table(self.ram.allocate().unwrap()));
            }
            table = entry.load().phys();
            at -= 1;
        }
    }

    pub(crate) fn poke(&self, at: PhysAddr, bits: u64) {
        self.ram.frame(PhysAddr::from_pfn(at.pfn()))[at.page_offset() as usize / 8].store_bits(bits);
    }

    /// Maps a leaf at `level` (1 is a page) of a table with 4 levels.
    pub(crate) fn map_at(&self, top: PhysAddr, iova: u64, phys: u64, rights: Rights, level: u8) {
        let at = self.entry(top, 4, iova, level);
        self.poke(at, EntryValue::leaf(PhysAddr::new(phys), rights, level > 1).bits());
    }

    pub(crate) fn map(&self, top: PhysAddr, iova: u64, phys: u64) {
        self.map_at(top, iova, phys, Rights::READ_WRITE, 1);
    }

    /// A domain with 4-level tables and `DEVICE` attached. `pages` pages from `iova` on are mapped to physical
    /// addresses that are 1 GiB higher.
    pub(crate) fn with_pages(parameters: Parameters, iova: u64, pages: u64) -> (Self, PhysAddr) {
        let machine = Self::new(parameters);
        let top = machine.ram.allocate().unwrap();
        machine.attach(DEVICE, 1, top, 4);
        machine.map_pages(top, iova, pages);
        (machine, top)
    }

    pub(crate) fn map_pages(&self, top: PhysAddr, iova: u64, pages: u64) {
        for page in 0..pages {
            let iova = iova + page * PAGE_SIZE;
            self.map(top, iova, phys_of(iova));
        }
    }

    /// Writes a raw descriptor into the queue without moving the tail.
    pub(crate) fn push_raw(&mut self, words: [u64; 2]) {
        self.poke128(self.queue, self.tail as usize, words);
        self.tail = (self.tail + 1) % QUEUE_ENTRIES;
    }

    pub(crate) fn push(&mut self, descriptor: InvalidationDescriptor) {
        self.push_raw(descriptor.encode());
    }

    /// Moves the tail past everything that was pushed.
    pub(crate) fn ring(&self) {
        self.write(IQT, 8, self.tail * 16);
    }

    pub(crate) fn head(&self) -> u64 {
        self.read(IQH, 8) / 16
    }

    /// Executes one descriptor and waits for its end.
    pub(crate) fn run(&mut self, descriptor: InvalidationDescriptor) {
        self.push(descriptor);
        self.ring();
        self.settle();
        assert_eq!(self.head(), self.tail, "the queue has executed everything");
    }

    /// Runs until nothing more happens on its own.
    pub(crate) fn settle(&mut self) {
        while let Some(at_ps) = self.vtd.next_event_ps() {
            self.now_ps = at_ps;
            self.vtd.advance(at_ps);
        }
    }

    pub(crate) fn ask(&self, source: SourceId, iova: u64, rights: Rights) -> Result<Translated, Fault> {
        self.vtd.translate(self.now_ps, source, Iova::new(iova), rights)
    }

    /// Reads from `DEVICE`, lets the walk complete, and returns the outcome of the lookup.
    pub(crate) fn touch(&mut self, iova: u64) -> LookupOutcome {
        let translated = self.ask(DEVICE, iova, Rights::READ).unwrap();
        assert_eq!(translated.phys.as_u64(), phys_of(iova));
        self.settle();
        translated.outcome
    }

    pub(crate) fn reaches(&self, source: SourceId, iova: u64) -> bool {
        self.vtd.reaches(self.now_ps, source, Iova::new(iova), Rights::READ).is_some()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.vtd.counters()
    }

    pub(crate) fn status_word(&self) -> u32 {
        self.ram.read_u64(self.status).unwrap() as u32
    }

    pub(crate) fn wait(&self, data: u32) -> InvalidationDescriptor {
        InvalidationDescriptor::Wait {
            status: Some(StatusWrite { address: self.status, data }),
            interrupt: false,
            fence: false,
            drain_page_requests: false,
        }
    }
}

pub(crate) fn phys_of(iova: u64) -> u64 {
    iova + (1 << 30)
}

pub(crate) fn tables(domain: u16, table: PhysAddr, levels: u8) -> ContextEntry {
    let translation_type = TranslationType::Untranslated;
    ContextEntry { faults_disabled: false, translation_type, table, levels, domain: DomainId(domain) }
}

pub(crate) fn iotlb(scope: IotlbScope) -> InvalidationDescriptor {
    InvalidationDescriptor::Iotlb { scope, drain_writes: true, drain_reads: true }
}

pub(crate) fn pages(domain: u16, iova: u64, mask: u8, leaf_only: bool) -> InvalidationDescriptor {
    iotlb(IotlbScope::Pages { domain: DomainId(domain), first: Iova::new(iova), mask, leaf_only })
}

pub(crate) fn domain(domain: u16) -> InvalidationDescriptor {
    iotlb(IotlbScope::Domain(DomainId(domain)))
}

pub(crate) fn global_flush() -> InvalidationDescriptor {
    iotlb(IotlbScope::Global)
}
