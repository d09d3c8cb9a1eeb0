//! The beginning of the page: the scores of each paper, and how to read the rest.

use super::counts;
use crate::document::{Figure, Figures, Paper};
use crate::page::counted;
use maud::{Markup, html};

pub(super) fn overview(document: &Figures) -> Markup {
    html! {
        section #overview {
            p {
                "Published numbers, and ours from runs of the designs on simulated servers. With numbers that are scored, \
                 nothing was calibrated. Each number outside its class has a sentence that says why."
            }
            ul.papers {
                @for paper in &document.papers {
                    li {
                        h3 { (paper.source) }
                        @if paper.tally.is_empty() {
                            p.quiet { "Nothing was published that it could be compared with." }
                        } @else {
                            (counts(&paper.tally))
                        }
                        (links(paper, &document.figures))
                    }
                }
            }
            (reading(document))
        }
    }
}

/// The figures of a paper, each with its score.
fn links(paper: &Paper, figures: &[Figure]) -> Markup {
    let of_paper = figures.iter().filter(|figure| paper.figures.contains(&figure.id));
    html! {
        ul.links {
            @for figure in of_paper {
                @let tally = &figure.tally;
                li {
                    a href={ "#" (figure.id) } title=(figure.title) { (figure.id) }
                    @if tally.scored > 0 {
                        " " span class=[(tally.within < tally.scored).then_some("outside")] { (counted(tally.within)) "/" (counted(tally.scored)) }
                    }
                }
            }
        }
    }
}

/// What the numbers, the marks and the classes mean.
fn reading(document: &Figures) -> Markup {
    html! {
        details {
            summary { "How to read this page" }
            p {
                "Each published number has a class, which says how near ours must be. The score is how many are within \
                 their class. Beside it stands the score of a page on which every number is 1, as if nothing made a \
                 difference: the line in the bar. Where the two are close, the score says little."
            }
            p {
                "Published zeros are counted apart, because a run in which nothing happens meets them too. What the model \
                 was calibrated with, and what it was given, is marked and never scored. Whether our choices came before \
                 the first run, and what was changed after it, is in docs/laboratory.md."
            }
            dl { @for class in &document.classes { dt { code { (class.class) } } dd { (class.meaning) } } }
        }
    }
}
