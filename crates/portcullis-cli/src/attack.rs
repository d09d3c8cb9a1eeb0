//! `portcullis attack`.

use crate::arguments::AttackArguments;
use crate::html::Target;
use crate::plan::{Head, Planned, progress_bar};
use crate::registry::Registry;
use crate::show::show;
use crate::table::{Column, NO_SUCH_HARDWARE, NO_SUCH_HARDWARE_NOTE, count, fitted, number, wrap};
use crate::works::Split;
use crate::{Failure, flat};
use portcullis::{Protection, Rule};
use portcullis_sim::attack::{self, AttackRow, Entry, Found};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeSet;
use std::io::{self, Write};

#[derive(Serialize)]
struct Document<'d> {
    schema: &'static str,
    #[serde(flatten)]
    head: Head<'d>,
    results: Vec<Entry<'d>>,
    violations: &'d [String],
    conclusions: &'d [String],
}

pub(crate) fn attack(arguments: &AttackArguments, registry: &Registry, out: &mut impl Write) -> Result<(), Failure> {
    let page = arguments.html.as_deref().map(|path| Target::new(path, arguments.plan.inputs())).transpose()?;
    let bar = progress_bar();
    let planned = Planned::new(&arguments.plan, registry, Split::Captures, &bar)?;
    bar.set_length(attack::runs(&planned.plan) as u64);
    bar.set_position(0);
    let rows = attack::execute(&planned.plan, |run| {
        bar.set_message(run.to_owned());
        bar.inc(1);
    });
    bar.finish_and_clear();
    let of_item = |item| rows.iter().filter(|row| row.item == item).collect::<Vec<_>>();
    let items: Vec<Vec<&AttackRow>> = (0..planned.plan.items.len()).map(of_item).collect();
    let conclusions: Vec<String> = items.iter().map(|rows| attack::conclude(rows)).collect();
    let mut violations: Vec<String> = rows.iter().flat_map(AttackRow::violations).collect();
    violations.extend(planned.untested(|item| items[item].iter().any(|row| row.attacked.error.is_none())));
    let document = Document {
        schema: "portcullis.attack/1",
        head: planned.head(Some(planned.plan.seed)),
        results: rows.iter().flat_map(AttackRow::entries).collect(),
        violations: &violations,
        conclusions: &conclusions,
    };
    let table = |out: &mut _| match arguments.csv {
        true => print_entries(out, &document.results),
        false => print(out, &planned, &items, &conclusions),
    };
    show(out, &document, page.as_ref(), arguments.json, table, &violations)
}

fn print_entries(out: &mut impl Write, entries: &[Entry<'_>]) -> io::Result<()> {
    let rows = entries.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>()?;
    // Keys that only some designs and some runs have.
    let template = json!({
        "between_halves": null, "in_burst_entries_max": null, "refused_maps": null, "given_up_maps": null, "error": null
    });
    flat::write(out, &template, &rows)
}

fn print(
    out: &mut impl Write,
    planned: &Planned<'_>,
    items: &[Vec<&AttackRow>],
    conclusions: &[String],
) -> io::Result<()> {
    for (index, (rows, conclusion)) in items.iter().zip(conclusions).enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        planned.print_head(out, index)?;
        print_rows(out, rows)?;
        writeln!(out, "\n{}", wrap(conclusion))?;
    }
    Ok(())
}

fn print_rows(out: &mut impl Write, rows: &[&AttackRow]) -> io::Result<()> {
    let columns = [
        Column::words("design"),
        Column::words("protection"),
        Column::numbers("got through\naccesses"),
        Column::numbers("window us\nmax"),
        Column::numbers("bound +\ngrace us").worth(5),
        Column::numbers("stale\nbytes·us").worth(4),
        Column::numbers("verdict"),
        Column::numbers("probes").worth(2),
        Column::numbers("cached\nat unmap").worth(3),
        Column::numbers("rest of pages\nbytes·us").worth(1),
    ];
    let mut table = Vec::new();
    let dash = || "-".to_owned();
    for row in rows {
        let attacked = &row.attacked;
        let number = |value: Option<f64>| value.map_or_else(dash, number);
        let each = |of: &dyn Fn(&Found) -> String| match attacked.found.as_slice() {
            [] => dash(),
            found => found.iter().map(of).collect::<Vec<_>>().join("\n"),
        };
        let bound = match attacked.bound_us {
            _ if row.protection == Protection::None => dash(),
            Some(us) if row.protection == Protection::Deferred => {
                format!("{} + {}", count(us), number(attacked.grace_us))
            }
            Some(us) => count(us),
            None => "none".to_owned(),
        };
        let mark = if row.choice.design.info().is_hypothetical() { NO_SUCH_HARDWARE } else { "" };
        table.push(vec![
            row.choice.to_string(),
            format!("{}{mark}", row.protection),
            each(&|found| format!("{} {}", found.rule, count(found.accesses))),
            each(&|found| number(found.window_us_max)),
            bound,
            each(&|found| number(found.bytes_us)),
            verdict_of(row),
            count(attacked.probes),
            attacked.probes_cached.map_or_else(dash, count),
            number(attacked.residual_bytes_us),
        ]);
    }
    writeln!(out, "{}", fitted(&columns, &table, "`--json` and `--csv` have all columns"))?;
    if rows.iter().any(|row| row.choice.design.info().is_hypothetical()) {
        writeln!(out, "{NO_SUCH_HARDWARE_NOTE}")?;
    }
    let broken: BTreeSet<Rule> = rows.iter().flat_map(|row| &row.attacked.found).map(|found| found.rule).collect();
    for rule in broken {
        writeln!(out, "{}", wrap(&format!("{rule}: {}.", attack::meaning(rule))))?;
    }
    Ok(())
}

