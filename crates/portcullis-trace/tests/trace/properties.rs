//! No input makes the readers panic, and every trace that they accept is consistent.

use super::printed::{STYLES, printed};
use super::{INTERRUPT, OTHER_CPU, TASK, Text, read};
use portcullis_trace::{AccessLog, OperationKind, Trace, TraceError, join};
use proptest::prelude::*;

const LOG: &str = "\
vtd_inv_desc invalidate desc type iotlb high 0x10040 low 0x400f2
vtd_iotlb_page_hit IOTLB page hit sid 0x20 iova 0x10020 slpte 0x81003 domain 0x4
vtd_iotlb_page_update IOTLB page update sid 0x20 iova 0x11020 slpte 0x92003 domain 0x4
vtd_inv_desc_iotlb_pages iotlb invalidate domain 0x4 addr 0x10000 mask 0x0
";

/// A capture with one event of every kind.
pub(super) fn sample() -> String {
    let mut text = Text::default();
    text.line("# tracer: nop").line("# entries-in-buffer/entries-written: 9/9   #P:2").line("CPU:1 [LOST 3 EVENTS]");
    text.map(TASK, 0x10000, 0x81000, 0x1000).map(TASK, 0x11000, 0x92000, 0x2000);
    text.event(
        TASK,
        "dma_map_sg: 0000:00:04.0 dir=TO_DEVICE nents=2/2 ents=1/1 dma_addrs={0x10000} sizes={0x2800} \
         phys_addrs={0x81000,0x92000} attrs=NO_WARN",
    );
    text.map(OTHER_CPU, 0x20000, 0x5000, 0x1000).dma_map(OTHER_CPU, "0000:00:05.0", "FROM_DEVICE", 0x20040, 1522);
    text.event(INTERRUPT, "dma_unmap_sg: 0000:00:04.0 dir=TO_DEVICE phys_addrs={0x81000,0x92000} attrs=");
    text.event(INTERRUPT, "cache_tag_flush_range: dmar0 0000:00:04.0[0] type iotlb did 4 pasid 0 ref 1");
    text.unmap(INTERRUPT, 0x10000, 0x3000).event(INTERRUPT, "qi_submit: iotlb_inv dmar0: 0x400f2 0x10040 0x0 0x0");
    text.unmap(OTHER_CPU, 0x20000, 0x1000).dma_unmap(OTHER_CPU, "0000:00:05.0", 0x20040, 1522);
    text.text
}

fn check(trace: &Trace) {
    let statistics = trace.statistics;
    let pages: u64 = trace.mappings.iter().map(|mapping| u64::from(mapping.pages)).sum();
    assert_eq!(pages, statistics.pages);
    assert_eq!(trace.segments.len() as u64, statistics.maps);
    let unmaps = trace.operations.iter().filter(|it| it.kind == OperationKind::Unmap).count() as u64;
    // Parts that add up are one operation.
    assert!(unmaps + statistics.unmatched_unmaps + statistics.partial_unmaps <= statistics.unmaps);
    assert_eq!(unmaps + statistics.unmatched_maps, trace.mappings.len() as u64);
    assert_eq!(trace.operations.len() as u64, trace.mappings.len() as u64 + unmaps);
    for (index, mapping) in trace.mappings.iter().enumerate() {
        let map = trace.operations[mapping.map_operation as usize];
        assert_eq!((map.mapping as usize, map.kind), (index, OperationKind::Map));
        if let Some(unmap) = mapping.unmap_operation {
            assert!(unmap.get() > mapping.map_operation);
            let unmap = trace.operations[unmap.get() as usize];
            assert_eq!((unmap.mapping as usize, unmap.kind), (index, OperationKind::Unmap));
        }
        let pages: u64 = trace.segments_of(mapping).iter().map(|segment| segment.pages()).sum();
        assert_eq!(pages, u64::from(mapping.pages));
        assert!(usize::from(mapping.device) < trace.devices.len());
    }
    assert!(trace.payloads.is_sorted_by(|one, next| one.mapping < next.mapping));
    assert!(trace.payloads.iter().all(|payload| (payload.mapping as usize) < trace.mappings.len()));
    if let Ok(joined) = AccessLog::read_from("log", LOG.as_bytes(), |_| ()).map(|log| join(trace, &log)) {
        let _ = joined.map(|joined| assert_eq!(joined.accesses.len() as u64 + joined.unexplained + joined.outside, 2));
    }
}

