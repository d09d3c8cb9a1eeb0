//! Every defect of a file has its own error, with the file, the line and what was expected.

use super::{TASK, Text, bundled, read};
use portcullis_trace::{AccessLog, Trace, TraceError};
use std::fs;
use std::path::Path;

const GOOD: &str =
    "  fio-1  [000] .....  1.000001: map: IOMMU: iova=0x1000 - 0x2000 paddr=0x0000000000003000 size=4096\n";

/// Bad lines, which follow `GOOD` on line 2, each with a part of the error.
const BAD_LINES: [(&str, &str); 29] = [
    ("fio-1 [000] ..... 1.000001: map: IOMMU: iova=0x1000 - 0x1000 paddr=0x3000 size=0", "a size above zero"),
    (
        "fio-1 [000] ..... 1.0: map: IOMMU: iova=0x1fffffffffff000 - 0x200000000001000 paddr=0x3000 size=8192",
        "below 2^57",
    ),
    ("fio-1 [000] ..... 1.0: unmap: IOMMU: iova=0xfffffffffffff000 - 0x0 size=4096 unmapped_size=4096", "below 2^57"),
    ("fio-1 [000] ..... 1.0: map: IOMMU: iova=0x0 - 0x100000000000 paddr=0x0 size=17592186044416", "below 16 TiB"),
    ("fio-1 [000] ..... 1.0: map: IOMMU: iova=0x1000 - 0x2000 paddr=0xffffffffff000 size=8192", "as long as its"),
    ("fio-1 [000] ..... 1.0: map: IOMMU: iova=0x1000 - 0x3000 paddr=0xffffffffff000 size=8192", "below 2^52"),
    ("fio-1 [000] ..... 1.0: map: IOMMU: iova=0x1000 - 0x2000 paddr=0x3800 size=4096", "page-aligned"),
    ("fio-1 [000] ..... 1.0: map: IOMMU: iova=0x1000 - 0x1800 paddr=0x3000 size=2048", "whole pages"),
    ("fio-1 [000] ..... 1.0: map: IOMMU: iova=0x1000 - 0x2zzz paddr=0x3000 size=4096", "hexadecimal"),
    ("fio-1 [000] ..... 1.0: map: IOMMU: iova=ghost - 0x2000 paddr=0x3000 size=4096", "hexadecimal"),
    ("fio-1 [000] ..... 1.0: map: IOMMU: iova=0x11112222333344445 - 0x2000 paddr=0x3000 size=4096", "hexadecimal"),
    ("fio-1 [000] ..... 1.0: map: IOMMU: iova=0x1000 - 0x2000 paddr=0xq size=4096", "`paddr="),
    ("fio-1 [000] ..... 1.0: map: IOMMU: iova=0x1000 - 0x2000 paddr=0x3000 size=4096b", "decimal"),
    ("fio-1 [000] ..... 1.0: map: IOMMU: iova=0x1000 - 0x2000 paddr=0x3000", "`size="),
    ("fio-1 [000] ..... 1.0: unmap: IOMMU: iova=0x1000 - 0x2000 size=4096", "`unmapped_size="),
    ("fio-1 [000] ..... 1.0: map:", "`IOMMU:` and"),
    ("fio-1 [000] ..... 1.0: dma_map_page: 0000:00:04.0 dir=SIDEWAYS dma_addr=1000 size=4 phys_addr=0 attrs=", "`dir="),
    ("fio-1 [000] ..... 1.0: dma_map_page: 0000:00:04.0 dir=TO_DEVICE dma_addr=1x size=4 attrs=", "`dma_addr="),
    ("fio-1 [000] ..... 1.0: dma_map_page: 0000:00:04.0 dir=TO_DEVICE dma_addr=1000 size=0 attrs=", "above zero"),
    (
        "fio-1 [000] ..... 1.0: dma_map_page: 0000:00:04.0 dir=TO_DEVICE dma_addr=fffffffffffffff8 size=9 attrs=",
        "within 64 bits",
    ),
    ("fio-1 [000] ..... 1.0: dma_map_sg: 0000:00:04.0 dir=TO_DEVICE dma_addrs={0x1000,} sizes={0x1,0x2}", "a list"),
    ("fio-1 [000] ..... 1.0: dma_map_sg: 0000:00:04.0 dir=TO_DEVICE dma_addrs={0x1000} sizes={0x1,0x2}", "as many"),
    ("fio-1 [000] ..... 1.0: dma_map_sg: 0000:00:04.0 dir=TO_DEVICE dma_addrs={0x1000", "`dma_addrs={"),
    ("fio-1 [000] ..... 1.0: dma_unmap_sg:", "the name of a device"),
    ("fio-1 [000] ..... 1.0: qi_submit: iotlb_inv dmar0: 0x400f2 0xffff8040 0x0", "four hexadecimal quadwords"),
    ("fio-1 [000] ..... 1000001: map: IOMMU: iova=0x1000 - 0x2000 paddr=0x3000 size=4096", "a time in seconds"),
    ("fio-1 [99999] ..... 1.0: map: IOMMU: iova=0x1000 - 0x2000 paddr=0x3000 size=4096", "task-pid [cpu]"),
    ("CPU:1 [LOST many EVENTS]", "LOST n EVENTS"),
    ("and so the story went on", "task-pid [cpu]"),
];

