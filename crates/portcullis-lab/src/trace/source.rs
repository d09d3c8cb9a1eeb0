//! Opening a file: compressed or plain, in constant memory, line by line.

use super::TraceError;
use super::error::excerpt;
use lzma_rust2::XzReader;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};
use std::path::Path;

/// The longest line that is read, in bytes, its end included. A scatter list of 128 pieces takes 4 KiB.
pub(super) const LINE_BYTES_MAX: usize = 1 << 20;
/// The most memory that a decoder may take, in KiB. `xz -9` needs 65 MiB.
const DECODER_KIB_MAX: u32 = 256 << 10;
const BUFFER_BYTES: usize = 256 << 10;
const XZ_MAGIC: &[u8] = b"\xfd7zXZ\0";

/// Counts what it hands on.
struct Counted<R> {
    inner: R,
    bytes: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

/// The bytes that were looked at to tell the kind of file, and the rest.
type Whole<R> = Counted<Chain<Cursor<Vec<u8>>, R>>;

/// A file by the way in which it is compressed.
enum Source<R: Read> {
    Plain(Whole<R>),
    Xz(Box<XzReader<BufReader<Whole<R>>>>),
}

impl<R: Read> Source<R> {
    fn new(mut file: R) -> io::Result<Self> {
        let mut head = Vec::new();
        (&mut file).take(XZ_MAGIC.len() as u64).read_to_end(&mut head)?;
        let is_xz = head == XZ_MAGIC;
        let whole = Counted { inner: Cursor::new(head).chain(file), bytes: 0 };
        Ok(if is_xz {
            let buffered = BufReader::with_capacity(BUFFER_BYTES, whole);
            // Several streams may follow each other, as `cat a.xz b.xz` makes them.
            Self::Xz(Box::new(XzReader::new_mem_limit(buffered, true, DECODER_KIB_MAX)))
        } else {
            Self::Plain(whole)
        })
    }

    fn file_bytes(&self) -> u64 {
        match self {
            Self::Plain(whole) => whole.bytes,
            Self::Xz(decoder) => decoder.inner().get_ref().bytes,
        }
    }
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(whole) => whole.read(buffer),
            Self::Xz(decoder) => decoder.read(buffer),
        }
    }
}

/// The lines of a file, one at a time.
pub(super) struct Lines<R: Read> {
    /// The name that errors use.
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

    /// Reads the next line into [`Lines::text`]. `false` at the end of the file.
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
        let file = self.file.clone();
        match self.source.get_ref() {
            Source::Plain(_) => TraceError::Io { file, source },
            Source::Xz(_) => TraceError::Compression { file, line: self.number, source },
        }
    }
}
