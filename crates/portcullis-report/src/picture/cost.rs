//! Cost against exposure: a point for every design and protection.

use super::canvas::{Area, Axis, DrawError, Form, Margins, axes, fill, mark, svg, tick, width, words, write};
use super::labels::{BESIDE, Point, Rect, place};
use super::reach::{Bands, Reach, Scale};
use crate::document::{Protection, Run};
use crate::ink::Ink;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

/// A run in the picture.
struct Dot {
    name: String,
    protection: Protection,
    cycles: f64,
    reach: Reach,
    /// Whether the advice names it.
    best: bool,
}

/// The scale of cost. It is linear, or logarithmic if the dearest run costs so much that the cheap ones would overlap.
enum Cost {
    Even {
        max: f64,
    },
    /// The powers of ten at both ends.
    Tenfold {
        low: i32,
        high: i32,
    },
}

/// On a linear scale, the dearest run costs at most this many times as much as the cheapest.
const EVEN_UP_TO: f64 = 25.0;
/// Where the powers of ten begin on a logarithmic scale, as a share of the scale. Runs that cost nothing are at 0.
const POWERS_FROM: f64 = 0.1;

impl Cost {
    fn new(dots: &[Dot]) -> Self {
        let costs = || dots.iter().map(|dot| dot.cycles).filter(|cycles| *cycles > 0.0);
        let (least, max) = (costs().fold(f64::INFINITY, f64::min), costs().fold(0.0, f64::max));
        if max <= EVEN_UP_TO * least {
            Self::Even { max }
        } else {
            Self::Tenfold { low: least.log10().floor() as i32, high: max.log10().ceil() as i32 }
        }
    }

    fn at(&self, cycles: f64) -> f64 {
        match self {
            Self::Even { .. } => cycles,
            Self::Tenfold { .. } if cycles <= 0.0 => 0.0,
            Self::Tenfold { low, high } => {
                let share = (cycles.log10() - f64::from(*low)) / f64::from(high - low);
                POWERS_FROM + (1.0 - POWERS_FROM) * share
            }
        }
    }

    fn axis(&self, form: Form) -> Axis {
        let axis = match self {
            Self::Even { max } => Axis::linear(*max, form.pick(8, 4)),
            Self::Tenfold { low, high } => {
                let powers = (*low..=*high).map(|exponent| 10f64.powi(exponent));
                let ticks = std::iter::once(0.0).chain(powers).map(|cycles| (self.at(cycles), tick(cycles)));
                Axis { range: 0.0..1.0, ticks: ticks.collect() }
            }
        };
        // Marks at an end stand a little off the edge.
        let edge = 0.025 * axis.range.end;
        Axis { range: -edge..axis.range.end + edge, ..axis }
    }
}

/// The height of the line of text at the edge of a band.
const CAPTION: u32 = 20;

/// The picture of `runs`, which all have the same batch, or `None` if none of them ended. The scale of cost covers
/// `all` runs that have a picture of this kind, so that the pictures can be compared. `is_best` says which runs the
/// advice names.
pub(crate) fn cost(
    runs: &[&Run],
    all: &[&Run],
    is_best: impl Fn(&Run) -> bool,
    form: Form,
) -> Result<Option<String>, DrawError> {
    let dot = |run: &&Run| {
        Some(Dot {
            name: name(run),
            protection: run.protection,
            cycles: run.cycles_per_page?,
            reach: Reach::new(run.protection, run.stale_window_us_max)?,
            best: is_best(run),
        })
    };
    let dots: Vec<Dot> = runs.iter().filter_map(dot).collect();
    if dots.is_empty() {
        return Ok(None);
    }
    let scale = scale(&dots, form);
    let cost = Cost::new(&all.iter().filter_map(dot).collect::<Vec<_>>());
    let right = cost.axis(form).overhang(form);
    let margins = Margins { left: form.pick(76, 54), right, top: 8, bottom: 26 };
    let height = scale.length() as u32 + margins.top + margins.bottom;
    let label = "Every design by what it costs, to the right, and by how long a device still reaches a buffer after its \
                 unmap, upwards. The table below has the same numbers.";
    svg((form.width(), height), label, |area| draw(area, &dots, (&cost, &scale), margins, form)).map(Some)
}

fn name(run: &Run) -> String {
    let bound = if run.unbounded() { ", no bound" } else { "" };
    format!("{}{bound}", run.design.label())
}

