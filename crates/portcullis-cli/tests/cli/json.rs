//! `compare --json`: every key by its name, and the relations that its numbers obey for every design.

use super::{DISK, RECEIVE, SEND, bundled, compared, float, json, printed, row, rows, written};
use serde_json::{Value, json as value};

const INPUT_COUNTS: [&str; 8] =
    ["maps", "pages", "unmaps", "unmatched_maps", "unmatched_unmaps", "lost_events", "cpus", "span_us"];

/// Whole numbers, always present.
const COUNTS: [&str; 10] = [
    "operations",
    "pages",
    "payload_bytes_min",
    "payload_bytes_max",
    "over_invalidated_pages",
    "table_pages_max",
    "table_pages_end",
    "stale_accesses",
    "faults",
    "unexplained_accesses",
];
/// Numbers, always present.
const NUMBERS: [&str; 16] = [
    "span_us",
    "cycles_per_page",
    "wait_cycles_per_page",
    "invalidations_per_page",
    "iotlb_dropped_live_per_page",
    "iotlb_misses_per_page",
    "ptcache_l1_misses_per_page",
    "ptcache_l2_misses_per_page",
    "ptcache_l3_misses_per_page",
    "memory_reads_per_page",
    "cpu_gbps",
    "unprotected_gbps",
    "estimate_gbps",
    "estimate_vs_none",
    "estimate_operations_per_second",
    "estimate_cpu_percent",
];
/// Numbers of designs that allocate addresses. They are `null` if addresses are physical and nothing is invalidated.
const TRANSLATED: [&str; 8] = [
    "stale_window_piece_us",
    "iova_alloc_cycles_mean",
    "search_steps_mean",
    "search_steps_max",
    "stale_window_us_mean",
    "stale_window_us_max",
    "stale_bytes_us",
    "residual_bytes_us",
];

/// Numbers that are present if unmaps are batched.
const BATCHED: [&str; 4] = ["batch_buffers_mean", "batch_buffers_max", "batch_wait_us_mean", "batch_wait_us_max"];
/// Numbers that are present if the fill of buffers is not known.
const RANGES: [&str; 2] = ["estimate_gbps_min", "estimate_vs_none_min"];

/// The longest time that Linux leaves an unmap in its flush queue, and how much later its timer may be seen to end it.
/// The timer has a resolution of one microsecond, and a flush takes 0.6. If another CPU holds the lock of the queue or
/// of the allocator at that moment, it masks interrupts for the time of a flush or of a search of a few hundred steps,
/// which is microseconds.
const QUEUE_US: f64 = 10_000.0;
const LATE_US: f64 = 20.0;

/// Whether the design declares that nothing bounds its window.
fn is_unbounded(row: &Value) -> bool {
    ["solaris", "page-pool"].iter().any(|design| row["design"] == *design)
}

/// The numbers of maps, pages and unmaps of the three traces, from `traces/README.md`.
const BUNDLED: [(&str, [u64; 3]); 3] =
    [(RECEIVE, [7370, 9820, 7370]), (SEND, [4673, 10682, 4673]), (DISK, [8000, 8000, 8000])];

