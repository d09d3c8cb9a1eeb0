//! A unit driven by hand, with tables, context entries and descriptors encoded by the types of the specification.
//! These checks test the rig.

use super::dma::{self, DMA_BYTES, Faults, Seen, Target};
use super::rig::{A, MEMORY_END, Rig};
use super::{Checked, Stage, Trouble};
use portcullis::iommu::{DomainId, SourceId};
use portcullis::table::{EntryValue, Rights};
use portcullis::{Iova, PAGE_SIZE, PhysAddr};
use portcullis_vtd::spec::descriptors::{
    ContextScope, DESCRIPTOR_BYTES, InvalidationDescriptor, IotlbScope, StatusWrite,
};
use portcullis_vtd::spec::faults::{FaultRecord, status};
use portcullis_vtd::spec::registers::{CAP, Capability, FSTS, GCMD, GSTS, IQA, IQH, IQT, RTADDR, global};
use portcullis_vtd::spec::tables::{ContextEntry, RootEntry, TranslationType, context_index};
use std::cell::Cell;

/// An address that 3-level and 4-level tables can translate: page 0x40 of a 1 GiB range.
pub(super) const IOVA: u64 = GIB + 0x4_0000;
/// The first address of that range.
pub(super) const GIB: u64 = 0x30_8000_0000;
/// The first address of another 2 MiB range in that 1 GiB range.
pub(super) const MIB2: u64 = GIB + 0x0800_0000;
/// An address that only 4-level tables can translate.
pub(super) const HIGH: u64 = 0x7f12_0004_0000;
/// Memory that devices write and read: more than 2 MiB, aligned to 2 MiB.
pub(super) const PHYS: u64 = 0x0800_0000;
/// Where devices write what they have read. IOVA and physical address are equal.
pub(super) const WINDOW: u64 = MEMORY_END - PAGE_SIZE;
/// The number of polls before a register counts as stuck.
const LOOKS_MAX: u32 = 100_000;

/// The second-level table of a domain.
#[derive(Clone, Copy)]
pub(super) struct Table {
    pub(super) root: PhysAddr,
    pub(super) levels: u8,
    pub(super) id: u16,
}

/// A unit that translates.
pub(super) struct Raw<'s> {
    pub(super) rig: &'s dyn Rig,
    pub(super) root: PhysAddr,
    pub(super) contexts: PhysAddr,
    pub(super) queue: PhysAddr,
    pub(super) statuses: PhysAddr,
    pub(super) slots: u64,
    pub(super) tail: Cell<u64>,
    serial: Cell<u32>,
}

impl Stage {
    /// A unit with no device attached, driven by hand.
    pub(super) fn raw(&self) -> Result<Raw<'_>, Trouble> {
        let raw = self.raw_halted()?;
        raw.command(global::TRANSLATION, true)?;
        Ok(raw)
    }

    /// Like [`raw`](Self::raw), but with translation off.
    pub(super) fn raw_halted(&self) -> Result<Raw<'_>, Trouble> {
        let rig = &*self.rig;
        let [root, contexts, queue, statuses] = [rig.allocate()?, rig.allocate()?, rig.allocate()?, rig.allocate()?];
        let (tail, serial) = (Cell::new(0), Cell::new(0));
        let raw = Raw { rig, root, contexts, queue, statuses, slots: PAGE_SIZE / DESCRIPTOR_BYTES, tail, serial };
        raw.poke128(root, 0, RootEntry { context_table: contexts }.encode());
        rig.poke64(RTADDR, root.as_u64());
        raw.command(global::ROOT_TABLE, true)?;
        rig.poke64(IQT, 0);
        rig.poke64(IQA, queue.as_u64());
        raw.command(global::QUEUED_INVALIDATION, true)?;
        Ok(raw)
    }
}

