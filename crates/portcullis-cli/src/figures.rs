//! `portcullis figures`.

use crate::arguments::FiguresArguments;
use crate::html::{Origin, Target};
use crate::plan::progress_bar;
use crate::registry::Registry;
use crate::shards::{self, Merged};
use crate::show::show;
use crate::table::{Column, Layout, number, wrap, wrap_behind};
use crate::{Failure, bundled};
use portcullis_sim::LabDesign;
use portcullis_sim::figures::{
    Class, Figure, Grid, GridRow, Made, Outcome, Paper, Plan, Point, Score, Tally, papers, scores, unrecorded,
};
use portcullis_sim::prefetch::NO_SUCH_HARDWARE;
use serde::Serialize;
use std::io::{self, Write};
use std::sync::Arc;

#[derive(Serialize)]
struct Document<'d> {
    schema: &'static str,
    #[serde(flatten)]
    origin: Origin,
    /// Whether the runs of the laboratory were long.
    full: bool,
    classes: [ClassInfo; 8],
    papers: Vec<Paper>,
    figures: Vec<FigureEntry<'d>>,
    points: Vec<&'d Point>,
    scores: &'d [Score],
    violations: &'d [String],
}

/// A class of numbers, and what it means.
#[derive(Serialize)]
struct ClassInfo {
    class: Class,
    meaning: &'static str,
}

/// The description of a figure.
#[derive(Serialize)]
pub(crate) struct FigureInfo {
    id: &'static str,
    title: &'static str,
    source: &'static str,
    no_such_hardware: bool,
}

#[derive(Serialize)]
struct FigureEntry<'d> {
    #[serde(flatten)]
    info: FigureInfo,
    tally: Tally,
    #[serde(flatten)]
    made: &'d Made,
}

impl<'d> FigureEntry<'d> {
    fn of(figure: &Figure, made: &'d Made) -> Self {
        Self { info: FigureInfo::of(figure), tally: made.tally(), made }
    }
}

impl FigureInfo {
    fn of(figure: &Figure) -> Self {
        let Figure { id, title, source, is_hypothetical, .. } = *figure;
        Self { id, title, source, no_such_hardware: is_hypothetical }
    }

    /// Every figure.
    pub(crate) fn all() -> Vec<Self> {
        Figure::all().map(Self::of).collect()
    }
}

/// A table of these figures.
pub(crate) fn table_of(figures: &[FigureInfo]) -> String {
    let rows: Vec<Vec<String>> =
        figures.iter().map(|figure| [figure.id, figure.title, figure.source].map(str::to_owned).to_vec()).collect();
    Layout::of(&["figure", "what it shows", "source"].map(Column::words), &rows).table(&rows)
}

#[derive(Serialize)]
struct ListDocument {
    schema: &'static str,
    figures: Vec<FigureInfo>,
}

pub(crate) fn figures<W: Write>(arguments: &FiguresArguments, registry: &Registry, out: &mut W) -> Result<(), Failure> {
    if arguments.list {
        let figures = wanted(&arguments.ids)?.into_iter().map(FigureInfo::of).collect();
        let document = ListDocument { schema: "portcullis.list/1", figures };
        let table = |out: &mut W| writeln!(out, "{}", table_of(&document.figures));
        return show(out, &document, None, arguments.json, table, &[]);
    }
    let page = arguments.html.as_deref().map(|path| Target::new(path, &arguments.merge)).transpose()?;
    let merged = if arguments.merge.is_empty() {
        let plan = plan(&arguments.ids, arguments.full)?;
        can_check(&plan, arguments)?;
        if let Some(share) = arguments.shard {
            let outcomes = make(&plan, &share.of(plan.pieces().len()), registry)?;
            return shards::print(out, &arguments.ids, &plan, share, outcomes);
        }
        let outcomes = make(&plan, &(0..plan.pieces().len()).collect::<Vec<_>>(), registry)?;
        Merged { figures: arguments.ids.clone(), plan, outcomes }
    } else {
        let merged = shards::merge(&arguments.merge, plan)?;
        can_check(&merged.plan, arguments)?;
        merged
    };
    let Merged { figures, plan, outcomes } = merged;
    let made = plan.draw(&outcomes);
    let scores = scores(&plan, &made);
    let points: Vec<&Point> = made.iter().flat_map(|made| &made.points).collect();
    // Without `--check`, a number out of tolerance is not a failure. Numbers with a class count in the score.
    let failed = if arguments.check {
        let of_points = points.iter().filter(|point| point.class.is_none()).filter_map(|point| point.violation());
        let unexplained = points.iter().filter_map(|point| point.unexplained());
        of_points.chain(unexplained).chain(scores.iter().filter_map(Score::violation)).collect()
    } else {
        Vec::new()
    };
    let document = Document {
        schema: "portcullis.figures/1",
        origin: Origin::of(command(figures, plan.is_full(), arguments)),
        full: plan.is_full(),
        classes: Class::ALL.map(|class| ClassInfo { class, meaning: class.meaning() }),
        papers: papers(&plan, &made),
        figures: plan.figures().iter().zip(&made).map(|(figure, made)| FigureEntry::of(figure, made)).collect(),
        points,
        scores: &scores,
        violations: &failed,
    };
    let table = |out: &mut W| {
        plan.figures().iter().zip(&made).try_for_each(|(figure, made)| print(out, figure, made))?;
        print_scores(out, &scores)
    };
    show(out, &document, page.as_ref(), arguments.json, table, &failed)
}

