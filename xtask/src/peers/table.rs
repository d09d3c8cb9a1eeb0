//! Two tables of cycles by program and workload, with the ratios to Linux.

use super::results::{Contender, Results, Work};
use crate::columns::aligned;

/// A column: its heading, its work, and the goal: how many times fewer cycles than Linux `portcullis` should take.
type Column = (&'static str, Work<'static>, Option<f64>);

/// Workloads with one buffer at a time.
const SINGLES: [Column; 4] = [
    ("page-1", ("page-1", 1), Some(10.0)),
    ("page-1, 2 threads", ("page-1", 2), Some(14.0)),
    ("descriptor-64", ("descriptor-64", 1), Some(5.0)),
    ("cross-cpu", ("cross-cpu", 2), None),
];

/// Workloads with several buffers at a time, as drivers refill a ring, and units that do not snoop.
const BURSTS: [Column; 4] = [
    ("page-1-batch-64", ("page-1-batch-64", 1), None),
    ("ring-256", ("ring-256", 1), None),
    ("page-1-noncoherent", ("page-1-noncoherent", 1), None),
    ("batch-64-noncoherent", ("page-1-batch-64-noncoherent", 1), None),
];

/// The workload of the rows for single instructions, which the floor program prints beside its floors.
const INSTRUCTION: &str = "instruction";

/// The contender that all others are compared with.
const LINUX: Contender<'_> = ("linux-6.12", "strict");
/// The contender to which the goals apply.
const OURS: Contender<'_> = ("portcullis", "strict");

/// How many times as much as ours Linux takes.
fn reached(results: &Results, work: Work<'_>) -> Option<f64> {
    results.ratio(LINUX, OURS, work).map(|ratio| ratio.median)
}

/// The number of missed goals. A goal that was not measured counts as missed.
pub(super) fn missed(results: &Results) -> usize {
    let goals = SINGLES.iter().chain(&BURSTS).filter_map(|(_, work, goal)| Some((*work, (*goal)?)));
    goals.filter(|(work, goal)| !reached(results, *work).is_some_and(|ratio| ratio >= *goal)).count()
}

/// The tables of so many rounds with their notes; `version` is that of Linux.
pub(super) fn render(results: &Results, rounds: u32, version: &str) -> String {
    format!(
        "Cycles for a map and an unmap: the median of {rounds} rounds, with the lowest and the highest.\n\
         The factor beside them is how many times as much strict Linux {version} takes:\n\
         the median of the ratios of each round.\n\n\
         {}\n{}\n{}{}",
        table(results, &SINGLES),
        table(results, &BURSTS),
        notes(results),
        results.errors().iter().map(|error| format!("\nNot measured: {error}")).collect::<String>(),
    )
}

/// A table with a row for each contender that was measured in any of `columns`, and a row for the goals, if there
/// are any.
fn table(results: &Results, columns: &[Column]) -> String {
    let row = |name: &str, cell: &dyn Fn(&Column) -> String| {
        [name.to_owned()].into_iter().chain(columns.iter().map(cell)).collect::<Vec<_>>()
    };
    let mut rows = vec![row("", &|(heading, ..)| (*heading).to_owned())];
    for contender in results.contenders(|work| columns.iter().any(|(_, other, _)| *other == work)) {
        rows.push(row(&name(contender), &|(_, work, _)| cell(results, contender, *work)));
    }
    if columns.iter().any(|(.., goal)| goal.is_some()) {
        rows.push(row("portcullis against Linux", &|(_, work, wanted)| goal(reached(results, *work), *wanted)));
    }
    aligned(&rows)
}

fn name((design, protection): Contender<'_>) -> String {
    if protection == "none" { design.to_owned() } else { format!("{design} {protection}") }
}

fn cell(results: &Results, contender: Contender<'_>, work: Work<'_>) -> String {
    let Some(cycles) = results.cycles(contender, work) else { return "-".to_owned() };
    let number = |cycles: f64| if cycles < 100.0 { format!("{cycles:.1}") } else { format!("{cycles:.0}") };
    let ratio = results.ratio(LINUX, contender, work).map(|ratio| format!(" {:>6}", times(ratio.median)));
    let (median, least, most) = (number(cycles.median), number(cycles.least), number(cycles.most));
    format!("{median} [{least}..{most}]{}", ratio.unwrap_or_default())
}

