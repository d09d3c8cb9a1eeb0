//! Compressed files of every supported kind: they read like the plain text, and fail if they are cut or damaged.

use super::{TASK, Text, read};
use flate2::Compression;
use flate2::write::GzEncoder;
use lzma_rust2::{CheckType, XzOptions, XzWriter};
use portcullis_trace::{AccessLog, Trace, TraceError};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::io::Write;
use std::num::NonZeroU64;

fn small() -> Text {
    let mut text = Text::default();
    text.line("# tracer: nop");
    for page in 1..=2000 {
        text.map(TASK, page << 12, page << 13, 4096).unmap(TASK, page << 12, 4096);
    }
    text
}

fn xz(text: &str, check: CheckType, block_bytes: Option<u64>) -> Vec<u8> {
    let mut options = XzOptions::with_preset(1);
    // A block must not be smaller than the dictionary.
    options.lzma_options.dict_size = 1 << 16;
    options.set_check_sum_type(check);
    options.set_block_size(block_bytes.and_then(NonZeroU64::new));
    let mut writer = XzWriter::new(Vec::new(), options).unwrap();
    writer.write_all(text.as_bytes()).unwrap();
    writer.finish().unwrap()
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn zstd(text: &str) -> Vec<u8> {
    compress_to_vec(text.as_bytes(), CompressionLevel::Fastest)
}

/// A frame that decoders skip, as `pzstd` writes it.
fn skippable(content: &[u8]) -> Vec<u8> {
    [&[0x5a, 0x2a, 0x4d, 0x18], &(content.len() as u32).to_le_bytes()[..], content].concat()
}

/// The text, packed in every way, each with a name.
fn packed(text: &str) -> Vec<(&'static str, Vec<u8>)> {
    let (head, tail) = text.split_at(text.len() / 2);
    vec![
        ("xz", xz(text, CheckType::Crc64, Some(100_000))),
        ("gz", gzip(text)),
        ("two gz", [gzip(head), gzip(tail)].concat()),
        ("zst", zstd(text)),
        ("two zst", [zstd(head), zstd(""), zstd(tail)].concat()),
        ("zst with more", [skippable(b"more"), zstd(head), skippable(b""), zstd(tail), skippable(&[7; 300])].concat()),
    ]
}

#[test]
fn compressed_in_any_way_a_trace_reads_the_same() {
    let text = small().text;
    let plain = read(&text).unwrap();
    for (kind, bytes) in packed(&text) {
        let mut progress = Vec::new();
        let trace = Trace::read_from("test.trace", &bytes[..], |bytes| progress.push(bytes));
        assert_eq!(trace.unwrap_or_else(|error| panic!("{kind}: {error}")), plain, "{kind}");
        assert_eq!(progress.last().copied(), Some(bytes.len() as u64), "{kind}: progress counts the file's own bytes");
    }
    for check in [CheckType::Crc32, CheckType::Sha256] {
        assert_eq!(read(xz(&text, check, None)).unwrap(), plain);
    }
    let blocks = xz(&text, CheckType::Crc64, Some(100_000));
    assert!(blocks.len() > xz(&text, CheckType::Crc64, None).len(), "more than one block");
    let (head, tail) = text.split_at(text.len() / 2);
    let streams = [xz(head, CheckType::Crc64, None), xz(tail, CheckType::Crc32, None)].concat();
    assert_eq!(read(streams).unwrap(), plain);
    assert_eq!(read(text.replace('\n', "\r\n")).unwrap(), plain);
}

/// Files of two lines that the programs themselves wrote: `gzip -9`, and `zstd -19` with its checksum.
#[test]
fn files_of_the_usual_programs_are_read() {
    const GZIP: &[u8] = include_bytes!("data/two-lines.trace.gz");
    const ZSTD: &[u8] = include_bytes!("data/two-lines.trace.zst");
    for bytes in [GZIP, ZSTD] {
        let statistics = read(bytes).unwrap().statistics;
        assert_eq!((statistics.maps, statistics.unmaps, statistics.unmatched_maps), (1, 1, 0));
    }
}

#[test]
fn a_log_is_decompressed_too() {
    let log = "vtd_inv_desc invalidate desc type wait high 0x9b0c04 low 0x200000\n".repeat(5000);
    for (kind, bytes) in packed(&log) {
        let events =
            AccessLog::read_from("log", &bytes[..], |_| ()).unwrap_or_else(|error| panic!("{kind}: {error}")).events;
        assert_eq!(events.len(), 5000, "{kind}");
    }
}

/// If a file is cut between two streams, only lines are missing. No reader can detect that.
#[test]
fn a_compressed_file_cut_anywhere_is_an_error() {
    let text = small().text;
    for (kind, whole) in packed(&text).into_iter().filter(|(kind, _)| ["xz", "gz", "zst"].contains(kind)) {
        for end in (6..whole.len()).step_by(97).chain(whole.len() - 30..whole.len()) {
            let error = read(&whole[..end]).expect_err("cut short");
            let TraceError::Compression { line, .. } = error else { panic!("{kind} {end}: {error}") };
            assert!(line <= 4001, "{kind}");
            assert!(error.to_string().contains("cut short"), "{kind}");
        }
    }
    let skipped = [skippable(&[7; 300]), zstd(&text)].concat();
    assert!(matches!(read(&skipped[..200]), Err(TraceError::Compression { line: 0, .. })));
}

/// A changed byte need not change the text: a gzip header has a time, and repeated text can be copied from several
/// places. But the reader must never return another trace.
#[test]
fn a_compressed_file_with_any_byte_changed_is_never_another_trace() {
    let text = small().text;
    let plain = read(&text).unwrap();
    for (kind, whole) in packed(&text).into_iter().filter(|(kind, _)| ["xz", "gz", "zst"].contains(kind)) {
        let places = (0..whole.len()).step_by(61).chain(whole.len() - 60..whole.len());
        let mut refused = 0;
        for at in places.clone() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x10;
            match read(damaged) {
                Ok(trace) => assert!(trace == plain && kind != "xz", "{kind}: byte {at} of {}", whole.len()),
                Err(_) => refused += 1,
            }
        }
        assert!(refused * 10 > places.count() * 9, "{kind}: {refused}");
    }
}

#[test]
fn a_window_beyond_the_limit_is_refused_before_it_is_made() {
    // A frame header with a window of 2^31 bytes, as written by `zstd --long=31`.
    let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, (31 - 10) << 3, 0, 0, 0];
    let error = read(frame).unwrap_err();
    assert!(matches!(error, TraceError::DecoderMemory { limit_mib: 256, line: 0, .. }), "{error}");
}
