//! Numbers over a parameter, with a curve for each row of a table.

use super::canvas::{Axis, DrawError, Form, Margins, axes, svg};
use crate::document::Grid;
use crate::ink::Ink;
use plotters::prelude::*;

/// Whether there is a picture: the columns are numbers, and there are no more rows than colours.
pub(crate) fn are_curves(grid: &Grid) -> bool {
    let are_numbers = grid.columns.iter().all(|column| column.parse::<f64>().is_ok());
    are_numbers && grid.rows.len() <= Ink::CURVES.len()
}

/// The picture, if there is one.
pub(crate) fn curves(grid: &Grid, form: Form) -> Result<Option<String>, DrawError> {
    if !are_curves(grid) {
        return Ok(None);
    }
    let values = grid.rows.iter().flat_map(|row| row.values.iter().flatten());
    let most = values.copied().fold(0.0, f64::max);
    let size = (form.width(), form.pick(320, 280));
    let quantity = if grid.quantity == grid.title { String::new() } else { format!(": {}", grid.quantity) };
    let label = format!("{}{quantity}, by {}, a curve for each row of the table.", grid.title, grid.across);
    svg(size, &label, |area| {
        // The columns are at equal distances, because most sweeps double the value.
        let ticks = grid.columns.iter().enumerate().map(|(at, column)| (at as f64, column.clone()));
        let x = Axis { range: -0.2..grid.columns.len() as f64 - 0.8, ticks: ticks.collect() };
        let margins = Margins { left: form.pick(54, 44), right: form.pick(24, 14), top: 12, bottom: 26 };
        let mut chart = axes(area, margins, x, Axis::linear(most, form.pick(6, 4)), form)?;
        for (row, ink) in grid.rows.iter().zip(Ink::CURVES) {
            let points: Vec<(f64, f64)> =
                row.values.iter().enumerate().filter_map(|(at, value)| Some((at as f64, (*value)?))).collect();
            chart.draw_series([PathElement::new(points.clone(), ink.rgb().stroke_width(2))])?;
            chart.draw_series(points.into_iter().map(|at| Circle::new(at, 3, ink.rgb().filled())))?;
        }
        Ok(())
    })
    .map(Some)
}
