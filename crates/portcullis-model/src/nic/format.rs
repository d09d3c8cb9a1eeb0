//! What a driver and the card agree on: rings, and the words of descriptors, completions and events in memory.

use super::{Frame, Moderation, RingNumber};
use portcullis::{Iova, PAGE_SIZE};

/// Bytes of a descriptor: one buffer of an entry.
pub const DESCRIPTOR_BYTES: u64 = 16;
/// Bytes of a completion at least: the words that those of every ring have.
pub const COMPLETION_BYTES: u64 = 16;
/// Bytes of a completion of a striding ring at least. It has one more word, and sizes are powers of two.
pub const STRIDING_COMPLETION_BYTES: u64 = 32;
/// Bytes of a completion of a ring that joins segments at least. It has four more words, and sizes are powers of two.
pub const JOINING_COMPLETION_BYTES: u64 = 64;
/// The pages that a packet of joined segments may have: a completion has room for so many.
pub const JOINED_PAGES_MAX: usize = 8;
/// Bytes of an event.
pub const EVENT_BYTES: u64 = 64;
/// Buffers that an entry may have: the headers, and as many pages as 64 KiB of payload touch.
pub const PIECES_MAX: u32 = 18;
/// Buffers that an entry of a striding ring may have.
pub const STRIDING_PIECES_MAX: u32 = 64;

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
    /// The number of buffers of an entry, at most [`PIECES_MAX`], or [`STRIDING_PIECES_MAX`] in a striding ring.
    pub pieces: u32,
    /// The address of the entries, aligned to the size of one. Each begins with `pieces` descriptors.
    pub descriptors: Iova,
    /// The address of the completions, aligned to the size of one. `format` says how many there are.
    pub completions: Iova,
    /// The address of the doorbell record, a word that counts the entries that the driver has ever filled.
    pub record: Iova,
    /// How its completions are announced.
    pub moderation: Moderation,
    /// The vector of its interrupts.
    pub vector: u8,
    /// How its entries and its completions are laid out and used.
    pub format: RingFormat,
    /// Where the card writes an event before each interrupt of this ring. The interrupt is raised when the event has
    /// landed. If the IOMMU refuses the event, there is no interrupt.
    pub events: Option<EventQueue>,
}

/// How the entries and the completions of a ring are laid out and used. By default they are packed, and an entry holds
/// one frame.
///
/// # Striding
///
/// The buffers of an entry of a striding ring form one run of bytes, which is cut into strides. Frames are written one
/// after another, and each begins with the next unused stride. A frame that does not fit in the strides that are left
/// begins in the next entry. For the strides that are left over, the card writes a completion of its own, a *filler*,
/// when that frame comes. Moderation counts it as a frame. A frame that is longer than a whole entry gets an entry of
/// its own and is cut off.
///
/// Each completion says how many strides it accounts for. Every stride is accounted for once, so a driver sums them up
/// for each entry. The card is done with an entry when the sum is the number of its strides. Bytes after the last whole
/// stride are not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingFormat {
    /// Bytes that an entry occupies at least, up to a page. Its descriptors may need more.
    pub least_entry_bytes: u64,
    /// Bytes that a completion occupies: a power of two from [`COMPLETION_BYTES`], or from
    /// [`STRIDING_COMPLETION_BYTES`] in a striding ring, up to a page. Its words are at its beginning. The card writes
    /// all of it; what follows the words has no meaning, and so the model leaves it as it is in memory.
    pub completion_bytes: u64,
    /// The number of completions for each entry. A striding ring needs as many as an entry has strides.
    pub completions_per_entry: u32,
    /// Bytes of a stride, if this is a striding ring. Only receive rings can be.
    pub stride_bytes: Option<u32>,
    /// Whether a frame is dropped if the card knows of no entry for it. Otherwise it waits in the receive buffer. The
    /// card knows of an entry when it has read the doorbell record, before it has fetched the entry.
    pub drops_without_buffer: bool,
    /// If the card joins segments of TCP streams that it receives. A striding ring cannot.
    pub joins: Option<Joins>,
}

/// How a card joins segments to packets.
///
/// A packet has a completion when it begins and one when it ends, so a ring needs two for each entry. Until the second
/// one, the buffer of its entry and its pages belong to the card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Joins {
    /// The ring of pages, which was opened before. It has one buffer in each entry, no completions of its own, and at
    /// most 65,536 entries.
    pub pages: RingNumber,
    /// The bytes of a page that are used.
    pub page_bytes: u32,
    /// The bytes of a packet at most, with its headers.
    pub bytes_max: u32,
    /// How many packets may be open at once. Segments of other connections stay alone.
    pub packets_max: u32,
    /// A packet ends when no segment of its connection has come for this time.
    pub silence_ps: u64,
}

