//! The state of a ring in the card.

use super::RingNumber;
use super::format::{DESCRIPTOR_BYTES, Descriptor, RingConfig};
use super::joining::{Arrived, OpenPacket};
use super::moderation::Announcer;
use portcullis::{Iova, PAGE_SIZE, PhysAddr};
use smallvec::SmallVec;
use std::collections::VecDeque;

/// The most strides of an entry: a completion has room for so many.
const STRIDES_MAX: u32 = (1 << 31) - 1;

/// An entry that the card has fetched.
pub(super) struct Entry {
    pub(super) number: u32,
    /// Its buffers, without those that have no bytes.
    pub(super) pieces: SmallVec<[Descriptor; 2]>,
    /// The strides of its buffers, and how many of them are used. There are none in a ring that is not striding.
    pub(super) strides: u32,
    pub(super) used_strides: u32,
}

impl Entry {
    pub(super) fn bytes(&self) -> u32 {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }

    /// The parts of its buffers, within pages, from byte `offset` of all buffers on. If the buffers end before
    /// `bytes`, so do the parts.
    pub(super) fn parts(&self, offset: u64, bytes: u64) -> impl Iterator<Item = (Iova, u64)> {
        let (mut skipped, mut left) = (offset, bytes);
        self.pieces.iter().flat_map(move |piece| {
            let piece_bytes = u64::from(piece.bytes);
            let skip = skipped.min(piece_bytes);
            let len = left.min(piece_bytes - skip);
            (skipped, left) = (skipped - skip, left - len);
            pages(Iova::new(piece.iova.as_u64().wrapping_add(skip)), len)
        })
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
    pub(super) arrived: VecDeque<Arrived>,
    /// Packets of joined segments that have not ended.
    pub(super) open: Vec<OpenPacket>,
    /// If its entries are pages for a ring that joins segments: that ring.
    pub(super) pages_of: Option<RingNumber>,
    /// How many completions were written.
    pub(super) completed: u32,
    pub(super) announcer: Announcer,
    /// Its event queue, as an index into those of the card.
    pub(super) events: Option<usize>,
}

impl Ring {
    pub(super) fn new(config: RingConfig, events: Option<usize>) -> Self {
        assert!(config.is_sound(), "a ring of {config:?}");
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
            open: Vec::new(),
            pages_of: None,
            completed: 0,
            announcer: Announcer::default(),
            events,
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
        let strides = self.config.format.stride_bytes.map_or(0, |stride_bytes| {
            let bytes: u64 = pieces.iter().map(|piece: &Descriptor| u64::from(piece.bytes)).sum();
            (bytes / u64::from(stride_bytes)).min(STRIDES_MAX.into()) as u32
        });
        Entry { number, pieces, strides, used_strides: 0 }
    }
}
