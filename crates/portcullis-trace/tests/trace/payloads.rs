//! How much of a buffer is payload: what its driver syncs, or the size of its unmap.

use super::printed::{STYLES, printed};
use super::{BUNDLED, INTERRUPT, OTHER_CPU, TASK, Text, read, unpacked};
use portcullis_trace::{Payload, Trace};

const CARD: &str = "0000:00:04.0";
const DISK: &str = "0000:00:05.0";

fn sync(text: &mut Text, device: &str, direction: &str, iova: u64, size: u64) {
    text.event(INTERRUPT, &format!("dma_sync_single_for_cpu: {device} dir={direction} dma_addr={iova:x} size={size}"));
}

fn sync_list(text: &mut Text, pieces: &[(u64, u64)]) {
    let join = |numbers: &mut dyn Iterator<Item = u64>| {
        let words: Vec<String> = numbers.map(|it| format!("{it:#x}")).collect();
        words.join(",")
    };
    let (addresses, sizes) = (join(&mut pieces.iter().map(|it| it.0)), join(&mut pieces.iter().map(|it| it.1)));
    let words = format!("dma_sync_sg_for_cpu: {CARD} dir=FROM_DEVICE dma_addrs={{{addresses}}} sizes={{{sizes}}}");
    text.event(INTERRUPT, &words);
}

/// Reads the capture without its `iommu:` events.
fn alone(text: &Text) -> Trace {
    let kept = text.text.lines().filter(|line| !line.contains("map: IOMMU"));
    read(kept.flat_map(|line| [line, "\n"]).collect::<String>()).expect("a trace")
}

fn payloads(trace: &Trace) -> Vec<(u32, u64)> {
    trace.payloads.iter().map(|&Payload { mapping, bytes }| (mapping, bytes)).collect()
}

/// Two pages. The first is used for two packets, and once a sync goes beyond its end. The second is unmapped without a
/// sync.
fn recycled() -> Text {
    let mut text = Text::default();
    for (iova, phys) in [(0x10000, 0x81000), (0x11000, 0x92000)] {
        text.map(TASK, iova, phys, 4096).dma_map(TASK, CARD, "FROM_DEVICE", iova, 4096);
    }
    sync(&mut text, CARD, "FROM_DEVICE", 0x10000, 1514);
    sync(&mut text, CARD, "FROM_DEVICE", 0x10800, 60);
    sync(&mut text, CARD, "FROM_DEVICE", 0x10ff0, 0x20);
    text.unmap(TASK, 0x10000, 4096).dma_unmap(TASK, CARD, 0x10000, 4096);
    sync(&mut text, CARD, "FROM_DEVICE", 0x10000, 99);
    text.unmap(TASK, 0x11000, 4096).dma_unmap(TASK, CARD, 0x11000, 4096);
    text
}

#[test]
fn what_was_synced_is_summed_while_the_mapping_lives() {
    let text = recycled();
    for trace in [text.read(), alone(&text)] {
        assert_eq!(payloads(&trace), [(0, 1574)]);
        assert_eq!((trace.payload_of(0), trace.payload_of(1), trace.payload_of(2)), (Some(1574), None, None));
        assert_eq!(trace.mappings.len(), 2);
        assert_eq!(trace.statistics.unmatched_unmaps, 0);
    }
}

#[test]
fn every_program_prints_what_was_synced() {
    let mut text = recycled();
    text.map(TASK, 0x20000, 0x95000, 8192);
    text.event(
        TASK,
        &format!(
            "dma_map_sg: {CARD} dir=FROM_DEVICE dma_addrs={{0x20000}} sizes={{0x2000}} phys_addrs={{0x95000}} attrs="
        ),
    );
    sync_list(&mut text, &[(0x20000, 0x900), (u64::MAX, 0)]);
    assert_eq!(payloads(&text.read()), [(0, 1574), (2, 0x900)]);
    for (style, _) in STYLES {
        let trace = read(printed(&text.text, style)).unwrap_or_else(|error| panic!("{style:?}: {error}"));
        assert_eq!(payloads(&trace), [(0, 1574), (2, 0x900)], "{style:?}");
    }
}