impl Default for RingFormat {
    fn default() -> Self {
        Self {
            least_entry_bytes: 0,
            completion_bytes: COMPLETION_BYTES,
            completions_per_entry: 1,
            stride_bytes: None,
            drops_without_buffer: false,
            joins: None,
        }
    }
}

impl RingFormat {
    /// Bytes of an entry with so many buffers: a power of two, so that no entry crosses the end of a page.
    pub fn entry_bytes(&self, pieces: u32) -> u64 {
        entry_bytes(pieces).max(self.least_entry_bytes.min(PAGE_SIZE).next_power_of_two())
    }

    /// How many words of a completion have a meaning.
    pub(super) fn completion_words(&self) -> usize {
        match (self.stride_bytes, self.joins) {
            (_, Some(_)) => COMPLETION_WORDS,
            (Some(_), None) => 3,
            (None, None) => 2,
        }
    }

    /// The number of completions of a ring with so many entries.
    pub fn completions(&self, entries: u32) -> u64 {
        u64::from(entries) * u64::from(self.completions_per_entry)
    }
}

/// A queue of events in memory. Rings that name the same queue share it. The card does not know which events the driver
/// has seen, so the queue must be long enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EventQueue {
    /// The address of the events, aligned to [`EVENT_BYTES`].
    pub base: Iova,
    /// The number of events.
    pub events: u32,
}

impl EventQueue {
    /// The offset of event `number`, counted from the first ever.
    pub fn offset(&self, number: u32) -> u64 {
        u64::from(number % self.events) * EVENT_BYTES
    }
}

/// An event: a ring has completions that its driver has not seen. It is the first word of its [`EVENT_BYTES`]. The
/// others have no meaning, and so the model leaves them as they are in memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Event {
    /// The number of the ring.
    pub ring: u32,
    /// The number of the event in its queue, counted from one.
    pub serial: u32,
}

impl Event {
    /// Encodes it for memory.
    pub fn word(&self) -> u64 {
        u64::from(self.ring) | u64::from(self.serial) << 32
    }

    /// Decodes it from memory.
    pub fn of(word: u64) -> Self {
        Self { ring: word as u32, serial: (word >> 32) as u32 }
    }
}

/// Bytes of an entry with so many buffers and no others.
pub fn entry_bytes(pieces: u32) -> u64 {
    (u64::from(pieces) * DESCRIPTOR_BYTES).next_power_of_two()
}

impl RingConfig {
    /// Bytes of an entry: a power of two, so that no entry crosses the end of a page.
    pub fn entry_bytes(&self) -> u64 {
        self.format.entry_bytes(self.pieces)
    }

    /// The offset of entry `number`, counted from the first entry ever filled.
    pub fn entry_offset(&self, number: u32) -> u64 {
        u64::from(number % self.entries) * self.entry_bytes()
    }

    /// The offset of completion `number`, counted from the first ever.
    pub fn completion_offset(&self, number: u32) -> u64 {
        u64::from(number) % self.format.completions(self.entries) * self.format.completion_bytes
    }

    /// Completion `number`, counted from the first ever, if it has landed. `read` reads a word at an offset from
    /// `completions`.
    pub fn completion(&self, number: u32, read: impl Fn(u64) -> Option<u64>) -> Option<Completion> {
        let at = self.completion_offset(number);
        let mut words = [0; COMPLETION_WORDS];
        for (word, offset) in words.iter_mut().zip((at..).step_by(8)).take(self.format.completion_words()) {
            *word = read(offset)?;
        }
        let completion = Completion::of(words);
        (completion.serial == number.wrapping_add(1)).then_some(completion)
    }

