//! `cargo xtask linux bench`: the instructions of a map and an unmap, of a datagram, and of a read from a disk, for
//! each implementation of the DMA API.
//!
//! `bench_works.sh` prints a line `work NAME` for each work, followed by the line of the test module, which consists of
//! pairs of a word and a number.

use super::kernel::{Kernel, Series};
use super::module;
use super::object;
use super::packages::Store;
use super::scenario::Scenario;
use crate::columns::aligned;
use crate::failure::Failure;
use crate::process::output;
use crate::workspace::Workspace;
use serde_json::json;
use std::collections::BTreeMap;

const JOB: &str = include_str!("../../../crates/portcullis-linux/tests/jobs/bench_works.sh");

/// A configuration of the kernel: what implements the DMA API for the devices.
struct Configuration {
    name: &'static str,
    append: &'static str,
    /// The variables `MODE` and `EXPECT` of `bench_works.sh`.
    mode: &'static str,
    expect: &'static str,
}

const NONE: &str = "intel_iommu=off";
const STRICT: &str = "intel_iommu=on,sm_off iommu.strict=1 iommu.passthrough=0";
const LAZY: &str = "intel_iommu=on,sm_off iommu.strict=0 iommu.passthrough=0";
const CONFIGURATIONS: [Configuration; 7] = [
    Configuration { name: "none", append: NONE, mode: "none", expect: "none" },
    Configuration { name: "pass-through", append: "intel_iommu=on,sm_off iommu=pt", mode: "linux", expect: "identity" },
    Configuration { name: "linux-strict", append: STRICT, mode: "linux", expect: "DMA" },
    Configuration { name: "linux-lazy", append: LAZY, mode: "linux", expect: "DMA-FQ" },
    Configuration { name: "portcullis-strict", append: NONE, mode: "ours", expect: "portcullis/strict" },
    Configuration { name: "portcullis-deferred", append: NONE, mode: "ours", expect: "portcullis/deferred" },
    Configuration { name: "magazine-strict", append: NONE, mode: "ours", expect: "magazine/strict" },
];

/// Two network cards on one wire, and an empty disk that needs no file, at the addresses that `bench_works.sh`
/// expects.
const DEVICES: &str = "-netdev hubport,id=net0,hubid=0 -device e1000e,netdev=net0,addr=4 \
    -netdev hubport,id=net1,hubid=0 -device e1000e,netdev=net1,addr=5 \
    -blockdev null-co,node-name=disk,size=67108864,read-zeroes=on -device nvme,drive=disk,serial=one,addr=6";

/// Runs every work in every configuration. Results go to standard output, and progress to standard error.
pub(super) fn bench(workspace: &Workspace, store: &Store, series: Series, json: bool) -> Result<(), Failure> {
    let kernel = Kernel::newest(store, series)?;
    let core = object::build(workspace, store, &[])?;
    let modules = module::build(workspace, store, &kernel.headers, &core)?;
    let qemu = output(kernel.qemu(store)?.arg("--version"))?;
    let qemu = qemu.lines().next().unwrap_or_default().to_owned();
    let mut report = Report { kernel: kernel.headers.version.clone(), qemu, ..Report::default() };
    for Configuration { name, append, mode, expect } in CONFIGURATIONS {
        eprintln!("xtask: {name}");
        let scenario = Scenario {
            name: format!("bench-{name}"),
            job: JOB.into(),
            variables: BTreeMap::from([("MODE".into(), mode.into()), ("EXPECT".into(), expect.into())]),
            append: append.into(),
            cpus: 1,
            icount: true,
            has_attacker: false,
            devices: DEVICES.into(),
            modules: "e1000e nvme".into(),
            limit_s: 240,
            ..Scenario::default()
        };
        let transcript = scenario.run(store, &kernel, Some(&modules))?;
        report.add(name, mode != "none", &transcript.lines)?;
    }
    println!("{}", if json { report.json() } else { report.table() });
    Ok(())
}

/// The works, in order.
const WORKS: [&str; 5] = ["pair-2k", "pair-64k", "datagram-64", "datagram-1400", "nvme-read-4k"];

/// The instructions of one work.
struct Taken {
    instructions: u64,
    /// For a pair: those of the map and those of the unmap.
    halves: Option<[u64; 2]>,
}

