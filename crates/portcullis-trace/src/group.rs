//! Makes operations from events: decides which map events belong together, to which device, and which unmap ends them.
//!
//! `iommu:map` names neither the device nor the domain. The `dma:` event that follows in the same task or interrupt
//! names the device. Events of interrupts and of other CPUs may come between the two. A map event therefore waits
//! under its address *and* its context until a `dma:` event claims it. Two devices may be mapped at the same address,
//! each in its own domain.
//!
//! A map event that no `dma:` event claims becomes a separate mapping. If one unmap covers a run of such events, the
//! run is one mapping.

mod dma;
mod faults;
mod number;
mod parts;
mod payload;

pub(super) use dma::Readings;

use faults::Faults;
use parts::{Part, Parts};

use super::columns::{Place, Record};
use super::error::Flaw;
use super::event::Event;
use super::{Context, Operation, OperationKind, Statistics, TracedInvalidation, UNKNOWN_DEVICE, UnmatchedUnmap};
use portcullis::{Access, PAGE_SHIFT, PAGE_SIZE, PhysAddr, Segment, SourceId};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::iter;

/// The largest IOMMU page to which Linux may pad a buffer, in 4 KiB pages. A `dma_addr` lies less than this far into
/// its mapping.
const GRANULE_PAGES_MAX: u64 = 16;
/// How many unmaps may wait for their `dma:` event. If there are more, the capture has no such events.
const WAITING_MAX: usize = 64;
/// The index that stands for "no piece" and "no mapping".
const NONE: u32 = u32::MAX;

/// The owner of the address space in which a piece lies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Owner {
    /// Not known yet: the piece was mapped in this context.
    Context(u32),
    /// The device with this index.
    Device(u16),
}

/// A map event. The first piece of a mapping stands for the whole mapping. The piece's segment has the same index.
#[derive(Clone, Copy, Debug)]
struct Piece {
    iova_pfn: u64,
    /// Pages of this piece. In the first piece of a mapping: pages of the whole mapping.
    pages: u32,
    /// The next piece of the same mapping.
    next: u32,
    /// `None` until a `dma:` event claims the piece.
    claim: Option<(u16, Access)>,
    /// Whether the piece belongs to a mapping whose first piece is another one.
    absorbed: bool,
}

/// An unmap that may belong to one of several devices. Its `dma:` event will say to which.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    iova_pfn: u64,
    pages: u64,
    context: u32,
    operation: u32,
    /// How many pieces there were at that time. The unmap cannot mean later ones.
    pieces: u32,
}

/// Takes events in the order of the capture, and makes a trace.
#[derive(Default)]
struct Grouper {
    counts: Statistics,
    pieces: Vec<Piece>,
    segments: Vec<Segment>,
    operations: Vec<Operation>,
    invalidations: Vec<TracedInvalidation>,
    unmatched: Vec<UnmatchedUnmap>,
    contexts: Vec<Context>,
    context_index: FxHashMap<Context, u32>,
    devices: Vec<SourceId>,
    device_index: FxHashMap<Box<[u8]>, u16>,
    /// The first pieces of the live mappings, by first page and owner.
    live: BTreeMap<(u64, Owner), u32>,
    waiting: Vec<Waiting>,
    /// The device that announced an unmap in each context: `dma_unmap_sg` precedes the unmap itself.
    announced: FxHashMap<u32, u16>,
    /// The first piece of the mapping that each context unmapped last. It is kept until the `dma:` event of that unmap
    /// comes.
    ended: FxHashMap<u32, u32>,
    /// Bytes that are known to be payload, by first piece of the mapping.
    payloads: FxHashMap<u32, u64>,
    /// What was unmapped of mappings that are still live.
    parts: Parts,
    faults: Faults,
}

