//! Which events belong together, in cases that the bundled traces do not have.

use super::{INTERRUPT, OTHER_CPU, TASK, Text, Who};
use portcullis::{Access, PhysAddr, Segment, SourceId};
use portcullis_trace::{Level, OperationKind, Trace, TraceMapping, UNKNOWN_DEVICE};

const DEVICE: &str = "0000:00:04.0";
const DEVICE_ID: SourceId = SourceId::new(0, 4, 0);

fn segment(phys: u64, len: u64) -> Segment {
    Segment { phys: PhysAddr::new(phys), len }
}

fn device_of(trace: &Trace, mapping: &TraceMapping) -> SourceId {
    trace.devices[usize::from(mapping.device)]
}

#[test]
fn a_page_has_the_bytes_direction_and_device_of_its_dma_event() {
    let mut text = Text::default();
    for (page, direction) in [(1, "TO_DEVICE"), (2, "FROM_DEVICE"), (3, "BIDIRECTIONAL")] {
        text.map(TASK, page << 12, page << 20, 4096);
        text.dma_map(TASK, DEVICE, direction, (page << 12) + 0x840, 1522);
    }
    text.unmap(TASK, 0x1000, 4096).dma_unmap(TASK, DEVICE, 0x1840, 1522);
    let trace = text.read();
    assert_eq!(trace.segments, [1, 2, 3].map(|page: u64| segment((page << 20) + 0x840, 1522)));
    let access: Vec<_> = trace.mappings.iter().map(|mapping| mapping.access).collect();
    assert_eq!(access, [Access::DeviceReads, Access::DeviceWrites, Access::DeviceReadsAndWrites]);
    assert_eq!(trace.devices, [DEVICE_ID]);
    assert_eq!(trace.mappings[0].unmap_operation.map(u32::from), Some(3));
    assert_eq!(trace.statistics.unmatched_maps, 2);
}

#[test]
fn a_buffer_that_crosses_a_page_keeps_both_pages() {
    let mut text = Text::default();
    text.map(TASK, 0x4000, 0x9000, 8192).dma_map(TASK, DEVICE, "FROM_DEVICE", 0x4c40, 1522);
    let trace = text.read();
    assert_eq!(trace.segments, [segment(0x9c40, 1522)]);
    assert_eq!(trace.mappings[0].pages, 2);
}

#[test]
fn a_scatter_list_is_one_mapping() {
    let mut text = Text::default();
    text.map(TASK, 0x10000, 0x81000, 0x1000).map(TASK, 0x11000, 0x90000, 0x3000).map(TASK, 0x14000, 0x20000, 0x1000);
    // The list starts 0x200 into its first page and ends 0x100 into its last.
    let list = "dma_map_sg: 0000:00:04.0 dir=FROM_DEVICE nents=3/3 ents=1/1 dma_addrs={0x10200} sizes={0x3f00} \
                phys_addrs={0x81200,0x90000,0x20000} attrs=";
    text.event(TASK, list);
    text.event(INTERRUPT, "dma_unmap_sg: 0000:00:04.0 dir=FROM_DEVICE phys_addrs={0x81200,0x90000,0x20000} attrs=");
    text.unmap(INTERRUPT, 0x10000, 0x5000);
    let trace = text.read();
    assert_eq!(trace.segments, [segment(0x81200, 0xe00), segment(0x90000, 0x3000), segment(0x20000, 0x100)]);
    assert_eq!((trace.mappings.len(), trace.operations.len()), (1, 2));
    assert_eq!((trace.mappings[0].pages, trace.mappings[0].iova_pfn), (5, 0x10));
    // Its map is the first event. Its unmap is the `unmap` event, in the interrupt.
    assert_eq!((trace.operations[0].time_ns, trace.operations[1].time_ns), (1_000, 6_000));
    assert_eq!(trace.contexts[trace.operations[1].context as usize].level, Level::HardInterrupt);
    assert_eq!((trace.statistics.maps, trace.statistics.pages, trace.statistics.unmaps), (3, 5, 1));
    assert_eq!((trace.statistics.unmatched_maps, trace.statistics.unmatched_unmaps), (0, 0));
}

#[test]
fn a_list_of_several_runs_is_cut_where_each_ends() {
    let mut text = Text::default();
    text.map(TASK, 0x10000, 0x81000, 0x1000).map(TASK, 0x11000, 0x90000, 0x2000);
    text.event(TASK, "dma_map_sg: 0000:00:04.0 dir=TO_DEVICE dma_addrs={0x10000,0x11010} sizes={0x800,0x1000} attrs=");
    assert_eq!(text.read().segments, [segment(0x81000, 0x800), segment(0x90010, 0x1000)]);
}

#[test]
fn a_list_too_long_to_print_goes_on_to_the_gap() {
    let mut text = Text::default();
    for page in [0x10, 0x11, 0x12, 0x14] {
        text.map(TASK, page << 12, page << 20, 0x1000);
    }
    text.event(
        TASK,
        "dma_map_sg: 0000:00:04.0 dir=TO_DEVICE nents=1/3 ents=1/3 dma_addrs={0x10000} sizes={0x1000} attrs=",
    );
    let trace = text.read();
    let pages: Vec<_> = trace.mappings.iter().map(|mapping| mapping.pages).collect();
    assert_eq!(pages, [3, 1]);
    assert_eq!(device_of(&trace, &trace.mappings[1]), UNKNOWN_DEVICE);
}

