//! Vmem: the resource allocator of Solaris (Bonwick and Adams, USENIX ATC'01, §4), in constant time under one lock
//! (ATC'15, Table 1).
//!
//! Small requests are served by quantum caches, one for each number of pages up to 16. A cache takes slabs of 64
//! pages from the [segments](super::segments), and cuts them into ranges of exactly its size, so that a small request
//! neither splits nor joins anything. All slabs have the same size, so one that a cache gives back fits every other
//! cache. Larger requests are served from the segments, to the page. Small requests are too, if no slab is available.
//!
//! The caches of the original are those of the slab allocator, which has a layer of magazines per CPU above what is
//! implemented here.

use super::segments::Segments;
use super::tags::{List, Tag, TagId, new_block};
use crate::sync::{AtomicUsize, Ordering};
use alloc::boxed::Box;
use portcullis::error::{MapError, NoMemory, UnmapError};
use portcullis::iova::{CachedRanges, Claim, IovaAllocator, IovaRequest};
use portcullis::platform::memory::{Block, Spare, try_slice, with_spare};
use portcullis::platform::{Context, Lock, LockClass, Phase, Platform, Step};
use portcullis::proof::Proof;
use portcullis::{Iova, IovaRange};

/// The number of quantum caches: one for each number of pages, from one on.
const CACHES: usize = 16;
/// The largest range that a quantum cache serves, in pages.
pub const QUANTUM_CACHE_PAGES_MAX: u64 = CACHES as u64;
/// Pages in a slab: the power of two above three times the largest cached range, as in the original.
pub const SLAB_PAGES: u64 = (3 * QUANTUM_CACHE_PAGES_MAX).next_power_of_two();
/// The most slabs with nothing in use that a cache keeps.
const UNUSED_SLABS_MAX: usize = 4;

// A slab of single pages has a bit for each page.
const _: () = assert!(SLAB_PAGES <= u64::BITS as u64);

/// How a segment is used. It is cut into ranges of one size, each with a bit. A large mapping is the only range of
/// its segment; a slab has several ranges.
#[derive(Clone, Copy)]
struct Cut {
    pages: u64,
    ranges: u64,
    free: u64,
    /// Ranges that are handed out, and claimed by an unmap.
    claimed: u64,
}

/// The slabs of one size of range that have a free range.
#[derive(Default)]
struct Cache {
    /// Slabs with some ranges in use.
    partial: List,
    /// Slabs with no range in use.
    unused: List,
    unused_slabs: usize,
}

/// The segments and the caches, under one lock.
struct Vmem {
    segments: Segments<Cut>,
    /// The caches by pages, from one on.
    caches: Box<[Cache]>,
    /// Free ranges in all slabs.
    kept: usize,
}

/// The allocator.
pub struct VmemAllocator<P: Platform> {
    vmem: P::Lock<Vmem>,
    /// Ranges handed out, and free ranges in slabs. They are written only under the lock, so plain stores suffice.
    /// They are read without it, as statistics (Relaxed).
    live: AtomicUsize,
    kept: AtomicUsize,
}

/// Memory for tags.
type SpareTags = Spare<Block<Tag<Cut>>>;

impl Cut {
    /// A segment that is one mapping.
    const fn mapping(pages: u64) -> Self {
        Self { pages, ranges: 1, free: 0, claimed: 0 }
    }

    /// A slab of ranges of `pages` pages, all of them free.
    const fn slab(pages: u64) -> Self {
        let mut slab = Self { pages, ranges: SLAB_PAGES / pages, free: 0, claimed: 0 };
        slab.free = slab.all();
        slab
    }

    const fn is_slab(&self) -> bool {
        self.ranges > 1
    }

    /// The bits of all its ranges.
    const fn all(&self) -> u64 {
        u64::MAX >> (u64::BITS as u64 - self.ranges)
    }

