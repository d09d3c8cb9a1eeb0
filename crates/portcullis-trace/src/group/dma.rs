//! Captures without `iommu:` events: derives mappings from `dma:` events alone.
//!
//! `dma_map_page` and similar events carry a buffer's I/O address, size, physical address and device, and the unmap
//! repeats the I/O address. A scatter list is less complete. Its unmap repeats only the physical addresses of the
//! pieces. Its map gives the lengths of the runs of I/O addresses, but not those of the pieces. If there are fewer
//! runs than pieces, each piece but the last is taken to be one page. This is exact if there are as many pages as
//! pieces.
//!
//! A device that is not behind an IOMMU gets physical addresses. The same bytes may then be mapped twice at a time,
//! and unmapped in either order. Behind an IOMMU an address has one mapping: if a second one begins, the unmap of the
//! first is missing.
//!
//! `dma_alloc` does not give the physical address of its memory, so it makes no mapping here.

use super::Grouper;
use super::payload::LOOKED_AT_MAX;
use crate::columns::{Place, Record};
use crate::error::Flaw;
use crate::event::{Event, PHYSICAL_END};
use crate::list::{List, Numbers};
use crate::{Events, Format, OperationKind, Statistics, Trace, UnmatchedUnmap};
use portcullis::{Access, PAGE_SHIFT, PAGE_SIZE, PhysAddr, Segment};
use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

/// Both readings of a capture. The capture shows later which one applies: its first `iommu:` event ends the reading of
/// `dma:` events alone.
pub(crate) struct Readings {
    tables: Grouper,
    buffers: Option<Buffers>,
    /// The first event that `buffers` could not take; it takes no event after that. The flaw matters only if no
    /// `iommu:` event comes.
    flaw: Option<Flaw>,
}

impl Default for Readings {
    fn default() -> Self {
        Self { tables: Grouper::default(), buffers: Some(Buffers::default()), flaw: None }
    }
}

impl Readings {
    /// Takes the next event.
    pub(crate) fn record(&mut self, record: &Record<'_>) -> Result<(), Flaw> {
        if let Some(buffers) = &mut self.buffers {
            match record.event {
                Event::Map { .. } | Event::Unmap { .. } => self.buffers = None,
                _ if self.flaw.is_none() => self.flaw = buffers.record(record).err(),
                _ => {}
            }
        }
        self.tables.record(record)
    }

    /// What is wrong with the `dma:` events, if there are no others.
    pub(crate) fn flaw(&self) -> Option<Flaw> {
        self.flaw.filter(|_| self.buffers.is_some())
    }

    /// The counts so far.
    pub(crate) fn counts(&self) -> Statistics {
        self.buffers.as_ref().map_or(self.tables.counts, |buffers| buffers.grouper.counts)
    }

    /// Whether no `iommu:` event has mapped or unmapped anything, so that the `dma:` events are used instead.
    pub(crate) fn is_of_dma_events(&self) -> bool {
        self.buffers.is_some()
    }

    /// Makes the trace from the events.
    pub(crate) fn finish(self, name: String, format: Format, events: Events) -> Trace {
        self.buffers.map_or(self.tables, |buffers| buffers.grouper).finish(name, format, events)
    }
}

/// What an unmap uses to name the mapping of its device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Name {
    /// The I/O address of its first byte.
    Address,
    /// A hash of the physical addresses of its list's pieces.
    Pieces,
}

/// The number that names the mapping, the device, and the kind of name.
type Key = (u64, u16, Name);

fn key_of_list(device: u16, phys: Numbers<'_>) -> Key {
    let mut hasher = FxHasher::default();
    phys.iter().for_each(|address| address.hash(&mut hasher));
    (hasher.finish(), device, Name::Pieces)
}

/// Takes `dma:` events in the order of the capture.
#[derive(Default)]
struct Buffers {
    grouper: Grouper,
    /// The first pieces of the live mappings. If several have the same name, this is the youngest.
    live: BTreeMap<Key, u32>,
    /// If several live mappings have the same name: the next older one.
    older: FxHashMap<u32, u32>,
}

