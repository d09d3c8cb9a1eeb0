//! Tests the rules on constructed rows.

use super::ranking::Ranking;
use super::{Answer, Today, text};
use crate::compare::{CompareRow, Device, Item, Measurement, Settings};
use crate::machine::Machine;
use crate::outcome::{Recorded, RunOutcome};
use crate::run::Work;
use portcullis::Protection;
use portcullis::mapper::Options;

fn row(design: &'static str, batch: usize, share: f64, cycles_per_page: f64) -> CompareRow {
    let outcome = RunOutcome {
        estimate_vs_none_range: [share, share],
        share_of_shortest: share,
        cycles_per_page,
        ..RunOutcome::default()
    };
    CompareRow {
        item: 0,
        trace: "a trace".to_owned(),
        device: None,
        design,
        options: Options::NONE,
        no_such_hardware: design == "riommu",
        protection: Protection::Strict,
        sub_page: None,
        batch,
        prefetcher: None,
        set: Settings::new(),
        outcome: Measurement::Done(Box::new(outcome)),
    }
}

fn best(rows: &[CompareRow], batch: Option<usize>) -> (&'static str, usize) {
    let best = Ranking::of(rows, Protection::Strict, batch).best().expect("a strict run");
    (best.row.design, best.row.batch)
}

#[test]
fn the_simplest_wins_a_tie() {
    let mut rows =
        vec![row("portcullis", 64, 1.0, 100.0), row("identity", 1, 0.995, 200.0), row("magazine", 1, 0.985, 900.0)];
    assert_eq!(best(&rows, None), ("magazine", 1));
    rows.pop();
    assert_eq!(best(&rows, None), ("identity", 1), "no drivers to change");
    // Among equally simple runs, the cheapest wins.
    rows.push(row("eiovar", 1, 0.999, 199.0));
    assert_eq!(best(&rows, None), ("eiovar", 1));
    assert_eq!(Ranking::of(&rows, Protection::Strict, None).tied.len(), 3);
}

#[test]
fn what_is_better_by_more_than_a_tie_wins() {
    let rows = [row("portcullis", 64, 0.90, 100.0), row("identity", 1, 0.87, 200.0), row("magazine", 1, 0.5, 900.0)];
    assert_eq!(best(&rows, None), ("portcullis", 64));
    assert_eq!(best(&rows, Some(1)), ("identity", 1), "at equal batches");
    assert!(Ranking::of(&rows, Protection::Deferred, None).best().is_none());
}

#[test]
fn a_range_counts_by_its_lower_end() {
    let mut rows = [row("portcullis", 1, 0.98, 100.0), row("magazine", 1, 0.99, 200.0)];
    let Measurement::Done(outcome) = &mut rows[1].outcome else { unreachable!("it was done") };
    (outcome.estimate_vs_none_range[0], outcome.share_of_shortest) = (0.7, 0.7);
    assert_eq!(best(&rows, None), ("portcullis", 1));
}

#[test]
fn neither_hardware_that_does_not_exist_wins_nor_what_failed_a_check() {
    let mut rows = [row("riommu", 1, 1.0, 1.0), row("eiovar", 1, 0.99, 1.0), row("magazine", 1, 0.2, 200.0)];
    let Measurement::Done(outcome) = &mut rows[1].outcome else { unreachable!("it was done") };
    outcome.stale_accesses = 1;
    assert_eq!(best(&rows, None), ("magazine", 1));
}

/// Without a bound, nothing says when the device loses a buffer: such a run is not chosen, however cheap it is.
#[test]
fn what_has_no_bound_is_never_chosen() {
    let deferred = |design, share, bound_us| {
        let mut row = CompareRow { protection: Protection::Deferred, ..row(design, 1, share, 10.0) };
        let Measurement::Done(outcome) = &mut row.outcome else { unreachable!("it was done") };
        (outcome.bound_us, outcome.stale_window_us_max) = (bound_us, Some(1.0));
        row
    };
    let rows = [deferred("page-pool", 1.0, None), deferred("stock", 0.5, Some(10_000)), row("eiovar", 1, 0.3, 900.0)];
    let chosen = Ranking::of(&rows, Protection::Deferred, None).best().expect("a deferred run");
    assert_eq!(chosen.row.design, "stock");
    assert!(!said(&rows).contains("page-pool"), "{}", said(&rows));
    assert!(said(&[rows[0].clone(), rows[2].clone()]).contains("no deferred run here has a bound on its window"));
    assert!(said(&rows[..1]).contains("to choose whose window has a bound"));
}

