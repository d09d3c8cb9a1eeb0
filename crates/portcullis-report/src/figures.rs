//! The page of `figures`.

use super::document::{Figure, Figures, Grid, Point, Tolerance};
use super::ink::Ink;
use super::page::{Page, cell, figure, frame, heads, prose, scrolled, shown};
use super::{ReportError, picture};
use maud::{Markup, html};
use portcullis_sim::number::number;

const QUESTION: &str = "What was published, and what comes of running it?";

/// The page for a document.
pub(super) fn page(document: &Figures) -> Result<String, ReportError> {
    let sections = document.figures.iter().map(|figure| section(figure, &document.points));
    let sections = sections.collect::<Result<Vec<_>, _>>()?;
    let contents: Vec<_> = document.figures.iter().map(|figure| (figure.id.clone(), figure.title.clone())).collect();
    let body = html! { @for section in &sections { (section) } };
    Ok(frame(&Page { question: QUESTION, setting: &document.setting, contents: &contents, assumed: &[], body }))
}

fn section(one: &Figure, points: &[Point]) -> Result<Markup, ReportError> {
    let grids = one.tables.iter().map(grid).collect::<Result<Vec<_>, _>>()?;
    let held: Vec<&Point> = points
        .iter()
        .filter(|point| point.id == one.id && (point.within.is_some() || point.published.is_some()))
        .collect();
    Ok(html! {
        section id=(one.id) {
            h2 { (one.title) }
            p.quiet { (one.source) }
            @if one.no_such_hardware { p { strong { "No such hardware: " } "what the figure shows is hypothetical." } }
            @if !one.findings.is_empty() {
                div.answer { ul { @for finding in &one.findings { li { (prose(finding)) } } } }
            }
            @for grid in &grids { (grid) }
            @if !held.is_empty() {
                details {
                    summary { "What is compared with what" }
                    (scrolled(&one.title, &held_table(&held)))
                }
            }
        }
    })
}

/// A table, and a picture if its columns are numbers.
fn grid(grid: &Grid) -> Result<Markup, ReportError> {
    let picture =
        figure(&html! { "↑ " (grid.quantity) }, &html! { (grid.across) " →" }, |form| picture::curves(grid, form))?;
    let names: Vec<&str> = [grid.across.as_str()].into_iter().chain(grid.columns.iter().map(String::as_str)).collect();
    let table = html! {
        thead { tr { (heads(&names)) } }
        tbody {
            @for row in &grid.rows {
                tr {
                    th.word scope="row" { (row.name) }
                    @for value in &row.values { (cell(*value, number)) }
                }
            }
        }
    };
    Ok(html! {
        h3 { (grid.title) }
        @if let Some(picture) = picture {
            ul.key {
                @for (row, ink) in grid.rows.iter().zip(Ink::CURVES) {
                    li { span.mark style={ "--ink:" (ink.variable()) } {} (row.name) }
                }
            }
            (picture)
            details { summary { "The numbers" } (scrolled(&grid.title, &table)) }
        } @else {
            @if grid.quantity != grid.title {
                p.quiet { (grid.quantity) }
            }
            (scrolled(&grid.title, &table))
        }
    })
}

fn held_table(points: &[&Point]) -> Markup {
    let value = |value: f64| shown(value, &number(value));
    let expected = |tolerance: Tolerance| match tolerance {
        Tolerance::AtLeast(least) => html! { "at least " (value(least)) },
        Tolerance::AtMost(most) => html! { "at most " (value(most)) },
        Tolerance::Between(least, most) => html! { (value(least)) " to " (value(most)) },
    };
    html! {
        thead { tr { (heads(&["number", "published", "ours", "expected", "within"])) } }
        tbody {
            @for point in points {
                tr {
                    th.word scope="row" { (point.point) }
                    (cell(point.published, number))
                    (cell(point.ours, number))
                    td { @match point.tolerance { Some(tolerance) => (expected(tolerance)), None => "–" } }
                    td { @match point.within { Some(true) => "yes", Some(false) => { strong { "no" } }, None => "–" } }
                }
            }
        }
    }
}
