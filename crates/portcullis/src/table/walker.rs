//! The host, as code sees it that writes table pages for the page walker of one unit.

use super::freed::{FreedTables, release_page};
use crate::address::PhysAddr;
use crate::entry::Entry;
use crate::error::NoMemory;
use crate::platform::{Context, Lock, LockClass, Platform};
use crate::proof::Proof;
use crate::sync::{AtomicUsize, Ordering};

/// A host, whether the walker of a unit snoops its caches, and the source of table pages.
pub struct Walker<'p, P: Platform> {
    platform: &'p P,
    coherent: bool,
    reserve: Option<&'p TableReserve<P>>,
}

impl<P: Platform> Clone for Walker<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Walker<'_, P> {}

impl<'p, P: Platform> Walker<'p, P> {
    /// The walker of a unit with this [coherence](crate::iommu::Capabilities::coherent). Table pages come only from
    /// the host.
    #[inline(always)]
    pub const fn new(platform: &'p P, coherent: bool) -> Self {
        Self { platform, coherent, reserve: None }
    }

    /// The same walker, with table pages from `reserve` as well.
    #[inline(always)]
    pub(crate) const fn with_reserve(self, reserve: &'p TableReserve<P>) -> Self {
        Self { reserve: Some(reserve), ..self }
    }

    /// The host.
    #[inline(always)]
    pub const fn platform(self) -> &'p P {
        self.platform
    }

    /// Whether the walker snoops.
    #[inline(always)]
    pub const fn is_coherent(self) -> bool {
        self.coherent
    }

    /// Makes entries visible to the walker.
    #[inline(always)]
    pub fn show(self, entries: &[Entry]) {
        self.platform.table_barrier(entries, self.coherent);
    }

    /// Allocates a table page that the walker finds zeroed. It comes from the host, or from the reserve if the host
    /// has none or if a lock is held.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn allocate_frame(self, context: Context) -> Result<PhysAddr, NoMemory> {
        let Some(reserve) = self.reserve else { return self.allocate_frames(context, 1) };
        if !reserve.comes_first
            && let Ok(frame) = self.allocate_frames(context, 1)
        {
            return Ok(frame);
        }
        reserve.take(self.platform).ok_or(NoMemory)
    }

    /// Allocates contiguous table pages from the host, see [`Platform::allocate_frames`].
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn allocate_frames(self, context: Context, count: usize) -> Result<PhysAddr, NoMemory> {
        let first = match count {
            1 => self.platform.allocate_frame(context),
            _ => self.platform.allocate_frames(context, count),
        }?;
        if !self.coherent {
            for page in 0..count as u64 {
                // SAFETY: the page was just lent to this call.
                self.show(unsafe { self.platform.frame(PhysAddr::from_pfn(first.pfn() + page)) });
            }
        }
        Ok(first)
    }
}

impl FreedTables {
    /// Adds a page, and makes its link visible to the walker.
    ///
    /// # Safety
    /// As for [`push_unshown`](Self::push_unshown).
    pub unsafe fn push<P: Platform>(&mut self, walker: Walker<'_, P>, frame: PhysAddr) {
        // SAFETY: the caller's promise, passed on.
        let link = unsafe { self.push_unshown(walker.platform(), frame) };
        walker.show(core::slice::from_ref(link));
    }
}

/// Table pages that a domain keeps for maps that get none from the host.
pub(crate) struct TableReserve<P: Platform> {
    pages: P::Lock<FreedTables>,
    /// The number of pages. Written only under the lock, so plain stores suffice. Read without it (Relaxed): a map
    /// that finds too few asks again under the lock.
    count: AtomicUsize,
    /// The number of pages to keep when no map is in progress. Relaxed: it orders nothing else.
    wanted: AtomicUsize,
    /// The number of further pages that maps in progress may take. Relaxed as well: a CPU that reads it too early
    /// gives back pages that another map then has to request again.
    claimed: AtomicUsize,
    /// Maps take pages only from here, because they hold a lock.
    comes_first: bool,
}

impl<P: Platform> TableReserve<P> {
    /// An empty reserve.
    pub(crate) fn new(platform: &P) -> Self {
        let pages = platform.lock(LockClass::TableReserve, FreedTables::new());
        let [count, wanted, claimed] = [const { 0 }; 3].map(AtomicUsize::new);
        Self { pages, count, wanted, claimed, comes_first: false }
    }

