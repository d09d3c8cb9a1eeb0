//! The mapper of the design `riommu`: a driver for rings.

use super::ring::Ring;
use super::rings::Rings;
use crate::sync::{AtomicBool, Ordering};
use portcullis::IovaRange;
use portcullis::Request;
use portcullis::error::{CommitError, MapError, NewDomainError, NoMemory, RawMapError, SyncError, UnmapError};
use portcullis::invalidation::{Counted, Due, Revoked, Runs};
use portcullis::iommu::rings::{ENTRY_PAGES, RING_ADDRESS_MASK, RING_ENTRIES_MAX, RingAddress, SEGMENT_BYTES_MAX};
use portcullis::iommu::{AttachError, Capabilities, DomainId, Invalidation, Iommu, QueueError, SourceId, Translation};
use portcullis::mapper::{Addressing, DomainSetup, Mapper, Usage};
use portcullis::platform::on_unwind;
use portcullis::platform::{Context, Phase, Platform, Step};
use portcullis::proof::{Committed, Proof};
use portcullis::submission::{Patience, Submission};
use portcullis::table::Walker;
use portcullis::{Space, next_tag};

/// The addressing of rings.
pub(crate) const ADDRESSING: Addressing = Addressing::Entries { pages: ENTRY_PAGES };

/// A mapper whose devices go through rings.
pub struct RingMapper<P: Platform, I: Iommu> {
    platform: P,
    iommu: I,
    capabilities: Capabilities,
    id: DomainId,
    tag: u64,
    rings: Rings,
    /// Set by the first invalidation that failed, and by a panic of a hook, which may leave entries held for good.
    /// From then on nothing is mapped. Relaxed: it has to be seen only eventually, and the buffers concerned are
    /// quarantined either way.
    is_poisoned: AtomicBool,
    patience: Patience,
}

impl<P: Platform, I: Iommu> RingMapper<P, I> {
    /// Opens a domain whose rings have `size` entries.
    ///
    /// # Errors
    /// [`NewDomainError::NoRings`] if the hardware has none, [`NewDomainError::NoMemory`], and those of
    /// [`Iommu::open_domain`].
    ///
    /// # Panics
    /// If a ring cannot have that many entries.
    pub fn new(setup: DomainSetup<'_, P, I>, size: u32) -> Result<Self, NewDomainError> {
        assert!((1..=RING_ENTRIES_MAX).contains(&size), "a ring of {size} entries");
        let DomainSetup { iommu, platform, reserved, .. } = setup;
        let capabilities = iommu.capabilities();
        if !capabilities.rings {
            return Err(NewDomainError::NoRings);
        }
        let mut rings = Rings::new(Walker::new(&platform, capabilities.coherent), size, reserved)?;
        // SAFETY: only this domain uses the tables, and they are freed after it has been closed.
        let id = match unsafe { iommu.open_domain(Translation::Rings { device: rings.device() }) } {
            Ok(id) => id,
            Err(error) => {
                // SAFETY: the hardware has not seen the tables.
                rings.close(&platform, &unsafe { Proof::trusted() });
                return Err(error.into());
            }
        };
        Ok(Self {
            platform,
            iommu,
            capabilities,
            id,
            tag: next_tag(),
            rings,
            is_poisoned: AtomicBool::new(false),
            patience: Patience::whole(),
        })
    }

