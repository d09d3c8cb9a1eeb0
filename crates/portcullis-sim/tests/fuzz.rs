//! Mangled captures and logs, in every format and every compression. Each gives a trace or a typed error, in bounded
//! memory and time. Accepted traces are replayed.

#[path = "../../portcullis-designs/tests/fuzzing/mod.rs"]
mod fuzzing;
#[path = "../../portcullis-trace/tests/trace/printed.rs"]
mod printed;

use flate2::write::GzEncoder;
use fuzzing::fuzz;
use lzma_rust2::{XzOptions, XzReader, XzWriter};
use portcullis::mapper::Options;
use portcullis::{Protection, SubPage};
use portcullis_designs::DesignId;
use portcullis_sim::prefetch::Hints;
use portcullis_sim::{Job, Machine, Pace, PayloadRule, Replay, Work, run};
use portcullis_trace::{AccessLog, Trace, join};
use portcullis_vtd::Discipline;
use printed::{STYLES, Style, printed};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::cell::Cell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::sync::Arc;

/// The number of cases, unless the environment sets another.
const CASES: u64 = 1000;
/// The number of lines taken from each bundled file: the comments and a hundred events.
const LINES: usize = 120;
/// The most pages and CPUs of a trace that is replayed. A device accesses every page, and each CPU becomes a core.
const REPLAYED_PAGES: u64 = 1 << 12;
const REPLAYED_CPUS: u64 = 16;
/// The most memory of the process, in KiB: a decoder's 256 MiB, and the rest of the process.
const MEMORY_KIB_MAX: u64 = 1 << 20;

const LISTS: &str = "\
           fio-7      [000] .....     0.000001: map: IOMMU: iova=0x10000 - 0x11000 paddr=0x81000 size=4096
           fio-7      [000] .....     0.000002: map: IOMMU: iova=0x11000 - 0x13000 paddr=0x92000 size=8192
           fio-7      [000] .....     0.000003: dma_map_sg: 0000:00:04.0 dir=TO_DEVICE nents=2/2 ents=1/1 \
dma_addrs={0x10000} sizes={0x2800} phys_addrs={0x81000,0x92000} attrs=NO_WARN
           fio-8      [001] .....     0.000004: map: IOMMU: iova=0x20000 - 0x21000 paddr=0x5000 size=4096
           fio-8      [001] .....     0.000005: dma_map_page: 0000:00:05.0 dir=FROM_DEVICE dma_addr=20040 size=1522 \
phys_addr=5040 attrs=
           fio-7      [000] d.h1.     0.000006: dma_unmap_sg: 0000:00:04.0 dir=TO_DEVICE \
phys_addrs={0x81000,0x92000} attrs=
           fio-7      [000] d.h1.     0.000007: unmap: IOMMU: iova=0x10000 - 0x13000 size=12288 unmapped_size=12288
           fio-7      [000] d.h1.     0.000008: qi_submit: iotlb_inv dmar0: 0x400f2 0x10040 0x0 0x0
           fio-8      [001] .....     0.000009: unmap: IOMMU: iova=0x20000 - 0x21000 size=4096 unmapped_size=4096
           fio-8      [001] .....     0.000010: dma_unmap_page: 0000:00:05.0 dir=FROM_DEVICE dma_addr=20040 \
size=1522 attrs=
";

fn head(file: &Path) -> String {
    let reader = XzReader::new(File::open(file).expect("a bundled file"), true);
    let lines = BufReader::new(reader).lines().take(LINES).map(|line| line.expect("text") + "\n");
    lines.collect()
}