    /// From now on maps do not ask the host.
    pub(crate) fn come_first(&mut self) {
        self.comes_first = true;
    }

    /// Sets the number of pages to keep. A call of [`fill`](Self::fill) has to follow.
    pub(crate) fn want(&self, pages: usize) {
        self.wanted.store(pages, Ordering::Relaxed);
    }

    /// Lets a map take `pages` pages until it [ends its claim](Self::end_claim). If there are not enough, takes up to
    /// this many from the host. The caller must not hold a lock.
    ///
    /// # Errors
    /// [`NoMemory`] if there are fewer pages than maps may take. The claim stands all the same.
    pub(crate) fn claim(&self, walker: Walker<'_, P>, pages: usize) -> Result<(), NoMemory> {
        let claimed = self.claimed.fetch_add(pages, Ordering::Relaxed) + pages;
        let filled = self.fill(walker, Context::Atomic, pages);
        if self.count.load(Ordering::Relaxed) >= claimed { Ok(()) } else { filled }
    }

    /// Ends the claim of a map on `pages` pages.
    pub(crate) fn end_claim(&self, pages: usize) {
        self.claimed.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Takes pages from the host, at most `at_most`, until there are as many as are wanted and claimed. The caller
    /// must not hold a lock.
    ///
    /// # Errors
    /// [`NoMemory`]; the pages that the host had are kept.
    pub(crate) fn fill(&self, walker: Walker<'_, P>, context: Context, at_most: usize) -> Result<(), NoMemory> {
        let mut taken = 0;
        while taken < at_most && self.count.load(Ordering::Relaxed) < self.due() {
            let frame = walker.allocate_frames(context, 1)?;
            self.with(|pages| {
                // SAFETY: the page was just lent, so no entry points to it and no CPU walks it.
                unsafe { pages.push_unshown(walker.platform, frame) };
            });
            taken += 1;
        }
        Ok(())
    }

    /// The number of pages that there should be now.
    fn due(&self) -> usize {
        self.wanted.load(Ordering::Relaxed).saturating_add(self.claimed.load(Ordering::Relaxed))
    }

    /// Gives back to the host the pages beyond those wanted, those claimed and `more`.
    pub(crate) fn trim(&self, platform: &P, more: usize) {
        while self.count.load(Ordering::Relaxed) > self.due().saturating_add(more)
            && let Some(frame) = self.take(platform)
        {
            // SAFETY: the page was taken from the reserve, and is in no table.
            unsafe { release_page(platform, frame, &Proof::never_visible()) };
        }
    }

    fn take(&self, platform: &P) -> Option<PhysAddr> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.with(|pages| pages.pop(platform))
    }

    fn with<R>(&self, act: impl FnOnce(&mut FreedTables) -> R) -> R {
        self.pages.with(|pages| {
            let result = act(pages);
            self.count.store(pages.pages(), Ordering::Relaxed);
            result
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::platform::fake::FakeHost;

    #[test]
    fn what_one_map_has_claimed_another_does_not_give_back() {
        let host = FakeHost::default();
        let (walker, reserve) = (Walker::new(&host, true), TableReserve::new(&host));
        reserve.claim(walker, 3).expect("memory");
        reserve.claim(walker, 2).expect("memory");
        reserve.end_claim(2);
        reserve.trim(&host, 0);
        assert_eq!(host.frames_lent(), 3);
        reserve.end_claim(3);
        reserve.trim(&host, 0);
        assert_eq!(host.frames_lent(), 0);
    }

    #[test]
    fn pages_that_are_kept_serve_claims() {
        let host = FakeHost::default();
        let (walker, reserve) = (Walker::new(&host, true), TableReserve::new(&host));
        reserve.want(4);
        reserve.fill(walker, Context::MaySleep, usize::MAX).expect("memory");
        assert_eq!(host.frames_lent(), 4);
        host.limit_frames(0);
        reserve.claim(walker, 4).expect("as many as are kept");
        assert_eq!(reserve.claim(walker, 1), Err(NoMemory), "one more than are kept");
        reserve.end_claim(5);
        reserve.want(0);
        reserve.trim(&host, 0);
        assert_eq!(host.frames_lent(), 0);
    }
}