/// The advice for `rows`.
fn said(rows: &[CompareRow]) -> String {
    text::of(rows, &item(None), None)
}

fn item(device: Option<Device>) -> Item {
    let work = Work::parse("rings").expect("a workload");
    let machine = Machine::by_id("cascadelake-cx5").expect("a machine");
    Item { name: "a trace".to_owned(), device, work, machine, set: Settings::new() }
}

/// Linux as it is at these shares of the unprotected rate, and no protection.
fn linux_at(lazy: f64, strict: f64) -> Vec<CompareRow> {
    let protected = |protection, share| CompareRow { protection, ..row("magazine", 1, share, 1000.0) };
    vec![protected(Protection::None, 1.0), protected(Protection::Deferred, lazy), protected(Protection::Strict, strict)]
}

fn lines(rows: &[CompareRow], item: &Item, today: Today) -> Vec<String> {
    let answer = Answer::of(rows, item, today, None).expect("Linux was run");
    answer.lines.into_iter().map(|line| line.text).collect()
}

#[test]
fn the_answer_goes_from_what_the_host_runs() {
    let rows = linux_at(0.8, 0.4);
    let alone = item(None);
    let answer = |today| Answer::of(&rows, &alone, today, None).expect("Linux was run");
    assert_eq!(answer(Today::Lazy).rate_vs_today_range, [0.5, 0.5]);
    assert_eq!(answer(Today::Unprotected).rate_vs_today_range, [0.4, 0.4]);
    let [cost, _, risk, remedy, _] = lines(&rows, &alone, Today::Lazy).try_into().expect("five");
    assert!(cost.contains("50 % of today's rate") && risk.contains("While it stays lazy"), "{cost} {risk}");
    assert!(remedy.contains("stay lazy") && remedy.contains("DMA-FQ"), "{remedy}");
    let [cost, _, risk, remedy, _] = lines(&rows, &alone, Today::Unprotected).try_into().expect("five");
    assert!(cost.contains("60 % of today's rate") && risk.contains("reaches all memory"), "{cost} {risk}");
    // The option alone does nothing if the IOMMU does not translate.
    assert!(remedy.contains("iommu.passthrough=0") && remedy.contains("costs 20 %"), "{remedy}");
    assert!(Answer::of(&rows[..2], &alone, Today::Lazy, None).is_none(), "there is nothing to go to");
}

#[test]
fn a_device_beside_others_is_made_strict_without_them() {
    let rows = linux_at(1.0, 0.99);
    let device = |active_share| item(Some(Device { name: "0000:5e:00.0".to_owned(), active_share }));
    let remedy = |item: &Item| lines(&rows, item, Today::Lazy)[3].clone();
    let alone = remedy(&device(None));
    assert!(alone.contains("iommu.strict=1") && !alone.contains("iommu_groups"), "{alone}");
    let beside = remedy(&device(Some(0.5)));
    for part in ["DMA-FQ", "for each of those", "/sys/bus/pci/devices/0000:5e:00.0/iommu_group"] {
        assert!(beside.contains(part), "{part} in {beside}");
    }
    // The advice below the tables names the switch of the group too.
    assert!(text::of(&rows, &device(Some(0.5)), None).contains("iommu_groups"));
    assert!(text::of(&rows, &device(None), None).contains("kernel option `iommu.strict=1`"));
}

/// The row with its cost at the recorded speed.
fn recorded(mut row: CompareRow, cycles_per_page: f64) -> CompareRow {
    let Measurement::Done(outcome) = &mut row.outcome else { unreachable!("it was done") };
    let recorded =
        Recorded { cycles_per_page, cpu_percent: 1.0, stale_window_us_max: Some(0.0), batch_wait_us_mean: None };
    outcome.recorded = Some(recorded);
    row
}

#[test]
fn another_order_at_the_recorded_speed_is_said() {
    let rows = |identity| {
        [recorded(row("magazine", 1, 0.5, 900.0), 900.0), recorded(row("identity", 1, 0.6, 800.0), identity)]
    };
    let reversed = said(&rows(1000.0));
    assert!(
        reversed.contains("At the recorded speed the order is another: there `magazine` is the cheapest"),
        "{reversed}"
    );
    assert!(!said(&rows(800.0)).contains("the order is another"));
}