    /// The bit of the range in use that begins `offset` pages into the segment, if there is one.
    fn in_use_at(&self, offset: u64) -> Option<u64> {
        let begins = offset.is_multiple_of(self.pages) && offset / self.pages < self.ranges;
        begins.then(|| 1 << (offset / self.pages)).filter(|bit| self.free & bit == 0)
    }
}

impl Vmem {
    fn allocate<P: Platform>(
        &mut self,
        platform: &P,
        pages: u64,
        spare: &mut SpareTags,
    ) -> Result<IovaRange, MapError> {
        if pages <= QUANTUM_CACHE_PAGES_MAX {
            match self.allocate_cached(platform, pages, spare) {
                Err(MapError::Exhausted { .. }) => {}
                done => return done,
            }
        }
        let id = self.segments.allocate(platform, pages, 1, Cut::mapping(pages), spare)?;
        Ok(IovaRange::new(self.segments.first_pfn(id), pages).expect("a segment is a range"))
    }

    /// Takes a range from the cache for `pages` pages, and a new slab if necessary.
    fn allocate_cached<P: Platform>(
        &mut self,
        platform: &P,
        pages: u64,
        spare: &mut SpareTags,
    ) -> Result<IovaRange, MapError> {
        let cache = &mut self.caches[pages as usize - 1];
        let id = match cache.partial.first() {
            Some(id) => id,
            None => {
                let id = if let Some(id) = cache.unused.first() {
                    self.segments.remove(&mut cache.unused, id);
                    cache.unused_slabs -= 1;
                    id
                } else {
                    let slab = Cut::slab(pages);
                    let id = self.segments.allocate(platform, SLAB_PAGES, SLAB_PAGES, slab, spare)?;
                    self.kept += slab.ranges as usize;
                    id
                };
                self.segments.push(&mut cache.partial, id);
                id
            }
        };
        platform.probe(Step::ListPop);
        let slab = self.segments.user(id);
        let number = slab.free.trailing_zeros();
        slab.free &= !(1 << number);
        if slab.free == 0 {
            self.segments.remove(&mut cache.partial, id);
        }
        self.kept -= 1;
        let first_pfn = self.segments.first_pfn(id) + u64::from(number) * pages;
        Ok(IovaRange::new(first_pfn, pages).expect("a part of a segment is a range"))
    }

    /// Gives every slab with nothing in use back to the segments, and returns whether there was one.
    fn give_back<P: Platform>(&mut self, platform: &P) -> bool {
        let before = self.kept;
        for cache in &mut self.caches {
            while let Some(id) = cache.unused.first() {
                self.segments.remove(&mut cache.unused, id);
                self.kept -= self.segments.user(id).ranges as usize;
                self.segments.free(platform, id);
            }
            cache.unused_slabs = 0;
        }
        self.kept < before
    }

    /// Finds the range that was handed out with `first_pfn` as its first page: its segment, and its bit there.
    fn find<P: Platform>(&mut self, platform: &P, first_pfn: u64) -> Option<(TagId, u64)> {
        platform.probe(Step::HashFind);
        // Slabs are aligned to their size. Inside a slab, no range has its own segment.
        let starts = [first_pfn - first_pfn % SLAB_PAGES, first_pfn];
        starts.into_iter().find_map(|start| {
            let id = self.segments.find(start)?;
            let bit = self.segments.user(id).in_use_at(first_pfn - start)?;
            Some((id, bit))
        })
    }

    fn claim<P: Platform>(&mut self, platform: &P, range: IovaRange) -> Result<(), UnmapError> {
        let not_mapped = UnmapError::NotMapped(Iova::from_pfn(range.first_pfn()));
        let (id, bit) = self.find(platform, range.first_pfn()).ok_or(not_mapped)?;
        let cut = self.segments.user(id);
        if cut.claimed & bit != 0 {
            return Err(not_mapped);
        }
        if cut.pages != range.pages() {
            let mapped = IovaRange::new(range.first_pfn(), cut.pages).expect("it was handed out");
            return Err(UnmapError::Partial { asked: range, mapped });
        }
        cut.claimed |= bit;
        Ok(())
    }

