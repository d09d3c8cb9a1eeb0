//! `list workloads` named parameters and explained none.

use super::super::bad_input::refused;
use super::super::{json, printed};
use serde_json::Value;

#[test]
fn found_5_every_parameter_of_a_workload_is_explained() {
    let document = json(&["list", "workloads", "--json"]);
    let text = printed(&["list", "workloads"]);
    let workloads = document["workloads"].as_array().expect("workloads");
    assert_eq!(workloads.len(), 2);
    for workload in workloads {
        let string = |of: &Value, key: &str| of[key].as_str().unwrap_or_else(|| panic!("{key}: {of}")).to_owned();
        let id = string(workload, "id");
        let paragraph =
            text.split("\n\n").find(|paragraph| paragraph.lines().next() == Some(&id)).expect("a paragraph");
        assert!(paragraph.contains(&string(workload, "description")), "{paragraph}");
        let defaults = workload["defaults"].as_object().expect("defaults");
        let parameters = workload["parameters"].as_array().expect("parameters");
        assert_eq!(parameters.len(), defaults.len(), "{id}");
        let mut keys = Vec::new();
        for parameter in parameters {
            let [key, expected, description] = ["key", "expected", "description"].map(|key| string(parameter, key));
            assert_eq!(defaults.get(&key), Some(&parameter["default"]), "{id}: {key}");
            let line = format!("  parameter     {key} = {}: {description}; {expected}", parameter["default"]);
            assert!(paragraph.lines().any(|found| found == line), "{line} in\n{paragraph}");
            // What the list says is what is refused.
            refused(
                &["compare", "--workload", &format!("{id}:{key}=-1")],
                &[&format!("`{key}=-1`: expected {expected}")],
            );
            keys.push(key);
        }
        let unknown = format!("no parameter `colour`; it has {}", keys.join(", "));
        refused(&["compare", "--workload", &format!("{id}:colour=1")], &[&unknown]);
    }
    assert!(text.contains("tx = 0.0: share of receive buffers for which a transmit buffer"), "{text}");
}
