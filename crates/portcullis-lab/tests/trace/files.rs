//! The bundled files, counted twice; compression.

use super::{BUNDLED, TASK, Text, bundled, read};
use lzma_rust2::{CheckType, XzOptions, XzReader, XzWriter};
use portcullis::{PAGE_SIZE, SourceId};
use portcullis_lab::trace::{AccessLog, Format, LogEvent, OperationKind, Statistics, Trace, TraceError};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::num::NonZeroU64;

fn unpacked(file: &str) -> String {
    let mut text = String::new();
    XzReader::new(fs::File::open(bundled(file)).unwrap(), true).read_to_string(&mut text).unwrap();
    text
}

/// The same numbers by the plainest means: words of lines.
fn count(text: &str) -> Statistics {
    let mut counts = Statistics::default();
    let mut live = BTreeMap::new();
    let mut cpus = BTreeSet::new();
    let mut times = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<_> = line.split_whitespace().collect();
        cpus.insert(words[1]);
        times.push(words[3].trim_end_matches(':').replace('.', "").parse::<u64>().unwrap());
        let size = || words[9].trim_start_matches("paddr=").trim_start_matches("size=");
        match words[4] {
            "map:" => {
                counts.maps += 1;
                let bytes: u64 = words[10].trim_start_matches("size=").parse().unwrap();
                counts.pages += bytes / PAGE_SIZE;
                live.insert(words[6], ());
            }
            "unmap:" => {
                counts.unmaps += 1;
                assert!(size().parse::<u64>().unwrap() > 0);
                counts.unmatched_unmaps += u64::from(live.remove(words[6]).is_none());
            }
            _ => {}
        }
    }
    counts.unmatched_maps = live.len() as u64;
    counts.cpus = cpus.len() as u64;
    counts.span_us = times.iter().max().unwrap() - times.iter().min().unwrap();
    counts
}

#[test]
fn counts_equal_an_independent_count() {
    for name in BUNDLED {
        let file = format!("{name}.trace.xz");
        let mut progress = Vec::new();
        let trace = Trace::read(&bundled(&file), |bytes| progress.push(bytes)).unwrap();
        // Each of these is single pages or pages of one buffer: one map, one mapping.
        assert_eq!(trace.statistics, count(&unpacked(&file)), "{name}");
        assert_eq!(trace.name, file);
        assert_eq!(trace.format, Format::Ftrace);
        assert_eq!(trace.devices, [SourceId(4 << 3)]);
        assert_eq!(progress.last().copied(), Some(fs::metadata(bundled(&file)).unwrap().len()));
        assert!(progress.is_sorted());
    }
}

