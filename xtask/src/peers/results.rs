//! The output of the programs, round by round.

use super::build::Program;
use crate::failure::Failure;
use crate::process;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

const SCHEMA: &str = "portcullis.bench/1";

/// The document that `portcullis bench --json` and each peer print.
#[derive(Debug, Deserialize)]
pub(super) struct Document {
    schema: String,
    /// The source of cycle counts, if the program names it.
    cycles_from: Option<String>,
    results: Vec<Row>,
}

/// A line of a document.
#[derive(Debug, Deserialize)]
struct Row {
    design: String,
    protection: String,
    threads: u32,
    workload: String,
    /// `None` if the machine cannot count cycles.
    cycles_per_pair: Option<f64>,
    /// Why the row has no counts.
    error: Option<String>,
}

impl Row {
    fn contender(&self) -> Contender<'_> {
        (&self.design, &self.protection)
    }

    fn work(&self) -> Work<'_> {
        (&self.workload, self.threads)
    }
}

/// A design under a protection.
pub(super) type Contender<'r> = (&'r str, &'r str);
/// What is measured: a workload and a number of threads.
pub(super) type Work<'r> = (&'r str, u32);

/// All measurements.
#[derive(Default)]
pub(super) struct Results {
    /// The lines of all documents, each with its round.
    rows: Vec<(u32, Row)>,
    /// The sources of cycle counts, without repetitions.
    pub(super) cycles_from: Vec<String>,
}

/// The median of several values, the lowest and the highest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

/// Runs a program and parses its document. A program that ends with a failed check has still measured the other rows.
pub(super) fn run(program: &Program) -> Result<Document, Failure> {
    let name = program.path.display().to_string();
    let mut command = Command::new(&program.path);
    let output = process::run(command.args(&program.arguments).stderr(Stdio::inherit()))?;
    let checks_failed = output.status.code() == Some(1) && !output.stdout.is_empty();
    if !output.status.success() && !checks_failed {
        let command = format!("{name} {}", program.arguments.join(" "));
        return Err(Failure::Stage { stage: "measure".to_owned(), command });
    }
    parse(&output.stdout).map_err(Failure::contents(&program.path))
}

fn parse(document: &[u8]) -> Result<Document, String> {
    let document: Document = serde_json::from_slice(document).map_err(|error| error.to_string())?;
    if document.schema == SCHEMA { Ok(document) } else { Err(format!("prints {}, not {SCHEMA}", document.schema)) }
}

impl Results {
    /// Adds a document of a round.
    pub(super) fn add(&mut self, round: u32, document: Document) {
        self.cycles_from.extend(document.cycles_from.filter(|from| !self.cycles_from.contains(from)));
        self.rows.extend(document.results.into_iter().map(|row| (round, row)));
    }

    /// What was not measured in some round, with the first reason.
    pub(super) fn errors(&self) -> Vec<String> {
        let mut errors = BTreeMap::new();
        for (_, row) in &self.rows {
            if let Some(error) = &row.error {
                errors.entry((row.contender(), row.work())).or_insert(error);
            }
        }
        let line = |(((design, protection), (workload, threads)), error)| {
            format!("{design} {protection}, {workload}, threads {threads}: {error}")
        };
        errors.into_iter().map(line).collect()
    }