    /// The walker of the IOMMU.
    #[inline(always)]
    const fn walker(&self) -> Walker<'_, P> {
        Walker::new(&self.platform, self.capabilities.coherent)
    }

    /// Refuses requests that no ring can hold.
    fn check(&self, request: &Request<'_>) -> Result<(), MapError> {
        let (segments, entries) = (request.segments(), self.rings.size_for(request.lifetime));
        if segments.len() > entries as usize {
            return Err(MapError::ListTooLong { segments: segments.len(), entries });
        }
        for segment in segments {
            if segment.len > SEGMENT_BYTES_MAX {
                return Err(MapError::SegmentTooLong { len: segment.len, most: SEGMENT_BYTES_MAX });
            }
            let last = segment.phys.as_u64().checked_add(segment.len - 1);
            if last.is_none_or(|last| last >> self.capabilities.physical_bits.min(63) != 0) {
                return Err(MapError::PhysicalRange(segment.phys));
            }
        }
        Ok(())
    }

    /// The ring, the first entry and the number of entries that `range` touches.
    fn entries(&self, range: IovaRange) -> Result<(&Ring, u32, u32), UnmapError> {
        let whole = ADDRESSING.whole(range);
        let RingAddress { ring, entry, .. } = RingAddress::of(whole.start());
        let ring = self.rings.numbered(ring).ok_or(UnmapError::NotMapped(whole.start()))?;
        let count = u32::try_from(whole.pages() / ENTRY_PAGES).unwrap_or(u32::MAX);
        Ok((ring, entry, count))
    }

    /// The ring, the first entry and the number of entries of an unmapped mapping.
    fn noted(&self, revoked: Revoked) -> (&Ring, u32, u32) {
        let (first, count) = (revoked.range.first_pfn() * ENTRY_PAGES, revoked.range.pages() * ENTRY_PAGES);
        self.entries(IovaRange::new(first, count).expect("pages")).expect("it was unmapped there")
    }

    /// Makes the mapping at `range` invalid. Returns its ring, first entry and number of entries.
    fn clear(&self, range: IovaRange) -> Result<(&Ring, u32, u32), UnmapError> {
        let platform = &self.platform;
        platform.probe(Step::Enter(Phase::Other));
        platform.probe(Step::Unmap);
        platform.probe(Step::Enter(Phase::Table));
        platform.probe(Step::RingFind);
        let (ring, first, count) = self.entries(range)?;
        platform.probe(Step::RingClear { entries: count as usize });
        ring.clear(self.walker(), first, count)?;
        Ok((ring, first, count))
    }

    /// The command that invalidates a ring.
    fn invalidation_of(&self, ring: &Ring) -> Invalidation {
        let first = RingAddress { ring: ring.number, entry: 0, offset: 0 }.iova();
        Invalidation::Pages { domain: self.id, first, mask: RING_ADDRESS_MASK, leaf_only: true }
    }

    /// Submits the commands and waits until they have taken effect.
    fn invalidate<C: ExactSizeIterator<Item = Invalidation>>(
        &self,
        commands: &impl Fn() -> C,
    ) -> Result<Proof, QueueError> {
        let ticket = self.iommu.submit_each(commands, false);
        let submission = ticket.map(|ticket| Submission::now(&self.platform, ticket));
        let proof = submission.and_then(|submission| submission.spin(&self.platform, &self.iommu, &self.patience));
        proof.inspect_err(|_| self.poison())
    }

    fn poison(&self) {
        self.is_poisoned.store(true, Ordering::Relaxed);
    }

    fn poison_on_panic<R>(&self, act: impl FnOnce() -> R) -> R {
        on_unwind(|| self.poison(), act)
    }

    /// Takes entries and writes a mapping to them.
    fn take_and_write(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        let (platform, segments) = (&self.platform, request.segments());
        platform.probe(Step::Enter(Phase::IovaAllocate));
        let ring = self.rings.of(self.walker(), request)?;
        // At most as many as a ring has entries. A persistent mapping always finds room, because its ring is empty.
        let count = segments.len() as u32;
        platform.probe(Step::RingTake { entries: segments.len() });
        let taken = ring.take(platform, count);
        let first = taken.ok_or(MapError::RingFull { ring: ring.number, entries: ring.size })?;
        platform.probe(Step::Enter(Phase::Table));
        platform.probe(Step::RingWrite { entries: segments.len() });
        ring.write(self.walker(), first, segments, request.access().rights());
        if self.capabilities.caches_absent {
            platform.probe(Step::Enter(Phase::Invalidate));
            if let Err(error) = self.invalidate(&|| core::iter::once(self.invalidation_of(ring))) {
                // The entries are cleared, but never freed: they are quarantined (S11).
                let _ = ring.clear(self.walker(), first, count);
                return Err(SyncError(error).into());
            }
        }
        Ok(ring.range(first, count))
    }

    /// Ends a burst: invalidates each of its rings once, and then frees its entries.
    fn invalidate_and_free(&self, revocation: &mut Runs) -> Result<Committed, CommitError> {
        // If it fails, the entries stay held. They are quarantined for good (S11), and no later commit frees them.
        let proof = self.invalidate_rings(revocation).inspect_err(|_| revocation.forget())?;
        self.platform.probe(Step::Enter(Phase::IovaFree));
        revocation.revoked().for_each(|revoked| self.give_back(self.noted(revoked), &proof));
        revocation.clear_runs();
        Ok(Committed::Proven(proof))
    }

    #[inline(never)]
    fn invalidate_rings(&self, revocation: &Runs) -> Result<Proof, QueueError> {
        self.platform.probe(Step::Enter(Phase::Invalidate));
        // A bit for the first unmap of each ring, in the order of the unmaps. A list of commands would take a
        // kilobyte of stack.
        let mut firsts = 0u64;
        for (number, revoked) in revocation.revoked().enumerate() {
            let ring: *const Ring = self.noted(revoked).0;
            let mut before = revocation.revoked().take(number);
            firsts |= u64::from(!before.any(|other| core::ptr::eq(self.noted(other).0, ring))) << number;
        }
        self.invalidate(&|| {
            let firsts_of_rings = revocation.revoked().enumerate().filter(move |(number, _)| firsts >> number & 1 != 0);
            let commands = firsts_of_rings.map(|(_, revoked)| self.invalidation_of(self.noted(revoked).0));
            Counted::new(commands, firsts.count_ones() as usize)
        })
    }

    /// Gives back entries whose ring was invalidated.
    fn give_back(&self, (ring, first, count): (&Ring, u32, u32), proof: &Proof) {
        self.platform.probe(Step::RingReturn { entries: count as usize });
        ring.free(&self.platform, first, count, proof);
        if ring.is_persistent {
            ring.release();
        }
    }
}

