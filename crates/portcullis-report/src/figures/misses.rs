//! The numbers outside their class, each with the reason that the document gives.

use crate::document::{Point, Tolerance};
use crate::page::shown;
use maud::{Markup, html};
use portcullis_sim::number::number;

/// What stands where a document gives no reason.
const NO_REASON: &str = "No reason is given.";

/// The numbers outside, those with the same reason together.
pub(super) fn misses(points: &[&Point]) -> Markup {
    let mut reasons: Vec<(&str, Vec<&Point>)> = Vec::new();
    for point in points.iter().copied().filter(|point| point.is_outside()) {
        let why = point.why.as_deref().unwrap_or(NO_REASON);
        match reasons.iter_mut().find(|(reason, _)| *reason == why) {
            Some((_, of_reason)) => of_reason.push(point),
            None => reasons.push((why, vec![point])),
        }
    }
    html! {
        @if !reasons.is_empty() {
            div.misses {
                h3 { "Outside, and why" }
                @for (why, points) in &reasons {
                    ul { @for point in points { li { (miss(point)) } } }
                    p { (why) }
                }
            }
        }
    }
}

fn miss(point: &Point) -> Markup {
    let value = |value: f64| shown(value, &number(value));
    html! {
        strong { (point.point) }
        @if point.is_shape() {
            @if point.ours.is_some() { ": not there." } @else { ": not made." }
        } @else {
            ": "
            @match point.ours { Some(ours) => { "ours " (value(ours)) } None => "not made" }
            @if let Some(published) = point.published { ", published " (value(published)) }
            @if let Some(tolerance) = point.tolerance { ", expected " (expected(tolerance)) }
            "."
        }
    }
}

/// The range in which a number must lie, in words.
pub(super) fn expected(tolerance: Tolerance) -> Markup {
    let value = |value: f64| shown(value, &number(value));
    match tolerance {
        Tolerance::AtLeast(least) => html! { "at least " (value(least)) },
        Tolerance::AtMost(most) => html! { "at most " (value(most)) },
        Tolerance::Between(least, most) => html! { (value(least)) " to " (value(most)) },
    }
}
