//! The rings of a domain: which stream has which ring, and the table in which the hardware finds them.

use super::ring::Ring;
use crate::sync::{AtomicPtr, AtomicUsize, Ordering};
use alloc::boxed::Box;
use core::ptr;
use portcullis::error::{MapError, NoMemory};
use portcullis::iommu::rings::{DeviceHeader, RING_SHIFT, RingPointer, SLOTS_PER_PAGE};
use portcullis::platform::memory::{push_within, try_box, try_reserve};
use portcullis::platform::{Context, Platform};
use portcullis::proof::Proof;
use portcullis::table::{self, Walker};
use portcullis::{Access, Lifetime, Request, Stream};
use portcullis::{IovaRange, PAGE_SHIFT, PAGE_SIZE, PhysAddr};

/// Pages of the table of rings.
const DEVICE_PAGES: usize = if cfg!(loom) { 1 } else { 16 };
/// The most rings of a domain.
pub const RINGS_MAX: usize = DEVICE_PAGES * SLOTS_PER_PAGE as usize - 1;
/// Streams with their own rings. More streams share them, by number.
const STREAMS: usize = if cfg!(loom) { 2 } else { 1024 };
/// The rings of a stream, one for each direction: read, written, both.
const DIRECTIONS: usize = 3;
/// Entries of a ring for a persistent mapping: those of one page.
const PERSISTENT_ENTRIES: u32 = SLOTS_PER_PAGE;

/// The rings of a domain.
pub(super) struct Rings {
    device: PhysAddr,
    /// Entries of a ring for transient mappings.
    size: u32,
    cpus: usize,
    /// The ring of each CPU, and then of each stream, for each direction. Null until it is needed.
    by_stream: Box<[AtomicPtr<Ring>]>,
    /// The rings by number, counted from 1. A ring lives as long as `self`.
    by_number: Box<[AtomicPtr<Ring>]>,
    /// Numbers that were given to rings or skipped.
    numbers: AtomicUsize,
    /// Ranges from which no device may be given an address, as first and end page numbers.
    reserved: Box<[(u64, u64)]>,
    /// Pages of all tables. A statistic, so Relaxed.
    pages: AtomicUsize,
}

impl Rings {
    /// Makes an empty set of rings. The rings will have `size` entries.
    ///
    /// # Errors
    /// [`NoMemory`], also from a host that does not lend contiguous table pages.
    pub(super) fn new<P: Platform>(walker: Walker<'_, P>, size: u32, reserved: &[IovaRange]) -> Result<Self, NoMemory> {
        let platform = walker.platform();
        let cpus = platform.cpus().max(1) as usize;
        let reserved = boxed(platform, reserved.iter().map(|range| (range.first_pfn(), range.end_pfn())))?;
        let by_stream = no_rings(platform, (cpus + STREAMS) * DIRECTIONS)?;
        let by_number = no_rings(platform, RINGS_MAX)?;
        let device = walker.allocate_frames(Context::MaySleep, DEVICE_PAGES)?;
        let pages = AtomicUsize::new(DEVICE_PAGES);
        let this = Self { device, size, cpus, by_stream, by_number, numbers: AtomicUsize::new(0), reserved, pages };
        this.write_slot(walker, 0, DeviceHeader { rings: RINGS_MAX as u16 }.encode());
        Ok(this)
    }

    /// The address at which the hardware finds the rings.
    pub(super) const fn device(&self) -> PhysAddr {
        self.device
    }

    /// Table pages in use.
    pub(super) fn pages(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }

    /// Entries of a ring for mappings of this lifetime.
    pub(super) const fn size_for(&self, lifetime: Lifetime) -> u32 {
        match lifetime {
            Lifetime::Transient => self.size,
            Lifetime::Persistent => PERSISTENT_ENTRIES,
        }
    }

    /// Every ring that has been made.
    pub(super) fn all(&self) -> impl Iterator<Item = &Ring> {
        let made = self.numbers.load(Ordering::Acquire).min(RINGS_MAX);
        self.by_number[..made].iter().filter_map(Self::look)
    }