// SAFETY: an entry leads to its segment, with the requested rights, and the unmap clears it. Neither the entry nor a
// proof is given out before its ring was invalidated, which leaves nothing of the entry cached.
unsafe impl<P: Platform, I: Iommu> Mapper for RingMapper<P, I> {
    #[inline]
    unsafe fn map(&self, request: &Request<'_>) -> Result<IovaRange, RawMapError> {
        self.platform.probe(Step::Enter(Phase::Other));
        self.platform.probe(Step::Map);
        if self.is_poisoned.load(Ordering::Relaxed) {
            return Err(MapError::Poisoned.into());
        }
        self.check(request)?;
        self.poison_on_panic(|| self.take_and_write(request))
    }

    fn unmap(&self, range: IovaRange, out: &mut Runs) -> Result<(), UnmapError> {
        out.admit(self.tag, ADDRESSING.whole(range).pages() / ENTRY_PAGES)?;
        let (ring, first, count) = self.poison_on_panic(|| self.clear(range))?;
        let range = ring.range(first, count);
        // Counts in entries: page numbers of 64-bit addresses are too long for a batch.
        let entries = IovaRange::new(range.first_pfn() / ENTRY_PAGES, range.pages() / ENTRY_PAGES).expect("pages");
        // SAFETY: just taken down.
        unsafe { out.note_unmap(Revoked::one(entries, Due::Invalidation, true)) };
        Ok(())
    }

    fn commit(&self, revocation: &mut Runs) -> Result<Committed, CommitError> {
        assert!(revocation.is_of(self.tag), "a revocation must be committed by the mapper of its unmaps");
        self.poison_on_panic(|| self.invalidate_and_free(revocation))
    }

    fn tick(&self) -> Result<(), CommitError> {
        Ok(())
    }

    fn due_us(&self) -> Option<u64> {
        None
    }

    fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        usage.live_ranges = self.rings.all().map(|ring| ring.live(&self.platform)).sum();
        usage.table_pages = self.rings.pages();
        usage.window_us_max = Some(0);
        usage
    }

    fn space(&self) -> &dyn Space {
        self
    }
}

impl<P: Platform, I: Iommu> Space for RingMapper<P, I> {
    fn id(&self) -> DomainId {
        self.id
    }

    fn attach(&self, device: SourceId) -> Result<(), AttachError> {
        self.iommu.attach(self.id, device)
    }

    fn detach(&self, device: SourceId) -> Result<(), AttachError> {
        self.iommu.detach(self.id, device)
    }

    fn table_pages(&self) -> usize {
        self.rings.pages()
    }

    /// The table pages of a ring.
    fn tables_max(&self, _pages: u64) -> usize {
        self.rings.tables_max()
    }

    /// Makes rings for streams in advance. Persistent mappings use another kind of ring, which is not made in
    /// advance.
    fn reserve_tables(&self, tables: usize) -> Result<(), NoMemory> {
        self.rings.reserve(self.walker(), tables)
    }

    fn allocate(&self, context: Context, allocate: &mut dyn FnMut()) {
        self.platform.allocate(context, allocate);
    }
}

/// Teardown (S10): the IOMMU forgets the devices and what it has cached, and then the tables are freed. If it does
/// not answer, all of them are kept for good.
impl<P: Platform, I: Iommu> Drop for RingMapper<P, I> {
    fn drop(&mut self) {
        // SAFETY: `new` has opened the domain, and only this code closes it.
        if let Ok(proof) = unsafe { Proof::close(&self.iommu, self.id) } {
            self.rings.close(&self.platform, &proof);
        }
    }
}
