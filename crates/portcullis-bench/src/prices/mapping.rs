//! Maps and unmaps in parts: the interface of a domain, a mapper with its table and next to nothing else, and the
//! table alone.

use super::sampler::{RING, Subject, check};
use crate::BenchError;
use crate::host::Native;
use crate::iommu::{Empty, Queued, Watched, submissions};
use crate::meter::Meter;
use crate::tables::Tables;
use crate::work::Buffers;
use crate::work::raw;
use crate::work::raw::parts::{self, range};
use portcullis::iommu::Translation;
use portcullis::mapper::Design;
use portcullis::{Access, DomainConfig, DomainOf, Invalidation, Iommu, Iova, PAGE_SIZE, PhysAddr, Protection};
use std::hint::black_box;

/// Pages of a mapping of several pages.
pub(super) const SEVERAL: u64 = 32;
/// How many times a sample goes round the ring.
const TURNS: usize = 4;
/// Unmaps of a batch.
const BATCH: usize = 64;
/// Commands of a long submission.
pub(super) const COMMANDS: usize = 17;
/// The first page of the table. The pages lie in consecutive leaf tables.
const FIRST_PAGE: u64 = 1 << 13;

/// What a ring does while it is timed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Timed {
    /// Unmaps and maps in turn.
    Turns,
    Maps,
    Unmaps,
    /// Unmaps in batches.
    Batches,
}

/// A ring of single pages in a domain. Each is unmapped, and another is mapped in its place.
struct Ring<'i, D: Design<Native<true>, &'i Empty>> {
    domain: DomainOf<D, Native<true>, &'i Empty>,
    slots: Box<[Iova]>,
    buffers: Buffers,
    /// The tables that devices would walk.
    tables: Option<Tables>,
}

