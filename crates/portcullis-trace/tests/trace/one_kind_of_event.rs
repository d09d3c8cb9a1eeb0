//! Captures with `iommu:` events alone or `dma:` events alone: the bundled traces without the other kind of event.

use super::{BUNDLED, INTERRUPT, OTHER_CPU, TASK, Text, read, unpacked};
use portcullis::{Access, PhysAddr, Segment};
use portcullis_trace::{Context, Events, Operation, Trace, TraceError, TraceMapping, UNKNOWN_DEVICE};
use std::collections::HashSet;

const DEVICE: &str = "0000:00:04.0";

/// A bundled trace with only the events for which `stays` is true.
fn with_events(name: &str, stays: impl Fn(&str) -> bool) -> Trace {
    let text = unpacked(&format!("{name}.trace.xz"));
    let event = |line: &str| line.split_whitespace().nth(4).unwrap_or_default().trim_end_matches(':').to_owned();
    let kept: String = text
        .lines()
        .filter(|line| line.starts_with('#') || stays(&event(line)))
        .flat_map(|line| [line, "\n"])
        .collect();
    read(kept).unwrap()
}

/// The mapping, without its times.
fn shape(trace: &Trace, mapping: &TraceMapping) -> (u64, u32, Vec<Segment>, Access, portcullis::SourceId) {
    let device = trace.devices[usize::from(mapping.device)];
    (mapping.iova_pfn, mapping.pages, trace.segments_of(mapping).to_vec(), mapping.access, device)
}

fn who(trace: &Trace, operation: &Operation) -> (u16, Context) {
    (operation.cpu, trace.contexts[operation.context as usize])
}

#[test]
fn with_iommu_events_alone_only_devices_directions_and_lengths_are_lost() {
    for name in BUNDLED {
        let whole = with_events(name, |_| true);
        let alone = with_events(name, |event| matches!(event, "map" | "unmap" | "qi_submit"));
        assert_eq!(alone.devices, [UNKNOWN_DEVICE], "{name}");
        assert_eq!(alone.invalidations, whole.invalidations, "{name}");
        assert_eq!((&alone.unmatched, alone.statistics.maps), (&whole.unmatched, whole.statistics.maps), "{name}");
        // Only the numbering of contexts may differ: tasks that occur only in the other events are missing.
        let plain = |trace: &Trace| -> Vec<_> {
            let operation =
                |it: &Operation| (it.time_ns, it.mapping, trace.contexts[it.context as usize], it.cpu, it.kind);
            trace.operations.iter().map(operation).collect()
        };
        assert_eq!(plain(&alone), plain(&whole), "{name}");
        for (alone_mapping, mapping) in alone.mappings.iter().zip(&whole.mappings) {
            let place = |it: &TraceMapping| (it.iova_pfn, it.pages, it.map_operation, it.unmap_operation);
            assert_eq!(place(alone_mapping), place(mapping), "{name}");
            assert_eq!(alone_mapping.access, Access::DeviceReadsAndWrites);
            let pages = |trace: &Trace, mapping: &TraceMapping| -> Vec<_> {
                let segments = trace.segments_of(mapping).iter();
                segments.map(|segment| (segment.phys.as_u64() >> 12, segment.pages())).collect()
            };
            assert_eq!(pages(&alone, alone_mapping), pages(&whole, mapping), "{name}");
        }
    }
}

