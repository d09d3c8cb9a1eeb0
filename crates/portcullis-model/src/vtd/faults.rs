//! The fault recording registers.

use portcullis_vtd::spec::faults::{FaultRecord, status};

/// Faults that software has not yet cleared (§7.2.1). Once a fault was lost, none is recorded until software clears
/// the overflow.
pub(super) struct FaultLog {
    records: Box<[[u64; 2]]>,
    next: usize,
    overflow: bool,
    /// The record that was filled first while no fault was pending.
    first: u8,
}

impl FaultLog {
    pub(super) fn new(records: usize) -> Self {
        Self { records: vec![[0; 2]; records].into(), next: 0, overflow: false, first: 0 }
    }

    /// Records a fault. A fault of a device that already has a pending fault is merged into that one, as the
    /// specification allows, so that a faulting device cannot crowd out the others.
    pub(super) fn record(&mut self, record: FaultRecord) {
        let mut pending = self.records.iter().filter_map(|&raw| FaultRecord::decode(raw)).peekable();
        let none_pending = pending.peek().is_none();
        if self.overflow || pending.any(|other| other.source == record.source) {
            return;
        }
        if FaultRecord::decode(self.records[self.next]).is_some() {
            self.overflow = true;
            return;
        }
        if none_pending {
            self.first = self.next as u8;
        }
        self.records[self.next] = record.encode();
        self.next = (self.next + 1) % self.records.len();
    }

    /// The bits of the fault status register that concern the records.
    pub(super) fn status(&self) -> u32 {
        let pending = self.records.iter().any(|&raw| FaultRecord::decode(raw).is_some());
        let bits = if self.overflow { status::OVERFLOW } else { 0 } | if pending { status::PENDING } else { 0 };
        status::with_first_record(bits, self.first)
    }

    pub(super) fn clear_overflow(&mut self) {
        self.overflow = false;
    }

    /// The 32-bit word at `offset` bytes from the first record.
    pub(super) fn read(&self, offset: u32) -> u32 {
        let Some(record) = self.records.get(offset as usize / 16) else { return 0 };
        (record[offset as usize / 8 % 2] >> (offset % 8 * 8)) as u32
    }

    /// Writes the word at `offset` bytes from the first record. A one in `F` clears that bit; all other bits are
    /// read-only.
    pub(super) fn write(&mut self, offset: u32, value: u32) {
        if let Some(record) = self.records.get_mut(offset as usize / 16)
            && offset % 16 == 12
            && value & FaultRecord::FAULT_UPPER != 0
        {
            record[1] &= !FaultRecord::FAULT;
        }
    }
}