fn check_row(row: &Value) {
    let keys = || row.as_object().expect("an object").keys();
    for key in COUNTS {
        assert!(row[key].is_u64(), "{key}: {row}");
    }
    for key in NUMBERS.into_iter().chain(["pcie_gbps"]) {
        assert!(row[key].as_f64().is_some_and(|number| number.is_finite() && number >= 0.0), "{key}: {row}");
    }
    let physical = row["protection"] == "none";
    for key in TRANSLATED {
        // If every address is the physical one, no search takes place.
        let of_a_search = key.starts_with("iova_") || key.starts_with("search_");
        let absent = physical || (of_a_search && row["design"] == "identity");
        assert!(row[key].is_number() || (absent && row[key].is_null()), "{key}: {row}");
        assert!(!physical || row[key].is_null(), "{key}: {row}");
        assert!(keys().any(|name| name == key), "a key is there even without a value: {key}");
    }
    for (keys, there) in
        [(&BATCHED[..], row["batch"] != 1), (&RANGES[..], row["payload_bytes_min"] != row["payload_bytes_max"])]
    {
        assert!(keys.iter().all(|key| row.get(key).is_some_and(|value| value.is_number() == there)), "{keys:?}: {row}");
    }
    if let Some(recorded) = row["recorded"].as_object() {
        assert!(["cycles_per_page", "cpu_percent"].iter().all(|key| recorded[*key].is_number()), "{row}");
        assert!(["stale_window_us_max", "batch_wait_us_mean"].iter().all(|key| recorded.contains_key(*key)), "{row}");
    }
    // A design that never invalidates never waits.
    let shared = &row["commits_per_wait"];
    assert!(shared.as_f64().map_or(shared.is_null(), |commits| commits == 1.0), "commits_per_wait: {row}");
    assert!(!physical || shared.is_null(), "commits_per_wait: {row}");
    assert!(keys().any(|name| name == "commits_per_wait"), "{row}");
    let unbounded = physical || is_unbounded(row);
    assert!(
        row.get("bound_us").is_some_and(|bound| bound.is_u64() != unbounded && bound.is_null() == unbounded),
        "{row}"
    );
    let bound_us = row["bound_us"].as_f64();
    assert_eq!(row["grace_us"].as_f64().filter(|grace_us| *grace_us > 0.0).is_some(), bound_us.is_some(), "{row}");
    let ages = row["stale_window_us_over_time"].as_array();
    assert!(if physical { ages.is_none() } else { ages.is_some_and(|ages| ages.len() <= 100) }, "{row}");
    for key in ["trace", "design", "protection", "limit"] {
        assert!(row[key].is_string(), "{key}: {row}");
    }
    assert!(row["options"].is_object() && row["batch"].is_u64());
    // Rings address bytes, not pages, so parts of pages need no treatment.
    let rings = row["design"] == "riommu";
    assert_eq!(row.get("sub_page"), Some(&if physical || rings { Value::Null } else { "expose".into() }), "{row}");
    assert_eq!(row["no_such_hardware"], rings, "{row}");
    let riotlb = row.get("riotlb").expect("a key is there even without a value");
    for key in ["switches", "out_of_order", "after_invalidation", "mapped_later"] {
        assert!(if rings { riotlb[key].is_u64() } else { riotlb.is_null() }, "{key}: {row}");
    }
    assert!(row["error"].is_null(), "{row}");
}

/// The rate in Gb/s that the machine's link, or its disks, can carry of a run's work.
fn device_gbps(row: &Value, machine: &Value) -> f64 {
    if row["traffic"] == "network" {
        return float(machine, "link_gbps");
    }
    let bits = 8.0 * float(row, "payload_bytes_max");
    let by_requests = bits * float(machine, "disk_iops") / float(row, "operations");
    by_requests.min(8.0 * float(machine, "disk_bytes_per_second")) / 1e9
}