#[test]
fn with_dma_events_alone_the_mappings_are_the_same() {
    // The second number says how many operations are in another place.
    for (name, moved) in BUNDLED.into_iter().zip([637, 488, 297]) {
        let whole = with_events(name, |_| true);
        let alone = with_events(name, |event| event.starts_with("dma_") || event == "qi_submit");
        let (found, expected) = (alone.statistics, whole.statistics);
        assert_eq!(
            (found.maps, found.pages, found.unmaps, found.unmatched_maps, found.unmatched_unmaps, found.cpus),
            (
                expected.maps,
                expected.pages,
                expected.unmaps,
                expected.unmatched_maps,
                expected.unmatched_unmaps,
                expected.cpus
            ),
            "{name}"
        );
        assert_eq!(alone.devices, whole.devices, "{name}");
        let sorted = |trace: &Trace| {
            let mut shapes: Vec<_> = trace.mappings.iter().map(|mapping| shape(trace, mapping)).collect();
            shapes.sort_by_key(|(iova_pfn, _, segments, ..)| (*iova_pfn, segments[0].phys, segments[0].len));
            shapes
        };
        assert_eq!(sorted(&alone), sorted(&whole), "{name}");
        // The `dma:` event of a map comes after its `iommu:` event, so tasks and interrupts may overtake each other.
        // Each of them does the same in the same order.
        let sequence = |trace: &Trace, only: Option<(u16, Context)>| -> Vec<_> {
            let here = trace.operations.iter().filter(|it| only.is_none_or(|only| who(trace, it) == only));
            here.map(|it| (it.kind, shape(trace, &trace.mappings[it.mapping as usize]))).collect()
        };
        let everybody: HashSet<_> = whole.operations.iter().map(|it| who(&whole, it)).collect();
        for who in everybody {
            assert_eq!(sequence(&alone, Some(who)), sequence(&whole, Some(who)), "{name} {who:?}");
        }
        let (alone, whole) = (sequence(&alone, None), sequence(&whole, None));
        assert_eq!(alone.len(), whole.len(), "{name}");
        assert_eq!(alone.iter().zip(&whole).filter(|(alone, whole)| alone != whole).count(), moved, "{name}");
    }
}

/// The same text under the names of the module's events.
#[test]
fn the_events_of_the_kernel_module_say_what_dma_events_say() {
    let mut text = Text::default();
    let words = "dir=FROM_DEVICE dma_addr=fffff200 size=1536";
    text.event(TASK, &format!("portcullis_map: {DEVICE} {words} phys_addr=81200"));
    text.event(TASK, "portcullis_map: 0000:00:05.0 dir=TO_DEVICE dma_addr=fffff200 size=64 phys_addr=92200");
    text.event(INTERRUPT, &format!("portcullis_unmap: {DEVICE} {words}"));
    let trace = text.read();
    assert_eq!((trace.events, trace.devices.len(), trace.mappings.len()), (Events::Dma, 2, 2));
    assert_eq!(trace.segments, segments(&[(0x81200, 1536), (0x92200, 64)]));
    let ways: Vec<_> = trace.mappings.iter().map(|it| (it.access, it.unmap_operation.map(u32::from))).collect();
    assert_eq!(ways, [(Access::DeviceWrites, Some(2)), (Access::DeviceReads, None)]);
    assert_eq!((trace.statistics.maps, trace.statistics.unmaps, trace.statistics.unmatched_maps), (2, 1, 1));
}

#[test]
fn an_iommu_event_decides_however_late() {
    let mut text = Text::default();
    text.dma_map(TASK, DEVICE, "TO_DEVICE", 0x1040, 64).dma_unmap(TASK, DEVICE, 0x1040, 64);
    assert_eq!(text.read().mappings.len(), 1);
    text.unmap(TASK, 0x9000, 4096);
    let trace = text.read();
    assert_eq!((trace.mappings.len(), trace.unmatched.len(), trace.statistics.unmaps), (0, 1, 1));
}

/// Adds a map of a list with these `runs` and `phys`, as the kernel prints it.
fn list(text: &mut Text, runs: &[(u64, u64)], phys: &[u64]) {
    let join =
        |numbers: &mut dyn Iterator<Item = u64>| numbers.map(|it| format!("{it:#x}")).collect::<Vec<_>>().join(",");
    let addresses = join(&mut runs.iter().map(|run| run.0));
    let sizes = join(&mut runs.iter().map(|run| run.1));
    let phys = join(&mut phys.iter().copied());
    let event = format!(
        "dma_map_sg: {DEVICE} dir=FROM_DEVICE dma_addrs={{{addresses}}} sizes={{{sizes}}} phys_addrs={{{phys}}} attrs="
    );
    text.event(TASK, &event);
}

fn segments(parts: &[(u64, u64)]) -> Vec<Segment> {
    parts.iter().map(|&(phys, len)| Segment { phys: PhysAddr::new(phys), len }).collect()
}