/// Refuses a check for which no scores are recorded, before the runs are made.
fn can_check(plan: &Plan, arguments: &FiguresArguments) -> Result<(), Failure> {
    let length = if plan.is_full() { "--full" } else { "runs without --full" };
    match unrecorded(plan).filter(|_| arguments.check) {
        Some(figure) => Err(Failure::Input(format!(
            "--check: no score of {figure} is recorded for {length}, so it cannot be checked"
        ))),
        None => Ok(()),
    }
}

/// The arguments in one order, so that the whole and its shards joined have the same.
fn command(figures: Vec<String>, is_full: bool, arguments: &FiguresArguments) -> Vec<String> {
    let mut command = vec!["figures".to_owned()];
    command.extend(figures);
    let flags = [("--full", is_full), ("--check", arguments.check), ("--json", arguments.json)];
    command.extend(flags.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag.to_owned()));
    if let Some(path) = &arguments.html {
        command.extend(["--html".to_owned(), path.to_string_lossy().into_owned()]);
    }
    command
}

/// The figures of these ids, each once. Without ids, all figures.
fn wanted(ids: &[String]) -> Result<Vec<&'static Figure>, Failure> {
    if ids.is_empty() {
        return Ok(Figure::all().collect());
    }
    let mut wanted: Vec<&Figure> = Vec::new();
    for id in ids {
        let figures = Figure::by_id(id).ok_or_else(|| {
            let known: Vec<&str> =
                Figure::all().map(|figure| figure.id).chain(Figure::GROUPS.iter().copied()).collect();
            Failure::Input(format!("no figure `{id}`; there are: {}", known.join(", ")))
        })?;
        for figure in figures {
            if !wanted.iter().any(|one| one.id == figure.id) {
                wanted.push(figure);
            }
        }
    }
    Ok(wanted)
}

fn plan(ids: &[String], is_full: bool) -> Result<Plan, Failure> {
    Ok(Plan::new(wanted(ids)?, is_full))
}

/// Makes some of the pieces of a plan.
fn make(plan: &Plan, places: &[usize], registry: &Registry) -> Result<Vec<Outcome>, Failure> {
    let bar = progress_bar();
    let designs: Vec<LabDesign> = registry.all().iter().map(|known| known.lab).collect();
    let made = plan.make(places, &designs, &|name| bundled::read(name).map(Arc::new), &mut |runs, run| {
        // The next figure counts its own runs.
        if bar.length() != Some(runs as u64) {
            bar.reset();
            bar.set_length(runs as u64);
        }
        bar.set_message(run.to_owned());
        bar.inc(1);
    });
    bar.finish_and_clear();
    made.map_err(Failure::input)
}

fn print(out: &mut impl Write, figure: &Figure, made: &Made) -> io::Result<()> {
    let hypothetical = if figure.is_hypothetical { format!(" ({NO_SUCH_HARDWARE})") } else { String::new() };
    let title = format!("{}: {}{hypothetical}", figure.id, figure.title);
    writeln!(out, "{}\n{}\n", wrap(&title), wrap(figure.source))?;
    for grid in &made.tables {
        print_grid(out, grid)?;
    }
    if made.points.iter().any(|point| point.class.is_some()) {
        writeln!(out, "{}\n", table_of_points(&made.points))?;
        print_misses(out, &made.points)?;
    } else {
        print_verdict(out, &made.points)?;
    }
    for finding in &made.findings {
        writeln!(out, "{}", wrap(finding))?;
    }
    writeln!(out)
}