/// Checks what holds for every run on `machine`.
fn check_numbers(row: &Value, machine: &Value) {
    let of = |key: &str| float(row, key);
    let near = |one: f64, other: f64| (one - other).abs() < 1e-6 * other.max(1.0);
    let device_gbps = device_gbps(row, machine);
    let lower = of("cpu_gbps").min(of("pcie_gbps")).min(device_gbps);
    assert!(near(of("estimate_gbps"), lower), "the least of the three: {row}");
    assert!(near(of("estimate_vs_none"), lower / of("unprotected_gbps")), "{row}");
    let bits = 8.0 * of("payload_bytes_max") / of("operations");
    assert!(near(of("estimate_operations_per_second"), lower * 1e9 / bits), "{row}");
    // At the highest rate, protection takes this share of one core.
    let pages_per_second = of("estimate_operations_per_second") * of("pages") / of("operations");
    let cores = of("cycles_per_page") * pages_per_second / float(machine, "core_hz");
    assert!(near(of("estimate_cpu_percent"), 100.0 * cores), "{row}");
    if let (Some(gbps), Some(share)) = (row["estimate_gbps_min"].as_f64(), row["estimate_vs_none_min"].as_f64()) {
        assert!(gbps <= of("estimate_gbps") && (0.0..=of("estimate_vs_none") + 1e-9).contains(&share), "{row}");
    }
    let end = |end: usize| row["estimate_vs_none_range"][end].as_f64().expect("an end");
    let least = row["estimate_vs_none_min"].as_f64().unwrap_or(of("estimate_vs_none"));
    assert_eq!((end(0), end(1)), (least.min(of("estimate_vs_none")), least.max(of("estimate_vs_none"))), "{row}");
    assert_eq!(of("faults"), 0.0, "{row}");
    assert!(of("wait_cycles_per_page") <= of("cycles_per_page"), "{row}");
    let walked =
        ["iotlb", "ptcache_l1", "ptcache_l2", "ptcache_l3"].map(|cache| of(&format!("{cache}_misses_per_page")));
    // A walk of rings reads a ring and one of its entries. Otherwise it reads a table for each level that no cache
    // has.
    let reads = if row["design"] == "riommu" { 2.0 * walked[0] } else { walked.iter().sum::<f64>() };
    assert!((of("memory_reads_per_page") - reads).abs() < 1e-9, "{row}");
    // A large leaf is found without a leaf table, so the misses of L3 are compared separately.
    assert!(walked[1] <= walked[2] && walked[2].max(walked[3]) <= walked[0], "nearer the root, rarer: {row}");
    assert!(of("table_pages_end") <= of("table_pages_max"), "{row}");
    let device = if row["traffic"] == "network" { "link" } else { "disk" };
    let ceilings = [("cpu", of("cpu_gbps")), ("pcie", of("pcie_gbps")), (device, device_gbps)];
    let limit = ceilings.into_iter().find(|(name, _)| row["limit"] == *name).expect("one of the three");
    assert!(near(limit.1, lower), "the limit is what is lowest: {row}");
    if let Some(ages_us) = row["stale_window_us_over_time"].as_array() {
        let ages_us = || ages_us.iter().map(|age_us| age_us.as_f64().expect("a number"));
        assert_eq!(
            ages_us().fold(0.0, f64::max),
            of("stale_window_us_max"),
            "the oldest of all is the longest window: {row}"
        );
        let covered_us = of("stale_window_piece_us") * ages_us().count() as f64;
        assert!(
            covered_us < of("span_us") + 2.0 * QUEUE_US + of("stale_window_piece_us"),
            "it ends with the run: {row}"
        );
    }
    match row["protection"].as_str() {
        Some("strict") => {
            assert_eq!(
                (of("stale_accesses"), of("stale_window_us_max"), of("stale_bytes_us")),
                (0.0, 0.0, 0.0),
                "{row}"
            );
        }
        Some("deferred") => {
            assert!(of("stale_accesses") > 0.0, "{row}");
            let (mean, max) = (of("stale_window_us_mean"), of("stale_window_us_max"));
            assert!(mean > 0.0 && mean <= max, "{row}");
            assert!(max <= QUEUE_US + LATE_US || is_unbounded(row), "{row}");
        }
        _ => assert_eq!((of("cycles_per_page"), of("invalidations_per_page")), (0.0, 0.0), "{row}"),
    }
}

