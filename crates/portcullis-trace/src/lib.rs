//! Traces: what a real system mapped and unmapped, in order, and what its device then did.
//!
//! [`Trace::read`] takes the text of a capture of Linux's `iommu:` and `dma:` events in one pass: from the kernel's own
//! `trace` file, from `trace-cmd report` or from `perf script`, plain or as `.xz`, `.gz` or `.zst`. Which it is, it tells from
//! the content.
//!
//! An operation concerns a *mapping*: what one `dma_map_*` call made. A scatter list shows as several `iommu:map` events at
//! consecutive addresses and is one mapping; without `dma:` events it is recognised by its one `iommu:unmap`, and the mapping
//! has neither device nor direction. Where there are no `iommu:` events, the `dma:` events alone tell of the mappings, as far
//! as they can: of coherent memory (`dma_alloc`) nothing, and of scatter lists not how long each piece is. Such a capture may
//! also come from a system whose devices no IOMMU serves, with physical addresses for I/O addresses.
//!
//! The kernel module `portcullis.ko` has events of its own, `portcullis:portcullis_map` and `portcullis:portcullis_unmap`. They say
//! what `dma_map_page` and `dma_unmap_page` say, of each piece of a scatter list too, and count as such. A capture has to have
//! the one or the other: of both, every buffer would be mapped twice.
//!
//! How much of a buffer is payload shows where its driver syncs a part of it for the CPU before it looks
//! (`dma_sync_single_for_cpu`, `dma_sync_sg_for_cpu`), or unmaps fewer bytes than it has mapped: [`Trace::payloads`].
//!
//! `perf script` does not tell interrupts from tasks; there [`Context::level`] is always [`Level::Task`].
//!
//! [`AccessLog`] holds the accesses of the device itself, and [`join()`] finds the mapping behind each.
//!
//! What a trace keeps is compact: a mapping of one segment takes 96 bytes with its map and its unmap. Reading ten million
//! lines takes at most, measured as the peak of the whole process, 27 bytes per line of a strict capture with all events
//! (270 MB), 40 where they are scatter lists, 69 of a capture with nothing but maps and unmaps, and 114 of one with nothing
//! but maps. With `dma:` events alone it is 70 of maps and unmaps and 116 of nothing but maps; two million lines of lists,
//! each of eight pieces apart in memory, took 281.
#![deny(missing_docs)]
#![deny(unsafe_code)]

/// The example of the README, compiled as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod accesses;
mod columns;
mod compressed;
mod error;
mod event;
mod format;
mod group;
mod join;
mod list;
mod scan;
mod source;

pub use accesses::{AccessLog, LogEvent};
pub use columns::Level;
pub use error::TraceError;
pub use format::Format;
pub use join::{JoinError, Joined, LoggedAccess, PersistentPage, Target, join, join_at};

use columns::{Line, Record};
use error::{Flaw, excerpt};
use event::Event;
use group::Readings;
use portcullis::{Access, Segment, SourceId};
use rustc_hash::FxHashSet;
use serde::Serialize;
use source::Lines;
use std::io::Read;
use std::num::NonZeroU32;
use std::ops::Range;
use std::path::Path;

/// The device of a mapping that no `dma:` event names. The host bridge has this address, and does no DMA.
pub const UNKNOWN_DEVICE: SourceId = SourceId(0);

/// Which families of events a capture has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Events {
    /// `iommu:` events say what was mapped; `dma:` events add devices, directions and exact lengths.
    Both,
    /// `iommu:` events alone: whole pages, by no device in particular, each readable and writable.
    Iommu,
    /// `dma:` events alone.
    Dma,
}

