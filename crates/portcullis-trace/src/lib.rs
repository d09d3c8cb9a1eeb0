//! Traces: what a real system mapped and unmapped, in order, and the accesses of its device.
//!
//! [`Trace::read`] reads the text of a capture of Linux's `iommu:` and `dma:` events in one pass: from the kernel's
//! own `trace` file, from `trace-cmd report` or from `perf script`, plain or as `.xz`, `.gz` or `.zst`. It recognizes
//! the format from the content. Kernels from 4.19 on are read, also those of vendors that print fields of their own in
//! front of the address, or hexadecimal sizes.
//!
//! An operation concerns a *mapping*: what one `dma_map_*` call made. A scatter list shows as several `iommu:map`
//! events at consecutive addresses and is one mapping. Without `dma:` events it is recognized by its one
//! `iommu:unmap`, and the mapping has neither device nor direction. If there are no `iommu:` events, the mappings are
//! derived from the `dma:` events alone. These do not cover coherent memory (`dma_alloc`), and do not give the length
//! of each piece of a scatter list. Such a capture may also come from a system whose devices are not behind an IOMMU;
//! its I/O addresses are then physical addresses.
//!
//! The kernel module `portcullis.ko` has its own events, `portcullis:portcullis_map` and
//! `portcullis:portcullis_unmap`. They carry what `dma_map_page` and `dma_unmap_page` carry, also for each piece of a
//! scatter list, and count as such. A capture must have either the module's events or the kernel's: with both, every
//! buffer would be mapped twice.
//!
//! The payload of a buffer is known if its driver syncs a part of it for the CPU before reading it
//! (`dma_sync_single_for_cpu`, `dma_sync_sg_for_cpu`), or unmaps fewer bytes than it has mapped: [`Trace::payloads`].
//!
//! `perf script` does not distinguish interrupts from tasks; its captures always have [`Level::Task`] in
//! [`Context::level`].
//!
//! [`AccessLog`] holds the accesses of the device itself, and [`join()`] finds the mapping behind each.
//!
//! A trace is compact: a mapping of one segment takes 96 bytes together with its map and its unmap. Measured for ten
//! million lines as the peak of the whole process, reading takes at most 27 bytes per line for a strict capture with
//! all events (270 MB), 40 if they are scatter lists, 69 for a capture of maps and unmaps only, and 114 for one of
//! maps only. With `dma:` events alone, it takes 70 for maps and unmaps and 116 for maps only. Two million lines of
//! lists, each of eight pieces that are not adjacent in memory, took 281 per line.
#![deny(missing_docs)]
#![deny(unsafe_code)]

/// The example of the README, compiled as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod accesses;
mod columns;
mod compressed;
mod device;
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
pub use device::TracedDevice;
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

/// The device of a mapping that no `dma:` event names. This is the address of the host bridge, which does no DMA.
pub const UNKNOWN_DEVICE: SourceId = SourceId::from_requester(0);

/// Which families of events a capture has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Events {
    /// `iommu:` events show the mappings; `dma:` events add devices, directions and exact lengths.
    Both,
    /// `iommu:` events alone: whole pages without a device, each readable and writable.
    Iommu,
    /// `dma:` events alone.
    Dma,
}

/// Counts from reading a trace. The names are JSON keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Statistics {
    /// `iommu:map` events: physically contiguous pieces. If there are only `dma:` events, the pieces in those.
    pub maps: u64,
    /// Pages that these pieces mapped.
    pub pages: u64,
    /// `iommu:unmap` events. If there are only `dma:` events, `dma_unmap_*` events.
    pub unmaps: u64,
    /// Mappings that are never unmapped.
    pub unmatched_maps: u64,
    /// Unmaps without a matching map: the map precedes the capture or was lost. They are not operations.
    pub unmatched_unmaps: u64,
    /// Unmaps of a part of a mapping whose rest stays mapped. They are not operations. Parts that add up end their
    /// mapping with the last of them, and do not count here.
    pub partial_unmaps: u64,
    /// Mappings that are never unmapped, as in `unmatched_maps`.
    pub unmapped_never: u64,
    /// `dma:` events of maps that failed. They are not operations.
    pub failed_maps: u64,
    /// The line of the first of them; 0 if there is none.
    #[serde(skip)]
    pub failed_map_line: u64,
    /// Events of unmaps of no bytes, or of maps that failed. They are not operations.
    pub unmaps_of_nothing: u64,
    /// The line of the first of them; 0 if there is none.
    #[serde(skip)]
    pub unmap_of_nothing_line: u64,
    /// `iommu:io_page_fault` events: accesses that the IOMMU refused.
    pub refused_accesses: u64,
    /// Events for which the tracer had no room, as it reports.
    pub lost_events: u64,
    /// Events that are older than the event before them on their CPU: their lines were moved.
    pub out_of_order: u64,
    /// CPUs on which an event occurred.
    pub cpus: u64,
    /// The time from the earliest event to the latest, in microseconds.
    pub span_us: u64,
}