impl Raw<'_> {
    /// Sets or clears a command bit, and waits for its status.
    pub(super) fn command(&self, bit: u32, on: bool) -> Checked {
        let others = self.rig.read32(GSTS) & !global::ONE_SHOT & !bit;
        self.rig.poke32(GCMD, others | if on { bit } else { 0 });
        self.until("the global status", || (self.rig.read32(GSTS) & bit != 0) == on)
    }

    /// Waits for an action that the unit performs on its own.
    pub(super) fn until(&self, what: &str, mut done: impl FnMut() -> bool) -> Checked {
        for _ in 0..LOOKS_MAX {
            if done() {
                return Ok(());
            }
            self.rig.pause();
        }
        Err(Trouble::Mismatch(format!("{what} does not come")))
    }

    /// Writes a word of a table and makes it visible.
    pub(super) fn poke(&self, at: PhysAddr, bits: u64) {
        let entry = self.hide(at, bits);
        self.rig.flush(core::slice::from_ref(entry));
    }

    /// Writes a word of a table and leaves it in the CPU's cache.
    pub(super) fn hide(&self, at: PhysAddr, bits: u64) -> &portcullis::table::Entry {
        let entry = &self.rig.frame(PhysAddr::from_pfn(at.pfn()))[at.page_offset() as usize / 8];
        entry.store_bits(bits);
        entry
    }

    /// Writes an entry of two words.
    pub(super) fn poke128(&self, table: PhysAddr, index: usize, [low, high]: [u64; 2]) {
        let at = |word: u64| PhysAddr::new(table.as_u64() + 16 * index as u64 + 8 * word);
        self.poke(at(1), high);
        self.poke(at(0), low);
    }

    /// Writes the context entry of a device. Cached contexts stay.
    pub(super) fn context(&self, device: SourceId, entry: [u64; 2]) {
        self.poke128(self.contexts, context_index(device), entry);
    }

    /// A table that is empty except for the window.
    pub(super) fn table(&self, id: u16, levels: u8) -> Result<Table, Trouble> {
        let table = Table { root: self.rig.allocate()?, levels, id };
        self.map(table, WINDOW, WINDOW, Rights::READ_WRITE)?;
        Ok(table)
    }

    /// Puts a device that was in no domain into one.
    pub(super) fn attach(&self, device: SourceId, table: Table) {
        self.context(device, through(table).encode());
    }

    /// A table with device [`A`] behind it, and a 4 KiB page mapped from [`IOVA`] to [`PHYS`].
    pub(super) fn one_page(&self) -> Result<Table, Trouble> {
        let table = self.table(1, 4)?;
        self.attach(A, table);
        self.map(table, IOVA, PHYS, Rights::READ_WRITE)?;
        Ok(table)
    }

    /// The address of the entry for `iova` in the table at `level`. Missing tables on the path are allocated.
    pub(super) fn entry(&self, table: Table, iova: u64, level: u8) -> Result<PhysAddr, Trouble> {
        let mut page = table.root;
        for at in (level..=table.levels).rev() {
            let slot = (iova >> (12 + 9 * (at - 1))) & 511;
            let entry = PhysAddr::new(page.as_u64() + 8 * slot);
            if at == level {
                return Ok(entry);
            }
            let value = self.rig.frame(page)[slot as usize].load();
            page = if value.is_present() {
                value.phys()
            } else {
                let below = self.rig.allocate()?;
                self.poke(entry, EntryValue::table(below).bits());
                below
            };
        }
        Err(Trouble::Broken(format!("a table of {} levels has no level {level}", table.levels)))
    }

    /// Maps a 4 KiB page.
    pub(super) fn map(&self, table: Table, iova: u64, phys: u64, rights: Rights) -> Checked {
        self.map_at(table, iova, phys, rights, 1)
    }

    /// Writes a leaf at `level`.
    pub(super) fn map_at(&self, table: Table, iova: u64, phys: u64, rights: Rights, level: u8) -> Checked {
        let entry = self.entry(table, iova, level)?;
        self.poke(entry, EntryValue::leaf(PhysAddr::new(phys), rights, level > 1).bits());
        Ok(())
    }

    /// Clears the entry at `level`.
    pub(super) fn clear(&self, table: Table, iova: u64, level: u8) -> Checked {
        let entry = self.entry(table, iova, level)?;
        self.poke(entry, 0);
        Ok(())
    }

    /// Writes two words into the queue without handing them over.
    pub(super) fn push(&self, [low, high]: [u64; 2]) {
        let at = PhysAddr::new(self.queue.as_u64() + DESCRIPTOR_BYTES * self.tail.get());
        self.hide(PhysAddr::new(at.as_u64() + 8), high);
        self.hide(at, low);
        self.tail.set((self.tail.get() + 1) % self.slots);
    }

    /// Hands over the descriptors that were written into the queue.
    pub(super) fn ring(&self) {
        self.rig.poke64(IQT, self.tail.get() * DESCRIPTOR_BYTES);
    }

    /// The slot of the descriptor at which the unit is.
    pub(super) fn head(&self) -> u64 {
        self.rig.read64(IQH) / DESCRIPTOR_BYTES
    }

    /// Executes descriptors and waits until all are done.
    pub(super) fn run(&self, descriptors: &[InvalidationDescriptor]) -> Checked {
        descriptors.iter().for_each(|descriptor| self.push(descriptor.encode()));
        self.ring();
        self.until("the end of the queue", || self.head() == self.tail.get())?;
        self.expect_no_queue_error()
    }

    /// Checks that the queue has no error.
    pub(super) fn expect_no_queue_error(&self) -> Checked {
        match self.rig.read32(FSTS) & status::QUEUE_ERRORS {
            0 => Ok(()),
            errors => Err(Trouble::Mismatch(format!("the queue stopped: {errors:#x} in the fault status"))),
        }
    }

    /// A wait that writes a new number to the word `index` of the statuses, and that number.
    pub(super) fn wait(&self, index: u64) -> (InvalidationDescriptor, u32) {
        self.serial.set(self.serial.get() + 1);
        let data = 0xa000_0000 | self.serial.get();
        let status = Some(StatusWrite { address: PhysAddr::new(self.statuses.as_u64() + 4 * index), data });
        (InvalidationDescriptor::Wait { status, interrupt: false, fence: false, drain_page_requests: false }, data)
    }

    /// The word `index` of the statuses.
    pub(super) fn status(&self, index: u64) -> u32 {
        let word = self.rig.frame(self.statuses)[index as usize / 2].load_bits();
        (word >> (index % 2 * 32)) as u32
    }

    /// Reads and frees the fault registers.
    pub(super) fn faults(&self) -> Faults {
        let found = self.rig.read32(FSTS);
        let mut faults = Faults { records: Vec::new(), lost: found & status::OVERFLOW != 0 };
        if found & status::PENDING != 0 {
            let capability = Capability(self.rig.read64(CAP));
            let registers = capability.fault_records();
            let first = u32::from(status::first_record(found));
            for step in 0..registers {
                let at = capability.fault_record_offset((first + step) % registers);
                let words = [self.rig.read64(at), self.rig.read64(at + 8)];
                let Some(record) = FaultRecord::decode(words) else { break };
                faults.records.push(record);
                self.rig.poke32(at + 12, FaultRecord::FAULT_UPPER);
            }
        }
        if faults.lost {
            self.rig.poke32(FSTS, status::OVERFLOW);
        }
        faults
    }

    /// Makes a device write at `iova`, which should lead to `phys`.
    pub(super) fn write(&self, device: SourceId, iova: u64, phys: u64) -> Result<Seen, Trouble> {
        self.write_len(device, iova, phys, DMA_BYTES)
    }

    /// Makes a device write `len` bytes at `iova`, which should lead to `phys`.
    pub(super) fn write_len(&self, device: SourceId, iova: u64, phys: u64, len: usize) -> Result<Seen, Trouble> {
        let to = Target { device, iova: Iova::new(iova), phys: PhysAddr::new(phys), len };
        dma::write(self.rig, to, &mut || self.faults())
    }

    /// Makes a device read at `iova`, which should lead to `phys`.
    pub(super) fn read(&self, device: SourceId, iova: u64, phys: u64) -> Result<Seen, Trouble> {
        let from = Target { device, iova: Iova::new(iova), phys: PhysAddr::new(phys), len: DMA_BYTES };
        dma::read(self.rig, from, (Iova::new(WINDOW), PhysAddr::new(WINDOW)), &mut || self.faults())
    }

    /// Makes a device write at `iova`, wherever that leads. Its faults stay in their registers.
    pub(super) fn attempt(&self, device: SourceId, iova: u64) -> Checked {
        self.rig.device_writes(device, Iova::new(iova), 0, DMA_BYTES)
    }
}

