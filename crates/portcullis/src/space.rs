//! The address space of a domain: its table and its id in the IOMMU, from opening to teardown.

use crate::address::{IovaRange, PhysAddr, Segment};
use crate::error::{MapError, NewDomainError, NoMemory, SyncError, UnmapError};
use crate::iommu::{Capabilities, DomainId, Invalidation, Iommu, QueueError, Translation, TrySubmit, covering};
use crate::platform::memory::try_box;
use crate::platform::{Context, Phase, Platform, Step, Walk, on_unwind};
use crate::proof::Proof;
use crate::request::{Access, Request};
use crate::sub_page::{BouncePool, SubPage};
use crate::submission::{Patience, Submission};
use crate::sync::{AtomicBool, AtomicU64, Ordering, PanicFlag, PanicTag, StaticCounter};
use crate::table::{self, Frame, FreedTables, LEVEL_BITS, SecondLevelTable, TableReserve, TableRule, Walker};
use alloc::boxed::Box;

mod bounced;
mod depart;
mod face;
mod one_by_one;
mod reserve;
mod sharing;

pub use face::Space;

/// The number of tags given out so far.
static TAGS: StaticCounter = StaticCounter::new(0);

/// The number of low bits of a tag that are zero, in which a batch counts its unmaps.
pub(crate) const TAG_SHIFT: u32 = 8;

/// A tag that no domain has.
pub(crate) const NO_TAG: u64 = 0;

/// A tag for the unmaps of a domain, different from that of every other domain. A mapper without an [`AddressSpace`]
/// takes one.
pub fn next_tag() -> u64 {
    // Relaxed: only uniqueness matters.
    (TAGS.fetch_add(1, Ordering::Relaxed) as u64 + 1) << TAG_SHIFT
}

/// A domain of the IOMMU and the table that it translates through.
pub struct AddressSpace<P: Platform, I: Iommu> {
    platform: P,
    iommu: I,
    capabilities: Capabilities,
    id: DomainId,
    /// Tells this space from every other, including those with the same id in another IOMMU.
    tag: u64,
    /// The tag that unmaps need to enter a batch: `tag`, or [`NO_TAG`] after the first panic. Relaxed: as `panicked`.
    batch_tag: PanicTag,
    table: SecondLevelTable,
    reserve: TableReserve<P>,
    /// One past the last page that the table translates.
    end_pfn: u64,
    /// Set by the first failed invalidation or the first panic. From then on nothing is mapped. Relaxed: other CPUs
    /// need to see it only at some later time, and the buffers concerned are quarantined in any case.
    poisoned: AtomicBool,
    patience: Patience,
    /// Set by the first panic in code that takes locks. From then on no lock is taken. Relaxed: a lock that a panic
    /// has left is not taken again in any case, see [`Lock`](crate::platform::Lock). The flag gives the caller an
    /// error instead of another panic.
    panicked: PanicFlag,
    /// A map to memory below this address needs only its entries to be written. Relaxed: as `poisoned`.
    plain_below: AtomicU64,
    /// The bounce pages, if the domain bounces partial pages.
    bounce: Option<Box<BouncePool<P>>>,
    closed: bool,
}

/// An invalidation that was not done at once: the ticket of its submission, or none where there was no room for it.
pub(crate) struct Pending<T>(TrySubmit<T>);

impl<T> Pending<T> {
    /// One that was submitted.
    pub(crate) const fn submitted(ticket: T) -> Self {
        Self(Ok(Some(ticket)))
    }
}