#[test]
fn every_key_is_there_and_the_counts_are_those_of_the_bundled_traces() {
    let machines = json(&["list", "machines", "--json"]);
    for (file, [maps, pages, unmaps]) in BUNDLED {
        let path = bundled(file);
        let document = compared(&[&path]);
        assert_eq!(document["schema"], "portcullis.compare/1");
        let machine = machines["machines"].as_array().unwrap().iter().find(|it| it["id"] == document["machine"]);
        assert_eq!((&document["machine"], &document["clock"]), (&"cascadelake-cx5".into(), &"model".into()));
        assert_eq!(Some(&document["assumed"]), machine, "nothing was changed");
        assert_eq!(document["command"], value!(["portcullis", "compare", path, "--json"]));
        assert_eq!((&document["violations"], document["version"].is_string()), (&value!([]), true));
        for protection in ["strict", "deferred"] {
            let best = &document["best"][0][protection];
            assert_eq!(best["options"], value!({}));
            let all = ["results", "equal_batch"].map(|key| document[key].as_array().expect("rows").clone()).concat();
            let runs = || all.iter().filter(|row| row["protection"] == protection && row["no_such_hardware"] == false);
            let share = |row: &Value| row["estimate_vs_none_min"].as_f64().unwrap_or(float(row, "estimate_vs_none"));
            let chosen = runs().find(|row| row["design"] == best["design"] && row["batch"] == best["batch"]);
            let most = runs().map(share).fold(0.0, f64::max);
            assert!(share(chosen.expect("it ran")) >= most - 0.02, "as good as any: {best}");
        }

        let input = &document["input"][0];
        assert_eq!(document["input"].as_array().map(Vec::len), Some(1));
        assert_eq!((&input["file"], &input["format"]), (&path.as_str().into(), &"ftrace".into()));
        for key in INPUT_COUNTS {
            assert!(input[key].is_u64(), "{key}: {input}");
        }
        assert_eq!(["maps", "pages", "unmaps"].map(|key| input[key].as_u64().unwrap()), [maps, pages, unmaps]);
        let preceding = if file == DISK { 0 } else { 255 };
        assert_eq!((&input["unmatched_unmaps"], &input["lost_events"]), (&preceding.into(), &0.into()));
        assert_eq!(input["cpus"], 2);

        let equal = document["equal_batch"].as_array().expect("the same at equal batches");
        for row in rows(&document).iter().chain(equal) {
            check_row(row);
            check_numbers(row, &document["assumed"]);
            assert_eq!(row["trace"], path.as_str());
            assert_eq!(row["pages"], pages, "every design sees the same pages: {row}");
            assert_eq!(row["operations"], rows(&document)[0]["operations"], "{row}");
        }
        // The document covers exactly the designs that the program lists.
        let designs = json(&["list", "designs", "--json"]);
        let designs = designs["designs"].as_array().unwrap();
        let expected = designs.iter().map(|design| design["protections"].as_array().unwrap().len()).sum::<usize>();
        assert_eq!(rows(&document).len(), expected);
    }
}

#[test]
fn the_format_of_each_input_is_told_from_its_content() {
    let words = "IOMMU: iova=0x1000 - 0x2000 paddr=0x3000 size=4096";
    for (file, text, format) in [
        ("format.perf", format!("fio-1 [000] ..... 1.000001: map: {words}\n"), "ftrace"),
        ("format.xz", format!("cpus=1\nfio-1 [000] 1.000001: map:                  {words}\n"), "trace-cmd"),
        ("format.trace", format!("fio 1 [000] 1.000001: iommu:map: {words}\n"), "perf"),
    ] {
        let document = compared(&[&written(file, text), "--designs", "none"]);
        assert_eq!((&document["input"][0]["format"], &document["input"][0]["maps"]), (&format.into(), &1.into()));
    }
}

#[test]
fn protection_costs_something_and_deferring_it_less() {
    let document = compared(&[&bundled(RECEIVE)]);
    let cycles = |design, protection| float(row(&document, design, protection), "cycles_per_page");
    assert!(cycles("stock", "strict") > 2.0 * cycles("stock", "deferred"));
    assert!(cycles("stock", "deferred") > 0.0);
    let misses = float(row(&document, "stock", "strict"), "iotlb_misses_per_page");
    assert!(
        (0.99..=2.0).contains(&misses),
        "an unmapped page misses once at least, two halves of one once each: {misses}"
    );
    assert!(float(row(&document, "stock", "strict"), "invalidations_per_page") > 0.5);
    assert!(float(row(&document, "stock", "deferred"), "invalidations_per_page") < 0.05);
    // Buffers are half a page: when the first half is unmapped, the page stays mapped for the other.
    assert!(float(row(&document, "stock", "strict"), "residual_bytes_us") > 0.0);
}