    /// Ring `number`, if there is one.
    pub(super) fn numbered(&self, number: u16) -> Option<&Ring> {
        Self::look(self.by_number.get(usize::from(number).checked_sub(1)?)?)
    }

    fn look(place: &AtomicPtr<Ring>) -> Option<&Ring> {
        // Acquire: the ring is visible with the pointer.
        // SAFETY: null, or a box of `make`, which lives as long as `self`.
        unsafe { place.load(Ordering::Acquire).as_ref() }
    }

    /// The ring for `request`. A persistent request gets its own ring. Any other gets the ring of its stream or, if
    /// that is unknown, of the CPU. There is another ring for each direction.
    ///
    /// # Errors
    /// [`MapError::NoRing`], [`MapError::NoMemory`].
    #[inline]
    pub(super) fn of<P: Platform>(&self, walker: Walker<'_, P>, request: &Request<'_>) -> Result<&Ring, MapError> {
        if request.lifetime == Lifetime::Persistent {
            return self.unused(walker, Context::Atomic, true);
        }
        let stream = match request.stream {
            Stream(Some(number)) => self.cpus + number as usize % STREAMS,
            Stream(None) => walker.platform().cpu().0 as usize % self.cpus,
        };
        let direction = match request.access() {
            Access::DeviceReads => 0,
            Access::DeviceWrites => 1,
            Access::DeviceReadsAndWrites => 2,
        };
        let place = &self.by_stream[stream * DIRECTIONS + direction];
        match Self::look(place) {
            Some(ring) => Ok(ring),
            None => self.first_of_stream(walker, place),
        }
    }