#[test]
fn the_pieces_of_a_list_are_as_long_as_can_be_known() {
    for (runs, phys, expected) in [
        // There are as many pages as pieces. The first piece begins, and the last ends, inside its page.
        (
            &[(0x10200, 0x2d00)][..],
            &[0x81200, 0x90000, 0x20000][..],
            &[(0x81200, 0xe00), (0x90000, 0x1000), (0x20000, 0xf00)][..],
        ),
        // Physically adjacent pieces are merged.
        (&[(0x10000, 0x3000)], &[0x81000, 0x82000, 0x20000], &[(0x81000, 0x2000), (0x20000, 0x1000)]),
        // There are more pages than pieces: the last piece takes the rest.
        (&[(0x10000, 0x20000)], &[0x7ec8000, 0x2e18000], &[(0x7ec8000, 0x1000), (0x2e18000, 0x1f000)]),
        // There is a run for each piece.
        (&[(0x10000, 0x800), (0x11010, 0x1000)], &[0x81000, 0x90010], &[(0x81000, 0x800), (0x90010, 0x1000)]),
        (&[(0x81000, 0x3000), (0x20010, 8)], &[0x81000, 0x20010], &[(0x81000, 0x3000), (0x20010, 8)]),
        // There are two runs for three pieces.
        (
            &[(0x10000, 0x1800), (0x12000, 0x800)],
            &[0x81000, 0x95000, 0x33000],
            &[(0x81000, 0x1000), (0x95000, 0x800), (0x33000, 0x800)],
        ),
        // A bounce buffer begins elsewhere in its page.
        (&[(0x10000, 0x100)], &[0x81e80], &[(0x81000, 0x100)]),
    ] {
        let mut text = Text::default();
        list(&mut text, runs, phys);
        let trace = text.read();
        assert_eq!(trace.segments, segments(expected), "{runs:x?}");
        assert_eq!((trace.mappings.len(), trace.operations.len()), (1, 1));
        assert_eq!(trace.mappings[0].iova_pfn, runs[0].0 >> 12);
        assert_eq!(trace.mappings[0].pages as u64, trace.segments.iter().map(Segment::pages).sum::<u64>());
        assert_eq!(trace.statistics.maps, expected.len() as u64);
    }
}

#[test]
fn lists_are_unmapped_by_where_their_pieces_lie() {
    let unmap = |text: &mut Text, phys: &str| {
        text.event(INTERRUPT, &format!("dma_unmap_sg: {DEVICE} dir=FROM_DEVICE phys_addrs={{{phys}}} attrs="));
    };
    let mut text = Text::default();
    list(&mut text, &[(0x10000, 0x2000)], &[0x81000, 0x90000]);
    list(&mut text, &[(0x20000, 0x2000)], &[0x81000, 0x95000]);
    unmap(&mut text, "0x81000,0x90000");
    unmap(&mut text, "0x81000");
    unmap(&mut text, "0x81000,0x95000");
    let trace = text.read();
    let unmaps: Vec<_> = trace.mappings.iter().map(|it| it.unmap_operation.map(u32::from)).collect();
    assert_eq!(unmaps, [Some(2), Some(3)]);
    let unmatched: Vec<_> = trace.unmatched.iter().map(|it| (it.at_operation, it.iova_pfn, it.pages)).collect();
    assert_eq!(unmatched, [(3, 0, 0)]);
    assert_eq!((trace.statistics.unmaps, trace.statistics.unmatched_unmaps), (3, 1));
}

fn dma_map(text: &mut Text, iova: u64, phys: u64) {
    text.event(
        TASK,
        &format!("dma_map_page: {DEVICE} dir=TO_DEVICE dma_addr={iova:x} size=64 phys_addr={phys:x} attrs="),
    );
}