#[test]
fn several_traces_are_replayed_one_by_one() {
    let paths = [SEND, DISK].map(bundled);
    let few = ["--designs", "none,stock,solaris,magazine,portcullis"];
    let both = compared(&[&[paths[0].as_str(), &paths[1]], &few[..]].concat());
    let files: Vec<_> = both["input"].as_array().unwrap().iter().map(|input| input["file"].clone()).collect();
    assert_eq!(files, paths);
    // On each trace alone all designs have run, and no row depends on the others.
    let alone: Vec<Value> = paths.iter().map(|path| compared(&[path])).collect();
    let chosen = |row: &&Value| few[1].split(',').any(|design| row["design"] == design);
    let expected: Vec<Value> =
        alone.iter().flat_map(|document| rows(document).iter().filter(chosen).cloned()).collect();
    assert_eq!(rows(&both), expected, "in order, and neither changes the other");
    assert!(alone.iter().all(|document| document.get("all").is_none()), "one has no total");
    check_totals(&both, &alone);
}

/// Checks that every total sums up its two rows.
fn check_totals(both: &Value, alone: &[Value]) {
    let totals = both["all"].as_array().expect("totals");
    assert_eq!(totals.len(), rows(both).len() / 2 + both["equal_batch"].as_array().map_or(0, Vec::len) / 2);
    for total in totals {
        let same = |row: &&Value| ["design", "protection", "batch"].iter().all(|key| row[key] == total[key]);
        let row = |document: &'_ Value| {
            let all = ["results", "equal_batch"].map(|key| document[key].as_array().expect("rows").clone()).concat();
            all.iter().find(same).expect("a row").clone()
        };
        let parts: Vec<Value> = alone.iter().map(row).collect();
        let sum = |of: &dyn Fn(&Value) -> f64| parts.iter().map(of).sum::<f64>();
        let seconds = |row: &Value| float(row, "operations") / float(row, "estimate_operations_per_second");
        let pages = sum(&|row| float(row, "pages"));
        let cycles = sum(&|row| float(row, "cycles_per_page") * float(row, "pages")) / pages;
        let share = sum(&|row| float(row, "estimate_vs_none") * seconds(row)) / sum(&seconds);
        assert_eq!(
            (float(total, "pages"), float(total, "stale_accesses")),
            (pages, sum(&|row| float(row, "stale_accesses")))
        );
        assert!((float(total, "cycles_per_page") - cycles).abs() < 1e-6, "{total}");
        assert!((float(total, "estimate_vs_none") - share).abs() < 1e-9, "{total}");
        let windows: Vec<f64> = parts.iter().filter_map(|row| row["stale_window_us_max"].as_f64()).collect();
        let longest = windows.iter().copied().reduce(f64::max);
        assert_eq!(total["stale_window_us_max"].as_f64(), longest, "{total}");
        let at_worst = |row: &Value| row["estimate_vs_none_min"].as_f64().unwrap_or(float(row, "estimate_vs_none"));
        let worst = parts.iter().min_by(|one, other| at_worst(one).total_cmp(&at_worst(other))).expect("two");
        assert_eq!(total["worst"]["trace"], worst["trace"], "{total}");
        assert_eq!(total["worst"]["estimate_vs_none"], worst["estimate_vs_none"], "{total}");
    }
}

#[test]
fn designs_and_protections_can_be_chosen() {
    let names = |arguments: &[&str]| -> Vec<(String, String)> {
        let document = compared(&[&["--workload", "rings:ring=16,operations=64"], arguments].concat());
        let name = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
        rows(&document).iter().map(|row| (name(row, "design"), name(row, "protection"))).collect()
    };
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(design, protection)| ((*design).to_owned(), (*protection).to_owned())).collect()
    };
    assert_eq!(names(&["--designs", "stock"]), pairs(&[("stock", "strict"), ("stock", "deferred")]));
    assert_eq!(names(&["--designs", "stock,none", "--protection", "deferred"]), {
        pairs(&[("stock", "deferred"), ("none", "none")])
    });
    let strict = names(&["--protection", "strict"]);
    assert!(strict.iter().all(|(_, protection)| protection != "deferred") && strict.len() >= 3, "{strict:?}");
}