#[test]
fn interrupts_nest_inside_a_scatter_list() {
    let soft: Who = ("fio-7", 0, "..s1.");
    let mut text = Text::default();
    text.map(TASK, 0x10000, 0x81000, 0x1000);
    // The soft interrupt gets the next address, and is itself interrupted.
    text.map(soft, 0x11000, 0x55000, 0x1000);
    text.map(("fio-7", 0, "d.H2."), 0x20000, 0x66000, 0x1000);
    text.dma_map(("fio-7", 0, "d.H2."), "0000:01:00.0", "TO_DEVICE", 0x20010, 0x10);
    text.dma_map(soft, "0000:02:1f.7", "FROM_DEVICE", 0x11000, 0x40);
    text.map(TASK, 0x12000, 0x82000, 0x1000);
    text.event(TASK, "dma_map_sg: 0000:00:04.0 dir=TO_DEVICE dma_addrs={0x10000} sizes={0x1000} attrs=");
    text.dma_map(TASK, DEVICE, "TO_DEVICE", 0x12000, 0x1000);
    let trace = text.read();
    let found: Vec<_> =
        trace.mappings.iter().map(|it| (it.iova_pfn, device_of(&trace, it), trace.segments_of(it)[0])).collect();
    assert_eq!(
        found,
        [
            (0x10, DEVICE_ID, segment(0x81000, 0x1000)),
            (0x11, SourceId::new(2, 31, 7), segment(0x55000, 0x40)),
            (0x20, SourceId::new(1, 0, 0), segment(0x66010, 0x10)),
            (0x12, DEVICE_ID, segment(0x82000, 0x1000)),
        ]
    );
    let levels: Vec<_> = trace.operations.iter().map(|it| trace.contexts[it.context as usize].level).collect();
    assert_eq!(levels, [Level::Task, Level::SoftInterrupt, Level::HardInSoftInterrupt, Level::Task]);
}

#[test]
fn a_task_may_move_to_another_cpu_before_its_dma_event() {
    let mut text = Text::default();
    text.map(TASK, 0x10000, 0x81000, 0x1000).map(OTHER_CPU, 0x11000, 0x82000, 0x1000);
    text.dma_map(("fio-7", 1, "....."), DEVICE, "TO_DEVICE", 0x10000, 4096);
    text.dma_map(("fio-8", 0, "....."), DEVICE, "TO_DEVICE", 0x11000, 4096);
    assert_eq!(text.read().devices, [DEVICE_ID]);
}

#[test]
fn without_dma_events_an_unmap_makes_one_mapping_of_what_it_covers() {
    let mut text = Text::default();
    text.map(TASK, 0x10000, 0x81000, 0x1000).map(OTHER_CPU, 0x40000, 0x30000, 0x1000);
    text.map(TASK, 0x11000, 0x90000, 0x3000).event(TASK, "qi_submit: iotlb_inv dmar0: 0x400f2 0x10002 0x0 0x0");
    text.unmap(INTERRUPT, 0x10000, 0x4000).unmap(INTERRUPT, 0x40000, 0x1000);
    let trace = text.read();
    assert_eq!(trace.devices, [UNKNOWN_DEVICE]);
    assert_eq!(trace.mappings.len(), 2);
    assert_eq!(trace.mappings[0].access, Access::DeviceReadsAndWrites);
    assert_eq!(trace.segments_of(&trace.mappings[0]), [segment(0x81000, 0x1000), segment(0x90000, 0x3000)]);
    assert_eq!(trace.segments_of(&trace.mappings[1]), [segment(0x30000, 0x1000)]);
    let operations: Vec<_> = trace.operations.iter().map(|it| (it.mapping, it.kind)).collect();
    use OperationKind::{Map, Unmap};
    assert_eq!(operations, [(0, Map), (1, Map), (0, Unmap), (1, Unmap)]);
    // Three map events came before the invalidation. They made two mappings, so it comes after two operations.
    assert_eq!(trace.invalidations[0].at_operation, 2);
    assert_eq!((trace.statistics.maps, trace.statistics.unmatched_maps), (3, 0));
}

