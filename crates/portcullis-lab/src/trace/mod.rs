//! Traces: what a real system mapped and unmapped, in order, and what its device then did.
//!
//! [`Trace::read`] takes the text of a Linux ftrace capture, plain or as `.xz`, in one pass. What it keeps is compact: a
//! mapping of one segment takes 96 bytes with its map and its unmap. Reading ten million lines takes at most, measured as
//! the peak of the whole process, 27 bytes per line of a strict capture with all events (270 MB), 40 where they are scatter
//! lists, 69 of a capture with nothing but maps and unmaps, and 114 of one with nothing but maps.
//!
//! An operation concerns a *mapping*: what one `dma_map_*` call made. A scatter list shows as several `iommu:map` events at
//! consecutive addresses and is one mapping; without `dma:` events it is recognised by its one `iommu:unmap`.
//!
//! [`AccessLog`] holds the accesses of the device itself, and [`join()`] finds the mapping behind each.

mod accesses;
mod error;
mod event;
mod ftrace;
mod group;
mod join;
mod scan;
mod source;

pub use accesses::{AccessLog, LogEvent};
pub use error::TraceError;
pub use ftrace::Level;
pub use join::{JoinError, Joined, LoggedAccess, PersistentPage, Target, join, join_at};

use error::{Flaw, excerpt};
use event::Event;
use ftrace::Line;
use group::Grouper;
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

/// Which program printed the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// The kernel: `/sys/kernel/tracing/trace`.
    Ftrace,
}

/// What was counted while reading. The names are JSON keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Statistics {
    /// `iommu:map` events: physically contiguous pieces.
    pub maps: u64,
    /// Pages that these mapped.
    pub pages: u64,
    /// `iommu:unmap` events.
    pub unmaps: u64,
    /// Mappings that are never unmapped.
    pub unmatched_maps: u64,
    /// Unmaps of what was not seen to be mapped as such: the map precedes the capture or was lost, or the unmap takes only
    /// a part. They are no operations.
    pub unmatched_unmaps: u64,
    /// Events that the tracer had no room for, by its own account.
    pub lost_events: u64,
    /// CPUs that an event came from.
    pub cpus: u64,
    /// From the earliest event to the latest, in microseconds.
    pub span_us: u64,
}

/// A buffer that was mapped, and when it was unmapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
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

impl Mapping {
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
    /// How many pages.
    pub pages: u64,
}

/// Everything that a trace says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// The name of the file, without its folder.
    pub name: String,
    /// Which program printed it.
    pub format: Format,
    /// What was counted.
    pub statistics: Statistics,
    /// The devices, in order of appearance; [`UNKNOWN_DEVICE`], if there, is last. A device that is not on PCI has an
    /// address that nobody else has.
    pub devices: Vec<SourceId>,
    /// The mappings, in order of their maps.
    pub mappings: Vec<Mapping>,
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
    pub fn segments_of(&self, mapping: &Mapping) -> &[Segment] {
        &self.segments[mapping.segments()]
    }
}

fn read_lines<R: Read>(name: String, mut lines: Lines<R>, mut progress: impl FnMut(u64)) -> Result<Trace, TraceError> {
    const LINES_PER_PROGRESS: u64 = 1 << 14;
    let mut grouper = Grouper::default();
    let mut tally = Tally::default();
    while lines.advance()? {
        let text = lines.text();
        match ftrace::parse(text) {
            Ok(Line::Record(record)) => {
                tally.record(&record);
                grouper.record(&record).map_err(|flaw| flaw.at(&lines.file, lines.number, text))?;
            }
            Ok(Line::Lost(events)) => tally.lost_events = tally.lost_events.saturating_add(events),
            Ok(Line::Comment) => {}
            Err(Flaw::Expected(ftrace::EXPECTED)) if tally.records == 0 => {
                tally.keep(text);
                return Err(TraceError::NotATrace {
                    file: lines.file,
                    line: lines.number,
                    expected: ftrace::EXPECTED,
                    found: tally.first_lines.join("\n"),
                });
            }
            Err(flaw) => return Err(flaw.at(&lines.file, lines.number, text)),
        }
        if tally.records == 0 {
            tally.keep(text);
        }
        if lines.number.is_multiple_of(LINES_PER_PROGRESS) {
            progress(lines.file_bytes());
        }
    }
    progress(lines.file_bytes());
    let (counts, dma_events) = (grouper.counts(), tally.dma_events);
    if counts.maps == 0 && counts.unmaps == 0 {
        return Err(TraceError::NoEvents { file: lines.file, lines: lines.number, dma_events });
    }
    let mut trace = grouper.finish(name);
    trace.statistics.lost_events = tally.lost_events;
    trace.statistics.cpus = tally.cpus.len() as u64;
    trace.statistics.span_us = (tally.last_ns - tally.first_ns) / 1_000;
    Ok(trace)
}

/// What is counted line by line, whatever the lines mean.
#[derive(Default)]
struct Tally {
    records: u64,
    dma_events: u64,
    lost_events: u64,
    cpus: FxHashSet<u16>,
    last_cpu: Option<u16>,
    first_ns: u64,
    last_ns: u64,
    /// The beginning of the file, while no event has been seen.
    first_lines: Vec<String>,
}

impl Tally {
    fn record(&mut self, record: &ftrace::Record<'_>) {
        if self.records == 0 {
            (self.first_ns, self.last_ns) = (record.time_ns, record.time_ns);
        }
        self.records += 1;
        if self.last_cpu.replace(record.cpu) != Some(record.cpu) {
            self.cpus.insert(record.cpu);
        }
        self.first_ns = self.first_ns.min(record.time_ns);
        self.last_ns = self.last_ns.max(record.time_ns);
        let is_dma = matches!(record.event, Event::DmaMap { .. } | Event::DmaMapList { .. } | Event::DmaUnmap { .. });
        self.dma_events += u64::from(is_dma || matches!(record.event, Event::DmaUnmapList { .. }));
    }

    fn keep(&mut self, text: &[u8]) {
        const KEPT: usize = 3;
        if self.first_lines.len() < KEPT {
            self.first_lines.push(excerpt(text));
        }
    }
}

// A trace of ten million lines must fit.
const _: () = assert!(size_of::<Mapping>() == 32 && size_of::<Operation>() == 24);
