//! Bad usage and bad input: exit status 2, nothing on standard output, and a message on standard error that says what
//! is wrong, where, and what was expected instead.

use super::{DISK, RECEIVE, again, bundled, portcullis, text, written};

const GOOD: [&str; 3] = [
    "  fio-1  [000] .....  1.000001: map: IOMMU: iova=0x1000 - 0x2000 paddr=0x0000000000003000 size=4096",
    "  fio-1  [000] .....  1.000002: dma_map_page: 0000:00:04.0 dir=TO_DEVICE dma_addr=1000 size=64 phys_addr=3000 attrs=",
    "  fio-1  [000] .....  1.000003: unmap: IOMMU: iova=0x1000 - 0x2000 size=4096 unmapped_size=4096",
];

/// The good lines, with `line` inserted as the fourth.
fn fourth(line: &str) -> String {
    format!("{}\n{line}\n{}\n", GOOD.join("\n"), GOOD[0].replace("1.000001", "1.000004"))
}

/// Checks that the program refuses these arguments, with all `parts` on standard error.
pub(super) fn refused(arguments: &[&str], parts: &[&str]) {
    // Some tests change the file in between.
    let output = again(arguments);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
    assert_eq!(stdout, "", "{arguments:?}: results only go to standard output");
    assert!(!stderr.contains("panicked at") && !stderr.contains("RUST_BACKTRACE"), "{arguments:?}: {stderr}");
    for part in parts {
        assert!(stderr.contains(part), "{arguments:?}: no {part:?} in {stderr}");
    }
    let controls = stderr.chars().filter(|character| character.is_control() && *character != '\n').count();
    assert_eq!(controls, 0, "{arguments:?}: bytes of the file on the terminal: {stderr:?}");
}

/// Checks that the program refuses a trace with these contents. The message names the file.
fn refused_trace(name: &str, contents: impl AsRef<[u8]>, parts: &[&str]) {
    let path = written(name, contents);
    for arguments in [vec!["compare", &path], vec!["compare", &path, "--json"]] {
        refused(&arguments, &[&[path.as_str()], parts].concat());
    }
}

#[test]
fn the_good_lines_are_good() {
    let path = written("good.trace", GOOD.join("\n") + "\n");
    assert_eq!(portcullis(&["compare", &path]).status.code(), Some(0));
}

#[test]
fn a_trace_cut_in_the_middle_of_a_line() {
    let whole = GOOD.join("\n") + "\n";
    refused_trace("cut.trace", &whole[..whole.len() - 9], &[":3: ", "cut short", "expected the rest of this line"]);
}

#[test]
fn an_xz_cut_short_or_damaged() {
    let mut whole = std::fs::read(bundled(DISK)).unwrap();
    refused_trace("half.trace.xz", &whole[..whole.len() / 2], &["damaged or cut short after line"]);
    refused_trace("end.trace.xz", &whole[..whole.len() - 10], &["damaged or cut short after line"]);
    refused_trace("head.trace.xz", &whole[..8], &["damaged or cut short after line 0"]);
    let middle = whole.len() / 2;
    whole[middle..middle + 64].fill(0x5a);
    refused_trace("damaged.trace.xz", &whole, &["damaged or cut short after line"]);
}

#[test]
fn a_gz_or_zst_cut_short_and_a_window_too_large() {
    // The first bytes that `gzip` and `zstd` write, and a frame whose window is 2 GiB.
    let gzip = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0x75];
    let zstd = [0x28, 0xb5, 0x2f, 0xfd, 0x24, 0xd9, 0x0d, 0x03];
    refused_trace("head.trace.gz", gzip, &["damaged or cut short after line 0"]);
    refused_trace("head.trace.zst", zstd, &["damaged or cut short after line 0"]);
    let window = [0x28, 0xb5, 0x2f, 0xfd, 0, 168, 0, 0, 0];
    refused_trace("window.trace.zst", window, &["after line 0 takes more than the 256 MiB of memory"]);
}

#[test]
fn a_trace_that_goes_on_in_another_format() {
    let perf = "  fio  1 [000]  1.000004: iommu:map: IOMMU: iova=0x1000 - 0x2000 paddr=0x3000 size=4096";
    let parts = [":4: ", "begins as ftrace prints and goes on as perf script does", "expected `task-pid [cpu] flags"];
    refused_trace("mixed.trace", fourth(perf), &parts);
}