#[test]
fn a_list_is_synced_piece_by_piece() {
    let mut text = Text::default();
    text.map(TASK, 0x10000, 0x81000, 0x1000).map(TASK, 0x11000, 0x92000, 0x2000);
    text.event(
        TASK,
        &format!("dma_map_sg: {CARD} dir=FROM_DEVICE dma_addrs={{0x10000}} sizes={{0x3000}} phys_addrs={{0x81000,0x92000}} attrs="),
    );
    sync_list(&mut text, &[(0x10000, 0x1000), (0x11000, 0x80), (u64::MAX, 0), (u64::MAX, u64::from(u32::MAX))]);
    assert_eq!(payloads(&text.read()), [(0, 0x1080)]);
    // Without `iommu:` events a list is known only by its physical addresses.
    assert_eq!(payloads(&alone(&text)), []);
}

#[test]
fn an_unmap_of_fewer_bytes_tells_what_came() {
    let mut text = Text::default();
    text.map(TASK, 0x10000, 0x81000, 4096).dma_map(TASK, CARD, "FROM_DEVICE", 0x10040, 1536);
    text.map(TASK, 0x11000, 0x92000, 4096).dma_map(TASK, CARD, "FROM_DEVICE", 0x11040, 1536);
    text.map(TASK, 0x12000, 0x93000, 4096).dma_map(TASK, CARD, "FROM_DEVICE", 0x12040, 1536);
    sync(&mut text, CARD, "FROM_DEVICE", 0x12040, 64);
    // Another context's unmap comes between an unmap and the event that gives its size.
    text.unmap(TASK, 0x10000, 4096).unmap(OTHER_CPU, 0x11000, 4096);
    text.dma_unmap(TASK, CARD, 0x10040, 60).dma_unmap(OTHER_CPU, CARD, 0x11040, 1536);
    text.unmap(TASK, 0x12000, 4096).dma_unmap(TASK, CARD, 0x12040, 1000);
    for trace in [text.read(), alone(&text)] {
        assert_eq!(payloads(&trace), [(0, 60), (2, 64)]);
        assert_eq!((trace.statistics.unmatched_maps, trace.statistics.unmatched_unmaps), (0, 0));
    }
}

#[test]
fn what_is_another_devices_or_only_read_is_no_payload() {
    let mut text = Text::default();
    for device in [CARD, DISK] {
        text.map(TASK, 0x10000, 0x81000, 4096).dma_map(TASK, device, "FROM_DEVICE", 0x10000, 4096);
    }
    sync(&mut text, DISK, "BIDIRECTIONAL", 0x10000, 512);
    sync(&mut text, CARD, "TO_DEVICE", 0x10000, 100);
    sync(&mut text, CARD, "FROM_DEVICE", 0x10000, 0);
    sync(&mut text, "0000:00:06.0", "FROM_DEVICE", 0x10000, 7);
    sync(&mut text, CARD, "FROM_DEVICE", 0x8000, 7);
    text.event(TASK, "dma_sync_single_for_device: 0000:00:04.0 dir=FROM_DEVICE dma_addr=10000 size=8");
    for trace in [text.read(), alone(&text)] {
        assert_eq!(payloads(&trace), [(1, 512)]);
        assert_eq!(trace.devices.len(), 2);
    }
}

#[test]
fn the_bundled_traces_show_no_payload() {
    for name in BUNDLED {
        assert_eq!(payloads(&read(unpacked(&format!("{name}.trace.xz"))).expect("a trace")), [], "{name}");
    }
}

#[test]
fn a_sync_that_no_kernel_prints_is_refused() {
    for (words, expected) in [
        ("dma_sync_single_for_cpu: x dir=FROM_DEVICE dma_addr=1000", "`size=`"),
        ("dma_sync_single_for_cpu: x dir=UP dma_addr=1000 size=1", "`dir=`"),
        ("dma_sync_sg_for_cpu: x dir=FROM_DEVICE dma_addrs={0x1000} sizes={0x1,0x2}", "as many sizes as addresses"),
    ] {
        let mut text = Text::default();
        text.map(TASK, 0x10000, 0x81000, 4096).event(TASK, words);
        let error = read(&text.text).unwrap_err().to_string();
        assert!(error.starts_with("test.trace:2: expected ") && error.contains(expected), "{error}");
    }
}