/// The bundled traces and logs and a scatter list, in every format, with all events and with those of one family.
fn samples() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../traces");
    let entries = fs::read_dir(folder).expect("the folder of traces").map(|entry| entry.expect("a file").path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "xz")).collect();
    files.sort();
    let (logs, traces): (Vec<_>, Vec<_>) = files.iter().partition(|path| path.to_string_lossy().contains(".qemu."));
    let mut samples: Vec<String> = logs.into_iter().map(|path| head(path)).collect();
    for trace in traces.into_iter().map(|path| head(path)).chain([LISTS.to_owned()]) {
        let without =
            |family: &str| trace.lines().filter(|line| !line.contains(family)).flat_map(|line| [line, "\n"]).collect();
        for events in [without("map: IOMMU"), without(": dma_"), trace.clone()] {
            let styles = STYLES.iter().map(|(style, _)| *style).chain([Style::FtraceWithoutFlags]);
            samples.extend(styles.map(|style| printed(&events, style)));
            samples.push(events);
        }
    }
    samples
}

/// A way to mangle a text. Positions are relative, so that they stay valid if an earlier change shrinks the text.
#[derive(Clone, Debug)]
enum Mangle {
    Byte {
        at: Index,
        byte: u8,
    },
    CutLine(Index),
    DoubleLine {
        line: Index,
        times: usize,
    },
    SwapLines(Index, Index),
    /// Inserts a line of another sample.
    Splice {
        line: Index,
        sample: Index,
        from: Index,
    },
    /// Replaces the next number after a position.
    Number {
        at: Index,
        number: &'static str,
    },
    Truncate(Index),
}

fn mangle() -> impl Strategy<Value = Mangle> {
    let numbers = vec![
        "0",
        "1",
        "ffff",
        "4095",
        "4097",
        "4294967295",
        "4294967296",
        "18446744073709551615",
        "18446744073709551616",
        "0xffffffffffffffff",
        "0xfffffffffffff000",
        "99999999999999999999999999",
        "-1",
        "",
        "7fffffff.999999",
    ];
    let index = any::<Index>;
    prop_oneof![
        3 => (index(), any::<u8>()).prop_map(|(at, byte)| Mangle::Byte { at, byte }),
        2 => index().prop_map(Mangle::CutLine),
        2 => (index(), prop_oneof![8 => 1..4usize, 1 => 1..2000usize])
            .prop_map(|(line, times)| Mangle::DoubleLine { line, times }),
        2 => (index(), index()).prop_map(|(one, other)| Mangle::SwapLines(one, other)),
        2 => (index(), index(), index()).prop_map(|(line, sample, from)| Mangle::Splice { line, sample, from }),
        6 => (index(), select(numbers)).prop_map(|(at, number)| Mangle::Number { at, number }),
        1 => index().prop_map(Mangle::Truncate),
    ]
}

impl Mangle {
    fn apply(&self, text: &mut Vec<u8>, samples: &[String]) {
        if text.is_empty() {
            return;
        }
        let mut lines: Vec<Vec<u8>> = text.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        match self {
            Self::Byte { at, byte } => return *at.get_mut(text) = *byte,
            Self::Truncate(at) => return text.truncate(at.index(text.len())),
            Self::Number { at, number } => {
                let from = at.index(text.len());
                let Some(start) = text[from..].iter().position(u8::is_ascii_digit).map(|digit| from + digit) else {
                    return;
                };
                let digits = text[start..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
                text.splice(start..start + digits, number.bytes());
                return;
            }
            Self::CutLine(line) => drop(lines.remove(line.index(lines.len()))),
            Self::DoubleLine { line, times } => {
                let at = line.index(lines.len());
                let copy = lines[at].clone();
                lines.splice(at..at, std::iter::repeat_n(copy, *times));
            }
            Self::SwapLines(one, other) => {
                let count = lines.len();
                lines.swap(one.index(count), other.index(count));
            }
            Self::Splice { line, sample, from } => {
                let others: Vec<&str> = sample.get(samples).split_inclusive('\n').collect();
                lines.insert(line.index(lines.len()), from.get(&others).as_bytes().to_vec());
            }
        }
        *text = lines.concat();
    }
}

#[derive(Clone, Copy, Debug)]
enum Packing {
    Plain,
    Xz,
    Gzip,
    Zstandard,
}

impl Packing {
    fn pack(self, text: &[u8]) -> Vec<u8> {
        match self {
            Self::Plain => text.to_vec(),
            Self::Xz => {
                let mut options = XzOptions::with_preset(0);
                options.lzma_options.dict_size = 1 << 16;
                let mut writer = XzWriter::new(Vec::new(), options).expect("good options");
                writer.write_all(text).expect("into memory");
                writer.finish().expect("into memory")
            }
            Self::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(text).expect("into memory");
                encoder.finish().expect("into memory")
            }
            Self::Zstandard => compress_to_vec(text, CompressionLevel::Fastest),
        }
    }
}