    /// The contenders that were measured at a work for which `wanted` holds, in order of appearance.
    pub(super) fn contenders(&self, wanted: impl Fn(Work<'_>) -> bool) -> Vec<Contender<'_>> {
        let mut contenders = Vec::new();
        for (_, row) in self.rows.iter().filter(|(_, row)| wanted(row.work())) {
            contenders.extend(Some(row.contender()).filter(|contender| !contenders.contains(contender)));
        }
        contenders
    }

    /// Cycles per pair, by round.
    fn series(&self, contender: Contender<'_>, work: Work<'_>) -> BTreeMap<u32, f64> {
        let rows = self.rows.iter().filter(|(_, row)| row.contender() == contender && row.work() == work);
        rows.filter_map(|(round, row)| Some((*round, row.cycles_per_pair?))).collect()
    }

    /// Cycles per pair.
    pub(super) fn cycles(&self, contender: Contender<'_>, work: Work<'_>) -> Option<Spread> {
        Spread::of(self.series(contender, work).into_values())
    }

    /// The ratio of the cycles of `other` to those of `contender`. The ratio is formed round by round, because a
    /// disturbance of a round affects both.
    pub(super) fn ratio(&self, other: Contender<'_>, contender: Contender<'_>, work: Work<'_>) -> Option<Spread> {
        let own = self.series(contender, work);
        let other = self.series(other, work).into_iter();
        Spread::of(other.filter_map(|(round, cycles)| Some(cycles / own.get(&round)?)))
    }
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let median = if values.len() % 2 == 1 { values[half] } else { (values[half - 1] + values[half]) / 2.0 };
        Some(Self { median, least, most })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{Document, Results, Spread, parse};

    /// A document in the programs' format, with these designs, protections, threads, workloads and cycles.
    pub(in crate::peers) fn document(rows: &[(&str, &str, u32, &str, f64)]) -> Document {
        let rows = rows.iter().map(|(design, protection, threads, workload, cycles)| {
            format!(
                r#"{{"design": "{design}", "protection": "{protection}", "threads": {threads}, "workload": "{workload}",
                    "ns_per_pair": 1.5, "cycles_per_pair": {cycles}, "instructions_per_pair": null}}"#
            )
        });
        let rows = rows.collect::<Vec<_>>().join(", ");
        parse(format!(r#"{{"schema": "portcullis.bench/1", "results": [{rows}]}}"#).as_bytes()).expect("a document")
    }

    #[test]
    fn a_row_with_an_error_has_no_cycles_and_says_why() {
        let text = br#"{"schema": "portcullis.bench/1", "cycles_from": "counter", "results": [{"design": "stock", "protection": "strict",
            "threads": 2, "workload": "cross-cpu", "ns_per_pair": null, "cycles_per_pair": null, "error": "wrong"}]}"#;
        let mut results = Results::default();
        results.add(1, parse(text).expect("a document"));
        assert_eq!(results.cycles(("stock", "strict"), ("cross-cpu", 2)), None);
        assert_eq!(results.errors(), ["stock strict, cross-cpu, threads 2: wrong"]);
        assert_eq!(results.cycles_from, ["counter"]);
        for other in ["{\"schema\": \"portcullis.compare/1\", \"results\": []}", "{\"schema\": \"portcullis.bench/1\"}"]
        {
            assert!(parse(other.as_bytes()).is_err(), "{other}");
        }
    }

    #[test]
    fn ratios_pair_the_rounds() {
        let mut results = Results::default();
        for (round, peer, own) in [(1, 300.0, 30.0), (2, 900.0, 60.0), (3, 330.0, 30.0)] {
            results.add(round, document(&[("linux", "strict", 1, "page-1", peer)]));
            results.add(round, document(&[("portcullis", "strict", 1, "page-1", own)]));
        }
        // A contender that was not measured in a round has no part in it.
        results.add(2, document(&[("stock", "strict", 1, "page-1", 450.0)]));
        let (linux, ours, page) = (("linux", "strict"), ("portcullis", "strict"), ("page-1", 1));
        assert_eq!(results.cycles(linux, page), Some(Spread { median: 330.0, least: 300.0, most: 900.0 }));
        assert_eq!(results.ratio(linux, ours, page), Some(Spread { median: 11.0, least: 10.0, most: 15.0 }));
        assert_eq!(results.ratio(linux, ("stock", "strict"), page).map(|ratio| ratio.median), Some(2.0));
        assert_eq!(results.ratio(linux, ours, ("page-1", 2)), None);
        assert_eq!(results.cycles(("eiovar", "strict"), page), None);
        assert_eq!(results.contenders(|_| true), [linux, ours, ("stock", "strict")]);
    }
}
