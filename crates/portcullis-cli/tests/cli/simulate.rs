//! `simulate`: its keys, the same bytes for the same seed, and what does not fit together.

use super::bad_input::refused;
use super::{again, portcullis, text};
use serde_json::Value;

const RUN: [&str; 5] = ["simulate", "--machine", "r210-bcm57810", "--design", "eiovar"];

/// A run of `netperf-stream`, unless another workload is given.
fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let stream = if more.contains(&"--workload") { &[][..] } else { &["--workload", "netperf-stream"] };
    [&RUN, stream, more].concat()
}

#[test]
fn rings_for_which_there_is_no_memory_are_refused() {
    let run = ["simulate", "--machine", "r430-bcm57810", "--workload", "apache-1m", "--design", "none"];
    let arguments = [&run[..], &["--protection", "none", "--set", "transmit_rings=128"]].concat();
    refused(&arguments, &["rings of 2039 entries", "bnx2x", "a run has 64 MiB"]);
}

#[test]
fn a_run_has_the_keys_of_a_simulation_and_of_a_comparison() {
    let arguments = with(&["--protection", "strict", "--json"]);
    let output = portcullis(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(document["schema"], "portcullis.simulate/1");
    let row = &document["results"][0];
    for key in [
        "throughput_gbps",
        "throughput_vs_none",
        "cpu_percent",
        "drop_percent",
        "lock_wait_percent",
        "search_steps_mean",
    ] {
        assert!(row[key].is_number(), "{key}: {}", row[key]);
    }
    for key in
        ["transactions_per_second", "latency_us_mean", "latency_us_p99", "stale_window_us_max", "residual_bytes_us"]
    {
        assert_eq!(row.get(key), Some(&Value::Null), "{key}");
    }
    assert_eq!((&row["design"], &row["protection"], &row["batch"]), (&"eiovar".into(), &"strict".into(), &1.into()));
    assert_eq!(again(&arguments).stdout, output.stdout, "the same seed gives the same bytes");
    let printed = portcullis(&with(&["--protection", "strict"]));
    let table = text(&printed.stdout);
    assert!(table.contains("throughput, Gb/s") && !table.contains("requests per second"), "{table}");
}

#[test]
fn requests_have_a_latency_and_no_throughput() {
    let output = portcullis(&[
        "simulate",
        "--machine",
        "r210-cx3",
        "--workload",
        "netperf-rr",
        "--design",
        "none",
        "--protection",
        "none",
        "--json",
    ]);
    let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let row = &document["results"][0];
    assert!(row["latency_us_p99"].as_f64() >= row["latency_us_mean"].as_f64(), "{row}");
    assert_eq!(
        (&row["throughput_gbps"], &row["estimate_gbps"], &row["cycles_per_packet"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    assert_eq!(row["throughput_vs_none"], 1.0);
}

#[test]
fn a_run_in_which_no_client_makes_progress_ends_with_status_1() {
    let document = portcullis(&["list", "machines", "--json"]);
    let document: Value = serde_json::from_slice(&document.stdout).expect("JSON");
    let machines = document["machines"].as_array().expect("machines");
    let mut machine = machines.iter().find(|one| one["id"] == "r210-cx3").expect("a machine").clone();
    machine["server"]["nic"]["receive_buffer_bytes"] = 0.into();
    let folder = std::env::temp_dir().join(format!("portcullis-deaf-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a new folder");
    let file = folder.join("deaf.json");
    std::fs::write(&file, machine.to_string()).expect("a new file");
    let file_name = file.to_str().expect("a name");
    let mut arguments = vec!["simulate", "--machine", file_name, "--workload", "netperf-rr"];
    arguments.extend(["--design", "eiovar", "--protection", "strict"]);
    let output = portcullis(&arguments);
    std::fs::remove_dir_all(&folder).expect("ours");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no client made progress"), "{said}");
}

#[test]
fn short_messages_keep_the_client_busy() {
    let gbps = |workload| {
        let output = portcullis(&with(&["--protection", "deferred", "--json", "--workload", workload]));
        let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        document["results"][0]["throughput_gbps"].as_f64().expect("a stream")
    };
    let short = gbps("netperf-stream:message=64");
    assert!(short < 2.0, "a message of 64 bytes in 300 ns: {short} Gb/s");
}

#[test]
fn what_does_not_fit_together_is_refused_in_one_line() {
    refused(&with(&["--protection", "none"]), &["`eiovar` does not offer the protection `none`", "strict, deferred"]);
    refused(&with(&["--protection", "strict", "--cores", "0"]), &["--cores 0", "expected from 1 to 1"]);
    refused(&with(&["--protection", "strict", "--cores", "2"]), &["--cores 2", "expected from 1 to 1"]);
    refused(&with(&["--protection", "strict", "--flows", "0"]), &["--flows 0"]);
    refused(&with(&["--protection", "strict", "--ring", "5000"]), &["--ring 5000", "64 to 4078", "bnx2x"]);
    refused(&with(&["--protection", "strict", "--set", "cors=2"]), &["`cors`"]);
    refused(&with(&["--protection", "strict", "--set", "link_gbps=1"]), &["link_gbps=1", "only estimates"]);
    let twice = ["--protection", "strict", "--set", "poll=9", "--set", "poll=8"];
    refused(&with(&twice), &["--set poll=8", "`poll` is set twice"]);
    refused(&with(&["--protection", "some"]), &["strict or deferred (lazy), or none"]);
    let on = |machine, workload, design| {
        ["simulate", "--machine", machine, "--workload", workload, "--design", design, "--protection", "strict"]
    };
    refused(&on("r210", "netperf-rr", "stock"), &["no machine `r210`", "r210-cx3"]);
    refused(&on("cascadelake-cx5", "netperf-rr", "stock"), &["cascadelake-cx5", "mlx5e of Linux 6.0"]);
    refused(&on("cascadelake-cx5", "iperf:recycle=some", "magazine"), &["`recycle=some`", "driver|never|always"]);
    refused(&on("r210-cx3", "rings", "stock"), &["no workload `rings`", "netperf-stream, netperf-rr"]);
    refused(&on("r210-cx3", "netperf-stream:message=0", "stock"), &["`message=0`", "with 1 to 1048576"]);
    refused(&on("r210-cx3", "memcached:message=64", "stock"), &["`memcached` has no parameter `message=64`"]);
    refused(&on("r210-cx3", "netperf-rr", "stocks"), &["`stocks`"]);
    refused(&[&on("r210-cx3", "netperf-rr", "stock")[..], &["--ring", "1000"]].concat(), &["a power of two"]);
}

/// Linux's wait is slower with many cores, and a poll in two halves is faster. What each run was is in its JSON.
#[test]
fn the_wait_and_the_poll_loop_can_be_chosen() {
    let run = |design: &str, more: &[&str]| -> Value {
        let server = ["simulate", "--machine", "r430-bcm57810", "--workload", "netperf-rr", "--flows", "64", "--cores"];
        let arguments = [&server[..], &["8", "--design", design, "--protection", "strict", "--json"], more].concat();
        let output = portcullis(&arguments);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let share = |document: &Value| document["results"][0]["throughput_vs_none"].as_f64().expect("a number");
    let (ours, linux) = (run("magazine", &[]), run("magazine", &["--linux-wait"]));
    assert_eq!((ours.get("linux_wait"), linux["linux_wait"].as_bool()), (None, Some(true)));
    assert!(share(&linux) < 0.9 * share(&ours), "{} and {}", share(&linux), share(&ours));
    let (whole, halves) = (run("portcullis", &[]), run("portcullis", &["--halves"]));
    assert_eq!((whole.get("halves"), halves["halves"].as_bool()), (None, Some(true)));
    assert!(share(&halves) > share(&whole), "{} and {}", share(&halves), share(&whole));
}

#[test]
fn halves_are_refused_where_they_do_nothing() {
    refused(&with(&["--protection", "strict", "--halves"]), &["--halves", "only with batches"]);
    let iperf = ["simulate", "--machine", "cascadelake-cx5", "--workload", "iperf", "--design", "portcullis"];
    refused(&[&iperf[..], &["--protection", "strict", "--halves"]].concat(), &["--halves", "not under mlx5e"]);
    let background = ["--workload", "netperf-rr:background=1001", "--protection", "strict"];
    refused(&with(&background), &["background=1001", "0 to 1000"]);
}