/// A buffer that was mapped, and when it was mapped and unmapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceMapping {
    segments_start: u32,
    segments_count: u32,
    /// The number of the first page, as allocated by the traced kernel.
    pub iova_pfn: u64,
    /// The number of pages: the sum over the segments.
    pub pages: u32,
    /// The index of the operation that mapped it.
    pub map_operation: u32,
    /// The index of the operation that unmapped it, which is never 0. `None` if the mapping outlives the capture.
    pub unmap_operation: Option<NonZeroU32>,
    /// Index into [`Trace::devices`].
    pub device: u16,
    /// The accesses that the device may make.
    pub access: Access,
}

impl TraceMapping {
    /// The range of its segments in [`Trace::segments`].
    pub fn segments(&self) -> Range<usize> {
        let start = self.segments_start as usize;
        start..start + self.segments_count as usize
    }
}

/// The kinds of operations.
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
    /// The time in nanoseconds, on the tracer's clock.
    pub time_ns: u64,
    /// Index into [`Trace::mappings`].
    pub mapping: u32,
    /// Index into [`Trace::contexts`].
    pub context: u32,
    /// The CPU on which it happened.
    pub cpu: u16,
    /// Whether it is a map or an unmap.
    pub kind: OperationKind,
}

/// The task or interrupt that ran on a CPU. A change means that an interrupt or a task has ended or begun.
///
/// Two interrupts of the same kind into the same task look like one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Context {
    /// The task. 0 is the idle task, which every CPU has.
    pub pid: u32,
    /// The interrupt level.
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

/// An unmap of pages that the trace does not show as mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnmatchedUnmap {
    /// How many operations of the trace came before it.
    pub at_operation: u32,
    /// The first page.
    pub iova_pfn: u64,
    /// The number of pages. 0 if the capture gives neither the pages nor the address.
    pub pages: u64,
}

/// Accesses that the IOMMU refused during the capture (`iommu:io_page_fault`): those of one device, in order, to pages
/// that follow each other.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct TracedFault {
    /// The device, as the event names it.
    pub device: String,
    /// The first address.
    pub first_iova: u64,
    /// The highest address.
    pub last_iova: u64,
    /// The number of refused accesses.
    pub count: u64,
    /// The time of the first, in nanoseconds, on the tracer's clock.
    pub time_ns: u64,
    /// Index into [`Trace::mappings`]: the youngest mapping that held the first address. `None` if the capture shows
    /// none.
    pub mapping: Option<u32>,
}

/// How much of a mapping is payload, as far as its driver shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Payload {
    /// Index into [`Trace::mappings`].
    pub mapping: u32,
    /// The bytes that were synced for the CPU while it was mapped, summed. The sum exceeds the size of the mapping if
    /// a page is reused while it stays mapped. If nothing was synced, this is the size of an unmap of fewer bytes than
    /// were mapped.
    pub bytes: u64,
}