    /// Whether it is within the limits that its fields state.
    pub(super) fn is_sound(&self) -> bool {
        let Self { format, .. } = self;
        let receives = self.direction == Direction::Receive;
        let (is_possible, pieces_max, least_completion_bytes) = match (format.stride_bytes, format.joins) {
            (None, None) => (true, PIECES_MAX, COMPLETION_BYTES),
            (Some(bytes), None) => (receives && bytes > 0, STRIDING_PIECES_MAX, STRIDING_COMPLETION_BYTES),
            (None, Some(joins)) => (receives && joins.page_bytes > 0, PIECES_MAX, JOINING_COMPLETION_BYTES),
            (Some(_), Some(_)) => return false,
        };
        let completions = format.completion_bytes.is_power_of_two()
            && (least_completion_bytes..=PAGE_SIZE).contains(&format.completion_bytes)
            && format.completions_per_entry > 0;
        let entries =
            self.entries > 0 && (1..=pieces_max).contains(&self.pieces) && format.least_entry_bytes <= PAGE_SIZE;
        is_possible && completions && entries && self.events.is_none_or(|queue| queue.events > 0)
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

/// The completion of an entry, or of strides of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Completion {
    /// The number of the entry, counted from the first entry ever filled.
    pub entry: u32,
    /// The length of the frame in bytes. A filler has none.
    pub bytes: u32,
    /// The meaning of the frame.
    pub cookie: u32,
    /// The number of the completion, counted from one. It tells a completion from zeroed memory, and from one of an
    /// earlier round.
    pub serial: u32,
    /// In a striding ring, the stride of the entry at which the frame begins.
    pub first_stride: u32,
    /// In a striding ring, the number of strides that this completion accounts for, less than 2^31.
    pub strides: u32,
    /// Whether there is no frame: the strides were left over because the next frame did not fit.
    pub is_filler: bool,
    /// In a ring that joins segments, what the completion stands for.
    pub joined: Joined,
}

/// What a completion of a ring that joins segments stands for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Joined {
    /// A frame alone.
    #[default]
    Alone,
    /// The first segment of a packet. Its buffer still belongs to the card.
    Start,
    /// A whole packet, whose first segment is in the entry. Its length has the headers of the first segment, and its
    /// cookie is that of the last one.
    End {
        /// How many segments it has.
        segments: u16,
        /// The pages with what follows the first segment.
        pages: PagesOfPacket,
    },
}

/// The pages of a packet, in their order.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PagesOfPacket {
    count: u8,
    entries: [u16; JOINED_PAGES_MAX],
}

impl PagesOfPacket {
    /// The index of the entry of each page in its ring.
    pub fn entries(&self) -> &[u16] {
        &self.entries[..usize::from(self.count).min(JOINED_PAGES_MAX)]
    }

    pub(super) fn has_room(&self, pages: usize) -> bool {
        usize::from(self.count) + pages <= JOINED_PAGES_MAX
    }

    pub(super) fn push(&mut self, entry: u16) {
        if let Some(place) = self.entries.get_mut(usize::from(self.count)) {
            (*place, self.count) = (entry, self.count + 1);
        }
    }
}

/// The words of a completion: those of every ring, that of strides, and those of joined segments.
const COMPLETION_WORDS: usize = 6;
/// The kinds of completions of joined segments, in the lowest bits of their first word.
const START: u64 = 1;
const END: u64 = 2;

/// The bit of the last word of a completion that says that it is a filler.
const FILLER: u64 = 1 << 63;

impl Completion {
    /// That of a frame in an entry, without its serial number and its strides.
    pub(super) fn of_frame(entry: u32, frame: Frame) -> Self {
        Self { entry, bytes: frame.bytes, cookie: frame.cookie, ..Self::default() }
    }

    /// Encodes it for memory. Words that its ring does not have are zero and are not written.
    pub fn words(&self) -> [u64; COMPLETION_WORDS] {
        let filler = if self.is_filler { FILLER } else { 0 };
        let [kind, pages @ ..] = self.joined.words();
        [
            u64::from(self.entry) | u64::from(self.bytes) << 32,
            u64::from(self.cookie) | u64::from(self.serial) << 32,
            u64::from(self.first_stride) | u64::from(self.strides) << 32 & !FILLER | filler,
            kind,
            pages[0],
            pages[1],
        ]
    }

    /// Decodes it from memory. Words that its ring does not have must be zero.
    pub fn of(words: [u64; COMPLETION_WORDS]) -> Self {
        Self {
            entry: words[0] as u32,
            bytes: (words[0] >> 32) as u32,
            cookie: words[1] as u32,
            serial: (words[1] >> 32) as u32,
            first_stride: words[2] as u32,
            strides: ((words[2] & !FILLER) >> 32) as u32,
            is_filler: words[2] & FILLER != 0,
            joined: Joined::of([words[3], words[4], words[5]]),
        }
    }
}

impl Joined {
    /// The kind, segments and number of pages, and then the pages.
    fn words(&self) -> [u64; 3] {
        match self {
            Self::Alone => [0; 3],
            Self::Start => [START, 0, 0],
            Self::End { segments, pages } => {
                let four =
                    |at: usize| (0..4).fold(0, |word, one| word | u64::from(pages.entries[at + one]) << (16 * one));
                [END | u64::from(*segments) << 16 | u64::from(pages.count) << 32, four(0), four(4)]
            }
        }
    }

    fn of(words: [u64; 3]) -> Self {
        match words[0] & 3 {
            START => Self::Start,
            END => {
                let entry = |at: usize| (words[1 + at / 4] >> (16 * (at % 4))) as u16;
                let pages = PagesOfPacket { count: (words[0] >> 32) as u8, entries: std::array::from_fn(entry) };
                Self::End { segments: (words[0] >> 16) as u16, pages }
            }
            _ => Self::Alone,
        }
    }
}
