//! The output of the programs, round by round.

use super::build::Program;
use crate::failure::Failure;
use serde::Deserialize;
use std::process::{Command, Stdio};

const SCHEMA: &str = "portcullis.bench/1";

/// The document that `portcullis bench --json` and each peer print.
#[derive(Debug, Deserialize)]
pub(super) struct Document {
    schema: String,
    /// The source of cycle counts, if the program names it.
    cycles_from: Option<String>,
    results: Vec<Measured>,
}

/// A line of a document.
#[derive(Debug, Deserialize)]
struct Measured {
    design: String,
    protection: String,
    threads: u32,
    workload: String,
    /// `None` if the machine cannot count cycles.
    cycles_per_pair: Option<f64>,
    /// Why the row has no counts.
    error: Option<String>,
}

/// What is measured: a workload and a number of threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) workload: String,
    pub(super) threads: u32,
}

/// A design under a protection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contender {
    pub(super) design: String,
    pub(super) protection: String,
}

/// Cycles per pair of one contender at one work, by round; `None` for a round in which they were not measured.
struct Series {
    contender: Contender,
    work: Work,
    rounds: Vec<Option<f64>>,
}

/// All measurements.
#[derive(Default)]
pub(super) struct Results {
    ended_rounds: usize,
    series: Vec<Series>,
    /// The sources of cycle counts, without repetitions.
    pub(super) cycles_from: Vec<String>,
    /// What was not measured in some round, with the first reason.
    pub(super) errors: Vec<String>,
}

/// The median of several values, the lowest and the highest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

/// Runs a program and parses its document. A program that ends with a failed check has still measured the other
/// rows.
pub(super) fn run(program: &Program) -> Result<Document, Failure> {
    let name = program.path.display().to_string();
    let output = Command::new(&program.path)
        .args(&program.arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| Failure::Program { program: name.clone(), error })?;
    let checks_failed = output.status.code() == Some(1) && !output.stdout.is_empty();
    if !output.status.success() && !checks_failed {
        let command = format!("{name} {}", program.arguments.join(" "));
        return Err(Failure::Stage { stage: "measure".to_owned(), command });
    }
    parse(&output.stdout).map_err(|reason| Failure::Contents { path: program.path.clone(), reason })
}

fn parse(document: &[u8]) -> Result<Document, String> {
    let document: Document = serde_json::from_slice(document).map_err(|error| error.to_string())?;
    if document.schema == SCHEMA { Ok(document) } else { Err(format!("prints {}, not {SCHEMA}", document.schema)) }
}

impl Results {
    /// Adds a document to the present round.
    pub(super) fn add(&mut self, document: Document) {
        self.cycles_from.extend(document.cycles_from.filter(|from| !self.cycles_from.contains(from)));
        for Measured { design, protection, threads, workload, cycles_per_pair, error } in document.results {
            if let Some(error) = error {
                let row = format!("{design} {protection}, {workload}, threads {threads}: ");
                if !self.errors.iter().any(|earlier| earlier.starts_with(&row)) {
                    self.errors.push(row + &error);
                }
            }
            let (contender, work) = (Contender { design, protection }, Work { workload, threads });
            let known = self.series.iter().position(|series| series.contender == contender && series.work == work);
            let at = known.unwrap_or_else(|| {
                self.series.push(Series { contender, work, rounds: Vec::new() });
                self.series.len() - 1
            });
            let rounds = &mut self.series[at].rounds;
            rounds.resize(self.ended_rounds, None);
            rounds.push(cycles_per_pair);
        }
    }

    pub(super) fn end_round(&mut self) {
        self.ended_rounds += 1;
        self.series.iter_mut().for_each(|series| series.rounds.resize(self.ended_rounds, None));
    }

    pub(super) fn rounds(&self) -> usize {
        self.ended_rounds
    }

    /// The contenders that were measured at a work for which `wanted` holds, in order of appearance.
    pub(super) fn contenders(&self, wanted: impl Fn(&Work) -> bool) -> Vec<&Contender> {
        let mut contenders: Vec<&Contender> = Vec::new();
        for series in self.series.iter().filter(|series| wanted(&series.work)) {
            if !contenders.contains(&&series.contender) {
                contenders.push(&series.contender);
            }
        }
        contenders
    }

    fn series(&self, contender: &Contender, work: &Work) -> Option<&Series> {
        self.series.iter().find(|series| series.contender == *contender && series.work == *work)
    }

    /// Cycles per pair.
    pub(super) fn cycles(&self, contender: &Contender, work: &Work) -> Option<Spread> {
        Spread::of(self.series(contender, work)?.rounds.iter().copied().flatten().collect())
    }

