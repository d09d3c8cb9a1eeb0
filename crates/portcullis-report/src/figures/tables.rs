//! The tables of a figure, each with a picture if its columns are numbers.

use super::picture;
use crate::ReportError;
use crate::document::{Figure, Grid};
use crate::ink::Ink;
use crate::page::{cell, figure, heads, scrolled};
use maud::{Markup, html};
use portcullis_sim::number::number;

/// All tables, folded unless `is_open`.
pub(super) fn tables(one: &Figure, is_open: bool) -> Result<Markup, ReportError> {
    let has_curves = one.tables.iter().any(picture::are_curves);
    let grids = one.tables.iter().map(grid).collect::<Result<Vec<_>, _>>()?;
    Ok(html! {
        @if !grids.is_empty() {
            details open[is_open] {
                summary { "Our numbers in tables" @if has_curves { " and curves" } }
                @for grid in &grids { (grid) }
            }
        }
    })
}

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
        } @else if grid.quantity != grid.title {
            p.quiet { (grid.quantity) }
        }
        (scrolled(&grid.title, &table))
    })
}
