//! Faults: the status register, the recording registers and the fault reasons (§7, §10.4.9, §10.4.14).

use portcullis::iommu::SourceId;
use portcullis::{Iova, PAGE_SIZE};

/// Bits of the fault status register (§10.4.9). `PFO`, `IQE`, `ICE` and `ITE` are cleared by writing one.
///
/// ```text
///  31  16 15 8  7   6   5   4   3   2   1   0
/// +------+-----+---+---+---+---+---+---+---+---+
/// | rsvd | FRI |rsv|ITE|ICE|IQE|APF|AFO|PPF|PFO|
/// +------+-----+---+---+---+---+---+---+---+---+
/// ```
pub mod status {
    /// A fault found no free recording register and was lost.
    pub const OVERFLOW: u32 = 1 << 0;
    /// At least one recording register holds a fault. Read-only: follows their `F` bits.
    pub const PENDING: u32 = 1 << 1;
    /// The queue stopped at a descriptor that hardware refuses.
    pub const QUEUE_ERROR: u32 = 1 << 4;
    /// A device answered an invalidation with an unexpected completion.
    pub const COMPLETION_ERROR: u32 = 1 << 5;
    /// A device did not answer an invalidation in time. The waits that were pending then were aborted.
    pub const TIMEOUT_ERROR: u32 = 1 << 6;
    /// All errors of the queue.
    pub const QUEUE_ERRORS: u32 = QUEUE_ERROR | COMPLETION_ERROR | TIMEOUT_ERROR;
    const RECORD_SHIFT: u32 = 8;

    /// `FRI`: the recording register that holds the oldest fault. Meaningful while [`PENDING`] is set.
    pub const fn first_record(status: u32) -> u8 {
        (status >> RECORD_SHIFT) as u8
    }

    /// Returns the status with this `FRI`.
    pub const fn with_first_record(status: u32, index: u8) -> u32 {
        status & !(0xff << RECORD_SHIFT) | (index as u32) << RECORD_SHIFT
    }
}

/// Why a request was refused (§7.1.3, table of legacy-mode fault reasons).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum FaultReason {
    /// 1: the root entry is not present.
    RootNotPresent,
    /// 2: the context entry is not present.
    ContextNotPresent,
    /// 3: the context entry uses a feature that the hardware lacks.
    ContextInvalid,
    /// 4: the address is wider than the tables or the hardware can translate.
    AddressBeyondWidth,
    /// 5: a write, or a read that writes, without the right to write.
    NoWrite,
    /// 6: a read without the right to read.
    NoRead,
    /// 7: a table of the second level could not be read.
    TableAccess,
    /// 8: the root table could not be read.
    RootAccess,
    /// 9: a context table could not be read.
    ContextAccess,
    /// 10: reserved bits are set in a root entry.
    RootReserved,
    /// 11: reserved bits are set in a context entry.
    ContextReserved,
    /// 12: reserved bits are set in a second-level entry.
    EntryReserved,
    /// 13: the context entry does not allow translated requests or translation requests.
    TranslationBlocked,
    /// 14: the translation leads into the interrupt range.
    InterruptRange,
    /// Any other code.
    Other(u8),
}

impl FaultReason {
    const NUMBERED: [Self; 14] = [
        Self::RootNotPresent,
        Self::ContextNotPresent,
        Self::ContextInvalid,
        Self::AddressBeyondWidth,
        Self::NoWrite,
        Self::NoRead,
        Self::TableAccess,
        Self::RootAccess,
        Self::ContextAccess,
        Self::RootReserved,
        Self::ContextReserved,
        Self::EntryReserved,
        Self::TranslationBlocked,
        Self::InterruptRange,
    ];

    /// The reason with this code.
    pub const fn from_code(code: u8) -> Self {
        match code {
            1..=14 => Self::NUMBERED[code as usize - 1],
            other => Self::Other(other),
        }
    }

    /// The code of the reason.
    pub const fn code(self) -> u8 {
        match self {
            Self::RootNotPresent => 1,
            Self::ContextNotPresent => 2,
            Self::ContextInvalid => 3,
            Self::AddressBeyondWidth => 4,
            Self::NoWrite => 5,
            Self::NoRead => 6,
            Self::TableAccess => 7,
            Self::RootAccess => 8,
            Self::ContextAccess => 9,
            Self::RootReserved => 10,
            Self::ContextReserved => 11,
            Self::EntryReserved => 12,
            Self::TranslationBlocked => 13,
            Self::InterruptRange => 14,
            Self::Other(code) => code,
        }
    }
}

/// The kind of the refused request: `T1` and `T2` of the record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FaultRequest {
    /// A write.
    Write,
    /// A page request.
    Page,
    /// A read.
    Read,
    /// An atomic operation.
    Atomic,
}

/// A fault recording register that holds a fault (§10.4.14). A register without a fault has `F`, bit 127, clear.
/// Writing one to `F` clears it.
///
/// ```text
///  127 126 125 124 123 104 103 96 95  93 92 91  80 79     64 | 63  12 11   0
/// +---+---+-------+-------+------+------+--+------+---------+|+------+------+
/// | F |T1 |  AT   |  PV   |  FR  |      |T2| rsvd |   SID   |||  FI  | rsvd |
/// +---+---+-------+-------+------+------+--+------+---------+|+------+------+
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultRecord {
    /// The device that made the request.
    pub source: SourceId,
    /// The page that it accessed.
    pub page: Iova,
    /// The kind of request.
    pub request: FaultRequest,
    /// Why the request was refused.
    pub reason: FaultReason,
}

impl FaultRecord {
    /// `F` in the high quadword.
    pub const FAULT: u64 = 1 << 63;
    /// `F` in the upper half of the high quadword, at offset 12 of the register.
    pub const FAULT_UPPER: u32 = 1 << 31;
    const TYPE_1: u64 = 1 << 62;
    const TYPE_2: u64 = 1 << 28;
    const REASON_SHIFT: u32 = 32;

    /// The two quadwords, low first, with `F` set.
    pub const fn encode(self) -> [u64; 2] {
        let request = match self.request {
            FaultRequest::Write => 0,
            FaultRequest::Page => Self::TYPE_2,
            FaultRequest::Read => Self::TYPE_1,
            FaultRequest::Atomic => Self::TYPE_1 | Self::TYPE_2,
        };
        let high =
            Self::FAULT | request | (self.reason.code() as u64) << Self::REASON_SHIFT | self.source.requester() as u64;
        [self.page.as_u64() & !(PAGE_SIZE - 1), high]
    }

    /// Decodes two quadwords. `None` if the register holds no fault.
    pub const fn decode([low, high]: [u64; 2]) -> Option<Self> {
        if high & Self::FAULT == 0 {
            return None;
        }
        let request = match (high & Self::TYPE_1 != 0, high & Self::TYPE_2 != 0) {
            (false, false) => FaultRequest::Write,
            (false, true) => FaultRequest::Page,
            (true, false) => FaultRequest::Read,
            (true, true) => FaultRequest::Atomic,
        };
        Some(Self {
            source: SourceId::from_requester(high as u16),
            page: Iova::new(low & !(PAGE_SIZE - 1)),
            request,
            reason: FaultReason::from_code((high >> Self::REASON_SHIFT) as u8),
        })
    }
}
