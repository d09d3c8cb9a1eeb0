//! Decompresses a file. The first bytes show the kind of compression.

use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

/// The most memory in MiB that a decoder may use for its window. `xz -9` needs 65, and `zstd --ultra -22` needs 128.
pub(super) const DECODER_MIB_MAX: u32 = 256;
const BUFFER_BYTES: usize = 256 << 10;
/// Enough bytes to recognize every kind of file.
const HEAD_BYTES: u64 = 16;

/// Counts the bytes that it passes on.
pub(super) struct Counted<R> {
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

/// The bytes that were read to recognize the kind of file, followed by the rest.
type Whole<R> = Counted<Chain<Cursor<Vec<u8>>, R>>;

/// The input of the decoders.
type Packed<R> = BufReader<Whole<R>>;

/// The text of a file. A file may hold several compressed streams in sequence, as written by `cat a.xz b.xz`.
pub(super) enum Source<R: Read> {
    Plain(Whole<R>),
    Xz(Box<XzReader<Packed<R>>>),
    Gzip(Box<MultiGzDecoder<Packed<R>>>),
    Zstandard(Box<Frames<Packed<R>>>),
}

impl<R: Read> Source<R> {
    pub(super) fn new(mut file: R) -> io::Result<Self> {
        let mut head = Vec::new();
        (&mut file).take(HEAD_BYTES).read_to_end(&mut head)?;
        let kind = Kind::of(&head);
        let whole = Counted { inner: Cursor::new(head).chain(file), bytes: 0 };
        let packed = |whole| BufReader::with_capacity(BUFFER_BYTES, whole);
        Ok(match kind {
            None => Self::Plain(whole),
            Some(Kind::Xz) => Self::Xz(Box::new(XzReader::new_mem_limit(packed(whole), true, DECODER_MIB_MAX << 10))),
            Some(Kind::Gzip) => Self::Gzip(Box::new(MultiGzDecoder::new(packed(whole)))),
            Some(Kind::Zstandard) => Self::Zstandard(Box::new(Frames::new(packed(whole)))),
        })
    }

    /// Bytes read so far from the file itself.
    pub(super) fn file_bytes(&self) -> u64 {
        match self {
            Self::Plain(whole) => whole.bytes,
            Self::Xz(decoder) => decoder.inner().get_ref().bytes,
            Self::Gzip(decoder) => decoder.get_ref().get_ref().bytes,
            Self::Zstandard(frames) => frames.source.get_ref().bytes,
        }
    }
}

impl<R: Read> Read for Source<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(whole) => whole.read(buffer),
            Self::Xz(decoder) => decoder.read(buffer),
            Self::Gzip(decoder) => decoder.read(buffer),
            Self::Zstandard(frames) => frames.read(buffer),
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Xz,
    Gzip,
    Zstandard,
}

impl Kind {
    /// Recognizes the formats by their magic numbers: xz 1.1, RFC 1952 with its only method, RFC 8878 with its
    /// skippable frames.
    fn of(head: &[u8]) -> Option<Self> {
        match head {
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            [0x1f, 0x8b, 8, ..] => Some(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Self::Zstandard),
            _ => None,
        }
    }
}

/// The frames of a zstd file in sequence. A frame with a checksum is checked against it.
pub(super) struct Frames<R> {
    decoder: FrameDecoder,
    source: R,
}

impl<R: BufRead> Frames<R> {
    fn new(source: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(u64::from(DECODER_MIB_MAX) << 20);
        Self { decoder, source }
    }

    /// Reads up to the blocks of the next frame. Returns `false` at the end of the file.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let length = u64::from(length);
                    if io::copy(&mut (&mut self.source).take(length), &mut io::sink())? < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error @ FrameDecoderError::WindowSizeTooBig { .. }) => {
                    return Err(io::Error::new(io::ErrorKind::OutOfMemory, error));
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.decoder.can_collect() == 0 {
            if !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                let decoded = self.decoder.decode_blocks(&mut self.source, one);
                // The decoder's own message describes its internals.
                decoded.map_err(|_| {
                    io::Error::new(io::ErrorKind::InvalidData, "a block of a zstd frame does not decode")
                })?;
                continue;
            }
            let written = self.decoder.get_checksum_from_data();
            if written.is_some() && written != self.decoder.get_calculated_checksum() {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the checksum of a frame is not that of its content",
                ));
            }
            if !self.next_frame()? {
                return Ok(0);
            }
        }
        self.decoder.read(buffer)
    }
}