/// Why numbers are outside their class. Those with the same reason stand together.
fn print_misses(out: &mut impl Write, points: &[Point]) -> io::Result<()> {
    let outside: Vec<&Point> = points.iter().filter(|point| point.is_outside()).collect();
    for same in outside.chunk_by(|one, other| one.why == other.why) {
        let names: Vec<&str> = same.iter().map(|point| point.point.as_str()).collect();
        let why = same[0].why.as_deref().unwrap_or("No reason is given.");
        writeln!(out, "{}", wrap_behind("", "  ", &format!("Outside: {}. {why}", names.join("; "))))?;
    }
    if !outside.is_empty() {
        writeln!(out)?;
    }
    Ok(())
}

/// How many numbers with a tolerance are within it, and which are not.
fn print_verdict(out: &mut impl Write, points: &[Point]) -> io::Result<()> {
    let held: Vec<&Point> = points.iter().filter(|point| point.within.is_some()).collect();
    let within = held.iter().filter(|point| point.within == Some(true)).count();
    let verdict = format!("{within} of the {} numbers with a tolerance are within it.", held.len());
    writeln!(out, "{}", wrap(&verdict))?;
    for violation in held.iter().filter_map(|point| point.violation()) {
        writeln!(out, "{}", wrap_behind("  ", "    ", &violation))?;
    }
    writeln!(out)
}

/// The numbers of a figure of the laboratory, beside the published ones.
fn table_of_points(points: &[Point]) -> String {
    let columns = [Column::words("number"), Column::numbers("published"), Column::numbers("ours")]
        .into_iter()
        .chain(["class", "within"].map(Column::words));
    let columns: Vec<Column> = columns.collect();
    let row = |point: &Point| {
        let within = match point.within {
            Some(true) => "yes",
            Some(false) => "no",
            None => "",
        };
        let ours = if point.ours.is_nan() { "-".to_owned() } else { number(point.ours) };
        let class = point.class.map_or("", Class::name);
        vec![point.point.clone(), point.published.map_or("-".to_owned(), number), ours, class.into(), within.into()]
    };
    let rows: Vec<Vec<String>> = points.iter().map(row).collect();
    Layout::of(&columns, &rows).table(&rows)
}

fn print_scores(out: &mut impl Write, scores: &[Score]) -> io::Result<()> {
    for score in scores {
        writeln!(out, "{}", wrap(&format!("{score}.")))?;
        if let Some(advice) = score.advice() {
            writeln!(out, "{}", wrap_behind("  ", "  ", &advice))?;
        }
    }
    Ok(())
}

/// Prints a grid. Columns that do not fit follow below, again with the names of the rows in front.
fn print_grid(out: &mut impl Write, grid: &Grid) -> io::Result<()> {
    writeln!(out, "{}", wrap(&grid.title))?;
    if grid.quantity != grid.title {
        writeln!(out, "{}", wrap(&grid.quantity))?;
    }
    let cell = |value: &Option<f64>| value.map_or("-".to_owned(), number);
    let mut at = 0;
    while at < grid.columns.len() {
        let columns_from = |to: usize| -> Vec<Column> {
            let heads = grid.columns[at..to].iter().map(|head| Column::numbers(head));
            std::iter::once(Column::words(&grid.across)).chain(heads).collect()
        };
        let rows_to = |to: usize| -> Vec<Vec<String>> {
            let row =
                |row: &GridRow| std::iter::once(row.name.clone()).chain(row.values[at..to].iter().map(cell)).collect();
            grid.rows.iter().map(row).collect()
        };
        let fits = |to: &usize| !Layout::of(&columns_from(*to), &rows_to(*to)).is_tight();
        let to = (at + 1..=grid.columns.len()).rev().find(fits).unwrap_or(at + 1);
        let rows = rows_to(to);
        writeln!(out, "{}\n", Layout::of(&columns_from(to), &rows).table(&rows))?;
        at = to;
    }
    Ok(())
}