#[test]
fn where_all_are_equal_none_is_the_winner() {
    let today =
        said(&[row("magazine", 1, 1.0, 900.0), row("identity", 1, 1.0, 100.0), row("portcullis", 64, 1.0, 10.0)]);
    assert!(today.starts_with("Turn strict protection on") && today.contains("it is no better here"), "{today}");
    assert!(!today.contains("`portcullis`") && !today.contains("`identity`"), "{today}");
    let others = said(&[row("identity", 1, 0.9, 100.0), row("eiovar", 1, 0.9, 10.0)]);
    assert!(others.contains("none is better") && !others.contains("Choose"), "{others}");
}

#[test]
fn what_lowers_the_cost_is_named_at_equal_batches() {
    let batched = [row("magazine", 64, 0.6, 600.0), row("portcullis", 64, 0.9, 100.0)];
    let single = [row("magazine", 1, 0.5, 900.0), row("identity", 1, 0.515, 890.0)];
    let text = said(&[&single[..], &batched].concat());
    assert!(
        text.starts_with("Strict protection with Linux as it is (`magazine`, kernel option `iommu.strict=1`) costs"),
        "{text}"
    );
    assert!(text.contains("in batches of up to 64, and a kernel that is changed to `portcullis`"), "{text}");
    assert!(text.contains("where `magazine` in the same batches would cost 40 %"), "{text}");
    // A run within a tie does not lower the cost.
    assert!(!text.contains("`identity`"), "{text}");
    assert!(said(&single).contains("No other design here makes strict cheaper"), "{}", said(&single));
}

/// The row with the cost of its batches.
fn waiting(mut row: CompareRow, buffers: f64) -> CompareRow {
    let Measurement::Done(outcome) = &mut row.outcome else { unreachable!("it was done") };
    (outcome.batch_buffers_mean, outcome.batch_buffers_max) = (Some(buffers), Some(64));
    (outcome.batch_wait_us_mean, outcome.batch_wait_us_max) = (Some(5.0), Some(50.0));
    row
}

#[test]
fn batches_are_named_with_their_price_and_todays_design_may_batch_as_well() {
    let single = [row("magazine", 1, 0.8, 900.0), row("identity", 1, 0.95, 100.0)];
    let text = said(&[&single[..], &[waiting(row("portcullis", 64, 0.99, 50.0), 9.0)]].concat());
    assert!(
        text.contains("changed to `portcullis` (1 % instead; the price of batches: one holds 9.00 buffers"),
        "{text}"
    );
    // Batches that gain no more than a tie do not justify new drivers.
    let text = said(&[&single[..], &[waiting(row("portcullis", 64, 0.96, 50.0), 9.0)]].concat());
    assert!(text.contains("`identity`") && !text.contains("`portcullis`"), "{text}");
    let text = said(&[single[0].clone(), waiting(row("magazine", 64, 0.9, 300.0), 8.0)]);
    assert!(text.contains("drivers that unmap in batches of up to 64, with `magazine` (10 % instead"), "{text}");
}

#[test]
fn of_a_tie_the_simplest_that_is_better_than_today_is_named() {
    let text = said(&[row("magazine", 1, 0.9, 900.0), row("eiovar", 1, 0.93, 900.0), row("identity", 1, 0.915, 800.0)]);
    assert!(text.contains("a kernel that is changed to `eiovar` (7 % instead)"), "{text}");
}

#[test]
fn todays_design_is_not_spoken_of_where_it_failed_a_check() {
    let mut rows = [row("magazine", 1, 1.0, 900.0), row("identity", 1, 0.9, 100.0)];
    let Measurement::Done(outcome) = &mut rows[0].outcome else { unreachable!("it was done") };
    outcome.faults = 1;
    let text = said(&rows);
    assert!(text.starts_with("Choose `identity`") && !text.contains("iommu.strict=1"), "{text}");
}

#[test]
fn a_deferred_design_with_a_shorter_window_is_named_if_it_costs_no_more() {
    let deferred = |design, share, bound_us| {
        let mut row = CompareRow { protection: Protection::Deferred, ..row(design, 1, share, 100.0) };
        let Measurement::Done(outcome) = &mut row.outcome else { unreachable!("it was done") };
        (outcome.bound_us, outcome.stale_window_us_max) = (Some(bound_us), Some(1.0));
        row
    };
    let rows =
        |share| [row("magazine", 1, 0.5, 900.0), deferred("magazine", 0.9, 10_000), deferred("portcullis", share, 500)];
    assert!(
        said(&rows(0.89)).contains("bound the window by 500 µs + 0 µs instead of 10,000 µs + 0 µs"),
        "{}",
        said(&rows(0.89))
    );
    assert!(!said(&rows(0.8)).contains("bound the window"));
}
