//! The bundled files, compared with an independent count.

use super::{BUNDLED, bundled, unpacked};
use portcullis::{PAGE_SIZE, SourceId};
use portcullis_trace::{AccessLog, Format, LogEvent, OperationKind, Statistics, Trace};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Counts the same numbers in the simplest way, from the words of each line.
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
    counts.unmapped_never = counts.unmatched_maps;
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
        // Each mapping of these traces is one page, or the contiguous pages of one buffer, so each has one map event.
        assert_eq!(trace.statistics, count(&unpacked(&file)), "{name}");
        assert_eq!(trace.name, file);
        assert_eq!(trace.format, Format::Ftrace);
        assert_eq!(trace.devices, [SourceId::from_requester(4 << 3)]);
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