    /// Takes back the range that was handed out with `first_pfn` as its first page.
    ///
    /// # Panics
    /// If no such range was handed out.
    fn free<P: Platform>(&mut self, platform: &P, first_pfn: u64) {
        let (id, bit) = self.find(platform, first_pfn).expect("a range that was handed out is found");
        if self.segments.user(id).is_slab() {
            self.free_cached(platform, id, bit);
        } else {
            self.segments.free(platform, id);
        }
    }

    fn free_cached<P: Platform>(&mut self, platform: &P, id: TagId, bit: u64) {
        platform.probe(Step::ListPush);
        let slab = self.segments.user(id);
        let was_full = slab.free == 0;
        slab.free |= bit;
        slab.claimed &= !bit;
        let slab = *slab;
        self.kept += 1;
        let cache = &mut self.caches[slab.pages as usize - 1];
        if was_full {
            self.segments.push(&mut cache.partial, id);
        }
        if slab.free != slab.all() {
            return;
        }
        self.segments.remove(&mut cache.partial, id);
        if cache.unused_slabs < UNUSED_SLABS_MAX {
            self.segments.push(&mut cache.unused, id);
            cache.unused_slabs += 1;
        } else {
            self.kept -= slab.ranges as usize;
            self.segments.free(platform, id);
        }
    }
}

impl<P: Platform> VmemAllocator<P> {
    /// Makes an allocator of addresses below `2^width`, without page 0, the interrupt range and `reserved` (S9).
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn new(platform: &P, width: u8, reserved: &[IovaRange]) -> Result<Self, NoMemory> {
        let caches = try_slice(platform, Context::MaySleep, CACHES, || Ok(Cache::default()))?;
        let vmem = Vmem { segments: Segments::new(platform, width, reserved)?, caches, kept: 0 };
        Ok(Self {
            vmem: platform.lock(LockClass::IovaAllocator, vmem),
            live: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
        })
    }

    /// Records how many ranges there are now. The lock is held.
    fn note(&self, vmem: &Vmem, handed_out: isize) {
        self.kept.store(vmem.kept, Ordering::Relaxed);
        self.live.store(self.live.load(Ordering::Relaxed).wrapping_add_signed(handed_out), Ordering::Relaxed);
    }
}

// SAFETY: neither segments nor the ranges of a slab overlap, and only free ones are handed out. `claim` sets the mark
// of a range in use with exactly these pages, under the lock, if it is not yet set.
unsafe impl<P: Platform> IovaAllocator<P> for VmemAllocator<P> {
    fn allocate(&self, platform: &P, &IovaRequest { pages, .. }: &IovaRequest) -> Result<IovaRange, MapError> {
        platform.probe(Step::Enter(Phase::IovaAllocate));
        let allocate = |vmem: &mut Vmem, spare: &mut SpareTags| {
            let result = match vmem.allocate(platform, pages, spare) {
                // Slabs kept for other sizes may leave enough room (S13). Their number is bounded.
                Err(MapError::Exhausted { .. }) if vmem.give_back(platform) => vmem.allocate(platform, pages, spare),
                result => result,
            };
            self.note(vmem, isize::from(result.is_ok()));
            result
        };
        with_spare(
            |room| new_block(platform, Context::Atomic, room),
            |spare| self.vmem.with(|vmem| allocate(vmem, spare)),
        )
    }

    fn claim(&self, platform: &P, range: IovaRange) -> Result<Claim, UnmapError> {
        platform.probe(Step::Enter(Phase::IovaFind));
        self.vmem.with(|vmem| vmem.claim(platform, range)).map(|()| Claim::Held)
    }

    fn free(&self, platform: &P, range: IovaRange, _proof: &Proof) {
        self.vmem.with(|vmem| {
            vmem.free(platform, range.first_pfn());
            self.note(vmem, -1);
        });
    }

    fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    fn kept(&self) -> CachedRanges {
        CachedRanges { ranges: self.kept.load(Ordering::Relaxed), ranges_max: None }
    }
}
