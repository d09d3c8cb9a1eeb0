//! Three programs print the same events. The reader recognizes the program from the content, and the traces are equal.

use super::printed::{STYLES, Style, printed};
use super::properties::sample;
use super::{BUNDLED, bundled, read, unpacked};
use portcullis_trace::{AccessLog, Format, Level, Operation, Statistics, Trace, TraceError};
use std::fs;

fn format_of(style: Style) -> Format {
    match style {
        Style::FtraceWithoutFlags => Format::Ftrace,
        Style::Perf | Style::PerfWithChains => Format::Perf,
        _ => Format::TraceCmd,
    }
}

/// The trace, except for the program that printed it.
fn content(trace: Trace) -> Trace {
    Trace { name: String::new(), format: Format::Ftrace, ..trace }
}

#[test]
fn the_bundled_traces_are_the_same_whoever_prints_them() {
    for name in BUNDLED {
        let text = unpacked(&format!("{name}.trace.xz"));
        let with_flags = content(read(&text).unwrap());
        let without = content(read(printed(&text, Style::FtraceWithoutFlags)).unwrap());
        for (style, shows_interrupts) in STYLES {
            let trace = read(printed(&text, style)).unwrap_or_else(|error| panic!("{name} {style:?}: {error}"));
            assert_eq!(trace.format, format_of(style), "{name} {style:?}");
            let expected = if shows_interrupts { &with_flags } else { &without };
            assert!(content(trace) == *expected, "{name} {style:?}");
        }
        // Without flags there are fewer contexts. The rest is equal.
        let apart = |trace: &Trace| -> Vec<_> {
            trace.operations.iter().map(|&operation| Operation { context: 0, ..operation }).collect()
        };
        assert_eq!(apart(&without), apart(&with_flags), "{name}");
        assert_eq!((&without.mappings, &without.segments), (&with_flags.mappings, &with_flags.segments), "{name}");
        assert_eq!(without.statistics, with_flags.statistics, "{name}");
        assert!(without.contexts.iter().all(|context| context.level == Level::Task));
    }
}

#[test]
fn scatter_lists_are_the_same_whoever_prints_them() {
    let quiet = |trace: Trace| {
        let statistics = Statistics { lost_events: 0, ..trace.statistics };
        Trace { statistics, ..content(trace) }
    };
    let expected = quiet(read(sample()).unwrap());
    assert_eq!((expected.mappings.len(), expected.devices.len(), expected.invalidations.len()), (2, 2, 1));
    let without = quiet(read(printed(&sample(), Style::FtraceWithoutFlags)).unwrap());
    for (style, shows_interrupts) in STYLES {
        let trace = read(printed(&sample(), style)).unwrap_or_else(|error| panic!("{style:?}: {error}"));
        assert_eq!(quiet(trace), if shows_interrupts { expected.clone() } else { without.clone() }, "{style:?}");
    }
}

#[test]
fn lists_of_a_record_that_the_tool_could_not_put_in_words() {
    let bare = "[FAILED TO PARSE] device=0000:00:04.0 full_nents=2 full_ents=1 truncated=0 \
                phys_addrs=ARRAY[00, 10, 08, 00, 00, 00, 00, 00, 00, 20, 09, 00, 00, 00, 00, 00] \
                dma_addrs=ARRAY[00, 00, 01, 00, 00, 00, 00, 00] lengths=ARRAY[00, 28, 00, 00] dir=1 attrs=0x100";
    let mut words = "cpus=2\n".to_owned();
    for line in printed(&sample(), Style::TraceCmd).lines() {
        if let Some((before, _)) = line.split_once("dma_map_sg:") {
            words += &format!("{before}dma_map_sg:           {bare}\n");
        } else if let Some((before, _)) = line.split_once("dma_unmap_sg:") {
            let array = bare.split_once("phys_addrs=").unwrap().1.split_once(" dma_addrs").unwrap().0;
            words +=
                &format!("{before}dma_unmap_sg:         [FAILED TO PARSE] device=0000:00:04.0 addrs={array} dir=1\n");
        } else {
            words += &format!("{line}\n");
        }
    }
    let expected = content(read(printed(&sample(), Style::TraceCmd)).unwrap());
    assert_eq!(content(read(words).unwrap()), expected);
    let page = "cpus=2\n fio-1 [000] 7.5: dma_map_page:         [FAILED TO PARSE] device=0000:00:04.0 dma_addr=4096\n";
    assert!(read(page).unwrap_err().to_string().contains(":2: expected the event in words"));
}

const KERNEL: &str = "  fio-1  [000] .....  1.000001: map: IOMMU: iova=0x1000 - 0x2000 paddr=0x3000 size=4096\n";
const TRACE_CMD: &str =
    "   fio-1     [000]     1.000001: map:                  IOMMU: iova=0x1000 - 0x2000 paddr=0x3000 size=4096\n";
const PERF: &str = "  fio     1 [000]     1.000001: iommu:map: IOMMU: iova=0x1000 - 0x2000 paddr=0x3000 size=4096\n";