impl<'i, D: Design<Native<true>, &'i Empty> + 'i> Ring<'i, D> {
    fn new(iommu: &'i Empty, protection: Protection) -> Result<Self, BenchError> {
        let memory = [Buffers::memory(1)];
        let mut config = DomainConfig::new(protection);
        config.memory = &memory;
        let domain = raw::domain::<D, _, _>(iommu, Native::coherent(), &config)?;
        // Their number is not a divisor of a sample's turns, so that the mappings after a sample differ from those
        // before.
        let buffers = Buffers::new(0, 3 * RING as u64, 1);
        let tables = iommu.tables().filter(|tables| !matches!(tables.0, Translation::PassThrough));
        let mut ring = Self { domain, slots: vec![Iova::new(0); RING].into(), buffers, tables };
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

    /// Unmaps the ring in batches.
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

    /// The address that a device would reach through the slot. Without tables, it is the slot itself.
    fn reached(&self, slot: Iova) -> Option<PhysAddr> {
        match self.tables {
            Some(tables) => tables.leaf(slot).map(|leaf| leaf.phys()),
            None => Some(PhysAddr::new(slot.as_u64())),
        }
    }

    /// Checks that each slot leads to its buffer, if all were taken from `buffers` on.
    fn check_mapped(&self, mut buffers: Buffers) -> Result<(), BenchError> {
        check(self.slots.iter().all(|slot| self.reached(*slot) == Some(buffers.take())), "maps")
    }

    fn check_unmapped(&self) -> Result<(), BenchError> {
        check(self.tables.is_none() || self.slots.iter().all(|slot| self.reached(*slot).is_none()), "unmaps")
    }

    fn sample(&mut self, timed: Timed, meter: &mut Meter) -> Result<(), BenchError> {
        let mut buffers = self.buffers;
        if timed == Timed::Turns {
            let submitted = submissions();
            meter.start();
            (0..TURNS).try_for_each(|_| self.turn())?;
            meter.stop();
            let unmaps = if self.tables.is_some() { (TURNS * RING) as u64 } else { 0 };
            check(submissions() - submitted == unmaps, "unmaps of turns")?;
            (0..(TURNS - 1) * RING).for_each(|_| _ = buffers.take());
        } else {
            if timed != Timed::Maps {
                meter.start();
            }
            if timed == Timed::Batches { self.unmap_in_batches() } else { self.unmap() }?;
            if timed != Timed::Maps {
                meter.stop();
            }
            self.check_unmapped()?;
            if timed == Timed::Maps {
                meter.start();
            }
            self.map()?;
            if timed == Timed::Maps {
                meter.stop();
            }
        }
        self.check_mapped(buffers)?;
        Ok(self.domain.tick()?)
    }

    fn subject<const PARTS: usize>(mut self, parts: [(&'static str, Timed); PARTS]) -> Subject<'i> {
        let operations = |timed| (if timed == Timed::Turns { TURNS * RING } else { RING }) as f64;
        Subject {
            parts: parts.map(|(name, timed)| (name, operations(timed))).to_vec(),
            take_sample: Box::new(move |part, meter| self.sample(parts[part].1, meter)),
        }
    }
}

/// The interface of a domain, with a design that does nothing.
pub(super) fn face(iommu: &Empty) -> Result<Subject<'_>, BenchError> {
    let parts = [("face", Timed::Turns), ("face, maps", Timed::Maps), ("face, unmaps", Timed::Unmaps)];
    Ok(Ring::<parts::Nothing>::new(iommu, Protection::None)?.subject(parts))
}

/// A mapper with its table. Its allocator is a simple stack of pages.
pub(super) fn bare(iommu: &Empty) -> Result<Subject<'_>, BenchError> {
    let parts = [
        ("bare", Timed::Turns),
        ("bare, maps", Timed::Maps),
        ("bare, unmaps", Timed::Unmaps),
        ("bare, batches", Timed::Batches),
    ];
    Ok(Ring::<parts::Bare>::new(iommu, Protection::Strict)?.subject(parts))
}

/// The same mapper, with unmaps that wait in a queue.
pub(super) fn queued(iommu: &Empty) -> Result<Subject<'_>, BenchError> {
    Ok(Ring::<parts::Bare>::new(iommu, Protection::Deferred)?.subject([("deferred, unmaps", Timed::Unmaps)]))
}

/// The table alone: walks, maps, unmaps of claimed mappings, and unmaps that claim, of one page and of several.
pub(super) fn table(platform: Native<true>, iommu: &Empty) -> Result<Subject<'static>, BenchError> {
    let table = parts::Table::new(platform, &iommu.capabilities()).map_err(|_| BenchError::NoMemory)?;
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
        if part == 1 || part == 4 {
            meter.stop();
        }
        let last = pages - 1;
        let are_mapped = |mapped: bool| {
            firsts().all(|first| table.is_mapped(first) == mapped && table.is_mapped(first + last) == mapped)
        };
        check(are_mapped(true), "maps of a table")?;
        if part != 1 && part != 4 {
            meter.start();
        }
        match part {
            0 => {
                let found = firsts().filter(|first| black_box(table.is_mapped(*first))).count();
                meter.stop();
                check(found == RING, "walks of a table")?;
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
        check(are_mapped(false), "unmaps of a table")
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
    Ok(Subject { parts, take_sample: Box::new(take_sample) })
}

/// Submissions to a ring in memory, of one command and of many.
pub(super) fn queue(queue: &Queued) -> Subject<'_> {
    let command = |page| Invalidation::Pages {
        domain: portcullis::DomainId(1),
        first: Iova::from_pfn(page),
        mask: 0,
        leaf_only: true,
    };
    let take_sample = move |part, meter: &mut Meter| {
        let many: [Invalidation; COMMANDS] = std::array::from_fn(|page| command(black_box(page as u64)));
        let written = queue.written();
        meter.start();
        for page in 0..RING as u64 {
            let submitted = if part == 0 { queue.submit(&[command(page)]) } else { queue.submit(&many) };
            submitted.map_err(|error| BenchError::Commit(portcullis::CommitError(error)))?;
        }
        meter.stop();
        // Each submission has a wait behind it.
        let descriptors = if part == 0 { 2 } else { COMMANDS + 1 };
        check(queue.written() - written == RING * descriptors, "submissions")
    };
    let ring = RING as f64;
    let parts = vec![("queued command", ring), ("queued commands", ring)];
    Subject { parts, take_sample: Box::new(take_sample) }
}

#[cfg(test)]
mod tests {
    use super::{Ring, Timed};
    use crate::BenchError;
    use crate::iommu::Empty;
    use crate::meter::Meter;
    use crate::tests::planted::{Flaw, Planted};
    use portcullis::Protection;

    /// The result of a sample with a flawed design.
    fn sample<const FLAW: u8>(timed: Timed) -> Result<(), BenchError> {
        let iommu = Empty::new(true);
        Ring::<Planted<FLAW>>::new(&iommu, Protection::Strict)?.sample(timed, &mut Meter::new())
    }

    #[test]
    fn work_that_is_not_done_is_found() {
        for timed in [Timed::Turns, Timed::Maps, Timed::Unmaps, Timed::Batches] {
            sample::<{ Flaw::NONE }>(timed).expect("a sound design");
            let is_found = |sampled| assert!(matches!(sampled, Err(BenchError::Check(_))), "{sampled:?}");
            is_found(sample::<{ Flaw::MAPS_ONE_PAGE_FOR_ALL }>(timed));
            if timed != Timed::Turns {
                is_found(sample::<{ Flaw::LEAVES_ENTRIES }>(timed));
            }
        }
        assert!(sample::<{ Flaw::SUBMITS_NOTHING }>(Timed::Turns).is_err());
    }
}