#[test]
fn what_is_no_trace() {
    let mut random = 1u64;
    let noise: Vec<u8> = (0..10_000)
        .map(|_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 56) as u8
        })
        .collect();
    refused_trace("noise.trace", noise, &[":1: not a trace", "expected `task-pid [cpu] flags seconds: event"]);
    refused_trace("empty.trace", "", &["is empty", "expected the text of an ftrace capture"]);
    refused_trace("prose.trace", "Dear reader,\nlisten.\n", &[":1: not a trace", "expected", "Dear reader,"]);
    refused_trace("zeros.trace", [0; 5000], &[":1: ", "expected"]);
    refused_trace("comments.trace", "# tracer: nop\n#\n", &["expected iommu:map or iommu:unmap events"]);
    let unmap = "fio-1 [000] ..... 1.000001: unmap: IOMMU: iova=0x1000 - 0x2000 size=4096 unmapped_size=4096\n";
    refused_trace("unmaps.trace", unmap, &["expected at least one map to replay, found none and 1 unmaps"]);
    let log = bundled("q-e1000e-tx.lazy.2cpu.qemu.xz");
    refused(&["compare", &log], &[".qemu.xz:1: not a trace but the log of a device's accesses", "expected"]);
    let trace = bundled(DISK);
    let parts = [".trace.xz:1: not the log of a device's accesses but a capture", "(ftrace)", "expected"];
    refused(&["compare", &trace, "--accesses", &trace], &parts);
    refused_trace(
        "own.dat",
        b"\x17\x08Dtracing6\0",
        &[":1: not a trace but trace-cmd's own encoding", "trace-cmd report"],
    );
}

#[test]
fn lines_that_no_kernel_writes() {
    let start = "  fio-1 [000] ..... 1.0:";
    let lines = [
        ("map: IOMMU: iova=0x1000 - 0x1000 paddr=0x3000 size=0", "expected a size above zero"),
        ("dma_map_page: 0000:00:04.0 dir=TO_DEVICE dma_addr=1000 size=0 attrs=", "expected a size above zero"),
        (
            "map: IOMMU: iova=0x1fffffffffff000 - 0x200000000001000 paddr=0x3000 size=8192",
            "expected a run that ends below 2^57",
        ),
        ("map: IOMMU: iova=0xfffffffffffff000 - 0x0 paddr=0x3000 size=4096", "expected a run that ends below 2^57"),
        ("map: IOMMU: iova=0x1000 - 0x2000 paddr=0xfffffffffffff000 size=4096", "physical address below 2^52"),
        ("map: IOMMU: iova=0x1000 - 0x2000 paddr=0x3000 size=18446744073709551616", "expected `size="),
        ("map: IOMMU: iova=0x1000 - 0x1800 paddr=0x3000 size=2048", "expected whole pages"),
        ("map: IOMMU: iova=ghost - 0x2000 paddr=0x3000 size=4096", "hexadecimal"),
        ("map:", "expected `IOMMU:` and"),
    ];
    for (number, (line, expected)) in lines.into_iter().enumerate() {
        refused_trace(
            &format!("line-{number}.trace"),
            fourth(&format!("{start} {line}")),
            &[":4: ", expected, "found"],
        );
    }
    refused_trace("story.trace", fourth("and so the story went on"), &[":4: ", "expected `task-pid [cpu]"]);
}

