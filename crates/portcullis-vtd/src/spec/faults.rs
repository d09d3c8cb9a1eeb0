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

/// Defines the reasons and their codes.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        /// Why a request was refused (§7.1.3, tables of fault reasons). Codes from 0x20 on are of interrupt requests,
        /// those from 0x70 on of units in scalable mode.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum FaultReason {
            $($(#[$doc])* $name,)*
            /// Any other code.
            Other(u8),
        }

        impl FaultReason {
            /// The reason with this code.
            pub const fn from_code(code: u8) -> Self {
                match code {
                    $($code => Self::$name,)*
                    other => Self::Other(other),
                }
            }

            /// The code of the reason.
            pub const fn code(self) -> u8 {
                match self {
                    $(Self::$name => $code,)*
                    Self::Other(code) => code,
                }
            }
        }
    };
}

reasons! {
    /// 1: the root entry is not present.
    RootNotPresent = 1;
    /// 2: the context entry is not present.
    ContextNotPresent = 2;
    /// 3: the context entry uses a feature that the hardware lacks.
    ContextInvalid = 3;
    /// 4: the address is wider than the tables or the hardware can translate.
    AddressBeyondWidth = 4;
    /// 5: a write, or a read that writes, without the right to write.
    NoWrite = 5;
    /// 6: a read without the right to read.
    NoRead = 6;
    /// 7: a table of the second level could not be read.
    TableAccess = 7;
    /// 8: the root table could not be read.
    RootAccess = 8;
    /// 9: a context table could not be read.
    ContextAccess = 9;
    /// 10: reserved bits are set in a root entry.
    RootReserved = 10;
    /// 11: reserved bits are set in a context entry.
    ContextReserved = 11;
    /// 12: reserved bits are set in a second-level entry.
    EntryReserved = 12;
    /// 13: the context entry does not allow translated requests or translation requests.
    TranslationBlocked = 13;
    /// 14: the translation leads into the interrupt range.
    InterruptRange = 14;
    /// 0x20: reserved bits are set in a remappable interrupt request.
    InterruptReserved = 0x20;
    /// 0x21: the index of an interrupt request lies beyond the interrupt table.
    InterruptIndex = 0x21;
    /// 0x22: the interrupt entry is not present.
    InterruptNotPresent = 0x22;
    /// 0x23: the interrupt table could not be read.
    InterruptTableAccess = 0x23;
    /// 0x24: reserved bits are set in an interrupt entry.
    InterruptEntryReserved = 0x24;
    /// 0x25: an interrupt request in compatibility format, while these are blocked.
    InterruptCompatibility = 0x25;
    /// 0x26: the interrupt entry is not that of the device which made the request.
    InterruptSource = 0x26;
    /// 0x27: the descriptor of a posted interrupt could not be read.
    InterruptPosting = 0x27;
    /// 0x70: a table of the first level could not be read.
    FirstLevelAccess = 0x70;
    /// 0x71: a first-level entry is not present.
    FirstLevelNotPresent = 0x71;
    /// 0x72: reserved bits are set in a first-level entry.
    FirstLevelReserved = 0x72;
    /// 0x73: the first table of the first level could not be read.
    FirstLevelRootAccess = 0x73;
    /// 0x74: a first-level entry leads beyond the width of the second level.
    FirstLevelBeyondWidth = 0x74;
    /// 0x75: the second level does not allow to read the first table of the first level.
    FirstLevelRootNoRead = 0x75;
    /// 0x76: the second level does not allow to read a table of the first level.
    FirstLevelNoRead = 0x76;
    /// 0x77: the second level does not allow to write a table of the first level.
    FirstLevelNoWrite = 0x77;
    /// 0x78: a table of the second level could not be read.
    SecondLevelAccess = 0x78;
    /// 0x79: a second-level entry does not allow the access.
    SecondLevelNoAccess = 0x79;
    /// 0x7a: reserved bits are set in a second-level entry.
    SecondLevelReserved = 0x7a;
    /// 0x7b: the address of the first table of the second level is invalid.
    SecondLevelRoot = 0x7b;
    /// 0x7c: an accessed or dirty bit of a second-level entry would have to be set without snooping.
    SecondLevelNoSnoop = 0x7c;
    /// 0x80: the address is not canonical.
    NotCanonical = 0x80;
    /// 0x81: a user request for a page of the supervisor.
    Supervisor = 0x81;
    /// 0x82: a request to execute without that right.
    NoExecute = 0x82;
    /// 0x83: the address is wider than the hardware can translate.
    ScalableBeyondWidth = 0x83;
    /// 0x84: a second-level entry leads beyond the width of the host's addresses.
    SecondLevelBeyondWidth = 0x84;
    /// 0x85: a write, or an atomic operation, without the right to write.
    ScalableNoWrite = 0x85;
    /// 0x86: a read, or an atomic operation, without the right to read.
    ScalableNoRead = 0x86;
    /// 0x87: the translation leads into the interrupt range.
    ScalableInterruptRange = 0x87;
}

impl FaultReason {
    /// Whether an interrupt request was refused, and no access to memory.
    pub const fn is_of_interrupt(self) -> bool {
        matches!(self.code(), 0x20..=0x2f)
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
    /// The page that it accessed. If an interrupt request was refused, this stands for its
    /// [index](FaultRecord::interrupt_index).
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
    const INTERRUPT_SHIFT: u32 = 48;

    /// The index of the interrupt entry, if an interrupt request was refused. It means nothing for a request in
    /// compatibility format, which has none.
    pub const fn interrupt_index(self) -> Option<u16> {
        match self.reason.is_of_interrupt() {
            true => Some((self.page.as_u64() >> Self::INTERRUPT_SHIFT) as u16),
            false => None,
        }
    }

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
