//! The stale window over time: the age of the oldest buffer that a device still reaches, with a strip for each run.

use super::canvas::{Area, Axis, DrawError, Form, Margins, axes, mark, round_up, svg, tick, unit, width, words, write};
use crate::document::Run;
use crate::ink::Ink;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

/// The ages in the pieces of a run, all in microseconds.
struct Strip<'r> {
    run: &'r Run,
    ages_us: &'r [f64],
    piece_us: f64,
    /// When the run or its last window ended, whichever is later.
    end_us: f64,
}

impl<'r> Strip<'r> {
    /// The strip of a run, if it left something stale.
    fn new(run: &'r Run) -> Option<Self> {
        let ages_us = run.stale_window_us_over_time.as_deref().filter(|ages_us| !ages_us.is_empty())?;
        let piece_us = run.stale_window_piece_us?;
        let end_us = run.span_us?.max(piece_us * ages_us.len() as f64);
        Some(Self { run, ages_us, piece_us, end_us })
    }
}

/// The picture, or `None` if no run left anything stale.
pub(crate) fn over_time(runs: &[&Run], form: Form) -> Result<Option<String>, DrawError> {
    let strips: Vec<Strip<'_>> = runs.iter().copied().filter_map(Strip::new).collect();
    if strips.is_empty() {
        return Ok(None);
    }
    let names = strips.iter().map(|strip| width(&strip.run.design.label(), form.words(), false));
    let widest = names.max().unwrap_or(0) as u32;
    let margins = Margins { left: form.pick(widest + 90, 54), right: form.pick(24, 14), top: 8, bottom: 26 };
    let height = strips.len() as u32 * row(form) + margins.top + margins.bottom;
    let label = "How old the oldest buffer is that the device still reaches although it is back in use, over the run, a strip \
                 for each design that leaves any.";
    svg((form.width(), height), label, |area| draw(area, &strips, margins, form)).map(Some)
}

/// The height of a strip, and how much of it stays free at the top. On a phone its name stands there.
const fn row(form: Form) -> u32 {
    form.pick(64, 78)
}
const fn head(form: Form) -> u32 {
    form.pick(14, 28)
}

fn draw(area: &Area<'_>, strips: &[Strip<'_>], margins: Margins, form: Form) -> Result<(), DrawError> {
    let end_us = strips.iter().map(|strip| strip.end_us).fold(0.0, f64::max);
    let (name, us) = unit(end_us);
    let x = Axis::linear(end_us / us, form.pick(8, 4));
    let ticks = x.ticks.into_iter().filter(|(at, _)| at * us <= end_us);
    let x = Axis { range: 0.0..end_us, ticks: ticks.map(|(at, tick)| (at * us, format!("{tick} {name}"))).collect() };

    // Each strip has a line for zero, and one for a round age above the oldest age.
    let oldest_us = strips.iter().flat_map(|strip| strip.ages_us).copied().fold(0.0, f64::max);
    let (name, us) = unit(oldest_us);
    // A timer always fires a little late. The head of the strip has room for that.
    let most = round_up(0.95 * oldest_us / us);
    let (row_px, room) = (f64::from(row(form)), f64::from(row(form) - head(form)));
    let foot = |index: usize| row_px * (strips.len() - 1 - index) as f64;
    let height = |index: usize, age_us: f64| foot(index) + room * age_us / (most * us);
    let most = format!("{} {name}", tick(most));
    let ticks = (0..strips.len()).flat_map(|index| [(foot(index), "0".to_owned()), (foot(index) + room, most.clone())]);
    let y = Axis { range: 0.0..row_px * strips.len() as f64, ticks: ticks.collect() };

    let mut chart = axes(area, margins, x, y, form)?;
    let style = words(Ink::Text, form.words(), false);
    for (index, strip) in strips.iter().enumerate() {
        // A stair, because an age holds for its whole piece.
        let stair = strip.ages_us.iter().enumerate().flat_map(|(piece, age_us)| {
            let (from_us, to_us) = (piece as f64 * strip.piece_us, (piece as f64 + 1.0) * strip.piece_us);
            [from_us, to_us].map(|at_us| (at_us, height(index, *age_us)))
        });
        let ended_us = strip.piece_us * strip.ages_us.len() as f64;
        let outline: Vec<(f64, f64)> =
            [(0.0, foot(index))].into_iter().chain(stair).chain([(ended_us, foot(index))]).collect();
        let ink = Ink::of(strip.run.protection).rgb();
        chart.draw_series([Polygon::new(outline.clone(), ink.mix(0.3).filled())])?;
        chart.draw_series([PathElement::new(outline, ink.stroke_width(1))])?;
        let top = margins.top as i32 + index as i32 * row(form) as i32;
        let (left, middle) = match form {
            Form::Wide => (10, top + (head(form) + row(form)) as i32 / 2),
            Form::Narrow => (margins.left as i32 + 6, top + 16),
        };
        mark(area, (left, middle), 5, strip.run.protection)?;
        write(area, &strip.run.design.label(), (left + 12, middle), HPos::Left, &style)?;
    }
    Ok(())
}
