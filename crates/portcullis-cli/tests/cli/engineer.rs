//! The engineer's questions: what strict protection costs each of her devices, from what she runs today; what she risks
//! if she stays lazy; and what to do. The tables come after the answer.

use super::merged::merged;
use super::{DISK, RECEIVE, bundled, compared, json, portcullis, printed, rows, text, written};
use lzma_rust2::XzReader;
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

const TRACED: &str = "0000:00:04.0";
const CARD: &str = "0000:3b:00.0";
const SSD: &str = "0000:5e:00.0";
/// What the answer is made from, and nothing else.
const LINUX: [&str; 2] = ["--designs", "none,linux,portcullis"];

fn unpacked(file: &str) -> String {
    let mut text = String::new();
    let file = File::open(bundled(file)).expect("a bundled trace");
    XzReader::new(file, true).read_to_string(&mut text).expect("text");
    text
}

/// One capture of a card and a disk.
fn both() -> &'static str {
    static FILE: OnceLock<String> = OnceLock::new();
    FILE.get_or_init(|| {
        let (card, disk) = (unpacked(RECEIVE), unpacked(DISK));
        written("card-and-disk.trace", merged((&card, [TRACED, CARD]), (&disk, [TRACED, SSD]), 2))
    })
}

/// The capture of a driver that uses each page again: of ten receive mappings in a row, one is left.
fn thinned() -> &'static str {
    static FILE: OnceLock<String> = OnceLock::new();
    FILE.get_or_init(|| written("recycled.trace", thin(&unpacked(RECEIVE), 10)))
}

fn thin(text: &str, keep: u64) -> String {
    let mut lines: Vec<Option<&str>> = text.lines().map(Some).collect();
    // By CPU, the last map and unmap that no `dma:` event has claimed; by address, whether the mapping stays.
    let (mut maps, mut unmaps, mut stays) = ([None; 8], [None; 8], std::collections::HashMap::new());
    let mut count = 0;
    for at in 0..lines.len() {
        let Some(line) = lines[at].filter(|line| !line.starts_with('#')) else { continue };
        let cpu: usize = line.split_once('[').and_then(|(_, rest)| rest.get(..3)?.parse().ok()).expect("a CPU");
        if line.contains(": map: ") {
            maps[cpu] = Some(at);
        } else if line.contains(": unmap: ") {
            unmaps[cpu] = Some(at);
        } else if line.contains("dir=FROM_DEVICE") {
            let address = line.split("dma_addr=").nth(1).and_then(|rest| rest.split(' ').next()).expect("an address");
            let is_map = line.contains("dma_map_");
            count += u64::from(is_map);
            let is_kept = match is_map {
                true => *stays.entry(address).insert_entry(count.is_multiple_of(keep)).get(),
                false => stays.remove(address).unwrap_or(true),
            };
            let other = if is_map { maps[cpu] } else { unmaps[cpu] };
            if let (false, Some(other)) = (is_kept, other) {
                (lines[at], lines[other]) = (None, None);
            }
        }
    }
    lines.into_iter().flatten().fold(String::new(), |text, line| text + line + "\n")
}

/// The share of today's rate that is left with strict protection, and whether that counts as free.
fn left(answer: &Value) -> ([f64; 2], bool) {
    let range = answer["rate_vs_today_range"].as_array().expect("a range");
    ([0, 1].map(|end| range[end].as_f64().expect("a share")), answer["is_free"] == true)
}

fn answers(document: &Value) -> &[Value] {
    document["answers"].as_array().expect("answers")
}

