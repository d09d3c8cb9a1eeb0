//! The totals of several pieces of work.

use super::document::{Protection, Total, with_settings};
use super::page::{cell, design_cells, heads, scrolled, whole};
use super::runs::{share, title};
use maud::{Markup, html};
use portcullis_sim::number::number;

/// The section for all `totals`. They exist only if there are several pieces of work.
pub(super) fn section(id: &str, name: &str, totals: &[Total]) -> Markup {
    let mut tables: Vec<(&Total, Vec<&Total>)> = Vec::new();
    for total in totals {
        match tables
            .iter_mut()
            .find(|(first, _)| first.set == total.set && batch(first, totals) == batch(total, totals))
        {
            Some((_, table)) => table.push(total),
            None => tables.push((total, vec![total])),
        }
    }
    html! {
        section id=(id) {
            h2 { (name) }
            p.quiet {
                "Cycles are the mean over all pages, and windows the longest of any work. The share is the time that all work would \
                 take without protection, divided by the time that it takes."
            }
            @for (first, totals_of) in &tables {
                h4 { (title(batch(first, totals))) (with_settings("", &first.set)) }
                (table(totals_of))
            }
        }
    }
}

/// The batch of a total. Designs without protection are listed with the smallest batch.
fn batch(total: &Total, all: &[Total]) -> u64 {
    let protected = || all.iter().filter(|other| other.set == total.set && other.protection != Protection::None);
    match total.protection {
        Protection::None => protected().map(|other| other.batch).min().unwrap_or(total.batch),
        _ => total.batch,
    }
}

fn table(totals: &[&Total]) -> Markup {
    let table = html! {
        thead {
            tr {
                th.word scope="col" { "design" } th.word scope="col" { "protection" }
                (heads(&["cycles/\npage", "window µs\nmax", "stale\npages", "of none\nin all", "of none\nat worst"]))
                th.word scope="col" { "worst on" }
            }
        }
        tbody {
            @for total in totals {
                @let unprotected = total.protection == Protection::None;
                tr {
                    (design_cells(&total.design, total.protection))
                    (cell(Some(total.cycles_per_page).filter(|cycles| !unprotected || *cycles > 0.0), number))
                    @if total.stale_window_us_max.is_none() { td { "∞" } } @else { (cell(total.stale_window_us_max, number)) }
                    (cell(Some(total.stale_accesses), whole))
                    td { @if let Some(share) = share(total.share) { (share) } }
                    td { @if let Some(share) = share(total.worst.share) { (share) } }
                    td.word { @if unprotected { "–" } @else {
                        (total.worst.trace)
                        @if let Some(device) = &total.worst.device { " " (device) }
                    } }
                }
            }
        }
    };
    scrolled("All of these together", &table)
}
