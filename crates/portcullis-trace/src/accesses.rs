//! The accesses of the device itself: what QEMU's model of VT-d logs of its invalidation queue and of its IOTLB.

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
    /// The IOMMU took a descriptor of any type from its queue (VT-d specification 6.5.2).
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
        /// Whether the translation was in the IOTLB. Otherwise the tables were walked.
        hit: bool,
        /// The address of the byte.
        iova: Iova,
        /// The table entry: physical page and rights. The log does not say whether the device read or wrote; the
        /// rights bound it.
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
    /// Reads the file at `path`. Calls `progress` from time to time with the number of bytes read from the file so
    /// far.
    ///
    /// # Errors
    /// Returns a [`TraceError`] if the file cannot be read, is damaged or cut short, or has a line that does not
    /// belong to a log.
    pub fn read(path: &Path, progress: impl FnMut(u64)) -> Result<Self, TraceError> {
        read_lines(Lines::open(path)?, progress)
    }

    /// Reads what `reader` yields, like [`AccessLog::read`]. Errors call the file `name`.
    ///
    /// # Errors
    /// Fails like [`AccessLog::read`].
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

/// The beginning of every line of a log.
const EXPECTED: &str = "an event of the log, `vtd_…`";

/// The error for a line that does not belong to a log. If it is the first line, it may show what the file is instead.
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

/// Whether the line belongs to such a log.
pub(super) fn is_logged(line: &[u8]) -> bool {
    line.starts_with(b"vtd_")
}

/// Parses one line. Returns `None` for a line that can be ignored.
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
        source: SourceId::from_requester(short(b"sid ", Flaw::Expected("`sid 0x…`, a source id of 16 bits"))?),
        domain: short(b"domain ", Flaw::Expected("`domain 0x…`, a domain id of 16 bits"))?,
        hit,
        iova: Iova::new(hexadecimal(b"iova ", Flaw::Expected("`iova 0x…`, a hexadecimal address"))?),
        entry: EntryValue::from_bits(hexadecimal(b"slpte ", Flaw::Expected("`slpte 0x…`, a table entry"))?),
    }))
}
