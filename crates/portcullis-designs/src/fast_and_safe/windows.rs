//! Windows: neighbouring addresses for buffers that a device uses one after the other (Fast & Safe, SOSP'24, §3 and
//! Figure 4).
//!
//! A stream of requests is a ring, or else a CPU and a direction. Each stream has its own window, and its requests
//! get the window's pages in order: the pages of one receive descriptor, or of many transmit descriptors. The device
//! therefore walks few leaf tables, and one invalidation covers the pages of one descriptor. A window that has been
//! handed out and has come back is used again as a whole; see [`Window`]. Requests larger than a window have their
//! own ranges.
//!
//! Each mapping is claimed by the mark of its first page, and larger ones by the tree. No claim walks the table, so
//! table pages may be freed.
//!
//! When addresses run out, requests share what is left in any stream's window, and finally take ranges smaller than a
//! window (S13).

use super::radix_tree::RadixTree;
use super::window::{Opening, Unclaimed, WINDOW_PAGES_MAX, Window};
use crate::sync::{AtomicU64, Ordering};
use alloc::vec::Vec;
use portcullis::IovaRange;
use portcullis::Placement;
use portcullis::error::{MapError, NoMemory, UnmapError};
use portcullis::iova::{CachedRanges, Claim, IovaAllocator, IovaRequest};
use portcullis::iova::{Magazines, may_ever_fit};
use portcullis::platform::memory::try_fill;
use portcullis::platform::{Context, Padded, PerCpu, Phase, Platform, Step};
use portcullis::proof::Proof;
use portcullis::{Access, Stream};

/// The number of ring streams that have their own window. Rings whose numbers are equal modulo this number share one,
/// which costs them some of their order and nothing else.
const RINGS: usize = if cfg!(loom) { 1 } else { 128 };

/// The current window of a stream. It may have ended since.
struct Current(AtomicU64);

/// The current windows of all streams.
struct Streams {
    cpus: PerCpu<[Current; 3]>,
    rings: Vec<Padded<Current>>,
}

/// The allocator.
///
/// Its records take 64 bytes for each window ever used, in pieces of 4 KiB, and are kept. That is 1/512 of the
/// address space with windows of 8 pages, and 1/4096 with windows of 64.
pub struct WindowAllocator<P: Platform> {
    /// The source of windows, of larger ranges and, as a last resort, of smaller ones.
    underneath: Magazines<P, 1>,
    windows: RadixTree<Window>,
    streams: Streams,
    /// Pages of a window.
    size: u64,
}

impl Current {
    /// No window yet.
    fn new() -> Self {
        Self(AtomicU64::new(Opening::NONE.word()))
    }

    fn get(&self) -> Opening {
        // Acquire: the record of the window is visible with its number.
        Opening::from_word(self.0.load(Ordering::Acquire))
    }

    /// Moves on from one window to another, unless another CPU has done so.
    fn replace(&self, old: Opening, new: Opening) -> bool {
        // Release: the record of the window is visible with its number.
        self.0.compare_exchange(old.word(), new.word(), Ordering::Release, Ordering::Relaxed).is_ok()
    }
}

impl Streams {
    fn new<P: Platform>(platform: &P) -> Result<Self, NoMemory> {
        let rings = try_fill(platform, Context::MaySleep, RINGS, || Padded(Current::new()))?;
        let cpus = PerCpu::new(platform, || Ok(core::array::from_fn(|_| Current::new())))?;
        Ok(Self { cpus, rings })
    }

