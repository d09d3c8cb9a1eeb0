//! Interrupt requests and the table that remaps them (§5.1, §9.9). Another driver writes that table: see
//! [`Interrupts::Foreign`](crate::Interrupts::Foreign).

use portcullis::iommu::SourceId;

/// Bytes of an entry of the table.
pub const ENTRY_BYTES: u64 = 16;

/// A write of a device to the interrupt range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InterruptRequest {
    /// In compatibility format: what arrives is in the request.
    ///
    /// ```text
    ///  address: 31  20 19         12 11  5 4 3    0     data: 31   8 7      0
    ///          +------+-------------+-----+-+------+         +------+--------+
    ///          | FEEh | destination | ... |0| ...  |         | ...  | vector |
    ///          +------+-------------+-----+-+------+         +------+--------+
    /// ```
    Compatibility(Interrupt),
    /// In remappable format: it names an entry of the table.
    ///
    /// ```text
    ///  address: 31  20 19         5 4  3     2      1 0     data: 31  16 15       0
    ///          +------+------------+-+---+----------+--+         +------+----------+
    ///          | FEEh |handle 14:0 |1|SHV|handle 15 |  |         | rsvd |subhandle |
    ///          +------+------------+-+---+----------+--+         +------+----------+
    /// ```
    Remappable {
        /// The index of the entry: the handle, and the subhandle if that is valid (`SHV`).
        index: u32,
        /// Reserved bits are set.
        is_malformed: bool,
    },
}

/// What arrives at a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interrupt {
    /// The vector.
    pub vector: u8,
    /// The local APIC, as the table or the request names it.
    pub destination: u32,
}

impl InterruptRequest {
    /// Decodes a write of `data` to `address`. `None` if that is not in the interrupt range.
    pub const fn decode(address: u64, data: u32) -> Option<Self> {
        if address >> 20 != 0xfee {
            return None;
        }
        if address & 1 << 4 == 0 {
            let destination = (address >> 12 & 0xff) as u32;
            return Some(Self::Compatibility(Interrupt { vector: data as u8, destination }));
        }
        let handle = (address >> 5 & 0x7fff | (address >> 2 & 1) << 15) as u32;
        Some(match address & 1 << 3 == 0 {
            true => Self::Remappable { index: handle, is_malformed: false },
            false => Self::Remappable { index: handle + (data & 0xffff), is_malformed: data >> 16 != 0 },
        })
    }

    /// The address and the data of the request for entry `index` in remappable format, without a subhandle.
    pub const fn remappable(index: u16) -> (u64, u32) {
        let index = index as u64;
        (0xfee0_0000 | (index & 0x7fff) << 5 | 1 << 4 | (index >> 15) << 2, 0)
    }
}

/// Which devices may use an entry: `SVT`, `SQ` and `SID`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Validation {
    /// All.
    None,
    /// One, or some of its functions.
    Source {
        /// The device.
        source: SourceId,
        /// `SQ`: how many of the higher function bits are ignored, 0 to 3.
        ignored: u8,
    },
    /// Those on some buses.
    Buses {
        /// The first bus.
        first: u8,
        /// The last bus.
        last: u8,
    },
}

impl Validation {
    /// Whether a request of `device` passes.
    pub const fn admits(self, device: SourceId) -> bool {
        let requester = device.requester();
        match self {
            Self::None => true,
            Self::Source { source, ignored } => {
                let mask = match ignored {
                    0 => !0,
                    1 => !0b100,
                    2 => !0b110,
                    _ => !0b111,
                };
                requester & mask == source.requester() & mask
            }
            Self::Buses { first, last } => {
                let bus = (requester >> 8) as u8;
                first <= bus && bus <= last
            }
        }
    }
}

/// A present entry in the format for remapped interrupts (§9.9). An absent one has bit 0 clear.
///
/// ```text
///  127   84 83 82 81 80 79 64 | 63         32 31 24 23    16 15 14 12 11   8 7   5 4  3  2   1  0
/// +--------+-----+-----+-----+|+-------------+-----+--------+--+-----+------+-----+--+--+--+---+-+
/// | rsvd   | SVT | SQ  | SID ||| destination |rsvd | vector |IM|rsvd |avail | DLM |TM|RH|DM|FPD|P|
/// +--------+-----+-----+-----+|+-------------+-----+--------+--+-----+------+-----+--+--+--+---+-+
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InterruptEntry {
    /// What arrives.
    pub interrupt: Interrupt,
    /// Who may request it.
    pub validation: Validation,
}

/// What is wrong with an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InterruptEntryError {
    /// It is not present.
    NotPresent,
    /// Reserved bits or values are set, or it is of a posted interrupt, which is not supported.
    Reserved,
}

impl InterruptEntry {
    const PRESENT: u64 = 1 << 0;
    const RESERVED_LOW: u64 = 0xff00_f000;
    const VALIDATION_SHIFT: u32 = 18;
    const QUALIFIER_SHIFT: u32 = 16;

    /// The two quadwords, low first.
    pub const fn encode(self) -> [u64; 2] {
        let Interrupt { vector, destination } = self.interrupt;
        let high = match self.validation {
            Validation::None => 0,
            Validation::Source { source, ignored } => {
                1 << Self::VALIDATION_SHIFT | (ignored as u64 & 3) << Self::QUALIFIER_SHIFT | source.requester() as u64
            }
            Validation::Buses { first, last } => 2 << Self::VALIDATION_SHIFT | (first as u64) << 8 | last as u64,
        };
        [(destination as u64) << 32 | (vector as u64) << 16 | Self::PRESENT, high]
    }

    /// Decodes two quadwords.
    ///
    /// # Errors
    /// [`InterruptEntryError`].
    pub const fn decode([low, high]: [u64; 2]) -> Result<Self, InterruptEntryError> {
        if low & Self::PRESENT == 0 {
            return Err(InterruptEntryError::NotPresent);
        }
        if low & Self::RESERVED_LOW != 0 || high >> (Self::VALIDATION_SHIFT + 2) != 0 {
            return Err(InterruptEntryError::Reserved);
        }
        let validation = match high >> Self::VALIDATION_SHIFT {
            0 => Validation::None,
            1 => {
                let ignored = (high >> Self::QUALIFIER_SHIFT & 3) as u8;
                Validation::Source { source: SourceId::from_requester(high as u16), ignored }
            }
            2 => Validation::Buses { first: (high >> 8) as u8, last: high as u8 },
            _ => return Err(InterruptEntryError::Reserved),
        };
        let interrupt = Interrupt { vector: (low >> 16) as u8, destination: (low >> 32) as u32 };
        Ok(Self { interrupt, validation })
    }
}