#[test]
fn a_card_and_a_disk_in_one_capture_get_an_answer_each() {
    let document = compared(&[&[both()][..], &LINUX].concat());
    let alone = |file: &str| compared(&[&[bundled(file).as_str()][..], &LINUX].concat());
    for (device, file, traffic, is_free) in [(CARD, RECEIVE, "network", false), (SSD, DISK, "disk", true)] {
        let answer = answers(&document).iter().find(|answer| answer["device"] == device).expect(device);
        let (ours, free) = left(answer);
        let (theirs, _) = left(&answers(&alone(file))[0]);
        assert_eq!((answer["traffic"].as_str(), free), (Some(traffic), is_free), "{device}");
        assert!((ours[0] - theirs[0]).abs() < 0.02, "{device}: {ours:?} and {theirs:?} alone");
    }
    assert!(rows(&document).iter().all(|row| row["device"] == CARD || row["device"] == SSD));
    assert!(document["sensitivity"].as_array().is_some_and(|all| all.iter().all(Value::is_object)), "nothing is swept");
    // The summary has both, adds up what they take of the CPUs, and says what to do if only one loses its rate.
    let text = printed(&[&["compare", both()][..], &LINUX].concat());
    let summary = text.split("Each unmap by itself").next().expect("a beginning");
    for part in [CARD, SSD, "together", "DMA-FQ"] {
        assert!(summary.contains(part), "{part} in {summary}");
    }
    let cpu =
        |end: usize| answers(&document).iter().map(|one| one["recorded_cpu_percent"][end].as_f64().expect("%")).sum();
    let sums: [f64; 2] = [cpu(0), cpu(1)];
    let together = summary.lines().find(|line| line.starts_with("together")).expect("a sum");
    let words: Vec<&str> = together.split_whitespace().collect();
    assert_eq!(words[1..3], sums.map(portcullis_sim::number::number), "{together}");
}

#[test]
fn two_disks_share_the_unit() {
    let disk = unpacked(DISK);
    let file = written("two-disks.trace", merged((&disk, [TRACED, CARD]), (&disk, [TRACED, SSD]), 2));
    // Four CPUs that serve fast disks, and a unit that takes long for each invalidation.
    let set = ["--set", "disk_iops=3e6", "--set", "disk_bytes_per_second=14e9", "--set", "invalidation_ps=1170000"];
    let document = compared(&[&[file.as_str()][..], &LINUX, &set].concat());
    let of = |device: Value| {
        let answer = answers(&document).iter().find(|answer| answer["device"] == device).expect("an answer");
        (left(answer).0[0], answer["recorded_cpu_percent"].clone())
    };
    let (together, recorded) = of(Value::Null);
    for device in [CARD, SSD] {
        let (alone, _) = of(device.into());
        assert!(together < alone - 0.1, "{together} together, {alone} alone");
    }
    assert_eq!(document["hosts"][0]["recorded_cpu_percent"], recorded, "no sum: they wait for each other");
    // With assumed rates each has them, and rates that are set are those of both.
    let unprotected = |set: &[&str]| {
        let document = compared(&[&[file.as_str(), "--designs", "none,linux"], set].concat());
        let row = rows(&document).iter().find(|row| row["device"].is_null() && row["design"] == "none").expect("a row");
        row["estimate_operations_per_second"].as_f64().expect("a rate")
    };
    let (assumed, set) = (unprotected(&[]), unprotected(&["--set", "disk_iops=637500"]));
    assert!((assumed - 2.0 * 637_500.0).abs() < 1.0 && (set - 637_500.0).abs() < 1.0, "{assumed} {set}");
    // A mixture has no run of all.
    let mixed = compared(&[both(), "--designs", "linux"]);
    assert!(rows(&mixed).iter().all(|row| !row["device"].is_null()));
}

/// A capture in which the disk is at work for a twentieth of the time.
fn short_work() -> &'static str {
    static FILE: OnceLock<String> = OnceLock::new();
    FILE.get_or_init(|| {
        let slower = |text: String| {
            // The card's capture takes twenty times as long.
            let line = |line: &str| {
                let (head, rest) = line.split_once(": ")?;
                let (before, time) = head.rsplit_once(' ')?;
                Some(format!("{before} {:.6}: {rest}\n", time.parse::<f64>().ok()? * 20.0))
            };
            text.lines().filter_map(line).collect::<String>()
        };
        let (card, disk) = (slower(unpacked(RECEIVE)), unpacked(DISK));
        written("short-work.trace", merged((&card, [TRACED, CARD]), (&disk, [TRACED, SSD]), 2))
    })
}