#[test]
fn the_name_of_the_file_tells_nothing() {
    let folder = std::env::temp_dir().join(format!("portcullis-formats-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for (name, text, format) in [
        ("perf.script", KERNEL, Format::Ftrace),
        ("ftrace.trace.xz", TRACE_CMD, Format::TraceCmd),
        ("report.txt.gz", PERF, Format::Perf),
        ("run.qemu", PERF, Format::Perf),
    ] {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        let trace = Trace::read(&path, |_| ()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((trace.format, trace.name.as_str()), (format, name));
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn lines_that_fit_several_formats_decide_nothing() {
    // The names are too long for trace-cmd's padding, or the event is not known.
    let open = "  fio-1  [000]     0.000001: cache_tag_flush_range: dmar0\n  fio-1  [000]     0.500001: sched_switch:  x\n\n# \n";
    for (text, format) in [(KERNEL, Format::Ftrace), (TRACE_CMD, Format::TraceCmd)] {
        let trace = read(format!("{open}{text}")).unwrap();
        assert_eq!(trace.format, format);
        // These lines are still counted.
        assert_eq!((trace.statistics.span_us, trace.statistics.cpus), (1_000_000, 1));
    }
    for header in ["cpus=8\n", "version = 6\n", "CPU 3 is empty\n", "CPU:0 [EVENTS DROPPED]\n"] {
        assert_eq!(read(format!("{header}{open}{TRACE_CMD}")).unwrap().format, Format::TraceCmd);
        let error = read(format!("{header}{KERNEL}")).unwrap_err();
        assert!(matches!(error, TraceError::FormatChanges { line: 2, .. }), "{error}");
    }
    assert!(matches!(read(open), Err(TraceError::NoEvents { lines: 4, .. })));
}

#[test]
fn a_file_that_goes_on_in_another_format_names_the_line() {
    let all = [(KERNEL, Format::Ftrace), (TRACE_CMD, Format::TraceCmd), (PERF, Format::Perf)];
    for (text, first) in all {
        assert_eq!(read(text.repeat(3)).unwrap().format, first);
        for (other, then) in all.into_iter().filter(|&(_, then)| then != first) {
            let error = read(format!("{text}{text}{other}{text}")).unwrap_err();
            let message = error.to_string();
            let TraceError::FormatChanges { line: 3, first: found, then: later, .. } = error else {
                panic!("{message}")
            };
            assert_eq!((found, later), (first, then));
            assert!(message.starts_with(&format!("test.trace:3: the file begins as {first} prints")), "{message}");
        }
    }
}

#[test]
fn lost_events_are_counted_whoever_counted_them() {
    for (text, lost) in [
        (format!("{KERNEL}CPU:1 [LOST 1234 EVENTS]\nCPU:12 [LOST EVENTS]\n"), 1235),
        (
            format!(
                "cpus=2\nCPU:7 [204600 EVENTS DROPPED]\n{TRACE_CMD}CPU:0 [EVENTS DROPPED]\nCPU:0 [SUBBUFFER START]\n"
            ),
            204_601,
        ),
        (
            format!(
                "{PERF}swapper     0 [000]   832.632011: PERF_RECORD_LOST lost 17\n\
                 swapper     0 [000]   832.632011: PERF_RECORD_LOST_SAMPLES\n\
                 :3075  3075/3075  [001]   832.632012: PERF_RECORD_COMM: fio:3075/3075\n"
            ),
            18,
        ),
    ] {
        assert_eq!(read(&text).unwrap().statistics.lost_events, lost, "{text}");
    }
}

#[test]
fn tasks_of_perf_may_be_called_anything() {
    let event = "iommu:map: IOMMU: iova=0x1000 - 0x2000 paddr=0x3000 size=4096\n";
    for (columns, pid) in [
        ("ksoftirqd/0    17 [001]    12.000345: ", 17),
        ("  kworker/0:1-ev [x] [000] 2    99 [001] 12.000345: ", 99),
        (" a b 1 [2] c:  12/12345 [001]    12.000345: ", 12345),
        ("  :-1      5 [001]    12.000345:          1    ", 5),
        ("\u{fc}ber-5  6 [001] K    12.000345678:     ", 6),
    ] {
        let trace = read(format!("{columns}{event}")).unwrap_or_else(|error| panic!("{columns}: {error}"));
        let operation = trace.operations[0];
        assert_eq!((operation.cpu, operation.time_ns / 1000), (1, 12_000_345), "{columns}");
        assert_eq!(trace.contexts[operation.context as usize].pid, pid, "{columns}");
    }
    // Other systems also have events named `map`; a modifier does not belong to the name.
    let others = "x 1 [000] 1.0: kvm:map: gfn 7\nx 1 [000] 1.0: cycles:P: \nx 1 [000] 1.0: DEFERRED CALLCHAIN\n";
    let text = format!("{others}{}", PERF.replace("iommu:map:", "iommu:map:k:"));
    assert_eq!(read(text).unwrap().statistics.maps, 1);
}

#[test]
fn call_chains_are_no_events() {
    let chain = " => iommu_map\n => __iommu_dma_map\n";
    for text in [KERNEL, TRACE_CMD] {
        assert_eq!(read(format!("{text}{chain}{text}{chain}")).unwrap().statistics.maps, 2);
    }
}

#[test]
fn a_bad_line_of_each_is_named_with_what_was_expected() {
    for (good, bad, part) in [
        (TRACE_CMD, "fio-1 [000]   500000: map:                  IOMMU: iova=0x1000", "a time in seconds"),
        (TRACE_CMD, "fio-1 [000]   1.0: map:                  IOMMU: iova=0x1000 - 0x2000 size=4096", "`paddr="),
        (
            TRACE_CMD,
            "fio-1 [000]   1.0: unmap:                IOMMU: iova=0x1000 - 0x2000 size=4096",
            "`unmapped_size=",
        ),
        (TRACE_CMD, "CPU:1 [many EVENTS DROPPED]", "n EVENTS DROPPED"),
        (TRACE_CMD, "and so the story went on", "`task-pid [cpu] seconds: event:    …`"),
        (
            TRACE_CMD,
            "fio-1 [000] 1.0: dma_unmap_sg:         0000:00:04.0 dir=TO_DEVICE phys_addrs=12x attrs=",
            "`phys_addrs=",
        ),
        (
            TRACE_CMD,
            "fio-1 [000] 1.0: dma_unmap_sg:         0000:00:04.0 dir=TO_DEVICE phys_addrs= attrs=",
            "a list of numbers",
        ),
        (PERF, "fio 1 [000]  5000: iommu:map: IOMMU: iova=0x1000", "a time in seconds"),
        (PERF, "fio 1 [000]  5.0: iommu:map: IOMMU: iova=ghost - 0x2000", "hexadecimal"),
        (PERF, "fio 1 [000]  5.0: iommu:map:", "`IOMMU:` and"),
        (PERF, "fio 1 [000]  5.0: PERF_RECORD_LOST lost some", "PERF_RECORD_LOST lost n"),
        (PERF, "fio [000]  5.0: iommu:map: IOMMU: iova=0x1000", "`task pid [cpu] seconds: system:event: …`"),
        (PERF, "and so the story went on", "`task pid [cpu] seconds: system:event: …`"),
    ] {
        let error = read(format!("{good}{bad}\n{good}")).expect_err(bad);
        let TraceError::Malformed { line: 2, expected, .. } = &error else { panic!("{bad}: {error}") };
        assert!(expected.contains(part), "{bad}: {error}");
        for cut in 1..good.len() - 1 {
            let error = read(&good[..cut]).unwrap_err();
            assert!(matches!(error, TraceError::CutShort { line: 1, .. }), "{error}");
        }
    }
}

#[test]
fn a_log_of_accesses_is_no_trace_and_a_trace_no_log() {
    let log = "vtd_inv_desc invalidate desc type wait high 0x9b0c04 low 0x200000\n";
    for error in
        [read(log).unwrap_err(), Trace::read(&bundled(&format!("{}.qemu.xz", BUNDLED[0])), |_| ()).unwrap_err()]
    {
        assert!(matches!(error, TraceError::OtherKind { line: 1, wanted: "a trace", .. }), "{error}");
        assert!(error.to_string().contains(":1: not a trace but the log of a device's accesses: expected "), "{error}");
    }
    let open = "  fio-1  [000]     1.000001: cache_tag_flush_range: dmar0\n";
    for (text, found) in [
        ("# tracer: nop\n#\n", "(ftrace)"),
        ("cpus=4\n", "(trace-cmd report)"),
        (TRACE_CMD, "(trace-cmd report)"),
        (PERF, "(perf script)"),
        (open, "a capture of the kernel's events: expected"),
    ] {
        let error = AccessLog::read_from("a.qemu", text.as_bytes(), |_| ()).unwrap_err();
        assert!(matches!(error, TraceError::OtherKind { line: 1, .. }), "{error}");
        assert!(error.to_string().contains(found), "{error}");
        // On a later line of a log, it is a malformed line.
        let error = AccessLog::read_from("a.qemu", format!("{log}{text}").as_bytes(), |_| ()).unwrap_err();
        assert!(matches!(error, TraceError::Malformed { line: 2, .. }), "{error}");
    }
}

#[test]
fn a_tools_own_encoding_is_told() {
    for (head, tool) in [(&b"\x17\x08Dtracing6\0"[..], "trace-cmd report"), (b"PERFILE2h\0\0\0", "perf script")] {
        let error = read([head, &[0; 5000]].concat()).unwrap_err();
        assert!(matches!(error, TraceError::OtherKind { .. }), "{error}");
        assert!(error.to_string().contains(&format!("to be printed with `{tool}`")), "{error}");
    }
}
