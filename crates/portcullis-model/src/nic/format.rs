//! What a driver and the card agree on: rings, and the words of descriptors and completions in memory.

use super::Moderation;
use portcullis::Iova;

/// Bytes of a descriptor: one buffer of an entry.
pub const DESCRIPTOR_BYTES: u64 = 16;
/// Bytes of a completion.
pub const COMPLETION_BYTES: u64 = 16;
/// Buffers that an entry may have: the headers, and as many pages as 64 KiB of payload touch.
pub const PIECES_MAX: u32 = 18;

/// The direction of the frames of a ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From memory to the link.
    Transmit,
    /// From the link to memory.
    Receive,
}

/// A ring, as a driver describes it to the card. Its memory must stay mapped while the card uses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingConfig {
    /// The direction.
    pub direction: Direction,
    /// The number of entries.
    pub entries: u32,
    /// The number of buffers of an entry, at most [`PIECES_MAX`].
    pub pieces: u32,
    /// The address of the entries. Each has `pieces` descriptors.
    pub descriptors: Iova,
    /// The address of the completions. There are as many as entries.
    pub completions: Iova,
    /// The address of the doorbell record, a word that counts the entries that the driver has ever filled.
    pub record: Iova,
    /// How its completions are announced.
    pub moderation: Moderation,
    /// The vector of its interrupts.
    pub vector: u8,
}

/// Bytes of an entry with so many buffers.
pub fn entry_bytes(pieces: u32) -> u64 {
    (u64::from(pieces) * DESCRIPTOR_BYTES).next_power_of_two()
}

impl RingConfig {
    /// Bytes of an entry: a power of two, so that no entry crosses the end of a page.
    pub fn entry_bytes(&self) -> u64 {
        entry_bytes(self.pieces)
    }

    /// The offset of entry `number`, counted from the first entry ever filled.
    pub fn entry_offset(&self, number: u32) -> u64 {
        u64::from(number % self.entries) * self.entry_bytes()
    }

    /// The offset of completion `number`, counted from the first ever.
    pub fn completion_offset(&self, number: u32) -> u64 {
        u64::from(number % self.entries) * COMPLETION_BYTES
    }
}

/// A buffer of an entry. If it has no bytes, the entry has no such buffer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Descriptor {
    /// Its address.
    pub iova: Iova,
    /// Its length in bytes, less than 2^31.
    pub bytes: u32,
    /// Whether the bytes are in the descriptor itself. Then there is no buffer, and the card reads none.
    pub is_inline: bool,
    /// The meaning of the frame, in place of its headers, because frames have no bytes here. Only the cookie of the
    /// first buffer is used.
    pub cookie: u32,
}

/// The bit of a descriptor that says that its bytes are inline.
const INLINE: u64 = 1 << 31;

impl Descriptor {
    /// Encodes it for memory.
    pub fn words(&self) -> [u64; 2] {
        let inline = if self.is_inline { INLINE } else { 0 };
        [self.iova.as_u64(), u64::from(self.bytes) & (INLINE - 1) | inline | u64::from(self.cookie) << 32]
    }

    /// Decodes it from memory.
    pub fn of(words: [u64; 2]) -> Self {
        Self {
            iova: Iova::new(words[0]),
            bytes: (words[1] & (INLINE - 1)) as u32,
            is_inline: words[1] & INLINE != 0,
            cookie: (words[1] >> 32) as u32,
        }
    }
}

/// The completion of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Completion {
    /// The number of the entry, counted from the first entry ever filled.
    pub entry: u32,
    /// The length of the frame in bytes.
    pub bytes: u32,
    /// The meaning of the frame.
    pub cookie: u32,
    /// The number of the completion, counted from one. It tells a completion from zeroed memory, and from one of an
    /// earlier round.
    pub serial: u32,
}

impl Completion {
    /// Encodes it for memory.
    pub fn words(&self) -> [u64; 2] {
        [u64::from(self.entry) | u64::from(self.bytes) << 32, u64::from(self.cookie) | u64::from(self.serial) << 32]
    }

    /// Decodes it from memory.
    pub fn of(words: [u64; 2]) -> Self {
        Self {
            entry: words[0] as u32,
            bytes: (words[0] >> 32) as u32,
            cookie: words[1] as u32,
            serial: (words[1] >> 32) as u32,
        }
    }
}
