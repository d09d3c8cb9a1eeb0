//! Rings in memory: descriptors, which a driver writes, and completions, which the card writes.

use super::moderation::Announcer;
use super::{Frame, Moderation};
use portcullis::{Iova, PAGE_SIZE, PhysAddr};
use smallvec::SmallVec;
use std::collections::VecDeque;

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

/// An entry that the card has fetched.
pub(super) struct Entry {
    pub(super) number: u32,
    /// Its buffers, without those that have no bytes.
    pub(super) pieces: SmallVec<[Descriptor; 2]>,
}

impl Entry {
    pub(super) fn bytes(&self) -> u32 {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }
}

/// Splits a buffer at page boundaries.
pub(super) fn pages(iova: Iova, bytes: u64) -> impl Iterator<Item = (Iova, u64)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = Iova::new(iova.as_u64().wrapping_add(done));
        let len = (PAGE_SIZE - at.page_offset()).min(bytes - done);
        done += len;
        (len > 0).then_some((at, len))
    })
}

/// An entry whose buffers the card is reading.
pub(super) struct Reading {
    pub(super) entry: Entry,
    /// The pieces that were not read yet, last one first.
    pub(super) left: Vec<(Iova, u64)>,
    /// When all pieces read so far have arrived.
    pub(super) there_ps: u64,
}

/// The state of a ring in the card.
pub(super) struct Ring {
    pub(super) config: RingConfig,
    /// How many entries the driver has ever filled, as last read from the record, and how many were fetched.
    pub(super) filled: u32,
    pub(super) fetched: u32,
    /// Whether the card is reading the record, and whether the doorbell rang in the meantime.
    pub(super) reads_record: bool,
    pub(super) rung_again: bool,
    pub(super) fetches: bool,
    pub(super) ready: VecDeque<Entry>,
    pub(super) reading: Option<Reading>,
    /// Whether there is an event to continue reading buffers.
    pub(super) goes_on: bool,
    /// Frames that have arrived and have no buffer yet.
    pub(super) arrived: VecDeque<Frame>,
    /// How many completions were written.
    pub(super) completed: u32,
    pub(super) announcer: Announcer,
}

impl Ring {
    pub(super) fn new(config: RingConfig) -> Self {
        assert!((1..=PIECES_MAX).contains(&config.pieces) && config.entries > 0, "a ring of {config:?}");
        Self {
            config,
            filled: 0,
            fetched: 0,
            reads_record: false,
            rung_again: false,
            fetches: false,
            ready: VecDeque::new(),
            reading: None,
            goes_on: false,
            arrived: VecDeque::new(),
            completed: 0,
            announcer: Announcer::default(),
        }
    }

    /// The address and number of the entries to fetch next, at most `most`. They do not cross the end of a page or of
    /// the ring.
    pub(super) fn next_fetch(&self, most: u32) -> Option<(Iova, u32)> {
        let config = &self.config;
        let at = Iova::new(config.descriptors.as_u64() + config.entry_offset(self.fetched));
        let to_page_end = ((PAGE_SIZE - at.page_offset()) / config.entry_bytes()) as u32;
        let to_ring_end = config.entries - self.fetched % config.entries;
        let count = self.filled.wrapping_sub(self.fetched).min(most).min(to_page_end).min(to_ring_end);
        (count > 0).then_some((at, count))
    }

    /// Decodes entry `number` at `phys`, using `read` to read words.
    pub(super) fn entry(&self, number: u32, phys: PhysAddr, read: impl Fn(PhysAddr) -> u64) -> Entry {
        let mut pieces = SmallVec::new();
        for piece in 0..u64::from(self.config.pieces) {
            let at = phys.as_u64() + piece * DESCRIPTOR_BYTES;
            let descriptor = Descriptor::of([read(PhysAddr::new(at)), read(PhysAddr::new(at + 8))]);
            if descriptor.bytes > 0 {
                pieces.push(descriptor);
            }
        }
        Entry { number, pieces }
    }
}