#[test]
fn designs_take_parameters() {
    let work = ["--workload", "rings:count=2,ring=256,burst=1,operations=4000", "--protection", "deferred"];
    let document = compared(&[&work[..], &["--designs", "eiovar,eiovar:k=64,eiovar:queue=per-core:k=250"]].concat());
    let options: Vec<&Value> = rows(&document).iter().map(|row| &row["options"]).collect();
    let expected = [value!({}), value!({"k": 64}), value!({"k": 250, "queue": "per-core"})];
    assert_eq!(options, expected.iter().collect::<Vec<_>>());
    let steps: Vec<f64> = rows(&document).iter().map(|row| float(row, "search_steps_mean")).collect();
    assert!(steps[0] == 0.0 && steps[1] > 0.0, "k is used: {steps:?}");
    let table = super::printed(&[&["compare"], &work[..], &["--designs", "eiovar:k=64"]].concat());
    assert!(table.contains("eiovar:k=64"), "{table}");
    let listed = super::json(&["list", "designs", "--json"]);
    let eiovar = listed["designs"].as_array().unwrap().iter().find(|design| design["id"] == "eiovar").unwrap();
    assert_eq!(eiovar["options"][0]["key"], "k");
}

#[test]
fn the_hint_can_be_dropped() {
    let with = |arguments: &[&str]| {
        compared(&[&["--workload", "rings:operations=4000", "--designs", "stock"], arguments].concat())
    };
    let (hint, none) = (with(&[]), with(&["--no-hint"]));
    assert_eq!((&hint["no_hint"], &none["no_hint"]), (&false.into(), &true.into()));
    let misses = |document: &Value| float(row(document, "stock", "strict"), "ptcache_l3_misses_per_page");
    assert!(misses(&none) > 0.5 && misses(&hint) < 0.01, "{} and {}", misses(&none), misses(&hint));
}

#[test]
fn commands_of_many_cpus_can_be_merged() {
    let with = |arguments: &[&str]| {
        let work = ["--workload", "rings:count=16,operations=2000", "--batch", "1", "--designs", "portcullis"];
        compared(&[&work[..], arguments].concat())
    };
    let (single, merged) = (with(&[]), with(&["--merge", "4"]));
    assert_eq!((single.get("merge"), &merged["merge"]), (None, &4.into()));
    let of = |document: &Value, key: &str| float(row(document, "portcullis", "strict"), key);
    assert!(of(&merged, "invalidations_per_page") < of(&single, "invalidations_per_page"));
    let dropped = [&single, &merged].map(|document| of(document, "iotlb_dropped_live_per_page"));
    assert!(dropped[0] == 0.0 && dropped[1] > 0.0, "{dropped:?}");
}

/// Who merges sees the price without `--json`.
#[test]
fn the_price_of_merging_is_printed() {
    let work = ["--workload", "rings:count=16,operations=2000", "--batch", "1", "--designs", "portcullis"];
    let text = |arguments: &[&str]| printed(&[&["compare"], &work[..], arguments].concat()).replace('\n', " ");
    let price = "IOTLB entries of mapped pages that commands for several pages dropped, per page: portcullis strict";
    let (single, merged) = (text(&[]), text(&["--merge", "4"]));
    assert!(!single.contains("dropped, per page") && merged.contains(price), "{merged}");
}

/// A driver that goes on while the hardware works waits a third as long, and does hardly more itself. The more CPUs
/// wait for one another, the more there is to hide.
#[test]
fn a_commit_in_two_halves_hides_the_wait() {
    let with = |arguments: &[&str]| {
        let work = ["--workload", "rings:count=24", "--designs", "portcullis"];
        compared(&[&work[..], arguments].concat())
    };
    let [whole, halves] = [with(&[]), with(&["--halves"])].map(|document| {
        let of = |key: &str| float(row(&document, "portcullis", "strict"), key);
        let waits = of("wait_cycles_per_page");
        (waits, of("cycles_per_page") - waits)
    });
    assert!(3.0 * halves.0 <= whole.0, "{halves:?} and {whole:?} cycles of waiting and of software");
    assert!(halves.1 < 1.05 * whole.1, "{halves:?} and {whole:?}");
    let deferred = |arguments: &[&str]| float(row(&with(arguments), "portcullis", "deferred"), "cycles_per_page");
    let (whole, halves) = (deferred(&[]), deferred(&["--halves"]));
    assert!((halves / whole - 1.0).abs() < 0.05, "{halves} and {whole}: a deferred commit is over at once");
}