#[test]
fn numbers_known_beforehand() {
    let expected = [(7370, 9820, 7370, 255, 7370), (4673, 10682, 4673, 255, 34), (8000, 8000, 8000, 0, 8000)];
    for (name, expected) in BUNDLED.into_iter().zip(expected) {
        let trace = Trace::read(&bundled(&format!("{name}.trace.xz")), |_| ()).unwrap();
        let it = trace.statistics;
        let found = (it.maps, it.pages, it.unmaps, it.unmatched_unmaps, trace.invalidations.len());
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn everything_in_a_trace_fits_together() {
    for name in BUNDLED {
        let trace = Trace::read(&bundled(&format!("{name}.trace.xz")), |_| ()).unwrap();
        let mut at_segment = 0;
        for (index, mapping) in trace.mappings.iter().enumerate() {
            let map = trace.operations[mapping.map_operation as usize];
            assert_eq!((map.mapping as usize, map.kind), (index, OperationKind::Map));
            if let Some(unmap) = mapping.unmap_operation {
                let unmap = trace.operations[unmap.get() as usize];
                assert_eq!((unmap.mapping as usize, unmap.kind), (index, OperationKind::Unmap));
                assert!(unmap.time_ns >= map.time_ns);
            }
            assert_eq!(mapping.segments().start, at_segment);
            at_segment = mapping.segments().end;
            let segments = trace.segments_of(mapping);
            let pages: u64 = segments.iter().map(|segment| segment.pages()).sum();
            assert_eq!(pages, u64::from(mapping.pages));
            portcullis::Request::new(segments, mapping.access).unwrap();
        }
        assert_eq!(at_segment, trace.segments.len());
        let unmapped = trace.mappings.iter().filter(|mapping| mapping.unmap_operation.is_some()).count();
        assert_eq!(trace.operations.len(), trace.mappings.len() + unmapped);
        assert_eq!(trace.unmatched.len() as u64, trace.statistics.unmatched_unmaps);
        for invalidation in &trace.invalidations {
            assert!(invalidation.at_operation as usize <= trace.operations.len());
        }
        assert!(trace.operations.iter().all(|operation| (operation.context as usize) < trace.contexts.len()));
    }
}

#[test]
fn access_logs_equal_an_independent_count() {
    for name in BUNDLED {
        let file = format!("{name}.qemu.xz");
        let log = AccessLog::read(&bundled(&file), |_| ()).unwrap();
        let text = unpacked(&file);
        let lines = |event: &str| text.lines().filter(|line| line.split(' ').next() == Some(event)).count();
        let hits = log.events.iter().filter(|event| matches!(event, LogEvent::Access { hit: true, .. })).count();
        let walks = log.events.iter().filter(|event| matches!(event, LogEvent::Access { hit: false, .. })).count();
        assert_eq!(hits, lines("vtd_iotlb_page_hit"), "{name}");
        assert_eq!(walks, lines("vtd_iotlb_page_update"), "{name}");
        assert_eq!(log.events.len() - hits - walks, lines("vtd_inv_desc"), "{name}");
    }
}

fn small() -> Text {
    let mut text = Text::default();
    text.line("# tracer: nop");
    for page in 1..=2000 {
        text.map(TASK, page << 12, page << 13, 4096).unmap(TASK, page << 12, 4096);
    }
    text
}

fn packed(text: &str, check: CheckType, block_bytes: Option<u64>) -> Vec<u8> {
    let mut options = XzOptions::with_preset(1);
    // No block is smaller than the dictionary.
    options.lzma_options.dict_size = 1 << 16;
    options.set_check_sum_type(check);
    options.set_block_size(block_bytes.and_then(NonZeroU64::new));
    let mut writer = XzWriter::new(Vec::new(), options).unwrap();
    writer.write_all(text.as_bytes()).unwrap();
    writer.finish().unwrap()
}

#[test]
fn compressed_in_any_way_a_trace_reads_the_same() {
    let text = small().text;
    let plain = read(&text).unwrap();
    for check in [CheckType::Crc32, CheckType::Crc64, CheckType::Sha256] {
        assert_eq!(read(packed(&text, check, None)).unwrap(), plain);
    }
    let blocks = packed(&text, CheckType::Crc64, Some(100_000));
    assert!(blocks.len() > packed(&text, CheckType::Crc64, None).len(), "more than one block");
    assert_eq!(read(blocks).unwrap(), plain);
    let (head, tail) = text.split_at(text.len() / 2);
    let streams = [packed(head, CheckType::Crc64, None), packed(tail, CheckType::Crc32, None)].concat();
    assert_eq!(read(streams).unwrap(), plain);
    assert_eq!(read(text.replace('\n', "\r\n")).unwrap(), plain);
}

#[test]
fn a_compressed_file_cut_anywhere_is_an_error() {
    let whole = packed(&small().text, CheckType::Crc64, Some(100_000));
    for end in (6..whole.len()).step_by(97).chain(whole.len() - 30..whole.len()) {
        let error = read(&whole[..end]).expect_err("cut short");
        assert!(matches!(error, TraceError::Compression { .. }), "{end}: {error}");
        assert!(error.to_string().contains("cut short"));
    }
}

#[test]
fn a_compressed_file_with_any_byte_changed_is_an_error() {
    let whole = packed(&small().text, CheckType::Crc64, None);
    for at in (0..whole.len()).step_by(61).chain(whole.len() - 60..whole.len()) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        assert!(read(damaged).is_err(), "byte {at} of {}", whole.len());
    }
}
