//! The other workloads on 1 to 16 cores: Linux's strict protection, and ours.

use super::super::served::ServedRun;
use super::{Bar, CHUNKS, Grid, Lab, R430, bar, percent_of_none};
use portcullis::Protection::Strict;

const CORES_SHOWN: [u32; 3] = [1, 4, 16];
const LINUX: Bar = bar("Linux", "magazine", Strict);

const WORKLOADS: [&str; 4] = ["netperf-stream", "apache-1m", "apache-1k", "memcached"];

/// The flows of a workload on so many cores.
fn flows(workload: &str, cores: u32) -> u32 {
    match workload {
        "netperf-stream" => cores,
        // Files of 1 MiB fill the link with one core.
        "apache-1m" => 32,
        _ => 16 * cores,
    }
}

pub(super) fn tables(lab: &Lab<'_>) -> [Grid; 2] {
    let names = CORES_SHOWN.map(|cores| cores.to_string());
    let of = |title: &str, quantity: &str, number: &dyn Fn(&ServedRun) -> f64| {
        let mut rows = Vec::new();
        for workload in WORKLOADS {
            for (design, linux_wait) in [(LINUX, true), (CHUNKS, false)] {
                let run =
                    |cores| ServedRun { cores, linux_wait, ..lab.run(R430, workload, flows(workload, cores), design) };
                rows.push((
                    format!("{workload}, {}", design.name),
                    CORES_SHOWN.map(|cores| number(&run(cores))).to_vec(),
                ));
            }
        }
        let rows: Vec<(&str, Vec<f64>)> = rows.iter().map(|(name, row)| (name.as_str(), row.clone())).collect();
        Grid::of(title, quantity, "cores", &names.each_ref().map(String::as_str), &rows)
    };
    [
        of("other workloads, strict", "percent of the unprotected rate on as many cores", &|run| {
            percent_of_none(lab, run)
        }),
        of("CPU time of the same", "percent of the cores", &|run| lab.of(run).cpu_percent),
    ]
}
