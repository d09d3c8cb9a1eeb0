//! Maps and unmaps in parts: the way into a domain and out, a mapper with its table and next to nothing else, and the table by itself.

use super::sampler::{RING, Subject};
use crate::BenchError;
use crate::host::Native;
use crate::iommu::{Empty, Queued};
use crate::meter::Meter;
use crate::work::Buffers;
use crate::work::raw;
use crate::work::raw::parts::{self, range};
use portcullis::design::Design;
use portcullis::{Access, Domain, DomainConfig, Invalidation, Iommu, Iova, PAGE_SIZE, PhysAddr, Protection};
use std::hint::black_box;

/// Pages of a mapping of several.
pub(super) const SEVERAL: u64 = 32;
/// How often a sample goes round the ring.
const TURNS: usize = 4;
/// Unmaps of a batch.
const BATCH: usize = 64;
/// Commands of a long submission.
pub(super) const COMMANDS: usize = 17;
/// Where the table's pages are: in one leaf table after the other.
const FIRST_PAGE: u64 = 1 << 13;

/// A ring of single pages in a domain, each unmapped and another mapped in its place.
struct Ring<'i, D: Design<Native<true>, &'i Empty>> {
    domain: Domain<D, Native<true>, &'i Empty>,
    slots: Box<[Iova]>,
    buffers: Buffers,
}

impl<'i, D: Design<Native<true>, &'i Empty>> Ring<'i, D> {
    fn new(iommu: &'i Empty, protection: Protection) -> Result<Self, BenchError> {
        let memory = [Buffers::memory(1)];
        let mut config = DomainConfig::new(protection);
        config.memory = &memory;
        let domain = raw::domain::<D, _, _>(iommu, Native::coherent(), &config)?;
        let mut ring =
            Self { domain, slots: vec![Iova::new(0); RING].into(), buffers: Buffers::new(0, 2 * RING as u64, 1) };
        ring.map()?;
        Ok(ring)
    }

    #[inline(never)]
    fn map(&mut self) -> Result<(), BenchError> {
        let (len, access) = (black_box(PAGE_SIZE), black_box(Access::DeviceWrites));
        for slot in &mut self.slots {
            *slot = raw::map(&self.domain, self.buffers.take(), len, access)?;
        }
        Ok(())
    }

    #[inline(never)]
    fn unmap(&mut self) -> Result<(), BenchError> {
        let len = black_box(PAGE_SIZE);
        for slot in &self.slots {
            self.domain.unmap_raw(*slot, len)?;
        }
        Ok(())
    }

    /// In batches of so many.
    #[inline(never)]
    fn unmap_in_batches(&mut self) -> Result<(), BenchError> {
        for slots in self.slots.chunks(BATCH) {
            let mut batch = self.domain.raw_batch();
            for slot in slots {
                batch.unmap(range(slot.pfn(), 1))?;
            }
            batch.commit()?;
        }
        Ok(())
    }

    #[inline(never)]
    fn turn(&mut self) -> Result<(), BenchError> {
        let (len, access, mut buffers) = (black_box(PAGE_SIZE), black_box(Access::DeviceWrites), self.buffers);
        for slot in &mut self.slots {
            self.domain.unmap_raw(*slot, len)?;
            *slot = raw::map(&self.domain, buffers.take(), len, access)?;
        }
        self.buffers = buffers;
        Ok(())
    }

    /// All in turn, all maps, all unmaps, or all unmaps in batches.
    fn subject(mut self, parts: [&'static str; 4]) -> Subject<'i>
    where
        D: 'i,
    {
        let take_sample = move |part, meter: &mut Meter| {
            if part == 0 {
                meter.start();
                (0..TURNS).try_for_each(|_| self.turn())?;
                meter.stop();
                return Ok(self.domain.tick()?);
            }
            if part > 1 {
                meter.start();
            }
            if part == 3 { self.unmap_in_batches() } else { self.unmap() }?;
            if part > 1 {
                meter.stop();
            } else {
                meter.start();
            }
            self.map()?;
            if part == 1 {
                meter.stop();
            }
            Ok(self.domain.tick()?)
        };
        let ring = RING as f64;
        let [turns, maps, unmaps, batches] = parts;
        let parts = vec![(turns, TURNS as f64 * ring), (maps, ring), (unmaps, ring), (batches, ring)];
        Subject { parts, take_sample: Box::new(take_sample) }
    }
}

/// The way into a domain and out of it: a design that does nothing.
pub(super) fn face(iommu: &Empty) -> Result<Subject<'_>, BenchError> {
    Ok(Ring::<parts::Nothing>::new(iommu, Protection::None)?.subject([
        "face",
        "face, maps",
        "face, unmaps",
        "face, batches",
    ]))
}

