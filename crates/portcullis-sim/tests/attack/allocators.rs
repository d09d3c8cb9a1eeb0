//! The stock design over small allocators with one flaw. Both keep freed addresses, and take more from the red-black
//! tree of `stock`.
//!
//! They hold no lock of their own during a call of the tree: other virtual cores of the same thread run meanwhile.

use portcullis::invalidation::Deferral;
use portcullis::iova::{Claim, IovaAllocator, IovaRequest, TreeAllocator};
use portcullis::mapper::{AssembledMapper, Design, DesignInfo, DomainSetup, Info};
use portcullis::proof::Proof;
use portcullis::{Iommu, IovaRange, MapError, NewDomainError, Platform, UnmapError};
use portcullis_designs::Stock;
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The flaws are numbers, because they are part of a type.
pub(crate) const NONE: u8 = 0;
/// Addresses are handed out again once their unmap has begun.
pub(crate) const REUSES_WHAT_IS_CLAIMED: u8 = 1;
/// Page 0 is handed out at intervals.
pub(crate) const HANDS_OUT_PAGE_ZERO: u8 = 2;

/// Number of allocations between two that hand out page 0.
const ZERO_AFTER: u64 = 2000;
/// Pages of a window.
const WINDOW: u64 = 64;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Claims the range if it is in `live`, and removes it.
fn claim(live: &mut BTreeMap<u64, u64>, range: IovaRange) -> Result<Claim, UnmapError> {
    match live.get(&range.first_pfn()) {
        Some(pages) if *pages == range.pages() => {
            live.remove(&range.first_pfn());
            Ok(Claim::Held)
        }
        _ => Err(UnmapError::NotMapped(range.start())),
    }
}

/// The stock design over a list of free ranges, with flaw number `FLAW`.
pub(crate) struct Listed<const FLAW: u8>;

impl<const FLAW: u8> DesignInfo for Listed<FLAW> {
    const INFO: Info = Stock::INFO;
}

// SAFETY: its parts are sound, except for the planted flaw. Only a test's own memory is behind it.
unsafe impl<P: Platform, I: Iommu, const FLAW: u8> Design<P, I> for Listed<FLAW> {
    type Mapper = AssembledMapper<ListAllocator<P, FLAW>, P, I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let tree = TreeAllocator::new(&setup.platform, setup.width, setup.reserved)?;
        Ok(to.write(AssembledMapper::new(ListAllocator { tree, lists: Mutex::default() }, Deferral::Global, setup)?))
    }
}

pub(crate) struct ListAllocator<P: Platform, const FLAW: u8> {
    tree: TreeAllocator<P>,
    lists: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    free: Vec<IovaRange>,
    /// The pages of each range in use, by its first page.
    live: BTreeMap<u64, u64>,
    allocations: u64,
}

// SAFETY: without a flaw, a range is in only one of the lists, and the tree has handed it out once. With a flaw, it
// breaks an allocator's promises on purpose; the lab checks which frames are freed.
unsafe impl<P: Platform, const FLAW: u8> IovaAllocator<P> for ListAllocator<P, FLAW> {
    fn allocate(&self, platform: &P, request: &IovaRequest) -> Result<IovaRange, MapError> {
        let kept = {
            let mut lists = lock(&self.lists);
            lists.allocations += 1;
            match lists.free.iter().rposition(|range| range.pages() == request.pages) {
                _ if FLAW == HANDS_OUT_PAGE_ZERO && lists.allocations == ZERO_AFTER => IovaRange::new(0, request.pages),
                Some(index) => Some(lists.free.remove(index)),
                None => None,
            }
        };
        let range = kept.map_or_else(|| self.tree.allocate(platform, request), Ok)?;
        lock(&self.lists).live.insert(range.first_pfn(), range.pages());
        Ok(range)
    }

    fn claim(&self, _platform: &P, range: IovaRange) -> Result<Claim, UnmapError> {
        let mut lists = lock(&self.lists);
        let claim = claim(&mut lists.live, range)?;
        if FLAW == REUSES_WHAT_IS_CLAIMED {
            lists.free.push(range);
        }
        Ok(claim)
    }

