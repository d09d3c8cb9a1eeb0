//! The register block.

use super::State;
use portcullis::PhysAddr;
use portcullis_vtd::spec::faults::status;
use portcullis_vtd::spec::registers::{
    CAP, ECAP, FECTL, FEUADDR, FSTS, GCMD, GSTS, ICS, IECTL, IEUADDR, IQA, IQH, IQT, IRTA, RTADDR, VER, global,
};

/// Version 1.0.
const VERSION: u32 = 0x10;
/// `IWC` of the invalidation completion status.
const WAIT_COMPLETED: u32 = 1 << 0;
const RECORD_BYTES: u32 = 16;

/// Register values that software has written and the hardware only stores.
#[derive(Default)]
pub(super) struct Stored {
    /// The root table address as written. It takes effect when the root table is set.
    root: u64,
    root_set: bool,
    /// The root table in use.
    pub(super) root_table: PhysAddr,
    pub(super) translates: bool,
    /// Control, data, address and upper address of the fault event and of the invalidation event.
    events: [[u32; 4]; 2],
}

impl State {
    pub(super) fn read32(&self, offset: u32) -> u32 {
        let word = |value: u64| (value >> (offset % 8 * 8)) as u32;
        match offset & !7 {
            CAP => return word(self.parameters.capability().0),
            ECAP => return word(self.parameters.extended_capability().0),
            RTADDR => return word(self.stored.root),
            IQH => return word(self.queue.head),
            IQT => return word(self.queue.tail),
            IQA => return word(self.queue.address),
            IRTA => return word(self.interrupts.written),
            _ => {}
        }
        match offset {
            VER => VERSION,
            GSTS => self.global_status(),
            FSTS => self.faults.status() | if self.queue.error { status::QUEUE_ERROR } else { 0 },
            FECTL..=FEUADDR => self.stored.events[0][(offset - FECTL) as usize / 4],
            IECTL..=IEUADDR => self.stored.events[1][(offset - IECTL) as usize / 4],
            ICS if self.queue.wait_completed => WAIT_COMPLETED,
            _ => self.record_offset(offset).map_or(0, |offset| self.faults.read(offset)),
        }
    }

    pub(super) fn write32(&mut self, now_ps: u64, offset: u32, value: u32) {
        let replace = |old: u64| {
            let shift = offset % 8 * 8;
            old & !(u64::from(u32::MAX) << shift) | u64::from(value) << shift
        };
        match offset & !7 {
            RTADDR => return self.stored.root = replace(self.stored.root) & !0xfff,
            IQA => return self.queue.address = replace(self.queue.address),
            IRTA => return self.interrupts.written = replace(self.interrupts.written),
            _ => {}
        }
        match offset {
            GCMD => self.command(now_ps, value),
            IQT => self.set_queue_tail(now_ps, value.into()),
            FSTS => {
                if value & status::OVERFLOW != 0 {
                    self.faults.clear_overflow();
                }
                if value & status::QUEUE_ERROR != 0 && self.queue.error {
                    self.queue.error = false;
                    self.resume_queue(now_ps);
                }
            }
            ICS => self.queue.wait_completed &= value & WAIT_COMPLETED == 0,
            FECTL..=FEUADDR => self.stored.events[0][(offset - FECTL) as usize / 4] = value,
            IECTL..=IEUADDR => self.stored.events[1][(offset - IECTL) as usize / 4] = value,
            _ => {
                if let Some(offset) = self.record_offset(offset) {
                    self.faults.write(offset, value);
                }
            }
        }
    }

    fn command(&mut self, now_ps: u64, command: u32) {
        if command & global::ROOT_TABLE != 0 {
            self.stored.root_table = PhysAddr::new(self.stored.root);
            self.stored.root_set = true;
        }
        if command & global::INTERRUPT_TABLE != 0 {
            self.interrupts.set_table();
        }
        self.interrupts.enabled = command & global::INTERRUPT_REMAPPING != 0;
        self.interrupts.lets_compatibility = command & global::COMPATIBILITY_INTERRUPTS != 0;
        self.enable_queue(now_ps, command & global::QUEUED_INVALIDATION != 0 && self.parameters.queued_invalidation);
        self.stored.translates = command & global::TRANSLATION != 0;
    }

    /// Every command takes effect at once, so the status never shows a write-buffer flush under way.
    fn global_status(&self) -> u32 {
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        flag(self.stored.translates, global::TRANSLATION)
            | flag(self.stored.root_set, global::ROOT_TABLE)
            | flag(self.queue.enabled, global::QUEUED_INVALIDATION)
            | flag(self.interrupts.table_set, global::INTERRUPT_TABLE)
            | flag(self.interrupts.enabled, global::INTERRUPT_REMAPPING)
            | flag(self.interrupts.lets_compatibility, global::COMPATIBILITY_INTERRUPTS)
    }

    /// The offset from the first fault recording register, if `offset` is in one.
    fn record_offset(&self, offset: u32) -> Option<u32> {
        let from_first = offset.checked_sub(self.parameters.capability().fault_record_offset(0))?;
        (from_first < u32::from(self.parameters.fault_registers) * RECORD_BYTES).then_some(from_first)
    }
}