/// One line for each rule, or one for the whole row.
fn verdict_of(row: &AttackRow) -> String {
    let attacked = &row.attacked;
    let of_rule = |found: &Found| if found.declared { "declared" } else { "UNDECLARED" };
    let mut verdicts: Vec<&str> = attacked.found.iter().map(of_rule).collect();
    if attacked.error.is_some() {
        verdicts.push("ENDED EARLY");
    } else if attacked.proves_nothing() {
        verdicts.push("PROVES NOTHING");
    } else if verdicts.is_empty() {
        verdicts.push("nothing");
    }
    verdicts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict;
    use portcullis::Rule;
    use portcullis_designs::DesignId;
    use portcullis_sim::LabDesign;
    use portcullis_sim::attack::{Attacked, PROBES_CACHED_MIN};
    use portcullis_sim::compare::Settings;

    fn row(protection: Protection, found: Vec<Found>, probes_cached: u64) -> AttackRow {
        let attacked = Attacked { found, probes_cached: Some(probes_cached), bound_us: Some(0), ..Attacked::default() };
        let choice = LabDesign::from(DesignId::Stock).into();
        let (trace, set) = ("a trace".to_owned(), Settings::new());
        AttackRow { item: 0, trace, choice, protection, sub_page: None, batch: 1, prefetcher: None, set, attacked }
    }

    fn found(declared: bool) -> Found {
        Found { rule: Rule::Strict, declared, accesses: 3, window_us_max: Some(1.5), bytes_us: Some(6.0) }
    }

    /// The exit status and the messages of a row's verdict.
    fn ends(row: &AttackRow) -> (u8, Vec<String>) {
        match verdict(&row.violations()) {
            Ok(()) => (0, Vec::new()),
            Err(failure) => (
                failure.status(),
                match failure {
                    Failure::Check(messages) => messages,
                    _ => panic!("a check, or nothing"),
                },
            ),
        }
    }

    #[test]
    fn an_undeclared_breach_is_a_failed_check() {
        let (status, said) = ends(&row(Protection::Strict, vec![found(false)], PROBES_CACHED_MIN));
        assert_eq!(status, 1);
        let expected =
            "stock strict: S2 broken by 3 accesses, up to 1.50 µs after hand-back, which it does not declare (a trace)";
        assert_eq!(said, [expected]);
    }

    #[test]
    fn a_declared_one_is_none_whether_or_not_it_is_found() {
        for found in [vec![found(true)], Vec::new()] {
            assert_eq!(ends(&row(Protection::Deferred, found, PROBES_CACHED_MIN)), (0, Vec::new()));
        }
        let unseen = row(Protection::Deferred, Vec::new(), PROBES_CACHED_MIN);
        assert!(attack::conclude(&[&unseen]).contains("declares that it breaks S2; this run did not find it broken"));
    }

    #[test]
    fn beyond_its_bound_a_declared_one_is_one() {
        let both = row(Protection::Deferred, vec![found(true), found(false)], PROBES_CACHED_MIN);
        assert_eq!(ends(&both).0, 1);
        assert_eq!(verdict_of(&both), "declared\nUNDECLARED");
    }

    #[test]
    fn too_little_cached_fails() {
        let (status, said) = ends(&row(Protection::Strict, Vec::new(), PROBES_CACHED_MIN - 1));
        assert!(status == 1 && said[0].contains("only 999 pages"), "{said:?}");
    }
}