    fn free(&self, _platform: &P, range: IovaRange, _proof: &Proof) {
        if FLAW != REUSES_WHAT_IS_CLAIMED {
            lock(&self.lists).free.push(range);
        }
    }

    fn live(&self) -> usize {
        lock(&self.lists).live.len()
    }
}

/// The stock design over windows of pages, for mappings of one page. The pages of a window are handed out in order, and
/// again when all of them are free. With flaw [`REUSES_WHAT_IS_CLAIMED`], they are handed out again as soon as the
/// unmap of the last of them has begun.
pub(crate) struct Windowed<const FLAW: u8>;

impl<const FLAW: u8> DesignInfo for Windowed<FLAW> {
    const INFO: Info = Stock::INFO;
}

// SAFETY: its parts are sound, except for the planted flaw. Only a test's own memory is behind it.
unsafe impl<P: Platform, I: Iommu, const FLAW: u8> Design<P, I> for Windowed<FLAW> {
    type Mapper = AssembledMapper<WindowAllocator<P, FLAW>, P, I>;

    unsafe fn build_in<'t>(
        to: &'t mut MaybeUninit<Self::Mapper>,
        setup: DomainSetup<'_, P, I>,
    ) -> Result<&'t mut Self::Mapper, NewDomainError> {
        let tree = TreeAllocator::new(&setup.platform, setup.width, setup.reserved)?;
        Ok(to.write(AssembledMapper::new(
            WindowAllocator { tree, windows: Mutex::default() },
            Deferral::Global,
            setup,
        )?))
    }
}

pub(crate) struct WindowAllocator<P: Platform, const FLAW: u8> {
    tree: TreeAllocator<P>,
    windows: Mutex<Windows>,
}

#[derive(Default)]
struct Windows {
    /// Pages that may be handed out, the next one last.
    ready: Vec<u64>,
    /// The number of free pages of each window, by the window's number.
    back: BTreeMap<u64, u64>,
    live: BTreeMap<u64, u64>,
}

impl Windows {
    /// Records a freed page. If it is the last of its window, the whole window may be handed out again.
    fn came_back(&mut self, pfn: u64) {
        let window = pfn / WINDOW;
        let back = self.back.entry(window).or_default();
        *back += 1;
        if *back == WINDOW {
            *back = 0;
            self.ready.extend((window * WINDOW..(window + 1) * WINDOW).rev());
        }
    }
}

// SAFETY: without a flaw, a page is handed out again only after all pages of its window are free. With a flaw, it
// breaks an allocator's promises on purpose; the lab checks which frames are freed.
unsafe impl<P: Platform, const FLAW: u8> IovaAllocator<P> for WindowAllocator<P, FLAW> {
    fn allocate(&self, platform: &P, request: &IovaRequest) -> Result<IovaRange, MapError> {
        assert!(request.pages == 1, "windows are for mappings of one page");
        if lock(&self.windows).ready.is_empty() {
            // Aligned to its size, like every range from the tree.
            let window = self.tree.allocate(platform, &IovaRequest { pages: WINDOW, ..*request })?;
            lock(&self.windows).ready.extend((window.first_pfn()..window.end_pfn()).rev());
        }
        let mut windows = lock(&self.windows);
        let pfn = windows.ready.pop().expect("no other core ran since there was one");
        windows.live.insert(pfn, 1);
        Ok(IovaRange::new(pfn, 1).expect("one page"))
    }

    fn claim(&self, _platform: &P, range: IovaRange) -> Result<Claim, UnmapError> {
        let mut windows = lock(&self.windows);
        let claim = claim(&mut windows.live, range)?;
        if FLAW == REUSES_WHAT_IS_CLAIMED {
            windows.came_back(range.first_pfn());
        }
        Ok(claim)
    }

    fn free(&self, _platform: &P, range: IovaRange, _proof: &Proof) {
        if FLAW != REUSES_WHAT_IS_CLAIMED {
            lock(&self.windows).came_back(range.first_pfn());
        }
    }

    fn live(&self) -> usize {
        lock(&self.windows).live.len()
    }
}