impl Grouper {
    /// Takes the next event.
    fn record(&mut self, record: &Record<'_>) -> Result<(), Flaw> {
        // The context of a sync is not recorded: a task that only syncs does not appear in the trace.
        match record.event {
            Event::Other | Event::FailedMap | Event::UnmapOfNothing => return Ok(()),
            Event::Fault { device, iova } => {
                self.faults.add(device, iova, record.place.time_ns);
                return Ok(());
            }
            Event::Sync { device, iova, size } => {
                self.sync(device, iova, size);
                return Ok(());
            }
            Event::SyncList { device, pieces } => {
                pieces.iter().for_each(|(iova, size)| self.sync(device, iova, size));
                return Ok(());
            }
            _ => {}
        }
        let context = self.context(record.place)?;
        match record.event {
            Event::Map { iova, size, phys } => self.map(record.place, context, iova, size, phys),
            Event::Unmap { iova, size } => self.unmap(record.place, context, iova >> PAGE_SHIFT, size >> PAGE_SHIFT),
            Event::DmaMap { device, access, iova, size, .. } => {
                let device = self.device(device)?;
                self.claim(context, (device, access), iter::once((iova, iova + size)), true);
                Ok(())
            }
            Event::DmaMapList { device, access, list } => {
                let device = self.device(device)?;
                self.claim(context, (device, access), list.runs(), list.complete);
                Ok(())
            }
            Event::DmaUnmap { device, iova, size } => {
                let device = self.device(device)?;
                self.settle(context, device, iova >> PAGE_SHIFT);
                self.unmapped(context, device, iova, size);
                Ok(())
            }
            Event::DmaUnmapList { device, .. } => {
                let device = self.device(device)?;
                self.announced.insert(context, device);
                Ok(())
            }
            Event::Invalidate { qw0, qw1 } => {
                self.invalidate(qw0, qw1);
                Ok(())
            }
            Event::Sync { .. } | Event::SyncList { .. } | Event::Fault { .. } => Ok(()),
            Event::Other | Event::FailedMap | Event::UnmapOfNothing => Ok(()),
        }
    }

    fn invalidate(&mut self, qw0: u64, qw1: u64) {
        let at_operation = self.operations.len() as u32;
        self.invalidations.push(TracedInvalidation { at_operation, qw0, qw1 });
    }

    fn context(&mut self, place: Place) -> Result<u32, Flaw> {
        let context = Context { pid: place.pid, level: place.level };
        if let Some(&index) = self.context_index.get(&context) {
            return Ok(index);
        }
        let index = index(self.contexts.len(), "tasks")?;
        self.contexts.push(context);
        self.context_index.insert(context, index);
        Ok(index)
    }

    fn device(&mut self, name: &[u8]) -> Result<u16, Flaw> {
        if let Some(&index) = self.device_index.get(name) {
            return Ok(index);
        }
        // Two indexes are reserved: one for the unknown device, and one so that a free address is always found.
        const DEVICES_MAX: u16 = u16::MAX - 2;
        let index = u16::try_from(self.devices.len()).ok().filter(|&index| index < DEVICES_MAX);
        let index = index.ok_or(Flaw::TooMany("devices", u64::from(DEVICES_MAX)))?;
        let free = |source: &SourceId| *source != UNKNOWN_DEVICE && !self.devices.contains(source);
        let source = pci_address(name).filter(free);
        let source =
            source.or_else(|| (1..=u16::MAX).rev().map(SourceId::from_requester).find(free)).unwrap_or(UNKNOWN_DEVICE);
        self.devices.push(source);
        self.device_index.insert(name.into(), index);
        Ok(index)
    }

    fn operation(&mut self, place: Place, context: u32, mapping: u32, kind: OperationKind) -> Result<(), Flaw> {
        index(self.operations.len(), "operations")?;
        self.operations.push(Operation { time_ns: place.time_ns, mapping, context, cpu: place.cpu, kind });
        Ok(())
    }

    /// Adds a piece of a new mapping, and returns its index.
    fn piece(&mut self, iova_pfn: u64, segment: Segment) -> Result<u32, Flaw> {
        let piece = index(self.pieces.len(), "maps")?;
        let pages = u32::try_from(segment.pages()).map_err(|_| Flaw::Expected("a mapping below 16 TiB"))?;
        self.pieces.push(Piece { iova_pfn, pages, next: NONE, claim: None, absorbed: false });
        self.segments.push(segment);
        self.counts.maps += 1;
        self.counts.pages += u64::from(pages);
        Ok(piece)
    }

    fn map(&mut self, place: Place, context: u32, iova: u64, size: u64, phys: u64) -> Result<(), Flaw> {
        let iova_pfn = iova >> PAGE_SHIFT;
        let piece = self.piece(iova_pfn, Segment { phys: PhysAddr::new(phys), len: size })?;
        self.operation(place, context, piece, OperationKind::Map)?;
        // If something was live there, its unmap is missing. It stays in the trace and is never unmapped.
        self.live.insert((iova_pfn, Owner::Context(context)), piece);
        Ok(())
    }

