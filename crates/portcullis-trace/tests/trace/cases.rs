//! Captures with the shapes of public reports (the folder `cases`): old kernels, failed maps, unmaps of parts, faults.
//! All of their content is synthetic.

use super::{TASK, Text, read};
use portcullis_trace::{Statistics, Trace, TraceError};
use std::path::Path;

fn case(file: &str) -> Result<Trace, TraceError> {
    Trace::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(file), |_| ())
}

/// What a capture shows: its maps and unmaps, and those among them that have no counterpart.
struct Counts {
    maps: u64,
    pages: u64,
    unmaps: u64,
    unmatched: u64,
    partial: u64,
    never: u64,
}

const fn paired(maps: u64) -> Counts {
    Counts { maps, pages: maps, unmaps: maps, unmatched: 0, partial: 0, never: 0 }
}

/// Failed maps and unmaps of nothing, each with the line of the first, and faults.
type Odd = ((u64, u64), (u64, u64), u64);

const NONE: Odd = ((0, 0), (0, 0), 0);

#[test]
fn every_capture_has_its_counts() {
    let ath12k = Counts { maps: 601, pages: 728, unmaps: 345, unmatched: 0, partial: 0, never: 256 };
    let vfio = Counts { maps: 1039, pages: 524_803, unmaps: 2050, unmatched: 0, partial: 0, never: 0 };
    let i915 = Counts { maps: 64, pages: 65_536, unmaps: 64, unmatched: 0, partial: 0, never: 0 };
    let part = Counts { maps: 51, pages: 59, unmaps: 51, unmatched: 0, partial: 1, never: 1 };
    let vmd = Counts { maps: 600, pages: 600, unmaps: 552, unmatched: 0, partial: 0, never: 48 };
    let leak = Counts { maps: 4000, pages: 4000, unmaps: 3500, unmatched: 0, partial: 0, never: 500 };
    let rings = Counts { maps: 20_096, pages: 20_096, unmaps: 16_000, unmatched: 0, partial: 0, never: 4096 };
    let swiotlb = Counts { maps: 400, pages: 400, unmaps: 376, unmatched: 0, partial: 0, never: 24 };
    let cases: [(&str, Counts, Odd); 21] = [
        ("f01-kernel-5.15.trace.xz", paired(400), NONE),
        ("f01-control-6.12.trace.xz", paired(400), NONE),
        ("f03-ath12k-fault-after-free.trace.xz", ath12k, ((0, 0), (0, 0), 40)),
        ("f04-vfio-piecewise-unmap.trace.xz", vfio, NONE),
        ("f05-i915-46bit-4MiB.trace", i915, NONE),
        ("f06-map-error-page.trace.xz", paired(200), ((1, 413), (0, 0), 0)),
        ("f06-map-error-phys.trace.xz", paired(200), ((1, 413), (0, 0), 0)),
        ("f06-map-error-sg.trace.xz", paired(200), NONE),
        ("f06-map-error-alloc.trace.xz", paired(200), NONE),
        ("f06-map-error-sgt.trace.xz", paired(200), NONE),
        ("f07-unmap-of-nothing-size0.trace.xz", paired(200), ((0, 0), (1, 413), 0)),
        ("f07b-unmap-of-address0.trace.xz", paired(200), NONE),
        ("f08-unmap-smaller-than-map.trace", part, NONE),
        ("f09-vmd-domains.trace.xz", vmd, NONE),
        ("f11-swiotlb-arm64-platform.trace.xz", swiotlb, NONE),
        ("f13-crlf.trace.xz", paired(200), NONE),
        ("f13-marker.trace.xz", paired(200), NONE),
        ("f15-leak-one-in-eight.trace.xz", leak, NONE),
        ("w02-small-buffers-only.trace.xz", rings, NONE),
        ("w04b-round-robin-1cpu.trace.xz", paired(632), NONE),
        ("w04b-round-robin-8cpu.trace.xz", paired(5056), NONE),
    ];
    let mut wrong = Vec::new();
    for (file, counts, odd) in cases {
        let Statistics {
            maps,
            pages,
            unmaps,
            unmatched_unmaps,
            partial_unmaps,
            unmapped_never,
            failed_maps,
            failed_map_line,
            unmaps_of_nothing,
            unmap_of_nothing_line,
            refused_accesses,
            ..
        } = case(file).unwrap_or_else(|error| panic!("{error}")).statistics;
        let found = [maps, pages, unmaps, unmatched_unmaps, partial_unmaps, unmapped_never];
        let Counts { maps, pages, unmaps, unmatched, partial, never } = counts;
        let found_odd = ((failed_maps, failed_map_line), (unmaps_of_nothing, unmap_of_nothing_line), refused_accesses);
        let expected = [maps, pages, unmaps, unmatched, partial, never];
        if (found, found_odd) != (expected, odd) {
            wrong.push(format!("{file}: {found:?} {found_odd:?}, expected {expected:?} {odd:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let lost = case("f13-lost.trace.xz").unwrap().statistics;
    assert!(lost.lost_events > 0);
}

#[test]
fn a_kernel_without_the_end_of_a_run_shows_the_same_maps() {
    let (old, new) = (case("f01-kernel-5.15.trace.xz").unwrap(), case("f01-control-6.12.trace.xz").unwrap());
    let runs = |trace: &Trace| -> Vec<_> {
        trace.mappings.iter().map(|it| (it.iova_pfn, it.pages, trace.segments_of(it).to_vec())).collect()
    };
    assert_eq!((runs(&old), old.statistics.cpus), (runs(&new), 4));
}

/// A line of a map, and that of its unmap, as kernels before 5.17 and kernels of vendors print them.
#[test]
fn every_kernel_prints_the_same_map() {
    let (columns, old) = ("  fio-7 [000] d.h1 1.0", "  fio-7 [000] d... 1.0");
    for (kernel, columns, run, size) in [
        ("6.12", columns, "IOMMU: iova=0x0000000000001000 - 0x0000000000003000", "8192"),
        ("5.15", columns, "IOMMU: iova=0x0000000000001000", "8192"),
        ("5.10", columns, "IOMMU: iova=0x0000000000001000", "8192"),
        ("5.4", columns, "IOMMU: iova=0x0000000000001000", "8192"),
        ("4.19", old, "IOMMU: iova=0x0000000000001000", "8192"),
        ("a vendor's 4.19", old, "IOMMU:1c00000.qcom,pcie iova=0x0000000000001000", "0x2000"),
        ("another's 4.19", old, "IOMMU: dev=soc:ipa group=7 iova=0x0000000000001000", "0x2000"),
        ("a vendor's 5.4", columns, "IOMMU:15000000.apps-smmu iova=0x0000000000001000", "0x2000"),
        ("another's 5.10", columns, "IOMMU: 13e00000.mali domain=3 iova=0x0000000000001000", "8192"),
        ("a vendor's 5.15", columns, "IOMMU:a600000.ssusb iova=0x0000000000001000 - 0x0000000000003000", "0x2000"),
    ] {
        let text = format!(
            "{columns}: map: {run} paddr=0x0000000000009000 size={size}\n\
             {columns}: unmap: {run} size={size} unmapped_size={size}\n"
        );
        let trace = read(&text).unwrap_or_else(|error| panic!("{kernel}: {error}"));
        let mapping = trace.mappings[0];
        assert_eq!((mapping.iova_pfn, mapping.pages), (1, 2), "{kernel}");
        assert_eq!(trace.segments_of(&mapping)[0].phys.as_u64(), 0x9000, "{kernel}");
        assert_eq!((trace.statistics.unmapped_never, trace.statistics.unmatched_unmaps), (0, 0), "{kernel}");
    }
}

#[test]
fn what_is_foreign_is_refused_by_the_name_of_its_field() {
    for (event, field) in [
        ("map: IOMMU: iova=0x1000 size=4096", "`paddr="),
        ("map: IOMMU: iova=0x1000 paddr=0x9000 len=4096", "`size="),
        ("map: IOMMU: iova=0x1000 paddr=0x9000 size=4k", "`size="),
        ("map: IOMMU: addr=0x1000 paddr=0x9000 size=4096", "`iova=0x"),
        ("unmap: IOMMU: iova=0x1000 size=4096", "`unmapped_size="),
        ("map: iova=0x1000 paddr=0x9000 size=4096", "option -R"),
        ("io_page_fault: IOMMU:nvme 0000:04:00.0 flags=0x1", "`iova=0x"),
    ] {
        let mut text = Text::default();
        let error = read(&text.map(TASK, 0x1000, 0x3000, 4096).event(TASK, event).text).expect_err(event);
        assert!(error.to_string().contains(field), "{event}: {error}");
    }
}

#[test]
fn other_tools_are_named() {
    let said = |file: &str| case(file).expect_err(file).to_string();
    let bare = said("f14-trace-cmd-report-R.txt");
    assert!(bare.contains("-R.txt:2: ") && bare.contains("without its option -R"), "{bare}");
    let perf = said("f14-perf-trace.txt");
    assert!(perf.contains("perf-trace.txt:1: ") && perf.contains("the output of perf trace"), "{perf}");
    for file in [
        "f03b-ath12k-wrapped-by-mail.trace",
        "f13-cut-in-last-line.trace.xz",
        "f13-quoted.trace.xz",
        "f13-ftrace-dump-in-dmesg.txt",
    ] {
        let said = said(file);
        assert!(said.contains(&format!("{file}:")) && said.contains("expected"), "{said}");
    }
}

#[test]
fn faults_are_explained_by_the_mapping_that_was_there() {
    let trace = case("f03-ath12k-fault-after-free.trace.xz").unwrap();
    let [fault] = &trace.faults[..] else { panic!("{:?}", trace.faults) };
    assert_eq!((fault.device.as_str(), fault.first_iova, fault.count), ("0000:c2:00.0", 0xfe98_0000, 40));
    let mapping = trace.mappings[fault.mapping.expect("there was one") as usize];
    assert_eq!((mapping.iova_pfn, mapping.pages), (0xfe980, 128));
    let unmap = trace.operations[mapping.unmap_operation.expect("it was unmapped").get() as usize];
    assert_eq!((fault.time_ns - unmap.time_ns) / 1000, 6178, "microseconds");
}

/// Of faults without end only the first runs are kept; each run is counted.
#[test]
fn a_storm_of_faults_takes_little_memory() {
    let mut text = Text::default();
    text.map(TASK, 0x1000, 0x3000, 4096);
    for number in 0..1000u64 {
        let iova = 0x10_0000 + number * 0x10_0000;
        text.event(TASK, &format!("io_page_fault: IOMMU:nvme 0000:04:00.0 iova=0x{iova:016x} flags=0x0001"));
    }
    let trace = text.read();
    assert_eq!((trace.statistics.refused_accesses, trace.faults.len()), (1000, 64));
    assert!(trace.faults.iter().all(|fault| fault.mapping.is_none() && fault.count == 1));
}

#[test]
fn parts_that_overlap_count_once() {
    let mut text = Text::default();
    text.map(TASK, 0x1000, 0x9000, 0x4000);
    for (iova, size) in [(0x1000, 0x2000), (0x2000, 0x2000), (0x1000, 0x1000)] {
        text.unmap(TASK, iova, size);
    }
    let open = text.read().statistics;
    assert_eq!((open.partial_unmaps, open.unmapped_never, open.unmatched_unmaps), (3, 1, 0));
    let ended = text.unmap(TASK, 0x4000, 0x1000).read();
    let found = (ended.statistics.partial_unmaps, ended.statistics.unmapped_never, ended.operations.len());
    assert_eq!(found, (0, 0, 2), "the last part ends the mapping");
    // Beyond the end of the mapping is no part of it.
    let beyond = Text::default().map(TASK, 0x1000, 0x9000, 0x1000).unmap(TASK, 0x1000, 0x2000).read().statistics;
    assert_eq!((beyond.partial_unmaps, beyond.unmatched_unmaps), (0, 1));
}

/// Without `iommu:` events, only the size shows that an unmap covers a part. The rest stays mapped.
#[test]
fn a_part_of_a_buffer_is_no_unmap_from_before() {
    const DEVICE: &str = "0000:00:04.0";
    let mut text = Text::default();
    text.dma_map(TASK, DEVICE, "TO_DEVICE", 0x10000, 0x3000).dma_unmap(TASK, DEVICE, 0x10000, 0x1000);
    // Nothing is mapped there, or not as much.
    text.dma_unmap(TASK, DEVICE, 0x50000, 0x1000).dma_unmap(TASK, DEVICE, 0x10000, 0x5000);
    let found = text.read().statistics;
    assert_eq!((found.unmaps, found.partial_unmaps, found.unmatched_unmaps, found.unmapped_never), (3, 1, 2, 1));
}

/// A part belongs to the task that mapped, and never to one of several devices.
#[test]
fn parts_of_others_are_left_alone() {
    const NEXT: super::Who = ("qemu-9", 2, ".....");
    let mut text = Text::default();
    for who in [TASK, NEXT] {
        text.map(who, 0, 0x9000, 0x2000);
    }
    for iova in [0, 0x1000] {
        text.unmap(TASK, iova, 0x1000);
    }
    let trace = text.read();
    let ended: Vec<bool> = trace.mappings.iter().map(|mapping| mapping.unmap_operation.is_some()).collect();
    assert_eq!(ended, [true, false], "the second belongs to another task");
    let mut text = Text::default();
    for (device, iova) in [("0000:00:04.0", 0x10000), ("0000:00:05.0", 0x20000)] {
        text.map(TASK, iova, 0x9000, 0x2000).dma_map(TASK, device, "TO_DEVICE", iova, 0x2000);
    }
    let statistics = text.unmap(TASK, 0x20000, 0x1000).read().statistics;
    assert_eq!((statistics.partial_unmaps, statistics.unmatched_unmaps), (0, 1));
}

/// An IOMMU that cannot split a large leaf unmaps all of it, and VFIO goes on behind it.
#[test]
fn what_counts_is_what_was_unmapped() {
    let mut text = Text::default();
    text.map(TASK, 0x20_0000, 0x20_0000, 0x40_0000);
    for iova in [0x20_0000, 0x40_0000u64] {
        let event = format!("unmap: IOMMU: iova={iova:#x} - {:#x} size=4096 unmapped_size=2097152", iova + 0x1000);
        text.event(TASK, &event);
    }
    text.event(TASK, "unmap: IOMMU: iova=0x600000 - 0x600000 size=0 unmapped_size=0");
    text.event(TASK, "unmap: IOMMU: iova=0x600000 - 0x601000 size=4096 unmapped_size=0");
    let found = text.read().statistics;
    assert_eq!((found.partial_unmaps, found.unmapped_never, found.unmatched_unmaps), (0, 0, 0));
    assert_eq!((found.unmaps_of_nothing, found.unmap_of_nothing_line), (2, 4));
}

/// A younger mapping of another address space explains nothing. A name is printed without control characters.
#[test]
fn a_fault_is_explained_by_its_own_device_first() {
    let mut text = Text::default();
    text.map(TASK, 0x10000, 0x9000, 0x1000).dma_map(TASK, "0000:00:04.0", "TO_DEVICE", 0x10000, 0x1000);
    text.unmap(TASK, 0x10000, 0x1000).dma_unmap(TASK, "0000:00:04.0", 0x10000, 0x1000);
    text.map(super::OTHER_CPU, 0, 0, 0x100_0000);
    for device in ["0000:00:04.0", "\x1b[2J"] {
        text.event(TASK, &format!("io_page_fault: IOMMU:nvme {device} iova=0x0000000000010040 flags=0x0000"));
    }
    let trace = text.read();
    let found: Vec<_> = trace.faults.iter().map(|fault| (fault.device.as_str(), fault.mapping)).collect();
    assert_eq!(found, [("0000:00:04.0", Some(0)), ("\\x1b[2J", Some(1))]);
}
