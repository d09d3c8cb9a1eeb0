//! Maps: which addresses a map may return, and when it may fail.

use super::operation::{Buffer, PHYSICAL_BITS};
use super::reference::{Held, Reference};
use super::{ALWAYS_RESERVED, Checker, RESERVED, Violation, fail, ranges};
use portcullis::mapper::{Addressing, Mapper, Usage};
use portcullis::{Access, IovaRange, MapError, PAGE_SHIFT, PAGE_SIZE, PhysAddr, RawMapError, Request, Rule, Segment};

impl<M: Mapper + ?Sized> Checker<'_, M> {
    pub(super) fn map(&mut self, buffer: &Buffer) -> Result<Option<IovaRange>, Violation> {
        let before = self.domain.usage();
        let request = Request::new(&buffer.segments, buffer.access).expect("the strategy makes requests");
        match self.map_by_face(buffer, &request) {
            Ok(range) => {
                self.vet(range, buffer, request.pages())?;
                self.reference.map(Held::new(range, &buffer.segments, buffer.access, self.info.addressing));
                Ok(Some(range))
            }
            Err(error) => {
                if !self.failed(error, buffer, request.pages())? {
                    return Ok(None);
                }
                // A map that failed late has taken an address and given it back, and some allocators keep it for the
                // next map. It may also have waited for addresses whose invalidation was pending.
                let Usage { kept_ranges, queued_unmaps, record_bytes, .. } = self.domain.usage();
                let back = before.queued_unmaps.saturating_sub(queued_unmaps);
                let mut expected = before;
                (expected.kept_ranges, expected.record_bytes) = (kept_ranges, record_bytes);
                expected.queued_unmaps -= back;
                expected.live_ranges -= back;
                self.unchanged(expected)?;
                Ok(None)
            }
        }
    }

    /// Maps adjacent one-page buffers in one batch.
    pub(super) fn map_batch(&mut self, pfn: u64, pages: usize, access: Access) -> Result<(), Violation> {
        let page = |pfn| Segment { phys: PhysAddr::from_pfn(pfn), len: PAGE_SIZE };
        let buffer = |page_pfn| Buffer { segments: vec![page(page_pfn)], access };
        let buffers: Vec<Buffer> = (pfn..).take(pages).map(buffer).collect();
        let (mapped, result) = self.map_batch_by_face(&buffers);
        for (range, buffer) in mapped.iter().zip(&buffers) {
            self.vet(*range, buffer, 1)?;
            self.reference.map(Held::new(*range, &buffer.segments, access, self.info.addressing));
        }
        match result {
            Ok(()) if mapped.len() == pages => Ok(()),
            Ok(()) => fail(Rule::Errors, format!("{} of {pages} buffers were mapped", mapped.len())),
            Err(error) => self.failed(error, &buffers[mapped.len()], 1).map(drop),
        }
    }

    /// Checks that a map of `buffer` may fail with `error`, and that it has changed nothing.
    fn failed(&mut self, error: RawMapError, buffer: &Buffer, pages: u64) -> Result<bool, Violation> {
        match error {
            // A map may have to invalidate: absent entries that are cached, or an unmap at its addresses that is not
            // committed yet.
            RawMapError::Refused(MapError::Queue(_)) | RawMapError::Lost(_) if self.failing => {
                (self.poisoned, self.quarantined) = (true, self.quarantined + 1);
                Ok(false)
            }
            RawMapError::Lost(error) => fail(Rule::Completion, format!("lost without a reason: {error}")),
            RawMapError::Refused(error) => {
                let justified = match error {
                    MapError::Poisoned => self.poisoned,
                    MapError::Exhausted { .. } => self.bench.machine.address_bits < 32,
                    MapError::RingFull { .. } => self.may_be_full(),
                    MapError::ListTooLong { entries, .. } => buffer.segments.len() > entries as usize,
                    MapError::PhysicalRange(_) => self.info.physical_addresses() || beyond(buffer),
                    MapError::Reserved(_) | MapError::BeyondWidth { .. } | MapError::NotContiguous => {
                        self.info.physical_addresses()
                    }
                    _ => false,
                };
                if !justified {
                    return fail(Rule::Errors, format!("refused without a reason: {error}"));
                }
                if matches!(error, MapError::Exhausted { .. }) {
                    self.is_full(pages)?;
                }
                Ok(true)
            }
        }
    }

    /// S13: an empty ring takes as many mappings as it has entries.
    fn may_be_full(&self) -> bool {
        let Reference { live, uncommitted, lost, .. } = &self.reference;
        self.quarantined > 0 || [live, uncommitted, lost].iter().any(|held| !held.is_empty())
    }

    /// S13: no free block could hold the request, on the assumption that each mapping takes such a block too.
    fn is_full(&self, pages: u64) -> Result<(), Violation> {
        // The addresses of ranges that wait for a flush or are quarantined are not known.
        let waiting = self.domain.usage().queued_unmaps > 0;
        if self.poisoned || self.failing || waiting || self.quarantined > 0 {
            return Ok(());
        }
        let held = self.reference.live.iter().chain(&self.reference.uncommitted).map(|held| held.range);
        match self.free_block(pages, held) {
            Some(free) => fail(Rule::Exhaustion, format!("{pages} pages were refused, but {free} is free")),
            None => Ok(()),
        }
    }

    /// An aligned power of two of pages that would hold a request and that is free while `held` are mapped. Requests
    /// and mappings are rounded up by the design's overhead; `None` if it declares none.
    pub(super) fn free_block(&self, pages: u64, held: impl Iterator<Item = IovaRange>) -> Option<IovaRange> {
        let overhead = self.info.address_overhead?;
        let limit = 1u64 << (u32::from(self.bench.machine.address_bits - overhead.tag_bits) - PAGE_SHIFT);
        let size = (pages + overhead.guard_pages).next_power_of_two().max(overhead.grain_pages);
        let block = |range: IovaRange| {
            let size = (range.pages() + overhead.guard_pages).next_power_of_two().max(overhead.grain_pages);
            let first = range.first_pfn() / size * size;
            IovaRange::new(first, (range.end_pfn() - first).max(size)).expect("around a range")
        };
        let held = held.map(block);
        let taken: Vec<IovaRange> = held.chain(ranges(RESERVED)).chain(ranges(ALWAYS_RESERVED)).collect();
        let mut blocks = (0..limit / size).filter_map(|number| IovaRange::new(number * size, size));
        blocks.find(|block| !taken.iter().any(|taken| taken.overlaps(*block)))
    }

    /// Whether a map may return these addresses now.
    fn vet(&self, range: IovaRange, buffer: &Buffer, pages: u64) -> Result<(), Violation> {
        if self.poisoned {
            return fail(Rule::Completion, "a map succeeded after an invalidation had failed");
        }
        if beyond(buffer) && !self.unprotected() {
            return fail(Rule::Reach, "memory beyond the physical addresses was mapped");
        }
        let (expected, bits) = match self.info.addressing {
            Addressing::Entries { pages } => (buffer.segments.len() as u64 * pages, 64),
            _ => (pages, u32::from(self.bench.machine.address_bits)),
        };
        if range.pages() != expected || range.end_pfn() > 1 << (bits - PAGE_SHIFT) {
            return fail(Rule::Exhaustion, format!("{range} was handed out for a request of {pages} pages"));
        }
        let reserved = ranges(RESERVED).into_iter().chain(ranges(ALWAYS_RESERVED));
        if let Some(reserved) = { reserved }.find(|reserved| reserved.overlaps(range)) {
            return fail(Rule::Reserved, format!("{range} was handed out, but {reserved} is reserved"));
        }
        if self.info.physical_addresses() {
            return Ok(());
        }
        let new = Held::new(range, &buffer.segments, buffer.access, self.info.addressing);
        let shared = self.info.addressing == Addressing::Shared;
        if let Some(held) = self.reference.holders(range).find(|held| !(shared && held.agrees_with(&new))) {
            return fail(Rule::Reuse, format!("{range} was handed out, but {} is in use", held.range));
        }
        // A cached translation must lead to the same memory, for the same access: it belongs to a mapping that agrees,
        // or to a buffer that was handed back.
        let is_shared = |(pfn, reach)| {
            let returned = self.reference.returned.get(&pfn).is_some_and(|returned| returned.reach == reach);
            shared && (returned || self.reference.is_held(pfn))
        };
        let cached = new.pages().find(|page| self.is_cached(page.0) && !is_shared(*page));
        match cached {
            Some((pfn, _)) => fail(Rule::Reuse, format!("{range} was handed out, but page {pfn:#x} is cached")),
            None => Ok(()),
        }
    }
}

/// Whether the buffer lies beyond the physical addresses.
fn beyond(buffer: &Buffer) -> bool {
    buffer.segments.iter().any(|segment| (segment.phys.as_u64() + segment.len - 1) >> PHYSICAL_BITS != 0)
}
