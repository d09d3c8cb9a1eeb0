//! Misses by level: what a device access costs in reads of memory, with a bar for each run.

use super::canvas::{Area, Axis, DrawError, Form, Margins, axes, fill, mark, svg, width, words, write};
use crate::document::Run;
use crate::ink::Ink;
use plotters::style::text_anchor::HPos;

/// A level of the translation: its name, its colour, and its misses per page in a run.
pub(crate) type Level = (&'static str, Ink, fn(&Run) -> Option<f64>);

/// The levels, from the one that is looked up first to the one nearest the root.
pub(crate) const LEVELS: [Level; 4] = [
    ("IOTLB", Ink::Iotlb, |run| run.iotlb_misses_per_page),
    ("PTcache-L3", Ink::CacheL3, |run| run.ptcache_l3_misses_per_page),
    ("PTcache-L2", Ink::CacheL2, |run| run.ptcache_l2_misses_per_page),
    ("PTcache-L1", Ink::CacheL1, |run| run.ptcache_l1_misses_per_page),
];

/// The picture, or `None` if no device access was translated.
pub(crate) fn misses(runs: &[&Run], form: Form) -> Result<Option<String>, DrawError> {
    let runs: Vec<&Run> =
        runs.iter().copied().filter(|run| run.memory_reads_per_page.is_some_and(|reads| reads > 0.0)).collect();
    if runs.is_empty() {
        return Ok(None);
    }
    let widest = runs.iter().map(|run| width(&name(run), form.words(), false)).max().unwrap_or(0) as u32;
    let margins = Margins { left: form.pick(widest + 30, 10), right: form.pick(16, 10), top: 8, bottom: 26 };
    let height = runs.len() as u32 * row(form) + margins.top + margins.bottom;
    let label =
        "Misses per page by level of the translation, a bar for each run. The table below has the same numbers.";
    svg((form.width(), height), label, |area| draw(area, &runs, margins, form)).map(Some)
}

/// The height of a bar with its name. On a phone the name stands above the bar.
const fn row(form: Form) -> u32 {
    form.pick(24, 34)
}

fn name(run: &Run) -> String {
    run.design.label_with(run.protection)
}

fn draw(area: &Area<'_>, runs: &[&Run], margins: Margins, form: Form) -> Result<(), DrawError> {
    let max = runs.iter().filter_map(|run| run.memory_reads_per_page).fold(0.0, f64::max);
    let x = Axis::linear(max, form.pick(8, 4));
    let y = Axis { range: 0.0..f64::from(row(form)) * runs.len() as f64, ticks: Vec::new() };
    let chart = axes(area, margins, x, y, form)?;
    for (index, run) in runs.iter().enumerate() {
        let top = (margins.top + index as u32 * row(form)) as i32;
        let style = words(Ink::Text, form.words(), false);
        let (bar_top, bar_bottom) = match form {
            Form::Wide => {
                mark(area, (margins.left as i32 - 14, top + 12), 5, run.protection)?;
                write(area, &name(run), (margins.left as i32 - 26, top + 12), HPos::Right, &style)?;
                (top + 5, top + 19)
            }
            Form::Narrow => {
                mark(area, (margins.left as i32 + 6, top + 10), 5, run.protection)?;
                write(area, &name(run), (margins.left as i32 + 16, top + 10), HPos::Left, &style)?;
                (top + 19, top + 30)
            }
        };
        let mut from = 0.0;
        for (_, ink, misses) in LEVELS {
            let to = from + misses(run).unwrap_or(0.0);
            let ((left, _), (right, _)) = (chart.backend_coord(&(from, 0.0)), chart.backend_coord(&(to, 0.0)));
            if right > left {
                fill(area, [(left, bar_top), (right, bar_bottom)], ink)?;
            }
            from = to;
        }
    }
    Ok(())
}