/// What was counted while reading. The names are JSON keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Statistics {
    /// `iommu:map` events: physically contiguous pieces. Where there are only `dma:` events, the pieces that those tell of.
    pub maps: u64,
    /// Pages that these mapped.
    pub pages: u64,
    /// `iommu:unmap` events. Where there are only `dma:` events, `dma_unmap_*`.
    pub unmaps: u64,
    /// Mappings that are never unmapped.
    pub unmatched_maps: u64,
    /// Unmaps of what was not seen to be mapped as such: the map precedes the capture or was lost, or the unmap takes only
    /// a part. They are no operations.
    pub unmatched_unmaps: u64,
    /// Events that the tracer had no room for, by its own account.
    pub lost_events: u64,
    /// Events that are older than the one before them on their CPU: lines were moved.
    pub out_of_order: u64,
    /// CPUs that an event came from.
    pub cpus: u64,
    /// From the earliest event to the latest, in microseconds.
    pub span_us: u64,
}

/// A buffer that was mapped, and when it was unmapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceMapping {
    segments_start: u32,
    segments_count: u32,
    /// Number of the first page that the traced kernel gave it.
    pub iova_pfn: u64,
    /// Pages: the sum over the segments.
    pub pages: u32,
    /// The operation that made it.
    pub map_operation: u32,
    /// The operation that ended it; never the first of the trace. `None`: it outlives the capture.
    pub unmap_operation: Option<NonZeroU32>,
    /// Index into [`Trace::devices`].
    pub device: u16,
    /// What the device may do.
    pub access: Access,
}

impl TraceMapping {
    /// Where its segments are in [`Trace::segments`].
    pub fn segments(&self) -> Range<usize> {
        let start = self.segments_start as usize;
        start..start + self.segments_count as usize
    }
}

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperationKind {
    /// The mapping is made.
    Map,
    /// The mapping is ended.
    Unmap,
}

/// A map or an unmap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// When, in nanoseconds on the tracer's clock.
    pub time_ns: u64,
    /// Index into [`Trace::mappings`].
    pub mapping: u32,
    /// Index into [`Trace::contexts`].
    pub context: u32,
    /// The CPU that did it.
    pub cpu: u16,
    /// Map or unmap.
    pub kind: OperationKind,
}

/// Who ran on a CPU: where it changes, an interrupt or a task has ended or begun.
///
/// Two interrupts of the same kind into the same task look like one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Context {
    /// The task; 0 is idle, and one such task exists on every CPU.
    pub pid: u32,
    /// What interrupted it.
    pub level: Level,
}

/// An IOTLB invalidation descriptor that the traced kernel submitted (VT-d specification 6.5.2.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TracedInvalidation {
    /// How many operations of the trace came before it.
    pub at_operation: u32,
    /// The low quadword.
    pub qw0: u64,
    /// The high quadword.
    pub qw1: u64,
}

/// An unmap of pages whose map is not in the trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnmatchedUnmap {
    /// How many operations of the trace came before it.
    pub at_operation: u32,
    /// The first page.
    pub iova_pfn: u64,
    /// How many pages. 0: the capture tells neither this nor the first.
    pub pages: u64,
}

/// How much of a mapping is payload, as far as its driver has shown it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Payload {
    /// Index into [`Trace::mappings`].
    pub mapping: u32,
    /// What was synced for the CPU while it was mapped, summed: more than there is, where a page is used again while it stays
    /// mapped. Where nothing was, the bytes of an unmap that names fewer than were mapped.
    pub bytes: u64,
}

/// Everything that a trace says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// The name of the file, without its folder.
    pub name: String,
    /// Which program printed it.
    pub format: Format,
    /// Which events it has.
    pub events: Events,
    /// What was counted.
    pub statistics: Statistics,
    /// The devices, in order of appearance; [`UNKNOWN_DEVICE`], if there, is last. A device that is not on PCI has an
    /// address that nobody else has.
    pub devices: Vec<SourceId>,
    /// The mappings, in order of their maps.
    pub mappings: Vec<TraceMapping>,
    /// The segments of all mappings.
    pub segments: Vec<Segment>,
    /// The operations, in the order of the trace.
    pub operations: Vec<Operation>,
    /// Who did them.
    pub contexts: Vec<Context>,
    /// The invalidations, in the order of the trace.
    pub invalidations: Vec<TracedInvalidation>,
    /// The unmaps that are no operations, in the order of the trace.
    pub unmatched: Vec<UnmatchedUnmap>,
    /// The mappings whose driver has shown how much of them is payload, in order. Of scatter lists only where there are `iommu:`
    /// events.
    pub payloads: Vec<Payload>,
}