/// The scale, whose bands have room for the names of their dots.
fn scale(dots: &[Dot], form: Form) -> Scale {
    let room = |least: u32, wide: u32, narrow: u32, inside: fn(Reach) -> bool| {
        let names = dots.iter().filter(|dot| inside(dot.reach)).count() as u32;
        f64::from(least + form.pick(wide, narrow) * names)
    };
    let bands = Bands {
        never: room(90, 7, 13, |reach| reach == Reach::Never),
        between: room(150, 8, 15, |reach| matches!(reach, Reach::For(_))),
        always: room(56, 4, 8, |reach| reach == Reach::Always),
    };
    Scale::new(&dots.iter().map(|dot| dot.reach).collect::<Vec<_>>(), bands)
}

fn draw(
    area: &Area<'_>,
    dots: &[Dot],
    (cost, scale): (&Cost, &Scale),
    margins: Margins,
    form: Form,
) -> Result<(), DrawError> {
    let y = scale.axis(24.0);
    let (top, bottom) = (margins.top as i32, margins.top as i32 + scale.length() as i32);
    let (left, right) = (margins.left as i32, (form.width() - margins.right) as i32);
    let upwards = |at: f64| bottom - at.round() as i32;
    let bounds = |band: std::ops::Range<f64>| Rect { left, top: upwards(band.end), right, bottom: upwards(band.start) };
    let caption = words(Ink::Muted, form.words() - 1, false);
    let never = bounds(scale.never());
    fill(area, [(left, never.top), (right, never.bottom)], Ink::Safe)?;
    if let Some(always) = scale.always().map(bounds) {
        fill(area, [(left, always.top), (right, always.bottom)], Ink::Exposed)?;
    }
    let chart = axes(area, margins, cost.axis(form), y, form)?;
    write(area, "safe: out of reach once the unmap returns", (right - 6, never.bottom - 10), HPos::Right, &caption)?;
    if let Some(always) = scale.always().map(bounds) {
        write(area, "no protection", (right - 6, always.top + 10), HPos::Right, &caption)?;
    }

    let radius = form.pick(6, 5) as i32;
    let within = |reach| match reach {
        Reach::Never => Rect { bottom: never.bottom - CAPTION as i32, ..never },
        Reach::For(_) => bounds(scale.between()),
        Reach::Always => Rect { top, ..scale.always().map_or(never, bounds) },
    };
    // Short names of overlapping dots are written as one. The best come first, so that their names are nearest.
    let together = |one: &str, other: &str| width(one, form.words(), false) + width(other, form.words(), false) < 110;
    let mut points: Vec<Point> = Vec::new();
    let mut kinds = Vec::new();
    let mut order: Vec<&Dot> = dots.iter().collect();
    order.sort_by_key(|dot| !dot.best);
    for dot in order {
        let at = chart.backend_coord(&(cost.at(dot.cycles), scale.at(dot.reach)));
        let kind = (dot.protection, dot.best);
        match points
            .iter()
            .zip(&kinds)
            .position(|(point, other)| point.at == at && *other == kind && together(&point.name, &dot.name))
        {
            Some(same) => points[same].name = format!("{}, {}", points[same].name, dot.name),
            None => {
                points.push(Point { at, name: dot.name.clone(), bold: dot.best, within: within(dot.reach) });
                kinds.push(kind);
            }
        }
    }
    let places = place(&points, form.words(), radius);
    for place in &places {
        if let Some(leader) = place.leader {
            area.draw(&PathElement::new(leader, Ink::Muted.rgb().stroke_width(1)))?;
        }
    }
    for (point, (protection, _)) in points.iter().zip(&kinds) {
        mark(area, point.at, radius, *protection)?;
    }
    for ((point, place), (protection, best)) in points.iter().zip(&places).zip(&kinds) {
        let style = words(if *best { Ink::of(*protection) } else { Ink::Text }, form.words(), point.bold);
        // Estimates of widths are inexact. Only the side towards the point must be placed exactly.
        let middle = (place.rect.top + place.rect.bottom) / 2;
        let (from, at) = if place.rect.left >= point.at.0 {
            (HPos::Left, place.rect.left + BESIDE)
        } else if place.rect.right <= point.at.0 {
            (HPos::Right, place.rect.right - BESIDE)
        } else {
            (HPos::Center, (place.rect.left + place.rect.right) / 2)
        };
        write(area, &point.name, (at, middle), from, &style)?;
    }
    Ok(())
}