    fn unmap(&mut self, place: Place, context: u32, iova_pfn: u64, pages: u64) -> Result<(), Flaw> {
        self.counts.unmaps += 1;
        let announced = self.announced.remove(&context).map(Owner::Device);
        let (operation, pieces) = (self.operations.len() as u32, self.pieces.len() as u32);
        let unmap = Waiting { iova_pfn, pages, context, operation, pieces };
        let Some(first) = self.owners(&unmap).next() else {
            return match self.part(&unmap, announced) {
                Some(Part { rest: 0, owner, run }) => {
                    self.operation(place, context, NONE, OperationKind::Unmap)?;
                    self.end(Waiting { iova_pfn: run.start, pages: run.end - run.start, ..unmap }, Some(owner));
                    Ok(())
                }
                Some(_) => Ok(()),
                None => {
                    self.end(unmap, None);
                    Ok(())
                }
            };
        };
        self.operation(place, context, NONE, OperationKind::Unmap)?;
        let several = self.devices.len() > 1 && self.owners(&unmap).any(|it| matches!(it, Owner::Device(_)));
        match announced.filter(|&owner| self.fits(&unmap, owner)) {
            Some(owner) => self.end(unmap, Some(owner)),
            None if !several => self.end(unmap, Some(first)),
            None => {
                if self.waiting.len() == WAITING_MAX {
                    let oldest = self.waiting.remove(0);
                    self.end_any(oldest);
                }
                self.waiting.push(unmap);
            }
        }
        Ok(())
    }

    /// The owners that have exactly this run of pages mapped, as one mapping or as unclaimed pieces.
    fn owners(&self, unmap: &Waiting) -> impl Iterator<Item = Owner> {
        let pfn = unmap.iova_pfn;
        let here = self.live.range((pfn, Owner::Context(0))..=(pfn, Owner::Device(u16::MAX)));
        here.map(|(&(_, owner), _)| owner).filter(move |&owner| self.fits(unmap, owner))
    }

    fn fits(&self, unmap: &Waiting, owner: Owner) -> bool {
        let end = unmap.iova_pfn + unmap.pages;
        let mut at = unmap.iova_pfn;
        while let Some(&piece) = self.live.get(&(at, owner)).filter(|&&piece| at < end && piece < unmap.pieces) {
            at += u64::from(self.pieces[piece as usize].pages);
            if matches!(owner, Owner::Device(_)) {
                break;
            }
        }
        at == end
    }

    /// Ends the mapping of `owner`, for which [`Grouper::fits`] holds. Without a mapping, the unmap is unmatched.
    fn end(&mut self, unmap: Waiting, owner: Option<Owner>) {
        let Waiting { iova_pfn, pages, operation, context, .. } = unmap;
        match owner.and_then(|owner| self.gather(iova_pfn, iova_pfn + pages, owner)) {
            Some(first) => {
                self.operations[operation as usize].mapping = first;
                self.parts.forget(first);
                self.ended.insert(context, first);
            }
            None => self.unmatched.push(UnmatchedUnmap { at_operation: operation, iova_pfn, pages }),
        }
    }

    /// Ends the mapping at this run of pages, regardless of its owner.
    fn end_any(&mut self, unmap: Waiting) {
        let owner = self.owners(&unmap).next();
        self.end(unmap, owner);
    }

    /// Handles the `dma:` event of an unmap: `device` has just unmapped the page in this context.
    fn settle(&mut self, context: u32, device: u16, iova_pfn: u64) {
        let meant = |unmap: &Waiting| {
            unmap.context == context && (unmap.iova_pfn..unmap.iova_pfn + unmap.pages).contains(&iova_pfn)
        };
        if let Some(position) = self.waiting.iter().position(meant) {
            let unmap = self.waiting.remove(position);
            let meant = |owner: &Owner| matches!(*owner, Owner::Context(_)) || *owner == Owner::Device(device);
            let owner = self.owners(&unmap).filter(meant).last();
            self.end(unmap, owner);
        }
    }

    /// Takes the pieces of `owner` from page `at` on, up to `end` or a gap, and chains them. The first piece stands
    /// for all.
    fn gather(&mut self, mut at: u64, end: u64, owner: Owner) -> Option<u32> {
        let first = self.live.remove(&(at, owner))?;
        at += u64::from(self.pieces[first as usize].pages);
        let mut last = first;
        while at < end {
            let Some(&piece) = self.live.get(&(at, owner)) else { break };
            let pages = self.pieces[piece as usize].pages;
            let Some(sum) = self.pieces[first as usize].pages.checked_add(pages) else { break };
            self.live.remove(&(at, owner));
            self.pieces[first as usize].pages = sum;
            self.pieces[piece as usize].absorbed = true;
            self.pieces[last as usize].next = piece;
            last = piece;
            at += u64::from(pages);
        }
        Some(first)
    }

