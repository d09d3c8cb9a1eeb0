//! Output that misled: rates, advice, the clock, and parameters without an explanation.

use super::super::bad_input::refused;
use super::super::{DISK, RECEIVE, bundled, compared, float, json, portcullis, printed, row, text};
use serde_json::Value;

#[test]
fn found_5_every_parameter_of_a_workload_is_explained() {
    let document = json(&["list", "workloads", "--json"]);
    let shown = printed(&["list", "workloads"]);
    let workloads = document["workloads"].as_array().expect("workloads");
    // Those of `simulate` have no list of parameters.
    let of_compare: Vec<&Value> = workloads.iter().filter(|workload| workload["defaults"].is_object()).collect();
    assert_eq!((workloads.len(), of_compare.len()), (12, 2));
    for workload in of_compare {
        let string = |of: &Value, key: &str| of[key].as_str().unwrap_or_else(|| panic!("{key}: {of}")).to_owned();
        let id = string(workload, "id");
        let paragraph =
            shown.split("\n\n").find(|paragraph| paragraph.lines().next() == Some(&id)).expect("a paragraph");
        // The paragraph is wrapped.
        let paragraph = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(paragraph.contains(&string(workload, "description")), "{paragraph}");
        let defaults = workload["defaults"].as_object().expect("defaults");
        let parameters = workload["parameters"].as_array().expect("parameters");
        assert_eq!(parameters.len(), defaults.len(), "{id}");
        let mut keys = Vec::new();
        for parameter in parameters {
            let [key, expected, description] = ["key", "expected", "description"].map(|key| string(parameter, key));
            assert_eq!(defaults.get(&key), Some(&parameter["default"]), "{id}: {key}");
            let line = format!("parameter {key} = {}: {description}; {expected}", parameter["default"]);
            assert!(paragraph.contains(&line), "{line} in\n{paragraph}");
            // The list states the same bounds as the error.
            refused(
                &["compare", "--workload", &format!("{id}:{key}=-1")],
                &[&format!("`{key}=-1`: expected {expected}")],
            );
            keys.push(key);
        }
        let unknown = format!("no parameter `colour`; it has {}", keys.join(", "));
        refused(&["compare", "--workload", &format!("{id}:colour=1")], &[&unknown]);
    }
    assert!(shown.contains("tx = 0.0: share of receive buffers for which a transmit buffer"), "{shown}");
}

/// The buffers of a network card may be nearly empty.
#[test]
fn found_5_a_buffers_capacity_is_no_payload() {
    let receive = bundled(RECEIVE);
    let designs = ["--designs", "none,magazine", "--protection", "strict"];
    let of = |more: &[&str]| compared(&[&[receive.as_str()], &designs[..], more].concat());
    let shown = of(&[]);
    let strict = row(&shown, "magazine", "strict");
    let (least, most) = (float(strict, "estimate_gbps_min"), float(strict, "estimate_gbps"));
    assert!(least < 0.05 * most, "from a byte in each buffer to all of it: {least} to {most}");
    assert!(shown["advice"][0].as_str().is_some_and(|advice| advice.contains("Rates are ranges")));
    let said = of(&["--payload", "128"]);
    let strict = row(&said, "magazine", "strict");
    assert!(strict["estimate_gbps_min"].is_null() && float(strict, "estimate_gbps") < 0.2 * most, "{strict}");
    for (payload, complaint) in [("0", "a share above 0"), ("1.5", "bytes from 1 on"), ("all", "bytes from 1 on")] {
        let output = portcullis(&["compare", "--payload", payload]);
        assert_eq!(output.status.code(), Some(2), "{payload}");
        assert!(text(&output.stderr).contains(complaint), "{payload}: {}", text(&output.stderr));
    }
}

/// A disk has no link, and a network card has no limit of requests.
#[test]
fn found_5_disks_are_not_judged_by_a_link() {
    let disk = bundled(DISK);
    let of = |more: &[&str]| {
        let document = compared(&[&[disk.as_str(), "--designs", "none"], more].concat());
        row(&document, "none", "none").clone()
    };
    let alone = of(&[]);
    assert_eq!((&alone["traffic"], &alone["limit"]), (&"disk".into(), &"disk".into()), "{alone}");
    assert!(float(&alone, "estimate_gbps") < 30.0, "a hundred gigabits are no disk's: {alone}");
    let twice = of(&["--set", "disk_iops=1000"]);
    assert!((float(&twice, "estimate_operations_per_second") - 1000.0).abs() < 1e-6, "{twice}");
    let network = of(&["--set", "disk_iops=null", "--set", "disk_bytes_per_second=null"]);
    assert_eq!(network["traffic"], "network");
    assert_eq!(row(&compared(&[&bundled(RECEIVE), "--designs", "none"]), "none", "none")["traffic"], "network");
}

/// Each ring has its own core: one ring does not get the cores of five, and sixteen rings do not share five cores.
#[test]
fn found_5_as_many_cores_as_rings() {
    let unprotected = |count: u32, link: &str| {
        let workload = format!("rings:count={count},ring=64,operations=640");
        let document = compared(&["--workload", &workload, "--designs", "none", "--set", link]);
        float(row(&document, "none", "none"), "estimate_gbps")
    };
    let one = unprotected(1, "link_gbps=10000");
    for count in [5, 16] {
        let all = unprotected(count, "link_gbps=10000");
        assert!((all / one / f64::from(count) - 1.0).abs() < 0.01, "{count} rings carry {all}, one {one}");
    }
    assert!((unprotected(16, "link_gbps=25") - 25.0).abs() < 1e-6, "the link is still a limit");
}

/// If all designs are equal, the advice prefers none of them. What can be done today comes first.
#[test]
fn found_5_equal_designs_have_no_winner() {
    let document = compared(&[&bundled(DISK)]);
    let advice = document["advice"][0].as_str().expect("a paragraph");
    let first = advice.split(". ").next().unwrap_or_default();
    assert!(first.contains("next to nothing") && first.contains("`iommu.strict=1`"), "{first}");
    assert!(advice.contains("none is better here") && !advice.contains("Choose"), "{advice}");
    assert_eq!(document["best"][0]["strict"], serde_json::json!({"design": "magazine", "options": {}, "batch": 1}));
}

/// Full speed differs from the recorded speed: both are printed.
#[test]
fn found_5_the_recorded_speed_stands_next_to_full_speed() {
    let (receive, designs) = (bundled(RECEIVE), ["--designs", "magazine", "--protection", "strict"]);
    let of = |clock: &str| {
        let document = compared(&[&[receive.as_str(), "--clock", clock], &designs[..]].concat());
        row(&document, "magazine", "strict").clone()
    };
    let (model, trace) = (of("model"), of("trace"));
    let recorded = &model["recorded"];
    assert_eq!(float(recorded, "cycles_per_page"), float(&trace, "cycles_per_page"), "the same run");
    assert!(trace["recorded"].is_null());
    assert!(float(recorded, "cpu_percent") < 0.1 * float(&model, "estimate_cpu_percent"), "{model}");
}
