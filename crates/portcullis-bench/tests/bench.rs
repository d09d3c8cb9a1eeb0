//! `portcullis bench`: every design does every workload. No test depends on how long anything takes.

use portcullis_bench::{BenchDesign, BenchError, BenchPlan, Effort, Workload, execute, turns};
use portcullis_designs::{Choice, DesignId};
use serde_json::Value;
use std::thread::available_parallelism;

/// The least effort that shows that it works.
const LITTLE: Effort = Effort { samples: 2, sample_us: 1 };

fn threads() -> Vec<usize> {
    (1..=available_parallelism().map_or(1, usize::from).min(2)).collect()
}

/// Every row of every design is there, except those for which the machine lacks something.
#[test]
fn every_design_does_every_workload() {
    let plan = BenchPlan {
        designs: DesignId::ALL.iter().map(|design| BenchDesign::from(*design).into()).collect(),
        threads: threads(),
        workloads: Workload::ALL.to_vec(),
        effort: LITTLE,
    };
    let mut announced = 0;
    let done = execute(&plan, |_| announced += 1).expect("as many threads as CPUs");
    assert_eq!((done.len(), announced), (turns(&plan), turns(&plan)));
    for row in &done {
        let timed = match &row.outcome {
            Ok(timed) => timed,
            Err(BenchError::NoFlush) if row.workload.id().ends_with("noncoherent") => continue,
            Err(error) => panic!("{} {} {}: {error}", row.design(), row.protection, row.workload.id()),
        };
        assert_eq!(timed.samples, 2);
        assert!(timed.pairs_per_sample >= row.workload.period());
        assert_eq!(timed.queue.is_some(), row.workload == Workload::CrossCpu);
        assert!(row.workload != Workload::CrossCpu || row.threads == 2);
    }
}

/// Two rows of six samples take two turns each, alternately.
#[test]
fn rows_take_their_samples_by_turns() {
    let plan = BenchPlan {
        designs: [DesignId::Portcullis, DesignId::Magazine].map(|design| BenchDesign::from(design).into()).to_vec(),
        threads: vec![1],
        workloads: vec![Workload::Page1Typed],
        effort: Effort { samples: 6, ..LITTLE },
    };
    let mut seen = Vec::new();
    let rows = execute(&plan, |row| seen.push(row.to_owned())).expect("one thread");
    let [first, second] = ["portcullis", "magazine"].map(|design| format!("page-1-typed {design} strict 1"));
    assert_eq!(seen, [first.clone(), second.clone(), first, second]);
    assert_eq!(turns(&plan), seen.len());
    for row in rows {
        assert_eq!(row.outcome.expect("a row").samples, 6);
    }
}

#[test]
fn more_threads_than_cpus_are_refused() {
    let plan = BenchPlan { designs: Vec::new(), threads: vec![1 << 20], workloads: Vec::new(), effort: LITTLE };
    assert!(matches!(execute(&plan, |_| {}), Err(BenchError::Threads { asked: 1_048_576, .. })));
}

#[test]
fn a_row_in_json_has_every_key() {
    let eiovar = Choice::parse_among(&[BenchDesign::from(DesignId::Eiovar)], "eiovar:k=64");
    let eiovar = eiovar.expect("a design with a parameter");
    let plan = BenchPlan { designs: vec![eiovar], threads: vec![1], workloads: vec![Workload::Page1], effort: LITTLE };
    let rows = execute(&plan, |_| {}).expect("one thread");
    let rows = serde_json::to_value(&rows).expect("JSON");
    let row = &rows[0];
    for (key, value) in [("design", "eiovar"), ("protection", "strict"), ("workload", "page-1")] {
        assert_eq!(row[key], value);
    }
    assert_eq!((&row["options"]["k"], &row["threads"]), (&Value::from(64), &Value::from(1)));
    for key in ["ns_per_pair", "ns_per_pair_min", "ns_per_pair_p90", "pairs_per_sample", "samples"] {
        assert!(row[key].as_f64().is_some_and(|number| number > 0.0), "{key}: {row}");
    }
    for key in ["cycles_per_pair", "cycles_per_pair_min", "cycles_per_pair_p90", "instructions_per_pair"] {
        let value = row.get(key).unwrap_or_else(|| panic!("{key}: {row}"));
        assert!(value.is_null() || value.as_f64().is_some_and(|number| number > 0.0), "{key}: {row}");
    }
    for key in ["queue_ns_per_pair", "queue_cycles_per_pair", "error"] {
        assert_eq!(row.get(key), Some(&Value::Null), "{key}");
    }
}

#[test]
fn workloads_have_names() {
    for workload in Workload::ALL {
        assert_eq!(Workload::by_id(workload.id()), Ok(workload));
    }
    let error = Workload::by_id("page-2").expect_err("no such workload").to_string();
    assert!(error.starts_with("no workload `page-2`; there are: page-1, page-1-queued,"), "{error}");
}