/// The content of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// The name of the file, without its folder.
    pub name: String,
    /// The program that printed it.
    pub format: Format,
    /// The families of events that it has.
    pub events: Events,
    /// The counts.
    pub statistics: Statistics,
    /// The devices, in order of appearance. [`UNKNOWN_DEVICE`], if present, is last. A device that is not on PCI has
    /// an address that no other device has.
    pub devices: Vec<SourceId>,
    /// The names of the devices, as events give them: for PCI, `0000:3b:00.0`. That of [`UNKNOWN_DEVICE`] is empty.
    pub device_names: Vec<String>,
    /// The mappings, in order of their maps.
    pub mappings: Vec<TraceMapping>,
    /// The segments of all mappings.
    pub segments: Vec<Segment>,
    /// The operations, in the order of the trace.
    pub operations: Vec<Operation>,
    /// The contexts of the operations.
    pub contexts: Vec<Context>,
    /// The invalidations, in the order of the trace.
    pub invalidations: Vec<TracedInvalidation>,
    /// The unmaps that are not operations, in the order of the trace.
    pub unmatched: Vec<UnmatchedUnmap>,
    /// The mappings whose payload is known, in order. Payloads of scatter lists are known only if there are `iommu:`
    /// events.
    pub payloads: Vec<Payload>,
    /// The accesses that were refused, in order; of a device that goes on and on, the first ones.
    /// [`Statistics::refused_accesses`] counts all.
    pub faults: Vec<TracedFault>,
}

impl Trace {
    /// Reads the file at `path`. Calls `progress` from time to time with the number of bytes read from the file so
    /// far.
    ///
    /// # Errors
    /// Returns a [`TraceError`] if the file cannot be read, is not a trace, is damaged or cut short, or has no
    /// mapping.
    pub fn read(path: &Path, progress: impl FnMut(u64)) -> Result<Self, TraceError> {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        read_lines(name, Lines::open(path)?, progress)
    }

    /// Reads what `reader` yields, like [`Trace::read`]. Errors and the trace call the file `name`.
    ///
    /// # Errors
    /// Fails like [`Trace::read`].
    pub fn read_from(name: &str, reader: impl Read, progress: impl FnMut(u64)) -> Result<Self, TraceError> {
        read_lines(name.to_owned(), Lines::new(name, reader)?, progress)
    }

    /// The segments of `mapping`.
    pub fn segments_of(&self, mapping: &TraceMapping) -> &[Segment] {
        &self.segments[mapping.segments()]
    }

    /// The payload of the mapping with this index, in bytes. `None` if it is not known.
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
                tally.record(&record, lines.number);
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
    // If no event shows the format, then no event maps or unmaps either.
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
    (trace.statistics.failed_maps, trace.statistics.failed_map_line) = tally.failed_maps;
    (trace.statistics.unmaps_of_nothing, trace.statistics.unmap_of_nothing_line) = tally.unmaps_of_nothing;
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

/// Counts that are kept for every line.
#[derive(Default)]
struct Tally {
    records: u64,
    lost_events: u64,
    cpus: FxHashSet<u16>,
    last_cpu: Option<u16>,
    /// The time of the last event of each CPU.
    last_of_cpu_ns: Vec<u64>,
    out_of_order: u64,
    dma_events: bool,
    /// Their number, and the line of the first.
    failed_maps: (u64, u64),
    unmaps_of_nothing: (u64, u64),
    /// The time of the first event in the file.
    begun_ns: u64,
    first_ns: u64,
    last_ns: u64,
    /// The beginning of the file, until the first event.
    first_lines: Vec<String>,
}

impl Tally {
    /// Whether a CPU that was past the first event of the file is back at it or before it. Lines that were merely
    /// moved do not go back so far.
    fn begins_again(&self, record: &Record<'_>) -> bool {
        let place = record.place;
        let last_ns = self.last_of_cpu_ns.get(usize::from(place.cpu));
        self.records > 0 && place.time_ns <= self.begun_ns && last_ns.is_some_and(|&last_ns| last_ns > self.begun_ns)
    }

    fn record(&mut self, record: &Record<'_>, line: u64) {
        let place = record.place;
        let odd = match record.event {
            Event::FailedMap => Some(&mut self.failed_maps),
            Event::UnmapOfNothing => Some(&mut self.unmaps_of_nothing),
            _ => None,
        };
        if let Some((count, first)) = odd {
            *first = if *count == 0 { line } else { *first };
            *count += 1;
        }
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

    /// The error for a flaw in the line last read. The flaw may concern the whole file.
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
        // `perf trace` prints `iommu:map(iova: …`.
        if text.windows(7).any(|word| word == b" iommu:") && text.contains(&b'(') {
            return not_a_trace(file, line, "the output of perf trace, which leaves out the words of events");
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

// Traces of ten million lines must fit in memory.
const _: () = assert!(size_of::<TraceMapping>() == 32 && size_of::<Operation>() == 24);