#[test]
fn a_bad_line_is_named_with_what_was_expected() {
    for (line, part) in BAD_LINES {
        let error = read(format!("{GOOD}{line}\n{GOOD}")).expect_err(line);
        let TraceError::Malformed { file, line: number, expected, .. } = &error else { panic!("{line}: {error}") };
        assert_eq!((file.as_str(), *number), ("test.trace", 2), "{line}");
        assert!(expected.contains(part), "{line}: {error}");
        assert!(error.to_string().starts_with("test.trace:2: expected "), "{error}");
    }
}

#[test]
fn the_good_line_is_good() {
    assert_eq!(read(GOOD).unwrap().statistics.maps, 1);
}

#[test]
fn a_missing_file_is_named() {
    let error = Trace::read(Path::new("no/such.trace"), |_| ()).unwrap_err();
    assert!(matches!(&error, TraceError::Io { file, .. } if file == "no/such.trace"), "{error}");
    assert!(AccessLog::read(Path::new("no/such.qemu"), |_| ()).is_err());
}

#[test]
fn an_empty_file_says_so() {
    assert!(matches!(read(""), Err(TraceError::Empty { .. })));
    assert!(matches!(AccessLog::read_from("log", &b""[..], |_| ()), Err(TraceError::Empty { .. })));
}

#[test]
fn prose_is_no_trace_and_its_first_lines_are_shown() {
    let error = read("Dear reader,\nthis is [not] a trace: at all.\n").unwrap_err();
    assert!(matches!(error, TraceError::NotATrace { line: 1, .. }), "{error}");
    assert!(error.to_string().contains("Dear reader,"), "{error}");
    let error = read("# A heading\n\nSome text.\n").unwrap_err();
    assert!(matches!(error, TraceError::NotATrace { line: 3, .. }), "{error}");
    assert!(error.to_string().contains("# A heading\n\nSome text."), "{error}");
}

#[test]
fn noise_is_no_trace_and_is_shown_in_printable_characters() {
    let mut noise: Vec<u8> = (0..4096u32).map(|byte| (byte.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    noise.push(b'\n');
    let error = read(&noise).unwrap_err();
    assert!(matches!(error, TraceError::NotATrace { .. }), "{error}");
    assert!(error.to_string().chars().all(|character| !character.is_control() || character == '\n'));
}

#[test]
fn a_line_cut_at_the_end_of_the_file_is_named() {
    let mut text = Text::default();
    text.map(TASK, 0x1000, 0x3000, 4096).unmap(TASK, 0x1000, 4096);
    for cut in 1..60 {
        let error = read(&text.text[..text.text.len() - cut]).unwrap_err();
        assert!(matches!(error, TraceError::CutShort { line: 2, .. }), "{error}");
    }
    let log = "vtd_inv_desc invalidate desc type wait high 0x9b0c04 low 0x200000";
    assert!(matches!(AccessLog::read_from("log", log.as_bytes(), |_| ()), Err(TraceError::CutShort { line: 1, .. })));
}

#[test]
fn a_line_without_end_is_not_kept_in_memory() {
    let error = Trace::read_from("endless", std::io::repeat(b'x'), |_| ()).unwrap_err();
    assert!(matches!(error, TraceError::LineTooLong { line: 1, .. }), "{error}");
}

#[test]
fn a_capture_without_mappings_says_what_to_record() {
    let tracer = "# tracer: nop\n#\n";
    let other = "  fio-1 [000] ..... 1.0: sched_switch: prev_comm=fio\n";
    let coherent =
        "  fio-1 [000] ..... 1.0: dma_alloc: 0000:00:04.0 dma_addr=fff000 size=4096 virt_addr=00000000c0ffee00\n";
    for (text, lines) in [(tracer, 2), (other, 1), (coherent, 1)] {
        let error = read(text).unwrap_err();
        assert!(matches!(error, TraceError::NoEvents { lines: found, .. } if found == lines), "{error}");
        assert!(error.to_string().contains("expected iommu:map or iommu:unmap events, or dma:"), "{error}");
    }
}

#[test]
fn a_bundled_file_cut_short_is_an_error() {
    let whole = fs::read(bundled("q-e1000e-tx.lazy.2cpu.trace.xz")).unwrap();
    let error = read(&whole[..whole.len() / 2]).unwrap_err();
    assert!(matches!(error, TraceError::Compression { .. }), "{error}");
}

#[test]
fn a_bad_line_of_a_log_is_named() {
    let good = "vtd_inv_desc_iotlb_global iotlb invalidate global\n";
    for (line, part) in [
        ("vtd_inv_desc invalidate desc type wait high 0x9b0c04 low", "high 0x"),
        ("vtd_inv_desc invalidate desc type wait high 0x9b0c04 low zz", "high 0x"),
        ("vtd_iotlb_page_hit IOTLB page hit sid 0x12345 iova 0x1 slpte 0x1 domain 0x4", "sid 0x"),
        ("vtd_iotlb_page_hit IOTLB page hit sid 0x20 slpte 0x1 domain 0x4", "iova 0x"),
        ("vtd_iotlb_page_update IOTLB page update sid 0x20 iova 0x1 slpte 0x domain 0x4", "slpte 0x"),
        ("vtd_iotlb_page_update IOTLB page update sid 0x20 iova 0x1 slpte 0x1 domain 0x4z", "domain 0x"),
        ("something else", "vtd_"),
    ] {
        let error = AccessLog::read_from("a.qemu", format!("{good}{line}\n").as_bytes(), |_| ()).expect_err(line);
        let TraceError::Malformed { line: 2, expected, .. } = &error else { panic!("{line}: {error}") };
        assert!(expected.contains(part), "{line}: {error}");
    }
}
