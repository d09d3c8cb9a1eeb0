//! The page of `figures`: each published number and ours beside each other.

mod misses;
mod overview;
mod scale;
mod tables;
#[cfg(test)]
mod tests;

use crate::document::{Figure, Figures, Point, Tally};
use crate::page::{Page, counted, frame, prose};
use crate::{ReportError, picture};
use maud::{Markup, html};

const QUESTION: &str = "What was published, and what comes of running it?";

/// The page for a document.
pub(super) fn page(document: &Figures) -> Result<String, ReportError> {
    let sections = document.figures.iter().map(|figure| section(figure, &document.points));
    let sections = sections.collect::<Result<Vec<_>, _>>()?;
    let body = html! {
        (overview::overview(document))
        @for section in &sections { (section) }
    };
    let runs = if document.full { "long (--full)" } else { "short (without --full)" };
    let assumed = [("runs of the laboratory", runs)];
    Ok(frame(&Page {
        question: QUESTION,
        setting: &document.setting,
        contents: &[],
        assumed: &assumed,
        body,
        is_wide: false,
    }))
}

fn section(figure: &Figure, points: &[Point]) -> Result<Markup, ReportError> {
    let points: Vec<&Point> = points.iter().filter(|point| point.id == figure.id).collect();
    let is_compared = points.iter().any(|point| point.published.is_some());
    let tables = tables::tables(figure, !is_compared)?;
    Ok(html! {
        section id=(figure.id) {
            h2 { (figure.title) }
            p.quiet { code { (figure.id) } " · " (figure.source) " · " a href="#overview" { "overview" } }
            @if figure.no_such_hardware { p { strong { "No such hardware: " } "what the figure shows is hypothetical." } }
            (counts(&figure.tally))
            (misses::misses(&points))
            @if !figure.findings.is_empty() {
                div.answer { ul { @for finding in &figure.findings { li { (prose(finding)) } } } }
            }
            (scale::pictures(&points))
            (tables)
        }
    })
}

/// The scores of some figures. Kinds of numbers that do not occur are left out.
fn counts(tally: &Tally) -> Markup {
    let of = |some: u64, all: u64| html! { (counted(some)) " of " (counted(all)) };
    let share = |some: u64| format!("{:.1}%", 100.0 * some as f64 / tally.scored as f64);
    html! {
        dl.counts {
            @if tally.scored > 0 {
                div.score {
                    dt { "within their class" }
                    dd {
                        (of(tally.within, tally.scored))
                        span.meter aria-hidden="true" {
                            i style={ "width:" (share(tally.within)) } {}
                            b style={ "left:" (share(tally.within_if_one)) } {}
                        }
                    }
                }
                div { dt { "if every number were 1" } dd { (of(tally.within_if_one, tally.scored)) } }
            }
            @for (name, some, all) in [
                ("of these, shapes that are there", tally.shapes_within, tally.shapes),
                ("of these, published zeros met", tally.zeros_within, tally.zeros),
                ("within a chosen tolerance", tally.held_within, tally.held),
            ] {
                @if all > 0 { div { dt { (name) } dd { (of(some, all)) } } }
            }
            @for (name, all) in [("calibrated, not scored", tally.calibrated), ("inputs, not scored", tally.inputs)] {
                @if all > 0 { div { dt { (name) } dd { (counted(all)) } } }
            }
        }
    }
}