impl Buffers {
    fn record(&mut self, record: &Record<'_>) -> Result<(), Flaw> {
        let place = record.place;
        match record.event {
            Event::DmaMap { device, access, iova, size, phys } => {
                let device = self.grouper.device(device)?;
                let first = self.piece(iova, size, phys)?;
                self.map(place, first, (device, access))?;
                let before = self.live.insert((iova, device, Name::Address), first);
                self.older.extend(before.filter(|_| iova == phys).map(|before| (first, before)));
                Ok(())
            }
            Event::DmaMapList { device, access, list } => {
                let device = self.grouper.device(device)?;
                let first = self.list(list)?;
                self.map(place, first, (device, access))?;
                let before = self.live.insert(key_of_list(device, list.phys()?), first);
                self.older.extend(before.map(|before| (first, before)));
                Ok(())
            }
            Event::DmaUnmap { device, iova, size } => {
                let key = (iova, self.grouper.device(device)?, Name::Address);
                let first_page = iova >> PAGE_SHIFT;
                let pages = ((iova + (size - 1)) >> PAGE_SHIFT) - first_page + 1;
                self.unmap(place, key, Some(size), (first_page, pages))
            }
            Event::DmaUnmapList { device, phys } => {
                let key = key_of_list(self.grouper.device(device)?, phys);
                // The event does not give the address, so an unmatched unmap has none.
                self.unmap(place, key, None, (0, 0))
            }
            Event::Invalidate { qw0, qw1 } => {
                self.grouper.invalidate(qw0, qw1);
                Ok(())
            }
            Event::Sync { device, iova, size } => {
                self.sync(device, iova, size);
                Ok(())
            }
            // A list is known here by its physical addresses, which its sync does not give.
            Event::SyncList { .. } | Event::Map { .. } | Event::Unmap { .. } => Ok(()),
            Event::Fault { device, iova } => {
                self.grouper.faults.add(device, iova, place.time_ns);
                Ok(())
            }
            Event::FailedMap | Event::UnmapOfNothing | Event::Other => Ok(()),
        }
    }

    fn map(&mut self, place: Place, first: u32, claim: (u16, Access)) -> Result<(), Flaw> {
        let context = self.grouper.context(place)?;
        self.grouper.pieces[first as usize].claim = Some(claim);
        self.grouper.operation(place, context, first, OperationKind::Map)
    }

    /// Ends the youngest mapping of that name, if it has as many pages as its unmap says and no fewer bytes. Otherwise
    /// the unmap is unmatched.
    fn unmap(&mut self, place: Place, key: Key, size: Option<u64>, (iova_pfn, pages): (u64, u64)) -> Result<(), Flaw> {
        self.grouper.counts.unmaps += 1;
        let mapped = |first: u32| (u64::from(self.grouper.pieces[first as usize].pages), self.grouper.bytes_of(first));
        let is_meant = |first: u32| size.is_none_or(|size| mapped(first).0 == pages && mapped(first).1 >= size);
        let found = self.live.get(&key).copied();
        let Some(first) = found.filter(|&first| is_meant(first)) else {
            if found.is_some_and(|first| mapped(first).1 > size.unwrap_or(0)) {
                self.grouper.counts.partial_unmaps += 1;
                return Ok(());
            }
            let at_operation = self.grouper.operations.len() as u32;
            self.grouper.unmatched.push(UnmatchedUnmap { at_operation, iova_pfn, pages });
            return Ok(());
        };
        match self.older.remove(&first) {
            Some(older) => self.live.insert(key, older),
            None => self.live.remove(&key),
        };
        if let Some(size) = size {
            self.grouper.ended_with(first, size);
        }
        let context = self.grouper.context(place)?;
        self.grouper.operation(place, context, first, OperationKind::Unmap)
    }

