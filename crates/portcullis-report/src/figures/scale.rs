//! The picture of a figure: a line for each number, on which the published one and ours stand on one scale.
//!
//! Ours stands at its ratio to the published number, so numbers of any unit and size share a scale. A ratio to nothing
//! does not exist, so published zeros have a scale of their own. Shapes are there or not.

use super::misses::expected;
use crate::document::{Point, Tolerance};
use crate::page::{cell, heads, scrolled};
use crate::picture::tick;
use maud::{Markup, html};
use portcullis_sim::number::number;

/// The greatest ratio on the scale. The least is its inverse.
const RATIO_MAX: f64 = 5.0;
/// The ticks of ratios, as they are named.
const RATIOS: [(f64, &str); 5] = [(0.25, "¼"), (0.5, "½"), (1.0, "1"), (2.0, "2"), (4.0, "4")];

/// A scale: where a value lies, in percent from its beginning. Values beyond an end are not on it.
#[derive(Clone, Copy)]
enum Scale {
    /// Ratios to the published number, in equal steps for equal factors.
    Ratio,
    /// Values from nothing to this one.
    Linear(f64),
}

impl Scale {
    fn place(self, value: f64, published: f64) -> f64 {
        let share = match self {
            // What has another sign than the published number is beyond every ratio.
            Self::Ratio => 0.5 + 0.5 * (value / published).max(0.0).ln() / RATIO_MAX.ln(),
            Self::Linear(end) => value / end,
        };
        100.0 * share
    }

    /// A thin line at each tick, as a background.
    fn grid(self) -> String {
        let line = |(at, _)| format!("linear-gradient(var(--grid),var(--grid)) {}/1px 100% no-repeat", percent(at));
        self.ticks().into_iter().map(line).collect::<Vec<_>>().join(",")
    }

    /// The places of the ticks, with their names.
    fn ticks(self) -> Vec<(f64, String)> {
        match self {
            Self::Ratio => RATIOS.map(|(ratio, name)| (self.place(ratio, 1.0), name.to_owned())).to_vec(),
            Self::Linear(end) => [0.0, 0.5, 1.0].map(|share| (100.0 * share, tick(share * end))).to_vec(),
        }
    }
}

/// The numbers of a figure, by how they are drawn.
#[derive(Default)]
struct Kinds<'p> {
    scored: Vec<&'p Point>,
    zeros: Vec<&'p Point>,
    shapes: Vec<&'p Point>,
    unscored: Vec<&'p Point>,
    /// Those with which nothing that was published can be compared.
    alone: Vec<&'p Point>,
}