#[test]
fn what_devices_take_of_the_cpus_is_over_the_same_time() {
    let cpu = |file: &str| {
        let document = compared(&[&[file][..], &LINUX].concat());
        let of = |device: &str| {
            let answer = answers(&document).iter().find(|answer| answer["device"] == device).expect("an answer");
            answer["recorded_cpu_percent"][1].as_f64().expect("%")
        };
        [of(CARD), of(SSD)]
    };
    let ([card, disk], [slow_card, slow_disk]) = (cpu(both()), cpu(short_work()));
    // Each of them has the same work, in a capture that lasts twenty times as long.
    for (short, long) in [(card, slow_card), (disk, slow_disk)] {
        assert!((15.0..25.0).contains(&(short / long)), "{short} and {long}");
    }
}

#[test]
fn a_sweep_and_the_same_capture_twice_add_up_nothing_twice() {
    let swept = compared(&[both(), "--designs", "linux", "--sweep", "cores=2,4"]);
    assert_eq!((answers(&swept).len(), swept["hosts"].as_array().map(Vec::len)), (4, Some(0)));
    let once = compared(&[both(), "--designs", "linux"]);
    let twice = compared(&[both(), both(), "--designs", "linux"]);
    for input in [0, 1] {
        assert_eq!(twice["hosts"][input]["recorded_cpu_percent"], once["hosts"][0]["recorded_cpu_percent"]);
    }
}

#[test]
fn a_device_with_few_maps_is_listed_and_not_run() {
    let few = unpacked(DISK)
        .lines()
        .filter(|line| !line.starts_with('#'))
        .take(400)
        .fold(String::new(), |text, line| text + line + "\n");
    let file = written("few.trace", merged((&unpacked(RECEIVE), [TRACED, CARD]), (&few, [TRACED, SSD]), 2));
    let text = printed(&["compare", &file, "--designs", "none,linux"]);
    let line = text.lines().find(|line| line.starts_with(SSD)).expect("it is listed");
    assert!(line.contains("not run"), "{line}");
    let chosen = compared(&[&file, "--device", SSD, "--designs", "linux"]);
    assert_eq!(answers(&chosen)[0]["device"], SSD, "unless it is chosen");
}

#[test]
fn one_device_is_chosen_by_name_or_refused_by_name() {
    for name in [SSD, "5e:00.0"] {
        let document = compared(&[both(), "--device", name, "--designs", "linux"]);
        assert!(answers(&document).len() == 1 && answers(&document)[0]["device"] == SSD, "{name}");
    }
    for command in [&["compare"][..], &["attack"], &["compare", "--rate", "1e9"]] {
        let output = portcullis(&[command, &[both(), "--device", "0000:00:1f.2"]].concat());
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2));
        assert!(["--device 0000:00:1f.2", CARD, SSD].iter().all(|part| error.contains(part)), "{error}");
    }
    // A malicious device tries the addresses of the others, so they stay together unless one is chosen.
    let attacked = |arguments: &[&str]| {
        let document =
            json(&[&["attack", both(), "--designs", "linux", "--protection", "strict", "--json"], arguments].concat());
        let [row] = rows(&document) else { panic!("one run of all devices: {document}") };
        row["probes"].as_u64().expect("probes")
    };
    assert!(attacked(&[]) > attacked(&["--device", CARD]), "of both, and of one");
}