/// The trace is good, but the machine cannot address its memory.
#[test]
fn memory_beyond_what_the_machine_addresses() {
    let far = "  fio-1 [000] ..... 1.000003: map: IOMMU: iova=0x5000 - 0x6000 paddr=0x8000000000000 size=4096";
    let path = written("far.trace", fourth(far));
    for machine in ["cascadelake-cx5", "r210-cx3"] {
        let output = portcullis(&["compare", &path, "--machine", machine]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{machine}: {stderr}");
        assert!(stderr.contains("nothing was tested"), "{machine}: {stderr}");
    }
}

#[test]
fn files_that_are_not_there_or_no_files() {
    refused(&["compare", "no/such.trace"], &["no/such.trace", "No such file"]);
    refused(&["compare", &bundled("")], &["traces", "directory"]);
    refused(&["compare", &bundled(DISK), "no/such.trace"], &["no/such.trace", "No such file"]);
    refused(&["compare", &bundled(DISK), "--accesses", "no/such.qemu"], &["no/such.qemu", "No such file"]);
}

#[test]
fn accesses_that_do_not_belong() {
    let (disk, receive) = (bundled(DISK), bundled(RECEIVE));
    let log = bundled("q-nvme-randread4k.strict.2cpu.qemu.xz");
    refused(&["compare", &disk, &receive, "--accesses", &log], &["--accesses", "exactly one"]);
    refused(&["compare", "--accesses", &log], &["--accesses", "exactly one"]);
    refused(&["compare", &receive, "--accesses", &log], &[&log, "different runs"]);
    refused(&["compare", &receive, "--accesses", &receive], &[&receive, ":1: ", "expected an event of the log"]);
    let prose = written("prose.qemu", "Dear reader,\n");
    refused(&["compare", &disk, "--accesses", &prose], &[&prose, ":1: ", "expected an event of the log"]);
    let cut = written("cut.qemu", "vtd_inv_desc invalidate desc type wait high 0x9b0c04 low");
    refused(&["compare", &disk, "--accesses", &cut], &[&cut, ":1: ", "cut short"]);
    let empty = written("empty.qemu", "");
    refused(&["compare", &disk, "--accesses", &empty], &[&empty, "is empty"]);
}

#[test]
fn usage() {
    let disk = bundled(DISK);
    let table: [(&[&str], &[&str]); 35] = [
        (&["compare", &disk, "--designs", "magic"], &["no design `magic`", "stock"]),
        (&["compare", &disk, "--designs", "stock,"], &["no design ``"]),
        (&["compare", &disk, "--machine", "abacus"], &["no machine `abacus`", "cascadelake-cx5"]),
        (&["compare", "--payload", "9999999999"], &["--payload 9999999999", "expected at most 1,522"]),
        (&["compare", "--workload", "knots"], &["no workload `knots`", "rings"]),
        (&["compare", "--workload", "rings:colour=1"], &["rings:colour=1", "no parameter `colour`", "count"]),
        (&["compare", "--workload", "rings:count=0"], &["`count=0`", "expected a whole number from 1 to 1024"]),
        (&["compare", "--workload", "rings:count=many"], &["`count=many`", "expected"]),
        (&["compare", "--workload", "rings:count"], &["`count`", "key=value"]),
        (&["compare", "--workload", "rings:tx=-1"], &["`tx=-1`", "expected"]),
        (&["compare", "--workload", "rings:tx=nan"], &["`tx=nan`", "expected"]),
        (&["compare", "--workload", "rings:ring=99999999999"], &["ring=99999999999", "expected"]),
        (&["compare", &disk, "--workload", "rings"], &["cannot be used with"]),
        (&["compare", "--merge", "4", "--no-hint"], &["cannot be used with"]),
        (&["simulate", "--merge", "1"], &["--merge"]),
        (&["compare", "--halves"], &["--workload"]),
        (&["compare", "--halves", "--workload", "churn"], &["--halves", "expected --workload rings", "churn"]),
        (&["compare", &disk, "--protection", "hope"], &["hope", "expected strict or deferred"]),
        (&["compare", &disk, "--clock", "sundial"], &["sundial", "expected model, trace or scale=K"]),
        (&["compare", &disk, "--clock", "scale=-1"], &["scale=-1", "expected"]),
        (&["compare", &disk, "--clock", "scale=inf"], &["scale=inf", "expected"]),
        (&["compare", &disk, "--set", "iotlb_size=1"], &["`iotlb_size`", "did you mean `iotlb_", "`list machines`"]),
        (&["compare", &disk, "--set", "walkers"], &["walkers", "expected KEY=VALUE"]),
        (&["compare", &disk, "--set", "walkers=few"], &["`few`", "`walkers`", "expected"]),
        (&["compare", &disk, "--set", "walkers=0"], &["`walkers`", "from 1 to 1024"]),
        (&["compare", &disk, "--set", "address_bits=12"], &["`address_bits`", "from 13"]),
        (&["compare", &disk, "--set", "iotlb_entries=4000000000"], &["`iotlb_entries`", "at most"]),
        (&["compare", &disk, "--batch", "0"], &["--batch", "1..=64"]),
        (&["compare", &disk, "--batch", "65"], &["--batch", "1..=64"]),
        (&["compare", &disk, "--batch", "few"], &["--batch", "few"]),
        (&["compare", &disk, "--seed", "x"], &["--seed", "x"]),
        (&["compare", &disk, "--fast"], &["--fast"]),
        (&["list", "wishes"], &["wishes", "designs, machines, workloads, figures"]),
        (&["ponder"], &["ponder"]),
        (&["capture-help", "now"], &["now"]),
    ];
    for (arguments, parts) in table {
        refused(arguments, parts);
    }
}

/// Hardware that the driver cannot use, or that leaves it nothing to translate with, is refused or measured. It never
/// crashes the program.
#[test]
fn hardware_that_lacks_something() {
    for setting in [
        "queued_invalidation=false",
        "page_selective=false",
        "pass_through=false",
        "domain_id_bits=4",
        "iotlb_entries=0",
        "ptcache_l3_entries=0",
        "walkers=1",
        "mamv=0",
        "rwbf=true",
        "caching_mode=true",
        "drains=false",
        "coherent=false",
        "physical_bits=32",
        "leaf_1g=false",
    ] {
        let output = portcullis(&["compare", "--workload", "rings:count=1,ring=64,operations=500", "--set", setting]);
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(!stderr.contains("panicked at"), "{setting}: {stderr}");
        match output.status.code() {
            Some(0) => assert!(stdout.contains("stock") && stderr.is_empty(), "{setting}: {stderr}"),
            // No design works without this feature.
            Some(1) => {
                assert!(stdout.contains("no result") && stderr.contains("nothing was tested"), "{setting}: {stderr}")
            }
            Some(2) => assert!(stdout.is_empty() && stderr.starts_with("portcullis: "), "{setting}: {stderr}"),
            other => panic!("{setting}: {other:?} {stderr}"),
        }
    }
}