impl Trace {
    /// Reads the file at `path`; `progress` now and then learns how many bytes of it have been read.
    ///
    /// # Errors
    /// [`TraceError`] where the file cannot be read, is no trace, is damaged or cut short, or holds no mapping.
    pub fn read(path: &Path, progress: impl FnMut(u64)) -> Result<Self, TraceError> {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        read_lines(name, Lines::open(path)?, progress)
    }

    /// Reads what `reader` yields, as [`Trace::read`] does; `name` stands for the file.
    ///
    /// # Errors
    /// The same.
    pub fn read_from(name: &str, reader: impl Read, progress: impl FnMut(u64)) -> Result<Self, TraceError> {
        read_lines(name.to_owned(), Lines::new(name, reader)?, progress)
    }

    /// The segments of `mapping`.
    pub fn segments_of(&self, mapping: &TraceMapping) -> &[Segment] {
        &self.segments[mapping.segments()]
    }

    /// How much of the mapping with this index is payload; `None`: the trace does not tell.
    pub fn payload_of(&self, mapping: u32) -> Option<u64> {
        let at = self.payloads.binary_search_by_key(&mapping, |payload| payload.mapping).ok()?;
        Some(self.payloads[at].bytes)
    }
}

fn read_lines<R: Read>(name: String, mut lines: Lines<R>, mut progress: impl FnMut(u64)) -> Result<Trace, TraceError> {
    const LINES_PER_PROGRESS: u64 = 1 << 14;
    if let Some(found) = lines.peek()?.and_then(format::binary) {
        return Err(not_a_trace(lines.file, 1, found));
    }
    let mut format = None;
    let mut readings = Readings::default();
    let mut tally = Tally::default();
    let mut dma_flaw = None;
    while lines.advance()? {
        let text = lines.text();
        if format.is_none() {
            format = Format::of(text);
        }
        let line = match format {
            Some(format) => format.parse(text),
            None => Format::parse_untold(text),
        };
        match line {
            Ok(Line::Record(record)) => {
                if tally.begins_again(&record) {
                    return Err(second_capture(&lines, "time goes back to the first event"));
                }
                tally.record(&record);
                let at = |flaw: Flaw| flaw.at(&lines.file, lines.number, text, format::ANY);
                readings.record(&record).map_err(at)?;
                if dma_flaw.is_none() {
                    dma_flaw = readings.flaw().map(at);
                }
            }
            Ok(Line::Lost(events)) => tally.lost_events = tally.lost_events.saturating_add(events),
            Ok(Line::Comment) if tally.records > 0 && Format::is_beginning(text) => {
                return Err(second_capture(&lines, "a header after events"));
            }
            Ok(Line::Comment) => {}
            Err(flaw) => return Err(tally.failed(flaw, format, &lines)),
        }
        if tally.records == 0 {
            tally.keep(text);
        }
        if lines.number.is_multiple_of(LINES_PER_PROGRESS) {
            progress(lines.file_bytes());
        }
    }
    progress(lines.file_bytes());
    if let Some(error) = dma_flaw.filter(|_| readings.is_of_dma_events()) {
        return Err(error);
    }
    let counts = readings.counts();
    // Without an event that shows the format there is none that maps or unmaps.
    let Some(format) = format.filter(|_| counts.maps + counts.unmaps > 0) else {
        return Err(TraceError::NoEvents { file: lines.file, lines: lines.number });
    };
    let events = match (readings.is_of_dma_events(), tally.dma_events) {
        (true, _) => Events::Dma,
        (false, true) => Events::Both,
        (false, false) => Events::Iommu,
    };
    let mut trace = readings.finish(name, format, events);
    trace.statistics.out_of_order = tally.out_of_order;
    trace.statistics.lost_events = tally.lost_events;
    trace.statistics.cpus = tally.cpus.len() as u64;
    trace.statistics.span_us = (tally.last_ns - tally.first_ns) / 1_000;
    Ok(trace)
}

