//! The parts that pictures share: the two sizes, axes, text, and the marks of the protections.

use crate::document::Protection;
use crate::ink::{Ink, themed};
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::drawing::{DrawingArea, DrawingAreaErrorKind, IntoDrawingArea};
use plotters::element::{Circle, Polygon, Rectangle, Text, TriangleMarker};
use plotters::prelude::SVGBackend;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontFamily, FontStyle, IntoFont, IntoTextStyle, ShapeStyle, TextStyle};
use portcullis_sim::number::count;
use std::ops::Range;

/// Why a picture could not be drawn.
pub(crate) type DrawError = DrawingAreaErrorKind<std::io::Error>;
/// The area of a picture.
pub(super) type Area<'s> = DrawingArea<SVGBackend<'s>, Shift>;
/// A picture with two axes.
pub(super) type Chart<'s> = ChartContext<'s, SVGBackend<'s>, Cartesian2d<Axis, Axis>>;

/// Every picture is drawn for a wide page and for a phone, because its text must stay legible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Form {
    Wide,
    Narrow,
}

impl Form {
    pub(crate) const ALL: [Self; 2] = [Self::Wide, Self::Narrow];

    /// The width of the picture, in pixels of the page for which it is meant.
    pub(super) const fn width(self) -> u32 {
        self.pick(960, 360)
    }

    /// The height of text, in pixels.
    pub(super) const fn words(self) -> u32 {
        self.pick(14, 12)
    }

    /// Returns the value for this form.
    pub(super) const fn pick(self, wide: u32, narrow: u32) -> u32 {
        match self {
            Self::Wide => wide,
            Self::Narrow => narrow,
        }
    }
}

/// An axis: its range, and its ticks with their names.
pub(super) struct Axis {
    pub(super) range: Range<f64>,
    pub(super) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// An axis from zero to a little beyond `max`, with about `most` round ticks at most.
    pub(super) fn linear(max: f64, most: u32) -> Self {
        let max = if max > 0.0 { max } else { 1.0 };
        let (step, end) = (round_up(max / f64::from(most)), 1.05 * max);
        let ticks = (0..=(end / step) as u32).map(|index| f64::from(index) * step);
        Self { range: 0.0..end, ticks: ticks.map(|at| (at, tick(at))).collect() }
    }
}

/// The next 1, 2 or 5 times a power of ten.
pub(super) fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0].map(|factor| factor * power).into_iter().find(|round| *round >= value).unwrap_or(10.0 * power)
}

/// A round number without trailing zeros.
pub(crate) fn tick(at: f64) -> String {
    if at >= 1000.0 {
        return count(at.round() as u64);
    }
    let digits = format!("{at:.9}");
    digits.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The unit for times up to `max_us`, and its length in microseconds.
pub(super) fn unit(max_us: f64) -> (&'static str, f64) {
    match max_us {
        ..1e3 => ("µs", 1.0),
        1e3..1e6 => ("ms", 1e3),
        _ => ("s", 1e6),
    }
}

impl Ranged for Axis {
    type ValueType = f64;
    type FormatOption = NoDefaultFormatting;

    fn map(&self, value: &f64, (start, end): (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        start + (f64::from(end - start) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.iter().map(|(at, _)| *at).collect()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        self.ticks.iter().find(|(at, _)| at == value).map(|(_, name)| name.clone()).unwrap_or_default()
    }
}

/// The length of the mark at a tick.
const TICK: i32 = 5;

impl Axis {
    /// The room that the name of the last tick needs to the right of the picture.
    pub(super) fn overhang(&self, form: Form) -> u32 {
        let last = self.ticks.last().map_or(0, |(_, name)| width(name, form.words() - 1, false));
        last as u32 / 2 + 4
    }
}

/// The room around the axes, in pixels.
#[derive(Clone, Copy)]
pub(super) struct Margins {
    pub(super) left: u32,
    pub(super) right: u32,
    pub(super) top: u32,
    pub(super) bottom: u32,
}

/// A picture as text, in the colours of the page. `label` describes it for readers who cannot see it.
pub(super) fn svg(
    (width, height): (u32, u32),
    label: &str,
    draw: impl FnOnce(&Area<'_>) -> Result<(), DrawError>,
) -> Result<String, DrawError> {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, (width, height)).into_drawing_area();
    draw(&area)?;
    area.present()?;
    drop(area);
    let label = maud::html! { (label) }.into_string();
    Ok(themed(&text).replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{label}\" "), 1))
}

/// Draws the axes, and a thin line at each tick.
pub(super) fn axes<'s>(
    area: &Area<'s>,
    margins: Margins,
    x: Axis,
    y: Axis,
    form: Form,
) -> Result<Chart<'s>, DrawError> {
    let mut chart = ChartBuilder::on(area)
        .margin_top(margins.top)
        .margin_right(margins.right)
        .x_label_area_size(margins.bottom)
        .y_label_area_size(margins.left)
        .build_cartesian_2d(x, y)?;
    let grid = ShapeStyle::from(&Ink::Grid.rgb()).stroke_width(1);
    chart
        .configure_mesh()
        .bold_line_style(grid)
        .light_line_style(plotters::style::TRANSPARENT)
        .axis_style(grid)
        .set_all_tick_mark_size(TICK)
        .label_style(words(Ink::Muted, form.words() - 1, false))
        .draw()?;
    Ok(chart)
}