    /// The current window of the request's stream.
    fn of<P: Platform>(&self, platform: &P, request: &IovaRequest) -> &Current {
        match request.stream {
            Stream(Some(ring)) => &self.rings[ring as usize % RINGS].0,
            Stream(None) => &self.cpus.here(platform)[match request.access {
                Access::DeviceReads => 0,
                Access::DeviceWrites => 1,
                Access::DeviceReadsAndWrites => 2,
            }],
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Current> {
        self.cpus.iter().flatten().chain(self.rings.iter().map(|ring| &ring.0))
    }

    fn len(&self) -> usize {
        3 * self.cpus.iter().len() + self.rings.len()
    }
}

impl<P: Platform> WindowAllocator<P> {
    /// Makes an allocator of addresses below `2^width`, without page 0, the interrupt range and `reserved` (S9), with
    /// windows of `window_pages` pages.
    ///
    /// # Errors
    /// [`NoMemory`].
    ///
    /// # Panics
    /// If `window_pages` is not a power of two from 2 to 64.
    #[inline(always)]
    pub fn new(platform: &P, width: u8, reserved: &[IovaRange], window_pages: u64) -> Result<Self, NoMemory> {
        assert!(window_pages.is_power_of_two() && (2..=WINDOW_PAGES_MAX).contains(&window_pages));
        Ok(Self {
            underneath: Magazines::new(platform, width, reserved, window_pages.trailing_zeros() as usize)?,
            windows: RadixTree::new(),
            streams: Streams::new(platform)?,
            size: window_pages,
        })
    }

    /// `pages` pages from page `at` of window `number` on.
    fn range(&self, number: u64, at: u64, pages: u64) -> IovaRange {
        IovaRange::new(number * self.size + at, pages).expect("below the width, so it does not wrap")
    }

    /// Takes the next pages of the stream's window, if that many are left.
    fn take(&self, stream: &Current, pages: u64) -> Option<IovaRange> {
        let opening = stream.get();
        let at = self.windows.get(opening.number())?.take(opening, self.size, pages)?;
        Some(self.range(opening.number(), at, pages))
    }

    /// Takes the first pages of a new window. If there is none, takes pages from any place (S13).
    fn take_new(&self, platform: &P, stream: &Current, pages: u64) -> Result<IovaRange, MapError> {
        let exhausted = match self.underneath.allocate(platform, self.size) {
            Err(MapError::Exhausted { limit_bits, .. }) => MapError::Exhausted { pages, limit_bits },
            window => return self.open(platform, stream, window?, pages),
        };
        if let Some(range) = self.streams.iter().find_map(|other| self.take(other, pages)) {
            return Ok(range);
        }
        if self.seal_idle(platform)
            && let Ok(window) = self.underneath.allocate(platform, self.size)
        {
            return self.open(platform, stream, window, pages);
        }
        if pages.next_power_of_two() == self.size { Err(exhausted) } else { self.take_alone(platform, pages) }
    }

    /// Takes a range when no window fits any more.
    fn take_alone(&self, platform: &P, pages: u64) -> Result<IovaRange, MapError> {
        let range = self.underneath.allocate(platform, pages)?;
        let record = self.windows.get_or_make(platform, range.first_pfn() / self.size);
        record.inspect_err(|_| self.underneath.free(platform, range))?.mark_alone(range.first_pfn() % self.size, pages);
        Ok(range)
    }

    /// Takes the first pages of a window that no stream has, and lets the stream continue there.
    fn open(&self, platform: &P, stream: &Current, window: IovaRange, pages: u64) -> Result<IovaRange, MapError> {
        let number = window.first_pfn() / self.size;
        let record =
            self.windows.get_or_make(platform, number).inspect_err(|_| self.underneath.free(platform, window))?;
        let new = record.open(number, self.size, pages);
        let old = stream.get();
        let left = self.windows.get(old.number()).map_or(0, |record| record.left_in(old));
        // Of the two windows, the one with more pages left stays. A large request among small ones therefore does not
        // cost them their window.
        let stays = record.left_in(new) > left && stream.replace(old, new);
        self.seal(platform, if stays { old } else { new });
        Ok(self.range(number, 0, pages))
    }

    /// Hands out no more of a window.
    fn seal(&self, platform: &P, opening: Opening) {
        if self.windows.get(opening.number()).is_some_and(|record| record.seal(opening)) {
            self.recycle(platform, opening.number());
        }
    }

    /// Gives a window that has ended to the allocator underneath.
    fn recycle(&self, platform: &P, number: u64) {
        self.underneath.free(platform, self.range(number, 0, self.size));
    }

    /// Gives up the current windows of streams that have no range out. Returns whether there were any.
    fn seal_idle(&self, platform: &P) -> bool {
        let mut any = false;
        for opening in self.streams.iter().map(Current::get) {
            if self.windows.get(opening.number()).is_some_and(|record| record.seal_idle(opening)) {
                self.recycle(platform, opening.number());
                any = true;
            }
        }
        any
    }

    /// Takes a range larger than a window.
    fn take_large(&self, platform: &P, pages: u64) -> Result<IovaRange, MapError> {
        match self.underneath.allocate(platform, pages) {
            Err(MapError::Exhausted { limit_bits, .. })
                if may_ever_fit(pages, limit_bits) && self.seal_idle(platform) =>
            {
                self.underneath.allocate(platform, pages)
            }
            result => result,
        }
    }
}

// SAFETY: ranges underneath do not overlap. A window is one of them from its opening to its end. The end comes once,
// after everything handed out of it has come back. Until then each of its pages is handed out at most once, by a
// compare-exchange. The mark of a mapping's first page is taken by one claim, which holds only if the mapping has the
// right length. Ranges larger than a window are claimed in the tree, where no window and nothing smaller is as long.
unsafe impl<P: Platform> IovaAllocator<P> for WindowAllocator<P> {
    fn allocate(&self, platform: &P, request: &IovaRequest) -> Result<IovaRange, MapError> {
        platform.probe(Step::Enter(Phase::IovaAllocate));
        if request.pages > self.size {
            return self.take_large(platform, request.pages);
        }
        let stream = self.streams.of(platform, request);
        platform.probe(Step::WindowTake);
        match self.take(stream, request.pages) {
            Some(range) => Ok(range),
            None => self.take_new(platform, stream, request.pages),
        }
    }

    fn claim(&self, platform: &P, range: IovaRange) -> Result<Claim, UnmapError> {
        platform.probe(Step::Enter(Phase::IovaFind));
        platform.probe(Step::WindowClaim);
        let not_mapped = UnmapError::NotMapped(range.start());
        let (number, at) = (range.first_pfn() / self.size, range.first_pfn() % self.size);
        let claimed =
            self.windows.get(number).map_or(Err(Unclaimed::NotMapped), |window| window.claim(at, range.pages()));
        match claimed {
            Ok(()) => Ok(Claim::Held),
            Err(Unclaimed::Pages(pages)) => {
                Err(UnmapError::Partial { asked: range, mapped: self.range(number, at, pages) })
            }
            Err(Unclaimed::NotMapped) if range.pages() <= self.size => Err(not_mapped),
            Err(Unclaimed::NotMapped) => match self.underneath.tree().claim(platform, range) {
                // A window, or something smaller, so no mapping begins at the start of `range`.
                Err(UnmapError::Partial { mapped, .. }) if mapped.pages() <= self.size => Err(not_mapped),
                result => result,
            },
        }
    }

    fn free(&self, platform: &P, range: IovaRange, _proof: &Proof) {
        let number = range.first_pfn() / self.size;
        // While a range of a window is out, its record says so. A range that belongs to no window lies where no
        // window can be.
        let window = self.windows.get(number).filter(|window| range.pages() <= self.size && window.out() > 0);
        match window {
            Some(window) => {
                platform.probe(Step::WindowReturn);
                if window.give_back() {
                    self.recycle(platform, number);
                }
            }
            None => self.underneath.free(platform, range),
        }
    }

    fn live_around(&self, platform: &P, pfn: u64) -> Option<IovaRange> {
        self.underneath.tree().larger_around(platform, pfn, self.size)
    }

    fn set_aside(&self, platform: &P, pages: u64, placement: &Placement) -> Result<IovaRange, MapError> {
        match self.underneath.set_aside(platform, pages, placement) {
            // The wanted range may be a window in which nothing is mapped.
            Err(MapError::Exhausted { .. } | MapError::Overlap(_)) if self.seal_idle(platform) => {
                self.underneath.set_aside(platform, pages, placement)
            }
            result => result,
        }
    }

    fn put_back(&self, platform: &P, range: IovaRange, _proof: &Proof) {
        self.underneath.tree().put_back_range(platform, range);
    }

    fn live(&self) -> usize {
        let (mut windows, mut out) = (0, 0);
        self.windows.for_each(|window| {
            windows += usize::from(window.out() > 0 || window.left() > 0);
            out += window.out();
        });
        (self.underneath.live() + out).saturating_sub(windows)
    }

    fn kept(&self) -> CachedRanges {
        let mut open = 0;
        self.windows.for_each(|window| open += usize::from(window.left() > 0));
        let CachedRanges { ranges, ranges_max } = self.underneath.kept();
        CachedRanges { ranges: ranges + open, ranges_max: ranges_max.map(|most| most + self.streams.len()) }
    }

    fn record_bytes(&self) -> usize {
        self.windows.bytes()
    }

    fn tick(&self, platform: &P) {
        self.underneath.tick(platform);
    }

    fn due_us(&self) -> Option<u64> {
        self.underneath.due_us()
    }
}