fn not_a_trace(file: String, line: u64, found: &str) -> TraceError {
    TraceError::OtherKind { file, line, wanted: "a trace", found: found.to_owned(), expected: format::ANY }
}

fn second_capture<R: Read>(lines: &Lines<R>, sign: &'static str) -> TraceError {
    TraceError::SecondCapture { file: lines.file.clone(), line: lines.number, sign }
}

/// What is counted line by line, whatever the lines mean.
#[derive(Default)]
struct Tally {
    records: u64,
    lost_events: u64,
    cpus: FxHashSet<u16>,
    last_cpu: Option<u16>,
    /// By CPU.
    last_of_cpu_ns: Vec<u64>,
    out_of_order: u64,
    dma_events: bool,
    /// The time of the first event in the file.
    begun_ns: u64,
    first_ns: u64,
    last_ns: u64,
    /// The beginning of the file, while no event has been seen.
    first_lines: Vec<String>,
}

impl Tally {
    /// Whether a CPU that was past the first event of the file is back there or before: lines that were moved are not moved so far.
    fn begins_again(&self, record: &Record<'_>) -> bool {
        let place = record.place;
        let last_ns = self.last_of_cpu_ns.get(usize::from(place.cpu));
        self.records > 0 && place.time_ns <= self.begun_ns && last_ns.is_some_and(|&last_ns| last_ns > self.begun_ns)
    }

    fn record(&mut self, record: &Record<'_>) {
        let place = record.place;
        self.dma_events |= matches!(record.event, Event::DmaMap { .. } | Event::DmaMapList { .. });
        let cpu = usize::from(place.cpu);
        if self.last_of_cpu_ns.len() <= cpu {
            self.last_of_cpu_ns.resize(cpu + 1, 0);
        }
        self.out_of_order += u64::from(place.time_ns < self.last_of_cpu_ns[cpu]);
        self.last_of_cpu_ns[cpu] = place.time_ns;
        if self.records == 0 {
            (self.begun_ns, self.first_ns, self.last_ns) = (place.time_ns, place.time_ns, place.time_ns);
        }
        self.records += 1;
        if self.last_cpu.replace(place.cpu) != Some(place.cpu) {
            self.cpus.insert(place.cpu);
        }
        self.first_ns = self.first_ns.min(place.time_ns);
        self.last_ns = self.last_ns.max(place.time_ns);
    }

    /// The line last read has this flaw: what it says of the whole file.
    fn failed<R: Read>(&mut self, flaw: Flaw, format: Option<Format>, lines: &Lines<R>) -> TraceError {
        let (file, line, text) = (lines.file.clone(), lines.number, lines.text());
        let expected = format.map_or(format::ANY, Format::event);
        if flaw != Flaw::Columns {
            return flaw.at(&file, line, text, expected);
        }
        if let (Some(first), Some(then)) = (format, Format::of(text)) {
            return TraceError::FormatChanges { file, line, first, then, expected };
        }
        if self.records > 0 {
            return flaw.at(&file, line, text, expected);
        }
        if accesses::is_logged(text) {
            return not_a_trace(file, line, "the log of a device's accesses");
        }
        self.keep(text);
        TraceError::NotATrace { file, line, expected, found: self.first_lines.join("\n") }
    }

    fn keep(&mut self, text: &[u8]) {
        const KEPT: usize = 3;
        if self.first_lines.len() < KEPT {
            self.first_lines.push(excerpt(text));
        }
    }
}

// A trace of ten million lines must fit.
const _: () = assert!(size_of::<TraceMapping>() == 32 && size_of::<Operation>() == 24);