impl<P: Platform, I: Iommu> AddressSpace<P, I> {
    /// Opens a domain with an empty table that translates addresses of up to `width` bits.
    ///
    /// # Errors
    /// [`NewDomainError::Width`] if the hardware supports no such table, [`NewDomainError::NoMemory`], and those of
    /// [`Iommu::open_domain`].
    pub fn new(iommu: I, platform: P, width: u8, rule: TableRule) -> Result<Self, NewDomainError> {
        let capabilities = iommu.capabilities();
        let levels = match width {
            1..=39 if capabilities.three_level => 3,
            1..=48 if capabilities.four_level => 4,
            _ => return Err(NewDomainError::Width(width)),
        };
        let walker = Walker::new(&platform, capabilities.coherent);
        let table = SecondLevelTable::new(walker, levels, &capabilities, rule)?;
        // SAFETY: the table belongs to this space alone, and is freed only after the domain has been closed.
        let id = match unsafe { iommu.open_domain(Translation::Tables { root: table.root(), levels }) } {
            Ok(id) => id,
            Err(error) => {
                // SAFETY: no other CPU knows the table.
                let pages = unsafe { table.dismantle(walker) };
                table::release(&platform, pages, &Proof::never_visible());
                return Err(error.into());
            }
        };
        let tag = next_tag();
        let plain_below = if capabilities.caches_absent { 0 } else { 1 << capabilities.physical_bits.min(52) };
        Ok(Self {
            reserve: TableReserve::new(&platform),
            platform,
            iommu,
            capabilities,
            id,
            tag,
            batch_tag: PanicTag::new(tag),
            table,
            end_pfn: 1 << (u32::from(levels) * LEVEL_BITS),
            poisoned: AtomicBool::new(false),
            patience: Patience::whole(),
            panicked: PanicFlag::new(false),
            plain_below: AtomicU64::new(plain_below),
            bounce: None,
            closed: false,
        })
    }

    /// Creates bounce pages if `sub_page` needs them.
    ///
    /// # Errors
    /// [`NewDomainError::CannotBounce`] from a host that cannot copy memory, [`NewDomainError::NoMemory`].
    pub fn set_sub_page(&mut self, sub_page: SubPage) -> Result<(), NewDomainError> {
        if sub_page == SubPage::Bounce {
            self.bounce = Some(try_box(&self.platform, Context::MaySleep, BouncePool::new(&self.platform)?)?);
        }
        Ok(())
    }

    /// The host.
    #[inline]
    pub const fn platform(&self) -> &P {
        &self.platform
    }

