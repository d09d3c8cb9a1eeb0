//! Recorded faults: requests of devices that were refused.

use crate::spec::faults::{FaultRecord, status};
use crate::spec::registers::FSTS;
use crate::{Mmio, RegisterError, Unit};
use portcullis::Platform;
use portcullis::platform::Lock;

impl<M: Mmio, P: Platform> Unit<M, P> {
    /// Passes the recorded faults to `out`, oldest first, and frees their registers. Returns whether other faults
    /// were lost because no register was free.
    ///
    /// One call takes at most as many faults as there are registers, however fast a device produces more (S12).
    ///
    /// # Errors
    /// [`RegisterError::Gone`]: the registers read all ones, which is no fault of a device.
    pub fn faults(&self, out: &mut impl FnMut(FaultRecord)) -> Result<bool, RegisterError> {
        let found = self.hardware.read_present(FSTS)?;
        self.keep_fault_event_masked();
        if found & status::PENDING != 0 {
            let registers = self.capability.fault_records();
            let oldest = u32::from(status::first_record(found));
            for step in 0..registers {
                match self.take((oldest + step) % registers)? {
                    Some(record) => out(record),
                    // The registers fill in order, so a free one ends the list.
                    None => break,
                }
            }
        }
        // Cleared last, because hardware records nothing while it is set. Cleared earlier, it could be set again at
        // once while no register is free.
        let overflow = found & status::OVERFLOW != 0;
        if overflow {
            self.hardware.write32(FSTS, status::OVERFLOW);
        }
        Ok(overflow)
    }

    /// Reads a recording register and frees it.
    fn take(&self, index: u32) -> Result<Option<FaultRecord>, RegisterError> {
        let offset = self.capability.fault_record_offset(index);
        self.fault_records.with(|()| {
            // The half with `F` is read first: once `F` is set, hardware changes neither half.
            let high = self.hardware.read64(offset + 8);
            if high & FaultRecord::FAULT == 0 {
                return Ok(None);
            }
            // Reserved bits of a record read zero.
            if high == u64::MAX {
                return Err(RegisterError::Gone { offset: offset + 8 });
            }
            let record = FaultRecord::decode([self.hardware.read64(offset), high])
                .map(|record| FaultRecord { source: record.source.in_segment(self.segment), ..record });
            self.hardware.write32(offset + 12, FaultRecord::FAULT_UPPER);
            Ok(record)
        })
    }
}