/// A context entry that leads to a table.
pub(super) fn through(table: Table) -> ContextEntry {
    ContextEntry {
        faults_disabled: false,
        translation_type: TranslationType::Untranslated,
        table: table.root,
        levels: table.levels,
        domain: DomainId(table.id),
    }
}

/// An IOTLB invalidation of `scope`.
pub(super) fn iotlb(scope: IotlbScope) -> InvalidationDescriptor {
    InvalidationDescriptor::Iotlb { scope, drain_writes: true, drain_reads: true }
}

/// An IOTLB invalidation of 2^`mask` pages of a domain, at all levels.
pub(super) fn pages(id: u16, iova: u64, mask: u8) -> InvalidationDescriptor {
    iotlb(IotlbScope::Pages { domain: DomainId(id), first: Iova::new(iova), mask, leaf_only: false })
}

/// An IOTLB invalidation of 2^`mask` pages of a domain, leaves only.
pub(super) fn leaves(id: u16, iova: u64, mask: u8) -> InvalidationDescriptor {
    iotlb(IotlbScope::Pages { domain: DomainId(id), first: Iova::new(iova), mask, leaf_only: true })
}

/// An IOTLB invalidation of a domain.
pub(super) fn domain(id: u16) -> InvalidationDescriptor {
    iotlb(IotlbScope::Domain(DomainId(id)))
}

/// An IOTLB invalidation of everything.
pub(super) fn global_flush() -> InvalidationDescriptor {
    iotlb(IotlbScope::Global)
}

/// A context-cache invalidation of one device.
pub(super) fn device_context(id: u16, device: SourceId, function_mask: u8) -> InvalidationDescriptor {
    InvalidationDescriptor::ContextCache(ContextScope::Device { domain: DomainId(id), source: device, function_mask })
}
