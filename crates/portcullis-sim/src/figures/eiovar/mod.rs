//! EiovaR (FAST'15): what searching for addresses costs, and what free lists save.
//!
//! "The baseline" of the paper is `stock`. Published values are those of its text and tables, and the bars of its
//! Figure 10 as read from the vector drawing.

mod clients;
mod freebsd;
mod iterations;
mod messages;
mod search;
mod table_2;

use super::Figure;
pub(super) use table_2::SHORT_SEARCHES;

/// The figures and tables, in the order of the paper.
pub(super) const FIGURES: [Figure; 12] = [
    search::FIGURE_3,
    iterations::FIGURE_4,
    iterations::FIGURE_5,
    iterations::FIGURE_6,
    iterations::FIGURE_7,
    search::FIGURE_8,
    search::FIGURE_9,
    table_2::FIGURE_10,
    messages::FIGURE_11,
    clients::FIGURE_12,
    table_2::TABLE_2,
    freebsd::TABLE_3,
];

/// What each of them has in common.
const EIOVAR: Figure =
    Figure { id: "", title: "", source: "EiovaR (FAST'15)", group: Some("eiovar"), ..Figure::OF_LABORATORY };