    #[cold]
    fn first_of_stream<'s, P: Platform>(
        &'s self,
        walker: Walker<'_, P>,
        place: &'s AtomicPtr<Ring>,
    ) -> Result<&'s Ring, MapError> {
        let ring = self.unused(walker, Context::Atomic, false)?;
        // AcqRel: other CPUs see the ring as it is here, and this CPU sees the ring of a CPU that was faster.
        match place.compare_exchange(
            ptr::null_mut(),
            ptr::from_ref(ring).cast_mut(),
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            Ok(_) => Ok(ring),
            Err(_) => {
                ring.release();
                Ok(Self::look(place).expect("a stream keeps its ring"))
            }
        }
    }

    /// Takes a ring that is not in use, either for a persistent mapping or for a stream.
    #[cold]
    fn unused<P: Platform>(
        &self,
        walker: Walker<'_, P>,
        context: Context,
        is_persistent: bool,
    ) -> Result<&Ring, MapError> {
        match self.all().find(|ring| ring.is_persistent == is_persistent && ring.claim()) {
            Some(ring) => Ok(ring),
            None => self.make(walker, context, is_persistent),
        }
    }

    /// Ensures that `pages` table pages belong to rings that no stream has taken yet.
    ///
    /// # Errors
    /// [`NoMemory`]; the rings made so far are kept.
    pub(super) fn reserve<P: Platform>(&self, walker: Walker<'_, P>, pages: usize) -> Result<(), NoMemory> {
        let wanted = pages.div_ceil(self.tables_max());
        loop {
            let kept = self.all().filter(|ring| !ring.is_persistent && !ring.is_in_use()).count();
            if kept >= wanted {
                return Ok(());
            }
            match self.make(walker, Context::MaySleep, false) {
                Ok(ring) => ring.release(),
                // All numbers are used up, so no stream can get another ring.
                Err(MapError::NoRing { .. }) => return Ok(()),
                Err(_) => return Err(NoMemory),
            }
        }
    }

    /// Table pages of the largest ring.
    pub(super) const fn tables_max(&self) -> usize {
        let (stream, persistent) = (Ring::pages_of(self.size), Ring::pages_of(PERSISTENT_ENTRIES));
        if stream > persistent { stream } else { persistent }
    }

    /// Makes one more ring, in use.
    fn make<P: Platform>(
        &self,
        walker: Walker<'_, P>,
        context: Context,
        is_persistent: bool,
    ) -> Result<&Ring, MapError> {
        let platform = walker.platform();
        let size = if is_persistent { PERSISTENT_ENTRIES } else { self.size };
        let pages = Ring::pages_of(size);
        let table = walker.allocate_frames(context, pages)?;
        let made = try_box(platform, context, Ring::new(table, size, is_persistent)).map_err(MapError::from).and_then(
            |mut ring| {
                ring.number = self.take_number()?;
                Ok(ring)
            },
        );
        let ring = match made {
            Ok(ring) => ring,
            Err(error) => {
                // SAFETY: the hardware has not seen the table.
                give_back(platform, table, pages, &unsafe { Proof::trusted() });
                return Err(error);
            }
        };
        self.pages.fetch_add(pages, Ordering::Relaxed);
        let number = usize::from(ring.number);
        self.write_slot(walker, number, RingPointer { table, size }.encode());
        let place = &self.by_number[number - 1];
        // Release: a CPU that finds the ring finds it written.
        place.store(Box::into_raw(ring), Ordering::Release);
        Ok(Self::look(place).expect("a ring that was just made"))
    }

    /// The next number whose addresses may be handed out (S9).
    fn take_number(&self) -> Result<u16, MapError> {
        loop {
            let next = |numbers| (numbers < RINGS_MAX).then_some(numbers + 1);
            // AcqRel: see `all`. It orders nothing else.
            let before = self.numbers.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
            let number = before.map_err(|_| MapError::NoRing { most: RINGS_MAX })? as u64 + 1;
            let pfn = |number: u64| number << (RING_SHIFT - PAGE_SHIFT);
            let (first, end) = (pfn(number), pfn(number + 1));
            if !self.reserved.iter().any(|hole| hole.0 < end && first < hole.1) {
                return Ok(number as u16);
            }
        }
    }

    /// Writes a slot of the table of rings, which the hardware has found absent so far, and makes it visible.
    fn write_slot<P: Platform>(&self, walker: Walker<'_, P>, slot: usize, [low, high]: [u64; 2]) {
        let (page, at) = (slot / SLOTS_PER_PAGE as usize, slot % SLOTS_PER_PAGE as usize * 2);
        // SAFETY: a page of the table, which the platform lends until the domain is closed.
        let frame = unsafe { walker.platform().frame(PhysAddr::new(self.device.as_u64() + page as u64 * PAGE_SIZE)) };
        // The quadword with the size is written last, because size 0 means no ring.
        frame[at].store_bits(low);
        frame[at + 1].store_bits(high);
        walker.show(&frame[at..at + 2]);
    }

    /// Gives back every table.
    pub(super) fn close<P: Platform>(&mut self, platform: &P, proof: &Proof) {
        for ring in self.all() {
            give_back(platform, ring.table, Ring::pages_of(ring.size), proof);
        }
        give_back(platform, self.device, DEVICE_PAGES, proof);
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        for place in &self.by_number {
            let ring = place.load(Ordering::Acquire);
            if !ring.is_null() {
                // SAFETY: a box of `make`; with `&mut self`, no reference to the ring is left.
                drop(unsafe { Box::from_raw(ring) });
            }
        }
    }
}

/// Gives back pages that were lent as contiguous, and that the hardware does not reach.
fn give_back<P: Platform>(platform: &P, first: PhysAddr, pages: usize, proof: &Proof) {
    for page in 0..pages as u64 {
        // SAFETY: lent by `allocate_frames`, and given back once: either because a ring was not made, or at the end
        // of all of them.
        unsafe { table::release_page(platform, PhysAddr::new(first.as_u64() + page * PAGE_SIZE), proof) };
    }
}

fn no_rings<P: Platform>(platform: &P, count: usize) -> Result<Box<[AtomicPtr<Ring>]>, NoMemory> {
    boxed(platform, (0..count).map(|_| AtomicPtr::new(ptr::null_mut())))
}

fn boxed<T, P: Platform>(platform: &P, all: impl ExactSizeIterator<Item = T>) -> Result<Box<[T]>, NoMemory> {
    let mut vec = try_reserve(platform, Context::MaySleep, all.len())?;
    all.for_each(|value| push_within(&mut vec, value));
    Ok(vec.into_boxed_slice())
}