#[test]
fn behind_an_iommu_a_second_mapping_at_an_address_has_lost_an_unmap() {
    let mut text = Text::default();
    dma_map(&mut text, 0x1000, 0x81000);
    dma_map(&mut text, 0x1000, 0x92000);
    text.dma_unmap(TASK, DEVICE, 0x1000, 64).dma_unmap(OTHER_CPU, DEVICE, 0x1000, 64);
    let trace = text.read();
    assert_eq!(trace.mappings[0].unmap_operation, None);
    assert_eq!(trace.mappings[1].unmap_operation.map(u32::from), Some(2));
    assert_eq!((trace.statistics.unmatched_maps, trace.statistics.unmatched_unmaps), (1, 1));
    assert_eq!((trace.unmatched[0].iova_pfn, trace.unmatched[0].pages), (1, 1));
}

#[test]
fn without_an_iommu_the_same_bytes_may_be_mapped_twice() {
    let mut text = Text::default();
    for _ in 0..3 {
        dma_map(&mut text, 0x81040, 0x81040);
    }
    // The other half of the page is another buffer.
    dma_map(&mut text, 0x81840, 0x81840);
    for _ in 0..3 {
        text.dma_unmap(TASK, DEVICE, 0x81040, 64);
    }
    // The first unmap is longer than the mapping, so it does not match.
    text.dma_unmap(TASK, DEVICE, 0x81840, 65).dma_unmap(TASK, DEVICE, 0x81840, 64);
    let trace = text.read();
    let unmaps: Vec<_> = trace.mappings.iter().map(|it| it.unmap_operation.map(u32::from)).collect();
    assert_eq!(unmaps, [Some(6), Some(5), Some(4), Some(7)]);
    assert_eq!((trace.statistics.unmatched_maps, trace.statistics.unmatched_unmaps), (0, 1));
}

#[test]
fn addresses_that_no_memory_has_are_refused() {
    for (size, phys) in [(64, (1u64 << 52) - 63), (64, u64::MAX - 63), (u64::MAX - 0x1000, 0)] {
        let line = format!(
            "fio-1 [000] ..... 1.0: dma_map_page: x dir=TO_DEVICE dma_addr=1000 size={size} phys_addr={phys:x} attrs=\n"
        );
        let error = read(line).unwrap_err().to_string();
        assert!(error.starts_with("test.trace:1: expected a physical address below 2^52"), "{error}");
        let list = format!(
            "fio-1 [000] ..... 1.0: dma_map_sg: x dir=TO_DEVICE dma_addrs={{0x1000,0x9000}} sizes={{{size:#x},0x40}} \
             phys_addrs={{{phys:#x}}} attrs=\n"
        );
        assert!(read(list).is_err());
    }
}

#[test]
fn a_trace_says_which_events_it_has() {
    let name = BUNDLED[0];
    let of = |stays: fn(&str) -> bool| with_events(name, stays).events;
    assert_eq!(of(|_| true), Events::Both);
    assert_eq!(of(|event| !event.starts_with("dma_")), Events::Iommu);
    assert_eq!(of(|event| event.starts_with("dma_")), Events::Dma);
}

/// A flaw that makes `dma:` events useless by themselves does not matter if there are `iommu:` events too.
#[test]
fn a_flaw_of_dma_events_counts_only_where_they_stand_alone() {
    let mut text = Text::default();
    let phys = 1u64 << 52;
    let words = format!("dma_map_page: {DEVICE} dir=TO_DEVICE dma_addr=1000 size=64 phys_addr={phys:x} attrs=");
    text.event(TASK, &words);
    let TraceError::Malformed { line: 1, .. } = read(&text.text).unwrap_err() else { panic!("it names the line") };
    text.map(TASK, 0x5000, 0x9000, 4096);
    assert_eq!(text.read().events, Events::Both);
}

#[test]
fn events_out_of_order_are_counted() {
    let mut text = Text::default();
    text.map(TASK, 0x5000, 0x9000, 4096).map(TASK, 0x6000, 0xa000, 4096).map(OTHER_CPU, 0x7000, 0xb000, 4096);
    text.time_us = 1;
    text.map(TASK, 0x8000, 0xc000, 4096);
    assert_eq!(text.read().statistics.out_of_order, 0, "not older than the one before it on its CPU");
    text.time_us = 1;
    text.map(OTHER_CPU, 0x9000, 0xd000, 4096);
    assert_eq!(text.read().statistics.out_of_order, 1);
}