/// A run.
#[derive(Default)]
struct Report {
    /// What `uname -r` prints.
    kernel: String,
    /// The version line that QEMU prints.
    qemu: String,
    /// For each configuration that translates: whether the table walker is coherent.
    coherent: BTreeMap<&'static str, bool>,
    /// For each configuration, the instructions of [`WORKS`]. The first one has no IOMMU.
    rows: Vec<(&'static str, Vec<Taken>)>,
}

impl Report {
    /// Adds what the guest of a configuration has printed.
    fn add(&mut self, name: &'static str, translates: bool, lines: &[String]) -> Result<(), Failure> {
        let unsaid = |what: &str| Failure::Other(format!("the guest of `{name}` says nothing of {what}"));
        let taken = WORKS.iter().map(|work| taken(work, lines).ok_or_else(|| unsaid(work)));
        self.rows.push((name, taken.collect::<Result<_, _>>()?));
        if translates {
            let coherent = is_coherent(lines).ok_or_else(|| unsaid("what its IOMMU can do"))?;
            self.coherent.insert(name, coherent);
        }
        Ok(())
    }

    fn json(&self) -> String {
        let Self { kernel, qemu, coherent, rows } = self;
        let results = rows.iter().flat_map(|(configuration, all)| {
            let works = all.iter().zip(WORKS);
            works.map(move |(Taken { instructions, .. }, work)| {
                json!({"configuration": configuration, "work": work, "instructions": instructions})
            })
        });
        let results = results.collect::<Vec<_>>();
        format!("{:#}", json!({"kernel": kernel, "qemu": qemu, "coherent": coherent, "results": results}))
    }

    fn table(&self) -> String {
        let mut lines = vec![["instructions"].into_iter().chain(WORKS).map(str::to_owned).collect()];
        lines.extend(self.rows.iter().map(|(configuration, all)| {
            let cells = all.iter().zip(&self.rows[0].1).map(|(taken, none)| {
                let whole = grouped(taken.instructions);
                match taken.halves {
                    Some([map, unmap]) => format!("{whole} ({} + {})", grouped(map), grouped(unmap)),
                    None => format!("{whole} {}", over(taken.instructions, none.instructions)),
                }
            });
            [(*configuration).to_owned()].into_iter().chain(cells).collect()
        }));
        format!(
            "{}\n{} on {}.\nInstructions on one CPU, with hardware that answers at once: no waiting, and no contention.\n{}\n\
             A pair is a map (the first number) and its unmap by the whole DMA API; 2 KiB buffers are mapped 32 at a time. The\n\
             same CPU sends and receives a datagram. A read ends when its interrupt is served. In brackets: the difference\n\
             from the row without an IOMMU.",
            aligned(&lines),
            self.kernel,
            self.qemu,
            self.walkers()
        )
    }