#[test]
fn one_batch_for_all_can_be_chosen() {
    let document = compared(&[&bundled(RECEIVE), "--batch", "64", "--designs", "none,stock,identity,portcullis"]);
    assert!(rows(&document).iter().all(|row| row["batch"] == 64));
    assert_eq!(document["equal_batch"], Value::Array(Vec::new()), "all are equal as it is");
    let own = compared(&[&bundled(RECEIVE)]);
    let strict = |document: &Value| float(row(document, "stock", "strict"), "cycles_per_page");
    assert!(strict(&document) < strict(&own), "one wait serves the batch");
    let equal = own["equal_batch"].as_array().unwrap();
    let same = equal.iter().find(|row| row["protection"] == "strict" && row["batch"] == 64);
    assert_eq!(same, Some(row(&document, "stock", "strict")), "the run is the one that stands beside by itself");
}

#[test]
fn the_clock_can_be_chosen() {
    let path = bundled(DISK);
    for clock in ["trace", "scale=2"] {
        let document = compared(&[&path, "--clock", clock, "--designs", "stock"]);
        assert_eq!(document["clock"], clock);
        for row in rows(&document) {
            check_row(row);
            check_numbers(row, &document["assumed"]);
        }
    }
    // Under its own clock the trace takes about two seconds: hardly any unmap waits for a full queue, and nearly all
    // wait for the timer.
    let waits = |clock| {
        let document = compared(&[&path, "--clock", clock, "--designs", "stock"]);
        float(row(&document, "stock", "deferred"), "stale_window_us_mean")
    };
    assert!(waits("trace") > 4.0 * waits("model"), "{} and {} us", waits("trace"), waits("model"));
}

#[test]
fn a_workload_takes_the_place_of_a_trace() {
    let workload = "rings:count=2,ring=512,operations=4000";
    let document = compared(&["--workload", workload, "--seed", "9"]);
    assert_eq!(document["input"], Value::Array(Vec::new()));
    assert_eq!((&document["workload"], &document["seed"]), (&workload.into(), &9.into()));
    for row in rows(&document) {
        check_row(row);
        check_numbers(row, &document["assumed"]);
        assert_eq!(row["trace"], workload);
        assert!(float(row, "operations") >= 4000.0 && row["operations"] == row["pages"]);
    }
    let searched = float(row(&document, "stock", "strict"), "search_steps_mean");
    assert!(searched > 20.0, "two rings interfere: {searched} steps");
}

#[test]
fn the_accesses_of_a_log_take_the_place_of_whole_buffers() {
    let log = bundled("q-e1000e-tx.lazy.2cpu.qemu.xz");
    // The designs without protection, and some that differ in what they allocate and in when they invalidate.
    let designs = "none,static,stock,identity,magazine,macos,riommu,portcullis";
    let document = compared(&[&bundled(SEND), "--accesses", &log, "--designs", designs]);
    for row in rows(&document) {
        check_row(row);
        check_numbers(row, &document["assumed"]);
        assert!(float(row, "unexplained_accesses") < 0.01 * 23_042.0, "{row}");
    }
    let whole = compared(&[&bundled(SEND)]);
    let misses = |document: &Value| float(row(document, "stock", "strict"), "iotlb_misses_per_page");
    assert_ne!(misses(&document), misses(&whole));
}

#[test]
fn hardware_and_machine_can_be_set() {
    let path = bundled(RECEIVE);
    let misses = |arguments: &[&str]| {
        let document =
            compared(&[&[path.as_str(), "--designs", "stock", "--protection", "strict"], arguments].concat());
        float(row(&document, "stock", "strict"), "ptcache_l3_misses_per_page")
    };
    let (cached, uncached) = (misses(&[]), misses(&["--set", "ptcache_l3_entries=0"]));
    assert!(cached < 0.01 && uncached > 0.9, "{cached} and {uncached} misses per page");
    let designs = "none,static,stock,identity,magazine,macos,riommu,portcullis";
    let document = compared(&[&path, "--machine", "r210-cx3", "--designs", designs]);
    assert_eq!(document["machine"], "r210-cx3");
    rows(&document).iter().for_each(|row| check_numbers(row, &document["assumed"]));
}
