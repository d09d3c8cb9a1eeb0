//! `portcullis figures`.

use crate::arguments::FiguresArguments;
use crate::html::{Origin, Target};
use crate::plan::progress_bar;
use crate::show::show;
use crate::table::{Column, Layout, number, wrap, wrap_behind};
use crate::{Failure, bundled};
use portcullis_sim::figures::{Figure, Grid, GridRow, Made, Point};
use portcullis_sim::prefetch::NO_SUCH_HARDWARE;
use serde::Serialize;
use std::io::{self, Write};
use std::sync::Arc;

#[derive(Serialize)]
struct Document<'d> {
    schema: &'static str,
    #[serde(flatten)]
    origin: Origin,
    figures: Vec<FigureEntry<'d>>,
    points: Vec<&'d Point>,
    violations: &'d [String],
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
    #[serde(flatten)]
    made: &'d Made,
}

impl FigureInfo {
    fn of(figure: &Figure) -> Self {
        let Figure { id, title, source, is_hypothetical, .. } = *figure;
        Self { id, title, source, no_such_hardware: is_hypothetical }
    }

    /// Every figure.
    pub(crate) fn all() -> Vec<Self> {
        Figure::ALL.iter().map(Self::of).collect()
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

pub(crate) fn figures<W: Write>(arguments: &FiguresArguments, out: &mut W) -> Result<(), Failure> {
    let wanted = wanted(&arguments.ids)?;
    if arguments.list {
        let figures = wanted.into_iter().map(FigureInfo::of).collect();
        let document = ListDocument { schema: "portcullis.list/1", figures };
        let table = |out: &mut W| writeln!(out, "{}", table_of(&document.figures));
        return show(out, &document, None, arguments.json, table, &[]);
    }
    let page = arguments.html.as_deref().map(|path| Target::new(path, [])).transpose()?;
    let made = wanted.iter().map(|figure| make(figure)).collect::<Result<Vec<_>, _>>()?;
    let points: Vec<&Point> = made.iter().flat_map(|made| &made.points).collect();
    let violations: Vec<String> = points.iter().filter_map(|point| point.violation()).collect();
    // Without `--check`, a number out of tolerance is not a failure.
    let failed = if arguments.check { violations } else { Vec::new() };
    let entry = |(figure, made): (&&'static Figure, _)| FigureEntry { info: FigureInfo::of(figure), made };
    let document = Document {
        schema: "portcullis.figures/1",
        origin: Origin::of_this_run(),
        figures: wanted.iter().zip(&made).map(entry).collect(),
        points,
        violations: &failed,
    };
    let table = |out: &mut W| wanted.iter().zip(&made).try_for_each(|(figure, made)| print(out, figure, made));
    show(out, &document, page.as_ref(), arguments.json, table, &failed)
}

/// The figures of these ids, each once. Without ids, all figures.
fn wanted(ids: &[String]) -> Result<Vec<&'static Figure>, Failure> {
    if ids.is_empty() {
        return Ok(Figure::ALL.iter().collect());
    }
    let mut wanted: Vec<&Figure> = Vec::new();
    for id in ids {
        let figure = Figure::by_id(id).ok_or_else(|| {
            let known: Vec<&str> = Figure::ALL.iter().map(|figure| figure.id).collect();
            Failure::Input(format!("no figure `{id}`; there are: {}", known.join(", ")))
        })?;
        if !wanted.iter().any(|one| one.id == figure.id) {
            wanted.push(figure);
        }
    }
    Ok(wanted)
}

fn make(figure: &Figure) -> Result<Made, Failure> {
    let bar = progress_bar();
    let made = figure.make(&|name| bundled::read(name).map(Arc::new), &mut |runs, run| {
        bar.set_length(runs as u64);
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
    let held: Vec<&Point> = made.points.iter().filter(|point| point.within.is_some()).collect();
    let within = held.iter().filter(|point| point.within == Some(true)).count();
    let verdict = format!("{within} of the {} numbers with a tolerance are within it.", held.len());
    writeln!(out, "{}", wrap(&verdict))?;
    for violation in held.iter().filter_map(|point| point.violation()) {
        writeln!(out, "{}", wrap_behind("  ", "    ", &violation))?;
    }
    writeln!(out)?;
    for finding in &made.findings {
        writeln!(out, "{}", wrap(finding))?;
    }
    writeln!(out)
}

/// Prints a grid. Columns that do not fit follow below, again with the names of the rows in front.
fn print_grid(out: &mut impl Write, grid: &Grid) -> io::Result<()> {
    writeln!(out, "{}\n{}", wrap(&grid.title), wrap(grid.quantity))?;
    let cell = |value: &Option<f64>| value.map_or("-".to_owned(), number);
    let mut at = 0;
    while at < grid.columns.len() {
        let columns_from = |to: usize| -> Vec<Column> {
            let heads = grid.columns[at..to].iter().map(|head| Column::numbers(head));
            std::iter::once(Column::words(grid.across)).chain(heads).collect()
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