/// The sample in every format, the sample with its `dma:` events alone, and a log. The flag says whether it is a log.
fn samples() -> Vec<(String, bool)> {
    let dma_alone =
        sample().lines().filter(|line| !line.contains("map: IOMMU")).flat_map(|line| [line, "\n"]).collect();
    let printed = STYLES.map(|(style, _)| (printed(&sample(), style), false));
    [(sample(), false), (dma_alone, false), (LOG.to_owned(), true)].into_iter().chain(printed).collect()
}

/// Any events, on few addresses, so that they often concern the same address.
fn events() -> impl Strategy<Value = String> {
    let who = prop::sample::select(vec![TASK, OTHER_CPU, INTERRUPT]);
    let device = prop::sample::select(vec!["0000:00:04.0", "0000:00:05.0", "platform"]);
    let event = (who, device, 0u8..8, 1u64..6, 1u64..4, 0u64..0x3000, 1u64..0x4000);
    prop::collection::vec(event, 1..80).prop_map(|events| {
        let mut text = Text::default();
        for (who, device, kind, page, pages, offset, bytes) in events {
            let (iova, size) = (page << 12, pages << 12);
            match kind {
                0 | 1 => text.map(who, iova, page << 20, size),
                2 => text.unmap(who, iova, size),
                3 => text.dma_map(who, device, "TO_DEVICE", iova + offset, bytes),
                4 => text.dma_unmap(who, device, iova + offset, bytes),
                5 => text.event(who, &format!("dma_unmap_sg: {device} dir=TO_DEVICE phys_addrs={{0x1000}} attrs=")),
                6 => text.event(
                    who,
                    &format!(
                        "dma_sync_single_for_cpu: {device} dir=FROM_DEVICE dma_addr={:x} size={bytes}",
                        iova + offset
                    ),
                ),
                _ => {
                    let next = iova + offset + bytes;
                    let list = format!("dma_addrs={{{:#x},{next:#x}}} sizes={{{bytes:#x},0x1000}}", iova + offset);
                    let more = [",0x81000", ",0x81000,0x9000", ""][(pages - 1) as usize];
                    let ents = if pages == 1 { "2/3" } else { "2/2" };
                    text.event(
                        who,
                        &format!(
                            "dma_map_sg: {device} dir=FROM_DEVICE ents={ents} {list} phys_addrs={{0x1000{more}}} attrs="
                        ),
                    )
                }
            };
        }
        text.map(TASK, 0x900_0000, 0, 0x1000);
        text.text
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = read(&bytes);
        let _ = AccessLog::read_from("log", &bytes[..], |_| ());
        // The same bytes behind the magic numbers of compressed files.
        for magic in [&b"\xfd7zXZ\0"[..], b"\x1f\x8b\x08\0\0\0\0\0\0\x03", b"\x28\xb5\x2f\xfd", b"\x5a\x2a\x4d\x18"] {
            let _ = read([magic, &bytes].concat());
        }
    }

    #[test]
    fn good_lines_with_bytes_changed(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        for (whole, is_log) in samples() {
            let mut bytes = whole.into_bytes();
            for (at, byte) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            if is_log {
                let _ = AccessLog::read_from("log", &bytes[..], |_| ());
            } else if let Ok(trace) = read(&bytes) {
                check(&trace);
            }
        }
    }

    #[test]
    fn good_lines_with_parts_moved(
        cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0usize..30), 1..4),
    ) {
        for (whole, _) in samples().into_iter().filter(|&(_, is_log)| !is_log) {
            let mut bytes = whole.into_bytes();
            for (from, to, len) in &cuts {
                let from = from.index(bytes.len());
                let part: Vec<u8> = bytes.drain(from..(from + len).min(bytes.len())).collect();
                let to = to.index(bytes.len());
                bytes.splice(to..to, part);
            }
            if let Ok(trace) = read(&bytes) {
                check(&trace);
            }
        }
    }

    #[test]
    fn any_events_in_any_order(text in events()) {
        check(&read(&text).unwrap());
        let alone: String = text.lines().filter(|line| !line.contains("map: IOMMU")).flat_map(|line| [line, "\n"]).collect();
        match read(alone) {
            Ok(trace) => check(&trace),
            Err(error) => {
                prop_assert!(matches!(error, TraceError::Empty { .. } | TraceError::NoEvents { .. }), "{}", error);
            }
        }
    }
}

#[test]
fn the_samples_are_good() {
    for (text, _) in samples().into_iter().filter(|&(_, is_log)| !is_log) {
        let trace = read(text).unwrap();
        check(&trace);
        assert_eq!((trace.mappings.len(), trace.statistics.unmatched_unmaps, trace.devices.len()), (2, 0, 2));
    }
}
