//! What a malicious device reached, and for how long: a point for each design, protection and rule.

use super::canvas::{Area, Axis, DrawError, Form, Margins, axes, fill, mark, svg, words, write};
use super::reach::{Bands, Reach, Scale};
use crate::document::{Finding, Protection};
use crate::ink::Ink;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

/// The picture, or `None` if no finding shows anything.
pub(crate) fn attack(findings: &[Finding], form: Form) -> Result<Option<String>, DrawError> {
    let sound = findings.iter().filter(|finding| !finding.shows_nothing());
    let found: Vec<(&Finding, Reach)> = sound.filter_map(|finding| Some((finding, reach(finding)?))).collect();
    if found.is_empty() {
        return Ok(None);
    }
    let margins = Margins { left: form.pick(250, 10), right: form.pick(16, 10), top: 8, bottom: 26 };
    let across = f64::from(form.width() - margins.left - margins.right);
    let always =
        if found.iter().any(|(_, reach)| *reach == Reach::Always) { f64::from(form.pick(80, 60)) } else { 0.0 };
    let windows = found.iter().any(|(_, reach)| matches!(reach, Reach::For(_)));
    // Without windows, the band of "never" takes all room.
    let never = if windows { f64::from(form.pick(110, 64)) } else { across - always };
    let bands = Bands { never, between: across - always - never, always };
    let scale = Scale::new(&found.iter().map(|(_, reach)| *reach).collect::<Vec<_>>(), bands);
    let height = found.len() as u32 * row(form) + margins.top + margins.bottom;
    let label = "How long a malicious device still reached a buffer after its unmap, for each design. The table below has the \
                 same numbers.";
    svg((form.width(), height), label, |area| draw(area, (&found, findings), &scale, margins, form)).map(Some)
}

/// What the device reached. If there is no window, whatever translated did so permanently.
fn reach(finding: &Finding) -> Option<Reach> {
    match (Reach::new(finding.protection, finding.stale_window_us_max), finding.stale_accesses > 0.0) {
        (None, true) => Some(Reach::Always),
        (None, false) => Some(Reach::Never),
        (reach, _) => reach,
    }
}

/// The height of a finding. On a phone its name stands above it.
const fn row(form: Form) -> u32 {
    form.pick(26, 40)
}

fn draw(
    area: &Area<'_>,
    (found, all): (&[(&Finding, Reach)], &[Finding]),
    scale: &Scale,
    margins: Margins,
    form: Form,
) -> Result<(), DrawError> {
    let (left, top) = (margins.left as i32, margins.top as i32);
    let bottom = top + (found.len() as u32 * row(form)) as i32;
    let across = |at: f64| left + at.round() as i32;
    fill(area, [(left, top), (across(scale.never().end), bottom)], Ink::Safe)?;
    if let Some(always) = scale.always() {
        fill(area, [(across(always.start), top), (across(always.end), bottom)], Ink::Exposed)?;
    }
    let y = Axis { range: 0.0..f64::from(bottom - top), ticks: Vec::new() };
    axes(area, margins, scale.axis(f64::from(form.pick(60, 52))), y, form)?;
    for (index, (finding, reach)) in found.iter().enumerate() {
        let line = top + (index as u32 * row(form)) as i32;
        let undeclared = finding.undeclared();
        let ink = if undeclared { Ink::Unprotected } else { Ink::Text };
        let rule = finding.rule.as_deref().unwrap_or_default();
        let bound = if finding.unbounded() { Some("no bound") } else { finding.side_of_bound(all) };
        let bound = bound.map(|bound| format!(", {bound}")).unwrap_or_default();
        let name = format!("{} {rule}{bound}", finding.design.label_with(finding.protection));
        let (middle, at, from) = match form {
            Form::Wide => (line + 13, (left - 12, line + 13), HPos::Right),
            Form::Narrow => (line + 28, (left + 4, line + 12), HPos::Left),
        };
        write(area, name.trim_end(), at, from, &words(ink, form.words(), undeclared))?;
        let end = across(scale.at(*reach));
        area.draw(&PathElement::new(
            [(left, middle), (end, middle)],
            Ink::of(finding.protection).rgb().stroke_width(2),
        ))?;
        if finding.unbounded() {
            arrow(area, (end, across(scale.between().end)), middle, finding.protection)?;
        }
        mark(area, (end, middle), 6, finding.protection)?;
    }
    Ok(())
}

/// An arrow for a window that a longer run would have lengthened: it has no end on the scale.
fn arrow(area: &Area<'_>, (from, to): (i32, i32), y: i32, protection: Protection) -> Result<(), DrawError> {
    let style = Ink::of(protection).rgb().stroke_width(1);
    area.draw(&PathElement::new([(from, y), (to, y)], style))?;
    area.draw(&PathElement::new([(to - 6, y - 4), (to, y), (to - 6, y + 4)], style))
}