/// The style of text of height `px`, in pixels.
pub(super) fn words(ink: Ink, px: u32, bold: bool) -> TextStyle<'static> {
    /// The SVG backend divides font sizes by this.
    const PLOTTERS_EM: f64 = 1.24;
    let style = if bold { FontStyle::Bold } else { FontStyle::Normal };
    (FontFamily::SansSerif, f64::from(px) * PLOTTERS_EM, style).into_font().color(&ink.rgb()).into_text_style(&(0, 0))
}

/// Writes a line of text that begins at, is centred on, or ends at a pixel, depending on `from`.
pub(super) fn write(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    from: HPos,
    style: &TextStyle<'static>,
) -> Result<(), DrawError> {
    area.draw(&Text::new(text.to_owned(), at, style.pos(Pos::new(from, VPos::Center))))
}

/// The greatest expected width of a line, in pixels. Letters of sans-serif fonts are on average half as wide as high.
pub(super) fn width(text: &str, px: u32, bold: bool) -> i32 {
    let em = if bold { 0.62 } else { 0.57 };
    (text.chars().count() as f64 * f64::from(px) * em).ceil() as i32
}

/// Fills a rectangle.
pub(super) fn fill(area: &Area<'_>, corners: [(i32, i32); 2], ink: Ink) -> Result<(), DrawError> {
    area.draw(&Rectangle::new(corners, ink.rgb().filled()))
}

/// Draws the mark of a protection. The shape differs too: a disc for strict, a triangle for deferred, a diamond for
/// none.
pub(super) fn mark(area: &Area<'_>, at: (i32, i32), radius: i32, protection: Protection) -> Result<(), DrawError> {
    let colour = Ink::of(protection).rgb().filled();
    // A rim in the page's colour separates neighbouring marks.
    let rim = Ink::Page.rgb().stroke_width(1);
    let diamond =
        |radius| vec![(at.0 - radius, at.1), (at.0, at.1 - radius), (at.0 + radius, at.1), (at.0, at.1 + radius)];
    match protection {
        Protection::Strict => {
            area.draw(&Circle::new(at, radius, colour))?;
            area.draw(&Circle::new(at, radius, rim))
        }
        Protection::Deferred => area.draw(&TriangleMarker::new(at, radius + 1, colour)),
        Protection::None => area.draw(&Polygon::new(diamond(radius + 1), colour)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_no_more_than_fit() {
        let names = |max, most| Axis::linear(max, most).ticks.into_iter().map(|(_, name)| name).collect::<Vec<_>>();
        assert_eq!(names(1997.0, 4), ["0", "500", "1,000", "1,500", "2,000"]);
        assert_eq!(names(1.04, 8), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(names(0.0, 4), ["0", "0.5", "1"], "where everything is free");
        assert!((1..2000).all(|max| names(f64::from(max), 8).len() <= 9));
    }

    #[test]
    fn a_phrase_is_narrower_than_the_room_kept_for_it() {
        // The width of this text in DejaVu Sans, a wide font, at 14 pixels.
        assert!(width("freebsd:fixed strict", 14, false) >= 140);
    }
}
