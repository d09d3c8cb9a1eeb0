//! Opening a file and going through it line by line, in constant memory.

use super::TraceError;
use super::compressed::{DECODER_MIB_MAX, Source};
use super::error::excerpt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// The longest line that is read, in bytes, including its end. A scatter list of 128 pieces takes 4 KiB.
pub(super) const LINE_BYTES_MAX: usize = 1 << 20;
/// The byte order mark of UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
const BUFFER_BYTES: usize = 256 << 10;

/// The lines of a file, one at a time.
pub(super) struct Lines<R: Read> {
    /// The file name for errors.
    pub(super) file: String,
    /// The number of the line last read; the first is 1.
    pub(super) number: u64,
    source: BufReader<Source<R>>,
    line: Vec<u8>,
}

impl Lines<File> {
    pub(super) fn open(path: &Path) -> Result<Self, TraceError> {
        let name = path.display().to_string();
        match File::open(path) {
            Ok(file) => Self::new(&name, file),
            Err(source) => Err(TraceError::Io { file: name, source }),
        }
    }
}

impl<R: Read> Lines<R> {
    pub(super) fn new(file: &str, reader: R) -> Result<Self, TraceError> {
        let file = file.to_owned();
        match Source::new(reader) {
            Ok(source) => {
                Ok(Self { file, number: 0, source: BufReader::with_capacity(BUFFER_BYTES, source), line: Vec::new() })
            }
            Err(source) => Err(TraceError::Io { file, source }),
        }
    }

    /// Bytes read so far from the file itself, before decompression.
    pub(super) fn file_bytes(&self) -> u64 {
        self.source.get_ref().file_bytes()
    }

    /// The next bytes, without consuming them. `None` at the end of the file.
    pub(super) fn peek(&mut self) -> Result<Option<&[u8]>, TraceError> {
        if let Err(source) = self.source.fill_buf() {
            return Err(self.failed(source));
        }
        Ok(Some(self.source.buffer()).filter(|bytes| !bytes.is_empty()))
    }

    /// Reads the next line into [`Lines::text`]. Returns `false` at the end of the file.
    pub(super) fn advance(&mut self) -> Result<bool, TraceError> {
        self.line.clear();
        let mut limited = (&mut self.source).take(LINE_BYTES_MAX as u64);
        let read = match limited.read_until(b'\n', &mut self.line) {
            Ok(read) => read,
            Err(source) => return Err(self.failed(source)),
        };
        if read == 0 {
            return if self.number == 0 { Err(TraceError::Empty { file: self.file.clone() }) } else { Ok(false) };
        }
        self.number += 1;
        // Editors and shells of other systems put a byte order mark at the beginning of a file.
        if self.number == 1 && self.line.starts_with(BYTE_ORDER_MARK) {
            self.line.drain(..BYTE_ORDER_MARK.len());
            if self.line.is_empty() {
                return Err(TraceError::Empty { file: self.file.clone() });
            }
        }
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
            if self.line.last() == Some(&b'\r') {
                self.line.pop();
            }
        } else if read == LINE_BYTES_MAX {
            return Err(TraceError::LineTooLong { file: self.file.clone(), line: self.number, limit: LINE_BYTES_MAX });
        } else {
            let end = &self.line[self.line.len().saturating_sub(80)..];
            return Err(TraceError::CutShort { file: self.file.clone(), line: self.number, found: excerpt(end) });
        }
        Ok(true)
    }

    /// The line last read, without its end.
    pub(super) fn text(&self) -> &[u8] {
        &self.line
    }

    fn failed(&self, source: io::Error) -> TraceError {
        let (file, line) = (self.file.clone(), self.number);
        match (self.source.get_ref(), source.kind()) {
            (Source::Plain(_), _) => TraceError::Io { file, source },
            (_, io::ErrorKind::OutOfMemory) => {
                TraceError::DecoderMemory { file, line, limit_mib: u64::from(DECODER_MIB_MAX), source }
            }
            _ => TraceError::Compression { file, line, source },
        }
    }
}
