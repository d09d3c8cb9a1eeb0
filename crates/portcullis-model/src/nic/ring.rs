//! Rings in memory: descriptors that a driver writes, completions that the card writes, and how many there are of either.

use super::moderation::Announcer;
use super::{Frame, Moderation};
use portcullis::{Iova, PAGE_SIZE, PhysAddr};
use std::collections::VecDeque;

/// Bytes of a descriptor: one buffer of an entry.
pub const DESCRIPTOR_BYTES: u64 = 16;
/// Bytes of a completion.
pub const COMPLETION_BYTES: u64 = 16;
/// Buffers that an entry may have.
pub const PIECES_MAX: u32 = 4;

/// Which way the frames of a ring go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From memory to the link.
    Transmit,
    /// From the link to memory.
    Receive,
}

/// A ring, as a driver describes it to the card. Its memory must be mapped for as long as the card uses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingConfig {
    /// Which way.
    pub direction: Direction,
    /// Entries.
    pub entries: u32,
    /// Buffers of an entry, at most [`PIECES_MAX`].
    pub pieces: u32,
    /// Where its entries begin: each has `pieces` descriptors.
    pub descriptors: Iova,
    /// Where its completions begin: as many as entries.
    pub completions: Iova,
    /// The doorbell record: a word, how many entries the driver has ever filled.
    pub record: Iova,
    /// How its completions are announced.
    pub moderation: Moderation,
    /// By which interrupt.
    pub vector: u8,
}

impl RingConfig {
    /// Bytes of an entry.
    pub fn entry_bytes(&self) -> u64 {
        u64::from(self.pieces) * DESCRIPTOR_BYTES
    }

    /// How far into the ring entry `number` lies, counted from the first ever.
    pub fn entry_offset(&self, number: u32) -> u64 {
        u64::from(number % self.entries) * self.entry_bytes()
    }

    /// How far into the completions number `number` lies.
    pub fn completion_offset(&self, number: u32) -> u64 {
        u64::from(number % self.entries) * COMPLETION_BYTES
    }
}

/// A buffer of an entry. One of no bytes is none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Descriptor {
    /// Where it begins.
    pub iova: Iova,
    /// Its bytes.
    pub bytes: u32,
    /// What the frame is about: it stands for the headers, for memory here has no bytes of frames. That of the first buffer counts.
    pub cookie: u32,
}

impl Descriptor {
    /// As it lies in memory.
    pub fn words(&self) -> [u64; 2] {
        [self.iova.as_u64(), u64::from(self.bytes) | u64::from(self.cookie) << 32]
    }

    /// From memory.
    pub fn of(words: [u64; 2]) -> Self {
        Self { iova: Iova::new(words[0]), bytes: words[1] as u32, cookie: (words[1] >> 32) as u32 }
    }
}

/// What has become of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Completion {
    /// The number of the entry, counted from the first ever.
    pub entry: u32,
    /// Bytes of the frame.
    pub bytes: u32,
    /// What it is about.
    pub cookie: u32,
    /// The number of the completion, from one on; so memory of zeros holds none, nor does what was there a round before.
    pub serial: u32,
}

impl Completion {
    /// As it lies in memory.
    pub fn words(&self) -> [u64; 2] {
        [u64::from(self.entry) | u64::from(self.bytes) << 32, u64::from(self.cookie) | u64::from(self.serial) << 32]
    }

    /// From memory.
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
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) number: u32,
    pub(super) pieces: [Descriptor; PIECES_MAX as usize],
}

impl Entry {
    pub(super) fn bytes(&self) -> u32 {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }
}

/// Pieces of at most a page.
pub(super) fn pages(iova: Iova, bytes: u64) -> impl Iterator<Item = (Iova, u64)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = Iova::new(iova.as_u64().wrapping_add(done));
        let len = (PAGE_SIZE - at.page_offset()).min(bytes - done);
        done += len;
        (len > 0).then_some((at, len))
    })
}

/// An entry whose buffers are being read.
pub(super) struct Reading {
    pub(super) entry: Entry,
    /// What is left to be read, from the end.
    pub(super) left: Vec<(Iova, u64)>,
    /// When all that was read is there.
    pub(super) there_ps: u64,
}

/// What the card knows of a ring.
pub(super) struct Ring {
    pub(super) config: RingConfig,
    /// Entries that the driver has filled, as the record said last, and those that were fetched.
    pub(super) filled: u32,
    pub(super) fetched: u32,
    /// Whether a read of the record is under way, and whether the doorbell has rung since.
    pub(super) reads_record: bool,
    pub(super) rung_again: bool,
    pub(super) fetches: bool,
    pub(super) ready: VecDeque<Entry>,
    pub(super) reading: Option<Reading>,
    /// Whether a time is set to go on reading buffers.
    pub(super) goes_on: bool,
    /// Frames that have arrived, and have no buffer yet.
    pub(super) arrived: VecDeque<Frame>,
    /// Completions written.
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

    /// The entries to be fetched next, at most `most`: where they begin, and how many. They end at the end of a page, or of the ring.
    pub(super) fn next_fetch(&self, most: u32) -> Option<(Iova, u32)> {
        let config = &self.config;
        let at = Iova::new(config.descriptors.as_u64() + config.entry_offset(self.fetched));
        let to_page_end = ((PAGE_SIZE - at.page_offset()) / config.entry_bytes()) as u32;
        let to_ring_end = config.entries - self.fetched % config.entries;
        let count = self.filled.wrapping_sub(self.fetched).min(most).min(to_page_end).min(to_ring_end);
        (count > 0).then_some((at, count))
    }

    /// Entry `number`, whose descriptors `read` yields by word from `phys` on.
    pub(super) fn entry(&self, number: u32, phys: PhysAddr, read: impl Fn(PhysAddr) -> u64) -> Entry {
        let mut pieces = [Descriptor::default(); PIECES_MAX as usize];
        for (at, piece) in
            (phys.as_u64()..).step_by(DESCRIPTOR_BYTES as usize).zip(&mut pieces[..self.config.pieces as usize])
        {
            *piece = Descriptor::of([read(PhysAddr::new(at)), read(PhysAddr::new(at + 8))]);
        }
        Entry { number, pieces }
    }
}