/// A mapper with its table, whose allocator counts.
pub(super) fn bare(iommu: &Empty) -> Result<Subject<'_>, BenchError> {
    Ok(Ring::<parts::Bare>::new(iommu, Protection::Strict)?.subject([
        "bare",
        "bare, maps",
        "bare, unmaps",
        "bare, batches",
    ]))
}

/// The same, with unmaps that wait in a queue.
pub(super) fn queued(iommu: &Empty) -> Result<Subject<'_>, BenchError> {
    Ok(Ring::<parts::Bare>::new(iommu, Protection::Deferred)?.subject([
        "deferred",
        "deferred, maps",
        "deferred, unmaps",
        "deferred, batches",
    ]))
}

/// The table by itself: walks, maps, unmaps of what was claimed, and those that claim; of one page and of several.
pub(super) fn table(platform: Native<true>, iommu: &Empty) -> Result<(Subject<'static>, f64), BenchError> {
    let table = parts::Table::new(platform, &iommu.capabilities()).map_err(|_| BenchError::NoMemory)?;
    let levels = f64::from(table.levels());
    let take_sample = move |part: usize, meter: &mut Meter| {
        let pages = if part < 4 { 1 } else { SEVERAL };
        let (access, pages) = (black_box(Access::DeviceWrites), black_box(pages));
        let firsts = || (0..RING as u64).step_by(pages as usize).map(|page| FIRST_PAGE + page);
        let phys = PhysAddr::new(1 << 32);
        let map = |first| table.map(first, pages, phys, access).map_err(|error| BenchError::Map(error.into()));
        if part == 1 || part == 4 {
            meter.start();
        }
        for first in firsts() {
            map(first)?;
        }
        match part {
            1 | 4 => meter.stop(),
            _ => meter.start(),
        }
        match part {
            0 => {
                for first in firsts() {
                    black_box(table.is_mapped(first));
                }
                meter.stop();
                firsts().for_each(|first| table.unmap(first, pages));
            }
            3 => {
                for first in firsts() {
                    table.claim_and_unmap(first, pages).map_err(|error| BenchError::Unmap(error.into()))?;
                }
                meter.stop();
            }
            _ => {
                firsts().for_each(|first| table.unmap(first, pages));
                if part == 2 || part == 5 {
                    meter.stop();
                }
            }
        }
        Ok(())
    };
    let (one, several) = (RING as f64, RING as f64 / SEVERAL as f64);
    let parts = vec![
        ("table, walk", one),
        ("table, map", one),
        ("table, unmap", one),
        ("table, claim and unmap", one),
        ("table, map of several", several),
        ("table, unmap of several", several),
    ];
    Ok((Subject { parts, take_sample: Box::new(take_sample) }, levels))
}

/// Submissions: to nothing, and to a ring in memory, of one command and of many.
pub(super) fn submissions<'i>(empty: &'i Empty, queued: &'i Queued) -> Subject<'i> {
    let command = |page| Invalidation::Pages {
        domain: portcullis::DomainId(1),
        first: Iova::from_pfn(page),
        mask: 0,
        leaf_only: true,
    };
    let take_sample = move |part, meter: &mut Meter| {
        let many: [Invalidation; COMMANDS] = std::array::from_fn(|page| command(black_box(page as u64)));
        meter.start();
        for page in 0..RING as u64 {
            let submitted = match part {
                0 => empty.submit(&[command(page)]),
                1 => queued.submit(&[command(page)]),
                _ => queued.submit(&many),
            };
            submitted.map_err(|error| BenchError::Commit(portcullis::CommitError(error)))?;
        }
        meter.stop();
        Ok(())
    };
    let ring = RING as f64;
    let parts = vec![("submission", ring), ("queued command", ring), ("queued commands", ring)];
    Subject { parts, take_sample: Box::new(take_sample) }
}