    /// Whether the walkers are coherent. If they are not, table entries have to be written back from the cache, which
    /// takes instructions.
    fn walkers(&self) -> String {
        let said = |coherent: bool| if coherent { "coherent" } else { "non-coherent" };
        let mut kinds = self.coherent.values();
        if let Some(first) = kinds.next().filter(|first| kinds.all(|other| other == *first)) {
            return format!("The table walkers, under Linux and under the module, are {}.", said(*first));
        }
        let each = self.coherent.iter().map(|(name, coherent)| format!("{} in {name}", said(*coherent)));
        format!("The table walkers are {}.", each.collect::<Vec<_>>().join(", "))
    }
}

fn taken(work: &str, lines: &[String]) -> Option<Taken> {
    let mut all = lines.iter().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let words = all.find(|words| words.starts_with(&["work", work]))?;
    let number = |word: &str| words.iter().skip_while(|other| **other != word).nth(1)?.parse().ok();
    if work.starts_with("pair-") {
        Some(Taken { instructions: number("pair_ns")?, halves: Some([number("map_ns")?, number("unmap_ns")?]) })
    } else {
        Some(Taken { instructions: number("each_ns")?, halves: None })
    }
}

/// Whether the walker of the IOMMU snoops the CPU caches.
fn is_coherent(lines: &[String]) -> Option<bool> {
    /// A bit of VT-d's extended capability register.
    const C: u64 = 1;
    let value = lines.iter().find_map(|line| u64::from_str_radix(line.strip_prefix("ecap 0x")?, 16).ok());
    value.map(|value| value & C != 0)
}

/// The difference of `taken` from `none`, with its sign.
fn over(taken: u64, none: u64) -> String {
    let sign = if taken < none { "-" } else { "+" };
    format!("({sign}{})", grouped(taken.abs_diff(none)))
}

/// A number with a comma before every three digits.
fn grouped(number: u64) -> String {
    match number / 1000 {
        0 => number.to_string(),
        thousands => format!("{},{:03}", grouped(thousands), number % 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::{Report, grouped, json, over};
    use crate::fixture::lines;

    const PRINTED: &str = "\
        ecap 0xf00f4a\n\
        work pair-2k [    5.1] portcullis_test: pairs 64 bytes 2048 batch 32 map_ns 3 unmap_ns 4 pair_ns 8\n\
        work pair-64k [    5.2] portcullis_test: pairs 64 bytes 65536 batch 1 map_ns 30 unmap_ns 40 pair_ns 70\n\
        work datagram-64 [    5.3] portcullis_test: datagrams 9 bytes 64 arrived 9 each_ns 500\n\
        work datagram-1400 [    5.4] portcullis_test: datagrams 9 bytes 1400 arrived 9 each_ns 600\n\
        work nvme-read-4k [    5.5] portcullis_test: reads 9 bytes 4096 each_ns 700\n";

    /// A run of a configuration without an IOMMU, and of one that takes a thousand times the instructions.
    fn report() -> Report {
        let mut report = Report { kernel: "6.12.1".to_owned(), qemu: "QEMU 7.2.0".to_owned(), ..Report::default() };
        add(&mut report, "none", PRINTED).expect("all are there");
        let (head, works) = PRINTED.split_once('\n').expect("lines");
        let more: String = works.lines().map(|line| format!("{line}000\n")).collect();
        add(&mut report, "linux-strict", &format!("{head}\n{more}")).expect("all are there");
        report
    }

    fn add(report: &mut Report, name: &'static str, printed: &str) -> Result<(), String> {
        report.add(name, name != "none", &lines(printed)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_table_has_wholes_and_differences() {
        let mut report = report();
        let table = report.table();
        let line = |number| table.lines().nth(number).map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        assert_eq!(line(1).as_deref(), Some("none 8 (3 + 4) 70 (30 + 40) 500 (+0) 600 (+0) 700 (+0)"));
        let strict =
            "linux-strict 8,000 (3 + 4) 70,000 (30 + 40) 500,000 (+499,500) 600,000 (+599,400) 700,000 (+699,300)";
        assert_eq!(line(2).as_deref(), Some(strict));
        assert!(table.contains("6.12.1 on QEMU 7.2.0.") && table.contains("are non-coherent."));
        add(&mut report, "linux-lazy", &PRINTED.replace("0f4a", "0f4b")).expect("all are there");
        assert!(report.table().contains("are coherent in linux-lazy, non-coherent in linux-strict."));
    }

    #[test]
    fn the_document_has_every_result() {
        let document: serde_json::Value = serde_json::from_str(&report().json()).expect("our document");
        let results = document["results"].as_array().expect("a list");
        assert_eq!((results.len(), &document["kernel"]), (10, &json!("6.12.1")));
        assert_eq!(results[5], json!({"configuration": "linux-strict", "work": "pair-2k", "instructions": 8000}));
    }

    #[test]
    fn what_is_missing_or_has_no_number_is_named_with_its_configuration() {
        for (what, flaw) in [
            ("datagram-64", "work datagram-64 "),
            ("nvme-read-4k", "each_ns 700"),
            ("pair-2k", "pair_ns 8"),
            ("what its IOMMU can do", " 0xf00f4a"),
        ] {
            let error = add(&mut Report::default(), "linux-lazy", &PRINTED.replace(flaw, "else")).expect_err(what);
            assert_eq!(error, format!("the guest of `linux-lazy` says nothing of {what}"));
        }
    }

    #[test]
    fn numbers_are_grouped_and_have_signs() {
        assert_eq!([0, 999, 1000, 1_234_567, 1_000_007].map(grouped), ["0", "999", "1,000", "1,234,567", "1,000,007"]);
        assert_eq!([over(10, 12), over(1012, 12)], ["(-2)", "(+1,000)"]);
    }
}