#[test]
fn two_devices_may_live_at_one_address() {
    let (a, b) = ("0000:00:04.0", "0000:00:05.0");
    let mut text = Text::default();
    text.map(TASK, 0x10000, 0x81000, 0x1000).dma_map(TASK, a, "TO_DEVICE", 0x10000, 64);
    text.map(OTHER_CPU, 0x10000, 0x92000, 0x1000).dma_map(OTHER_CPU, b, "TO_DEVICE", 0x10000, 64);
    // The later mapping is unmapped first. Only its `dma:` event shows that, and by then another CPU has the address
    // again.
    text.unmap(OTHER_CPU, 0x10000, 0x1000);
    text.map(TASK, 0x10000, 0xa3000, 0x1000).dma_map(TASK, b, "TO_DEVICE", 0x10000, 64);
    text.dma_unmap(OTHER_CPU, b, 0x10000, 64);
    text.unmap(TASK, 0x10000, 0x1000).dma_unmap(TASK, a, 0x10000, 64);
    // A third device unmaps a page that it mapped before the capture.
    text.unmap(TASK, 0x10000, 0x1000).dma_unmap(TASK, "0000:00:06.0", 0x10000, 64);
    let trace = text.read();
    let unmaps: Vec<_> = trace.mappings.iter().map(|mapping| mapping.unmap_operation.map(u32::from)).collect();
    assert_eq!(unmaps, [Some(4), Some(2), None]);
    assert_eq!((trace.statistics.unmatched_maps, trace.statistics.unmatched_unmaps), (1, 1));
    assert_eq!(trace.unmatched[0].at_operation, 5);
}

#[test]
fn unmaps_of_unknown_parts_or_nothing_are_counted_and_skipped() {
    let mut text = Text::default();
    text.unmap(TASK, 0x77000, 0x1000);
    text.map(TASK, 0x10000, 0x81000, 0x2000).dma_map(TASK, DEVICE, "TO_DEVICE", 0x10000, 8192);
    text.unmap(TASK, 0x10000, 0x1000).unmap(TASK, 0x10000, 0x3000);
    text.unmap(TASK, 0x10000, 0x2000).unmap(TASK, 0x10000, 0x2000);
    let trace = text.read();
    assert_eq!((trace.statistics.unmaps, trace.statistics.unmatched_unmaps), (5, 3));
    let at: Vec<_> = trace.unmatched.iter().map(|it| (it.at_operation, it.iova_pfn, it.pages)).collect();
    assert_eq!(at, [(0, 0x77, 1), (1, 0x10, 3), (2, 0x10, 2)]);
    assert_eq!(trace.statistics.unmatched_maps, 0);
}

#[test]
fn an_address_mapped_again_while_live_has_lost_its_unmap() {
    let mut text = Text::default();
    for phys in [0x81000, 0x82000] {
        text.map(TASK, 0x10000, phys, 0x1000).dma_map(TASK, DEVICE, "TO_DEVICE", 0x10000, 4096);
    }
    text.unmap(TASK, 0x10000, 0x1000);
    let trace = text.read();
    assert_eq!(trace.mappings[0].unmap_operation, None);
    assert_eq!(trace.mappings[1].unmap_operation.map(u32::from), Some(2));
    assert_eq!(trace.statistics.unmatched_maps, 1);
}

#[test]
fn lost_events_are_counted() {
    let mut text = Text::default();
    text.line("# tracer: nop").line("#").line("# entries-in-buffer/entries-written: 100/250   #P:4");
    text.line("##### CPU 1 buffer started ####");
    text.map(TASK, 0x10000, 0x81000, 0x1000).line("CPU:1 [LOST 1234 EVENTS]").line("CPU:12 [LOST EVENTS]");
    assert_eq!(text.read().statistics.lost_events, 150 + 1234 + 1);
}

#[test]
fn tasks_may_be_called_anything() {
    let event = "map: IOMMU: iova=0x1000 - 0x2000 paddr=0x3000 size=4096\n";
    for (columns, pid, level) in [
        ("           <...>-4711    [001] d.s1.    12.000345: ", 4711, Level::SoftInterrupt),
        (" kworker/0:1-ev [x] [000]-99    [001] d.h1.    12.000345: ", 99, Level::HardInterrupt),
        ("a-1 [002] b: c-12345  (  12345) [001] dNH2.    12.000345: ", 12345, Level::HardInSoftInterrupt),
        ("    vCPU 0/KVM-3   [001] d.z1    12.000345: ", 3, Level::NonMaskable),
        ("  -7-8- -5    (-----)  [001]    12.000345: ", 5, Level::Task),
        ("\u{fc}ber-5    [001] .....    12.000345: ", 5, Level::Task),
    ] {
        let trace = super::read(format!("{columns}{event}")).unwrap_or_else(|error| panic!("{error}"));
        let operation = trace.operations[0];
        let context = trace.contexts[operation.context as usize];
        assert_eq!((operation.cpu, operation.time_ns), (1, 12_000_345_000), "{columns}");
        assert_eq!((context.pid, context.level), (pid, level), "{columns}");
    }
}

#[test]
fn devices_off_pci_have_addresses_of_their_own() {
    let mut text = Text::default();
    let names = ["fe300000.mmc", "0000:00:04.0", "0001:00:04.0", "0000:ff:1f.7", "0000:00:20.0", "0000:00:00.0"];
    for (page, name) in (1..).zip(names) {
        text.map(TASK, page << 12, page << 12, 0x1000).dma_map(TASK, name, "TO_DEVICE", page << 12, 1);
    }
    let devices = text.read().devices;
    assert_eq!(devices[..2], [SourceId::new(0xff, 31, 7), DEVICE_ID]);
    let distinct: std::collections::BTreeSet<_> = devices.iter().collect();
    assert_eq!(distinct.len(), names.len());
    assert!(!devices.contains(&UNKNOWN_DEVICE));
}