impl<'p> Kinds<'p> {
    fn of(points: &[&'p Point]) -> Self {
        let mut kinds = Self::default();
        for point in points.iter().copied() {
            let has_ratio = point.published.is_some_and(|published| published > 0.0);
            let kind = match (point.tolerance, has_ratio) {
                _ if point.is_shape() => &mut kinds.shapes,
                _ if point.is_of("Z") => &mut kinds.zeros,
                (Some(_), true) => &mut kinds.scored,
                (None, true) => &mut kinds.unscored,
                (_, false) => &mut kinds.alone,
            };
            kind.push(point);
        }
        kinds
    }
}

/// All pictures of a figure.
pub(super) fn pictures(points: &[&Point]) -> Markup {
    let Kinds { scored, zeros, shapes, unscored, alone } = Kinds::of(points);
    let limit = zeros.iter().filter_map(|point| point.tolerance).map(|tolerance| tolerance.ends()[1]);
    let limit = limit.fold(0.0, f64::max);
    // Only numbers of the laboratory have classes, by which they are scored.
    let held = if scored.iter().any(|point| point.class.is_some()) {
        "scored: ours over published"
    } else {
        "with a tolerance: ours over published"
    };
    let unscored_lines = lines("not scored: ours over published", &unscored, Scale::Ratio);
    html! {
        @if [&scored, &zeros, &unscored].iter().any(|points| !points.is_empty()) { (marks()) }
        (lines(held, &scored, Scale::Ratio))
        (lines("published zeros", &zeros, Scale::Linear(2.0 * limit)))
        (list_of_shapes(&shapes))
        @if scored.is_empty() {
            (unscored_lines)
        } @else if !unscored.is_empty() {
            details { summary { "Not scored: calibrated, given, or only shown" } (unscored_lines) }
        }
        @if !alone.is_empty() {
            details {
                summary { "Numbers without a published one" }
                (scrolled("Numbers without a published one", &table(&alone)))
            }
        }
    }
}

/// What the marks on the lines mean.
fn marks() -> Markup {
    html! {
        ul.key.marks {
            li { i.theirs {} "published" }
            li { i.ours {} "ours" }
            li.outside { i.ours {} "ours, outside" }
            li { i.band {} "the range of its class" }
        }
    }
}

/// A line for each number.
fn lines(name: &str, points: &[&Point], scale: Scale) -> Markup {
    html! {
        @if !points.is_empty() {
            table.lines style={ "--ticks:" (scale.grid()) } {
                thead {
                    tr {
                        th scope="col" { (name) }
                        td {
                            div.ticks aria-hidden="true" {
                                @for (at, tick) in scale.ticks() { b style={ "left:" (percent(at)) } data-tick=(tick) {} }
                            }
                        }
                        (heads(&["published", "ours", "class"]))
                    }
                }
                tbody { @for point in points { (line(point, scale)) } }
            }
        }
    }
}

fn line(point: &Point, scale: Scale) -> Markup {
    let is_outside = point.is_outside();
    html! {
        tr class=[is_outside.then_some("outside")] {
            th scope="row" { (point.point) }
            td { (track(point, scale)) }
            (cell(point.published, number))
            @match point.ours { Some(ours) => (cell(Some(ours), number)), None => td { "not made" } }
            td {
                @match &point.class { Some(class) => (class), None => "–" }
                @if is_outside { span.said { ", outside" } }
            }
        }
    }
}

/// The line itself: the range of the class, the published number and ours, and their distance.
fn track(point: &Point, scale: Scale) -> Markup {
    let published = point.published.unwrap_or_default();
    let place = |value: f64| scale.place(value, published);
    let theirs = place(published);
    let ours = point.ours.map(place);
    html! {
        div.track aria-hidden="true" {
            @if let Some(tolerance) = point.tolerance { (band(tolerance, place)) }
            @if let Some(ours) = ours {
                @let (left, right) = (ours.min(theirs).max(0.0), ours.max(theirs).min(100.0));
                i.gap style={ "left:" (percent(left)) ";width:" (percent(right - left)) } {}
            }
            i.theirs style={ "left:" (percent(theirs)) } {}
            @match ours {
                Some(ours) if ours < 0.0 => i.ours.below {},
                Some(ours) if ours > 100.0 => i.ours.above {},
                Some(ours) => i.ours.unscored[point.tolerance.is_none()] style={ "left:" (percent(ours)) } {},
                None => {}
            }
        }
    }
}

/// The range in which ours must lie, as far as it is on the scale.
fn band(tolerance: Tolerance, place: impl Fn(f64) -> f64) -> Markup {
    let [left, right] = tolerance.ends().map(|end| place(end).clamp(0.0, 100.0));
    html! { i.band style={ "left:" (percent(left)) ";width:" (percent(right - left)) } {} }
}

fn percent(at: f64) -> String {
    format!("{at:.1}%")
}

fn list_of_shapes(shapes: &[&Point]) -> Markup {
    html! {
        @if !shapes.is_empty() {
            table.shapes {
                thead { tr { th scope="col" { "shapes" } th scope="col" { "in our runs" } } }
                tbody {
                    @for shape in shapes {
                        tr class=[shape.is_outside().then_some("outside")] {
                            th scope="row" { (shape.point) }
                            td {
                                @match shape.ours {
                                    None => "not made",
                                    Some(_) if shape.is_outside() => "✗ not there",
                                    Some(_) => "✓ there",
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Numbers with which nothing published is compared.
fn table(points: &[&Point]) -> Markup {
    html! {
        thead { tr { (heads(&["number", "published", "ours", "expected", "within"])) } }
        tbody {
            @for point in points {
                tr class=[point.is_outside().then_some("outside")] {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_factors_are_equally_far_from_the_published_number() {
        let place = |value| Scale::Ratio.place(value, 40.0);
        assert_eq!((place(40.0), place(200.0).round(), place(8.0).round()), (50.0, 100.0, 0.0));
        assert!((place(80.0) - 50.0 - (50.0 - place(20.0))).abs() < 1e-9);
        assert!(place(201.0) > 100.0 && place(7.9) < 0.0 && place(-1.0) < 0.0 && place(0.0) < 0.0);
    }

    #[test]
    fn ticks_stand_where_their_values_do() {
        let at = |name: &str| Scale::Ratio.ticks().into_iter().find(|(_, tick)| tick == name).map(|(at, _)| at);
        assert_eq!(at("1"), Some(50.0));
        assert_eq!(at("2"), Some(Scale::Ratio.place(2.0, 1.0)));
        let linear: Vec<_> = Scale::Linear(0.12).ticks();
        assert_eq!(linear[1], (50.0, "0.06".to_owned()));
    }
}