    /// The ratio of the cycles of `other` to those of `contender`. The ratio is formed round by round, because a
    /// disturbance of a round affects both.
    pub(super) fn ratio(&self, other: &Contender, contender: &Contender, work: &Work) -> Option<Spread> {
        let pairs = self.series(other, work)?.rounds.iter().zip(&self.series(contender, work)?.rounds);
        Spread::of(pairs.filter_map(|(other, own)| Some(other.as_ref()? / own.as_ref()?)).collect())
    }
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let half = values.len() / 2;
        let median = if values.len() % 2 == 1 { values[half] } else { (values[half - 1] + values[half]) / 2.0 };
        Some(Self { median, least, most })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::{Contender, Document, Results, Spread, Work, parse};

    pub(in crate::peers) fn contender(design: &str, protection: &str) -> Contender {
        Contender { design: design.to_owned(), protection: protection.to_owned() }
    }

    pub(in crate::peers) fn work(workload: &str, threads: u32) -> Work {
        Work { workload: workload.to_owned(), threads }
    }

    /// A document in the programs' format, with these designs, protections, threads, workloads and cycles.
    pub(in crate::peers) fn document(rows: &[(&str, &str, u32, &str, f64)]) -> Document {
        let rows: Vec<String> = rows
            .iter()
            .map(|(design, protection, threads, workload, cycles)| {
                format!(
                    r#"{{"design": "{design}", "protection": "{protection}", "threads": {threads}, "workload": "{workload}",
                        "ns_per_pair": 1.5, "cycles_per_pair": {cycles}, "instructions_per_pair": null}}"#
                )
            })
            .collect();
        let text = format!(r#"{{"schema": "portcullis.bench/1", "results": [{}]}}"#, rows.join(", "));
        parse(text.as_bytes()).expect("a document")
    }

    #[test]
    fn another_document_is_refused() {
        assert!(parse(br#"{"schema": "portcullis.compare/1", "results": []}"#).is_err());
        assert!(parse(br#"{"schema": "portcullis.bench/1"}"#).is_err());
    }

    #[test]
    fn a_row_with_an_error_has_no_cycles_and_says_why() {
        let text = br#"{"schema": "portcullis.bench/1", "cycles_from": "counter", "results": [{"design": "stock", "protection": "strict",
            "threads": 2, "workload": "cross-cpu", "ns_per_pair": null, "cycles_per_pair": null, "error": "wrong"}]}"#;
        let mut results = Results::default();
        results.add(parse(text).expect("a document"));
        results.end_round();
        assert_eq!(results.cycles(&contender("stock", "strict"), &work("cross-cpu", 2)), None);
        assert_eq!(results.errors, ["stock strict, cross-cpu, threads 2: wrong"]);
        assert_eq!(results.cycles_from, ["counter"]);
    }

    #[test]
    fn ratios_pair_the_rounds() {
        let mut results = Results::default();
        for (peer, own) in [(300.0, 30.0), (900.0, 60.0), (330.0, 30.0)] {
            results.add(document(&[("linux", "strict", 1, "page-1", peer)]));
            results.add(document(&[("portcullis", "strict", 1, "page-1", own)]));
            results.end_round();
        }
        let (linux, portcullis) = (contender("linux", "strict"), contender("portcullis", "strict"));
        let page = work("page-1", 1);
        assert_eq!(results.cycles(&linux, &page), Some(Spread { median: 330.0, least: 300.0, most: 900.0 }));
        let ratio = results.ratio(&linux, &portcullis, &page);
        assert_eq!(ratio, Some(Spread { median: 11.0, least: 10.0, most: 15.0 }));
        assert_eq!(results.contenders(|_| true), [&linux, &portcullis]);
    }

    #[test]
    fn who_was_not_measured_in_a_round_has_no_part_in_it() {
        let mut results = Results::default();
        results.add(document(&[("linux", "strict", 1, "page-1", 300.0)]));
        results.end_round();
        results.add(document(&[("linux", "strict", 1, "page-1", 400.0), ("stock", "strict", 1, "page-1", 200.0)]));
        results.end_round();
        let (linux, stock) = (contender("linux", "strict"), contender("stock", "strict"));
        let ratio = results.ratio(&linux, &stock, &work("page-1", 1)).expect("one round has both");
        assert_eq!(ratio.median, 2.0);
        assert_eq!(results.ratio(&linux, &stock, &work("page-1", 2)), None);
        assert_eq!(results.cycles(&contender("eiovar", "strict"), &work("page-1", 1)), None);
    }
}