    /// Handles a sync: the driver is about to read these bytes.
    fn sync(&mut self, device: &[u8], iova: u64, size: u64) {
        let Some(&device) = self.grouper.device_index.get(device) else { return };
        let mut near = self.live.range(..=(iova, device, Name::Address)).rev().take(LOOKED_AT_MAX);
        let nearest = near.find(|&(&(_, owner, name), _)| (owner, name) == (device, Name::Address));
        if let Some((&(start, ..), &first)) = nearest {
            let bytes = self.grouper.bytes_of(first);
            self.grouper.look_at(first, bytes, (iova - start, size));
        }
    }

    /// Adds a piece of `size` bytes at `iova` that lies at `phys`.
    fn piece(&mut self, iova: u64, size: u64, phys: u64) -> Result<u32, Flaw> {
        if phys.checked_add(size).is_none_or(|end| end > PHYSICAL_END) {
            return Err(Flaw::Expected("a physical address below 2^52"));
        }
        // A bounce buffer may begin elsewhere in its page, and no event gives its address. The offset in the page is
        // that of the I/O address.
        let phys = PhysAddr::new(at_offset(phys, iova));
        self.grouper.piece(iova >> PAGE_SHIFT, Segment { phys, len: size })
    }

    /// Adds the pieces of a list, chained. The first stands for all.
    fn list(&mut self, list: List<'_>) -> Result<u32, Flaw> {
        let phys = list.phys()?;
        let one_each = list.runs().count() == phys.iter().count();
        let mut phys = phys.iter().peekable();
        // Physically adjacent pieces are merged, because the kernel maps them as one.
        let mut pieces: SmallVec<[Piece; 4]> = SmallVec::new();
        for (start, end) in list.runs() {
            let mut iova = start;
            while iova < end {
                let before = pieces.last().map_or(0, |piece| piece.phys.saturating_add(piece.size));
                let phys_now = phys.next().unwrap_or(before.saturating_add(PAGE_SIZE - 1));
                let rest = end - iova;
                let is_last = one_each || phys.peek().is_none();
                let size = if is_last { rest } else { rest.min(PAGE_SIZE - iova % PAGE_SIZE) };
                let next = Piece { iova, size, phys: at_offset(phys_now, iova) };
                match pieces.last_mut().filter(|last| last.is_before(&next)) {
                    Some(last) => last.size += size,
                    None => pieces.push(next),
                }
                iova += size;
            }
        }
        let mut pieces = pieces.into_iter();
        let Some(first) = pieces.next() else { return Err(Flaw::Expected("a list that is not empty")) };
        let first = self.piece(first.iova, first.size, first.phys)?;
        let mut last = first;
        for Piece { iova, size, phys } in pieces {
            let piece = self.piece(iova, size, phys)?;
            let all = &mut self.grouper.pieces;
            let sum = all[first as usize].pages.checked_add(all[piece as usize].pages);
            all[first as usize].pages = sum.ok_or(Flaw::Expected("a mapping below 16 TiB"))?;
            all[piece as usize].absorbed = true;
            all[last as usize].next = piece;
            last = piece;
        }
        Ok(first)
    }
}

/// A part of a list that is contiguous in I/O addresses and in memory.
#[derive(Clone, Copy, Debug)]
struct Piece {
    iova: u64,
    size: u64,
    phys: u64,
}

impl Piece {
    /// Whether `next` continues this piece, at the beginning of a page.
    fn is_before(&self, next: &Self) -> bool {
        let end = self.iova + self.size;
        end == next.iova && end.is_multiple_of(PAGE_SIZE) && self.phys.saturating_add(self.size) == next.phys
    }
}

/// The address in the page of `phys` at the same offset that `iova` has in its own page.
fn at_offset(phys: u64, iova: u64) -> u64 {
    phys & !(PAGE_SIZE - 1) | iova & (PAGE_SIZE - 1)
}