#[test]
fn recycled_pages_cost_less_and_stay_within_reach() {
    let full = bundled(RECEIVE);
    let whole = compared(&[&[full.as_str(), "--payload", "1.0"][..], &LINUX].concat());
    let received_bytes = rows(&whole)[0]["payload_bytes_max"].as_f64().expect("bytes");
    let rate = format!("{:.0}", received_bytes * 8e6 / whole["input"][0]["span_us"].as_f64().expect("a span"));
    let all = compared(&[&[full.as_str(), "--rate", &rate][..], &LINUX].concat());
    let thin = compared(&[&[thinned(), "--rate", &rate][..], &LINUX].concat());
    let unaware = compared(&[&[thinned()][..], &LINUX].concat());
    let [all, thin, unaware] = [&all, &thin, &unaware].map(|document| &answers(document)[0]);
    let lost = |answer: &Value| 1.0 - left(answer).0[0];
    // A tenth of the receive maps, and all that are sent.
    assert!(lost(thin) < lost(all) / 3.0, "{} of {}", lost(thin), lost(all));
    assert!(lost(unaware) > 2.0 * lost(thin), "the maps alone do not show it: {}", lost(unaware));
    let uses = thin["uses_per_map"].as_f64().expect("pages that are used again");
    assert!((8.0..13.0).contains(&uses), "{uses}");
    assert!(all["uses_per_map"].is_null() && unaware["uses_per_map"].is_null());
    assert!(thin["reachable_pages_min"].as_u64().is_some_and(|pages| pages > 0), "{thin}");
    let line = |answer: &Value, at: usize| answer["lines"][at]["text"].as_str().expect("text").to_owned();
    assert!(line(thin, 2).contains("With strict too"), "{}", line(thin, 2));
    assert!(!line(all, 4).contains("`--rate`"), "it is known: {}", line(all, 4));
    assert!(line(unaware, 4).contains("`--rate`"), "an assumption that carries it: {}", line(unaware, 4));
    // Several devices have no one rate, and none carries more than its link or its disks.
    for (file, rate, expected) in [
        (bundled(DISK), "1e9", "637500 requests"),
        (both().to_owned(), "1e9", "--device"),
        (full, "200e9", "97.6 Gb/s"),
        (thinned().to_owned(), "-5", "above 0"),
    ] {
        let output = portcullis(&["compare", &file, "--rate", rate]);
        assert!(output.status.code() == Some(2) && text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}

#[test]
fn a_disk_that_uses_its_buffers_again_costs_less() {
    // So fast a disk waits for the CPUs.
    let fast = ["--set", "disk_iops=3e6", "--set", "disk_bytes_per_second=14e9"];
    let disk = bundled(DISK);
    let with = |rate: &[&str]| compared(&[&[disk.as_str()][..], &LINUX, &fast, rate].concat());
    let each = with(&[]);
    let maps = each["input"][0]["devices"][0]["maps"].as_f64().expect("maps");
    let ten_times = 10.0 * maps * 1e6 / each["input"][0]["span_us"].as_f64().expect("a span");
    let again = with(&["--rate", &format!("{ten_times:.0}")]);
    let [each, again] = [&each, &again].map(|document| &answers(document)[0]);
    let lost = |answer: &Value| 1.0 - left(answer).0[0];
    assert!(lost(each) > 0.2 && lost(again) < lost(each) / 4.0, "{} and {}", lost(each), lost(again));
    let uses = again["uses_per_map"].as_f64().expect("buffers that are used again");
    assert!((9.9..10.1).contains(&uses) && each["uses_per_map"].is_null(), "{uses}");
}

#[test]
fn each_of_eight_disks_has_bytes_in_flight_of_its_own() {
    let with = |file: &str, settings: &[&str]| {
        let set: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
        let document = compared(&[&[bundled(file).as_str()][..], &LINUX, &set].concat());
        ["strict", "deferred"].map(|protection| {
            let is_it = |row: &&Value| row["design"] == "magazine" && row["protection"] == protection;
            let row = rows(&document).iter().find(is_it).expect("a row");
            (row["estimate_vs_none"].as_f64().expect("a share"), row["limit"].as_str().expect("a limit").to_owned())
        })
    };
    let near = |one: f64, other: f64| (one - other).abs() < 0.02;
    let rates = ["disk_iops=12e6", "disk_bytes_per_second=56e9"];
    let eight = ["disks=8", "disk_iops=1.5e6", "disk_bytes_per_second=7e9"];
    // Small requests: the CPUs are the limit, and what strict costs shows.
    let [(strict, limit), (lazy, _)] = with(DISK, &rates);
    assert!(limit == "cpu" && strict < 0.8 && lazy > 0.85, "{strict} {lazy} {limit}");
    let [(counted, _), (counted_lazy, _)] = with(DISK, &eight);
    assert!(
        near(counted, strict) && near(counted_lazy, lazy),
        "the same disks by their number: {counted} {counted_lazy}"
    );
    // Large requests: the disks are the limit, unless all of them together had no more in flight than one.
    const LARGE: &str = "nvme-seqread128k.strict.4cpu.trace.xz";
    for settings in [&rates[..], &eight] {
        assert!(with(LARGE, settings).iter().all(|(share, limit)| *share == 1.0 && limit == "disk"), "{settings:?}");
    }
    let one = [&eight[..], &["disk_bytes_in_flight=512"]].concat();
    assert!(with(LARGE, &one).iter().all(|(share, limit)| *share < 0.5 && limit == "pcie"), "{:?}", with(LARGE, &one));
}

#[test]
fn the_answer_has_five_lines_and_stands_before_the_tables() {
    let text = printed(&["compare", "--designs", "none,linux,portcullis"]);
    let abouts = ["cost", "limit", "risk", "do", "assumed"];
    let at = abouts.map(|about| text.find(&format!("\n{about:<8} ")).unwrap_or_else(|| panic!("{about} in {text}")));
    assert!(at.is_sorted() && at[4] < text.find("Each unmap by itself").expect("a table"), "{text}");
    let table: Vec<&str> = text.lines().filter(|line| line.starts_with("magazine (Linux)")).collect();
    assert_eq!(table.len(), 2, "strict and lazy, each unmap by itself: {text}");
    // From no protection, more is lost than from lazy.
    let lost = |today: &str| {
        let document = compared(&["--designs", "none,linux,portcullis", "--today", today]);
        1.0 - left(&answers(&document)[0]).0[0]
    };
    assert!(lost("none") > lost("lazy") + 0.05, "{} {}", lost("none"), lost("lazy"));
    // Without Linux there is nothing to go from.
    let document = compared(&["--designs", "stock"]);
    assert!(answers(&document)[0].is_null());
}

#[test]
fn words_of_linux_are_understood_and_slips_are_corrected() {
    let lazy = compared(&["--designs", "linux", "--protection", "lazy"]);
    assert!(rows(&lazy).iter().all(|row| row["design"] == "magazine" && row["protection"] == "deferred"));
    for (arguments, tip) in [
        (["--designs", "magazin"], "did you mean `magazine`?"),
        (["--designs", "lnux"], "did you mean `linux`?"),
        (["--protection", "lasy"], "lazy"),
        (["--machine", "cascadlake-cx5"], "did you mean `cascadelake-cx5`?"),
        (["--set", "iotlb_entry=4"], "did you mean `iotlb_entries`?"),
    ] {
        let output = portcullis(&[&["compare"], &arguments[..]].concat());
        assert!(output.status.code() == Some(2) && text(&output.stderr).contains(tip), "{}", text(&output.stderr));
    }
    let listed = printed(&["list", "machines"]);
    assert!(
        listed.contains("disk_bytes_in_flight") && listed.contains("bytes that a disk keeps in flight"),
        "{listed}"
    );
}

#[cfg(unix)]
#[test]
fn what_is_done_when_it_is_stopped_is_shown() {
    // All runs take far longer than the first one.
    let arguments = ["compare", "--workload", "rings:count=16,operations=400000", "--json"];
    let stopped_after = |pause: Duration| {
        let program = super::program(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let program = program.expect("it starts");
        std::thread::sleep(pause);
        let stop = Command::new("kill").args(["-INT", &program.id().to_string()]).status().expect("kill");
        assert!(stop.success());
        program.wait_with_output().expect("it ends")
    };
    // A slow machine needs longer to end a run, or to begin the first.
    let pauses = [1, 2, 4, 8, 16, 32].map(Duration::from_secs);
    let document = pauses.into_iter().find_map(|pause| {
        let output = stopped_after(pause);
        let document: Value = serde_json::from_slice(&output.stdout).ok()?;
        assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
        rows(&document).iter().any(|row| row["error"].is_null()).then_some(document)
    });
    let document = document.expect("a run that has ended");
    assert!(answers(&document)[0].is_null(), "no answer from a part of the runs");
    assert!(document["advice"][0].as_str().is_some_and(|advice| advice.contains("no advice")), "{document}");
    assert!(document["violations"].as_array().is_some_and(Vec::is_empty), "no check has failed");
    let is_missing = |row: &&Value| row["error"].as_str().is_some_and(|error| error.contains("stopped"));
    assert!(rows(&document).iter().filter(is_missing).count() > 0, "it was stopped before the last run");
}