    /// Makes one mapping of the device from the pieces that hold the bytes of `runs` and were mapped in this context.
    /// If the list is not `complete`, all pieces that follow without a gap belong to it too. Addresses that lie in no
    /// piece are not translated, and are ignored.
    fn claim(
        &mut self,
        context: u32,
        (device, access): (u16, Access),
        runs: impl Iterator<Item = (u64, u64)> + Clone,
        complete: bool,
    ) {
        let end = match runs.clone().last().filter(|_| complete) {
            Some((_, end)) => end.div_ceil(PAGE_SIZE),
            None => u64::MAX,
        };
        let owner = Owner::Context(context);
        let iova_pfn = runs.clone().next().and_then(|(start, _)| self.holder_of(start >> PAGE_SHIFT, owner));
        let Some((iova_pfn, first)) = iova_pfn.and_then(|pfn| Some((pfn, self.gather(pfn, end, owner)?))) else {
            return;
        };
        self.pieces[first as usize].claim = Some((device, access));
        self.trim(first, runs);
        self.make_room(iova_pfn, device);
        // If the address is still occupied, the unmap of the old mapping is lost. That mapping stays in the trace and
        // is never unmapped.
        self.live.insert((iova_pfn, Owner::Device(device)), first);
    }

    /// The first page of the piece of `owner` that holds `page` among its first [`GRANULE_PAGES_MAX`] pages.
    fn holder_of(&self, page: u64, owner: Owner) -> Option<u64> {
        let first = page.saturating_sub(GRANULE_PAGES_MAX - 1);
        let mut near = self.live.range((first, owner)..=(page, owner)).rev();
        let (&(iova_pfn, _), _) = near.find(|&(&(iova_pfn, found), &piece)| {
            found == owner && page - iova_pfn < u64::from(self.pieces[piece as usize].pages)
        })?;
        Some(iova_pfn)
    }

    /// Ends the old mapping if its unmap still waits: another CPU may get an address before the `dma:` event of the
    /// unmap that freed it is written.
    fn make_room(&mut self, iova_pfn: u64, device: u16) {
        let owner = Owner::Device(device);
        if let Some(position) = self.waiting.iter().position(|it| it.iova_pfn == iova_pfn && self.fits(it, owner)) {
            let unmap = self.waiting.remove(position);
            self.end(unmap, Some(owner));
        }
    }

    /// Cuts the segments down to the bytes of `runs`. Only the unused parts of the first and the last page go; no page
    /// is removed.
    fn trim(&mut self, first: u32, runs: impl Iterator<Item = (u64, u64)>) {
        let mut runs = runs.peekable();
        let mut piece = first;
        let mut start = self.pieces[first as usize].iova_pfn << PAGE_SHIFT;
        while piece != NONE {
            let segment = &mut self.segments[piece as usize];
            let end = start + segment.len;
            while runs.next_if(|run| run.1 <= start).is_some() {}
            let mut bytes = None;
            while let Some(&(from, to)) = runs.peek().filter(|run| run.0 < end) {
                let begin = bytes.map_or(from.max(start), |(begin, _)| begin);
                bytes = Some((begin, to.min(end)));
                if to >= end {
                    break;
                }
                runs.next();
            }
            if let Some((from, to)) = bytes {
                let before = Some(from - start).filter(|&before| before < PAGE_SIZE).unwrap_or(0);
                let after = Some(end - to).filter(|&after| after < PAGE_SIZE).unwrap_or(0);
                segment.phys = PhysAddr::new(segment.phys.as_u64() + before);
                segment.len -= before + after;
            }
            start = end;
            piece = self.pieces[piece as usize].next;
        }
    }
}

/// The index of the next entry of a list of length `len`.
fn index(len: usize, what: &'static str) -> Result<u32, Flaw> {
    let limit = u64::from(NONE);
    u32::try_from(len).ok().filter(|&index| index < NONE).ok_or(Flaw::TooMany(what, limit))
}

/// Parses `0000:00:04.0`: segment, bus, device, function. Only segment 0 fits a source id.
fn pci_address(name: &[u8]) -> Option<SourceId> {
    let text = std::str::from_utf8(name).ok()?.strip_prefix("0000:")?;
    let (bus, rest) = text.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let number = |text: &str, max: u16| u16::from_str_radix(text, 16).ok().filter(|&number| number <= max);
    Some(SourceId::from_requester(number(bus, 0xff)? << 8 | number(device, 0x1f)? << 3 | number(function, 7)?))
}
