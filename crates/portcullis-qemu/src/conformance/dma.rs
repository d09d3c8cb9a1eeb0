//! One DMA, and what was observed: in memory and in the fault registers.

use super::Trouble;
use super::rig::{FETCHED, Rig, pattern};
use portcullis::iommu::SourceId;
use portcullis::{Iova, PhysAddr};
use portcullis_vtd::spec::faults::{FaultReason, FaultRecord, FaultRequest};

/// The default number of bytes that a check's DMA moves.
pub const DMA_BYTES: usize = 64;
/// The contents of memory before a device writes to it. No device writes bytes with the top bit set.
const BEFORE: u8 = 0xee;

/// The contents of the fault registers after a DMA. Reading them has freed them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// The records, oldest first.
    pub records: Vec<FaultRecord>,
    /// Whether other faults were lost.
    pub lost: bool,
}

/// The outcome of a DMA.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// All bytes went through, without a fault.
    Landed,
    /// No byte went through, and this fault was recorded.
    Refused(FaultRecord),
    /// No byte went through, and no fault was recorded.
    Silent,
    /// Any other outcome.
    Odd {
        /// The number of bytes that went through.
        bytes: usize,
        /// The faults that were recorded.
        faults: Faults,
    },
}

impl Seen {
    pub(super) fn new(bytes: usize, len: usize, faults: Faults) -> Self {
        match (bytes, &faults.records[..], faults.lost) {
            (bytes, [], false) if bytes == len => Self::Landed,
            (0, [], false) => Self::Silent,
            (0, [record], false) => Self::Refused(*record),
            _ => Self::Odd { bytes, faults },
        }
    }

    /// Whether no byte went through, with or without a recorded fault.
    pub fn is_blocked(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Silent)
    }
}

/// A refused write of `source` to the page of `iova`.
pub fn write_refused(source: SourceId, iova: u64, reason: FaultReason) -> Seen {
    let page = Iova::from_pfn(Iova::new(iova).pfn());
    Seen::Refused(FaultRecord { source, page, request: FaultRequest::Write, reason })
}

/// A refused read of `source` from the page of `iova`.
pub fn read_refused(source: SourceId, iova: u64, reason: FaultReason) -> Seen {
    let page = Iova::from_pfn(Iova::new(iova).pfn());
    Seen::Refused(FaultRecord { source, page, request: FaultRequest::Read, reason })
}

/// The target of one DMA: the address that the device uses, and where its bytes should be.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) device: SourceId,
    pub(super) iova: Iova,
    pub(super) phys: PhysAddr,
    pub(super) len: usize,
}

/// Makes the device write.
pub(super) fn write(rig: &dyn Rig, to: Target, faults: &mut dyn FnMut() -> Faults) -> Result<Seen, Trouble> {
    rig.store(to.phys, &vec![BEFORE; to.len]);
    rig.device_writes(to.device, to.iova, 0, to.len)?;
    let mut landed = vec![0; to.len];
    rig.load(to.phys, &mut landed);
    let bytes = (0..to.len).filter(|index| landed[*index] == pattern(to.device, *index)).count();
    let untouched = landed.iter().filter(|byte| **byte == BEFORE).count();
    if bytes + untouched != to.len {
        return Err(Trouble::Mismatch(format!("the device has written what it does not have: {landed:02x?}")));
    }
    Ok(Seen::new(bytes, to.len, faults()))
}

/// Makes the device read. The device then writes what it has read to `window`: an IOVA to which it may write, and the
/// address to which that leads.
pub(super) fn read(
    rig: &dyn Rig,
    from: Target,
    window: (Iova, PhysAddr),
    faults: &mut dyn FnMut() -> Faults,
) -> Result<Seen, Trouble> {
    let there: Vec<u8> = (0..from.len).map(|index| 0x80 | (index * 7 + from.phys.pfn() as usize) as u8).collect();
    rig.store(from.phys, &there);
    rig.device_reads(from.device, from.iova, FETCHED, from.len)?;
    let found = faults();
    rig.store(window.1, &vec![BEFORE; from.len]);
    rig.device_writes(from.device, window.0, FETCHED, from.len)?;
    let mut shown = vec![0; from.len];
    rig.load(window.1, &mut shown);
    if shown.iter().all(|byte| *byte == BEFORE) {
        // The device cannot write to the window either. If faults were recorded for its read, it has read nothing.
        faults();
        return match &found.records[..] {
            [] => Err(Trouble::Mismatch("a device may not write where it shows what it has read".to_owned())),
            _ => Ok(Seen::new(0, from.len, found)),
        };
    }
    // Every byte in memory has its top bit set. A refused read returns zeros.
    let bytes = shown.iter().zip(&there).filter(|(shown, there)| shown == there).count();
    let zeros = shown.iter().filter(|byte| **byte == 0).count();
    if bytes + zeros != from.len {
        return Err(Trouble::Mismatch(format!("the device has read neither memory nor zeros: {shown:02x?}")));
    }
    Ok(Seen::new(bytes, from.len, found))
}
