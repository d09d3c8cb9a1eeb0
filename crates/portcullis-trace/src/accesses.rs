//! The device's own accesses: what QEMU's model of VT-d logs of its invalidation queue and of its IOTLB.

use super::error::Flaw;
use super::scan::{Scan, field};
use super::source::Lines;
use super::{Format, TraceError};
use portcullis::table::EntryValue;
use portcullis::{Iova, SourceId};
use std::io::Read;
use std::path::Path;

/// One line of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogEvent {
    /// The IOMMU took a descriptor from its queue, of whatever type (VT-d specification 6.5.2).
    Descriptor {
        /// The low quadword.
        qw0: u64,
        /// The high quadword.
        qw1: u64,
    },
    /// The device accessed a byte and the IOMMU translated it.
    Access {
        /// Which device.
        source: SourceId,
        /// Its domain.
        domain: u16,
        /// Whether the translation was in the IOTLB; else the tables were walked.
        hit: bool,
        /// The byte.
        iova: Iova,
        /// The table entry: physical page and rights. What was accessed is at most what the rights allow.
        entry: EntryValue,
    },
}

/// What happened in the IOMMU, in order, from the start of the machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AccessLog {
    /// Descriptors and accesses.
    pub events: Vec<LogEvent>,
}

impl AccessLog {
    /// Reads the file at `path`; `progress` now and then learns how many bytes of it have been read.
    ///
    /// # Errors
    /// [`TraceError`] where the file cannot be read, is damaged or cut short, or a line is none of the log.
    pub fn read(path: &Path, progress: impl FnMut(u64)) -> Result<Self, TraceError> {
        read_lines(Lines::open(path)?, progress)
    }

    /// Reads what `reader` yields; `name` stands for the file.
    ///
    /// # Errors
    /// The same.
    pub fn read_from(name: &str, reader: impl Read, progress: impl FnMut(u64)) -> Result<Self, TraceError> {
        read_lines(Lines::new(name, reader)?, progress)
    }
}

fn read_lines<R: Read>(mut lines: Lines<R>, mut progress: impl FnMut(u64)) -> Result<AccessLog, TraceError> {
    const LINES_PER_PROGRESS: u64 = 1 << 14;
    let mut events = Vec::new();
    while lines.advance()? {
        match parse(lines.text()) {
            Ok(event) => events.extend(event),
            Err(flaw) => return Err(failed(flaw, &lines)),
        }
        if lines.number.is_multiple_of(LINES_PER_PROGRESS) {
            progress(lines.file_bytes());
        }
    }
    progress(lines.file_bytes());
    Ok(AccessLog { events })
}

/// What every line of a log begins with.
const EXPECTED: &str = "an event of the log, `vtd_…`";

/// A line that is none of the log, the first, may show what the file is instead.
fn failed<R: Read>(flaw: Flaw, lines: &Lines<R>) -> TraceError {
    let (file, line, text) = (&lines.file, lines.number, lines.text());
    match Format::of_capture(text).filter(|_| flaw == Flaw::Columns && line == 1) {
        Some(found) => TraceError::OtherKind {
            file: file.clone(),
            line,
            wanted: "the log of a device's accesses",
            found,
            expected: EXPECTED,
        },
        None => flaw.at(file, line, text, EXPECTED),
    }
}

/// Whether a line is of such a log.
pub(super) fn is_logged(line: &[u8]) -> bool {
    line.starts_with(b"vtd_")
}

/// Understands one line; `None` for what need not be known.
fn parse(line: &[u8]) -> Result<Option<LogEvent>, Flaw> {
    let hexadecimal = |key: &[u8], flaw| {
        let mut scan = field(line, key).ok_or(flaw)?;
        scan.hexadecimal().filter(|_| scan.at_gap()).ok_or(flaw)
    };
    let short = |key: &[u8], flaw| u16::try_from(hexadecimal(key, flaw)?).map_err(|_| flaw);
    let hit = match Scan(line).word() {
        b"vtd_inv_desc" => {
            let flaw = Flaw::Expected("`high 0x… low 0x…`, the quadwords of a descriptor");
            let (qw0, qw1) = (hexadecimal(b"low ", flaw)?, hexadecimal(b"high ", flaw)?);
            return Ok(Some(LogEvent::Descriptor { qw0, qw1 }));
        }
        b"vtd_iotlb_page_hit" => true,
        b"vtd_iotlb_page_update" => false,
        word if is_logged(word) => return Ok(None),
        _ => return Err(Flaw::Columns),
    };
    Ok(Some(LogEvent::Access {
        source: SourceId(short(b"sid ", Flaw::Expected("`sid 0x…`, a source id of 16 bits"))?),
        domain: short(b"domain ", Flaw::Expected("`domain 0x…`, a domain id of 16 bits"))?,
        hit,
        iova: Iova::new(hexadecimal(b"iova ", Flaw::Expected("`iova 0x…`, a hexadecimal address"))?),
        entry: EntryValue::from_bits(hexadecimal(b"slpte ", Flaw::Expected("`slpte 0x…`, a table entry"))?),
    }))
}