fn times(ratio: f64) -> String {
    let digits = if ratio < 0.1 { 3 } else { usize::from(ratio < 100.0) };
    format!("{ratio:.digits$}x")
}

fn goal(reached: Option<f64>, goal: Option<f64>) -> String {
    match (reached, goal) {
        (_, None) => "-".to_owned(),
        (None, Some(goal)) => format!("not measured, goal {}", times(goal)),
        (Some(ratio), Some(goal)) => {
            let remark = if ratio >= goal { "met" } else { "missed" };
            format!("{}, goal {} {remark}", times(ratio), times(goal))
        }
    }
}

fn notes(results: &Results) -> String {
    let instructions = [1, 2].into_iter().flat_map(|threads| {
        let work = (INSTRUCTION, threads);
        let median = move |contender| Some((contender, results.cycles(contender, work)?.median));
        results.contenders(|other| other == work).into_iter().filter_map(median)
    });
    let instructions: Vec<String> = instructions.map(|((design, _), cycles)| format!("{design} {cycles:.0}")).collect();
    format!(
        "On this machine, in cycles: {}.\n\
         Cycles: {}.\n\
         With two threads, a column shows what each of them takes; for cross-cpu, what both take together,\n\
         without waiting. An invalidation is an empty function everywhere. linux-6.12-iova and the crates hand out\n\
         addresses and write no table; two threads share a crate's allocator behind a lock. Linux unmaps the\n\
         buffers of a burst one by one; our ring-256 uses the typed interface.\n\
         benches/peers/README.md lists what the peers leave out.",
        instructions.join(", "),
        results.cycles_from.iter().map(|from| cycles_from(from)).collect::<Vec<_>>().join("; "),
    )
}

fn cycles_from(from: &str) -> &str {
    match from {
        "counter" => "the machine's performance counters",
        "calibrated" => "time, with the length of a cycle from a chain of dependent additions right before and after",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::Results;
    use super::super::results::tests::document;
    use super::{missed, render};

    fn measured(portcullis: &[(&str, &str, u32, &str, f64)]) -> Results {
        let mut results = Results::default();
        results.add(
            1,
            document(&[
                ("linux-6.12", "strict", 1, "page-1", 300.0),
                ("linux-6.12", "strict", 2, "page-1", 420.0),
                ("linux-6.12", "strict", 1, "descriptor-64", 1000.0),
                ("linux-6.12", "deferred", 1, "page-1", 330.0),
                ("lock xadd", "none", 1, "instruction", 18.2),
            ]),
        );
        results.add(1, document(portcullis));
        results
    }

    /// The lines of a table, with one blank between words.
    fn lines(table: &str) -> Vec<String> {
        table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn goals_stand_beside_what_was_reached() {
        let (one, two) = (("portcullis", "strict", 1, "page-1", 25.0), ("portcullis", "strict", 2, "page-1", 35.0));
        let results = measured(&[one, two, ("portcullis", "strict", 1, "descriptor-64", 200.0)]);
        let table = render(&results, 1, "6.12.1");
        assert_eq!(missed(&results), 1, "{table}");
        for words in [
            "portcullis against Linux 12.0x, goal 10.0x met 12.0x, goal 14.0x missed 5.0x, goal 5.0x met -",
            "portcullis strict 25.0 [25.0..25.0] 12.0x 35.0 [35.0..35.0] 12.0x 200 [200..200] 5.0x -",
            "linux-6.12 deferred 330 [330..330] 0.9x - - -",
        ] {
            assert!(lines(&table).contains(&words.to_owned()), "{table}");
        }
        assert!(table.contains("lock xadd 18"), "{table}");
    }

    #[test]
    fn a_design_that_is_missing_is_a_row_less_and_meets_no_goal() {
        let results = measured(&[("stock", "strict", 1, "page-1", 3000.0)]);
        assert_eq!(missed(&results), 3);
        let lines = lines(&render(&results, 1, "6.12.1"));
        assert!(!lines.iter().any(|line| line.starts_with("portcullis strict")), "{lines:?}");
        assert!(lines.contains(&"stock strict 3000 [3000..3000] 0.1x - - -".to_owned()), "{lines:?}");
        assert!(lines.iter().any(|line| line.starts_with("portcullis against Linux not measured, goal 10.0x ")));
    }
}