/// Replays an accepted trace, if it is short, under a design that invalidates at once and one that waits. A refusal is
/// a valid result.
fn replay(machine: &Machine, trace: Trace) -> bool {
    let pages: u64 = trace.mappings.iter().map(|mapping| u64::from(mapping.pages)).sum();
    if pages > REPLAYED_PAGES || trace.statistics.cpus > REPLAYED_CPUS {
        return false;
    }
    let trace = Arc::new(trace);
    for (design, protection) in [(DesignId::Stock, Protection::Strict), (DesignId::Magazine, Protection::Deferred)] {
        let work = Work::Trace(Replay::of(Arc::clone(&trace)));
        let (pace, options) = (Pace::Timestamps, Options::NONE);
        let job = Job {
            machine,
            work,
            design: design.into(),
            options,
            protection,
            sub_page: SubPage::Expose,
            batch: 8,
            pace,
            seed: 1,
            leaf_only_hint: true,
            merge_min: None,
            discipline: Discipline::Combining,
            hints: Hints::NONE,
            payload: PayloadRule::Shown,
        };
        let _ = run(&job);
    }
    true
}

#[test]
fn mangled_captures_are_traces_or_typed_errors() {
    let samples = samples();
    let machine = Machine::by_id("cascadelake-cx5").expect("the default machine");
    let packing = select(vec![Packing::Plain, Packing::Plain, Packing::Xz, Packing::Gzip, Packing::Zstandard]);
    // In most cases the compressed bytes stay unchanged, because otherwise nothing behind them would be tested.
    let after = prop_oneof![3 => Just(Vec::new()), 1 => vec((any::<Index>(), any::<u8>(), any::<bool>()), 1..4)];
    let strategy = (any::<Index>(), vec(mangle(), 0..8), packing, after);
    let (accepted, replayed) = (Cell::new(0), Cell::new(0));
    fuzz("traces", CASES, &strategy, |(sample, mangles, packing, after)| {
        let mut text = sample.get(&samples).clone().into_bytes();
        mangles.iter().for_each(|mangle| mangle.apply(&mut text, &samples));
        let mut bytes = packing.pack(&text);
        for (at, byte, cuts) in after {
            match bytes.len() {
                0 => {}
                len if cuts => bytes.truncate(at.index(len)),
                _ => *at.get_mut(&mut bytes) = byte,
            }
        }
        let log = AccessLog::read_from("fuzz.qemu", &bytes[..], |_| ());
        let _ = log.map_err(|error| assert!(!error.to_string().is_empty()));
        match Trace::read_from("fuzz.trace", &bytes[..], |_| ()) {
            Ok(trace) => {
                accepted.set(accepted.get() + 1);
                let log = samples.iter().find(|sample| sample.starts_with("vtd_")).expect("a log");
                let log = AccessLog::read_from("whole.qemu", log.as_bytes(), |_| ()).expect("a good log");
                let _ = join(&trace, &log);
                replayed.set(replayed.get() + u64::from(replay(&machine, trace)));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
    println!("traces: {} accepted, {} replayed", accepted.get(), replayed.get());
    assert!(replayed.get() > 0, "nothing was replayed");
    if let Some(kib) = peak_kib() {
        assert!(kib < MEMORY_KIB_MAX, "{kib} KiB were taken");
    }
}

/// The most memory that this process has held, if the system reports it.
fn peak_kib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.trim().trim_end_matches(" kB").parse().ok()
}
