//! Interrupt remapping: the table, its cache, and source validation (§5.1). Nothing in the cache follows the table:
//! only the queue takes entries out.

use super::{Fault, State};
use crate::ram::Ram;
use portcullis::iommu::SourceId;
use portcullis::{Iova, PhysAddr};
use portcullis_vtd::spec::faults::{FaultReason, FaultRecord, FaultRequest};
use portcullis_vtd::spec::interrupts::{ENTRY_BYTES, Interrupt, InterruptEntry, InterruptEntryError, InterruptRequest};
use portcullis_vtd::spec::registers::interrupt_table;
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Interrupts {
    /// The table address register as written. It takes effect when the table is set.
    pub(super) written: u64,
    pub(super) table_set: bool,
    pub(super) enabled: bool,
    /// Requests in compatibility format are let through (`CFI`).
    pub(super) lets_compatibility: bool,
    /// The register in effect.
    table: u64,
    /// Present entries that were read. There is no limit: hardware of any size behaves like this if it keeps all.
    cached: BTreeMap<u32, InterruptEntry>,
}

impl Interrupts {
    /// Uses the table whose address was written.
    pub(super) fn set_table(&mut self) {
        self.table = self.written;
        self.table_set = true;
    }

    /// Drops cached entries: 2^`mask` from `first` on, or all.
    pub(super) fn invalidate(&mut self, entries: Option<(u16, u8)>) {
        match entries {
            None => self.cached.clear(),
            Some((first, mask)) => {
                let open = u32::MAX.checked_shl(mask.into()).unwrap_or(0);
                self.cached.retain(|index, _| (index ^ u32::from(first)) & open != 0);
            }
        }
    }

    fn remap(&mut self, ram: &Ram, source: SourceId, request: InterruptRequest) -> Result<Interrupt, FaultReason> {
        let index = match request {
            InterruptRequest::Compatibility(interrupt) if self.lets_compatibility && !self.is_extended() => {
                return Ok(interrupt);
            }
            InterruptRequest::Compatibility(_) => return Err(FaultReason::InterruptCompatibility),
            InterruptRequest::Remappable { is_malformed: true, .. } => return Err(FaultReason::InterruptReserved),
            InterruptRequest::Remappable { index, .. } => index,
        };
        if index >= 2 << (self.table & interrupt_table::SIZE) {
            return Err(FaultReason::InterruptIndex);
        }
        let entry = match self.cached.get(&index) {
            Some(entry) => *entry,
            None => {
                let entry = self.read(ram, index)?;
                self.cached.insert(index, entry);
                entry
            }
        };
        match entry.validation.admits(source) {
            true => Ok(entry.interrupt),
            false => Err(FaultReason::InterruptSource),
        }
    }

    fn is_extended(&self) -> bool {
        self.table & interrupt_table::EXTENDED != 0
    }

    fn read(&self, ram: &Ram, index: u32) -> Result<InterruptEntry, FaultReason> {
        let at = (self.table & interrupt_table::ADDRESS) + ENTRY_BYTES * u64::from(index);
        let word = |at| ram.hardware_read_u64(PhysAddr::new(at)).ok_or(FaultReason::InterruptTableAccess);
        InterruptEntry::decode([word(at)?, word(at + 8)?]).map_err(|error| match error {
            InterruptEntryError::NotPresent => FaultReason::InterruptNotPresent,
            InterruptEntryError::Reserved => FaultReason::InterruptEntryReserved,
        })
    }
}

impl State {
    pub(super) fn interrupt(&mut self, source: SourceId, address: u64, data: u32) -> Result<Interrupt, Fault> {
        let request = InterruptRequest::decode(address, data);
        let remapped = match request {
            // A write to anywhere else is no interrupt.
            None => Err(FaultReason::InterruptRange),
            Some(InterruptRequest::Compatibility(interrupt)) if !self.interrupts.enabled => return Ok(interrupt),
            // Without remapping, the format is not known, and the request is read as the other one.
            Some(_) if !self.interrupts.enabled => Err(FaultReason::InterruptReserved),
            Some(request) => self.interrupts.remap(&self.ram, source, request),
        };
        remapped.map_err(|reason| {
            let index = match request {
                Some(InterruptRequest::Remappable { index, .. }) => u64::from(index),
                _ => 0,
            };
            self.counters.faults += 1;
            let page = Iova::new(index << 48);
            self.faults.record(FaultRecord { source, page, request: FaultRequest::Write, reason });
            Fault { source_id: source, iova: Iova::new(address), reason }
        })
    }
}