    /// The walker of the IOMMU.
    #[inline(always)]
    pub const fn walker(&self) -> Walker<'_, P> {
        Walker::new(&self.platform, self.capabilities.coherent).with_reserve(&self.reserve)
    }

    /// What the IOMMU can do.
    #[inline]
    pub const fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The tag, which tells this space from every other.
    #[inline]
    pub const fn tag(&self) -> u64 {
        self.tag
    }

    /// The tag for unmaps that enter a batch; [`NO_TAG`] if they could not be committed, after a panic.
    #[inline(always)]
    pub(crate) fn batch_tag(&self) -> u64 {
        self.batch_tag.load(Ordering::Relaxed)
    }

    /// The table.
    #[inline]
    pub const fn table(&self) -> &SecondLevelTable {
        &self.table
    }

    /// Whether an invalidation has failed, or code of the domain has panicked.
    #[inline]
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Relaxed)
    }

    /// Returns an error if an invalidation has failed, or if code of the domain has panicked.
    ///
    /// # Errors
    /// [`MapError::Poisoned`].
    #[inline]
    pub fn refuse_if_poisoned(&self) -> Result<(), MapError> {
        if self.is_poisoned() { Err(MapError::Poisoned) } else { Ok(()) }
    }

    /// Whether the state behind the domain's locks may be half changed.
    #[inline]
    pub fn has_panicked(&self) -> bool {
        self.panicked.load(Ordering::Relaxed)
    }

    /// One past the last page that the table translates.
    #[inline(always)]
    pub(crate) fn end_pfn(&self) -> u64 {
        self.end_pfn
    }

    /// Runs `act`, which takes locks. Returns `None` without running it if an earlier call has panicked.
    ///
    /// A panic poisons the domain after the locks are released. A CPU that waits for one of them panics in turn, as
    /// [`Lock`](crate::platform::Lock) says. Code that takes no lock does not need this: it leaves no state behind
    /// that other CPUs could not meet at any time.
    #[inline(always)]
    pub fn unless_panicked<R>(&self, act: impl FnOnce() -> R) -> Option<R> {
        if self.has_panicked() { None } else { Some(self.poison_on_panic(act)) }
    }

    /// Does the same without the check, for maps, which have already checked that the domain is not poisoned.
    #[inline(always)]
    pub fn poison_on_panic<R>(&self, act: impl FnOnce() -> R) -> R {
        on_unwind(
            || {
                self.panicked.store(true, Ordering::Relaxed);
                self.batch_tag.store(NO_TAG, Ordering::Relaxed);
                self.poison();
            },
            act,
        )
    }

    /// Whether a map needs only its entries to be written: the IOMMU can address the memory and does not cache absent
    /// entries, no invalidation has failed, and [`end_plain_maps`](Self::end_plain_maps) was not called.
    #[inline(always)]
    pub(crate) fn is_plain(&self, request: &Request<'_>) -> bool {
        // The limit is a multiple of the page size: a buffer within a page lies below it if its first byte does.
        let below = self.plain_below.load(Ordering::Relaxed);
        request.segments().iter().all(|segment| match request.pages() {
            1 => segment.phys.as_u64() < below,
            _ => segment.phys.as_u64() + (segment.len - 1) < below,
        })
    }

    /// Whether maps of `segments`, each within a page, need only their entries to be written.
    #[inline(always)]
    pub(crate) fn are_plain(&self, segments: &[Segment]) -> bool {
        let below = self.plain_below.load(Ordering::Relaxed);
        segments.iter().all(|segment| segment.phys.as_u64() < below)
    }

    /// From now on no map [is plain](Self::is_plain).
    pub(crate) fn end_plain_maps(&self) {
        self.plain_below.store(0, Ordering::Relaxed);
    }

    /// Returns an error if a segment lies beyond what the IOMMU can address.
    ///
    /// # Errors
    /// [`MapError::PhysicalRange`].
    #[inline(always)]
    pub(crate) fn check_physical(&self, segments: &[Segment]) -> Result<(), MapError> {
        segments.iter().try_for_each(|segment| self.table.check_physical(segment))
    }

    /// The leaf table that translates page `pfn`, which is added if it does not exist.
    ///
    /// # Errors
    /// [`NoMemory`].
    ///
    /// # Safety
    /// Nothing larger than 4 KiB is mapped around `pfn`, which is below what the table translates.
    pub(crate) unsafe fn add_leaf_table(&self, pfn: u64) -> Result<&Frame, NoMemory> {
        // SAFETY: the caller's promise, passed on; the walker is that of `new`.
        unsafe { self.table.add_leaf_table(self.walker(), pfn) }
    }

    /// Removes the leaf table that translates page `pfn`, and returns its page.
    ///
    /// # Safety
    /// [`add_leaf_table`](Self::add_leaf_table) has added the table, and nothing is mapped in it. No other CPU removes
    /// it at the same time. The page is freed only after an all-levels invalidation and after the software walks that
    /// may use it.
    pub(crate) unsafe fn remove_leaf_table(&self, pfn: u64) -> PhysAddr {
        // SAFETY: the caller's promise, passed on; the walker is that of `new`.
        unsafe { self.table.remove_leaf_table(self.walker(), pfn) }
    }

    /// Writes translations, with or without marks ([`SecondLevelTable::map`]). The caller must then call
    /// [`sync_map`](Self::sync_map).
    ///
    /// # Errors
    /// Those of [`SecondLevelTable::map`].
    ///
    /// # Safety
    /// The segments have as many pages as `range`. `range` lies within what the table translates, and belongs to the
    /// caller alone until it is unmapped. The rule is not [`TableRule::FreedByDesign`].
    #[inline(always)]
    pub unsafe fn map(
        &self,
        range: IovaRange,
        segments: &[Segment],
        access: Access,
        marked: bool,
    ) -> Result<(), MapError> {
        // SAFETY: the caller's promise, passed on; the walker is that of `new`.
        unsafe { self.table.map(self.walker(), range, segments, access.rights(), marked) }
    }

    /// Completes a map. Invalidates `range` if the IOMMU caches absent entries, or if it may still walk table pages
    /// that were there before. Must not be called with a lock held.
    ///
    /// # Errors
    /// [`SyncError`] if that failed: the domain is poisoned, and neither the range nor the memory may be used again.
    #[inline(always)]
    pub fn sync_map(&self, range: IovaRange) -> Result<(), SyncError> {
        if self.capabilities.caches_absent || self.table.is_unsettled() {
            self.invalidate_mapped(range)?;
        }
        Ok(())
    }

    #[cold]
    fn invalidate_mapped(&self, range: IovaRange) -> Result<(), SyncError> {
        self.platform.probe(Step::Enter(Phase::Invalidate));
        // All levels: the hardware may have cached a directory entry that was absent, or that led to a table page
        // which has been removed.
        let command = self.covering(range, false);
        Ok(self.invalidate(&[command]).map(drop)?)
    }

    /// Clears the translations of a claimed mapping. Returns whether table pages were added to `freed`.
    ///
    /// # Safety
    /// `range` is exactly that of a mapping that no other CPU unmaps. The rule is not
    /// [`TableRule::FreedByDesign`].
    pub unsafe fn unmap(&self, range: IovaRange, freed: &mut FreedTables) -> bool {
        // SAFETY: the caller's promise, passed on; the walker is that of `new`.
        unsafe { self.table.unmap(self.walker(), range, freed) }
    }

    /// Unmaps as [`unmap`](Self::unmap) does, in a table that keeps its pages.
    ///
    /// # Safety
    /// That of [`unmap`](Self::unmap). The rule is [`TableRule::Kept`] or [`TableRule::Overwritten`].
    pub unsafe fn unmap_kept(&self, range: IovaRange) {
        // SAFETY: the caller's promise, passed on; the walker is that of `new`.
        unsafe { self.table.unmap_kept(self.walker(), range) }
    }

    /// Claims the mapping at exactly `range` by its marks in the table, and clears its translations.
    ///
    /// # Errors
    /// Those of [`SecondLevelTable::claim_and_unmap`].
    ///
    /// # Panics
    /// If the table does not keep its pages.
    ///
    /// # Safety
    /// Marked mappings are claimed only by this method.
    pub unsafe fn claim_and_unmap(&self, range: IovaRange) -> Result<(), UnmapError> {
        // SAFETY: the caller's promise, passed on; the walker is that of `new`.
        unsafe { self.table.claim_and_unmap(self.walker(), range) }
    }

    /// Frees table pages.
    pub(crate) fn release(&self, tables: FreedTables, proof: &Proof) {
        self.table.note_lost(&tables, proof);
        table::release(&self.platform, tables, proof);
    }

    /// Frees a page that [`remove_leaf_table`](Self::remove_leaf_table) has returned.
    ///
    /// # Safety
    /// The page was returned by that call and has not been freed since, and no CPU walks it.
    pub(crate) unsafe fn release_leaf_table(&self, page: PhysAddr, proof: &Proof) {
        self.platform.probe(Step::TablePage);
        // SAFETY: the caller's promise, passed on; the walker is that of `new`.
        unsafe { table::release_page(&self.platform, page, proof) };
    }

    /// The command that covers `range`: the smallest aligned power of two of pages around it, or the whole domain if
    /// the hardware has no page-selective command of that size. A domain-selective command drops all levels, so it is
    /// correct with and without the hint.
    #[inline(always)]
    pub fn covering(&self, range: IovaRange, leaf_only: bool) -> Invalidation {
        covering(self.id, range, leaf_only, &self.capabilities)
    }

    /// Submits the commands and waits until they have taken effect, for at most [`Platform::wait_us_max`].
    ///
    /// # Errors
    /// A [`QueueError`]; the domain is then poisoned (S11).
    pub fn invalidate(&self, commands: &[Invalidation]) -> Result<Proof, QueueError> {
        self.wait(self.submit(commands)?)
    }

    /// Invalidates as [`invalidate`](Self::invalidate) does, but lets the commands share a submission with those of
    /// others. If that fails, which may be due to another caller's commands, they are submitted again in a submission
    /// of their own, with a new time limit.
    ///
    /// # Errors
    /// A [`QueueError`]; the domain is then poisoned (S11).
    #[inline(always)]
    pub(crate) fn invalidate_shared(&self, commands: &[Invalidation]) -> Result<Proof, QueueError> {
        let ticket = self.iommu.submit_shared(commands);
        match ticket.and_then(|ticket| Proof::ask(&self.iommu, ticket)) {
            // The hardware was done before the clock was read.
            Ok(Some(proof)) => Ok(proof),
            _ => self.await_shared(ticket).unwrap_or_else(|| self.invalidate(commands)),
        }
    }

    /// The first part of [`invalidate_shared`](Self::invalidate_shared), which does not wait. If it returns a
    /// [`Pending`], the rest is [`invalidate_pending`](Self::invalidate_pending), to be called after the walk.
    #[inline(always)]
    pub(crate) fn invalidate_at_once(
        &self,
        _walk: Walk<'_>,
        command: Invalidation,
    ) -> Result<Proof, Pending<I::Ticket>> {
        Proof::of_one(&self.iommu, command).map_err(Pending)
    }

    /// Waits for what [`invalidate_at_once`](Self::invalidate_at_once) has begun.
    ///
    /// # Errors
    /// Those of [`invalidate_shared`](Self::invalidate_shared).
    #[cold]
    pub(crate) fn invalidate_pending(
        &self,
        Pending(ticket): Pending<I::Ticket>,
        commands: &[Invalidation],
    ) -> Result<Proof, QueueError> {
        let ticket = ticket.transpose().unwrap_or_else(|| self.iommu.submit_shared(commands));
        self.await_shared(ticket).unwrap_or_else(|| self.invalidate(commands))
    }

    /// Waits for a shared submission. `None` if it has failed, so that its commands have to be submitted again in a
    /// submission of their own.
    #[cold]
    #[inline(never)]
    pub(crate) fn await_shared(&self, ticket: Result<I::Ticket, QueueError>) -> Option<Result<Proof, QueueError>> {
        let spin = |submission: Submission<_>| submission.spin(&self.platform, &self.iommu, &self.patience);
        let shared = self.submission(ticket).and_then(spin);
        match shared {
            // The commit has no time left for another submission.
            Err(QueueError::Timeout(_) | QueueError::Unresponsive) => Some(shared.inspect_err(|_| self.poison())),
            Err(_) => None,
            Ok(_) => Some(shared),
        }
    }

    /// Submits the commands without waiting.
    ///
    /// # Errors
    /// A [`QueueError`]; the domain is then poisoned (S11).
    pub(crate) fn submit(&self, commands: &[Invalidation]) -> Result<Submission<I::Ticket>, QueueError> {
        self.submission(self.iommu.submit(commands)).inspect_err(|_| self.poison())
    }

    /// A submission made just now.
    fn submission(&self, ticket: Result<I::Ticket, QueueError>) -> Result<Submission<I::Ticket>, QueueError> {
        Ok(Submission::now(&self.platform, ticket?))
    }

    /// Whether a submission has taken effect.
    ///
    /// # Errors
    /// A [`QueueError`]; [`QueueError::Timeout`] if it has not taken effect for more than [`Platform::wait_us_max`].
    /// The domain is then poisoned (S11).
    pub fn is_done(&self, submission: Submission<I::Ticket>) -> Result<Option<Proof>, QueueError> {
        submission.look(&self.platform, &self.iommu).inspect_err(|_| self.poison())
    }

    /// Waits until a submission has taken effect, for at most [`Platform::wait_us_max`] from its submission. A domain
    /// that got no answer once waits for a hundredth of that, in all.
    ///
    /// # Errors
    /// Those of [`is_done`](Self::is_done), and [`QueueError::Unresponsive`].
    pub fn wait(&self, submission: Submission<I::Ticket>) -> Result<Proof, QueueError> {
        submission.spin(&self.platform, &self.iommu, &self.patience).inspect_err(|_| self.poison())
    }

    fn poison(&self) {
        self.poisoned.store(true, Ordering::Relaxed);
        self.end_plain_maps();
    }

    /// Teardown (S10). The IOMMU detaches the devices and drops everything cached. Then the table pages are freed,
    /// together with those that `forgotten` returns, which belong to unmaps that were not flushed yet. If the IOMMU
    /// does not answer, or if code of the domain has panicked, all pages are kept for good.
    pub(crate) fn close(&mut self, forgotten: impl FnOnce(Walker<'_, P>, &SecondLevelTable, &Proof) -> FreedTables) {
        self.closed = true;
        if !self.has_panicked() {
            // The other pages may have to be kept. No hardware has seen these.
            self.reserve.want(0);
            self.reserve.trim(&self.platform, 0);
        }
        // SAFETY: `new` has opened the domain, and `closed` ensures that it is closed once.
        let Ok(proof) = (unsafe { Proof::close(&self.iommu, self.id) }) else { return };
        if self.has_panicked() {
            // State that a panic has left half changed is not inspected: all of it is kept for good.
            return;
        }
        let waiting = forgotten(self.walker(), &self.table, &proof);
        // SAFETY: `&mut self`: no other CPU uses the table, and nothing uses it from now on.
        let mut pages = unsafe { self.table.dismantle(self.walker()) };
        pages.append(&self.platform, waiting);
        table::release(&self.platform, pages, &proof);
        if let Some(bounce) = &self.bounce {
            bounce.close(&self.platform, &proof);
        }
    }
}

impl<P: Platform, I: Iommu> Drop for AddressSpace<P, I> {
    fn drop(&mut self) {
        if !self.closed {
            self.close(|_, _, _| FreedTables::new());
        }
    }
}
